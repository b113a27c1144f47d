# SPDX-License-Identifier: MIT
"""350 MB were refused with 9 GiB used of 40, and nothing said how large a request would
have been served. rmm#93, NVIDIA/cudf-spark#4045,
https://github.com/rapidsai/rmm/issues/93"""

import pytest
from casekit import MIB, UNIT

from gpumem import MemoryPool, OutOfMemoryError, testing


def largest(pool):
    return pool.stats()["largest_available_block"]


def refused(pool, size):
    try:
        pool.malloc(size)
    except OutOfMemoryError as error:
        return error
    raise AssertionError("more than the largest block was served")


def is_the_largest(pool):
    """As much as the query says can be had, and one unit more fails with the figure."""
    size = largest(pool)
    pool.malloc(size)
    assert largest(pool) == size  # what is cached would be given back again
    for more in (1, UNIT):
        error = refused(pool, size + more)
        assert error.largest_available_block == size
        assert error.missing_bytes == UNIT
    return size, error


def a_checkerboard():
    pool = MemoryPool()
    blocks = [pool.malloc(MIB) for _ in range(64)]
    del blocks[::2]
    assert pool.free_bytes() == 32 * MIB
    size, error = is_the_largest(pool)
    assert size == MIB
    assert "33,554,432 bytes free in total, largest block 1,048,576" in str(error)


def test_u18_a_checkerboard(apart):
    apart(a_checkerboard, memory="64MiB")


def idle_beside_free():
    """What is idle counts with what the device has free beside it."""
    pool = MemoryPool()
    kept = pool.malloc(8 * MIB)
    pool.malloc(16 * MIB)  # idle, and next to 40 MiB that are free
    assert pool.stats()["largest_free_block"] == 16 * MIB
    assert is_the_largest(pool)[0] == 56 * MIB
    del kept


def test_u18_counts_what_giving_back_makes_room_for(apart):
    apart(idle_beside_free, memory="64MiB")


def idle_in_another_pool():
    pool, other = MemoryPool(), MemoryPool()
    kept = pool.malloc(UNIT)
    other.malloc(40 * MIB)
    assert is_the_largest(pool)[0] == 64 * MIB - UNIT
    del kept


def test_u18_of_another_pool_too(apart):
    apart(idle_in_another_pool, memory="64MiB")


def under_a_limit():
    pool = MemoryPool()
    pool.set_limit(size=24 * MIB + 100)
    kept = pool.malloc(8 * MIB)
    pool.malloc(4 * MIB)
    assert is_the_largest(pool)[0] == 16 * MIB
    del kept


def test_u18_the_limit_counts(apart):
    apart(under_a_limit, memory="64MiB")


def memory_of_others():
    pool = MemoryPool()
    kept = pool.malloc(MIB)
    testing.set_others(40 * MIB)
    size = largest(pool)
    assert 0 < size <= 23 * MIB
    assert is_the_largest(pool)[0] == size
    testing.set_others(0)
    del kept


def test_u18_and_what_others_hold(apart):
    apart(memory_of_others, memory="64MiB")


@pytest.mark.sim_only
def test_u18_asking_changes_nothing(pool):
    kept = pool.malloc(MIB)
    pool.malloc(3 * MIB)
    before = pool.stats()
    with testing.call_log() as calls:
        largest(pool)
    assert not {call.name for call in calls} & {"mem_alloc", "mem_free"}
    assert pool.stats() == before
    del kept
