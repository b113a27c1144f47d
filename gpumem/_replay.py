# SPDX-License-Identifier: MIT
"""Replays a recorded trace through the allocator: timed, checked, or written down.

All ways install the pool with `set_allocator`, allocate with `alloc` on the trace's
own streams, and put the caller's allocator and stream back afterwards, also when
something fails. Blocks that the trace never frees are dropped at its end.

replay      timed passes, then what the pool says it did in the first of them
verify      one untimed pass that looks at every block: no two live ones overlap, and
            bytes written at both ends, and on both sides of each border between
            pages, are there when the block is freed
placements  one untimed pass that notes where each block was put

The timed loop does nothing but allocate, drop and, where the trace changes streams,
switch: the events are decoded into lists beforehand, the clock is read twice a pass,
and progress is reported between passes. What it costs by itself, some 30 ns an event on
a slow core, is in the figures.

Threading: the allocator is the process's, so nothing else should allocate meanwhile.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import gpumem
from gpumem import testing
from gpumem._trace import Trace

Allocator = Callable[[int], gpumem.MemoryPointer]

# Called with what is going on, how many steps are done, and of how many.
Progress = Callable[[str, int, int], None]

# What the timed loop iterates over: for each stretch of events on one stream, the
# method that makes it current, and (id, size) of each event, size None for a free.
Run = tuple[Callable[[], Any], list[tuple[int, int | None]]]

_EVENTS_PER_STEP = 2_000

# In a list of pointers by allocation id: this one has not been made yet.
_NOT_YET = False

_CUDA_ERROR_MEMORY_ALLOCATION = 2

_MARK_BYTES = 8

_PAGE_BYTES = 2 << 20  # of a device's memory, at least


class ReplayError(RuntimeError):
    """The allocator broke a promise: two blocks overlap, contents changed, a count is
    wrong, or something was not given back."""


@dataclass(slots=True)
class Report:
    """What a replay found; the fields up to `completed` are the JSON output, in order.

    Counters are those of the first pass, which starts with an empty pool. None stands
    for what a raw allocator has not, or an unfinished replay could not measure.
    """

    trace: str
    backend: str
    pool: str
    events: int
    allocations: int
    peak_requested_bytes: int
    peak_used_bytes: int | None = None
    peak_total_bytes: int | None = None
    overhead: float | None = None  # peak total over peak requested
    hits: int | None = None
    misses: int | None = None
    upstream_allocations: int | None = None
    upstream_frees: int | None = None
    ns_per_event: float | None = None  # first pass
    ns_per_event_warm: float | None = None  # median of the passes after it
    completed: bool = False

    warm_passes: tuple[float, ...] = ()
    failure: str = ""  # why it did not complete
    smallest: Any = None  # what _smallest.py found, where that was asked for

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        names = [field.name for field in fields(self)]
        names = names[: names.index("completed") + 1]
        found = {name: getattr(self, name) for name in names}
        return found if self.smallest is None else found | self.smallest.to_json()


def replay(
    trace: Trace,
    pool: gpumem.MemoryPool | None,
    *,
    passes: int = 2,
    progress: Progress | None = None,
) -> Report:
    """Times `passes` passes over `trace` with `pool`, or with no pool at all.

    The pool must be empty, and is empty again afterwards. Running out of memory is a
    result: `completed` is False and `failure` says where it happened. ReplayError when
    the pool's counts contradict the trace.
    """
    report = Report(
        trace=trace.path,
        backend=gpumem.get_backend(),
        pool="raw" if pool is None else "pool",
        events=trace.events,
        allocations=trace.allocations,
        peak_requested_bytes=trace.peak_requested,
    )
    live: list[Any] = []
    times: list[float] = []
    with installed(pool):
        runs = decode(trace)
        for number in range(passes):
            if progress is not None:
                progress("timing", number, passes)
            live[:] = [_NOT_YET] * trace.allocations
            try:
                times.append(timed_pass(runs, gpumem.alloc, live) / trace.events)
            except (gpumem.OutOfMemoryError, gpumem.CUDARuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                report.failure = _explain(error, trace, pool, live)
            if number == 0 and pool is not None:
                _read_counters(report, pool)
            live.clear()
            if report.failure:
                break
    if progress is not None:
        progress("timing", passes, passes)
    if pool is not None:
        check_given_back(pool)
    if report.failure:
        return report
    report.completed = True
    report.ns_per_event = round(times[0], 2)
    if times[1:]:
        report.warm_passes = tuple(times[1:])
        report.ns_per_event_warm = round(median(times[1:]), 2)
    if pool is not None:
        _check_peak(trace, pool)
    if report.peak_total_bytes is not None and trace.peak_requested:
        report.overhead = round(report.peak_total_bytes / trace.peak_requested, 6)
    return report


def peak_of_one_pass(
    trace: Trace, runs: list[Run], pool: gpumem.MemoryPool
) -> int | None:
    """What `pool` held at most in one pass over the trace that `runs` were decoded
    from; None where memory ran out. The pool is empty before and after."""
    live: list[Any] = [_NOT_YET] * trace.allocations
    completed = True
    with installed(pool):
        try:
            timed_pass(runs, gpumem.alloc, live)
        except gpumem.OutOfMemoryError:
            completed = False
        live.clear()
    held = pool.stats()["peak_total_bytes"]
    check_given_back(pool)
    return held if completed else None


def verify(
    trace: Trace,
    pool: gpumem.MemoryPool | None,
    *,
    progress: Progress | None = None,
) -> None:
    """Replays `trace` once and looks at every block; ReplayError if one is wrong."""
    with installed(pool):
        walk(trace, _Checker(), "verifying", progress)
    if pool is not None:
        check_given_back(pool)


def placements(
    trace: Trace,
    pool: gpumem.MemoryPool,
    *,
    progress: Progress | None = None,
) -> list[tuple[int, int, int]]:
    """(id, segment serial, offset) of each allocation of `trace`, in its order.

    With a pool that has never allocated the list depends on the trace and the limit
    alone, so that it can be compared across backends and with a model. Allocations of
    no bytes are nowhere and left out.
    """
    recorder = _Recorder()
    with installed(pool):
        walk(trace, recorder, "placing", progress)
    check_given_back(pool)
    return recorder.rows


@contextmanager
def installed(pool: gpumem.MemoryPool | None) -> Iterator[None]:
    """Allocates from `pool`, or straight from the device; undone on the way out."""
    allocator = gpumem.get_allocator()
    stream = gpumem.get_current_stream()
    gpumem.set_allocator(gpumem.malloc if pool is None else pool.malloc)
    try:
        yield
    finally:
        gpumem.set_allocator(allocator)
        stream.use()


def make_streams(trace: Trace) -> dict[int, gpumem.Stream]:
    """A stream for each number in `trace`."""
    return {
        number: gpumem.Stream(non_blocking=True) if number else gpumem.Stream.null
        for number in sorted(set(trace.streams))
    }


def decode(trace: Trace) -> list[Run]:
    """`trace` as the timed loop wants it, cut where the stream changes."""
    # Equal sizes share one object: a program that asks for the same size again mostly
    # has it at hand, and a fresh int for each event would measure cache misses.
    shared: dict[int, int] = {}
    sizes = [
        shared.setdefault(size, size) if allocates else None
        for allocates, size in zip(trace.allocates, trace.sizes, strict=True)
    ]
    # Pairs made beforehand, not two lists stepped through together: a trace that
    # changes streams every few events would spend more on starting loops than in them.
    pairs = list(zip(trace.ids, sizes, strict=True))
    numbers = trace.streams
    cuts = [i for i in range(1, trace.events) if numbers[i] != numbers[i - 1]]
    streams = make_streams(trace)
    return [
        (streams[numbers[start]].use, pairs[start:stop])
        for start, stop in pairwise([0, *cuts, trace.events])
    ]


def timed_pass(runs: list[Run], alloc: Allocator, live: list[Any]) -> int:
    """Nanoseconds for all of `runs`. Every name in the loop is a local variable, and
    overwriting a pointer with None is what frees its block."""
    start = perf_counter_ns()
    for use, pairs in runs:
        use()
        for number, size in pairs:
            if size is None:
                live[number] = None
            else:
                live[number] = alloc(size)
    return perf_counter_ns() - start


def _read_counters(report: Report, pool: gpumem.MemoryPool) -> None:
    stats = pool.stats()
    for name in (
        "peak_used_bytes",
        "peak_total_bytes",
        "hits",
        "misses",
        "upstream_allocations",
        "upstream_frees",
    ):
        setattr(report, name, stats[name])


def _check_peak(trace: Trace, pool: gpumem.MemoryPool) -> None:
    """The pool saw the peak that the trace has."""
    seen = pool.stats()["peak_requested_bytes"]
    if seen != trace.peak_requested:
        raise ReplayError(
            f"the pool counted a peak of {seen} requested bytes; the trace has "
            f"{trace.peak_requested}"
        )


def is_out_of_memory(error: Exception) -> bool:
    """A pool has its own exception for it; from no pool comes the device's error."""
    if isinstance(error, gpumem.CUDARuntimeError):
        return bool(error.status == _CUDA_ERROR_MEMORY_ALLOCATION)
    return True


