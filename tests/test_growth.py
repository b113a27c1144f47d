# SPDX-License-Identifier: MIT
"""Pools that take memory ahead of requests: how rarely they ask the device, what they
hold for it, and where they give way."""

from pathlib import Path

import pytest

import gpumem
import oracle
from gpumem import MemoryPool, SingleDeviceMemoryPool, Stream, testing
from gpumem._replay import placements, replay
from gpumem._trace import read_trace

ROOT = Path(__file__).parent.parent
TRACES = sorted((ROOT / "benchmarks" / "traces").glob("*.csv.gz"))

UNIT = 512
MIB = 1 << 20
STEP = 64 * MIB  # of growth=True

sim_only = pytest.mark.sim_only


@pytest.fixture(params=[MemoryPool, SingleDeviceMemoryPool])
def kind(request):
    return request.param


def asked(pool):
    """How often the device gave memory, how much in all, and the attempts repeated."""
    stats = pool.stats()
    names = ("upstream_allocations", "upstream_allocated_bytes", "retries")
    return tuple(stats[name] for name in names)


# ---- the argument ----


@pytest.mark.parametrize("growth", [{}, {"growth": False}, {"growth": 0}])
def test_without_growth_the_device_gives_what_requests_need(kind, growth):
    pool = kind(**growth)
    kept = [pool.malloc(1), pool.malloc(1000), pool.malloc(MIB)]
    assert asked(pool) == (3, 3 * UNIT + MIB, 0)
    del kept


def test_with_growth_one_call_serves_many_requests(kind):
    pool = kind(growth=True)
    kept = [pool.malloc(MIB) for _ in range(64)]
    assert asked(pool) == (1, 64 * MIB, 0)  # 65 MiB, in whole 2 MiB
    kept += [pool.malloc(1)]
    assert asked(pool) == (2, 128 * MIB, 0)
    assert len({pointer.ptr for pointer in kept}) == 65
    testing.check_pool(pool)


def test_growth_in_bytes_is_the_least_that_the_pool_is_ahead(kind):
    pool = kind(growth=8 * UNIT)
    kept = [pool.malloc(UNIT)]
    assert asked(pool) == (1, 9 * UNIT, 0)
    kept += [pool.malloc(UNIT) for _ in range(8)]
    assert asked(pool) == (1, 9 * UNIT, 0)
    kept += [pool.malloc(87 * UNIT)]  # an eighth of 9 + 87 is more
    assert asked(pool) == (2, (9 + 87 + 12) * UNIT, 0)
    testing.check_pool(pool)


def test_true_is_not_one_byte(kind):
    one, true = kind(growth=1), kind(growth=True)
    kept = one.malloc(1), true.malloc(1)
    assert (one.total_bytes(), true.total_bytes()) == (UNIT, STEP)
    del kept


@pytest.mark.parametrize("growth", [-1, 1 << 64])
def test_growth_that_is_no_size(kind, growth):
    with pytest.raises(OverflowError, match=r"growth must be from 0 to 2\*\*64-1"):
        kind(growth=growth)


@pytest.mark.parametrize("growth", [1.5, "64MiB", None])
def test_growth_that_is_no_integer(kind, growth):
    with pytest.raises(TypeError, match="growth must be an integer"):
        kind(growth=growth)


def test_growth_goes_by_keyword(kind):
    with pytest.raises(TypeError, match="1 positional argument"):
        kind(None, True)


def test_more_growth_than_there_is_memory_takes_half_of_what_is_free(kind):
    pool = kind(growth=(1 << 64) - 1)
    free, _ = gpumem.Device().mem_info
    pointer = pool.malloc(4 * MIB)
    assert free // 4 < pool.total_bytes() <= free // 2
    del pointer
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.two_devices
def test_growth_is_of_each_device(kind):
    pool = MemoryPool(growth=8 * UNIT)
    kept = [pool.malloc(1, device=device) for device in (0, 1)]
    assert [pool.total_bytes(device=device) for device in (0, 1)] == [9 * UNIT] * 2
    with gpumem.Device(1):
        single = SingleDeviceMemoryPool(growth=8 * UNIT)
    kept += [single.malloc(1)]
    assert single.total_bytes() == 9 * UNIT


