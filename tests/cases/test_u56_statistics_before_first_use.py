# SPDX-License-Identifier: MIT
"""Before the first allocation the statistics were an error or empty, and a device given
as a number was not accepted. torch#49952, torch#65793, cupy#1538,
https://github.com/pytorch/pytorch/issues/65793"""

import pytest
from casekit import UNIT

import gpumem
from gpumem import Device, MemoryPool, SingleDeviceMemoryPool

POOLS = pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
# The one number that is not about what was allocated.
NOT_ZERO = ("largest_available_block",)


def getters(pool):
    return [
        pool.used_bytes,
        pool.free_bytes,
        pool.total_bytes,
        pool.n_free_blocks,
        pool.get_limit,
    ]


def not_zero(stats):
    return [name for name, number in stats.items() if number and name not in NOT_ZERO]


def before_anything(kind):
    """The first thing that a program asks."""
    pool = getattr(gpumem, kind)()
    assert [get() for get in getters(pool)] == [0] * 5
    stats = pool.stats()
    assert not_zero(stats) == []
    names = set(stats)
    assert {"used_bytes", "peak_used_bytes", "hits", "segments"} <= names
    pool.free_all_blocks()
    pool.reset_peak_stats()
    for device in (0, Device(0), None):
        assert [get(device) for get in getters(pool)] == [0] * 5
        assert not_zero(pool.stats(device)) == []
        assert set(pool.stats(device=device)) == names
        pool.reset_peak_stats(device)
        pool.free_all_blocks(device=device)
    pool.malloc(UNIT)
    assert set(pool.stats()) == names


@POOLS
def test_u56_a_fresh_process_has_the_full_set_of_zeros(apart, kind):
    apart(before_anything, kind, devices=2)


def without_any():
    """At import no device is touched, and for a name none is needed."""
    assert gpumem.MemoryPool().malloc


def test_u56_a_pool_that_was_never_asked_needs_no_device(apart):
    apart(without_any)


@POOLS
@pytest.mark.parametrize("bad", [99, -1, -(2**40), 2**40])
def test_u56_a_device_that_is_not_there_is_a_value_error(kind, bad):
    pool = getattr(gpumem, kind)()
    for get in (*getters(pool), pool.stats, pool.reset_peak_stats):
        with pytest.raises(ValueError, match="device"):
            get(bad)
    with pytest.raises(ValueError, match="device"):
        pool.free_all_blocks(device=bad)
    assert pool.stats()["segments"] == 0


@pytest.mark.parametrize("bad", [1.0, "0", [0]])
def test_u56_what_is_no_device_is_a_type_error(pool, bad):
    for get in (*getters(pool), pool.stats):
        with pytest.raises(TypeError):
            get(bad)


@pytest.mark.two_devices
def test_u56_each_device_has_its_own_numbers():
    pool = MemoryPool()
    kept = pool.malloc(UNIT)
    with Device(1):
        also = pool.malloc(3 * UNIT)
    for current in (0, 1):
        with Device(current):
            for zero, one in ((0, 1), (Device(0), Device(1))):
                assert pool.used_bytes(zero) == UNIT
                assert pool.used_bytes(one) == 3 * UNIT
                assert pool.stats(zero)["live_blocks"] == 1
                assert pool.stats(device=one)["requested_bytes"] == 3 * UNIT
            assert pool.used_bytes() == (UNIT, 3 * UNIT)[current]
    del kept, also


@pytest.mark.two_devices
def test_u56_a_pool_of_one_device_is_asked_about_that_one_alone():
    pool = SingleDeviceMemoryPool()
    kept = pool.malloc(UNIT)
    with Device(1):
        assert pool.used_bytes() == pool.used_bytes(0) == UNIT
    with pytest.raises(ValueError, match="device"):
        pool.used_bytes(1)
    del kept
