# SPDX-License-Identifier: MIT
"""Graphs: recording what a stream would do, launching it, the memory it keeps, and that
nothing is left of a recording that was spoilt or given up."""

import ctypes
import gc
import threading
import weakref

import pytest

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    Event,
    ExternalStream,
    Graph,
    Stream,
    streamCaptureModeGlobal,
    streamCaptureModeRelaxed,
    streamCaptureModeThreadLocal,
    testing,
)

UNIT = 512


@pytest.fixture
def stream():
    Device(0).use()
    return Stream(non_blocking=True)


def filled(byte, size=UNIT):
    memory = gpumem.malloc(size)
    memory.memset(byte, size)
    return memory


def content(memory, size=UNIT):
    host = ctypes.create_string_buffer(size)
    memory.copy_to_host(ctypes.addressof(host), size)
    return host.raw


def recorded(stream, work, **options):
    stream.begin_capture(**options)
    work()
    return stream.end_capture()


# ---- recording and launching ----


def test_what_is_recorded_runs_when_it_is_launched_and_not_before(stream):
    source, target = filled(1), filled(0)
    graph = recorded(
        stream, lambda: target.copy_from_device_async(source, UNIT, stream)
    )
    assert type(graph) is Graph and graph.device_id == 0
    stream.synchronize()
    assert content(target) == b"\0" * UNIT
    graph.launch(stream)
    stream.synchronize()
    assert content(target) == b"\1" * UNIT


def test_a_graph_is_launched_as_often_as_one_likes(stream):
    source, target = filled(0), filled(0)
    graph = recorded(
        stream, lambda: target.copy_from_device_async(source, UNIT, stream)
    )
    for byte in (1, 2, 3):
        source.memset(byte, UNIT)
        graph.launch(stream)
        stream.synchronize()
        assert content(target) == bytes([byte]) * UNIT


def test_a_launch_goes_to_the_stream_that_is_named_or_to_the_current_one(stream):
    target, other = filled(0), Stream(non_blocking=True)
    graph = recorded(stream, lambda: target.memset_async(1, UNIT, stream))

    class Foreign:
        def __init__(self, handle):
            self.handle = handle

        def __cuda_stream__(self):
            return (0, self.handle)

    for launch in (
        lambda: graph.launch(other),
        lambda: graph.launch(stream=Foreign(other.ptr)),
        lambda: graph.launch(ExternalStream(other.ptr)),
    ):
        target.memset(0, UNIT)
        launch()
        other.synchronize()
        assert content(target) == b"\1" * UNIT
    target.memset(0, UNIT)
    with other:
        graph.launch()
    other.synchronize()
    assert content(target) == b"\1" * UNIT


def test_a_launch_is_in_the_order_of_its_stream(stream):
    target = filled(0)
    graph = recorded(stream, lambda: target.memset_async(1, UNIT, stream))
    graph.launch(stream)
    target.memset_async(2, UNIT, stream)
    stream.synchronize()
    assert content(target) == b"\2" * UNIT


def test_another_stream_takes_part_by_an_event(stream):
    first, second = filled(0), filled(0)
    other = Stream(non_blocking=True)

    def work():
        first.memset_async(1, UNIT, stream)
        other.wait_event(stream.record(fork))
        second.copy_from_device_async(first, UNIT, other)
        stream.wait_event(other.record(join))

    fork, join = Event(disable_timing=True), Event(disable_timing=True)
    graph = recorded(stream, work)
    graph.launch(stream)
    stream.synchronize()
    assert content(second) == b"\1" * UNIT


def test_an_upload_does_not_run_anything(stream):
    target = filled(0)
    graph = recorded(stream, lambda: target.memset_async(1, UNIT, stream))
    graph.upload(stream)
    graph.upload(stream=stream)
    stream.synchronize()
    assert content(target) == b"\0" * UNIT
    graph.launch(stream)
    stream.synchronize()
    assert content(target) == b"\1" * UNIT


def test_a_graph_of_nothing_can_be_launched(stream):
    graph = recorded(stream, lambda: None)
    graph.launch(stream)
    stream.synchronize()


