# SPDX-License-Identifier: MIT
"""Streams: how they come and go, and the order of the work queued on them."""

import copy
import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

import gpumem
from gpumem import Device, Event, ExternalStream, Stream, get_current_stream, testing


@pytest.fixture(autouse=True)
def current_stream_kept():
    """Every test starts with nothing current and leaves nothing behind."""
    Device(0).use()
    Stream.null.use()
    yield
    assert get_current_stream() is Stream.null


def filled(byte, size=4096):
    memory = gpumem.malloc(size)
    memory.memset(byte, size)
    return memory


def content(memory, size=4096):
    host = ctypes.create_string_buffer(size)
    memory.copy_to_host(ctypes.addressof(host), size)
    return host.raw


@pytest.fixture
def in_thread(in_threads):
    """What a function returns, or raises, when another thread runs it."""
    return lambda function: in_threads(1, lambda _: function())[0]


# ---- construction ----


def test_the_default_streams_are_one_object_each():
    assert (Stream.null.ptr, Stream.null.device_id) == (0, -1)
    assert (Stream.ptds.ptr, Stream.ptds.device_id) == (2, -1)
    assert Stream.null is Stream.null and Stream.null != Stream.ptds
    assert type(Stream.null) is type(Stream.ptds) is Stream
    assert not Stream.null.is_non_blocking


def test_the_default_streams_can_be_asked_for_by_argument():
    assert Stream(null=True) == Stream.null
    assert Stream(True) == Stream.null
    assert Stream(ptds=True) == Stream.ptds
    assert hash(Stream(null=True)) == hash(Stream.null)


def test_a_new_stream_is_of_the_current_device():
    stream = Stream()
    assert stream.ptr > 2
    assert stream.device_id == 0
    assert stream.is_non_blocking is False
    assert Stream(non_blocking=True).is_non_blocking is True


@pytest.mark.two_devices
def test_a_new_stream_of_another_device():
    with Device(1):
        assert Stream().device_id == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"null": True, "ptds": True},
        {"null": True, "non_blocking": True},
        {"non_blocking": True, "ptds": True},
    ],
)
def test_options_that_exclude_each_other(arguments):
    with pytest.raises(ValueError, match="only one"):
        Stream(**arguments)


def test_other_threads_run_while_a_stream_is_identified(lets_others_run):
    stream = Stream()
    assert lets_others_run(ExternalStream, stream.ptr)
    assert lets_others_run(Stream.ptds.use)
    Stream.null.use()


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="priorities"):
        Stream(priorities=1)
    for wrong in ("high", 1.0):
        with pytest.raises(TypeError, match="priority must be an integer"):
            Stream(priority=wrong)
    with pytest.raises(OverflowError, match="priority"):
        Stream(priority=2**31)
    for default in ({"null": True}, {"ptds": True}):
        with pytest.raises(ValueError, match="default stream"):
            Stream(**default, priority=0)
    with pytest.raises(TypeError, match="'ptr'"):
        ExternalStream()
    with pytest.raises(TypeError, match="float"):
        ExternalStream(1.0)
    with pytest.raises(OverflowError, match="-1"):
        ExternalStream(-1)
    with pytest.raises(ValueError, match="10000"):
        ExternalStream(0, 10000)
    with pytest.raises(ValueError, match="-2"):
        ExternalStream(0, device_id=-2)
    with pytest.raises(TypeError):
        gpumem.BaseStream()


@pytest.mark.sim_only
def test_a_failed_construction_leaves_nothing():
    before = testing.ledger()
    for call in ("stream_create", "stream_id"):
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                Stream()
        assert caught.value.status == 999
    assert testing.ledger() == before


@pytest.mark.sim_only
def test_a_stream_is_initialised_once():
    for stream in (Stream(), Stream.null, Stream(ptds=True), ExternalStream(0)):
        ptr, streams = stream.ptr, testing.ledger().streams
        with pytest.raises(RuntimeError, match="already"):
            stream.__init__(*([0] if type(stream) is ExternalStream else []))
        assert (stream.ptr, testing.ledger().streams) == (ptr, streams)


