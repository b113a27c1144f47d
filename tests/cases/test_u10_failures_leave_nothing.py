# SPDX-License-Identifier: MIT
"""A request that failed half-way left counters or blocks behind, and repeated failures
added up; out of memory arrived as an error of another class. vllm-project/vllm#34600,
cumo#229, cumo#438, chainer/chainer#748,
https://github.com/sonots/cumo/issues/229"""

import gc
import sysconfig

import pytest
from casekit import MIB, UNIT, Functions, resident_bytes

import gpumem
from gpumem import (
    CUDARuntimeError,
    MemoryHook,
    MemoryPool,
    OutOfMemoryError,
    PythonFunctionAllocator,
    testing,
)

OUT_OF_MEMORY, INVALID_VALUE, NOT_PERMITTED, ILLEGAL_ADDRESS = 2, 1, 800, 700
WARM, MANY = 2_000, 20_000
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    WARM, MANY = 500, 5_000  # a collection looks at what is frozen too, for 2 ms
# What changes when a request fails: how often it was tried, and what was cached.
TRIES = ("retries", "out_of_memory")
CACHE = (
    *("free_bytes", "total_bytes", "free_blocks", "segments", "idle_bytes"),
    *("upstream_frees", "upstream_freed_bytes"),
    *("largest_free_block", "largest_available_block"),
)


def over_the_device():
    return MemoryPool()


def over_an_allocator():
    return MemoryPool(gpumem.malloc)


def over_functions():
    functions = Functions()
    return MemoryPool(PythonFunctionAllocator(functions.malloc, functions.free).malloc)


BASES = pytest.mark.parametrize(
    "make", [over_the_device, over_an_allocator, over_functions]
)
LIMITS = pytest.mark.parametrize("limit", [0, MIB])
KS = pytest.mark.parametrize("k", range(1, 7))


class Told(MemoryHook):
    """Requests and attempts that began and have not ended."""

    open = 0

    def alloc_preprocess(self, **kwargs):
        self.open += 1

    def malloc_preprocess(self, **kwargs):
        self.open += 1

    def alloc_postprocess(self, **kwargs):
        self.open -= 1

    def malloc_postprocess(self, **kwargs):
        self.open -= 1


def compared(stats, without):
    return {name: number for name, number in stats.items() if name not in without}


def state(pool):
    return pool.used_bytes(), pool.free_bytes(), pool.total_bytes()


@pytest.mark.sim_only
@BASES
@LIMITS
@KS
@pytest.mark.parametrize("code", [INVALID_VALUE, NOT_PERMITTED, ILLEGAL_ADDRESS])
def test_u10_an_error_of_the_device_is_that_error_and_changes_nothing(
    make, limit, k, code
):
    """Whichever of its calls fails; want of memory is no part of it."""
    pool, hook = make(), Told()
    pool.set_limit(size=limit)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    more = []
    with hook, testing.fail("mem_alloc", nth=k, code=code):
        for size in range(5, 20):
            before = pool.stats()
            try:
                more.append(pool.malloc(size * UNIT))
            except CUDARuntimeError as error:
                assert error.status == code
                assert pool.stats() == before
                break
        else:
            raise AssertionError("nothing failed")
    assert len(more) == k - 1
    assert hook.open == 0
    assert testing.last_error() == 0
    testing.check_pool(pool)
    del kept, more
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
@BASES
@LIMITS
@KS
def test_u10_one_shortage_is_survived_and_changes_nothing(make, limit, k):
    """It costs the cache and an attempt."""
    pool, hook = make(), Told()
    pool.set_limit(size=limit)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    with hook, testing.fail("mem_alloc", nth=k, code=OUT_OF_MEMORY):
        more = [pool.malloc(size * UNIT) for size in range(5, 12)]
    assert pool.used_bytes() == (1 + sum(range(5, 12))) * UNIT
    assert pool.stats()["out_of_memory"] == 0
    assert hook.open == 0
    assert testing.last_error() == 0
    testing.check_pool(pool)
    del kept, more
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
@BASES
@LIMITS
@KS
def test_u10_a_lasting_shortage_is_out_of_memory_and_takes_nothing(make, limit, k):
    pool, hook = make(), Told()
    pool.set_limit(size=limit)
    kept = [pool.malloc(UNIT)]
    pool.malloc(4 * UNIT)
    with hook, testing.fail("mem_alloc", nth=k, count=0, code=OUT_OF_MEMORY):
        for size in range(5, 20):
            before = pool.stats()
            used = pool.used_bytes()
            try:
                kept.append(pool.malloc(size * UNIT))
            except OutOfMemoryError as error:
                assert (error.size, error.total) == (size * UNIT, used)
                assert error.limit == limit
                break
        else:
            raise AssertionError("nothing failed")
    assert len(kept) == k
    assert state(pool) == (used, 0, used)
    after = pool.stats()
    assert compared(after, TRIES + CACHE) == compared(before, TRIES + CACHE)
    assert after["out_of_memory"] == before["out_of_memory"] + 1
    assert hook.open == 0
    assert testing.last_error() == 0
    testing.check_pool(pool)
    del kept
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
@pytest.mark.parametrize("request_", [gpumem.malloc, gpumem.malloc_managed])
@pytest.mark.parametrize("code", [OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS])
def test_u10_raw_requests_name_the_error_of_the_device(request_, code):
    before = testing.ledger()
    with testing.fail("mem_alloc", code=code):
        with pytest.raises(CUDARuntimeError) as caught:
            request_(UNIT)
    assert caught.value.status == code
    assert testing.ledger() == before


@BASES
@pytest.mark.parametrize("limit", [0, 2 * MIB])
def test_u10_out_of_memory_is_always_of_one_class(make, limit):
    """Callers catch by class: what cannot be had is an OutOfMemoryError, which is a
    MemoryError, whichever way the memory goes."""
    pool = make()
    pool.set_limit(size=limit)
    for size in (1 << 61, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        with pytest.raises(MemoryError) as caught:
            pool.malloc(size)
        assert type(caught.value) is OutOfMemoryError
    assert state(pool) == (0, 0, 0)


def many_failures(limit):
    pool, hook = MemoryPool(), Told()
    pool.set_limit(size=limit)
    kept = pool.malloc(MIB)
    gc.collect()
    gc.freeze()  # each failure collects garbage, of which there is none
    before = pool.stats()
    with hook:
        for count in range(WARM + MANY):
            try:
                pool.malloc(1 << 61)
            except OutOfMemoryError as error:
                assert (error.size, error.total) == (1 << 61, MIB)
            else:
                raise AssertionError("more than any device has")
            if count == WARM:
                start = resident_bytes()
    grown = resident_bytes() - start
    after = pool.stats()
    assert compared(after, TRIES) == compared(before, TRIES)
    assert after["out_of_memory"] == WARM + MANY
    assert hook.open == 0
    assert grown < 52 * MANY, grown  # less than the smallest thing one could lose
    kept.memset(1, MIB)
    testing.check_pool(pool)


@pytest.mark.parametrize("limit", [0, 2 * MIB])
def test_u10_thousands_of_failures_cost_nothing(apart, limit):
    apart(many_failures, limit, memory="64MiB")
