# SPDX-License-Identifier: MIT
"""How to make and drop one object of every type that gpumem has, for tests that count.

The types come from the modules themselves, so a new one has to be added here. A recipe
is given the class, so that it makes objects of subclasses too.
"""

import atexit
import ctypes
import functools
import pickle
import subprocess
import sys

import gpumem
import gpumem.memory_hooks
from gpumem import _core, testing

UNIT = 512
BASETYPE = 1 << 10  # Py_TPFLAGS_BASETYPE

POOL = gpumem.MemoryPool()
DEVICE_POOL = gpumem.SingleDeviceMemoryPool()
PINNED_POOL = gpumem.PinnedMemoryPool()

C_MALLOC = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
)(lambda param, size, device: 0x1000)
C_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
    lambda param, ptr, device: None
)
C_FUNCTIONS = tuple(
    ctypes.cast(function, ctypes.c_void_p).value for function in (C_MALLOC, C_FREE)
)


def address_of_nothing(size, device_id):
    return 0x1000


def free_nothing(ptr, device_id):
    pass


def all_types():
    """Every type that is found in the modules, under its qualified name."""
    found = {}
    for module in (_core, gpumem, gpumem.memory_hooks, testing):
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__.startswith("gpumem"):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    return found


def takes_subclasses(cls):
    return bool(cls.__flags__ & BASETYPE)


def empty_pools():
    POOL.free_all_blocks()
    DEVICE_POOL.free_all_blocks()
    PINNED_POOL.free_all_blocks()


def refused(cls):
    try:
        cls()
    except TypeError:
        return
    raise AssertionError(f"{cls} can be made")


def pooled(cls):
    for pool in (POOL, DEVICE_POOL):
        pool.malloc(UNIT)
        pool.malloc(UNIT).mem.free()
    seen = POOL.malloc(UNIT)
    capsule = seen.__dlpack__()
    seen.mem.free()
    del capsule
    refused(cls)


def pointer(cls):
    made = cls(gpumem.Memory(UNIT), 0)
    made += 8
    other = gpumem.Stream(non_blocking=True)
    pool = gpumem.MemoryPool()  # a lasting one keeps its events
    used = pool.malloc(UNIT)
    used.record_stream(other)
    used.copy_from_host_async(bytes(8), 8, other)
    del used
    other.synchronize()
    made.__dlpack__(max_version=(1, 0)), made.__dlpack__(copy=True), bytes(managed(cls))
    made.__dlpack_device__(), made.__cuda_array_interface__
    return made + 8, POOL.malloc(UNIT) + 1, cls(POOL.malloc(UNIT).mem, 1)


def managed(cls):
    return cls(gpumem.ManagedMemory(UNIT), 8)


def memory_pool(cls):
    pool = cls(growth=8 * UNIT)
    pool.malloc(UNIT)
    ruled = cls(max_split_size=UNIT, large_segment_size=2 << 20)
    for size in (3 << 20, 2 << 20, 1):
        ruled.malloc(size)
    over = cls(pool.malloc)
    over.set_out_of_memory_callback(lambda error: over and False)
    over.set_limit(size=UNIT)
    return over.malloc(UNIT), over.malloc(0), over.stats(), refused_by(over)


def pooled_pinned(cls):
    memoryview(PINNED_POOL.malloc(UNIT)).release()
    view = memoryview(pinned := PINNED_POOL.malloc(UNIT))
    pinned.mem.free()
    view.release()
    refused(cls)


def pinned_pointer(cls):
    made = cls(gpumem.PinnedMemory(UNIT), 0)
    made += 8
    pooled = cls(PINNED_POOL.malloc(UNIT).mem, 1)
    pooled.__dlpack__(), pooled.__dlpack__(copy=True)
    return bytes(made), made + 8, memoryview(pooled), pooled.size()


def pinned_pool(cls):
    pool = cls()
    over = cls(pool.malloc)
    over.set_out_of_memory_callback(lambda error: over and False)
    over.set_limit(size=UNIT)
    return over.malloc(UNIT), over.malloc(0), over.stats(), refused_by(over)


