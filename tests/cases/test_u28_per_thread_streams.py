# SPDX-License-Identifier: MIT
"""The default streams of all threads have one handle value, so a thread was given the
block that another one's work still wrote to. cupy#5069, NVIDIA/cub#373,
https://github.com/cupy/cupy/issues/5069"""

import threading

import pytest
from casekit import content, pattern, written

from gpumem import MemoryPool, SingleDeviceMemoryPool, Stream

SIZE = 40_000
TIMES = 20

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
            for _ in range(TIMES):
                pointer.memset_async(255, SIZE)
            del pointer
            begun.set()
            assert done.wait(30)
            Stream.ptds.synchronize()  # the fills are done by now at the latest
            again = pool.malloc(SIZE)
            saw["again"] = again.ptr

    def second():
        assert begun.wait(30)
        try:
            with Stream.ptds:
                pointer = written(pool.malloc(SIZE), SIZE)
                saw["second"] = Stream.ptds.ptr, pointer.ptr
                done.set()
                first_is_done.wait(30)
                assert content(pointer, SIZE) == pattern(SIZE)
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

    def work(index):
        with Stream.ptds:
            pointer = pool.malloc(SIZE)
            pointer.memset_async(index + 1, SIZE)
            return pointer

    (kept,) = in_threads(1, work)
    address = kept.ptr
    del kept
    with Stream.ptds:
        assert pool.malloc(SIZE).ptr != address
