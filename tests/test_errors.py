# SPDX-License-Identifier: MIT
"""The exceptions: what they say, that they pickle, and which one bad sizes get."""

import copy
import pickle
import sys

import pytest

import gpumem
from gpumem import CUDARuntimeError, MemoryPool, OutOfMemoryError, testing

ENTRIES = {
    "Memory": lambda: gpumem.Memory,
    "malloc": lambda: gpumem.malloc,
    "alloc": lambda: gpumem.alloc,
    "MemoryPool": lambda: MemoryPool().malloc,
    "SingleDeviceMemoryPool": lambda: gpumem.SingleDeviceMemoryPool().malloc,
    "alloc over MemoryPool": lambda: over(MemoryPool()),
    "pool over a callable": lambda: MemoryPool(lambda size: gpumem.malloc(size)).malloc,
}


def over(pool):
    gpumem.set_allocator(pool.malloc)
    return gpumem.alloc


# ---- OutOfMemoryError ----


def test_out_of_memory_names_its_numbers():
    error = OutOfMemoryError(1536, 1 << 20)
    assert isinstance(error, MemoryError)
    assert (error.size, error.total, error.limit) == (1536, 1048576, 0)
    assert str(error) == (
        "Out of memory: 1,536 bytes could not be allocated "
        "(1,048,576 bytes allocated so far)."
    )


def test_out_of_memory_names_the_limit_where_there_is_one():
    error = OutOfMemoryError(size=1536, total=1 << 20, limit=1 << 21)
    assert error.limit == 2097152
    assert str(error) == (
        "Out of memory: 1,536 bytes could not be allocated "
        "(1,048,576 bytes allocated so far, limit 2,097,152 bytes)."
    )
    assert error.args == (str(error),)


class Derived(OutOfMemoryError):
    pass


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
@pytest.mark.parametrize("kind", [OutOfMemoryError, Derived])
def test_out_of_memory_pickles_with_all_it_knows(again, kind):
    error = kind(1536, 2048, 4096)
    error.note = "more"
    same = again(error)
    assert type(same) is kind
    assert (same.size, same.total, same.limit) == (1536, 2048, 4096)
    assert (str(same), same.args, same.note) == (str(error), error.args, "more")


@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3, 4)])
def test_out_of_memory_takes_two_or_three_numbers(arguments):
    with pytest.raises(TypeError):
        OutOfMemoryError(*arguments)


# ---- CUDARuntimeError ----


def test_a_runtime_error_has_the_runtimes_number_and_text():
    error = CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
    assert isinstance(error, RuntimeError)
    assert error.status == 2
    assert str(error) == "cudaErrorMemoryAllocation: out of memory"


def test_a_runtime_error_without_a_text_has_the_runtimes():
    error = CUDARuntimeError(2)
    assert error.status == 2
    assert str(error) == "cudaErrorMemoryAllocation: out of memory"
    assert error.args == (str(error),)
    for same in (CUDARuntimeError(2, None), CUDARuntimeError(status=2)):
        assert str(same) == str(error)


@pytest.mark.parametrize("status", [123456, -1, 2**31, 2**64, -(2**64), "two", None])
def test_a_runtime_error_of_a_number_nobody_knows_has_the_number(status):
    error = CUDARuntimeError(status)
    assert str(error) == f"CUDA runtime error {status}"
    assert error.status == status


def test_a_runtime_error_opens_no_device(script):
    code = """
from gpumem import _core
print(_core.CUDARuntimeError(2))
print(_core._config()["backend"])
"""
    done = script(code, GPUMEM_BACKEND="no such backend")
    assert (done.stdout, done.stderr) == ("CUDA runtime error 2\nNone\n", "")


@pytest.mark.sim_only
def test_a_failed_call_with_a_number_nobody_knows_says_the_number():
    with testing.fail("mem_alloc", code=12345):
        with pytest.raises(CUDARuntimeError, match="^CUDA runtime error 12345 .*all"):
            gpumem.malloc(512)


@pytest.mark.parametrize("again", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_runtime_error_pickles(again):
    error = CUDARuntimeError(700, "cudaErrorIllegalAddress: an illegal address")
    error.note = "more"
    same = again(error)
    assert (type(same), same.status, same.note) == (CUDARuntimeError, 700, "more")
    assert (str(same), same.args) == (str(error), error.args)


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("code", "name"),
    [
        (1, "cudaErrorInvalidValue"),
        (2, "cudaErrorMemoryAllocation"),
        (400, "cudaErrorInvalidResourceHandle"),
    ],
)
def test_a_failed_call_names_the_runtimes_error_and_what_was_done(code, name):
    with testing.fail("mem_alloc", code=code):
        with pytest.raises(CUDARuntimeError, match=f"^{name}: .*allocating") as caught:
            gpumem.malloc(512)
    assert caught.value.status == code


# ---- bad sizes ----


