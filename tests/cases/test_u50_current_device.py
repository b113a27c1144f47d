# SPDX-License-Identifier: MIT
"""A pool of device 0 was used, or its memory freed, while device 1 was current, and
went to the wrong one. rmm#1523, dmlc/xgboost#4194, cupy#6590,
https://github.com/rapidsai/rmm/issues/1523"""

import pytest
from casekit import MIB, UNIT, content, device_calls, on_sim, pattern, written

import gpumem
from gpumem import Device, MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool, Stream

pytestmark = pytest.mark.two_devices

BOTH = pytest.mark.parametrize(("home", "away"), [(0, 1), (1, 0)])


def made_on(device):
    with Device(device):
        return SingleDeviceMemoryPool()


@BOTH
def test_u50_a_pool_of_one_device_stays_there(home, away):
    pool = made_on(home)
    with Device(away):
        with device_calls() as calls:
            pointer = pool.malloc(MIB)
        assert gpumem.get_device_id() == away
        assert pointer.device_id == pointer.mem.device_id == int(pointer.device) == home
        if on_sim():
            taken = [call for call in calls if call.name == "mem_alloc"]
            assert [(call.device, call.ptr) for call in taken] == [(home, pointer.ptr)]
        assert content(written(pointer, MIB), MIB) == pattern(MIB)
        assert gpumem.get_device_id() == away


@BOTH
@pytest.mark.parametrize("at_free", [0, 1])
def test_u50_its_memory_goes_back_there(home, away, at_free):
    pool = made_on(home)
    with Device(away):
        pointer = pool.malloc(MIB)
    address = pointer.ptr
    with Device(at_free), device_calls() as calls:
        del pointer
        assert (pool.used_bytes(), pool.free_bytes()) == (0, MIB)
        pool.free_all_blocks()
        assert gpumem.get_device_id() == at_free
    assert pool.total_bytes() == 0
    if on_sim():
        freed = [call for call in calls if call.name == "mem_free"]
        assert [(call.device, call.ptr, call.status) for call in freed] == [
            (home, address, 0)
        ]


@BOTH
@pytest.mark.parametrize("current", [0, 1])
def test_u50_all_that_is_asked_of_it_is_about_its_device(home, away, current):
    pool = made_on(home)
    pool.malloc(2 * UNIT)
    kept = pool.malloc(UNIT)
    with Device(current):
        pool.set_limit(fraction=0.5)
        with Device(home):
            _, total = Device(home).mem_info
        assert pool.get_limit() == total // 2
        pool.set_limit(size=4 * UNIT)
        numbers = pool.used_bytes(), pool.free_bytes(), pool.total_bytes()
        assert numbers == (UNIT, UNIT, 2 * UNIT)
        assert pool.n_free_blocks() == 1
        assert pool.stats()["limit_bytes"] == 4 * UNIT
        pool.free_all_blocks()
        assert pool.total_bytes() == 2 * UNIT  # the live block's segment
        assert gpumem.get_device_id() == current
    del kept


@pytest.mark.parametrize("current", [0, 1])
def test_u50_a_pool_of_all_devices_is_about_the_current_one(current):
    pool = MemoryPool()
    blocks = []
    for device in (0, 1):
        with Device(device):
            pool.set_limit(size=(device + 1) * MIB)
            blocks.append(pool.malloc((device + 1) * UNIT))
            assert blocks[-1].device_id == device
    with Device(current):
        assert pool.get_limit() == (current + 1) * MIB
        assert pool.used_bytes() == (current + 1) * UNIT
        blocks.clear()  # each goes back to its own
        assert (pool.used_bytes(), pool.free_bytes()) == (0, (current + 1) * UNIT)
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
    with Device(1 - current):
        assert pool.total_bytes() == (2 - current) * UNIT


@BOTH
def test_u50_no_call_changes_the_current_device(home, away):
    """Also where it fails."""
    pool = made_on(home)
    both = MemoryPool()
    with Device(home):
        source = both.malloc(UNIT)
        stream = Stream()
    with Device(away):
        target = both.malloc(UNIT)
        calls = [
            lambda: pool.malloc(UNIT),
            lambda: pool.malloc(1 << 62),
            lambda: pool.free(1, UNIT),
            lambda: pool.set_limit(size=UNIT, fraction=0.5),
            lambda: both.malloc(1 << 62),
            lambda: gpumem.malloc(1 << 62),
            lambda: target.copy_from_device(source, UNIT),
            lambda: target.copy_from(source, UNIT + 1),
            lambda: source.memset(1, UNIT),
            lambda: source.memset_async(1, UNIT, stream),
            lambda: stream.synchronize(),
            lambda: Device(home).synchronize(),
            lambda: Device(home).mem_info,
            lambda: Device(99),
            lambda: both.stats(),
            lambda: pool.free_all_blocks(stream),
        ]
        failed = 0
        for call in calls:
            try:
                call()
            except (OutOfMemoryError, RuntimeError, ValueError):
                failed += 1
            assert gpumem.get_device_id() == away
        assert 5 <= failed < len(calls)
    assert gpumem.get_device_id() == 0


@BOTH
def test_u50_under_a_base_allocator_too(home, away):
    with Device(home):
        pool = SingleDeviceMemoryPool(gpumem.malloc)
    with Device(away):
        pointer = pool.malloc(UNIT)
        assert pointer.device_id == home
        assert gpumem.get_device_id() == away
