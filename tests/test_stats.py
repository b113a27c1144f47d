# SPDX-License-Identifier: MIT
"""Statistics: what each number is, of which device, and that reading changes nothing.

Sizes are worked out by hand; a unit is 512 bytes. The keys are held against the lists
that the extension is made from, in src/core/gm_stats.h.
"""

import re
from pathlib import Path

import pytest

import gpumem
from gpumem import Device, MemoryPool, SingleDeviceMemoryPool, Stream, testing

UNIT = 512
MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "src" / "core" / "gm_stats.h"

READERS = ("used_bytes", "free_bytes", "total_bytes", "n_free_blocks", "get_limit")
PEAKS = (
    *("peak_requested_bytes", "peak_used_bytes", "peak_free_bytes"),
    *("peak_pending_bytes", "peak_total_bytes", "peak_live_blocks", "peak_segments"),
)


@pytest.fixture(params=[MemoryPool, SingleDeviceMemoryPool])
def pool(request):
    pool = request.param()
    yield pool
    testing.check_pool(pool)


# ---- the keys ----


@pytest.mark.skipif(not HEADER.is_file(), reason="needs the source tree beside tests/")
def test_the_keys_are_those_of_the_lists_and_are_documented():
    listed = re.findall(r"^    X\((\w+), \"(.*)\"\)", HEADER.read_text(), re.MULTILINE)
    names = [name for name, _ in listed]
    assert len(names) > 30
    assert list(MemoryPool().stats()) == names
    for name, text in listed:
        assert f"    {name}: {text}\n" in MemoryPool.stats.__doc__
    told = re.findall(r"`(\w+)`", (ROOT / "docs" / "statistics.md").read_text())
    assert set(names) <= set(told)


def test_every_number_is_an_int(pool):
    pool.malloc(100)
    assert {type(number) for number in pool.stats().values()} == {int}


# ---- what they are ----


def test_rounding_is_not_hidden(pool):
    kept = [pool.malloc(513) for _ in range(1000)]
    stats = pool.stats()
    assert stats["requested_bytes"] == 513_000
    assert stats["used_bytes"] == 1_024_000
    assert stats["allocated_requested_bytes"] == 513_000
    assert stats["allocated_bytes"] == 1_024_000
    assert stats["peak_live_blocks"] == stats["allocated_blocks"] == 1000
    del kept


def test_sums_go_on_when_memory_goes_back(pool):
    for size in (1000, 100, 700):
        pool.malloc(size)
    kept = pool.malloc(10)
    pool.free_all_blocks()
    stats = pool.stats()
    assert stats["allocated_requested_bytes"] == 1810
    assert stats["freed_requested_bytes"] == 1800
    # 1000 takes 2 units, 100 the first of them, 700 both again, 10 the first again.
    assert stats["allocated_bytes"] == 6 * UNIT
    assert stats["freed_bytes"] == 5 * UNIT
    assert (stats["allocated_blocks"], stats["freed_blocks"]) == (4, 3)
    assert (stats["hits"], stats["misses"]) == (3, 1)
    assert stats["upstream_allocated_bytes"] == 2 * UNIT
    assert stats["upstream_freed_bytes"] == 0  # the last one sits in it
    del kept
    pool.free_all_blocks()
    stats = pool.stats()
    assert stats["freed_bytes"] == stats["allocated_bytes"] == 6 * UNIT
    assert stats["upstream_freed_bytes"] == 2 * UNIT


def test_small_blocks_that_nibble_at_large_ones_show(pool):
    """Each round a lasting MiB is cut off a cached block. The first one spoils a
    segment of 16, the smallest that fits serves the others, so one more is enough."""
    kept = []
    for _ in range(10):
        pool.malloc(16 * MIB)
        kept.append(pool.malloc(MIB))
    stats = pool.stats()
    assert stats["used_bytes"] == 10 * MIB
    assert (stats["segments"], stats["total_bytes"]) == (2, 32 * MIB)
    assert stats["inactive_split_bytes"] == 6 * MIB
    assert stats["idle_bytes"] == stats["largest_free_block"] == 16 * MIB
    pool.free_all_blocks()
    assert pool.free_bytes() == pool.stats()["inactive_split_bytes"] == 6 * MIB  # stuck
    kept.clear()
    stats = pool.stats()
    assert (stats["idle_bytes"], stats["inactive_split_bytes"]) == (16 * MIB, 0)


def test_the_largest_cached_block_is_of_any_stream(pool):
    pool.malloc(3 * UNIT)
    with Stream():
        pool.malloc(7 * UNIT)
    assert pool.stats()["largest_free_block"] == 7 * UNIT
    with Stream():
        kept = pool.malloc(9 * UNIT)
    assert pool.stats()["largest_free_block"] == 7 * UNIT
    del kept
    assert pool.stats()["largest_free_block"] == 9 * UNIT


