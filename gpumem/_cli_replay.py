# SPDX-License-Identifier: MIT
"""`python -m gpumem replay`: its arguments, what it runs, what it prints.

What is measured and checked is in _replay.py, the search for the smallest limit in
_smallest.py, the picture in _picture.py; this file parses, prints and writes files.
"""

import argparse
import hashlib
import json
from typing import Any

import gpumem
from gpumem import _picture, _replay, _smallest
from gpumem._cli_common import (
    INCOMPLETE,
    Progress,
    Unusable,
    complain,
    open_backend,
    show_progress,
)
from gpumem._core import _LIMIT_FORMS, _SIZE_FORMS, _parse_size
from gpumem._trace import Trace, read_trace
from gpumem._units import format_bytes, parse_limit

DESCRIPTION = """\
Replays a recorded allocation trace (CSV or gzipped CSV, header op,id,size,stream,us)
through the allocator, on the trace's streams, and reports how much memory it took and
how long an event lasted.
"""

EPILOG = """\
example:
  python -m gpumem replay benchmarks/traces/gpt2_train.csv.gz --verify --repeat 5

exit codes:
  0  the whole trace was replayed
  1  it was not: out of memory, a device error, or a check that failed
  2  the command line, the environment or a file is not usable
"""


def add_arguments(replay: argparse.ArgumentParser) -> None:
    _add_pool_arguments(replay)
    _add_work_arguments(replay)


def _add_pool_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("trace", metavar="TRACE", help="the trace file")
    replay.add_argument(
        "--pool",
        choices=("pool", "raw"),
        default="pool",
        help="pool: a new MemoryPool (default); raw: one device allocation each time",
    )
    replay.add_argument(
        "--limit",
        type=_limit,
        metavar="SIZE",
        help=f"limit of the pool: {_LIMIT_FORMS}; 0 is none".replace("%", "%%"),
    )
    replay.add_argument(
        "--growth",
        type=_growth,
        metavar="on|SIZE",
        help="growth of the pool: on, or the least that it takes ahead of requests, "
        f"{_SIZE_FORMS}",
    )
    replay.add_argument(
        "--expandable",
        action="store_true",
        help="expandable_segments of the pool",
    )
    replay.add_argument(
        "--max-split-size",
        type=_size_argument,
        metavar="SIZE",
        help=f"max_split_size of the pool, {_SIZE_FORMS}",
    )
    replay.add_argument(
        "--large-segment-size",
        type=_size_argument,
        metavar="SIZE",
        help=f"large_segment_size of the pool, {_SIZE_FORMS}",
    )


def _add_work_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument(
        "--repeat",
        type=_passes,
        default=2,
        metavar="N",
        help="timed passes; the first starts with an empty pool, the rest are warm "
        "(default: 2)",
    )
    replay.add_argument(
        "--smallest-limit",
        action="store_true",
        help="more passes, untimed: the smallest limit under which the whole trace "
        "completes, to 2 MiB, and whether it does at each half percent above that up "
        "to 1.05 of the peak that is requested",
    )
    replay.add_argument(
        "--verify",
        action="store_true",
        help="one more pass, untimed: no two live blocks overlap, and bytes written at "
        "both ends of each block, and on both sides of each 2 MiB of addresses, are "
        "there when it is freed",
    )
    replay.add_argument(
        "--placements",
        metavar="FILE",
        help="one more pass, untimed, with a new pool: write where each block was put, "
        "as CSV lines id,serial,offset (allocation, number of the segment, bytes into "
        "it); the same on every backend",
    )
    replay.add_argument(
        "--plot",
        metavar="FILE.png",
        help="one more pass, untimed, with a new pool: draw bytes over time, and the "
        "address space over time; needs matplotlib",
    )
    replay.add_argument(
        "--json", action="store_true", help="print one JSON object instead of text"
    )


def _passes(text: str) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= 7
    if not (digits and 0 < int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of passes; expected 1 to 1000000"
        )
    return int(text)


