# SPDX-License-Identifier: MIT
"""A pool that had begun small could not serve all that its maximum allowed, though
nothing was live. rmm#1957, rmm#1664, https://github.com/rapidsai/rmm/issues/1957"""

import pytest
from casekit import MIB, at_rest

from gpumem import MemoryPool, SingleDeviceMemoryPool

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@POOLS
@pytest.mark.parametrize("share", [4, 2])
def test_u08_a_first_segment_makes_way_for_the_whole_limit(make, share):
    pool = make()
    pool.malloc(64 * MIB // share)
    pool.set_limit(size=64 * MIB)
    whole = pool.malloc(64 * MIB)
    assert pool.total_bytes() == pool.used_bytes() == 64 * MIB
    whole.memset(0, 64 * MIB)
    del whole
    at_rest(pool)


@POOLS
@pytest.mark.parametrize("primed", [0, 5, 8, 64])
def test_u08_eight_eighths_fit(make, primed):
    """Whatever size the pool began with: what is idle is cut up, or makes way."""
    pool = make()
    pool.set_limit(size=64 * MIB)
    if primed:
        pool.malloc(primed * MIB)
    eighths = [pool.malloc(8 * MIB) for _ in range(8)]
    assert pool.used_bytes() == pool.total_bytes() == 64 * MIB
    del eighths
    at_rest(pool)


def the_device_is_the_limit():
    pool = MemoryPool()
    pool.malloc(25 * MIB)
    assert pool.malloc(100 * MIB).mem.size == 100 * MIB
    eighths = [pool.malloc(12 * MIB) for _ in range(8)]
    assert len({pointer.ptr for pointer in eighths}) == 8


def test_u08_so_it_is_where_the_device_is_the_limit(apart):
    apart(the_device_is_the_limit, memory="100MiB")
