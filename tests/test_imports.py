# SPDX-License-Identifier: MIT
"""from_dlpack and from_cuda_array_interface: memory of other libraries."""

import ctypes
import gc
import weakref

import pytest

import gpumem
from dlpack_tensors import (
    CPU,
    CUDA,
    CUDA_HOST,
    FLOAT,
    LEGACY,
    READ_ONLY,
    SUBBYTE_PADDED,
    VERSIONED,
    Exporter,
)
from gpumem import Stream, UnownedMemory, testing

SIZE = 4096

pytestmark = pytest.mark.sim_only  # a GPU's arrays come from libraries for it


class Array:
    """Something with an interface: of `memory`, changed by keywords."""

    def __init__(self, memory, **changes):
        self.memory = memory
        interface = {
            "shape": (memory.size,),
            "typestr": "|u1",
            "data": (memory.ptr, False),
            "version": 3,
        }
        self.__cuda_array_interface__ = {**interface, **changes}


@pytest.fixture
def memory():
    return gpumem.Memory(SIZE)


# ---- DLPack ----


@pytest.mark.parametrize("name", [LEGACY, VERSIONED])
def test_the_pointer_is_to_the_arrays_bytes(memory, name):
    array = Exporter(memory.ptr, (8, 16), type=(FLOAT, 32, 1), offset=64, name=name)
    pointer = gpumem.from_dlpack(array)
    assert pointer.ptr == memory.ptr + 64
    assert (pointer.mem.size, pointer.device_id) == (8 * 16 * 4, 0)
    assert type(pointer.mem) is UnownedMemory
    assert array.asked == [{"max_version": (1, 1)}]
    assert array.deleted == 0
    pointer.memset(7, 512)
    assert ctypes.string_at(memory.ptr + 64, 512) == b"\7" * 512
    more = pointer + 1
    del pointer
    assert array.deleted == 0
    del more
    assert array.deleted == 1


def test_numpy_arrays_are_taken_in():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(100, dtype=numpy.int32)
    pointer = gpumem.from_dlpack(array)
    assert (pointer.ptr, pointer.mem.size) == (array.ctypes.data, 400)
    alive = weakref.ref(array)
    del array
    assert alive() is not None
    back = bytearray(8)
    pointer.copy_to_host(back, 8)
    assert back == bytes([0, 0, 0, 0, 1, 0, 0, 0])
    del pointer
    assert alive() is None


def test_an_exporter_of_before_versions_is_asked_again(memory):
    array = Exporter(memory.ptr, (8,), name=LEGACY, knows_versions=False)
    assert gpumem.from_dlpack(array).mem.size == 8
    assert array.asked == [{}]


def test_a_tensor_without_a_deleter_has_none_called(memory):
    array = Exporter(memory.ptr, (8,), deleter=False)
    pointer = gpumem.from_dlpack(array)
    del pointer
    assert array.deleted == 0


def test_a_pointer_goes_around(pool):
    pointer = pool.malloc(512)
    again = gpumem.from_dlpack(pointer)
    assert (again.ptr, again.mem.size) == (pointer.ptr, 512)
    pointer.mem.free()
    assert pool.used_bytes() == 512
    del again
    assert pool.used_bytes() == 0


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3, 4), (12, 4, 1)),
        ((2, 3, 4), (1, 2, 6)),
        ((2, 3, 4), (4, 8, 1)),
        ((2, 1, 4), (4, 99, 1)),
        ((1,), (-5,)),
        ((), ()),
        ((4, 0, 2), (7, 7, 7)),
    ],
)
def test_any_order_of_axes_will_do(memory, shape, strides):
    size = 2
    for axis in shape:
        size *= axis
    array = Exporter(memory.ptr, shape, strides=strides, type=(FLOAT, 16, 1))
    assert gpumem.from_dlpack(array).mem.size == size


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((2, 3), (4, 1)), ((3,), (2,)), ((3,), (-1,)), ((2, 2), (1, 1)), ((3,), (0,))],
)
def test_gaps_are_refused(memory, shape, strides):
    array = Exporter(memory.ptr, shape, strides=strides)
    with pytest.raises(BufferError, match="gaps"):
        gpumem.from_dlpack(array)


@pytest.mark.parametrize(
    ("type", "flags", "size"),
    [((1, 4, 1), 0, 5), ((1, 4, 1), SUBBYTE_PADDED, 9), ((FLOAT, 32, 4), 0, 144)],
)
def test_items_are_as_long_as_their_bits(memory, type, flags, size):
    array = Exporter(memory.ptr, (9,), type=type, flags=flags)
    assert gpumem.from_dlpack(array).mem.size == size


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"flags": READ_ONLY}, BufferError, "read-only"),
        ({"version": (2, 0)}, BufferError, r"DLPack 2\.0 is not understood"),
        ({"device": (CUDA, 0)}, BufferError, "simulated device"),
        ({"device": (12, 0)}, BufferError, r"\(12, 0\)"),
        ({"device": 1}, TypeError, "tuple of two integers"),
        ({"device": ("1", 0)}, TypeError, "device type"),
        ({"shape": (-1,)}, ValueError, "negative"),
        ({"shape": (1 << 32, 1 << 32)}, ValueError, "room"),
        ({"shape": (1,) * 65}, BufferError, "65 axes"),
    ],
)
def test_what_cannot_be_taken_in_is_left_to_its_capsule(memory, changes, error, text):
    device = changes.pop("device", (CPU, 0))
    array = Exporter(memory.ptr, changes.pop("shape", (8,)), **changes)
    array.device = device
    with pytest.raises(error, match=text):
        gpumem.from_dlpack(array)
    assert array.deleted == 0


