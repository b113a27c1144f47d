# SPDX-License-Identifier: MIT
"""What both pool types do: cut, keep, join and give back memory, count it, limit it.

A unit is 512 bytes; "4 u" below are four of them. The expected places and counts are
those of exact best fit with splitting and joining, worked out by hand.
"""

import math

import pytest

import gpumem
from gpumem import Device, MemoryPool, SingleDeviceMemoryPool, Stream, testing

UNIT = 512


@pytest.fixture(params=[MemoryPool, SingleDeviceMemoryPool])
def pool(request):
    pool = request.param()
    yield pool
    testing.check_pool(pool)


def counts(pool):
    """Used, free and total in units, and how many free blocks."""
    numbers = (pool.used_bytes(), pool.free_bytes(), pool.total_bytes())
    assert all(number % UNIT == 0 for number in numbers)
    return (*(number // UNIT for number in numbers), pool.n_free_blocks())


# ---- sizes ----


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (1, 512),
        (511, 512),
        (512, 512),
        (513, 1024),
        (1023, 1024),
        (1 << 20, 1 << 20),
        ((1 << 20) + 1, (1 << 20) + 512),
    ],
)
def test_a_request_is_rounded_up_to_whole_units(pool, asked, given):
    pointer = pool.malloc(asked)
    assert pointer.mem.size == pool.used_bytes() == pool.total_bytes() == given
    assert pool.stats()["requested_bytes"] == asked
    assert pointer.ptr % 256 == 0


def test_a_request_for_nothing_takes_and_counts_nothing(pool):
    pointer = pool.malloc(0)
    assert (pointer.ptr, pointer.mem.ptr, pointer.mem.size) == (0, 0, 0)
    assert type(pointer.mem) is gpumem.Memory
    assert pointer.device_id == gpumem.get_device_id()
    assert counts(pool) == (0, 0, 0, 0)


# ---- reuse ----


def test_what_goes_back_serves_the_next_request(pool):
    pointer = pool.malloc(4 * UNIT)
    address = pointer.ptr
    del pointer
    assert counts(pool) == (0, 4, 4, 1)
    assert pool.malloc(4 * UNIT).ptr == address
    assert pool.stats()["hits"] == pool.stats()["misses"] == 1


def test_a_larger_block_is_cut_from_its_start(pool):
    whole = pool.malloc(4 * UNIT)
    address = whole.ptr
    del whole
    head = pool.malloc(2 * UNIT)
    assert head.ptr == address
    assert counts(pool) == (2, 2, 4, 1)
    tail = pool.malloc(2 * UNIT)
    assert tail.ptr == address + 2 * UNIT
    assert counts(pool) == (4, 0, 4, 0)


def test_even_one_unit_is_split_off(pool):
    del_me = pool.malloc(4 * UNIT)
    address = del_me.ptr
    del del_me
    first = pool.malloc(3 * UNIT)
    last = pool.malloc(1)
    assert (first.ptr, last.ptr) == (address, address + 3 * UNIT)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_are_joined(pool, order):
    del_me = pool.malloc(6 * UNIT)
    address = del_me.ptr
    del del_me
    parts = [pool.malloc(2 * UNIT) for _ in range(3)]
    for index in order:
        parts[index] = None
    assert counts(pool) == (0, 6, 6, 1)
    assert pool.malloc(6 * UNIT).ptr == address
    assert pool.stats()["misses"] == 1


def test_a_live_block_keeps_its_neighbours_apart(pool):
    del_me = pool.malloc(6 * UNIT)
    del del_me
    parts = [pool.malloc(2 * UNIT) for _ in range(3)]
    parts[0] = parts[2] = None
    assert counts(pool) == (2, 4, 6, 2)
    larger = pool.malloc(3 * UNIT)
    assert pool.stats()["misses"] == 2
    assert larger.ptr not in range(parts[1].ptr - 2 * UNIT, parts[1].ptr + 4 * UNIT)


