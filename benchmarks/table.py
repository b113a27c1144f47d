# SPDX-License-Identifier: MIT
"""README's table of results, made from what was recorded.

    python3 -m benchmarks.table [--check]

Takes the newest run on a GPU in benchmarks/results/ that has the benchmark of a line,
and the recorded instruction counts, and writes the lines between the two markers of
README.md; --check only says whether they stand there. A line for which nothing was
recorded is not in the table; a figure that misses its target is, as it is.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks import callgrind, report
from benchmarks.plan import Row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- made by python3 -m benchmarks.table -->"
END = "<!-- end of what is made -->"

Rows = Sequence[Row]


# ---- what lines are made of: each returns its text, None where rows are missing ----


def _found(rows: Rows, who: str, *starts: str) -> list[Row]:
    """Rows of `who` with figures whose case begins so; all of them without `starts`."""
    return [
        row
        for row in rows
        if row.who == who and row.median is not None
        if row.case.startswith(starts or "")
    ]


def _span(values: list[float], text: str) -> str | None:
    """Lowest to highest."""
    if not values:
        return None
    low, high = min(values), max(values)
    shown = (
        f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    )
    return text.format(shown)


def _times_ours(who: str, start: str) -> Callable[[Rows], str | None]:
    """How many times as fast as `who` gpumem is."""

    def tell(rows: Rows) -> str | None:
        found = _found(rows, who, start)
        return _span([row.over_gpumem for row in found if row.over_gpumem], "{}x")

    return tell


def _over_object(rows: Rows) -> str | None:
    found = _found(rows, "gpumem", "pool, ")
    return _span([row.over_object for row in found if row.over_object], "{}x")


def _second_device(rows: Rows) -> str | None:
    one, two = (_found(rows, "gpumem", f"{count} device") for count in (1, 2))
    if not one or not two:
        return None
    assert one[0].median is not None and two[0].median is not None
    return f"{two[0].median - one[0].median:+.1f} ns"


def _crowd(start: str) -> Callable[[Rows], str | None]:
    def tell(rows: Rows) -> str | None:
        medians = {row.case: row.median for row in _found(rows, "gpumem", start)}
        few, many = (medians.get(f"{start}{count}") for count in ("100", "100,000"))
        return f"{many / few:.2f}x" if few and many else None

    return tell


def _grid(rows: Rows) -> str | None:
    ratios = [r.over_gpumem for r in _found(rows, "rmm pool", "n ") if r.over_gpumem]
    if not ratios:
        return None
    return f"{min(ratios):.2f}x at least, {geometric_mean(ratios):.2f}x mean"


def _warm(who: str) -> Callable[[Rows], str | None]:
    def tell(rows: Rows) -> str | None:
        warm = [row for row in rows if "," not in row.case]
        return _times_ours(who, "")(warm)

    return tell


def _threads(rows: Rows) -> str | None:
    found = _found(rows, "gpumem", "8 threads")
    return f"{found[0].extra['over_one_thread']:.2f}x" if found else None


def _growth(who: str) -> Callable[[Rows], str | None]:
    def tell(rows: Rows) -> str | None:
        theirs = {row.case: row for row in _found(rows, "cupy", "")}
        pairs = [
            (row, theirs[row.case])
            for row in _found(rows, who, "")
            if row.case in theirs
        ]
        if not pairs:
            return None
        calls = max(
            a.extra["upstream_calls"] / b.extra["upstream_calls"] for a, b in pairs
        )
        spent = max((a.median or 0) / (b.median or 1) for a, b in pairs)
        return f"{calls:.2f} of the calls, {spent:.2f} of the time, at most"

    return tell


def _tail(rows: Rows) -> str | None:
    ratios = [row.extra["p99.9"] / row.extra["p50"] for row in _found(rows, "core", "")]
    return _span(ratios, "{}x")


def _bytes(case: str) -> Callable[[Rows], str | None]:
    def tell(rows: Rows) -> str | None:
        found = [row.median for row in rows if row.case == case and row.median]
        return f"{found[0]:.1f}" if found else None

    return tell


_EXPANDABLE = "gpumem, expandable"


def _ratios(who: str, end: str = "") -> Callable[[Rows], str | None]:
    """Lowest to highest, and the mean, of the cases that end so."""

    def tell(rows: Rows) -> str | None:
        found = [row for row in _found(rows, who, "") if row.case.endswith(end)]
        values = [row.median for row in found if row.median]
        if not values:
            return None
        low, high, mean = min(values), max(values), geometric_mean(values)
        return f"{low:.3f} to {high:.3f}, {mean:.3f} mean"

    return tell


def _less_than(who: str, peer: str) -> Callable[[Rows], str | None]:
    """On how many of the cases of both `who` has less than `peer`."""

    def tell(rows: Rows) -> str | None:
        theirs = {row.case: row.median or 0 for row in _found(rows, peer, "")}
        ours = [row for row in _found(rows, who, "") if row.case in theirs]
        if not ours:
            return None
        less = sum((row.median or 0) < theirs[row.case] for row in ours)
        more = max((row.median or 0) / theirs[row.case] for row in ours)
        return f"{less} of {len(ours)}; {more:.3f} times as much at most"

    return tell


def _tight(limit: str) -> Callable[[Rows], str | None]:
    """How many times as long as gpumem's pool the quickest peer takes that completes;
    each over object() in its own process."""

    def tell(rows: Rows) -> str | None:
        end = f", limit {limit}"
        found = [row for row in rows if row.case.endswith(end) and row.over_object]
        ratios = []
        for mine in (row for row in found if row.who == _EXPANDABLE):
            others = [
                row.over_object or 0
                for row in found
                if row.case == mine.case and not row.who.startswith("gpumem")
            ]
            if others:
                ratios.append(min(others) / (mine.over_object or 1))
        return _span(ratios, "{}x") if ratios else None

    return tell


def _giving(rows: Rows) -> str | None:
    found = _found(rows, _EXPANDABLE, "behind")
    plain = _found(rows, "gpumem", "behind")
    if not found or not plain:
        return None
    ours = max(row.median or 0 for row in found)
    theirs = max(row.median or 0 for row in plain)
    return f"{ours:.2f} ms; {theirs:.0f} ms with plain segments"


def _in_flight(rows: Rows) -> str | None:
    if not rows:
        return None
    wrong = sum(row.median or 0 for row in rows)
    events = sum(row.extra["events"] for row in rows)
    moved = sum(row.extra["remapped_pages"] for row in rows)
    return f"{wrong:.0f} in {events:,} events, {moved:,} pages moved"


def _least_held(rows: Rows) -> str | None:
    """Most bytes held in training, over the least of PyTorch's two ways."""
    ours = [row.median or 0 for row in _found(rows, _EXPANDABLE) if "peak" in row.case]
    theirs = [
        row.median or 0
        for who in ("torch", "torch, expandable")
        for row in _found(rows, who)
        if "peak" in row.case
    ]
    return f"{ours[0] / min(theirs):.3f}x" if ours and theirs else None


