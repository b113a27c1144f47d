# SPDX-License-Identifier: MIT
"""b7: 1 to 16 threads at once, each on a stream of its own.

Each thread makes its stream current and has a bound method and a size of its own, so
that what they share is the pool and nothing that the interpreter counts. All begin
together; a sample is the time from the first that begins to the last that ends, over
the pairs of all. On a build with the interpreter lock this tells what handing it over
costs; on a free-threaded one, whether threads get into each other's way:
`over_one_thread` says how many times the work of one thread they did in the same time.
"""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from benchmarks.contenders import Contender, Maker, make_gpumem, make_object
from benchmarks.plan import Plan, Row, made, row_of
from benchmarks.timing import STATEMENT, Case, compiled, measure

THREADS = (1, 2, 4, 8, 16)
UNIT = "ns a pair"
SIZE = 4096

_PEERS = ("cupy", "torch", "rmm pool", "rmm arena", "cudaMallocAsync")
_PATIENCE = 60.0  # seconds

# Threads that are done before the interpreter lock would change hands tell nothing.
_PAIRS = 10_000  # in each thread, a repetition
_SAMPLE_NS = 60_000_000


def build() -> str:
    """Which interpreter this is."""
    enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    return "interpreter lock" if enabled() else "free-threaded"


class Team:
    """Threads that each run the same loop on a stream of their own."""

    def __init__(self, contender: Contender, size: int) -> None:
        self._contender = contender
        self._size = size
        self._lanes = contender.lanes(list(range(1, size + 1)))

    def timed(self, count: int) -> int:
        """Nanoseconds for `count` times _PAIRS pairs in each of the threads."""
        barrier = threading.Barrier(self._size)
        spans: list[tuple[int, int]] = []
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                stream, enter = self._lanes[number]
                enter()
                own = self._contender.own
                names = dict(own() if own else self._contender.names)
                # A number of its own: counting references to one that threads share
                # would be all that is measured.
                names |= {"size": int(str(SIZE)), "stream": stream}
                give = self._contender.giving("p")
                statement = f"p = {self._contender.take}; {give}"
                loop = compiled(STATEMENT, names, statement=statement)
                barrier.wait(_PATIENCE)
                begun = time.perf_counter_ns()
                loop(count * _PAIRS)
                spans.append((begun, time.perf_counter_ns()))
            except Exception as error:  # told by the caller's thread
                errors.append(error)
                barrier.abort()

        crew = [
            threading.Thread(target=work, args=(number,), daemon=True)
            for number in self._lanes
        ]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        if errors:
            raise errors[0]
        return max(end for _, end in spans) - min(begun for begun, _ in spans)


def _case(contender: Contender, size: int) -> Case:
    return Case(contender.name, Team(contender, size).timed, size * _PAIRS)


def threads(plan: Plan) -> Iterator[Row]:
    """b7"""
    makers: dict[str, Maker] = {"gpumem": make_gpumem, **plan.some(*_PEERS)}
    makers = {"object()": make_object, **makers}
    alone: dict[str, float] = {}
    pace = replace(plan.pace, sample_ns=max(plan.pace.sample_ns, _SAMPLE_NS))
    for size in THREADS:
        with made(makers, 1 << 30) as there:
            cases = [_case(c, size) if isinstance(c, Contender) else c for c in there]
            measure(cases, pace)
        ours = next(case for case in cases if case.who == "gpumem")
        for case in cases:
            case.extra["build"] = build()
            if case.samples:
                alone.setdefault(case.who, median(case.samples))
                case.extra["over_one_thread"] = alone[case.who] / median(case.samples)
            what = f"{size} thread{'s' * (size > 1)}"
            yield row_of("b7", what, UNIT, case, cases[0], ours)