def test_the_smallest_block_that_fits_is_taken(pool):
    sizes = (8, 3, 5, 4)
    blocks = [pool.malloc(size * UNIT) for size in sizes]
    places = {size: block.ptr for size, block in zip(sizes, blocks, strict=True)}
    del blocks
    assert pool.malloc(3 * UNIT).ptr == places[3]
    kept = [pool.malloc(4 * UNIT), pool.malloc(4 * UNIT)]
    assert [block.ptr for block in kept] == [places[4], places[5]]


def test_of_equal_blocks_the_oldest_segment_is_taken(pool):
    blocks = [pool.malloc(2 * UNIT) for _ in range(4)]
    places = [testing.placement(block) for block in blocks]
    assert places == [(0, 0), (1, 0), (2, 0), (3, 0)]
    blocks[3] = blocks[1] = blocks[2] = None
    again = [pool.malloc(2 * UNIT) for _ in range(3)]
    assert [testing.placement(block) for block in again] == places[1:]


def test_in_one_segment_the_lowest_address_is_taken(pool):
    del_me = pool.malloc(6 * UNIT)
    del del_me
    parts = [pool.malloc(UNIT) for _ in range(6)]
    parts[4] = parts[2] = parts[0] = None
    again = [pool.malloc(UNIT) for _ in range(3)]
    assert [testing.placement(p) for p in again] == [(0, 0), (0, 1024), (0, 2048)]


def test_memory_of_one_stream_is_not_given_to_another(pool):
    stream = Stream()
    with stream:
        pointer = pool.malloc(UNIT)
    address = pointer.ptr
    del pointer  # dropped elsewhere, it goes back to the stream it was made for
    assert pool.malloc(UNIT).ptr != address
    with stream:
        assert pool.malloc(UNIT).ptr == address


def test_live_memory_does_not_overlap(pool):
    blocks = [pool.malloc(size * 100) for size in range(1, 200)]
    del blocks[::3]
    blocks += [pool.malloc(size * 37) for size in range(1, 300)]
    ranges = sorted((block.ptr, block.ptr + block.mem.size) for block in blocks)
    assert all(
        end <= start for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False)
    )
    assert pool.used_bytes() == sum(block.mem.size for block in blocks)


def test_the_content_of_a_block_is_its_own(pool):
    blocks = [pool.malloc(1000) for _ in range(8)]
    for value, block in enumerate(blocks):
        block.memset(value, 1024)
    del blocks[::2]
    more = [pool.malloc(700) for _ in range(8)]
    for block in more:
        block.memset(255, 1024)
    for value, block in zip((1, 3, 5, 7), blocks, strict=True):
        buffer = bytearray(1024)
        block.copy_to_host(buffer, 1024)
        assert buffer == bytes([value]) * 1024


# ---- giving back ----


def test_free_all_blocks_gives_whole_segments_back(pool):
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    pool.malloc(8 * UNIT)
    assert counts(pool) == (1, 12, 13, 2)
    pool.free_all_blocks()
    assert counts(pool) == (1, 0, 1, 0)
    assert pool.stats()["upstream_frees"] == 2
    del kept


def test_a_segment_with_a_live_piece_stays(pool):
    pool.malloc(4 * UNIT)
    piece = pool.malloc(UNIT)
    pool.free_all_blocks()
    assert counts(pool) == (1, 3, 4, 1)
    del piece
    pool.free_all_blocks()
    assert counts(pool) == (0, 0, 0, 0)


def test_free_all_blocks_of_one_stream_leaves_the_others(pool):
    here, there = Stream(), Stream()
    with here:
        pool.malloc(UNIT)
    with there:
        pool.malloc(2 * UNIT)
    pool.malloc(4 * UNIT)
    pool.free_all_blocks(stream=there)
    assert counts(pool) == (0, 5, 5, 2)
    pool.free_all_blocks(there)  # has nothing more
    pool.free_all_blocks(Stream())  # never had anything
    assert counts(pool) == (0, 5, 5, 2)
    pool.free_all_blocks(Stream.null)
    assert counts(pool) == (0, 1, 1, 1)
    pool.free_all_blocks(None)
    assert counts(pool) == (0, 0, 0, 0)


