# SPDX-License-Identifier: MIT
"""b3streams: RMM's multi_stream_allocations.

Four kernels a repetition, over 1, 2 or 4 streams in turn. For each: a buffer of 8 bytes
is taken on the stream, a kernel of one thread spins a million ticks of the device's
clock and writes to it, and the buffer is dropped at once. At the end of a repetition
the device is waited for. Prewarmed: a buffer was taken and dropped on each stream
before. The kernel is compiled and launched through CuPy for everybody.

What shows is whether an allocation waits for kernels: with four streams a repetition
should take as long as one kernel.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.contenders import Contender, make_gpumem
from benchmarks.peers import is_installed
from benchmarks.plan import Plan, Row, made, rows_of
from benchmarks.timing import Case, compiled, measure, told

STREAMS = (1, 2, 4)
KERNELS = 4
UNIT = "ns a kernel"

_PEERS = ("cupy", "torch", "rmm pool", "rmm arena", "cuda.core", "cudaMallocAsync")

_KERNEL = r"""
extern "C" __global__ void spin(long long *out)
{
    long long begin = clock64();
    long long now = begin;

    while (now - begin < 1000000) {
        now = clock64();
    }
    *out = now;
}
"""

_LOOP = """
def timed(count, {names}):
    steps = repeat(None, count)
    start = clock()
    for _ in steps:
        for stream, enter, launch in kernels:
            enter()
            block = {take}
            launch(address(block))
            {give}
        wait()
    return clock() - start
"""


def _launchers(cupy: Any, handles: list[int]) -> list[Callable[[int], Any]]:
    """For each stream a function that queues the kernel, writing to an address."""
    kernel = cupy.RawKernel(_KERNEL, "spin")
    number = importlib.import_module("numpy").uint64

    def launcher(handle: int) -> Callable[[int], Any]:
        stream = cupy.cuda.ExternalStream(handle)

        def launch(address: int) -> None:
            with stream:
                kernel((1,), (1,), (number(address),))

        return launch

    return [launcher(handle) for handle in handles]


def handle_of(lane: Any) -> int:
    """The stream's handle, whatever library it is of."""
    for name in ("ptr", "cuda_stream", "handle"):
        if hasattr(lane, name):
            return int(getattr(lane, name))
    if hasattr(lane, "__cuda_stream__"):
        protocol = lane.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    return int(lane)


def _case(contender: Contender, cupy: Any, streams: int, prewarm: bool) -> Case:
    lanes = list(contender.lanes(list(range(1, streams + 1))).values())
    launchers = _launchers(cupy, [handle_of(stream) for stream, _ in lanes])
    if prewarm:
        take, give = contender.functions()
        buffers = []
        for stream, enter in lanes:
            enter()
            buffers.append((take(8, stream), stream))
        for block, stream in buffers:
            give(block, 8, stream)
        buffers.clear()
    kernels = [(*lanes[i % streams], launchers[i % streams]) for i in range(KERNELS)]
    names = {
        **contender.names,
        "kernels": kernels,
        "size": 8,
        "address": contender.address,
        "wait": cupy.cuda.Device().synchronize,
    }
    timed = compiled(_LOOP, names, take=contender.take, give=contender.giving("block"))
    return Case(contender.name, timed, KERNELS)


def can_run(plan: Plan) -> bool:
    return "cupy" in plan.peers and is_installed("numpy")


def multi_stream(plan: Plan) -> Iterator[Row]:
    """b3streams"""
    if not can_run(plan):
        return
    cupy = importlib.import_module("cupy")
    makers = {"gpumem": make_gpumem, **plan.some(*_PEERS)}
    for streams in STREAMS:
        for prewarm in (False, True):
            cases: list[Case] = []
            with made(makers, 1 << 30) as there:
                for contender in there:
                    if isinstance(contender, Case):
                        cases.append(contender)
                        continue
                    try:
                        cases.append(_case(contender, cupy, streams, prewarm))
                    except Exception as error:  # a peer's own; it becomes its row
                        cases.append(Case(contender.name, None, error=told(error)))
                measure(cases, plan.pace)
            what = f"{streams} stream{'s' * (streams > 1)}"
            what += ", prewarmed" if prewarm else ""
            yield from rows_of("b3streams", what, UNIT, cases)