def test_peaks_begin_anew_when_told(pool):
    kept = pool.malloc(UNIT)
    pool.malloc(8 * UNIT)
    pool.malloc(3)
    before = pool.stats()
    assert before["peak_used_bytes"] == 9 * UNIT
    pool.reset_peak_stats()
    after = pool.stats()
    assert {name: after[name] for name in PEAKS} == {
        "peak_requested_bytes": UNIT,
        "peak_used_bytes": UNIT,
        "peak_free_bytes": 8 * UNIT,
        "peak_pending_bytes": 0,
        "peak_total_bytes": 9 * UNIT,
        "peak_live_blocks": 1,
        "peak_segments": 2,
    }
    for name in set(before) - set(PEAKS):
        assert after[name] == before[name], name
    more = pool.malloc(4 * UNIT)
    assert pool.stats()["peak_used_bytes"] == 5 * UNIT
    del kept, more


SMALL_DEVICE = {"GPUMEM_BACKEND": "sim", "GPUMEM_SIM_MEMORY": "64MiB"}


@pytest.mark.sim_only
def test_a_loan_that_fails_is_not_counted(pool):
    """What another stream has free is taken first and waited for then."""
    pool.set_limit(size=2 * MIB)
    first, second = Stream(non_blocking=True), Stream(non_blocking=True)
    with first:
        whole = pool.malloc(2 * MIB)
        del whole
        kept = pool.malloc(UNIT)
    pool.reset_peak_stats()
    before = pool.stats()
    with second, testing.fail("device_synchronize", count=0):
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.malloc(MIB)
    assert pool.stats() == before | {"out_of_memory": 1, "retries": 1}
    testing.check_pool(pool)
    with second:
        assert pool.malloc(MIB).mem.size == MIB
    assert pool.stats()["hits"] == before["hits"] + 1
    del kept


def test_the_largest_available_block_is_what_a_request_gets(script):
    """A checkerboard: half the device is free and only pieces of it."""
    code = """
import gpumem
MIB = 1 << 20
pool = gpumem.MemoryPool()
held = [pool.malloc(MIB) for _ in range(64)]
del held[::2]
largest = pool.stats()["largest_available_block"]
print(largest, pool.free_bytes() == 32 * MIB)
p = pool.malloc(largest)
del p
try:
    pool.malloc(largest + 1)
except gpumem.OutOfMemoryError:
    print(pool.stats()["largest_available_block"])
"""
    done = script(code, **SMALL_DEVICE)
    assert (done.stdout.split(), done.stderr) == ([str(MIB), "True", str(MIB)], "")


def test_what_another_pool_has_idle_is_available(script):
    code = """
import gpumem
MIB = 1 << 20
pool, other = gpumem.MemoryPool(), gpumem.MemoryPool()
print(pool.stats()["largest_available_block"])
kept = pool.malloc(MIB)
other.malloc(40 * MIB)
print(pool.stats()["largest_available_block"] // MIB, other.free_bytes() // MIB)
p = pool.malloc(63 * MIB)
print(other.free_bytes())
"""
    done = script(code, **SMALL_DEVICE)
    assert (done.stdout.split(), done.stderr) == (["0", "63", "40", "0"], "")


def test_over_a_callable_the_cache_is_what_is_known():
    pool = MemoryPool(lambda size: gpumem.malloc(size))
    pool.malloc(5 * UNIT)
    stats = pool.stats()
    assert stats["largest_available_block"] == stats["largest_free_block"] == 5 * UNIT


# ---- of which device ----


@pytest.mark.two_devices
@pytest.mark.parametrize("named", [int, Device, bool])
def test_a_device_can_be_named(named):
    pool, name = MemoryPool(), named(1)
    kept = [pool.malloc(UNIT), pool.malloc(3 * UNIT, device=name)]
    assert [pointer.device_id for pointer in kept] == [0, 1]
    pool.malloc(2 * UNIT, device=name)
    pool.set_limit(size=64 * UNIT, device=name)
    assert (pool.used_bytes(name), pool.used_bytes(device=name)) == (3 * UNIT,) * 2
    assert (pool.free_bytes(name), pool.total_bytes(name)) == (2 * UNIT, 5 * UNIT)
    assert (pool.n_free_blocks(name), pool.get_limit(name)) == (1, 64 * UNIT)
    assert pool.stats(name)["used_bytes"] == 3 * UNIT
    assert (pool.used_bytes(), pool.total_bytes(), pool.get_limit()) == (UNIT, UNIT, 0)
    pool.reset_peak_stats(name)
    assert pool.stats(name)["peak_used_bytes"] == 3 * UNIT
    pool.free_all_blocks(device=name)
    assert (pool.free_bytes(name), pool.used_bytes(None)) == (0, UNIT)
    assert gpumem.get_device_id() == 0
    del kept


@pytest.mark.two_devices
def test_memory_of_a_named_device_is_for_that_devices_stream():
    pool = MemoryPool()
    with Device(1):
        stream = Stream()
        stream.use()
    try:
        address = pool.malloc(UNIT, device=1).ptr
        pool.malloc(UNIT)
        with Device(1):
            Stream.null.use()
            assert pool.malloc(UNIT).ptr != address
            stream.use()
            assert pool.malloc(UNIT).ptr == address
    finally:
        with Device(1):
            Stream.null.use()


