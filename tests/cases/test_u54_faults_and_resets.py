# SPDX-License-Identifier: MIT
"""After a fault of a kernel, or a reset of the device, every free failed: exceptions
out of the collector, a crash at exit, or dead addresses handed out again. cumo#227,
CUDA.jl#16, NVIDIA/numba-cuda#644, https://github.com/sonots/cumo/issues/227"""

import gc
import sys

import pytest
from casekit import MIB, UNIT, content, in_a_cycle, pattern, written

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    Event,
    MemoryPool,
    OutOfMemoryError,
    SingleDeviceMemoryPool,
    Stream,
    _core,
    testing,
)

pytestmark = pytest.mark.sim_only

FAULT = 719


def reset_by_others():
    """Pools learn of it when something is made on the device, be it by a miss."""
    testing.reset_device()
    gpumem.malloc(UNIT)


RESETS = {"ours": lambda: Device().reset(), "of another library": reset_by_others}


def break_the_device():
    """For good: no with statement ends it, not even with the interpreter."""
    _core._sim_set_fault(0, FAULT)


class Things:
    """One of everything that ends on the device."""

    def __init__(self, pool):
        self.pooled = [pool.malloc(n * UNIT) for n in range(1, 11)]
        self.raw = [gpumem.malloc(UNIT), gpumem.malloc_managed(UNIT)]
        self.raw += [gpumem.malloc_pinned(UNIT), gpumem.malloc_async(UNIT)]
        self.stream, self.event = Stream(non_blocking=True), Event()
        self.event.record(self.stream)
        self.raw[0].memset_async(1, UNIT, self.stream)
        with self.stream:
            self.pooled.append(pool.malloc(3 * UNIT))
        self.pooled[0].record_stream(self.stream)


def fault_then_exit(kind, in_cycles):
    reports = []
    sys.unraisablehook = lambda report: reports.append(report.exc_value.status)
    pool = getattr(gpumem, kind)()
    things = Things(pool)
    break_the_device()
    if in_cycles:
        in_a_cycle(things)
    del things
    gc.collect()
    assert reports in ([], [FAULT])
    assert pool.used_bytes() == 0
    for ask in (
        lambda: pool.malloc(MIB),
        lambda: gpumem.malloc(MIB),
        lambda: MemoryPool().malloc(UNIT),
        lambda: Stream(),
        lambda: Device().synchronize(),
    ):
        with pytest.raises(CUDARuntimeError) as caught:
            ask()
        assert caught.value.status == FAULT
        assert not isinstance(caught.value, OutOfMemoryError)
    gc.collect()
    assert reports in ([], [FAULT])
    testing.check_pool(pool)


@pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
@pytest.mark.parametrize("in_cycles", [False, True])
def test_u54_in_a_fault_drops_are_silent_and_requests_tell_it(apart, kind, in_cycles):
    apart(fault_then_exit, kind, in_cycles)


def exit_with_everything(kind):
    """What is left at the exit is left alone."""
    pool = getattr(gpumem, kind)()
    sys.things = Things(pool)
    break_the_device()


@pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
def test_u54_in_a_fault_a_program_ends_silently(apart, kind):
    apart(exit_with_everything, kind)


def reset_under_a_pool(reset, faulty):
    pool = MemoryPool()
    things, cached = Things(pool), pool.malloc(2 * MIB)
    kept = pool.malloc(MIB)
    del cached
    before = testing.ledger().errors
    if faulty:
        break_the_device()
    RESETS[reset]()
    assert testing.ledger().allocations == 0

    # What is handed out was taken from the device since, whatever its address.
    with testing.call_log() as calls:
        fresh = [written(pool.malloc(size), size) for size in (2 * MIB, MIB, UNIT)]
    taken = [call.ptr for call in calls if call.name == "mem_alloc"]
    assert [pointer.ptr for pointer in fresh] == taken

    # What is of before goes without a call, and without touching what has its place.
    with testing.call_log() as calls:
        del things, kept
        gc.collect()
    assert not [c.name for c in calls if "free" in c.name or "destroy" in c.name]
    for pointer, size in zip(fresh, (2 * MIB, MIB, UNIT), strict=True):
        assert content(pointer, size) == pattern(size)
    assert pool.used_bytes() == 3 * MIB + UNIT
    assert pool.stats()["lost_segments"] > 0
    testing.check_pool(pool)
    del pointer
    fresh.clear()
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    assert testing.ledger().allocations == 0
    assert testing.ledger().errors == before


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("faulty", [False, True])
def test_u54_after_a_reset_nothing_of_before_is_handed_out(apart, reset, faulty):
    apart(reset_under_a_pool, reset, faulty)


def reset_of_another_device():
    pools = [SingleDeviceMemoryPool()]
    with Device(1):
        pools.append(SingleDeviceMemoryPool())
    first, second = (written(pool.malloc(MIB), MIB) for pool in pools)
    Device(1).reset()
    assert content(first, MIB) == pattern(MIB)
    del first, second
    address = testing.placement(pools[0].malloc(MIB))
    assert address == (0, 0)  # it is cached still
    assert pools[0].stats()["lost_segments"] == 0
    with Device(1):
        written(pools[1].malloc(MIB), MIB)
    assert pools[1].stats()["lost_segments"] == 1
    assert testing.ledger().errors == 0


def test_u54_a_reset_is_about_its_own_device(apart):
    apart(reset_of_another_device, devices=2)


def old_pointers_are_refused(reset):
    """Their addresses are somebody else's now: no call is made with one."""
    pool, managed = MemoryPool(), MemoryPool(gpumem.malloc_managed)
    old = {
        "raw": gpumem.malloc(UNIT),
        "pooled": pool.malloc(UNIT),
        "recorded": pool.malloc(UNIT),
        "managed": gpumem.malloc_managed(UNIT),
        "pool of managed memory": managed.malloc(UNIT),
        "async": gpumem.malloc_async(UNIT),
    }
    old["recorded"].record_stream(Stream(non_blocking=True))
    RESETS[reset]()
    new = written(gpumem.malloc(64 * UNIT), 64 * UNIT)
    errors = testing.ledger().errors
    for name, pointer in old.items():
        for use in (
            lambda p: p.memset(9, UNIT),
            lambda p: p.memset_async(9, UNIT),
            lambda p: p.copy_to_host(bytearray(UNIT), UNIT),
            lambda p: p.copy_from_host_async(bytes(UNIT), UNIT),
            lambda p: p.copy_from(new, UNIT),
            lambda p: new.copy_from_async(p, UNIT),
            gpumem.IPCBufferDescriptor,
        ):
            with testing.call_log() as calls:
                with pytest.raises(RuntimeError, match="device 0 was reset"):
                    use(pointer)
            assert calls == [], name
        repr(pointer), getattr(pointer.mem, "identity", None)
        if "managed" in name:
            for tell in (lambda m: m.prefetch(None), lambda m: m.advise(1, 0)):
                with pytest.raises(RuntimeError, match="device 0 was reset"):
                    tell(pointer.mem)
        old[name] = None
    assert content(new, 64 * UNIT) == pattern(64 * UNIT)
    assert testing.ledger().errors == errors


@pytest.mark.parametrize("reset", RESETS)
def test_u54_memory_of_before_a_reset_is_used_no_more(apart, reset):
    apart(old_pointers_are_refused, reset)
