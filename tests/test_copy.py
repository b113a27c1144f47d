# SPDX-License-Identifier: MIT
"""Copies and fills of MemoryPointer, the plain forms and the queued ones."""

import array
import ctypes

import pytest

import gpumem
from gpumem import BaseMemory, Device, ExternalStream, MemoryPointer, Stream, testing

SIZE = 1000
PATTERN = bytes(i % 251 for i in range(SIZE))

FORMS = ["copy_from_device", "copy_from_host", "copy_from", "copy_to_host", "memset"]


@pytest.fixture
def pointer():
    """Memory full of zeros."""
    pointer = gpumem.malloc(SIZE)
    pointer.memset(0, SIZE)
    return pointer


@pytest.fixture
def filled():
    """Memory full of PATTERN."""
    pointer = gpumem.malloc(SIZE)
    pointer.copy_from_host(PATTERN, SIZE)
    return pointer


def content(pointer, size=SIZE):
    """The bytes at `pointer`."""
    buffer = bytearray(size)
    pointer.copy_to_host(buffer, size)
    return bytes(buffer)


def copy(pointer, form, what, size):
    """The copy or fill `form`, finished, also where it is queued."""
    if form.endswith("_async"):
        stream = Stream()
        getattr(pointer, form)(what, size, stream)
        stream.synchronize()
    else:
        getattr(pointer, form)(what, size)


def each_way(*names):
    """The names, and those of the queued forms."""
    return pytest.mark.parametrize(
        "form", [form for name in names for form in (name, name + "_async")]
    )


# ---- the bytes arrive ----


@each_way("copy_from_host", "copy_from")
def test_bytes_come_from_the_host(pointer, form):
    copy(pointer + 8, form, PATTERN, SIZE - 8)
    assert content(pointer) == bytes(8) + PATTERN[:-8]


@each_way("copy_to_host")
def test_bytes_go_to_the_host(filled, form):
    buffer = bytearray(SIZE)
    copy(filled + 8, form, buffer, 100)
    assert buffer == PATTERN[8:108] + bytes(SIZE - 100)


@each_way("copy_from_device", "copy_from")
def test_bytes_come_from_the_device(pointer, filled, form):
    copy(pointer + 8, form, filled + 16, 100)
    assert content(pointer) == bytes(8) + PATTERN[16:116] + bytes(SIZE - 108)


@each_way("memset")
@pytest.mark.parametrize(
    ("value", "byte"), [(0, 0), (7, 7), (255, 255), (256 + 7, 7), (-1, 255)]
)
def test_a_fill_takes_the_low_eight_bits(filled, form, value, byte):
    copy(filled + 8, form, value, 100)
    assert content(filled) == PATTERN[:8] + bytes([byte]) * 100 + PATTERN[108:]


@pytest.mark.two_devices
@each_way("copy_from_device", "copy_from")
def test_bytes_come_from_another_device(filled, form):
    with Device(1):
        there = gpumem.malloc(SIZE)
        copy(there, form, filled, SIZE)
        assert content(there) == PATTERN
    filled.memset(0, SIZE)
    Device(0).synchronize()
    copy(filled, form, there, SIZE)
    assert content(filled) == PATTERN
    assert gpumem.get_device_id() == 0


def test_arguments_have_names(pointer, filled):
    buffer = bytearray(SIZE)
    pointer.copy_from_device(src=filled, size=SIZE)
    pointer.copy_from_device_async(src=filled, size=SIZE, stream=None)
    pointer.copy_to_host(mem=buffer, size=SIZE)
    assert buffer == PATTERN
    pointer.memset(value=1, size=SIZE)
    pointer.copy_from_host(mem=PATTERN, size=SIZE)
    pointer.copy_from(mem=PATTERN, size=SIZE)
    assert content(pointer) == PATTERN


# ---- queued work is in stream order ----


def test_queued_work_on_one_stream_keeps_its_order(pointer):
    stream = Stream()
    buffer = bytearray(SIZE)
    pointer.memset_async(1, SIZE, stream)
    pointer.memset_async(2, 500, stream)
    pointer.copy_to_host_async(buffer, SIZE, stream)
    stream.synchronize()
    assert buffer == bytes([2] * 500 + [1] * 500)


