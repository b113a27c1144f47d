# SPDX-License-Identifier: MIT
"""A buffer of the host was freed, and its memory used again, while the asynchronous
copy still read from it: wrong data, and days of looking for it. cupy#8789, cupy#8845,
https://github.com/cupy/cupy/issues/8789"""

import ctypes
import gc
import weakref

import pytest
from casekit import MIB, content, kept_busy

from gpumem import MemoryPool, Stream

SIZE = MIB


class Buffer(bytearray):
    """One that can be watched."""


class CArray(ctypes.c_ubyte * SIZE):
    pass


def a_buffer():
    return Buffer(b"\xaa" * SIZE)


def a_view():
    return memoryview(a_buffer())


def a_ctypes_array():
    return CArray(*[0xAA] * SIZE)


def ended_with(source):
    """A weak reference to what owns the bytes of `source`."""
    return weakref.ref(source.obj if isinstance(source, memoryview) else source)


SOURCES = pytest.mark.parametrize("make", [a_buffer, a_view, a_ctypes_array])
FORMS = pytest.mark.parametrize("form", ["copy_from_host_async", "copy_from_async"])


@pytest.fixture
def setting():
    """A block, and a stream that is busy."""
    pool, stream = MemoryPool(), Stream(non_blocking=True)
    with stream:
        pointer = pool.malloc(SIZE)
    busy = kept_busy(stream)
    yield pointer, stream
    del busy


@SOURCES
@FORMS
def test_u33_the_source_lives_until_it_was_read(setting, make, form):
    pointer, stream = setting
    source = make()
    ended = ended_with(source)
    getattr(pointer, form)(source, SIZE, stream)
    del source
    gc.collect()
    # What would have gone where the source was.
    others = [bytearray(b"\x55" * SIZE) for _ in range(8)]
    stream.synchronize()
    assert content(pointer, SIZE) == b"\xaa" * SIZE
    del others
    with stream:  # an operation on the stream lets go of what is done
        pointer.copy_from_host_async(b"\xbb", 1, stream)
    stream.synchronize()
    gc.collect()
    assert ended() is None
    assert content(pointer, SIZE) == b"\xbb" + b"\xaa" * (SIZE - 1)


@pytest.mark.sim_only
@SOURCES
@FORMS
def test_u33_it_is_kept_exactly_so_long(setting, make, form):
    pointer, stream = setting
    source = make()
    ended = ended_with(source)
    getattr(pointer, form)(source, SIZE, stream)
    del source
    gc.collect()
    assert ended() is not None  # the stream has not got there
    stream.synchronize()
    pointer.copy_from_host_async(b"\xbb", 1, stream)
    stream.synchronize()
    gc.collect()
    assert ended() is None  # it is no leak
    assert content(pointer, SIZE)[1:] == b"\xaa" * (SIZE - 1)


def test_u33_for_an_address_the_documents_leave_it_to_the_program(setting):
    """Nobody else can keep what is behind a number."""
    pointer, stream = setting
    text = " ".join(pointer.copy_from_host_async.__doc__.split()).lower()
    assert "address" in text or "keep" in text or "alive" in text
    source = a_buffer()
    address = ctypes.addressof(ctypes.c_char.from_buffer(source))
    pointer.copy_from_host_async(address, SIZE, stream)
    stream.synchronize()
    assert content(pointer, SIZE) == b"\xaa" * SIZE
