# SPDX-License-Identifier: MIT
"""Every way into the binding, with the n-th allocation of the interpreter failing.

For each entry point n goes up until the call succeeds untouched, in two ways: that one
allocation fails, and all from that one on. Each time the call ends in a MemoryError or
succeeds, nothing is held that was not held before, and the pools' invariants hold. What
fails on the way of a free, where nobody can be told, goes to sys.unraisablehook. Each
entry point has an interpreter of its own, since a defect here is often a crash.
"""

import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from fault_devices import ON_TWO_DEVICES, STAYS
from fault_exchange import EXCHANGE

HERE = Path(__file__).resolve().parent

pytestmark = [
    pytest.mark.sim_only,
    pytest.mark.skipif(
        hasattr(sys, "gettotalrefcount"),
        reason="a debug interpreter ends the process over its own defects here",
    ),
]
pytest.importorskip("_testcapi", reason="the interpreter has no allocator that fails")

PRELUDE = """
import _testcapi, ctypes, gc, pickle, sys
import gpumem
from gpumem import _core, testing

UNIT = 512
pool, single = gpumem.MemoryPool(), gpumem.SingleDeviceMemoryPool()
reports = []
sys.unraisablehook = lambda report: reports.append(report.exc_type)
"""

LOOP = """
def held():
    ledger = testing.ledger()._asdict()
    del ledger["peak_bytes"]
    return ledger

def attempt(first, last):
    '''Whether work() passes with allocations `first` to `last` failing; 0 for all.'''
    _testcapi.set_nomemory(first, last)
    try:
        work()
    except MemoryError:
        passed = False
    else:
        passed = True
    finally:
        _testcapi.remove_mem_hooks()
    return passed

def settle():
    clean_up()
    gpumem.Device().synchronize()
    gpumem.set_allocator(None)
    gc.collect()
    for each in (pool, single):
        testing.check_pool(each)
        assert each.used_bytes() == 0, each.stats()
        each.free_all_blocks()

def strike(count, last):
    '''Has each allocation fail in turn; the number that work() needs.'''
    for n in range(count):
        passed = attempt(n, last(n))
        settle()
        assert held() == before, (n, held(), before)
        assert set(reports) <= {MemoryError}, (n, reports)
        if passed and last(n) == 0:
            return n
    return count

gc.disable()  # or a collection would come at another moment each time
for _ in range(3):
    work()
    settle()
before = held()
needed = strike(3000, lambda n: 0)
assert needed < 3000
assert strike(needed, lambda n: n + 1) == needed
work()
settle()
assert held() == before
print(needed)
"""

