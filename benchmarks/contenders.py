# SPDX-License-Identifier: MIT
"""What is measured, and how each allocates and gives back.

A contender is a way to get device memory from Python: two pieces of text that are
pasted into the timed loops, and what they name. This file has gpumem itself and the
yardstick, `object()`, the cheapest thing that CPython makes and drops; the peers are in
peers.py. Each is made anew for each table and closed after it, so that nobody measures
what another left behind.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpumem
from gpumem import testing

Lane = tuple[Any, Callable[[], Any]]
"""A stream as `take` wants it, and what makes it current."""


def nothing() -> None:
    """What entering a lane takes where there is no current stream."""


def _no_lanes(numbers: list[int]) -> dict[int, Lane]:
    return dict.fromkeys(numbers, (None, nothing))


@dataclass
class Contender:
    """One way to allocate.

    name     in the tables
    take     expression for a block of `size` bytes, on `stream` where it takes one
    give     statement that gives `{block}` back, of `size` bytes; "" where dropping the
             object does
    names    what both name besides
    written  `take` as a program writes it that keeps no bound method; "" for the same
    address  where a block is; None where it is no memory
    lanes    streams by number, 0 the default one
    own      `names` for a thread of its own
    used     bytes it counts as handed out; None where it does not tell
    check    raises where its own invariants do not hold
    calls    how often it asked the device for memory; None where it does not tell
    held     bytes it holds from the device
    peak     the most it held since it was made
    limit    bounds what it holds from the device, in bytes; 0: no more
    trim     gives back what it has cached
    moves    what it did besides, by name: pages moved, time spent in the driver
    close    lets go of everything
    """

    name: str
    take: str
    give: str
    names: dict[str, Any]
    address: Callable[[Any], int] | None
    written: str = ""
    lanes: Callable[[list[int]], dict[int, Lane]] = _no_lanes
    own: Callable[[], dict[str, Any]] | None = None
    used: Callable[[], int] | None = None
    check: Callable[[], None] | None = None
    calls: Callable[[], int] | None = None
    held: Callable[[], int] | None = None
    peak: Callable[[], int] | None = None
    limit: Callable[[int], Any] | None = None
    trim: Callable[[], Any] | None = None
    moves: Callable[[], dict[str, Any]] | None = None
    close: Callable[[], None] = nothing

    def giving(self, block: str) -> str:
        """The statement that gives back what the variable `block` holds."""
        return self.give.format(block=block) if self.give else f"{block} = None"

    @property
    def pair(self) -> str:
        """The statement that allocates `size` bytes and gives them back."""
        giving = self.give.format(block="p") if self.give else "del p"
        return f"p = {self.written or self.take}; {giving}"

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """take(size, stream) and give(block, size, stream), for what is not timed.

        What they name they close over: CPython 3.13 without the interpreter lock keeps
        a function that is not nested for ever once there was a thread, with the globals
        that it would have.
        """
        giving = self.give.format(block="block") if self.give else "None"
        take = f"lambda size, stream: {self.take}"
        give = f"lambda block, size, stream: {giving}"
        make = eval(f"lambda {', '.join(self.names)}: ({take}, {give})", {})
        made: tuple[Callable[..., Any], Callable[..., Any]] = make(**self.names)
        return made


Maker = Callable[[int | None], Contender]
"""Makes a contender. The argument is how many bytes it will need at most, for those
that take all their memory beforehand; None for as much as is usual."""


def make_object(room: int | None = None) -> Contender:
    """The yardstick."""
    return Contender("object()", "object()", "", {"object": object}, None)


# ---- gpumem ----


@dataclass(frozen=True)
class PoolKind:
    """A way to set up gpumem's pool: its name in the tables, MemoryPool's arguments."""

    name: str
    arguments: dict[str, Any]


# Those are measured that this version's MemoryPool has the arguments for.
_POOL_KINDS = (
    PoolKind("gpumem", {}),
    PoolKind("gpumem, growth", {"growth": True}),
    PoolKind("gpumem, growth of 2 GiB", {"growth": 2 << 30}),
    PoolKind("gpumem, expandable", {"expandable_segments": True}),
)


def pool_kinds() -> list[PoolKind]:
    """The ways that this version knows, the default one first."""
    known = inspect.signature(gpumem.MemoryPool).parameters
    return [kind for kind in _POOL_KINDS if known.keys() >= kind.arguments.keys()]


def _gpumem_lanes(numbers: list[int]) -> dict[int, Lane]:
    streams = {
        number: gpumem.Stream(non_blocking=True) if number else gpumem.Stream.null
        for number in numbers
    }
    return {number: (stream, stream.use) for number, stream in streams.items()}


def make_gpumem(room: int | None = None, kind: PoolKind = _POOL_KINDS[0]) -> Contender:
    """The pool."""
    pool = gpumem.MemoryPool(**kind.arguments)

    def close() -> None:
        gpumem.Stream.null.use()
        # What a stream borrowed of another waits for it, and pages for an event that
        # the first call records.
        for _ in range(2):
            gpumem.Device(gpumem.get_device_id()).synchronize()
            pool.free_all_blocks()
        if left := pool.total_bytes():
            raise RuntimeError(f"{left} bytes are still held after free_all_blocks")

    return Contender(
        kind.name,
        "malloc(size)",
        "",
        {"pool": pool, "malloc": pool.malloc},
        lambda block: int(block.ptr),
        written="pool.malloc(size)",
        lanes=_gpumem_lanes,
        own=lambda: {"malloc": pool.malloc},
        used=pool.used_bytes,
        check=lambda: testing.check_pool(pool),
        calls=lambda: pool.stats()["upstream_allocations"],
        held=pool.total_bytes,
        peak=lambda: pool.stats()["peak_total_bytes"],
        limit=lambda size: pool.set_limit(size=size),
        trim=pool.free_all_blocks,
        moves=lambda: _moves(pool.stats()),
        close=close,
    )


def _moves(stats: dict[str, int]) -> dict[str, Any]:
    """What a pool that maps by page tells of it; nothing else does."""
    if "remapped_pages" not in stats:
        return {}
    return {
        "remapped_pages": stats["remapped_pages"],
        "driver_ms": round(stats["driver_ns"] / 1e6, 3),
    }


def through_alloc(
    made: Contender, name: str, alloc: Callable[[int], Any], restore: Callable[[], None]
) -> Contender:
    """The same pool, now that its malloc is the installed allocator, through the
    library's `alloc`; `restore` installs the one before."""
    close = made.close

    def close_all() -> None:
        restore()
        close()

    made.name = name
    made.take = "alloc(size)"
    made.written = ""
    made.names = {"alloc": alloc}
    made.own = None
    made.close = close_all
    return made


def make_gpumem_alloc(room: int | None = None) -> Contender:
    """The pool, through the allocator that is installed."""
    made = make_gpumem(room)
    gpumem.set_allocator(made.names["pool"].malloc)
    return through_alloc(
        made, "gpumem.alloc", gpumem.alloc, lambda: gpumem.set_allocator(None)
    )
