# SPDX-License-Identifier: MIT
"""UnownedMemory: somebody else's memory, its owner kept alive, never freed by us."""

import ctypes
import gc
import weakref

import pytest

import gpumem
from gpumem import Device, MemoryPointer, MemoryPool, UnownedMemory, testing

SIZE = 4096


class Owner:
    """Memory of a device that goes back with this object."""

    def __init__(self, size=SIZE):
        self.memory = gpumem.Memory(size)
        self.ptr = self.memory.ptr


@pytest.fixture
def owner():
    return Owner()


# ---- what it says ----


def test_it_says_what_it_was_given(owner):
    memory = UnownedMemory(owner.ptr, 1000, owner, 0)
    assert isinstance(memory, gpumem.BaseMemory)
    assert (memory.ptr, memory.size, memory.device_id) == (owner.ptr, 1000, 0)
    assert int(memory) == owner.ptr
    assert memory._owner is owner
    with pytest.raises(AttributeError):
        memory._owner = None


def test_arguments_have_names(owner):
    memory = UnownedMemory(ptr=owner.ptr, size=1, owner=owner, device_id=0)
    assert (memory.ptr, memory.size, memory.device_id) == (owner.ptr, 1, 0)


def test_the_driver_knows_whose_memory_it_is(owner):
    assert UnownedMemory(owner.ptr, SIZE, owner).device_id == 0
    assert UnownedMemory(owner.ptr + 100, 1, owner).device_id == 0
    assert UnownedMemory(owner.ptr, SIZE, owner, -1).device_id == 0


@pytest.mark.two_devices
def test_the_device_is_the_memorys_and_not_the_current_one(owner):
    with Device(1):
        there = Owner()
        assert UnownedMemory(owner.ptr, SIZE, owner).device_id == 0
    assert UnownedMemory(there.ptr, SIZE, there).device_id == 1
    assert UnownedMemory(owner.ptr, SIZE, owner, 1).device_id == 1  # as it is told
    assert gpumem.get_device_id() == 0


@pytest.mark.sim_only
def test_a_device_that_is_given_is_not_asked_for(owner):
    with testing.call_log() as calls:
        UnownedMemory(owner.ptr, SIZE, owner, 0)
    assert "pointer_info" not in {call.name for call in calls}


@pytest.mark.two_devices
def test_managed_memory_counts_as_on_the_device_it_was_allocated_on():
    with Device(1):
        managed = gpumem.ManagedMemory(SIZE)
    assert UnownedMemory(managed.ptr, SIZE, managed).device_id == 1


# ---- whose it is ----


@pytest.mark.sim_only
def test_it_is_never_freed_here():
    memory = gpumem.Memory(SIZE)
    with testing.call_log() as calls:
        pointer = MemoryPointer(UnownedMemory(memory.ptr, SIZE, None), 0)
        del pointer
    assert "mem_free" not in {call.name for call in calls}


@pytest.mark.parametrize("make", [lambda pointer: pointer + 8, lambda pointer: pointer])
def test_the_owner_lives_as_long_as_the_last_pointer(make):
    owner = Owner()
    alive = weakref.ref(owner)
    pointer = make(MemoryPointer(UnownedMemory(owner.ptr, SIZE, owner), 0))
    del owner
    gc.collect()
    assert alive() is not None
    pointer.memset(7, 8)
    host = bytearray(8)
    pointer.copy_to_host(host, 8)
    assert host == b"\7" * 8
    del pointer
    assert alive() is None


def test_an_owner_that_refers_back_is_collected():
    owner = Owner()
    alive = weakref.ref(owner)
    owner.memory_of_mine = UnownedMemory(owner.ptr, SIZE, owner)
    owner.pointer = MemoryPointer(owner.memory_of_mine, 0)
    del owner
    gc.collect()
    assert alive() is None


def test_a_pool_can_lie_over_foreign_memory():
    owner = Owner()
    alive = weakref.ref(owner)
    places = [MemoryPointer(UnownedMemory(owner.ptr, SIZE, owner), 0)]
    pool = MemoryPool(lambda size: places.pop())
    pointer = pool.malloc(512)
    assert pointer.ptr == owner.ptr
    del owner, pointer
    gc.collect()
    assert alive() is not None  # cached
    del pool
    gc.collect()
    assert alive() is None


def test_initialising_again_changes_the_owner():
    first, second = Owner(), Owner()
    alive = weakref.ref(first)
    memory = UnownedMemory(first.ptr, SIZE, first)
    memory.__init__(second.ptr, 8, second)
    del first
    assert alive() is None
    assert (memory.ptr, memory.size, memory._owner) == (second.ptr, 8, second)


# ---- what is refused ----


def test_plain_host_memory_is_told_by_address_and_kind():
    buffer = ctypes.create_string_buffer(64)
    address = ctypes.addressof(buffer)
    with pytest.raises(ValueError, match=f"{hex(address)} is plain host memory"):
        UnownedMemory(address, 64, buffer)
    assert UnownedMemory(address, 64, buffer, 0).device_id == 0  # at the caller's risk
    assert testing.last_error() == 0


