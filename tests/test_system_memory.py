# SPDX-License-Identifier: MIT
"""SystemMemory and malloc_system: plain host memory that devices reach."""

import ctypes
import gc
import weakref

import pytest

import gpumem
from gpumem import CUDARuntimeError, Device, MemoryPool, Stream, SystemMemory, testing

SIZE = 4096
PATTERN = bytes(i % 251 for i in range(SIZE))
READ_MOSTLY = 1  # cudaMemAdviseSetReadMostly
HOST = -1


@pytest.fixture(autouse=True)
def reaching():
    """Skips where the device cannot read plain host memory."""
    try:
        SystemMemory(1)
    except RuntimeError as error:
        pytest.skip(str(error))


class Owner:
    """Somebody's memory."""

    def __init__(self):
        self.bytes = ctypes.create_string_buffer(SIZE)
        self.ptr = ctypes.addressof(self.bytes)


# ---- memory of its own ----


def test_it_is_plain_host_memory_of_the_current_device():
    memory = SystemMemory(SIZE)
    assert isinstance(memory, gpumem.BaseMemory)
    assert memory.size == SIZE and memory._owner is None
    assert memory.device_id == gpumem.get_device_id()
    assert memory.ptr % 512 == 0  # as device memory: pools lie over it
    assert not gpumem.is_memory_pinned(memory)
    ctypes.memset(memory.ptr, 7, SIZE)
    assert ctypes.string_at(memory.ptr, SIZE) == b"\7" * SIZE


def test_the_device_reads_and_writes_it():
    pointer, device = gpumem.malloc_system(SIZE), gpumem.malloc(SIZE)
    pointer.memset(0x5A, SIZE)
    assert ctypes.string_at(pointer.ptr, SIZE) == b"Z" * SIZE
    device.copy_from_host(PATTERN, SIZE)
    pointer.copy_from_device(device, SIZE)
    assert ctypes.string_at(pointer.ptr, SIZE) == PATTERN
    other = gpumem.malloc_system(SIZE)
    other.copy_from(pointer, SIZE)
    device.memset(0, SIZE)
    device.copy_from(other + 8, 100)
    back = bytearray(SIZE)
    device.copy_to_host(back, SIZE)
    assert back == PATTERN[8:108] + bytes(SIZE - 100)
    other.copy_from_host(bytes(SIZE), SIZE)
    other.copy_to_host(back, SIZE)
    assert back == bytes(SIZE)
    stream = Stream(non_blocking=True)
    other.memset_async(3, SIZE, stream)
    pointer.copy_from_async(other, SIZE, stream)
    stream.synchronize()
    assert ctypes.string_at(pointer.ptr, SIZE) == b"\3" * SIZE


@pytest.mark.two_devices
def test_another_device_reaches_it_too():
    pointer = gpumem.malloc_system(SIZE)
    with Device(1):
        there = gpumem.malloc(SIZE)
        there.copy_from_host(PATTERN, SIZE)
        pointer.copy_from(there, SIZE)
        there.memset(0, SIZE)
        there.copy_from(pointer, SIZE)
    assert ctypes.string_at(pointer.ptr, SIZE) == PATTERN
    back = bytearray(SIZE)
    there.copy_to_host(back, SIZE)
    assert back == PATTERN


@pytest.mark.sim_only
def test_it_is_freed_only_when_the_device_is_done_with_it():
    """The C library waits for nobody: what is queued would write to other memory."""
    pointer = gpumem.malloc_system(SIZE)
    pointer.memset_async(1, SIZE, Stream(non_blocking=True))
    assert testing.ledger().pending == 1
    with testing.call_log() as calls:
        del pointer
    assert testing.ledger().pending == 0
    assert [call.name for call in calls] == ["device_synchronize"]


def test_no_bytes_are_none():
    memory = SystemMemory(0)
    assert (memory.ptr, memory.size) == (0, 0)
    memory.prefetch(None)
    memory.advise(READ_MOSTLY, 0)
    assert gpumem.malloc_system(0).ptr == 0


