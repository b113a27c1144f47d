# SPDX-License-Identifier: MIT
"""Other libraries over gpumem's adaptors, beside their own allocators.

b14empty      cupy.empty and drop, in one process, in turns
b14cupy       a mixed CuPy program
b14gpt2, b14resnet, b14rcnn  training with PyTorch

The programs (library_programs.py) run in processes of their own, since torch takes its
allocator once; in turns, so that a machine that slows down slows all of them. Each
draws the same numbers whoever allocates, so what it computes tells whether memory was
sound: a row whose results differ from those with the library's own allocator says so,
and from which step on.
"""

import json
import sys
import timeit
from collections.abc import Iterator
from importlib import import_module
from statistics import fmean, median
from typing import Any

import gpumem
from benchmarks import programs
from benchmarks.plan import Plan, Row

_PATIENCE = 300  # seconds for one process
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
    all its steps together. Each round has a process of everybody, in another order."""
    if library not in plan.peers:
        error = f"needs {library} and a GPU"
        yield Row(bench, program, library, "ms a step", error=error)
        return
    allocators = list(_ALLOCATORS[library])
    samples: dict[str, list[dict[str, Any]]] = {who: [] for who in allocators}
    errors: dict[str, str] = {}
    for turn in range(1 if plan.quick else 3):
        for who in allocators[turn:] + allocators[:turn]:
            try:
                samples[who].append(_sample(library, program, who, plan.quick))
            except (programs.Unavailable, ValueError) as error:
                errors[who] = str(error)
    first = next((found for found in samples.values() if found), None)
    expected: list[str] = first[0]["results"] if first else []
    for who in allocators:
        if who in errors:
            yield Row(bench, program, who, "ms a step", error=errors[who])
        else:
            yield from _rows(bench, program, who, samples[who], expected)


def _sample(library: str, program: str, who: str, quick: bool) -> dict[str, Any]:
    """What a process printed. Unavailable, ValueError: it did not."""
    steps = 10 if quick else 30
    words = [sys.executable, "-m", "benchmarks.library_programs"]
    words += [program, who, str(steps)]
    environment = _REPEATABLE | _ALLOCATORS[library][who]
    done = programs.run(words, _PATIENCE, **environment)
    if done.returncode:
        raise programs.Unavailable(programs.last_line(done.stderr))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _rows(
    bench: str,
    program: str,
    who: str,
    samples: list[dict[str, Any]],
    expected: list[str],
) -> Iterator[Row]:
    times = [fmean(sample["ms"]) for sample in samples]
    peaks = [sample["peak_mib"] for sample in samples]
    notes = [difference(sample["results"], expected) for sample in samples]
    for case, unit, figures in (
        (f"{program}, time", "ms a step", times),
        (f"{program}, peak", "MiB held", peaks),
    ):
        yield Row(
            *(bench, case, who, unit),
            *(median(figures), min(figures), max(figures), len(figures)),
            note=max(notes, key=len),  # one that says more than "same results"
            extra={"runs": samples},
        )


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