def test_free_all_blocks_takes_a_stream_and_nothing_else(pool):
    pool.malloc(UNIT)
    for stream in (0, "s", object(), pool):
        with pytest.raises(TypeError, match="stream"):
            pool.free_all_blocks(stream)
    with pytest.raises(TypeError):
        pool.free_all_blocks(None, None)
    assert counts(pool) == (0, 1, 1, 1)


def test_free_all_free_is_the_deprecated_name(pool):
    pool.malloc(UNIT)
    with pytest.warns(DeprecationWarning, match="free_all_blocks"):
        pool.free_all_free()
    assert counts(pool) == (0, 0, 0, 0)


@pytest.mark.sim_only
def test_the_device_sees_whole_segments_alone(pool):
    with testing.call_log() as calls:
        blocks = [pool.malloc(size * UNIT) for size in (4, 6)]
        del blocks
        parts = [pool.malloc(2 * UNIT) for _ in range(5)]
        del parts
        pool.free_all_blocks()
    taken = [(c.ptr, c.size) for c in calls if c.name == "mem_alloc"]
    freed = [c.ptr for c in calls if c.name == "mem_free"]
    assert [size for _, size in taken] == [4 * UNIT, 6 * UNIT]
    assert sorted(freed) == sorted(ptr for ptr, _ in taken)


@pytest.mark.sim_only
def test_a_hit_asks_the_device_for_nothing(pool):
    del_me = pool.malloc(UNIT)
    del del_me
    with testing.call_log() as calls:
        for _ in range(100):
            pool.malloc(UNIT)
    assert {call.name for call in calls} <= {"device_get"}


# ---- statistics ----


def test_a_new_pool_holds_nothing(pool):
    assert counts(pool) == (0, 0, 0, 0)
    assert pool.get_limit() == 0
    assert set(pool.stats().values()) == {0}


# What only a pool with expandable segments has.
PAGES = (
    *("reserved_bytes", "pages", "mappings"),
    *("remapped_pages", "returned_pages", "driver_ns"),
)


def test_the_counters_tell_what_happened(pool):
    first = pool.malloc(1000)
    second = pool.malloc(100)
    del first
    third = pool.malloc(10)
    del second, third
    pool.free_all_blocks()
    stats = pool.stats()
    assert stats == {
        "requested_bytes": 0,
        "used_bytes": 0,
        "free_bytes": 0,
        "pending_bytes": 0,
        "captured_bytes": 0,
        "pending_blocks": 0,
        "captured_blocks": 0,
        "total_bytes": 0,
        "limit_bytes": 0,
        "peak_requested_bytes": 1100,
        "peak_used_bytes": 1536,
        "peak_free_bytes": 1536,
        "peak_pending_bytes": 0,
        "peak_total_bytes": 1536,
        "allocated_requested_bytes": 1110,
        "freed_requested_bytes": 1110,
        "allocated_bytes": 2048,
        "freed_bytes": 2048,
        "upstream_allocated_bytes": 1536,
        "upstream_freed_bytes": 1536,
        "live_blocks": 0,
        "free_blocks": 0,
        "segments": 0,
        "arenas": stats["arenas"],
        "peak_live_blocks": 2,
        "peak_segments": 2,
        "allocated_blocks": 3,
        "freed_blocks": 3,
        "hits": 1,
        "misses": 2,
        "splits": 1,
        "merges": 1,
        "upstream_allocations": 2,
        "upstream_frees": 2,
        "pending_release_bytes": 0,
        "reserve_bytes": 0,
        **dict.fromkeys(PAGES, 0),
        "lost_segments": 0,
        "lost_bytes": 0,
        "retries": 0,
        "out_of_memory": 0,
        "deferred_frees": 0,
        "idle_bytes": 0,
        "inactive_split_bytes": 0,
        "largest_free_block": 0,
        "largest_available_block": stats["largest_available_block"],
    }


