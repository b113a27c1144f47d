# SPDX-License-Identifier: MIT
"""A request that went to the driver while a stream was recorded killed the recording,
with a code that told nobody why. cupy#4567, NVIDIA/cuopt#1748, torch#114320,
https://github.com/cupy/cupy/issues/4567"""

import gc

import pytest
from casekit import MIB, UNIT, content, device_calls, in_a_cycle, on_sim

import gpumem
from gpumem import MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool, Stream

MODES = {
    "global": gpumem.streamCaptureModeGlobal,
    "of a thread": gpumem.streamCaptureModeThreadLocal,
    "relaxed": gpumem.streamCaptureModeRelaxed,
}


def one_of_each_kind():
    kinds = [gpumem.malloc, gpumem.malloc_managed, gpumem.malloc_pinned]
    kinds.append(gpumem.PinnedMemoryPool().malloc)
    kinds.append(MemoryPool(gpumem.malloc_managed).malloc)
    if on_sim():  # not every device has these
        kinds += [gpumem.malloc_async, gpumem.MemoryAsyncPool().malloc]
        kinds.append(gpumem.malloc_system)
    return [make(UNIT) for make in kinds]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_u34_a_recording_survives_all_that_a_pool_does(make, mode, unraisable):
    pool, stream = make(), Stream(non_blocking=True)
    allocations = gpumem.testing.ledger().allocations if on_sim() else 0
    before = pool.malloc(UNIT)  # dropped while recording
    raw = one_of_each_kind()
    with stream:
        pool.malloc(MIB)  # cached for the stream
    stream.synchronize()
    with stream:
        stream.begin_capture(mode=MODES[mode])
        with device_calls() as calls:
            cached = pool.malloc(UNIT)  # (a) from the cache
            dropped, third = pool.malloc(UNIT), pool.malloc(UNIT)
        assert [c.name for c in calls if c.name.startswith("mem_")] == []
        cached.memset_async(5, UNIT)
        dropped.memset_async(6, UNIT)

        with pytest.raises(OutOfMemoryError, match="record") as caught:  # (b) a miss
            pool.malloc(64 * MIB)
        assert caught.value.cause == "capture"

        with device_calls() as calls:  # (c) drops, of all kinds
            del dropped, before
            raw.clear()
            in_a_cycle(third)
            del third
            gc.collect()
            held = pool.total_bytes()
            pool.free_all_blocks()  # (d) puts it off
            pool.free_all_blocks(stream)
        assert pool.total_bytes() == held
        # Which life the device is in may be asked: that changes nothing.
        assert {call.name for call in calls} <= {"device_incarnation"}
        assert stream.is_capturing()
        graph = stream.end_capture()  # (e) it is valid
        assert not stream.is_capturing()
    graph.launch(stream)
    stream.synchronize()
    assert content(cached, UNIT) == bytes([5]) * UNIT
    assert unraisable == []
    del graph, cached
    stream.synchronize()
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    assert not on_sim() or gpumem.testing.ledger().captures == 0
    assert not on_sim() or gpumem.testing.ledger().allocations == allocations


def test_u34_after_the_refusal_the_pool_is_as_it_was(pool):
    stream = Stream(non_blocking=True)
    with stream:
        pool.malloc(MIB)
        stream.synchronize()
        stream.begin_capture()
        figures = pool.total_bytes(), pool.free_bytes(), pool.used_bytes()
        for _ in range(3):
            with pytest.raises(OutOfMemoryError):
                pool.malloc(8 * MIB)
        assert (pool.total_bytes(), pool.free_bytes(), pool.used_bytes()) == figures
        stream.end_capture()
        assert pool.malloc(8 * MIB).mem.size == 8 * MIB  # recorded no more
