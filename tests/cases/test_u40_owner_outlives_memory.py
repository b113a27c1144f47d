# SPDX-License-Identifier: MIT
"""The allocator object was a temporary; when its memory was freed later, the callback
was dead or another free was called. torch#146431, torch#167745,
https://github.com/pytorch/pytorch/issues/146431"""

import ctypes
import gc
import weakref

import pytest
from casekit import C_FREE, C_MALLOC, UNIT

import gpumem
from gpumem import CFunctionAllocator, MemoryPool, PythonFunctionAllocator

PARAM = 0x7777


class Owner:
    """Alone keeps the C functions alive; `log` notes each call, and the owner's end."""

    def __init__(self, log):
        def malloc(param, size, device):
            memory = gpumem.Memory(size)
            memories[memory.ptr] = memory
            log.append(("malloc", param, memory.ptr, device))
            return memory.ptr

        def free(param, ptr, device):
            log.append(("free", param, ptr, device))
            del memories[ptr]

        memories = {}
        self.thunks = C_MALLOC(malloc), C_FREE(free)
        weakref.finalize(self, log.append, "the owner's end").atexit = False

    def functions(self):
        return [ctypes.cast(thunk, ctypes.c_void_p).value for thunk in self.thunks]


def made_and_forgotten(log):
    owner = Owner(log)
    return CFunctionAllocator(PARAM, *owner.functions(), owner).malloc(1024)


def under_a_pool_and_forgotten(log):
    owner = Owner(log)
    allocator = CFunctionAllocator(PARAM, *owner.functions(), owner)
    return MemoryPool(allocator.malloc).malloc(1024)


@pytest.mark.parametrize("make", [made_and_forgotten, under_a_pool_and_forgotten])
@pytest.mark.parametrize("offset", [0, 100])
def test_u40_c_functions_live_until_the_memory_is_back(make, offset, unraisable):
    log = []
    pointer = make(log) + offset
    address, device = pointer.ptr - offset, pointer.device_id
    gc.collect()
    assert log == [("malloc", PARAM, address, device)]
    pointer.memset(1, 1024 - offset)
    del pointer
    gc.collect()
    assert log == [
        ("malloc", PARAM, address, device),
        ("free", PARAM, address, device),
        "the owner's end",
    ]
    assert unraisable == []


def test_u40_the_owner_of_many_blocks_ends_after_the_last(unraisable):
    log = []
    owner = Owner(log)
    allocator = CFunctionAllocator(PARAM, *owner.functions(), owner)
    pointers = [allocator.malloc(UNIT) for _ in range(3)]
    del owner, allocator
    for left in (2, 1, 0):
        gc.collect()
        assert "the owner's end" not in log
        pointers.pop()
        assert sum(entry[0] == "free" for entry in log) == 3 - left
    gc.collect()
    assert log[-1] == "the owner's end"
    assert unraisable == []


@pytest.mark.parametrize("pooled", [False, True])
def test_u40_so_do_the_methods_of_a_python_object(pooled, unraisable):
    class Temporary:
        def malloc(self, size, device):
            self.memory = gpumem.Memory(size)
            log.append("malloc")
            return self.memory.ptr

        def free(self, ptr, device):
            assert ptr == self.memory.ptr
            log.append("free")

        def __del__(self):
            log.append("end")

    log = []
    temporary = Temporary()
    allocator = PythonFunctionAllocator(temporary.malloc, temporary.free)
    pointer = (MemoryPool(allocator.malloc) if pooled else allocator).malloc(UNIT)
    del temporary, allocator
    gc.collect()
    assert log == ["malloc"]
    del pointer
    gc.collect()
    assert log == ["malloc", "free", "end"]
    assert unraisable == []
