# SPDX-License-Identifier: MIT
"""What a run does: how long it samples, whom it compares, what comes out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.contenders import Contender, Maker
from benchmarks.sequences import trace_names
from benchmarks.timing import Case, Pace, ratio, told

# The error of a row where memory ran out under a limit: a result, and nobody's fault.
DOES_NOT_COMPLETE = "does not complete"


@dataclass(frozen=True)
class Plan:
    """One run.

    quick  smaller grids
    pace   how much is sampled
    seed   of what is drawn that has no rule of its own
    peers  those that are compared, by name
    traces the recorded traces that are replayed, by name; none for all
    """

    quick: bool
    pace: Pace
    seed: int
    peers: dict[str, Maker]
    traces: tuple[str, ...] = ()

    def trace_names(self) -> list[str]:
        """Those that are replayed."""
        return [x for x in trace_names() if not self.traces or x in self.traces]

    def some(self, *names: str) -> dict[str, Maker]:
        """Those of `names` that are there, in this order."""
        return {name: self.peers[name] for name in names if name in self.peers}


@dataclass
class Row:
    """A line of a table, and of the JSON.

    bench, case    what was measured
    who            the allocator
    unit           of the three figures
    median, low, high  over the samples; None where there is an error
    over_object    times what object() took in the same loop, where that ran too
    over_gpumem    times what gpumem took in the same group
    note           what the guard said
    error          why there are no figures
    extra          further figures, by name
    """

    bench: str
    case: str
    who: str
    unit: str
    median: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0
    over_object: float | None = None
    over_gpumem: float | None = None
    note: str = ""
    error: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def row_of(
    bench: str,
    name: str,
    unit: str,
    case: Case,
    objects: Case | None = None,
    ours: Case | None = None,
) -> Row:
    """The row of one case, with its ratios to the others of its group."""
    row = Row(bench, name, case.who, unit, note=case.note, extra=case.extra)
    if case.error or not case.samples:
        row.error = case.error or "no sample"
        return row
    row.median = median(case.samples)
    row.low, row.high = min(case.samples), max(case.samples)
    row.samples = len(case.samples)
    row.over_object = ratio(case, objects)
    row.over_gpumem = ratio(case, ours)
    return row


def rows_of(bench: str, name: str, unit: str, cases: list[Case]) -> list[Row]:
    """The rows of a group that was measured in turns."""
    objects = next((case for case in cases if case.who == "object()"), None)
    ours = next((case for case in cases if case.who.startswith("gpumem")), None)
    return [row_of(bench, name, unit, case, objects, ours) for case in cases]


@contextmanager
def made(
    makers: dict[str, Maker], room: int | None
) -> Iterator[list[Contender | Case]]:
    """A contender of each maker, closed afterwards, the last first; where one cannot be
    made, a Case with the error."""
    there: list[Contender | Case] = []
    try:
        for name, make in makers.items():
            try:
                there.append(make(room))
            except Exception as error:  # a peer's own; it becomes its row
                there.append(Case(name, None, error=told(error)))
        yield there
    finally:
        for contender in reversed(there):
            if isinstance(contender, Contender):
                contender.close()
