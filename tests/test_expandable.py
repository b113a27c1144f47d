# SPDX-License-Identifier: MIT
"""Pools with expandable segments: memory that is mapped page by page."""

import gc

import pytest

import gpumem
from gpumem import testing

PAGE = 2 << 20

pytestmark = pytest.mark.sim_only


@pytest.fixture
def pool():
    pool = gpumem.MemoryPool(expandable_segments=True)
    yield pool
    testing.check_pool(pool)


def test_pages_of_free_blocks_serve_a_larger_request(pool):
    held = [pool.malloc(PAGE) for _ in range(8)]
    del held[::2]
    whole = pool.malloc(4 * PAGE)
    stats = pool.stats()
    assert whole.mem.size == 4 * PAGE
    assert stats["total_bytes"] == stats["used_bytes"] == 8 * PAGE
    assert stats["remapped_pages"] == 4
    assert stats["pages"] == 8
    assert stats["segments"] == 1


def test_contents_move_with_nobody(pool):
    held = [pool.malloc(PAGE) for _ in range(8)]
    for i, pointer in enumerate(held):
        pointer.memset(i, PAGE)
    del held[::2]
    whole = pool.malloc(4 * PAGE)
    whole.memset(99, 4 * PAGE)
    back = bytearray(PAGE)
    for i, pointer in enumerate(held):
        pointer.copy_to_host(back, PAGE)
        assert set(back) == {2 * i + 1}


def test_all_goes_back_but_pages_in_use(pool):
    small = pool.malloc(512)
    large = pool.malloc(5 * PAGE)
    del large
    assert pool.total_bytes() == 6 * PAGE
    pool.free_all_blocks()
    assert pool.total_bytes() == PAGE
    del small
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    assert pool.stats()["reserved_bytes"] == 0


def test_dropping_pool_and_memory_returns_every_byte():
    before = testing.ledger()
    pool = gpumem.MemoryPool(expandable_segments=True)
    kept = pool.malloc(3 * PAGE)
    assert testing.ledger().handle_bytes == before.handle_bytes + 3 * PAGE
    del pool
    gc.collect()
    del kept
    after = testing.ledger()
    assert after.handle_bytes == before.handle_bytes
    assert after.reserved_bytes == before.reserved_bytes


def test_limit_is_about_pages(pool):
    pool.set_limit(4 * PAGE)
    held = pool.malloc(3 * PAGE + 1)
    with pytest.raises(gpumem.OutOfMemoryError) as failed:
        pool.malloc(PAGE)
    assert failed.value.largest_available_block == PAGE - 512
    assert failed.value.cause == "limit"
    del held
    assert pool.malloc(4 * PAGE).mem.size == 4 * PAGE


@pytest.mark.parametrize("cls", [gpumem.MemoryPool, gpumem.SingleDeviceMemoryPool])
def test_what_does_not_go_with_it_is_refused(cls):
    for other in (
        {"allocator": lambda size: gpumem.malloc(size)},
        {"growth": True},
        {"max_split_size": PAGE},
        {"large_segment_size": PAGE},
    ):
        with pytest.raises(ValueError, match=f"and {next(iter(other))} in another way"):
            cls(expandable_segments=True, **other)
    with pytest.raises(NotImplementedError, match="shareable"):
        cls(expandable_segments=True, shareable=True)
    assert cls(gpumem.malloc, expandable_segments=True).malloc(1).mem.size == 512


def test_a_device_that_cannot_is_an_error_of_its_pool():
    with testing.without("virtual_memory"):
        pool = gpumem.MemoryPool(expandable_segments=True)
        with pytest.raises(RuntimeError, match="cannot map memory page by page"):
            pool.malloc(1)
    assert pool.malloc(1).mem.size == 512  # it was only this device, then


@pytest.mark.parametrize(("text", "expandable"), [("1", True), ("0", False)])
def test_the_environment_speaks_for_pools_that_do_not_say(
    monkeypatch, text, expandable
):
    monkeypatch.setenv("GPUMEM_EXPANDABLE_SEGMENTS", text)
    for arguments, expected in [
        ({}, expandable),
        ({"expandable_segments": None}, expandable),
        ({"expandable_segments": False}, False),
        ({"expandable_segments": True}, True),
        ({"growth": True}, False),
    ]:
        pool = gpumem.MemoryPool(**arguments)
        held = pool.malloc(1)
        assert (pool.stats()["pages"] == 1) == expected
        del held


def test_the_environment_says_0_or_1(monkeypatch):
    monkeypatch.setenv("GPUMEM_EXPANDABLE_SEGMENTS", "yes")
    with pytest.raises(ValueError, match="GPUMEM_EXPANDABLE_SEGMENTS is 'yes'"):
        gpumem.MemoryPool().malloc(1)


@pytest.mark.parametrize("expandable", [False, True])
def test_trimming_keeps_what_is_wanted(expandable):
    pool = gpumem.MemoryPool(expandable_segments=expandable)
    held = [pool.malloc(PAGE) for _ in range(6)]
    kept = held.pop()
    del held
    assert pool.trim(4 * PAGE) == 2 * PAGE
    assert pool.total_bytes() == 4 * PAGE
    pool.set_reserve(3 * PAGE)
    assert pool.stats()["reserve_bytes"] == 3 * PAGE
    assert pool.trim() == PAGE
    pool.free_all_blocks()
    assert pool.total_bytes() == 3 * PAGE
    pool.set_reserve(0)
    assert pool.trim(target_bytes=0) == 2 * PAGE
    assert pool.total_bytes() == kept.mem.size == PAGE


def test_a_request_without_memory_takes_no_heed_of_a_reserve():
    pool = gpumem.MemoryPool(expandable_segments=True)
    pool.set_reserve(8 * PAGE)
    pool.malloc(8 * PAGE)
    other = gpumem.MemoryPool()
    free, _ = gpumem.Device().mem_info
    assert other.malloc(free + 2 * PAGE).mem.size == free + 2 * PAGE
    assert pool.total_bytes() == 0


def test_nobody_waits_for_what_goes_back(pool):
    stream = gpumem.Stream(non_blocking=True)
    with stream:
        held = pool.malloc(4 * PAGE)
        held.memset_async(1, 4 * PAGE, stream)
    with testing.hold_stream(stream):
        del held
        pool.free_all_blocks()
        stats = pool.stats()
        assert stats["pending_release_bytes"] == stats["total_bytes"] == 4 * PAGE
        assert stats["free_bytes"] == 0
    stream.synchronize()
    assert pool.stats()["total_bytes"] == 0
    assert testing.ledger().faults == 0


@pytest.mark.parametrize("busy", [True, False])
def test_pages_of_another_stream_serve_a_request(pool, busy):
    """In order with what is under way there, and without ado where nothing is."""
    pool.set_limit(8 * PAGE)
    one, other = gpumem.Stream(non_blocking=True), gpumem.Stream(non_blocking=True)
    with one:
        held = [pool.malloc(PAGE) for _ in range(8)]
        if busy:
            held[0].memset_async(1, PAGE, one)
        del held[::2]
    with other, testing.call_log() as calls:
        taken = pool.malloc(4 * PAGE)
    names = [call.name for call in calls]
    assert names.count("event_record") == names.count("stream_wait_event") == busy
    assert names.count("vm_map") == 4
    assert not {"vm_unmap", "vm_create", "device_synchronize"} & set(names)
    assert pool.total_bytes() == 8 * PAGE
    del taken