# What can be asked: code of a function, and the code that readies it (at module level).
# It keeps off what the interpreter itself gets wrong without memory: all versions lose
# an exception that leaves a second Python frame, some crash where they make a function
# or the dictionary of an object, and f_back of a frame returns with an exception set;
# those without an interpreter lock crash where a new list has no room for its items.
# So expected errors are caught in the frame that made the call, and the ready-made
# hooks, which are Python alone, are left out.
ENTRIES = {
    "BaseMemory": ("mem = gpumem.BaseMemory(); repr(mem), int(mem), mem.device", ""),
    "Memory": ("mem = gpumem.Memory(10**6); repr(mem), mem.ptr, mem.size", ""),
    "Memory of nothing": ("gpumem.Memory(0)", ""),
    "Memory attributes": (
        "mem.size = 2**62; mem.ptr = 2**62; mem.device_id = 10**6; mem.ptr, mem.size",
        "mem = gpumem.BaseMemory()",
    ),
    "ManagedMemory": (
        "mem = gpumem.ManagedMemory(10**6)\n"
        "mem.prefetch(None); mem.advise(1, device=0)",
        "",
    ),
    "SystemMemory": (
        "mem = gpumem.SystemMemory(10**6)\n"
        "mem.prefetch(None); mem.advise(1, device=0)\n"
        "gpumem.malloc_system(10**6).memset(0, 10)\n"
        "gpumem.SystemMemory.from_external(address, 500, (back,))._owner",
        "back = (ctypes.c_char * 500)(); address = ctypes.addressof(back)",
    ),
    "a device without an ability": (
        "for f in (gpumem.malloc_system, gpumem.malloc_async, gpumem.MemoryAsync):\n"
        "    try: f(10)\n    except RuntimeError: pass",
        "plan = testing.without('pageable_access', 'memory_pools'); plan.__enter__()",
    ),
    "MemoryAsync": (
        "mem = gpumem.MemoryAsync(10**6); mem.stream_ref()\n"
        "gpumem.MemoryAsync(10**6, stream=stream); gpumem.malloc_async(10**6)",
        "stream = gpumem.Stream()",
    ),
    "MemoryAsyncPool": (
        "try: gpumem.MemoryAsyncPool('other')\nexcept ValueError: pass\n"
        "made = gpumem.MemoryAsyncPool(); gpumem.MemoryAsyncPool(made._pools)\n"
        "made.malloc(10**6); made.used_bytes(), made.free_bytes(), made.get_limit()\n"
        "made.set_limit(fraction=0.5); made.free_all_blocks(); made.set_limit()\n"
        "made.stats(); made.reset_peak_stats()",
        "",
    ),
    "a pool over memory that moves": (
        "p = over.malloc(10**6); p.mem.identity; p.mem.prefetch(None)\n"
        "p.mem.advise(1, 0)\n"
        "try: pool.malloc(10).mem.prefetch(None)\nexcept TypeError: pass",
        "over = gpumem.MemoryPool(gpumem.malloc_managed)\n"
        "def clean_up(): over.free_all_blocks()",
    ),
    "PinnedMemory": (
        "mem = gpumem.PinnedMemory(10**6, 1)\n"
        "p = gpumem.PinnedMemoryPointer(mem, 300) + 300; p -= 300; p += 1\n"
        "repr(p), int(p), p.size(), gpumem.is_memory_pinned(p)\n"
        "view = memoryview(p); view.release(); gpumem.malloc_pinned(10**6)",
        "",
    ),
    "PinnedMemory refused": (
        "try: gpumem.PinnedMemory(10, 8)\nexcept ValueError: pass\n"
        "try: gpumem.PinnedMemoryPointer(None, 0)\nexcept TypeError: pass\n"
        "try: memoryview(outside)\nexcept ValueError: pass\n"
        "try: gpumem.is_memory_pinned(2**64)\nexcept OverflowError: pass",
        "outside = gpumem.malloc_pinned(10) + 11",
    ),
    "a pool of pinned memory": (
        "made = gpumem.PinnedMemoryPool(); p = made.malloc(10**6); made.malloc(0)\n"
        "view = memoryview(p); p.mem.pool(); p.mem.free(); view.release()\n"
        "made.free_all_blocks(); made.set_limit(fraction=0.5); made.stats()",
        "",
    ),
    "a pool of pinned memory over a function": (
        "over = gpumem.PinnedMemoryPool(take); p = over.malloc(10**6)\n"
        "over.malloc(UNIT); del over; bytes(p)",
        "def take(size): return gpumem.malloc_pinned(size)",
    ),
    "want of pinned memory": (
        "try: made.malloc(10**6)\nexcept gpumem.OutOfMemoryError: pass",
        "made = gpumem.PinnedMemoryPool(); made.set_limit(size=10**5)",
    ),
    "the allocator of pinned memory": (
        "gpumem.set_pinned_memory_allocator(made.malloc)\n"
        "gpumem.alloc_pinned_memory(10**6); gpumem.get_pinned_memory_allocator()\n"
        "gpumem.set_pinned_memory_allocator(None); gpumem.alloc_pinned_memory(size=1)",
        "made = gpumem.PinnedMemoryPool()\n"
        "def clean_up():\n"
        "    gpumem.set_pinned_memory_allocator(); made.free_all_blocks()",
    ),
    "the default pools": (
        "gpumem.use_default_memory_pool(); gpumem.alloc(10**6)\n"
        "gpumem.get_default_memory_pool(); gpumem.get_default_pinned_memory_pool()",
        "def clean_up(): gpumem.get_default_memory_pool().free_all_blocks()",
    ),
    "clients": (
        "scope = gpumem.client('one'); kept = pool.malloc(10**6)\n"
        "with scope: other = pool.malloc(10)\n"
        "pool.stats_by_client(); gpumem.stats_by_client(0)",
        "",
    ),
    "CFunctionAllocator": (
        "made = gpumem.CFunctionAllocator(0, functions[0], functions[1], (1,))\n"
        "made.malloc(10**6) + 10; made.close()",
        "C",
    ),
    "PythonFunctionAllocator": (
        "made = gpumem.PythonFunctionAllocator(take, give)\n"
        "made.malloc(10**6) + 10; made.close()",
        "def take(size, device): return 1 << 40\ndef give(ptr, device): pass",
    ),
    "PythonFunctionAllocator without an address": (
        "made = gpumem.PythonFunctionAllocator(take, give)\n"
        "try: made.malloc(10**6)\nexcept ValueError: pass",
        "def take(size, device): return 1 << 70\ndef give(ptr, device): pass",
    ),
    "MemoryPointer": (
        "p = gpumem.MemoryPointer(mem, 300)\n"
        "q = p + 300; q = 300 + q - 300; q += 300; q -= 300\n"
        "repr(q), int(q), q.ptr, q.device, q.mem",
        "mem = gpumem.Memory(10**6)",
    ),
    "MemoryPointer refused": (
        "for bad in (0.5, 'a', None):\n"
        "    try: p + bad\n    except TypeError: pass\n"
        "    try: bad + p\n    except TypeError: pass\n"
        "try: p + 2**64\nexcept OverflowError: pass\n"
        "try: p - 2**62\nexcept OverflowError: pass",
        "p = gpumem.malloc(UNIT)",
    ),
    "a subclass": (
        "p = Pointer(Mem(300), 0); p.me = p; q = p + 1; del p, q",
        "class Mem(gpumem.Memory): pass\nclass Pointer(gpumem.MemoryPointer): pass",
    ),
    "malloc": ("gpumem.malloc(10**6), gpumem.malloc(size=0)", ""),
    "malloc_managed": ("gpumem.malloc_managed(10**6)", ""),
    "malloc refused": (
        "for bad in (-1, 2**64, 0.5, 'a', None):\n"
        "    for f in (gpumem.malloc, pool.malloc):\n"
        "        try: f(bad)\n        except (TypeError, OverflowError): pass\n"
        "try: gpumem.malloc()\nexcept TypeError: pass\n"
        "try: gpumem.malloc(sise=1)\nexcept TypeError: pass",
        "",
    ),
    "a pool's miss": ("pool.malloc(10**6), single.malloc(10**6)", ""),
    "a pool's hit": (
        "pool.malloc(10**6); pool.malloc(10**6); pool.malloc(0)\n"
        "single.malloc(size=10**6); single.malloc(10**6).mem.free()",
        "",
    ),
    "more live blocks than are kept dead": (
        "kept = [pool.malloc(UNIT) for _ in range(150)]; del kept",
        "",
    ),
    "a new pool": (
        "gpumem.MemoryPool(max_split_size=1).malloc(1); one(growth=10**6).malloc(1)",
        "one = gpumem.SingleDeviceMemoryPool",
    ),
    "a new pool over a function": (
        "over = gpumem.MemoryPool(allocator=take); p = over.malloc(10**6)\n"
        "over.malloc(UNIT); del over; p.memset(0, 10)",
        "def take(size): return gpumem.malloc(size)",
    ),
    "a pool over the functions of an allocator": (
        "over = gpumem.MemoryPool(made.malloc)\nover.malloc(10**6); over.malloc(1)",
        "def take(size, device): return 1 << 40\n"
        "def give(ptr, device): pass\n"
        "made = gpumem.PythonFunctionAllocator(take, give)",
    ),
    "the memory of functions in a cycle with them": (
        "f = Functions(); f.p = f.made.malloc(10**6); f.pool.malloc(10**6); del f\n"
        "gc.collect(); gc.collect()",
        "class Functions:\n"
        "    def __init__(self):\n"
        "        self.made = gpumem.PythonFunctionAllocator(self.take, self.give)\n"
        "        self.pool = gpumem.MemoryPool(self.made.malloc)\n"
        "    def take(self, size, device): return 1 << 40\n"
        "    def give(self, ptr, device): pass",
    ),
    "a limit from the environment": (
        "gpumem.MemoryPool().malloc(UNIT)",
        "import os; os.environ['GPUMEM_MEMORY_LIMIT'] = '40.5%'",
    ),
    "a wrong limit in the environment": (
        "try: gpumem.MemoryPool().malloc(UNIT)\nexcept ValueError: pass",
        "import os; os.environ['GPUMEM_MEMORY_LIMIT'] = '1G'",
    ),
    "out of memory": (
        "try: pool.malloc(10**6)\n"
        "except gpumem.OutOfMemoryError as error: error.args, error.limit",
        "pool.set_limit(size=10**5)",
    ),
    "out of memory on the device": (
        "try: pool.malloc(10**6)\nexcept gpumem.OutOfMemoryError: pass",
        "plan = testing.fail('mem_alloc', count=0); plan.__enter__()",
    ),
    "out of memory, told in full": (
        "try: pool.malloc(10**6)\n"
        "except gpumem.OutOfMemoryError as error:\n"
        "    error.size, error.cause, error.device, error.device_free, str(error)\n"
        "try: over.malloc(10**6)\nexcept gpumem.OutOfMemoryError: pass",
        "def take(size): raise MemoryError('none')\n"
        "over = gpumem.MemoryPool(take); pool.set_limit(size=10**5)",
    ),
    "asking for memory": (
        "pool.set_out_of_memory_callback(ask); single.set_out_of_memory_callback(ask)\n"
        "pool.get_out_of_memory_callback()\n"
        "try: pool.malloc(10**6)\nexcept gpumem.OutOfMemoryError: pass\n"
        "try: single.set_out_of_memory_callback(5)\nexcept TypeError: pass",
        "ask, limit = (lambda error: error.attempt < 3), pool.set_limit(size=10**5)\n"
        "def clean_up(): pool.set_out_of_memory_callback(None)",
    ),
    "reading a pool": (
        "for each in (pool, single):\n"
        "    each.stats(), each.used_bytes(), each.free_bytes(), each.total_bytes()\n"
        "    each.n_free_blocks(), each.get_limit(), each.reset_peak_stats()\n"
        "    each.stats(0), each.used_bytes(device=gpumem.Device(0))\n"
        "    try: each.stats(-1)\n    except ValueError: pass",
        "",
    ),
    "large numbers from a pool": (
        "single.used_bytes(), single.stats()",
        "kept = [gpumem.SingleDeviceMemoryPool() for _ in range(2)]\n"
        "single.malloc(10**6)",
    ),
    "a pool's limit": (
        "pool.set_limit(size=10**9); pool.set_limit(fraction=0.5); pool.set_limit()\n"
        "try: pool.set_limit(size=1, fraction=0.5)\nexcept ValueError: pass\n"
        "try: pool.set_limit(fraction=2)\nexcept ValueError: pass",
        "",
    ),
    "trimming a pool": (
        "pool.malloc(UNIT); pool.free_all_blocks()\n"
        "pool.malloc(UNIT); pool.free_all_blocks(stream=gpumem.Stream.null)\n"
        "single.malloc(UNIT); single.free_all_blocks()",
        "",
    ),
    "trimming to a target": (
        "pool.malloc(UNIT); pool.set_reserve(10**6, device=0); pool.trim(10**9)\n"
        "single.malloc(UNIT); single.trim(target_bytes=2**40, device=first)\n"
        "try: pool.trim(-1)\nexcept OverflowError: pass\n"
        "try: pool.set_reserve('1')\nexcept TypeError: pass\n"
        "pool.set_reserve(0); single.trim()",
        "first = gpumem.Device(0)\ndef clean_up(): pool.set_reserve(0)",
    ),
    "a pool with expandable segments": (
        "made = gpumem.MemoryPool(expandable_segments=True)\n"
        "one = gpumem.SingleDeviceMemoryPool(\n"
        "    expandable_segments=True, shareable=False)\n"
        "held = made.malloc(3 * 10**6); one.malloc(UNIT)\n"
        "made.set_reserve(10**6); made.trim(10**6)\n"
        "made.stats(); one.free_all_blocks()\n"
        "try: gpumem.MemoryPool(expandable_segments=True, growth=True)\n"
        "except ValueError: pass\n"
        "try: gpumem.MemoryPool(shareable=True)\nexcept NotImplementedError: pass",
        "",
    ),
    "freeing by address": (
        "p = single.malloc(UNIT); single.free(p.ptr, UNIT)\n"
        "try: single.free(p.ptr, UNIT)\nexcept RuntimeError: pass",
        "",
    ),
    "the pool of a block": (
        "p = pool.malloc(UNIT); p.mem.pool(); p.mem.free(); p.mem.pool()",
        "",
    ),
    "the allocator": (
        "gpumem.set_allocator(pool.malloc); gpumem.alloc(10**6)\n"
        "gpumem.get_allocator(); gpumem.set_allocator(take); gpumem.alloc(10**6)\n"
        "gpumem.set_allocator(None); gpumem.alloc(size=10**6)",
        "def take(size): return gpumem.malloc(size)",
    ),
    "a scoped allocator": (
        "try:\n    with scope, scope: gpumem.alloc(10**6)\nfinally: pass",
        "scope = gpumem.using_allocator(pool.malloc)\n"
        "def clean_up():\n"
        "    for _ in range(2):\n"
        "        try: _core._pop_allocator(scope)\n"
        "        except RuntimeError: pass",
    ),
    "copies": (
        "p.copy_from_host(data, 500); p.copy_from_host(data, size=500)\n"
        "p.copy_to_host(back, 500); p.copy_from_device(q, 500); p.copy_from(q, 500)\n"
        "p.copy_from(data, 500); p.memset(300, 500)\n"
        "p.copy_from_host(address, 500); p.copy_to_host(c_address, 500)",
        "p, q = gpumem.malloc(UNIT), gpumem.malloc(UNIT)\n"
        "data, back = bytes(500), bytearray(500)\n"
        "c_back = (ctypes.c_char * 500)(); address = ctypes.addressof(c_back)\n"
        "c_address = ctypes.c_void_p(address)",
    ),
    "copies in a stream": (
        "p.copy_from_host_async(data, 500, stream)\n"
        "p.copy_to_host_async(back, 500, stream=stream)\n"
        "p.copy_from_device_async(q, 500); p.copy_from_async(q, 500, stream)\n"
        "p.memset_async(300, 500, stream); stream.synchronize()",
        "p, q = gpumem.malloc(UNIT), gpumem.malloc(UNIT)\n"
        "stream, data, back = gpumem.Stream(), bytes(500), bytearray(500)",
    ),
    "the host's side": (
        "for host in hosts: p.copy_to_host(host, 8)\n"
        "try: p.copy_to_host(ctypes.POINTER(ctypes.c_int)(), 8)\n"
        "except TypeError: pass\n"
        "try: p.copy_to_host(ctypes.c_void_p(), 8)\nexcept TypeError: pass",
        "p, back = gpumem.malloc(UNIT), (ctypes.c_char * 8)()\n"
        "class Pair(ctypes.Structure): _fields_ = [('value', ctypes.c_int64)]\n"
        "hosts = [back, Pair(), ctypes.pointer(back), ctypes.addressof(back)]\n"
        "hosts.append(ctypes.c_void_p(hosts[-1]))",
    ),
    "memory of several streams": (
        "p = pool.malloc(UNIT); p.record_stream(stream); p.memset_async(1, 5, stream)\n"
        "p.copy_from_async(q, 500, foreign); q.copy_from_async(p, 500, foreign)\n"
        "p.mem.free()",
        "class Foreign: pass\n"
        "foreign, stream, q = Foreign(), gpumem.Stream(), gpumem.malloc(UNIT)\n"
        "foreign.ptr = stream.ptr\n"
        "def clean_up():\n"
        "    for _ in range(2): gpumem.Device().synchronize(); pool.free_all_blocks()",
    ),
    "a stream refused": (
        "try: q.record_stream(5)\nexcept TypeError: pass\n"
        "try: q.record_stream()\nexcept TypeError: pass",
        "q = gpumem.malloc(UNIT)",
    ),
    "copies refused": (
        "try: p.copy_from_host(data, 600)\nexcept ValueError: pass\n"
        "try: p.memset(0, 600)\nexcept ValueError: pass\n"
        "try: p.copy_to_host(data, 5)\nexcept BufferError: pass\n"
        "try: p.copy_from(3.5, 5)\nexcept TypeError: pass\n"
        "try: p.copy_from_device(5, 5)\nexcept TypeError: pass",
        "p, data = gpumem.malloc(UNIT), bytes(10)",
    ),
    "hooks": (
        "with first, second:\n"
        "    pool.malloc(10**6); pool.malloc(0)\n"
        "    pool.malloc(10**6).mem.free()",
        "class Hook(gpumem.MemoryHook):\n"
        "    def __init__(self, name): self.name = name\n"
        "first, second = Hook('first'), Hook('second')\n"
        "def clean_up():\n"
        "    for name in ('first', 'second'):\n"
        "        try: _core._remove_hook(name)\n"
        "        except KeyError: pass",
    ),
    "hooks of the process": (
        "_core._add_process_hook('first', first)\n"
        "_core._add_process_hook('second', second)\n"
        "pool.malloc(10**6); pool.malloc(10**6).mem.free()\n"
        "_core._remove_process_hook('first', first)",
        "class Hook(gpumem.MemoryHook): pass\n"
        "first, second = Hook(), Hook()\n"
        "def clean_up():\n"
        "    for hook, name in ((first, 'first'), (second, 'second')):\n"
        "        try: _core._remove_process_hook(name, hook)\n"
        "        except KeyError: pass",
    ),
    "hooks refused": (
        "try: _core._add_hook('name', None)\nexcept KeyError: pass\n"
        "try: _core._remove_hook('other')\nexcept KeyError: pass\n"
        "try: _core._add_hook([], None)\nexcept TypeError: pass",
        "_core._add_hook('name', gpumem.MemoryHook())",
    ),
    "devices": (
        "device = gpumem.Device(0); repr(device), hash(device), device == 0\n"
        "device.name, device.mem_info, device.id; device.synchronize(); device.use()\n"
        "int(device), gpumem.get_device_id(), gpumem.get_device_count()\n"
        "gpumem.Device.from_pointer(memory.ptr)\n"
        "try: gpumem.Device(10**6)\nexcept ValueError: pass",
        "memory = gpumem.malloc(UNIT)",
    ),
    "a device as a scope": (
        "with gpumem.Device(0): pool.malloc(UNIT)",
        "def clean_up(): gpumem.Device(0).use()",
    ),
    "streams": (
        "stream = gpumem.Stream(non_blocking=True); stream.done; stream.synchronize()\n"
        "repr(stream), hash(stream), stream == stream, stream.ptr, stream.record()\n"
        "gpumem.ExternalStream(stream.ptr, device_id=0); gpumem.get_current_stream()\n"
        "gpumem.Stream(null=True); gpumem.Stream(ptds=True)\n"
        "gpumem.Stream(priority=-1).priority; stream.__cuda_stream__()\n"
        "gpumem.Stream.from_external(stream); gpumem.Stream.from_external(foreign)\n"
        "memory.memset_async(0, 10, foreign)",
        "import functools, types\n"
        "foreign = types.SimpleNamespace(\n"
        "    __cuda_stream__=functools.partial(tuple, (0, 0)))\n"
        "memory = gpumem.malloc(UNIT)",
    ),
    "a stream as a scope": (
        "with stream, gpumem.Stream.ptds: pool.malloc(UNIT)\n"
        "stream.use(); pool.malloc(UNIT); gpumem.Stream.null.use()",
        "stream = gpumem.Stream()\n"
        "def clean_up():\n"
        "    for each in (gpumem.Stream.ptds, stream):\n"
        "        try: each.__exit__()\n"
        "        except RuntimeError: pass\n"
        "    gpumem.Stream.null.use(); pool.free_all_blocks()",
    ),
    "graphs": (
        "stream.begin_capture(); memory.memset_async(0, UNIT, stream)\n"
        "stream.is_capturing(); graph = stream.end_capture()\n"
        "graph.upload(stream); graph.launch(stream=stream); graph.debug_dot_str()\n"
        "stream.synchronize()",
        "stream, memory = gpumem.Stream(), gpumem.malloc(UNIT)\n"
        "def clean_up():\n"
        "    if stream.is_capturing(): stream.end_capture()",
    ),
    "graphs refused": (
        "try: gpumem.Stream.null.begin_capture()\nexcept RuntimeError: pass\n"
        "try: stream.begin_capture(mode=7)\nexcept ValueError: pass\n"
        "try: stream.end_capture()\nexcept RuntimeError: pass",
        "stream = gpumem.Stream()",
    ),
    "events": (
        "first = gpumem.Event(); last = gpumem.Event(block=True)\n"
        "first.record(); last.record(stream); stream.wait_event(first)\n"
        "last.synchronize(); first.synchronize(); first.done\n"
        "repr(first), hash(first), first == last, first.ptr\n"
        "gpumem.get_elapsed_time(first, last)",
        "stream = gpumem.Stream()\ndef clean_up(): gpumem.Device().synchronize()",
    ),
    "errors": (
        "error = gpumem.OutOfMemoryError(10**6, 10**7, limit=10**8); str(error)\n"
        "error = gpumem.CUDARuntimeError(2); str(error)\n"
        "try: gpumem.malloc(1 << 60)\n"
        "except gpumem.CUDARuntimeError as error: error.status",
        "",
    ),
    "pickling errors": (
        "try:\n"
        "    for error in errors:\n"
        "        assert pickle.loads(pickle.dumps(error)).args == error.args\n"
        "except pickle.PicklingError as error:  # of an import that failed\n"
        "    raise MemoryError from error",
        "errors = [gpumem.OutOfMemoryError(10**6, 1, 2)]\n"
        "try: gpumem.MemoryPool().malloc(1 << 60)\n"
        "except gpumem.OutOfMemoryError as error: errors.append(error)\n"
        "errors.append(gpumem.CUDARuntimeError(2, 'text'))\n"
        "pickle.loads(pickle.dumps(errors))",
    ),
    "what is in use": (
        "gpumem.get_backend(); _core._config(); _core._parse_size('8 GiB')\n"
        "try: _core._parse_size('8 GiBs')\nexcept ValueError: pass",
        "",
    ),
    "the instruments": (
        "p = pool.malloc(10**6); _core._placement(p); _core._sim_ledger()\n"
        "_core._check_pool(pool); _core._last_error(); _core._parse_limit('5%')\n"
        "try: _core._parse_limit('5%%')\nexcept ValueError: pass",
        "",
    ),
    "the log of the device": (
        "n = _core._sim_log_start(); gpumem.malloc(10**6); _core._sim_log_stop(n)",
        "def clean_up(): _core._sim_log_stop(0)",
    ),
    "driving the device": (
        "_core._sim_release(_core._sim_hold(0)); _core._sim_set_delay('set', 0.0)\n"
        "_core._sim_set_fault(0, 0); _core._sim_context_created(0)\n"
        "_core._sim_set_others(0, 0); _core._sim_recycle_handles(True)\n"
        "_core._sim_set_last_error(0); _core._sim_managed(managed.mem.ptr)",
        "managed = gpumem.malloc_managed(512)",
    ),
    # Apart from those: CPython 3.11 does not come out of a handler that stands beyond
    # the 256th instruction of its function while every allocation fails.
    "driving the device the wrong way": (
        "try: _core._sim_set_delay('nothing', 1.0)\nexcept ValueError: pass\n"
        "try: _core._sim_set_others(0, -1)\nexcept ValueError: pass\n"
        "try: _core._sim_managed(8)\nexcept ValueError: pass",
        "",
    ),
    "what the device can do": (
        "before = _core._sim_set_support(0, 15); _core._sim_set_support(0, before)\n"
        "try: _core._sim_set_support(99, 0)\nexcept ValueError: pass\n"
        "_core._sim_make_pool(0)",
        "",
    ),
    "failures on demand": (
        "_core._fail('mem_alloc', 1, 1, 2)\n"
        "try: gpumem.malloc(10**6)\nexcept gpumem.CUDARuntimeError: pass\n"
        "_core._fail_stop()\n"
        "try: _core._fail('nothing', 1, 1, 2)\nexcept ValueError: pass",
        "def clean_up(): _core._fail_stop()",
    ),
}

