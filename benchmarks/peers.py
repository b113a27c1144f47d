# SPDX-License-Identifier: MIT
"""The allocators that gpumem is compared with, where they are installed.

Each is called by the quickest way that its Python interface has: bound functions,
handles and not tensors where there are handles. A peer that cannot be imported, or does
not find a GPU, is not there; one that fails later has the error in its row.

RMM's own benchmark gives its pool half of the free memory and its arena all but 64 MiB.
Here the arena gets half as well, since somebody else has to be measured beside it;
where a table says how much it needs, both get that much.
"""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpumem
from benchmarks.contenders import Contender, Lane, Maker, nothing, through_alloc

_LARGEST = (1 << 64) - 1
# Numbers in the runtime's enumerations.
_RELEASE_THRESHOLD = 4
_NON_BLOCKING = 1


def add_wheels(folder: Path) -> None:
    """Makes what lies in `folder` as wheels importable, after everything else: for a
    machine without a network. They are unpacked into its folder `site` once."""
    wheels = sorted(str(path) for path in folder.glob("*.whl"))
    if not wheels:
        return
    site = folder / "site"
    if not site.is_dir():
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index"]
        words += ["--no-deps", "--target", str(site), *wheels]
        subprocess.run(words, check=True)
    sys.path.append(str(site))


# ---- CuPy ----


def _cupy_lanes(numbers: list[int]) -> dict[int, Lane]:
    cuda = importlib.import_module("cupy").cuda
    streams = {
        number: cuda.Stream(non_blocking=True) if number else cuda.Stream.null
        for number in numbers
    }
    return {number: (stream, stream.use) for number, stream in streams.items()}


def make_cupy(room: int | None = None) -> Contender:
    """CuPy's pool."""
    cuda = importlib.import_module("cupy").cuda
    pool = cuda.MemoryPool()

    def close() -> None:
        cuda.Stream.null.use()
        pool.free_all_blocks()

    return Contender(
        "cupy",
        "malloc(size)",
        "",
        {"pool": pool, "malloc": pool.malloc},
        lambda block: int(block.ptr),
        written="pool.malloc(size)",
        lanes=_cupy_lanes,
        own=lambda: {"malloc": pool.malloc},
        used=pool.used_bytes,
        held=pool.total_bytes,
        peak=pool.total_bytes,  # it never holds less, where it has no limit
        limit=lambda size: pool.set_limit(size=size),
        trim=pool.free_all_blocks,
        close=close,
    )


def make_cupy_alloc(room: int | None = None) -> Contender:
    """CuPy's pool, through the allocator that is installed."""
    cuda = importlib.import_module("cupy").cuda
    made = make_cupy(room)
    before = cuda.get_allocator()
    cuda.set_allocator(made.names["pool"].malloc)
    return through_alloc(
        made, "cupy.cuda.alloc", cuda.alloc, lambda: cuda.set_allocator(before)
    )


@contextmanager
def cupy_calls() -> Iterator[list[int]]:
    """The sizes that CuPy's pools ask the device for inside. It costs time at every
    request, so nothing is timed meanwhile."""
    sizes: list[int] = []
    cuda = importlib.import_module("cupy").cuda

    class Hook(cuda.MemoryHook):  # type: ignore[misc, name-defined]
        name = "gpumem benchmarks"

        def alloc_preprocess(self, **arguments: Any) -> None:
            sizes.append(arguments["mem_size"])

    with Hook():
        yield sizes


# ---- PyTorch ----


def _torch() -> Any:
    torch = importlib.import_module("torch")
    torch.cuda.init()
    return torch


def _torch_streams(numbers: list[int]) -> dict[int, Any]:
    cuda = _torch().cuda
    return {
        number: cuda.Stream() if number else cuda.default_stream() for number in numbers
    }


