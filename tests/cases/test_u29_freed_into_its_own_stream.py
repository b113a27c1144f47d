# SPDX-License-Identifier: MIT
"""A block that was allocated on one stream and dropped while the null stream was
current became available to the null stream, under the first one's running work.
cumo#187, https://github.com/sonots/cumo/issues/187"""

import pytest
from casekit import MIB, content, kept_busy

import gpumem
from gpumem import MemoryPool, SingleDeviceMemoryPool, Stream

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


@POOLS
def test_u29_the_block_stays_with_the_stream_it_came_from(make):
    pool = make()
    first = Stream(non_blocking=True)
    with first:
        pointer = pool.malloc(MIB)
        address = pointer.ptr
        busy = kept_busy(first)
        pointer.memset_async(1, MIB)
    assert gpumem.get_current_stream() == Stream.null
    del pointer
    of_null = pool.malloc(MIB)
    assert of_null.ptr != address
    of_null.memset(2, MIB)
    with first:
        of_first = pool.malloc(MIB)
    assert of_first.ptr == address
    first.synchronize()
    assert content(of_null, MIB) == b"\2" * MIB
    assert content(of_first, MIB) == b"\1" * MIB
    assert pool.stats()["segments"] == 2
    del busy


@POOLS
def test_u29_and_the_other_way_round(make):
    pool = make()
    other = Stream(non_blocking=True)
    pointer = pool.malloc(MIB)
    address = pointer.ptr
    with other:
        del pointer
        of_other = pool.malloc(MIB)
    assert of_other.ptr != address
    assert pool.malloc(MIB).ptr == address


@POOLS
def test_u29_pieces_are_joined_in_the_stream_they_came_from(make):
    """Dropped under whichever stream, the neighbours are one block again, of the first
    stream."""
    pool = make()
    first, second = Stream(non_blocking=True), Stream(non_blocking=True)
    with first:
        whole = pool.malloc(4 * MIB)
        address = whole.ptr
        del whole
        pieces = [pool.malloc(MIB) for _ in range(4)]
    for stream in (Stream.null, first, second, Stream.null):
        with stream:
            pieces.pop()
    with second:
        assert pool.malloc(MIB).ptr not in range(address, address + 4 * MIB)
    with first:
        assert pool.malloc(4 * MIB).ptr == address
