#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What one block costs from Python: allocate it and drop it, in nanoseconds.

    python3 benchmarks/latency.py [--json] [--rounds 7] [--seed 1]

Measured, with 0 and with 10,000 more blocks alive in the same pool:

    p = pool.malloc(4096); del p      a hit, through the pool
    p = alloc(4096); del p            a hit, through the installed allocator
    p = object(); del p               the yardstick: CPython's cheapest of the kind
    slots[i] = None; slots[i] = pool.malloc(size)
                                      500 slots replaced in random order with random
                                      sizes, 0 or 5,000 more blocks alive

and the same through CuPy's pool where CuPy can be imported and finds a GPU.

The other blocks have sizes spread evenly over the logarithm from 512 bytes to 256 KiB.
A fifth more is allocated and dropped again, one here and one there, so that the pool
also has as many holes to choose from as it would in use.

Each statement is compiled into a loop of its own, with the names it uses as locals,
as timeit does; the collector is off meanwhile. The loop is included in each figure;
its own cost is the row "empty loop" (for the replacement: the same loop over the same
sequence, which is drawn before the clock starts, without a pool). A figure is the
median of --rounds samples of about 40 ms; lowest and highest are given beside it. The
statements take turns within a round, so that a machine that slows down slows all of
them: compare within one run, and not the figures of two.
"""

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from itertools import repeat
from math import exp, log
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gpumem  # noqa: E402 - of this tree, through the line above

SAMPLE_NS = 40_000_000
BLOCK = 4096
MORE_LIVE = 10_000
SLOTS = 500
MORE_LIVE_REPLACING = 5_000
REPLACEMENTS = 20_000  # steps of the sequence; a sample is whole rounds of it
SMALLEST, LARGEST = 512, 256 << 10

LOOP = """
def timed(count, {names}):
    steps = repeat(None, count)
    start = clock()
    for _ in steps:
        {statement}
    return clock() - start
