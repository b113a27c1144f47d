# SPDX-License-Identifier: MIT
"""A quarter of the memory and more went into rounding, which users found out by
nvidia-smi. inducer/pyopencl#277, torch#88575,
https://github.com/pytorch/pytorch/issues/88575"""

import pytest
from casekit import UNIT

from gpumem import MemoryPool, SingleDeviceMemoryPool

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@POOLS
def test_u17_what_was_asked_for_is_counted_beside_what_it_takes(make):
    pool = make()
    blocks = [pool.malloc(513) for _ in range(1000)]
    stats = pool.stats()
    assert stats["requested_bytes"] == 513_000
    assert stats["used_bytes"] == pool.used_bytes() == 1_024_000
    del blocks[::2]
    stats = pool.stats()
    assert stats["requested_bytes"] == 256_500
    assert stats["used_bytes"] == 512_000
    del blocks
    stats = pool.stats()
    assert (stats["requested_bytes"], stats["used_bytes"]) == (0, 0)
    assert stats["peak_requested_bytes"] == 513_000
    assert stats["peak_used_bytes"] == 1_024_000


@POOLS
@pytest.mark.parametrize("size", [1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT])
def test_u17_a_block_that_is_used_again_counts_what_was_asked_this_time(make, size):
    pool = make()
    pool.malloc(8 * UNIT)
    pointer = pool.malloc(size)
    stats = pool.stats()
    assert stats["requested_bytes"] == size
    assert stats["used_bytes"] == pointer.mem.size == -(-size // UNIT) * UNIT
    pointer.mem.free()
    assert pool.stats()["requested_bytes"] == 0
