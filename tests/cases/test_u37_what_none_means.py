# SPDX-License-Identifier: MIT
"""Setting the allocator back with None gave the raw one, where users expected the
default pool, or in another library a null one. cupy#524, rmm#1953, NVIDIA/cuvs#1454,
https://github.com/cupy/cupy/issues/524"""

import pytest
from casekit import UNIT

import gpumem
from gpumem import MemoryPool

RESETS = pytest.mark.parametrize(
    "reset",
    [
        lambda: gpumem.set_allocator(),
        lambda: gpumem.set_allocator(None),
        lambda: gpumem.set_allocator(allocator=None),
        lambda: gpumem.set_allocator(gpumem.malloc),
    ],
)


@RESETS
def test_u37_none_is_the_raw_allocator_which_works(pool, reset):
    gpumem.set_allocator(pool.malloc)
    reset()
    assert gpumem.get_allocator() is gpumem.malloc
    assert "malloc" in repr(gpumem.get_allocator())
    pointer = gpumem.alloc(UNIT + 1)
    assert type(pointer.mem) is gpumem.Memory
    assert pointer.mem.size == UNIT + 1
    pointer.memset(1, UNIT)
    assert pool.total_bytes() == 0
    assert "None is malloc" in " ".join(gpumem.set_allocator.__doc__.split())


def test_u37_what_is_active_can_be_seen(pool):
    assert gpumem.get_allocator() is gpumem.malloc
    gpumem.set_allocator(pool.malloc)
    assert gpumem.get_allocator() == pool.malloc
    assert gpumem.get_allocator().__self__ is pool
    assert "MemoryPool" in repr(gpumem.get_allocator())
    with gpumem.using_allocator():
        assert gpumem.get_allocator() is gpumem.malloc
    assert gpumem.get_allocator() == pool.malloc


@RESETS
def test_u37_one_call_leads_back_to_the_default_pool(reset):
    default = gpumem.get_default_memory_pool()
    assert type(default) is MemoryPool
    reset()
    assert gpumem.use_default_memory_pool() is default
    assert gpumem.get_allocator() == default.malloc
    used = default.used_bytes()
    pointer = gpumem.alloc(UNIT)
    assert default.used_bytes() == used + UNIT
    del pointer
    default.free_all_blocks()
    assert gpumem.get_default_memory_pool() is default


def test_u37_what_is_no_allocator_changes_nothing(pool):
    gpumem.set_allocator(pool.malloc)
    for wrong in (0, "malloc", pool, 1.5):
        with pytest.raises(TypeError):
            gpumem.set_allocator(wrong)
        assert gpumem.get_allocator() == pool.malloc
