# SPDX-License-Identifier: MIT
"""Memory that several streams use: it is nobody else's before all of them are done."""

import ctypes
import gc
from types import SimpleNamespace

import pytest

import gpumem
from gpumem import ExternalStream, MemoryPool, Stream, testing

SIZE = 4096
sim_only = pytest.mark.sim_only


@pytest.fixture
def own():
    """The stream that the memory is taken for."""
    return Stream(non_blocking=True)


@pytest.fixture
def other():
    return Stream(non_blocking=True)


def take(pool, stream, size=SIZE):
    with stream:
        return pool.malloc(size)


def read(pointer, size=SIZE):
    buffer = bytearray(size)
    pointer.copy_to_host(buffer, size)
    return bytes(buffer)


def pending(pool):
    stats = pool.stats()
    return stats["pending_blocks"], stats["pending_bytes"]


# ---- until when ----


def test_recorded_memory_is_kept_until_the_other_stream_is_done(pool, own, other):
    """What a copy on another stream reads is not overwritten by the next owner, and
    the memory is used again when the copy is done."""
    pointer, copied = take(pool, own), gpumem.malloc(SIZE)
    pointer.memset_async(7, SIZE, own)
    own.synchronize()
    pointer.record_stream(other)
    copied.copy_from_device_async(pointer, SIZE, other)
    address = pointer.ptr
    del pointer
    heir = take(pool, own)
    heir.memset_async(9, SIZE, own)
    own.synchronize()
    other.synchronize()
    assert read(copied) == bytes([7]) * SIZE
    assert address in {heir.ptr, take(pool, own).ptr}


@sim_only
def test_pending_memory_is_counted(pool, own, other):
    pointer = take(pool, own)
    pointer.record_stream(other)
    assert pending(pool) == (0, 0)
    pointer.memset_async(1, SIZE, other)
    del pointer
    assert pending(pool) == (1, SIZE)
    assert (pool.used_bytes(), pool.free_bytes()) == (0, SIZE)  # asked twice by then


@sim_only
def test_what_is_queued_after_the_call_counts_too(pool, own, other):
    pointer = take(pool, own)
    pointer.record_stream(other)
    gpumem.MemoryPointer(pointer.mem, 0).memset_async(1, SIZE, other)
    address = pointer.ptr
    del pointer
    assert take(pool, own).ptr != address


@sim_only
def test_the_stream_it_was_taken_for_is_no_other_one(pool, own):
    pointer = take(pool, own)
    with testing.call_log() as calls:
        pointer.record_stream(own)
        with own:
            pointer.record_stream(None)
        del pointer
    assert [call.name for call in calls if call.name.startswith("event")] == []
    assert pending(pool) == (0, 0)


@sim_only
def test_dropping_recorded_memory_waits_for_nothing(pool, own, other):
    pointer = take(pool, own)
    pointer.record_stream(other)
    pointer.memset_async(1, SIZE, other)
    before = testing.ledger().pending
    with testing.call_log() as calls:
        del pointer
    names = {call.name for call in calls} - {"device_incarnation"}
    assert names == {"event_create", "stream_capture", "event_record"}
    assert testing.ledger().pending == before + 1  # the mark


@sim_only
def test_memory_that_is_not_recorded_costs_no_call(pool, own):
    take(pool, own)
    with own, testing.call_log() as calls:
        for _ in range(10):
            pool.malloc(SIZE)
    assert {call.name for call in calls} <= {"device_get"}


def test_several_streams_are_all_waited_for(pool, own):
    others = [Stream(non_blocking=True) for _ in range(3)]
    pointer = take(pool, own)
    for stream in others:
        pointer.record_stream(stream)
        pointer.record_stream(stream)
        pointer.memset_async(1, SIZE, stream)
    del pointer
    for stream in others:
        stream.synchronize()
    assert pending(pool) == (0, 0)
    assert pool.free_bytes() == SIZE


