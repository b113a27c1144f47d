# SPDX-License-Identifier: MIT
"""The collector ran a finalizer in the midst of an edit of the pool's lists, and the
finalizer came back to the pool. cupy#2074, https://github.com/cupy/cupy/issues/2074"""

import gc

import pytest
from casekit import UNIT, at_rest, in_a_cycle

from gpumem import MemoryPool, SingleDeviceMemoryPool, testing

ROUNDS = 2000

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@pytest.fixture
def always_collecting():
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()  # not pytest's objects each time
    gc.set_threshold(1)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Finalized:
    """Garbage whose end needs the pool."""

    def __init__(self, pool, size, ended):
        self.pool, self.pointer, self.ended = pool, pool.malloc(size), ended
        self.me = self

    def __del__(self):
        first = self.pool.malloc(3 * UNIT)
        self.pool.malloc(7 * UNIT)
        self.pointer = first
        self.ended.append(self.pool.used_bytes())


@POOLS
def test_u21_a_pointer_dies_whenever_the_collector_comes(
    make, always_collecting, unraisable
):
    pool = make()
    for i in range(ROUNDS):
        in_a_cycle(pool.malloc(UNIT * (1 + i % 300)))
        pool.malloc(UNIT * (2 * (i % 150) + 1) - 1)
        if i % 500 == 0:
            testing.check_pool(pool)
    gc.collect()
    at_rest(pool)
    assert unraisable == []


@POOLS
def test_u21_finalizers_may_use_the_pool(make, always_collecting, unraisable):
    pool, ended = make(), []
    for i in range(ROUNDS):
        Finalized(pool, UNIT * (1 + i % 300), ended)
        pool.malloc(UNIT * (2 * (i % 150) + 1) - 1)
        if i % 500 == 0:
            testing.check_pool(pool)
    gc.collect()
    assert len(ended) == ROUNDS
    at_rest(pool)
    assert unraisable == []


@POOLS
def test_u21_so_it_is_where_the_pool_runs_out(make, always_collecting, unraisable):
    """Under a limit the request itself brings the collector, and its finalizers need
    memory under the same limit."""
    pool, ended = make(), []
    pool.set_limit(size=100 * UNIT)
    for i in range(300):
        Finalized(pool, 60 * UNIT, ended)
        pool.malloc(UNIT * (30 + i % 60))
    gc.collect()
    assert len(ended) == 300
    assert pool.stats()["peak_total_bytes"] <= 100 * UNIT
    at_rest(pool)
    assert unraisable == []
