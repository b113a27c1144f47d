# SPDX-License-Identifier: MIT
"""The end of an interpreter, and a forked child: silent, with the right exit status,
whatever is still held."""

import concurrent.futures
import itertools
import sys
import time

import pytest

PRELUDE = """
import atexit, builtins, gc, os, signal, sys, threading, time
import gpumem
class Log(gpumem.MemoryHook):
    told = 0
    def malloc_postprocess(self, **kwargs): self.told += 1
    def free_postprocess(self, **kwargs): self.told += 1
pool = gpumem.MemoryPool()
gpumem.set_allocator(pool.malloc)
pointer = gpumem.alloc(1000)
raw = gpumem.malloc(1000)
stream, event = gpumem.Stream(), gpumem.Event()
pointer.memset_async(1, 1000, stream)
"""

ENDINGS = {
    "falls off": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "pool first": ("del pool", 0),
    "a cycle": ("ring = [pool.malloc(1), raw]; ring.append(ring); del ring", 0),
    "builtins": ("builtins.kept = [pool, pool.malloc(1), raw, stream]", 0),
    "a thread local": ("local = threading.local(); local.kept = pool.malloc(1)", 0),
    "a stream in use": ("stream.use(); kept = pool.malloc(1)", 0),
    "a scope left open": (
        "scope = gpumem.using_allocator(pool.malloc); scope.__enter__()\n"
        "stream.__enter__()",
        0,
    ),
    "a base allocator": (
        "over = gpumem.MemoryPool(lambda n: pool.malloc(n)); kept = over.malloc(1)",
        0,
    ),
    "a base allocator in a cycle": (
        "class C:\n"
        "    def __init__(self): self.pool = gpumem.MemoryPool(self.malloc)\n"
        "    def malloc(self, n): return gpumem.malloc(n)\n"
        "kept = C().pool.malloc(1)",
        0,
    ),
    "atexit": (
        "def last(held=[pointer, raw]):\n"
        "    held.clear()\n"
        "    assert gpumem.alloc(5).mem.size == 512\n"
        "    assert gpumem.malloc(5).mem.size == 5\n"
        "    gpumem.alloc(1 << 20).memset(0, 1 << 20)\n"
        "    pool.free_all_blocks()\n"
        "atexit.register(last)",
        0,
    ),
    "a destructor": (
        "class Late:\n"
        "    def __init__(self, pool): self.pool, self.held = pool, pool.malloc(1)\n"
        "    def __del__(self):\n"
        "        self.pool.malloc(1 << 20); self.pool.free_all_blocks()\n"
        "kept = Late(pool)",
        0,
    ),
    "the module forgotten": (
        "for name in [n for n in sys.modules if n.startswith('gpumem')]:\n"
        "    del sys.modules[name]\n"
        "del gpumem; gc.collect()",
        0,
    ),
    "a hook that is active": ("log = Log(); log.__enter__()", 0),
    "a hook that is active in a thread too": (
        "log = Log(); log.__enter__()\n"
        "def work():\n"
        "    Log().__enter__(); kept.append(pool.malloc(1))\n"
        "kept = []\n"
        "threading.Thread(target=work).start()",
        0,
    ),
    "a hook that allocates": (
        "class Again(gpumem.MemoryHook):\n"
        "    def free_postprocess(self, **kwargs): gpumem.malloc(1)\n"
        "hook = Again(); hook.__enter__(); pool.malloc(1)",
        0,
    ),
    "an unraisablehook": (
        "from gpumem import *\n"
        "del pointer, raw; sys.unraisablehook = lambda report: None",
        0,
    ),
    "functions of the program": (
        "made = gpumem.PythonFunctionAllocator(\n"
        "    lambda size, device: raw.ptr, lambda ptr, device: None)\n"
        "kept = [made.malloc(8), gpumem.MemoryPool(made.malloc).malloc(1)]",
        0,
    ),
    "memory of an owner that refers back": (
        "class Owner: pass\n"
        "owner = Owner()\n"
        "owner.mem = gpumem.UnownedMemory(raw.ptr, 1000, owner)\n"
        "owner.pointer = gpumem.MemoryPointer(owner.mem, 5)",
        0,
    ),
    "a thread local of a daemon thread": (
        "def work():\n"
        "    local.kept = pool.malloc(1); started.set(); time.sleep(60)\n"
        "local, started = threading.local(), threading.Event()\n"
        "threading.Thread(target=work, daemon=True).start(); started.wait()",
        0,
    ),
    "SIGTERM with a handler": (
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "while True: pool.malloc(4096)",
        7,
    ),
    "os._exit": ("os._exit(4)", 4),
    "a daemon thread": (
        "def churn():\n"
        "    kept = []\n"
        "    while True:\n"
        "        kept.append(pool.malloc(4096)); del kept[:-5]\n"
        "        pool.stats(); gpumem.malloc(10)\n"
        "for _ in range(3): threading.Thread(target=churn, daemon=True).start()\n"
        "time.sleep(0.05)",
        0,
    ),
    "a thread that outlives the main one": (
        "def work():\n"
        "    time.sleep(0.05)\n"
        "    assert gpumem.alloc(4096).mem.size == 4096\n"
        "threading.Thread(target=work).start()",
        0,
    ),
}