def make_torch(room: int | None = None) -> Contender:
    """PyTorch's caching allocator itself, below the tensors: the two functions that
    torch.cuda.caching_allocator_alloc and _delete come down to, where this version has
    them."""
    torch = _torch()
    take = "alloc(size, stream)"
    alloc = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_alloc", None)
    delete = getattr(torch._C, "_cuda_cudaCachingAllocator_raw_delete", None)
    if alloc is None or delete is None:
        take = "alloc(size, device, stream)"
        alloc = torch.cuda.caching_allocator_alloc
        delete = torch.cuda.caching_allocator_delete
    kept: list[Any] = []
    cuda = torch.cuda
    cuda.reset_peak_memory_stats()

    def limit(size: int) -> None:
        _, total = cuda.mem_get_info()
        cuda.set_per_process_memory_fraction(size / total if size else 1.0)

    def close() -> None:
        cuda.synchronize()
        cuda.empty_cache()
        limit(0)

    def lanes(numbers: list[int]) -> dict[int, Lane]:
        streams = _torch_streams(numbers)
        kept.append(streams)
        return {n: (stream.cuda_stream, nothing) for n, stream in streams.items()}

    return Contender(
        "torch",
        take,
        "delete({block})",
        {"alloc": alloc, "delete": delete, "device": cuda.current_device()},
        int,
        lanes=lanes,
        used=cuda.memory_allocated,
        held=cuda.memory_reserved,
        peak=cuda.max_memory_reserved,
        limit=limit,
        trim=cuda.empty_cache,
        close=close,
    )


def make_torch_empty(room: int | None = None) -> Contender:
    """A tensor of bytes a block."""
    torch = _torch()

    def lanes(numbers: list[int]) -> dict[int, Lane]:
        def entering(stream: Any) -> Callable[[], Any]:
            return lambda: torch.cuda.set_stream(stream)

        streams = _torch_streams(numbers)
        return {n: (stream, entering(stream)) for n, stream in streams.items()}

    def close() -> None:
        torch.cuda.set_stream(torch.cuda.default_stream())
        torch.cuda.empty_cache()

    names = {"empty": torch.empty, "uint8": torch.uint8, "device": torch.device("cuda")}
    return Contender(
        "torch.empty",
        "empty(size, dtype=uint8, device=device)",
        "",
        names,
        lambda tensor: int(tensor.data_ptr()),
        lanes=lanes,
        used=torch.cuda.memory_allocated,
        held=torch.cuda.memory_reserved,
        close=close,
    )


# ---- RMM ----


def _rmm_lanes(numbers: list[int]) -> dict[int, Lane]:
    stream = importlib.import_module("rmm.pylibrmm.stream")
    return {
        number: (stream.Stream() if number else stream.DEFAULT_STREAM, nothing)
        for number in numbers
    }


def _rmm(name: str, resource: Any) -> Contender:
    return Contender(
        name,
        "allocate(size, stream)",
        "deallocate({block}, size, stream)",
        {"allocate": resource.allocate, "deallocate": resource.deallocate},
        int,
        lanes=_rmm_lanes,
    )


def _half_of_the_free() -> int:
    """In whole MiB, bytes."""
    free, _ = gpumem.Device(gpumem.get_device_id()).mem_info
    return free // 2 >> 20 << 20


def make_rmm_pool(room: int | None = None) -> Contender:
    """RMM's pool."""
    mr = importlib.import_module("rmm").mr
    size = room or _half_of_the_free()
    return _rmm("rmm pool", mr.PoolMemoryResource(mr.CudaMemoryResource(), size))


def make_rmm_arena(room: int | None = None) -> Contender:
    """RMM's arenas."""
    mr = importlib.import_module("rmm").mr
    size = room or _half_of_the_free()
    return _rmm("rmm arena", mr.ArenaMemoryResource(mr.CudaMemoryResource(), size))


def make_rmm_buffer(room: int | None = None) -> Contender:
    """RMM's pool, a DeviceBuffer a block."""
    rmm = importlib.import_module("rmm")
    size = room or _half_of_the_free()
    resource = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), size)
    return Contender(
        "rmm.DeviceBuffer",
        "buffer(size=size, stream=stream, mr=resource)",
        "",
        {"buffer": rmm.DeviceBuffer, "resource": resource},
        lambda block: int(block.ptr),
        lanes=_rmm_lanes,
    )


# ---- the driver's pools ----


def make_cuda_core(room: int | None = None) -> Contender:
    """cuda.core's resource over the device's pool."""
    try:
        core = importlib.import_module("cuda.core")
        device = core.Device()
    except (ImportError, AttributeError):
        core = importlib.import_module("cuda.core.experimental")
        device = core.Device()
    device.set_current()
    resource = core.DeviceMemoryResource(device.device_id)

    def lanes(numbers: list[int]) -> dict[int, Lane]:
        return {
            number: (
                device.create_stream() if number else device.default_stream,
                nothing,
            )
            for number in numbers
        }

    return Contender(
        "cuda.core",
        "allocate(size, stream=stream)",
        "",
        {"allocate": resource.allocate},
        lambda block: int(block.handle),
        lanes=lanes,
    )


