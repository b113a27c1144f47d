# SPDX-License-Identifier: MIT
"""The out-of-memory callback: when it is asked, what it is told, what its answer does,
and that it is bounded, never within itself, and not in the way of the collector."""

import collections
import gc
import threading
import weakref

import pytest

import gpumem
from gpumem import Device, MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool, testing

UNIT = 512
MIB = 1 << 20


@pytest.fixture(params=[MemoryPool, SingleDeviceMemoryPool])
def pool(request):
    """A pool with room for 4 MiB."""
    pool = request.param()
    pool.set_limit(size=4 * MIB)
    yield pool
    testing.check_pool(pool)


class Cache:
    """A callback that lets go of a pointer each time."""

    def __init__(self, *pointers):
        self.pointers = list(pointers)
        self.told = []

    def __call__(self, error):
        self.told.append(error)
        if not self.pointers:
            return False
        self.pointers.pop()
        return True


# ---- setting it ----


def test_there_is_none_until_one_is_set(pool):
    assert pool.get_out_of_memory_callback() is None
    callback = Cache()
    assert pool.set_out_of_memory_callback(callback) is None
    assert pool.get_out_of_memory_callback() is callback
    pool.set_out_of_memory_callback(None)
    assert pool.get_out_of_memory_callback() is None
    with pytest.raises(OutOfMemoryError):
        pool.malloc(5 * MIB)
    assert callback.told == []


@pytest.mark.parametrize("what", [5, "callback", [], True])
def test_what_cannot_be_called_is_refused(pool, what):
    pool.set_out_of_memory_callback(len)
    with pytest.raises(TypeError, match="callback must be callable or None"):
        pool.set_out_of_memory_callback(what)
    assert pool.get_out_of_memory_callback() is len


@pytest.mark.sim_only
def test_setting_it_begins_nothing_with_a_device():
    pool = MemoryPool()
    with testing.call_log() as calls:
        pool.set_out_of_memory_callback(len)
        pool.get_out_of_memory_callback()
    assert calls == []


@pytest.mark.two_devices
def test_it_is_for_all_devices_whenever_their_pools_are_made():
    pool, seen = MemoryPool(), []

    def callback(error):
        seen.append(error.device)

    pool.malloc(UNIT)  # the pool of one device is there, the other's is not
    pool.set_out_of_memory_callback(callback)
    for device in (0, 1):
        pool.set_limit(size=UNIT, device=device)
        with pytest.raises(OutOfMemoryError):
            pool.malloc(2 * UNIT, device=device)
    assert seen == [0, 1]
    pool.set_out_of_memory_callback(None)
    with Device(1), pytest.raises(OutOfMemoryError):
        pool.malloc(2 * UNIT)
    assert seen == [0, 1]


# ---- asking ----


