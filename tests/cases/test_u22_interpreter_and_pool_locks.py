# SPDX-License-Identifier: MIT
"""One thread held the allocator's lock and wanted the interpreter, to note where it
was; another held the interpreter and wanted the allocator's lock. torch#97833,
NVIDIA/numba-cuda#317, cudapy#2759, https://github.com/pytorch/pytorch/issues/97833"""

import random
import sys
import traceback

import pytest
from casekit import UNIT, at_rest, switching_often

import gpumem
from gpumem import (
    MemoryHook,
    MemoryPool,
    OutOfMemoryError,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
    Stream,
)

THREADS, ROUNDS = 8, 150

pytestmark = pytest.mark.timeout(120)


class WalksTheStack(MemoryHook):
    """Notes who asked, as a profiler does, and asks the pool for its numbers."""

    def __init__(self, pool):
        self.pool, self.seen = pool, []

    def look(self, **kwargs):
        stack = traceback.walk_stack(sys._getframe())
        self.seen.append([frame.f_code.co_name for frame, _ in stack])
        self.pool.used_bytes()
        self.pool.n_free_blocks()

    alloc_preprocess = alloc_postprocess = look
    malloc_preprocess = malloc_postprocess = look
    free_preprocess = free_postprocess = look


def over_the_device(make):
    return make()


def over_python(make):
    """What it takes its memory from walks the stack too."""

    def malloc(size, device):
        seen.append(traceback.extract_stack(limit=2))
        memory = gpumem.Memory(size)
        memories[memory.ptr] = memory
        return memory.ptr

    def free(ptr, device):
        seen.append(traceback.extract_stack(limit=2))
        del memories[ptr]

    seen, memories = [], {}
    return make(PythonFunctionAllocator(malloc, free).malloc)


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
@pytest.mark.parametrize("over", [over_the_device, over_python])
def test_u22_hooks_that_walk_the_stack_hang_nobody(make, over, in_threads, unraisable):
    pool = over(make)
    pool.set_limit(size=200 * UNIT)  # so that some requests empty the cache

    def work(index):
        rng = random.Random(index)
        hook, kept = WalksTheStack(pool), []
        with Stream(non_blocking=True), hook:
            for i in range(ROUNDS):
                try:
                    kept.append(pool.malloc(rng.randrange(1, 20 * UNIT)))
                except OutOfMemoryError:
                    kept.clear()
                if len(kept) > 4:
                    del kept[rng.randrange(5)]
                if i % 40 == 0:
                    pool.free_all_blocks()
            kept.clear()
        assert len(hook.seen) >= 2 * ROUNDS
        assert all("work" in names for names in hook.seen)

    with switching_often():
        in_threads(THREADS, work)
    at_rest(pool)
    assert unraisable == []
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