# ---- giving way ----


def test_growth_fills_half_of_a_limit(kind):
    """Then requests get what they need, and all of it can be had."""
    pool = kind(growth=8 * UNIT)
    pool.set_limit(size=64 * UNIT)
    kept = [pool.malloc(UNIT) for _ in range(32)]
    assert asked(pool) == (4, 32 * UNIT, 0)  # 9, 9, 9 and 5
    kept += [pool.malloc(UNIT) for _ in range(32)]
    assert asked(pool) == (4 + 32, 64 * UNIT, 0)
    assert pool.stats()["upstream_frees"] == 0
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.malloc(1)
    del kept


@sim_only
def test_growth_fills_half_of_what_a_device_has_free(script):
    code = """
import gpumem
pool = gpumem.MemoryPool(growth=True)
kept = [pool.malloc(1 << 20)]
assert pool.total_bytes() == 16 << 20, pool.total_bytes()
kept += [pool.malloc(1 << 20) for _ in range(31)]
assert pool.used_bytes() == pool.total_bytes() == 32 << 20
assert pool.stats()["retries"] == 0
"""
    done = script(code, GPUMEM_SIM_MEMORY="32MiB", GPUMEM_BACKEND="sim")
    assert (done.returncode, done.stderr) == (0, "")


@sim_only
def test_a_device_that_refuses_more_is_asked_for_the_request_alone(kind):
    pool = kind(growth=True)
    with testing.fail("mem_alloc"):
        pointer = pool.malloc(1000)
    assert asked(pool) == (1, 1024, 1)
    assert pool.stats()["out_of_memory"] == 0
    assert pool.free_bytes() == 0
    del pointer


@sim_only
def test_a_device_that_fails_otherwise_is_asked_once(kind):
    pool = kind(growth=True)
    with testing.fail("mem_alloc", code=719), testing.call_log() as calls:
        with pytest.raises(gpumem.CUDARuntimeError):
            pool.malloc(1000)
    assert "mem_alloc" not in {call.name for call in calls}  # what fails is not in it
    assert asked(pool) == (0, 0, 0)
    assert pool.malloc(1000).mem.size == 1024


def test_an_allocator_that_has_less_gives_the_request_alone(kind):
    sizes = []

    def allocator(size):
        sizes.append(size)
        if size > MIB:
            raise gpumem.OutOfMemoryError(size, 0)
        return gpumem.malloc(size)

    pool = kind(allocator, growth=True)
    pointer = pool.malloc(MIB)
    assert sizes == [64 * MIB, MIB]
    assert asked(pool) == (1, MIB, 1)
    del pointer


def test_what_an_allocator_raises_is_not_hidden(kind):
    def allocator(size):
        raise KeyError(size)

    pool = kind(allocator, growth=True)
    with pytest.raises(KeyError):
        pool.malloc(1)
    assert asked(pool) == (0, 0, 0)


# ---- what is cut off is memory like any other ----


def test_segments_go_back_whole(kind):
    pool = kind(growth=8 * UNIT)
    first, second = pool.malloc(UNIT), pool.malloc(9 * UNIT)
    pool.free_all_blocks()
    assert pool.total_bytes() == (9 + 11) * UNIT  # a block lives in each
    del first
    pool.free_all_blocks()
    assert pool.total_bytes() == 11 * UNIT
    del second
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_each_stream_is_ahead_for_itself(kind):
    pool = kind(growth=8 * UNIT)
    streams = [Stream(non_blocking=True) for _ in range(3)]
    kept = []
    for stream in streams * 3:
        with stream:
            kept.append(pool.malloc(3 * UNIT))
    assert asked(pool) == (3, 33 * UNIT, 0)
    testing.check_pool(pool)


