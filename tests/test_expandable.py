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
