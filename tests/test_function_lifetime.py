# SPDX-License-Identifier: MIT
"""Memory from the user's functions in cycles of garbage: it stays valid as long as some
finalizer may look at it, and the function that frees it is whole when it is called,
once. Whatever the collector, other threads and other pools do meanwhile.
"""

import gc
import sys
import threading
import time
import weakref

import pytest

import gpumem
from gpumem import (
    MemoryPointer,
    MemoryPool,
    OutOfMemoryError,
    PythonFunctionAllocatorMemory,
    SingleDeviceMemoryPool,
    UnownedMemory,
    testing,
)
from own_functions import (
    BOTH,
    C_FREE,
    PATTERN,
    POOLS,
    UNIT,
    Books,
    Functions,
    Keeps,
    Looks,
)


@pytest.fixture(autouse=True)
def by_hand(no_automatic_collection):
    """All tests here collect garbage themselves, but for those that ask otherwise."""


# ---- finalizers look ----


@BOTH
@pytest.mark.parametrize("memory_first", [False, True])
@pytest.mark.parametrize("own", [False, True], ids=["alone", "with its functions"])
def test_memory_is_intact_while_finalizers_run(books, kind, memory_first, own):
    """Whether the memory is older than what looks at it or not; whether the functions
    are garbage too."""
    functions, seen = kind(books), []
    if memory_first:
        pointer = functions.allocator.malloc(UNIT)
        looks = Looks(pointer, seen)
    else:
        looks = Looks(gpumem.malloc(UNIT), seen)
        looks.pointer = pointer = functions.allocator.malloc(UNIT)
        pointer.copy_from_host(PATTERN, UNIT)
    if own:
        functions.pointers.append(pointer)
        del functions
    del looks, pointer
    gc.collect()
    assert (seen, books.freed) == ([True], books.taken)


@BOTH
def test_memory_that_a_finalizer_brings_back_is_nobody_elses(books, kind):
    functions, saved = kind(books), []
    Keeps(functions.allocator.malloc(UNIT), saved)
    gc.collect()
    other = gpumem.malloc(UNIT)
    assert books.freed == [] and saved[0].ptr == books.taken[0] != other.ptr
    saved[0].memset(1, UNIT)
    saved.clear()
    assert books.balanced()


@BOTH
def test_what_was_brought_back_may_be_looked_at_by_new_finalizers(books, kind):
    functions, saved, seen = kind(books), [], []
    functions.pointers.append(functions.allocator.malloc(UNIT))
    Keeps(functions.pointers[0], saved)
    watched = weakref.ref(functions)
    del functions
    gc.collect()
    assert watched() is None and books.freed == []  # it is back, its references are not
    Looks(saved.pop(), seen)
    gc.collect()
    assert seen == [True] and books.balanced()


@BOTH
def test_the_same_in_a_thread_that_is_not_the_main_one(books, kind, in_threads):
    """Where the interpreter does not come by before the next collection."""

    def work(index):
        functions, saved, seen = kind(books), [], []
        functions.pointers.append(functions.allocator.malloc(UNIT))
        Keeps(functions.pointers[0], saved)
        del functions
        gc.collect()
        Looks(saved.pop(), seen)
        gc.collect()
        return seen

    assert in_threads(1, work) == [[True]]


@POOLS
@BOTH
def test_a_finalizer_may_use_the_pool_over_the_functions(books, make, kind):
    """From its cache and from new memory, whichever is finalized first."""

    class Uses:
        def __init__(self, pool):
            self.me, self.pool = self, pool

        def __del__(self):
            blocks = [self.pool.malloc(UNIT), self.pool.malloc(2 * UNIT)]
            assert not any(block.ptr in books.freed for block in blocks)
            seen.append(len(blocks))

    seen = []
    functions = kind(books)
    functions.pool = make(functions.allocator.malloc)
    functions.uses = Uses(functions.pool)
    functions.pool.malloc(UNIT)
    del functions
    gc.collect()
    gc.collect()
    assert seen == [2] and len(books.taken) == 2 and books.balanced()


