# SPDX-License-Identifier: MIT
"""Cycles of garbage that memory is part of: one collection takes them, what frees the
memory still works then, and nothing is said. The file is run in development mode too.
What finalizers may do with memory of the user's functions: test_function_lifetime.py.
"""

import ctypes
import gc
import os
import random
import sys
import sysconfig
import weakref

import pytest

import gpumem
from gpumem import (
    CFunctionAllocator,
    Memory,
    MemoryHook,
    MemoryPointer,
    MemoryPool,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
    UnownedMemory,
    testing,
)

UNIT = 512
PATTERN = bytes(range(256)) * 2
POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@pytest.fixture(autouse=True)
def by_hand(no_automatic_collection):
    """All tests here collect garbage themselves, but for those that ask otherwise."""


class Token:
    """Something to watch die."""


def collected(*watched):
    """True if all that is watched was alive and one collection ended it."""
    alive = all(reference() is not None for reference in watched)
    gc.collect()
    return alive and all(reference() is None for reference in watched)


# ---- pointers ----


def test_a_pointer_in_the_cycle_of_a_frame_and_its_exception(pool):
    def work():
        pointer = pool.malloc(UNIT)
        pointer.copy_from_host(PATTERN, UNIT)
        view = pointer + 256  # noqa: F841 - what the frame holds is the point
        token = Token()
        watched.append(weakref.ref(token))
        try:
            raise LookupError("kept")
        except LookupError as error:
            kept = error  # noqa: F841 - closes the cycle

    watched = []
    work()
    assert pool.used_bytes() == UNIT
    assert collected(*watched)
    assert (pool.used_bytes(), pool.free_bytes()) == (0, UNIT)


def test_a_pointer_of_the_collectors_kind_in_a_cycle():
    """One to memory that can be in a cycle, which is why the pointer is tracked."""

    class Linked(Memory):
        pass

    mem = Linked(UNIT)
    mem.pointer = MemoryPointer(mem, 0)
    mem.moved = mem.pointer + 8
    watched = weakref.ref(mem)
    del mem
    assert collected(watched)


@pytest.mark.parametrize("kind", ["pooled", "raw"])
def test_a_pointer_with_attributes_that_refers_to_itself(pool, kind):
    class Pointer(MemoryPointer):
        pass

    source = pool.malloc(UNIT) if kind == "pooled" else gpumem.malloc(UNIT)
    pointer = Pointer(source.mem, 0)
    pointer.me = [pointer]
    del source
    watched = weakref.ref(pointer)
    del pointer
    assert collected(watched)
    assert pool.used_bytes() == 0


def test_memory_is_intact_when_a_finalizer_of_its_cycle_looks(pool):
    class Ring:
        def __init__(self, pointer):
            self.me, self.pointer = self, pointer
            pointer.copy_from_host(PATTERN, UNIT)

        def __del__(self):
            back = bytearray(UNIT)
            self.pointer.copy_to_host(back, UNIT)
            seen.append(bytes(back))

    seen = []
    for pointer in (pool.malloc(UNIT), gpumem.malloc(UNIT)):
        Ring(pointer)
    unowned = gpumem.malloc(UNIT)
    Ring(MemoryPointer(UnownedMemory(unowned.ptr, UNIT, [unowned]), 0))
    del pointer
    gc.collect()
    assert seen == [PATTERN] * 3
    assert pool.used_bytes() == 0


# ---- memory ----


def test_an_owner_that_refers_back():
    class Owner:
        pass

    owner = Owner()
    owner.raw = gpumem.malloc(UNIT)
    owner.mem = UnownedMemory(owner.raw.ptr, UNIT, owner)
    owner.pointer = MemoryPointer(owner.mem, 0)
    watched = weakref.ref(owner)
    del owner
    assert collected(watched)


