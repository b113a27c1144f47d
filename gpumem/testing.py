# SPDX-License-Identifier: MIT
"""Looking into pools, and driving the simulated device, in tests.

placement, check_pool, last_error, round_size and parse_limit work on every backend. The
rest is about the simulated device and raises RuntimeError on another one.
docs/simulated-device.md shows how to test a program with it.
"""

import operator
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gpumem import _core

if TYPE_CHECKING:
    from typing import Protocol

    class _HasHandle(Protocol):
        @property
        def ptr(self) -> int: ...


__all__ = [
    "Call",
    "Ledger",
    "ManagedState",
    "call_log",
    "check_pool",
    "device_context_created",
    "fail",
    "hold_stream",
    "last_error",
    "ledger",
    "make_memory_pool",
    "managed_state",
    "parse_limit",
    "placement",
    "recycle_handles",
    "reset_device",
    "round_size",
    "set_last_error",
    "set_others",
    "set_peer",
    "slow_calls",
    "sticky_fault",
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
        imports: allocations of other processes that are open.
        reservations: ranges of addresses for memory by page.
        reserved_bytes: their sum; it takes nothing from the device.
        handles: physical memory by page, held by its handle or only mapped.
        handle_bytes: its sum, what it takes from the devices.
        mappings: places at which such memory is mapped.
        mapped_bytes: their sum; memory mapped twice counts twice.
        pending: queued operations that have not run.
        errors: bad frees, uses of dead handles, copies outside any allocation.
        faults: work that ran into memory which was unmapped after it was queued.
        peak_bytes: the most bytes that were held at once.
    """

    allocations: int
    bytes: int
    streams: int
    events: int
    graphs: int
    captures: int
    imports: int
    reservations: int
    reserved_bytes: int
    handles: int
    handle_bytes: int
    mappings: int
    mapped_bytes: int
    pending: int
    errors: int
    faults: int
    peak_bytes: int


class Call(NamedTuple):
    """One call that reached the simulated device.

    Attributes:
        name: what was called, as the backend table names it.
        device: on which device.
        ptr: the address, stream or event it was about, 0 where it has none.
        size: bytes, 0 where it has none.
        status: 0 for success, otherwise the runtime's error number (2 is out of
            memory, 600 not ready).
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
    """Records the calls that reach the simulated device inside a with statement, those
    of all threads. Several may be open at once.

    Yields a list that is empty until the end of the with statement and then holds the
    Calls, oldest first.
    """
    calls: list[Call] = []
    start = _core._sim_log_start()
    try:
        yield calls
    finally:
        calls.extend(Call(*entry) for entry in _core._sim_log_stop(start))


_failing = threading.Lock()


def _check_code(code: int) -> int:
    code = operator.index(code)
    if not 1 <= code <= 99999:
        raise ValueError(f"code must be an error number of the runtime, not {code}")
    return code


@contextmanager
def fail(
    name: str | None, nth: int = 1, count: int = 1, code: int = 2
) -> Iterator[None]:
    """Makes calls of the simulated device fail inside a with statement; they do not
    reach the device.

    Args:
        name (str): which call, as the backend table names it ("mem_alloc", "copy");
            None for any.
        nth (int): the first to fail, counted from 1.
        count (int): how many fail; 0 for all from then on.
        code (int): the runtime's error number; 2 is out of memory.

    Raises:
        ValueError: there is no call of that name; or a number is out of range.
        RuntimeError: calls are made to fail already: one with statement at a time.
    """
    code = _check_code(code)
    nth, count = operator.index(nth), operator.index(count)
    if not (1 <= nth < 2**64 and 0 <= count < 2**64):
        raise ValueError("nth must be from 1, count from 0 to 2**64-1")
    if not _failing.acquire(blocking=False):
        raise RuntimeError("calls are made to fail already; end that with statement")
    try:
        _core._fail(name, nth, count, code)
        try:
            yield
        finally:
            _core._fail_stop()
    finally:
        _failing.release()


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
    """Says whether a simulated device can reach another's memory directly, until told
    otherwise; at first each can, eight others at a time. What was enabled is forgotten.

    Raises:
        ValueError: there is no such device, or they are the same.
    """
    _core._sim_set_peer(device, peer, can)


_FEATURES = {
    "memory_pools": 1,
    "managed": 2,
    "concurrent_managed": 4,
    "pageable_access": 8,
    "virtual_memory": 16,
}


