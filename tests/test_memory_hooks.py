# SPDX-License-Identifier: MIT
"""Memory hooks: who is told of what, with which numbers, in which order; what a hook
that raises cannot do; and that nothing is paid where there is none."""

import gc
import sys
import threading

import pytest

import gpumem
from gpumem import MemoryHook, MemoryPool, OutOfMemoryError, testing
from test_speed import measured

UNIT = 512
MIB = 1 << 20
CALLBACKS = (
    *("malloc_preprocess", "alloc_preprocess", "alloc_postprocess"),
    *("malloc_postprocess", "free_preprocess", "free_postprocess"),
)


class Recorder(MemoryHook):
    """Notes (its name, callback, keyword arguments) in a list that can be shared."""

    def __init__(self, name="recorder", log=None):
        self.name = name
        self.log = [] if log is None else log

    def names(self):
        return [callback for _, callback, _ in self.log]


def _noting(callback):
    def note(self, **kwargs):
        self.log.append((self.name, callback, kwargs))

    return note


for _callback in CALLBACKS:
    setattr(Recorder, _callback, _noting(_callback))


class Boom(Exception):
    pass


def raiser(callback):
    """A hook that notes as a Recorder does, then raises in one callback."""

    def note_and_raise(self, **kwargs):
        self.log.append((self.name, callback, kwargs))
        raise Boom(callback)

    return type("Raiser", (Recorder,), {callback: note_and_raise})("raiser")


def at(device_id, mem_size, **more):
    return {"device_id": device_id, "mem_size": mem_size, **more}


# ---- who is told of what ----


def test_a_miss_a_hit_and_both_frees(pool):
    device = gpumem.get_device_id()
    with Recorder() as hook:
        pointer = pool.malloc(1000)
        address, ident = pointer.ptr, id(pointer.mem)
        del pointer
    block = at(device, 2 * UNIT, mem_ptr=address, pmem_id=ident)
    assert [(callback, kwargs) for _, callback, kwargs in hook.log] == [
        ("malloc_preprocess", at(device, 2 * UNIT, size=1000)),
        ("alloc_preprocess", at(device, 2 * UNIT)),
        ("alloc_postprocess", at(device, 2 * UNIT, mem_ptr=address)),
        ("malloc_postprocess", {"size": 1000, **block}),
        ("free_preprocess", block),
        ("free_postprocess", block),
    ]
    hook.log.clear()
    with hook:  # from the cache: the device is not asked
        pointer = pool.malloc(700)
        ident = id(pointer.mem)
        pointer.mem.free()
        pointer.mem.free()  # it went already
        del pointer
    block = at(device, 2 * UNIT, mem_ptr=address, pmem_id=ident)
    assert [(callback, kwargs) for _, callback, kwargs in hook.log] == [
        ("malloc_preprocess", at(device, 2 * UNIT, size=700)),
        ("malloc_postprocess", {"size": 700, **block}),
        ("free_preprocess", block),
        ("free_postprocess", block),
    ]


@pytest.mark.two_devices
def test_a_hook_is_told_the_device_whichever_is_current_at_the_free(pool):
    with Recorder() as hook:
        with gpumem.Device(1):
            pointer = pool.malloc(UNIT)
        del pointer
    assert len(hook.log) == 6
    assert {kwargs["device_id"] for _, _, kwargs in hook.log} == {1}


def test_several_hooks_are_called_in_the_order_of_their_entry(pool):
    log = []
    with Recorder("b", log), Recorder("a", log), Recorder("c", log):
        pool.malloc(UNIT)
    assert [name for name, _, _ in log] == ["b", "a", "c"] * 6
    assert [callback for _, callback, _ in log[::3]] == list(CALLBACKS)
    assert log[0::3] == [("b", *entry[1:]) for entry in log[1::3]]


def test_each_callback_has_arguments_of_its_own(pool):
    class Greedy(Recorder):
        def malloc_preprocess(self, **kwargs):
            kwargs.clear()

    with Greedy("first"), Recorder() as second:
        pool.malloc(UNIT)
    assert second.log[0][2] == at(gpumem.get_device_id(), UNIT, size=UNIT)


