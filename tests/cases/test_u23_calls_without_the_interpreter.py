# SPDX-License-Identifier: MIT
"""A call of the driver blocked, deadlocked with another thread or took long, and every
Python thread stood still with it. chainer/chainer#2084, torch#132520, torch#119393,
https://github.com/pytorch/pytorch/issues/132520"""

import gc
import threading

import pytest
from casekit import MIB, UNIT, device_calls, in_a_cycle

import gpumem
from gpumem import (
    Device,
    Event,
    ExternalStream,
    MemoryPool,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
    Stream,
    testing,
)

pytestmark = [pytest.mark.sim_only, pytest.mark.timeout(120)]

HOST = bytearray(UNIT)

# For each call of the device that may take long: what a program does to cause it. `t`
# has what was made before, when nothing was slow yet.
CALLS = {
    "mem_alloc": [
        lambda t: gpumem.malloc(UNIT),
        lambda t: t.pool.malloc(MIB),
        lambda t: SingleDeviceMemoryPool().malloc(UNIT),
        lambda t: gpumem.malloc_managed(UNIT),
        lambda t: gpumem.malloc_pinned(UNIT),
    ],
    "mem_free": [
        lambda t: t.raw.clear(),
        lambda t: (in_a_cycle(t.raw.pop()), gc.collect()),
        lambda t: t.pool.free_all_blocks(),
    ],
    "mem_info": [
        lambda t: Device().mem_info,
        lambda t: t.pool.set_limit(fraction=0.5),
    ],
    "mem_largest": [lambda t: t.pool.stats()],
    "device_set": [lambda t: Device(1).use()],
    "device_push": [
        lambda t: t.over_functions.malloc(4 * UNIT),
        lambda t: t.over_functions.free_all_blocks(),
    ],
    "mem_alloc_async": [lambda t: gpumem.malloc_async(UNIT)],
    "mem_free_async": [lambda t: t.ordered.clear()],
    "copy": [
        lambda t: t.pointer.copy_from_host(HOST, UNIT),
        lambda t: t.pointer.copy_to_host(HOST, UNIT),
        lambda t: t.pointer.copy_from_device(t.other, UNIT),
        lambda t: t.pointer.copy_from(t.other, UNIT),
    ],
    "copy_async": [
        lambda t: t.pointer.copy_from_host_async(HOST, UNIT, t.stream),
        lambda t: t.pointer.copy_to_host_async(HOST, UNIT, t.stream),
        lambda t: t.pointer.copy_from_device_async(t.other, UNIT, t.stream),
        lambda t: t.pointer.copy_from_async(t.other, UNIT, t.stream),
    ],
    "copy_peer": [lambda t: t.pointer.copy_from_device(t.abroad, UNIT)],
    "peer_enable": [lambda t: t.pointer.copy_from_device(t.abroad, UNIT)],
    "copy_peer_async": [
        lambda t: t.pointer.copy_from_device_async(t.abroad, UNIT, t.stream)
    ],
    "set": [lambda t: t.pointer.memset(1, UNIT)],
    "set_async": [lambda t: t.pointer.memset_async(1, UNIT, t.stream)],
    "stream_create": [lambda t: Stream(non_blocking=True)],
    "stream_destroy": [lambda t: t.streams.clear()],
    "stream_query": [lambda t: t.stream.done],
    "stream_id": [lambda t: ExternalStream(t.stream.ptr)],
    "stream_synchronize": [lambda t: t.stream.synchronize()],
    "stream_wait_event": [lambda t: t.stream.wait_event(t.event)],
    "device_synchronize": [lambda t: Device().synchronize()],
    "event_create": [lambda t: Event()],
    "event_destroy": [lambda t: t.events.clear()],
    "event_query": [lambda t: t.event.done],
    "event_synchronize": [lambda t: t.event.synchronize()],
    "event_record": [lambda t: t.event.record(t.stream)],
    "mem_prefetch": [lambda t: t.managed.prefetch(t.stream)],
    "mem_advise": [lambda t: t.managed.advise(1, 0)],
    "pointer_info": [lambda t: gpumem.UnownedMemory(t.pointer.ptr, UNIT, None)],
}


def functions():
    """Over memory that exists already: they make no call themselves."""
    memory = gpumem.malloc(8 * UNIT)

    def malloc(size, device):
        return memory.ptr + size  # disjoint for 2 and 4 units

    return malloc, lambda ptr, device: None


class Things:
    def __init__(self):
        self.pool = MemoryPool()
        self.pool.malloc(UNIT)  # cached, and so is that:
        self.over_functions = MemoryPool(PythonFunctionAllocator(*functions()).malloc)
        self.over_functions.malloc(2 * UNIT)
        self.raw = [gpumem.malloc(UNIT)]
        self.ordered = [gpumem.malloc_async(UNIT)]
        self.pointer = gpumem.malloc(UNIT)
        self.other = gpumem.malloc(UNIT)
        self.managed = gpumem.malloc_managed(UNIT).mem
        self.stream = Stream(non_blocking=True)
        self.streams, self.events = [Stream()], [Event()]
        self.event = Event()
        self.event.record(self.stream)
        with Device(1):
            self.abroad = gpumem.malloc(UNIT)


@pytest.mark.two_devices
@pytest.mark.parametrize(
    ("name", "call"),
    [
        pytest.param(name, call, id=f"{name}-{index}")
        for name, calls in CALLS.items()
        for index, call in enumerate(calls)
    ],
)
def test_u23_others_run_while_a_call_blocks(name, call, unraisable):
    """The call would sleep for an hour. It is this thread that ends the sleep, and it
    can only if the other one lets go of the interpreter before it sleeps. The other one
    made what it uses: without an interpreter lock what it drops would end here else."""
    made, slow, entered = (threading.Event() for _ in range(3))
    failed = []

    def work():
        things = Things()
        made.set()
        assert slow.wait(60)
        entered.set()
        try:
            call(things)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert made.wait(60)
    with device_calls() as calls:
        with testing.slow_calls(name, 3600):
            slow.set()
            assert entered.wait(60)
            thread.join(0.02)
            assert thread.is_alive(), "it did not make that call"
        thread.join(60)
        assert not thread.is_alive()
    assert failed == [] and unraisable == []
    assert name in [each.name for each in calls]


@pytest.mark.parametrize("wait", ["stream", "event", "device", "free"])
def test_u23_others_run_while_work_is_not_done(wait):
    """The same where the call takes long because the device has work to do."""
    stream, done = Stream(non_blocking=True), Event()
    pointer, made, queued = gpumem.malloc(UNIT), threading.Event(), threading.Event()

    def work():
        spare = [gpumem.malloc(UNIT)]  # for it ends in the thread that made it
        made.set()
        assert queued.wait(60)
        waits.get(wait, spare.clear)()

    waits = {
        "stream": stream.synchronize,
        "event": done.synchronize,
        "device": Device().synchronize,
    }
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert made.wait(60)
    with testing.hold_stream(stream):
        pointer.memset_async(3, UNIT, stream)
        done.record(stream)
        queued.set()
        thread.join(0.02)
        assert thread.is_alive()
    thread.join(60)
    assert not thread.is_alive()
    pointer.copy_to_host(HOST, UNIT)
    assert HOST == bytes([3]) * UNIT