def test_used_and_free_make_the_total(pool):
    blocks = [pool.malloc(size) for size in range(1, 6000, 97)]
    for step in (3, 2, 5):
        del blocks[::step]
        blocks += [pool.malloc(size) for size in range(1, 3000, 131)]
        assert pool.used_bytes() + pool.free_bytes() == pool.total_bytes()
        assert pool.used_bytes() == sum(block.mem.size for block in blocks)
        stats = pool.stats()
        assert stats["live_blocks"] == len(blocks)
        assert stats["free_blocks"] == pool.n_free_blocks()
        testing.check_pool(pool)


# ---- the limit ----


def test_a_limit_is_what_was_set_last(pool):
    total = Device().mem_info[1]
    for arguments, limit in (
        ({"size": 1024}, 1024),
        ({"fraction": 0.5}, total // 2),
        ({"fraction": 1}, total),
        ({"size": 2**64 - 1}, 2**64 - 1),
        ({"size": 100, "fraction": None}, 100),
        ({"size": 0}, 0),
        ({"size": 5}, 5),
        ({"fraction": 0.0}, 0),
        ({"size": 5}, 5),
        ({}, 0),
    ):
        pool.set_limit(**arguments)
        assert pool.get_limit() == pool.stats()["limit_bytes"] == limit
    pool.set_limit(7)
    assert pool.get_limit() == 7


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"size": 1, "fraction": 0.5}, ValueError),
        ({"size": 0, "fraction": 0}, ValueError),
        ({"size": -1}, ValueError),
        ({"size": 2**64}, ValueError),
        ({"size": 1.0}, TypeError),
        ({"size": "1"}, TypeError),
        ({"fraction": -0.1}, ValueError),
        ({"fraction": 1.1}, ValueError),
        ({"fraction": math.nan}, ValueError),
        ({"fraction": math.inf}, ValueError),
        ({"fraction": "0.5"}, TypeError),
        ({"bytes": 1}, TypeError),
    ],
)
def test_a_limit_that_makes_no_sense_changes_nothing(pool, arguments, error):
    pool.set_limit(size=4096)
    with pytest.raises(error):
        pool.set_limit(**arguments)
    assert pool.get_limit() == 4096


@pytest.mark.parametrize("fraction", [1e-12, 5e-324])
def test_a_fraction_of_less_than_a_byte_is_a_byte_and_not_no_limit(pool, fraction):
    pool.set_limit(fraction=fraction)
    assert pool.get_limit() == 1
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.malloc(1)


def test_a_limit_allows_as_much_and_no_more(pool):
    pool.set_limit(size=4 * UNIT)
    kept = pool.malloc(3 * UNIT)
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.malloc(UNIT + 1)
    assert counts(pool) == (3, 0, 3, 0)
    last = pool.malloc(UNIT)
    assert counts(pool) == (4, 0, 4, 0)
    pool.set_limit()
    more = pool.malloc(UNIT)
    del kept, last, more


def test_a_limit_below_what_is_held_drops_the_cache_and_nothing_in_use(pool):
    kept = pool.malloc(4 * UNIT)
    pool.malloc(2 * UNIT)  # a segment of its own
    pool.set_limit(size=6 * UNIT)
    assert counts(pool) == (4, 2, 6, 1)
    pool.set_limit(size=UNIT)
    assert counts(pool) == (4, 0, 4, 0)
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.malloc(UNIT)
    del kept


def test_a_limit_below_what_is_held_leaves_what_shares_a_segment(pool):
    pool.malloc(4 * UNIT)
    kept = pool.malloc(UNIT)
    pool.set_limit(size=UNIT)
    assert counts(pool) == (1, 3, 4, 1)
    assert pool.malloc(3 * UNIT).mem.size == 3 * UNIT  # served from what is cached
    del kept
    assert counts(pool) == (0, 4, 4, 1)


