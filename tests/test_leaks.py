# SPDX-License-Identifier: MIT
"""Nothing is leaked, measured four ways over every type: references to the type, Python
memory, what the device gave out, and in a debug interpreter all references there are.
"""

import gc
import sys
import threading
import tracemalloc

import pytest

import gpumem
import type_recipes
from gpumem import testing
from type_recipes import RECIPES, takes_subclasses

TYPES = type_recipes.all_types()
ROUNDS = 200


def repeat(recipe, cls, rounds):
    for _ in range(rounds):
        recipe(cls)
    gc.collect()


def subclass_of(cls):
    """One whose instances have a dictionary, a weak reference slot and a destructor."""
    return type("Sub", (cls,), {"__del__": lambda self: None})


def test_every_type_has_a_recipe():
    assert set(TYPES) == set(RECIPES)


@pytest.fixture(params=RECIPES)
def made(request):
    """A recipe and its class, used before: what is made once stays. The collector does
    not look at what pytest has."""
    cls = TYPES[request.param]
    gc.freeze()
    repeat(RECIPES[request.param], cls, 3)
    yield RECIPES[request.param], cls
    gc.unfreeze()
    type_recipes.empty_pools()


def test_references_to_the_types_come_back(made):
    """To all of them: what one makes may leak another. Dead objects that are kept for
    the next one may count, so there are as many as can be."""
    recipe, cls = made
    pool = gpumem.MemoryPool()
    kept = [pool.malloc(1) for _ in range(500)]
    del kept, pool
    before = {name: sys.getrefcount(each) for name, each in TYPES.items()}
    repeat(recipe, cls, ROUNDS)
    assert {name: sys.getrefcount(each) for name, each in TYPES.items()} == before


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, recipe in RECIPES.items()
        if takes_subclasses(TYPES[name]) and recipe is not type_recipes.refused
    ],
)
def test_references_to_a_subclass_come_back(name):
    base, recipe = TYPES[name], RECIPES[name]
    cls = subclass_of(base)
    repeat(recipe, cls, 3)
    before = sys.getrefcount(cls), sys.getrefcount(base)
    repeat(recipe, cls, ROUNDS)
    assert (sys.getrefcount(cls), sys.getrefcount(base)) == before
    type_recipes.empty_pools()


@pytest.mark.sim_only
def test_the_device_has_everything_back(made):
    recipe, cls = made
    gpumem.Device().synchronize()
    before = testing.ledger()
    repeat(recipe, cls, ROUNDS)
    gpumem.Device().synchronize()
    after = testing.ledger()
    assert after == before._replace(peak_bytes=after.peak_bytes)


def stops_growing(recipe, cls, measure, most):
    """True once ROUNDS of a recipe raise what `measure` gives by less than `most`. The
    interpreter's lists of dead objects fill up for a while; a leak never ends."""

    def growth():
        before = measure()
        repeat(recipe, cls, ROUNDS)
        return measure() - before

    return any(growth() < most for _ in range(20))


def test_python_memory_does_not_grow(made):
    """The least object has sixteen bytes."""
    tracemalloc.start()
    try:
        assert stops_growing(
            *made, lambda: tracemalloc.get_traced_memory()[0], most=16 * ROUNDS / 2
        )
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(
    not hasattr(sys, "gettotalrefcount"),
    reason="needs a debug interpreter, such as python3.11-dbg",
)
def test_the_count_of_all_references_does_not_grow(made):
    assert stops_growing(*made, sys.gettotalrefcount, most=ROUNDS / 10)


def test_what_a_thread_had_set_ends_with_it():
    """Streams, scopes and hooks: the object that holds them has a type of its own,
    which no module names."""

    def work():
        stream = gpumem.Stream()
        stream.use()
        stream.__enter__()
        gpumem.using_allocator(gpumem.malloc).__enter__()
        gpumem.MemoryHook().__enter__()
        counts.append(sum(type(o) is settings for o in gc.get_objects()))

    def run():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()

    with gpumem.MemoryHook():  # so that this thread has some
        (mine,) = [o for o in gc.get_objects() if type(o).__name__ == "_ThreadSettings"]
    settings, counts = type(mine), []
    run()
    watched = [settings, gpumem.Stream, gpumem.MemoryHook, gpumem.using_allocator]
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(20):
        run()
    assert [sys.getrefcount(each) for each in watched] == before
    assert set(counts) == {2}