def refused_by(pool):
    try:
        pool.malloc(1 << 20)
    except gpumem.OutOfMemoryError as error:
        return error.cause


def system_memory(cls):
    owner = bytearray(UNIT)
    wrapped = cls.from_external(0x1000, UNIT, owner)
    return cls(UNIT), cls(0), wrapped, gpumem.malloc_system(UNIT)


def unowned_memory(cls):
    array = POOL.malloc(UNIT)
    taken = gpumem.from_dlpack(array), gpumem.from_cuda_array_interface(array)
    try:
        gpumem.from_dlpack(cls)
    except AttributeError:
        return cls(0x1000, UNIT, object(), 0), taken


def memory_async(cls):
    made = cls(UNIT), cls(0), cls(UNIT, gpumem.Stream())
    return made, made[0].stream_ref(), gpumem.malloc_async(UNIT)


def async_pool(cls):
    pool = cls()
    pool.reset_peak_stats()
    return cls(pool._pools).malloc(UNIT), pool.malloc(0), pool.stats()


def device(cls):
    with cls(0) as entered:
        return entered, POOL.malloc(1).device


def stream(cls):
    pool = gpumem.MemoryPool()  # a lasting one keeps what was cached for the stream
    with cls(non_blocking=True) as entered:
        return pool.malloc(UNIT), entered.record(), gpumem.get_current_stream()


def external_stream(cls):
    with cls(gpumem.Stream.null.ptr) as entered:
        return POOL.malloc(UNIT), entered


def event(cls):
    made = cls()
    made.record()
    made.synchronize()
    return made.done, made


def graph(cls):
    pool = gpumem.MemoryPool()
    memory = gpumem.malloc(UNIT)
    with gpumem.Stream(non_blocking=True) as entered:
        pool.malloc(UNIT)
        entered.begin_capture()
        memory.memset_async(0, UNIT)
        pool.malloc(UNIT)
        made = entered.end_capture()
    assert type(made) is cls
    made.upload(entered)
    made.launch(entered)
    entered.synchronize()
    refused(cls)
    return made.debug_dot_str(), made


def c_allocator(cls):
    made = cls(0, *C_FUNCTIONS, object())
    return made.malloc(UNIT), gpumem.MemoryPool(made.malloc).malloc(1), made.close()


def python_allocator(cls):
    made = cls(address_of_nothing, free_nothing)
    return made.malloc(UNIT), gpumem.MemoryPool(made.malloc).malloc(1), made.close()


def raised(cls, *args):
    try:
        raise cls(*args)
    except cls as error:
        return str(error), error.__reduce__()


def out_of_memory(cls):
    POOL.set_limit(size=1)
    refused_by(POOL)
    POOL.set_limit()
    made = cls(1, 2, 3)
    made.__setstate__({"cause": "full", "device": 1, "used_bytes": 5, "note": [made]})
    return raised(cls, 1, 2, 3), made.cause, made.device, made.used_bytes


def hook(cls):
    with cls():
        POOL.malloc(UNIT)


class Nowhere:
    """A file that takes everything."""

    def write(self, text):
        pass


def quiet_hook(cls):
    with cls(file=Nowhere(), flush=False):
        POOL.malloc(UNIT)


def using_allocator(cls):
    with cls(POOL.malloc):
        gpumem.alloc(UNIT)


def client(cls):
    with cls("guest") as nothing:
        return nothing, POOL.malloc(UNIT)


def line(cls):
    return cls()


