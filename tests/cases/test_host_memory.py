# SPDX-License-Identifier: MIT
"""Host memory that a device reads was freed by the C library, which waits for nobody,
while queued work still used it. rmm#1655,
https://github.com/rapidsai/rmm/issues/1655"""

import ctypes
import gc
import weakref

import pytest
from casekit import KIB, content, kept_busy, pattern, written

import gpumem
from gpumem import MemoryPointer, MemoryPool, Stream, SystemMemory

SIZE = 256 * KIB


class Buffer(ctypes.c_ubyte * SIZE):
    pass


def system_memory():
    return MemoryPointer(SystemMemory(SIZE), 0)


def pooled_system_memory():
    return MemoryPool(gpumem.malloc_system).malloc(SIZE)


def of_somebody_else():
    owner = Buffer()
    return MemoryPointer(
        SystemMemory.from_external(ctypes.addressof(owner), SIZE, owner), 0
    )


KINDS = pytest.mark.parametrize(
    "make", [system_memory, pooled_system_memory, of_somebody_else]
)


@pytest.fixture(autouse=True)
def reaching():
    """Skips where the device cannot read plain host memory."""
    try:
        SystemMemory(1)
    except RuntimeError as error:
        pytest.skip(str(error))


@KINDS
def test_host_memory_is_there_until_the_device_has_read_it(make):
    stream = Stream(non_blocking=True)
    source, target = written(make(), SIZE), gpumem.malloc(SIZE)
    busy = kept_busy(stream)
    target.copy_from_device_async(source, SIZE, stream)
    del source
    gc.collect()
    # What the C library would put where it was.
    others = [ctypes.create_string_buffer(b"\x55" * SIZE) for _ in range(8)]
    stream.synchronize()
    assert content(target, SIZE) == pattern(SIZE)
    del others, busy


@KINDS
def test_host_memory_is_not_written_to_when_it_is_somebody_elses(make):
    stream = Stream(non_blocking=True)
    pointer = make()
    busy = kept_busy(stream)
    pointer.memset_async(1, SIZE, stream)
    del pointer
    gc.collect()
    others = [bytearray(SIZE) for _ in range(8)]
    stream.synchronize()
    assert all(other == bytes(SIZE) for other in others)
    del busy


def test_host_memory_of_somebody_keeps_its_owner_until_then():
    owner = Buffer()
    ended = weakref.ref(owner)
    stream = Stream(non_blocking=True)
    pointer = MemoryPointer(
        SystemMemory.from_external(ctypes.addressof(owner), SIZE, owner), 0
    )
    pointer.memset_async(7, SIZE, stream)
    view = pointer + 8
    del owner, pointer
    gc.collect()
    assert ended() is not None
    del view
    gc.collect()
    assert ended() is None
    assert stream.done