@pytest.mark.parametrize("entry", [name for name in ENTRIES if name != "alloc"])
@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, OverflowError),
        (-(2**63), OverflowError),
        (2**64, OverflowError),
        (10**30, OverflowError),
        (1.0, TypeError),
        (float("nan"), TypeError),
        ("512", TypeError),
        (b"512", TypeError),
        (None, TypeError),
        ([512], TypeError),
        (1j, TypeError),
    ],
)
def test_what_is_no_size_is_refused(entry, size, error):
    with pytest.raises(error, match="size"):
        ENTRIES[entry]()(size)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "size", [2**62, 2**63 - 512, 2**63 - 1, 2**63, 2**64 - 512, 2**64 - 511, 2**64 - 1]
)
def test_more_than_there_can_be_is_out_of_memory(entry, size):
    raw = entry in ("Memory", "malloc", "alloc")
    with pytest.raises(CUDARuntimeError if raw else OutOfMemoryError) as caught:
        ENTRIES[entry]()(size)
    if raw:
        assert caught.value.status == 2
        assert "cudaErrorMemoryAllocation" in str(caught.value)
    else:
        assert size <= caught.value.size < size + 512
        assert (caught.value.total, caught.value.limit) == (0, 0)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_request_needs_its_size_and_nothing_else(entry):
    request = ENTRIES[entry]()
    for arguments, names in (
        ((), {}),
        ((1, 2), {}),
        ((), {"bytes": 1}),
        ((1,), {"size": 1}),
    ):
        with pytest.raises(TypeError):
            request(*arguments, **names)


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_index_that_raises_is_heard(entry):
    class Broken:
        def __index__(self):
            raise LookupError("own")

    with pytest.raises(LookupError, match="own"):
        ENTRIES[entry]()(Broken())


def test_a_refused_request_leaves_the_counters(pool):
    kept = pool.malloc(100)
    pool.malloc(2000)
    before = pool.stats()
    for size in (-1, 2**64, 1.0, None):
        with pytest.raises((OverflowError, TypeError)):
            pool.malloc(size)
    assert pool.stats() == before
    for size in (2**63, 2**64 - 1):  # cannot be counted, so nothing is reclaimed for it
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(size)
        assert caught.value.total == 512 + 2048
    assert pool.stats() == before
    testing.check_pool(pool)
    del kept


# ---- in destructors ----


@pytest.mark.parametrize(
    "what",
    [
        "gpumem.malloc(512)",
        "gpumem.MemoryPool().malloc(512)",
        "gpumem.malloc_pinned(512)",
        "gpumem.PinnedMemoryPool().malloc(512)",
    ],
)
def test_a_failure_to_free_is_reported_and_not_raised(script, what):
    code = f"""
import sys, gpumem
from gpumem import testing
seen = []
sys.unraisablehook = lambda report: seen.append(report.exc_value)
pointer = {what}
try:
    with testing.fail("mem_free", code=700):
        try:
            raise KeyError("pending")
        finally:
            del pointer
except KeyError as error:
    assert error.__context__ is None
print([(type(error).__name__, error.status) for error in seen])
"""
    done = script(code, GPUMEM_BACKEND="sim")
    assert done.stderr == ""
    assert done.stdout.strip() == "[('CUDARuntimeError', 700)]"


BITS = 16610  # of the number below, which has more digits than may be written out


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda pool, n: pool.malloc(n), OverflowError),
        (lambda pool, n: gpumem.Memory(n), OverflowError),
        (lambda pool, n: gpumem.UnownedMemory(n, 1, None, 0), OverflowError),
        (lambda pool, n: pool.malloc(1) + n, OverflowError),
        (lambda pool, n: pool.malloc(1).memset(n, 1), OverflowError),
        (lambda pool, n: gpumem.Device(n), ValueError),
        (lambda pool, n: pool.set_limit(size=n), ValueError),
        (lambda pool, n: pool.set_limit(fraction=n), ValueError),
        (
            lambda pool, n: gpumem.PythonFunctionAllocator(
                lambda size, device: n, lambda ptr, device: None
            ).malloc(1),
            ValueError,
        ),
    ],
)
def test_numbers_that_are_too_long_to_be_written_out(pool, call, error, sign):
    with pytest.raises(error, match=f"must be .*, not a number of {BITS} bits"):
        call(pool, sign * 10**5000)
    assert pool.get_limit() == 0


class LengthOfText(int):
    def bit_length(self):
        return "x"


class NoLength(int):
    def bit_length(self):
        raise KeyError("mine")

    def __str__(self):
        raise KeyError("mine")


@pytest.mark.parametrize("kind", [LengthOfText, NoLength])
def test_what_a_kind_of_int_says_of_itself_is_not_asked(pool, kind):
    number = kind(10**30)
    for call, error in [
        (lambda: pool.malloc(number), OverflowError),
        (lambda: pool.set_limit(size=number), ValueError),
        (lambda: pool.set_limit(fraction=number), ValueError),
        (lambda: gpumem.Device(number), ValueError),
    ]:
        with pytest.raises(error, match=rf"must be .*, not {10**30}$"):
            call()


def test_an_error_keeps_no_memory(pool):
    """What raised the error holds no pointer: only the caller's own frames do."""
    pool.set_limit(size=1024)
    kept = pool.malloc(1024)
    try:
        pool.malloc(1)
    except OutOfMemoryError as error:
        assert error.__traceback__.tb_next is None
        assert sys.getrefcount(kept) == 2
    del kept
    assert pool.used_bytes() == 0


def test_a_device_that_refuses_everything_is_told_of_once(script):
    """As one does after a fault: what dies then is not worth a report each. In a
    process of its own, since what is refused stays behind."""
    code = """
import gc, sys
import gpumem
from gpumem import testing

def everything():
    pool = gpumem.MemoryPool()
    pool.malloc(512)
    return [*(gpumem.malloc(512) for _ in range(10)), gpumem.Stream(), gpumem.Event(),
            pool, gpumem.MemoryPool().malloc(512)]

reports = []
sys.unraisablehook = lambda report: reports.append(report.exc_value.status)
for code in (719, 719, 700):
    kept = everything()
    with testing.fail(None, count=0, code=code):
        del kept
        gc.collect()
    print(reports)
    everything()  # is given back, so the next refusal is news
"""
    done = script(code, GPUMEM_BACKEND="sim")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[719]", "[719, 719]", "[719, 719, 700]"]
