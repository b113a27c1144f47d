# SPDX-License-Identifier: MIT
"""A hook that raised at a free kept the block from going back, for ever. The idea is
cumo#438's, https://github.com/sonots/cumo/issues/438"""

import pytest
from casekit import UNIT

import gpumem
from gpumem import MemoryHook, MemoryPool, SingleDeviceMemoryPool, testing

CALLBACKS = [
    f"{what}_{when}"
    for what in ("alloc", "malloc", "free")
    for when in ("preprocess", "postprocess")
]
AT_MALLOC, AT_FREE = CALLBACKS[:4], CALLBACKS[4:]

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])
PLACE = pytest.mark.parametrize("first", [True, False])


class Own(Exception):
    pass


class Hook(MemoryHook):
    """Notes its calls, and raises in one of them."""

    def __init__(self, name, bad=None):
        self.name, self.bad, self.calls = name, bad, []

    def note(self, callback):
        self.calls.append(callback)
        if callback == self.bad:
            raise Own(callback)

    def balanced(self):
        """For each call before there is one after, and none without one before."""
        return all(
            self.calls.count(f"{what}_preprocess")
            == self.calls.count(f"{what}_postprocess")
            for what in ("alloc", "malloc", "free")
        )


def noting(callback):
    return lambda self, **kwargs: self.note(callback)


for _callback in CALLBACKS:
    setattr(Hook, _callback, noting(_callback))


def entered(bad, good, first):
    """Enters both, the bad one first or last."""
    hooks = [bad, good] if first else [good, bad]
    for hook in hooks:
        hook.__enter__()
    return hooks


def left(hooks):
    for hook in hooks:
        hook.__exit__()


@POOLS
@PLACE
@pytest.mark.parametrize("callback", AT_MALLOC)
def test_u47_at_a_malloc_the_caller_is_told_and_nothing_is_lost(
    make, first, callback, unraisable
):
    pool = make()
    kept = pool.malloc(UNIT)
    bad, good = Hook("bad", callback), Hook("good")
    hooks = entered(bad, good, first)
    try:
        with pytest.raises(Own, match=callback):
            pool.malloc(2 * UNIT)  # a miss, so that all four are called
    finally:
        left(hooks)
    assert pool.used_bytes() == UNIT
    assert pool.used_bytes() + pool.free_bytes() == pool.total_bytes()
    assert good.balanced()
    testing.check_pool(pool)
    assert pool.malloc(2 * UNIT).mem.size == 2 * UNIT
    assert pool.total_bytes() == 3 * UNIT  # the block was there to be used again
    del kept
    pool.free_all_blocks()
    assert pool.total_bytes() == 0
    assert unraisable == []


@POOLS
@PLACE
@pytest.mark.parametrize("callback", ["malloc_preprocess", "malloc_postprocess"])
def test_u47_at_a_hit_too(make, first, callback, unraisable):
    pool = make()
    pool.malloc(UNIT)
    bad, good = Hook("bad", callback), Hook("good")
    hooks = entered(bad, good, first)
    try:
        with pytest.raises(Own, match=callback):
            pool.malloc(UNIT)
    finally:
        left(hooks)
    assert (pool.used_bytes(), pool.free_bytes()) == (0, UNIT)
    assert good.balanced()
    testing.check_pool(pool)
    assert unraisable == []


@POOLS
@PLACE
@pytest.mark.parametrize("callback", AT_FREE)
@pytest.mark.parametrize("by_hand", [False, True])
def test_u47_at_a_free_the_block_goes_back_and_it_is_reported(
    make, first, callback, by_hand, unraisable
):
    pool = make()
    pointer = pool.malloc(UNIT)
    address = pointer.ptr
    bad, good = Hook("bad", callback), Hook("good")
    hooks = entered(bad, good, first)
    try:
        if by_hand:
            pointer.mem.free()
        else:
            del pointer
    finally:
        left(hooks)
    assert (pool.used_bytes(), pool.free_bytes()) == (0, UNIT)
    assert [(type(error), str(error)) for error in unraisable] == [(Own, callback)]
    assert good.calls == AT_FREE
    assert bad.balanced()
    testing.check_pool(pool)
    assert pool.malloc(UNIT).ptr == address


@POOLS
@PLACE
@pytest.mark.parametrize("callback", CALLBACKS)
def test_u47_the_numbers_are_those_of_a_run_without_hooks(make, first, callback):
    """Round after round a block is asked for and dropped, with a hook that raises at
    one callback; afterwards no block more is held than without any."""

    def run(pool, hooks):
        for hook in hooks:
            hook.__enter__()
        for size in (1, 1, 2, 1, 4, 2):
            try:
                pool.malloc(size * UNIT)
            except Own:
                pass
        left(hooks)
        return pool.used_bytes(), pool.stats()["live_blocks"]

    hooks = [Hook("bad", callback), Hook("good")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda report: None)
        pool = make()
        assert run(pool, hooks if first else hooks[::-1]) == run(make(), []) == (0, 0)
    assert hooks[1].balanced()
    assert pool.free_bytes() == pool.total_bytes() <= 7 * UNIT
    testing.check_pool(pool)


def test_u47_a_pending_exception_survives_the_free(pool, unraisable):
    """The one that is under way is not replaced by what a hook raises."""
    hook = Hook("bad", "free_postprocess")

    def work():
        pointer = pool.malloc(UNIT)
        assert pointer.mem.size == UNIT
        raise LookupError("under way")

    with hook:
        with pytest.raises(LookupError, match="under way") as caught:
            work()
        caught = None  # noqa: F841 - its traceback holds the pointer
    assert pool.used_bytes() == 0
    assert [str(error) for error in unraisable] == ["free_postprocess"]


def test_u47_raw_memory_has_no_hooks_to_be_lost_by(unraisable):
    with Hook("bad", "malloc_preprocess") as hook:
        gpumem.malloc(UNIT)
    assert hook.calls == []
    assert unraisable == []
