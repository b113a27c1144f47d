# SPDX-License-Identifier: MIT
"""CuPy on gpumem's memory.

    import gpumem.interop.cupy
    gpumem.interop.cupy.enable()
    array = cupy.zeros(1 << 20)  # of gpumem.get_default_memory_pool()

CuPy's arrays are taken from a gpumem pool for CuPy's current device and stream, without
Python on the way, and go back when CuPy drops them. What CuPy's own pool holds stays
there; cupy.get_default_memory_pool().free_all_blocks() gives back what it has cached.

A stream that is being recorded does not tell which it is: make it current in gpumem as
well, `with gpumem.ExternalStream(stream.ptr):`, before memory is asked for in there.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumem import _core
from gpumem.interop._adaptor import load, outlet, refuse_simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumem.interop._adaptor import Pool

CLIENT = "cupy"

_lock = threading.Lock()
_before: Any = None  # CuPy's allocator before enable(); None: not enabled
_ours: Any = None


def _raise_as_cupys(error: _core.OutOfMemoryError) -> None:
    memory = load("cupy.cuda.memory", "CuPy")
    refusal = memory.OutOfMemoryError(error.size, error.total_bytes or 0, error.limit)
    refusal.add_note(str(error))
    raise refusal from error


def _in_c(source: _core._Outlet) -> Callable[[int], Any] | None:
    """The allocator in C; None where CuPy does not tell C code its current stream."""
    memory = load("cupy.cuda.memory", "CuPy")
    stream = load("cupy.cuda.stream", "CuPy")
    functions = getattr(stream, "__pyx_capi__", {})
    try:
        return _core._CuPyAllocator(
            source,
            functions["get_current_stream_ptr"],
            memory.UnownedMemory,
            memory.MemoryPointer,
            _raise_as_cupys,
        ).malloc
    except (KeyError, ValueError):  # none of that name; of another type
        return None


def _in_python(source: _core._Outlet) -> Callable[[int], Any]:
    """The same in Python."""
    memory = load("cupy.cuda.memory", "CuPy")
    stream = load("cupy.cuda.stream", "CuPy")

    def malloc(size: int) -> Any:
        device = _core.get_device_id()
        try:
            ours = source.take(size, device, stream.get_current_stream().ptr)
        except _core.OutOfMemoryError as error:
            _raise_as_cupys(error)
            raise
        of_cupy = memory.UnownedMemory(ours.ptr, ours.mem.size, ours, device)
        return memory.MemoryPointer(of_cupy, 0)

    return malloc


def allocator(pool: Pool | None = None) -> Callable[[int], Any]:
    """An allocator for cupy.cuda.set_allocator and using_allocator.

    Args:
        pool (MemoryPool): where the memory is from, or a SingleDeviceMemoryPool; None
            is the program's default pool.

    Returns:
        callable: takes a size in bytes, returns a cupy.cuda.MemoryPointer, raises
        CuPy's OutOfMemoryError. Any thread may call it.

    Raises:
        ModuleNotFoundError: CuPy is not installed.
        RuntimeError: gpumem uses the simulated device.
        TypeError: pool is no pool.
    """
    load("cupy", "CuPy")
    refuse_simulated("CuPy")
    source = outlet(pool, CLIENT)
    return _in_c(source) or _in_python(source)


def enable(pool: Pool | None = None) -> None:
    """Makes CuPy take its memory from gpumem, in all threads.

    Arrays that exist keep theirs. Enabling again changes the pool.

    Args:
        pool (MemoryPool): as for allocator.

    Raises:
        ValueError: the calling thread is inside cupy.cuda.using_allocator.
        What allocator raises.

    Safe to call from any thread.
    """
    global _before, _ours
    made = allocator(pool)
    cuda = load("cupy.cuda", "CuPy")
    with _lock:
        before = cuda.get_allocator()
        cuda.set_allocator(made)
        if before != _ours:
            _before = before
        _ours = made


def disable() -> None:
    """Makes CuPy's allocator again what it was before enable().

    Arrays that exist keep gpumem's memory and give it back when they are dropped. Where
    gpumem is not enabled nothing happens.

    Raises:
        RuntimeError: somebody has set another allocator since, which stays.
        ValueError: the calling thread is inside cupy.cuda.using_allocator.

    Safe to call from any thread.
    """
    global _before, _ours
    with _lock:
        if _ours is None:
            return
        cuda = load("cupy.cuda", "CuPy")
        if cuda.get_allocator() != _ours:
            raise RuntimeError(
                "CuPy's allocator is not gpumem's any more, so it stays as it is: set "
                "the one you want by cupy.cuda.set_allocator"
            )
        cuda.set_allocator(_before)
        _before = _ours = None


@contextmanager
def using(pool: Pool | None = None) -> Iterator[None]:
    """Makes CuPy take its memory from gpumem in a with statement, in one thread.

    Args:
        pool (MemoryPool): as for allocator.

    Raises:
        What allocator raises.
    """
    made = allocator(pool)
    with load("cupy.cuda", "CuPy").using_allocator(made):
        yield