def test_a_request_for_nothing_takes_and_frees_nothing(pool):
    with Recorder() as hook:
        pointer = pool.malloc(0)
        ident = id(pointer.mem)
        del pointer
    device = gpumem.get_device_id()
    assert [entry[1:] for entry in hook.log] == [
        ("malloc_preprocess", at(device, 0, size=0)),
        ("malloc_postprocess", at(device, 0, size=0, mem_ptr=0, pmem_id=ident)),
    ]


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**64 - 512])
def test_a_request_that_cannot_be_is_told_as_a_failure(pool, size):
    with Recorder() as hook, pytest.raises(OutOfMemoryError):
        pool.malloc(size)
    assert hook.names() == ["malloc_preprocess", "malloc_postprocess"]
    assert hook.log[-1][2] == at(
        gpumem.get_device_id(), size, size=size, mem_ptr=0, pmem_id=0
    )


def test_no_device_is_asked_where_the_limit_says_no(pool):
    pool.set_limit(size=UNIT)
    with Recorder() as hook, pytest.raises(OutOfMemoryError):
        pool.malloc(2 * UNIT)
    assert hook.names() == ["malloc_preprocess", "malloc_postprocess"]
    assert (hook.log[-1][2]["mem_ptr"], hook.log[-1][2]["pmem_id"]) == (0, 0)


@pytest.mark.sim_only
@pytest.mark.parametrize("failures", [1, 2])
def test_each_attempt_on_the_device_is_told(pool, failures):
    pool.malloc(UNIT)  # something idle, so that there is a second attempt
    asked = pool.stats()["upstream_allocations"]
    with Recorder() as hook, testing.fail("mem_alloc", count=failures):
        pointer = pool.malloc(2 * UNIT)
    address = pointer.ptr
    assert pool.stats()["upstream_allocations"] == asked + 1
    attempt = ["alloc_preprocess", "alloc_postprocess"]
    assert hook.names() == [
        "malloc_preprocess",
        *attempt * (failures + 1),
        "malloc_postprocess",
    ]
    assert [
        kwargs["mem_ptr"]
        for _, callback, kwargs in hook.log
        if callback == "alloc_postprocess"
    ] == [0] * failures + [address]


def test_hooks_are_told_as_often_as_was_asked_in_vain():
    asked = []

    def exhausted(size):
        asked.append(size)
        raise OutOfMemoryError(size, 0)

    pool = MemoryPool(exhausted)
    with Recorder() as hook, pytest.raises(OutOfMemoryError):
        pool.malloc(2 * UNIT)
    assert len(asked) >= 2
    assert hook.names().count("alloc_preprocess") == len(asked)
    posts = [kwargs for _, name, kwargs in hook.log if name == "alloc_postprocess"]
    assert posts == [at(gpumem.get_device_id(), 2 * UNIT, mem_ptr=0)] * len(asked)
    assert hook.log[-1][2]["mem_ptr"] == hook.log[-1][2]["pmem_id"] == 0


def test_a_pool_over_a_pool_tells_from_the_outside_in():
    inner = MemoryPool()
    outer = MemoryPool(inner.malloc)
    with Recorder() as hook:
        pointer = outer.malloc(UNIT)
        del pointer
    assert hook.names() == [
        "malloc_preprocess",
        "alloc_preprocess",
        *CALLBACKS[:4],
        "alloc_postprocess",
        "malloc_postprocess",
        *CALLBACKS[4:],
    ]


def test_a_block_that_was_freed_by_its_address_is_told_once():
    pool = gpumem.SingleDeviceMemoryPool()
    with Recorder() as hook:
        pointer = pool.malloc(UNIT)
        pool.free(pointer.ptr, UNIT)
        del pointer
    assert hook.names() == list(CALLBACKS)
    testing.check_pool(pool)


def test_memory_without_a_pool_is_not_told():
    with Recorder() as hook:
        gpumem.malloc(UNIT)
        gpumem.malloc_managed(UNIT)
    assert hook.log == []


