# SPDX-License-Identifier: MIT
"""Other libraries over gpumem's adaptors, beside their own allocators.

b14empty      cupy.empty and drop, in one process, in turns
b14cupy       a mixed CuPy program
b14gpt2, b14resnet, b14rcnn  training with PyTorch

The programs (library_programs.py) run in processes of their own, since torch takes its
allocator once; all at the same time, and their steps by turns (turns.py), so that step
is compared with step. Each draws the same numbers whoever allocates, so what it
computes tells whether memory was sound: a row whose results differ from those with the
library's own allocator says so, and from which step on.
"""

import sys
import timeit
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from statistics import fmean, median
from typing import Any

import gpumem
from benchmarks.plan import Plan, Row
from benchmarks.programs import Unavailable
from benchmarks.turns import Stepper

WARM_UP = 5  # steps that are not timed

_PATIENCE = 300  # seconds for all processes of a round
_EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_REPEATABLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "GPUMEM_BACKEND": "cuda"}

# By library, who allocates and in which environment; the library's own is the first.
_ALLOCATORS: dict[str, dict[str, dict[str, str]]] = {
    "cupy": {"cupy": {}, "gpumem": {}, "gpumem, expandable": {}},
    "torch": {
        "torch": {},
        "torch, expandable": _EXPANDABLE,
        "gpumem": {},
        "gpumem, expandable": {},
    },
}


# ---- one array ----


def empty(plan: Plan) -> Iterator[Row]:
    """b14empty"""
    if "cupy" not in plan.peers:
        yield Row("b14empty", "all", "cupy", "ns", error="needs cupy and a GPU")
        return
    cupy = import_module("cupy")
    adaptor = import_module("gpumem.interop.cupy")
    with cupy.cuda.Stream(non_blocking=True) as other:
        pass
    for name, stream in (
        ("default stream", cupy.cuda.Stream.null),
        ("a stream", other),
    ):
        for size in (1 << 10, 1 << 20):
            with stream:
                case = f"cupy.empty({size}), {name}"
                yield from _in_turns(cupy, adaptor, case, size, plan.quick)


def _in_turns(
    cupy: Any, adaptor: Any, case: str, size: int, quick: bool
) -> Iterator[Row]:
    number, rounds = (5_000, 5) if quick else (20_000, 15)
    samples: dict[str, list[float]] = {"cupy": [], "gpumem": []}
    pool = gpumem.MemoryPool()

    def sample(who: str) -> None:
        total = timeit.timeit(lambda: cupy.empty(size), number=number)
        samples[who].append(total / number * 1e9)

    for _ in range(rounds):
        sample("cupy")
        with adaptor.using(pool):
            sample("gpumem")
    ours = median(samples["gpumem"])
    for who, found in samples.items():
        middle = median(found)
        yield Row(
            *("b14empty", case, who, "ns", middle, min(found), max(found)),
            samples=len(found),
            over_gpumem=middle / ours,
        )


# ---- programs ----


def cupy_mixed(plan: Plan) -> Iterator[Row]:
    """b14cupy"""
    yield from _compare(plan, "b14cupy", "cupy", "cupy_mixed")


def gpt2(plan: Plan) -> Iterator[Row]:
    """b14gpt2"""
    yield from _compare(plan, "b14gpt2", "torch", "gpt2")


def resnet50(plan: Plan) -> Iterator[Row]:
    """b14resnet"""
    yield from _compare(plan, "b14resnet", "torch", "resnet50")


def faster_rcnn(plan: Plan) -> Iterator[Row]:
    """b14rcnn"""
    yield from _compare(plan, "b14rcnn", "torch", "faster_rcnn")


def _compare(plan: Plan, bench: str, library: str, program: str) -> Iterator[Row]:
    """Two rows for each allocator: time a step, and the most bytes held.

    Steps are of different sizes, the same for everybody, so a process is one sample:
    the mean of its steps. Each round has a process of everybody. Ratios are those of
    the same step in the same round."""
    if library not in plan.peers:
        error = f"needs {library} and a GPU"
        yield Row(bench, program, library, "ms a step", error=error)
        return
    allocators = list(_ALLOCATORS[library])
    steps = WARM_UP + (10 if plan.quick else 30)
    runs: dict[str, list[Run]] = {who: [] for who in allocators}
    errors: dict[str, str] = {}
    for turn in range(1 if plan.quick else 3):
        order = allocators[turn:] + allocators[:turn]
        for who, found in _round(library, program, order, steps).items():
            if isinstance(found, Unavailable):
                errors[who] = str(found)
            else:
                runs[who].append(found)
    expected = next((found[0] for found in runs.values() if found), [])
    for who in allocators:
        if who in errors:
            yield Row(bench, program, who, "ms a step", error=errors[who])
        else:
            yield from _rows(bench, program, who, runs, expected)


Run = list[dict[str, Any]]
"""What a process told of each of its steps."""


def _round(
    library: str, program: str, order: list[str], steps: int
) -> dict[str, Run | Unavailable]:
    """A process of everybody, step by step in this order; or why there was none."""
    found: dict[str, Run] = {who: [] for who in order}
    failed: dict[str, Unavailable] = {}
    there: dict[str, Stepper] = {}

    def each(act: Callable[[str, Stepper], None]) -> None:
        for who, process in there.items():
            try:
                if who not in failed:
                    act(who, process)
            except Unavailable as error:
                failed[who] = error

    with ExitStack() as ends:
        for who in order:
            words = [sys.executable, "-m", "benchmarks.library_programs", program, who]
            environment = _REPEATABLE | _ALLOCATORS[library][who]
            process = Stepper(words, _PATIENCE, **environment)
            there[who] = ends.enter_context(process)
        each(lambda _, process: process.wait_until_ready())
        for _ in range(steps):
            each(lambda who, process: found[who].append(process.step()))
    return {who: failed.get(who, found[who]) for who in order}


def _rows(
    bench: str, program: str, who: str, runs: dict[str, list[Run]], expected: Run
) -> Iterator[Row]:
    mine = runs[who]
    times = [fmean(step["ms"] for step in run[WARM_UP:]) for run in mine]
    peaks = [run[-1]["peak_mib"] for run in mine]
    notes = [difference(_results(run), _results(expected)) for run in mine]
    ratios = [
        step["ms"] / other["ms"]
        for run, others in zip(mine, runs["gpumem"], strict=False)
        for step, other in zip(run[WARM_UP:], others[WARM_UP:], strict=True)
    ]
    note = max(notes, key=len)  # one that says more than "same results"
    for case, unit, figures, ratio in (
        (f"{program}, time", "ms a step", times, median(ratios) if ratios else None),
        (f"{program}, peak", "MiB held", peaks, None),
    ):
        yield Row(
            *(bench, case, who, unit),
            *(median(figures), min(figures), max(figures), len(figures)),
            over_gpumem=ratio,
            note=note,
            extra={"runs": mine} if ratio else {},
        )


def _results(run: Run) -> list[str]:
    return [step["result"] for step in run]


def difference(results: list[str], expected: list[str]) -> str:
    """Whether two runs computed the same, to the last bit."""
    pairs = list(zip(results, expected, strict=True))
    unlike = [step for step, (one, other) in enumerate(pairs) if one != other]
    if not unlike:
        return "same results"
    largest = max(
        abs(float.fromhex(one) - float.fromhex(other)) / abs(float.fromhex(other))
        for one, other in pairs
    )
    return f"results differ from step {unlike[0]} on, by {largest:.1e} at the most"
