# SPDX-License-Identifier: MIT
"""What the adaptors share: where memory is from, and what has been handed out."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gpumem import _core

# What a library can be given.
Pool = _core.MemoryPool | _core.SingleDeviceMemoryPool


def load(name: str, library: str) -> Any:
    """Imports a module of `library`, or says what is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this needs {library}, which cannot be imported: {error}",
            name=error.name,
            path=error.path,
        ) from error


def refuse_simulated(library: str) -> None:
    """Raises RuntimeError where gpumem uses the simulated device."""
    if _core.get_backend() == "sim":
        raise RuntimeError(
            f"{library} cannot use the memory of the simulated device, which gpumem "
            "uses here: there is no GPU, or GPUMEM_BACKEND says so"
        )


def outlet(pool: Pool | None, client: str) -> _core._Outlet:
    """Where the library of that name takes memory from; None: the default pool."""
    return _core._Outlet(pool, client)


class Held:
    """Memory of an outlet, for a library that gives it back by its address.

    Safe to share between threads: each call does one thing to the dictionary.
    """

    def __init__(self, source: _core._Outlet) -> None:
        self._source = source
        self._pointers: dict[int, _core.MemoryPointer] = {}

    def __len__(self) -> int:
        return len(self._pointers)

    def take(self, size: int, device: int, stream: int) -> int:
        """Address of `size` bytes of `device`, for the stream of that native handle; 0
        for no bytes. OutOfMemoryError where there is no memory."""
        pointer = self._source.take(size, device, stream)
        if size:
            self._pointers[pointer.ptr] = pointer
        return pointer.ptr

    def give(self, address: int, stream: Any = None) -> None:
        """Gives back what take returned; what is not held is ignored. Work that is
        queued on `stream` by now, an object with a native handle, may still use it."""
        pointer = self._pointers.pop(address, None)
        if pointer is not None and stream is not None:
            pointer.record_stream(stream)

    def forget(self) -> None:
        """Gives everything back."""
        self._pointers.clear()
