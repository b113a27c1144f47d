# SPDX-License-Identifier: MIT
"""cuda.core on gpumem's memory.

    import gpumem.interop.cuda_core
    gpumem.interop.cuda_core.enable()
    buffer = cuda.core.Device().allocate(1 << 20, stream=stream)

cuda.core names the stream of each request, and gpumem keeps to it: what was given back
on another stream than the one it was taken for goes to nobody before that has done what
is queued on it.
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

CLIENT = "cuda.core"


_local = threading.local()  # before: what enable() replaced, by device


def _as_cores(error: _core.OutOfMemoryError) -> Exception:
    """The same as cuda.core's own error, which has no public name; ours without."""
    try:
        errors = load("cuda.core._utils.cuda_utils", "cuda.core")
        made: Exception = errors.CUDAError(f"CUDA_ERROR_OUT_OF_MEMORY: {error}")
    except (ImportError, AttributeError):
        return error
    return made


class _Resource:
    """What of a resource is ours; cuda.core's base class comes behind it.

    It holds what it handed out, and cuda.core's buffers hold their resource."""

    def __init__(self, held: Held, device: int) -> None:
        self._held = held
        self._device = device

    def allocate(self, size: int, *, stream: Any) -> Any:
        core = load("cuda.core", "cuda.core")
        try:
            address = self._held.take(size, self._device, stream.__cuda_stream__()[1])
        except _core.OutOfMemoryError as error:
            raise _as_cores(error) from error
        try:
            return core.Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            self._held.give(address)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        self._held.give(int(ptr), stream)

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def is_managed(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._device


_type: Any = None  # made when it is first asked for


def _resource_type() -> Any:
    """gpumem's memory of one device, as a cuda.core.MemoryResource."""
    global _type
    if _type is None:
        base = load("cuda.core", "cuda.core").MemoryResource
        _type = type("MemoryResource", (_Resource, base), {"__module__": __name__})
    return _type


def resource(pool: Pool | None = None, device: int | None = None) -> Any:
    """A memory resource for cuda.core.

    Where there is no memory its allocate raises cuda.core's CUDAError.

    Args:
        pool (MemoryPool): where the memory is from, or a SingleDeviceMemoryPool; None
            is the program's default pool.
        device (int): number of the device that the memory is of; None is the current
            one.

    Returns:
        cuda.core.MemoryResource: any thread may use it.

    Raises:
        ModuleNotFoundError: cuda.core is not installed.
        RuntimeError: gpumem uses the simulated device.
        TypeError: pool is no pool.
        ValueError: there is no such device.
    """
    load("cuda.core", "cuda.core")
    refuse_simulated("cuda.core")
    number = _core.get_device_id() if device is None else _core.Device(device).id
    return _resource_type()(Held(outlet(pool, CLIENT)), number)


def _device(device: int | None) -> Any:
    """cuda.core's object for the device, of which each thread has its own."""
    number = _core.get_device_id() if device is None else device
    return load("cuda.core", "cuda.core").Device(number)


def _replaced() -> dict[int, Any]:
    """What enable() replaced in the calling thread, by device."""
    if not hasattr(_local, "before"):
        _local.before = {}
    found: dict[int, Any] = _local.before
    return found


def enable(pool: Pool | None = None, device: int | None = None) -> None:
    """Makes gpumem the memory resource of a cuda.core.Device, in the calling thread.

    Buffers that exist keep their memory. Enabling again changes the pool.

    Args:
        pool (MemoryPool): as for resource.
        device (int): number of the device; None is the current one.

    Raises:
        What resource raises, and cuda.core's Device where it was not set current.
    """
    made = resource(pool, device)
    of_core = _device(device)
    before = of_core.memory_resource
    of_core.memory_resource = made
    _replaced().setdefault(of_core.device_id, before)


def disable(device: int | None = None) -> None:
    """Makes the device's resource again what it was before enable(), in the calling
    thread.

    Buffers that exist keep gpumem's memory. Where gpumem is not enabled nothing
    happens.

    Args:
        device (int): number of the device; None is the current one.
    """
    number = _core.get_device_id() if device is None else device
    if number in _replaced():
        _device(number).memory_resource = _replaced().pop(number)


@contextmanager
def using(pool: Pool | None = None, device: int | None = None) -> Iterator[None]:
    """Makes gpumem the memory resource of a cuda.core.Device in a with statement, in
    the calling thread.

    Args:
        pool (MemoryPool): as for resource.
        device (int): number of the device; None is the current one.

    Raises:
        What enable raises.
    """
    made = resource(pool, device)
    of_core = _device(device)
    before = of_core.memory_resource
    of_core.memory_resource = made
    try:
        yield
    finally:
        of_core.memory_resource = before
