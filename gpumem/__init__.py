# SPDX-License-Identifier: MIT
"""gpumem: a GPU memory allocator with the memory API that CuPy users know.

    import gpumem
    pool = gpumem.MemoryPool()
    gpumem.set_allocator(pool.malloc)
    p = gpumem.alloc(1 << 20)

Importing touches no device; the first use chooses one (GPUMEM_BACKEND: auto, cuda or
sim). The names below are the whole public interface; gpumem.testing drives the
simulated device in tests.
"""

try:
    import gpumem._core as _core
except ModuleNotFoundError:
    from gpumem._source_tree import use_installed

    use_installed(__path__)
    import gpumem._core as _core

from gpumem._config import show_config
from gpumem._core import (
    BaseMemory,
    BaseStream,
    CUDARuntimeError,
    Device,
    Event,
    ExternalStream,
    Memory,
    MemoryPointer,
    MemoryPool,
    OutOfMemoryError,
    PooledMemory,
    SingleDeviceMemoryPool,
    Stream,
    alloc,
    get_allocator,
    get_backend,
    get_current_stream,
    get_device_count,
    get_device_id,
    get_elapsed_time,
    malloc,
    set_allocator,
)
from gpumem._scope import using_allocator
from gpumem._version import __version__

__all__ = [
    "BaseMemory",
    "BaseStream",
    "CUDARuntimeError",
    "Device",
    "Event",
    "ExternalStream",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "OutOfMemoryError",
    "PooledMemory",
    "SingleDeviceMemoryPool",
    "Stream",
    "__version__",
    "alloc",
    "get_allocator",
    "get_backend",
    "get_current_stream",
    "get_device_count",
    "get_device_id",
    "get_elapsed_time",
    "malloc",
    "set_allocator",
    "show_config",
    "using_allocator",
]

del _core
