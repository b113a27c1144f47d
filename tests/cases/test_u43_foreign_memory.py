# SPDX-License-Identifier: MIT
"""Memory of another library was wrapped with no owner, and the wrapped pointer outlived
the object behind it. cupy#4644, cupy#3202,
https://github.com/cupy/cupy/issues/4644"""

import gc
import weakref

import pytest
from casekit import UNIT, content, device_calls, pattern, written

import gpumem
from gpumem import MemoryPointer, MemoryPool, UnownedMemory

SIZE = 4 * UNIT


class Foreign:
    """What owns the memory somewhere else."""

    def __init__(self):
        self.memory = gpumem.Memory(SIZE)
        self.ptr = self.memory.ptr


def moved(memory):
    return MemoryPointer(memory, 0) + UNIT


def moved_in_place(memory):
    pointer = MemoryPointer(memory, 0)
    pointer += UNIT
    return pointer


def begun_inside(memory):
    return MemoryPointer(memory, UNIT)


def moved_there_and_back(memory):
    return MemoryPointer(memory, 0) + 3 * UNIT - 2 * UNIT


@pytest.mark.parametrize(
    "derive", [moved, moved_in_place, begun_inside, moved_there_and_back]
)
def test_u43_the_owner_lives_as_long_as_any_pointer(derive):
    foreign = Foreign()
    ended = weakref.ref(foreign)
    pointer = derive(UnownedMemory(foreign.ptr, SIZE, foreign))
    assert pointer.ptr == foreign.ptr + UNIT
    del foreign
    gc.collect()
    assert ended() is not None
    written(pointer, UNIT)
    again = pointer + 5
    del pointer
    gc.collect()
    assert ended() is not None
    assert content(again, UNIT - 5) == pattern(UNIT)[5:]
    del again
    gc.collect()
    assert ended() is None


def test_u43_it_is_never_freed_here():
    foreign = Foreign()
    with device_calls() as calls:
        pointer = MemoryPointer(UnownedMemory(foreign.ptr, SIZE, foreign), 0)
        del pointer
        gc.collect()
    assert [call for call in calls if call.name == "mem_free"] == []
    # A free would have made the next request succeed at the same address.
    assert gpumem.malloc(SIZE).ptr != foreign.ptr
    pointer = MemoryPointer(UnownedMemory(foreign.ptr, SIZE, None), 0)
    assert content(written(pointer, SIZE), SIZE) == pattern(SIZE)


def test_u43_a_pool_over_foreign_memory_keeps_the_owner(pool):
    """A base allocator may hand out what it does not own."""

    def malloc(size):
        foreign = Foreign()
        ended.append(weakref.ref(foreign))
        return MemoryPointer(UnownedMemory(foreign.ptr, size, foreign), 0)

    ended = []
    over = MemoryPool(malloc)
    pointer = over.malloc(SIZE)
    view = pointer + UNIT
    del pointer, over
    gc.collect()
    assert ended[0]() is not None
    written(view, UNIT)
    del view
    gc.collect()
    assert ended[0]() is None


def test_u43_what_no_owner_means_is_documented():
    text = " ".join(UnownedMemory.__doc__.split())
    assert "owner" in text and "None" in text
