# SPDX-License-Identifier: MIT
"""RMM's buffers in gpumem's memory. RMM's resource is tried without a GPU too, where
RMM is installed."""

import gc
import subprocess
import sys

import pytest

import gpumem
from gpumem import _core
from gpumem.interop._adaptor import Held

rmm = pytest.importorskip("rmm", reason="RMM is not installed")
adaptor = pytest.importorskip("gpumem.interop.rmm")

UNIT = 512
MIB = 1 << 20


@pytest.fixture
def enabled(pool):
    before = rmm.mr.get_current_device_resource()
    adaptor.enable(pool)
    yield pool
    gc.collect()
    adaptor.disable()
    assert rmm.mr.get_current_device_resource() is before


def test_rmm_takes_and_gives_back_the_pools_memory(pool):
    resource = adaptor._resource(Held(_core._Outlet(pool, "rmm")))
    address = resource.allocate(1000)
    assert pool.stats_by_client()["rmm"]["requested_bytes"] >= 1000
    assert address % UNIT == 0
    resource.deallocate(address, 1000)
    assert pool.used_bytes() == 0


def test_want_of_memory_is_a_memory_error_with_gpumems_text(pool):
    resource = adaptor._resource(Held(_core._Outlet(pool, "rmm")))
    pool.set_limit(size=UNIT)
    with pytest.raises(MemoryError, match="Cause: limit"):
        resource.allocate(MIB)


@pytest.mark.sim_only
def test_the_simulated_device_is_refused():
    for refused in (adaptor.enable, adaptor.resource, adaptor.using().__enter__):
        with pytest.raises(RuntimeError, match="RMM cannot use the memory of the sim"):
            refused()
    adaptor.disable()


@pytest.mark.gpu
def test_buffers_are_in_the_pool(enabled):
    buffer = rmm.DeviceBuffer.to_device(bytes(range(200)))
    assert enabled.stats_by_client()["rmm"]["requested_bytes"] >= 200
    assert buffer.tobytes() == bytes(range(200))
    del buffer
    assert enabled.stats()["live_blocks"] == 0


@pytest.mark.gpu
def test_in_a_with_statement(pool):
    before = rmm.mr.get_current_device_resource()
    with adaptor.using(pool):
        buffer = rmm.DeviceBuffer(size=UNIT)
        assert pool.used_bytes() == UNIT
    assert rmm.mr.get_current_device_resource() is before
    del buffer
    assert pool.used_bytes() == 0


@pytest.mark.gpu
def test_the_process_exits_silently_with_live_buffers():
    code = (
        "import rmm, gpumem.interop.rmm as adaptor\n"
        "adaptor.enable()\n"
        "buffer = rmm.DeviceBuffer(size=1 << 20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.gpu
@pytest.mark.two_devices
def test_each_device_has_its_own_resource(pool):
    with gpumem.Device(1):
        with adaptor.using(pool):
            buffer = rmm.DeviceBuffer(size=UNIT)
            assert pool.used_bytes(device=1) == UNIT
        del buffer
