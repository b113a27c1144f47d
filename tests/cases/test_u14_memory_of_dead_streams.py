# SPDX-License-Identifier: MIT
"""Memory used on streams that did not live long stayed theirs for ever, and what was
kept about them grew. cupy#8068, NVIDIA/Fuser#5767,
https://github.com/cupy/cupy/issues/8068"""

import gc
import threading

import pytest
from casekit import MIB, at_rest, resident_bytes

import gpumem
from gpumem import MemoryPool, Stream, testing

WARM, MANY = 200, 5000


def used_and_gone(pool, count):
    """Each stream takes a block, uses it and ends; the most that was held."""
    most = arenas = 0
    for _ in range(count):
        stream = Stream(non_blocking=True)
        with stream:
            pool.malloc(MIB).memset_async(1, MIB)
        stream.synchronize()
        stats = pool.stats()
        most = max(most, stats["total_bytes"])
        arenas = max(arenas, stats["arenas"])
    return most, arenas


def five_thousand_streams():
    pool = MemoryPool()
    used_and_gone(pool, WARM)
    gc.collect()
    start = resident_bytes()
    most, arenas = used_and_gone(pool, MANY)
    gc.collect()
    grown = resident_bytes() - start
    print(most, arenas, grown)
    at_rest(pool)
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    ledger = testing.ledger()
    assert (ledger.streams, ledger.allocations, ledger.errors) == (0, 0, 0)


def test_u14_five_thousand_streams_leave_little(apart):
    most, arenas, grown = map(int, apart(five_thousand_streams).split())
    assert most <= 4 * MIB
    assert arenas <= 8
    assert grown < 60 * MANY  # bytes: less than one object a stream


def test_u14_what_a_dead_stream_left_is_used_again(pool):
    """Not only given back when memory runs out."""
    used_and_gone(pool, 20)
    before = pool.stats()["misses"]
    most, _ = used_and_gone(pool, 50)
    assert most <= 4 * MIB
    assert pool.stats()["misses"] - before <= 4


def test_u14_a_pointer_outlives_its_stream(pool):
    stream = Stream(non_blocking=True)
    with stream:
        pointer = pool.malloc(MIB)
    pointer.memset_async(3, MIB, stream)
    stream.synchronize()
    gpumem.Device().synchronize()
    del stream
    host = bytearray(MIB)
    pointer.copy_to_host(host, MIB)
    assert host == b"\3" * MIB
    del pointer
    assert pool.free_bytes() == MIB
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
def test_u14_the_end_of_a_stream_asks_the_device_for_nothing_it_forgot(pool):
    with Stream(non_blocking=True) as stream:
        pool.malloc(MIB)
    handle = stream.ptr
    del stream
    with testing.call_log() as calls:
        pool.malloc(MIB)
        pool.free_all_blocks()
    assert handle not in [call.ptr for call in calls if "stream" in call.name]


def in_a_thread(work):
    """On its own default stream, which ends with it."""

    def run():
        with Stream.ptds as stream:
            work(stream)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_u14_threads_with_streams_of_their_own_leave_little(pool):
    most = arenas = 0

    def use(stream):
        pool.malloc(MIB).memset_async(1, MIB)
        stream.synchronize()

    for _ in range(50):
        in_a_thread(use)
        stats = pool.stats()
        most = max(most, stats["total_bytes"])
        arenas = max(arenas, stats["arenas"])
    assert most <= 4 * MIB
    assert arenas <= 8


@pytest.mark.sim_only
def test_u14_what_a_thread_left_is_not_used_before_its_work_is_done(pool):
    held = []

    def use(stream):
        pointer = pool.malloc(MIB)
        held.append((testing.hold_stream(stream), pointer.ptr))
        held[0][0].__enter__()
        pointer.memset_async(1, MIB)

    in_a_thread(use)
    hold, address = held[0]
    try:
        others = [pool.malloc(MIB) for _ in range(2)]
        assert address not in [other.ptr for other in others]
    finally:
        hold.__exit__(None, None, None)
    gpumem.Device().synchronize()
    assert pool.malloc(MIB).ptr == address


@pytest.mark.sim_only
def test_u14_a_thread_that_ends_leaves_a_recording_alone(pool):
    stream = Stream(non_blocking=True)
    calls = []

    def use(_):
        pool.malloc(MIB)
        stream.begin_capture(gpumem.streamCaptureModeRelaxed)
        calls.append(testing.call_log())
        calls.append(calls[0].__enter__())

    in_a_thread(use)
    calls[0].__exit__(None, None, None)
    assert calls[1] == []
    stream.end_capture()
