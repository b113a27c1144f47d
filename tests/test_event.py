# SPDX-License-Identifier: MIT
"""Event: recording, asking, waiting, measuring, and what becomes of the handle."""

import copy
import gc
import sys
import weakref
from types import SimpleNamespace

import pytest

import gpumem
from gpumem import Device, Event, ExternalStream, Stream, get_elapsed_time, testing


def queue_work(stream, size=4096):
    """Queues a fill; the memory has to be kept until it is done."""
    memory = gpumem.malloc(size)
    memory.memset_async(1, size, stream)
    return memory


# ---- construction ----


def test_a_new_event_counts_as_having_happened():
    event = Event()
    assert event.done is True
    event.synchronize()


@pytest.mark.two_devices
def test_an_event_is_of_the_current_device():
    with Device(1):
        event = Event()
    assert event.device_id == 1
    assert Event().device_id == 0


@pytest.mark.sim_only
def test_options_reach_the_runtime():
    timed, untimed = Event(block=True), Event(False, True)
    for event in (timed, untimed):
        event.record(Stream.null)
        event.synchronize()
    assert get_elapsed_time(timed, timed) == 0.0
    with pytest.raises(gpumem.CUDARuntimeError) as caught:
        get_elapsed_time(untimed, untimed)
    assert caught.value.status == 400


def test_an_event_for_other_processes_cannot_be_timed():
    assert Event(disable_timing=True, interprocess=True).done
    with pytest.raises(ValueError, match="disable_timing"):
        Event(interprocess=True)


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="timing"):
        Event(timing=True)
    with pytest.raises(TypeError, match="at most 3"):
        Event(1, 1, 1, 1)


def test_a_truth_value_may_fail():
    class Undecided:
        def __bool__(self):
            raise KeyError("undecided")

    with pytest.raises(KeyError, match="undecided"):
        Event(block=Undecided())


@pytest.mark.sim_only
def test_a_failed_construction_leaves_nothing():
    before = testing.ledger().events
    with testing.fail("event_create", code=999):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            Event()
    assert caught.value.status == 999
    assert testing.ledger().events == before


@pytest.mark.sim_only
def test_an_event_is_initialised_once():
    event = Event()
    ptr, events = event.ptr, testing.ledger().events
    with pytest.raises(RuntimeError, match="already"):
        event.__init__()
    assert (event.ptr, testing.ledger().events) == (ptr, events)


@pytest.mark.sim_only
def test_initialising_may_be_tried_again_after_a_failure():
    event = Event.__new__(Event)
    with testing.fail("event_create", code=999):
        with pytest.raises(gpumem.CUDARuntimeError):
            event.__init__()
    event.__init__()
    assert event.ptr != 0


def test_a_subclass_may_have_arguments_of_its_own():
    class Named(Event):
        def __init__(self, label):
            super().__init__(disable_timing=True)
            self.label = label

    event = Named("copy done")
    event.record(Stream.null)
    assert (event.label, event.device_id) == ("copy done", 0)


# ---- the end of one ----


@pytest.mark.sim_only
def test_the_handle_goes_with_the_object():
    before = testing.ledger().events
    events = [Event() for _ in range(10)]
    assert testing.ledger().events == before + 10
    del events
    assert testing.ledger().events == before


@pytest.mark.sim_only
def test_a_subclass_in_a_cycle_is_collected():
    class Cyclic(Event):
        pass

    gc.collect()
    before = testing.ledger().events
    event = Cyclic()
    event.me = event
    watch = weakref.ref(event)
    del event
    gc.collect()
    assert watch() is None
    assert testing.ledger().events == before


def test_a_weak_reference_dies_with_the_event():
    event = Event()
    watch = weakref.ref(event)
    assert watch() is event
    del event
    assert watch() is None


@pytest.mark.parametrize("kind", ["Event", "Stream"])
def test_a_destructor_that_fails_reports_and_keeps_the_pending_error(script, kind):
    # In a process of its own: the handle stays behind.
    code = f"""
import sys
from gpumem import {kind}, testing

def lose_one_while_raising():
    lost = {kind}()
    try:
        raise KeyError("pending")
    finally:
        del lost

reports = []
sys.unraisablehook = lambda report: reports.append(report.exc_value.status)
with testing.fail("{kind.lower()}_destroy", code=999):
    try:
        lose_one_while_raising()
    except KeyError as error:
        print(error, reports)
"""
    done = script(code, GPUMEM_BACKEND="sim")
    assert (done.stdout, done.stderr) == ("'pending' [999]\n", "")


