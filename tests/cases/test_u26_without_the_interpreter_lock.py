# SPDX-License-Identifier: MIT
"""Importing the extension switched the interpreter's lock on again, and what all
threads share was changed by several at once. cupy#8998, NVIDIA/numba-cuda#897,
ai-dynamo/dynamo#9575, NVIDIA/cccl#6422, https://github.com/cupy/cupy/issues/8998"""

import gc
import random
import sys
import sysconfig
import threading

import pytest
from casekit import UNIT, at_rest, in_a_cycle, switching_often

import gpumem
from gpumem import MemoryHook, MemoryPool, OutOfMemoryError, Stream, testing

THREADS = 16
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

pytestmark = pytest.mark.timeout(120)


def import_and_use():
    assert not sys._is_gil_enabled()
    pool = MemoryPool()
    pool.malloc(UNIT).memset(1, UNIT)
    pool.free_all_blocks()
    assert not sys._is_gil_enabled()


@pytest.mark.skipif(not FREE_THREADED, reason="needs a free-threaded interpreter")
@pytest.mark.parametrize("gil", ["0", None])
def test_u26_the_lock_stays_off(apart, gil):
    """Asked for or by default, and no warning is given."""
    apart(import_and_use, PYTHON_GIL=gil, options=("-W", "error"))


class Counts(MemoryHook):
    def __init__(self):
        self.mallocs = self.frees = 0

    def malloc_postprocess(self, **kwargs):
        self.mallocs += 1

    def free_postprocess(self, **kwargs):
        self.frees += 1


def test_u26_allocators_and_hooks_are_switched_by_all(in_threads, unraisable):
    pools = [MemoryPool() for _ in range(3)]

    def work(index):
        for i in range(150):
            mine = pools[(index + i) % 3]
            gpumem.set_allocator(pools[i % 3].malloc if i % 4 else None)
            assert callable(gpumem.get_allocator())
            hook = Counts()
            with hook, gpumem.using_allocator(mine.malloc):
                assert gpumem.get_allocator() == mine.malloc
                pointer = gpumem.alloc(UNIT)
                assert pointer.mem.size == UNIT
                del pointer
            assert (hook.mallocs, hook.frees) == (1, 1)
            gpumem.alloc(UNIT)

    with switching_often():
        in_threads(THREADS, work)
    gpumem.set_allocator(None)
    for pool in pools:
        at_rest(pool)
    assert unraisable == []


def test_u26_sixteen_threads_run_out_and_free_neighbours(in_threads, unraisable):
    """The races in the out-of-memory path and between neighbours, with garbage that
    dies wherever the collector comes."""
    pool = MemoryPool()
    pool.set_limit(size=300 * UNIT)

    def work(index):
        rng, kept = random.Random(index), []
        with Stream(non_blocking=True):
            for i in range(150):
                try:
                    kept.append(pool.malloc(rng.randrange(1, 40 * UNIT)))
                    if i % 10 == 0:
                        in_a_cycle(kept.pop())
                except OutOfMemoryError:
                    kept.clear()
                if len(kept) > 3:
                    del kept[rng.randrange(4)]
                if i % 50 == index:
                    pool.free_all_blocks()
                if i % 25 == 0:
                    stats = pool.stats()
                    assert stats["total_bytes"] <= 300 * UNIT

    with switching_often():
        in_threads(THREADS, work)
    gc.collect()
    at_rest(pool)
    assert pool.stats()["peak_total_bytes"] <= 300 * UNIT
    assert unraisable == []


def test_u26_one_object_is_used_by_all(pool, in_threads, unraisable):
    """Pools, memory and pointers are shared; each thread looks, copies and frees."""
    source = pool.malloc(4 * UNIT)
    source.memset(7, 4 * UNIT)
    shared = [pool.malloc(UNIT) for _ in range(200)]
    freed = threading.Barrier(THREADS, timeout=60)

    def work(index):
        host = bytearray(UNIT)
        for pointer in shared:
            assert (pointer + index).ptr == pointer.ptr + index
            (source + index).copy_to_host(host, UNIT)
            assert host == b"\7" * UNIT
            assert pointer.mem.size == UNIT and repr(pointer)
        freed.wait()
        for pointer in shared:
            pointer.mem.free()

    in_threads(THREADS, work)
    assert pool.used_bytes() == source.mem.size
    assert pool.n_free_blocks() == 200
    shared.clear()
    testing.check_pool(pool)
    assert unraisable == []
