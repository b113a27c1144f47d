# SPDX-License-Identifier: MIT
"""The pool was the allocator when memory was taken and not when it was dropped, or the
other way round: an address from the midst of a segment went to the driver's free, or
memory was lost. cumo#173, cumo#191, https://github.com/sonots/cumo/issues/173"""

import pytest
from casekit import UNIT, device_calls, on_sim

import gpumem
from gpumem import MemoryPool, SingleDeviceMemoryPool

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


def addresses_freed(calls):
    return [call.ptr for call in calls if call.name == "mem_free"]


@POOLS
@pytest.mark.parametrize("first", [0, 1])
def test_u36_pooled_memory_goes_to_its_pool(make, first):
    pool = make()
    pool.malloc(2 * UNIT)
    gpumem.set_allocator(pool.malloc)
    blocks = [gpumem.alloc(UNIT), gpumem.alloc(UNIT)]
    assert pool.total_bytes() == 2 * UNIT  # two blocks of one segment
    start = blocks[0].ptr
    gpumem.set_allocator(None)
    with device_calls() as calls:
        del blocks[first]
        assert (pool.used_bytes(), pool.free_bytes()) == (UNIT, UNIT)
        blocks.clear()
        assert (pool.used_bytes(), pool.free_bytes()) == (0, 2 * UNIT)
    assert addresses_freed(calls) == []
    with device_calls() as calls:
        pool.free_all_blocks()
    if on_sim():
        assert addresses_freed(calls) == [start]


@POOLS
def test_u36_raw_memory_goes_to_the_device(make):
    pool = make()
    pointer = gpumem.alloc(UNIT)
    address = pointer.ptr
    gpumem.set_allocator(pool.malloc)
    before = pool.stats()
    with device_calls() as calls:
        del pointer
    if on_sim():
        assert addresses_freed(calls) == [address]
    assert pool.stats() == before


@POOLS
def test_u36_memory_of_one_pool_never_reaches_another(make):
    first, second = make(), make()
    gpumem.set_allocator(first.malloc)
    of_first = gpumem.alloc(UNIT)
    gpumem.set_allocator(second.malloc)
    of_second = gpumem.alloc(3 * UNIT)
    with gpumem.using_allocator(first.malloc):
        del of_second
    assert (first.free_bytes(), second.free_bytes()) == (0, 3 * UNIT)
    del of_first
    assert (first.free_bytes(), second.free_bytes()) == (UNIT, 3 * UNIT)