@pytest.mark.sim_only
def test_freed_memory_is_refused():
    memory = gpumem.Memory(SIZE)
    address = memory.ptr
    del memory
    with pytest.raises(ValueError, match=hex(address)):
        UnownedMemory(address, SIZE, None)


def test_a_null_pointer_needs_a_device(owner):
    with pytest.raises(RuntimeError, match="null pointer needs device_id"):
        UnownedMemory(0, 0, owner)
    memory = UnownedMemory(0, 0, owner, 0)
    assert (memory.ptr, memory.size, memory.device_id) == (0, 0, 0)
    pointer = MemoryPointer(memory, 0)
    pointer.memset(0, 0)
    with pytest.raises(ValueError):
        pointer.memset(0, 1)
    with pytest.raises(AssertionError):
        pointer + 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((1, 1), TypeError),
        ((1, 1, None, 0, 0), TypeError),
        ((1.0, 1, None, 0), TypeError),
        ((1, 1.0, None, 0), TypeError),
        ((1, 1, None, 0.0), TypeError),
        ((1, 1, None, None), TypeError),
        (("1", 1, None, 0), TypeError),
        ((-1, 1, None, 0), OverflowError),
        ((2**64, 1, None, 0), OverflowError),
        ((1, -1, None, 0), OverflowError),
        ((1, 2**64, None, 0), OverflowError),
        ((1, 1, None, 2**31), OverflowError),
        ((1, 1, None, 99), ValueError),
    ],
)
def test_arguments_are_checked(arguments, error):
    with pytest.raises(error):
        UnownedMemory(*arguments)


@pytest.mark.sim_only
def test_a_driver_that_does_not_answer_is_heard(owner):
    with testing.fail("pointer_info", code=999):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            UnownedMemory(owner.ptr, SIZE, owner)
    assert caught.value.status == 999


def test_one_that_was_never_initialised_has_nothing():
    memory = UnownedMemory.__new__(UnownedMemory)
    assert (memory.ptr, memory.size, memory._owner) == (0, 0, None)


def test_it_can_be_subclassed(owner):
    class Named(UnownedMemory):
        pass

    memory = Named(owner.ptr, SIZE, owner)
    memory.name = "mine"
    assert (memory.name, memory.ptr) == ("mine", owner.ptr)
    assert "Named" in repr(MemoryPointer(memory, 0))


# ---- plain host memory under another name ----


def of_functions(address):
    return gpumem.PythonFunctionAllocator(
        lambda size, device: address, lambda address, device: None
    )


@pytest.mark.parametrize("suffix", ["", "_async"])
@pytest.mark.parametrize(
    "place",
    [
        lambda address: MemoryPointer(UnownedMemory(address, SIZE, None, 0), 0),
        lambda address: of_functions(address).malloc(SIZE),
        lambda address: MemoryPool(of_functions(address).malloc).malloc(SIZE),
    ],
    ids=["unowned", "of a function", "of a pool over a function"],
)
def test_plain_host_memory_can_be_copied(place, suffix):
    """In every direction, as what it is and not as the device's."""
    buffer = ctypes.create_string_buffer(bytes(range(256)) * 16, SIZE)
    host, device = place(ctypes.addressof(buffer)), gpumem.malloc(SIZE)
    out = ctypes.create_string_buffer(SIZE)
    stream = gpumem.Stream.null

    def copy(to, method, *arguments):
        getattr(to, method + suffix)(*arguments)
        stream.synchronize()

    copy(device, "copy_from_device", host, SIZE)
    copy(device, "copy_to_host", out, SIZE)
    assert out.raw == bytes(range(256)) * 16
    device.memset(7, SIZE)
    copy(host + 8, "copy_from", device, 100)
    assert buffer.raw[8:108] == b"\7" * 100 and buffer.raw[108] == 108
    copy(host, "copy_from_host", b"abcd", 4)
    copy(host, "copy_to_host", out, 12)
    assert out.raw[:12] == b"abcd\4\5\6\7" + b"\7" * 4


@pytest.mark.two_devices
def test_plain_host_memory_can_be_copied_whichever_device_it_is_said_to_be_of():
    buffer = ctypes.create_string_buffer(b"\5" * SIZE, SIZE)
    memory = UnownedMemory(ctypes.addressof(buffer), SIZE, buffer, 1)
    host, device = MemoryPointer(memory, 0), gpumem.malloc(SIZE)
    device.copy_from_device(host, SIZE)
    out = ctypes.create_string_buffer(SIZE)
    device.copy_to_host(out, SIZE)
    assert out.raw == b"\5" * SIZE


@pytest.mark.sim_only
@pytest.mark.misuse
def test_an_address_with_nothing_behind_it_is_refused():
    nowhere = MemoryPointer(UnownedMemory(4096, SIZE, None, 0), 0)
    device = gpumem.malloc(SIZE)
    for copy in (device.copy_from_device, device.copy_from_device_async):
        with pytest.raises(gpumem.CUDARuntimeError):
            copy(nowhere, SIZE)
