# SPDX-License-Identifier: MIT
"""Running out of memory: what a pool gives back before it gives up, in which order, and
that a request which fails leaves everything as it was."""

import gc
import threading
import time

import pytest

import gpumem
from gpumem import MemoryPool, OutOfMemoryError, Stream, testing

UNIT = 512
MIB = 1 << 20


def in_a_cycle(pointer):
    """Makes garbage that holds `pointer` and that only the collector finds."""
    cycle = [pointer]
    cycle.append(cycle)


@pytest.fixture
def no_automatic_collection():
    collecting = gc.isenabled()
    gc.disable()
    yield
    if collecting:
        gc.enable()


# ---- the limit ----


def test_cached_memory_makes_room_under_the_limit(pool):
    pool.set_limit(size=2 * MIB)
    pool.malloc(MIB)
    pointer = pool.malloc(MIB + MIB // 2)
    assert pool.total_bytes() == pool.used_bytes() == MIB + MIB // 2
    assert pool.stats()["retries"] == 1
    del pointer


def test_the_cache_of_another_stream_makes_room_too(pool):
    pool.set_limit(size=2 * MIB)
    with Stream():
        pool.malloc(MIB)
    pointer = pool.malloc(MIB + MIB // 2)
    assert pool.total_bytes() == MIB + MIB // 2
    del pointer


def test_garbage_makes_room_though_the_user_switched_collecting_off(
    pool, no_automatic_collection
):
    pool.set_limit(size=2 * MIB)
    in_a_cycle(pool.malloc(MIB))
    assert pool.used_bytes() == MIB
    pointer = pool.malloc(MIB + MIB // 2)
    assert pool.total_bytes() == MIB + MIB // 2
    assert not gc.isenabled()
    del pointer


def test_garbage_of_another_thread_makes_room(
    pool, no_automatic_collection, in_threads
):
    pool.set_limit(size=2 * MIB)
    in_threads(1, lambda index: in_a_cycle(pool.malloc(MIB)))
    pointer = pool.malloc(MIB + MIB // 2)
    assert pool.total_bytes() == MIB + MIB // 2
    del pointer


def test_collecting_runs_only_where_giving_back_was_not_enough(pool):
    rounds = []

    def note(phase, info):
        rounds.append(phase)

    pool.set_limit(size=2 * MIB)
    pool.malloc(MIB)
    gc.collect()
    gc.callbacks.append(note)
    try:
        pointer = pool.malloc(MIB + MIB // 2)
        assert "start" not in rounds
        with pytest.raises(OutOfMemoryError):
            pool.malloc(MIB)
        assert rounds.count("start") >= 1
    finally:
        gc.callbacks.remove(note)
    del pointer


class UsesPool:
    """In a cycle with itself, and uses its pool when it is finalized."""

    def __init__(self, pool, seen):
        self.me, self.pool, self.seen = self, pool, seen
        self.pointer = pool.malloc(MIB)

    def __del__(self):
        self.seen.append(self.pool.used_bytes())
        self.pointer = None
        self.seen.append(self.pool.malloc(UNIT).mem.size)
        testing.check_pool(self.pool)


def test_a_finalizer_may_use_the_pool_that_collects(pool):
    seen = []
    pool.set_limit(size=2 * MIB)
    UsesPool(pool, seen)
    pointer = pool.malloc(2 * MIB)
    assert seen == [MIB, UNIT]
    assert pool.total_bytes() == 2 * MIB
    del pointer


def test_a_small_first_segment_does_not_spoil_the_whole_limit(pool):
    pool.malloc(MIB)
    pool.set_limit(size=4 * MIB)
    whole = pool.malloc(4 * MIB)
    del whole
    pool.free_all_blocks()
    eighths = [pool.malloc(MIB // 2) for _ in range(8)]
    assert pool.total_bytes() == 4 * MIB
    del eighths


def test_the_error_has_the_numbers_after_everything_was_given_back(pool):
    pool.set_limit(size=4 * MIB)
    kept = pool.malloc(MIB)
    pool.malloc(MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(4 * MIB - 100)
    error = caught.value
    assert (error.size, error.rounded_size) == (4 * MIB - 100, 4 * MIB)
    assert (error.total, error.limit) == (MIB, 4 * MIB)
    assert (pool.used_bytes(), pool.total_bytes()) == (MIB, MIB)
    assert pool.stats()["out_of_memory"] == 1
    del kept


@pytest.mark.sim_only
def test_the_limit_is_not_exceeded_at_any_instant(pool):
    pool.set_limit(size=2 * MIB)
    pool.malloc(MIB)
    with testing.call_log() as calls:
        pool.malloc(MIB + MIB // 2)
    names = [c.name for c in calls if c.name.startswith("mem_")]
    assert names == ["mem_free", "mem_alloc"]


def test_a_pool_over_its_limit_is_no_reason_to_empty_another(pool):
    other = MemoryPool()
    other.malloc(MIB)
    pool.set_limit(size=MIB)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(2 * MIB)
    assert other.free_bytes() == MIB


# ---- the device ----

SMALL_DEVICE = {"GPUMEM_BACKEND": "sim", "GPUMEM_SIM_MEMORY": "100MiB"}
PRELUDE = """
import gc, gpumem
from gpumem import MemoryPool, testing
MIB = 1 << 20
pool = MemoryPool()
"""


def on_a_small_device(script, code):
    """Runs `code` on a device of 100 MiB."""
    done = script(PRELUDE + code, **SMALL_DEVICE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_full_device_makes_the_pool_give_back_and_ask_again(script):
    code = """
kept = pool.malloc(30 * MIB)
cached = pool.malloc(30 * MIB)
address = cached.ptr
del cached
with testing.call_log() as calls:
    pointer = pool.malloc(60 * MIB)
for c in calls:
    if c.name.startswith("mem_"):
        print(c.name, c.status != 0, c.name == "mem_free" and c.ptr == address)
"""
    assert on_a_small_device(script, code).splitlines() == [
        "mem_alloc True False",
        "mem_free False True",
        "mem_alloc False False",
    ]


def test_the_cache_of_another_pool_makes_room(script):
    code = """
other = MemoryPool()
other.malloc(60 * MIB)
pointer = pool.malloc(70 * MIB)
print(other.total_bytes(), pool.total_bytes() == 70 * MIB)
"""
    assert on_a_small_device(script, code).split() == ["0", "True"]


def test_another_shortage_after_a_collection_starts_over(script):
    code = """
gc.disable()
other = MemoryPool()
other.malloc(60 * MIB)
pool.set_limit(size=90 * MIB)
cycle = [pool.malloc(30 * MIB)]
cycle.append(cycle)
del cycle
pointer = pool.malloc(90 * MIB)  # first the limit is in the way, then the device
print(other.total_bytes(), pool.total_bytes() == 90 * MIB)
"""
    assert on_a_small_device(script, code).split() == ["0", "True"]


def test_garbage_of_a_pool_over_this_one_makes_room(script):
    code = """
gc.disable()
outer = MemoryPool(pool.malloc)
cycle = [outer.malloc(60 * MIB)]
cycle.append(cycle)
del cycle
pointer = pool.malloc(90 * MIB)
print(outer.total_bytes(), pool.total_bytes() == 90 * MIB)
"""
    assert on_a_small_device(script, code).split() == ["0", "True"]


def test_pools_over_pools_give_back_in_turn(script):
    code = """
middle = MemoryPool(pool.malloc)
outer = MemoryPool(middle.malloc)
outer.malloc(60 * MIB)
gc.disable()
pointer = MemoryPool().malloc(90 * MIB)
print(pool.total_bytes(), middle.total_bytes(), outer.total_bytes())
"""
    assert on_a_small_device(script, code).split() == ["0", "0", "0"]


def test_under_a_limit_a_pool_over_this_one_gives_back_and_others_do_not(pool):
    outer, other = gpumem.MemoryPool(pool.malloc), gpumem.MemoryPool()
    other.malloc(MIB)
    pool.set_limit(size=3 * MIB)
    outer.malloc(2 * MIB)
    pointer = pool.malloc(3 * MIB)
    assert pointer.mem.size == pool.total_bytes() == 3 * MIB
    assert (outer.total_bytes(), other.total_bytes()) == (0, MIB)


def test_garbage_makes_room_on_a_full_device(script):
    code = """
gc.disable()
cycle = [pool.malloc(60 * MIB)]
cycle.append(cycle)
del cycle
other = [MemoryPool().malloc(20 * MIB)]
other.append(other)
del other
pointer = pool.malloc(90 * MIB)
print(gc.isenabled(), pool.total_bytes() == 90 * MIB)
"""
    assert on_a_small_device(script, code).split() == ["False", "True"]


def test_raw_memory_has_no_cache_to_give_back(script):
    code = """
pool.malloc(60 * MIB)
try:
    gpumem.malloc(60 * MIB)
except gpumem.CUDARuntimeError as error:
    print(error.status, pool.free_bytes() == 60 * MIB)
"""
    assert on_a_small_device(script, code).split() == ["2", "True"]


def test_many_failures_cost_nothing(script):
    code = """
import resource
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
kept = pool.malloc(MIB)
before = pool.stats()
start = 0
for i in range(600):
    try:
        pool.malloc(1 << 61)
    except gpumem.OutOfMemoryError as error:
        assert (error.size, error.total) == (1 << 61, MIB)
    if i == 100:
        start = resident()
grown = resident() - start
after = pool.stats()
print(after.pop("out_of_memory") == 600, after.pop("retries") >= 600)
del before["out_of_memory"], before["retries"]
print(after == before, grown < 256 * 1024 or grown, testing.last_error())
"""
    assert on_a_small_device(script, code).split() == ["True"] * 4 + ["0"]


# ---- failures in the middle ----

COUNTED = ("retries", "out_of_memory", "upstream_frees", "free_bytes", "total_bytes")
CHANGED = (
    *COUNTED,
    *("free_blocks", "segments", "arenas", "upstream_freed_bytes"),
    *("idle_bytes", "largest_free_block", "largest_available_block"),
)


@pytest.mark.sim_only
@pytest.mark.parametrize("limit", [0, 64 * MIB])
def test_one_shortage_is_survived(pool, limit):
    pool.set_limit(size=limit)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    with testing.fail("mem_alloc", nth=1, code=2):
        pointer = pool.malloc(8 * UNIT)
    assert (pool.used_bytes(), pool.total_bytes()) == (9 * UNIT, 9 * UNIT)
    assert testing.last_error() == 0
    del kept, pointer


@pytest.mark.sim_only
@pytest.mark.parametrize("limit", [0, 64 * MIB])
def test_a_lasting_shortage_leaves_what_is_in_use(pool, limit):
    pool.set_limit(size=limit)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    before = pool.stats()
    with testing.fail("mem_alloc", count=0, code=2):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(8 * UNIT)
    after = pool.stats()
    assert (caught.value.total, caught.value.limit) == (UNIT, limit)
    assert after["total_bytes"] == after["used_bytes"] == UNIT
    for name in set(before) - set(CHANGED):
        assert after[name] == before[name], name
    testing.check_pool(pool)
    assert testing.last_error() == 0
    del kept


@pytest.mark.sim_only
@pytest.mark.parametrize("code", [1, 46, 700])
@pytest.mark.parametrize(
    "make", [MemoryPool, lambda: MemoryPool(lambda n: gpumem.malloc(n))]
)
def test_another_error_is_not_taken_for_a_shortage(make, code):
    pool = make()
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    before = pool.stats()
    with testing.fail("mem_alloc", code=code):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            pool.malloc(8 * UNIT)
    assert caught.value.status == code
    assert pool.stats() == before
    testing.check_pool(pool)
    assert testing.last_error() == 0
    del kept


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("call", "code", "failures"),
    [
        ("mem_alloc", 2, 0),  # one shortage is survived
        ("mem_alloc", 1, 4),
        ("mem_alloc", 700, 4),
        ("stream_create", 2, 1),
        ("stream_create", 1, 1),
        ("set", 1, 1),
        ("copy", 1, 1),
    ],
)
def test_whichever_call_fails_nothing_is_lost(pool, call, code, failures):
    """Fails the n-th call of one kind for n = 1, 2, ..., beyond what there are."""

    def program():
        stream = Stream()  # there to the end: what it cached is its own until then
        with stream:
            pool.malloc(4 * UNIT)
        blocks = [pool.malloc(size * UNIT) for size in (1, 2, 3)]
        blocks[1].memset(1, UNIT)
        blocks[0].copy_from(blocks[1], UNIT)

    failed = []
    for nth in range(1, 7):
        before = testing.ledger()
        try:
            with testing.fail(call, nth=nth, code=code):
                program()
        except (OutOfMemoryError, gpumem.CUDARuntimeError):
            failed.append(nth)
        assert pool.used_bytes() == 0
        testing.check_pool(pool)
        pool.free_all_blocks()
        kept = {"peak_bytes": 0, "events": 0, "pending": 0}  # the pool's own marks
        assert testing.ledger()._replace(**kept) == before._replace(**kept)
    assert failed == list(range(1, failures + 1))


@pytest.mark.sim_only
def test_a_base_allocator_whose_device_fails_loses_nothing():
    pool = MemoryPool(lambda size: gpumem.malloc(size))
    before = testing.ledger()
    for nth in (1, 2, 3):
        with testing.fail("mem_alloc", nth=nth, count=0, code=2):
            with pytest.raises(OutOfMemoryError):
                blocks = []
                for _ in range(4):
                    blocks.append(pool.malloc(UNIT))
        del blocks
        testing.check_pool(pool)
        assert pool.used_bytes() == 0
        pool.free_all_blocks()
        assert testing.ledger().allocations == before.allocations


# ---- memory in flight ----


@pytest.mark.parametrize("limited", [True, False])
def test_memory_on_its_way_back_is_waited_for(in_threads, limited):
    """Another thread is giving back what this request needs: no reason to fail.

    That thread took it, too: without an interpreter lock an object of another thread
    ends when that one comes by, and not where it is given back.
    """
    given_back = []

    class Slow(gpumem.Memory):
        def __del__(self):
            given_back.append(self.size)
            started.set()
            time.sleep(0.2)
            room.append(self.size)

    room = [MIB]
    started = threading.Event()

    def allocate(size):
        if sum(room) < size:
            raise MemoryError
        room.append(-size)
        return gpumem.MemoryPointer(Slow(size), 0)

    pool = gpumem.SingleDeviceMemoryPool(allocate)
    if limited:
        pool.set_limit(size=MIB)

    def flush():
        pool.malloc(MIB)
        pool.free_all_blocks()

    def ask():
        assert started.wait(10)
        pointer = pool.malloc(MIB)
        assert given_back == [MIB]
        assert pool.used_bytes() == MIB
        del pointer

    in_threads(2, lambda index: (flush, ask)[index]())
    testing.check_pool(pool)


def test_a_request_above_the_limit_gives_up_nothing(pool):
    pool.set_limit(size=MIB)
    pool.malloc(MIB // 2)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(2 * MIB)
    assert pool.free_bytes() == MIB // 2


def test_sums_that_cannot_be_expressed_are_refused():
    class Claimed(gpumem.BaseMemory):
        pass

    def claim(size):
        memory = Claimed()
        memory.ptr, memory.size, memory.device_id = 512, size, 0
        return gpumem.MemoryPointer(memory, 0)

    pool = MemoryPool(claim)
    held = []
    with pytest.raises(OutOfMemoryError):
        for _ in range(5):
            held.append(pool.malloc(1 << 62))
    assert pool.total_bytes() == len(held) << 62 <= 1 << 63
    testing.check_pool(pool)