@sim_only
def test_memory_of_another_stream_waits_for_it(kind):
    own, other = Stream(non_blocking=True), Stream(non_blocking=True)
    pool = kind(growth=8 * UNIT)
    with own:
        pointer = pool.malloc(UNIT)
        pointer.record_stream(other)
        with testing.hold_stream(other):
            pointer.memset_async(1, UNIT, other)
            address = pointer.ptr
            del pointer
            heirs = [pool.malloc(UNIT) for _ in range(8)]
            assert address not in {heir.ptr for heir in heirs}
            assert pool.stats()["pending_bytes"] == UNIT
    other.synchronize()
    assert asked(pool)[0] == 1
    testing.check_pool(pool)


@sim_only
def test_what_was_taken_ahead_can_be_recorded(kind):
    stream = Stream(non_blocking=True)
    pool = kind(growth=8 * UNIT)
    with stream:
        pool.malloc(UNIT)
        stream.begin_capture()
        kept = [pool.malloc(UNIT) for _ in range(9)]
        with pytest.raises(gpumem.OutOfMemoryError, match="record"):
            pool.malloc(UNIT)
        graph = stream.end_capture()
    assert asked(pool) == (1, 9 * UNIT, 0)
    del kept, graph
    testing.check_pool(pool)


# ---- the recorded traces ----


def trace_name(path):
    return path.name.removesuffix(".csv.gz")


@pytest.fixture(scope="module", params=TRACES, ids=trace_name)
def trace(request):
    return read_trace(request.param)


class Watched(MemoryPool):
    """Looks at each segment that it takes: one that is larger than its request leaves
    no more cached than the bound says."""

    def __init__(self, step):
        super().__init__(growth=step)
        self.step = step
        self.held = 0

    def malloc(self, size):
        pointer = super().malloc(size)
        held = self.total_bytes()
        if held != self.held:
            if held - self.held > pointer.mem.size:
                stats = self.stats()
                bound = max(stats["used_bytes"], self.step * stats["arenas"])
                assert stats["free_bytes"] <= bound
            self.held = held
        return pointer


@pytest.mark.once
def test_with_growth_every_block_lies_where_the_oracle_puts_it(trace):
    pool = MemoryPool(growth=True)
    rows = placements(trace, pool)
    stats = pool.stats()
    expected, expected_rows = oracle.replay(trace, growth=STEP)
    assert rows == expected_rows
    assert stats["hits"] == expected.hits
    assert stats["misses"] == stats["upstream_allocations"] == expected.misses
    assert stats["peak_total_bytes"] == expected.peak_total
    assert stats["retries"] == 0


@pytest.mark.once
@pytest.mark.parametrize("step", [STEP, 2 << 30], ids=["on", "2GiB"])
def test_the_bound_holds_whenever_a_trace_makes_a_pool_grow(trace, step):
    pool = Watched(step)
    replay(trace, pool, passes=1)
    exact = replay(trace, MemoryPool(), passes=1)
    # Without growth what is held is the sum of the requests that the device served.
    most = exact.peak_total_bytes + exact.peak_used_bytes // 8
    most += step * len(set(trace.streams))
    assert pool.stats()["peak_total_bytes"] <= most


@pytest.mark.once
@sim_only
def test_the_figures_of_the_document_are_those_of_the_traces(trace):
    page = (ROOT / "docs" / "growth.md").read_text(encoding="utf-8")
    name = trace_name(Path(trace.path))
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    figures = []
    for growth in (False, True, 2 << 30):
        report = replay(trace, MemoryPool(growth=growth), passes=1)
        figures += [report.upstream_allocations, report.peak_total_bytes / MIB]
    figures.append(report.peak_used_bytes / MIB)
    assert row == f"| `{name}` | {' | '.join(f'{figure:,.0f}' for figure in figures)} |"
