# SPDX-License-Identifier: MIT
"""What one pool had cached made a request of another pool on the same device fail. Here
pools give back for each other. torch#159674,
https://github.com/pytorch/pytorch/issues/159674"""

from casekit import MIB, in_a_cycle

import gpumem
from gpumem import (
    Device,
    MemoryAsyncPool,
    MemoryPool,
    OutOfMemoryError,
    SingleDeviceMemoryPool,
    Stream,
)


def the_other_gives_back():
    first, second = MemoryPool(), SingleDeviceMemoryPool()
    first.malloc(60 * MIB)
    pointer = second.malloc(70 * MIB)
    assert (first.total_bytes(), second.total_bytes()) == (0, 70 * MIB)
    del pointer
    second.free_all_blocks()
    kept = first.malloc(20 * MIB)
    first.malloc(30 * MIB)
    pointer = second.malloc(75 * MIB)
    assert (first.used_bytes(), first.free_bytes()) == (20 * MIB, 0)
    kept.memset(1, 20 * MIB)
    del pointer


def what_is_in_use_stays():
    first, second = MemoryPool(), MemoryPool()
    kept = first.malloc(60 * MIB)
    try:
        second.malloc(70 * MIB)
    except OutOfMemoryError:
        pass
    else:
        raise AssertionError("more than the device has")
    assert first.used_bytes() == 60 * MIB
    kept.memset(1, 60 * MIB)


def a_pool_that_is_garbage_gives_back():
    first, second = MemoryPool(), MemoryPool()
    in_a_cycle([first, first.malloc(60 * MIB)])
    del first
    assert second.malloc(70 * MIB).mem.size == 70 * MIB


def another_device_is_left_alone():
    first, second = MemoryPool(), MemoryPool()
    with Device(1):
        first.malloc(60 * MIB)
    kept = second.malloc(60 * MIB)
    try:
        second.malloc(60 * MIB)
    except OutOfMemoryError:
        pass
    with Device(1):
        assert first.free_bytes() == 60 * MIB
    assert gpumem.get_device_id() == 0
    del kept


def the_drivers_pool_gives_back():
    """What was freed in stream order is idle once its stream is done."""
    first, second = MemoryAsyncPool(), MemoryPool()
    kept = first.malloc(MIB)
    stream = Stream(non_blocking=True)
    with stream:
        pointer = first.malloc(60 * MIB)
        pointer.memset_async(1, 60 * MIB)
        del pointer
    pointer = second.malloc(70 * MIB)
    assert (second.total_bytes(), second.stats()["retries"]) == (70 * MIB, 1)
    assert (first.used_bytes(), first.free_bytes()) == (MIB, 0)
    kept.memset(1, MIB)
    del pointer


def the_drivers_pool_keeps_what_a_limit_forbids():
    first, second = MemoryAsyncPool(), MemoryPool()
    first.malloc(60 * MIB)
    second.set_limit(size=MIB)
    try:
        kept = [second.malloc(MIB), second.malloc(MIB)]
    except OutOfMemoryError as error:
        assert error.cause == "limit"
    else:
        raise AssertionError(kept)
    assert first.free_bytes() == 60 * MIB


def a_recording_goes_on():
    first, second = MemoryAsyncPool(), MemoryPool()
    first.malloc(60 * MIB)
    stream = Stream(non_blocking=True)
    stream.begin_capture()
    try:
        second.malloc(70 * MIB)
    except OutOfMemoryError as error:
        assert error.outside_bytes is None  # the device is not asked
    else:
        raise AssertionError("more than the device has")
    assert first.free_bytes() == 60 * MIB
    stream.end_capture()
    assert second.malloc(70 * MIB).mem.size == 70 * MIB


def test_u07_the_other_pools_of_the_device_give_back(apart):
    apart(the_other_gives_back, memory="100MiB")


def test_u07_only_what_they_do_not_use(apart):
    apart(what_is_in_use_stays, memory="100MiB")


def test_u07_a_forgotten_pool_gives_all_back(apart):
    apart(a_pool_that_is_garbage_gives_back, memory="100MiB")


def test_u07_only_those_of_that_device(apart):
    apart(another_device_is_left_alone, memory="100MiB", devices=2)


def test_u07_the_drivers_pool_gives_back(apart):
    apart(the_drivers_pool_gives_back, memory="100MiB")


def test_u07_not_for_a_limit(apart):
    apart(the_drivers_pool_keeps_what_a_limit_forbids, memory="100MiB")


def test_u07_not_while_a_graph_is_being_recorded(apart):
    apart(a_recording_goes_on, memory="100MiB")
