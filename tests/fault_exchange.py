# SPDX-License-Identifier: MIT
"""What test_faults_python.py asks where memory goes from one library to another; what
may stand in an entry is said there.
"""

EXCHANGE = {
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
}
