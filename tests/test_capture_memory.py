# SPDX-License-Identifier: MIT
"""Memory while a stream is being recorded: from the cache alone, private to the graph,
and nothing that only tidies up disturbs the recording."""

import pytest

import gpumem
from gpumem import OutOfMemoryError, Stream, testing

UNIT = 512
SIZE = 8 * UNIT

pytestmark = pytest.mark.sim_only


@pytest.fixture
def stream():
    return Stream(non_blocking=True)


def warm(pool, stream, size=SIZE):
    """Has the stream cache `size` bytes."""
    with stream:
        pool.malloc(size)
    stream.synchronize()


def captured(pool):
    stats = pool.stats()
    return stats["captured_blocks"], stats["captured_bytes"]


def adds_up(pool):
    stats = pool.stats()
    parts = ("used_bytes", "free_bytes", "pending_bytes", "captured_bytes")
    return sum(stats[part] for part in parts) == stats["total_bytes"]


def test_what_the_cache_has_can_be_recorded(pool, stream):
    warm(pool, stream)
    with stream:
        stream.begin_capture()
        pointer = pool.malloc(UNIT)
        pointer.memset_async(5, UNIT)
        address = pointer.ptr
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    buffer = bytearray(UNIT)
    pointer.copy_to_host(buffer, UNIT)
    assert buffer == bytes([5]) * UNIT
    assert pointer.ptr == address


def test_what_is_dropped_in_a_recording_is_reused_in_it_alone(pool, stream):
    warm(pool, stream)
    with stream:
        stream.begin_capture()
        address = pool.malloc(SIZE).ptr
        assert captured(pool) == (1, SIZE)
        assert pool.malloc(SIZE).ptr == address
        graph = stream.end_capture()
        assert pool.malloc(SIZE).ptr != address
    assert captured(pool) == (1, SIZE)
    assert adds_up(pool)
    del graph
    stream.synchronize()
    assert captured(pool) == (0, 0)
    assert adds_up(pool)


def test_a_miss_says_so_and_the_recording_goes_on(pool, stream):
    warm(pool, stream)
    with stream:
        stream.begin_capture()
        kept = pool.malloc(UNIT)
        with testing.call_log() as calls, pytest.raises(OutOfMemoryError) as failure:
            pool.malloc(2 * SIZE)
        assert "recorded" in str(failure.value)
        assert f"{2 * SIZE:,}" in str(failure.value)
        kept.memset_async(1, UNIT)
        graph = stream.end_capture()  # valid
    graph.launch(stream)
    stream.synchronize()
    assert {call.name for call in calls} <= {"stream_capture", "device_get"}


def test_drops_and_trims_call_nothing_until_it_ends(pool, stream):
    other = Stream(non_blocking=True)
    raw, plain, used = gpumem.malloc(UNIT), pool.malloc(UNIT), pool.malloc(UNIT)
    used.record_stream(other)
    allocations = testing.ledger().allocations
    stream.begin_capture()
    with testing.call_log() as calls:
        del raw, plain, used
        pool.free_all_blocks()
    names = {call.name for call in calls}
    assert names <= {"device_incarnation"}  # which asks, and changes nothing
    assert testing.ledger().allocations == allocations
    stream.end_capture()
    gpumem.Device().synchronize()
    pool.free_all_blocks()
    assert testing.ledger().allocations == allocations - 3
    assert pool.total_bytes() == 0


def test_a_launch_keeps_the_memory_until_it_is_done(pool, stream):
    launching = Stream(non_blocking=True)
    warm(pool, stream)
    with stream:
        stream.begin_capture()
        pool.malloc(SIZE).memset_async(1, SIZE)
        graph = stream.end_capture()
    graph.launch(launching)
    del graph
    assert captured(pool) == (1, SIZE)
    launching.synchronize()
    assert captured(pool) == (0, 0)


def test_memory_used_on_a_stream_that_is_recorded_now_is_kept(pool, stream):
    """That stream does not say which it is meanwhile: it must not be taken for gone."""
    pointer, foreign = pool.malloc(SIZE), gpumem.ExternalStream(stream.ptr)
    pointer.memset_async(1, SIZE, foreign)
    pointer.record_stream(foreign)
    stream.begin_capture()
    del pointer
    assert pool.stats()["pending_bytes"] == SIZE
    stream.end_capture()
    assert pool.stats()["pending_bytes"] == SIZE
    stream.synchronize()
    assert pool.stats()["pending_bytes"] == 0


def test_other_streams_are_served_as_usual(pool, stream):
    other = Stream(non_blocking=True)
    stream.begin_capture()
    with other:
        pointer = pool.malloc(SIZE)
    assert pointer.mem.size == SIZE
    del pointer
    assert captured(pool) == (0, 0)
    stream.end_capture()


def test_a_stream_that_joins_has_private_memory_of_its_own(pool, stream):
    joined, event = Stream(non_blocking=True), gpumem.Event()
    warm(pool, stream)
    warm(pool, joined)
    stream.begin_capture()
    event.record(stream)
    joined.wait_event(event)
    with stream:
        first = pool.malloc(SIZE)
        address = first.ptr
        del first
    with joined:
        second = pool.malloc(SIZE)
        assert second.ptr != address
        del second
        with pytest.raises(OutOfMemoryError, match="recorded"):
            pool.malloc(2 * SIZE)
    assert captured(pool) == (2, 2 * SIZE)
    back = gpumem.Event()
    back.record(joined)
    stream.wait_event(back)
    stream.end_capture()
    stream.synchronize()
    assert captured(pool) == (0, 0)
