# SPDX-License-Identifier: MIT
"""CuPy's arrays in gpumem's memory. With no GPU the allocator is tried on stand-ins for
CuPy's objects, and on CuPy's own where it is installed."""

import ctypes
import gc
import subprocess
import sys
import threading

import pytest

import gpumem
from gpumem import _core

UNIT = 512
MIB = 1 << 20


class Memory:
    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size = ptr, size
        self.owner, self.device_id = owner, device_id


class Pointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class NoRoom(MemoryError):
    """Stands for CuPy's OutOfMemoryError."""


def refuse(error):
    raise NoRoom(error.size) from error


NAMES = b"intptr_t (void)", b"int (void)"  # kept here, for a capsule does not


def capsule_of(function, name):
    """As Cython exports it; the function must outlive it."""
    new = ctypes.pythonapi["PyCapsule_New"]
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.cast(function, ctypes.c_void_p), name, None)


class Current:
    """A current stream that is told to C code."""

    def __init__(self):
        self.handle = 0
        self.function = ctypes.PYFUNCTYPE(ctypes.c_ssize_t)(lambda: self.handle)
        self.capsule = capsule_of(self.function, NAMES[0])


@pytest.fixture
def current():
    return Current()


@pytest.fixture
def make(pool, current):
    """Makes the allocator's function over CuPy's types or what stands for them."""

    def make(memory=Memory, pointer=Pointer, refusal=refuse, pool=pool):
        outlet = _core._Outlet(pool, "cupy")
        parts = (outlet, current.capsule, memory, pointer, refusal)
        return _core._CuPyAllocator(*parts).malloc

    return make


def test_memory_is_the_pools_until_cupy_drops_it(pool, make):
    pointer = make()(1000)
    assert pointer.ptr == pointer.mem.ptr == pointer.mem.owner.ptr
    assert (pointer.mem.size, pointer.device_id) == (1024, 0)
    assert pool.stats_by_client()["cupy"]["used_bytes"] == 1024
    view = Pointer(pointer.mem, 8)
    del pointer
    assert pool.used_bytes() == 1024
    del view
    assert pool.used_bytes() == 0


def test_nothing_is_a_null_pointer(pool, make):
    pointer = make()(0)
    assert (pointer.ptr, pointer.mem.size, pool.used_bytes()) == (0, 0, 0)


def test_the_stream_is_cupys(pool, make, current):
    malloc = make()
    stream = gpumem.Stream(non_blocking=True)
    current.handle = stream.ptr
    address = malloc(UNIT).ptr
    current.handle = gpumem.Stream.null.ptr
    assert malloc(UNIT).ptr != address
    current.handle = stream.ptr
    assert malloc(UNIT).ptr == address


@pytest.mark.two_devices
def test_the_device_is_the_current_one(pool, make):
    malloc = make()
    with gpumem.Device(1):
        pointer = malloc(UNIT)
    assert pointer.device_id == pointer.mem.device_id == 1
    assert pool.used_bytes(device=1) == UNIT
    of_first = make(pool=gpumem.SingleDeviceMemoryPool())
    with gpumem.Device(1), pytest.raises(ValueError, match="on device 0, not on 1"):
        of_first(UNIT)


def test_want_of_memory_is_cupys_error(pool, make):
    pool.set_limit(size=UNIT)
    with pytest.raises(NoRoom) as caught:
        make()(MIB)
    assert caught.value.args == (MIB,)
    assert isinstance(caught.value.__cause__, gpumem.OutOfMemoryError)


def test_a_refusal_that_raises_nothing_leaves_gpumems_error(pool, make):
    pool.set_limit(size=UNIT)
    with pytest.raises(gpumem.OutOfMemoryError):
        make(refusal=lambda error: None)(MIB)


def test_other_errors_stay_as_they_are(pool, make):
    malloc = make()
    for argument, error in {-1: OverflowError, "1": TypeError, 1.5: TypeError}.items():
        with pytest.raises(error):
            malloc(argument)


@pytest.mark.parametrize("part", ["memory", "pointer"])
def test_what_cupy_refuses_goes_back(pool, make, part):
    def fails(*args):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make(**{part: fails})(UNIT)
    gc.collect()
    assert pool.used_bytes() == 0


def test_arguments(pool, current):
    outlet = _core._Outlet(pool, "cupy")
    good = [outlet, current.capsule, Memory, Pointer, refuse]
    other = capsule_of(current.function, NAMES[1])
    for place, bad, error in (
        (0, pool, TypeError),
        (1, other, ValueError),
        (1, None, ValueError),
        (2, None, TypeError),
        (3, None, TypeError),
        (4, None, TypeError),
    ):
        with pytest.raises(error):
            _core._CuPyAllocator(*good[:place], bad, *good[place + 1 :])


