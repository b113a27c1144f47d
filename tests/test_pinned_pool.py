# SPDX-License-Identifier: MIT
"""PinnedMemoryPool: reuse, sharing of segments, limits, allocators, lifetime."""

import gc
import weakref

import pytest

import gpumem
from gpumem import (
    Device,
    OutOfMemoryError,
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    PooledPinnedMemory,
    Stream,
    testing,
)

UNIT = 512
SEGMENT = 64 << 10


@pytest.fixture
def pool():
    pool = PinnedMemoryPool()
    yield pool
    testing.check_pool(pool)


def memory_calls(calls):
    return [(call.name, call.size) for call in calls if call.name.startswith("mem_")]


# ---- handing out ----


def test_it_hands_out_pinned_memory_in_whole_units(pool):
    pointer = pool.malloc(700)
    assert type(pointer) is PinnedMemoryPointer
    assert type(pointer.mem) is PooledPinnedMemory
    assert isinstance(pointer.mem, PinnedMemory)
    assert pointer.mem.size == pointer.size() == 2 * UNIT
    assert gpumem.is_memory_pinned(pointer.ptr)
    assert gpumem.is_memory_pinned(pointer.ptr + 2 * UNIT - 1)
    memoryview(pointer).cast("B")[:] = b"x" * 1024
    assert pool.malloc(size=UNIT).size() == UNIT


@pytest.mark.sim_only
def test_small_requests_share_what_is_locked(pool):
    """One page each would be eight times as much, and a call to the driver each."""
    with testing.call_log() as calls:
        kept = [pool.malloc(1) for _ in range(SEGMENT // UNIT)]
    assert memory_calls(calls) == [("mem_alloc", SEGMENT)]
    assert len({pointer.ptr for pointer in kept}) == len(kept)
    assert (pool.used_bytes(), pool.total_bytes()) == (SEGMENT, SEGMENT)
    assert pool.n_free_blocks() == 0


@pytest.mark.sim_only
def test_a_large_request_locks_little_more_than_itself(pool):
    with testing.call_log() as calls:
        pointer = pool.malloc(10 * SEGMENT + 1)
    assert memory_calls(calls) == [("mem_alloc", 11 * SEGMENT)]
    assert pool.free_bytes() == SEGMENT - UNIT
    with testing.call_log() as calls:
        rest = pool.malloc(SEGMENT - UNIT)
    assert memory_calls(calls) == []
    assert rest.ptr == pointer.ptr + pointer.size()


@pytest.mark.sim_only
def test_what_is_given_back_is_handed_out_again(pool):
    pointer = pool.malloc(1 << 20)
    address = pointer.ptr
    del pointer
    with testing.call_log() as calls:
        assert pool.malloc(1 << 20).ptr == address
        small = pool.malloc(SEGMENT)
        assert small.ptr == address
    assert memory_calls(calls) == []


@pytest.mark.sim_only
@pytest.mark.two_devices
def test_it_is_one_for_all_devices_and_streams(pool):
    """It is the host's: what was given back under one serves the other."""
    pointer = pool.malloc(UNIT)
    address = pointer.ptr
    del pointer
    with Device(1), Stream():
        again = pool.malloc(UNIT)
    assert again.ptr == address and again.mem.device_id == 0
    pool.free_all_blocks()
    with Device(1):
        other = PinnedMemoryPool()
        there = other.malloc(UNIT)
        assert there.mem.device_id == 1
        assert there.mem.device == Device(1)


def test_a_request_for_nothing_is_no_pools(pool):
    pointer = pool.malloc(0)
    assert type(pointer.mem) is PinnedMemory
    assert (pointer.ptr, pointer.size(), pool.total_bytes()) == (0, 0, 0)


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 2**64 - 511])
def test_more_than_can_be_is_out_of_memory(pool, size):
    with pytest.raises(OutOfMemoryError):
        pool.malloc(size)
    assert pool.total_bytes() == 0


# ---- giving back ----


def test_free_gives_back_once(pool):
    pointer = pool.malloc(UNIT)
    memory = pointer.mem
    assert memory.pool() is pool
    memory.free()
    memory.free()
    assert (memory.ptr, memory.size, memory.pool()) == (0, UNIT, None)
    assert pool.used_bytes() == 0
    del pointer, memory
    assert pool.free_bytes() == SEGMENT
    with pytest.raises(AttributeError):
        pool.malloc(1).mem.ptr = 5
    with pytest.raises(AttributeError):
        gpumem.BaseMemory.ptr.__set__(pool.malloc(1).mem, 5)


def test_memory_that_was_given_back_shows_no_bytes(pool):
    pointer = pool.malloc(UNIT)
    pointer.mem.free()
    for use in (lambda: memoryview(pointer), pointer.size):
        with pytest.raises(ValueError, match="given back"):
            use()


