# SPDX-License-Identifier: MIT
"""Measures gpumem beside the allocators that are installed; see benchmarks/README.md.

    python -m benchmarks [--only B,...] [--peers P,...] [--quick] [--out DIR] [--list]

Runs what this machine can: with a GPU everybody who is installed, without one gpumem on
the simulated device beside object(). Prints a table, saves all figures as JSON with
machine, versions, date and commit, and draws them where matplotlib is installed. Says
first how long it will take. Exit code 0 when the guard found nothing wrong, else 1.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpumem
from benchmarks import (
    comb,
    giving,
    hot,
    in_flight,
    libraries,
    native,
    peers,
    plots,
    replays,
    report,
    streams,
    threads,
    within,
)
from benchmarks.facts import machine_facts
from benchmarks.plan import DOES_NOT_COMPLETE, Plan, Row
from benchmarks.sequences import trace_names
from benchmarks.timing import Pace

ROOT = Path(__file__).resolve().parent.parent

# Nanoseconds: of a sample, of all of a case.
_FULL_PACE = (5_000_000, 200_000_000)
_QUICK_PACE = (2_000_000, 50_000_000)


@dataclass(frozen=True)
class Benchmark:
    """title for --list; what yields its rows; about how many seconds it takes, (by
    itself, and for each peer), quick and in full."""

    title: str
    run: Callable[[Plan], Iterator[Row]]
    quick: tuple[float, float]
    full: tuple[float, float]


BENCHMARKS = {
    "b1": Benchmark("one block, by size", hot.pairs, (4, 1), (13, 3)),
    "b1devices": Benchmark("with two devices visible", hot.devices, (12, 0), (15, 0)),
    "b1replace": Benchmark("500 of 5,000 blocks", hot.replacing, (2, 1), (3, 2)),
    "b2": Benchmark("100 to 100,000 live", hot.live_sets, (10, 4), (15, 5)),
    "b3": Benchmark("RMM's random sequences", replays.grid, (8, 6), (90, 60)),
    "b3streams": Benchmark(
        "RMM's kernels on streams", streams.multi_stream, (1, 2), (2, 4)
    ),
    "b4": Benchmark("recorded traces", replays.traces, (15, 12), (20, 14)),
    "b5": Benchmark("the smallest limit", within.smallest, (60, 50), (60, 50)),
    "b6": Benchmark("held, and speed under limits", within.limits, (40, 40), (80, 80)),
    "b6comb": Benchmark("half of the device, in pieces", comb.comb, (5, 10), (15, 25)),
    "b6flight": Benchmark(
        "pages that move under work", in_flight.in_flight, (60, 0), (60, 0)
    ),
    "b7": Benchmark("threads", threads.threads, (4, 3), (6, 10)),
    "b8": Benchmark("growing from nothing", replays.growth, (30, 1), (30, 1)),
    "b9": Benchmark("giving back behind a kernel", giving.giving_back, (6, 6), (9, 9)),
    "b10": Benchmark("tail latency, in C", native.tails, (25, 0), (25, 0)),
    "b13": Benchmark("host memory a block", native.host_memory, (4, 0), (4, 0)),
    "b14empty": Benchmark("cupy.empty", libraries.empty, (3, 0), (15, 0)),
    "b14cupy": Benchmark("a CuPy program", libraries.cupy_mixed, (20, 0), (50, 0)),
    "b14gpt2": Benchmark("training GPT-2", libraries.gpt2, (40, 0), (130, 0)),
    "b14resnet": Benchmark("training ResNet-50", libraries.resnet50, (35, 0), (120, 0)),
    "b14rcnn": Benchmark("training R-CNN", libraries.faster_rcnn, (60, 0), (200, 0)),
    "callgrind": Benchmark("instructions, in C", native.instructions, (20, 0), (20, 0)),
}


def seconds(names: list[str], plan: Plan) -> float:
    """About how long it will take."""
    total = 0.0
    for name in names:
        alone, each = getattr(BENCHMARKS[name], "quick" if plan.quick else "full")
        total += alone + each * len(plan.peers)
    return total


def run(
    names: list[str], plan: Plan, tell: Callable[[str], None]
) -> tuple[list[Row], dict[str, float]]:
    """The rows of the benchmarks, and how long each took. A benchmark that breaks is a
    row with its error."""
    rows: list[Row] = []
    took: dict[str, float] = {}
    for name in names:
        tell(f"\n==== {name}: {BENCHMARKS[name].title}")
        begun = time.monotonic()
        found: list[Row] = []
        try:
            for row in BENCHMARKS[name].run(plan):
                found.append(row)
        except Exception as error:  # the others are to run all the same
            text = f"{type(error).__name__}: {error}"
            found.append(Row(name, "the benchmark itself", "gpumem", "", error=text))
        rows += found
        took[name] = round(time.monotonic() - begun, 1)
        for line in report.table(found) if found else ["nothing to run here"]:
            tell(line)
    return rows, took


def is_wrong(row: Row) -> bool:
    """Whether gpumem failed, or the guard caught somebody."""
    failed = row.error not in ("", DOES_NOT_COMPLETE)
    ours = row.who.startswith("gpumem") and failed
    return ours or row.note.startswith("WRONG")


def _stem(device: str, date: str) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    return f"bench_{name}_{re.sub(r'[^0-9T]', '', date[:16])}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="which, separated by commas")
    parser.add_argument("--peers", help="who is compared, separated by commas")
    parser.add_argument("--traces", default="", help="which traces are replayed; all")
    parser.add_argument("--quick", action="store_true", help="some minutes at most")
    parser.add_argument("--rounds", type=int, default=7, help="samples at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--name", default="", help="of the files; device and date else")
    parser.add_argument("--commit", default="", help="what is measured; git says it")
    parser.add_argument(
        "--wheels", type=Path, default=ROOT / "wheels", help="a folder of peers' wheels"
    )
    parser.add_argument(
        "--list", action="store_true", help="say what there is, and end"
    )
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    args.names = [name for name in args.only.split(",") if name] or list(BENCHMARKS)
    args.traces = tuple(name for name in args.traces.split(",") if name)
    for name in args.traces:
        if name not in trace_names():
            parser.error(f"no trace {name!r}; there are {', '.join(trace_names())}")
    unknown = [name for name in args.names if name not in BENCHMARKS]
    if unknown:
        there = ", ".join(BENCHMARKS)
        parser.error(f"no benchmark {unknown[0]!r}; there are {there}")
    return args


def _chosen(there: dict[str, Any], wanted: str | None) -> dict[str, Any]:
    """Those of the installed peers that --peers names; all without it."""
    if wanted is None:
        return there
    names = [name for name in wanted.split(",") if name]
    missing = [name for name in names if name not in peers.PEERS]
    if missing:
        known = ", ".join(peers.PEERS)
        raise SystemExit(f"no peer {missing[0]!r}; there are {known}")
    return {name: make for name, make in there.items() if name in names}


def _list(there: dict[str, Any]) -> None:
    for name, benchmark in BENCHMARKS.items():
        print(f"{name:10} {benchmark.title}")
    missing = [name for name in peers.PEERS if name not in there]
    print(f"peers: {', '.join(there) or 'none'}")
    print(f"not here: {', '.join(missing) or 'none'}")


def main() -> int:
    args = _arguments()
    peers.add_wheels(args.wheels)
    there = peers.installed()
    if args.list:
        _list(there)
        return 0
    pace = Pace(args.rounds, *(_QUICK_PACE if args.quick else _FULL_PACE))
    there = _chosen(there, args.peers)
    plan = Plan(args.quick, pace, args.seed, there, args.traces)
    device = gpumem.Device(gpumem.get_device_id()).name
    print(
        f"gpumem {gpumem.__version__} on {device}; peers: {', '.join(there) or 'none'}"
    )
    print(f"about {seconds(args.names, plan):.0f} s", flush=True)

    rows, took = run(args.names, plan, lambda line: print(line, flush=True))
    facts = machine_facts(args.commit)
    about = {
        "backend": gpumem.get_backend(),
        "device": device,
        "build": threads.build(),
        "quick": args.quick,
        "rounds": args.rounds,
        "seed": args.seed,
        "seconds": took,
        "machine": facts,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.name or _stem(device, facts["date"])
    path = args.out / f"{stem}.json"
    report.save(path, report.to_json(about, rows))
    drawn = plots.draw(rows, args.out, stem, device)
    print(f"\n{path}", *drawn, sep="\n")
    print(f"took {sum(took.values()):.0f} s")
    wrong = [row for row in rows if is_wrong(row)]
    for row in wrong:
        print(f"WRONG: {row.bench}, {row.case}, {row.who}: {row.error or row.note}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
