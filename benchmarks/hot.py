# SPDX-License-Identifier: MIT
"""B1 and B2: what one block costs when the pool has it, alone and in a crowd.

b1         allocate and drop one block, by size: the pool itself, then through the
           allocator that is installed
b1devices  the same with one device visible and with two, in processes of their own
b1replace  500 places replaced in random order by random sizes, alone and beside 5,000
           more live blocks
b2         the same over all of 100 to 100,000 live blocks; and one pair beside them

Random sizes are spread evenly over the logarithm from 512 bytes to 256 KiB. A crowd is
cut from what was one block: memory for all of it is taken and given back first, so that
filling asks the device once; a fifth more is made and dropped again, one here and one
there, so that there are as many holes to choose from as in use.
"""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from math import exp, log
from pathlib import Path
from typing import Any

import gpumem
from benchmarks import guard
from benchmarks.contenders import (
    Contender,
    Maker,
    make_gpumem,
    make_gpumem_alloc,
    make_object,
)
from benchmarks.plan import Plan, Row, made, rows_of
from benchmarks.timing import REPLACING, STATEMENT, Case, compiled, measure, told

ROOT = Path(__file__).resolve().parent.parent

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (512, 4 * KIB, 64 * KIB, MIB, 32 * MIB, GIB)
SMALLEST, LARGEST = 512, 256 * KIB
SLOTS = 500
LIVE = (100, 1_000, 10_000, 100_000)
REPLACEMENTS = 20_000
UNIT = "ns a pair"

_CHILDREN = 3  # processes a number of devices


