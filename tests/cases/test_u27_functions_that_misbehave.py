# SPDX-License-Identifier: MIT
"""An exception or an allocation inside the program's own free function ended the
process, or hung on the pool's lock. rmm#1504, cumo#227, vllm-project/vllm#16993,
https://github.com/rapidsai/rmm/issues/1504"""

import gc
import sys

import pytest
from casekit import UNIT, Functions

from gpumem import MemoryPool, PythonFunctionAllocator, testing


class Failure(Exception):
    pass


class Misbehaving(Functions):
    """`how` is called at each free, with the pool over these functions."""

    def __init__(self, how):
        super().__init__()
        self.how, self.pool, self.busy = how, None, False

    def free(self, ptr, device):
        super().free(ptr, device)
        if not self.busy:
            self.busy = True  # what it does may bring it here again
            try:
                self.how(self.pool)
            finally:
                self.busy = False


def raises(pool):
    raise Failure


def allocates(pool):
    first = pool.malloc(UNIT)
    assert pool.malloc(100 * UNIT).mem.size == 100 * UNIT
    del first


def empties_the_cache(pool):
    pool.free_all_blocks()


def collects(pool):
    gc.collect()


def asks_for_numbers(pool):
    stats = pool.stats()
    assert stats["used_bytes"] + stats["free_bytes"] == stats["total_bytes"]
    testing.check_pool(pool)


WAYS = [raises, allocates, empties_the_cache, collects, asks_for_numbers]


def pool_over(functions):
    allocator = PythonFunctionAllocator(functions.malloc, functions.free)
    functions.pool = MemoryPool(allocator.malloc)
    return functions.pool


def frees_in_all_ways(how):
    """Returns how often a function raised, by what was reported."""
    reports = []
    before, sys.unraisablehook = (
        sys.unraisablehook,
        lambda report: reports.append(report.exc_value),
    )
    functions = Misbehaving(how)
    pool = pool_over(functions)
    try:
        pointers = [pool.malloc(size * UNIT) for size in (1, 2, 3, 4)]
        del pointers[1:3]
        pool.free_all_blocks()
        assert len(functions.freed) >= 2
        pointers.clear()
        pool.malloc(UNIT)
        pool.free_all_blocks()
        pool.free_all_blocks()
        testing.check_pool(pool)
        assert pool.used_bytes() == 0
        functions.how = lambda pool: None
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
        assert functions.all_came_back_once()
    finally:
        sys.unraisablehook = before
    if how is not raises:
        assert reports == []
    return reports


@pytest.mark.parametrize("how", WAYS)
def test_u27_the_pool_is_whole_whatever_free_does(how):
    reports = frees_in_all_ways(how)
    if how is raises:
        assert len(reports) == 4  # one a segment
        assert {type(report) for report in reports} == {Failure}


@pytest.mark.parametrize("how", WAYS)
def test_u27_memory_without_a_pool_too(how, unraisable):
    functions = Misbehaving(how)
    functions.pool = MemoryPool()
    allocator = PythonFunctionAllocator(functions.malloc, functions.free)
    pointers = [allocator.malloc(UNIT) for _ in range(3)]
    try:
        raise KeyError("pending")
    except KeyError as pending:
        del pointers
        assert pending.args == ("pending",)
    assert functions.all_came_back_once()
    assert len(unraisable) == (3 if how is raises else 0)


@pytest.mark.parametrize("how", WAYS)
def test_u27_so_it_is_when_the_memory_outlives_the_pool(how, unraisable):
    functions = Misbehaving(how)
    pool = pool_over(functions)
    pointers = [pool.malloc(size * UNIT) for size in (1, 2)]
    functions.pool = MemoryPool()
    del pool
    gc.collect()
    del pointers
    assert functions.all_came_back_once()
    assert len(unraisable) == (2 if how is raises else 0)


def left_at_exit(name):
    """The interpreter ends with a live block, a cached one and all the functions."""
    import builtins

    how = next(way for way in WAYS if way.__name__ == name)
    functions = Misbehaving(how)
    pool = pool_over(functions)
    sys.unraisablehook = lambda report: None
    kept = pool.malloc(UNIT)
    pool.malloc(2 * UNIT)
    builtins.kept = [kept, pool, functions]


@pytest.mark.parametrize("how", WAYS)
def test_u27_the_exit_is_silent(apart, how):
    apart(left_at_exit, how.__name__)
