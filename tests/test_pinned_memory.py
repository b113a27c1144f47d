# SPDX-License-Identifier: MIT
"""PinnedMemory, its pointers, and what these are to memoryview and to copies."""

import ctypes
import gc
import weakref

import pytest

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    MemoryPointer,
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    Stream,
    testing,
)

SIZE = 4096
PATTERN = bytes(i % 251 for i in range(SIZE))
PORTABLE, MAPPED, WRITE_COMBINED = 1, 2, 4


@pytest.fixture
def pointer():
    return PinnedMemoryPointer(PinnedMemory(SIZE), 0)


def memory_calls(calls):
    return [call for call in calls if call.name.startswith("mem_")]


# ---- the memory ----


def test_it_is_host_memory_that_the_driver_has_locked():
    memory = PinnedMemory(SIZE)
    assert memory.ptr > 0 and int(memory) == memory.ptr and memory.size == SIZE
    assert memory.device_id == gpumem.get_device_id()
    assert gpumem.is_memory_pinned(memory.ptr)
    ctypes.memset(memory.ptr, 7, SIZE)
    assert ctypes.string_at(memory.ptr, SIZE) == b"\7" * SIZE


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "make", [PinnedMemory, lambda size: gpumem.malloc_pinned(size).mem]
)
def test_it_is_taken_once_and_given_back_once(make):
    with testing.call_log() as calls:
        memory = make(1000)
        address = memory.ptr
        del memory
    names = [(call.name, call.ptr) for call in memory_calls(calls)]
    assert names == [("mem_alloc", address), ("mem_free", address)]


@pytest.mark.sim_only
def test_it_takes_nothing_from_the_device():
    free = Device().mem_info[0]
    memory = PinnedMemory(1 << 20)
    assert Device().mem_info[0] == free
    del memory


@pytest.mark.parametrize("flags", range(8))
def test_every_sum_of_the_runtimes_flags_will_do(flags):
    memory = PinnedMemory(SIZE, flags)
    assert gpumem.is_memory_pinned(memory.ptr)
    ctypes.memset(memory.ptr, flags, SIZE)
    assert PinnedMemory(size=SIZE, flags=flags).size == SIZE


@pytest.mark.parametrize("flags", [-1, 8, 16, 2**31 - 1])
def test_other_flags_are_refused(flags):
    with pytest.raises(ValueError, match=f"0 to 7.*{flags}"):
        PinnedMemory(SIZE, flags)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1,), OverflowError),
        ((2**64,), OverflowError),
        ((1.0,), TypeError),
        (("1",), TypeError),
        ((None,), TypeError),
        ((), TypeError),
        ((1, 0.0), TypeError),
        ((1, None), TypeError),
        ((1, 2**40), OverflowError),
        ((1, 0, 0), TypeError),
    ],
)
def test_what_is_no_size_and_no_flag_is_refused(arguments, error):
    with pytest.raises(error):
        PinnedMemory(*arguments)
    if len(arguments) == 1:
        with pytest.raises(error):
            gpumem.malloc_pinned(*arguments)


@pytest.mark.sim_only
def test_no_bytes_are_no_call():
    with testing.call_log() as calls:
        memory = PinnedMemory(0)
        pointer = gpumem.malloc_pinned(0)
        assert (memory.ptr, memory.size, pointer.ptr, pointer.size()) == (0, 0, 0, 0)
        assert bytes(pointer) == b"" and memoryview(pointer).nbytes == 0
    assert memory_calls(calls) == []


@pytest.mark.sim_only
def test_a_refusal_names_pinned_memory():
    with testing.fail("mem_alloc"):
        with pytest.raises(CUDARuntimeError, match="pinned memory") as caught:
            PinnedMemory(SIZE)
    assert caught.value.status == 2


@pytest.mark.two_devices
def test_it_goes_back_to_its_own_device_whatever_is_current():
    with Device(1):
        memory = PinnedMemory(SIZE)
        pointer = gpumem.malloc_pinned(SIZE)
    assert (memory.device_id, pointer.mem.device_id) == (1, 1)
    del memory, pointer  # the surroundings see that nothing is refused
    assert gpumem.get_device_id() == 0