C_FUNCTIONS = """
functions_kept = (
    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(
        lambda param, size, device: 1 << 40),
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
        lambda param, ptr, device: None),
)
functions = [ctypes.cast(f, ctypes.c_void_p).value for f in functions_kept]
"""
ENTRIES |= EXCHANGE


def program(work, ready):
    functions = C_FUNCTIONS if "functions[" in work else ""
    before = (PRELUDE, "def clean_up(): pass", "" if ready == "C" else ready, functions)
    return "\n".join((*before, "def work():", textwrap.indent(work, "    "), LOOP))


# Where nothing is allocated: the objects come from the lists of dead ones.
WITHOUT_ALLOCATIONS = ("a pool's miss", "trimming a pool", "copies in a stream")
WITH_LISTS = ("MemoryAsyncPool", "hooks of the process", "pickling errors")


@pytest.mark.parametrize("entry", ENTRIES)
def test_whichever_allocation_fails(script, entry):
    if entry in WITH_LISTS and sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this interpreter crashes where a list's items find no memory")
    done = script(program(*ENTRIES[entry]))
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 0 or entry in WITHOUT_ALLOCATIONS


@pytest.mark.parametrize("entry", ON_TWO_DEVICES)
def test_whichever_allocation_fails_with_two_devices(script, entry):
    work, ready = ON_TWO_DEVICES[entry]
    done = script(program(work, STAYS + ready), GPUMEM_SIM_DEVICES="2")
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 0


