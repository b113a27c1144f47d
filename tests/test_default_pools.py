# SPDX-License-Identifier: MIT
"""The pools that a whole program shares, and the way back to them."""

import pytest

import gpumem
from gpumem import MemoryPool, PinnedMemoryPool, PooledMemory, testing


@pytest.fixture(autouse=True)
def emptied():
    yield
    gpumem.get_default_memory_pool().free_all_blocks()
    gpumem.get_default_pinned_memory_pool().free_all_blocks()


@pytest.mark.parametrize(
    ("get", "cls"),
    [
        (gpumem.get_default_memory_pool, MemoryPool),
        (gpumem.get_default_pinned_memory_pool, PinnedMemoryPool),
    ],
)
def test_everybody_gets_the_same_pool(get, cls, in_threads):
    pools = in_threads(8, lambda index: get())
    assert {id(pool) for pool in pools} == {id(get())}
    assert type(get()) is cls
    testing.check_pool(get())


def test_first_asked_by_many_threads_there_is_one(script):
    done = script(
        "import gpumem, sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "start, found = threading.Barrier(8), []\n"
        "def ask():\n"
        "    start.wait(30)\n"
        "    found.append(gpumem.get_default_memory_pool())\n"
        "threads = [threading.Thread(target=ask) for _ in range(8)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
        "print(len(found), len(set(map(id, found))))\n"
    )
    assert (done.stdout, done.stderr) == ("8 1\n", "")


def test_asking_touches_no_device(script):
    done = script(
        "import gpumem\n"
        "gpumem.get_default_memory_pool(); gpumem.get_default_pinned_memory_pool()\n"
        "gpumem.use_default_memory_pool()\n",
        GPUMEM_BACKEND="nonsense",  # an error at the first use of a device
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_one_call_leads_to_the_default_pool_and_back():
    """None as an allocator is no pool, not the default one."""
    default = gpumem.get_default_memory_pool()
    assert gpumem.get_allocator() is gpumem.malloc
    assert gpumem.use_default_memory_pool() is default
    assert gpumem.get_allocator() == default.malloc
    pointer = gpumem.alloc(700)
    assert type(pointer.mem) is PooledMemory
    assert default.used_bytes() == 1024
    other = MemoryPool()
    gpumem.set_allocator(other.malloc)
    assert gpumem.get_allocator() != default.malloc
    for none in ((), (None,)):
        gpumem.set_allocator(*none)
        assert gpumem.get_allocator() is gpumem.malloc
        assert type(gpumem.alloc(700).mem) is gpumem.Memory
    gpumem.use_default_memory_pool()
    assert gpumem.get_allocator() == default.malloc
    assert default.used_bytes() == 1024


def test_the_text_of_the_allocator_tells_which_is_active():
    assert repr(gpumem.get_allocator()) == "<built-in function malloc>"
    gpumem.use_default_memory_pool()
    text = repr(gpumem.get_allocator())
    assert "malloc of gpumem.MemoryPool object" in text
    assert hex(id(gpumem.get_default_memory_pool()))[2:] in text


def test_a_scope_stands_before_it():
    own = MemoryPool()
    with gpumem.using_allocator(own.malloc):
        with pytest.raises(ValueError, match="use_default_memory_pool"):
            gpumem.use_default_memory_pool()
        assert gpumem.get_allocator() == own.malloc
    assert gpumem.get_allocator() is gpumem.malloc


def test_the_pinned_one_serves_as_the_allocator():
    default = gpumem.get_default_pinned_memory_pool()
    gpumem.set_pinned_memory_allocator(default.malloc)
    try:
        pointer = gpumem.alloc_pinned_memory(1)
        assert default.used_bytes() == 512
        assert pointer.mem.pool() is default
    finally:
        gpumem.set_pinned_memory_allocator()


def test_they_live_until_the_process_ends(script):
    done = script(
        "import gpumem, gc\n"
        "gpumem.use_default_memory_pool()\n"
        "gpumem.alloc(1); kept = gpumem.alloc(1)\n"
        "pinned = gpumem.get_default_pinned_memory_pool().malloc(1)\n"
        "gc.collect()\n"
        "print(gpumem.get_default_memory_pool().total_bytes())\n"
        "print(gpumem.get_default_pinned_memory_pool().used_bytes())\n",
        GPUMEM_BACKEND="sim",
    )
    assert (done.stdout, done.stderr, done.returncode) == ("512\n512\n", "", 0)