# ---- adding and removing ----


def test_a_name_is_taken_once(pool):
    with Recorder("same") as hook:
        with pytest.raises(KeyError, match="same"), Recorder("same"):
            pytest.fail("entered")
        with Recorder("other"):
            pool.malloc(UNIT)
    assert hook.names() == list(CALLBACKS)
    with pytest.raises(KeyError, match="same"):
        hook.__exit__(None, None, None)
    with hook:  # and free again afterwards
        pass


@pytest.mark.parametrize("name", [5, None, ("a", 1), print])
def test_a_name_is_anything_that_can_be_a_key(pool, name):
    with Recorder(name) as hook:
        with pytest.raises(KeyError), Recorder(name):
            pytest.fail("entered")
        gpumem.add_process_hook(hook)
        pool.malloc(UNIT)
        gpumem.remove_process_hook(hook)
    assert hook.names() == list(CALLBACKS)
    with pytest.raises(TypeError, match="unhashable"), Recorder([]):
        pytest.fail("entered")


def test_an_error_of_a_hook_below_another_pool_is_no_shortage():
    """Of the same type as one: the pool above must not take it for that and try again.
    What the allocator itself raises is one."""
    inner = MemoryPool()
    error = MemoryError("the hook's")
    calls = []

    class Hook(MemoryHook):
        def malloc_preprocess(self, **kwargs):
            if calls:  # below
                raise error

    def malloc(size):
        calls.append(size)
        try:
            inner.malloc(size)
        except MemoryError as raised:
            assert raised is error
            if len(calls) == 1:
                raise MemoryError("the allocator's") from None
            raise

    outer = MemoryPool(malloc)
    with Hook(), pytest.raises(MemoryError) as caught:
        outer.malloc(UNIT)
    assert caught.value is error
    assert len(calls) == 2


def test_a_hook_without_callbacks_is_no_burden(pool):
    with MemoryHook() as hook:
        assert hook.name == "MemoryHook"
        assert pool.malloc(UNIT).mem.size == UNIT


def test_a_hook_that_is_dropped_while_active_stays_until_it_is_removed(pool):
    log = []
    hook = Recorder("held", log)
    hook.__enter__()
    del hook
    gc.collect()
    pool.malloc(UNIT)
    gpumem._core._remove_hook("held")
    pool.malloc(UNIT)
    assert len(log) == 6


def test_a_hook_that_leaves_in_a_callback_is_told_of_what_has_begun(pool):
    class Leaving(Recorder):
        def malloc_preprocess(self, **kwargs):
            super().malloc_preprocess(**kwargs)
            self.__exit__(None, None, None)

    first, second = Leaving("leaving"), Recorder("staying")
    first.__enter__()
    with second:
        pool.malloc(UNIT)
    # The pair that had begun was ended; what began afterwards was not told.
    assert first.names() == ["malloc_preprocess", "malloc_postprocess"]
    assert second.names() == list(CALLBACKS)


def test_a_hook_that_enters_in_a_callback_is_told_of_what_begins_then(pool):
    late = Recorder("late")

    class Adding(Recorder):
        def malloc_preprocess(self, **kwargs):
            late.__enter__()

    with Adding("adding"):
        pool.malloc(UNIT)
        late.__exit__(None, None, None)
    assert late.names() == [name for name in CALLBACKS if "malloc" not in name]


def test_a_thread_has_hooks_of_its_own(pool, in_threads):
    """What is documented: a hook is told of what its own thread does, also of frees of
    what another thread allocated."""
    mine, kept = Recorder("same"), []

    def work(index):
        kept.append(pool.malloc(MIB))
        with Recorder("same") as theirs:  # the name is taken in one thread alone
            pool.malloc(UNIT)
        return theirs

    with mine:
        (theirs,) = in_threads(1, work)
        assert mine.log == []
        assert theirs.names() == list(CALLBACKS)
        address, ident = kept[0].ptr, id(kept[0].mem)
        kept.clear()
    assert mine.names() == ["free_preprocess", "free_postprocess"]
    device = gpumem.get_device_id()
    assert mine.log[0][2] == at(device, MIB, mem_ptr=address, pmem_id=ident)


