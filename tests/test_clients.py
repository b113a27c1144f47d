# SPDX-License-Identifier: MIT
"""Bytes by client: whose they are, that they add up, and the scope that says so."""

import threading

import pytest

import c_library as c
import gpumem
from gpumem import testing

UNIT = 512
MIB = 1 << 20


def used(pool, **which):
    return {
        name: usage["used_bytes"]
        for name, usage in pool.stats_by_client(**which).items()
    }


def test_what_nobody_named_is_the_programs(pool):
    assert pool.stats_by_client() == {}
    kept = pool.malloc(1000)
    assert pool.stats_by_client() == {
        "gpumem": {"used_bytes": 1024, "requested_bytes": 1000, "live_blocks": 1}
    }
    del kept
    assert pool.stats_by_client() == {}  # what is cached is nobody's
    assert pool.free_bytes() == 1024


def test_a_block_stays_on_the_account_it_was_asked_for_on(pool):
    with gpumem.client("first"):
        mine = pool.malloc(MIB)
        with gpumem.client("second"):
            theirs = pool.malloc(UNIT)
        also_mine = pool.malloc(UNIT)
    assert used(pool) == {"first": MIB + UNIT, "second": UNIT}
    with gpumem.client("second"):
        del mine
    assert used(pool) == {"first": UNIT, "second": UNIT}
    del also_mine
    with gpumem.client("first"):
        mine = pool.malloc(UNIT)  # the same bytes again
    assert used(pool) == {"first": UNIT, "second": UNIT}
    del mine, theirs


def test_the_same_again_goes_to_who_asks(pool):
    """The block of the last request is handed out again without the index."""
    with gpumem.client("first"):
        pool.malloc(UNIT)
    again = pool.malloc(UNIT)
    assert used(pool) == {"gpumem": UNIT}
    del again


def test_the_scope_is_the_threads(pool, in_threads):
    inside, done = threading.Barrier(2), threading.Barrier(2)

    def work(index):
        if index:
            inside.wait(30)
            kept = pool.malloc(UNIT)
            done.wait(30)
            return kept
        with gpumem.client("other thread"):
            inside.wait(30)
            done.wait(30)
            return pool.malloc(MIB)

    kept = in_threads(2, work)
    assert used(pool) == {"other thread": MIB, "gpumem": UNIT}
    kept.clear()


def test_as_a_decorator_again_and_again(pool):
    scope = gpumem.client("decorated")
    assert scope.name == "decorated"

    @scope
    def ask(depth):
        return [pool.malloc(UNIT), *(ask(depth - 1) if depth else [])]

    kept = ask(2)
    with scope, scope:
        kept.append(pool.malloc(UNIT))
    kept.append(pool.malloc(UNIT))
    assert used(pool) == {"decorated": 4 * UNIT, "gpumem": UNIT}
    kept.clear()


def test_left_out_of_order_the_newest_still_entered_counts(pool):
    first, second = gpumem.client("first"), gpumem.client("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    kept = [pool.malloc(UNIT)]
    second.__exit__(None, None, None)
    kept.append(pool.malloc(UNIT))
    assert used(pool) == {"second": UNIT, "gpumem": UNIT}
    with pytest.raises(RuntimeError, match="this thread did not enter it"):
        second.__exit__(None, None, None)
    kept.clear()


def test_an_exception_leaves_the_scope(pool):
    with pytest.raises(KeyError):
        with gpumem.client("failing"):
            raise KeyError
    kept = pool.malloc(UNIT)
    assert used(pool) == {"gpumem": UNIT}
    del kept


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (None, TypeError),
        (b"bytes", TypeError),
        ("", ValueError),
        ("x" * 256, ValueError),
        ("ü" * 128, ValueError),  # 256 bytes
        ("a\0b", ValueError),
        ("\ud800", UnicodeEncodeError),
    ],
)
def test_names_that_cannot_be(name, error):
    with pytest.raises(error):
        gpumem.client(name)


def test_names_of_all_kinds(pool):
    with gpumem.client("ü" * 127):
        kept = pool.malloc(UNIT)
    assert list(pool.stats_by_client()) == ["ü" * 127]
    del kept


def test_c_code_has_its_own(pool):
    lib = c.Library()
    named, unnamed = lib.hold(pool, b"solver"), lib.hold(pool)
    with gpumem.client("loader"):
        addresses = [lib.take(named, MIB), lib.take(unnamed, UNIT)]
    addresses.append(lib.take(unnamed, 2 * UNIT))
    assert used(pool) == {"solver": MIB, "loader": UNIT, "gpumem": 2 * UNIT}
    for address in addresses:
        lib.give(address)
    lib.pool_release(named)
    lib.pool_release(unnamed)


def test_pinned_memory_too():
    pool = gpumem.PinnedMemoryPool()
    with gpumem.client("loader"):
        kept = pool.malloc(1000)
    assert pool.stats_by_client()["loader"]["requested_bytes"] == 1000
    del kept


def test_memory_that_another_stream_uses_is_its_clients_until_given_back(pool):
    stream = gpumem.Stream()
    with gpumem.client("loader"):
        kept = pool.malloc(700)
    kept.record_stream(stream)
    assert pool.stats_by_client()["loader"] == {
        "used_bytes": 1024,
        "requested_bytes": 700,
        "live_blocks": 1,
    }
    del kept
    assert pool.stats_by_client() == {}


def test_each_device_by_itself(pool):
    if gpumem.get_device_count() < 2:
        pytest.skip("needs two devices")
    with gpumem.client("loader"):
        kept = [pool.malloc(MIB, device=1), pool.malloc(UNIT)]
    assert used(pool) == used(pool, device=0) == {"loader": UNIT}
    assert used(pool, device=1) == {"loader": MIB}
    with pytest.raises(ValueError):
        pool.stats_by_client(device=99)
    kept.clear()


def of_all(**which):
    return {
        name: usage["used_bytes"]
        for name, usage in gpumem.stats_by_client(**which).items()
        if name.startswith("test ")
    }


def test_of_all_pools_each_byte_once(pool):
    other = gpumem.SingleDeviceMemoryPool()
    over = gpumem.MemoryPool(pool.malloc)
    with gpumem.client("test one"):
        kept = [pool.malloc(UNIT), other.malloc(MIB)]
        with gpumem.client("test two"):
            above = over.malloc(3 * MIB)
        assert used(over) == {"test two": 3 * MIB}
        assert used(pool) == {"test one": UNIT, "test two": 3 * MIB}
    assert of_all() == {"test one": MIB + UNIT, "test two": 3 * MIB}
    if gpumem.get_device_count() > 1:
        assert of_all(device=1) == {}
    with pytest.raises(ValueError):
        gpumem.stats_by_client(device=99)
    kept.clear()
    del above
    over.free_all_blocks()
    assert of_all() == {}


def test_it_adds_up_under_threads(pool, in_threads):
    """Of one instant: what other threads do meanwhile is in the sum or is not."""
    stop = threading.Event()

    def work(index):
        if index == 0:
            for _ in range(50):
                usage = pool.stats_by_client()
                assert set(usage) <= {"gpumem", "client 1", "client 2", "client 3"}
                for each in usage.values():
                    assert each["used_bytes"] == each["live_blocks"] * UNIT
            stop.set()
            return
        with gpumem.client(f"client {index}"):
            kept = []
            while not stop.is_set():
                kept.append(pool.malloc(1 + index))
                if len(kept) > 20:
                    kept.clear()

    in_threads(4, work)
    assert pool.stats_by_client() == {}
    testing.check_pool(pool)
