# SPDX-License-Identifier: MIT
"""ManagedMemory and malloc_managed: allocating, prefetching, advising."""

import ctypes

import pytest

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    ManagedMemory,
    MemoryPool,
    OutOfMemoryError,
    Stream,
    testing,
)

SIZE = 4096
READ_MOSTLY = 1  # cudaMemAdviseSetReadMostly
PREFERRED = 3  # cudaMemAdviseSetPreferredLocation
HOST = -1


def moves(calls):
    """(device, address, bytes) of each prefetch and advice."""
    return [
        (call.name, call.device, call.ptr, call.size)
        for call in calls
        if call.name in ("mem_prefetch", "mem_advise")
    ]


@pytest.fixture
def memory():
    return ManagedMemory(SIZE)


# ---- allocating ----


def test_managed_memory_is_memory_of_the_current_device(memory):
    assert isinstance(memory, gpumem.BaseMemory)
    assert memory.ptr > 0 and memory.size == SIZE
    assert memory.device_id == gpumem.get_device_id()
    assert gpumem.UnownedMemory(memory.ptr, SIZE, memory).device_id == memory.device_id


def test_the_host_and_the_device_see_the_same_bytes():
    pointer = gpumem.malloc_managed(SIZE)
    pointer.memset(0x5A, SIZE)
    Device().synchronize()
    bytes_of_it = (ctypes.c_ubyte * SIZE).from_address(pointer.ptr)
    assert set(bytes_of_it) == {0x5A}
    bytes_of_it[7] = 9
    host = bytearray(8)
    pointer.copy_to_host(host, 8)
    assert host == b"Z" * 7 + b"\t"


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "make", [ManagedMemory, lambda size: gpumem.malloc_managed(size).mem]
)
def test_it_is_taken_once_and_given_back_once(make):
    with testing.call_log() as calls:
        memory = make(1000)
        address = memory.ptr
        del memory
    names = [(call.name, call.ptr) for call in calls if call.name.startswith("mem_")]
    assert names == [("mem_alloc", address), ("mem_free", address)]


@pytest.mark.two_devices
def test_it_goes_back_to_its_own_device_whatever_is_current():
    with Device(1):
        memory = ManagedMemory(SIZE)
    assert memory.device_id == 1
    del memory  # the surroundings see that nothing is left and nothing was refused
    assert gpumem.get_device_id() == 0


@pytest.mark.sim_only
def test_no_bytes_are_no_call():
    with testing.call_log() as calls:
        memory = ManagedMemory(0)
        assert (memory.ptr, memory.size) == (0, 0)
        assert gpumem.malloc_managed(0).ptr == 0
        memory.prefetch(None)
        memory.advise(READ_MOSTLY, 0)
    assert [call for call in calls if call.name.startswith("mem_")] == []


def test_it_serves_as_the_allocator():
    gpumem.set_allocator(gpumem.malloc_managed)
    pointer = gpumem.alloc(SIZE)
    assert type(pointer.mem) is ManagedMemory
    assert pointer.mem.size == SIZE
    assert type(gpumem.malloc_managed(size=1).mem) is ManagedMemory


def test_a_pool_can_lie_over_it():
    pool = MemoryPool(gpumem.malloc_managed)
    pointer = pool.malloc(700)
    ctypes.memset(pointer.ptr, 3, 700)
    host = bytearray(700)
    pointer.copy_to_host(host, 700)
    assert host == b"\3" * 700
    assert pool.total_bytes() == 1024
    del pointer
    testing.check_pool(pool)


@pytest.mark.sim_only
def test_more_than_the_device_has_can_be_had_and_a_shortage_is_told():
    assert ManagedMemory(Device().mem_info[1] + 1).ptr > 0
    with testing.fail("mem_alloc"):
        with pytest.raises(CUDARuntimeError) as caught:
            ManagedMemory(SIZE)
    assert caught.value.status == 2
    with testing.fail("mem_alloc", count=0):
        with pytest.raises(OutOfMemoryError):
            MemoryPool(gpumem.malloc_managed).malloc(SIZE)


def test_it_is_initialised_once(memory):
    address = memory.ptr
    with pytest.raises(RuntimeError, match="once"):
        memory.__init__(SIZE)
    assert memory.ptr == address


def test_it_can_be_subclassed():
    class Named(ManagedMemory):
        pass

    memory = Named(SIZE)
    memory.name = "mine"
    assert (memory.name, memory.size) == ("mine", SIZE)


# ---- prefetching ----


@pytest.mark.sim_only
def test_prefetch_moves_the_whole_range_to_its_own_device(memory):
    stream = Stream()
    with testing.call_log() as calls:
        assert memory.prefetch(stream) is None
        memory.prefetch(None)
    assert moves(calls) == [("mem_prefetch", 0, memory.ptr, SIZE)] * 2


@pytest.mark.sim_only
@pytest.mark.two_devices
def test_prefetch_goes_where_it_is_told(memory):
    with Device(1):
        stream = Stream()
    with testing.call_log() as calls:
        memory.prefetch(stream, device_id=1)
        memory.prefetch(stream=None, device_id=HOST)
        memory.prefetch(None, device_id=None)
    assert [call[1] for call in moves(calls)] == [1, HOST, 0]