@dataclass(frozen=True)
class Line:
    """What was measured, in which benchmark, what it should be, how it is told; build:
    the kind of interpreter that it takes."""

    measure: str
    bench: str
    target: str
    tell: Callable[[Rows], str | None]
    build: str = ""


LINES = (
    Line(
        "`pool.malloc` and drop, 512 B to 1 GiB: CuPy's pool takes",
        *("b1", "9x or more", _times_ours("cupy", "pool, ")),
    ),
    Line("the same over `object()`", "b1", "1.25x or less", _over_object),
    Line(
        "the same with a second device visible",
        *("b1devices", "15 ns more or less", _second_device),
    ),
    Line(
        "`gpumem.alloc` and drop: `cupy.cuda.alloc` takes",
        *("b1", "9x or more", _times_ours("cupy.cuda.alloc", "installed ")),
    ),
    Line(
        "replacing 500 of 5,500 blocks: CuPy's pool takes",
        *("b1replace", "9x or more", _times_ours("cupy", "replacing 500 of 5,500")),
    ),
    Line(
        "100,000 live blocks over 100: replacing all of them",
        *("b2", "1.5x or less", _crowd("replacing all of ")),
    ),
    Line(
        "100,000 live blocks over 100: one pair beside them",
        *("b2", "1.5x or less", _crowd("4 KiB beside ")),
    ),
    Line(
        "RMM's random_allocations: RMM's pool takes",
        *("b3", "more everywhere, 3x in the mean", _grid),
    ),
    Line("recorded traces, warm: CuPy's pool takes", "b4", "6x or more", _warm("cupy")),
    Line("recorded traces, warm: PyTorch takes", "b4", "6x or more", _warm("torch")),
    Line(
        "smallest limit for recorded traces, over what is live: expandable segments",
        *("b5", "1.012 or less", _ratios(_EXPANDABLE)),
    ),
    Line(
        "the same below PyTorch's expandable segments",
        *("b5", "on each trace", _less_than(_EXPANDABLE, "torch, expandable")),
    ),
    Line("the same with plain segments", "b5", "", _ratios("gpumem")),
    Line(
        "the same below CuPy's pool",
        *("b5", "no more on any trace", _less_than("gpumem", "cupy")),
    ),
    Line(
        "held at the most for recorded traces, over what is live: expandable segments",
        *("b6", "1.03 or less, 1.02 mean", _ratios(_EXPANDABLE, ", held")),
    ),
    Line(
        "recorded traces, warm, at a limit of 1.05: the quickest peer takes",
        *("b6", "more than 1x", _tight("1.05")),
    ),
    Line("the same at 1.03", "b6", "more than 1x", _tight("1.03")),
    Line(
        "the same with kernels and copies in flight: marks of other blocks",
        *("b6flight", "none", _in_flight),
    ),
    Line(
        "giving back what is cached behind a kernel of 60 ms, expandable segments",
        *("b9", "below 5 ms", _giving),
    ),
    Line(
        "GPT-2 training in PyTorch, most bytes held, expandable segments: over the"
        " least with PyTorch's own allocator",
        *("b14gpt2", "below 1x", _least_held),
    ),
    Line("ResNet-50 training, the same", "b14resnet", "below 1x", _least_held),
    Line(
        "8 threads on their own streams, free-threaded Python: over one thread",
        *("b7", "5x or more", _threads, "free-threaded"),
    ),
    Line(
        "recorded traces from nothing, with `growth=True`: of what CuPy's pool takes",
        *("b8", "0.10 of the calls, 0.50 of the time", _growth("gpumem, growth")),
    ),
    Line(
        "the same with `growth=2 << 30`",
        "b8",
        "0.10 of the calls, 0.50 of the time",
        _growth("gpumem, growth of 2 GiB"),
    ),
    Line("recorded traces in C, warm: p99.9 over p50", "b10", "8x or less", _tail),
    Line(
        "host bytes a block, in the core",
        *("b13", "64 or less", _bytes("in the core")),
    ),
    Line(
        "host bytes a live block from Python, in all",
        *("b13", "192 or less", _bytes("in all")),
    ),
)


