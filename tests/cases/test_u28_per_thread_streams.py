# SPDX-License-Identifier: MIT
"""The default streams of all threads have one handle value, so a thread was given the
block that another one's work still wrote to. cupy#5069, NVIDIA/cub#373,
https://github.com/cupy/cupy/issues/5069"""

import threading

import pytest
from casekit import content, kept_busy

from gpumem import MemoryPool, SingleDeviceMemoryPool, Stream

SIZE = 40_000

pytestmark = pytest.mark.timeout(60)

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@POOLS
def test_u28_another_threads_block_is_not_given_away(make, in_threads):
    pool = make()
    begun, done = threading.Event(), threading.Event()
    saw = {}

    def first():
        with Stream.ptds:
            pointer = pool.malloc(SIZE)
            saw["first"] = Stream.ptds.ptr, pointer.ptr
            busy = kept_busy(Stream.ptds)
            pointer.memset_async(255, SIZE)
            del pointer
            begun.set()
            assert done.wait(30)
            Stream.ptds.synchronize()  # the fill is done by now at the latest
            del busy
            again = pool.malloc(SIZE)
            saw["again"] = again.ptr

    def second():
        assert begun.wait(30)
        try:
            with Stream.ptds as stream:
                pointer = pool.malloc(SIZE)
                saw["second"] = stream.ptr, pointer.ptr
                pointer.memset_async(7, SIZE)  # a copy would wait for the first fill
                stream.synchronize()
                done.set()
                first_is_done.wait(30)
                assert content(pointer, SIZE) == b"\7" * SIZE
        finally:
            done.set()

    first_is_done = threading.Event()

    def work(index):
        if index == 0:
            try:
                first()
            finally:
                begun.set()
                first_is_done.set()
        else:
            second()

    in_threads(2, work)
    assert saw["first"][0] == saw["second"][0]  # one handle
    assert saw["first"][1] != saw["second"][1]  # two blocks
    assert saw["again"] == saw["first"][1]  # its own it has again


@POOLS
def test_u28_many_threads_at_once(make, in_threads):
    """Each writes what is its own through its own stream."""
    pool = make()
    kept = threading.Barrier(6, timeout=30)

    def work(index):
        with Stream.ptds as stream:
            for i in range(20):
                pointer = pool.malloc(SIZE)
                pointer.memset_async(index + 1, SIZE)
                if i % 5 == 0:
                    stream.synchronize()
                    assert content(pointer, SIZE) == bytes([index + 1]) * SIZE
            address = pointer.ptr
            del pointer
            kept.wait()
        return address

    assert len(set(in_threads(6, work))) == 6
    assert pool.used_bytes() == 0


@POOLS
def test_u28_a_later_threads_stream_is_another_one(make, in_threads):
    """It is not given what an earlier thread's unfinished work still writes to."""
    pool = make()

    def work(_):
        with Stream.ptds as stream:
            pointer = pool.malloc(SIZE)
            busy = kept_busy(stream)
            pointer.memset_async(255, SIZE)
            return pointer, stream.record(), busy

    ((kept, filled, busy),) = in_threads(1, work)
    address = kept.ptr
    del kept
    with Stream.ptds as stream:
        later = pool.malloc(SIZE)
        unfinished = not filled.done  # so it was when the block was asked for
        later.memset_async(7, SIZE)
        stream.synchronize()
        filled.synchronize()
        assert content(later, SIZE) == b"\7" * SIZE
    if not unfinished:
        pytest.skip("the device was done before the block was asked for")
    assert later.ptr != address
    del busy
