# SPDX-License-Identifier: MIT
"""Streams that come from elsewhere: what a stream argument may be, the protocol by
which libraries hand streams to one another, and handles whose stream is gone."""

import gc
import weakref
from types import SimpleNamespace

import pytest

import gpumem
from gpumem import Device, Event, ExternalStream, Stream, testing


@pytest.fixture(autouse=True)
def current_device():
    Device(0).use()


# ---- arguments that name a stream ----


@pytest.mark.sim_only
def test_another_librarys_stream_will_do():
    stream = Stream(non_blocking=True)

    foreign = SimpleNamespace(ptr=stream.ptr)
    pool = gpumem.MemoryPool()
    with stream:
        pool.malloc(512)
    pool.malloc(1024)
    assert pool.total_bytes() == 1536
    pool.free_all_blocks(foreign)
    assert pool.total_bytes() == 1024


@pytest.mark.parametrize(
    "make",
    [
        object,
        lambda: 0,
        lambda: "s",
        Event,
        lambda: gpumem.malloc(512),
        lambda: Device(0),
    ],
)
def test_what_is_no_stream_is_refused_by_name(make):
    wrong, memory = make(), gpumem.malloc(512)
    with pytest.raises(TypeError, match=type(wrong).__name__):
        memory.memset_async(0, 512, wrong)
    with pytest.raises(TypeError, match=type(wrong).__name__):
        gpumem.MemoryPool().free_all_blocks(wrong)


def test_a_handle_that_is_no_integer_is_refused():
    class Foreign:
        ptr = None

    class Failing:
        @property
        def ptr(self):
            raise KeyError("mine")

    memory = gpumem.malloc(512)
    with pytest.raises(TypeError, match="ptr.*NoneType"):
        memory.memset_async(0, 512, Foreign())
    with pytest.raises(KeyError, match="mine"):
        memory.memset_async(0, 512, Failing())


# ---- the protocol ----


