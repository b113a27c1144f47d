# SPDX-License-Identifier: MIT
"""Who keeps what alive: memory outlives its pool, goes back where it came from, once,
and whatever the collector can find, it can free."""

import gc
import sys
import weakref

import pytest

import gpumem
from gpumem import (
    Device,
    Memory,
    MemoryPointer,
    MemoryPool,
    SingleDeviceMemoryPool,
    testing,
)

UNIT = 512
MIB = 1 << 20


class Log:
    """A base allocator that notes what it gave and what came back: (address, size,
    current device)."""

    def __init__(self):
        self.taken = []
        self.freed = []

    def __call__(self, size):
        return MemoryPointer(Logged(size, self), 0)


class Logged(Memory):
    """What a Log gives."""

    def __init__(self, size, log):
        super().__init__(size)
        self.log = log
        log.taken.append((self.ptr, size, gpumem.get_device_id()))

    def __del__(self):
        self.log.freed.append((self.ptr, self.size, self.device_id))


# ---- memory outlives its pool ----


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
@pytest.mark.parametrize("offset", [0, 512])
def test_memory_outlives_its_pool(make, offset):
    pointer = make().malloc(MIB) + offset
    gc.collect()
    pattern = bytes(i % 251 for i in range(MIB - offset))
    pointer.copy_from_host(pattern, len(pattern))
    other = gpumem.malloc(MIB)  # would get the same address, had it been freed
    other.memset(0xFF, MIB)
    back = bytearray(len(pattern))
    pointer.copy_to_host(back, len(back))
    assert back == pattern
    assert pointer.mem.pool() is None


def test_memory_outlives_its_time_as_the_allocator(pool):
    gpumem.set_allocator(MemoryPool().malloc)
    pointer = gpumem.alloc(UNIT)
    gpumem.set_allocator(None)
    gc.collect()
    pointer.memset(1, UNIT)


@pytest.mark.sim_only
def test_the_last_pointer_gives_the_memory_back_once():
    with testing.call_log() as calls:
        pool = MemoryPool()
        blocks = [pool.malloc(UNIT) for _ in range(3)]
        cached = pool.malloc(8 * UNIT)
        del cached
        del pool
        blocks.reverse()
        while blocks:
            blocks.pop()
    taken = [c.ptr for c in calls if c.name == "mem_alloc"]
    freed = [c.ptr for c in calls if c.name == "mem_free"]
    assert len(taken) == 4
    assert sorted(freed) == sorted(taken)


@pytest.mark.sim_only
def test_a_dropped_pool_gives_its_cache_back_at_once():
    before = testing.ledger().allocations
    pool = MemoryPool()
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    piece = pool.malloc(UNIT)
    assert testing.ledger().allocations == before + 2
    del pool
    assert testing.ledger().allocations == before + 2  # one piece is still in use
    del piece
    assert testing.ledger().allocations == before + 1
    del kept
    assert testing.ledger().allocations == before


@pytest.mark.sim_only
def test_a_split_segment_goes_back_with_its_pool():
    before = testing.ledger().allocations
    pool = MemoryPool()
    pool.malloc(64 * UNIT)
    blocks = [pool.malloc(UNIT) for _ in range(64)]
    assert testing.ledger().allocations == before + 1
    del blocks
    del pool
    assert testing.ledger().allocations == before


# ---- it goes back where it came from ----


def test_memory_goes_back_to_its_pool_whatever_is_the_allocator_then(pool):
    pool.malloc(2 * UNIT)
    gpumem.set_allocator(pool.malloc)
    first, second = gpumem.alloc(UNIT), gpumem.alloc(UNIT)
    gpumem.set_allocator(None)
    raw = gpumem.alloc(UNIT)
    del second, first
    assert (pool.used_bytes(), pool.free_bytes(), pool.n_free_blocks()) == (
        *(0, 2 * UNIT, 1),
    )
    gpumem.set_allocator(pool.malloc)
    del raw
    assert (pool.used_bytes(), pool.free_bytes()) == (0, 2 * UNIT)


@pytest.mark.two_devices
def test_memory_goes_back_to_its_device_from_any_thread(in_threads):
    pool = MemoryPool()
    with Device(1):
        kept = [pool.malloc(UNIT)]

    def drop(index):
        before = gpumem.get_device_id()
        kept.clear()
        return before, gpumem.get_device_id()

    assert in_threads(1, drop) == [(0, 0)]
    assert pool.total_bytes() == 0
    with Device(1):
        assert (pool.used_bytes(), pool.free_bytes()) == (0, UNIT)


# ---- a Python base allocator ----


@pytest.mark.parametrize("end", ["free_all_blocks", "drop"])
def test_a_base_allocator_gets_every_segment_back_once_and_no_pieces(end):
    log = Log()
    pool = MemoryPool(log)
    segments = [pool.malloc(4 * UNIT) for _ in range(3)]
    del segments
    pieces = [pool.malloc(UNIT) for _ in range(10)]
    assert (len(log.taken), log.freed) == (3, [])
    del pieces
    assert log.freed == []
    if end == "free_all_blocks":
        pool.free_all_blocks()
    else:
        del pool
    assert sorted(log.freed) == sorted(log.taken)