# Handlers run latest first, so one that was registered before the import runs when the
# memory is already left to the process's end.
BEFORE_IMPORT = """
import atexit, sys
def last():
    import gpumem
    pointer = gpumem.alloc(5)
    gpumem.malloc(5)
    pointer.memset(0, 5)
    print(pointer.mem.size, pool.used_bytes())
atexit.register(last)
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interpreter_ends_silently(script, ending):
    code, status = ENDINGS[ending]
    done = script(PRELUDE + code)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.skipif(sys.flags.dev_mode, reason="is in development mode already")
@pytest.mark.parametrize("ending", ["falls off", "atexit", "a daemon thread"])
def test_an_interpreter_ends_silently_in_development_mode(script, ending):
    code, status = ENDINGS[ending]
    done = script(PRELUDE + code, options=("-X", "dev"))
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


# Its globals, and the library in them, are garbage that the interpreter collects last.
OUTLIVES = """
import sys
import gpumem
from gpumem import *
first, second = gpumem.malloc(8), gpumem.malloc(8)
pooled = gpumem.MemoryPool().malloc(8)
del first, second, pooled
sys.unraisablehook = lambda report: None
"""


@pytest.mark.parametrize("options", [(), ("-X", "dev")])
def test_a_hook_of_the_interpreter_that_outlives_the_modules(script, options):
    done = script(OUTLIVES, options=options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_fifty_exits_are_silent_and_quick(script):
    """In all ways in turn, two interpreters at a time: under a second from the last
    statement to the end. A busy machine has a second attempt."""

    def leave(ending):
        code, status = ENDINGS[ending]
        told = "sys.stderr.write(str(time.monotonic())); sys.stderr.flush()\n"
        done = script(PRELUDE + told + code)
        took = time.monotonic() - float(done.stderr)  # which fails if there is more
        assert (ending, done.returncode, done.stdout) == (ending, status, "")
        return took

    endings = list(itertools.islice(itertools.cycle(ENDINGS), 50))
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        for ending, took in zip(endings, executor.map(leave, endings), strict=True):
            assert took < 1 or leave(ending) < 1, ending


def test_an_uncaught_exception_is_all_that_is_printed(script):
    done = script(PRELUDE + "raise KeyError(pointer.mem.size)")
    assert done.returncode == 1
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if not line.startswith(" ")]
    assert said == ["Traceback (most recent call last):", "KeyError: 1024"]


def test_a_handler_that_runs_after_ours_can_still_allocate(script):
    done = script(BEFORE_IMPORT + PRELUDE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "512 1536\n", "")


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("when", "freed"), [("before", []), ("after", ["mem_free", "mem_free"])]
)
def test_only_what_dies_before_the_end_is_given_back(script, when, freed):
    """A handler that was registered before the import runs after our own, and finds
    that the memory is left to the end of the process."""
    last = """
import atexit
def last():
    global pointer, pool, raw
    from gpumem import testing
    gpumem.set_allocator(None)
    with testing.call_log() as calls:
        del pointer, pool, raw
        gpumem.Device().synchronize()  # a stream of its own still used the pointer
    print([call.name for call in calls if "free" in call.name])