class Protocol:
    """A stream as other libraries hand them over."""

    def __init__(self, answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


def test_a_stream_tells_other_libraries_its_handle():
    stream = Stream()
    for each in (stream, Stream.null, Stream.ptds, ExternalStream(stream.ptr)):
        assert each.__cuda_stream__() == (0, each.ptr)


@pytest.mark.sim_only
def test_a_stream_is_taken_by_the_protocol():
    stream = Stream(non_blocking=True)
    memory, event = gpumem.malloc(512), Event()
    memory.memset_async(1, 512, Protocol((0, stream.ptr)))
    assert stream.done is False
    event.record(Protocol((0, stream.ptr)))
    assert event.done is False
    stream.synchronize()
    assert event.done is True
    pool = gpumem.MemoryPool()
    with stream:
        pool.malloc(512)
    pool.free_all_blocks(Protocol((0, stream.ptr)))
    assert pool.total_bytes() == 0


def test_the_protocol_stands_before_ptr():
    class Both(Protocol):
        ptr = "no handle"

    gpumem.malloc(512).memset_async(0, 512, Both((0, 0)))


@pytest.mark.parametrize(
    "answer, error, text",
    [
        ((1, 0), ValueError, "version 1"),
        ((0,), TypeError, "tuple of version and handle"),
        ((0, 0, 0), TypeError, "tuple of version and handle"),
        (0, TypeError, "tuple of version and handle"),
        (("0", 0), TypeError, "version of __cuda_stream__ must be an integer"),
        ((0, None), TypeError, "handle of __cuda_stream__ must be an integer"),
        ((0, -1), OverflowError, "handle of __cuda_stream__"),
    ],
)
def test_an_answer_that_is_not_the_protocols_is_refused(answer, error, text):
    memory = gpumem.malloc(512)
    for use in (
        lambda stream: memory.memset_async(0, 512, stream),
        Stream.from_external,
    ):
        with pytest.raises(error, match=text):
            use(Protocol(answer))


def test_what_the_protocol_raises_reaches_the_caller():
    class Failing:
        def __cuda_stream__(self):
            raise KeyError("mine")

    class Hidden:
        @property
        def __cuda_stream__(self):
            raise KeyError("mine")

    for wrong in (Failing(), Hidden()):
        with pytest.raises(KeyError, match="mine"):
            gpumem.malloc(512).memset_async(0, 512, wrong)


@pytest.mark.sim_only
def test_from_external_keeps_the_object_and_ends_nothing():
    own = Stream(non_blocking=True)
    foreign = Protocol((0, own.ptr))
    watch = weakref.ref(foreign)
    stream = Stream.from_external(foreign)
    before = testing.ledger()
    assert type(stream) is Stream
    assert stream == own and stream.device_id == 0
    del foreign
    gc.collect()
    assert watch() is not None
    memory = gpumem.malloc(512)
    memory.memset_async(1, 512, stream)
    assert own.done is False
    stream.synchronize()
    del stream, memory
    assert watch() is None
    assert testing.ledger().streams == before.streams
    own.synchronize()


def test_from_external_takes_streams_of_this_library_too():
    own = Stream()
    assert Stream.from_external(own) == own
    assert Stream.from_external(Stream.null) == Stream.null
    assert Stream.from_external(Protocol((0, 2))) == Stream.ptds
    if gpumem.get_device_count() > 1:
        with Device(1):
            assert Stream.from_external(own).device_id == 0


def test_from_external_makes_objects_of_the_subclass():
    class Named(Stream):
        def __init__(self):
            raise AssertionError("it is not run")

    assert type(Named.from_external(Stream())) is Named


def test_from_external_wants_the_protocol():
    class Foreign:
        ptr = 0

    for wrong in (Foreign(), 0, None, Event()):
        with pytest.raises(TypeError, match="__cuda_stream__"):
            Stream.from_external(wrong)


def test_a_stream_in_a_cycle_with_its_owner_is_collected():
    foreign = Protocol((0, 0))
    foreign.stream = Stream.from_external(foreign)
    watch = weakref.ref(foreign)
    del foreign
    gc.collect()
    assert watch() is None


# ---- streams that are gone ----


@pytest.mark.sim_only
@pytest.mark.misuse
def test_a_stream_that_was_destroyed_elsewhere_is_told_as_such():
    """By each call of its own: the device is asked which stream the handle means."""
    gone, memory = Stream(), gpumem.malloc(512)
    external = ExternalStream(gone.ptr)
    event = Event()
    uses = [
        external.synchronize,
        lambda: external.done,
        lambda: external.record(event),
        lambda: external.wait_event(event),
    ]
    for use in uses:
        use()
    handle = gone.ptr
    del gone
    for use in uses:
        with pytest.raises(RuntimeError, match="stream was destroyed"):
            use()
    other = Stream(non_blocking=True)
    assert other.ptr == handle
    memory.memset_async(1, 512, other)
    for use in uses:  # ... though there is one of that handle again
        with pytest.raises(RuntimeError, match="stream was destroyed"):
            use()
    assert other.done is False
    other.synchronize()


def each_use_of_a_stream(stream, pool):
    """What can be done on a stream that somebody else made, by name."""
    raw, pooled = gpumem.malloc(512), pool.malloc(512)
    managed, events = gpumem.malloc_managed(512), Event()
    recorded = Stream(non_blocking=True)
    recorded.begin_capture()
    raw.memset_async(0, 512, recorded)
    graph, async_pool = recorded.end_capture(), gpumem.MemoryAsyncPool()
    return {
        "fill": lambda: raw.memset_async(0, 512, stream),
        "fill of a pool's memory": lambda: pooled.memset_async(0, 512, stream),
        "copy of a buffer": lambda: raw.copy_from_host_async(b"x" * 512, 512, stream),
        "copy to the host": lambda: pooled.copy_to_host_async(
            bytearray(512), 512, stream
        ),
        "copy on the device": lambda: raw.copy_from_async(pooled, 512, stream),
        "record_stream": lambda: pooled.record_stream(stream),
        "record_stream of other memory": lambda: raw.record_stream(stream),
        "Event.record": lambda: events.record(stream),
        "launch": lambda: graph.launch(stream),
        "upload": lambda: graph.upload(stream),
        "prefetch": lambda: managed.mem.prefetch(stream),
        "MemoryAsync": lambda: gpumem.MemoryAsync(512, stream),
        "MemoryAsyncPool": lambda: async_pool.free_all_blocks(stream),
    }


NOT_ABOUT_A_STREAM = {
    "stream_id",
    "device_incarnation",
    "device_support",
    "device_push",
    "device_pop",
}


@pytest.mark.sim_only
@pytest.mark.misuse
@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_queued_for_a_stream_that_was_destroyed_elsewhere(again, current):
    """Nor is anything on a stream that has its handle now."""
    gone, pool = Stream(non_blocking=True), gpumem.MemoryPool()
    external, handle = ExternalStream(gone.ptr), gone.ptr
    uses = each_use_of_a_stream(None if current else external, pool)
    for use in uses.values():
        use()
    gone.synchronize()
    if current:
        external.use()
    try:
        for use in uses.values():
            use()
        gone.synchronize()
        del gone
        other = Stream(non_blocking=True) if again else None
        if again:
            assert other.ptr == handle
        for name, use in uses.items():
            with testing.call_log() as calls, pytest.raises(RuntimeError) as caught:
                use()
            assert "stream was destroyed" in str(caught.value), name
            assert {call.name for call in calls} <= NOT_ABOUT_A_STREAM, name
        gpumem.malloc(512).copy_from_host(bytes(512), 512)  # needs no stream
        assert other is None or other.done
    finally:
        Stream.null.use()


@pytest.mark.sim_only
@pytest.mark.misuse
def test_a_dead_stream_that_is_current_does_not_reach_the_device_with_a_miss():
    gone, pool = Stream(non_blocking=True), gpumem.MemoryPool()
    external, handle = ExternalStream(gone.ptr), gone.ptr
    del gone
    with external, testing.call_log() as calls:
        pool.malloc(512)
    asked = {call.name for call in calls if call.ptr == handle}
    assert asked == {"stream_id"}


@pytest.mark.sim_only
def test_a_recorded_stream_of_somebody_elses_does_not_tell_which_it_is_and_will_do():
    stream, memory = Stream(non_blocking=True), gpumem.malloc(512)
    external = ExternalStream(stream.ptr)
    stream.begin_capture()
    memory.memset_async(1, 512, external)
    graph = stream.end_capture()
    graph.launch(external)
    stream.synchronize()
    host = bytearray(512)
    memory.copy_to_host(host, 512)
    assert host == b"\1" * 512


@pytest.mark.sim_only
def test_an_object_is_asked_once_which_stream_it_is():
    """The stream that a copy is queued on is the one that it is recorded for."""
    streams = [Stream(non_blocking=True) for _ in range(3)]
    handles = [stream.ptr for stream in streams]

    class Alternating:
        def __init__(self):
            self.asked, self.handles = 0, handles

        def __cuda_stream__(self):
            self.asked += 1
            return 0, self.handles[self.asked % 2]

    pool, source = gpumem.MemoryPool(), bytearray(512)
    with streams[2]:
        memory = pool.malloc(512)
    for method, *arguments in (
        (memory.memset_async, 7, 512),
        (memory.copy_from_host_async, source, 512),
        (memory.copy_from_async, memory, 512),
        (memory.record_stream,),
    ):
        foreign = Alternating()
        method(*arguments, foreign)
        assert foreign.asked == 1
    for stream in streams:
        stream.synchronize()
    address = memory.ptr
    with testing.hold_stream(streams[1]):
        memory.memset_async(7, 512, Alternating())
        del memory, method, arguments
        assert pool.stats()["pending_bytes"] == 512
        with streams[2]:
            assert pool.malloc(512).ptr != address


# ---- streams of another device ----


@pytest.mark.two_devices
def test_a_stream_tells_its_device():
    with Device(1):
        there = Stream(non_blocking=True)
    protocol = Protocol((0, there.ptr))
    for made in (
        ExternalStream(there.ptr),
        ExternalStream(there.ptr, 1),
        Stream.from_external(protocol),
        Stream.from_external(there),
    ):
        assert made.device_id == 1
        assert made == there
        with pytest.raises(RuntimeError, match="device 1"):
            made.use()
    with pytest.raises(ValueError, match="of device 1, not of 0"):
        ExternalStream(there.ptr, 0)
    with Device(1):
        assert ExternalStream(there.ptr).device_id == 1
        assert ExternalStream(Stream.null.ptr).device_id == -1


class Handle:
    def __init__(self, ptr):
        self.ptr = ptr


@pytest.mark.two_devices
def test_what_is_about_one_device_takes_no_stream_of_another():
    pool, async_pool = gpumem.MemoryPool(), gpumem.MemoryAsyncPool()
    pool.malloc(512)
    with Device(1):
        there = Stream(non_blocking=True)
        with there:
            pool.malloc(512)
        there.synchronize()
    event = Event()
    named = [
        there,
        ExternalStream(there.ptr),
        Protocol((0, there.ptr)),
        Handle(there.ptr),
        ExternalStream(0, 1),
    ]
    for stream in named:
        for use in (
            pool.free_all_blocks,
            gpumem.SingleDeviceMemoryPool().free_all_blocks,
            async_pool.free_all_blocks,
            event.record,
        ):
            with pytest.raises(ValueError, match="device 1"):
                use(stream)
    assert pool.total_bytes(device=1) == 512
    pool.free_all_blocks(Handle(there.ptr), device=1)
    assert pool.total_bytes(device=1) == 0
    for stream in named:
        async_pool.free_all_blocks(stream, device=1)
        assert gpumem.MemoryAsync(512, stream).device_id == 1


@pytest.mark.sim_only
@pytest.mark.two_devices
def test_memory_is_recorded_for_a_stream_of_another_device_by_its_handle():
    with Device(1):
        there = Stream(non_blocking=True)
    pool = gpumem.MemoryPool()
    memory = pool.malloc(512)
    memory.record_stream(Handle(there.ptr))
    with testing.hold_stream(there):
        memory.memset_async(1, 512, there)
        del memory
        assert pool.stats()["pending_bytes"] == 512
    there.synchronize()
    assert pool.stats()["pending_bytes"] == 0