def test_the_type_is_not_leaked():
    before = sys.getrefcount(Event)
    for _ in range(100):
        Event()
    assert sys.getrefcount(Event) == before


def test_copies_do_not_share_the_handle():
    with pytest.raises(TypeError):
        copy.copy(Event())


# ---- as a value ----


def test_events_are_equal_when_their_handles_are():
    first, second = Event(), Event()
    assert first == first and not first != first
    assert first != second and not first == second
    assert len({first, second, first}) == 2
    assert first != first.ptr and first != Stream.null
    with pytest.raises(TypeError):
        first < second  # noqa: B015


def test_repr_names_type_handle_and_device():
    event = Event()
    assert repr(event) == f"<gpumem.Event {event.ptr:#x} device=0>"


def test_an_event_cannot_be_changed():
    event = Event()
    for name in ("ptr", "device_id", "done"):
        with pytest.raises(AttributeError):
            setattr(event, name, 1)
    with pytest.raises(TypeError):
        Event.record = None


# ---- recording and waiting ----


@pytest.mark.sim_only
def test_an_event_happens_when_the_work_before_it_is_done():
    stream, event = Stream(non_blocking=True), Event()
    kept = queue_work(stream)
    event.record(stream)
    assert event.done is False
    event.synchronize()
    assert event.done is True
    kept.mem  # noqa: B018 - alive until here


@pytest.mark.sim_only
def test_work_queued_later_does_not_delay_it():
    stream, event = Stream(non_blocking=True), Event()
    before = testing.ledger().pending
    event.record(stream=stream)
    kept = queue_work(stream)
    event.synchronize()
    assert event.done is True
    assert testing.ledger().pending == before + 1  # the fill has not run
    stream.synchronize()
    del kept


@pytest.mark.sim_only
def test_record_takes_the_current_stream_where_none_is_named():
    stream = Stream(non_blocking=True)
    for record in (Event.record, lambda event: event.record(None)):
        event = Event()
        with stream:
            kept = queue_work(stream)
            record(event)
        Stream.null.synchronize()  # does not wait for a non-blocking stream
        assert event.done is False
        stream.synchronize()
        assert event.done is True
        del kept


@pytest.mark.sim_only
def test_recording_again_counts_from_then():
    stream, event = Stream(non_blocking=True), Event()
    event.record(stream)
    event.synchronize()
    kept = queue_work(stream)
    event.record(stream)
    assert event.done is False
    stream.synchronize()
    del kept


@pytest.mark.sim_only
def test_another_librarys_stream_will_do():
    stream, event = Stream(non_blocking=True), Event()

    foreign = SimpleNamespace(ptr=stream.ptr)
    kept = queue_work(stream)
    event.record(foreign)
    Stream.null.synchronize()
    assert event.done is False
    stream.synchronize()
    assert event.done is True
    del kept


@pytest.mark.parametrize(
    "make", [object, lambda: 5, lambda: "s", Event, lambda: gpumem.malloc(512)]
)
def test_what_is_no_stream_is_refused_by_name(make):
    wrong = make()
    with pytest.raises(TypeError, match=type(wrong).__name__):
        Event().record(wrong)


@pytest.mark.two_devices
def test_a_stream_of_another_device_is_refused():
    event = Event()
    with Device(1):
        stream = Stream()
    with pytest.raises(ValueError, match="device 0 .* device 1"):
        event.record(stream)
    with pytest.raises(ValueError, match="device 0 .* device 1"):
        stream.record(event)
    with Device(1), pytest.raises(ValueError, match="device 0 .* device 1"):
        event.record()
    assert event.done and stream.done


@pytest.mark.two_devices
def test_a_default_stream_that_names_its_device_is_that_devices():
    with Device(1):
        event = Event()
    for handle in (0, 1, 2):
        event.record(ExternalStream(handle, device_id=1))
        event.synchronize()
        assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_the_current_device_is_kept_when_recording_fails_on_another():
    with Device(1):
        event = Event()
    for call in ("event_record", "device_get", "device_push"):
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError):
                event.record(ExternalStream(0, 1))
        assert gpumem.get_device_id() == 0, call


