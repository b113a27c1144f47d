# SPDX-License-Identifier: MIT
"""What adaptors take memory from: a device and a stream of the caller's choice, on a
client's account."""

import gc

import pytest

import gpumem
from gpumem import _core, testing
from gpumem.interop._adaptor import Held, load, refuse_simulated

UNIT = 512
NULL, PER_THREAD = gpumem.Stream.null.ptr, gpumem.Stream.ptds.ptr


@pytest.fixture
def outlet(pool):
    return _core._Outlet(pool, "guest")


def used_by(client, pool):
    return pool.stats_by_client().get(client, {}).get("used_bytes", 0)


def test_memory_is_the_pools_and_the_clients(pool, outlet):
    assert outlet.pool is pool
    pointer = outlet.take(1000, 0, NULL)
    mine = pool.malloc(UNIT)
    assert pointer.mem.size == 1024
    assert pool.used_bytes() == 1024 + UNIT
    assert used_by("guest", pool) == 1024
    assert used_by("gpumem", pool) == UNIT
    del pointer, mine
    assert pool.used_bytes() == used_by("guest", pool) == 0


def test_the_account_is_the_outlets_in_a_scope_too(pool, outlet):
    with gpumem.client("scope"):
        pointer = outlet.take(1, 0, NULL)
        assert used_by("guest", pool) == UNIT
        assert used_by("scope", pool) == 0
    del pointer


def test_none_is_the_default_pool():
    outlet = _core._Outlet(None, "guest")
    assert outlet.pool is gpumem.get_default_memory_pool()


@pytest.mark.two_devices
def test_the_device_is_the_callers_and_stays_current(pool, outlet):
    pointer = outlet.take(1, 1, NULL)
    assert pointer.device_id == 1
    assert gpumem.get_device_id() == 0
    assert [pool.used_bytes(device=device) for device in (0, 1)] == [0, UNIT]


@pytest.mark.two_devices
def test_a_pool_of_another_device_is_refused():
    with gpumem.Device(1):
        outlet = _core._Outlet(gpumem.SingleDeviceMemoryPool(), "guest")
    assert outlet.take(1, 1, NULL).device_id == 1
    with pytest.raises(ValueError, match="the pool is on device 1, not on 0"):
        outlet.take(1, 0, NULL)


def test_memory_is_the_streams(pool, outlet):
    """What one stream gave back, it alone is given at once."""
    stream = gpumem.Stream(non_blocking=True)
    first = outlet.take(UNIT, 0, stream.ptr)
    address = first.ptr
    del first
    assert outlet.take(UNIT, 0, NULL).ptr != address
    assert outlet.take(UNIT, 0, PER_THREAD).ptr != address
    with stream:
        assert pool.malloc(UNIT).ptr == address
    again = outlet.take(UNIT, 0, stream.ptr)
    assert again.ptr == address


@pytest.mark.sim_only
def test_the_driver_is_asked_which_stream_it_is_but_for_known_ones(pool, outlet):
    stream = gpumem.Stream(non_blocking=True)

    def asked(handle):
        outlet.take(UNIT, 0, handle)
        start = _core._sim_log_start()
        outlet.take(UNIT, 0, handle)
        return [call[0] for call in _core._sim_log_stop(start)].count("stream_id")

    assert asked(NULL) == 0
    assert asked(stream.ptr) == 1
    assert asked(PER_THREAD) == 1
    with stream:
        assert asked(stream.ptr) == 0
        assert asked(PER_THREAD) == 1


def test_a_stream_that_is_recorded_has_to_be_current(pool, outlet):
    stream = gpumem.Stream(non_blocking=True)
    outlet.take(UNIT, 0, stream.ptr)
    stream.begin_capture()
    with pytest.raises(RuntimeError, match="record"):
        outlet.take(UNIT, 0, stream.ptr)
    with stream:
        taken = outlet.take(UNIT, 0, stream.ptr)
    assert taken.mem.size == UNIT
    del taken
    stream.end_capture()


@pytest.mark.misuse
@pytest.mark.sim_only  # the driver reads what a handle points to, and faults
def test_a_handle_of_no_stream_is_refused(pool, outlet):
    stream = gpumem.Stream()
    handle = stream.ptr
    del stream
    with pytest.raises(gpumem.CUDARuntimeError):
        outlet.take(UNIT, 0, handle)
    assert pool.used_bytes() == 0


def test_arguments(pool, outlet):
    assert outlet.take(0, 0, NULL).ptr == 0
    for arguments, error in {
        (): TypeError,
        (1, 0): TypeError,
        (1.0, 0, 0): TypeError,
        (-1, 0, 0): OverflowError,
        (1, 99, 0): ValueError,
        (1, 0, None): TypeError,
    }.items():
        with pytest.raises(error):
            outlet.take(*arguments)
    with pytest.raises(TypeError, match="pool must be a MemoryPool"):
        _core._Outlet(object(), "guest")
    for name, error in {"": ValueError, "x" * 256: ValueError, 7: TypeError}.items():
        with pytest.raises(error):
            _core._Outlet(pool, name)


def test_want_of_memory_is_gpumems_own_error(pool, outlet):
    pool.set_limit(size=UNIT)
    with pytest.raises(gpumem.OutOfMemoryError) as caught:
        outlet.take(2 * UNIT, 0, NULL)
    assert (caught.value.size, caught.value.cause) == (2 * UNIT, "limit")
    assert used_by("guest", pool) == 0


def test_hooks_see_it(pool, outlet):
    class Hook(gpumem.MemoryHook):
        seen = ()

        def malloc_postprocess(self, **event):
            self.seen = (event["size"], event["mem_size"], event["device_id"])

    with Hook() as hook:
        outlet.take(700, 0, NULL)
    assert hook.seen == (700, 1024, 0)


def test_memory_outlives_outlet_and_pool():
    outlet = _core._Outlet(gpumem.MemoryPool(), "guest")
    pointer = outlet.take(UNIT, 0, NULL)
    del outlet
    gc.collect()
    pointer.memset(1, UNIT)
    assert pointer.mem.pool is not None


# ---- memory that is given back by its address ----


def test_held_memory_goes_back_by_its_address(pool, outlet):
    held = Held(outlet)
    address = held.take(700, 0, NULL)
    assert (held.take(0, 0, NULL), len(held)) == (0, 1)
    assert pool.used_bytes() == 1024
    held.give(address)
    assert pool.used_bytes() == 0
    held.give(address)  # what is not held is nobody's business
    held.give(0)
    held.take(UNIT, 0, NULL)
    held.forget()
    assert (pool.used_bytes(), len(held)) == (0, 0)


@pytest.mark.sim_only
def test_memory_given_back_on_another_stream_waits_for_it(pool, outlet):
    held = Held(outlet)
    other = gpumem.Stream(non_blocking=True)
    address = held.take(UNIT, 0, NULL)
    scratch = pool.malloc(UNIT)
    with testing.hold_stream(other):
        scratch.memset_async(1, UNIT, other)
        held.give(address, other)
        assert pool.stats()["pending_bytes"] == UNIT
        assert outlet.take(UNIT, 0, NULL).ptr != address
    other.synchronize()
    assert pool.stats()["pending_bytes"] == 0


# ---- what all adaptors refuse ----


def test_a_library_that_is_missing_is_named():
    with pytest.raises(ModuleNotFoundError, match="this needs Nothing, which cannot"):
        load("gpumem_has_no_such_library", "Nothing")


@pytest.mark.sim_only
def test_the_simulated_device_is_refused():
    with pytest.raises(RuntimeError, match="Nothing cannot use the memory of the sim"):
        refuse_simulated("Nothing")
