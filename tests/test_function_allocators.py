# SPDX-License-Identifier: MIT
"""CFunctionAllocator and PythonFunctionAllocator: the user's functions as allocators.

What holds for both is written once, for C functions that ctypes makes of the same
Python functions.
"""

import ctypes
import gc
import weakref

import pytest

import gpumem
from gpumem import (
    CFunctionAllocator,
    CFunctionAllocatorMemory,
    CUDARuntimeError,
    Device,
    MemoryPool,
    OutOfMemoryError,
    PythonFunctionAllocator,
    PythonFunctionAllocatorMemory,
    SingleDeviceMemoryPool,
    Stream,
    testing,
)

UNIT = 512
PARAM = 0x1234

C_MALLOC = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
)
C_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)


def surroundings():
    """What a function sees: the current device, and the current stream there."""
    return gpumem.get_device_id(), gpumem.get_current_stream()


class Functions:
    """A pair of functions over plain device memory, and what they were called with."""

    def __init__(self):
        self.memories = {}
        self.taken = []  # (address, device)
        self.sizes = []
        self.freed = []  # (address, device)
        self.saw = []  # surroundings of each call

    def malloc(self, size, device):
        self.saw.append(surroundings())
        memory = gpumem.Memory(size)
        self.memories[memory.ptr] = memory
        self.taken.append((memory.ptr, device))
        self.sizes.append(size)
        return memory.ptr

    def free(self, ptr, device):
        self.saw.append(surroundings())
        self.freed.append((ptr, device))
        del self.memories[ptr]


class Thunks:
    """C functions that call a pair of Python ones. They live as long as this."""

    def __init__(self, functions):
        self.params = params = []

        def malloc(param, size, device):
            params.append(param)
            return functions.malloc(size, device)

        def free(param, ptr, device):
            params.append(param)
            functions.free(ptr, device)

        self.malloc, self.free = C_MALLOC(malloc), C_FREE(free)


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def over_c(functions):
    thunks = Thunks(functions)
    return CFunctionAllocator(
        PARAM, address(thunks.malloc), address(thunks.free), thunks
    )


def over_python(functions):
    return PythonFunctionAllocator(functions.malloc, functions.free)


BOTH = pytest.mark.parametrize("over", [over_c, over_python])
POOLS = pytest.mark.parametrize("kind", [MemoryPool, SingleDeviceMemoryPool])


@pytest.fixture
def functions():
    functions = Functions()
    yield functions
    assert functions.memories == {}  # all was given back
    assert sorted(functions.freed) == sorted(functions.taken)  # and once


# ---- what they make ----


@pytest.mark.parametrize(
    ("over", "kind"),
    [(over_c, CFunctionAllocatorMemory), (over_python, PythonFunctionAllocatorMemory)],
)
def test_the_functions_give_and_take_the_memory(functions, over, kind):
    pointer = over(functions).malloc(1000)
    assert type(pointer.mem) is kind and isinstance(pointer.mem, gpumem.BaseMemory)
    assert (pointer.ptr, pointer.device_id) == functions.taken[0]
    assert (pointer.mem.size, functions.sizes) == (1000, [1000])
    assert pointer.device_id == gpumem.get_device_id()
    pointer.memset(3, 1000)
    host = bytearray(1000)
    pointer.copy_to_host(host, 1000)
    assert host == b"\3" * 1000
    middle = pointer + 10
    del pointer
    assert functions.freed == []
    del middle
    assert functions.freed == functions.taken


def test_c_functions_get_their_parameter(functions):
    thunks = Thunks(functions)
    allocator = CFunctionAllocator(
        param=PARAM,
        malloc_func=address(thunks.malloc),
        free_func=address(thunks.free),
        owner=thunks,
    )
    pointer = allocator.malloc(size=1)
    assert thunks.params == [PARAM]
    del pointer
    assert thunks.params == [PARAM, PARAM]


def test_c_functions_run_without_the_interpreter(lets_others_run):
    """abs serves for both: of the parameter it makes an address that nobody uses."""
    function = address(ctypes.CDLL(None).abs)
    allocator = CFunctionAllocator(PARAM, function, function, None)
    assert allocator.malloc(1).ptr == PARAM
    assert lets_others_run(allocator.malloc, 1)


