# SPDX-License-Identifier: MIT
"""Blocks that are dropped long before their last use runs, as benchmarks/in_flight.py
replays them: with a pool nothing is wrong, and one that is told the wrong stream is
found out."""

import pytest

import gpumem

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture(scope="module")
def in_flight():
    return pytest.importorskip("benchmarks.in_flight")


@pytest.fixture(scope="module")
def sequence(in_flight):
    """Two streams that take and drop blocks of two sizes in turns, eight of them ahead
    of what runs; pages have to move between the streams under a limit."""
    from benchmarks.sequences import Sequence

    runs = []
    for step in range(200):
        size = 24 * MIB if step % 4 < 2 else 8 * MIB + 512
        places = [8 * step + i for i in range(8)]
        events = [(place, size, True) for place in places]
        runs.append((step % 2, events + [(place, size, False) for place in places]))
    return Sequence("two streams", runs, 1600, 8 * 24 * MIB)


def test_nothing_is_used_again_before_its_last_use(in_flight, sequence):
    for paged in (True, False):
        pool = gpumem.MemoryPool(expandable_segments=paged)
        pool.set_limit(sequence.peak + sequence.peak // 8)
        assert in_flight.replay(pool.malloc, sequence, cupy) == 0
        assert (pool.stats()["remapped_pages"] > 0) == paged
        assert pool.used_bytes() == 0


def test_memory_of_another_stream_is_noticed(in_flight, sequence):
    """The blocks are used on streams that the pool is not told of; a copy of its own
    pointer would tell it."""
    pool = gpumem.MemoryPool()

    def careless(size):
        with gpumem.Stream.null:
            block = pool.malloc(size)
        memory = gpumem.UnownedMemory(block.ptr, size, block)
        return gpumem.MemoryPointer(memory, 0)

    assert in_flight.replay(careless, sequence, cupy) > 0