@pytest.mark.two_devices
def test_a_pool_of_one_device_is_asked_about_that_one():
    pool = SingleDeviceMemoryPool()
    kept = pool.malloc(UNIT, device=0)
    with Device(1):
        assert pool.used_bytes() == pool.used_bytes(0) == pool.used_bytes(Device(0))
        for call in calls_with_a_device(pool, 1):
            with pytest.raises(ValueError, match="on device 0, not on 1"):
                call()
    assert pool.used_bytes() == UNIT
    del kept


def calls_with_a_device(pool, device):
    yield from (lambda name=name: getattr(pool, name)(device) for name in READERS)
    yield lambda: pool.stats(device)
    yield lambda: pool.reset_peak_stats(device)
    yield lambda: pool.free_all_blocks(device=device)
    yield lambda: pool.set_limit(size=5, device=device)
    yield lambda: pool.malloc(5, device=device)


@pytest.mark.parametrize("device", [-1, 99, 2**31, -(2**63), 10**30])
def test_there_is_no_such_device(pool, device):
    for call in calls_with_a_device(pool, device):
        with pytest.raises(ValueError, match=f"not {device}"):
            call()
    assert pool.get_limit() == 0


@pytest.mark.parametrize("device", ["0", 0.0, [0]])
def test_what_is_no_device_is_refused(pool, device):
    for call in calls_with_a_device(pool, device):
        with pytest.raises(TypeError, match="device must be"):
            call()


def test_the_device_of_a_method_with_more_is_named(pool):
    for call in (
        lambda: pool.malloc(5, 0),
        lambda: pool.free_all_blocks(None, 0),
        lambda: pool.set_limit(5, None, 0),
        lambda: pool.used_bytes(0, 0),
        lambda: pool.stats(devices=0),
    ):
        with pytest.raises(TypeError):
            call()


# ---- reading changes nothing ----


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_reading_touches_no_device_that_is_not_in_use():
    pool = MemoryPool()
    with Device(1):
        kept = pool.malloc(UNIT)
    with testing.call_log() as calls:
        zeros = pool.stats(0)
        for name in READERS:
            assert getattr(pool, name)(0) == getattr(pool, name)() == 0
        pool.reset_peak_stats(0)
        pool.free_all_blocks(device=0)
        pool.stats(1), pool.used_bytes(1), repr(pool)
    assert set(zeros.values()) == {0}
    assert {call.device for call in calls if call.name != "device_get"} <= {1}
    del kept


@pytest.mark.sim_only
def test_a_single_device_pool_that_took_nothing_asks_nothing():
    pool = SingleDeviceMemoryPool()
    with testing.call_log() as calls:
        assert set(pool.stats().values()) == {0}
    assert {call.name for call in calls} <= {"device_get"}


def test_statistics_before_anything_else(script):
    code = """
import gpumem
pool = gpumem.MemoryPool()
first = pool.stats()
print(set(first.values()), first == pool.stats(0) == pool.stats(gpumem.Device(0)))
"""
    done = script(code, GPUMEM_BACKEND="sim")
    assert (done.stdout, done.stderr) == ("{0} True\n", "")


def test_reading_gives_nothing_back(pool):
    pool.malloc(MIB)
    before = pool.stats()
    assert pool.stats() == before
    assert (pool.free_bytes(), before["upstream_frees"]) == (MIB, 0)


@pytest.mark.sim_only
def test_a_device_that_does_not_answer_is_no_reason_to_fail(pool):
    pool.malloc(MIB)
    with testing.fail("mem_info", count=0, code=700):
        assert pool.stats()["largest_available_block"] == MIB
    assert testing.last_error() == 0


def test_readers_race_with_writers(pool, in_threads):
    """Each reading is of one instant, so the sums hold in every one."""
    rounds = 300

    def work(index):
        if index < 2:
            for size in range(1, 40 * rounds, 40):
                pool.malloc(size)
                if size % 7 == 0:
                    pool.free_all_blocks()
        else:
            for _ in range(rounds):
                check_sums(pool.stats())
                pool.reset_peak_stats()

    in_threads(4, work)
    stats = pool.stats()
    check_sums(stats)
    assert stats["used_bytes"] == 0
    assert stats["allocated_blocks"] == stats["freed_blocks"] == 2 * rounds


def check_sums(stats):
    waiting = stats["pending_bytes"] + stats["captured_bytes"]
    in_use = stats["used_bytes"] + waiting
    assert in_use + stats["free_bytes"] == stats["total_bytes"]
    assert stats["idle_bytes"] + stats["inactive_split_bytes"] == stats["free_bytes"]
    assert stats["allocated_bytes"] - stats["freed_bytes"] == stats["used_bytes"]
    assert stats["allocated_blocks"] - stats["freed_blocks"] == stats["live_blocks"]
    assert stats["allocated_blocks"] == stats["hits"] + stats["misses"]
    assert stats["peak_used_bytes"] >= stats["used_bytes"]
    assert stats["largest_free_block"] <= stats["free_bytes"]