def test_it_is_asked_when_nothing_else_helped(pool):
    """Not where the cache or garbage makes room, and once where it does itself."""
    callback = Cache(pool.malloc(3 * MIB))
    pool.set_out_of_memory_callback(callback)
    pool.malloc(MIB)  # stays cached
    cycle = [pool.malloc(MIB // 2)]
    cycle.append(cycle)
    del cycle
    small = pool.malloc(MIB - UNIT)
    assert callback.told == []
    large = pool.malloc(3 * MIB)
    (error,) = callback.told
    assert type(error) is OutOfMemoryError
    assert (error.cause, error.size, error.attempt) == ("limit", 3 * MIB, 1)
    assert error.missing_bytes == 3 * MIB - UNIT
    assert error.__traceback__ is None
    assert pool.stats()["out_of_memory"] == 0
    assert pool.stats()["retries"] >= 1
    assert pool.used_bytes() == 4 * MIB - UNIT
    del small, large


def test_it_is_asked_again_until_there_is_enough(pool):
    callback = Cache(*(pool.malloc(MIB) for _ in range(4)))
    pool.set_out_of_memory_callback(callback)
    pointer = pool.malloc(3 * MIB)
    assert [error.attempt for error in callback.told] == [1, 2, 3]
    assert [error.missing_bytes // MIB for error in callback.told] == [3, 2, 1]
    del pointer


@pytest.mark.parametrize("answer", [True, 1, "again", [0], object()])
def test_it_is_not_asked_for_ever(pool, answer):
    asked = []

    def callback(error):
        asked.append(error.attempt)
        return answer

    pool.set_out_of_memory_callback(callback)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(5 * MIB)
    assert asked == list(range(1, 9))
    assert caught.value.attempt == 8
    assert pool.stats()["out_of_memory"] == 1


@pytest.mark.parametrize("answer", [False, None, 0, "", []])
def test_it_may_give_up(pool, answer):
    asked = []
    pool.set_out_of_memory_callback(lambda error: asked.append(error) or answer)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(5 * MIB)
    assert len(asked) == 1
    assert caught.value is not asked[0]  # the figures are taken anew
    assert caught.value.attempt == 1


def test_it_may_raise_the_limit(pool):
    def callback(error):
        pool.set_limit(size=error.limit + error.missing_bytes)
        return True

    pool.set_out_of_memory_callback(callback)
    pointer = pool.malloc(6 * MIB)
    assert pool.get_limit() == pool.total_bytes() == 6 * MIB
    del pointer


def test_what_it_drops_in_a_cycle_is_found(pool):
    cycle = [pool.malloc(3 * MIB)]
    cycle.append(cycle)
    held = [cycle]
    del cycle
    pool.set_out_of_memory_callback(lambda error: bool(held) and not held.clear())
    collecting = gc.isenabled()
    gc.disable()
    try:
        pointer = pool.malloc(2 * MIB)
    finally:
        if collecting:
            gc.enable()
    assert pool.used_bytes() == 2 * MIB
    del pointer


class Own(Exception):
    pass


class Answer:
    def __bool__(self):
        raise Own


@pytest.mark.parametrize("how", ["raises", "answers badly"])
def test_its_exception_reaches_the_caller_and_changes_nothing(pool, how):
    def callback(error):
        if how == "raises":
            raise Own
        return Answer()

    kept = pool.malloc(MIB)
    pool.set_out_of_memory_callback(callback)
    before = pool.stats()
    with pytest.raises(Own):
        pool.malloc(4 * MIB)
    assert pool.stats() == before | {"retries": before["retries"] + 1}  # for garbage
    testing.check_pool(pool)
    pool.set_out_of_memory_callback(None)
    more = pool.malloc(3 * MIB)
    del kept, more


def test_it_may_raise_the_error_that_it_was_given(pool):
    def callback(error):
        raise error

    pool.set_out_of_memory_callback(callback)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(5 * MIB)
    assert caught.value.attempt == 1


# ---- within itself ----


def test_a_request_of_its_own_that_fails_does_not_ask_it(pool):
    asked = []

    def callback(error):
        asked.append(error.size)
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(6 * MIB)
        assert caught.value.attempt == 0
        small = pool.malloc(UNIT)  # one that does not fail
        assert small.mem.size == UNIT
        return False

    pool.set_out_of_memory_callback(callback)
    for size in (5 * MIB, 7 * MIB):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(size)
        assert caught.value.attempt == 1
    assert asked == [5 * MIB, 7 * MIB]


def test_a_thread_runs_one_callback_at_a_time():
    """A bound method is another object each time, and pools may be many."""

    class Spills:
        def __init__(self):
            self.pools, self.depth, self.deepest, self.asked = [], 0, 0, 0

        def spill(self, error):
            self.asked += 1
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
            for pool in self.pools:
                with pytest.raises(OutOfMemoryError) as caught:
                    pool.malloc(MIB)
                assert caught.value.attempt == 0
            self.depth -= 1
            return False

    spills = Spills()
    for _ in range(5):
        pool = MemoryPool()
        pool.set_limit(size=UNIT)
        pool.set_out_of_memory_callback(spills.spill)
        spills.pools.append(pool)
    for pool in spills.pools:
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(MIB)
        assert caught.value.attempt == 1
    assert (spills.deepest, spills.asked) == (1, 5)


def test_two_pools_do_not_ask_each_other_in_turns():
    first, second, asked = MemoryPool(), MemoryPool(), []

    def ask_second(error):
        asked.append("first")
        with pytest.raises(OutOfMemoryError):
            second.malloc(2 * MIB)

    def ask_first(error):
        asked.append("second")
        with pytest.raises(OutOfMemoryError):
            first.malloc(2 * MIB)

    for pool, callback in ((first, ask_second), (second, ask_first)):
        pool.set_limit(size=MIB)
        pool.set_out_of_memory_callback(callback)
    with pytest.raises(OutOfMemoryError):
        first.malloc(2 * MIB)
    with pytest.raises(OutOfMemoryError):
        second.malloc(2 * MIB)
    assert asked == ["first", "second"]


def test_it_is_not_asked_within_itself_for_another_pool_either():
    pools, asked = [MemoryPool(), MemoryPool()], []

    def callback(error):
        asked.append(error.size)
        with pytest.raises(OutOfMemoryError) as caught:
            pools[1].malloc(3 * MIB)
        assert caught.value.attempt == 0

    for pool in pools:
        pool.set_limit(size=MIB)
        pool.set_out_of_memory_callback(callback)
    with pytest.raises(OutOfMemoryError):
        pools[0].malloc(2 * MIB)
    assert asked == [2 * MIB]


@pytest.mark.two_devices
def test_nor_for_another_device_of_its_pool():
    pool, asked = MemoryPool(), []

    def callback(error):
        asked.append(error.device)
        with pytest.raises(OutOfMemoryError):
            pool.malloc(2 * MIB, device=1)

    for device in (0, 1):
        pool.set_limit(size=MIB, device=device)
    pool.set_out_of_memory_callback(callback)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(2 * MIB)
    assert asked == [0]


def test_another_thread_is_asked_while_it_runs(pool, in_threads):
    """What is under way on one thread is no reason not to ask on another."""
    together = threading.Barrier(2)
    asked = []

    def callback(error):
        together.wait(30)  # both are in it at once
        asked.append(threading.get_ident())

    def work(index):
        with pytest.raises(OutOfMemoryError):
            pool.malloc(5 * MIB)
        return threading.get_ident()

    pool.set_out_of_memory_callback(callback)
    assert sorted(in_threads(2, work)) == sorted(asked)


def test_no_lock_is_held_and_it_runs_on_the_thread_that_asks(script):
    """The pool can be read by another thread while the callback waits for that, and
    what it lets go of serves the request."""
    code = """
import gpumem, threading
MIB = 1 << 20
pool = gpumem.MemoryPool()
held = {"p": pool.malloc(80 * MIB)}
asked, seen = [], []

def callback(error):
    asked.append(threading.get_ident())
    reader = threading.Thread(target=lambda: seen.append(pool.stats()["used_bytes"]))
    reader.start()
    reader.join(20)
    assert not reader.is_alive()
    held.clear()
    return True

pool.set_out_of_memory_callback(callback)
p = pool.malloc(50 * MIB)
print(asked == [threading.get_ident()], seen[0] // MIB, pool.used_bytes() // MIB)
"""
    done = script(code, GPUMEM_BACKEND="sim", GPUMEM_SIM_MEMORY="100MiB")
    assert (done.stdout.split(), done.stderr) == (["True", "80", "50"], "")


def test_the_limit_holds_while_threads_ask(pool, in_threads):
    caches = [collections.deque() for _ in range(4)]

    def drop_one(error):
        for cache in caches:
            try:
                cache.popleft()
            except IndexError:  # also where another thread was quicker
                continue
            return True
        return False

    pool.set_out_of_memory_callback(drop_one)

    def work(index):
        for round_ in range(20):
            try:
                caches[index].append(pool.malloc((1 + round_ % 5) * MIB // 4))
            except OutOfMemoryError:
                pass

    gc.freeze()  # or each collection takes long
    in_threads(4, work)
    gc.unfreeze()
    stats = pool.stats()
    assert stats["peak_total_bytes"] <= 4 * MIB
    caches.clear()
    gc.collect()
    assert pool.used_bytes() == 0


# ---- life ----


def test_one_that_closes_over_its_pool_is_garbage_with_it():
    for make in (MemoryPool, SingleDeviceMemoryPool):
        pool = make()

        class Callback:
            def __init__(self, pool):
                self.pool = pool

            def __call__(self, error):
                return False

        callback = Callback(pool)
        pool.set_out_of_memory_callback(callback)
        pool.malloc(UNIT)
        dead = weakref.ref(callback)
        del pool, callback
        gc.collect()
        assert dead() is None


def test_one_that_is_taken_away_is_dropped():
    pool = MemoryPool()
    pool.malloc(UNIT)
    callback = Cache()
    dead = weakref.ref(callback)
    pool.set_out_of_memory_callback(callback)
    pool.set_out_of_memory_callback(None)
    del callback
    assert dead() is None


def test_it_may_be_taken_away_while_it_runs(pool):
    def callback(error):
        pool.set_out_of_memory_callback(None)
        return True

    pool.set_out_of_memory_callback(callback)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(5 * MIB)
    assert pool.get_out_of_memory_callback() is None


def test_hooks_see_each_attempt(pool):
    """The callback runs between attempts, inside the request."""
    told = []

    class Hook(gpumem.MemoryHook):
        def malloc_preprocess(self, **kwargs):
            told.append("request")

        def malloc_postprocess(self, **kwargs):
            told.append("done")

    callback = Cache(pool.malloc(4 * MIB))
    pool.set_out_of_memory_callback(
        lambda error: told.append("asked") or callback(error)
    )
    with Hook():
        pointer = pool.malloc(3 * MIB)
    assert told == ["request", "asked", "done"]
    del pointer