def test_an_event_that_was_never_initialised_is_no_event():
    event, other = Event.__new__(Event), Event()
    for use in (
        event.record,
        event.synchronize,
        lambda: event.done,
        lambda: Stream.null.record(event),
        lambda: Stream.null.wait_event(event),
        lambda: get_elapsed_time(event, other),
        lambda: get_elapsed_time(other, event),
    ):
        with pytest.raises(RuntimeError, match=r"super\(\).__init__"):
            use()


@pytest.mark.sim_only
def test_errors_of_the_runtime_come_out():
    event = Event()
    for call, use in [
        ("event_record", event.record),
        ("event_query", lambda: event.done),
        ("event_synchronize", event.synchronize),
    ]:
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                use()
        assert caught.value.status == 999, call


# ---- measuring ----


def test_elapsed_time_is_in_milliseconds_and_adds_up():
    stream = Stream(non_blocking=True)
    size = 4 << 20
    memory = gpumem.malloc(size)
    events = [Event() for _ in range(3)]
    events[0].record(stream)
    for event, repeats in zip(events[1:], (1, 20), strict=True):
        for _ in range(repeats):
            memory.memset_async(0, size, stream)
        event.record(stream)
    stream.synchronize()
    first, second = (get_elapsed_time(*events[i : i + 2]) for i in (0, 1))
    # 4 MiB take 0.4 microseconds at 10 TB/s; 20 times that are above the resolution.
    assert 0 <= first < second
    assert 0.008 < second < 1000
    whole = get_elapsed_time(start_event=events[0], end_event=events[2])
    assert whole == pytest.approx(first + second, abs=0.002)
    assert get_elapsed_time(events[2], events[0]) == pytest.approx(-whole, abs=0.002)


@pytest.mark.sim_only
def test_elapsed_time_of_what_has_not_happened():
    stream, event = Stream(non_blocking=True), Event()
    event.record(stream)
    first = Event()
    first.record()
    first.synchronize()
    with pytest.raises(RuntimeError, match="start has not happened yet: .*not reached"):
        get_elapsed_time(event, event)
    event.synchronize()
    gpumem.malloc(512).memset_async(0, 512, stream)
    event.record(stream)
    with pytest.raises(RuntimeError, match="end has not happened yet"):
        get_elapsed_time(first, event)
    event.synchronize()
    assert get_elapsed_time(event, event) == 0.0


def recorded(event):
    event.record()
    event.synchronize()
    return event


def on_the_other_device():
    with Device(1):
        return recorded(Event())


@pytest.mark.parametrize(
    "make, fault",
    [
        (Event, "was never recorded"),
        (lambda: recorded(Event(disable_timing=True)), "made with disable_timing=True"),
    ],
)
def test_elapsed_time_says_what_is_wrong_with_which(make, fault):
    good, bad = recorded(Event()), make()
    for pair, text in (
        ((bad, good), f"start .*{fault}"),
        ((good, bad), f"end .*{fault}"),
        ((bad, bad), f"start .*{fault}"),
    ):
        with pytest.raises(gpumem.CUDARuntimeError, match=text) as caught:
            get_elapsed_time(*pair)
        assert caught.value.status == 400


@pytest.mark.two_devices
def test_elapsed_time_between_two_devices_is_told_as_such():
    first, second = recorded(Event()), on_the_other_device()
    with pytest.raises(
        gpumem.CUDARuntimeError, match="start is of device 0, end of device 1"
    ):
        get_elapsed_time(first, second)


def test_a_record_by_a_stream_counts_as_well():
    event = Stream.null.record()
    event.synchronize()
    assert get_elapsed_time(event, event) == 0.0


def test_other_threads_run_while_elapsed_time_is_asked_for(lets_others_run):
    event = Event()
    event.record()
    event.synchronize()
    assert lets_others_run(get_elapsed_time, event, event)


def test_elapsed_time_wants_events():
    event = Event()
    with pytest.raises(TypeError, match="Stream"):
        get_elapsed_time(event, Stream.null)
    with pytest.raises(TypeError, match="int"):
        get_elapsed_time(0, event)
    with pytest.raises(TypeError, match="'end_event'"):
        get_elapsed_time(event)
