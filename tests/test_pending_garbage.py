# SPDX-License-Identifier: MIT
"""Garbage that the device still uses, and memory that lies in pools in parts: the
memory ends when the device is done, and never while a pool has it to give out.
"""

import gc
import weakref

import pytest

import gpumem
from gpumem import (
    MemoryPointer,
    SingleDeviceMemoryPool,
    Stream,
    UnownedMemory,
    testing,
)
from own_functions import BOTH, UNIT, Functions

pytestmark = pytest.mark.sim_only  # says what is queued, and when events are there

NOT_READY = 600


@pytest.fixture(autouse=True)
def by_hand(no_automatic_collection):
    """All tests here collect garbage themselves, but for those that ask otherwise."""


def pooled(books, kind=Functions):
    functions = kind(books)
    functions.pool = SingleDeviceMemoryPool(functions.allocator.malloc)
    return functions


def use_elsewhere(pointer, stream):
    pointer.memset_async(1, UNIT, stream)
    pointer.record_stream(stream)


# ---- the device is not done ----


@BOTH
def test_functions_whose_pool_has_a_block_in_use(books, kind):
    stream, functions = Stream(non_blocking=True), pooled(books, kind)
    watched = weakref.ref(functions)
    with testing.fail("event_query", count=0, code=NOT_READY):
        pointer = functions.pool.malloc(UNIT)
        use_elsewhere(pointer, stream)
        del pointer, functions
        for _ in range(3):
            gc.collect()
        assert books.freed == [] and testing.ledger().pending > 0
    stream.synchronize()
    assert testing.ledger().pending == 0
    gc.collect()
    assert watched() is None and len(books.freed) == 1


def test_the_owner_of_memory_that_a_pool_has_in_use():
    """It is finalized when the device is done, and is no function of ours."""

    class Owner:
        def __init__(self, size):
            self.memory = gpumem.Memory(size)

        def __del__(self):
            ended.append(testing.ledger().pending)

    class Program:
        def __init__(self):
            self.pool = SingleDeviceMemoryPool(self.malloc)

        def malloc(self, size):
            owner = Owner(size)
            return MemoryPointer(UnownedMemory(owner.memory.ptr, size, owner, 0), 0)

    stream, program, ended = Stream(non_blocking=True), Program(), []
    with testing.fail("event_query", count=0, code=NOT_READY):
        pointer = program.pool.malloc(UNIT)
        use_elsewhere(pointer, stream)
        del pointer, program
        gc.collect()
        assert ended == []
    stream.synchronize()
    gc.collect()
    assert ended == [0]


def test_functions_whose_pool_has_a_block_of_a_graph(books):
    stream, functions = Stream(non_blocking=True), pooled(books)
    functions.pool.malloc(UNIT)
    with stream:
        functions.pool.malloc(UNIT)
        stream.begin_capture()
        functions.pool.malloc(UNIT).memset_async(3, UNIT)
        graph = stream.end_capture()
    del functions
    for _ in range(2):
        gc.collect()
    assert books.freed == []
    graph.launch(stream)
    stream.synchronize()
    del graph
    stream.synchronize()
    gc.collect()
    assert len(books.taken) == 2 and books.balanced()


def test_a_block_that_was_used_and_came_back_keeps_nothing(books):
    """The next look finds that; here it is the pool's next request."""
    stream, functions = Stream(non_blocking=True), pooled(books)
    use_elsewhere(functions.pool.malloc(UNIT), stream)
    stream.synchronize()
    functions.pool.malloc(UNIT)
    del functions
    gc.collect()
    assert len(books.freed) == 1


def test_want_of_memory_waits_for_garbage_that_is_in_use(script):
    code = """
import gc
import gpumem
from gpumem import MemoryPool, PythonFunctionAllocator, Stream
gc.disable()
class Functions:
    def __init__(self):
        self.memories = {}
        self.allocator = PythonFunctionAllocator(self.malloc, self.free)
        self.pool = MemoryPool(self.allocator.malloc)
    def malloc(self, size, device):
        memory = gpumem.Memory(size)
        self.memories[memory.ptr] = memory
        return memory.ptr
    def free(self, ptr, device):
        del self.memories[ptr]
stream, functions = Stream(non_blocking=True), Functions()
pointer = functions.pool.malloc(3 << 20)
pointer.memset_async(1, 512, stream)
pointer.record_stream(stream)
del pointer, functions
MemoryPool().malloc(3 << 20)
"""
    done = script(code, GPUMEM_SIM_MEMORY="4MiB")
    assert (done.returncode, done.stderr) == (0, "")


@BOTH
def test_memory_is_not_freed_while_a_recording_keeps_its_pool(books, kind):
    """A pool gives nothing back then, so what is garbage with it waits."""
    stream, functions = Stream(non_blocking=True), pooled(books, kind)
    functions.pointers.append(functions.allocator.malloc(UNIT))
    functions.pool.malloc(UNIT)
    stream.begin_capture()
    del functions
    for _ in range(3):
        gc.collect()
    assert len(books.taken) == 2 and len(books.freed) <= 1
    stream.end_capture()
    gc.collect()
    assert books.balanced()


# ---- memory in parts ----


class Slices(Functions):
    """Hands out parts of one memory to its pools; its free function uses the first."""

    def __init__(self, books, pools):
        super().__init__(books)
        self.at, self.got = 0, []
        self.other = self.allocator.malloc(UNIT)
        self.whole = self.allocator.malloc(8 * UNIT)
        self.pools = [SingleDeviceMemoryPool(self.part) for _ in range(pools)]

    def part(self, size):
        self.at += size
        return self.whole + (self.at - size)

    def free(self, ptr, device):
        super().free(ptr, device)
        whole = self.whole.mem
        if whole.ptr and len(self.books.freed) == 1:
            for pool in self.pools:
                block = pool.malloc(UNIT)
                self.books.given.append(block.ptr not in self.books.freed)


@pytest.mark.parametrize("pools", [1, 2])
def test_a_pool_never_hands_out_what_was_freed(books, pools):
    """One part of the memory went back, another is still cached."""
    books.given = []
    slices = Slices(books, pools)
    blocks = [pool.malloc(UNIT) for pool in slices.pools for _ in range(2)]
    del blocks[0]
    slices.pools[0].free_all_blocks()
    assert slices.pools[0].total_bytes() == UNIT
    del blocks, slices
    for _ in range(2):
        gc.collect()
    assert all(books.given) and len(books.taken) == 2 and books.balanced()


@pytest.mark.parametrize("first", [0, 1])
def test_a_part_that_went_back_does_not_free_the_rest(books, first):
    slices = Slices(books, 2)
    blocks = [pool.malloc(UNIT) for pool in slices.pools]
    whole = slices.whole.mem
    del blocks[first]
    slices.pools[first].free_all_blocks()
    kept = blocks.pop()
    pool = slices.pools[1 - first]
    del slices
    for _ in range(2):
        gc.collect()
    assert whole.ptr and books.freed == []
    kept.memset(5, UNIT)
    books.given = []
    del kept, pool, whole
    for _ in range(2):
        gc.collect()
    assert books.balanced()
