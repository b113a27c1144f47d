# SPDX-License-Identifier: MIT
"""Pools with rules for large requests: the arguments, which blocks stay whole, how
large segments are, and where the rules give way."""

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


@pytest.fixture(params=[MemoryPool, SingleDeviceMemoryPool])
def kind(request):
    return request.param


def held(pool, *sizes):
    """MiB that the pool holds after each of these requests, dropped at once."""
    found = []
    for size in sizes:
        pool.malloc(size)
        found.append(pool.total_bytes() / MIB)
    testing.check_pool(pool)
    return found


# ---- the arguments ----


@pytest.mark.parametrize(
    "name", ["max_split_size", "max_non_split_rounding", "large_segment_size"]
)
def test_the_arguments_are_integers_by_keyword(kind, name):
    kind(**{name: 1 << 30})
    kind(**{name: True} if name != "large_segment_size" else {name: False})
    with pytest.raises(OverflowError, match=rf"{name} must be from 0 to 2\*\*64-1"):
        kind(**{name: -1})
    for wrong in (1.5, "64MiB", None):
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            kind(**{name: wrong})


@pytest.mark.parametrize("wrong", [1, 511, MIB + 1, 1 << 63, (1 << 64) - 512])
def test_a_segment_size_that_is_none(kind, wrong):
    with pytest.raises(ValueError, match=f"multiple of 512 below .*, not {wrong}"):
        kind(large_segment_size=wrong)


@pytest.mark.parametrize("name", ["max_split_size", "large_segment_size"])
def test_growth_goes_with_neither(kind, name):
    with pytest.raises(ValueError, match=f"growth or {name}, not both"):
        kind(growth=True, **{name: 64 * MIB})
    kind(growth=0, **{name: 64 * MIB})
    kind(growth=True, max_non_split_rounding=64 * MIB)  # which is about neither


@pytest.mark.parametrize("rules", [{}, {"max_split_size": 0, "large_segment_size": 0}])
def test_without_them_any_block_is_cut(kind, rules):
    pool = kind(max_non_split_rounding=0, **rules)
    assert held(pool, 100 * MIB, MIB, 99 * MIB + 1, 50 * MIB) == [100] * 4
    assert pool.stats()["hits"] == 3


# ---- blocks that stay whole ----


def test_large_blocks_are_for_large_requests(kind):
    pool = kind(max_split_size=64 * MIB)
    assert held(pool, 100 * MIB, MIB, 64 * MIB - UNIT) == [100, 101, 165 - UNIT / MIB]
    assert held(pool, 80 * MIB + UNIT) == [165 - UNIT / MIB]  # 20 MiB less a unit
    assert held(pool, 80 * MIB) == [245 - UNIT / MIB]


def test_how_close_a_request_has_to_be(kind):
    pool = kind(max_split_size=64 * MIB, max_non_split_rounding=2 * MIB)
    assert held(pool, 100 * MIB, 98 * MIB + UNIT, 98 * MIB) == [100, 100, 198]
    none = kind(max_split_size=64 * MIB, max_non_split_rounding=0)
    assert held(none, 100 * MIB, 100 * MIB, 100 * MIB - UNIT) == [
        *(100, 100),
        200 - UNIT / MIB,
    ]


def test_what_is_more_than_was_asked_for_is_used(kind):
    pool = kind(max_split_size=64 * MIB)
    pool.malloc(100 * MIB)
    pointer = pool.malloc(90 * MIB)
    assert pointer.mem.size == pool.used_bytes() == 100 * MIB
    assert pool.stats()["requested_bytes"] == 90 * MIB
    assert pool.free_bytes() == 0
    pointer.memset(7, 100 * MIB)
    with pytest.raises(ValueError, match="do not fit"):
        pointer.memset(7, 100 * MIB + 1)


def test_a_rest_too_small_for_large_requests_is_kept_with_the_block(kind):
    pool = kind(max_split_size=64 * MIB)
    pool.malloc(10 * MIB)
    sizes = [9 * MIB, 9 * MIB - UNIT, MIB + UNIT, MIB]
    got = [pool.malloc(size).mem.size for size in sizes]
    assert got == [10 * MIB, 9 * MIB - UNIT, MIB + UNIT, MIB]
    assert pool.total_bytes() == 10 * MIB