def test_queued_work_takes_the_current_stream_where_none_is_given(pointer):
    buffer = bytearray(SIZE)
    with Stream() as stream:
        pointer.memset_async(3, SIZE)
        pointer.copy_to_host_async(buffer, SIZE, None)
    stream.synchronize()
    assert buffer == bytes([3]) * SIZE


@pytest.mark.sim_only
def test_memory_given_by_address_is_not_waited_for(pointer):
    stream = Stream(non_blocking=True)
    host = ctypes.create_string_buffer(SIZE)
    pointer.memset_async(3, SIZE, stream)
    pointer.copy_to_host_async(ctypes.addressof(host), SIZE, stream)
    assert host.raw == bytes(SIZE)
    stream.synchronize()
    assert host.raw == bytes([3]) * SIZE


@pytest.mark.sim_only
def test_queued_work_waits_for_its_stream(pointer):
    stream = Stream(non_blocking=True)
    pointer.memset_async(3, SIZE, stream)
    assert ctypes.string_at(pointer.ptr, SIZE) == bytes(SIZE)
    stream.synchronize()
    assert ctypes.string_at(pointer.ptr, SIZE) == bytes([3]) * SIZE


def test_another_librarys_stream_will_do(pointer):
    class Foreign:
        ptr = 0

    pointer.memset_async(5, SIZE, Foreign())
    Device().synchronize()
    assert content(pointer) == bytes([5]) * SIZE


@pytest.mark.two_devices
@pytest.mark.sim_only
@pytest.mark.parametrize("form", [form + "_async" for form in FORMS])
@pytest.mark.parametrize("handle", [0, 1, 2])
def test_a_default_stream_that_names_its_device_is_that_devices(form, handle):
    with Device(1):
        there = gpumem.malloc(SIZE)
        what = arguments(form, gpumem.malloc(SIZE))
    if isinstance(what, (bytes, bytearray)):  # by address, so that nothing waits
        host = ctypes.create_string_buffer(bytes(what))
        what = ctypes.addressof(host)
    with testing.call_log() as calls:
        getattr(there, form)(what, SIZE, ExternalStream(handle, device_id=1))
    current = gpumem.get_device_id()
    left = []
    for device in (0, 1):
        Device(device).synchronize()
        left.append(testing.ledger().pending)
    assert [c.device for c in calls if c.name in ("copy_async", "set_async")] == [1]
    assert (left, current) == ([1, 0], 0)


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_a_copy_between_devices_goes_to_the_device_its_stream_names(filled):
    with Device(1):
        there = gpumem.malloc(SIZE)
    with testing.call_log() as calls:
        for device in (1, 0):
            there.copy_from_async(filled, SIZE, ExternalStream(0, device))
    for device in (0, 1):
        Device(device).synchronize()
    assert [c.device for c in calls if c.name == "copy_peer_async"] == [1, 0]
    assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_the_current_device_is_kept_when_a_copy_fails_on_another():
    with Device(1):
        there = gpumem.malloc(SIZE)
    stream = ExternalStream(0, 1)
    for call in ("set_async", "device_get", "device_push"):
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError):
                there.memset_async(1, SIZE, stream)
        assert gpumem.get_device_id() == 0, call


@pytest.mark.parametrize("form", [form + "_async" for form in FORMS])
def test_a_stream_must_be_a_stream(pointer, form):
    what = {"copy_from_device_async": pointer, "memset_async": 1}
    for stream in (1, "s", object(), pointer, gpumem.Event()):
        with pytest.raises(TypeError, match="stream"):
            getattr(pointer, form)(what.get(form, bytearray(SIZE)), SIZE, stream)


# ---- the host's side ----


@pytest.mark.parametrize("kind", [int, ctypes.c_void_p, ctypes.c_size_t])
def test_the_host_can_be_an_address_or_a_ctypes_pointer(pointer, kind):
    source = ctypes.create_string_buffer(PATTERN, SIZE)
    target = ctypes.create_string_buffer(SIZE)
    pointer.copy_from_host(kind(ctypes.addressof(source)), SIZE)
    pointer.copy_to_host(kind(ctypes.addressof(target)), SIZE)
    assert target.raw == PATTERN


