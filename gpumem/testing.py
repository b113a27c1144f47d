# SPDX-License-Identifier: MIT
"""Looking into pools, and driving the simulated device, in tests.

placement and check_pool work on every backend. The rest is about the simulated device
and raises RuntimeError on another one.
"""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpumem import _core

__all__ = [
    "Call",
    "Ledger",
    "call_log",
    "check_pool",
    "fail",
    "last_error",
    "ledger",
    "make_memory_pool",
    "parse_limit",
    "placement",
    "round_size",
    "set_peer",
    "unit_size",
    "without",
]


class Ledger(NamedTuple):
    """What was taken from the simulated device and not given back.

    Attributes:
        allocations: live allocations.
        bytes: their sum, as asked for.
        streams: live streams.
        events: live events.
        graphs: live graphs, and those ready to launch.
        captures: recordings under way.
        pending: queued operations that have not run.
        errors: bad frees, uses of dead handles, copies outside any allocation.
        peak_bytes: the most bytes that were held at once.
    """

    allocations: int
    bytes: int
    streams: int
    events: int
    graphs: int
    captures: int
    pending: int
    errors: int
    peak_bytes: int


class Call(NamedTuple):
    """One call that reached the simulated device.

    Attributes:
        name: what was called, as the backend table names it.
        device: on which device.
        ptr: the address, stream or event it was about, 0 where it has none.
        size: bytes, 0 where it has none.
        status: 0 for success.
    """

    name: str
    device: int
    ptr: int
    size: int
    status: int


def placement(pointer: _core.MemoryPointer) -> tuple[int, int]:
    """Returns (segment serial, offset in bytes) of the block that `pointer` is in.

    Segments are counted from 0 in the order in which the pool took them.

    Raises:
        TypeError: `pointer` is no MemoryPointer into pooled memory.
        ValueError: its memory was given back.
    """
    return _core._placement(pointer)


def check_pool(pool: _core.MemoryPool | _core.SingleDeviceMemoryPool) -> None:
    """Walks all structures of a pool (for MemoryPool: of the current device's).

    Raises:
        AssertionError: an invariant is broken; the text says which.
    """
    broken = _core._check_pool(pool)
    if broken is not None:
        raise AssertionError(broken)


def ledger() -> Ledger:
    """Returns the simulated device's Ledger."""
    return Ledger(**_core._sim_ledger())


@contextmanager
def call_log() -> Iterator[list[Call]]:
    """Records the calls that reach the simulated device inside a with statement.

    Yields a list that is empty until the end of the with statement and then holds the
    Calls, oldest first.
    """
    calls: list[Call] = []
    _core._sim_log_start()
    try:
        yield calls
    finally:
        calls.extend(Call(*entry) for entry in _core._sim_log_stop())


@contextmanager
def fail(
    name: str | None, nth: int = 1, count: int = 1, code: int = 2
) -> Iterator[None]:
    """Makes calls of the simulated device fail inside a with statement.

    Args:
        name (str): which call, as the backend table names it ("mem_alloc", "copy");
            None for any.
        nth (int): the first to fail, counted from 1.
        count (int): how many fail; 0 for all from then on.
        code (int): the runtime's error number; 2 is out of memory.

    Raises:
        ValueError: there is no call of that name.
    """
    _core._fail(name, nth, count, code)
    try:
        yield
    finally:
        _core._fail_stop()


def last_error() -> int:
    """Returns the code in the calling thread's last-error slot, 0 when it is clean."""
    return _core._last_error()


unit_size = 512
"""Bytes that every block's size is a multiple of."""


def round_size(size: int) -> int:
    """Returns `size` rounded up to whole units, which is what a pool hands out.

    Args:
        size (int): bytes.

    Raises:
        OverflowError: `size` is negative, or rounded up it is above 2**64-1.
        TypeError: `size` is not an integer.
    """
    size = operator.index(size)
    if not 0 <= size <= 2**64 - unit_size:
        bits = size.bit_length()
        what = size if bits <= 256 else f"a number of {bits} bits"
        raise OverflowError(f"size must be from 0 to 2**64-{unit_size}, not {what}")
    return -(-size // unit_size) * unit_size


def parse_limit(text: str | None = None) -> dict[str, int | float | None]:
    """Returns what a limit as text says, as the arguments of MemoryPool.set_limit.

    Args:
        text (str): a size ("8GiB") or a percentage ("70.5%"); what the environment sets
            if None.

    Raises:
        ValueError: the text is neither.
    """
    return _core._parse_limit(text)


def set_peer(device: int, peer: int, can: bool) -> None:
    """Says whether a simulated device can reach another's memory directly; all can
    until told otherwise. What was enabled is forgotten."""
    _core._sim_set_peer(device, peer, can)


_FEATURES = {
    "memory_pools": 1,
    "managed": 2,
    "concurrent_managed": 4,
    "pageable_access": 8,
}


@contextmanager
def without(*features: str, device: int = 0) -> Iterator[None]:
    """Takes abilities from a simulated device inside a with statement.

    Args:
        features (str): "memory_pools" (stream-ordered memory), "managed" (managed
            memory), "concurrent_managed" (prefetching it, advice about it, and more of
            it than the device has), "pageable_access" (reading plain host memory). A
            device has all of them otherwise.
        device (int): which device.

    Raises:
        ValueError: there is no such ability, or no such device.
    """
    unknown = [name for name in features if name not in _FEATURES]
    if unknown:
        names = ", ".join(_FEATURES)
        raise ValueError(f"a device has no ability {unknown[0]!r}; it has: {names}")
    everything = sum(_FEATURES.values())
    before = _core._sim_set_support(device, everything)
    left = before & ~sum(_FEATURES[name] for name in set(features))
    _core._sim_set_support(device, left)
    try:
        yield
    finally:
        _core._sim_set_support(device, before)


def make_memory_pool(device: int = 0) -> int:
    """Makes one more pool of stream-ordered memory on a simulated device, as another
    library would, and returns its handle. It lives until the device is reset.

    Raises:
        ValueError: there is no such device.
    """
    return _core._sim_make_pool(device)
