# SPDX-License-Identifier: MIT
"""On a full device a request that would fit beside what is live failed once and worked
when it was made again: something internal still held the block that was to be given
back. cupy#1256, https://github.com/cupy/cupy/issues/1256"""

import pytest
from casekit import MIB, memory_calls

from gpumem import MemoryPool, SingleDeviceMemoryPool, testing


def the_first_request_succeeds(kind):
    pool = {"MemoryPool": MemoryPool, "SingleDeviceMemoryPool": SingleDeviceMemoryPool}[
        kind
    ]()
    live = pool.malloc(30 * MIB)
    cached = pool.malloc(30 * MIB)
    address = cached.ptr
    del cached
    with testing.call_log() as calls:
        pointer = pool.malloc(60 * MIB)
    assert memory_calls(calls) == [
        ("mem_alloc", False),
        ("mem_free", True),
        ("mem_alloc", True),
    ]
    assert [call.ptr for call in calls if call.name == "mem_free"] == [address]
    assert pool.total_bytes() == pool.used_bytes() == 90 * MIB
    assert pool.stats()["out_of_memory"] == 0
    live.memset(1, 30 * MIB)
    pointer.memset(2, 60 * MIB)
    testing.check_pool(pool)


@pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
def test_u02_what_was_cached_makes_room_at_the_first_call(apart, kind):
    apart(the_first_request_succeeds, kind, memory="100MiB")
