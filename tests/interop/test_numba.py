# SPDX-License-Identifier: MIT
"""Numba's CUDA arrays in gpumem's memory. A context keeps its memory manager, so each
test on a GPU is a program of its own."""

import ctypes
import subprocess
import sys

import pytest

import gpumem
from gpumem import testing
from gpumem.interop import numba as adaptor

UNIT = 512
NULL = gpumem.Stream.null.ptr


def run(code):
    """What the program printed; it must end well and in silence."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


# ---- with no GPU and no Numba ----


def test_memory_is_the_pools(pool):
    memory = adaptor._Memory(pool)
    address = memory.take(1000, 0, NULL)
    assert pool.stats_by_client()["numba"]["used_bytes"] == 1024
    memory.give(address, 0)
    assert (pool.used_bytes(), len(memory)) == (0, 0)
    memory.take(UNIT, 0, NULL)
    memory.forget()
    assert pool.used_bytes() == 0


@pytest.mark.sim_only
def test_memory_goes_back_in_the_order_of_blocking_streams(pool):
    """The next holder's work on another stream comes after the last one's."""
    memory = adaptor._Memory(pool)
    first, second = gpumem.Stream(), gpumem.Stream()
    address = memory.take(UNIT, 0, NULL)
    used = gpumem.MemoryPointer(gpumem.UnownedMemory(address, UNIT, None, 0), 0)
    used.memset_async(1, UNIT, first)
    memory.give(address, 0)
    assert memory.take(UNIT, 0, NULL) == address
    used.memset_async(2, UNIT, second)
    second.synchronize()
    first.synchronize()
    assert ctypes.string_at(address, UNIT) == b"\2" * UNIT
    memory.forget()


@pytest.mark.sim_only
def test_memory_is_kept_while_the_driver_refuses_to_order(pool, monkeypatch):
    memory = adaptor._Memory(pool)
    address = memory.take(UNIT, 0, NULL)

    def refuse(device):
        raise gpumem.CUDARuntimeError(906)

    with monkeypatch.context() as patch:
        patch.setattr(adaptor, "_order", refuse)
        memory.give(address, 0)
        assert memory.take(UNIT, 0, NULL) != address
        assert pool.used_bytes() == 2 * UNIT
    assert memory.take(2 * UNIT, 0, NULL) != address  # a request tries again
    assert len(memory) == 2
    memory.forget()


@pytest.mark.two_devices
def test_ordering_leaves_the_current_device(pool):
    memory = adaptor._Memory(pool)
    memory.give(memory.take(UNIT, 1, NULL), 1)
    assert gpumem.get_device_id() == 0
    assert testing.last_error() == 0


# ---- with Numba and no GPU ----


@pytest.mark.sim_only
def test_the_simulated_device_is_refused():
    pytest.importorskip("numba.cuda", reason="Numba is not installed")
    with pytest.raises(RuntimeError, match="Numba cannot use the memory of the sim"):
        adaptor.enable()


def test_the_plugin_is_what_numba_asks_for():
    cuda = pytest.importorskip("numba.cuda", reason="Numba is not installed")
    plugin = adaptor._numba_memory_manager
    assert issubclass(plugin, cuda.BaseCUDAMemoryManager)
    assert plugin(context=None).interface_version == 1


# ---- on a GPU ----

ARRAYS = """
import gc, numpy, numba.cuda, gpumem
import gpumem.interop.numba as adaptor
pool = gpumem.MemoryPool()
adaptor.enable(pool)
array = numba.cuda.to_device(numpy.arange(1000))
print(pool.stats_by_client()["numba"]["requested_bytes"], array.copy_to_host().sum())
del array
gc.collect()
print(pool.used_bytes())
pool.set_limit(size=1 << 20)
try:
    numba.cuda.device_array(1 << 22, numpy.uint8)
except numba.cuda.cudadrv.driver.CudaAPIError as error:
    print(error.code, "Cause: limit" in error.msg)
try:
    adaptor.enable(pool)
except RuntimeError as error:
    print(error)
print(numba.cuda.current_context().get_memory_info().total > 1 << 30)
live = numba.cuda.device_array(1000)
"""


@pytest.mark.gpu
def test_arrays_are_in_the_pool():
    pytest.importorskip("numba.cuda", reason="Numba is not installed")
    first, used, error, again, info = run(ARRAYS)
    assert first == "8000 499500"
    assert used == "0"
    assert error == "2 True"
    assert again.startswith("Numba uses a device already")
    assert info == "True"


@pytest.mark.gpu
def test_disabled_it_is_numbas_own_again():
    pytest.importorskip("numba.cuda", reason="Numba is not installed")
    code = (
        "import numba.cuda, gpumem\n"
        "import gpumem.interop.numba as adaptor\n"
        "adaptor.enable()\n"
        "adaptor.disable()\n"
        "array = numba.cuda.device_array(1000)\n"
        "print(gpumem.get_default_memory_pool().used_bytes())\n"
    )
    assert run(code) == ["0"]


@pytest.mark.gpu
@pytest.mark.two_devices
def test_numbas_device_is_honoured():
    pytest.importorskip("numba.cuda", reason="Numba is not installed")
    code = (
        "import gc, numba.cuda, gpumem\n"
        "import gpumem.interop.numba as adaptor\n"
        "pool = gpumem.MemoryPool()\n"
        "adaptor.enable(pool)\n"
        "with numba.cuda.gpus[1]:\n"
        "    array = numba.cuda.device_array(1000, 'u1')\n"
        "    print([pool.used_bytes(device=number) for number in (0, 1)])\n"
        "del array\n"
        "gc.collect()\n"
        "print([pool.used_bytes(device=number) for number in (0, 1)])\n"
    )
    assert run(code) == ["[0, 1024]", "[0, 0]"]