def test_pending_memory_is_waited_for_before_memory_runs_out(pool, own, other):
    pool.set_limit(size=SIZE)
    pointer = take(pool, own)
    pointer.record_stream(other)
    pointer.memset_async(1, SIZE, other)
    del pointer
    assert take(pool, own).mem.size == SIZE
    assert pool.total_bytes() <= SIZE


# ---- which streams ----


def test_a_default_stream_can_be_recorded(pool, own):
    for stream in (Stream.null, Stream.ptds, ExternalStream(1)):
        pointer = take(pool, own)
        pointer.record_stream(stream)
        pointer.memset_async(1, SIZE, stream)
        del pointer
        gpumem.Device().synchronize()
        assert pending(pool) == (0, 0)


@sim_only
def test_another_librarys_stream_can_be_recorded(pool, own, other):
    foreign = SimpleNamespace(ptr=other.ptr)
    pointer = take(pool, own)
    pointer.record_stream(foreign)
    pointer.memset_async(1, SIZE, foreign)
    del pointer
    assert pending(pool)[0] == 1
    other.synchronize()
    assert pending(pool) == (0, 0)


@pytest.mark.two_devices
@sim_only
def test_a_stream_of_another_device_can_be_recorded(pool, own):
    with gpumem.Device(1):
        far = Stream(non_blocking=True)
        source = gpumem.malloc(SIZE)
    pointer = take(pool, own)
    pointer.copy_from_device_async(source, SIZE, far)
    del pointer
    assert pending(pool)[0] == 1
    far.synchronize()
    assert pending(pool) == (0, 0)
    assert gpumem.get_device_id() == 0


def test_what_is_no_stream_is_refused(pool):
    pointer = pool.malloc(SIZE)
    for bad in (5, "stream", pointer, gpumem.Event()):
        with pytest.raises(TypeError):
            pointer.record_stream(bad)
    with pytest.raises(TypeError):
        pointer.record_stream()


def test_memory_that_was_given_back_cannot_be_recorded(pool, other):
    pointer = pool.malloc(SIZE)
    pointer.mem.free()
    with pytest.raises(ValueError, match="given back"):
        pointer.record_stream(other)


@sim_only
def test_memory_of_no_pool_has_nothing_to_record(other):
    with testing.call_log() as calls:
        for pointer in (gpumem.malloc(SIZE), gpumem.malloc(0)):
            pointer.record_stream(other)
        del pointer
    assert not [call for call in calls if call.name.startswith("event")]


@sim_only
def test_a_refused_mark_is_an_error_and_changes_nothing(pool, own, other):
    foreign = SimpleNamespace(ptr=other.ptr)
    pointer = take(pool, own)
    with testing.fail("event_record", code=999), pytest.raises(RuntimeError):
        pointer.record_stream(foreign)
    del pointer
    assert pending(pool) == (0, 0)


# ---- streams that end ----


@sim_only
def test_a_stream_that_is_gone_never_reaches_the_driver_again(pool, own):
    """Neither by its own object nor by another with its handle."""
    for recorded in (lambda s: s, lambda s: ExternalStream(s.ptr)):
        brief = Stream(non_blocking=True)
        pointer = take(pool, own)
        pointer.record_stream(recorded(brief))
        pointer.memset_async(1, SIZE, brief)
        del brief
        errors = testing.ledger().errors
        del pointer
        assert pending(pool)[0] == 1
        gpumem.Device().synchronize()
        assert pending(pool) == (0, 0)
        assert testing.ledger().errors == errors


@sim_only
def test_what_short_lived_streams_cached_is_used_again(pool):
    for _ in range(500):
        stream = Stream()
        pointer = take(pool, stream, 1 << 20)
        del pointer
        stream.synchronize()
        del stream
    assert pool.total_bytes() <= 4 << 20
    assert pool.stats()["arenas"] <= 4


def test_memory_of_ended_streams_makes_room_for_one_request(pool):
    pool.set_limit(size=8 * SIZE)
    streams = [Stream(non_blocking=True) for _ in range(8)]
    for stream in streams:
        take(pool, stream).memset_async(1, SIZE, stream)
    del stream, streams
    assert pool.malloc(8 * SIZE).mem.size == 8 * SIZE