def test_a_buffer_puts_giving_back_off(pool):
    """Else somebody else's bytes would appear in it."""
    pointer = pool.malloc(UNIT)
    first, second = memoryview(pointer), memoryview(pointer + 8)
    pointer.mem.free()
    assert pointer.mem.ptr == 0
    assert pool.used_bytes() == UNIT
    other = pool.malloc(UNIT)
    memoryview(other).cast("B")[:] = b"o" * UNIT
    assert bytes(first) == bytes(UNIT) or b"o" not in bytes(first)
    first.release()
    assert pool.used_bytes() == 2 * UNIT
    second.release()
    assert pool.used_bytes() == UNIT


def test_a_buffer_alone_keeps_the_memory(pool):
    view = memoryview(pool.malloc(UNIT))
    gc.collect()
    assert pool.used_bytes() == UNIT
    view.release()
    assert pool.used_bytes() == 0


@pytest.mark.sim_only
def test_a_copy_under_way_keeps_the_memory_and_no_longer(pool):
    """Else the next to get it would change what is still to be copied."""
    stream, target = Stream(non_blocking=True), gpumem.malloc(SEGMENT)
    source = pool.malloc(SEGMENT)
    address = source.ptr
    memoryview(source).cast("B")[:] = b"s" * SEGMENT
    target.copy_from_host_async(source, SEGMENT, stream)
    source.mem.free()
    del source
    other = pool.malloc(SEGMENT)
    assert other.ptr != address
    memoryview(other).cast("B")[:] = b"o" * SEGMENT
    stream.synchronize()
    back = bytearray(SEGMENT)
    target.copy_to_host(back, SEGMENT)
    assert back == b"s" * SEGMENT
    with testing.call_log() as calls:
        assert pool.malloc(SEGMENT).ptr == address  # without taking more
    assert memory_calls(calls) == []


@pytest.mark.sim_only
def test_free_all_blocks_gives_back_what_is_idle(pool):
    kept = pool.malloc(1)
    dropped = pool.malloc(10 * SEGMENT)
    del dropped
    with testing.call_log() as calls:
        pool.free_all_blocks()
    assert [name for name, _ in memory_calls(calls)] == ["mem_free"]
    assert pool.total_bytes() == SEGMENT
    del kept
    pool.free_all_blocks()
    assert (pool.total_bytes(), pool.n_free_blocks()) == (0, 0)


def test_memory_outlives_its_pool():
    pool = PinnedMemoryPool()
    pointer = pool.malloc(UNIT)
    address = pointer.ptr
    memoryview(pointer).cast("B")[:3] = b"abc"
    del pool
    gc.collect()
    assert bytes(pointer)[:3] == b"abc"
    assert pointer.mem.pool() is None
    del pointer
    assert not gpumem.is_memory_pinned(address)


def test_many_threads_share_a_pool(pool, in_threads):
    def work(index):
        for i in range(200):
            pointer = pool.malloc(1 + (i * 37) % 3000)
            view = memoryview(pointer).cast("B")
            view[:] = bytes([index]) * len(view)
            if i % 3 == 0:
                pointer.mem.free()
            assert set(view) == {index}
            view.release()

    in_threads(4, work)
    assert pool.used_bytes() == 0


# ---- figures and limits ----


def test_the_counters_tell_what_happened(pool):
    a, b = pool.malloc(1000), pool.malloc(1)
    stats = pool.stats()
    assert stats["requested_bytes"] == 1001
    assert stats["used_bytes"] == pool.used_bytes() == 3 * UNIT
    assert stats["total_bytes"] == pool.total_bytes() == SEGMENT
    assert stats["free_bytes"] == pool.free_bytes() == SEGMENT - 3 * UNIT
    assert (stats["misses"], stats["hits"], stats["live_blocks"]) == (1, 1, 2)
    del a, b
    stats = pool.stats()
    assert (stats["used_bytes"], stats["peak_used_bytes"]) == (0, 3 * UNIT)


def test_the_limit_holds_and_is_met_to_the_unit(pool):
    pool.set_limit(size=3 * UNIT)
    assert pool.get_limit() == 3 * UNIT
    kept = pool.malloc(2 * UNIT)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(UNIT + 1)
    assert (caught.value.rounded_size, caught.value.limit) == (2 * UNIT, 3 * UNIT)
    assert pool.malloc(UNIT).size() == UNIT
    del kept
    assert pool.malloc(3 * UNIT).size() == 3 * UNIT  # what is cached made room
    assert pool.total_bytes() <= 3 * UNIT


def test_a_fraction_is_of_the_hosts_memory(pool):
    with open("/proc/meminfo") as file:
        total = int(file.readline().split()[1]) * 1024
    pool.set_limit(fraction=0.5)
    assert abs(pool.get_limit() - total / 2) < total / 100
    pool.set_limit()
    assert pool.get_limit() == 0
    with pytest.raises(ValueError):
        pool.set_limit(fraction=1.5)