@BOTH
def test_for_no_bytes_no_function_is_called(functions, over):
    allocator = over(functions)
    pointer = allocator.malloc(0)
    assert (pointer.ptr, pointer.mem.ptr, pointer.mem.size) == (0, 0, 0)
    assert pointer.device_id == gpumem.get_device_id()
    assert MemoryPool(allocator.malloc).malloc(0).ptr == 0
    del pointer
    assert functions.saw == []


@BOTH
def test_they_serve_as_the_allocator(functions, over):
    gpumem.set_allocator(over(functions).malloc)
    pointer = gpumem.alloc(100)
    gpumem.set_allocator(None)
    assert functions.sizes == [100]
    del pointer
    assert functions.freed == functions.taken


@BOTH
@pytest.mark.parametrize("end", ["free_all_blocks", "drop"])
def test_a_pool_gives_every_segment_back_once_and_no_pieces(functions, over, end):
    pool = MemoryPool(over(functions).malloc)
    segments = [pool.malloc(4 * UNIT) for _ in range(3)]
    del segments
    pieces = [pool.malloc(UNIT) for _ in range(10)]
    assert functions.sizes == [4 * UNIT] * 3
    del pieces
    assert functions.freed == []
    if end == "free_all_blocks":
        pool.free_all_blocks()
    else:
        del pool
    assert sorted(functions.freed) == sorted(functions.taken)


@BOTH
def test_a_pool_over_a_pool_over_functions(functions, over):
    lower = MemoryPool(over(functions).malloc)
    upper = MemoryPool(lower.malloc)
    pointer = upper.malloc(UNIT)
    assert lower.used_bytes() == upper.used_bytes() == UNIT
    del pointer, upper
    assert lower.free_bytes() == UNIT
    assert functions.freed == []
    lower.free_all_blocks()
    assert functions.freed == functions.taken


# ---- lifetime ----


@BOTH
@pytest.mark.parametrize("through", ["malloc", "pool"])
def test_the_last_pointer_keeps_the_functions(functions, over, through):
    """All else is dropped first. The owner goes after its free ran, not before."""
    events = []
    allocator = over(functions)
    if over is over_c:
        seen = gc.get_referents(allocator)
        (owner,) = (thing for thing in seen if isinstance(thing, Thunks))
        weakref.finalize(owner, lambda: events.append(list(functions.freed)))
        del seen, owner
    if through == "malloc":
        pointer = allocator.malloc(1024)
    else:
        pointer = MemoryPool(allocator.malloc).malloc(1024)
    del allocator
    gc.collect()
    assert events == [] and functions.freed == []
    pointer.memset(1, 1024)
    del pointer
    gc.collect()
    assert functions.freed == functions.taken and len(functions.taken) == 1
    assert events == ([functions.taken] if over is over_c else [])


@BOTH
def test_a_closed_allocator_allocates_no_more_and_its_memory_goes_back(functions, over):
    allocator = over(functions)
    pool = MemoryPool(allocator.malloc)
    pointer, cached = allocator.malloc(1024), pool.malloc(UNIT)
    del cached
    assert allocator.close() is None
    with pytest.raises(RuntimeError, match="closed"):
        allocator.malloc(1)
    with pytest.raises(RuntimeError, match="closed"):
        pool.malloc(2 * UNIT)
    assert pool.malloc(UNIT).ptr == functions.taken[1][0]  # from the cache
    allocator.close()
    del pointer, pool
    assert functions.freed == functions.taken


def test_closing_lets_go_of_functions_and_owner():
    thunks = Thunks(Functions())
    alive = weakref.ref(thunks)
    allocator = CFunctionAllocator(
        0, address(thunks.malloc), address(thunks.free), thunks
    )
    del thunks
    assert alive() is not None
    allocator.close()
    assert alive() is None
    functions = Functions()
    alive = weakref.ref(functions)
    allocator = over_python(functions)
    del functions
    assert alive() is not None
    allocator.close()
    assert alive() is None