def _explain(
    error: Exception, trace: Trace, pool: gpumem.MemoryPool | None, live: list[Any]
) -> str:
    """Where memory ran out and with what held, while it is still held."""
    # Ids count from 0, so the first pointer not made is the one that failed.
    number = next(i for i, pointer in enumerate(live) if pointer is _NOT_YET)
    event = trace.event_of_allocation(number)
    text = (
        f"out of memory at event {event} of {trace.events}: allocation {number} of "
        f"{trace.sizes[event]} bytes on stream {trace.streams[event]}, with "
        f"{trace.live_requested(event)} requested bytes live"
    )
    if pool is not None:
        text += (
            f"; the pool holds {pool.total_bytes()} bytes, {pool.used_bytes()} used "
            f"and {pool.free_bytes()} free, limit {pool.get_limit() or 'none'}"
        )
    return f"{text} ({error})"


def check_given_back(pool: gpumem.MemoryPool) -> None:
    """No pointer is left: nothing is used, and nothing stays once told to let go."""
    if used := pool.used_bytes():
        raise ReplayError(f"{used} bytes are still used after every block was dropped")
    # A block that one stream borrowed of another waits for it, however little that did;
    # and so do pages, for an event that the first call records.
    for _ in range(2):
        gpumem.Device(gpumem.get_device_id()).synchronize()
        pool.free_all_blocks()
    if total := pool.total_bytes():
        raise ReplayError(f"{total} bytes are still held after free_all_blocks")


