# SPDX-License-Identifier: MIT
"""The oracle itself: every expected place below was worked out by hand."""

import pytest

from oracle import BestFitPool, OutOfMemory, rounded

K = 1024


def places(*blocks):
    return [block.place for block in blocks]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (1024, 1024), (1 << 40, 1 << 40)],
)
def test_sizes_are_rounded_up_to_512(size, expected):
    assert rounded(size) == expected


def test_each_miss_makes_the_next_segment_of_exactly_the_rounded_size():
    pool = BestFitPool()
    blocks = [pool.malloc(size) for size in (1, 700, 4096)]
    assert places(*blocks) == [(0, 0), (1, 0), (2, 0)]
    assert pool.total == pool.used == 512 + 1024 + 4096
    assert (pool.hits, pool.misses) == (0, 3)


def test_the_smallest_block_that_fits_is_taken():
    pool = BestFitPool()
    blocks = [pool.malloc(size) for size in (8 * K, 2 * K, 4 * K)]
    for block in blocks:
        pool.free(block)
    assert pool.malloc(3 * K).place == (2, 0)  # of 8, 2 and 4 KiB: the 4
    assert pool.malloc(2 * K).place == (1, 0)  # exact
    assert pool.malloc(5 * K).place == (0, 0)  # only the 8 is large enough
    assert (pool.hits, pool.misses) == (3, 3)
    assert pool.total == 14 * K


def test_equal_sizes_go_by_segment_then_by_offset():
    pool = BestFitPool()
    large = pool.malloc(5 * K)
    other = pool.malloc(K)
    pool.free(large)
    a, b, c, d, e = (pool.malloc(K) for _ in range(5))  # cut segment 0 in five
    assert places(a, b, c, d, e) == [(0, 0), (0, K), (0, 2 * K), (0, 3 * K), (0, 4 * K)]
    for block in (d, other, b):  # three blocks of 1 KiB, none next to another
        pool.free(block)
    assert pool.malloc(K).place == (0, K)
    assert pool.malloc(K).place == (0, 3 * K)
    assert pool.malloc(K).place == (1, 0)


def test_the_tail_of_a_cut_block_stays_free_even_one_unit():
    pool = BestFitPool()
    pool.free(pool.malloc(K))
    head = pool.malloc(512)
    tail = pool.malloc(512)
    assert places(head, tail) == [(0, 0), (0, 512)]
    assert pool.total == K


@pytest.mark.parametrize(
    "order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
)
def test_freed_neighbours_join_in_any_order(order):
    pool = BestFitPool()
    pool.free(pool.malloc(3 * K))
    blocks = [pool.malloc(K) for _ in range(3)]
    for index in order:
        pool.free(blocks[index])
    assert pool.malloc(3 * K).place == (0, 0)
    assert (pool.used, pool.total) == (3 * K, 3 * K)


def test_live_neighbours_keep_free_blocks_apart():
    pool = BestFitPool()
    pool.free(pool.malloc(3 * K))
    left, _middle, right = (pool.malloc(K) for _ in range(3))
    pool.free(left)
    pool.free(right)
    assert pool.malloc(2 * K).place == (1, 0)


def test_segments_never_join():
    pool = BestFitPool()
    first, second = pool.malloc(K), pool.malloc(K)
    pool.free(first)
    pool.free(second)
    assert pool.malloc(2 * K).place == (2, 0)


def test_streams_do_not_share():
    pool = BestFitPool()
    block = pool.malloc(K, stream=1)
    pool.free(block)
    assert pool.malloc(K, stream=0).place == (1, 0)
    assert pool.malloc(K, stream=1).place == (0, 0)


def test_peaks_and_sums():
    pool = BestFitPool()
    a = pool.malloc(700)
    b = pool.malloc(512)
    pool.free(a)
    c = pool.malloc(300)  # out of the 1024 of `a`
    assert (pool.used, pool.peak_used) == (1024, 1536)
    assert (pool.total, pool.peak_total) == (1536, 1536)
    pool.free(b)
    pool.free(c)
    pool.release_idle()
    assert (pool.used, pool.total, pool.upstream_frees) == (0, 0, 2)
    assert (pool.peak_used, pool.peak_total) == (1536, 1536)
    assert pool.malloc(1).place == (2, 0)  # serials go on


def test_the_limit_gives_idle_segments_of_all_streams_back_first():
    pool = BestFitPool(limit=4 * K)
    pool.free(pool.malloc(K, stream=0))
    pool.free(pool.malloc(K, stream=1))
    half = pool.malloc(2 * K, stream=1)
    assert pool.total == 4 * K
    assert pool.malloc(2 * K, stream=0).place == (3, 0)
    assert (pool.total, pool.upstream_frees) == (4 * K, 2)
    with pytest.raises(OutOfMemory):
        pool.malloc(1, stream=0)
    assert (pool.total, pool.used) == (4 * K, 4 * K)
    pool.free(half)
    assert pool.malloc(1, stream=0).place == (4, 0)


@pytest.mark.parametrize("live", [0, 1])
def test_a_segment_in_use_is_not_given_back(live):
    pool = BestFitPool(limit=2 * K)
    pool.free(pool.malloc(2 * K))
    ends = [pool.malloc(K), pool.malloc(K)]
    pool.free(ends[1 - live])
    with pytest.raises(OutOfMemory):
        pool.malloc(2 * K)
    assert (pool.total, pool.upstream_frees) == (2 * K, 0)


def test_a_double_free_is_refused():
    pool = BestFitPool()
    block = pool.malloc(1)
    pool.free(block)
    with pytest.raises(ValueError, match="twice"):
        pool.free(block)
