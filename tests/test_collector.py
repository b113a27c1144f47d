# SPDX-License-Identifier: MIT
"""Memory from the user's functions in garbage, and want of memory, while the collector
is busy: in Python functions that it calls, in finalizers, in other threads.
"""

import gc
import threading
import time

import pytest

from gpumem import MemoryPool, OutOfMemoryError
from own_functions import BOTH, UNIT, Functions

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def by_hand(no_automatic_collection):
    """All tests here collect garbage themselves, but for those that ask otherwise."""


@pytest.fixture
def callback():
    """What the collector calls before and after each collection."""

    def called(phase, info):
        calls.append(phase)

    calls = []
    gc.callbacks.append(called)
    yield calls
    gc.callbacks.remove(called)


def leave_garbage(books, kind=Functions):
    functions = kind(books)
    functions.pointers.append(functions.allocator.malloc(UNIT))


def run_a_little():
    """So that the interpreter comes by."""
    for _ in range(1000):
        pass


class Works:
    """In a cycle with itself, and works when it is finalized."""

    def __init__(self, work):
        self.me, self.work = self, work

    def __del__(self):
        self.work()


def in_a_cycle(work):
    """Has `work` called by a finalizer, within a collection."""
    Works(work)


# ---- functions that the collector calls ----


@BOTH
def test_callbacks_of_the_collector_do_not_keep_it(books, kind, callback):
    leave_garbage(books, kind)
    gc.collect()
    assert callback[:2] == ["start", "stop"]
    run_a_little()
    assert len(books.freed) == 1


def test_callbacks_that_run_for_long_leave_it_to_who_comes_by(books, callback):
    def called(phase, info):
        for _ in range(200_000):
            pass

    gc.callbacks.append(called)
    try:
        leave_garbage(books)
        gc.collect()
    finally:
        gc.callbacks.remove(called)
    MemoryPool().free_all_blocks()
    assert len(books.freed) == 1


def test_a_finalizer_in_which_the_interpreter_comes_by(books):
    """It is still within the collection, and goes on after it."""

    def work():
        seen.append(list(books.freed))
        run_a_little()

    seen = []
    leave_garbage(books)
    in_a_cycle(work)
    gc.collect()
    in_a_cycle(work)
    gc.collect()
    run_a_little()
    assert seen[0] == [] and len(books.freed) == 1


@pytest.mark.sim_only
def test_want_of_memory_with_callbacks_of_the_collector(script):
    code = """
import gc
import gpumem
from gpumem import MemoryPool, PythonFunctionAllocator
gc.disable()
class Functions:
    def __init__(self):
        self.memories = {}
        self.allocator = PythonFunctionAllocator(self.malloc, self.free)
        self.kept = self.allocator.malloc(3 << 20)
    def malloc(self, size, device):
        memory = gpumem.Memory(size)
        self.memories[memory.ptr] = memory
        return memory.ptr
    def free(self, ptr, device):
        del self.memories[ptr]
def callback(phase, info):
    pass
gc.callbacks.append(callback)
Functions()
MemoryPool().malloc(3 << 20)
"""
    done = script(code, GPUMEM_SIM_MEMORY="4MiB")
    assert (done.returncode, done.stderr) == (0, "")


# ---- finalizers that add finalizers ----


class Chain:
    """Looks at the memory when it is finalized, and puts the next one in its place."""

    def __init__(self, functions, books, length, seen):
        self.me, self.functions, self.books = self, functions, books
        self.length, self.seen = length, seen

    def __del__(self):
        pointer = self.functions.pointers[0]
        self.seen.append(pointer.mem.ptr != 0 and pointer.ptr not in self.books.freed)
        if self.length > 1:
            self.functions.chain = Chain(
                self.functions, self.books, self.length - 1, self.seen
            )


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_finalizers_that_add_finalizers_see_the_memory(books, length):
    functions, seen = Functions(books), []
    functions.pointers.append(functions.allocator.malloc(UNIT))
    functions.chain = Chain(functions, books, length, seen)
    del functions
    for _ in range(length):
        gc.collect()
    assert seen == [True] * length and len(books.freed) == 1


# ---- threads ----


@pytest.fixture
def young_collections():
    """Automatic ones, a full one now and then, of what the test makes alone."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(50, 3, 3)
    gc.enable()
    yield
    gc.disable()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("young_collections")
def test_a_worker_ends_what_full_collections_found(books, in_threads):
    """The main thread waits, so only the worker's use of the package is a chance, and
    the collection before it is hardly ever a full one."""

    def work(index):
        heap = [[number] for number in range(5000)]
        for _ in range(5):
            leave_garbage(books)
        pool, begun = MemoryPool(), time.monotonic()
        while len(books.freed) < 5 and time.monotonic() < begun + 30:
            churn = [[] for _ in range(1000)]
            for each in churn:
                each.append(each)
            del churn, each
            pool.malloc(UNIT)
            pool.free_all_blocks()
        return len(heap), len(books.freed)

    assert in_threads(1, work) == [(5000, 5)]


@pytest.mark.parametrize("held_by", ["a cycle", "a cycle with memory of functions"])
@pytest.mark.parametrize("collector", ["another thread", "the own one"])
def test_want_of_memory_while_the_collector_is_busy(books, held_by, collector):
    """It waits for another thread's collection, and where it is within one itself it
    fails after a while."""

    def fill():
        functions = Functions(books)
        functions.me, functions.block = functions, pool.malloc(SIZE)
        if held_by != "a cycle":
            functions.pointers.append(functions.allocator.malloc(UNIT))

    def want():
        try:
            results.append(pool.malloc(SIZE).mem.size)
        except OutOfMemoryError as error:
            results.append(type(error))

    def slow():
        inside.set()
        time.sleep(0.1)

    pool, inside, results = MemoryPool(), threading.Event(), []
    pool.set_limit(SIZE)
    if collector == "another thread":
        in_a_cycle(slow)
        thread = threading.Thread(target=gc.collect)
        thread.start()
        assert inside.wait(30)
        fill()
        want()
        thread.join(60)
        assert not thread.is_alive()
        assert results == [SIZE]
    else:
        kept = pool.malloc(SIZE)
        in_a_cycle(want)
        begun = time.monotonic()
        gc.collect()
        assert results == [OutOfMemoryError] and time.monotonic() < begun + 5
        del kept