class OwnPool(Functions):
    """Functions that refer to the pool they serve, and still do when freeing."""

    def __init__(self, over, kind):
        super().__init__()
        self.allocator = over(self)
        self.pool = kind(self.allocator.malloc)

    def free(self, ptr, device):
        assert self.pool is not None and self.allocator is not None
        super().free(ptr, device)


@BOTH
@POOLS
def test_functions_that_refer_to_their_own_pool_are_collected(over, kind, unraisable):
    own = OwnPool(over, kind)
    taken, freed, alive = own.taken, own.freed, weakref.ref(own)
    pointer = own.pool.malloc(UNIT)
    cached = own.pool.malloc(2 * UNIT)
    del own, cached
    gc.collect()
    assert alive() is not None and freed == []  # a block is in use
    pointer.memset(1, UNIT)
    del pointer
    gc.collect()
    assert alive() is None
    assert sorted(freed) == sorted(taken) and len(taken) == 2
    assert unraisable == []  # the free function found all that it refers to


def test_memory_in_a_cycle_is_freed_before_its_surroundings_are_cleared(unraisable):
    own = Functions()
    freed, taken, alive = own.freed, own.taken, weakref.ref(own)
    own.pointer = over_python(own).malloc(UNIT)
    del own
    gc.collect()
    assert freed == taken and len(taken) == 1
    assert alive() is None and unraisable == []


def test_an_allocator_in_a_cycle_is_collected():
    own = Functions()
    alive = weakref.ref(own)
    own.allocator = over_python(own)
    del own
    gc.collect()
    assert alive() is None


# ---- device and stream ----


@BOTH
def test_the_functions_see_the_callers_stream(functions, over):
    stream, other = Stream(), Stream()
    with stream:
        pointer = over(functions).malloc(UNIT)
    with other:
        del pointer
    assert functions.saw == [(0, stream), (0, other)]


@BOTH
@pytest.mark.two_devices
def test_the_functions_see_the_memorys_device(functions, over):
    with Device(1):
        there = Stream()
        there.use()
    try:
        with Device(1):
            pointer = over(functions).malloc(UNIT)
        assert pointer.device_id == 1
        del pointer  # by a destructor, with device 0 current
        assert functions.saw == [(1, there), (1, there)]
        assert functions.freed == functions.taken
        assert functions.taken[0][1] == 1
        assert gpumem.get_device_id() == 0
    finally:
        with Device(1):
            Stream.null.use()


@BOTH
@pytest.mark.two_devices
def test_a_pool_calls_them_on_its_own_device(functions, over):
    with Device(1):
        pool = SingleDeviceMemoryPool(over(functions).malloc)
    pointer = pool.malloc(UNIT)
    assert pointer.device_id == 1
    del pointer
    pool.free_all_blocks()
    null = gpumem.get_current_stream(1)
    assert functions.saw == [(1, null), (1, null)]
    assert [device for _, device in functions.taken + functions.freed] == [1, 1]
    assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
def test_each_device_of_a_pool_is_flushed_by_itself(functions):
    pool = MemoryPool(over_python(functions).malloc)
    with Device(1):
        pointer = pool.malloc(UNIT)
    del pointer
    pool.free_all_blocks()  # of device 0
    assert functions.freed == []
    with Device(1):
        pool.free_all_blocks()
    assert functions.freed == functions.taken


@pytest.mark.two_devices
@pytest.mark.parametrize("through", ["malloc", "pool"])
def test_the_current_device_is_restored_when_a_function_raises(through, unraisable):
    error = LookupError("here")

    def fail(*arguments):
        assert gpumem.get_device_id() == 1
        raise error

    broken = PythonFunctionAllocator(fail, fail)
    with Device(1):
        pool = SingleDeviceMemoryPool(broken.malloc)
    if through == "pool":
        ask = pool.malloc
    else:

        def ask(size):
            return PythonFunctionAllocatorMemory(size, fail, fail, 1)

    with pytest.raises(LookupError) as caught:
        ask(UNIT)
    assert caught.value is error
    assert gpumem.get_device_id() == 0

    half = Functions()
    memory = PythonFunctionAllocatorMemory(UNIT, half.malloc, fail, 1)
    del memory
    assert unraisable == [error]
    assert gpumem.get_device_id() == 0


# ---- what malloc returns ----


class Late(Exception):
    """The function's own."""


