# SPDX-License-Identifier: MIT
"""Dead objects in cycles held device memory, and a request failed that a collection
would have made room for. chainer/chainer#2257,
https://github.com/chainer/chainer/issues/2257"""

import gc
import threading

import pytest
from casekit import MIB, collector_off, in_a_cycle

import gpumem
from gpumem import MemoryPool, OutOfMemoryError, testing


def garbage_makes_room(raw_too):
    pool = MemoryPool()
    gc.disable()
    in_a_cycle(pool.malloc(60 * MIB))
    if raw_too:  # what a collection frees need not be the pool's
        in_a_cycle(gpumem.malloc(20 * MIB))
    pointer = pool.malloc((90 if raw_too else 60) * MIB)
    assert not gc.isenabled()
    assert pool.total_bytes() == pool.used_bytes() == pointer.mem.size
    testing.check_pool(pool)


@pytest.mark.parametrize("raw_too", [False, True])
def test_u03_garbage_makes_room_on_a_full_device(apart, raw_too):
    apart(garbage_makes_room, raw_too, memory="100MiB")


@pytest.mark.parametrize("collecting", [True, False])
def test_u03_the_collector_is_left_as_it_was(pool, collecting):
    pool.set_limit(size=100 * MIB)
    with collector_off():
        if collecting:
            gc.enable()
        settings = gc.isenabled(), gc.get_threshold(), gc.get_debug()
        in_a_cycle(pool.malloc(60 * MIB))
        pointer = pool.malloc(60 * MIB)
        assert (gc.isenabled(), gc.get_threshold(), gc.get_debug()) == settings
    assert pool.total_bytes() == pool.used_bytes() == 60 * MIB
    del pointer


def test_u03_garbage_made_after_a_freeze_makes_room(pool):
    pool.set_limit(size=100 * MIB)
    with collector_off():
        gc.freeze()
        try:
            frozen = gc.get_freeze_count()
            in_a_cycle(pool.malloc(60 * MIB))
            pointer = pool.malloc(60 * MIB)
            assert gc.get_freeze_count() == frozen
        finally:
            gc.unfreeze()
    assert pool.total_bytes() == pool.used_bytes() == 60 * MIB
    del pointer


def test_u03_what_the_program_froze_stays_frozen(pool):
    """It told the collector to leave these objects alone, so the request is refused,
    and it is served once they may be collected."""
    pool.set_limit(size=100 * MIB)
    with collector_off():
        in_a_cycle(pool.malloc(60 * MIB))
        gc.freeze()
        try:
            frozen = gc.get_freeze_count()
            with pytest.raises(OutOfMemoryError):
                pool.malloc(60 * MIB)
            assert gc.get_freeze_count() == frozen
            assert pool.used_bytes() == 60 * MIB
        finally:
            gc.unfreeze()
        pointer = pool.malloc(60 * MIB)
    assert pool.total_bytes() == pool.used_bytes() == 60 * MIB
    del pointer


@pytest.mark.timeout(60)
def test_u03_garbage_of_another_thread_makes_room(pool, in_threads):
    pool.set_limit(size=100 * MIB)
    with collector_off():
        in_threads(1, lambda index: in_a_cycle(pool.malloc(60 * MIB)))
        pointer = pool.malloc(60 * MIB)
    assert pool.total_bytes() == pool.used_bytes() == 60 * MIB
    del pointer


@pytest.mark.timeout(60)
def test_u03_no_lock_is_held_while_garbage_is_collected(pool):
    """Another thread uses the pool in the midst of the collection, and comes to an
    end."""
    pool.set_limit(size=100 * MIB)
    used = []

    def use():
        used.append((pool.used_bytes(), pool.malloc(MIB).mem.size))

    def note(phase, info):
        if phase == "start" and not used:
            thread = threading.Thread(target=use, daemon=True)
            thread.start()
            thread.join(30)
            used.append(thread.is_alive())

    with collector_off():
        in_a_cycle(pool.malloc(60 * MIB))
        gc.callbacks.append(note)
        try:
            pointer = pool.malloc(60 * MIB)
        finally:
            gc.callbacks.remove(note)
    assert used == [(60 * MIB, MIB), False]
    del pointer