atexit.register(last)
"""
    done = script(last + PRELUDE if when == "before" else PRELUDE + last)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{freed}\n", "")


def test_an_interpreter_that_used_no_device_ends_silently(script):
    done = script("import gpumem; pool = gpumem.MemoryPool(); kept = pool.malloc")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_end_is_quick(script):
    code = "kept = [pool.malloc(512) for _ in range(20000)]"
    done = script(PRELUDE + code, timeout=10)
    assert (done.returncode, done.stderr) == (0, "")


# ---- fork ----

# The driver has threads of its own, about which Python warns whoever forks.
FORK = """
import os, sys, traceback, warnings
warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
def child(work):
    '''Runs `work` in a forked child and ends it as Python does; its exit status.'''
    sys.stdout.flush()
    number = os.fork()
    if number == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.exit(9)
        sys.exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
"""


def test_a_forked_child_with_inherited_memory_ends_silently(script):
    code = """
def work():
    global pointer, pool, raw, stream, event
    del pointer, raw, stream, event
    gc.collect()
    del pool
    gpumem.set_allocator(None)
print(child(work), child(lambda: None))
assert pool.used_bytes() == 1024
pointer.memset(0, 1000)
"""
    done = script(PRELUDE + FORK + code)
    assert (done.stderr, done.stdout) == ("", "5 5\n")


@pytest.mark.parametrize(
    "request_",
    [
        "gpumem.malloc(512)",
        "gpumem.alloc(512)",
        "pool.malloc(512)",
        "pool.malloc(1 << 20)",
        "gpumem.MemoryPool().malloc(512)",
        "gpumem.SingleDeviceMemoryPool().malloc(512)",
        "gpumem.Memory(512)",
        "pool.used_bytes()",
        "pool.stats()",
        "pool.set_limit(size=1)",
        "pool.free_all_blocks()",
    ],
)
def test_a_forked_child_is_told_why_it_gets_no_memory(script, request_):
    code = f"""
pool.malloc(512)  # so that the parent's cache could serve it
def work():
    try:
        {request_}
    except RuntimeError as error:
        assert type(error) is RuntimeError, error
        assert "fork" in str(error) and "spawn" in str(error), error
    else:
        raise AssertionError("memory in a forked child")
print(child(work))
"""
    done = script(PRELUDE + FORK + code)
    assert (done.stderr, done.stdout) == ("", "5\n")


def test_a_child_of_a_process_that_used_no_device_is_free_to(script):
    code = """
import gpumem
pool = gpumem.MemoryPool()
def work():
    pointer = pool.malloc(512)
    pointer.memset(0, 512)
print(child(work), pool.malloc(1).mem.size)
"""
    done = script(FORK + code)
    assert (done.stderr, done.stdout) == ("", "5 512\n")


def test_a_child_forked_while_others_hold_the_pool_does_not_hang(script):
    code = """
def churn():
    while True:
        pool.malloc(512)
for _ in range(3):
    threading.Thread(target=churn, daemon=True).start()
sys.setswitchinterval(1e-6)
def work():
    global pointer
    del pointer
for _ in range(10):
    assert child(work) == 5
"""
    done = script(PRELUDE + FORK + code, options=("-W", "ignore::DeprecationWarning"))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.sim_only
def test_a_child_forked_while_others_call_the_device_does_not_hang(script):
    """The simulated device and what injects its failures have a lock each, which
    another thread may hold at the fork."""
    code = """
from gpumem import testing
device = gpumem.Device()
def churn():
    while True:
        device.mem_info, device.synchronize(), testing.ledger()
for _ in range(3):
    threading.Thread(target=churn, daemon=True).start()
sys.setswitchinterval(1e-6)
def work():
    for request in (lambda: device.mem_info, device.synchronize):
        try:
            request()
        except RuntimeError as error:
            assert type(error) is RuntimeError, error
            assert "fork" in str(error) and "spawn" in str(error), error
        else:
            raise AssertionError("a device in a forked child")
    try:
        with testing.fail("mem_info"):
            raise AssertionError("a plan in a forked child")
    except RuntimeError as error:
        assert "fork" in str(error), error
    assert testing.ledger().allocations == 0
    with testing.call_log() as calls:
        pass
    assert calls == []
for _ in range(20):
    assert child(work) == 5
"""
    done = script(PRELUDE + FORK + code, options=("-W", "ignore::DeprecationWarning"))
    assert (done.returncode, done.stderr) == (0, "")