# ---- the table ----


def runs() -> list[tuple[dict[str, Any], list[Row]]]:
    """The recorded runs on a GPU, the newest first."""
    found = [report.load(path) for path in RESULTS.glob("bench_*.json")]
    found = [run for run in found if run[0]["backend"] == "cuda"]
    return sorted(found, key=lambda run: str(run[0]["machine"]["date"]), reverse=True)


Run = tuple[dict[str, Any], list[Row]]


def _together(first: Run, others: list[Run], bench: str) -> list[Row]:
    """The rows of a benchmark in a run and in older ones of the same commit and device:
    what takes long is measured in parts. Of a row that several have, the newest."""
    about, _ = first
    rows: dict[tuple[str, str], Row] = {}
    for other, some in [first, *others]:
        if other["machine"].get("commit") == about["machine"].get("commit") and (
            other["device"],
            other["build"],
        ) == (about["device"], about["build"]):
            for row in some:
                if row.bench == bench:
                    rows.setdefault((row.case, row.who), row)
    return list(rows.values())


def _told(line: Line, recorded: list[Run]) -> tuple[str, str] | None:
    """What the newest run that has it says, and on what it ran."""
    for number, run in enumerate(recorded):
        about, _ = run
        if line.build in ("", about["build"]):
            text = line.tell(_together(run, recorded[number + 1 :], line.bench))
            if text is not None:
                return text, str(about["device"])
    return None


# Instructions of a hit and the free after it, by the ways of callgrind.py.
TARGETS = {
    "exact": "100 or less",
    "turns": "100 or less",
    "split": "160 or less",
    "cut": "160 or less",
    "deep": "bounded",
}


def lines() -> list[str]:
    """The lines of the table; none where nothing was recorded."""
    recorded = runs()
    body = []
    for line in LINES:
        found = _told(line, recorded)
        if found is not None:
            body.append((line.measure, line.target, *found))
    for compiler, counts in sorted(callgrind.recorded().items()):
        for way, target in TARGETS.items():
            measure = f"instructions in the core: {callgrind.WAYS[way]}"
            body.append((measure, target, f"{counts[way]:.0f}", compiler))
    if not body:
        return []
    head = [("measure", "target", "measured", "on"), ("---", "---", "---", "---")]
    return ["| " + " | ".join(cells) + " |" for cells in [*head, *body]]


def written(text: str, table: list[str]) -> str:
    """`text` with `table` between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks the markers {BEGIN} and {END}")
    return "\n".join([before + begin, "", *table, "", end + after])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    new = written(text, lines())
    if args.check:
        return 0 if new == text else 1
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