def make_cuda_async(room: int | None = None) -> Contender:
    """cudaMallocAsync on the device's pool, which keeps all it ever had."""
    try:
        cuda = importlib.import_module("cupy").cuda
    except ImportError:
        return _async_of_bindings(importlib.import_module("cuda.bindings.runtime"))
    return _async_of_cupy(cuda)


def _async(take: str, malloc: Any, free: Any, lanes: Any) -> Contender:
    names = {"malloc": malloc, "free": free}
    give = "free({block}, stream)"
    return Contender("cudaMallocAsync", take, give, names, int, lanes=lanes)


def _async_of_cupy(cuda: Any) -> Contender:
    runtime = cuda.runtime
    pool = runtime.deviceGetDefaultMemPool(runtime.getDevice())
    runtime.memPoolSetAttribute(pool, _RELEASE_THRESHOLD, _LARGEST)
    kept: list[Any] = []  # streams, of which only the handles are passed on

    def lanes(numbers: list[int]) -> dict[int, Lane]:
        made = _cupy_lanes(numbers)
        kept.append(made)
        return {number: (made[number][0].ptr, nothing) for number in numbers}

    take = "malloc(size, stream)"
    return _async(take, runtime.mallocAsync, runtime.freeAsync, lanes)


def _async_of_bindings(runtime: Any) -> Contender:
    def checked(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise RuntimeError(f"the runtime says {result[0]}")
        return result[1] if len(result) > 1 else None

    def lanes(numbers: list[int]) -> dict[int, Lane]:
        created = runtime.cudaStreamCreateWithFlags
        return {
            number: (
                checked(created(_NON_BLOCKING)) if number else runtime.cudaStream_t(0),
                nothing,
            )
            for number in numbers
        }

    pool = checked(
        runtime.cudaDeviceGetDefaultMemPool(checked(runtime.cudaGetDevice()))
    )
    attribute = runtime.cudaMemPoolAttr(_RELEASE_THRESHOLD)
    most = runtime.cuuint64_t(_LARGEST)
    checked(runtime.cudaMemPoolSetAttribute(pool, attribute, most))
    take = "malloc(size, stream)[1]"
    return _async(take, runtime.cudaMallocAsync, runtime.cudaFreeAsync, lanes)


def make_cuda_malloc(room: int | None = None) -> Contender:
    """The device asked each time."""
    try:
        runtime = importlib.import_module("cupy").cuda.runtime
    except ImportError:
        runtime = importlib.import_module("cuda.bindings.runtime")
        take, names = "malloc(size)[1]", {"malloc": runtime.cudaMalloc}
        names["free"] = runtime.cudaFree
    else:
        take, names = "malloc(size)", {"malloc": runtime.malloc, "free": runtime.free}
    return Contender("cudaMalloc", take, "free({block})", names, int)


@dataclass(frozen=True)
class Peer:
    """Who makes it, and the packages of which it needs one."""

    make: Maker
    packages: tuple[str, ...]


_RUNTIMES = ("cupy", "cuda.bindings.runtime")

PEERS = {
    "cupy": Peer(make_cupy, ("cupy",)),
    "cupy.cuda.alloc": Peer(make_cupy_alloc, ("cupy",)),
    "torch": Peer(make_torch, ("torch",)),
    "torch.empty": Peer(make_torch_empty, ("torch",)),
    "rmm pool": Peer(make_rmm_pool, ("rmm",)),
    "rmm arena": Peer(make_rmm_arena, ("rmm",)),
    "rmm.DeviceBuffer": Peer(make_rmm_buffer, ("rmm",)),
    "cuda.core": Peer(make_cuda_core, ("cuda.core",)),
    "cudaMallocAsync": Peer(make_cuda_async, _RUNTIMES),
    "cudaMalloc": Peer(make_cuda_malloc, _RUNTIMES),
}


def is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:  # what it is a part of is not there
        return False


def installed() -> dict[str, Maker]:
    """The peers that this machine can run: none where gpumem itself has no GPU."""
    if gpumem.get_backend() != "cuda":
        return {}
    return {
        name: peer.make
        for name, peer in PEERS.items()
        if any(is_installed(package) for package in peer.packages)
    }
