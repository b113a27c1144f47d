# SPDX-License-Identifier: MIT
"""The command line: `python -m gpumem replay` and `python -m gpumem info`.

Results go to stdout, progress and complaints to stderr. Exit codes: 0 all went well;
1 the work did not complete (out of memory, a device error, or the allocator broke a
promise); 2 the command line, the environment or a file, stdout included, is not usable;
130 interrupted; 141 whoever read the output left, as the shell has it for a program
that a signal ended. No input ends in a traceback.

What is measured and checked is in _replay.py; this file parses, prints and shows
progress.
"""

import argparse
import hashlib
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import gpumem
from gpumem import _replay
from gpumem._config import config
from gpumem._core import _LIMIT_FORMS, _SIZE_FORMS, _parse_size
from gpumem._trace import Trace, TraceError, read_trace
from gpumem._units import format_bytes, parse_limit

_INCOMPLETE = 1
_UNUSABLE = 2
_INTERRUPTED = 130
_NO_READER = 141

# Name, and what it does. The library reads each at first use, never at import; the
# limits whenever a pool is made.
_ENVIRONMENT = {
    "GPUMEM_BACKEND": (
        "auto (default): the GPU if there is one, else the simulated device; "
        "cuda: the GPU or an error; sim: the simulated device"
    ),
    "GPUMEM_SIM_DEVICES": "how many simulated devices there are",
    "GPUMEM_SIM_MEMORY": "memory of each simulated device: bytes, or as 8GiB",
    "GPUMEM_MEMORY_LIMIT": (
        "limit of every new pool on every device: bytes, as 8GiB, or as 50% of the "
        "device's memory"
    ),
    "CUPY_GPU_MEMORY_LIMIT": "the same, where GPUMEM_MEMORY_LIMIT is not set",
}

_REPLAY_DESCRIPTION = """\
Replays a recorded allocation trace (CSV or gzipped CSV, header op,id,size,stream,us)
through the allocator, on the trace's streams, and reports how much memory it took and
how long an event lasted.
"""

_REPLAY_EPILOG = """\
example:
  python -m gpumem replay benchmarks/traces/gpt2_train.csv.gz --verify --repeat 5

exit codes:
  0  the whole trace was replayed
  1  it was not: out of memory, a device error, or a check that failed
  2  the command line, the environment or a file is not usable
"""


