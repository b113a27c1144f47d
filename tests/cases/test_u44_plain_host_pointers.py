# SPDX-License-Identifier: MIT
"""Since CUDA 11 the driver answers for plain host memory too, so that asking it which
device an address belongs to gave a device that made no sense. cumo#191, cupy#2802,
https://github.com/cupy/cupy/issues/2802"""

import ctypes

import pytest
from casekit import UNIT, content, pattern, written

import gpumem
from gpumem import Device, MemoryPointer, UnownedMemory


def last_device():
    return gpumem.get_device_count() - 1


def plain():
    owner = bytearray(4096)
    return ctypes.addressof(ctypes.c_char.from_buffer(owner)), owner


def test_u44_plain_host_memory_is_refused_by_name():
    address, owner = plain()
    with pytest.raises(ValueError) as caught:
        UnownedMemory(address, 64, owner)
    assert f"{address:#x}" in str(caught.value)
    assert "host memory" in str(caught.value)


def test_u44_whoever_names_a_device_is_believed():
    address, owner = plain()
    for device in range(gpumem.get_device_count()):
        memory = UnownedMemory(address, 64, owner, device)
        assert (memory.ptr, memory.size, memory.device_id) == (address, 64, device)


@pytest.mark.parametrize("offset", [0, UNIT, 4 * UNIT - 1])
def test_u44_device_memory_is_its_devices(offset):
    """Whichever device is current, and from its midst too."""
    with Device(last_device()):
        owner = gpumem.malloc(4 * UNIT)
    memory = UnownedMemory(owner.ptr + offset, 4 * UNIT - offset, owner)
    assert memory.device_id == last_device()
    assert gpumem.get_device_id() == 0


def test_u44_managed_memory_is_that_of_the_device_it_was_made_on():
    with Device(last_device()):
        owner = gpumem.malloc_managed(UNIT)
    memory = UnownedMemory(owner.ptr, UNIT, owner)
    assert memory.device_id == last_device()
    pointer = written(MemoryPointer(memory, 0), UNIT)
    assert content(pointer, UNIT) == pattern(UNIT)


def test_u44_pinned_memory_is_that_of_the_device_it_was_made_on():
    with Device(last_device()):
        owner = gpumem.PinnedMemory(UNIT)
    memory = UnownedMemory(owner.ptr, UNIT, owner)
    assert memory.device_id == last_device()
    pointer = written(MemoryPointer(memory, 0), UNIT)
    assert content(pointer, UNIT) == pattern(UNIT)


def test_u44_memory_that_was_freed_is_nobodys():
    """The address is that of no memory any more, so it is refused as plain."""
    pointer = gpumem.malloc(64 << 20)
    address = pointer.ptr
    del pointer
    with pytest.raises(ValueError) as caught:
        UnownedMemory(address, UNIT, None)
    assert f"{address:#x}" in str(caught.value)
