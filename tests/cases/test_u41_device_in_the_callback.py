# SPDX-License-Identifier: MIT
"""The free callback ran for another device than the memory's, and memory appeared on
device 0. rmm#1405, rmm#1407, rmm#1168, https://github.com/rapidsai/rmm/issues/1405"""

import pytest
from casekit import UNIT, CFunctions

import gpumem
from gpumem import Device, MemoryPool, PythonFunctionAllocator, SingleDeviceMemoryPool

pytestmark = pytest.mark.two_devices


class Logging:
    """Notes of each call the device it was told and the one that was current."""

    def __init__(self):
        self.memories, self.calls = {}, []

    def malloc(self, size, device):
        memory = gpumem.Memory(size)
        self.memories[memory.ptr] = memory
        self.calls.append(("malloc", device, gpumem.get_device_id(), memory.device_id))
        return memory.ptr

    def free(self, ptr, device):
        memory = self.memories.pop(ptr)
        self.calls.append(("free", device, gpumem.get_device_id(), memory.device_id))

    def allocator(self, over):
        if over == "c":
            return CFunctions(self).allocator()
        return PythonFunctionAllocator(self.malloc, self.free)


OVER = pytest.mark.parametrize("over", ["c", "python"])
CURRENT = pytest.mark.parametrize("current", [0, 1])
BOTH_ON_1 = [("malloc", 1, 1, 1), ("free", 1, 1, 1)]


@OVER
@CURRENT
def test_u41_both_functions_see_the_memorys_device(over, current, unraisable):
    log = Logging()
    allocator = log.allocator(over)
    with Device(1):
        pointer = allocator.malloc(UNIT)
    assert pointer.device_id == 1
    with Device(current):
        del pointer
        assert gpumem.get_device_id() == current
    assert log.calls == BOTH_ON_1
    assert unraisable == []


@OVER
def test_u41_under_a_pool_its_cache_is_emptied_device_by_device(over, unraisable):
    log = Logging()
    pool = MemoryPool(log.allocator(over).malloc)
    with Device(1):
        pointer = pool.malloc(UNIT)
    del pointer
    pool.free_all_blocks()  # device 0's, which has nothing
    assert gpumem.get_device_id() == 0
    assert log.calls == BOTH_ON_1[:1]
    with Device(1):
        pool.free_all_blocks()
        assert gpumem.get_device_id() == 1
    assert log.calls == BOTH_ON_1
    assert unraisable == []


@OVER
@CURRENT
def test_u41_at_the_end_of_a_pool_too(over, current, unraisable):
    log = Logging()
    pool = MemoryPool(log.allocator(over).malloc)
    with Device(1):
        pool.malloc(UNIT)
        live = pool.malloc(2 * UNIT)
    with Device(current):
        del pool
        assert log.calls == [BOTH_ON_1[0]] * 2 + [BOTH_ON_1[1]]
        del live
        assert gpumem.get_device_id() == current
    assert log.calls == [BOTH_ON_1[0]] * 2 + [BOTH_ON_1[1]] * 2
    assert unraisable == []


@OVER
@CURRENT
def test_u41_a_pool_of_one_device_calls_them_there(over, current, unraisable):
    log = Logging()
    with Device(1):
        pool = SingleDeviceMemoryPool(log.allocator(over).malloc)
    with Device(current):
        pool.malloc(UNIT)
        pool.free_all_blocks()
        assert gpumem.get_device_id() == current
    assert log.calls == BOTH_ON_1
    assert unraisable == []


def test_u41_a_function_that_switches_devices_does_not_switch_the_callers():
    def malloc(size, device):
        memories.append(gpumem.Memory(size))
        Device(1 - device).use()
        return memories[-1].ptr

    def free(ptr, device):
        Device(1 - device).use()
        memories.pop()

    memories = []
    pool = MemoryPool(PythonFunctionAllocator(malloc, free).malloc)
    for current in (0, 1):
        with Device(current):
            pool.malloc(UNIT)
            assert gpumem.get_device_id() == current
            pool.free_all_blocks()
            assert gpumem.get_device_id() == current
    assert memories == []
