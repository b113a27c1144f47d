# SPDX-License-Identifier: MIT
"""What the tests of public reports share: plain functions, of use in an interpreter
that a test starts as well."""

import ctypes
import gc
import itertools
import statistics
import sys
import threading
import time
from contextlib import contextmanager, nullcontext

import gpumem
from gpumem import testing

UNIT = 512
KIB = 1 << 10
MIB = 1 << 20

C_MALLOC = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
)
C_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


def on_sim():
    return gpumem.get_backend() == "sim"


# ---- bytes ----


def pattern(size, seed=1):
    """`size` bytes that differ from their neighbours and from those of other seeds."""
    cycle = bytes((seed + 7 * i) % 251 for i in range(251))
    return (cycle * (size // 251 + 1))[:size]


def written(pointer, size, seed=1):
    """Writes pattern(size, seed) to `pointer` and returns the pointer."""
    pointer.copy_from_host(pattern(size, seed), size)
    return pointer


def content(pointer, size):
    host = bytearray(size)
    pointer.copy_to_host(host, size)
    return bytes(host)


# ---- queued work ----


def kept_busy(stream):
    """Queues work that `stream` is not done with for a while: the simulated device runs
    nothing before somebody asks twice, and a GPU fills memory for a tenth of a second
    or so. Returns that memory; to drop it waits for the device."""
    size, times = UNIT, 1
    if not on_sim():
        size, times = min(gpumem.Device().mem_info[0] // 4, 1 << 30), 500
    memory = gpumem.malloc(size)
    for _ in range(times):
        memory.memset_async(0, size, stream)
    return memory


# ---- garbage ----


def in_a_cycle(thing):
    """Makes garbage that holds `thing` and that only the collector finds."""
    cycle = [thing]
    cycle.append(cycle)


@contextmanager
def collector_off():
    """As a program does it that wants no pauses."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def switching_often():
    """Threads take turns as often as the interpreter can make them. A request that is
    refused collects garbage: of what is made meanwhile alone, not of pytest's objects
    each time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)


# ---- what the device saw ----


def device_calls():
    """The call log of the simulated device; elsewhere a list that stays empty."""
    return testing.call_log() if on_sim() else nullcontext([])


def memory_calls(calls):
    """(name, succeeded) of the calls that took device memory or gave it back."""
    return [
        (call.name, call.status == 0)
        for call in calls
        if call.name in ("mem_alloc", "mem_free")
    ]


def most_held(calls, held):
    """The most bytes that were held at once, by the log. `held` has the bytes behind
    each address at its beginning."""
    sizes = dict(held)
    most = sum(sizes.values())
    for call in calls:
        if call.name == "mem_alloc" and call.status == 0:
            sizes[call.ptr] = call.size
        elif call.name == "mem_free":
            del sizes[call.ptr]
        most = max(most, sum(sizes.values()))
    return most


# ---- pools ----


def at_rest(pool):
    """Nothing is live, all that is held is cached, and the structures are whole."""
    testing.check_pool(pool)
    assert (pool.used_bytes(), pool.stats()["live_blocks"]) == (0, 0)
    assert pool.free_bytes() == pool.total_bytes()


class Functions:
    """An allocator's pair of functions over plain device memory, which notes what it
    was asked: `taken` and `freed` are (address, device), in order."""

    def __init__(self):
        self.memories = {}
        self.taken = []
        self.freed = []
        self.sizes = []

    def malloc(self, size, device):
        memory = gpumem.Memory(size)
        self.memories[memory.ptr] = memory
        self.taken.append((memory.ptr, device))
        self.sizes.append(size)
        return memory.ptr

    def free(self, ptr, device):
        self.freed.append((ptr, device))
        del self.memories[ptr]

    def all_came_back_once(self):
        return not self.memories and sorted(self.freed) == sorted(self.taken)


class CFunctions:
    """The same as C functions; they live as long as this object."""

    def __init__(self, functions, param=0x1234):
        self.param = param
        self.params = params = []

        def malloc(param, size, device):
            params.append(param)
            return functions.malloc(size, device)

        def free(param, ptr, device):
            params.append(param)
            functions.free(ptr, device)

        self._thunks = C_MALLOC(malloc), C_FREE(free)
        self.addresses = tuple(
            ctypes.cast(thunk, ctypes.c_void_p).value for thunk in self._thunks
        )

    def allocator(self):
        """A CFunctionAllocator that keeps this object alive, as its owner."""
        return gpumem.CFunctionAllocator(self.param, *self.addresses, self)


def in_step(in_threads, count, rounds, *steps):
    """Takes each of the `steps` in `count` threads at once, one step after the other,
    `rounds` times. A step is called with the thread's index."""
    turn = threading.Barrier(count, timeout=60)

    def work(index):
        try:
            for _ in range(rounds):
                for step in steps:
                    turn.wait()
                    step(index)
        except threading.BrokenBarrierError:
            pass  # another thread failed, and raises what it met
        except BaseException:
            turn.abort()
            raise

    with switching_often():
        in_threads(count, work)


# ---- the machine ----


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def pairs_ns(malloc, sizes, pairs=1000, rounds=21):
    """Nanoseconds of processor time that a request and its free take: the median of
    many short rounds, in which a busy machine does not count."""
    times = []
    for _ in range(rounds):
        turn = list(itertools.islice(itertools.cycle(sizes), pairs))
        start = time.thread_time_ns()
        for size in turn:
            malloc(size)
        times.append((time.thread_time_ns() - start) / pairs)
    return statistics.median(times)
