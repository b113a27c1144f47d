# SPDX-License-Identifier: MIT
"""Memory hooks of the whole process: every thread is told of, each free pairs with its
malloc, and nothing is paid once the last hook is gone."""

import gc
import io
import json
import threading
import time
import weakref

import pytest

import gpumem
from gpumem import MemoryHook, add_process_hook, remove_process_hook
from gpumem.memory_hooks import DebugPrintHook, LineProfileHook
from test_memory_hooks import CALLBACKS, Boom, Recorder, raiser
from test_speed import measured

UNIT = 512
MIB = 1 << 20


class Told(MemoryHook):
    """Notes (thread, callback, pmem_id) of mallocs and frees that were done."""

    def __init__(self, name="told"):
        self.name = name
        self.log = []

    def malloc_postprocess(self, **kwargs):
        self.log.append((threading.get_ident(), "malloc", kwargs["pmem_id"]))

    def free_postprocess(self, **kwargs):
        self.log.append((threading.get_ident(), "free", kwargs["pmem_id"]))

    def live(self):
        """The ids that are out, after checking that mallocs and frees take turns."""
        out = set()
        for _, what, ident in self.log:
            assert (what == "free") == (ident in out), (what, ident)
            (out.remove if what == "free" else out.add)(ident)
        return out


@pytest.fixture
def installed():
    """A function that adds a hook to the process until the end of the test."""
    hooks = []

    def install(hook):
        add_process_hook(hook)
        hooks.append(hook)
        return hook

    yield install
    for hook in hooks:
        remove_process_hook(hook)


# ---- who is told of what ----


def test_what_other_threads_do_is_told_too(pool, installed, in_threads):
    hook = installed(Told())
    mine = threading.get_ident()
    kept = pool.malloc(MIB)

    def work(index):
        pointer = pool.malloc(MIB)
        pool.malloc(UNIT)
        return threading.get_ident(), pointer

    results = in_threads(2, work)
    addresses = {pointer.ptr for _, pointer in results}
    assert len(addresses) == 2
    workers = {ident for ident, _ in results}
    assert {thread for thread, _, _ in hook.log} == {mine} | workers
    # What a worker allocated is freed here, and pairs all the same.
    idents = {id(pointer.mem) for _, pointer in results}
    assert hook.live() == {id(kept.mem)} | idents
    del results, kept
    assert hook.live() == set()
    assert [entry[0] for entry in hook.log[-3:]] == [mine] * 3


def test_a_thread_that_ran_before_the_hook_was_added_is_told_of(pool, installed):
    ready, go, done = (threading.Event() for _ in range(3))

    def work():
        pool.malloc(UNIT)
        ready.set()
        go.wait(30)
        pool.malloc(UNIT)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(30)
    hook = installed(Told())
    go.set()
    assert done.wait(30)
    thread.join(60)
    assert not thread.is_alive()
    assert [what for _, what, _ in hook.log] == ["malloc", "free"]


def test_frees_by_the_collector_of_another_thread_are_told(pool, installed, in_threads):
    hook = installed(Told())
    gc.collect()
    gc.disable()
    try:

        def leave_a_cycle(_):
            cycle = [pool.malloc(UNIT)]
            cycle.append(cycle)

        in_threads(1, leave_a_cycle)
        assert len(hook.live()) == 1
        gc.collect()
    finally:
        gc.enable()
    assert hook.live() == set()
    assert hook.log[0][0] != hook.log[-1][0] == threading.get_ident()


def test_mallocs_and_frees_of_many_threads_pair_up_by_their_id(
    pool, installed, in_threads
):
    hook = installed(Told())
    shelf = []

    def work(index):
        for step in range(200):
            shelf.append(pool.malloc(UNIT * (1 + step % 7)))
            if step % 3:
                try:
                    shelf.pop(0)
                except IndexError:
                    pass

    in_threads(4, work)
    assert hook.live() == {id(pointer.mem) for pointer in shelf}
    shelf.clear()
    assert hook.live() == set()
    assert len(hook.log) == 2 * 4 * 200


def test_what_is_told_is_what_a_thread_of_its_own_is_told(pool, installed):
    everywhere = installed(Recorder("process"))
    with Recorder("thread") as own:
        pool.malloc(1000)
        pool.malloc(0)
    assert len(own.log) == 8
    assert [entry[1:] for entry in everywhere.log] == [entry[1:] for entry in own.log]


# ---- order, names, adding and removing ----


def test_hooks_of_the_process_are_called_before_those_of_the_thread(pool, installed):
    log = []
    with Recorder("inner", log):
        installed(Recorder("second", log))
        installed(Recorder("first", log))
        pool.malloc(UNIT)
    assert [name for name, _, _ in log] == ["second", "first", "inner"] * 6
    assert [callback for _, callback, _ in log[::3]] == list(CALLBACKS)


def test_a_hook_that_is_both_is_called_once(pool, installed):
    hook = installed(Recorder())
    with hook:
        pool.malloc(UNIT)
    assert hook.names() == list(CALLBACKS)


def test_a_name_is_taken_once_in_the_process_and_once_in_the_thread(installed):
    first = installed(Recorder("same"))
    with pytest.raises(KeyError, match="process has a memory hook named 'same'"):
        add_process_hook(Recorder("same"))
    with pytest.raises(KeyError, match="process has"):
        add_process_hook(first)
    with Recorder("same"):
        pass


