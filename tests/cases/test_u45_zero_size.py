# SPDX-License-Identifier: MIT
"""Empty buffers, whose pointer is null, could not be wrapped or copied, or asked for a
device they do not need. cupy#2789, rmm#210, NVIDIA/cuml#5100,
https://github.com/cupy/cupy/issues/2789"""

import pytest
from casekit import UNIT, CFunctions, Functions, device_calls

import gpumem
from gpumem import (
    Device,
    MemoryHook,
    MemoryPointer,
    MemoryPool,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
    Stream,
    UnownedMemory,
)


def through_the_allocator(size):
    with gpumem.using_allocator(MemoryPool().malloc):
        return gpumem.alloc(size)


def over_c(size):
    return CFunctions(Functions()).allocator().malloc(size)


def over_python(size):
    functions = Functions()
    return PythonFunctionAllocator(functions.malloc, functions.free).malloc(size)


ALLOCATORS = {
    "malloc": gpumem.malloc,
    "malloc_managed": gpumem.malloc_managed,
    "alloc": gpumem.alloc,
    "alloc from a pool": through_the_allocator,
    "a pool": lambda size: MemoryPool().malloc(size),
    "a pool of one device": lambda size: SingleDeviceMemoryPool().malloc(size),
    "a pool over managed memory": lambda size: MemoryPool(gpumem.malloc_managed).malloc(
        size
    ),
    "malloc_async": gpumem.malloc_async,
    "malloc_system": gpumem.malloc_system,
    "the driver's pool": lambda size: gpumem.MemoryAsyncPool().malloc(size),
    "C functions": over_c,
    "Python functions": over_python,
    "UnownedMemory": lambda size: MemoryPointer(
        UnownedMemory(0, size, None, gpumem.get_device_id()), 0
    ),
    "Memory": lambda size: MemoryPointer(gpumem.Memory(size), 0),
}
EMPTY = pytest.mark.parametrize("kind", ALLOCATORS)


class Told(MemoryHook):
    """Counts what is open, and keeps what was handed out."""

    def __init__(self):
        self.open, self.given = 0, []

    def malloc_preprocess(self, **kwargs):
        self.open += 1

    def malloc_postprocess(self, **kwargs):
        self.open -= 1
        self.given.append(kwargs["mem_ptr"])


@EMPTY
@pytest.mark.parametrize("hooked", [False, True])
def test_u45_nothing_is_a_null_pointer_of_the_current_device(kind, hooked, unraisable):
    last = gpumem.get_device_count() - 1
    hook = Told()
    with Device(last), device_calls() as calls:
        if hooked:
            with hook:
                pointer = ALLOCATORS[kind](0)
        else:
            pointer = ALLOCATORS[kind](0)
    assert (pointer.ptr, pointer.mem.ptr, pointer.mem.size) == (0, 0, 0)
    assert pointer.device_id == pointer.mem.device_id == last
    assert (int(pointer), hook.open) == (0, 0)
    assert [call for call in calls if call.name.startswith("mem_alloc")] == []
    del pointer
    assert unraisable == []


@EMPTY
def test_u45_null_has_no_place_but_its_beginning(kind):
    pointer = ALLOCATORS[kind](0)
    assert (pointer + 0).ptr == (0 + pointer).ptr == (pointer - 0).ptr == 0
    pointer += 0
    pointer -= 0
    for move in (lambda: pointer + 1, lambda: pointer - 1):
        with pytest.raises(AssertionError, match="null pointer"):
            move()
    with pytest.raises(AssertionError, match="null pointer"):
        pointer += 1
    assert pointer.ptr == 0
    with pytest.raises(AssertionError, match="null pointer"):
        MemoryPointer(pointer.mem, 1)


@EMPTY
@pytest.mark.parametrize("other", ["null", "memory"])
def test_u45_no_bytes_are_copied_without_a_call(kind, other, pool):
    empty = ALLOCATORS[kind](0)
    memory = ALLOCATORS[kind](0) if other == "null" else pool.malloc(UNIT)
    stream, host = Stream(), bytearray(UNIT)
    with device_calls() as calls:
        for target, source in ((empty, memory), (memory, empty)):
            target.copy_from(source, 0)
            target.copy_from_async(source, 0, stream)
            target.copy_from_device(source, 0)
            target.copy_from_device_async(source, 0, stream)
        empty.copy_from_host(host, 0)
        empty.copy_from_host_async(host, 0, stream)
        empty.copy_to_host(host, 0)
        empty.copy_to_host_async(host, 0, stream)
        empty.memset(1, 0)
        empty.memset_async(1, 0, stream)
    assert calls == []
    assert host == bytes(UNIT)


@EMPTY
def test_u45_one_byte_is_too_many(kind, pool):
    empty, memory = ALLOCATORS[kind](0), pool.malloc(UNIT)
    host = bytearray(UNIT)
    for work in (
        lambda: empty.memset(1, 1),
        lambda: empty.copy_from_host(host, 1),
        lambda: empty.copy_to_host(host, 1),
        lambda: empty.copy_from_device(memory, 1),
        lambda: memory.copy_from_device(empty, 1),
    ):
        with pytest.raises(ValueError):
            work()


def test_u45_a_null_pointer_of_somebody_else_needs_a_device():
    with pytest.raises(RuntimeError, match="null pointer needs device_id"):
        UnownedMemory(0, 0, object())
    for device in range(gpumem.get_device_count()):
        memory = UnownedMemory(0, 0, object(), device)
        assert (memory.ptr, memory.size, memory.device_id) == (0, 0, device)


def test_u45_pinned_memory_of_no_bytes_is_null_too():
    with device_calls() as calls:
        for malloc in (
            gpumem.alloc_pinned_memory,
            gpumem.malloc_pinned,
            gpumem.PinnedMemoryPool().malloc,
        ):
            pointer = malloc(0)
            assert (pointer.ptr, pointer.size(), pointer.mem.size) == (0, 0, 0)
            assert (pointer + 0).ptr == 0
    assert [call for call in calls if call.name.startswith("mem_")] == []


def test_u45_a_pool_counts_nothing_for_it(pool):
    before = pool.stats()
    kept = [pool.malloc(0) for _ in range(10)]
    assert pool.stats() == before
    del kept
    assert pool.stats() == before