def test_streams_that_take_turns_fragment_nothing(pool, own, other):
    """What one of them has free the other borrows before memory runs out."""
    pool.set_limit(size=64 * SIZE)
    take(pool, own, 64 * SIZE)
    kept = []
    for i in range(64):
        kept.append(take(pool, (own, other)[i % 2]))
    assert len({pointer.ptr for pointer in kept}) == 64
    del kept
    gpumem.Device().synchronize()
    assert take(pool, own, 64 * SIZE).mem.size == 64 * SIZE


# ---- copies ----

# By method: the pointer, another one outside of the pool, and the stream.
TRANSFERS = {
    "from the host": lambda p, q, s: p.copy_from_host_async(bytes(SIZE), SIZE, s),
    "to the host": lambda p, q, s: p.copy_to_host_async(bytearray(SIZE), SIZE, s),
    "as the target": lambda p, q, s: p.copy_from_async(q, SIZE, s),
    "as the source": lambda p, q, s: q.copy_from_device_async(p, SIZE, s),
    "a fill": lambda p, q, s: p.memset_async(1, SIZE, s),
}


@sim_only
@pytest.mark.parametrize("transfer", TRANSFERS)
def test_a_transfer_on_another_stream_records_itself(pool, own, other, transfer):
    pointer, outside = take(pool, own), gpumem.malloc(SIZE)
    TRANSFERS[transfer](pointer, outside, other)
    del pointer
    assert pending(pool)[0] == 1
    other.synchronize()
    assert pending(pool) == (0, 0)


@sim_only
def test_a_transfer_that_cannot_be_recorded_waits(pool, own, other):
    foreign = SimpleNamespace(ptr=other.ptr)
    pointer = take(pool, own)
    with testing.fail("event_record", code=999, count=0):
        pointer.memset_async(1, SIZE, foreign)
    assert testing.ledger().pending == 0
    del pointer
    assert pending(pool) == (0, 0)


# ---- host memory ----


class Buffer(bytearray):
    """Can be seen to die."""

    alive = 0

    def __init__(self, *args):
        super().__init__(*args)
        type(self).alive += 1

    def __del__(self):
        type(self).alive -= 1


def holds(pointer, byte):
    """Whether the simulated device's memory has that byte now: runs nothing for it."""
    return ctypes.string_at(pointer.ptr, SIZE) == bytes([byte]) * SIZE


@sim_only
def test_a_host_buffer_lives_until_it_was_copied(other):
    pointer = gpumem.malloc(SIZE)
    pointer.memset(1, SIZE)
    assert Buffer.alive == 0
    pointer.copy_from_host_async(Buffer(b"\xaa" * SIZE), SIZE, other)
    gc.collect()
    assert Buffer.alive == 1
    assert not holds(pointer, 0xAA)  # it has not been copied yet
    other.synchronize()
    assert Buffer.alive == 0
    assert holds(pointer, 0xAA)


@sim_only
@pytest.mark.parametrize("wait", ["stream", "event", "device", "pool", "copies"])
def test_whoever_waits_lets_buffers_go(pool, other, wait):
    pointer, event = gpumem.malloc(SIZE), gpumem.Event()
    pointer.copy_from_host_async(Buffer(SIZE), SIZE, other)
    event.record(other)
    if wait == "stream":
        other.synchronize()
    elif wait == "event":
        event.synchronize()
        event.synchronize()  # the buffer's own event was recorded before
    elif wait == "device":
        gpumem.Device().synchronize()
    elif wait == "pool":
        pool.malloc(SIZE)
        pool.free_all_blocks()
        pool.free_all_blocks()
    else:
        for _ in range(3):
            pointer.copy_from_host_async(b"0" * SIZE, SIZE, other)
    assert Buffer.alive == 0
    gpumem.Device().synchronize()