def test_hooks_are_told_the_size_of_a_whole_block(kind):
    class Sizes(gpumem.MemoryHook):
        name = "sizes"

        def __init__(self):
            self.told = []

        def malloc_preprocess(self, *, mem_size, **others):
            self.told.append(mem_size)

        def malloc_postprocess(self, *, mem_size, **others):
            self.told.append(mem_size)

        def free_postprocess(self, *, mem_size, **others):
            self.told.append(mem_size)

    pool = kind(max_split_size=64 * MIB)
    pool.malloc(100 * MIB)
    with Sizes() as sizes:
        pool.malloc(90 * MIB)
    assert sizes.told == [90 * MIB, 100 * MIB, 100 * MIB]


# ---- segments of whole multiples ----


def test_large_segments_are_reused_by_similar_requests(kind):
    pool = kind(large_segment_size=32 * MIB)
    assert held(pool, MIB, MIB + 1, 31 * MIB, 40 * MIB) == [1, 33, 33, 97]
    whole = kind(large_segment_size=32 * MIB, max_split_size=128 * MIB)
    assert held(whole, 130 * MIB, 150 * MIB, 141 * MIB) == [160, 160, 160]


def test_a_segment_that_would_not_be_cut_is_as_large_as_its_request(kind):
    pool = kind(large_segment_size=32 * MIB, max_split_size=60 * MIB)
    assert held(pool, 59 * MIB, 60 * MIB) == [59, 59 + 64]


# ---- giving way ----


def test_a_limit_has_the_request_alone(kind):
    pool = kind(large_segment_size=32 * MIB)
    pool.set_limit(size=40 * MIB)
    kept = [pool.malloc(32 * MIB)]
    kept += [pool.malloc(8 * MIB)]
    assert pool.total_bytes() == 40 * MIB
    assert pool.stats()["upstream_frees"] == 0


def test_whole_blocks_go_back_before_a_request_fails(kind):
    pool = kind(max_split_size=64 * MIB)
    pool.set_limit(size=100 * MIB)
    assert held(pool, 100 * MIB, MIB, 64 * MIB) == [100, 1, 65]
    assert pool.stats()["out_of_memory"] == 0


@pytest.mark.sim_only
def test_a_recording_cuts_what_there_is(kind):
    stream = Stream(non_blocking=True)
    pool = kind(max_split_size=64 * MIB)
    with stream:
        pool.malloc(100 * MIB)
        stream.begin_capture()
        kept = [pool.malloc(MIB), pool.malloc(99 * MIB)]
        graph = stream.end_capture()
    assert [pointer.mem.size for pointer in kept] == [MIB, 99 * MIB]
    del kept, graph
    testing.check_pool(pool)
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
def test_what_an_ended_stream_left_is_given_by_the_same_rules(kind):
    pool = kind(max_split_size=64 * MIB)
    stream = Stream(non_blocking=True)
    with stream:
        pool.malloc(100 * MIB)
    del stream
    assert held(pool, MIB, 90 * MIB) == [101, 101]


# ---- the recorded traces ----

RULES = {
    "whole": {"max_split_size": 8 * MIB},
    "both": {"max_split_size": 64 * MIB, "large_segment_size": 20 * MIB},
}


def trace_name(path):
    return path.name.removesuffix(".csv.gz")


@pytest.fixture(scope="module", params=TRACES, ids=trace_name)
def trace(request):
    return read_trace(request.param)


@pytest.mark.once
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_every_block_lies_where_the_oracle_puts_it(trace, rules):
    pool = MemoryPool(**rules)
    rows = placements(trace, pool)
    stats = pool.stats()
    expected, expected_rows = oracle.replay(trace, **rules)
    assert rows == expected_rows
    assert stats["hits"] == expected.hits
    assert stats["misses"] == stats["upstream_allocations"] == expected.misses
    assert stats["peak_total_bytes"] == expected.peak_total
    assert stats["peak_used_bytes"] == expected.peak_used
    testing.check_pool(pool)


@pytest.mark.once
@pytest.mark.sim_only
def test_the_figures_of_the_document_are_those_of_the_traces(trace):
    page = (ROOT / "docs" / "large-requests.md").read_text(encoding="utf-8")
    name = trace_name(Path(trace.path))
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")]
    figures = []
    for rules in ({}, {"large_segment_size": 20 * MIB}, {"max_split_size": 200 * MIB}):
        report = replay(trace, MemoryPool(**rules), passes=1)
        figures += [report.upstream_allocations, report.peak_total_bytes / MIB]
    assert row == f"| `{name}` | {' | '.join(f'{figure:,.0f}' for figure in figures)} |"
