# SPDX-License-Identifier: MIT
"""Two streams were enough to break a pool into pieces that one stream never makes: the
free lists of different streams were not joined again. rmm#2039,
https://github.com/rapidsai/rmm/issues/2039"""

import pytest
from casekit import MIB, at_rest

from gpumem import Device, MemoryPool, Stream, testing


def alternating(primed):
    """64 blocks of a 64th of the device by two streams in turn; then all of it at
    once."""
    pool = MemoryPool()
    streams = [Stream(non_blocking=True), Stream(non_blocking=True)]
    for stream in streams:
        with stream:
            if primed:  # both halves are cut up, one by each stream
                pool.malloc(32 * MIB)
    blocks = []
    for i in range(64):
        with streams[i % 2] as stream:
            blocks.append(pool.malloc(MIB))
            blocks[-1].memset_async(i, MIB)
    assert pool.total_bytes() == pool.used_bytes() == 64 * MIB
    assert pool.stats()["segments"] == (2 if primed else 64)
    blocks.clear()
    Device().synchronize()
    with streams[0]:
        whole = pool.malloc(64 * MIB)
        whole.memset(0, 64 * MIB)
    assert pool.stats()["out_of_memory"] == 0
    with streams[1]:
        del whole
        assert pool.malloc(64 * MIB).mem.size == 64 * MIB
    at_rest(pool)
    assert testing.ledger().errors == 0


@pytest.mark.parametrize("primed", [False, True])
def test_u13_one_stream_gets_what_two_left(apart, primed):
    apart(alternating, primed, memory="64MiB")


@pytest.mark.parametrize("primed", [False, True])
def test_u13_so_it_is_under_a_limit(primed, pool):
    pool.set_limit(size=64 * MIB)
    streams = [Stream(non_blocking=True), Stream(non_blocking=True)]
    for stream in streams:
        with stream:
            if primed:
                pool.malloc(32 * MIB)
            blocks = [pool.malloc(MIB) for _ in range(32)]
    del blocks
    with streams[0]:
        assert pool.malloc(64 * MIB).mem.size == 64 * MIB
    assert pool.total_bytes() == 64 * MIB
