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
    from gpumem._core import get_backend
except ModuleNotFoundError:  # a source tree that was not built, see _source_tree
    from gpumem._source_tree import use_installed

    use_installed(__path__)
    from gpumem._core import get_backend

from gpumem._config import get_include, show_config
from gpumem._core import (
    BaseMemory,
    BaseStream,
    CFunctionAllocator,
    CFunctionAllocatorMemory,
    CUDARuntimeError,
    Device,
    Event,
    ExternalStream,
    Graph,
    IPCMemory,
    ManagedMemory,
    Memory,
    MemoryAsync,
    MemoryAsyncPool,
    MemoryPointer,
    MemoryPool,
    OutOfMemoryError,
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    PooledMemory,
    PooledPinnedMemory,
    PythonFunctionAllocator,
    PythonFunctionAllocatorMemory,
    SingleDeviceMemoryPool,
    Stream,
    SystemMemory,
    UnownedMemory,
    alloc,
    alloc_pinned_memory,
    from_cuda_array_interface,
    from_dlpack,
    get_allocator,
    get_current_stream,
    get_default_memory_pool,
    get_default_pinned_memory_pool,
    get_device_count,
    get_device_id,
    get_elapsed_time,
    get_pinned_memory_allocator,
    is_memory_pinned,
    malloc,
    malloc_async,
    malloc_managed,
    malloc_pinned,
    malloc_system,
    set_allocator,
    set_pinned_memory_allocator,
    stats_by_client,
    streamCaptureModeGlobal,
    streamCaptureModeRelaxed,
    streamCaptureModeThreadLocal,
    use_default_memory_pool,
)
from gpumem._ipc import IPCBufferDescriptor
from gpumem._memory_hook import MemoryHook, add_process_hook, remove_process_hook
from gpumem._scope import client, using_allocator
from gpumem._version import __version__

__all__ = [
    "MemoryAsync",
    "MemoryAsyncPool",
    "SystemMemory",
    "malloc_async",
    "malloc_system",
    "BaseMemory",
    "BaseStream",
    "CFunctionAllocator",
    "CFunctionAllocatorMemory",
    "CUDARuntimeError",
    "Device",
    "Event",
    "ExternalStream",
    "Graph",
    "IPCBufferDescriptor",
    "IPCMemory",
    "ManagedMemory",
    "Memory",
    "MemoryHook",
    "MemoryPointer",
    "MemoryPool",
    "OutOfMemoryError",
    "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "PooledMemory",
    "PooledPinnedMemory",
    "PythonFunctionAllocator",
    "PythonFunctionAllocatorMemory",
    "SingleDeviceMemoryPool",
    "Stream",
    "UnownedMemory",
    "__version__",
    "add_process_hook",
    "alloc",
    "alloc_pinned_memory",
    "client",
    "from_cuda_array_interface",
    "from_dlpack",
    "get_allocator",
    "get_backend",
    "get_current_stream",
    "get_default_memory_pool",
    "get_default_pinned_memory_pool",
    "get_device_count",
    "get_device_id",
    "get_elapsed_time",
    "get_include",
    "get_pinned_memory_allocator",
    "is_memory_pinned",
    "malloc",
    "malloc_managed",
    "malloc_pinned",
    "remove_process_hook",
    "set_allocator",
    "set_pinned_memory_allocator",
    "show_config",
    "stats_by_client",
    "streamCaptureModeGlobal",
    "streamCaptureModeRelaxed",
    "streamCaptureModeThreadLocal",
    "use_default_memory_pool",
    "using_allocator",
]


def __getattr__(name: str) -> object:
    """Imports the modules that most programs do without when they are first named."""
    if name in ("memory_hooks", "testing"):
        from importlib import import_module

        return import_module(f"gpumem.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
