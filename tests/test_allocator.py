# SPDX-License-Identifier: MIT
"""Which allocator is current, and what a pool makes of a Python one beneath it."""

import threading
import weakref

import pytest

import gpumem
from gpumem import BaseMemory, Device, MemoryPointer, MemoryPool, testing

UNIT = 512


class Base:
    """A base allocator that notes the sizes it is asked for, and does as it is told
    first: raises what is an exception, returns what is not."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sizes = []

    def __call__(self, size):
        self.sizes.append(size)
        if not self.answers:
            return gpumem.malloc(size)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer(size) if callable(answer) else answer


def out_of_memory():
    return gpumem.CUDARuntimeError(2, "no memory left")


# ---- the global one ----


def test_without_an_allocator_memory_comes_straight_from_the_device():
    assert gpumem.get_allocator() is gpumem.malloc
    pointer = gpumem.alloc(1000)
    assert type(pointer.mem) is gpumem.Memory
    assert pointer.mem.size == 1000


def test_alloc_uses_the_allocator_that_was_set(pool):
    gpumem.set_allocator(pool.malloc)
    assert gpumem.get_allocator() == pool.malloc
    pointer = gpumem.alloc(1000)
    assert gpumem.alloc(size=1).mem.pool() is pointer.mem.pool()
    assert pool.used_bytes() == 1024
    for nothing in ((), (None,)):
        gpumem.set_allocator(pool.malloc)
        gpumem.set_allocator(*nothing)
        assert gpumem.get_allocator() is gpumem.malloc
    assert type(gpumem.alloc(1).mem) is gpumem.Memory
    del pointer


def test_any_callable_is_an_allocator():
    base = Base()
    gpumem.set_allocator(allocator=base)
    assert gpumem.get_allocator() is base
    assert gpumem.alloc(1000).mem.size == 1000
    assert base.sizes == [1000]


@pytest.mark.parametrize("allocator", [1, "malloc", object()])
def test_an_allocator_must_be_callable(allocator):
    for take in (gpumem.set_allocator, gpumem.using_allocator):
        with pytest.raises(TypeError, match="callable"):
            take(allocator)
    assert gpumem.get_allocator() is gpumem.malloc


def test_an_allocator_is_shared_by_all_threads(pool, in_threads):
    gpumem.set_allocator(pool.malloc)
    pointers = in_threads(4, lambda index: gpumem.alloc(UNIT))
    assert pool.used_bytes() == 4 * UNIT
    del pointers


@pytest.mark.parametrize("result", [None, 1, 0x1000, "p", object()])
def test_alloc_takes_pointers_alone(result):
    gpumem.set_allocator(lambda size: result)
    with pytest.raises(TypeError, match="MemoryPointer"):
        gpumem.alloc(1)


def test_memory_is_no_pointer():
    gpumem.set_allocator(gpumem.Memory)
    with pytest.raises(TypeError, match="must return a MemoryPointer, not gpumem.Mem"):
        gpumem.alloc(1)


def test_an_allocators_own_exception_passes_unchanged():
    error = KeyError("own")
    gpumem.set_allocator(Base(error))
    with pytest.raises(KeyError) as caught:
        gpumem.alloc(1)
    assert caught.value is error


def test_alloc_hands_the_size_on_as_it_is():
    sizes = []
    gpumem.set_allocator(lambda size: sizes.append(size) or gpumem.malloc(0))
    for size in (1.5, "many", None):
        gpumem.alloc(size)
    assert sizes == [1.5, "many", None]


# ---- the scoped one ----


def test_a_scoped_allocator_stands_before_the_global_one(pool):
    other = MemoryPool()
    gpumem.set_allocator(pool.malloc)
    with gpumem.using_allocator(other.malloc):
        assert gpumem.get_allocator() == other.malloc
        inside = gpumem.alloc(UNIT)
        with gpumem.using_allocator():
            assert gpumem.get_allocator() is gpumem.malloc
            assert type(gpumem.alloc(1).mem) is gpumem.Memory
            with gpumem.using_allocator(pool.malloc):
                gpumem.alloc(UNIT)
        assert gpumem.get_allocator() == other.malloc
    assert gpumem.get_allocator() == pool.malloc
    assert (other.used_bytes(), pool.used_bytes()) == (UNIT, 0)
    del inside


def test_a_scope_ends_with_an_exception_too(pool):
    with pytest.raises(ZeroDivisionError):
        with gpumem.using_allocator(pool.malloc):
            raise ZeroDivisionError
    assert gpumem.get_allocator() is gpumem.malloc


def test_one_scope_can_be_entered_again(pool):
    scope = gpumem.using_allocator(pool.malloc)
    with scope, scope:
        assert gpumem.get_allocator() == pool.malloc
    assert gpumem.get_allocator() is gpumem.malloc
    with scope:
        assert gpumem.get_allocator() == pool.malloc
    assert gpumem.get_allocator() is gpumem.malloc


def test_the_global_allocator_cannot_be_set_in_a_scope(pool):
    with gpumem.using_allocator(pool.malloc):
        for allocator in (None, gpumem.malloc, pool.malloc):
            with pytest.raises(ValueError, match="using_allocator"):
                gpumem.set_allocator(allocator)
    assert gpumem.get_allocator() is gpumem.malloc
    gpumem.set_allocator(pool.malloc)


def test_a_scope_is_for_its_own_thread_alone(pool):
    seen = []

    def elsewhere():
        seen.append(gpumem.get_allocator())
        gpumem.set_allocator(base)
        seen.append(gpumem.get_allocator())

    base = Base()
    with gpumem.using_allocator(pool.malloc):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        assert gpumem.get_allocator() == pool.malloc
    assert seen == [gpumem.malloc, base]
    assert gpumem.get_allocator() is base


def hold(scope):
    with scope:
        yield


def test_scopes_that_are_left_in_the_order_they_were_entered(pool):
    allocators = [Base() for _ in range(10)]
    held = [hold(gpumem.using_allocator(base)) for base in allocators]
    for generator in held:
        next(generator)
    for generator in held[:-1]:
        generator.close()
        assert gpumem.get_allocator() is allocators[-1]
        with pytest.raises(ValueError, match="using_allocator"):
            gpumem.set_allocator(pool.malloc)
    held[-1].close()
    assert gpumem.get_allocator() is gpumem.malloc


def test_a_finished_scope_never_comes_back():
    outer, middle, inner = (gpumem.using_allocator(Base()) for _ in range(3))
    below = Base()
    gpumem.set_allocator(below)
    for scope in (outer, middle, inner):
        scope.__enter__()
    current = gpumem.get_allocator()
    middle.__exit__(None, None, None)
    assert gpumem.get_allocator() is current
    outer.__exit__(None, None, None)
    assert gpumem.get_allocator() is current
    inner.__exit__(None, None, None)
    assert gpumem.get_allocator() is below


def test_a_scope_holds_its_allocator_no_longer_than_it_is_entered():
    first, second = Base(), Base()
    watches = [weakref.ref(first), weakref.ref(second)]
    held = [hold(gpumem.using_allocator(first)), hold(gpumem.using_allocator(second))]
    del first, second
    for generator in held:
        next(generator)
    del generator
    held.pop(0).close()
    assert [watch() is None for watch in watches] == [True, False]
    held.pop(0).close()
    assert watches[1]() is None


def test_leaving_a_scope_that_was_not_entered_is_an_error(pool, in_threads):
    scope, other = (gpumem.using_allocator(pool.malloc) for _ in range(2))
    leave = scope.__exit__
    with pytest.raises(RuntimeError, match="did not enter"):
        leave(None, None, None)
    with scope:
        with pytest.raises(RuntimeError, match="did not enter"):
            other.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="did not enter"):
            in_threads(1, lambda _: leave(None, None, None))
        assert gpumem.get_allocator() == pool.malloc
    assert gpumem.get_allocator() is gpumem.malloc


def test_one_scope_can_be_entered_by_several_threads_at_once(pool, in_threads):
    scope = gpumem.using_allocator(pool.malloc)
    all_inside = threading.Barrier(4)

    def work(_):
        with scope:
            all_inside.wait(10)
            inside = gpumem.get_allocator()
        return inside, gpumem.get_allocator()

    assert in_threads(4, work) == [(pool.malloc, gpumem.malloc)] * 4


def test_a_scope_that_is_never_left_ends_with_its_thread(in_threads):
    def enter(_):
        base = Base()
        gpumem.using_allocator(base).__enter__()
        return weakref.ref(base)

    assert [watch() for watch in in_threads(2, enter)] == [None, None]


def test_a_scope_is_a_decorator_too(pool):
    @gpumem.using_allocator(pool.malloc)
    def where(size, *, times=0):
        "What it is for."
        if times:
            return where(size, times=times - 1)
        return gpumem.get_allocator(), gpumem.alloc(size).mem.size

    assert where(513) == where(size=513, times=3) == (pool.malloc, 1024)
    assert (where.__name__, where.__doc__) == ("where", "What it is for.")
    assert gpumem.get_allocator() is gpumem.malloc


def test_a_decorated_function_that_raises_leaves_the_scope(pool):
    @gpumem.using_allocator(pool.malloc)
    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert gpumem.get_allocator() is gpumem.malloc


# ---- beneath a pool ----


def test_a_pool_asks_its_base_allocator_for_whole_units():
    base = Base()
    pool = MemoryPool(base)
    pointers = [pool.malloc(size) for size in (1, 513, 4096)]
    assert base.sizes == [512, 1024, 4096]
    del pointers
    pointer = pool.malloc(4096)
    assert base.sizes == [512, 1024, 4096]
    assert pool.malloc(0).ptr == 0
    assert base.sizes == [512, 1024, 4096]
    del pointer
    testing.check_pool(pool)


def test_a_pool_can_lie_over_another_pool():
    lower = MemoryPool()
    upper = MemoryPool(lower.malloc)
    pointer = upper.malloc(1000)
    assert (upper.used_bytes(), lower.used_bytes()) == (1024, 1024)
    pointer.memset(1, 1024)
    del pointer
    assert (upper.used_bytes(), lower.used_bytes()) == (0, 1024)
    upper.free_all_blocks()
    assert (upper.total_bytes(), lower.used_bytes()) == (0, 0)


def test_a_pointer_in_the_middle_of_its_memory_will_do():
    pool = MemoryPool(lambda size: gpumem.malloc(size + 4096) + 4096)
    pointer = pool.malloc(1000)
    memory = pool.malloc(1000).mem
    pointer.memset(1, 1024)
    assert memory.size == 1024
    del pointer


def test_memory_that_is_larger_than_asked_for_will_do():
    pool = MemoryPool(lambda size: gpumem.malloc(2 * size))
    pointer = pool.malloc(1000)
    assert (pointer.mem.size, pool.total_bytes()) == (1024, 1024)
    del pointer


def a_pointer_of_another_device(size):
    memory = BaseMemory()
    memory.ptr, memory.size, memory.device_id = 1 << 20, size, Device().id + 1
    return MemoryPointer(memory, 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (None, TypeError),
        (0, TypeError),
        (0x1000, TypeError),
        ("p", TypeError),
        (gpumem.Memory, TypeError),
        (lambda size: gpumem.malloc(size - 1), ValueError),
        (lambda size: gpumem.malloc(size) + 1, ValueError),
        (lambda size: gpumem.malloc(size) - 1, ValueError),
        (a_pointer_of_another_device, ValueError),
        (KeyError("own"), KeyError),
        (gpumem.CUDARuntimeError(700, "illegal"), gpumem.CUDARuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_a_base_allocator_that_fails_is_not_asked_again(answer, error):
    base = Base()
    pool = MemoryPool(base)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    before = pool.stats()
    base.answers.append(answer)
    with pytest.raises(error) as caught:
        pool.malloc(8 * UNIT)
    if isinstance(answer, BaseException):
        assert caught.value is answer
        answer.__traceback__ = None  # it outlives the test, and would keep its frame
    assert pool.stats() == before
    assert base.sizes == [UNIT, 4 * UNIT, 8 * UNIT]
    testing.check_pool(pool)
    more = pool.malloc(8 * UNIT)
    assert pool.used_bytes() == 9 * UNIT
    del kept, more


def test_a_pointer_that_was_never_initialized_is_called_that():
    pool = MemoryPool(lambda size: MemoryPointer.__new__(MemoryPointer))
    with pytest.raises(ValueError, match="MemoryPointer that was not initialized"):
        pool.malloc(UNIT)
    assert pool.total_bytes() == 0


@pytest.mark.parametrize(
    "shortage",
    [
        MemoryError("own"),
        gpumem.OutOfMemoryError(1, 2),
        out_of_memory(),
        MemoryPointer(BaseMemory(), 0),
    ],
    ids=["MemoryError", "OutOfMemoryError", "CUDARuntimeError", "null"],
)
def test_a_shortage_below_makes_the_pool_give_back_and_ask_again(shortage):
    base = Base()
    pool = MemoryPool(base)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    base.answers.append(shortage)
    pointer = pool.malloc(8 * UNIT)
    if isinstance(shortage, BaseException):
        shortage.__traceback__ = None  # it outlives the test, and would keep its frames
    assert base.sizes == [UNIT, 4 * UNIT, 8 * UNIT, 8 * UNIT]
    assert pool.total_bytes() == pool.used_bytes() == 9 * UNIT
    stats = pool.stats()
    assert (stats["retries"], stats["out_of_memory"]) == (1, 0)
    del kept, pointer
    testing.check_pool(pool)


def test_a_lasting_shortage_below_is_out_of_memory():
    base = Base()
    pool = MemoryPool(base)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    base.answers += [out_of_memory()] * 100
    with pytest.raises(gpumem.OutOfMemoryError) as caught:
        pool.malloc(8 * UNIT - 1)
    error = caught.value
    assert (error.size, error.rounded_size) == (8 * UNIT - 1, 8 * UNIT)
    assert (error.total, error.limit) == (UNIT, 0)
    assert (pool.used_bytes(), pool.total_bytes()) == (UNIT, UNIT)
    assert pool.stats()["out_of_memory"] == 1
    testing.check_pool(pool)
    base.answers.clear()
    pointer = pool.malloc(8 * UNIT)
    del kept, pointer


def test_the_limit_counts_before_the_base_allocator_is_asked():
    base = Base()
    pool = MemoryPool(base)
    pool.set_limit(size=4 * UNIT)
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.malloc(5 * UNIT)
    assert base.sizes == []


def test_a_base_allocator_may_use_the_pool_it_serves():
    def base(size):
        seen.append(pool.used_bytes())
        if size > UNIT:
            seen.append(pool.malloc(UNIT).mem.size)
            pool.free_all_blocks()
        testing.check_pool(pool)
        return gpumem.malloc(size)

    seen = []
    pool = MemoryPool(base)
    pointer = pool.malloc(4 * UNIT)
    assert seen == [0, 0, UNIT]
    assert pool.used_bytes() == 4 * UNIT
    del pointer


def test_the_size_a_base_allocator_gets_is_an_exact_int():
    kinds = []

    def base(size):
        kinds.append(type(size))
        return gpumem.malloc(size)

    MemoryPool(base).malloc(True)
    assert kinds == [int]


def test_a_base_allocator_may_change_the_current_stream_and_nothing_comes_of_it(pool):
    stream = gpumem.Stream()

    def base(size):
        with stream:
            return gpumem.malloc(size)

    upper = MemoryPool(base)
    upper.malloc(UNIT)
    upper.malloc(UNIT)
    assert upper.stats()["hits"] == 1
    assert gpumem.get_current_stream() == gpumem.Stream.null