class _Unusable(Exception):
    """What the user gave cannot be worked with; the text is for them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line `argv` and returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # As stderr is from the start: a file's name can be any bytes.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(argv)
        finally:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:  # closed by whoever started this
                    stream.flush()  # what cannot be written is to fail here
    except (TraceError, _Unusable) as error:
        return _complain(error, _UNUSABLE)
    except (MemoryError, RuntimeError) as error:
        return _complain(str(error) or "the host has no memory left", _INCOMPLETE)
    except KeyboardInterrupt:
        return _complain("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        _forget(sys.stdout, sys.stderr)
        return _NO_READER
    except OSError as error:  # those of other files were told of where they came up
        _forget(sys.stdout)
        return _complain(f"cannot write the output: {error.strerror}", _UNUSABLE)


def _run(argv: Sequence[str] | None) -> int:
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    return run(args)


def _complain(what: object, code: int) -> int:
    if sys.stderr is not None:  # print takes None for stdout
        try:
            print(f"gpumem: {what}", file=sys.stderr, flush=True)
        except OSError:  # nobody listens
            _forget(sys.stderr)
    return code


def _forget(*streams: TextIO | None) -> None:
    """Lets what the streams have not written yet go nowhere. At its end the interpreter
    would try again, and fail with a message and an exit code of its own."""
    with open(os.devnull, "wb") as nowhere:
        for stream in streams:
            if stream is not None:
                os.dup2(nowhere.fileno(), stream.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gpumem",
        description="A GPU memory allocator: replay traces, show the configuration.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    replay = commands.add_parser(
        "replay",
        help="replay a recorded allocation trace and report memory and speed",
        description=_REPLAY_DESCRIPTION,
        epilog=_REPLAY_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.set_defaults(run=_run_replay, usage_error=replay.error)
    _add_replay_arguments(replay)

    info = commands.add_parser(
        "info",
        help="show version, build, backend, devices and environment",
        description="Shows what is installed, which backend and devices are in use, "
        "and the environment variables that matter.",
    )
    info.set_defaults(run=_run_info)
    info.add_argument(
        "--json", action="store_true", help="print one JSON object instead of text"
    )
    return parser


def _add_replay_arguments(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("trace", metavar="TRACE", help="the trace file")
    replay.add_argument(
        "--pool",
        choices=("pool", "raw"),
        default="pool",
        help="pool: a new MemoryPool (default); raw: one device allocation each time",
    )
    replay.add_argument(
        "--repeat",
        type=_passes,
        default=2,
        metavar="N",
        help="timed passes; the first starts with an empty pool, the rest are warm "
        "(default: 2)",
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
        "--verify",
        action="store_true",
        help="one more pass, untimed: no two live blocks overlap, and bytes written at "
        "both ends of each block are there when it is freed",
    )
    replay.add_argument(
        "--placements",
        metavar="FILE",
        help="one more pass, untimed, with a new pool: write where each block was put, "
        "as CSV lines id,serial,offset (allocation, number of the segment, bytes into "
        "it); the same on every backend",
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


def _growth(text: str) -> dict[str, bool | int]:
    """The argument of MemoryPool that `text` means."""
    if text == "on":
        return {"growth": True}
    try:
        return {"growth": _parse_size(text)}
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{error}; or on") from error


# ---- replay ----


def _run_replay(args: argparse.Namespace) -> int:
    if args.pool == "raw" and args.limit is not None:
        args.usage_error("--limit needs a pool; --pool raw has none")
    if args.pool == "raw" and args.growth is not None:
        args.usage_error("--growth needs a pool; --pool raw has none")
    if args.pool == "raw" and args.placements is not None:
        args.usage_error("--placements needs a pool; --pool raw has no segments")
    trace = read_trace(args.trace)
    _open_backend()
    notes = []
    with _progress() as progress:
        report = _replay.replay(
            trace, _new_pool(args), passes=args.repeat, progress=progress
        )
        if args.growth is not None:
            report.pool = "pool with growth"
        if report.completed and args.verify:
            _replay.verify(trace, _new_pool(args), progress=progress)
            notes.append("verified: no overlap, contents kept, all given back")
        if report.completed and args.placements is not None:
            pool = _new_pool(args)
            assert pool is not None  # --pool raw was refused above
            rows = _replay.placements(trace, pool, progress=progress)
            notes.append(_write_placements(args.placements, rows))
    if args.json:
        print(json.dumps(report.to_json()))
    else:
        print("\n".join([*_describe(report, trace), *notes]))
    if report.failure:
        return _complain(report.failure, _INCOMPLETE)
    return 0


def _open_backend() -> str:
    """Name of the backend in use; the first use of the device is here."""
    try:
        # Warnings are told as complaints are: no line of ours is to blame.
        with warnings.catch_warnings(record=True) as told:
            name = gpumem.get_backend()
    except (ValueError, RuntimeWarning) as error:
        # A variable that makes no sense, or warnings that are to be errors.
        raise _Unusable(error) from error
    for warning in told:
        _complain(warning.message, 0)
    return name


def _new_pool(args: argparse.Namespace) -> gpumem.MemoryPool | None:
    """An empty pool as the command line wants it, None for none."""
    if args.pool == "raw":
        return None
    pool = gpumem.MemoryPool(**(args.growth or {}))
    try:
        pool.get_limit()  # what the environment says
    except ValueError as error:
        raise _Unusable(error) from error
    if args.limit is not None:
        pool.set_limit(**args.limit)
    return pool


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
        raise _Unusable(f"cannot write {path}: {error.strerror}") from error
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
    width = max(len(name) for name, _ in rows)
    state = "" if report.completed else ", NOT COMPLETED"
    return [
        f"{report.trace}: {report.pool} on {report.backend}{state}",
        *(f"  {name:<{width}}  {text}" for name, text in rows),
    ]


def _size(size: int) -> str:
    return f"{size:,} bytes ({format_bytes(size)})"


# ---- info ----


def _run_info(args: argparse.Namespace) -> int:
    devices: list[dict[str, Any]] = []
    trouble: Exception | None = None
    try:
        _open_backend()
        devices = _devices()
        gpumem.MemoryPool().get_limit()  # what the environment says
    except (_Unusable, ValueError, RuntimeError) as error:
        trouble = error  # then the rest is worth most
    facts = {
        "config": config(),
        "devices": devices,
        "environment": {
            name: {"value": os.environ.get(name), "meaning": meaning}
            for name, meaning in _ENVIRONMENT.items()
        },
    }
    print(json.dumps(facts) if args.json else "\n".join(_tell(facts)))
    if trouble is None:
        return 0
    return _complain(
        trouble, _INCOMPLETE if isinstance(trouble, RuntimeError) else _UNUSABLE
    )


def _devices() -> list[dict[str, Any]]:
    """Every device, with its memory in bytes."""
    found = []
    for number in range(gpumem.get_device_count()):
        device = gpumem.Device(number)
        free, total = device.mem_info
        found.append(
            {
                "id": number,
                "name": device.name,
                "free_bytes": free,
                "total_bytes": total,
            }
        )
    return found


def _tell(facts: dict[str, Any]) -> Iterator[str]:
    """What `info` found in lines for a person."""
    width = max(map(len, facts["config"]))
    for name, text in facts["config"].items():
        yield f"{name:<{width}}  {text}"
    for device in facts["devices"]:
        free, total = device["free_bytes"], device["total_bytes"]
        name = f"device {device['id']}"
        yield (
            f"{name:<{width}}  {device['name']}, "
            f"{format_bytes(free)} free of {format_bytes(total)}"
        )
    yield "environment"
    for name, entry in facts["environment"].items():
        value = "not set" if entry["value"] is None else repr(entry["value"])
        yield f"  {name}: {value}"
        yield f"      {entry['meaning']}"


# ---- progress ----


@contextmanager
def _progress() -> Iterator[_replay.Progress | None]:
    """Shows how far the work is, on stderr; None, so nothing, when that is no terminal.

    Both forms draw only when they are called: a thread that redraws would run inside
    the timed passes.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    try:
        import rich.console
        import rich.progress
    except ImportError:
        try:
            yield _draw_percentage
        finally:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        return
    bar = rich.progress.Progress(
        console=rich.console.Console(stderr=True), auto_refresh=False, transient=True
    )
    with bar:
        task = bar.add_task("", total=1)

        def draw(label: str, done: int, total: int) -> None:
            bar.update(
                task, description=label, completed=done, total=total, refresh=True
            )

        yield draw


def _draw_percentage(label: str, done: int, total: int) -> None:
    sys.stderr.write(f"\r\x1b[K{label} {100 * done // total}%")
    sys.stderr.flush()