@functools.cache
def descriptor_of_another_process():
    """Of memory there, which stays until this process ends."""
    code = (
        "import gpumem, pickle, sys\n"
        "shared = gpumem.IPCBufferDescriptor(gpumem.malloc(512))\n"
        "print(pickle.dumps(shared).hex(), flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return pickle.loads(bytes.fromhex(process.stdout.readline()))


def ipc_descriptor(cls):
    made = cls(POOL.malloc(UNIT))
    function, arguments = made.__reduce__()
    return made, repr(made), function(*arguments)


def ipc_memory(cls):
    memory = cls(descriptor_of_another_process())
    try:
        cls(None)
    except TypeError:
        return memory


def stream_function():
    """A capsule of a C function that says 0, as Cython would export it."""
    new = ctypes.pythonapi["PyCapsule_New"]
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    function = ctypes.cast(ctypes.pythonapi.PyErr_CheckSignals, ctypes.c_void_p)
    return new(function, STREAM_FUNCTION, None)


STREAM_FUNCTION = b"intptr_t (void)"  # kept here, for a capsule does not


def outlet(cls):
    made = cls(POOL, "guest")
    return made, made.take(UNIT, 0, 0), made.take(0, 0, 0), made.pool


def cupy_allocator(cls):
    source = _core._Outlet(POOL, "guest")

    def refuse(error):
        raise KeyError(made) from error

    made = cls(
        source, stream_function(), lambda *args: args, lambda *args: args, refuse
    )
    POOL.set_limit(size=1)
    try:
        made.malloc(1 << 20)
    except KeyError:
        POOL.set_limit()
    return made.malloc(UNIT), made.malloc(0)


RECIPES = {
    "gpumem.BaseMemory": lambda cls: (cls(), repr(cls())),
    "gpumem.Memory": lambda cls: (cls(UNIT), cls(0), gpumem.malloc(UNIT)),
    "gpumem.ManagedMemory": lambda cls: (cls(UNIT), gpumem.malloc_managed(UNIT)),
    "gpumem.UnownedMemory": unowned_memory,
    "gpumem.SystemMemory": system_memory,
    "gpumem.IPCMemory": ipc_memory,
    "gpumem._ipc.IPCBufferDescriptor": ipc_descriptor,
    "gpumem.MemoryAsync": memory_async,
    "gpumem.MemoryAsyncPool": async_pool,
    "gpumem.PinnedMemory": lambda cls: (
        cls(UNIT),
        cls(0, 1),
        gpumem.malloc_pinned(UNIT),
    ),
    "gpumem.PooledPinnedMemory": pooled_pinned,
    "gpumem.PinnedMemoryPointer": pinned_pointer,
    "gpumem.PinnedMemoryPool": pinned_pool,
    "gpumem.CFunctionAllocatorMemory": lambda cls: cls(
        UNIT, 0, *C_FUNCTIONS, 0, owner=object()
    ),
    "gpumem.PythonFunctionAllocatorMemory": lambda cls: cls(
        UNIT, address_of_nothing, free_nothing, 0
    ),
    "gpumem.CFunctionAllocator": c_allocator,
    "gpumem.PythonFunctionAllocator": python_allocator,
    "gpumem.PooledMemory": pooled,
    "gpumem.MemoryPointer": pointer,
    "gpumem._core._BasePool": refused,
    "gpumem._core._Outlet": outlet,
    "gpumem._core._CuPyAllocator": cupy_allocator,
    "gpumem.SingleDeviceMemoryPool": memory_pool,
    "gpumem.MemoryPool": memory_pool,
    "gpumem.Device": device,
    "gpumem.BaseStream": refused,
    "gpumem.Stream": stream,
    "gpumem.ExternalStream": external_stream,
    "gpumem.Event": event,
    "gpumem.Graph": graph,
    "gpumem.OutOfMemoryError": out_of_memory,
    "gpumem.CUDARuntimeError": lambda cls: raised(cls, 2),
    "gpumem._memory_hook.MemoryHook": hook,
    "gpumem.memory_hooks.DebugPrintHook": quiet_hook,
    "gpumem.memory_hooks.LineProfileHook": hook,
    "gpumem.memory_hooks._Line": line,
    "gpumem._scope.using_allocator": using_allocator,
    "gpumem._scope.client": client,
    "gpumem.testing.Ledger": lambda cls: cls(*range(len(cls._fields))),
    "gpumem.testing.ManagedState": lambda cls: cls(0, True, None, frozenset()),
    "gpumem.testing.Call": lambda cls: cls("free", 0, 0, 0, 0),
}