def test_it_is_initialised_once():
    memory = PinnedMemory(SIZE)
    address = memory.ptr
    with pytest.raises(RuntimeError, match="once"):
        memory.__init__(SIZE)
    assert memory.ptr == address


def test_a_subclass_can_stand_in_for_it():
    class Mock(PinnedMemory):
        def __init__(self, ptr, size):
            self.ptr = ptr
            self.size = size

    pointer = PinnedMemoryPointer(Mock(1000, 24), 8)
    assert (pointer.ptr, pointer.size()) == (1008, 16)
    pointer.mem.ptr = 0  # nothing of it is the driver's


def test_devices_reach_it_under_its_address():
    memory = PinnedMemory(SIZE)
    pointer = MemoryPointer(memory, 0)
    other = gpumem.malloc(SIZE)
    other.copy_from_host(PATTERN, SIZE)
    pointer.copy_from_device(other, SIZE)
    assert bytes(PinnedMemoryPointer(memory, 0)) == PATTERN


# ---- the question ----


def test_which_addresses_are_pinned(pointer):
    device, managed = gpumem.malloc(SIZE), gpumem.malloc_managed(SIZE)
    host = ctypes.create_string_buffer(SIZE)
    for pinned in (pointer, pointer.mem, pointer.ptr, pointer + 9, pointer.ptr + 9):
        assert gpumem.is_memory_pinned(pinned) is True
    for other in (device, device.ptr, managed, ctypes.addressof(host), 0):
        assert gpumem.is_memory_pinned(other) is False
    address = pointer.ptr
    assert gpumem.is_memory_pinned(ptr=address)
    del pinned, pointer


@pytest.mark.parametrize(
    ("address", "error"),
    [(-1, OverflowError), (2**64, OverflowError), (1.5, TypeError), (None, TypeError)],
)
def test_what_is_no_address_is_refused(address, error):
    with pytest.raises(error, match="ptr"):
        gpumem.is_memory_pinned(address)


# ---- the pointer ----


def test_a_pointer_is_a_place_in_its_memory():
    memory = PinnedMemory(SIZE)
    pointer = PinnedMemoryPointer(mem=memory, offset=24)
    assert pointer.mem is memory
    assert pointer.ptr == int(pointer) == memory.ptr + 24
    assert pointer.size() == SIZE - 24
    assert hex(pointer.ptr) in repr(pointer) and repr(memory) in repr(pointer)


def test_sums_are_new_pointers_and_augmented_sums_move(pointer):
    start = pointer.ptr
    for moved in (pointer + 24, 24 + pointer, pointer - (-24)):
        assert type(moved) is PinnedMemoryPointer
        assert (moved.ptr, moved.mem) == (start + 24, pointer.mem)
    alias = pointer
    pointer += 100
    assert alias is pointer and pointer.ptr == start + 100
    pointer -= 60
    assert (alias.ptr, alias.size()) == (start + 40, SIZE - 40)


@pytest.mark.parametrize("other", [1.5, "1", None])
def test_what_is_no_integer_cannot_be_added(pointer, other):
    for sum_ in (
        lambda: pointer + other,
        lambda: other + pointer,
        lambda: pointer - other,
        lambda: pointer.__iadd__(other),
    ):
        with pytest.raises(TypeError):
            sum_()
    with pytest.raises(TypeError):
        pointer - pointer
    with pytest.raises(TypeError):
        1 - pointer


def test_an_address_stays_an_address(pointer):
    with pytest.raises(OverflowError):
        pointer + 2**63
    with pytest.raises(OverflowError):
        pointer - (pointer.ptr + 1)
    with pytest.raises(AssertionError, match="null"):
        gpumem.malloc_pinned(0) + 1
    with pytest.raises(AssertionError, match="null"):
        PinnedMemoryPointer(PinnedMemory(0), 1)


def test_a_pointer_outside_its_memory_has_no_size_and_no_bytes(pointer):
    assert (pointer + SIZE).size() == 0 and bytes(pointer + SIZE) == b""
    for outside in (pointer - 1, pointer + (SIZE + 1)):
        with pytest.raises(ValueError, match="outside"):
            outside.size()
        with pytest.raises(ValueError, match="outside"):
            memoryview(outside)