def test_threads_that_allocate_at_once(pool, make):
    malloc = make()

    def work():
        for n in range(200):
            kept = [malloc(UNIT + n), malloc(MIB)]
            assert kept[0].ptr != kept[1].ptr

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pool.used_bytes() == 0


# ---- CuPy itself, with no GPU ----


def test_cupys_own_objects_and_error(pool, make):
    memory = pytest.importorskip("cupy.cuda.memory", reason="CuPy is not installed")
    from gpumem.interop import cupy as adaptor

    malloc = make(memory.UnownedMemory, memory.MemoryPointer, adaptor._raise_as_cupys)
    pointer = malloc(1000)
    assert isinstance(pointer, memory.MemoryPointer)
    assert (pointer.mem.size, pointer.mem.device_id) == (1024, 0)
    del pointer
    assert pool.used_bytes() == 0
    pool.set_limit(size=UNIT)
    with pytest.raises(memory.OutOfMemoryError, match="limit set to: 512") as caught:
        malloc(MIB)
    assert "Cause: limit" in caught.value.__notes__[0]


@pytest.mark.sim_only
def test_the_simulated_device_is_refused():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    from gpumem.interop import cupy as adaptor

    before = cupy.cuda.get_allocator()
    for refused in (adaptor.enable, adaptor.allocator, adaptor.using().__enter__):
        with pytest.raises(RuntimeError, match="CuPy cannot use the memory of the sim"):
            refused()
    adaptor.disable()
    assert cupy.cuda.get_allocator() == before


# ---- on a GPU ----


@pytest.fixture
def cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    yield cupy
    gc.collect()


@pytest.fixture
def adaptor():
    from gpumem.interop import cupy as adaptor

    yield adaptor
    adaptor.disable()


@pytest.mark.gpu
def test_arrays_are_in_the_pool(cupy, adaptor, pool):
    before = cupy.cuda.get_allocator()
    adaptor.enable(pool)
    array = cupy.arange(1000, dtype=cupy.float64)
    assert pool.used_bytes() >= 8000
    assert float((array * 2).sum()) == 999000.0
    adaptor.disable()
    assert cupy.cuda.get_allocator() == before
    assert cupy.ones(10).data.mem.ptr != 0
    assert float(array.sum()) == 499500.0
    del array
    gc.collect()
    assert pool.used_bytes() == 0


@pytest.mark.gpu
def test_enabling_again_changes_the_pool_alone(cupy, adaptor, pool):
    before = cupy.cuda.get_allocator()
    adaptor.enable()
    adaptor.enable(pool)
    array = cupy.empty(100)
    assert pool.used_bytes() > 0
    del array
    cupy.cuda.set_allocator(before)
    with pytest.raises(RuntimeError, match="not gpumem's any more"):
        adaptor.disable()
    adaptor.enable(pool)
    adaptor.disable()
    assert cupy.cuda.get_allocator() == before


@pytest.mark.gpu
def test_in_a_with_statement(cupy, adaptor, pool):
    before = cupy.cuda.get_allocator()
    with adaptor.using(pool):
        array = cupy.empty(100)
        assert pool.stats_by_client()["cupy"]["live_blocks"] == 1
        with pytest.raises(ValueError):
            adaptor.enable(pool)
    assert cupy.cuda.get_allocator() == before
    del array


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["_in_c", "_in_python"])
def test_both_ways_follow_stream_and_error(cupy, adaptor, pool, way):
    malloc = getattr(adaptor, way)(_core._Outlet(pool, "cupy"))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        address = malloc(UNIT).ptr
    assert malloc(UNIT).ptr != address
    with stream:
        assert malloc(UNIT).ptr == address
    pool.set_limit(size=MIB)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match="1,048,576"):
        malloc(2 * MIB)


@pytest.mark.gpu
@pytest.mark.two_devices
def test_cupys_device_is_honoured(cupy, adaptor, pool):
    adaptor.enable(pool)
    with cupy.cuda.Device(1):
        array = cupy.zeros(100)
    assert array.device.id == 1
    assert pool.used_bytes(device=1) > 0
    del array


@pytest.mark.gpu
def test_the_process_exits_silently_with_live_arrays(cupy):
    code = (
        "import cupy, gpumem.interop.cupy as adaptor\n"
        "adaptor.enable()\n"
        "array = cupy.ones(1 << 20)\n"
        "stream = cupy.cuda.Stream(non_blocking=True)\n"
        "with stream:\n"
        "    other = array * 2\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