def test_a_base_allocator_lives_while_its_memory_does():
    log = Log()
    alive = weakref.ref(log)
    taken, freed = log.taken, log.freed
    pointer = MemoryPool(log).malloc(UNIT)
    del log
    gc.collect()
    assert alive() is not None
    assert freed == []
    pointer.memset(1, UNIT)
    del pointer
    gc.collect()
    assert freed == taken and len(freed) == 1
    assert alive() is None


@pytest.mark.two_devices
def test_a_base_allocator_is_asked_on_the_pools_device():
    log = Log()
    pool = MemoryPool(log)
    with Device(1):
        pointer = pool.malloc(UNIT)
    assert [device for *_, device in log.taken] == [1]
    del pointer
    pool.free_all_blocks()  # of device 0, which has none
    assert log.freed == []
    with Device(1):
        pool.free_all_blocks()
    assert log.freed == log.taken
    assert gpumem.get_device_id() == 0


# ---- cycles ----


class Closing:
    """A base allocator that refers to its own pool."""

    def __init__(self, make):
        self.pool = make(self.malloc)

    def malloc(self, size):
        return gpumem.malloc(size)


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_an_allocator_that_refers_to_its_pool_is_collected(make):
    closing = Closing(make)
    closing.pool.malloc(UNIT)
    pointer = closing.pool.malloc(2 * UNIT)
    alive = weakref.ref(closing)
    del closing
    gc.collect()
    assert alive() is not None  # a block is still in use
    pointer.memset(1, 2 * UNIT)
    del pointer
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
def test_memory_that_refers_to_its_pool_is_collected(make):
    class Own(Memory):
        pass

    def base(size):
        memory = Own(size)
        memory.pool = pools[0]
        alive.append(weakref.ref(memory))
        return MemoryPointer(memory, 0)

    alive, pools = [], []
    pools.append(make(base))
    pools[0].malloc(UNIT)
    assert alive[0]() is not None  # cached
    pools.clear()
    gc.collect()
    assert alive[0]() is None


def test_a_pointer_in_a_cycle_goes_back_with_it(pool):
    def remember():
        view = pool.malloc(UNIT) + 256
        try:
            raise KeyError(view)
        except KeyError as error:
            kept = error  # refers to this frame, which refers to it
        return kept is not None

    remember()
    assert pool.used_bytes() == UNIT
    gc.collect()
    assert pool.used_bytes() == 0


def test_the_users_collector_stays_off(pool):
    class Ring:
        pass

    gc.disable()
    try:
        ring = Ring()
        ring.me, ring.pointer = ring, pool.malloc(UNIT)
        del ring
        for _ in range(3000):
            pool.malloc(UNIT)
        assert pool.used_bytes() == UNIT
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.collect()
    assert pool.used_bytes() == 0


def test_the_collector_may_run_at_any_moment(pool):
    class Ring:
        def __init__(self, pointer):
            self.me, self.pointer = self, pointer

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for i in range(2000):
            Ring(pool.malloc(UNIT * (1 + i % 30)))
            pool.malloc(UNIT * (1 + i % 7))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert pool.used_bytes() == 0


# ---- types ----


def test_no_object_leaves_a_reference_to_its_type(pool):
    class Own(gpumem.BaseMemory):
        pass

    def use():
        pointer = gpumem.malloc(8) + 0
        pointer += 1
        single = SingleDeviceMemoryPool()
        return (
            *(pointer, pointer.mem, pointer.device, pool.malloc(8), pool.malloc(8).mem),
            *(MemoryPool(), single, single.malloc(8).mem.pool, gpumem.BaseMemory()),
            *(gpumem.OutOfMemoryError(1, 2), gpumem.CUDARuntimeError(1), Own()),
            *(MemoryPointer(Own(), 0), gpumem.Stream(), gpumem.Event()),
        )

    types = {type(thing) for thing in use()}
    assert len(types) >= 13
    for _ in range(300):  # fills the lists of dead objects that are kept for reuse
        use()
    before = {kind: sys.getrefcount(kind) for kind in types}
    for _ in range(300):
        use()
    grown = {kind: sys.getrefcount(kind) - n for kind, n in before.items()}
    assert all(abs(n) < 10 for n in grown.values()), grown


def test_objects_in_the_hundreds_come_and_go(pool):
    for count in (1, 127, 128, 129, 500):
        pointers = [pool.malloc(UNIT) for _ in range(count)]
        assert pool.stats()["live_blocks"] == count
        assert (
            len({id(p) for p in pointers} | {id(p.mem) for p in pointers}) == 2 * count
        )
        del pointers
        assert pool.used_bytes() == 0