def test_limits_of_the_environment_are_the_devices(script):
    done = script(
        "import gpumem\nprint(gpumem.PinnedMemoryPool().get_limit())",
        GPUMEM_MEMORY_LIMIT="1KiB",
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.sim_only
def test_want_of_memory_gives_back_what_is_idle_in_every_pinned_pool(pool):
    other = PinnedMemoryPool()
    for each in (pool, other):
        each.malloc(SEGMENT)
    device = gpumem.MemoryPool()
    device.malloc(UNIT)
    with testing.call_log() as calls, testing.fail("mem_alloc", count=4):
        pool.malloc(2 * SEGMENT - UNIT)  # fails whole and exactly, twice
    assert [name for name, _ in memory_calls(calls)].count("mem_free") == 2
    assert other.total_bytes() == 0
    assert device.total_bytes() == UNIT  # is another kind of memory


@pytest.mark.sim_only
def test_when_there_is_none_left_it_says_so(pool):
    with testing.fail("mem_alloc", count=0):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(1000)
    error = caught.value
    assert (error.size, error.rounded_size, error.total) == (1000, 1024, 0)
    assert (error.device, error.cause) == (None, "allocator")
    with testing.fail("mem_alloc", code=700):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            pool.malloc(1000)
    assert caught.value.status == 700
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
def test_hooks_are_told_nothing_of_it(pool):
    told = []

    class Hook(gpumem.MemoryHook):
        name = "told"

        def alloc_preprocess(self, **kwargs):
            told.append(kwargs)

        malloc_preprocess = free_preprocess = alloc_preprocess

    with Hook():
        pool.malloc(UNIT)
        pool.free_all_blocks()
    assert told == []


# ---- over an allocator ----


def test_it_can_lie_over_a_function():
    asked, made = [], []

    def take(size):
        asked.append(size)
        made.append(weakref.ref(memory := PinnedMemory(size + 8)))
        return PinnedMemoryPointer(memory, 8)

    class PinnedMemory(gpumem.PinnedMemory):
        pass

    pool = PinnedMemoryPool(take)
    pointer = pool.malloc(1)
    assert asked == [SEGMENT]
    assert pointer.ptr == made[0]().ptr + 8
    del pointer
    pool.free_all_blocks()
    assert made[0]() is None
    testing.check_pool(pool)


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (None, TypeError),
        (5, TypeError),
        (gpumem.malloc(0), TypeError),
        (PinnedMemoryPointer.__new__(PinnedMemoryPointer), ValueError),
        (gpumem.malloc_pinned(0), OutOfMemoryError),
    ],
)
def test_what_the_function_returns_is_checked(result, error):
    pool = PinnedMemoryPool(lambda size: result)
    with pytest.raises(error):
        pool.malloc(1)
    assert pool.total_bytes() == 0


def test_memory_that_is_too_short_is_refused():
    short = gpumem.malloc_pinned(SEGMENT)
    pool = PinnedMemoryPool(lambda size: short + 1)
    with pytest.raises(ValueError, match="offset 1"):
        pool.malloc(1)


def test_a_function_that_raises():
    def take(size):
        raise KeyError(size)

    with pytest.raises(KeyError, match=str(SEGMENT)):
        PinnedMemoryPool(take).malloc(1)
    with pytest.raises(TypeError, match="callable"):
        PinnedMemoryPool(5)
    assert PinnedMemoryPool(allocator=None).malloc(1).ptr
    assert PinnedMemoryPool(gpumem.malloc_pinned).malloc(1).ptr


def test_a_function_that_closes_over_its_pool_is_collected():
    def make():
        def take(size):
            return own.inner(size)

        class Pool(PinnedMemoryPool):
            inner = staticmethod(gpumem.malloc_pinned)

        own = Pool(take)
        own.malloc(1)
        return weakref.ref(own)

    gone = make()
    gc.collect()
    assert gone() is None


def test_a_pool_is_initialised_once(pool):
    with pytest.raises(RuntimeError, match="once"):
        pool.__init__()
    unmade = PinnedMemoryPool.__new__(PinnedMemoryPool)
    with pytest.raises(RuntimeError, match="not initialized"):
        unmade.malloc(1)


# ---- the current allocator ----


def test_at_first_there_is_no_pool_and_none_means_that_again(pool):
    assert gpumem.get_pinned_memory_allocator() is gpumem.malloc_pinned
    assert type(gpumem.alloc_pinned_memory(1).mem) is PinnedMemory
    gpumem.set_pinned_memory_allocator(pool.malloc)
    try:
        assert gpumem.get_pinned_memory_allocator() == pool.malloc
        assert type(gpumem.alloc_pinned_memory(size=1).mem) is PooledPinnedMemory
    finally:
        gpumem.set_pinned_memory_allocator(None)
    assert gpumem.get_pinned_memory_allocator() is gpumem.malloc_pinned
    gpumem.set_pinned_memory_allocator(allocator=pool.malloc)
    gpumem.set_pinned_memory_allocator()
    assert gpumem.get_pinned_memory_allocator() is gpumem.malloc_pinned


def test_what_is_no_allocator_and_no_pinned_memory_is_refused():
    with pytest.raises(TypeError, match="callable"):
        gpumem.set_pinned_memory_allocator(5)
    gpumem.set_pinned_memory_allocator(gpumem.malloc)
    try:
        with pytest.raises(TypeError, match="PinnedMemoryPointer"):
            gpumem.alloc_pinned_memory(1)
    finally:
        gpumem.set_pinned_memory_allocator()
    with pytest.raises(TypeError):
        gpumem.alloc_pinned_memory(1.5)
