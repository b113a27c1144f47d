# SPDX-License-Identifier: MIT
"""b9: giving cached memory back while a kernel runs.

64 blocks of 16 MiB are allocated on a stream and dropped; then a kernel that takes 60
ms is launched, on another stream or on the blocks' own, and the allocator is told to
give back what it has cached: free_all_blocks() of gpumem's pool and CuPy's,
empty_cache() of PyTorch. How long does that take the host? cudaFree waits for every
kernel; a pool that unmaps by itself need not.

Also told: how many bytes went back at once, and how many more once the kernel was done
and the pool was asked again. The kernel is compiled and launched through CuPy for
everybody, so this needs CuPy and a GPU. Everybody has a process (children.py).
"""

import importlib
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.children import rows_of_all
from benchmarks.contenders import Contender, Maker
from benchmarks.plan import Plan, Row
from benchmarks.streams import can_run, handle_of
from benchmarks.timing import quiet

BLOCKS = 64
SIZE = 16 << 20
MILLISECONDS = 60
UNIT = "ms"

_KERNEL = r"""
extern "C" __global__ void spin(long long nanoseconds)
{
    long long begin, now;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}
"""


def _sample(contender: Contender, cupy: Any, kernel: Any, own: bool) -> list[float]:
    """Milliseconds that giving back took, bytes at once, bytes later."""
    assert contender.trim is not None and contender.held is not None
    take, give = contender.functions()
    lanes = contender.lanes([1, 2])
    stream, enter = lanes[1]
    enter()
    blocks = [take(SIZE, stream) for _ in range(BLOCKS)]
    for number, block in enumerate(blocks):
        blocks[number] = None
        give(block, SIZE, stream)
        del block
    cupy.cuda.Device().synchronize()
    before = contender.held()
    number = importlib.import_module("numpy").int64
    busy = cupy.cuda.ExternalStream(handle_of(lanes[1 if own else 2][0]))
    with busy:
        kernel((1,), (1,), (number(MILLISECONDS * 1_000_000),))
    begun = time.perf_counter_ns()
    contender.trim()
    spent = time.perf_counter_ns() - begun
    at_once = before - contender.held()
    cupy.cuda.Device().synchronize()
    contender.trim()
    later = before - at_once - contender.held()
    return [spent / 1e6, at_once, later]


def giving_of(name: str, make: Maker, quick: bool, traces: list[str]) -> Iterator[Row]:
    cupy = importlib.import_module("cupy")
    kernel = cupy.RawKernel(_KERNEL, "spin")
    kernel((1,), (1,), (importlib.import_module("numpy").int64(1),))
    for own in (False, True):
        what = "behind a kernel on " + ("the same stream" if own else "another stream")
        contender = make(None)
        try:
            with quiet():
                _sample(contender, cupy, kernel, own)  # not counted
                found = [
                    _sample(contender, cupy, kernel, own)
                    for _ in range(5 if quick else 9)
                ]
        finally:
            contender.close()
        spent = sorted(sample[0] for sample in found)
        middle = spent[len(spent) // 2]
        yield Row(
            "b9",
            what,
            name,
            UNIT,
            middle,
            spent[0],
            spent[-1],
            len(spent),
            extra={
                "given_at_once": int(found[-1][1]),
                "given_later": int(found[-1][2]),
            },
        )


def giving_back(plan: Plan) -> Iterator[Row]:
    """b9"""
    if can_run(plan):
        rows = list(rows_of_all(plan, "b9"))
        yield from sorted(rows, key=lambda row: row.case)