@pytest.mark.sim_only
def test_initialising_may_be_tried_again_after_a_failure():
    stream = Stream.__new__(Stream)
    with testing.fail("stream_create", code=999):
        with pytest.raises(gpumem.CUDARuntimeError):
            stream.__init__()
    assert stream != Stream.null
    stream.__init__()
    assert stream.ptr > 2
    assert stream.done


def test_a_subclass_may_have_arguments_of_its_own():
    class Named(Stream):
        def __init__(self, label):
            super().__init__(non_blocking=True)
            self.label = label

    with Named("copies") as stream:
        assert get_current_stream() is stream
    assert (stream.label, stream.is_non_blocking) == ("copies", True)


class Unready(Stream):
    """Its __init__ does not run that of Stream."""

    def __init__(self):
        pass


def uses_of_a_stream(stream):
    """All that takes a stream, as functions."""
    memory, event = gpumem.malloc(512), Event()
    return [
        stream.use,
        stream.__enter__,
        stream.synchronize,
        lambda: stream.done,
        stream.record,
        lambda: stream.wait_event(event),
        stream.__cuda_stream__,
        lambda: Stream.from_external(stream),
        lambda: event.record(stream),
        lambda: memory.memset_async(0, 512, stream),
        lambda: memory.copy_from_async(memory, 512, stream),
        lambda: gpumem.MemoryPool().free_all_blocks(stream),
        lambda: gpumem.ManagedMemory(512).prefetch(stream),
    ]


@pytest.mark.parametrize("kind", [Unready, lambda: Stream.__new__(Stream)])
def test_what_was_never_made_a_stream_is_none(kind):
    """Its handle is that of the default stream, which nobody asked for."""
    stream = kind()
    for use in uses_of_a_stream(stream):
        with pytest.raises(RuntimeError, match=r"super\(\).__init__"):
            use()
    assert stream == stream and stream != kind() and stream != Stream.null


# ---- the end of one ----


@pytest.mark.sim_only
def test_the_handle_goes_with_the_object():
    before = testing.ledger().streams
    streams = [Stream() for _ in range(10)]
    assert testing.ledger().streams == before + 10
    del streams
    assert testing.ledger().streams == before


@pytest.mark.sim_only
def test_what_is_current_stays_alive_until_something_else_is():
    before = testing.ledger().streams
    watch = weakref.ref(Stream().use())
    assert watch() is get_current_stream()
    Stream.null.use()
    assert watch() is None
    assert testing.ledger().streams == before


@pytest.mark.sim_only
def test_what_a_thread_had_current_goes_with_the_thread(in_thread):
    before = testing.ledger().streams

    def leave_behind():
        Stream().use()
        Stream().__enter__()
        return testing.ledger().streams

    assert in_thread(leave_behind) == before + 2
    assert testing.ledger().streams == before


@pytest.mark.sim_only
def test_a_subclass_in_a_cycle_is_collected():
    class Cyclic(Stream):
        pass

    gc.collect()
    before = testing.ledger().streams
    stream = Cyclic()
    stream.me = stream
    watch = weakref.ref(stream)
    stream.use()
    del stream
    gc.collect()
    assert watch() is get_current_stream()
    Stream.null.use()
    gc.collect()
    assert watch() is None
    assert testing.ledger().streams == before


def test_a_process_may_end_with_a_stream_current_in_every_thread(script):
    code = """
import threading
from gpumem import Event, Stream

def hold():
    Stream().use()
    Stream().__enter__()
    ready.wait()
    threading.Event().wait()

ready = threading.Barrier(3)
for _ in range(2):
    threading.Thread(target=hold, daemon=True).start()
ready.wait()
kept = [Stream().use(), Stream().__enter__(), Event()]
"""
    done = script(code, options=("-X", "dev"), GPUMEM_BACKEND="sim")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("kind", [Stream, ExternalStream, gpumem.BaseStream])
def test_the_type_is_not_leaked(kind):
    before = sys.getrefcount(kind)
    for _ in range(100):
        Stream()
        ExternalStream(1)
    assert sys.getrefcount(kind) == before


