# SPDX-License-Identifier: MIT
"""Emptying the cache, or ending the pool, never reached the program's own free
function. cudapy#1619, torch#145168,
https://github.com/NVIDIA/cuda-python/issues/1619"""

import gc

import pytest
from casekit import UNIT, CFunctions, Functions, collector_off, in_a_cycle

from gpumem import MemoryPool, PythonFunctionAllocator, SingleDeviceMemoryPool

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
OVER = pytest.mark.parametrize("over", ["c", "python"])


def pool_over(make, over, functions):
    if over == "c":
        return make(CFunctions(functions).allocator().malloc)
    return make(PythonFunctionAllocator(functions.malloc, functions.free).malloc)


def ten_blocks_in_three_segments(pool, functions):
    for size in (5, 4, 3):
        pool.malloc(size * UNIT)
    segments = [pool.malloc(size * UNIT) for size in (5, 4, 3)]
    starts = [segment.ptr for segment in segments]
    segments.clear()
    blocks = [pool.malloc(UNIT) for _ in range(8)]
    blocks += [pool.malloc(2 * UNIT) for _ in range(2)]
    assert pool.stats()["segments"] == 3
    assert [address for address, _ in functions.taken] == starts
    return blocks


@POOLS
@OVER
def test_u42_once_a_segment_and_never_for_a_piece(make, over, unraisable):
    functions = Functions()
    pool = pool_over(make, over, functions)
    blocks = ten_blocks_in_three_segments(pool, functions)
    pool.free_all_blocks()
    assert functions.freed == []  # all three have live pieces
    blocks.clear()
    assert functions.freed == []
    pool.free_all_blocks()
    assert functions.all_came_back_once() and len(functions.freed) == 3
    assert functions.sizes == [5 * UNIT, 4 * UNIT, 3 * UNIT]
    pool.free_all_blocks()
    assert len(functions.freed) == 3
    assert unraisable == []


@POOLS
@OVER
def test_u42_at_the_end_of_the_pool(make, over, unraisable):
    functions = Functions()
    pool = pool_over(make, over, functions)
    blocks = ten_blocks_in_three_segments(pool, functions)
    pool.malloc(9 * UNIT)
    del blocks[1:]
    del pool
    gc.collect()
    assert len(functions.freed) == 3  # all but the one with the live block
    assert blocks[0].ptr in {ptr for ptr in functions.memories}
    del blocks
    assert functions.all_came_back_once() and len(functions.freed) == 4
    assert unraisable == []


@POOLS
@OVER
def test_u42_when_the_collector_finds_the_pool(make, over, unraisable):
    functions = Functions()
    pool = pool_over(make, over, functions)
    blocks = ten_blocks_in_three_segments(pool, functions)
    with collector_off():
        in_a_cycle([pool, blocks])
        del pool, blocks
        assert functions.freed == []
        gc.collect()
    assert functions.all_came_back_once() and len(functions.freed) == 3
    assert unraisable == []


@POOLS
@OVER
def test_u42_when_memory_runs_out(make, over, unraisable):
    functions = Functions()
    pool = pool_over(make, over, functions)
    pool.set_limit(size=12 * UNIT)
    blocks = ten_blocks_in_three_segments(pool, functions)
    blocks.clear()
    pool.malloc(12 * UNIT)
    assert len(functions.freed) == 3
    pool.free_all_blocks()
    assert functions.all_came_back_once()
    assert unraisable == []