def test_a_graph_as_text(stream):
    target = filled(0)
    graph = recorded(stream, lambda: target.memset_async(1, UNIT, stream))
    text = graph.debug_dot_str()
    assert text.startswith("digraph") and text.rstrip().endswith("}")
    assert isinstance(graph.debug_dot_str(flags=1), str)
    with pytest.raises(ValueError, match="-1"):
        graph.debug_dot_str(-1)
    with pytest.raises(TypeError, match="flags must be an integer"):
        graph.debug_dot_str("all")


# ---- the state of a stream ----


def test_a_stream_says_whether_it_records(stream):
    assert stream.is_capturing() is False
    same = ExternalStream(stream.ptr)
    stream.begin_capture()
    assert stream.is_capturing() is True
    assert same.is_capturing() is True
    with pytest.raises(RuntimeError, match="recording"):
        ExternalStream(stream.ptr)  # which stream it is cannot be asked now
    assert Stream(non_blocking=True).is_capturing() is False
    stream.end_capture()
    assert stream.is_capturing() is False


@pytest.mark.parametrize("default", [Stream.null, Stream.ptds, ExternalStream(1)])
def test_a_default_stream_cannot_be_recorded(default):
    with pytest.raises(RuntimeError, match="default stream cannot"):
        default.begin_capture()
    with pytest.raises(RuntimeError, match="default stream records nothing"):
        default.end_capture()
    assert default.is_capturing() is False


@pytest.mark.parametrize(
    "mode",
    [
        None,
        streamCaptureModeGlobal,
        streamCaptureModeThreadLocal,
        streamCaptureModeRelaxed,
    ],
)
def test_every_mode_records(stream, mode):
    target = filled(0)
    graph = recorded(stream, lambda: target.memset_async(1, UNIT, stream), mode=mode)
    graph.launch(stream)
    stream.synchronize()
    assert content(target) == b"\1" * UNIT


def test_modes_have_the_numbers_of_the_runtime():
    assert streamCaptureModeGlobal == 0
    assert streamCaptureModeThreadLocal == 1
    assert streamCaptureModeRelaxed == 2


@pytest.mark.parametrize(
    "mode, error", [(3, ValueError), (-1, ValueError), ("relaxed", TypeError)]
)
def test_what_is_no_mode_is_refused(stream, mode, error):
    with pytest.raises(error, match="mode"):
        stream.begin_capture(mode)
    assert stream.is_capturing() is False


def test_a_relaxed_recording_is_the_default(stream):
    """In it memory may be taken from the device, by this thread too."""
    stream.begin_capture()
    gpumem.malloc(UNIT)
    stream.end_capture()


def test_a_stream_that_records_cannot_begin_again(stream):
    target = filled(0)
    stream.begin_capture()
    target.memset_async(1, UNIT, stream)
    with pytest.raises(RuntimeError, match="recording a graph"):
        stream.begin_capture()
    graph = stream.end_capture()  # the first goes on as if nothing had happened
    graph.launch(stream)
    stream.synchronize()
    assert content(target) == b"\1" * UNIT


def test_an_end_without_a_beginning_is_an_error(stream):
    with pytest.raises(CUDARuntimeError):
        stream.end_capture()
    recorded(stream, lambda: None).launch(stream)
    stream.synchronize()


@pytest.mark.sim_only
def test_a_spoilt_recording_has_no_graph_and_leaves_the_stream_usable(stream):
    stream.begin_capture(streamCaptureModeGlobal)
    with pytest.raises(CUDARuntimeError) as caught:
        gpumem.Device(0).synchronize()
    assert caught.value.status == 900
    assert stream.is_capturing() is True
    with pytest.raises(CUDARuntimeError, match="spoilt the recording") as caught:
        stream.end_capture()
    assert caught.value.status == 901
    assert stream.is_capturing() is False
    target = filled(0)
    target.memset_async(1, UNIT, stream)
    stream.synchronize()
    recorded(stream, lambda: target.memset_async(2, UNIT, stream)).launch(stream)
    stream.synchronize()
    assert content(target) == b"\2" * UNIT


