# SPDX-License-Identifier: MIT
"""PyTorch on gpumem's memory.

    import gpumem.interop.torch
    gpumem.interop.torch.enable()  # before torch has used a GPU
    tensor = torch.zeros(1 << 20, device="cuda")

There are two ways, and a process takes one:

- enable() makes gpumem torch's allocator: every tensor is a block of a gpumem pool, and
  torch has no cache of its own. torch allows that once a process and before its first
  use of a GPU, and not to be undone. Want of memory is torch.OutOfMemoryError, with
  gpumem's text; torch.cuda.empty_cache and Tensor.record_stream do what they say.
  torch.cuda.memory_stats and its siblings raise, for torch asks nobody else's
  allocator: memory_stats() here has the figures by torch's names. torch.cuda.graph and
  make_graphed_callables keep their memory apart as ever, and graphs may share it by
  pool=; torch.cuda.MemPool and torch.compile's mode "reduce-overhead" are torch's own
  allocator's and raise.
- using() has torch's own cache take its segments from a gpumem pool inside a with
  statement. All of torch goes on as ever, statistics and graphs too; a graph is
  recorded with torch's memory.

What torch holds is counted as "torch" by gpumem.stats_by_client(). A process takes from
one gpumem pool for torch.
"""

from __future__ import annotations

import ctypes
import os.path
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gpumem import _core
from gpumem.interop._adaptor import load, refuse_simulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpumem.interop._adaptor import Pool

CLIENT = "torch"

# By which errors are thrown in C++, in the order of src/python/capi_torch.c (gmpy_cxx):
# the library that has each, and its mangled name.
_CXX_RUNTIME = "libstdc++.so.6"
_FUNCTIONS = (
    (_CXX_RUNTIME, "__cxa_allocate_exception"),
    (_CXX_RUNTIME, "__cxa_throw"),
    (_CXX_RUNTIME, "_Znwm"),  # operator new
    (_CXX_RUNTIME, "_ZdlPv"),  # operator delete
    (
        "libc10.so",  # c10::Error::Error(SourceLocation, std::string)
        "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11"
        "char_traitsIcESaIcEEE",
    ),
    ("libc10_cuda.so", "_ZTIN3c1016OutOfMemoryErrorE"),  # its typeinfo
    ("libc10_cuda.so", "_ZTVN3c1016OutOfMemoryErrorE"),  # its virtual table
    ("libc10.so", "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"),
)

_lock = threading.Lock()
_enabled = False
_pool: Any = None  # the MemPool of using()


def _functions(torch: Any) -> tuple[int, ...]:
    """Addresses of _FUNCTIONS."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    found = []
    for library, name in _FUNCTIONS:
        path = library if library == _CXX_RUNTIME else os.path.join(folder, library)
        try:
            place = ctypes.c_char.in_dll(ctypes.CDLL(path), name)
        except (OSError, ValueError) as error:
            raise RuntimeError(
                f"torch {torch.__version__} is built in a way that gpumem does not know"
                f" how to report errors to: {name} of {library} is missing"
            ) from error
        found.append(ctypes.addressof(place))
    return tuple(found)


def _open(pool: Pool | None) -> Any:
    """Gives torch the pool; torch."""
    torch = load("torch", "PyTorch")
    refuse_simulated("PyTorch")
    if not torch.cuda.is_available():
        raise RuntimeError("this build of torch, or this machine, has no CUDA")
    if pool is None:
        pool = _core.get_default_memory_pool()
    _core._torch_open(pool, _functions(torch))
    return torch


def _pluggable(torch: Any, alloc: str) -> Any:
    """torch's wrapper of our functions, `alloc` for taking memory."""
    path = _core.__file__
    return torch.cuda.memory.CUDAPluggableAllocator(path, alloc, "gpumem_torch_free")


