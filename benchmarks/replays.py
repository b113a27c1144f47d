# SPDX-License-Identifier: MIT
"""B3, B4 and B8: whole sequences of requests, replayed.

b3  RMM's random_allocations over its grid: 1,000 to 100,000 allocations of up to 1 MiB
    to 4 GiB, at most 16,000 MiB alive
b4  the recorded traces: the first pass, with an empty pool, and warm ones
b8  the recorded traces, every pass with a new pool: how long growing takes, and how
    often the device is asked

b3 and b4 compare two by two, gpumem and one other in turns, since the memory of all
would not fit side by side; gpumem's row has the samples of all its groups. After each
measurement the guard replays the sequence once more.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.contenders import (
    Contender,
    Maker,
    make_gpumem,
    make_object,
    pool_kinds,
)
from benchmarks.guard import judged, verify
from benchmarks.peers import cupy_calls
from benchmarks.plan import Plan, Row, made, row_of, rows_of
from benchmarks.sequences import (
    RMM_COUNTS,
    RMM_MAXIMA,
    Sequence,
    of_trace,
    random_allocations,
)
from benchmarks.timing import SEQUENCE, Case, compiled, measure, quiet, told

UNIT = "ns an event"

# Asking the device at each event takes minutes for a trace.
_TRACE_PEERS = (
    *("cupy", "torch", "torch.empty", "rmm pool", "rmm arena", "cuda.core"),
    "cudaMallocAsync",
)
_SMALL_COUNT = 1000  # up to which the plain device is asked too


def replay_case(
    contender: Contender, sequence: Sequence, live: list[Any] | None = None
) -> Case:
    """A repetition is the whole sequence. Who has to tidy up after one that broke off
    gives the list that its live blocks are in."""
    lanes = contender.lanes(sequence.streams)
    runs = [(*lanes[number], events) for number, events in sequence.runs]
    live = [] if live is None else live
    live[:] = [None] * sequence.places
    names = {**contender.names, "runs": runs, "live": live}
    give = contender.giving("live[i]")
    timed = compiled(SEQUENCE, names, take=contender.take, give=give)
    return Case(contender.name, timed, sequence.events)


def _first_pass(case: Case) -> Case:
    """A case of its own for one pass right away, with the error where it fails."""
    cold = Case(case.who, None, case.events)
    if case.timed is None or case.error:
        cold.error = case.error
        return cold
    try:
        with quiet():
            cold.samples.append(case.timed(1) / case.events)
    except Exception as error:  # a peer's own; it becomes its row
        case.error = cold.error = told(error)
    return cold


def _duel(
    plan: Plan, sequence: Sequence, name: str, make: Maker, guard_ours: bool
) -> tuple[list[Case], list[Case]]:
    """gpumem and one other in turns: (first passes, warm ones), gpumem's first."""
    makers: dict[str, Maker] = {"gpumem": make_gpumem, name: make}
    with made(makers, None) as there:
        cases = [
            replay_case(c, sequence) if isinstance(c, Contender) else c for c in there
        ]
        cold = [_first_pass(case) for case in cases]
        measure(cases, plan.pace)
        for case, contender in zip(cases, there, strict=True):
            ours = contender is there[0]
            if isinstance(contender, Contender) and not case.error:
                if guard_ours or not ours:
                    case.note = judged(partial(verify, contender, sequence))
                if contender.held is not None:
                    case.extra["held_bytes"] = contender.held()
            case.timed = None  # which keeps what an error left alive
    return cold, cases


def duels(
    plan: Plan, bench: str, sequence: Sequence, peers: dict[str, Maker], first: bool
) -> Iterator[Row]:
    """The rows of one sequence: gpumem, and everybody beside it."""
    ours, ours_cold = Case("gpumem", None), Case("gpumem", None)
    objects: Case | None = None
    rows: list[Row] = []
    cold_rows: list[Row] = []
    for name, make in {"object()": make_object, **peers}.items():
        cold, cases = _duel(plan, sequence, name, make, not ours.samples)
        beside, case = cases
        if name == "object()":
            objects = case
            ours = Case("gpumem", None, note=beside.note, extra=beside.extra)
        ours.samples += beside.samples
        ours.error = ours.error or beside.error
        rows.append(row_of(bench, sequence.name, UNIT, case, None, beside))
        ours_cold.samples += cold[0].samples
        cold_rows.append(
            row_of(bench, f"{sequence.name}, first pass", UNIT, cold[1], None, cold[0])
        )
    # The first samples of gpumem are those that took turns with object().
    yield row_of(bench, sequence.name, UNIT, ours, objects, ours)
    yield from rows
    if first:
        yield row_of(bench, f"{sequence.name}, first pass", UNIT, ours_cold)
        yield from cold_rows[1:]  # for object() every pass is the same


def grid(plan: Plan) -> Iterator[Row]:
    """b3"""
    counts = RMM_COUNTS[:2] if plan.quick else RMM_COUNTS
    for count in counts:
        peers = plan.some(*_TRACE_PEERS)
        if count <= _SMALL_COUNT:
            peers |= plan.some("cudaMalloc")
        for most in RMM_MAXIMA:
            sequence = random_allocations(count, most)
            yield from duels(plan, "b3", sequence, peers, first=False)


def traces(plan: Plan) -> Iterator[Row]:
    """b4"""
    for name in plan.trace_names():
        peers = plan.some(*_TRACE_PEERS)
        yield from duels(plan, "b4", of_trace(name), peers, first=True)


# ---- growing ----


def _growing_case(name: str, make: Maker, sequence: Sequence) -> Case:
    """A repetition is one pass with a new pool, whose end is not in the time."""

    def timed(count: int) -> int:
        spent = 0
        for _ in range(count):
            contender = make(None)
            try:
                one_pass = replay_case(contender, sequence).timed
                assert one_pass is not None
                spent += one_pass(1)
                if contender.calls is not None:
                    case.extra["upstream_calls"] = contender.calls()
                if contender.held is not None:
                    case.extra["held_bytes"] = contender.held()
            finally:
                contender.close()
        return spent

    case = Case(name, timed, sequence.events)
    return case


def _verified(make: Maker, sequence: Sequence) -> str:
    contender = make(None)
    try:
        return verify(contender, sequence)
    finally:
        contender.close()


def growth(plan: Plan) -> Iterator[Row]:
    """b8"""
    makers: dict[str, Maker] = {
        kind.name: partial(make_gpumem, kind=kind) for kind in pool_kinds()
    }
    makers |= plan.some("cupy")
    for name in plan.trace_names():
        sequence = of_trace(name)
        cases = [_growing_case(who, make, sequence) for who, make in makers.items()]
        measure(cases, replace(plan.pace, sample_ns=0))
        for case, make in zip(cases, makers.values(), strict=True):
            if case.error:
                continue
            if case.who == "cupy":
                with cupy_calls() as calls:
                    case.note = judged(partial(_verified, make, sequence))
                case.extra["upstream_calls"] = len(calls)
            else:
                case.note = judged(partial(_verified, make, sequence))
        yield from rows_of("b8", f"{name}, growing", UNIT, cases)