@pytest.mark.sim_only
def test_what_somebody_else_began_can_be_ended_here_and_the_other_way_round(stream):
    target, other = filled(0), ExternalStream(stream.ptr)
    stream.begin_capture()
    target.memset_async(1, UNIT, stream)
    graph = other.end_capture()
    stream.begin_capture()  # the first recording is over, whoever ended it
    stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    assert content(target) == b"\1" * UNIT


# ---- failures ----


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "call", ["capture_begin", "capture_end", "graph_instantiate", "stream_capture"]
)
def test_a_failure_leaves_nothing_behind(stream, call):
    before = testing.ledger()
    with testing.fail(call, code=999):
        with pytest.raises(CUDARuntimeError) as caught:
            recorded(stream, lambda: None)
    assert caught.value.status == 999
    while stream.is_capturing():
        stream.end_capture()
    assert testing.ledger() == before
    pool = gpumem.MemoryPool()
    with stream:  # no capture is left that would forbid this
        pool.malloc(UNIT)
    recorded(stream, lambda: None)


@pytest.mark.sim_only
def test_errors_of_the_runtime_come_out(stream):
    graph = recorded(stream, lambda: None)
    for call, use in [
        ("graph_launch", graph.launch),
        ("graph_upload", graph.upload),
        ("graph_debug_dot", graph.debug_dot_str),
        ("stream_capture", stream.is_capturing),
    ]:
        with testing.fail(call, code=999):
            with pytest.raises(CUDARuntimeError) as caught:
                use()
        assert caught.value.status == 999, call


@pytest.mark.parametrize("mode", [streamCaptureModeRelaxed, streamCaptureModeGlobal])
@pytest.mark.parametrize("use", [Graph.launch, Graph.upload])
def test_a_graph_does_not_become_part_of_another_one(stream, use, mode):
    """Nobody would keep its memory for that one. The recording goes on."""
    target = filled(0)
    graph = recorded(stream, lambda: target.memset_async(1, UNIT, stream))
    other = Stream(non_blocking=True)
    same = ExternalStream(other.ptr)
    other.begin_capture(mode)
    for argument in (other, same):
        with pytest.raises(RuntimeError, match="another one cannot become part of"):
            use(graph, argument)
    second = other.end_capture()
    second.launch(other)
    other.synchronize()
    assert content(target) == bytes(UNIT)
    graph.launch(other)
    other.synchronize()
    assert content(target) == b"\1" * UNIT


def test_arguments_are_checked(stream):
    graph = recorded(stream, lambda: None)
    for use in (graph.launch, graph.upload):
        for wrong in (0, object(), Event(), Device(0)):
            with pytest.raises(TypeError, match=type(wrong).__name__):
                use(wrong)
    with pytest.raises(TypeError):
        Graph()


# ---- the end ----


@pytest.mark.sim_only
def test_a_graph_gives_its_handles_back():
    graph = recorded(Stream(non_blocking=True), lambda: None)
    watch = weakref.ref(graph)
    with testing.call_log() as log:
        del graph
    assert watch() is None
    names = [call.name for call in log if call.name.startswith("graph")]
    assert names == ["graph_exec_destroy", "graph_destroy"]
    assert all(call.status == 0 for call in log)


@pytest.mark.parametrize("mode", [streamCaptureModeRelaxed, streamCaptureModeGlobal])
def test_a_graph_that_dies_while_a_stream_records_does_not_spoil_that(
    stream, mode, unraisable
):
    target = filled(0)
    graph = recorded(stream, lambda: None)
    stream.begin_capture(mode)
    del graph
    gc.collect()
    target.memset_async(1, UNIT, stream)
    second = stream.end_capture()
    second.launch(stream)
    stream.synchronize()
    assert content(target) == b"\1" * UNIT
    assert unraisable == []


@pytest.mark.sim_only
@pytest.mark.parametrize("mode", [streamCaptureModeRelaxed, streamCaptureModeGlobal])
def test_a_recording_that_is_open_when_its_stream_dies_is_ended(mode, unraisable):
    before = testing.ledger()
    stream = Stream(non_blocking=True)
    stream.begin_capture(mode)
    with testing.call_log() as log:
        del stream
    names = [call.name for call in log]
    assert "capture_end" in names and "graph_destroy" in names
    assert names.index("capture_end") < names.index("stream_destroy")
    assert unraisable == []
    assert testing.ledger() == before
    gpumem.MemoryPool().malloc(UNIT)  # nobody records any more


