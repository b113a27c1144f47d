# SPDX-License-Identifier: MIT
"""With a limit set, a request failed though nothing was in use: the cached block of an
earlier one stood in its way, since the limit was looked at before anything was given
back. cupy#7678, https://github.com/cupy/cupy/issues/7678"""

import pytest
from casekit import (
    MIB,
    collector_off,
    device_calls,
    in_a_cycle,
    memory_calls,
    most_held,
    on_sim,
)

import gpumem
from gpumem import MemoryPool, SingleDeviceMemoryPool, Stream, testing

LIMIT = 64 * MIB
FIRST, SECOND = 32 * MIB, 48 * MIB  # each fits alone, both do not

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


def cached(pool):
    """An address whose memory `pool` has cached."""
    return pool.malloc(FIRST).ptr


def in_garbage(pool):
    pointer = pool.malloc(FIRST)
    in_a_cycle(pointer)
    return pointer.ptr


def of_another_stream(pool):
    with Stream(non_blocking=True):
        return pool.malloc(FIRST).ptr


def in_garbage_of_another_stream(pool):
    with Stream(non_blocking=True):
        return in_garbage(pool)


IN_THE_WAY = pytest.mark.parametrize(
    "prime", [cached, in_garbage, of_another_stream, in_garbage_of_another_stream]
)


def the_second_fits(pool, prime):
    with collector_off():
        address = prime(pool)
        with device_calls() as calls:
            pointer = pool.malloc(SECOND)
    assert pool.total_bytes() == pool.used_bytes() == SECOND
    assert pool.stats()["peak_total_bytes"] <= LIMIT
    if on_sim():  # given back before the next was taken, and only then
        assert memory_calls(calls) == [("mem_free", True), ("mem_alloc", True)]
        assert most_held(calls, {address: FIRST}) <= LIMIT
    testing.check_pool(pool)
    return pointer


@POOLS
@IN_THE_WAY
def test_u01_what_is_idle_makes_room_under_the_limit(make, prime):
    pool = make()
    pool.set_limit(size=LIMIT)
    the_second_fits(pool, prime)


@POOLS
@IN_THE_WAY
@pytest.mark.parametrize("variable", ["GPUMEM_MEMORY_LIMIT", "CUPY_GPU_MEMORY_LIMIT"])
def test_u01_so_it_is_under_a_limit_of_the_environment(
    make, prime, variable, monkeypatch
):
    monkeypatch.delenv("GPUMEM_MEMORY_LIMIT", raising=False)
    monkeypatch.setenv(variable, f"{LIMIT // MIB}MiB")
    pool = make()
    assert pool.get_limit() == LIMIT
    the_second_fits(pool, prime)


def test_u01_so_it_is_under_a_share_of_the_device():
    pool = MemoryPool()
    _, device_total = gpumem.Device().mem_info
    pool.set_limit(fraction=LIMIT / device_total)
    assert LIMIT - 512 <= pool.get_limit() <= LIMIT
    the_second_fits(pool, cached)


def test_u01_what_is_in_use_is_not_given_back(pool):
    pool.set_limit(size=LIMIT)
    kept = pool.malloc(FIRST)
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.malloc(SECOND)
    assert pool.total_bytes() == pool.used_bytes() == FIRST
    kept.memset(1, FIRST)