def enable(pool: Pool | None = None) -> None:
    """Makes gpumem torch's allocator, in all threads and for the rest of the process.

    Enabling again with the same pool does nothing. The pool may be one with
    expandable_segments, or whatever a MemoryPool can be made with.

    Args:
        pool (MemoryPool): where the memory is from, or a SingleDeviceMemoryPool; None
            is the program's default pool.

    Raises:
        ModuleNotFoundError: torch is not installed.
        RuntimeError: gpumem uses the simulated device; torch has no CUDA, or has used
            its allocator already; another pool was given to torch before.
        TypeError: pool is no pool.

    Safe to call from any thread.
    """
    global _enabled
    with _lock:
        torch = _open(pool)
        if _enabled:
            return
        ours = _pluggable(torch, "gpumem_torch_alloc")
        symbols = ctypes.CDLL(_core.__file__)
        for name, setter in (
            ("record_stream", "set_record_stream_fn"),
            ("empty_cache", "set_reset_fn"),
            ("memory_fraction", "set_memory_fraction_fn"),
            ("base_alloc", "set_base_alloc_fn"),
            ("begin_pool", "set_begin_allocate_to_pool"),
            ("end_pool", "set_end_allocate_to_pool_fn"),
            ("release_pool", "set_release_pool"),
        ):
            function = getattr(symbols, f"gpumem_torch_{name}")
            address = ctypes.cast(function, ctypes.c_void_p).value
            getattr(ours.allocator(), setter)(address)
        torch.cuda.memory.change_current_allocator(ours)
        _enabled = True


def disable() -> None:
    """Raises RuntimeError where gpumem is torch's allocator, since torch keeps the one
    it was given; does nothing otherwise."""
    if _enabled:
        raise RuntimeError(
            "torch does not change its allocator a second time; using() is for a part "
            "of a program"
        )


def memory_pool(pool: Pool | None = None) -> Any:
    """The torch.cuda.MemPool whose segments are gpumem's: always the same one.

    Args:
        pool (MemoryPool): as for enable.

    Raises:
        RuntimeError: enable() was called.
        What enable raises.

    Safe to call from any thread.
    """
    global _pool
    with _lock:
        if _enabled:
            raise RuntimeError("gpumem is torch's allocator already: enable()")
        torch = _open(pool)
        if _pool is None:
            ours = _pluggable(torch, "gpumem_torch_pool_alloc")
            _pool = torch.cuda.MemPool(ours.allocator())
        return _pool


@contextmanager
def using(pool: Pool | None = None, device: Any = None) -> Iterator[None]:
    """Has torch take memory from gpumem in a with statement, in one thread.

    torch keeps what it took for later requests inside such statements, to the end of
    the process: torch.cuda.empty_cache() leaves a MemPool alone.

    Args:
        pool (MemoryPool): as for enable.
        device (torch.device or int): of which device; torch's current one if None.

    Raises:
        What memory_pool raises.
    """
    made = memory_pool(pool)
    with load("torch", "PyTorch").cuda.use_mem_pool(made, device):
        yield


def memory_stats(device: int | None = None, pool: Pool | None = None) -> dict[str, int]:
    """What torch.cuda.memory_stats would tell, as far as gpumem counts it.

    By torch's names: allocated_bytes is what torch has in use, before rounding
    requested_bytes, and active how many blocks that are; reserved_bytes, with its peak,
    what the pool holds of the device, whoever uses it.

    Args:
        device (int): which device; the current one if None.
        pool (MemoryPool): the pool that was given to torch.

    Raises:
        ValueError: there is no such device.

    Safe to call from any thread.
    """
    pool = _core.get_default_memory_pool() if pool is None else pool
    device = _core.get_device_id() if device is None else device
    of_torch = pool.stats_by_client(device=device).get(CLIENT, {})
    stats = pool.stats(device=device)
    return {
        "allocated_bytes.all.current": of_torch.get("used_bytes", 0),
        "requested_bytes.all.current": of_torch.get("requested_bytes", 0),
        "active.all.current": of_torch.get("live_blocks", 0),
        "reserved_bytes.all.current": stats["total_bytes"],
        "reserved_bytes.all.peak": stats["peak_total_bytes"],
        "segment.all.current": stats["segments"],
        "segment.all.peak": stats["peak_segments"],
        "inactive_split_bytes.all.current": stats["inactive_split_bytes"],
        "num_alloc_retries": stats["retries"],
        "num_ooms": stats["out_of_memory"],
    }