def test_what_is_no_array_is_refused():
    class Other:
        def __dlpack_device__(self):
            return CPU, 0

        def __dlpack__(self, **asked):
            return 5

    with pytest.raises(AttributeError, match="__dlpack_device__"):
        gpumem.from_dlpack(5)
    with pytest.raises(TypeError, match="must return a capsule"):
        gpumem.from_dlpack(Other())


def test_a_capsule_is_unpacked_once(memory):
    class Twice(Exporter):
        capsule = None

        def __dlpack__(self, **asked):
            self.capsule = self.capsule or super().__dlpack__(**asked)
            return self.capsule

    array = Twice(memory.ptr, (8,))
    kept = gpumem.from_dlpack(array)
    with pytest.raises(TypeError, match="nobody has taken"):
        gpumem.from_dlpack(array)
    del kept
    assert array.deleted == 1


def test_host_memory_needs_a_device_that_reaches_it():
    back = (ctypes.c_char * 8)()
    array = Exporter(ctypes.addressof(back), (8,))
    assert gpumem.from_dlpack(array).ptr == ctypes.addressof(back)
    with testing.without("pageable_access"):
        with pytest.raises(BufferError, match="copy_from_host"):
            gpumem.from_dlpack(array)


@pytest.mark.two_devices
def test_the_device_is_the_memorys():
    with gpumem.Device(1):
        there, pinned = gpumem.Memory(8), gpumem.PinnedMemory(8)
    assert gpumem.from_dlpack(Exporter(there.ptr, (8,))).device_id == 1
    array = Exporter(pinned.ptr, (8,), device=(CUDA_HOST, 0))
    assert gpumem.from_dlpack(array).device_id == 1


# ---- __cuda_array_interface__ ----


def test_the_interfaces_bytes_and_its_array(memory):
    array = Array(memory, shape=(8, 16), typestr="<f4", strides=None)
    alive = weakref.ref(array)
    pointer = gpumem.from_cuda_array_interface(array)
    assert (pointer.ptr, pointer.mem.size) == (memory.ptr, 512)
    assert pointer.mem._owner is array
    del array
    gc.collect()
    assert alive() is not None
    del pointer
    assert alive() is None


@pytest.mark.parametrize(
    ("typestr", "size"),
    [("|u1", 1), ("<f8", 8), (">c16", 16), ("<M8[ns]", 8), ("<U3", 12), ("|V5", 5)],
)
def test_an_item_is_as_long_as_its_type_says(memory, typestr, size):
    pointer = gpumem.from_cuda_array_interface(
        Array(memory, shape=(3,), typestr=typestr)
    )
    assert pointer.mem.size == 3 * size


def test_strides_are_in_bytes(memory):
    right = Array(memory, shape=(3, 2), typestr="<f4", strides=(4, 12))
    assert gpumem.from_cuda_array_interface(right).mem.size == 24
    for strides in ((8, 8), (2, 4), (16, 4), (-8, 4)):
        array = Array(memory, shape=(3, 2), typestr="<f4", strides=strides)
        with pytest.raises(BufferError, match="gaps"):
            gpumem.from_cuda_array_interface(array)


def test_nothing_is_at_0():
    array = Array(gpumem.Memory(0), shape=(0,), data=(0, False))
    pointer = gpumem.from_cuda_array_interface(array)
    assert (pointer.ptr, pointer.mem.size) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"data": (512, True)}, BufferError, "read-only"),
        ({"data": 512}, TypeError, "an address and a flag"),
        ({"data": (0, False)}, ValueError, "no 4096 bytes at address 0"),
        ({"mask": object()}, BufferError, "mask"),
        ({"strides": (1, 1)}, ValueError, "2 strides for 1 axes"),
        ({"strides": 1}, TypeError, "tuple of integers"),
        ({"shape": [1]}, TypeError, "tuple of integers"),
        ({"shape": None}, ValueError, "no 'shape'"),
        ({"typestr": "O8"}, ValueError, "plain bytes"),
        ({"typestr": "<f4x"}, ValueError, "plain bytes"),
        ({"typestr": ""}, ValueError, "plain bytes"),
        ({"typestr": 4}, ValueError, "plain bytes"),
        ({"stream": 0}, ValueError, "must not be 0"),
        ({"stream": "1"}, TypeError, "stream"),
    ],
)
def test_an_interface_that_makes_no_sense_is_refused(memory, changes, error, text):
    with pytest.raises(error, match=text):
        gpumem.from_cuda_array_interface(Array(memory, **changes))


def test_what_has_no_interface_is_refused(memory):
    with pytest.raises(AttributeError):
        gpumem.from_cuda_array_interface(5)
    array = Array(memory)
    array.__cuda_array_interface__ = 5
    with pytest.raises(TypeError, match="dictionary"):
        gpumem.from_cuda_array_interface(array)


def test_the_current_stream_waits_for_the_one_that_is_named(pool):
    theirs, mine = Stream(non_blocking=True), Stream(non_blocking=True)
    with theirs:
        source = pool.malloc(512)
        source.memset_async(7, 512)
        array = Array(source.mem, stream=theirs.ptr)
    there = gpumem.malloc(512)
    with mine:
        there.copy_from_async(gpumem.from_cuda_array_interface(array), 512)
    mine.synchronize()
    assert bytes(there) == b"\7" * 512


def test_without_a_stream_nothing_is_waited_for(memory):
    with testing.call_log() as calls:
        gpumem.from_cuda_array_interface(Array(memory, stream=None))
    assert {call.name for call in calls} <= {"pointer_info", "device_get"}


def test_a_pointers_own_interface_goes_around(pool):
    pointer = pool.malloc(512)
    again = gpumem.from_cuda_array_interface(pointer)
    assert again.mem._owner is pointer
    assert (again.ptr, again.mem.size) == (pointer.ptr, 512)
