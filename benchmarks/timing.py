# SPDX-License-Identifier: MIT
"""Loops that are timed, and measuring several of them in turns.

A loop is made from text: what allocates and what gives back are pasted into it, and all
they name are its local variables, so nothing but the statement itself differs between
two allocators. The clock is read before and after; the collector is off meanwhile.

The loops of one group take turns, one sample each a round, so that a machine that slows
down slows all of them. Samples are short and many, so that most of them end before the
system gives the core to somebody else. A figure is the median of the rounds, a ratio
the median of the ratios within each round: compare inside a group, not across two.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import Any

Timed = Callable[[int], int]
"""Repetitions -> nanoseconds for all of them."""

STATEMENT = """
def timed(count, {names}):
    steps = repeat(None, count)
    start = clock()
    for _ in steps:
        {statement}
    return clock() - start
"""

SEQUENCE = """
def timed(count, {names}):
    steps = repeat(None, count)
    start = clock()
    for _ in steps:
        for stream, enter, events in runs:
            enter()
            for i, size, taking in events:
                if taking:
                    live[i] = {take}
                else:
                    {give}
    return clock() - start
"""

REPLACING = """
def timed(count, {names}):
    steps = repeat(None, count)
    start = clock()
    for _ in steps:
        for i, size in sequence:
            {give}
            live[i] = {take}
    return clock() - start
"""


def compiled(loop: str, names: dict[str, Any], **parts: str) -> Timed:
    """The loop with `parts` pasted in and `names` as its local variables."""
    bound = {**names, "clock": time.perf_counter_ns, "repeat": repeat}
    text = loop.format(names=", ".join(bound), **parts)
    space: dict[str, Any] = {}
    exec(compile(text, f"<{parts}>", "exec"), space)
    timed = space["timed"]
    return lambda count: int(timed(count, **bound))


@dataclass(frozen=True)
class Pace:
    """How much is sampled.

    rounds     samples of each case, at least
    sample_ns  how long one takes, about; at least one repetition
    budget_ns  what the samples of a case may take together where `rounds` of them take
               less: then there are more, up to MOST times as many
    patience   seconds: where one repetition takes longer, it is the only sample
    """

    rounds: int
    sample_ns: int
    budget_ns: int
    patience: float = 5


MOST = 5


@dataclass
class Case:
    """One thing that is timed.

    who      whose it is: the name in the table
    timed    the loop; None for what could not be made
    events   how many events a repetition has; figures are for one of them
    samples  nanoseconds an event, one a round
    error    why there are none
    note     what the guard said
    extra    further figures, by name
    """

    who: str
    timed: Timed | None
    events: float = 1
    samples: list[float] = field(default_factory=list)
    error: str = ""
    note: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def sample(self, repetitions: int) -> None:
        assert self.timed is not None
        spent = self.timed(repetitions)
        self.samples.append(spent / repetitions / self.events)


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is collected inside, all garbage before."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def told(error: BaseException) -> str:
    """One line for a table."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:160]


def repetitions(timed: Timed, sample_ns: int) -> tuple[int, int]:
    """How many take about `sample_ns`, and what they take. Warms up as it goes."""
    count = 1
    while True:
        spent = timed(count)
        if spent >= sample_ns // 4:
            wanted = max(1, round(count * sample_ns / max(1, spent)))
            return wanted, wanted * spent // count
        count *= 2


def measure(cases: list[Case], pace: Pace) -> None:
    """Samples all cases in turns. One that raises keeps the error and drops out; so
    does one that takes too long, with the one sample that it has."""
    counts: dict[int, int] = {}
    a_round = 0
    with quiet():
        for number, case in enumerate(cases):
            if case.timed is not None and not case.error:
                try:
                    # Not a sample: it may ask the device, which can take longer.
                    first = case.timed(1)
                    if first > pace.patience * 1e9:
                        case.samples.append(first / case.events)
                        continue
                    counts[number], spent = repetitions(case.timed, pace.sample_ns)
                    a_round += spent
                except Exception as error:  # a peer's own; it becomes its row
                    case.error = told(error)
        rounds = len(counts) * pace.budget_ns // max(1, a_round)
        for _ in range(max(pace.rounds, min(rounds, MOST * pace.rounds))):
            for number, count in counts.items():
                if cases[number].error:
                    continue
                try:
                    cases[number].sample(count)
                except Exception as error:
                    cases[number].error = told(error)


def ratio(case: Case, base: Case | None) -> float | None:
    """How many times as long as `base` it takes: the median over the rounds that both
    have; None where they have none."""
    if base is None or not case.samples or not base.samples:
        return None
    pairs = zip(case.samples, base.samples, strict=False)
    return median(a / b for a, b in pairs)