def test_copies_do_not_share_the_handle():
    for stream in (Stream(), Stream.null):
        with pytest.raises(TypeError):
            copy.copy(stream)


@pytest.mark.sim_only
def test_an_external_stream_outlives_nothing_and_ends_nothing():
    stream = Stream()
    before = testing.ledger()
    external = ExternalStream(stream.ptr)
    external.use()
    Stream.null.use()
    del external
    assert testing.ledger() == before
    stream.synchronize()


@pytest.mark.sim_only
@pytest.mark.misuse
def test_a_handle_that_is_no_stream_is_refused_at_construction():
    with pytest.raises(gpumem.CUDARuntimeError) as caught:
        ExternalStream(0xDEAD0)
    assert caught.value.status == 400


# ---- as a value ----


def test_streams_are_equal_when_handle_and_device_are():
    first, second = Stream(), Stream()
    again = ExternalStream(first.ptr)
    assert first == again and not first != again and hash(first) == hash(again)
    assert first != second and not first == second
    assert len({first, second, again}) == 2
    assert first != first.ptr and first != Event()
    with pytest.raises(TypeError):
        first < second  # noqa: B015


@pytest.mark.two_devices
def test_the_default_stream_of_one_device_is_not_that_of_another():
    assert ExternalStream(0, 0) != ExternalStream(0, 1)
    assert ExternalStream(0, 1) != Stream.null
    assert ExternalStream(0) == Stream.null


def test_repr_names_type_handle_and_device():
    stream = Stream()
    assert repr(stream) == f"<gpumem.Stream {stream.ptr:#x} device=0>"
    assert repr(Stream.null) == "<gpumem.Stream 0x0>"
    assert repr(ExternalStream(2, 0)) == "<gpumem.ExternalStream 0x2 device=0>"


def test_a_stream_cannot_be_changed():
    for name in ("ptr", "device_id", "done", "is_non_blocking", "priority"):
        with pytest.raises(AttributeError):
            setattr(Stream.null, name, 1)
    with pytest.raises(TypeError):
        Stream.null = None


# ---- the order of work ----


@pytest.mark.sim_only
def test_done_says_whether_work_is_left():
    stream, memory = Stream(non_blocking=True), gpumem.malloc(4096)
    assert stream.done is True
    memory.memset_async(1, 4096, stream)
    assert stream.done is False
    stream.synchronize()
    assert stream.done is True


def test_synchronize_waits_for_the_work():
    stream, memory = Stream(non_blocking=True), filled(0)
    memory.memset_async(7, 4096, stream)
    stream.synchronize()
    assert stream.done is True
    assert content(memory) == b"\7" * 4096


def test_wait_event_orders_two_streams():
    first, second = Stream(non_blocking=True), Stream(non_blocking=True)
    source, target = filled(0), filled(0)
    source.memset_async(7, 4096, first)
    event = first.record()
    assert isinstance(event, Event) and event.device_id == 0
    second.wait_event(event)
    del event  # a wait that is queued holds
    target.copy_from_device_async(source, 4096, second)
    second.synchronize()
    assert content(target) == b"\7" * 4096


@pytest.mark.sim_only
def test_without_a_wait_nothing_orders_two_streams():
    first, second = Stream(non_blocking=True), Stream(non_blocking=True)
    source, target = filled(0), filled(0)
    source.memset_async(7, 4096, first)
    target.copy_from_device_async(source, 4096, second)
    second.synchronize()
    assert content(target) == b"\0" * 4096
    first.synchronize()


@pytest.mark.sim_only
def test_only_a_blocking_stream_is_waited_for_by_the_default_stream():
    for non_blocking, expected in ((False, 7), (True, 0)):
        stream = Stream(non_blocking=non_blocking)
        source, target = filled(0), filled(0)
        source.memset_async(7, 4096, stream)
        target.copy_from_device_async(source, 4096, Stream.null)
        Stream.null.synchronize()
        assert content(target) == bytes([expected]) * 4096
        stream.synchronize()


