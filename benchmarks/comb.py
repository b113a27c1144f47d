# SPDX-License-Identifier: MIT
"""b6comb: one large block where the memory that is free lies in small pieces.

What the device has free is allocated as 64 blocks, and every other one is dropped. Then
one block of 48% of it is asked for: there is enough, in 32 pieces. It is timed, filled,
and everything is checked: all blocks have marks at both ends and at every border that
pages can have, so where two lay over the same page one of them has wrong ones. After it
is dropped, 52% is asked for, which is not there: the row has what the allocator says,
and where it says how much could be had, how much of that is served.

A plain pool gives its blocks back to the device to get there, if the device can make
one range of them; one that maps by page moves pages. Nothing is launched: marks are
copied by gpumem, whoever allocated, so it runs on the simulated device too, one of 1
GiB then. Everybody has a process (children.py). A gigabyte is left to the driver, of
small devices a hundredth.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import gpumem
from benchmarks.children import rows_of_all
from benchmarks.contenders import Contender, Maker
from benchmarks.guard import check_quiet
from benchmarks.plan import DOES_NOT_COMPLETE, Plan, Row
from benchmarks.timing import quiet
from benchmarks.within import is_short

BLOCKS = 64
PAGE = 2 << 20  # the least that a page can be
FITS = 48  # percent
EXCEEDS = 52
UNIT = "ms"

_LEFT = 1 << 30  # bytes of a device that nobody asks for
_MARK = 8  # bytes
_FILL = 0xA5
_SIM_MEMORY = "1GiB"


class MarkError(RuntimeError):
    """A block has what was not written to it."""


def mark(number: int, offset: int) -> bytes:
    """What is written at `offset` of a block: nothing else has the same."""
    return (number + 1 << 48 | offset).to_bytes(_MARK, "little")


def places(address: int, size: int) -> Iterator[int]:
    """Offsets of a block's marks: both ends, and both sides of each border within."""
    yield 0
    for border in range((address // PAGE + 1) * PAGE, address + size, PAGE):
        yield border - address - _MARK
        yield border - address
    yield size - _MARK


@dataclass
class Block:
    """A block of `size` bytes: its number among the marks, where it is, what holds
    it."""

    number: int
    size: int
    address: int
    held: Any

    def view(self) -> gpumem.MemoryPointer:
        device = gpumem.get_device_id()
        memory = gpumem.UnownedMemory(self.address, self.size, self, device)
        return gpumem.MemoryPointer(memory, 0)

    def write(self) -> None:
        view = self.view()
        for offset in places(self.address, self.size):
            (view + offset).copy_from_host(mark(self.number, offset), _MARK)

    def check(self) -> None:
        """MarkError where a mark is another one."""
        view, found = self.view(), bytearray(_MARK)
        for offset in places(self.address, self.size):
            (view + offset).copy_to_host(found, _MARK)
            if found != mark(self.number, offset):
                raise MarkError(
                    f"block {self.number} has {found.hex()} at byte {offset:,} of"
                    f" {self.size:,}, and not {mark(self.number, offset).hex()}"
                )


class Comb:
    """The blocks that are left, and how more of a contender's are had. `pages` is how
    many all blocks have together; 0 for what the device has."""

    def __init__(self, contender: Contender, pages: int = 0) -> None:
        assert contender.address is not None
        self._take, self._give = contender.functions()
        self._address = contender.address
        self._stream, enter = contender.lanes([0])[0]
        enter()
        free, _ = gpumem.Device(gpumem.get_device_id()).mem_info
        self.pages = pages or (free - min(_LEFT, free // 100)) // PAGE
        self._live: list[Block] = []
        for number in range(BLOCKS):
            ends = [self.pages * i // BLOCKS for i in (number, number + 1)]
            self._live.append(self.take((ends[1] - ends[0]) * PAGE, number))
        for block in self._live:
            block.write()
        for number in range(0, BLOCKS, 2):
            self.give(self._live[number])
        self._live = self._live[1::2]

    def take(self, size: int, number: int = BLOCKS) -> Block:
        held = self._take(size, self._stream)
        return Block(number, size, self._address(held), held)

    def give(self, block: Block) -> None:
        held, block.held = block.held, None
        self._give(held, block.size, self._stream)

    def share(self, percent: int) -> int:
        """This part of what the blocks had together, in bytes."""
        return self.pages * percent // 100 * PAGE

    def check(self, *others: Block) -> None:
        """MarkError where one of these blocks, or of those that are left, was written
        to."""
        for block in (*self._live, *others):
            block.check()

    def close(self) -> None:
        while self._live:
            self.give(self._live.pop())


def _timed(comb: Comb, size: int) -> tuple[float, Block | Exception]:
    """Milliseconds of a request, and what came of it: a block, or that memory ran
    out."""
    with quiet():
        begun = time.perf_counter_ns()
        try:
            found: Block | Exception = comb.take(size)
        except Exception as error:
            if not is_short(error):
                raise
            found = error.with_traceback(None)  # whose frames keep what they had
        spent = time.perf_counter_ns() - begun
    return spent / 1e6, found


def _judged(row: Row, comb: Comb, *others: Block) -> None:
    """Checks the marks; the row has the verdict of all rounds."""
    try:
        comb.check(*others)
        row.note = row.note or "contents intact"
    except MarkError as error:
        row.note = f"WRONG: {error}"


def fitting(comb: Comb, row: Row) -> float | None:
    """Asks for what is there; milliseconds, None where it was refused."""
    spent, found = _timed(comb, comb.share(FITS))
    if isinstance(found, Exception):
        row.error = DOES_NOT_COMPLETE
        _judged(row, comb)
        return None
    found.view().memset(_FILL, found.size)
    found.write()
    _judged(row, comb, found)
    comb.give(found)
    return spent


def exceeding(comb: Comb, row: Row) -> float | None:
    """Asks for what is not there; milliseconds until it was refused."""
    spent, found = _timed(comb, comb.share(EXCEEDS))
    if isinstance(found, Block):
        comb.give(found)
        row.note = "WRONG: more was served than there is"
        return None
    row.note = row.note or str(found).partition("\n")[0]
    named = getattr(found, "largest_available_block", None)
    if named is not None:
        served = _most(comb, named)
        row.extra |= {"could_be_had": named, "served": served}
        if not served:
            row.note = f"WRONG: {named:,} bytes could be had, it said; none were served"
    _judged(row, comb)
    return spent


def _most(comb: Comb, named: int) -> int:
    """How much of what an error named is served, in steps of a thousandth; 0 where it
    is more than 2% off. A driver keeps some of what it calls free."""
    for step in range(20):
        size = named - named * step // 1000
        _, found = _timed(comb, size)
        if isinstance(found, Block):
            comb.give(found)
            return size
    return 0


def comb_of(name: str, make: Maker, quick: bool, traces: list[str]) -> Iterator[Row]:
    rows = [
        Row("b6comb", f"{percent}% of the device, half of it free", name, UNIT)
        for percent in (FITS, EXCEEDS)
    ]
    samples: list[list[float]] = [[], []]
    for _ in range(1 if quick else 3):
        contender = make(None)
        used = contender.used() if contender.used else 0
        comb = Comb(contender)
        for row, ask, found in zip(rows, (fitting, exceeding), samples, strict=True):
            spent = ask(comb, row)
            if spent is not None:
                found.append(spent)
        comb.close()
        check_quiet(contender, used)
        contender.close()
    for row, found in zip(rows, samples, strict=True):
        if found:
            row.median, row.low, row.high = median(found), min(found), max(found)
            row.samples = len(found)
        yield row


def comb(plan: Plan) -> Iterator[Row]:
    """b6comb"""
    sim = gpumem.get_backend() == "sim"
    rows = rows_of_all(
        plan, "b6comb", **({"GPUMEM_SIM_MEMORY": _SIM_MEMORY} if sim else {})
    )
    yield from sorted(rows, key=lambda row: row.case)
