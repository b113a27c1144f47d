# SPDX-License-Identifier: MIT
"""Managed memory could be moved to a device and not back to the host, was refused on
devices that cannot use it at the same time as the host, and for size 0; and CUDA 13
changed the shape of the calls. cupy#9493, cudapy#1332, intel/llvm#6281,
https://github.com/cupy/cupy/issues/9493"""

import pytest
from casekit import MIB, content, pattern, written

import gpumem
from gpumem import Device, ManagedMemory, MemoryPointer, Stream, testing

READ_MOSTLY, PREFERRED_LOCATION, ACCESSED_BY = 1, 3, 5
HOST = -1


def devices():
    return range(gpumem.get_device_count())


@pytest.fixture
def memory():
    """Written, and the same at the end whatever was done to it. Skips where the device
    does not offer what the tests are about."""
    memory = ManagedMemory(MIB)
    pointer = written(MemoryPointer(memory, 0), MIB)
    try:
        memory.prefetch(Stream.null)
    except RuntimeError as error:
        pytest.skip(str(error))
    yield memory
    Device().synchronize()
    assert content(pointer, MIB) == pattern(MIB)
    assert testing.last_error() == 0


def test_managed_memory_moves_to_its_device_to_any_and_to_the_host(memory):
    for stream in (None, Stream.null, Stream(non_blocking=True)):
        memory.prefetch(stream)
        memory.prefetch(stream, device_id=HOST)
        for device in devices():
            memory.prefetch(stream, device_id=device)
        assert gpumem.get_device_id() == 0


def test_managed_memory_takes_advice_about_devices_and_the_host(memory):
    for advice in (READ_MOSTLY, PREFERRED_LOCATION, ACCESSED_BY):
        for device in (*devices(), HOST):
            memory.advise(advice, device)
            memory.advise(advice, dev=device)  # today's name
            memory.advise(advice + 1, device=device)  # unset


@pytest.mark.sim_only
def test_managed_memory_tells_the_device_the_whole_range_and_where(memory):
    with testing.call_log() as calls:
        memory.prefetch(None)
        memory.prefetch(None, device_id=HOST)
        memory.advise(PREFERRED_LOCATION, HOST)
    told = [(call.name, call.device, call.ptr, call.size) for call in calls]
    assert [entry for entry in told if entry[0] in ("mem_prefetch", "mem_advise")] == [
        ("mem_prefetch", 0, memory.ptr, MIB),
        ("mem_prefetch", HOST, memory.ptr, MIB),
        ("mem_advise", HOST, memory.ptr, MIB),
    ]


def test_managed_memory_of_no_bytes_has_nothing_to_move():
    memory = ManagedMemory(0)
    for device in (*devices(), HOST):
        memory.prefetch(None, device_id=device)
        memory.advise(READ_MOSTLY, device)
    assert testing.last_error() == 0


@pytest.mark.sim_only
def test_managed_memory_of_a_device_that_takes_turns_with_the_host():
    """Such a device can have it, but not move it: that is said, and nothing is left."""
    with testing.without("concurrent_managed"):
        memory = ManagedMemory(MIB)
        pointer = written(MemoryPointer(memory, 0), MIB)
        for move in (
            lambda: memory.prefetch(None),
            lambda: memory.advise(PREFERRED_LOCATION, 0),
        ):
            with pytest.raises(RuntimeError):
                move()
            assert testing.last_error() == 0
        assert content(pointer, MIB) == pattern(MIB)


def test_managed_memory_knows_what_is_no_device(memory):
    for device in (99, -2):
        with pytest.raises(ValueError):
            memory.prefetch(None, device_id=device)
        with pytest.raises(ValueError):
            memory.advise(READ_MOSTLY, device)
    with pytest.raises(TypeError):
        memory.advise(READ_MOSTLY)
