# SPDX-License-Identifier: MIT
"""Sizes near the end of what can be expressed wrapped when they were rounded or added:
a request for nearly 2**64 bytes was "0 bytes, success, null pointer". rmm#1156,
torch#182446, cumo#170, https://github.com/rapidsai/rmm/issues/1156"""

import pytest
from casekit import UNIT

import gpumem
from gpumem import MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool, testing

HUGE = [2**64 - 511, 2**64 - 512, 2**64 - 2, 2**64 - 1, 2**63, 2**63 - 1, 2**62]
POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@POOLS
@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("limit", [0, 2**63])
def test_sizes_that_no_device_has_are_out_of_memory(make, size, limit):
    pool = make()
    kept = pool.malloc(UNIT)
    pool.set_limit(size=limit)
    before = pool.stats()
    with pytest.raises(OutOfMemoryError):
        pool.malloc(size)
    after = pool.stats()
    for name in ("used_bytes", "total_bytes", "segments", "live_blocks", "hits"):
        assert after[name] == before[name], name
    testing.check_pool(pool)
    assert pool.malloc(UNIT).mem.size == UNIT
    del kept


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("malloc", [gpumem.malloc, gpumem.malloc_managed])
def test_sizes_that_no_device_has_are_an_error_without_a_pool(malloc, size):
    with pytest.raises((gpumem.CUDARuntimeError, OutOfMemoryError)):
        malloc(size)
    assert testing.last_error() == 0


@POOLS
@pytest.mark.parametrize("size", [-1, -(2**63), 2**64, 2**100])
def test_sizes_that_are_none_are_an_overflow(make, size):
    pool = make()
    for malloc in (pool.malloc, gpumem.malloc, gpumem.alloc):
        with pytest.raises(OverflowError):
            malloc(size)
    assert pool.total_bytes() == 0


@pytest.mark.parametrize("offset", [-1, 2**62, -(2**62), 2**63 - 1, -(2**63), UNIT + 1])
def test_sizes_and_places_stay_inside_the_memory(pool, offset):
    """Whatever is added to a pointer, nothing is written outside of its block."""
    neighbours = [pool.malloc(UNIT) for _ in range(3)]
    for pointer in neighbours:
        pointer.memset(7, UNIT)
    host = bytearray(UNIT)
    for work in (
        lambda: (neighbours[1] + offset).memset(0, UNIT),
        lambda: (neighbours[1] + offset).copy_from_host(bytes(UNIT), UNIT),
        lambda: (neighbours[1] + offset).copy_to_host(host, UNIT),
        lambda: (neighbours[1] + offset).copy_from(neighbours[0], UNIT),
    ):
        with pytest.raises((ValueError, OverflowError)):
            work()
    for pointer in neighbours:
        pointer.copy_to_host(host, UNIT)
        assert host == b"\7" * UNIT


@pytest.mark.parametrize("size", [UNIT + 1, 2**62, 2**64 - 1])
def test_sizes_of_copies_end_with_the_memory(pool, size):
    first, second = pool.malloc(UNIT), pool.malloc(UNIT)
    for work in (
        lambda: first.memset(0, size),
        lambda: first.copy_from(second, size),
        lambda: (first + 8).copy_from(second, UNIT),
        lambda: first.copy_from(second + 8, UNIT),
        lambda: first.memset_async(0, size),
    ):
        with pytest.raises(ValueError):
            work()
