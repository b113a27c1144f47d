# SPDX-License-Identifier: MIT
"""cuda.core's buffers in gpumem's memory. With no GPU the resource's own work is tried,
where cuda.core is installed."""

import subprocess
import sys

import pytest

import gpumem
from gpumem import _core
from gpumem.interop._adaptor import Held

core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
adaptor = pytest.importorskip("gpumem.interop.cuda_core")

UNIT = 512
MIB = 1 << 20


class Stream:
    """As cuda.core's streams tell what they are."""

    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return 0, self.stream.ptr


@pytest.fixture
def made(pool):
    return adaptor._resource_type()(Held(_core._Outlet(pool, "cuda.core")), 0)


@pytest.fixture
def device():
    device = core.Device(0)
    device.set_current()
    return device


def test_what_a_resource_says_of_itself(made):
    assert isinstance(made, core.MemoryResource)
    assert (made.device_id, made.is_device_accessible) == (0, True)
    assert (made.is_host_accessible, made.is_managed) == (False, False)


def test_want_of_memory_is_cuda_cores_error(pool, made):
    pool.set_limit(size=UNIT)
    with pytest.raises(Exception, match="Cause: limit") as caught:
        made.allocate(MIB, stream=Stream(gpumem.Stream.null))
    assert type(caught.value).__name__ == "CUDAError"
    assert isinstance(caught.value.__cause__, gpumem.OutOfMemoryError)


@pytest.mark.sim_only
def test_a_buffer_that_cannot_be_made_goes_back(pool, made):
    with pytest.raises(Exception):  # noqa: B017 - whatever it says with no driver
        made.allocate(UNIT, stream=Stream(gpumem.Stream.null))
    assert pool.used_bytes() == 0


@pytest.mark.sim_only
def test_the_simulated_device_is_refused():
    refusals = (adaptor.enable, adaptor.resource, adaptor.using().__enter__)
    for refused in refusals:
        with pytest.raises(
            RuntimeError, match="cannot use the memory of the simulated"
        ):
            refused()
    adaptor.disable()


@pytest.mark.gpu
def test_buffers_are_in_the_pool(pool, device):
    before = device.memory_resource
    adaptor.enable(pool)
    stream = device.create_stream()
    buffer = device.allocate(1000, stream=stream)
    assert pool.stats_by_client()["cuda.core"]["requested_bytes"] == 1000
    assert buffer.device_id == 0
    other = device.create_stream()
    buffer.close(other)
    other.sync()
    assert pool.stats()["live_blocks"] == 0
    adaptor.enable()
    adaptor.disable()
    assert device.memory_resource is before


@pytest.mark.gpu
def test_in_a_with_statement(pool, device):
    before = device.memory_resource
    with adaptor.using(pool):
        buffer = device.allocate(UNIT, stream=device.default_stream)
        assert pool.used_bytes() == UNIT
    assert device.memory_resource is before
    del buffer
    device.sync()
    assert pool.used_bytes() == 0


@pytest.mark.gpu
@pytest.mark.two_devices
def test_each_device_has_its_own_resource(pool):
    device = core.Device(1)
    device.set_current()
    try:
        with adaptor.using(pool, 1):
            buffer = device.allocate(UNIT, stream=device.default_stream)
        assert pool.used_bytes(device=1) == UNIT
        buffer.close()
    finally:
        core.Device(0).set_current()


@pytest.mark.gpu
def test_the_process_exits_silently_with_live_buffers():
    code = (
        "import cuda.core, gpumem.interop.cuda_core as adaptor\n"
        "device = cuda.core.Device(0)\n"
        "device.set_current()\n"
        "adaptor.enable()\n"
        "buffer = device.allocate(1 << 20, stream=device.default_stream)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