def test_a_finalizer_may_use_a_pool_over_memory_that_somebody_else_owns(books):
    functions, given = Functions(books), []

    def malloc(size):
        pointer = functions.allocator.malloc(size)
        return MemoryPointer(UnownedMemory(pointer.ptr, size, pointer), 0)

    class Uses:
        def __init__(self, pool):
            self.me, self.pool = self, pool

        def __del__(self):
            given.append(self.pool.malloc(UNIT))

    pool = SingleDeviceMemoryPool(malloc)
    pool.malloc(UNIT)
    Uses(pool)
    del pool
    gc.collect()
    assert [block.ptr for block in given] == books.taken and books.freed == []
    given.clear()
    assert books.balanced()


# ---- what frees is whole ----


def test_a_subclass_with_a_finalizer_in_a_cycle_with_its_function(books):
    class Sub(PythonFunctionAllocatorMemory):
        def __del__(self):
            seen.append(self.ptr in self.functions.memories)

    seen = []
    functions = Functions(books)
    sub = Sub(UNIT, functions.malloc, functions.free, 0)
    sub.functions, functions.sub = functions, sub
    del functions, sub
    gc.collect()
    assert seen == [True] and books.balanced()


def test_a_subclass_whose_own_method_frees_it(books):
    """The cycle runs through nothing but the memory and its function."""

    class Sub(PythonFunctionAllocatorMemory):
        def __init__(self):
            super().__init__(UNIT, self.take, self.give, 0)

        def take(self, size, device):
            self.memory = gpumem.Memory(size)
            books.taken.append(self.memory.ptr)
            return self.memory.ptr

        def give(self, ptr, device):
            del self.memory
            books.freed.append(ptr)

    sub = Sub()
    token = sub.token = Books()
    watched = weakref.ref(token)
    del sub, token
    gc.collect()
    gc.collect()
    assert watched() is None
    assert len(books.taken) == 1 and books.balanced()


@BOTH
def test_memory_that_a_pool_had_for_a_while(books, kind):
    """The program keeps a pointer too, in a cycle with the functions."""
    functions = kind(books)

    pool = MemoryPool(functions.lend)
    pool.malloc(UNIT)
    pool.free_all_blocks()
    assert pool.total_bytes() == 0 and books.freed == []
    del pool, functions
    gc.collect()
    assert books.balanced()


@POOLS
@BOTH
def test_memory_that_a_pool_and_the_program_have(books, make, kind):
    functions = kind(books)

    functions.pool = make(functions.lend)
    functions.pool.malloc(UNIT)
    del functions
    gc.collect()
    assert len(books.taken) == 1 and books.balanced()


@POOLS
def test_a_pool_that_was_brought_back_once(books, make):
    """Its finalizers have run before, when it is garbage for good."""

    class Comes(Functions):
        def __del__(self):
            saved.append(self)

    saved = []
    functions = Comes(books)
    functions.pool = make(functions.allocator.malloc)
    functions.pool.malloc(UNIT)
    del functions
    gc.collect()
    saved[0].pool.malloc(2 * UNIT)
    saved.clear()
    gc.collect()
    assert len(books.taken) == 2 and books.balanced()


def test_a_free_that_allocates_from_its_dying_pool_gets_nothing_freed(books):
    class Logs(Functions):
        def free(self, ptr, device):
            super().free(ptr, device)
            if len(valid) < 3:
                valid.append(self.pool.malloc(UNIT).ptr in self.memories)

    valid = []
    functions = Logs(books)
    functions.pool = SingleDeviceMemoryPool(functions.allocator.malloc)
    blocks = [functions.pool.malloc(UNIT) for _ in range(3)]
    del blocks, functions
    gc.collect()
    gc.collect()
    assert valid == [True] * 3


# ---- when ----