def test_only_the_hook_that_was_added_can_be_removed(installed):
    hook = installed(Recorder("same"))
    with pytest.raises(KeyError, match="does not have the memory hook"):
        remove_process_hook(Recorder("same"))
    with pytest.raises(KeyError, match="does not have"):
        remove_process_hook(Recorder("other"))
    with hook, pytest.raises(KeyError):
        remove_process_hook(MemoryHook())


@pytest.mark.parametrize("function", [add_process_hook, remove_process_hook])
def test_what_is_no_hook_is_refused(function):
    for wrong in (None, object(), MemoryHook, "name"):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            function(wrong)


def test_a_removed_hook_is_told_nothing_more_and_is_let_go(pool):
    hook = Told()
    add_process_hook(hook)
    pointer = pool.malloc(UNIT)
    remove_process_hook(hook)
    del pointer
    assert [what for _, what, _ in hook.log] == ["malloc"]
    watch = weakref.ref(hook)
    del hook
    assert watch() is None


def test_a_hook_may_remove_itself_in_a_callback(pool):
    class Once(Told):
        def malloc_preprocess(self, **kwargs):
            remove_process_hook(self)

    hook = Once()
    add_process_hook(hook)
    pool.malloc(UNIT)
    assert [what for _, what, _ in hook.log] == ["malloc"]  # that had begun
    with pytest.raises(KeyError):
        remove_process_hook(hook)


def test_an_error_on_the_way_to_remove_a_threads_hook_is_not_hidden():
    """Only a name that is not there is a KeyError."""
    with Recorder(), pytest.raises(TypeError, match="unhashable"):
        gpumem._core._remove_hook([])
    with pytest.raises(KeyError, match="no memory hook named 'nobody'"):
        gpumem._core._remove_hook("nobody")


# ---- errors ----


@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_hook_that_raises_loses_nothing(pool, installed, unraisable, callback):
    bad, other = raiser(callback), Recorder("other")
    installed(bad)
    installed(other)
    frees = callback.startswith("free")
    if frees:
        pool.malloc(UNIT)
    else:
        with pytest.raises(Boom):
            pool.malloc(UNIT)
    assert pool.used_bytes() == 0
    assert [type(error) for error in unraisable] == [Boom] * frees
    assert other.names().count("malloc_preprocess") == 1
    assert other.names().count("malloc_postprocess") == 1
    assert other.names().count("free_preprocess") == other.names().count(
        "free_postprocess"
    )


# ---- the ready-made hooks ----


def test_lines_that_threads_print_do_not_mix(pool, installed, in_threads):
    class Slow(io.TextIOBase):
        """Lets others run between any two writes."""

        def write(self, text):
            written.append(text)
            time.sleep(0)
            return len(text)

    written = []
    installed(DebugPrintHook(Slow()))
    in_threads(4, lambda _: [pool.malloc(UNIT) for _ in range(50)])
    lines = [json.loads(line) for line in "".join(written).splitlines()]
    count = {kind: sum(line["hook"] == kind for line in lines) for kind in ("malloc",)}
    assert count == {"malloc": 200}


def test_a_profile_of_many_threads_adds_up(pool, installed, in_threads):
    hook = installed(LineProfileHook())
    in_threads(4, lambda _: [pool.malloc(UNIT) for _ in range(100)])
    report = io.StringIO()
    hook.print_report(report)
    assert report.getvalue().startswith(f"_root ({4 * 100 * UNIT / 1024:.2f}KB, ")


# ---- the end, and what it costs ----


def test_a_process_ends_silently_with_a_hook_and_memory_out(script):
    code = """
import gpumem

class Loud(gpumem.MemoryHook):
    def free_postprocess(self, **kwargs):
        print("freed")

pool = gpumem.MemoryPool()
hook = Loud()
hook.pool = pool
gpumem.add_process_hook(hook)
kept = pool.malloc(512)
pool.malloc(512)
"""
    done = script(code, options=("-X", "dev"), GPUMEM_BACKEND="sim")
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\n", "")


def test_a_thread_that_ends_with_hooks_in_force_costs_nobody_else(script):
    """Its hooks end with it, and with them the look at who has any."""
    code = """
import threading
for _ in range(3):
    thread = threading.Thread(target=gpumem.MemoryHook().__enter__)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
names = {"malloc": pool.malloc, "object": object}
print(best(2, lambda: ratio("malloc(4096)", "object()", names)))
"""
    assert measured(script, code) <= 2.5  # 2 is test_speed.py's, on its own


def test_a_hook_that_was_removed_costs_nothing(script):
    """Time is back to that of a process that never had one, and so is memory."""
    code = """
import resource, tracemalloc

class Hook(gpumem.MemoryHook):
    pass

names = {"malloc": pool.malloc, "object": object}
pool.malloc(4096)

def rounds():
    for _ in range(50):
        hook = Hook()
        gpumem.add_process_hook(hook)
        for _ in range(100):
            pool.malloc(4096)
        gpumem.remove_process_hook(hook)

rounds()
tracemalloc.start()
rounds()
before = tracemalloc.get_traced_memory()[0]
rounds()
assert tracemalloc.get_traced_memory()[0] - before < 4096
tracemalloc.stop()
print(best(2, lambda: ratio("malloc(4096)", "object()", names)))
"""
    assert measured(script, code) <= 2.5  # 2 is test_speed.py's, on its own
