# SPDX-License-Identifier: MIT
"""Memory was freed by hand and once more by its destructor, or by two threads at once,
and was then given to two owners. JuliaGPU/GPUArrays.jl#503, vllm-project/vllm#36651,
https://github.com/JuliaGPU/GPUArrays.jl/issues/503"""

import pytest
from casekit import UNIT, at_rest, in_step

from gpumem import MemoryPool, SingleDeviceMemoryPool

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@POOLS
def test_u25_the_second_free_of_a_pointer_is_nothing(make, unraisable):
    pool = make()
    pointer = pool.malloc(UNIT)
    view = pointer + 8
    pointer.mem.free()
    assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
    pointer.mem.free()
    view.mem.free()
    assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
    other = pool.malloc(UNIT)  # the same block, which is nobody else's now
    pointer.mem.free()
    del pointer, view
    assert pool.used_bytes() == UNIT
    assert pool.malloc(UNIT).ptr != other.ptr
    del other
    at_rest(pool)
    assert unraisable == []


def test_u25_a_block_freed_by_address_is_free_once(unraisable):
    pool = SingleDeviceMemoryPool()
    pointer = pool.malloc(UNIT)
    address = pointer.ptr
    pool.free(address, UNIT)
    assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no live block of this pool") as caught:
            pool.free(address, UNIT)
        assert f"{address:x}" in str(caught.value)
    pointer.mem.free()
    other = pool.malloc(UNIT)
    assert other.ptr == address
    del pointer
    assert pool.used_bytes() == UNIT
    with pytest.raises(RuntimeError, match="no live block"):
        pool.free(address + 8, UNIT)
    with pytest.raises(RuntimeError, match="no live block"):
        SingleDeviceMemoryPool().free(address, UNIT)
    assert pool.used_bytes() == UNIT
    del other
    at_rest(pool)
    assert unraisable == []


@POOLS
@pytest.mark.timeout(120)
def test_u25_two_threads_free_the_same_at_once(make, in_threads, unraisable):
    """Round after round, a fresh pointer; whoever is second finds nothing to do."""
    pool, rounds = make(), 2000
    kept = pool.malloc(UNIT)
    box = [None]

    def take(index):
        if index == 0:
            box[0] = pool.malloc(UNIT)

    def free(index):
        box[0].mem.free()

    def look(index):
        assert (pool.used_bytes(), pool.n_free_blocks()) == (UNIT, 1)

    in_step(in_threads, 2, rounds, take, free, look)
    box.clear()
    stats = pool.stats()
    assert (stats["hits"], stats["misses"]) == (rounds - 1, 2)
    del kept
    at_rest(pool)
    assert unraisable == []


@pytest.mark.timeout(120)
def test_u25_an_address_and_its_pointer_are_freed_at_once(in_threads, unraisable):
    """By the object in one thread and by address in the other, which is told when it
    came too late. Either way the block is free once."""
    pool = SingleDeviceMemoryPool()
    box = [None]
    address = pool.malloc(UNIT).ptr

    def take(index):
        if index == 0:
            box[0] = pool.malloc(UNIT)
            assert box[0].ptr == address

    def free(index):
        if index == 0:
            box[0].mem.free()
            return
        try:
            pool.free(address, UNIT)
        except RuntimeError as error:
            assert f"{address:x}" in str(error)

    def look(index):
        assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)

    in_step(in_threads, 2, 1000, take, free, look)
    box.clear()
    at_rest(pool)
    assert unraisable == []
