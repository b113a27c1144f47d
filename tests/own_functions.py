# SPDX-License-Identifier: MIT
"""Functions of a program that give memory and need their object to take it back, what
they gave, and what looks at memory when it is finalized.
"""

import ctypes

import pytest

import gpumem
from gpumem import (
    CFunctionAllocator,
    MemoryPool,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
)

UNIT = 512
PATTERN = bytes(range(256)) * 2
C_MALLOC = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
)
C_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


class Books:
    """What some functions took and gave back."""

    def __init__(self):
        self.taken = []
        self.freed = []

    def balanced(self):
        return sorted(self.taken) == sorted(self.freed)


class Functions:
    """Functions that need their object to free, and an allocator of them."""

    def __init__(self, books):
        self.books = books
        self.memories = {}
        self.pointers = []
        self.allocator = self.over()

    def over(self):
        return PythonFunctionAllocator(self.malloc, self.free)

    def malloc(self, size, device):
        memory = gpumem.Memory(size)
        self.memories[memory.ptr] = memory
        self.books.taken.append(memory.ptr)
        return memory.ptr

    def free(self, ptr, device):
        del self.memories[ptr]
        self.books.freed.append(ptr)

    def lend(self, size):
        self.pointers.append(self.allocator.malloc(size))
        return self.pointers[-1]


class Thunks(Functions):
    """The same behind C functions, which live as long as this."""

    def over(self):
        self.thunks = (
            C_MALLOC(lambda param, size, device: self.malloc(size, device)),
            C_FREE(lambda param, ptr, device: self.free(ptr, device)),
        )
        addresses = (ctypes.cast(f, ctypes.c_void_p).value for f in self.thunks)
        return CFunctionAllocator(0, *addresses, self)


BOTH = pytest.mark.parametrize("kind", [Functions, Thunks])
POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


class Looks:
    """In a cycle with itself, and looks at a pointer when it is finalized."""

    def __init__(self, pointer, seen):
        self.me, self.pointer, self.seen = self, pointer, seen
        pointer.copy_from_host(PATTERN, UNIT)

    def __del__(self):
        back = bytearray(UNIT)
        self.pointer.copy_to_host(back, UNIT)
        self.seen.append(bytes(back) == PATTERN)


class Keeps:
    """In a cycle with itself, and brings a pointer back when it is finalized."""

    def __init__(self, pointer, saved):
        self.me, self.pointer, self.saved = self, pointer, saved

    def __del__(self):
        self.saved.append(self.pointer)
