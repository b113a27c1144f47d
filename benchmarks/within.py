# SPDX-License-Identifier: MIT
"""b5 and b6: how much memory the recorded traces take, and how fast they are where
there is little.

b5  the smallest limit under which the whole trace completes, over the peak of what it
    has live: in steps of half a percent, then bisected to 2 MiB, as
    `python -m gpumem replay --smallest-limit` does. An attempt is one pass from an
    empty pool
b6  without a limit, what is held at the most over that peak, and the first pass, with
    an empty pool; then warm passes without a limit and under 1.20, 1.10, 1.05 and 1.03
    times the peak, with the pages that were moved and the time spent in the driver for
    it, where an allocator tells

A limit is each allocator's own: MemoryPool.set_limit, CuPy's, and PyTorch's
set_per_process_memory_fraction. Everybody has a process (children.py).
"""

from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from benchmarks.children import rows_of_all
from benchmarks.contenders import Contender, Maker, make_object
from benchmarks.guard import judged, verify
from benchmarks.plan import DOES_NOT_COMPLETE, Plan, Row
from benchmarks.replays import replay_case
from benchmarks.sequences import Sequence, of_trace
from benchmarks.timing import quiet
from gpumem._smallest import search

LIMITS = (0.0, 1.20, 1.10, 1.05, 1.03)  # times the peak; 0 is none
RATIO = "of the peak that is live"
UNIT = "ns an event"


class Short(RuntimeError):
    """The allocator ran out of memory."""


def is_short(error: Exception) -> bool:
    """gpumem's, CuPy's and PyTorch's exceptions for it have the same name."""
    return type(error).__name__ == "OutOfMemoryError"


def one_pass(contender: Contender, sequence: Sequence, passes: int = 1) -> list[float]:
    """Nanoseconds an event of each pass. Short where memory ran out, with everything
    given back."""
    live: list[Any] = []
    case = replay_case(contender, sequence, live)
    assert case.timed is not None
    _, give = contender.functions()
    found = []
    try:
        with quiet():
            for _ in range(passes):
                live[:] = [None] * sequence.places
                found.append(case.timed(1) / sequence.events)
    except Exception as error:
        if not is_short(error):
            raise
        if contender.give:
            for place in _held(sequence, live):
                give(live[place], 0, None)
        raise Short(str(error)) from None
    finally:
        live.clear()
        contender.lanes([0])[0][1]()
    return found


def _held(sequence: Sequence, live: list[Any]) -> set[int]:
    """Where blocks are that have to be given back, after a pass that broke off at the
    first block that is not there. A trace takes each place once."""
    held: set[int] = set()
    for _, events in sequence.runs:
        for place, _, taking in events:
            if taking and live[place] is None:
                return held
            (held.add if taking else held.discard)(place)
    return held


# ---- b5 ----


def _attempt(make: Maker, sequence: Sequence, limit: int) -> int | None:
    """What was held at the most; None where the limit, 0 for none, is too small."""
    contender = make(None)
    try:
        assert contender.limit is not None and contender.peak is not None
        contender.limit(limit)
        one_pass(contender, sequence)
        return contender.peak()
    except Short:
        return None
    finally:
        contender.close()


def smallest_row(name: str, make: Maker, sequence: Sequence) -> Row:
    """The row of one trace."""
    peak = sequence.peak
    row = Row("b5", sequence.name, name, RATIO)
    held = _attempt(make, sequence, 0)
    if held is None:
        row.error = DOES_NOT_COMPLETE
        return row
    found, vain = search(
        peak, held, lambda limit: _attempt(make, sequence, limit) is not None
    )
    row.median = row.low = row.high = found / peak
    row.samples = 1
    row.extra = {"limit_bytes": found}
    if vain:
        row.extra["failures"] = ", ".join(f"{limit / peak:.3f}" for limit in vain)
    return row


def smallest_of(
    name: str, make: Maker, quick: bool, traces: list[str]
) -> Iterator[Row]:
    for trace in traces:
        yield smallest_row(name, make, of_trace(trace))


def smallest(plan: Plan) -> Iterator[Row]:
    """b5"""
    yield from _by_case(rows_of_all(plan, "b5"))


# ---- b6 ----


def _measured(
    case: str, name: str, unit: str, samples: list[float], objects: list[float]
) -> Row:
    row = Row("b6", case, name, unit, samples=len(samples))
    row.median, row.low, row.high = median(samples), min(samples), max(samples)
    if objects:
        row.over_object = row.median / median(objects)
    return row


def _under(
    name: str,
    make: Maker,
    sequence: Sequence,
    times: float,
    passes: int,
    objects: list[float],
) -> Iterator[Row]:
    """The rows of one trace under one limit."""
    case = f"{sequence.name}, limit {times:.2f}" if times else sequence.name
    contender = make(None)
    try:
        assert contender.limit is not None and contender.peak is not None
        if times:
            contender.limit(int(sequence.peak * times))
        first = one_pass(contender, sequence)
        if not times:
            ratio = contender.peak() / sequence.peak
            yield _measured(f"{case}, held", name, RATIO, [ratio], [])
            yield _measured(f"{case}, first pass", name, UNIT, first, objects)
        before = contender.moves() if contender.moves else {}
        row = _measured(
            case, name, UNIT, one_pass(contender, sequence, passes), objects
        )
        after = contender.moves() if contender.moves else {}
        row.extra = {key: round(after[key] - before[key], 3) for key in after}
        row.note = judged(partial(verify, contender, sequence))
        yield row
    except Short:
        yield Row("b6", case, name, UNIT, error=DOES_NOT_COMPLETE)
    finally:
        contender.close()


def limits_of(name: str, make: Maker, quick: bool, traces: list[str]) -> Iterator[Row]:
    passes = 3 if quick else 7
    for trace in traces:
        sequence = of_trace(trace)
        objects = one_pass(make_object(), sequence, passes)
        for times in LIMITS:
            yield from _under(name, make, sequence, times, passes, objects)


def limits(plan: Plan) -> Iterator[Row]:
    """b6"""
    yield from _by_case(rows_of_all(plan, "b6"))


def _by_case(rows: Iterator[Row]) -> Iterator[Row]:
    """In the order of cases, so that those who are compared stand together; with how
    many times what gpumem's default pool has each has."""
    found = list(rows)
    ours = {row.case: row.median for row in found if row.who == "gpumem"}
    for row in found:
        mine = ours.get(row.case)
        if row.median is not None and mine:
            row.over_gpumem = row.median / mine
    cases = list(dict.fromkeys(row.case for row in found))
    yield from sorted(found, key=lambda row: cases.index(row.case))
