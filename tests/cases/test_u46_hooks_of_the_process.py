# SPDX-License-Identifier: MIT
"""A profiler that was installed in the main thread missed what worker threads did, and
the frees that the collector did elsewhere. cupy#264, torch#192290,
https://github.com/cupy/cupy/issues/264"""

import gc
import threading

import pytest
from casekit import UNIT, collector_off, in_a_cycle

from gpumem import MemoryHook, add_process_hook, remove_process_hook

MB = 1_000_000

pytestmark = pytest.mark.timeout(60)


class Told(MemoryHook):
    """(thread, what, id, address) of all that was done, in order."""

    name = "told"

    def __init__(self):
        self.log = []

    def malloc_postprocess(self, **kwargs):
        self.log.append(self.entry("malloc", kwargs))

    def free_postprocess(self, **kwargs):
        self.log.append(self.entry("free", kwargs))

    @staticmethod
    def entry(what, kwargs):
        return threading.get_ident(), what, kwargs["pmem_id"], kwargs["mem_ptr"]

    def live(self):
        """Addresses by id, after each free was paired with the malloc of its id."""
        found = {}
        for _, what, ident, address in self.log:
            if what == "malloc":
                assert ident not in found
                found[ident] = address
            else:
                assert found.pop(ident) == address
        return found


@pytest.fixture
def of_the_process():
    hook = Told()
    add_process_hook(hook)
    yield hook
    remove_process_hook(hook)


def test_u46_the_hook_of_a_thread_is_that_threads_alone(pool, in_threads):
    """The documented scope."""
    assert "calling thread" in " ".join(MemoryHook.__doc__.split())
    with Told() as hook:
        (pointer,) = in_threads(1, lambda index: pool.malloc(MB))
        assert hook.log == []
        del pointer  # a free of this thread's, of what it was never told
        assert [entry[1] for entry in hook.log] == ["free"]


def test_u46_one_of_the_process_sees_workers(pool, in_threads, of_the_process):
    hook, mine = of_the_process, threading.get_ident()

    def work(index):
        return threading.get_ident(), pool.malloc(MB)

    ((worker, pointer),) = in_threads(1, work)
    assert hook.log == [(worker, "malloc", id(pointer.mem), pointer.ptr)]
    address = pointer.ptr
    del pointer
    assert hook.log[1:] == [(mine, "free", hook.log[0][2], address)]
    assert hook.live() == {}


def test_u46_and_what_the_collector_frees_elsewhere(pool, in_threads, of_the_process):
    hook, mine = of_the_process, threading.get_ident()

    def work(index):
        in_a_cycle(pool.malloc(MB))
        return threading.get_ident()

    with collector_off():
        workers = set(in_threads(2, work))
        assert {entry[0] for entry in hook.log} <= workers
        assert len(hook.live()) == 2
        gc.collect()
    assert hook.live() == {}
    assert [entry[:2] for entry in hook.log[2:]] == [(mine, "free")] * 2


def test_u46_every_event_of_many_threads_pairs_up(pool, in_threads, of_the_process):
    shelf = []

    def work(index):
        for i in range(150):
            shelf.append(pool.malloc(UNIT * (1 + (i + index) % 9)))
            if i % 2:
                try:
                    shelf.pop(0)
                except IndexError:
                    pass

    in_threads(6, work)
    hook = of_the_process
    assert hook.live() == {id(p.mem): p.ptr for p in shelf}
    assert sum(entry[1] == "malloc" for entry in hook.log) == 6 * 150
    shelf.clear()
    assert hook.live() == {}


def test_u46_after_its_removal_it_is_told_nothing(pool, in_threads):
    hook = Told()
    add_process_hook(hook)
    pool.malloc(UNIT)
    remove_process_hook(hook)
    told = len(hook.log)
    in_threads(1, lambda index: pool.malloc(UNIT))
    pool.malloc(UNIT)
    assert len(hook.log) == told == 2
    with pytest.raises(KeyError):
        remove_process_hook(hook)