@pytest.fixture
def automatic_collections():
    """Often, and of what the test makes alone. A full one comes only when there is a
    quarter more than the last one left, which is to be nothing."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.collect()
    gc.set_threshold(10, 2, 2)
    gc.enable()
    yield
    gc.disable()
    gc.set_threshold(*thresholds)


@BOTH
@pytest.mark.usefixtures("automatic_collections")
def test_automatic_collections_end_it_too(books, kind):
    functions = kind(books)
    functions.pointers.append(functions.allocator.malloc(UNIT))
    del functions
    kept = []
    while not books.freed and len(kept) < 100_000:
        kept.append([kept])
    assert books.balanced()


@BOTH
def test_a_collection_in_another_thread_ends_it_once_the_main_one_comes_by(
    books, kind, in_threads
):
    def work(index):
        functions = kind(books)
        functions.pointers.append(functions.allocator.malloc(UNIT))
        del functions
        gc.collect()

    in_threads(1, work)
    assert books.balanced()


@BOTH
def test_using_the_package_will_do_where_the_main_thread_is_busy(
    books, kind, in_threads
):
    """It waits in one long call here, so pending calls are not made."""

    def work(index):
        functions = kind(books)
        Looks(functions.allocator.malloc(UNIT), [])
        gc.collect()
        kept_back = not books.freed
        MemoryPool().free_all_blocks()
        return kept_back, books.balanced()

    assert in_threads(1, work) == [(True, True)]


SMALL = """
import gc, gpumem
from gpumem import *
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
"""


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "how",
    [
        "functions.kept = functions.allocator.malloc(3 << 20)",
        "functions.kept = functions.pool.malloc(3 << 20)",
        "functions.pool.malloc(3 << 20)",
    ],
)
def test_want_of_memory_ends_it(script, how):
    """Also what is no cycle any more once the pool has given back."""
    code = f"""{SMALL}
functions = Functions()
{how}
del functions
MemoryPool().malloc(3 << 20)
"""
    done = script(code, GPUMEM_SIM_MEMORY="4MiB")
    if "kept = functions.pool" in how:  # a live block keeps all of it alive
        assert "OutOfMemoryError" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (0, "")


# ---- other threads ----


@pytest.fixture
def long_turns():
    """The interpreter changes threads only where one waits."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    yield
    sys.setswitchinterval(interval)


def asks_for_too_much(started):
    pool = SingleDeviceMemoryPool()
    started.set()
    with pytest.raises(OutOfMemoryError):
        pool.malloc(1 << 62)


@BOTH
@pytest.mark.usefixtures("long_turns")
def test_a_pool_that_is_garbage_while_another_one_takes_its_memory(books, kind):
    """The other thread has taken the segments out and waits for its turn to give them
    back, when this one collects."""
    functions = kind(books)
    functions.pool = SingleDeviceMemoryPool(functions.allocator.malloc)
    blocks = [functions.pool.malloc(UNIT) for _ in range(40)]
    watched = weakref.ref(functions)
    del blocks, functions
    started = threading.Event()
    thread = threading.Thread(target=asks_for_too_much, args=(started,))
    thread.start()
    assert started.wait(60)
    end = time.perf_counter() + 0.05
    while time.perf_counter() < end:  # keeps the interpreter; the other one gets there
        pass
    gc.collect()
    others = [C_FREE(lambda *args: books.freed.append("wrong")) for _ in range(50)]
    thread.join(60)
    assert not thread.is_alive()
    del others
    gc.collect()
    assert watched() is None
    assert len(books.taken) == 40 and books.balanced()


@BOTH
def test_collecting_beside_pools_that_reclaim(books, kind, in_threads):
    """Every free function finds what it needs, and is called once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(index):
        for _ in range(15):
            if index == 0:
                gc.collect()
            elif index == 1:
                asks_for_too_much(threading.Event())
            else:
                functions = kind(books)
                functions.pool = SingleDeviceMemoryPool(functions.allocator.malloc)
                blocks = [functions.pool.malloc(UNIT) for _ in range(20)]
                functions.pointers.append(functions.allocator.malloc(UNIT))
                del blocks, functions

    try:
        in_threads(4, work)
    finally:
        sys.setswitchinterval(interval)
    for _ in range(2):
        gc.collect()
    assert len(books.taken) == 2 * 15 * 21 and books.balanced()
    assert gpumem.get_backend() != "sim" or testing.ledger().pending == 0
