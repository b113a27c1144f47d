# SPDX-License-Identifier: MIT
"""A callback that was asked to spill gave back to the pool that asked, and hung on that
pool's lock; so did whoever read a statistic meanwhile. rmm#892, rmm#1504,
rapidsai/rapidsmpf#349, https://github.com/rapidsai/rmm/issues/892"""

import threading

import pytest
from casekit import MIB, Functions

import gpumem
from gpumem import MemoryHook, MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool

pytestmark = pytest.mark.timeout(30)
KINDS = pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])


class Reader:
    """A thread that reads the pool's numbers all the time."""

    def __init__(self, pool):
        self.pool, self.over, self.reads = pool, threading.Event(), 0
        self.thread = threading.Thread(target=self.read, daemon=True)

    def read(self):
        while not self.over.wait(0.001):
            assert self.pool.used_bytes() <= 80 * MIB
            assert self.pool.stats()["used_bytes"] <= 80 * MIB
            self.reads += 1

    def waits_for_reads(self):
        """Until the other thread got through twice: it is not held up."""
        before = self.reads
        while self.reads < before + 2:
            assert self.thread.is_alive()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.over.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def a_callback_spills(kind):
    pool = getattr(gpumem, kind)()
    held = {"p": pool.malloc(80 * MIB)}
    asked = []

    def callback(error):
        asked.append((threading.get_ident(), error.cause, error.missing_bytes // MIB))
        reader.waits_for_reads()
        del held["p"]
        reader.waits_for_reads()
        return True

    pool.set_out_of_memory_callback(callback)
    with Reader(pool) as reader:
        pointer = pool.malloc(50 * MIB)
    assert asked == [(threading.get_ident(), "full", 30)]
    assert (pool.used_bytes(), pool.free_bytes()) == (50 * MIB, 30 * MIB)
    stats = pool.stats()
    assert (stats["out_of_memory"], stats["live_blocks"]) == (0, 1)
    del pointer


@KINDS
def test_u09_what_the_callback_gives_back_serves_the_request(apart, kind):
    apart(a_callback_spills, kind, memory="100MiB", timeout=30)


def a_hook_spills(kind):
    """It is told of each attempt; what it drops before one serves that."""
    pool = getattr(gpumem, kind)()
    held = {"p": pool.malloc(80 * MIB)}
    seen = []

    class Spills(MemoryHook):
        def alloc_preprocess(self, **kwargs):
            seen.append(threading.get_ident())
            reader.waits_for_reads()
            held.pop("p", None)

    with Reader(pool) as reader, Spills():
        pointer = pool.malloc(50 * MIB)
    assert set(seen) == {threading.get_ident()}
    assert pool.used_bytes() == 50 * MIB
    del pointer


@KINDS
def test_u09_so_does_what_a_hook_drops(apart, kind):
    apart(a_hook_spills, kind, memory="100MiB", timeout=30)


def an_allocator_spills():
    functions = Functions()

    def malloc(size, device):
        reader.waits_for_reads()
        held.pop("p", None)
        pool.free_all_blocks()
        return functions.malloc(size, device)

    pool = MemoryPool(gpumem.PythonFunctionAllocator(malloc, functions.free).malloc)
    held = {}
    with Reader(pool) as reader:
        held["p"] = pool.malloc(80 * MIB)
        pointer = pool.malloc(50 * MIB)
    assert pool.total_bytes() == pool.used_bytes() == 50 * MIB
    del pointer
    pool.free_all_blocks()
    assert functions.all_came_back_once()


def test_u09_so_does_what_the_allocator_below_drops(apart):
    apart(an_allocator_spills, memory="100MiB", timeout=30)


def test_u09_two_threads_are_asked_without_waiting_for_each_other(in_threads):
    """Each callback goes on only once the other one runs too."""
    pool = SingleDeviceMemoryPool()
    pool.set_limit(size=MIB)
    both = threading.Barrier(2)

    def callback(error):
        both.wait(20)
        return False

    def work(index):
        with pytest.raises(OutOfMemoryError):
            pool.malloc(2 * MIB)

    pool.set_out_of_memory_callback(callback)
    in_threads(2, work)
    assert pool.stats()["out_of_memory"] == 2