def test_a_thread_that_ends_inside_a_hook_takes_it_along(pool):
    hook = Recorder()
    thread = threading.Thread(target=hook.__enter__)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    pool.malloc(UNIT)
    with hook:
        pool.malloc(UNIT)
    assert len(hook.log) == 4  # of the second request, a hit


def test_frees_by_the_collector_are_told_where_it_runs(pool, in_threads):
    def ring():
        ring = [pool.malloc(UNIT)]
        ring.append(ring)
        return id(ring[0].mem)

    was_on = gc.isenabled()
    gc.disable()
    try:
        with Recorder() as hook:
            idents = {ring() for _ in range(3)} | set(in_threads(1, lambda i: ring()))
            hook.log.clear()
            gc.collect()
    finally:
        if was_on:
            gc.enable()
    freed = [kw["pmem_id"] for _, name, kw in hook.log if name == "free_postprocess"]
    assert hook.names() == ["free_preprocess", "free_postprocess"] * 4
    assert set(freed) == idents and len(freed) == 4


# ---- hooks that allocate, and hooks that raise ----


def test_a_hook_may_allocate_where_it_does_not_call_itself(pool):
    own = MemoryPool()

    class Working(Recorder):
        busy = False

        def malloc_postprocess(self, **kwargs):
            if not self.busy:
                self.busy = True
                self.log.append(own.malloc(UNIT).mem.size)
                gc.collect()
                own.free_all_blocks()
                self.busy = False

    with Working() as hook:
        pool.malloc(UNIT)
    assert UNIT in hook.log
    assert (own.total_bytes(), pool.used_bytes()) == (0, 0)


@pytest.mark.parametrize("callback", ["malloc_preprocess", "malloc_postprocess"])
def test_a_hook_that_calls_itself_ends_in_a_recursion_error(pool, callback):
    """Its recursion is its own affair, as any other in Python; nothing is lost."""

    def again(self, **kwargs):
        self.pool.malloc(UNIT)

    hook = type("Again", (MemoryHook,), {callback: again})()
    hook.pool = pool
    with hook, pytest.raises(RecursionError):
        pool.malloc(UNIT)
    gc.collect()
    assert pool.used_bytes() == 0
    assert pool.malloc(UNIT).mem.size == UNIT


def test_a_hook_that_frees_in_a_free_is_stopped_by_the_recursion_limit(script):
    """The interpreter may be too deep down to report it, but loses nothing."""
    code = """
import gpumem
pool = gpumem.MemoryPool()
kept = [pool.malloc(512) for _ in range(5000)]
class Again(gpumem.MemoryHook):
    def free_postprocess(self, **kwargs):
        kept.pop()
with Again():
    kept.pop()
print(0 < len(kept) < 4900, pool.used_bytes() == 512 * len(kept))
kept.clear()
print(pool.used_bytes())
"""
    done = script(code)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True", "0"])


@pytest.mark.parametrize("callback", CALLBACKS)
def test_a_hook_that_raises_loses_nothing(pool, unraisable, callback):
    bad, good = raiser(callback), Recorder("good")
    held = testing.ledger() if gpumem.get_backend() == "sim" else None
    in_malloc = not callback.startswith("free")
    with bad, good:
        if in_malloc:
            with pytest.raises(Boom, match=callback):
                pool.malloc(UNIT)
        else:
            pointer = pool.malloc(UNIT)
            del pointer
    if in_malloc:
        assert unraisable == []
    else:
        assert [(type(e), str(e)) for e in unraisable] == [(Boom, callback)]
    told = {  # what was begun is ended, and what was taken is given back
        "malloc_preprocess": ["malloc_preprocess", "malloc_postprocess"],
        "alloc_preprocess": CALLBACKS[:4],
        "alloc_postprocess": CALLBACKS[:4],
    }.get(callback, CALLBACKS)
    assert good.names() == bad.names() == list(told)
    posts = {name: kwargs.get("mem_ptr") for _, name, kwargs in good.log}
    assert bool(posts["malloc_postprocess"]) == (tuple(told) == CALLBACKS)
    assert bool(posts.get("alloc_postprocess")) == (
        callback not in ("malloc_preprocess", "alloc_preprocess")
    )
    cached = UNIT if tuple(told) == CALLBACKS else 0
    assert (pool.used_bytes(), pool.total_bytes()) == (0, cached)
    if held is not None:
        assert testing.ledger().bytes == held.bytes + cached
    assert pool.malloc(UNIT).mem.size == UNIT
    assert (pool.used_bytes(), pool.total_bytes()) == (0, UNIT)