@pytest.mark.parametrize("memory", [None, 5, b"bytes", gpumem.BaseMemory()])
def test_only_pinned_memory_has_such_pointers(memory):
    with pytest.raises(TypeError, match="PinnedMemory"):
        PinnedMemoryPointer(memory, 0)


def test_a_pointer_is_made_once_and_whole(pointer):
    with pytest.raises(RuntimeError, match="once"):
        pointer.__init__(pointer.mem, 0)
    unmade = PinnedMemoryPointer.__new__(PinnedMemoryPointer)
    uses = (lambda: unmade + 1, unmade.size, lambda: memoryview(unmade))
    for use in (*uses, unmade.__dlpack__, unmade.__dlpack_device__):
        with pytest.raises(ValueError, match="not initialized"):
            use()


def test_a_pointer_in_a_cycle_is_collected(pointer):
    class Mine(PinnedMemory):
        pass

    memory = Mine(SIZE)
    memory.pointer = PinnedMemoryPointer(memory, 8)
    gone = weakref.ref(memory)
    del memory
    gc.collect()
    assert gone() is None


# ---- as a buffer ----


def test_it_is_a_writable_buffer_of_the_rest_of_its_memory(pointer):
    view = memoryview(pointer + 96)
    assert (view.nbytes, view.format, view.ndim) == (SIZE - 96, "b", 1)
    assert not view.readonly and view.contiguous
    view[0] = -1
    assert bytes(view[:1]) == b"\xff"
    view.cast("B")[:4] = b"abcd"
    assert ctypes.string_at(pointer.ptr + 96, 4) == b"abcd"
    view.cast("Q")[1] = 2**63
    assert bytes(pointer + 96)[8:16] == (2**63).to_bytes(8, "little")
    assert (ctypes.c_ubyte * 4).from_buffer(pointer + 96)[:] == list(b"abcd")


def test_numpy_can_view_it(pointer):
    numpy = pytest.importorskip("numpy")
    array = numpy.frombuffer(pointer, dtype=numpy.float32, count=10)
    array[:] = range(10)
    assert array.flags.writeable and array.ctypes.data == pointer.ptr
    assert bytes(pointer)[:40] == numpy.arange(10, dtype=numpy.float32).tobytes()


def test_a_buffer_keeps_the_memory_and_its_place():
    pointer = gpumem.malloc_pinned(SIZE)
    start = pointer.ptr
    view = memoryview(pointer)
    pointer += 64
    view[0] = 0x5A
    assert ctypes.string_at(start, 1) == b"Z"
    del pointer
    gc.collect()
    assert gpumem.is_memory_pinned(start)
    assert view[0] == 0x5A
    view.release()
    assert not gpumem.is_memory_pinned(start)


@pytest.mark.parametrize("suffix", ["", "_async"])
def test_copies_take_it_as_the_hosts_side(pointer, suffix):
    stream = [Stream(non_blocking=True)] if suffix else []
    device = gpumem.malloc(SIZE)
    memoryview(pointer).cast("B")[:] = PATTERN
    getattr(device, "copy_from_host" + suffix)(pointer, SIZE, *stream)
    for each in stream:
        each.synchronize()
    memoryview(pointer).cast("B")[:] = bytes(SIZE)
    getattr(device + 8, "copy_to_host" + suffix)(pointer + 16, 100, *stream)
    for each in stream:
        each.synchronize()
    assert bytes(pointer) == bytes(16) + PATTERN[8:108] + bytes(SIZE - 116)
    with pytest.raises(ValueError, match="host buffer of 10 bytes"):
        device.copy_from_host(pointer + (SIZE - 10), 11)


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "make", [gpumem.malloc_pinned, lambda size: PinnedMemoryPool().malloc(size)]
)
def test_there_is_no_buffer_of_memory_that_a_reset_ended(make):
    """The host would fault where the driver took the pages back."""
    pointer = make(SIZE)
    Device(0).reset()
    device = gpumem.malloc(SIZE)
    for use in (
        lambda: memoryview(pointer),
        lambda: memoryview(pointer + 8),
        pointer.size,
        lambda: device.copy_from_host(pointer, SIZE),
        lambda: device.copy_to_host_async(pointer, SIZE),
    ):
        with pytest.raises(RuntimeError, match="device 0 was reset after it was taken"):
            use()
    again = make(SIZE)
    assert memoryview(again).nbytes == again.size()