def test_what_was_prefetched_is_still_there(memory):
    """On a GPU that cannot prefetch the driver says so, and nothing is lost."""
    stream = Stream()
    pointer = gpumem.MemoryPointer(memory, 0)
    pointer.memset_async(0x21, SIZE, stream)
    for place in (0, HOST):
        try:
            memory.prefetch(stream, device_id=place)
            memory.advise(PREFERRED, place)
        except CUDARuntimeError:
            assert gpumem.get_backend() == "cuda"
    host = bytearray(SIZE)
    pointer.copy_to_host_async(host, SIZE, stream)
    stream.synchronize()
    assert host == b"!" * SIZE
    assert testing.last_error() == 0


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"device_id": -2}, ValueError),
        ({"device_id": 99}, ValueError),
        ({"device_id": 1.0}, TypeError),
        ({"device": 0}, TypeError),
    ],
)
def test_prefetch_checks_the_device(memory, keywords, error):
    with pytest.raises(error):
        memory.prefetch(None, **keywords)


@pytest.mark.parametrize("stream", [1, "stream", object()])
def test_prefetch_checks_the_stream(memory, stream):
    with pytest.raises(TypeError, match="stream"):
        memory.prefetch(stream)


def test_prefetch_needs_a_stream_and_no_more(memory):
    for arguments in ((), (None, 0)):
        with pytest.raises(TypeError):
            memory.prefetch(*arguments)


# ---- advising ----


@pytest.mark.sim_only
def test_advice_is_about_the_whole_range(memory):
    with testing.call_log() as calls:
        assert memory.advise(READ_MOSTLY, Device(0)) is None
        memory.advise(advise=PREFERRED, device=HOST)
        memory.advise(PREFERRED, dev=0)
    assert moves(calls) == [
        ("mem_advise", device, memory.ptr, SIZE) for device in (0, HOST, 0)
    ]


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "text"),
    [
        ((), {}, TypeError, "advise"),
        ((READ_MOSTLY,), {}, TypeError, "needs the argument 'device'"),
        ((READ_MOSTLY, None), {"dev": None}, TypeError, "needs the argument 'device'"),
        ((READ_MOSTLY, 0), {"dev": 0}, TypeError, "'device' and 'dev'"),
        ((READ_MOSTLY, 0, 0), {}, TypeError, "positional"),
        (("1", 0), {}, TypeError, "advise must be an integer"),
        ((READ_MOSTLY, "0"), {}, TypeError, "device"),
        ((2**31, 0), {}, OverflowError, "advise"),
        ((READ_MOSTLY, -2), {}, ValueError, "device"),
        ((READ_MOSTLY, 99), {}, ValueError, "device"),
    ],
)
def test_advice_is_checked(memory, arguments, keywords, error, text):
    with pytest.raises(error, match=text):
        memory.advise(*arguments, **keywords)


@pytest.mark.parametrize("advice", [0, 99, -1])
def test_advice_that_the_runtime_does_not_know(memory, advice):
    with pytest.raises(CUDARuntimeError) as caught:
        memory.advise(advice, 0)
    assert caught.value.status == 1
    assert f"advice {advice}, which is not from 1 to 6, about" in str(caught.value)
    assert testing.last_error() == 0


# ---- when the device refuses ----


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("mem_prefetch", lambda memory: memory.prefetch(None)),
        ("mem_advise", lambda memory: memory.advise(READ_MOSTLY, 0)),
    ],
)
def test_a_refusal_is_told_with_its_number(memory, call, act):
    with testing.fail(call, code=801):
        with pytest.raises(CUDARuntimeError) as caught:
            act(memory)
    assert caught.value.status == 801
    assert f"{SIZE} bytes at {hex(memory.ptr)}" in str(caught.value)
    assert testing.last_error() == 0
    act(memory)


@pytest.mark.sim_only
def test_a_refusal_names_the_advice_and_the_place(memory):
    told = []
    for call, act in (
        ("mem_advise", lambda: memory.advise(PREFERRED, HOST)),
        ("mem_prefetch", lambda: memory.prefetch(None, device_id=0)),
        ("mem_prefetch", lambda: memory.prefetch(None, device_id=HOST)),
    ):
        with testing.fail(call), pytest.raises(CUDARuntimeError) as caught:
            act()
        told.append(str(caught.value).partition(" (")[2].partition(":")[0])
    assert told == [
        "advice 3 (preferred location) about the host",
        "prefetching to device 0",
        "prefetching to the host",
    ]


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_the_current_device_is_kept_also_when_a_prefetch_is_refused(memory):
    stream = gpumem.ExternalStream(0, device_id=1)
    memory.prefetch(stream, device_id=1)
    assert gpumem.get_device_id() == 0
    with testing.fail("mem_prefetch", code=999):
        with pytest.raises(CUDARuntimeError) as caught:
            memory.prefetch(stream, device_id=1)
    assert caught.value.status == 999
    assert gpumem.get_device_id() == 0


@pytest.mark.sim_only
@pytest.mark.misuse
def test_memory_whose_ptr_was_changed_is_refused(memory):
    address = memory.ptr
    memory.ptr = gpumem.malloc(1).ptr  # gone, and never managed
    for act in (lambda: memory.prefetch(None), lambda: memory.advise(READ_MOSTLY, 0)):
        with pytest.raises(CUDARuntimeError):
            act()
    memory.ptr = address