def test_the_first_of_two_errors_reaches_the_caller_the_other_is_reported(
    pool, unraisable
):
    first, second = raiser("malloc_preprocess"), raiser("malloc_postprocess")
    second.name = "second"
    with first, second, pytest.raises(Boom, match="malloc_preprocess"):
        pool.malloc(UNIT)
    assert [str(error) for error in unraisable] == ["malloc_postprocess"]


def test_an_error_of_the_request_stays_when_a_hook_raises_too(pool, unraisable):
    pool.set_limit(size=UNIT)
    with raiser("malloc_postprocess"), pytest.raises(OutOfMemoryError):
        pool.malloc(2 * UNIT)
    assert [str(error) for error in unraisable] == ["malloc_postprocess"]


def test_a_free_with_an_exception_under_way_keeps_it(pool, unraisable):
    def work():
        pointer = pool.malloc(UNIT)  # noqa: F841 - dies as the exception passes
        raise LookupError("mine")

    with raiser("free_preprocess"):
        try:
            work()
        except LookupError as error:
            caught = str(error)
    gc.collect()
    assert caught == "mine"
    assert {str(error) for error in unraisable} == {"free_preprocess"}
    assert pool.used_bytes() == 0


def test_an_object_that_is_no_hook_is_an_error_of_the_request(pool, unraisable):
    gpumem._core._add_hook("no hook", object())
    try:
        with pytest.raises(AttributeError, match="malloc_preprocess"):
            pool.malloc(UNIT)
    finally:
        gpumem._core._remove_hook("no hook")
    assert len(unraisable) == 1  # it has no malloc_postprocess either
    assert pool.total_bytes() == 0


@pytest.mark.parametrize("callback", ["free_preprocess", "free_postprocess"])
def test_a_hook_that_raises_on_a_free_is_named(pool, monkeypatch, callback):
    blamed = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda report: blamed.append(report.object)
    )
    with raiser(callback) as hook:
        pointer = pool.malloc(UNIT)
        del pointer
    assert blamed == [hook]


# ---- nothing is paid where there is none ----


@pytest.mark.parametrize("used_before", [False, True])
def test_without_a_hook_a_request_calls_nothing(pool, used_before):
    """One call event a request, and it is the request."""
    if used_before:
        with Recorder("a"), Recorder("b"):
            pool.malloc(UNIT)
    malloc, events = pool.malloc, []
    malloc(UNIT)
    profile = sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append((event, arg)))
    try:
        for _ in range(100):
            malloc(UNIT)
    finally:
        sys.setprofile(profile)
    calls = [arg for event, arg in events if event.endswith("call") and arg]
    assert calls == [malloc] * 100 + [sys.setprofile]
    assert {event for event, _ in events} == {"c_call", "c_return"}


def test_a_hook_that_was_removed_costs_nothing(script):
    code = """
class Hook(gpumem.MemoryHook):
    seen = 0
    def malloc_postprocess(self, **kwargs):
        self.seen += 1
with Hook() as hook:
    pool.malloc(4096)
assert hook.seen == 1
names = {"malloc": pool.malloc, "object": object}
print(best(2, lambda: ratio("malloc(4096)", "object()", names)))
"""
    assert measured(script, code) <= 2
