# SPDX-License-Identifier: MIT
"""Numba's CUDA arrays on gpumem's memory.

    import gpumem.interop.numba
    gpumem.interop.numba.enable()  # before Numba first uses the device
    array = numba.cuda.device_array(1 << 20)

or, with nothing changed in the program, NUMBA_CUDA_MEMORY_MANAGER=gpumem.interop.numba.
Pinned, mapped and managed memory stays Numba's own.

Numba does not say on which stream an array will be used, and frees one while kernels on
any of its streams may be running. So memory is the default stream's, and when it goes
back the default stream is made to wait for all that Numba's streams have queued by
then, and what they are given later waits for it: two calls of the driver. That holds
for numba.cuda.stream() and the default streams, not for a non-blocking stream of
another library (numba.cuda.external_stream), on which work has to be done before its
arrays are dropped. While some blocking stream is being recorded the driver refuses
those calls, so do not drop arrays then.
"""

from __future__ import annotations

from ctypes import c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import proxy

from gpumem import _core
from gpumem.interop._adaptor import Held, load, outlet, refuse_simulated

if TYPE_CHECKING:
    from gpumem.interop._adaptor import Pool

CLIENT = "numba"

_pool: Pool | None = None  # of the managers to come; None: the default one
_OUT_OF_MEMORY = 2  # the driver's CUDA_ERROR_OUT_OF_MEMORY


def _default_stream(cuda: Any) -> _core.BaseStream:
    """Numba's default stream as gpumem's."""
    per_thread = getattr(cuda.config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0)
    return _core.Stream.ptds if per_thread else _core.Stream.null


def _order(device: int) -> None:
    """What is queued on blocking streams comes before all that will be."""
    with _core.Device(device):
        null = _core.Stream.null
        null.wait_event(null.record())


class _Memory:
    """What a context's arrays are in. Safe to share between threads."""

    def __init__(self, pool: Pool | None) -> None:
        self._held = Held(outlet(pool, CLIENT))
        self._leaving: list[tuple[int, int]] = []  # not ordered yet: address, device

    def __len__(self) -> int:
        return len(self._held)

    def take(self, size: int, device: int, stream: int) -> int:
        """As Held.take."""
        self._settle()
        return self._held.take(size, device, stream)

    def give(self, address: int, device: int) -> None:
        """Gives memory back in the order of Numba's streams. It is kept as long as the
        driver refuses to order them."""
        if address:
            self._leaving.append((address, device))
            self._settle()

    def forget(self) -> None:
        """Gives everything back; the context is about to end."""
        self._leaving.clear()
        self._held.forget()

    def _settle(self) -> None:
        for _ in range(len(self._leaving)):
            try:
                address, device = self._leaving.pop()
            except IndexError:  # another thread was faster
                return
            try:
                _order(device)
            except RuntimeError:  # a stream is being recorded; the process is exiting
                self._leaving.append((address, device))
                return
            self._held.give(address)


class _Manager:
    """What of the plugin is ours; Numba's base classes come behind it."""

    context: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._memory: _Memory | None = None  # until there is a context

    @property
    def interface_version(self) -> int:
        return 1

    def initialize(self) -> None:
        self._ready()

    def _ready(self) -> _Memory:
        if self._memory is None:
            refuse_simulated("Numba")
            self._memory = _Memory(_pool)
        return self._memory

    def memalloc(self, size: int) -> Any:
        cuda = load("numba.cuda", "Numba")
        memory = self._ready()
        device = self.context.device.id
        stream = _default_stream(cuda).ptr
        try:
            address = memory.take(max(size, 1), device, stream)
        except _core.OutOfMemoryError as error:
            driver = load("numba.cuda.cudadrv.driver", "Numba")
            raise driver.CudaAPIError(_OUT_OF_MEMORY, str(error)) from error
        give = partial(memory.give, address, device)
        try:
            return cuda.MemoryPointer(
                proxy(self.context), c_void_p(address), size, finalizer=give
            )
        except BaseException:
            give()
            raise

    def get_memory_info(self) -> Any:
        free, total = _core.Device(self.context.device.id).mem_info
        return load("numba.cuda", "Numba").MemoryInfo(free=free, total=total)

    def reset(self) -> None:
        super().reset()  # type: ignore[misc]
        if self._memory is not None:
            self._memory.forget()


_type: Any = None  # made when it is first asked for


def _manager_type() -> Any:
    """gpumem as Numba's External Memory Management plugin, one a context."""
    global _type
    if _type is None:
        cuda = load("numba.cuda", "Numba")
        bases = (_Manager, cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager)
        _type = type("MemoryManager", bases, {"__module__": __name__})
    return _type


def enable(pool: Pool | None = None) -> None:
    """Makes gpumem the memory manager of the contexts that Numba will make.

    A context keeps its manager, so call this before Numba first uses the device.

    Args:
        pool (MemoryPool): where the memory is from, or a SingleDeviceMemoryPool; None
            is the program's default pool.

    Raises:
        ModuleNotFoundError: Numba is not installed.
        RuntimeError: gpumem uses the simulated device, or Numba has a context already.
        TypeError: pool is no pool.
    """
    global _pool
    cuda = load("numba.cuda", "Numba")
    refuse_simulated("Numba")
    _refuse_contexts()
    outlet(pool, CLIENT)  # refuses what is no pool
    _pool = pool
    cuda.set_memory_manager(_manager_type())


def _refuse_contexts() -> None:
    """Raises RuntimeError where Numba has a context."""
    devices = load("numba.cuda.cudadrv.devices", "Numba")
    if any(getattr(gpu, "primary_context", None) for gpu in devices.gpus):
        raise RuntimeError(
            "Numba uses a device already, and a context keeps its memory manager: "
            "enable gpumem before, or call numba.cuda.close() first, which ends all "
            "arrays"
        )


def disable() -> None:
    """Gives the contexts that Numba will make its own memory manager again.

    Contexts that exist keep gpumem's: numba.cuda.close() ends them.

    Raises:
        ModuleNotFoundError: Numba is not installed.
    """
    driver = load("numba.cuda.cudadrv.driver", "Numba")
    driver.set_memory_manager(driver.NumbaCUDAMemoryManager)


def __getattr__(name: str) -> Any:
    """What Numba looks for in the module that NUMBA_CUDA_MEMORY_MANAGER names."""
    if name == "_numba_memory_manager":
        return _manager_type()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