def raising(error):
    def answer():
        raise error

    return answer


# What malloc does, and what comes of it.
BAD = [
    (lambda: 0, OutOfMemoryError, "512 bytes could not be allocated"),
    (lambda: None, TypeError, "malloc_func returned must be an integer, not NoneType"),
    (lambda: 1.0, TypeError, "malloc_func returned must be an integer, not float"),
    (lambda: "1", TypeError, "malloc_func returned must be an integer, not str"),
    (lambda: -1, ValueError, r"malloc_func returned must be from 0 to .*, not -1"),
    (lambda: 2**64, ValueError, f"must be from 0 to .*, not {2**64}"),
    (raising(Late("own")), Late, "^own$"),
    (raising(KeyError("own")), KeyError, "own"),
    (raising(CUDARuntimeError(700)), CUDARuntimeError, "700|IllegalAddress"),
]
SHORTAGES = [lambda: 0, raising(MemoryError()), raising(CUDARuntimeError(2))]
SHORTAGES.append(raising(OutOfMemoryError(1, 2, 3)))


def never(ptr, device):
    raise AssertionError("nothing was allocated")


@pytest.mark.parametrize(("answer", "error", "text"), BAD)
def test_what_is_no_address_is_refused(answer, error, text, unraisable):
    allocator = PythonFunctionAllocator(lambda size, device: answer(), never)
    with pytest.raises(error, match=text):
        allocator.malloc(UNIT)
    assert unraisable == []


def test_a_null_pointer_from_c_is_out_of_memory(unraisable):
    class Nothing:
        malloc = staticmethod(lambda size, device: None)
        free = staticmethod(never)

    with pytest.raises(OutOfMemoryError, match="512 bytes could not be allocated"):
        over_c(Nothing).malloc(UNIT)
    assert unraisable == []


@pytest.fixture
def cached(functions):
    """A pool that holds 4 units to give back, and whose functions answer what the list
    says from then on; an empty one lets them work."""
    answers = []

    def malloc(size, device):
        return answers[0]() if answers else functions.malloc(size, device)

    pool = MemoryPool(PythonFunctionAllocator(malloc, functions.free).malloc)
    pool.malloc(4 * UNIT)
    yield pool, answers
    answers.clear()
    testing.check_pool(pool)
    pool.malloc(8 * UNIT)  # it works as ever
    pool.free_all_blocks()


@pytest.mark.parametrize(("answer", "error", "text"), BAD[1:])
def test_under_a_pool_an_error_passes_and_gives_nothing_up(cached, answer, error, text):
    pool, answers = cached
    answers.append(answer)
    with pytest.raises(error, match=text):
        pool.malloc(8 * UNIT)
    assert (pool.used_bytes(), pool.free_bytes()) == (0, 4 * UNIT)
    assert pool.total_bytes() == 4 * UNIT


@pytest.mark.parametrize("answer", SHORTAGES)
def test_under_a_pool_a_shortage_makes_it_give_back_and_ask_again(
    cached, functions, answer
):
    pool, answers = cached

    def once():
        del answers[:]
        return answer()

    answers.append(once)
    pointer = pool.malloc(8 * UNIT)
    assert functions.freed == functions.taken[:1]
    assert pool.total_bytes() == pool.used_bytes() == 8 * UNIT
    del pointer


@pytest.mark.parametrize("answer", SHORTAGES)
def test_under_a_pool_a_lasting_shortage_is_out_of_memory(cached, functions, answer):
    pool, answers = cached
    answers.append(answer)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(8 * UNIT)
    error = caught.value
    assert (error.size, error.total, error.limit) == (8 * UNIT, 0, 0)
    assert functions.freed == functions.taken
    assert (pool.used_bytes(), pool.free_bytes(), pool.total_bytes()) == (0, 0, 0)


# ---- what free does ----


def test_a_free_that_raises_is_reported_and_counts_as_done(unraisable):
    works, error = Functions(), Late("own")

    def free(ptr, device):
        works.free(ptr, device)
        raise error

    pointer = PythonFunctionAllocator(works.malloc, free).malloc(UNIT)
    try:
        raise KeyError("pending")
    except KeyError as pending:
        del pointer
        assert pending.args == ("pending",)
    assert unraisable == [error]
    assert works.freed == works.taken and len(works.taken) == 1


