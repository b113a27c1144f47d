# SPDX-License-Identifier: MIT
"""RMM, and so cuDF and its siblings, on gpumem's memory.

    import gpumem.interop.rmm
    gpumem.interop.rmm.enable()
    buffer = rmm.DeviceBuffer(size=1 << 20)

RMM names the stream of each request, and gpumem keeps to it: what was given back on
another stream than the one it was taken for goes to nobody before that has done what is
queued on it. RMM calls Python for each, under the interpreter's lock.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumem import _core
from gpumem.interop._adaptor import Held, load, outlet, refuse_simulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumem.interop._adaptor import Pool

CLIENT = "rmm"

_lock = threading.Lock()
_before: dict[int, Any] = {}  # by device, what enable() replaced


def _resource(held: Held) -> Any:
    """RMM's resource over what `held` hands out."""

    def allocate(size: int, stream: Any) -> int:
        return held.take(size, _core.get_device_id(), stream.__cuda_stream__()[1])

    def deallocate(address: int, size: int, stream: Any) -> None:
        held.give(address, stream)

    return load("rmm.mr", "RMM").CallbackMemoryResource(allocate, deallocate)


def resource(pool: Pool | None = None) -> Any:
    """A memory resource for RMM.

    Where there is no memory RMM raises its MemoryError, with gpumem's text.

    Args:
        pool (MemoryPool): where the memory is from, or a SingleDeviceMemoryPool; None
            is the program's default pool. It is of the device that is current when RMM
            asks.

    Returns:
        rmm.mr.CallbackMemoryResource: any thread may use it.

    Raises:
        ModuleNotFoundError: RMM is not installed.
        RuntimeError: gpumem uses the simulated device.
        TypeError: pool is no pool.
    """
    load("rmm", "RMM")
    refuse_simulated("RMM")
    return _resource(Held(outlet(pool, CLIENT)))


def enable(pool: Pool | None = None) -> None:
    """Makes gpumem RMM's resource for the current device.

    Buffers that exist keep their memory. Enabling again changes the pool.

    Args:
        pool (MemoryPool): as for resource.

    Raises:
        What resource raises.

    Safe to call from any thread.
    """
    made = resource(pool)
    mr = load("rmm.mr", "RMM")
    device = _core.get_device_id()
    with _lock:
        before = mr.get_current_device_resource()
        mr.set_current_device_resource(made)
        _before.setdefault(device, before)


def disable() -> None:
    """Makes RMM's resource for the current device again what it was before enable().

    Buffers that exist keep gpumem's memory. Where gpumem is not enabled nothing
    happens.

    Safe to call from any thread.
    """
    device = _core.get_device_id()
    with _lock:
        if device in _before:
            load("rmm.mr", "RMM").set_current_device_resource(_before.pop(device))


@contextmanager
def using(pool: Pool | None = None) -> Iterator[None]:
    """Makes gpumem RMM's resource for the current device in a with statement, for all
    threads, as RMM's resources are.

    Args:
        pool (MemoryPool): as for resource.

    Raises:
        What resource raises.
    """
    made = resource(pool)
    mr = load("rmm.mr", "RMM")
    device = _core.get_device_id()
    before = mr.get_current_device_resource()
    mr.set_current_device_resource(made)
    try:
        yield
    finally:
        with _core.Device(device):
            mr.set_current_device_resource(before)
