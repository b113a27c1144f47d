# SPDX-License-Identifier: MIT
"""What keeps a fast and wrong allocator out of the tables.

After a sequence was timed, it is replayed once more with no clock: each block's address
range must be clear of all that are live, and at the end nothing may be left that the
allocator itself still counts as used. For gpumem the pool's own invariants are walked
too, and closing it must leave no byte.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.sequences import Sequence


class GuardError(RuntimeError):
    """Two live blocks overlapped, or something was not given back."""


class Ranges:
    """The address ranges of live blocks, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, size: int) -> None:
        """GuardError when a live range has an address of this one."""
        end = start + size
        at = bisect_left(self._starts, start)
        if at and self._ends[at - 1] > start:
            raise self._overlap(start, end, at - 1)
        if at < len(self._starts) and self._starts[at] < end:
            raise self._overlap(start, end, at)
        self._starts.insert(at, start)
        self._ends.insert(at, end)

    def remove(self, start: int) -> None:
        at = bisect_left(self._starts, start)
        del self._starts[at], self._ends[at]

    def _overlap(self, start: int, end: int, other: int) -> GuardError:
        return GuardError(
            f"a block at {start:#x} to {end:#x} overlaps the live one at"
            f" {self._starts[other]:#x} to {self._ends[other]:#x}"
        )


def verify(contender: Contender, sequence: Sequence) -> str:
    """Replays `sequence` once and returns what was found good; GuardError else."""
    if contender.address is None:
        return ""
    take, give = contender.functions()
    before = contender.used() if contender.used else 0
    lanes = contender.lanes(sequence.streams)
    live: list[Any] = [None] * sequence.places
    ranges = Ranges()
    for number, events in sequence.runs:
        stream, enter = lanes[number]
        enter()
        for place, size, taking in events:
            if taking:
                live[place] = take(size, stream)
                ranges.add(contender.address(live[place]), size)
            else:
                ranges.remove(contender.address(live[place]))
                give(live[place], size, stream)
                live[place] = None
    lanes[sequence.streams[0]][1]()
    return check_quiet(contender, before)


def check_quiet(contender: Contender, before: int) -> str:
    """Every block was dropped: as much is used as `before`."""
    if contender.address is None:
        return ""
    if contender.check is not None:
        contender.check()
    if contender.used is None:
        return "no overlap"
    left = contender.used() - before
    if left:
        raise GuardError(f"{left} bytes are still used after every block was dropped")
    return "no overlap, no leak"


def ranges_of(contender: Contender, blocks: list[Any], sizes: list[int]) -> None:
    """GuardError when two of these live blocks overlap."""
    if contender.address is not None:
        ranges = Ranges()
        for block, size in zip(blocks, sizes, strict=True):
            ranges.add(contender.address(block), size)


def judged(check: Callable[[], str]) -> str:
    """The verdict of `check`, or what it found wrong, for the table."""
    try:
        return check()
    except Exception as error:  # a peer's own failures too
        return f"WRONG: {error}"
