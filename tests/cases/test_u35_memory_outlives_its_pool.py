# SPDX-License-Identifier: MIT
"""The pool object died before its memory, and the memory went away under its users.
rmm#1314, NVIDIA/raft#2922, torch#133600,
https://github.com/rapidsai/rmm/issues/1314"""

import gc

import pytest
from casekit import (
    MIB,
    UNIT,
    Functions,
    collector_off,
    content,
    device_calls,
    on_sim,
    pattern,
    written,
)

import gpumem
from gpumem import MemoryPool, PythonFunctionAllocator, SingleDeviceMemoryPool, testing

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


def itself(pointer):
    return pointer


def a_place_inside(pointer):
    return pointer + UNIT


def its_memory(pointer):
    return gpumem.MemoryPointer(pointer.mem, 0)


@POOLS
@pytest.mark.parametrize("keep", [itself, a_place_inside, its_memory])
def test_u35_the_bytes_stay_and_go_back_once(make, keep):
    with device_calls() as calls:
        pointer = make().malloc(MIB)
        address, size = pointer.ptr, MIB - UNIT
        pointer = keep(pointer)
        gc.collect()
        written(pointer, size)
        others = [gpumem.malloc(MIB) for _ in range(3)]
        for other in others:
            assert not address <= other.ptr < address + MIB
            other.memset(0xFF, MIB)
        assert content(pointer, size) == pattern(size)
        assert pointer.mem.pool() is None
        del others, other
        with collector_off():
            del pointer
    frees = [call for call in calls if call.name == "mem_free" and call.ptr == address]
    if on_sim():
        assert [call.status for call in frees] == [0]


@POOLS
def test_u35_the_last_of_several_blocks_gives_all_back(make):
    functions = Functions()
    allocator = PythonFunctionAllocator(functions.malloc, functions.free)
    pool = make(allocator.malloc)
    pool.malloc(4 * UNIT)  # is cached, and cut below
    blocks = [pool.malloc(UNIT) for _ in range(5)]
    del allocator, pool
    gc.collect()
    while len(blocks) > 1:
        blocks.pop(0)
        assert len(functions.freed) == 0 or blocks[0].ptr not in dict(functions.freed)
        blocks[0].memset(1, UNIT)
    blocks.clear()
    assert functions.all_came_back_once()


def test_u35_it_outlives_its_time_as_the_allocator():
    gpumem.set_allocator(MemoryPool().malloc)
    pointer = written(gpumem.alloc(MIB), MIB)
    gpumem.set_allocator(None)
    gc.collect()
    with gpumem.using_allocator(MemoryPool().malloc):
        scoped = written(gpumem.alloc(MIB), MIB, seed=2)
    gc.collect()
    gpumem.malloc(MIB).memset(0xFF, MIB)
    assert content(pointer, MIB) == pattern(MIB)
    assert content(scoped, MIB) == pattern(MIB, seed=2)


def all_at_the_end():
    """Whatever is dropped first, the device has everything back."""
    for make in (MemoryPool, SingleDeviceMemoryPool):
        pool = make()
        kept = [pool.malloc(size * UNIT) for size in (1, 2, 3)]
        pool.malloc(9 * UNIT)
        view = kept[1] + 5
        del pool
        kept.clear()
        view.memset(0, UNIT)
        del view
    ledger = testing.ledger()
    assert (ledger.allocations, ledger.bytes, ledger.errors) == (0, 0, 0)


def test_u35_the_device_has_everything_back(apart):
    apart(all_at_the_end)
