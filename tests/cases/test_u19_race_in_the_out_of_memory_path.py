# SPDX-License-Identifier: MIT
"""Where one thread's failure emptied the cache while others allocated, the process
crashed, hung or had its heap corrupted. cupy#105,
https://github.com/cupy/cupy/issues/105"""

import random
import threading

import pytest
from casekit import KIB, MIB, UNIT, at_rest, switching_often

import gpumem
from gpumem import MemoryPool, OutOfMemoryError, Stream, testing

WORKERS, ROUNDS = 8, 800
DEVICE = 4 * MIB  # so that a third of the requests find it full


def churn(pool, seed, refused):
    rng = random.Random(seed)
    kept = []
    with Stream(non_blocking=True):
        for _ in range(ROUNDS):
            try:
                pointer = pool.malloc(rng.randrange(UNIT, MIB))
            except OutOfMemoryError:
                refused.append(seed)
                kept.clear()
                continue
            pointer.memset(seed, UNIT)
            kept.append((pointer, seed))
            if len(kept) > rng.randrange(21):
                del kept[rng.randrange(len(kept)) :]
            for pointer, value in kept[-2:]:
                host = bytearray(UNIT)
                pointer.copy_to_host(host, UNIT)
                assert host == bytes([value]) * UNIT


def race(kind):
    """All at once; the collector and the emptying of the cache run beside it."""
    pool = getattr(gpumem, kind)()
    errors, refused, left = [], [], [WORKERS]
    done = threading.Event()
    ended = threading.Lock()

    def worker(seed):
        try:
            churn(pool, seed, refused)
        except BaseException as error:
            errors.append(error)
        finally:
            with ended:
                left[0] -= 1
                if not left[0]:
                    done.set()

    def beside(work):
        try:
            while not done.wait(0.001):
                work()
        except BaseException as error:
            errors.append(error)

    def read():
        stats = pool.stats()
        assert stats["total_bytes"] <= DEVICE
        in_all = stats["used_bytes"] + stats["free_bytes"] + stats["pending_bytes"]
        assert in_all == stats["total_bytes"]
        testing.check_pool(pool)

    threads = [
        threading.Thread(target=worker, args=(seed + 1,)) for seed in range(WORKERS)
    ]
    threads += [
        threading.Thread(target=beside, args=(work,))
        for work in (pool.free_all_blocks, read)
    ]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert errors == []
    stats = pool.stats()
    assert stats["retries"] > 0.1 * WORKERS * ROUNDS  # the path was gone, often
    assert stats["out_of_memory"] == len(refused)
    at_rest(pool)


def shared(kind):
    race(kind)
    ledger = testing.ledger()
    assert (ledger.allocations, ledger.errors) == (0, 0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
def test_u19_all_run_out_at_once(apart, kind):
    apart(shared, kind, memory="4MiB", timeout=100)


def each_its_own():
    """Pools of their own on one device empty each other's caches."""
    pools = [MemoryPool() for _ in range(WORKERS)]
    errors = []

    def work(index):
        rng = random.Random(index)
        try:
            for _ in range(200):
                try:
                    pools[index].malloc(rng.randrange(64 * KIB, MIB))
                except OutOfMemoryError:
                    pass  # the others were quicker, each time
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(WORKERS)]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert errors == []
    for pool in pools:
        at_rest(pool)
    assert sum(pool.stats()["retries"] for pool in pools) > 0
    assert testing.ledger().bytes == sum(pool.total_bytes() for pool in pools)


@pytest.mark.timeout(120)
def test_u19_pools_run_out_beside_each_other(apart):
    apart(each_its_own, memory="4MiB", timeout=100)