@sim_only
def test_a_buffer_cannot_change_its_size_before_it_was_copied(other):
    pointer, buffer = gpumem.malloc(SIZE), bytearray(SIZE)
    pointer.copy_to_host_async(buffer, SIZE, other)
    with pytest.raises(BufferError):
        buffer.append(1)
    other.synchronize()
    buffer.append(1)


@sim_only
def test_a_slow_stream_does_not_keep_the_buffers_of_others():
    slow, fast = Stream(non_blocking=True), Stream(non_blocking=True)
    pointer = gpumem.malloc(SIZE)
    pointer.copy_from_host_async(bytes(SIZE), SIZE, slow)
    pointer.copy_from_host_async(Buffer(SIZE), SIZE, fast)
    fast.synchronize()
    assert Buffer.alive == 0
    slow.synchronize()


@sim_only
def test_there_is_an_end_to_the_buffers_kept(other):
    """Beyond it a copy waits for its stream."""
    pointer = gpumem.malloc(1)
    for _ in range(3000):
        pointer.copy_from_host_async(Buffer(1), 1, other)
    assert Buffer.alive <= 1025
    other.synchronize()
    assert Buffer.alive == 0


@sim_only
@pytest.mark.parametrize("call", ["event_create", "event_record"])
def test_a_buffer_that_cannot_be_kept_is_waited_for(other, call):
    pointer = gpumem.malloc(SIZE)
    with testing.fail(call, code=999, count=0):
        pointer.copy_from_host_async(Buffer(b"\x05" * SIZE), SIZE, other)
    assert Buffer.alive == 0
    assert read(pointer) == bytes([5]) * SIZE


# ---- pools that end ----


@sim_only
def test_a_pool_that_ends_first_goes_when_the_stream_is_done(own, other):
    before = testing.ledger()
    pool = MemoryPool()
    pointer = take(pool, own)
    pointer.memset_async(1, SIZE, other)
    del pool, pointer
    assert testing.ledger().allocations == before.allocations + 1
    other.synchronize()
    assert testing.ledger().allocations == before.allocations


@sim_only
def test_what_marked_many_uses_goes_with_the_cache():
    """Marks are kept to be used again, as many as were ever needed at once."""
    pool, stream = MemoryPool(), Stream(non_blocking=True)
    theirs = ExternalStream(stream.ptr)  # each use is marked when it is recorded
    before = testing.ledger().events
    for _ in range(3):
        kept = [pool.malloc(SIZE) for _ in range(100)]
        for pointer in kept:
            pointer.record_stream(theirs)
        del kept, pointer
        stream.synchronize()
        assert pool.stats()["pending_bytes"] == 0
        assert testing.ledger().events >= before + 100
        pool.free_all_blocks()
        assert testing.ledger().events <= before + 16
    assert pool.total_bytes() == 0
    del pool
    assert testing.ledger().events == before


ENDING = """
import threading, time
import gpumem
from gpumem import testing

own = gpumem.Stream(non_blocking=True)
foreign = gpumem.ExternalStream(own.ptr)
other = gpumem.MemoryPool().malloc(512)
uses = {
    "record_stream": lambda p: p.record_stream(foreign),
    "memset_async": lambda p: p.memset_async(0, 512, foreign),
    "copy_from_async": lambda p: other.copy_from_async(p, 512, foreign),
    "__cuda_array_interface__": lambda p: p.__cuda_array_interface__,
}
for name, use in uses.items():
    pointer = gpumem.MemoryPool().malloc(512)
    memory = pointer.mem
    def work():
        with foreign:
            use(pointer)
    with testing.slow_calls("event_record", 0.3):
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.1)
        memory.free()  # the last block of a pool that nobody has
        thread.join()
    print(name, memory.ptr)
own.synchronize()
"""


@pytest.mark.sim_only
def test_a_pool_that_ends_while_a_use_is_recorded(script):
    """What was freed is not looked at: it is full of other bytes."""
    done = script(ENDING, MALLOC_PERTURB_="165")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        f"{name} 0"
        for name in (
            "record_stream",
            "memset_async",
            "copy_from_async",
            "__cuda_array_interface__",
        )
    ]
