# SPDX-License-Identifier: MIT
"""The lines of README's table of results: what was measured, by which benchmark, what
it should be, and how a benchmark's rows are told in a few words.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.plan import Row

Rows = Sequence[Row]


# ---- what a line says; None where rows are missing ----


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


def _no_more_than(who: str, peer: str) -> Callable[[Rows], str | None]:
    """On how many of the cases of both `who` has no more than `peer`."""

    def tell(rows: Rows) -> str | None:
        theirs = {row.case: row.median or 0 for row in _found(rows, peer, "")}
        ours = [row for row in _found(rows, who, "") if row.case in theirs]
        if not ours:
            return None
        less = sum((row.median or 0) <= theirs[row.case] for row in ours)
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


def _comb(rows: Rows) -> str | None:
    """One block of 48% where half is free in pieces; what of 52% could be had."""
    found = _found(rows, _EXPANDABLE, "48%")
    refused = _found(rows, _EXPANDABLE, "52%")
    if not found or not refused:
        return None
    named = refused[0].extra["could_be_had"] / 2**30
    return f"{found[0].median:.0f} ms, {found[0].note}; of 52% {named:.1f} GiB named"


def _in_flight(rows: Rows) -> str | None:
    if not rows:
        return None
    wrong = sum(row.median or 0 for row in rows)
    events = sum(row.extra["events"] for row in rows)
    moved = sum(row.extra["remapped_pages"] for row in rows)
    return f"{wrong:.0f} in {events:,} events, {moved:,} pages moved"


def _of_program(rows: Rows) -> str | None:
    """The most bytes held, and the time of a step, over the least and the quickest of
    the library's own ways; a step over the same step of gpumem's default pool."""
    told = []
    for case in ("peak", "time"):
        found = [row for row in rows if row.case.endswith(case) and row.median]
        by_who = {row.who: row.over_gpumem or row.median or 0 for row in found}
        ours = by_who.pop(_EXPANDABLE, None)
        theirs = [value for who, value in by_who.items() if who != "gpumem"]
        if not ours or not theirs:
            return None
        told.append(f"{ours / min(theirs):.3f}x")
    return ", ".join(told)


def _first_pass(rows: Rows) -> str | None:
    """How many times as long as gpumem's pool CuPy's takes; each over object() in its
    own process."""
    found = [row for row in rows if row.case.endswith(", first pass")]
    theirs = {row.case: row.over_object or 0 for row in found if row.who == "cupy"}
    ours = [row for row in found if row.who == _EXPANDABLE and row.case in theirs]
    return _span([theirs[row.case] / (row.over_object or 1) for row in ours], "{}x")


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
        "the same, no more than with PyTorch's expandable segments",
        *("b5", "on each trace", _no_more_than(_EXPANDABLE, "torch, expandable")),
    ),
    Line("the same with plain segments", "b5", "", _ratios("gpumem")),
    Line(
        "the same, no more than with CuPy's pool",
        *("b5", "on each trace", _no_more_than("gpumem", "cupy")),
    ),
    Line(
        "held at the most for recorded traces, over what is live: expandable segments",
        *("b6", "1.03 or less, 1.02 mean", _ratios(_EXPANDABLE, ", held")),
    ),
    Line(
        "recorded traces, first pass, expandable segments: CuPy's pool takes",
        *("b6", "1x or more", _first_pass),
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
        "every other 64th of the card free, expandable segments: a block of 48% of it",
        *("b6comb", "is had; 52% fails", _comb),
    ),
    Line(
        "training GPT-2 in PyTorch, expandable segments: most bytes held, and time a"
        " step, over the better of PyTorch's own two",
        *("b14gpt2", "below 1x, 1.01x or less", _of_program),
    ),
    Line("so ResNet-50", "b14resnet", "below 1x, 1.01x or less", _of_program),
    Line("so Faster R-CNN", "b14rcnn", "below 1x, 1.01x or less", _of_program),
    Line(
        "so a CuPy program (FFT, sparse CG, sort, k-means), over CuPy's own pool",
        *("b14cupy", "below 1x, 1.01x or less", _of_program),
    ),
    Line(
        "`cupy.empty` and drop: with CuPy's own pool it takes",
        *("b14empty", "more than 1x", _times_ours("cupy", "cupy.empty")),
    ),
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
