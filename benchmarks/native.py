# SPDX-License-Identifier: MIT
"""What is measured with no interpreter, or in one of its own.

b10        the traces in C: how long single operations take, percentiles
b13        host memory a live block: the core's, and all of it from Python
callgrind  instructions of a hit and a free

The C programs are built by `make bench-c`, so that needs make and a compiler;
callgrind needs valgrind. What cannot be had is a row that says so.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpumem
from benchmarks import callgrind, flat
from benchmarks.plan import Plan, Row
from benchmarks.programs import Unavailable, build, figures, program
from benchmarks.sequences import of_trace, trace_names

_BLOCKS = 200_000
_SAMPLES = 2_000_000  # of a trace, about


# ---- b10 ----


def _tail(name: str) -> dict[str, Any]:
    sequence = of_trace(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "sequence")
        flat.write(sequence, path)
        passes = max(3, _SAMPLES // sequence.events)
        return figures([str(program("tail")), str(path), str(passes)])


def tails(plan: Plan) -> Iterator[Row]:
    """b10"""
    names = trace_names()
    try:
        build()
    except Unavailable as error:
        yield Row("b10", "all traces", "core", "ns", error=str(error))
        return
    for name in names:
        try:
            found = _tail(name)
        except Unavailable as error:
            yield Row("b10", name, "core", "ns", error=str(error))
            continue
        for operation in ("take", "give"):
            times = found[operation]
            yield Row(
                "b10",
                f"{name}, {operation}",
                "core",
                "ns, the median of all operations",
                median=times["p50"],
                samples=times["samples"],
                note="no overlap, no leak",
                extra={**times, "clock_ns": found["clock_ns"]},
            )


# ---- b13 ----


def host_memory(plan: Plan) -> Iterator[Row]:
    """b13"""
    unit = "bytes a live block"
    try:
        build()
        found = figures([str(program("host_bytes")), str(_BLOCKS)])
        yield _single("b13", "in the core", "core", unit, found["bytes_a_block"])
    except Unavailable as error:
        yield Row("b13", "in the core", "core", unit, error=str(error))
    words = [sys.executable, "-m", "benchmarks.host_bytes", str(_BLOCKS)]
    try:
        found = figures(words, GPUMEM_BACKEND=gpumem.get_backend())
        yield _single("b13", "in all", "gpumem", unit, found["bytes_a_block"])
    except Unavailable as error:
        yield Row("b13", "in all", "gpumem", unit, error=str(error))


def _single(
    bench: str, case: str, who: str, unit: str, value: float, **extra: Any
) -> Row:
    return Row(bench, case, who, unit, value, value, value, 1, extra=extra)


# ---- callgrind ----


def instructions(plan: Plan) -> Iterator[Row]:
    """callgrind"""
    try:
        counted = callgrind.count_all()
    except Unavailable as error:
        yield Row("callgrind", "all", "core", "instructions", error=str(error))
        return
    compiler = callgrind.compiler()
    for way, count in counted.items():
        what = callgrind.WAYS[way]
        extra = {"way": way, "compiler": compiler}
        yield _single("callgrind", what, "core", "instructions", count, **extra)