SUBCLASSES = pytest.mark.parametrize(
    ("base", "args"),
    [
        (gpumem.BaseMemory, ()),
        (gpumem.Memory, (UNIT,)),
        (gpumem.ManagedMemory, (UNIT,)),
        (gpumem.PinnedMemory, (UNIT,)),
        (gpumem.SystemMemory, (UNIT,)),
        (gpumem.MemoryAsync, (UNIT,)),
        (gpumem.UnownedMemory, (0x1000, UNIT, None, 0)),
        (
            gpumem.PythonFunctionAllocatorMemory,
            (UNIT, lambda size, device: 0x1000, lambda ptr, device: None, 0),
        ),
        (PythonFunctionAllocator, (print, print)),
        (CFunctionAllocator, (0, 1, 1, None)),
        (MemoryPool, ()),
        (SingleDeviceMemoryPool, ()),
        (gpumem.PinnedMemoryPool, ()),
        (gpumem.MemoryAsyncPool, ()),
        (gpumem.Event, ()),
        (gpumem.Stream, ()),
        (gpumem.ExternalStream, (0,)),
        (gpumem.OutOfMemoryError, (1, 2)),
        (gpumem.CUDARuntimeError, (1,)),
    ],
)


@SUBCLASSES
def test_an_object_of_a_subclass_that_refers_to_itself(base, args):
    class Sub(base):
        pass

    made = Sub(*args)
    made.me = made
    token = made.token = Token()  # not every type can be referred to weakly
    watched = weakref.ref(token)
    del made, token
    assert collected(watched)


@SUBCLASSES
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    reason="without the interpreter lock classes may live for ever",
)
def test_an_object_whose_class_is_garbage_too(base, args):
    """The collector may have taken the class apart when the object comes to its end."""

    def make():
        class Sub(base):
            pass

        Sub.made = made = Sub(*args)
        token = made.token = Token()
        return weakref.ref(token)

    assert collected(make())


# ---- allocators ----


class Allocator:
    """Its pool takes memory from it, through a bound method."""

    def __init__(self, make):
        self.freed = []
        self.pool = make(self.malloc)

    def malloc(self, size):
        return gpumem.malloc(size)


@POOLS
@pytest.mark.parametrize("cached", [0, 3])
def test_an_allocator_that_closes_over_its_pool(make, cached):
    allocator = Allocator(make)
    blocks = [allocator.pool.malloc(UNIT) for _ in range(cached)]
    del blocks
    assert allocator.pool.free_bytes() == cached * UNIT
    watched = weakref.ref(allocator), weakref.ref(allocator.pool)
    del allocator
    assert collected(*watched)


@POOLS
def test_the_same_under_a_hook_that_is_active(make):
    class Hook(MemoryHook):
        told = 0

        def alloc_postprocess(self, **kwargs):
            self.told += 1

        def free_postprocess(self, **kwargs):
            self.told += 1

    with Hook() as hook:
        allocator = Allocator(make)
        allocator.pool.malloc(UNIT)
        allocator.hook = hook
        watched = weakref.ref(allocator)
        del allocator
        assert collected(watched)
    assert hook.told == 2


@POOLS
def test_a_hook_that_refers_to_the_allocator_it_is_active_for(make):
    """The thread holds it; once it is removed the cycle is garbage."""

    class Hook(MemoryHook):
        pass

    hook, allocator = Hook(), Allocator(make)
    hook.allocator, allocator.hook = allocator, hook
    watched = weakref.ref(allocator), weakref.ref(hook)
    with hook:
        allocator.pool.malloc(UNIT)
        del allocator, hook
        gc.collect()
        assert watched[0]() is not None
    assert collected(*watched)


@POOLS
def test_while_a_block_is_out_nothing_is_collected(make):
    allocator = Allocator(make)
    pointer = allocator.pool.malloc(UNIT)
    watched = weakref.ref(allocator)
    del allocator
    assert not collected(watched)
    pointer.memset(1, UNIT)
    del pointer
    assert collected(watched)


@POOLS
@pytest.mark.parametrize("cached", [False, True])
def test_python_functions_that_close_over_their_pool(make, cached):
    """The memory of each segment goes back through the very functions, once."""
    freed = []

    class Functions:
        def __init__(self):
            self.kept = {}
            self.allocator = PythonFunctionAllocator(self.malloc, self.free)
            self.pool = make(self.allocator.malloc)

        def malloc(self, size, device):
            pointer = gpumem.malloc(size)
            self.kept[pointer.ptr] = pointer
            return pointer.ptr

        def free(self, ptr, device):
            freed.append(self.kept.pop(ptr).ptr)

    functions = Functions()
    taken = []
    if cached:
        blocks = [functions.pool.malloc(UNIT) for _ in range(3)]
        taken = [block.ptr for block in blocks]
        del blocks
    assert freed == []
    watched = weakref.ref(functions), weakref.ref(functions.pool)
    del functions
    assert collected(*watched)
    assert sorted(freed) == sorted(taken)


