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
ROUNDS = 300


@pytest.fixture(autouse=True)
def pools_are_emptied():
    yield
    type_recipes.empty_pools()


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
    """A recipe and its class, used once already: what is made once stays."""
    cls = TYPES[request.param]
    repeat(RECIPES[request.param], cls, 3)
    return RECIPES[request.param], cls


def test_references_to_the_types_come_back(made):
    """To all of them: what one makes may leak another."""
    recipe, cls = made
    before = {name: sys.getrefcount(each) for name, each in TYPES.items()}
    repeat(recipe, cls, ROUNDS)
    assert {name: sys.getrefcount(each) for name, each in TYPES.items()} == before


@pytest.mark.parametrize(
    "name", [n for n in RECIPES if takes_subclasses(TYPES[n]) and n in TYPES]
)
def test_references_to_a_subclass_come_back(name):
    cls, recipe = subclass_of(TYPES[name]), RECIPES[name]
    if recipe is type_recipes.refused:
        pytest.skip("nobody can make objects of it")
    repeat(recipe, cls, 3)
    before = sys.getrefcount(cls), sys.getrefcount(TYPES[name])
    repeat(recipe, cls, ROUNDS)
    assert (sys.getrefcount(cls), sys.getrefcount(TYPES[name])) == before


@pytest.mark.sim_only
def test_the_device_has_everything_back(made):
    recipe, cls = made
    gpumem.Device().synchronize()
    before = testing.ledger()
    repeat(recipe, cls, ROUNDS)
    gpumem.Device().synchronize()
    after = testing.ledger()
    assert after == before._replace(peak_bytes=after.peak_bytes)


def least_growth(recipe, cls, measure):
    """By how much ROUNDS of a recipe raise what `measure` gives; the least of five
    times, since the interpreter's lists of dead objects fill up for a while."""

    def growth():
        before = measure()
        repeat(recipe, cls, ROUNDS)
        return measure() - before

    repeat(recipe, cls, 20)
    return min(growth() for _ in range(5))


def test_python_memory_does_not_grow(made):
    """The least object has sixteen bytes."""
    tracemalloc.start()
    try:
        grown = least_growth(*made, lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert grown < 16 * ROUNDS / 2


@pytest.mark.skipif(
    not hasattr(sys, "gettotalrefcount"),
    reason="needs a debug interpreter, such as python3.11-dbg",
)
def test_the_count_of_all_references_does_not_grow(made):
    assert least_growth(*made, sys.gettotalrefcount) < ROUNDS / 10


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
        thread.join()

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
