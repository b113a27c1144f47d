# SPDX-License-Identifier: MIT
"""b6flight: expandable segments under a limit of 1.03, with work in flight.

Each recorded trace is replayed twice by a pool that has to move pages, and nothing is
waited for in between. For each block a kernel on its stream writes marks: at both ends,
and on both sides of each border that pages can have. When it is freed, its stream gets
a kernel that compares the marks, every 32nd time after it has spun for a millisecond,
and a copy of the first one to a log; only then the block is dropped, dozens of events
before these have run. Memory that is used again or moved before its last use is done,
by this or another stream, has another block's marks by then. What each trace has wrong
is counted on the device and read at its end, and the log is compared with what was
written.

The kernels are compiled and launched through CuPy.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import gpumem
from benchmarks.plan import Plan, Row
from benchmarks.sequences import Sequence, of_trace
from benchmarks.streams import can_run

LIMIT = 1.03  # times the peak of what is live
PASSES = 2
SPIN = 2_000_000  # ticks of the device's clock: a millisecond, in which 60 events pass
SPINS = 32  # blocks to one for which it spins
UNIT = "marks that are wrong"

_THREADS = 64
_MARK = 8  # bytes
_BORDER = 2 << 20  # the least that a page can be
_UNIT = 512  # a block is a multiple of it

_KERNELS = r"""
typedef unsigned long long u64;

// A mark tells block and place apart from all others.
__device__ u64 mark_of(u64 block, u64 offset)
{
    return (block + 1) * 0x9E3779B97F4A7C15ull + offset;
}

// Where mark `i` of a block lies: its start, its end, and around its borders.
__device__ bool place(u64 start, u64 size, u64 i, u64 *offset)
{
    u64 border = (start / BORDER + 1 + (i - 2) / 2) * BORDER;

    if (i < 2) {
        *offset = i ? size - 8 : 0;
        return true;
    }
    *offset = border - start - (i % 2 ? 0 : 8);
    return border < start + size;
}

extern "C" __global__ void write_marks(u64 start, u64 size, u64 block)
{
    u64 offset;

    for (u64 i = threadIdx.x; place(start, size, i, &offset); i += blockDim.x) {
        *(u64 *)(start + offset) = mark_of(block, offset);
    }
}

extern "C" __global__ void compare_marks(u64 start, u64 size, u64 block, u64 ticks,
                                         u64 *wrong)
{
    u64 begin = clock64();
    u64 offset;

    while (clock64() - begin < ticks) {
    }
    for (u64 i = threadIdx.x; place(start, size, i, &offset); i += blockDim.x) {
        if (*(volatile u64 *)(start + offset) != mark_of(block, offset)) {
            atomicAdd(wrong, 1ull);
        }
    }
}
""".replace("BORDER", f"{_BORDER}ull")


def first_mark(block: int) -> int:
    """What lies at the start of a block."""
    return (block + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1


class Marks:
    """Writes and compares them, on the stream that is current, and keeps count."""

    def __init__(self, cupy: Any, blocks: int) -> None:
        module = cupy.RawModule(code=_KERNELS)
        self._number = importlib.import_module("numpy").uint64
        self._write = module.get_function("write_marks")
        self._compare = module.get_function("compare_marks")
        # Of the device itself: the pool that is tested has nothing to do with them.
        self._wrong = gpumem.malloc(_MARK)
        self._log = gpumem.malloc(blocks * _MARK)
        self._wrong.memset(0, _MARK)
        self._log.memset(0, blocks * _MARK)
        self._size = blocks * _MARK
        self._compared: list[int] = []

    def write(self, pointer: Any, size: int, block: int) -> None:
        words = map(self._number, (pointer.ptr, size, block))
        self._write((1,), (_THREADS,), tuple(words))

    def compare(self, pointer: Any, size: int, block: int) -> None:
        ticks = 0 if block % SPINS else SPIN
        words = (pointer.ptr, size, block, ticks, self._wrong.ptr)
        self._compare((1,), (_THREADS,), tuple(map(self._number, words)))
        (self._log + block * _MARK).copy_from_device_async(pointer, _MARK)
        self._compared.append(block)

    def wrong(self) -> int:
        """Marks that were wrong, and entries of the log. Waits for the device."""
        gpumem.Device(gpumem.get_device_id()).synchronize()
        count, log = bytearray(_MARK), bytearray(self._size)
        self._wrong.copy_to_host(count, len(count))
        self._log.copy_to_host(log, len(log))
        entries = memoryview(log).cast("Q")
        logged = sum(entries[i] != first_mark(i) for i in self._compared)
        return int.from_bytes(count, "little") + logged


def replay(malloc: Callable[[int], Any], sequence: Sequence, cupy: Any) -> int:
    """Replays `sequence` once with work in flight; how many marks were wrong."""
    marks = Marks(cupy, sequence.places)
    lanes = {number: gpumem.Stream(non_blocking=True) for number in sequence.streams}
    live: list[Any] = [None] * sequence.places
    for number, events in sequence.runs:
        with lanes[number] as stream, cupy.cuda.Stream.from_external(stream):
            for place, size, taking in events:
                rounded = -(-size // _UNIT) * _UNIT
                if taking:
                    live[place] = malloc(size)
                    if size:
                        marks.write(live[place], rounded, place)
                else:
                    if size:
                        marks.compare(live[place], rounded, place)
                    live[place] = None
    return marks.wrong()


def row_of_trace(name: str, cupy: Any) -> Row:
    """The row of one trace."""
    sequence = of_trace(name)
    row = Row("b6flight", f"{name}, limit {LIMIT:.2f}", "gpumem, expandable", UNIT)
    pool = gpumem.MemoryPool(expandable_segments=True)
    pool.set_limit(int(sequence.peak * LIMIT))
    found = [replay(pool.malloc, sequence, cupy) for _ in range(PASSES)]
    stats = pool.stats()
    row.median, row.low, row.high = sum(found), min(found), max(found)
    row.samples = PASSES
    row.extra = {
        "events": PASSES * sequence.events,
        "remapped_pages": stats["remapped_pages"],
    }
    if any(found):
        row.note = f"WRONG: {sum(found)} marks of other blocks"
    elif used := pool.used_bytes():
        row.note = f"WRONG: {used} bytes are still used"
    else:
        row.note = "contents intact, no leak"
    return row


def in_flight(plan: Plan) -> Iterator[Row]:
    """b6flight"""
    if not can_run(plan):
        return
    cupy = importlib.import_module("cupy")
    for name in plan.trace_names():
        yield row_of_trace(name, cupy)