def test_c_functions_whose_owner_refers_back():
    """Directly, through its memory, and with memory that is cached in a pool."""
    freed = []

    class Owner:
        def __init__(self):
            # Closures over self: each function object and self hold each other.
            self.functions = (
                ctypes.CFUNCTYPE(
                    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
                )(lambda param, size, device: self.take(size)),
                ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
                    lambda param, ptr, device: self.give(ptr)
                ),
            )
            self.kept = {}
            self.allocator = CFunctionAllocator(
                0,
                *(ctypes.cast(f, ctypes.c_void_p).value for f in self.functions),
                self,
            )
            self.pool = MemoryPool(self.allocator.malloc)

        def take(self, size):
            pointer = gpumem.malloc(size)
            self.kept[pointer.ptr] = pointer
            return pointer.ptr

        def give(self, ptr):
            freed.append(self.kept.pop(ptr).ptr)

    owner = Owner()
    owner.direct = owner.allocator.malloc(UNIT)
    taken = [owner.direct.ptr]
    block = owner.pool.malloc(UNIT)
    taken.append(block.ptr)
    del block
    watched = weakref.ref(owner), weakref.ref(owner.pool)
    del owner
    assert collected(*watched)
    assert sorted(freed) == sorted(taken)


def test_a_closed_allocator_holds_nothing():
    token = Token()
    allocator = CFunctionAllocator(0, 1, 1, token)
    watched = weakref.ref(token)
    del token
    allocator.close()
    assert watched() is None


def test_the_global_allocator_is_part_of_no_cycle_once_it_is_replaced():
    allocator = Allocator(MemoryPool)
    gpumem.set_allocator(allocator.pool.malloc)
    gpumem.alloc(UNIT)
    watched = weakref.ref(allocator)
    del allocator
    assert not collected(watched)
    gpumem.set_allocator(None)
    assert collected(watched)


def test_a_scope_that_refers_to_itself_and_was_never_left(in_threads):
    """The thread's settings hold it, and end with the thread."""

    class Scope(gpumem.using_allocator):
        pass

    def work(index):
        scope = Scope(gpumem.malloc)
        scope.me = scope
        scope.__enter__()
        return weakref.ref(scope)

    assert collected(*in_threads(2, work))


# ---- the collector at any moment ----


@pytest.fixture
def collecting_all_the_time():
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1, 1, 1)
    gc.enable()
    yield
    gc.set_threshold(*thresholds)
    gc.disable()
    gc.unfreeze()


@pytest.mark.usefixtures("collecting_all_the_time")
@pytest.mark.parametrize("over", ["the device", "a Python function"])
def test_finalizers_that_allocate_whenever_the_collector_likes(over):
    pool = Allocator(MemoryPool).pool if over != "the device" else MemoryPool()
    rng = random.Random(21)

    class Ring:
        # No closure: it would keep the pool for ever where functions are immortal.
        def __init__(self, pool, rng, size):
            self.me, self.pool, self.rng = self, pool, rng
            self.pointer = pool.malloc(size)

        def __del__(self):
            self.pool.malloc(self.rng.randrange(1, 64 * UNIT))
            if self.rng.random() < 0.01:
                self.pool.free_all_blocks()

    for i in range(2000):
        Ring(pool, rng, UNIT * (1 + i % 300))
        pool.malloc(rng.randrange(1, 64 * UNIT))
    gc.collect()
    testing.check_pool(pool)
    assert pool.used_bytes() == 0


@pytest.mark.skipif(sys.flags.dev_mode, reason="is in development mode already")
def test_all_of_this_in_development_mode(script):
    arguments = ["-qq", "-p", "no:cacheprovider", __file__]
    code = f"import pytest, sys; sys.exit(pytest.main({arguments}))"
    path = os.pathsep.join(filter(None, sys.path))
    done = script(code, options=("-X", "dev"), timeout=300, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
