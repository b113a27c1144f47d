# SPDX-License-Identifier: MIT
"""A block whose size class had been compacted away could not be put back: the free
raised inside a destructor and the block was lost. cupy#1165,
https://github.com/cupy/cupy/issues/1165"""

import pytest
from casekit import KIB, MIB, UNIT, at_rest

from gpumem import MemoryPool, SingleDeviceMemoryPool


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_u15_every_block_goes_back_whatever_sizes_came_and_went(make, unraisable):
    pool = make()
    for k in range(1, 1025):
        pool.malloc(UNIT * k)
    assert pool.used_bytes() == 0
    kept = [pool.malloc(UNIT * k) for k in range(1, 1025)]
    assert pool.used_bytes() == UNIT * 1024 * 1025 // 2
    pool.malloc(MIB)
    half = pool.malloc(512 * KIB)
    last = pool.malloc(1024)
    del last
    del half, kept
    at_rest(pool)
    assert unraisable == []
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_u15_so_it_is_when_the_cache_is_emptied_in_between(pool, unraisable):
    """All size classes go while blocks of them are live."""
    for _ in range(3):
        kept = [pool.malloc(UNIT * k) for k in range(1, 257)]
        for k in range(1, 257):
            pool.malloc(UNIT * (k + 300))
        pool.free_all_blocks()
        assert pool.free_bytes() == 0
        del kept[::2]
        pool.free_all_blocks()
        del kept
        at_rest(pool)
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
    assert unraisable == []
