# SPDX-License-Identifier: MIT
"""An allocator recorded events on a stream, or waited for one, that its user had
destroyed: the process crashed or a later request failed. torch#66941, rmm#510,
NVIDIA/cuml#2632, https://github.com/pytorch/pytorch/issues/66941"""

import pytest
from casekit import MIB, at_rest

from gpumem import ExternalStream, MemoryPool, Stream, testing


def streams_are_destroyed(external):
    """Eight streams use an eighth of the device each and end; then all is wanted."""
    pool = MemoryPool()
    streams = [Stream(non_blocking=True) for _ in range(8)]
    handles = [stream.ptr for stream in streams]
    if external:
        used = [ExternalStream(stream.ptr) for stream in streams]
    else:
        used = streams
    blocks = []
    for stream in used:
        with stream:
            blocks.append(pool.malloc(MIB))
            blocks[-1].memset_async(1, MIB)
    blocks.clear()
    assert pool.free_bytes() == 8 * MIB
    del used, stream
    streams.clear()
    assert testing.ledger().streams == 0
    with testing.call_log() as calls:
        pointer = pool.malloc(8 * MIB)
        pool.free_all_blocks()
    about_streams = {call.ptr for call in calls if "mem_" not in call.name}
    assert about_streams.isdisjoint(handles)
    assert testing.ledger().errors == 0
    assert pool.total_bytes() == pool.used_bytes() == 8 * MIB
    pointer.memset(2, 8 * MIB)
    del pointer
    at_rest(pool)


@pytest.mark.parametrize("external", [False, True])
def test_u31_the_device_never_meets_a_dead_handle(apart, external):
    apart(streams_are_destroyed, external, memory="8MiB")


def handles_are_used_again():
    """A new stream with a dead one's handle does not get the dead one's memory while
    its work may still run."""
    pool = MemoryPool()
    first = Stream(non_blocking=True)
    handle = first.ptr
    with first:
        kept = pool.malloc(MIB)
        address = kept.ptr
        kept.memset_async(1, MIB)
    del first, kept
    others = []
    for _ in range(100):
        others.append(Stream(non_blocking=True))
        if others[-1].ptr == handle:
            break
    with others[-1] as again:
        pointer = pool.malloc(MIB)
        if again.ptr == handle:
            assert pointer.ptr != address or again.done
        pointer.memset_async(2, MIB)
        again.synchronize()
    host = bytearray(MIB)
    pointer.copy_to_host(host, MIB)
    assert host == b"\2" * MIB
    assert testing.ledger().errors == 0


def test_u31_a_handle_that_comes_again_is_another_stream(apart):
    apart(handles_are_used_again)