@pytest.mark.parametrize(
    "make",
    [
        bytes,
        bytearray,
        memoryview,
        lambda data: array.array("B", data),
        lambda data: (ctypes.c_ubyte * SIZE).from_buffer_copy(data),
        lambda data: ctypes.create_string_buffer(data, SIZE),
        ctypes.c_char_p,
    ],
    ids=[
        *("bytes", "bytearray", "memoryview", "array", "ctypes array", "char array"),
        "c_char_p",
    ],
)
def test_the_host_can_be_a_buffer(pointer, make):
    data = bytes(i % 250 + 1 for i in range(SIZE))  # no zero, which ends a c_char_p
    pointer.copy_from_host(make(data), SIZE)
    assert content(pointer) == data


def test_a_char_array_is_its_bytes_and_not_its_text(pointer):
    pointer.copy_from_host(ctypes.create_string_buffer(b"a\0b\0", 5), 5)
    assert content(pointer, 5) == b"a\0b\0\0"


def test_the_host_can_be_a_numpy_array(pointer):
    numpy = pytest.importorskip("numpy")
    data = numpy.arange(SIZE // 8, dtype=numpy.int64)
    pointer.copy_from_host(data, data.nbytes)
    back = numpy.zeros_like(data)
    pointer.copy_to_host(back, back.nbytes)
    assert (back == data).all()
    for scalar in (numpy.array([5], dtype=numpy.int64), numpy.array(5)):
        pointer.copy_from_host(scalar, 8)  # its bytes, not the address 5
        assert content(pointer, 8) == (5).to_bytes(8, "little")
    pointer.copy_to_host(numpy.uint64(back.ctypes.data), 8)  # an address
    assert back[0] == 5
    with pytest.raises((ValueError, BufferError)):
        pointer.copy_from_host(data[::2], 8)


@pytest.mark.parametrize(
    "mem", [None, 1.5, "text", object(), [1, 2], ctypes.c_double()]
)
@pytest.mark.parametrize("form", ["copy_from_host", "copy_from", "copy_to_host"])
def test_what_is_no_host_memory_is_refused(pointer, form, mem):
    with pytest.raises(TypeError):
        getattr(pointer, form)(mem, 8)
    assert content(pointer) == bytes(SIZE)


@pytest.mark.parametrize("form", ["copy_from_host", "copy_to_host"])
def test_a_null_ctypes_pointer_is_refused(pointer, form):
    with pytest.raises(TypeError, match="null"):
        getattr(pointer, form)(ctypes.c_void_p(), 8)


@pytest.mark.parametrize("address", [-1, 2**64])
def test_an_address_that_does_not_fit_is_refused(pointer, address):
    with pytest.raises(OverflowError, match="mem"):
        pointer.copy_from_host(address, 8)


def test_a_buffer_must_be_writable_where_it_is_written(filled):
    for mem in (bytes(SIZE), memoryview(bytes(SIZE))):
        with pytest.raises(BufferError):
            filled.copy_to_host(mem, SIZE)


def test_a_buffer_must_be_long_enough(pointer, filled):
    with pytest.raises(ValueError, match="host buffer of 99 bytes"):
        pointer.copy_from_host(bytes(99), 100)
    with pytest.raises(ValueError, match="host buffer of 99 bytes"):
        filled.copy_to_host(bytearray(99), 100)
    assert content(pointer) == bytes(SIZE)


def test_a_buffer_is_let_go_after_a_copy(pointer):
    for size, error in ((8, None), (100, ValueError)):
        buffer = bytearray(8)
        if error is None:
            pointer.copy_from_host(buffer, size)
        else:
            with pytest.raises(error):
                pointer.copy_from_host(buffer, size)
        buffer.extend(b"grows")  # BufferError while somebody holds it


# ---- the ranges ----


@pytest.mark.sim_only
@pytest.mark.parametrize("form", FORMS + [form + "_async" for form in FORMS])
def test_no_bytes_are_no_device_call_and_no_look_at_the_pointers(form):
    null = MemoryPointer(BaseMemory(), 0)
    what = {"copy_from_device": null, "memset": 1}.get(form.removesuffix("_async"), 0)
    with testing.call_log() as calls:
        getattr(null, form)(what, 0)
    assert [c.name for c in calls if c.name.startswith(("copy", "set"))] == []


def arguments(form, other):
    """What `form` takes before the size."""
    name = form.removesuffix("_async")
    return {"copy_from_device": other, "memset": 1}.get(name, bytearray(2 * SIZE))


@pytest.mark.parametrize("form", FORMS + [form + "_async" for form in FORMS])
@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, SIZE + 1),
        (1, SIZE),
        (SIZE, 1),
        (-1, 1),
        (2**40, 1),
        (0, 2**63),
        (1, 2**64 - 1),
        (-8, 2**64 - 1),
    ],
)
def test_a_range_that_leaves_the_memory_is_refused(pointer, form, offset, size):
    what = arguments(form, gpumem.malloc(2 * SIZE))
    with pytest.raises(ValueError, match="do not fit the memory of 1000 bytes"):
        getattr(pointer + offset, form)(what, size)
    assert content(pointer) == bytes(SIZE)


