# SPDX-License-Identifier: MIT
"""A pointer in the cycle of a frame and the exception it kept never went back to its
pool, or complained at its death that what it needed was None already. cupy#1461,
cupy#1457, https://github.com/cupy/cupy/issues/1461"""

import gc

import pytest
from casekit import MIB, UNIT, collector_off, content, pattern, written

import gpumem
from gpumem import MemoryPool, testing


class Finalized:
    """Garbage whose finalizer still uses its pointer, in whatever order the collector
    takes the cycle apart."""

    def __init__(self, pointer, seen):
        self.pointer, self.seen, self.me = pointer, seen, self

    def __del__(self):
        self.seen.append(content(self.pointer, UNIT))


def keeps_its_exception(pool, seen):
    pointer = written(pool.malloc(MIB), UNIT)
    view = pointer + UNIT
    held = [view, Finalized(pointer, seen)]
    try:
        raise LookupError("kept", held)
    except LookupError as error:
        kept = error
    return kept.args[0]  # the frame holds `kept`, whose traceback holds the frame


def one_collection_takes_it(kind):
    pool = getattr(gpumem, kind)()
    seen = []
    gc.collect()
    assert keeps_its_exception(pool, seen) == "kept"
    assert pool.used_bytes() == MIB
    gc.collect()
    assert seen == [pattern(UNIT)]
    assert pool.used_bytes() == 0
    assert pool.free_bytes() == pool.total_bytes() == MIB
    testing.check_pool(pool)


@pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
def test_u04_one_collection_gives_the_memory_back(kind, unraisable):
    with collector_off():
        one_collection_takes_it(kind)
    assert unraisable == []


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
@pytest.mark.parametrize("kind", ["MemoryPool", "SingleDeviceMemoryPool"])
def test_u04_nothing_is_said_about_it(apart, kind, options):
    apart(one_collection_takes_it, kind, options=options)


def holds_its_pool_too():
    """Pool, pointer and frame are one piece of garbage."""
    pool = MemoryPool()
    keeps_its_exception(pool, [])


def test_u04_nor_where_the_pool_is_part_of_the_cycle(unraisable):
    with collector_off():
        gc.collect()
        before = testing.ledger().bytes if gpumem.get_backend() == "sim" else 0
        holds_its_pool_too()
        gc.collect()
        if gpumem.get_backend() == "sim":
            assert testing.ledger().bytes == before
    assert unraisable == []