def _limit(text: str) -> dict[str, int | float]:
    try:
        return parse_limit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _size_argument(text: str) -> int:
    try:
        return _parse_size(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _growth(text: str) -> dict[str, bool | int]:
    """The argument of MemoryPool that `text` means."""
    if text == "on":
        return {"growth": True}
    try:
        return {"growth": _parse_size(text)}
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{error}; or on") from error


# ---- what is run ----


# Options that are about a pool: the argument, and why there has to be one.
_NEED_A_POOL = {
    "limit": "has none",
    "growth": "has none",
    "expandable": "has none",
    "max_split_size": "has none",
    "large_segment_size": "has none",
    "smallest_limit": "has no limit",
    "placements": "has no segments",
    "plot": "has no segments",
}


def run(args: argparse.Namespace) -> int:
    _check(args)
    trace = read_trace(args.trace)
    open_backend()
    notes = []
    with show_progress() as progress:
        report = _replay.replay(
            trace, _new_pool(args), passes=args.repeat, progress=progress
        )
        report.pool += _with(args)
        if args.smallest_limit:
            report.smallest = _smallest.smallest_limit(
                trace, lambda: _made_pool(args), progress=progress
            )
        if report.completed and args.verify:
            _replay.verify(trace, _new_pool(args), progress=progress)
            notes.append("verified: no overlap, contents kept, all given back")
        if report.completed and args.placements is not None:
            rows = _replay.placements(trace, _made_pool(args), progress=progress)
            notes.append(_write_placements(args.placements, rows))
        if args.plot is not None:
            notes.append(_plot(args, trace, report, progress))
    if args.json:
        print(json.dumps(report.to_json()))
    else:
        print("\n".join([*_describe(report, trace), *notes]))
    if report.failure:
        return complain(report.failure, INCOMPLETE)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Ends with a complaint where the options do not go together."""
    for name, reason in _NEED_A_POOL.items():
        if args.pool == "raw" and getattr(args, name) not in (None, False):
            option = name.replace("_", "-")
            args.usage_error(f"--{option} needs a pool; --pool raw {reason}")
    if args.smallest_limit and args.limit is not None:
        args.usage_error("--smallest-limit looks for a limit; it goes with no --limit")
    if args.plot is not None:
        try:
            _picture.require_matplotlib()
        except _picture.NoMatplotlib as error:
            raise Unusable(error) from error


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of MemoryPool that the command line means."""
    named = ("max_split_size", "large_segment_size")
    given = {name: getattr(args, name) for name in named}
    found = {name: value for name, value in given.items() if value is not None}
    if args.expandable:
        found["expandable_segments"] = True
    return (args.growth or {}) | found


def _with(args: argparse.Namespace) -> str:
    """What is special about the pool, for people."""
    options = _options(args)
    return f" with {', '.join(options)}" if options else ""


def _made_pool(args: argparse.Namespace) -> gpumem.MemoryPool:
    """An empty pool as the command line wants it."""
    try:
        pool = gpumem.MemoryPool(**_options(args))
        pool.get_limit()  # what the environment says
    except ValueError as error:
        raise Unusable(error) from error
    if args.limit is not None:
        pool.set_limit(**args.limit)
    return pool


def _new_pool(args: argparse.Namespace) -> gpumem.MemoryPool | None:
    """The same, None where it wants none."""
    return None if args.pool == "raw" else _made_pool(args)


def _plot(
    args: argparse.Namespace,
    trace: Trace,
    report: _replay.Report,
    progress: Progress | None,
) -> str:
    """Draws the picture; a line about it."""
    pool = _made_pool(args)
    limit = pool.get_limit()
    found = _picture.record(trace, pool, expandable=args.expandable, progress=progress)
    title = f"{trace.path}: {report.pool} on {report.backend}"
    try:
        _picture.draw(args.plot, trace, found, title=title, limit=limit)
    except OSError as error:
        raise Unusable(f"cannot write {args.plot}: {error.strerror}") from error
    return f"picture: {args.plot}"


def _write_placements(path: str, rows: list[tuple[int, int, int]]) -> str:
    """Writes the placements to `path`; a line about it."""
    text = "id,serial,offset\n" + "".join(
        f"{number},{serial},{offset}\n" for number, serial, offset in rows
    )
    data = text.encode("ascii")
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise Unusable(f"cannot write {path}: {error.strerror}") from error
    return f"placements: {path}, sha256 {hashlib.sha256(data).hexdigest()}"


def _describe(report: _replay.Report, trace: Trace) -> list[str]:
    """`report` in lines for a person."""
    streams = len(set(trace.streams))
    rows = [
        (
            "events",
            f"{report.events:,}: {report.allocations:,} allocations, "
            f"{trace.live_at_end:,} never freed, {streams} "
            f"stream{'' if streams == 1 else 's'}",
        ),
        ("peak requested", _size(report.peak_requested_bytes)),
    ]
    if report.peak_used_bytes is not None:
        rows.append(("peak used", _size(report.peak_used_bytes)))
    if report.peak_total_bytes is not None:
        ratio = f", {report.overhead:.3f} of requested" if report.overhead else ""
        rows.append(("peak total", _size(report.peak_total_bytes) + ratio))
    if report.hits is not None:
        rows.append(("hits, misses", f"{report.hits:,}, {report.misses:,}"))
        rows.append(
            (
                "upstream",
                f"{report.upstream_allocations:,} allocations, "
                f"{report.upstream_frees:,} frees",
            )
        )
    if report.ns_per_event is not None:
        rows.append(("first pass", f"{report.ns_per_event:.1f} ns an event"))
    if report.ns_per_event_warm is not None:
        low, high = min(report.warm_passes), max(report.warm_passes)
        many = len(report.warm_passes)
        spread = f", median of {many}, {low:.1f} to {high:.1f}" if many > 1 else ""
        rows.append(("warm", f"{report.ns_per_event_warm:.1f} ns an event{spread}"))
    if report.smallest is not None:
        rows += _describe_smallest(report.smallest)
    width = max(len(name) for name, _ in rows)
    state = "" if report.completed else ", NOT COMPLETED"
    return [
        f"{report.trace}: {report.pool} on {report.backend}{state}",
        *(f"  {name:<{width}}  {text}" for name, text in rows),
    ]


def _describe_smallest(found: _smallest.Smallest) -> list[tuple[str, str]]:
    if found.limit_bytes is None:
        return [("smallest limit", "none: the trace does not complete without one")]
    ratio = f", {found.ratio:.3f} of requested" if found.ratio else ""
    rows = [("smallest limit", _size(found.limit_bytes) + ratio)]
    if found.failures:
        failures = ", ".join(f"{limit:,}" for limit in found.failures)
        rows.append(("larger, in vain", f"{failures} bytes"))
    return rows


def _size(size: int) -> str:
    return f"{size:,} bytes ({format_bytes(size)})"
