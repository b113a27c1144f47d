# SPDX-License-Identifier: MIT
"""The last reference was dropped by a thread that had never used the device, or had
another one current: the free failed, or the memory was lost. cudapy#2497,
JuliaGPU/CUDA.jl#737, https://github.com/NVIDIA/cuda-python/issues/2497"""

import gc

import pytest
from casekit import MIB, Functions, collector_off, device_calls, in_a_cycle, on_sim

import gpumem
from gpumem import (
    Device,
    MemoryPool,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
    testing,
)

pytestmark = [pytest.mark.two_devices, pytest.mark.timeout(60)]


def held_by(pool):
    with Device(1):
        return pool.used_bytes(), pool.free_bytes()


def dropped(box):
    box.clear()


def collected(box):
    in_a_cycle(box.pop())
    gc.collect()


ENDS = pytest.mark.parametrize("end", [dropped, collected])
HERE = pytest.mark.parametrize("current", [None, 0, 1])


def in_a_fresh_thread(in_threads, end, box, current):
    """Ends what is in `box`; returns the device that was current before and after."""

    def work(index):
        if current is not None:
            Device(current).use()
        before = gpumem.get_device_id()
        end(box)
        return before, gpumem.get_device_id()

    return in_threads(1, work)[0]


@ENDS
@HERE
def test_u24_pooled_memory_goes_back_to_its_device(
    in_threads, unraisable, end, current
):
    pool = MemoryPool()
    with Device(1):
        box = [pool.malloc(MIB)]
    assert held_by(pool) == (MIB, 0)
    with collector_off(), device_calls() as calls:
        devices = in_a_fresh_thread(in_threads, end, box, current)
    assert devices == (current or 0, current or 0)
    assert held_by(pool) == (0, MIB)
    assert [call.name for call in calls if call.name.startswith("mem_")] == []
    with Device(1):
        assert pool.malloc(MIB).device_id == 1
        testing.check_pool(pool)
    assert pool.total_bytes() == 0  # on device 0
    assert unraisable == []


@ENDS
@HERE
@pytest.mark.parametrize("make", [gpumem.malloc, gpumem.malloc_managed])
def test_u24_raw_memory_goes_back_to_its_device(
    in_threads, unraisable, end, current, make
):
    with Device(1):
        pointer = make(MIB)
        free_before, _ = Device(1).mem_info
    address, box = pointer.ptr, [pointer]
    del pointer
    with collector_off(), device_calls() as calls:
        devices = in_a_fresh_thread(in_threads, end, box, current)
    assert devices == (current or 0, current or 0)
    if on_sim():
        frees = [call for call in calls if call.name == "mem_free"]
        assert [(call.device, call.ptr, call.status) for call in frees] == [
            (1, address, 0)
        ]
    elif make is gpumem.malloc:
        assert Device(1).mem_info[0] >= free_before
    assert unraisable == []


@ENDS
@HERE
def test_u24_so_does_that_of_the_programs_functions(
    in_threads, unraisable, end, current
):
    functions = Functions()
    allocator = PythonFunctionAllocator(functions.malloc, functions.free)
    with Device(1):
        box = [allocator.malloc(MIB)]
    with collector_off():
        devices = in_a_fresh_thread(in_threads, end, box, current)
    assert devices == (current or 0, current or 0)
    assert [device for _, device in functions.freed] == [1]
    assert functions.all_came_back_once()
    assert unraisable == []


@ENDS
@HERE
def test_u24_a_whole_pool_ends_on_its_device(in_threads, unraisable, end, current):
    with Device(1):
        pool = SingleDeviceMemoryPool()
        box = [[pool, pool.malloc(MIB), pool.malloc(2 * MIB)]]
        del pool
    with collector_off(), device_calls() as calls:
        devices = in_a_fresh_thread(in_threads, end, box, current)
    assert devices == (current or 0, current or 0)
    if on_sim():
        frees = [call for call in calls if call.name == "mem_free"]
        assert [(call.device, call.status) for call in frees] == [(1, 0)] * 2
    assert unraisable == []