"""

REPLACING_LOOP = """
def timed(count, {names}):
    steps = repeat(None, count // len(sequence))
    start = clock()
    for _ in steps:
        for i, size in sequence:
            {statement}
    return clock() - start
"""

Timed = Callable[[int], int]  # repetitions -> nanoseconds for all of them


def compiled(loop: str, statement: str, **names: Any) -> Timed:
    """The statement in a loop, with `names` as the loop's locals."""
    bound = {**names, "clock": time.perf_counter_ns, "repeat": repeat}
    text = loop.format(names=", ".join(bound), statement=statement)
    space: dict[str, Any] = {}
    exec(compile(text, f"<{statement}>", "exec"), space)
    timed = space["timed"]
    return lambda count: timed(count, **bound)


class Library:
    """A pool of gpumem or CuPy, by the names that both have."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = module

    def pool(self) -> Any:
        """A new pool, installed as the library's allocator."""
        pool = self.module.MemoryPool()
        self.module.set_allocator(pool.malloc)
        return pool


def find_libraries() -> list[Library]:
    found = [Library("gpumem", gpumem)]
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception:  # not there, or no GPU, or not made for it: nothing to compare
        return found
    return [*found, Library("cupy", cupy.cuda)]


def draw_sizes(rng: random.Random, count: int) -> list[int]:
    low, high = log(SMALLEST), log(LARGEST)
    return [int(exp(rng.uniform(low, high))) for _ in range(count)]


def fill(pool: Any, rng: random.Random, count: int) -> list[Any]:
    """`count` live blocks among a fifth as many holes."""
    blocks = [pool.malloc(size) for size in draw_sizes(rng, count + count // 5)]
    for i in rng.sample(range(len(blocks)), count // 5):
        blocks[i] = None
    return [block for block in blocks if block is not None]


# ---- the two tables: what is timed, and the blocks that stay alive meanwhile ----

Case = tuple[str, Timed]


def pair_cases(libraries: list[Library], live: int, seed: int) -> list[Case]:
    cases = [
        ("empty loop", compiled(LOOP, "pass")),
        ("object()", compiled(LOOP, "p = object(); del p", object=object)),
    ]
    for library in libraries:
        pool = library.pool()
        names = {
            "pool": pool,
            "alloc": library.module.alloc,
            "others": fill(pool, random.Random(seed), live),
        }
        for call in (f"pool.malloc({BLOCK})", f"alloc({BLOCK})"):
            timed = compiled(LOOP, f"p = {call}; del p", **names)
            cases.append((f"{library.name} {call}", timed))
    return cases


def replacing_cases(libraries: list[Library], live: int, seed: int) -> list[Case]:
    rng = random.Random(seed)
    sizes = draw_sizes(rng, REPLACEMENTS)
    sequence = [(rng.randrange(SLOTS), size) for size in sizes]
    statement = "slots[i] = None; slots[i] = {}"
    slots = [None] * SLOTS
    empty = compiled(
        REPLACING_LOOP, statement.format("size"), slots=slots, sequence=sequence
    )
    cases = [("empty loop", empty)]
    for library in libraries:
        pool = library.pool()
        timed = compiled(
            REPLACING_LOOP,
            statement.format("malloc(size)"),
            malloc=pool.malloc,
            slots=[pool.malloc(size) for size in sizes[:SLOTS]],
            others=fill(pool, rng, live),
            sequence=sequence,
        )
        cases.append((f"{library.name} replace 1 of {SLOTS}", timed))
    return cases


# ---- measuring ----


def repetitions(timed: Timed, step: int) -> int:
    """How many, in whole steps, take about SAMPLE_NS. Warms up as it goes."""
    count = step
    while True:
        spent = timed(count)
        if spent >= SAMPLE_NS // 4:
            return max(step, round(count * SAMPLE_NS / spent / step) * step)
        count *= 2


def measure(cases: list[Case], rounds: int, step: int) -> list[dict[str, Any]]:
    counts = [repetitions(timed, step) for _, timed in cases]
    samples: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
        for (_, timed), count, found in zip(cases, counts, samples, strict=True):
            found.append(timed(count) / count)
    rows = [
        {"what": what, "ns": statistics.median(f), "low": min(f), "high": max(f)}
        for (what, _), f in zip(cases, samples, strict=True)
    ]
    objects = [row["ns"] for row in rows if row["what"] == "object()"]
    for row in rows:
        row["over_object"] = row["ns"] / objects[0] if objects else None
    return rows


def run(rounds: int, seed: int) -> list[dict[str, Any]]:
    libraries = find_libraries()
    rows = []
    tables = (
        (pair_cases, MORE_LIVE, 1000),
        (replacing_cases, MORE_LIVE_REPLACING, REPLACEMENTS),
    )
    gc.collect()
    gc.disable()
    try:
        for make_cases, most, step in tables:
            for live in (0, most):
                found = measure(make_cases(libraries, live, seed), rounds, step)
                rows += [{**row, "live": live} for row in found]
    finally:
        gc.enable()
        for library in libraries:
            library.module.set_allocator()
    return rows


# ---- telling ----


def facts(rounds: int, seed: int) -> dict[str, Any]:
    device = gpumem.Device(gpumem.get_device_id())
    return {
        "backend": gpumem.get_backend(),
        "device": device.name,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "seed": seed,
    }


def show(about: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print("ns a repetition, the loop included: median, lowest to highest")
    width = max(len(row["what"]) for row in rows)
    print(
        f"{'':{width}}  {'live':>6}  {'median':>8}  {'low':>8}  {'high':>8}  object()"
    )
    for row in rows:
        ratio = f"{row['over_object']:7.2f}x" if row["over_object"] else ""
        figures = "  ".join(f"{row[key]:8.1f}" for key in ("ns", "low", "high"))
        print(f"{row['what']:{width}}  {row['live']:6,}  {figures}  {ratio}".rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one object, no table")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    about = facts(args.rounds, args.seed)
    rows = run(args.rounds, args.seed)
    if args.json:
        print(json.dumps({**about, "rows": rows}))
    else:
        show(about, rows)


if __name__ == "__main__":
    main()
