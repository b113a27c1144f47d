# SPDX-License-Identifier: MIT
"""At the interpreter's end, memory that was still held complained that what it needed
was None already, met no context, or ended the process with a signal. cupy#2658,
cupy#2777, cupy#2116, inducer/pycuda#74, cudapy#973, cudapy#1063,
https://github.com/cupy/cupy/issues/2658"""

import concurrent.futures
import itertools
import time

import pytest

EXITS = 200
SECONDS = 1

PRELUDE = """
import atexit, builtins, gc, os, signal, sys, threading, time
import gpumem
class Log(gpumem.MemoryHook):
    told = 0
    def malloc_postprocess(self, **kwargs): self.told += 1
    def free_postprocess(self, **kwargs): self.told += 1
pool = gpumem.MemoryPool()
gpumem.set_allocator(pool.malloc)
pointer, raw, stream = gpumem.alloc(1000), gpumem.malloc(1000), gpumem.Stream()
pointer.memset_async(1, 1000, stream)
hook = Log()
hook.__enter__()
local = threading.local()
"""

# What is held at the end, beside the globals of the prelude.
HELD = {
    "globals": "",
    "a cycle": "ring = [pool.malloc(1), raw, pool]; ring.append(ring); del ring",
    "a thread local": "local.kept = pool.malloc(1)",
    "builtins": "builtins.kept = [pool, pool.malloc(1), raw, stream, hook]",
    "an atexit closure": "atexit.register(lambda held: held.clear(), [pointer, pool])",
    "a daemon thread": """
def churn():
    with Log():
        kept = []
        while True:
            kept.append(pool.malloc(4096)); del kept[:-5]
            pool.stats(); gpumem.malloc(10)
threading.Thread(target=churn, daemon=True).start()
time.sleep(0.01)
""",
    "an unraisablehook": """
from gpumem import *
del pointer, raw
sys.unraisablehook = lambda report: None
""",
    "pointers without their pool": "gpumem.set_allocator(None); del pool; gc.collect()",
    "memory without its module": """
for name in [name for name in sys.modules if name.startswith('gpumem')]:
    del sys.modules[name]
del gpumem
""",
}
# How it ends: the code, the exit status, and the last line on stderr.
ENDS = {
    "falls off": ("", 0, ""),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "an uncaught exception": ("raise KeyError('own')", 1, "KeyError: 'own'"),
    "SIGTERM": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "while True: time.sleep(0.01)",
        7,
        "",
    ),
}
MARK = "the end begins at "


def ended(script, held, end):
    """Ends an interpreter; returns how many seconds its end took."""
    code, status, last = ENDS[end]
    told = f"print({MARK!r} + str(time.monotonic()), flush=True)\n"
    done = script(PRELUDE + HELD[held] + "\n" + told + code)
    took = time.monotonic() - float(done.stdout.removeprefix(MARK))
    lines = done.stderr.splitlines()
    assert (held, end, done.returncode) == (held, end, status), done.stderr
    if not last:
        assert done.stderr == "", (held, end)
    else:  # its traceback, and nothing else
        assert lines[0] == "Traceback (most recent call last):"
        assert all(line.startswith(" ") for line in lines[1:-1])
        assert lines[-1] == last
    return took


@pytest.mark.timeout(300)
def test_u49_two_hundred_exits_are_silent_and_quick(script):
    """Whatever is held, in whichever way it ends; two at a time. A busy machine has a
    second attempt at being quick."""

    def attempt(pair):
        took = ended(script, *pair)
        return pair, took if took < SECONDS else ended(script, *pair)

    pairs = list(
        itertools.islice(itertools.cycle(itertools.product(HELD, ENDS)), EXITS)
    )
    assert len(set(pairs)) == len(HELD) * len(ENDS)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        for pair, took in executor.map(attempt, pairs):
            assert took < SECONDS, pair


@pytest.mark.parametrize("held", HELD)
def test_u49_it_is_silent_in_development_mode(script, held):
    done = script(PRELUDE + HELD[held], options=("-X", "dev"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Handlers run latest first: one that is registered before the import runs when the
# library has been told that the process ends.
LAST = """
import atexit
def last():
    global hook, kept, pointer, pool, raw
    from gpumem import testing
    hook.__exit__()
    gpumem.set_allocator(None)
    with testing.call_log() as calls:
        del kept, pointer, pool, raw
    print(sorted(call.name for call in calls if "free" in call.name))
"""
REGISTERED = "atexit.register(last)\n"
KEPT = "kept = pool.malloc(1 << 20)\n"


def test_u49_a_driver_that_may_be_gone_is_not_asked(script):
    """What dies after that goes with the process; what dies before is given back."""
    environ = {"GPUMEM_BACKEND": "sim"}
    after = script(LAST + REGISTERED + PRELUDE + KEPT, **environ)
    assert (after.returncode, after.stdout, after.stderr) == (0, "[]\n", "")
    before = script(PRELUDE + KEPT + LAST + REGISTERED, **environ)
    freed = ["mem_free", "mem_free", "mem_free"]
    assert (before.returncode, before.stdout, before.stderr) == (0, f"{freed}\n", "")
