# SPDX-License-Identifier: MIT
"""After an error that was reported or overcome, the next call that had nothing to do
with it said the same error once more. NVIDIA/cub#47, GenomeWorks#130,
ggml-org/llama.cpp#7376, https://github.com/NVIDIA/cub/issues/47"""

import ctypes

import pytest
from casekit import MIB, UNIT

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    Event,
    MemoryPool,
    OutOfMemoryError,
    Stream,
    UnownedMemory,
    testing,
)

TOO_LARGE = 1 << 60  # for any device


def overcome_by_reclaiming():
    """The device is full of what is cached."""
    pool = MemoryPool()
    pool.malloc(Device().mem_info[0] // 2)
    pool.malloc(Device().mem_info[0] * 3 // 4)
    return pool


def raised():
    with pytest.raises(OutOfMemoryError):
        MemoryPool().malloc(TOO_LARGE)


def raised_without_a_pool():
    with pytest.raises(CUDARuntimeError):
        gpumem.malloc(TOO_LARGE)


def raised_for_managed_memory():
    with pytest.raises(CUDARuntimeError):
        gpumem.malloc_managed(1 << 62)


def raised_for_a_device_that_is_not_there():
    with pytest.raises(ValueError):
        Device(99)


def an_attribute_query_that_failed():
    owner = bytearray(64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(owner))
    with pytest.raises(ValueError):
        UnownedMemory(address, 64, owner)


def not_done_yet():
    stream, event = Stream(non_blocking=True), Event()
    memory = gpumem.malloc(MIB)
    for _ in range(50):
        memory.memset_async(1, MIB, stream)
    event.record(stream)
    assert stream.done in (True, False) and event.done in (True, False)
    stream.synchronize()


def time_that_cannot_be_told():
    with pytest.raises((RuntimeError, ValueError)):
        gpumem.get_elapsed_time(Event(), Event())


EVENTS = [
    overcome_by_reclaiming,
    raised,
    raised_without_a_pool,
    raised_for_managed_memory,
    raised_for_a_device_that_is_not_there,
    an_attribute_query_that_failed,
    not_done_yet,
    time_that_cannot_be_told,
]


@pytest.mark.parametrize("happen", EVENTS)
def test_u53_the_next_call_knows_nothing_of_it(happen):
    assert testing.last_error() == 0
    happen()
    assert testing.last_error() == 0
    pointer = gpumem.malloc(UNIT)
    pointer.memset(1, UNIT)
    Device().synchronize()
    assert testing.last_error() == 0


@pytest.mark.two_devices
def test_u53_access_to_a_peer_that_is_there_already():
    source = gpumem.malloc(UNIT)
    with Device(1):
        target = gpumem.malloc(UNIT)
    for _ in range(3):
        target.copy_from_device(source, UNIT)
        assert testing.last_error() == 0


CALLS = {
    "mem_alloc": lambda: gpumem.malloc(UNIT),
    "copy": lambda: gpumem.malloc(UNIT).copy_from_host(bytes(UNIT), UNIT),
    "set": lambda: gpumem.malloc(UNIT).memset(1, UNIT),
    "stream_create": Stream,
    "event_create": Event,
    "mem_info": lambda: Device().mem_info,
    "device_synchronize": lambda: Device().synchronize(),
}


@pytest.mark.sim_only
@pytest.mark.parametrize("code", [1, 2, 46, 700])
@pytest.mark.parametrize("call", CALLS)
def test_u53_whatever_fails_is_told_once(call, code):
    with testing.fail(call, code=code):
        with pytest.raises(CUDARuntimeError) as caught:
            CALLS[call]()
    assert caught.value.status == code
    assert testing.last_error() == 0
    CALLS[call]()
    assert testing.last_error() == 0
