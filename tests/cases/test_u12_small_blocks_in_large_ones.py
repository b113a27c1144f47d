# SPDX-License-Identifier: MIT
"""In each round a small block that lived long took its part of the large one that was
cached, so that the next large one needed new memory. nanoporetech/dorado#1358,
torch#44742, https://github.com/pytorch/pytorch/issues/44742"""

import pytest
from casekit import MIB

from gpumem import MemoryPool, SingleDeviceMemoryPool

LARGE, SMALL, ROUNDS = 64 * MIB, MIB, 10


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_u12_the_small_ones_share_one_large_block(make):
    """The smallest block that fits is taken, which is what is left of the first: one
    large block is spoilt, and not one in each round."""
    pool = make()
    kept = []
    for _ in range(ROUNDS):
        pool.malloc(LARGE)
        kept.append(pool.malloc(SMALL))
    assert pool.total_bytes() == 2 * LARGE
    stats = pool.stats()
    assert stats["inactive_split_bytes"] == LARGE - ROUNDS * SMALL
    assert stats["idle_bytes"] == LARGE
    assert stats["largest_free_block"] == LARGE
    kept.clear()
    stats = pool.stats()
    assert (stats["inactive_split_bytes"], stats["idle_bytes"]) == (0, 2 * LARGE)


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_u12_growth_is_shown_where_it_cannot_be_helped(make):
    """With nothing else to take from, each round spoils a large block of its own size;
    the statistics say how much is stuck that way."""
    pool = make()
    kept = []
    for i in range(1, ROUNDS + 1):
        pool.malloc(i * SMALL + LARGE)
        kept.append(pool.malloc(i * SMALL + LARGE - SMALL))
        stats = pool.stats()
        assert stats["inactive_split_bytes"] == i * SMALL
        assert stats["idle_bytes"] == 0
    pool.free_all_blocks()
    assert pool.stats()["inactive_split_bytes"] == ROUNDS * SMALL == pool.free_bytes()
