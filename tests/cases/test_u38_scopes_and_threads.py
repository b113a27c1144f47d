# SPDX-License-Identifier: MIT
"""While one thread was inside the scope of an allocator, what other threads allocated
landed in its pool. cupy#2625, cupy#2627, cupy#2707, torch#152861,
https://github.com/cupy/cupy/issues/2625"""

import threading

import pytest
from casekit import UNIT

import gpumem
from gpumem import MemoryPool, using_allocator

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def inside():
    """A function that opens a scope in another thread, and a list of what it saw."""
    entered, leave = threading.Event(), threading.Event()
    saw, threads = [], []

    def scoped(allocator):
        with using_allocator(allocator):
            entered.set()
            leave.wait(30)
            saw.append(gpumem.get_allocator())
            saw.append(gpumem.alloc(UNIT))
            try:
                gpumem.set_allocator(None)
            except ValueError as error:
                saw.append(error)
        saw.append(gpumem.get_allocator())

    def begin(allocator):
        threads.append(threading.Thread(target=scoped, args=(allocator,)))
        threads[0].start()
        assert entered.wait(30)

    def end():
        leave.set()
        threads[0].join(30)
        assert not threads[0].is_alive()
        return saw

    yield begin, end
    leave.set()


def test_u38_others_go_to_the_global_allocator(inside, in_threads):
    begin, end = inside
    scoped, shared, later = MemoryPool(), MemoryPool(), MemoryPool()
    gpumem.set_allocator(shared.malloc)
    begin(scoped.malloc)
    of_main = gpumem.alloc(UNIT)
    of_others = in_threads(3, lambda index: gpumem.alloc(UNIT))
    assert shared.used_bytes() == 4 * UNIT
    assert scoped.total_bytes() == 0
    gpumem.set_allocator(later.malloc)  # the others' scopes are no hindrance
    of_later = gpumem.alloc(UNIT)
    seen, of_scope, refused, after = end()
    assert seen == scoped.malloc
    assert of_scope.mem.pool() is not None and scoped.used_bytes() == UNIT
    assert isinstance(refused, ValueError)
    assert after == later.malloc == gpumem.get_allocator()
    assert shared.used_bytes() == 4 * UNIT
    assert later.used_bytes() == UNIT
    del of_main, of_others, of_later


def test_u38_the_global_allocator_cannot_be_set_inside_a_scope():
    scoped, shared = MemoryPool(), MemoryPool()
    gpumem.set_allocator(shared.malloc)
    with using_allocator(scoped.malloc):
        for allocator in (None, scoped.malloc):
            with pytest.raises(ValueError, match="using_allocator"):
                gpumem.set_allocator(allocator)
        assert gpumem.get_allocator() == scoped.malloc
    assert gpumem.get_allocator() == shared.malloc
    gpumem.set_allocator(scoped.malloc)
    assert gpumem.get_allocator() == scoped.malloc


def test_u38_scopes_nest_and_end_in_whatever_way():
    outer, inner, shared = MemoryPool(), MemoryPool(), MemoryPool()
    gpumem.set_allocator(shared.malloc)
    with pytest.raises(LookupError):
        with using_allocator(outer.malloc):
            with using_allocator(inner.malloc):
                gpumem.alloc(UNIT)
                with using_allocator(None):
                    assert gpumem.get_allocator() is gpumem.malloc
                assert gpumem.get_allocator() == inner.malloc
            gpumem.alloc(UNIT)
            raise LookupError
    gpumem.alloc(UNIT)
    assert [p.total_bytes() for p in (outer, inner, shared)] == [UNIT] * 3


def test_u38_a_thread_begins_without_its_makers_scope(in_threads):
    scoped, shared = MemoryPool(), MemoryPool()
    gpumem.set_allocator(shared.malloc)
    with using_allocator(scoped.malloc):
        found = in_threads(1, lambda index: gpumem.get_allocator())
    assert found == [shared.malloc]