@pytest.mark.parametrize("make", [SystemMemory, gpumem.malloc_system])
@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, OverflowError),
        (2**64, OverflowError),
        (1.0, TypeError),
        ("1", TypeError),
        (None, TypeError),
        (2**62, MemoryError),
        (2**64 - 1, MemoryError),
    ],
)
def test_what_is_no_size_or_too_much_is_refused(make, size, error):
    with pytest.raises(error):
        make(size)


def test_it_is_initialised_once():
    memory = SystemMemory(SIZE)
    address = memory.ptr
    with pytest.raises(RuntimeError, match="once"):
        memory.__init__(SIZE)
    assert memory.ptr == address


@pytest.mark.sim_only
def test_a_device_that_cannot_reach_it_is_named():
    """Else the first kernel would fail with an illegal access."""
    with testing.without("pageable_access"):
        for make in (
            lambda: SystemMemory(SIZE),
            lambda: gpumem.malloc_system(SIZE),
            lambda: SystemMemory.from_external(8, 8, object()),
        ):
            with pytest.raises(RuntimeError, match=r"device 0 \(.+\) cannot reach"):
                make()


# ---- somebody else's ----


def test_somebody_elses_memory_keeps_its_owner_and_is_never_freed():
    owner = Owner()
    memory = SystemMemory.from_external(owner.ptr, SIZE, owner)
    assert type(memory) is SystemMemory
    assert (memory.ptr, memory.size, memory._owner) == (owner.ptr, SIZE, owner)
    assert memory.device_id == gpumem.get_device_id()
    pointer = gpumem.MemoryPointer(memory, 8)
    pointer.memset(5, 8)
    assert owner.bytes.raw[:24] == bytes(8) + b"\5" * 8 + bytes(8)
    gone = weakref.ref(owner)
    del owner, memory
    gc.collect()
    assert gone() is not None
    del pointer
    assert gone() is None


@pytest.mark.sim_only
def test_the_owner_is_let_go_only_when_the_device_is_done():
    pending = []

    class Watched(Owner):
        def __del__(self):
            pending.append((testing.ledger().pending, self.bytes.raw[0]))

    owner = Watched()
    pointer = gpumem.MemoryPointer(
        SystemMemory.from_external(ptr=owner.ptr, size=SIZE, owner=owner), 0
    )
    pointer.memset_async(9, SIZE, Stream(non_blocking=True))
    del owner
    gc.collect()
    assert pending == []
    del pointer
    assert pending == [(0, 9)]


def test_a_cycle_through_the_owner_is_collected():
    owner = Owner()
    owner.memory = SystemMemory.from_external(owner.ptr, SIZE, owner)
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_subclass_wraps_as_itself():
    class Mine(SystemMemory):
        pass

    owner = Owner()
    assert type(Mine.from_external(owner.ptr, SIZE, owner)) is Mine


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((8, 8, None), ValueError),
        ((0, 8, "owner"), ValueError),
        ((-1, 8, "owner"), OverflowError),
        ((8, -1, "owner"), OverflowError),
        ((8.0, 8, "owner"), TypeError),
        ((8, 8), TypeError),
    ],
)
def test_what_cannot_be_wrapped_is_refused(arguments, error):
    with pytest.raises(error):
        SystemMemory.from_external(*arguments)


# ---- moving it, and below a pool ----


