# SPDX-License-Identifier: MIT
"""Round after round, the device has as much memory left as after the first.

A real device is asked for what it has free, which others may change a little; the
simulated one says to the byte what was taken.
"""

import gc
import random

import pytest

import gpumem
from gpumem import Device, MemoryPool, Stream, testing

UNIT = 512
MIB = 1 << 20
ROUNDS = 10
TOLERANCE = 2 * MIB


def taken():
    """Bytes that are in use on the device."""
    free, total = Device().mem_info
    return total - free


def mixed(pool):
    rng = random.Random(7)
    blocks = []
    for _ in range(400):
        blocks.append(pool.malloc(rng.randrange(1, MIB)))
        if len(blocks) > 30:
            del blocks[rng.randrange(len(blocks))]


def split_and_drop():
    """A segment that was split goes back with its pool."""
    pool = MemoryPool()
    pool.malloc(64 * MIB)
    blocks = [pool.malloc(MIB) for _ in range(64)]
    assert pool.total_bytes() == 64 * MIB
    del blocks


def drop_with_live_blocks():
    pool = MemoryPool()
    blocks = [pool.malloc(MIB * (1 + i % 3)) for i in range(20)]
    del pool
    for block in blocks[::2]:
        block.memset(1, MIB)


def many_streams():
    pool = MemoryPool()
    for _ in range(20):
        with Stream() as stream:
            pointer = pool.malloc(MIB)
            pointer.memset_async(0, MIB)
            stream.synchronize()
    mixed(pool)


def a_limit_that_is_met():
    pool = MemoryPool()
    pool.set_limit(size=32 * MIB)
    kept = [pool.malloc(8 * MIB) for _ in range(4)]
    for _ in range(3):
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.malloc(MIB)
    del kept
    pool.malloc(32 * MIB)


def a_base_allocator():
    pool = MemoryPool(lambda size: gpumem.malloc(size))
    mixed(pool)
    pool.free_all_blocks()
    mixed(pool)


def raw_memory():
    for size in (1, UNIT, MIB, 32 * MIB):
        gpumem.malloc(size)


def a_cycle():
    pool = MemoryPool()
    ring = [pool, pool.malloc(16 * MIB)]
    ring.append(ring)
    del ring
    gc.collect()


@pytest.mark.parametrize(
    "work",
    [
        *(split_and_drop, drop_with_live_blocks, many_streams, a_limit_that_is_met),
        *(a_base_allocator, raw_memory, a_cycle, lambda: mixed(MemoryPool())),
    ],
    ids=lambda work: work.__name__.replace("<lambda>", "a mixed load"),
)
def test_no_memory_stays_behind(work):
    sim = gpumem.get_backend() == "sim"
    work()
    Device().synchronize()
    before = testing.ledger().bytes if sim else taken()
    for _ in range(ROUNDS):
        work()
    Device().synchronize()
    grown = (testing.ledger().bytes if sim else taken()) - before
    assert grown == 0 if sim else grown <= TOLERANCE


def test_a_pool_that_lives_on_does_not_grow():
    pool = MemoryPool()
    mixed(pool)
    held, before = pool.total_bytes(), taken()
    for _ in range(ROUNDS):
        mixed(pool)
    assert pool.total_bytes() == held
    assert taken() - before <= TOLERANCE
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_sizes_that_drift_do_not_grow_the_pool(pool):
    """Each block is a little larger than the one before: none fits what is cached."""
    limit = 3 * MIB
    pool.set_limit(size=limit)
    for i in range(1, 257):
        pool.malloc(i * 4096)
    assert pool.stats()["peak_total_bytes"] <= limit
    assert pool.stats()["out_of_memory"] == 0