@contextmanager
def without(*features: str, device: int = 0) -> Iterator[None]:
    """Takes abilities from a simulated device inside a with statement.

    Args:
        features (str): "memory_pools" (stream-ordered memory), "managed" (managed
            memory), "concurrent_managed" (prefetching it, advice about it, and more of
            it than the device has), "pageable_access" (reading plain host memory),
            "virtual_memory" (memory by page). A device has all of them otherwise.
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


@contextmanager
def hold_stream(stream: "_HasHandle") -> Iterator[None]:
    """Holds a stream inside a with statement: no work of it runs before the end.

    Queries of what it has to do say "not yet". Another thread that waits for it, by
    whatever call, blocks until the end; this thread cannot wait for it, since nobody
    would release it, and gets CUDARuntimeError (10001) instead of hanging.

    Args:
        stream (Stream): the stream, or any object whose `ptr` is its handle.

    Raises:
        ValueError: it is held already.
        CUDARuntimeError: there is no such stream.
    """
    hold = _core._sim_hold(stream.ptr)
    try:
        yield
    finally:
        _core._sim_release(hold)


@contextmanager
def slow_calls(name: str, seconds: float) -> Iterator[None]:
    """Makes each call of one kind take longer inside a with statement.

    The call sleeps before its work and holds no lock of the device's. Its sleep ends
    with the with statement, so a large number of seconds makes the calls wait for that.

    Args:
        name (str): which call, as the backend table names it ("mem_alloc", "copy").
        seconds (float): how much longer.

    Raises:
        ValueError: no call of that name reaches the device; or seconds is negative or
            above a million.
    """
    before = _core._sim_set_delay(name, seconds)
    try:
        yield
    finally:
        _core._sim_set_delay(name, before)


@contextmanager
def sticky_fault(code: int = 700, device: int = 0) -> Iterator[None]:
    """Breaks a device inside a with statement, as a fault of work on it does.

    Every call that asks any device returns that code, also those that free, until the
    device is reset or the with statement ends.

    Args:
        code (int): the runtime's error number; 700 is an illegal address.
        device (int): which device.

    Raises:
        ValueError: there is no such device; or a device is broken already, and the
            first fault sticks.
    """
    _core._sim_set_fault(device, _check_code(code))
    try:
        yield
    finally:
        _core._sim_set_fault(device, 0)


def reset_device(device: int = 0) -> None:
    """Resets a device as another library would: its memory, streams and events are
    gone, and nobody told this package.

    Raises:
        ValueError: there is no such device.
    """
    _core._sim_reset(device)


def device_context_created(device: int = 0) -> bool:
    """Returns whether a call made the device's context, which on a GPU takes some
    hundred MiB. A program that does not use a device should make none there.

    Raises:
        ValueError: there is no such device.
    """
    return _core._sim_context_created(device)


def set_others(size: int, device: int = 0) -> None:
    """Says how many bytes of a device other programs hold; none until told otherwise.

    Raises:
        ValueError: so much is not free; or there is no such device.
    """
    _core._sim_set_others(device, size)


@contextmanager
def recycle_handles(recycle: bool) -> Iterator[None]:
    """Says inside a with statement whether a new stream, event or graph may get the
    handle of a dead one. On a simulated device it does at once, as a driver may; with
    False each handle is used once, so that every use of a dead one is noticed."""
    before = _core._sim_recycle_handles(recycle)
    try:
        yield
    finally:
        _core._sim_recycle_handles(before)


def set_last_error(code: int) -> None:
    """Leaves an error in the calling thread's last-error slot, as a call of somebody
    else would; 0 takes it out."""
    _core._sim_set_last_error(code)


class ManagedState(NamedTuple):
    """What a simulated device knows of managed memory. A place is a device, or -1 for
    the host.

    Attributes:
        location: where it was moved to last; None for nowhere yet.
        read_mostly: it is advised to be mostly read.
        preferred_location: where it is advised to be; None without such advice.
        accessed_by: the places that are advised to use it.
    """

    location: int | None
    read_mostly: bool
    preferred_location: int | None
    accessed_by: frozenset[int]


def managed_state(address: int) -> ManagedState:
    """Returns the ManagedState of the byte at `address`.

    Raises:
        ValueError: it is not in managed memory.
    """
    location, read_mostly, preferred, users = _core._sim_managed(int(address))
    return ManagedState(
        None if location == -2 else location,
        read_mostly,
        None if preferred == -2 else preferred,
        frozenset([n for n in range(31) if users >> n & 1] + [-1] * (users >> 31)),
    )
