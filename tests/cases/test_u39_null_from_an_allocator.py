# SPDX-License-Identifier: MIT
"""A custom allocator answered with a null pointer and the library went on with it, or
raised an error that nobody catches. torch#133280, cupy#7210,
https://github.com/pytorch/pytorch/issues/133280"""

import pytest
from casekit import UNIT, CFunctions, Functions

import gpumem
from gpumem import (
    MemoryPool,
    OutOfMemoryError,
    PythonFunctionAllocator,
    SingleDeviceMemoryPool,
    testing,
)

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])

NO_ADDRESS = {
    "None": (lambda: None, TypeError),
    "a float": (lambda: 512.0, TypeError),
    "a str": (lambda: "512", TypeError),
    "a negative int": (lambda: -1, ValueError),
    "2**64": (lambda: 1 << 64, ValueError),
}


class Own(Exception):
    pass


def raises(error):
    def answer():
        raise error

    return answer


OWN = {
    "KeyError": (raises(KeyError("own")), KeyError),
    "an own class": (raises(Own("own")), Own),
    "KeyboardInterrupt": (raises(KeyboardInterrupt()), KeyboardInterrupt),
}
WRONG = pytest.mark.parametrize("wrong", [*NO_ADDRESS, *OWN])
WRONGS = NO_ADDRESS | OWN
SHORT = pytest.mark.parametrize(
    "short",
    [lambda: 0, raises(MemoryError("none left")), raises(OutOfMemoryError(1, 2))],
)


class Answering(Functions):
    """Does what `answers` says in turn, while there is something in it; then works."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)
        self.asked = 0

    def malloc(self, size, device):
        self.asked += 1
        if self.answers:
            return self.answers.pop(0)()
        return super().malloc(size, device)

    @property
    def allocator(self):
        return PythonFunctionAllocator(self.malloc, self.free)


@WRONG
def test_u39_what_is_no_address_is_refused_and_own_errors_pass(wrong, unraisable):
    answer, error = WRONGS[wrong]
    functions = Answering(answer)
    allocator = functions.allocator
    with pytest.raises(error) as caught:
        allocator.malloc(UNIT)
    assert type(caught.value) is error
    assert allocator.malloc(UNIT).mem.size == UNIT  # it works as ever
    assert functions.all_came_back_once()
    assert unraisable == []


@WRONG
@POOLS
def test_u39_under_a_pool_they_pass_and_change_nothing(make, wrong, unraisable):
    answer, error = WRONGS[wrong]
    functions = Answering()
    pool = make(functions.allocator.malloc)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    before = pool.stats()
    functions.answers.append(answer)
    with pytest.raises(error) as caught:
        pool.malloc(8 * UNIT)
    assert type(caught.value) is error
    assert pool.stats() == before  # the cache stays: no memory was lacking
    assert functions.freed == []
    testing.check_pool(pool)
    del kept
    pool.malloc(8 * UNIT)
    pool.free_all_blocks()
    assert functions.all_came_back_once()
    assert unraisable == []


def test_u39_a_null_pointer_is_out_of_memory(unraisable):
    functions = Answering(lambda: 0)
    allocator = functions.allocator
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(UNIT)
    assert caught.value.size == UNIT
    assert functions.freed == []
    assert allocator.malloc(UNIT).ptr != 0
    assert unraisable == []


def test_u39_a_null_pointer_from_c_too(unraisable):
    functions = Answering(lambda: None)  # what ctypes makes of it is a null pointer
    allocator = CFunctions(functions).allocator()
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.malloc(UNIT)
    assert caught.value.size == UNIT
    assert functions.freed == []
    assert allocator.malloc(UNIT).ptr != 0
    assert unraisable == []


@pytest.mark.parametrize("over", ["c", "python"])
@POOLS
def test_u39_under_a_pool_a_null_makes_it_give_back_and_ask_again(make, over):
    functions = Answering()
    allocator = (
        CFunctions(functions).allocator() if over == "c" else functions.allocator
    )
    pool = make(allocator.malloc)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    functions.answers.append(lambda: None if over == "c" else 0)
    pointer = pool.malloc(8 * UNIT)
    assert functions.asked == 4
    assert functions.freed == functions.taken[1:2]
    assert pool.total_bytes() == pool.used_bytes() == 9 * UNIT
    del kept, pointer
    pool.free_all_blocks()
    assert functions.all_came_back_once()


@SHORT
@POOLS
def test_u39_a_lasting_shortage_is_out_of_memory(make, short, unraisable):
    functions = Answering()
    pool = make(functions.allocator.malloc)
    kept = pool.malloc(UNIT)
    pool.malloc(4 * UNIT)
    functions.answers += [short] * 100
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(8 * UNIT)
    assert (caught.value.size, caught.value.total) == (8 * UNIT, UNIT)
    assert (pool.used_bytes(), pool.free_bytes(), pool.total_bytes()) == (UNIT, 0, UNIT)
    functions.answers.clear()
    assert pool.malloc(8 * UNIT).ptr != 0
    del kept
    pool.free_all_blocks()
    assert functions.all_came_back_once()
    assert unraisable == []


@SHORT
@POOLS
def test_u39_one_shortage_is_survived(make, short):
    functions = Answering()
    pool = make(functions.allocator.malloc)
    pool.malloc(4 * UNIT)
    functions.answers.append(short)
    pool.malloc(8 * UNIT)
    assert pool.total_bytes() == 8 * UNIT
    assert functions.freed == functions.taken[:1]
    pool.free_all_blocks()
    assert functions.all_came_back_once()


@pytest.mark.parametrize("over", ["c", "python"])
def test_u39_for_no_bytes_nobody_is_asked(over):
    functions = Answering(lambda: 0)
    allocator = (
        CFunctions(functions).allocator() if over == "c" else functions.allocator
    )
    for malloc in (allocator.malloc, MemoryPool(allocator.malloc).malloc):
        pointer = malloc(0)
        assert (pointer.ptr, pointer.mem.size) == (0, 0)
        assert pointer.device_id == gpumem.get_device_id()
    del pointer
    assert (functions.asked, functions.freed) == (0, [])
