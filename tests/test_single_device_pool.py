# SPDX-License-Identifier: MIT
"""SingleDeviceMemoryPool: bound to one device, and freeing by address."""

import sys
import weakref

import pytest

import gpumem
from gpumem import Device, SingleDeviceMemoryPool, testing

UNIT = 512


@pytest.fixture
def pool():
    pool = SingleDeviceMemoryPool()
    yield pool
    testing.check_pool(pool)


# ---- making one ----


def test_of_threads_that_initialise_one_pool_a_single_one_does(monkeypatch, in_threads):
    """Asking what a share of the device's memory comes to lets the others run."""
    monkeypatch.setenv("GPUMEM_MEMORY_LIMIT", "50%")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    limit = Device().mem_info[1] // 2

    def initialise(pool):
        try:
            pool.__init__()
        except RuntimeError as error:
            assert "once" in str(error)
            return 0
        return 1

    try:
        for _ in range(30):
            pool = SingleDeviceMemoryPool.__new__(SingleDeviceMemoryPool)
            assert sum(in_threads(4, lambda index: initialise(pool))) == 1  # noqa: B023
            assert pool.get_limit() == limit
    finally:
        sys.setswitchinterval(interval)


# ---- its device ----


@pytest.mark.two_devices
def test_a_pool_stays_on_the_device_it_was_made_on():
    with Device(1):
        pool = SingleDeviceMemoryPool()
    pointer = pool.malloc(UNIT)  # though device 0 is current
    assert pointer.device_id == pointer.mem.device_id == 1
    assert pool.malloc(0).device_id == 1
    assert pool.used_bytes() == UNIT
    assert gpumem.get_device_id() == 0
    pool.set_limit(fraction=1.0)
    assert pool.get_limit() == Device(1).mem_info[1]
    del pointer
    pool.free_all_blocks()
    assert (pool.total_bytes(), gpumem.get_device_id()) == (0, 0)


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_the_current_device_stays_when_a_request_fails():
    with Device(1):
        pool = SingleDeviceMemoryPool()
    for code in (2, 700):
        with testing.fail("mem_alloc", count=0, code=code):
            with pytest.raises((gpumem.OutOfMemoryError, gpumem.CUDARuntimeError)):
                pool.malloc(UNIT)
        assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
def test_a_base_allocator_runs_with_the_pools_device_current():
    seen = []

    def base(size):
        seen.append(gpumem.get_device_id())
        return gpumem.malloc(size)

    with Device(1):
        pool = SingleDeviceMemoryPool(base)
    pointer = pool.malloc(UNIT)
    assert (seen, pointer.device_id, gpumem.get_device_id()) == ([1], 1, 0)
    del pointer


# ---- freeing by address ----


def test_a_block_can_be_freed_by_its_address(pool):
    pointer = pool.malloc(1000)
    address = pointer.ptr
    assert pool.free(address, 1000) is None
    assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
    testing.check_pool(pool)
    again = pool.malloc(1000)
    assert again.ptr == address
    del pointer  # its block is somebody else's now
    assert pool.used_bytes() == 1024
    testing.check_pool(pool)
    again.memset(1, 1024)


def test_the_size_is_not_asked_for_and_arguments_have_names(pool):
    pointer = pool.malloc(1000)
    pool.free(ptr=pointer.ptr, size=0)
    assert pool.used_bytes() == 0


def test_only_a_live_block_of_this_pool_can_be_freed(pool):
    pointer = pool.malloc(4 * UNIT)
    address = pointer.ptr
    other = SingleDeviceMemoryPool().malloc(UNIT)
    raw = gpumem.malloc(UNIT)
    for place in (0, 1, address + 1, address + UNIT, address - UNIT, 2**64 - 1):
        with pytest.raises(RuntimeError, match="no live block"):
            pool.free(place, UNIT)
    for place in (other.ptr, raw.ptr):
        with pytest.raises(RuntimeError, match="no live block"):
            pool.free(place, UNIT)
    assert pool.used_bytes() == 4 * UNIT
    del pointer
    with pytest.raises(RuntimeError, match="no live block"):
        pool.free(address, UNIT)  # cached by now
    assert (pool.used_bytes(), pool.free_bytes()) == (0, 4 * UNIT)


def test_memory_that_was_freed_by_address_can_still_be_asked_for(pool):
    pointer = pool.malloc(3 * UNIT)
    address = pointer.ptr
    pool.free(address, 3 * UNIT)
    others = [pool.malloc(UNIT) for _ in range(3)]  # cut from what it was
    assert (pointer.mem.ptr, pointer.mem.size) == (address, 3 * UNIT)
    with pytest.raises(RuntimeError, match="given it back by its address"):
        pointer.memset(0, 1)
    del pointer
    assert pool.used_bytes() == 3 * UNIT
    assert others[0].ptr == address
    testing.check_pool(pool)


def test_freeing_twice_is_an_error_and_harmless(pool):
    first = pool.malloc(UNIT)
    pool.free(first.ptr, UNIT)
    with pytest.raises(RuntimeError):
        pool.free(first.ptr, UNIT)
    first.mem.free()
    first.mem.free()
    assert (pool.used_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (0, UNIT, 1)


def test_a_stale_handle_frees_nobodys_block(pool):
    stale = [pool.malloc(UNIT) for _ in range(10)]
    for pointer in stale:
        pool.free(pointer.ptr, UNIT)
    live = [pool.malloc(UNIT) for _ in range(10)]
    del stale
    assert pool.used_bytes() == 10 * UNIT
    assert len({pointer.ptr for pointer in live}) == 10
    for pointer in live:
        assert testing.placement(pointer)
    testing.check_pool(pool)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((1,), TypeError),
        ((1.0, 1), TypeError),
        (("1", 1), TypeError),
        ((-1, 1), OverflowError),
        ((2**64, 1), OverflowError),
        ((1, -1), OverflowError),
        ((1, 1.0), TypeError),
    ],
)
def test_bad_arguments_free_nothing(pool, arguments, error):
    pointer = pool.malloc(UNIT)
    with pytest.raises(error):
        pool.free(*arguments)
    assert pool.used_bytes() == UNIT
    del pointer


# ---- weak references ----


def test_a_pool_can_be_weakly_referenced():
    pool = SingleDeviceMemoryPool()
    reference = weakref.ref(pool)
    pointer = pool.malloc(UNIT)
    assert reference() is pool
    del pool
    assert reference() is None
    assert pointer.mem.pool() is None


def test_a_dying_pool_can_no_longer_be_reached_from_its_memory():
    pool = SingleDeviceMemoryPool()
    memory = pool.malloc(UNIT).mem
    found = []
    reference = weakref.ref(pool, lambda _: found.append(memory.pool))
    del pool
    assert reference() is None
    # A reference to the dead pool would name the next one, which takes its place.
    successors = [SingleDeviceMemoryPool() for _ in range(10)]
    assert [weak() for weak in found] == [None]
    del successors