def test_record_gives_back_the_event_it_was_given():
    event = Event(disable_timing=True)
    assert Stream.null.record(event) is event
    assert Stream.null.record(event=event) is event
    event.synchronize()


@pytest.mark.two_devices
def test_record_makes_an_event_on_the_streams_device():
    with Device(1):
        stream = Stream()
    for other in (stream, ExternalStream(0, 1), ExternalStream(2, 1)):
        event = other.record()
        assert event.device_id == 1
        assert gpumem.get_device_id() == 0
        event.synchronize()


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_a_default_stream_that_names_its_device_is_that_devices():
    with Device(1):
        memory = gpumem.malloc(512)
        memory.memset_async(1, 512, Stream.null)
    there = ExternalStream(0, 1)
    assert there.done is False and Stream.null.done is True
    there.synchronize()
    assert there.done is True
    assert gpumem.get_device_id() == 0
    with Device(1):
        event = Stream.null.record()
    there.wait_event(event)
    assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_the_current_device_is_kept_when_such_a_call_fails():
    there = ExternalStream(0, 1)
    for call, use in [
        ("stream_synchronize", there.synchronize),
        ("device_push", there.synchronize),
        ("device_get", there.synchronize),
    ]:
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError):
                use()
        assert gpumem.get_device_id() == 0, call


def test_what_is_no_event_is_refused_by_name():
    stream = Stream()
    for use in (stream.record, stream.wait_event):
        for wrong in (stream, 5, object()):
            with pytest.raises(TypeError, match=type(wrong).__name__):
                use(wrong)
    with pytest.raises(TypeError, match="NoneType"):
        stream.wait_event(None)


@pytest.mark.sim_only
def test_another_librarys_event_will_do():
    stream, own = Stream(non_blocking=True), Event()

    foreign = SimpleNamespace(ptr=own.ptr)
    memory = gpumem.malloc(512)
    memory.memset_async(1, 512, stream)
    assert stream.record(foreign) is foreign
    assert own.done is False
    Stream.null.wait_event(foreign)
    Stream.null.synchronize()
    assert own.done is True


@pytest.mark.sim_only
def test_errors_of_the_runtime_come_out():
    stream, event = Stream(), Event()
    for call, use in [
        ("stream_query", lambda: stream.done),
        ("stream_synchronize", stream.synchronize),
        ("stream_wait_event", lambda: stream.wait_event(event)),
        ("event_record", lambda: stream.record(event)),
        ("event_create", stream.record),
        ("stream_id", Stream.ptds.use),
        ("stream_id", Stream.ptds.__enter__),
    ]:
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                use()
        assert caught.value.status == 999, call


# ---- priority ----


@pytest.mark.parametrize("priority", [None, 0])
def test_a_stream_is_ordinary_unless_it_is_told_otherwise(priority):
    assert Stream(priority=priority).priority == 0
    assert Stream().priority == Stream.null.priority == Stream.ptds.priority == 0


@pytest.mark.parametrize("asked", [-1, -(2**31), 1, 2**31 - 1])
def test_what_the_device_does_not_have_becomes_the_nearest_it_has(asked):
    """A device has 0 and, where it has more than that, numbers below."""
    most = Stream(priority=-(2**31)).priority
    assert most <= 0
    assert Stream(priority=asked).priority == min(0, max(most, asked))


@pytest.mark.sim_only
def test_the_simulated_device_has_more_than_one_priority():
    assert Stream(priority=-1).priority == -1
    assert Stream(priority=-(2**31)).priority < -1


def test_a_stream_of_another_library_has_what_it_was_made_with():
    class Foreign:
        def __init__(self, stream):
            self.stream = stream

        def __cuda_stream__(self):
            return (0, self.stream.ptr)

    for priority, non_blocking in ((0, False), (-1, True)):
        own = Stream(priority=priority, non_blocking=non_blocking)
        for other in (ExternalStream(own.ptr), Stream.from_external(Foreign(own))):
            assert other.is_non_blocking is non_blocking
            assert other.priority == own.priority
    assert ExternalStream(0).is_non_blocking is False
