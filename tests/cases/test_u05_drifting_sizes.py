# SPDX-License-Identifier: MIT
"""Arrays that get a little larger each time, or vary in size, each freed before the
next one, ended in out-of-memory or grew without end. cupy#1392, chainer/chainer#4911,
cupy#8646, https://github.com/cupy/cupy/issues/1392"""

import random

from casekit import MIB, at_rest

from gpumem import MemoryPool

DEVICE = 64 * MIB


def growing():
    yield from range(4096, 20 * MIB, 8192)


def varying():
    rng = random.Random(5)
    for _ in range(400):
        yield rng.randrange(5, 151) * 200_000


def one_at_a_time(sizes, limit):
    pool = MemoryPool()
    pool.set_limit(size=limit)
    largest = 0
    for size in {"growing": growing, "varying": varying}[sizes]():
        pool.malloc(size)
        largest = max(largest, size)
        assert pool.total_bytes() <= (limit or DEVICE)
    stats = pool.stats()
    assert stats["out_of_memory"] == 0
    at_rest(pool)
    print(stats["peak_total_bytes"] / largest)


def test_u05_growing_sizes_never_run_out(apart):
    ratio = float(apart(one_at_a_time, "growing", 0, memory="64MiB"))
    assert 1 <= ratio <= 64 / 20 + 0.01  # the whole device, and no more


def test_u05_varying_sizes_never_run_out(apart):
    ratio = float(apart(one_at_a_time, "varying", 0, memory="64MiB"))
    assert 1 <= ratio <= 3


def test_u05_a_limit_bounds_what_is_held(apart):
    """A program may bound it as tightly as it likes: the largest alone is enough."""
    for sizes, largest in (("growing", 20 * MIB), ("varying", 30 * 10**6)):
        limit = -(-largest // MIB) * MIB
        ratio = float(apart(one_at_a_time, sizes, limit, memory="64MiB"))
        assert 1 <= ratio <= limit / largest + 0.01