class _Visitor(Protocol):
    """Sees each block of a walk twice. It must not keep the pointer."""

    def allocated(self, number: int, size: int, pointer: Any) -> None: ...

    def freeing(self, number: int, size: int, pointer: Any) -> None: ...


def walk(
    trace: Trace,
    visitor: _Visitor,
    label: str,
    progress: Progress | None,
    *,
    drop: bool = True,
) -> None:
    """Replays `trace` once, showing every block to `visitor`; with `drop` also those
    that are never freed, when they are dropped at its end."""
    streams = make_streams(trace)
    live: list[Any] = [None] * trace.allocations
    sizes = [0] * trace.allocations
    current = None
    events = zip(trace.allocates, trace.ids, trace.sizes, trace.streams, strict=True)
    for event, (allocates, number, size, stream) in enumerate(events):
        if stream != current:
            streams[stream].use()
            current = stream
        if allocates:
            live[number] = gpumem.alloc(size)
            sizes[number] = size
            visitor.allocated(number, size, live[number])
        else:
            visitor.freeing(number, size, live[number])
            live[number] = None
        if progress is not None and event % _EVENTS_PER_STEP == 0:
            progress(label, event, trace.events)
    for number, pointer in enumerate(live):
        if drop and pointer is not None:
            visitor.freeing(number, sizes[number], pointer)
    if progress is not None:
        progress(label, trace.events, trace.events)


class _Checker:
    """Knows the address range of every live block, sorted, and what it wrote there."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._buffer = bytearray(2 * _MARK_BYTES)  # a mark, and all of one

    def allocated(self, number: int, size: int, pointer: Any) -> None:
        if not size:
            return
        start = pointer.ptr
        end = start + pointer.mem.size  # the whole block, not only what was asked for
        if pointer.mem.size < size:
            raise ReplayError(
                f"allocation {number} of {size} bytes got {pointer.mem.size} bytes"
            )
        at = bisect_left(self._starts, start)
        if at and self._ends[at - 1] > start:
            raise self._overlap(number, start, end, at - 1)
        if at < len(self._starts) and self._starts[at] < end:
            raise self._overlap(number, start, end, at)
        self._starts.insert(at, start)
        self._ends.insert(at, end)
        for offset, mark in _marks(number, size, start):
            (pointer + offset).copy_from_host(mark, len(mark))

    def freeing(self, number: int, size: int, pointer: Any) -> None:
        if not size:
            return
        for offset, mark in _marks(number, size, pointer.ptr):
            (pointer + offset).copy_to_host(self._buffer, len(mark))
            if self._buffer[: len(mark)] != mark:
                raise ReplayError(
                    f"allocation {number} of {size} bytes: at offset {offset} there is "
                    f"{self._buffer[: len(mark)].hex()} where {mark.hex()} was written"
                )
        at = bisect_left(self._starts, pointer.ptr)
        del self._starts[at], self._ends[at]

    def _overlap(self, number: int, start: int, end: int, other: int) -> ReplayError:
        return ReplayError(
            f"allocation {number} at {start:#x} to {end:#x} overlaps the live block at "
            f"{self._starts[other]:#x} to {self._ends[other]:#x}"
        )


def _marks(number: int, size: int, start: int) -> list[tuple[int, bytes]]:
    """(offset, bytes) to write into a block of `size` bytes at `start`: its two ends,
    or all of it where they would meet, and across each border between pages in it, a
    number of its own, so that a page in another's place is seen. The id is spread over
    the mark by a multiplication, so that also the first byte, all that a block of one
    byte has, differs between most ids."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
    head = mixed.to_bytes(_MARK_BYTES, "big")
    tail = head[::-1]
    if size < 2 * _MARK_BYTES:
        return [(0, (head + tail)[:size])]
    marks = [(0, head), (size - _MARK_BYTES, tail)]
    first = -start % _PAGE_BYTES or _PAGE_BYTES
    for border in range(first, size, _PAGE_BYTES):
        if _MARK_BYTES * 2 <= border <= size - 2 * _MARK_BYTES:
            across = (mixed ^ border).to_bytes(_MARK_BYTES, "big") * 2
            marks.append((border - _MARK_BYTES, across))
    return marks


class _Recorder:
    """Notes where each block is."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []

    def allocated(self, number: int, size: int, pointer: Any) -> None:
        if size:
            serial, offset = testing.placement(pointer)
            self.rows.append((number, serial, offset))

    def freeing(self, number: int, size: int, pointer: Any) -> None:
        pass