@pytest.mark.sim_only
def test_a_spoilt_recording_that_nobody_ended_ends_with_its_stream(unraisable):
    before = testing.ledger()
    stream = Stream(non_blocking=True)
    external = ExternalStream(stream.ptr)
    external.begin_capture(streamCaptureModeGlobal)
    with pytest.raises(CUDARuntimeError):
        gpumem.Device(0).synchronize()
    with pytest.raises(RuntimeError, match="recording a graph"):
        external.begin_capture()
    del external
    assert not stream.is_capturing()
    del stream
    assert unraisable == []
    assert testing.ledger() == before


@pytest.mark.sim_only
def test_a_recording_of_somebody_elses_stream_ends_with_the_object_that_began_it():
    stream = Stream(non_blocking=True)
    external, other = ExternalStream(stream.ptr), ExternalStream(stream.ptr)
    external.begin_capture()
    assert stream.is_capturing()
    del external
    assert not stream.is_capturing()
    stream.begin_capture()
    del other  # it began nothing
    assert stream.is_capturing()
    stream.end_capture()


@pytest.mark.sim_only
@pytest.mark.parametrize("own_begins", [True, False])
def test_a_recording_may_be_ended_through_another_object_of_its_stream(own_begins):
    """Which then gives the graph its memory, and ends what the recording held up."""
    stream = Stream(non_blocking=True)
    external = ExternalStream(stream.ptr)
    begins, ends = (stream, external) if own_begins else (external, stream)
    pool, held = gpumem.MemoryPool(), gpumem.malloc(UNIT)
    with stream:
        pool.malloc(UNIT)
        stream.synchronize()
        before = testing.ledger().bytes
        begins.begin_capture()
        memory = pool.malloc(UNIT)
        memory.memset_async(7, UNIT)
        address = memory.ptr
        del memory, held
        assert testing.ledger().bytes == before
        graph = ends.end_capture()
        assert testing.ledger().bytes == before - UNIT
        assert pool.stats()["captured_bytes"] == UNIT
        other = pool.malloc(UNIT)  # a miss, which is served again
        assert other.ptr != address
        if not own_begins:
            del begins, external
            assert pool.malloc(UNIT).ptr != address
        other.memset(1, UNIT)
        graph.launch(stream)
        stream.synchronize()
        assert content(other) == b"\1" * UNIT
        del graph
        stream.synchronize()
        assert pool.stats()["captured_bytes"] == 0


@pytest.mark.sim_only
@pytest.mark.misuse
def test_a_stream_of_ours_ends_the_recording_that_another_object_began(unraisable):
    before = testing.ledger()
    stream = Stream(non_blocking=True)
    external = ExternalStream(stream.ptr)
    external.begin_capture(streamCaptureModeGlobal)
    del stream
    assert unraisable == []
    assert testing.ledger() == before
    gpumem.MemoryPool().malloc(UNIT)  # nobody records any more
    with pytest.raises(RuntimeError, match="stream was destroyed"):
        external.end_capture()


@pytest.mark.sim_only
def test_a_later_recording_outlives_the_object_that_began_an_earlier_one():
    stream = Stream(non_blocking=True)
    external = ExternalStream(stream.ptr)
    external.begin_capture()
    stream.end_capture()
    stream.begin_capture()
    del external
    assert stream.is_capturing()
    stream.end_capture()


def test_a_graph_may_die_in_another_thread(stream, unraisable):
    target = filled(0)
    graphs = [recorded(stream, lambda: target.memset_async(1, UNIT, stream))]
    graphs[0].launch(stream)
    thread = threading.Thread(target=graphs.clear)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    stream.synchronize()
    assert content(target) == b"\1" * UNIT
    assert unraisable == []


