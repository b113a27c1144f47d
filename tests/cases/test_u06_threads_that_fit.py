# SPDX-License-Identifier: MIT
"""Two threads, each with one block at a time on a stream of its own, ran out of memory
although what was live always fitted. JuliaGPU/CUDA.jl#1522,
https://github.com/JuliaGPU/CUDA.jl/issues/1522"""

import threading
import time

import pytest
from casekit import MIB, at_rest, switching_often

from gpumem import Memory, MemoryPointer, MemoryPool, Stream

ROUNDS = 500


def take_turns(threads, share, pools):
    """Runs the threads on a full device; `pools` is how many pools they share."""
    all_pools = [MemoryPool() for _ in range(pools)]
    size = int(share * 100) * MIB
    failed = []
    start = threading.Barrier(threads)

    def work(index):
        pool = all_pools[index % pools]
        try:
            with Stream(non_blocking=True):
                start.wait(30)
                for _ in range(ROUNDS):
                    pool.malloc(size)
        except Exception as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    with switching_often():
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
    assert failed == []
    for pool in all_pools:
        at_rest(pool)
        assert pool.stats()["out_of_memory"] == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pools", [1, 2])
@pytest.mark.parametrize(("threads", "share"), [(2, 0.4), (4, 0.2)])
def test_u06_what_fits_is_never_refused(apart, threads, share, pools):
    apart(take_turns, threads, share, pools, memory="100MiB")


@pytest.mark.timeout(120)
def test_u06_nor_where_the_others_cache_must_go_each_time(apart):
    """The two blocks fit, but not beside a third that is cached."""
    apart(take_turns, 2, 0.48, 1, memory="100MiB")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("threads", [2, 4, 8])
def test_u06_nor_while_what_is_idle_is_on_its_way_back(in_threads, threads):
    """One more thread empties the cache all the time, which takes a while, and the
    limit has room for what is live and nothing beside. A limit, unlike a device, leaves
    no holes."""

    class Slow(Memory):
        def __del__(self):
            time.sleep(0.002)

    pool = MemoryPool(lambda size: MemoryPointer(Slow(size), 0))
    pool.set_limit(size=threads * 16 * MIB)
    working = set(range(threads))

    def work(index):
        if index == threads:
            while working:
                pool.free_all_blocks()
                time.sleep(0.0001)
            return
        try:
            with Stream(non_blocking=True):
                for _ in range(100):
                    pointer = pool.malloc(16 * MIB)
                    time.sleep(0.001)
                    del pointer
                    time.sleep(0.001)
        finally:
            working.remove(index)

    with switching_often():
        in_threads(threads + 1, work)
    at_rest(pool)
    stats = pool.stats()
    assert stats["out_of_memory"] == 0
    assert stats["upstream_frees"] > 20
    pool.free_all_blocks()