# ---- the types ----


def test_the_base_type_is_not_to_be_made():
    with pytest.raises(TypeError):
        MemoryPool.__base__()


@pytest.mark.parametrize("allocator", [1, "malloc", object(), 0])
@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_a_base_allocator_must_be_callable(make, allocator):
    with pytest.raises(TypeError, match="callable"):
        make(allocator)
    with pytest.raises(TypeError):
        make(None, None)
    assert make(allocator=None).malloc(1).mem.size == UNIT


def test_a_pool_can_be_subclassed(pool):
    class Counting(type(pool)):
        requests = 0

        def malloc(self, size):
            self.requests += 1
            return super().malloc(size)

    counting = Counting()
    gpumem.set_allocator(counting.malloc)
    pointer = gpumem.alloc(100)
    assert (counting.requests, counting.used_bytes()) == (1, UNIT)
    del pointer


# ---- MemoryPool alone ----


@pytest.mark.two_devices
def test_every_method_is_about_the_current_device():
    pool = MemoryPool()
    here = pool.malloc(UNIT)
    pool.set_limit(size=8 * UNIT)
    with Device(1):
        assert counts(pool) == (0, 0, 0, 0)
        assert pool.get_limit() == 0
        there = pool.malloc(2 * UNIT)
        assert there.device_id == there.mem.device_id == 1
        assert counts(pool) == (2, 0, 2, 0)
    assert (here.device_id, counts(pool)) == (0, (1, 0, 1, 0))
    del there  # goes back to its own device's pool
    assert counts(pool) == (1, 0, 1, 0)
    pool.free_all_blocks()
    with Device(1):
        assert counts(pool) == (0, 2, 2, 1)
        pool.free_all_blocks()
        assert counts(pool) == (0, 0, 0, 0)
    del here


@pytest.mark.sim_only
def test_asking_makes_no_pool_and_touches_no_device():
    with testing.call_log() as calls:
        pool = MemoryPool()
        assert counts(pool) == (0, 0, 0, 0)
        pool.get_limit(), pool.stats(), pool.free_all_blocks()
        repr(pool)
    assert {call.name for call in calls} <= {"device_get"}


def test_testing_takes_pools_and_pooled_memory_alone():
    for thing in (None, 1, gpumem.malloc(1)):
        with pytest.raises(TypeError):
            testing.check_pool(thing)
    for thing in (None, 1, gpumem.malloc(1), MemoryPool().malloc(0)):
        with pytest.raises(TypeError):
            testing.placement(thing)
    pointer = MemoryPool().malloc(1)
    pointer.mem.free()
    with pytest.raises(ValueError, match="given back"):
        testing.placement(pointer)


# ---- initialising ----


@pytest.mark.parametrize("kind", [gpumem.MemoryPool, gpumem.SingleDeviceMemoryPool])
def test_a_subclass_may_have_arguments_of_its_own(kind):
    class Named(kind):
        def __init__(self, name, allocator):
            super().__init__(allocator)
            self.name = name

    taken = []

    def allocate(size):
        taken.append(size)
        return gpumem.malloc(size)

    pool = Named("mine", allocator=allocate)
    assert pool.malloc(1000).mem.size == 1024
    assert (pool.name, taken) == ("mine", [1024])


@pytest.mark.parametrize("kind", [gpumem.MemoryPool, gpumem.SingleDeviceMemoryPool])
def test_a_pool_is_initialised_once_and_first(kind):
    pool = kind.__new__(kind)
    for use in (pool.used_bytes, pool.free_all_blocks, lambda: pool.malloc(1)):
        with pytest.raises(RuntimeError, match="not initialized"):
            use()
    pool.__init__()
    assert pool.malloc(1).mem.size == 512
    with pytest.raises(RuntimeError, match="once"):
        pool.__init__()