@each_way("copy_from_device", "copy_from")
def test_the_source_must_hold_the_range_too(pointer, form):
    source = gpumem.malloc(10)
    for place, size in ((source, 11), (source + 1, 10), (source - 1, 1)):
        with pytest.raises(ValueError, match="memory of 10 bytes"):
            getattr(pointer, form)(place, size)


def test_all_of_the_memory_can_be_used(pool):
    pointer = pool.malloc(513)
    pointer.memset(9, 1024)  # what was asked for is rounded up to whole units
    assert content(pointer, 1024) == bytes([9]) * 1024
    with pytest.raises(ValueError):
        pointer.memset(9, 1025)


@pytest.mark.parametrize("form", FORMS + [form + "_async" for form in FORMS])
def test_memory_that_was_given_back_is_refused(pool, form):
    pointer = pool.malloc(SIZE)
    pointer.mem.free()
    with pytest.raises(ValueError, match="given back"):
        getattr(pointer, form)(arguments(form, gpumem.malloc(SIZE)), 8)


def test_a_source_that_was_given_back_is_refused(pool, pointer):
    source = pool.malloc(SIZE)
    source.mem.free()
    with pytest.raises(ValueError, match="given back"):
        pointer.copy_from(source, 8)


@pytest.mark.parametrize("form", FORMS)
def test_a_null_pointer_holds_no_bytes(form):
    null = MemoryPointer(BaseMemory(), 0)
    with pytest.raises(ValueError, match="no memory"):
        getattr(null, form)(arguments(form, null), 1)


# ---- bad arguments ----


@pytest.mark.parametrize("form", FORMS + [form + "_async" for form in FORMS])
@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, OverflowError),
        (2**64, OverflowError),
        (1.0, TypeError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
def test_a_size_must_be_a_size(pointer, form, size, error):
    with pytest.raises(error, match="size"):
        getattr(pointer, form)(arguments(form, pointer), size)


@pytest.mark.parametrize("form", FORMS)
def test_the_plain_forms_take_no_stream(pointer, form):
    with pytest.raises(TypeError):
        getattr(pointer, form)(arguments(form, pointer), 1, None)
    with pytest.raises(TypeError):
        getattr(pointer, form)(arguments(form, pointer))


def test_only_a_pointer_is_a_source_on_the_device(pointer):
    for source in (pointer.ptr, pointer.mem, bytes(8), None):
        with pytest.raises(TypeError, match="MemoryPointer"):
            pointer.copy_from_device(source, 8)


@pytest.mark.parametrize("value", [1.0, "1", None, b"1"])
def test_the_value_of_a_fill_must_be_an_integer(pointer, value):
    with pytest.raises(TypeError, match="value"):
        pointer.memset(value, 8)
    with pytest.raises(OverflowError, match="value"):
        pointer.memset(2**31, 8)


# ---- the device refuses ----


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("copy_from_device", "copy"),
        ("copy_from_device_async", "copy_async"),
        ("copy_from_host", "copy"),
        ("copy_from_host_async", "copy_async"),
        ("copy_to_host", "copy"),
        ("copy_to_host_async", "copy_async"),
        ("memset", "set"),
        ("memset_async", "set_async"),
    ],
)
def test_a_copy_that_the_device_refuses_says_why(pointer, form, call):
    buffer = bytearray(8)
    what = {"copy_from_device": pointer + 8, "memset": 1}
    with testing.fail(call, code=700):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            getattr(pointer, form)(what.get(form.removesuffix("_async"), buffer), 8)
    assert caught.value.status == 700
    buffer.append(0)  # let go
    assert content(pointer) == bytes(SIZE)