def test_a_graph_in_a_cycle_is_collected(stream):
    class Holder:
        pass

    holder = Holder()
    holder.me, holder.graph = holder, recorded(stream, lambda: None)
    watch = weakref.ref(holder.graph)
    del holder
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    "end", ["", "import os\nif os.fork() == 0: del graph, stream\nelse: os.wait()"]
)
def test_a_process_ends_silently_with_graphs_and_an_open_recording(script, end):
    code = f"""
import gpumem
pool = gpumem.MemoryPool()
with gpumem.Stream() as stream:
    pool.malloc(512)
    stream.begin_capture()
    kept = pool.malloc(512)
    graph = stream.end_capture()
    graph.launch()
opened = gpumem.Stream()
opened.begin_capture()
{end}
"""
    done = script(code, options=("-X", "dev"), GPUMEM_BACKEND="sim")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.sim_only
def test_a_destructor_that_fails_reports_and_still_lets_the_memory_go(script):
    code = """
import sys
import gpumem
from gpumem import testing

pool = gpumem.MemoryPool()
with gpumem.Stream() as stream:
    pool.malloc(512)
    stream.begin_capture()
    pool.malloc(512)
    graph = stream.end_capture()
reports = []
sys.unraisablehook = lambda report: reports.append(report.exc_value.status)
with testing.fail("graph_exec_destroy", code=999):
    del graph
print(reports, pool.stats()["captured_bytes"], pool.free_bytes())
"""
    done = script(code, GPUMEM_BACKEND="sim")
    assert (done.stdout, done.stderr) == ("[999] 0 512\n", "")


# ---- its memory ----


@pytest.mark.sim_only
def test_memory_of_a_recording_is_the_graphs_until_it_dies(stream, pool):
    with stream:
        cached = pool.malloc(4 * UNIT).ptr
        stream.begin_capture()
        inside = pool.malloc(UNIT)
        assert inside.ptr == cached
        inside.memset_async(1, UNIT)
        del inside  # to the graph, which will write there
        graph = stream.end_capture()
        assert pool.stats()["captured_bytes"] == UNIT
        outside = [pool.malloc(UNIT) for _ in range(4)]
        assert cached not in {pointer.ptr for pointer in outside}
        graph.launch()
        del graph
        stream.synchronize()
        assert pool.stats()["captured_bytes"] == 0
        assert pool.malloc(UNIT).ptr == cached
    del outside


@pytest.mark.sim_only
def test_memory_of_a_graph_that_is_under_way_waits_for_it(stream, pool):
    with stream:
        pool.malloc(UNIT)
        stream.begin_capture()
        pool.malloc(UNIT).memset_async(7, UNIT)
        graph = stream.end_capture()
        graph.launch()
        del graph
        with testing.call_log() as log:
            stats = pool.stats()
        held = stats["captured_bytes"] + stats["pending_bytes"] + stats["free_bytes"]
        assert held == stats["total_bytes"] == UNIT
        assert not [call for call in log if "synchronize" in call.name]
        stream.synchronize()
        assert pool.stats()["captured_bytes"] == 0


@pytest.mark.sim_only
def test_a_spoilt_recording_gives_its_memory_back(stream, pool):
    with stream:
        pool.malloc(UNIT)
        stream.begin_capture(streamCaptureModeGlobal)
        pool.malloc(UNIT)
        assert pool.stats()["captured_bytes"] == UNIT
        with pytest.raises(CUDARuntimeError):
            gpumem.Device(0).synchronize()
        with pytest.raises(CUDARuntimeError):
            stream.end_capture()
        assert pool.stats()["captured_bytes"] == 0
        assert pool.free_bytes() == UNIT


@pytest.mark.sim_only
def test_a_request_that_the_cache_cannot_serve_leaves_the_recording_as_it_is(
    stream, pool
):
    target = filled(0)
    with stream:
        stream.begin_capture()
        target.memset_async(1, UNIT)
        with pytest.raises(gpumem.OutOfMemoryError, match="record"):
            pool.malloc(UNIT)
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    assert content(target) == b"\1" * UNIT


@pytest.mark.sim_only
def test_a_launch_costs_pools_nothing_that_did_not_serve_the_recording(stream, pool):
    pool.malloc(UNIT)
    graph = recorded(stream, lambda: None)
    other = Stream(non_blocking=True)
    before = testing.ledger().events
    graph.launch(ExternalStream(other.ptr))
    assert testing.ledger().events == before
    other.synchronize()
