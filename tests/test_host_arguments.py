# SPDX-License-Identifier: MIT
"""What stands for the host's side of a copy: addresses, ctypes, buffers."""

import ctypes
import mmap
import struct

import pytest

import gpumem
from gpumem import Stream

SIZE = 64
PATTERN = bytes(range(1, SIZE + 1))
WORD = 8  # bytes of a pointer


class Pair(ctypes.Structure):
    """A field has the name under which ctypes' numbers keep theirs."""

    _fields_ = (("value", ctypes.c_int64), ("other", ctypes.c_int64))


class Either(ctypes.Union):
    _fields_ = (("value", ctypes.c_int64), ("bytes", ctypes.c_ubyte * WORD))


@pytest.fixture
def pointer():
    """Memory full of PATTERN."""
    pointer = gpumem.malloc(SIZE)
    pointer.copy_from_host(PATTERN, SIZE)
    return pointer


@pytest.fixture
def host():
    """Zeros that ctypes owns."""
    return (ctypes.c_ubyte * SIZE)()


def content(pointer, size=SIZE):
    buffer = bytearray(size)
    pointer.copy_to_host(buffer, size)
    return bytes(buffer)


def forms(host):
    """The host's memory, in each way in which it can be told of."""
    address = ctypes.addressof(host)
    return {
        "address": address,
        "c_void_p": ctypes.c_void_p(address),
        "POINTER": ctypes.cast(address, ctypes.POINTER(ctypes.c_ubyte)),
        "POINTER of a structure": ctypes.cast(address, ctypes.POINTER(Pair)),
        "pointer()": ctypes.pointer(host),
        "array": host,
        "memoryview": memoryview(host),
        "an object with a value": type("Address", (), {"value": address})(),
        "an object with an index": type(
            "Number", (), {"__index__": lambda self: address}
        )(),
    }


@pytest.mark.parametrize("form", forms((ctypes.c_ubyte * 1)()))
@pytest.mark.parametrize("suffix", ["", "_async"])
def test_each_form_is_read_and_written(pointer, host, form, suffix):
    target = forms(host)[form]
    stream = [Stream(non_blocking=True)] if suffix else []
    getattr(pointer, "copy_to_host" + suffix)(target, SIZE, *stream)
    for each in stream:
        each.synchronize()
    assert bytes(host) == PATTERN
    host[:] = PATTERN[::-1]
    for method in ("copy_from_host", "copy_from"):
        pointer.memset(0, SIZE)
        getattr(pointer, method + suffix)(target, SIZE, *stream)
        for each in stream:
            each.synchronize()
        assert content(pointer) == PATTERN[::-1]


def test_a_pointer_is_where_it_points_and_not_its_own_bytes(pointer, host):
    """Eight bytes fit into the pointer too."""
    target = ctypes.cast(host, ctypes.POINTER(ctypes.c_ubyte))
    before = ctypes.addressof(target.contents)
    pointer.copy_to_host(target, WORD)
    assert ctypes.addressof(target.contents) == before
    assert bytes(host) == PATTERN[:WORD] + bytes(SIZE - WORD)


def test_a_structure_is_its_bytes_whatever_its_fields_are_called(pointer):
    pair = Pair()
    pointer.copy_to_host(pair, 16)
    assert (pair.value, pair.other) == struct.unpack("<qq", PATTERN[:16])
    pointer.copy_from_host(Pair(7, 9), 16)
    assert content(pointer, 16) == struct.pack("<qq", 7, 9)
    either = Either()
    pointer.copy_to_host(either, WORD)
    assert either.value == 7
    with pytest.raises(ValueError, match="host buffer of 16 bytes"):
        pointer.copy_to_host(pair, 17)


def test_an_array_of_structures_and_a_slice_of_memory(pointer):
    pairs = (Pair * 4)()
    pointer.copy_to_host(pairs, SIZE)
    assert bytes(pairs) == PATTERN
    with mmap.mmap(-1, mmap.PAGESIZE) as mapped:
        pointer.copy_to_host(memoryview(mapped)[8:], SIZE)
        assert mapped[: SIZE + 8] == bytes(8) + PATTERN


@pytest.mark.parametrize(
    "null",
    [ctypes.POINTER(ctypes.c_int)(), ctypes.c_void_p(), ctypes.c_char_p()],
    ids=["POINTER", "c_void_p", "c_char_p"],
)
@pytest.mark.parametrize("method", ["copy_from_host", "copy_from", "copy_to_host"])
def test_a_null_pointer_is_refused(pointer, method, null):
    with pytest.raises(TypeError, match="null"):
        getattr(pointer, method)(null, 8)
    assert content(pointer) == PATTERN


def test_a_function_and_a_reference_are_no_memory(pointer, host):
    with pytest.raises(TypeError, match="CArgObject"):
        pointer.copy_to_host(ctypes.byref(host), 8)
    assert bytes(host) == bytes(SIZE)


def test_a_buffer_must_be_contiguous(pointer):
    for mem in (memoryview(bytearray(2 * SIZE))[::2], memoryview(bytearray(8))[::-1]):
        for method in ("copy_from_host", "copy_to_host"):
            with pytest.raises(BufferError, match="contiguous"):
                getattr(pointer, method)(mem, 8)


def test_what_a_value_raises_passes(pointer):
    class Broken:
        @property
        def value(self):
            raise KeyError("mine")

    class Wide:
        value = 2**64

    with pytest.raises(KeyError, match="mine"):
        pointer.copy_from_host(Broken(), 8)
    with pytest.raises(OverflowError, match="value"):
        pointer.copy_from_host(Wide(), 8)


def test_without_ctypes_buffers_and_addresses_do(script):
    """Nothing is imported for the sake of looking."""
    done = script(
        "import sys, gpumem\n"
        "class Bytes(bytearray, metaclass=type('Meta', (type,), {})): pass\n"
        "p = gpumem.malloc(8)\n"
        "p.copy_from_host(Bytes(b'12345678'), 8)\n"
        "back = Bytes(8); p.copy_to_host(back, 8)\n"
        "print(back.decode(), '_ctypes' in sys.modules)\n",
        GPUMEM_BACKEND="sim",
    )
    assert (done.stdout, done.stderr) == ("12345678 False\n", "")
