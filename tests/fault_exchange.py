# SPDX-License-Identifier: MIT
"""What test_faults_python.py asks where memory goes from one library or process to
another; what may stand in an entry is said there.
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent

EXCHANGE = {
    "UnownedMemory": (
        "mem = gpumem.UnownedMemory(ptr=raw.ptr, size=10**6, owner=(raw,))\n"
        "gpumem.MemoryPointer(mem, 10); mem._owner",
        "raw = gpumem.malloc(10**6)",
    ),
    "UnownedMemory of an unknown address": (
        "try: gpumem.UnownedMemory(1 << 40, 10, None)\nexcept ValueError: pass",
        "",
    ),
    "IPCBufferDescriptor": (
        "named = gpumem.IPCBufferDescriptor(raw)\n"
        "repr(named), named.handle, named.offset, named.size, named.__reduce__()",
        "raw = gpumem.malloc(10**6)",
    ),
    "IPCMemory": (
        "gpumem.MemoryPointer(gpumem.IPCMemory(named), 10)",
        f"sys.path.append({str(HERE)!r}); import type_recipes\n"
        "named = type_recipes.descriptor_of_another_process()",
    ),
    "IPCMemory of nothing": (
        "for wrong in (None, named):\n"
        "    try: gpumem.IPCMemory(wrong)\n"
        "    except (TypeError, gpumem.CUDARuntimeError): pass",
        "raw = gpumem.malloc(10**6); named = gpumem.IPCBufferDescriptor(raw)",
    ),
    "a pointer as a buffer": (
        "for p in (mem, pool.malloc(10**6)):\n"
        "    view = memoryview(p); p + 1; view.release(); memoryview(p).release()\n"
        "kept = memoryview(p); p.mem.free(); del kept\n"
        "try: memoryview(p)\nexcept ValueError: pass",
        "mem = gpumem.malloc_managed(10**6)",
    ),
    "__cuda_array_interface__": (
        "p = pool.malloc(10**6); p.__cuda_array_interface__\n"
        "(p + p.mem.size).__cuda_array_interface__\n"
        "with stream: p.__cuda_array_interface__",
        "stream = gpumem.Stream()",
    ),
    "__dlpack__": (
        "p = pool.malloc(10**6); p.__dlpack_device__(); p.__dlpack__()\n"
        "p.__dlpack__(max_version=(1, 0)); p.__dlpack__(stream=stream.ptr)\n"
        "p.__dlpack__(copy=True); p.__dlpack__(dl_device=(1, 0), stream=-1)\n"
        "gpumem.alloc_pinned_memory(10**6).__dlpack__(copy=True)",
        "stream = gpumem.Stream()",
    ),
    "__dlpack__ refused": (
        "for asked in ({'stream': 0}, {'max_version': 1}, {'dl_device': (2, 0)}):\n"
        "    try: p.__dlpack__(**asked)\n"
        "    except (ValueError, TypeError, BufferError): pass",
        "p = gpumem.malloc(10**6)",
    ),
    "from_dlpack": (
        "p = gpumem.from_dlpack(array); q = gpumem.from_dlpack(p); p.memset(0, 10)",
        "array = gpumem.malloc(10**6)",
    ),
    "from_dlpack refused": (
        "try: gpumem.from_dlpack(5)\nexcept AttributeError: pass\n"
        "for array in (gone, odd):\n"
        "    try: gpumem.from_dlpack(array)\n"
        "    except (TypeError, BufferError): pass",
        "class Gone:\n"
        "    def __dlpack_device__(self): return 2, 0\n"
        "class Odd(Gone):\n"
        "    def __dlpack_device__(self): return 1, 0\n"
        "    def __dlpack__(self, max_version): return 5\n"
        "gone, odd = Gone(), Odd()",
    ),
    "from_cuda_array_interface": (
        "with stream: p = array.__cuda_array_interface__\n"
        "p['strides'] = (1,); f.__cuda_array_interface__ = p\n"
        "gpumem.from_cuda_array_interface(f); gpumem.from_cuda_array_interface(array)",
        "class F: __cuda_array_interface__ = None\n"
        "f, array, stream = F(), gpumem.malloc(10**6), gpumem.Stream()",
    ),
    "from_cuda_array_interface refused": (
        "for f.__cuda_array_interface__ in wrong:\n"
        "    try: gpumem.from_cuda_array_interface(f)\n"
        "    except (TypeError, ValueError, BufferError): pass",
        "class F: pass\n"
        "f, right = F(), {'shape': (1,), 'typestr': '|u1', 'data': (512, False)}\n"
        "wrong = 1, {}, {**right, 'mask': 1}, {**right, 'data': (512, True)}, {\n"
        "    **right, 'strides': (9, 9)}, {**right, 'typestr': 'O'}",
    ),
    "memory for another library": (
        "o = _core._Outlet(pool, 'guest'); o.take(10**6, 0, 0); o.take(0, 0, 0)\n"
        "malloc = _core._CuPyAllocator(o, capsule, make, make, refuse).malloc\n"
        "malloc(10**6), malloc(0)\n"
        "try: malloc(2**60)\nexcept KeyError: pass",
        f"sys.path.append({str(HERE)!r}); import type_recipes\n"
        "from gpumem import _core; pool = gpumem.MemoryPool()\n"
        "capsule, make = type_recipes.stream_function(), ''.format\n"
        "refuse = {}.__getitem__  # raises, and no frame is made for it",
    ),
}