def test_a_defect_would_be_seen(script):
    """The loop notices a leak, a wrong exception, and memory that is lost."""
    for defect, complaint in (
        ("kept.append(gpumem.malloc(1)); bytearray(9)", "AssertionError"),
        ("try: bytearray(9)\n    except MemoryError: raise KeyError", "KeyError"),
        ("p = pool.malloc(1)\n    kept.append(p); bytearray(9)", "AssertionError"),
    ):
        code = f"{PRELUDE}\nkept = []\ndef clean_up(): pass\ndef work():\n    {defect}"
        done = script(code + LOOP)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(complaint)


LOADING = """
import _imp, atexit, gc, importlib.machinery, os, sys
import _testcapi

# Where it was built: a source tree on the path may hold the package without it.
folders = [os.path.join(entry or ".", "gpumem") for entry in sys.path]
spec = importlib.machinery.PathFinder.find_spec("gpumem._core", folders)

def load():
    module = _imp.create_dynamic(spec)
    _imp.exec_dynamic(module)
    return module

def until_it_passes(step):
    '''What `step` returns once it does, and how often it failed before.'''
    for n in range(10_000):
        _testcapi.set_nomemory(n, 0)
        try: made = step()
        except MemoryError:
            continue
        finally:
            _testcapi.remove_mem_hooks()
        return made, n  # a pair, which is allocated too

module, loads = until_it_passes(load)
backend, opens = until_it_passes(module.get_backend)
pointer = module.MemoryPool().malloc(512)
pointer.memset(1, 512)
print(loads > 100, opens, backend)
"""


def test_loading_and_first_use_can_be_tried_again(script):
    """In one way alone: of a single failure the interpreter, when it makes a type,
    tells nobody."""
    done = script(LOADING, GPUMEM_BACKEND="sim")
    assert done.returncode == 0, done.stderr
    loaded, _, backend = done.stdout.split()
    assert (loaded, backend) == ("True", "sim")