@pytest.mark.sim_only
def test_it_can_be_moved_and_advised_about():
    memory = SystemMemory(SIZE)
    stream = Stream()
    with testing.call_log() as calls:
        memory.prefetch(stream)
        memory.prefetch(None, device_id=HOST)
        memory.advise(READ_MOSTLY, device=0)
        memory.advise(READ_MOSTLY, dev=Device(0))
    told = [
        (call.name, call.device, call.ptr, call.size)
        for call in calls
        if call.name in ("mem_prefetch", "mem_advise")
    ]
    assert told == [
        ("mem_prefetch", 0, memory.ptr, SIZE),
        ("mem_prefetch", HOST, memory.ptr, SIZE),
        ("mem_advise", 0, memory.ptr, SIZE),
        ("mem_advise", 0, memory.ptr, SIZE),
    ]
    with pytest.raises(TypeError, match="device"):
        memory.advise(READ_MOSTLY)


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (gpumem.malloc_system, "SystemMemory"),
        (gpumem.malloc_managed, "ManagedMemory"),
    ],
)
def test_below_a_pool_it_moves_too(base, name):
    pool = MemoryPool(base)
    first, second = pool.malloc(700), pool.malloc(700)
    ctypes.memset(second.ptr, 3, 700)
    back = bytearray(700)
    second.copy_to_host(back, 700)
    assert back == b"\3" * 700
    second.copy_from(first, 700)
    first.memset(1, 700)
    assert first.mem.identity == second.mem.identity == name
    if gpumem.get_backend() == "sim":
        with testing.call_log() as calls:
            second.mem.prefetch(None, device_id=HOST)
            second.mem.advise(READ_MOSTLY, 0)
        told = [(call.ptr, call.size) for call in calls if call.ptr == second.ptr]
        assert told == [(second.ptr, 1024)] * 2
    second.mem.free()
    for act in (
        lambda: second.mem.prefetch(None),
        lambda: second.mem.advise(READ_MOSTLY, 0),
    ):
        with pytest.raises(ValueError, match="given back"):
            act()
    testing.check_pool(pool)


@pytest.mark.parametrize(
    ("make", "identity"),
    [
        (lambda: MemoryPool(), "Memory"),
        (lambda: MemoryPool(MemoryPool().malloc), "PooledMemory"),
    ],
)
def test_what_does_not_move_says_so(make, identity):
    memory = make().malloc(700).mem
    assert memory.identity == identity
    with pytest.raises(TypeError, match="managed and system memory"):
        memory.prefetch(None)
    with pytest.raises(TypeError, match="managed and system memory"):
        memory.advise(READ_MOSTLY, 0)


@pytest.mark.sim_only
def test_a_wait_that_fails_leaves_the_memory_and_is_reported(script):
    done = script(
        "import sys, gpumem\n"
        "from gpumem import testing\n"
        "seen = []\n"
        "sys.unraisablehook = lambda report: seen.append(report.exc_value)\n"
        "memory = gpumem.SystemMemory(512)\n"
        "with testing.fail('device_synchronize', code=700):\n"
        "    del memory\n"
        "print([error.status for error in seen], 'stays allocated' in str(seen[0]))\n",
        GPUMEM_BACKEND="sim",
    )
    assert (done.stdout, done.stderr) == ("[700] True\n", "")


@pytest.mark.sim_only
def test_what_the_driver_refuses_passes():
    memory = SystemMemory(SIZE)
    with testing.fail("mem_prefetch", code=999):
        with pytest.raises(CUDARuntimeError) as caught:
            memory.prefetch(None)
    assert caught.value.status == 999


@pytest.mark.sim_only
@pytest.mark.parametrize("ends", ["end_capture", "drop"])
def test_what_is_dropped_during_a_recording_goes_when_that_ends(ends, unraisable):
    class Owner:
        pass

    owner, held = Owner(), bytearray(64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(held))
    foreign = gpumem.SystemMemory.from_external(address, 64, owner)
    own, gone = gpumem.malloc_system(4096), weakref.ref(owner)
    del owner
    stream = gpumem.Stream(non_blocking=True)
    stream.begin_capture(gpumem.streamCaptureModeGlobal)
    with testing.call_log() as calls:
        del foreign, own
    assert calls == []
    assert gone() is not None
    with testing.call_log() as calls:
        if ends == "drop":
            del stream
        else:
            stream.end_capture()
    waits = [call.name for call in calls if call.name == "device_synchronize"]
    assert len(waits) == 2  # one for each that was dropped
    assert gone() is None
    assert unraisable == []