def test_a_free_that_raises_does_not_stop_a_pool(unraisable):
    works, error = Functions(), Late("own")

    def free(ptr, device):
        works.free(ptr, device)
        raise error

    pool = MemoryPool(PythonFunctionAllocator(works.malloc, free).malloc)
    pointers = [pool.malloc(UNIT) for _ in range(3)]
    del pointers
    pool.free_all_blocks()
    assert unraisable == [error] * 3
    assert pool.total_bytes() == 0
    assert sorted(works.freed) == sorted(works.taken)


def test_a_free_may_use_the_pool_it_serves(functions):
    held = []

    def free(ptr, device):
        if not functions.freed:
            held.append(pool.malloc(UNIT))
        functions.free(ptr, device)

    pool = MemoryPool(PythonFunctionAllocator(functions.malloc, free).malloc)
    pool.malloc(4 * UNIT)
    pool.free_all_blocks()
    assert (pool.used_bytes(), pool.total_bytes()) == (UNIT, UNIT)
    testing.check_pool(pool)
    held.clear()
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((), TypeError, "param"),
        ((0, 1, 1), TypeError, "owner"),
        ((0, 1, 1, None, 1), TypeError, "positional"),
        ((None, 1, 1, None), TypeError, "param"),
        ((0, 1.0, 1, None), TypeError, "malloc_func"),
        ((0, 1, "f", None), TypeError, "free_func"),
        ((-1, 1, 1, None), OverflowError, "param"),
        ((0, 2**64, 1, None), OverflowError, "malloc_func"),
        ((0, 0, 1, None), ValueError, "malloc_func must be the address of a function"),
        ((0, 1, 0, None), ValueError, "free_func must be the address of a function"),
    ],
)
def test_c_arguments_are_checked(arguments, error, text):
    with pytest.raises(error, match=text):
        CFunctionAllocator(*arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "malloc_func"),
        ((never,), "free_func"),
        ((never, never, never), "positional"),
        ((1, never), "malloc_func must be callable, not int"),
        ((never, None), "free_func must be callable, not NoneType"),
    ],
)
def test_python_arguments_are_checked(arguments, text):
    with pytest.raises(TypeError, match=text):
        PythonFunctionAllocator(*arguments)


@BOTH
@pytest.mark.parametrize(
    ("size", "error"),
    [(-1, OverflowError), (2**64, OverflowError), (1.0, TypeError), ("1", TypeError)],
)
def test_sizes_are_checked_before_a_function_is_called(functions, over, size, error):
    with pytest.raises(error):
        over(functions).malloc(size)
    assert functions.saw == []


def test_a_device_must_be_there(functions):
    with pytest.raises(ValueError, match="device"):
        PythonFunctionAllocatorMemory(1, functions.malloc, functions.free, 99)
    with pytest.raises(ValueError, match="device"):
        CFunctionAllocatorMemory(1, 0, 1, 1, 99)
    assert functions.saw == []


@BOTH
def test_allocators_and_memory_are_initialised_once(functions, over):
    allocator = over(functions)
    with pytest.raises(RuntimeError, match="once"):
        if over is over_c:
            allocator.__init__(0, 1, 1, None)
        else:
            allocator.__init__(never, never)
    memory = allocator.malloc(UNIT).mem
    with pytest.raises(RuntimeError, match="once"):
        if over is over_c:
            memory.__init__(1, 0, 1, 1, 0)
        else:
            memory.__init__(1, never, never, 0)
    del memory
    assert functions.freed == functions.taken


@pytest.mark.parametrize("kind", [CFunctionAllocator, PythonFunctionAllocator])
def test_an_allocator_that_was_never_initialised_is_of_no_use(kind):
    allocator = kind.__new__(kind)
    with pytest.raises(RuntimeError, match="not initialized"):
        allocator.malloc(1)
    allocator.close()


def test_what_is_freed_is_what_was_taken_whatever_the_attributes_say(functions):
    memory = over_python(functions).malloc(UNIT).mem
    memory.ptr += 8
    memory.device_id = 99
    del memory
    assert functions.freed == functions.taken
