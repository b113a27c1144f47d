# SPDX-License-Identifier: MIT
"""Emptying the cache gave a block of one device back while another device's queued copy
was still to write to it. torch#196257,
https://github.com/pytorch/pytorch/issues/196257"""

import pytest
from casekit import MIB, content, device_calls, kept_busy, on_sim, pattern, written

import gpumem
from gpumem import Device, MemoryPool, Stream, testing

pytestmark = pytest.mark.two_devices

BOTH = pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])


def queued_copy(pool, here, there):
    """A copy from `here` into the pool's memory on `there`, behind other work of a
    stream of `here`. Returns (target, stream, what must live until it is done)."""
    with Device(here):
        source = written(gpumem.malloc(MIB), MIB)
        stream = Stream(non_blocking=True)
        busy = kept_busy(stream)
    with Device(there):
        target = pool.malloc(MIB)
        target.memset(0, MIB)
    with Device(here):
        target.copy_from_device_async(source, MIB, stream)
    return target, stream, (source, busy)


@BOTH
@pytest.mark.parametrize("current", [0, 1])
def test_u32_the_cache_gives_back_after_the_last_write(pool, here, there, current):
    target, stream, kept = queued_copy(pool, here, there)
    address = target.ptr
    errors = testing.ledger().errors if on_sim() else 0
    del target
    with Device(there):
        with device_calls() as calls:
            pool.free_all_blocks()
        released = [c.ptr for c in calls if c.name == "mem_free"]
        # Either it waited for the copy, or the block is still there.
        if pool.total_bytes():
            assert address not in released
        else:
            assert stream.done
    with Device(current):
        stream.synchronize()
    with Device(there):
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
    assert testing.last_error() == 0
    if on_sim():
        assert testing.ledger().errors == errors
    del kept


@BOTH
def test_u32_its_next_owner_is_not_written_to(pool, here, there):
    target, stream, kept = queued_copy(pool, here, there)
    del target
    with Device(there):
        heir = written(pool.malloc(MIB), MIB, seed=9)
    stream.synchronize()
    assert content(heir, MIB) == pattern(MIB, seed=9)
    del kept


@BOTH
def test_u32_the_end_of_the_pool_waits_too(here, there):
    pool = MemoryPool()
    target, stream, kept = queued_copy(pool, here, there)
    errors = testing.ledger().errors if on_sim() else 0
    with Device(there):
        del target, pool
    stream.synchronize()
    Device(there).synchronize()
    assert testing.last_error() == 0
    if on_sim():
        assert testing.ledger().errors == errors
    del kept


@BOTH
def test_u32_a_kept_target_has_the_bytes(pool, here, there):
    target, stream, kept = queued_copy(pool, here, there)
    stream.synchronize()
    assert content(target, MIB) == pattern(MIB)
    del kept
