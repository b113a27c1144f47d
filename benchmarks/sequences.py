# SPDX-License-Identifier: MIT
"""The requests that are replayed: recorded traces, and random ones by RMM's rules.

A sequence is decoded before any clock starts. Everything it takes it gives back: what a
trace leaves alive is freed at its end, so that it can be replayed again and again.

RMM's benchmark random_allocations draws while it runs, from C++'s default random engine
with its default seed, and so gives every allocator the same requests. Here they are
drawn beforehand, by the same rules and with the same numbers: the engine is the one of
libstdc++ (minstd_rand0), and so is the way it makes a range of integers from it, which
C++ leaves open.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from gpumem._trace import Trace, read_trace

TRACES = Path(__file__).resolve().parent / "traces"

MIB = 1 << 20

Event = tuple[int, int, bool]
"""Place in the list of live blocks, bytes, whether it allocates."""


@dataclass(frozen=True)
class Sequence:
    """What is replayed.

    name    what it is called in the table
    runs    stretches on one stream: its number (0 is the default stream), the events
    places  how long the list of live blocks has to be
    peak    highest sum of live requests, bytes
    """

    name: str
    runs: list[tuple[int, list[Event]]]
    places: int
    peak: int

    @property
    def events(self) -> int:
        return sum(len(events) for _, events in self.runs)

    @property
    def streams(self) -> list[int]:
        return sorted({stream for stream, _ in self.runs})


def trace_names() -> list[str]:
    """The recorded traces in the tree."""
    return sorted(path.name.split(".")[0] for path in TRACES.glob("*.csv.gz"))


def trace_path(name: str) -> Path:
    return TRACES / f"{name}.csv.gz"


@lru_cache(maxsize=1)
def of_trace(name: str) -> Sequence:
    """The recorded trace of that name."""
    trace = read_trace(trace_path(name))
    # Equal sizes share one object: a program that asks for a size again mostly has it
    # at hand, and a fresh int for each event would measure cache misses.
    shared: dict[int, int] = {}
    sizes = [shared.setdefault(size, size) for size in trace.sizes]
    taking = [bool(allocates) for allocates in trace.allocates]
    events = list(zip(trace.ids, sizes, taking, strict=True))
    numbers = trace.streams
    cuts = [i for i in range(1, trace.events) if numbers[i] != numbers[i - 1]]
    runs = [
        (numbers[start], events[start:stop])
        for start, stop in pairwise([0, *cuts, trace.events])
    ]
    runs += _left_over(trace)
    return Sequence(name, runs, trace.allocations, trace.peak_requested)


def _left_over(trace: Trace) -> list[tuple[int, list[Event]]]:
    """Frees of what the trace never frees, each on the stream it was taken on."""
    live: dict[int, tuple[int, int]] = {}
    rows = zip(trace.allocates, trace.ids, trace.sizes, trace.streams, strict=True)
    for allocates, number, size, stream in rows:
        if allocates:
            live[number] = (stream, size)
        else:
            del live[number]
    by_stream: dict[int, list[Event]] = {}
    for number, (stream, size) in live.items():
        by_stream.setdefault(stream, []).append((number, size, False))
    return list(by_stream.items())


# ---- C++'s random numbers, as libstdc++ has them ----

_LOWEST, _HIGHEST = 1, (1 << 31) - 2  # what minstd_rand0 gives
_RANGE = _HIGHEST - _LOWEST
_LARGEST = (1 << 64) - 1  # of std::size_t, in which libstdc++ reckons


class MinstdRand0:
    """std::minstd_rand0 with its default seed, and std::uniform_int_distribution over
    it."""

    def __init__(self) -> None:
        self._state = 1

    def __call__(self) -> int:
        """The next number of the engine."""
        self._state = self._state * 16807 % 2147483647
        return self._state

    def uniform(self, low: int, high: int) -> int:
        """The next number of the distribution over low to high, both included."""
        span = high - low
        if span < _RANGE:
            scaling = _RANGE // (span + 1)
            past = (span + 1) * scaling
            while True:
                drawn = self() - _LOWEST
                if drawn < past:
                    return low + drawn // scaling
        if span == _RANGE:
            return low + self() - _LOWEST
        while True:
            # The high part first, then the low part; again where both together leave
            # the range or do not fit the type.
            upper = (_RANGE + 1) * self.uniform(0, span // (_RANGE + 1)) & _LARGEST
            drawn = upper + self() - _LOWEST & _LARGEST
            if upper <= drawn <= span:
                return low + drawn


# ---- RMM's random_allocations ----

RMM_COUNTS = (1000, 10_000, 100_000)
RMM_MAXIMA = (1, 4, 64, 256, 1024, 4096)
RMM_MOST_LIVE = 16_000 * MIB
_RMM_PERCENT = 73


def _draw(count: int, max_mib: int) -> Iterator[tuple[int, int]]:
    """(size, index): index -1 allocates, any other frees the block there and puts the
    last one in its place."""
    random = MinstdRand0()
    live: list[int] = []
    total = taken = 0
    for _ in range(2 * count):
        size = random.uniform(1, max_mib * MIB)
        taking = True
        if live:
            chance = random.uniform(0, 99)
            taking = (
                chance < _RMM_PERCENT and taken < count and total + size < RMM_MOST_LIVE
            )
        if taking:
            live.append(size)
            total += size
            taken += 1
            yield size, -1
        else:
            index = random.uniform(0, count - 1) % len(live)
            size = live[index]
            live[index] = live[-1]
            live.pop()
            total -= size
            yield size, index


@lru_cache(maxsize=1)
def random_allocations(count: int, max_mib: int) -> Sequence:
    """RMM's sequence of `count` allocations of 1 byte to `max_mib` MiB and as many
    frees."""
    events: list[Event] = []
    live: list[tuple[int, int]] = []  # place, size
    spare: list[int] = []
    places = total = peak = 0
    for size, index in _draw(count, max_mib):
        if index < 0:
            if not spare:
                spare.append(places)
                places += 1
            live.append((spare.pop(), size))
            events.append((*live[-1], True))
            total += size
            peak = max(peak, total)
        else:
            place, size = live[index]
            live[index] = live[-1]
            live.pop()
            spare.append(place)
            events.append((place, size, False))
            total -= size
    events += [(place, size, False) for place, size in live]
    return Sequence(f"n {count:,}, to {max_mib:,} MiB", [(0, events)], places, peak)