def shown(size: int) -> str:
    """A size as text: 512 B, 4 KiB."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


# ---- b1 ----


def empty_loop() -> Case:
    return Case("empty loop", compiled(STATEMENT, {}, statement="pass"))


def pair_case(contender: Contender, size: int, **others: Any) -> Case:
    """Allocating `size` bytes on the default stream and dropping them."""
    stream, enter = contender.lanes([0])[0]
    enter()
    names = {**contender.names, "size": size, "stream": stream, **others}
    timed = compiled(STATEMENT, names, statement=contender.pair)
    return Case(contender.name, timed)


def pairs(plan: Plan) -> Iterator[Row]:
    """b1"""
    tables: tuple[tuple[str, dict[str, Maker]], ...] = (
        (
            "pool, ",
            {
                "object()": make_object,
                "gpumem": make_gpumem,
                **{k: v for k, v in plan.peers.items() if k != "cupy.cuda.alloc"},
            },
        ),
        (
            "installed allocator, ",
            {
                "object()": make_object,
                "gpumem.alloc": make_gpumem_alloc,
                **plan.some("cupy.cuda.alloc"),
            },
        ),
    )
    for name, makers in tables:
        for size in SIZES:
            with made(makers, 2 * size + 64 * MIB) as there:
                cases = [empty_loop()]
                cases += [
                    pair_case(c, size) if isinstance(c, Contender) else c for c in there
                ]
                measure(cases, plan.pace)
            yield from rows_of("b1", name + shown(size), UNIT, cases)


# ---- two devices ----

_CHILD = """
import json
from benchmarks.contenders import make_gpumem, make_object
from benchmarks.hot import pair_case
from benchmarks.timing import Pace, measure
cases = [pair_case(make(), 4096) for make in (make_object, make_gpumem)]
measure(cases, {pace})
print(json.dumps([case.samples for case in cases]))
"""


def can_have_two() -> bool:
    return gpumem.get_backend() == "sim" or gpumem.get_device_count() >= 2


def _child(plan: Plan, devices: int) -> list[list[float]]:
    """Samples of object() and of gpumem in a process that sees so many devices."""
    environ = dict(os.environ)
    environ["GPUMEM_BACKEND"] = gpumem.get_backend()
    environ["GPUMEM_SIM_DEVICES"] = str(devices)
    if gpumem.get_backend() == "cuda":
        visible = environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[:devices])
    code = _CHILD.format(pace=plan.pace)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().rpartition("\n")[2])
    samples: list[list[float]] = json.loads(done.stdout)
    return samples


def devices(plan: Plan) -> Iterator[Row]:
    """b1devices"""
    if not can_have_two():
        return
    groups = {count: [Case("object()", None), Case("gpumem", None)] for count in (1, 2)}
    for _ in range(_CHILDREN):
        for count, cases in groups.items():
            try:
                for case, samples in zip(cases, _child(plan, count), strict=True):
                    case.samples += samples
            except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as e:
                for case in cases:
                    case.error = told(e)
    for count, cases in groups.items():
        name = f"{count} device{'s' * (count > 1)} visible, 4 KiB"
        yield from rows_of("b1devices", name, UNIT, cases)


# ---- crowds ----


def draw_sizes(rng: random.Random, count: int) -> list[int]:
    low, high = log(SMALLEST), log(LARGEST)
    return [int(exp(rng.uniform(low, high))) for _ in range(count)]


class Crowd:
    """Blocks of one contender that stay alive, among holes.

    blocks, sizes  what is live, and how long it is
    """

    def __init__(self, contender: Contender, count: int, seed: int) -> None:
        self._contender = contender
        self._take, self._give = contender.functions()
        self._before = contender.used() if contender.used else 0
        self.stream, enter = contender.lanes([0])[0]
        enter()
        rng = random.Random(seed)
        self.sizes = draw_sizes(rng, count + count // 5)
        whole = sum(self.sizes) * 5 // 4
        self._give(self._take(whole, self.stream), whole, self.stream)
        self.blocks: list[Any] = [self._take(size, self.stream) for size in self.sizes]
        holes = rng.sample(range(len(self.sizes)), count // 5)
        for i in sorted(holes, reverse=True):
            self._give(self.blocks[i], self.sizes[i], self.stream)
            del self.blocks[i], self.sizes[i]

    def end(self, replaced: list[tuple[int, int]]) -> str:
        """The guard's verdict on what is live after the sequence `replaced` was run
        through, and on what is left once all of it was given back."""
        for i, size in replaced:
            self.sizes[i] = size
        try:
            guard.ranges_of(self._contender, self.blocks, self.sizes)
        finally:
            for i, size in enumerate(self.sizes):
                self._give(self.blocks[i], size, self.stream)
                self.blocks[i] = None
        return guard.check_quiet(self._contender, self._before)


def replacing_case(
    contender: Contender, crowd: Crowd, sequence: list[tuple[int, int]]
) -> Case:
    """Replaces the blocks of the crowd that `sequence` names, in its order."""
    names = {
        **contender.names,
        "sequence": sequence,
        "live": crowd.blocks,
        "stream": crowd.stream,
    }
    give = contender.giving("live[i]")
    if re.search(r"\bsize\b", give):  # of what is given back, which has another
        names["sizes"] = list(crowd.sizes)
        give = re.sub(r"\bsize\b", "sizes[i]", give) + "; sizes[i] = size"
    timed = compiled(REPLACING, names, take=contender.take, give=give)
    return Case(contender.name, timed, len(sequence))


def _room(count: int) -> int:
    """Enough for a crowd, bytes: its average block has 42 KiB."""
    return 256 * MIB + count * 3 * 42 * KIB


_CROWD_PEERS = ("cupy", "torch", "rmm pool", "rmm arena", "cudaMallocAsync")


def crowded(
    plan: Plan, bench: str, live: int, sequence: list[tuple[int, int]], what: str
) -> Iterator[Row]:
    """Everybody in turns, each with a crowd of its own: `sequence`, or one pair beside
    it where that is empty."""
    peers = plan.some(*_CROWD_PEERS)
    makers = {"object()": make_object, "gpumem": make_gpumem, **peers}
    cases: list[Case] = []
    crowds: list[tuple[Case, Crowd]] = []
    with made(makers, _room(live)) as there:
        for contender in there:
            if isinstance(contender, Case):
                cases.append(contender)
                continue
            try:
                crowd = Crowd(contender, live, plan.seed)
                if sequence:
                    case = replacing_case(contender, crowd, sequence)
                else:
                    case = pair_case(contender, 4 * KIB)
                crowds.append((case, crowd))
            except Exception as error:  # a peer's own; it becomes its row
                case = Case(contender.name, None, error=told(error))
            cases.append(case)
        measure(cases, plan.pace)
        for case, crowd in crowds:
            case.note = guard.judged(partial(crowd.end, sequence))
    unit = "ns a replacement" if sequence else UNIT
    yield from rows_of(bench, what, unit, cases)


def draw_replacements(plan: Plan, slots: int) -> list[tuple[int, int]]:
    """(place below `slots`, new size), enough to come by each of them."""
    rng = random.Random(plan.seed)
    sizes = draw_sizes(rng, max(REPLACEMENTS, slots))
    return [(rng.randrange(slots), size) for size in sizes]


def replacing(plan: Plan) -> Iterator[Row]:
    """b1replace"""
    sequence = draw_replacements(plan, SLOTS)
    for live in (SLOTS, SLOTS + 5_000):
        what = f"replacing {SLOTS} of {live:,} live"
        yield from crowded(plan, "b1replace", live, sequence, what)


def live_sets(plan: Plan) -> Iterator[Row]:
    """b2"""
    for live in LIVE:
        sequence = draw_replacements(plan, live)
        yield from crowded(plan, "b2", live, sequence, f"replacing all of {live:,}")
    for live in LIVE:
        yield from crowded(plan, "b2", live, [], f"4 KiB beside {live:,}")
