# SPDX-License-Identifier: MIT
"""What an OutOfMemoryError knows and says: the cause, the numbers, one thing to do. The
exception by itself is in test_errors.py; the figures are worked out by hand on a
simulated device whose memory is one stretch."""

import copy
import multiprocessing
import os
import pickle
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import gpumem
from gpumem import MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool, testing

UNIT = 512
MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "src" / "core" / "gm_shortage.h"
SMALL_DEVICE = {"GPUMEM_BACKEND": "sim", "GPUMEM_SIM_MEMORY": "64MiB"}
PRELUDE = """
import gpumem
from gpumem import MemoryPool, OutOfMemoryError, testing
MIB = 1 << 20

def failure(pool, size):
    try:
        pool.malloc(size)
    except OutOfMemoryError as error:
        return error
    raise AssertionError("it found memory")
"""


def on_a_small_device(script, code, **environ):
    """Runs `code` on a device of 64 MiB; the lines it prints."""
    done = script(PRELUDE + code, **SMALL_DEVICE, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def failure(pool, size):
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(size)
    return caught.value


# ---- the attributes ----


@pytest.mark.skipif(not HEADER.is_file(), reason="needs the source tree beside tests/")
def test_attributes_and_causes_are_those_of_the_lists_and_are_documented():
    header = HEADER.read_text(encoding="utf-8")
    numbers = re.findall(r"^    X\((\w+), \"(.*)\"\)", header, re.MULTILINE)
    names = [name for name, _ in numbers if not name.startswith("GM_")]
    words = re.findall(r"X\(GM_CAUSE_\w+, \"(.*?)\"\)", header)
    page = (ROOT / "docs" / "out-of-memory.md").read_text(encoding="utf-8")
    assert len(names) > 12 and len(words) == 9
    documented = " ".join(OutOfMemoryError.__doc__.split())
    for name in names:
        assert getattr(OutOfMemoryError(1, 2), name, "missing") != "missing"
        assert f"{name} (int): " in documented
        assert f"`{name}`" in page
    for word in set(words) - {"unknown"}:
        assert f"'{word}'" in documented
        assert f"\n## {word.capitalize()}\n" in page


def test_all_numbers_of_a_limit(pool):
    pool.set_limit(size=8 * MIB)
    kept = pool.malloc(5 * MIB - 100)
    pool.malloc(MIB)  # cached, and given back before the request fails
    error = failure(pool, 4 * MIB - 1)
    assert (error.size, error.rounded_size) == (4 * MIB - 1, 4 * MIB)
    assert (error.device, error.cause) == (0, "limit")
    assert (error.limit, error.missing_bytes) == (8 * MIB, MIB)
    assert (error.used_bytes, error.cached_bytes, error.pending_bytes) == (
        *(5 * MIB, 0, 0),
    )
    assert error.total_bytes == error.total == pool.total_bytes() == 5 * MIB
    assert (error.largest_free_block, error.largest_available_block) == (0, 3 * MIB)
    assert error.attempt == 0
    free, total = gpumem.Device(0).mem_info
    assert (error.device_free, error.device_total) == (free, total)
    assert error.outside_bytes == total - free - 5 * MIB
    text = str(error)
    assert text.startswith(
        "Out of memory: 4,194,303 bytes could not be allocated "
        "(5,242,880 bytes allocated so far, limit 8,388,608 bytes). "
        "Cause: limit: 1,048,576 bytes more than it leaves, 3,145,728 could be had. "
        "Pool: 5,242,880 bytes used, 0 cached, largest cached block 0. "
        f"Device 0: {free:,} of {total:,} bytes free, "
    )
    assert text.endswith(" Raise it by set_limit(), or let go of pointers.")
    del kept


@pytest.mark.parametrize("name", ["size", "total", "limit", "cause", "device"])
def test_the_attributes_can_only_be_read(name):
    error = OutOfMemoryError(1, 2, 3)
    with pytest.raises(AttributeError):
        setattr(error, name, 5)
    error.note = "one of the user's"
    assert error.note


def test_one_made_by_hand_knows_what_it_was_told():
    error = OutOfMemoryError(1536, 1 << 20, 1 << 21)
    assert (error.size, error.total, error.limit) == (1536, 1 << 20, 1 << 21)
    assert error.total_bytes == 1 << 20
    for name in ("cause", "device", "rounded_size", "used_bytes", "device_free"):
        assert getattr(error, name) is None
    unknown = OutOfMemoryError(1536, -1)
    assert (unknown.total, unknown.limit) == (None, 0)
    assert str(unknown) == "Out of memory: 1,536 bytes could not be allocated."
    largest = OutOfMemoryError(2**64 - 1, 2**64 - 2)
    assert "18,446,744,073,709,551,615 bytes could" in str(largest)
    assert (largest.size, largest.total) == (2**64 - 1, 2**64 - 2)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((-1, 0), OverflowError), ((1, -2), OverflowError), ((1, 2.0), TypeError)],
)
def test_what_is_no_number_of_bytes_is_refused(arguments, error):
    with pytest.raises(error):
        OutOfMemoryError(*arguments)


def test_a_subclass_that_tells_nothing_knows_nothing():
    class Silent(OutOfMemoryError):
        def __init__(self):
            pass

    error = Silent()
    assert (error.size, error.total, error.cause) == (0, None, None)
    assert str(pickle.loads(pickle.dumps(OutOfMemoryError(1, 2)))) == str(
        OutOfMemoryError(1, 2)
    )


# ---- the causes ----


def test_full(script):
    code = """
pool = MemoryPool()
kept = pool.malloc(60 * MIB)
error = failure(pool, 6 * MIB)
print(error.cause, error.missing_bytes // MIB, error.outside_bytes)
print(error)
"""
    first, text = on_a_small_device(script, code)
    assert first == "full 2 0"
    assert "Cause: full: 2,097,152 bytes are missing, 4,194,304 could be had." in text
    assert text.endswith("set_out_of_memory_callback() is given.")


def test_fragmented(script):
    """Eight parts; a pipeline that took a piece of what it needs whole later on."""
    code = """
pool = MemoryPool()
part = 8 * MIB
first = pool.malloc(part)
pool.malloc(4 * part)
second = pool.malloc(part)
third = pool.malloc(part)
error = failure(pool, 4 * part)
print(error.cause, error.cached_bytes // part, error.largest_free_block // part)
print(error.device_free // part, error.largest_available_block // part)
print(error)
"""
    cause, device, text = on_a_small_device(script, code)
    assert (cause, device) == ("fragmented 2 2", "3 3")
    assert (
        f"Cause: fragmented: {40 * MIB:,} bytes free in total, "
        f"largest block {24 * MIB:,}." in text
    )


def test_a_checkerboard_says_what_it_would_have_given(script):
    """The largest block that the statistics name can be had, and one unit more fails
    with the same figure."""
    code = """
pool = MemoryPool()
held = [pool.malloc(MIB) for _ in range(64)]
del held[::2]
largest = pool.stats()["largest_available_block"]
p = pool.malloc(largest)
del p
error = failure(pool, largest + 1)
print(largest == error.largest_available_block == MIB, error.cause)
print(error)
"""
    first, text = on_a_small_device(script, code)
    assert first == "True fragmented"
    assert f"{32 * MIB:,} bytes free in total, largest block {MIB:,}." in text


def test_other_pool(script):
    code = """
pool, other = MemoryPool(), MemoryPool()
a = pool.malloc(8 * MIB)
b = other.malloc(40 * MIB)
del b
b = other.malloc(30 * MIB)
error = failure(pool, 20 * MIB)
print(error.cause, error.sibling_bytes // MIB, error.sibling_idle_bytes // MIB)
print(error)
"""
    first, text = on_a_small_device(script, code)
    assert first == "other pool 40 10"
    assert f"other pools of this process hold {40 * MIB:,} bytes." in text
    assert f"({40 * MIB:,} in other pools, {10 * MIB:,} of these cached)" in text


def test_pools_that_lie_over_it_are_no_others(script):
    """Their memory is its own, and counted once; that of a pool over managed memory
    need not be on the device."""
    code = """
lower, other = MemoryPool(), MemoryPool()
kept = lower.malloc(4 * MIB)
middle = MemoryPool(lower.malloc)
upper = MemoryPool(middle.malloc)
a = upper.malloc(36 * MIB)
b, raw = other.malloc(8 * MIB), gpumem.malloc(4 * MIB)
managed = MemoryPool(gpumem.malloc_managed)
c = managed.malloc(50 * MIB)
error = failure(lower, 30 * MIB)
print(error.cause, error.total_bytes // MIB, error.outside_bytes // MIB)
print(error.sibling_bytes <= error.outside_bytes, error.sibling_idle_bytes)
del c
managed.free_all_blocks()
error = failure(lower, 30 * MIB)
print(error.cause, error.outside_bytes // MIB, error.sibling_bytes // MIB)
"""
    first, second, third = on_a_small_device(script, code)
    assert first.startswith("full 40 ")
    assert second == "True 0"
    assert third == "full 12 8"


def test_other_process(script):
    """Memory that no pool has: here of this process's own, taken raw."""
    code = """
pool = MemoryPool()
raw = gpumem.malloc(40 * MIB)
kept = pool.malloc(8 * MIB)
error = failure(pool, 20 * MIB)
print(error.cause, error.outside_bytes // MIB)
print(error)
"""
    first, text = on_a_small_device(script, code)
    assert first == "other process 40"
    assert f"outside of this process's pools holds {40 * MIB:,} bytes." in text
    assert text.endswith("or else memory of this one that is in no pool.")


def test_too_large(script):
    code = """
pool = MemoryPool()
for size in (65 * MIB, 1 << 62, 2**64 - 1):
    error = failure(pool, size)
    print(error.cause, error.size == size, error.rounded_size)
print(error)
"""
    lines = on_a_small_device(script, code)
    assert lines[:3] == [
        f"too large True {65 * MIB}",
        f"too large True {1 << 62}",
        "too large True None",
    ]
    assert f"too large: the device has {64 * MIB:,} bytes in all." in lines[3]


def test_allocator_and_what_it_said(pool):
    class Empty(MemoryError):
        pass

    def allocate(size):
        raise Empty(f"nothing left for {size}")

    over = MemoryPool(allocate)
    error = failure(over, 1000)
    assert (error.cause, error.device_free) == ("allocator", None)
    assert type(error.__cause__) is Empty
    assert str(error.__cause__) == "nothing left for 1024"
    assert error.__cause__.__traceback__ is None  # its frames keep no memory


def test_the_error_of_a_pool_below_is_the_cause_of_the_one_above():
    lower = MemoryPool()
    lower.set_limit(size=MIB)
    upper = MemoryPool(lower.malloc)
    error = failure(upper, 2 * MIB)
    assert (error.cause, error.__cause__.cause) == ("allocator", "limit")
    assert error.__cause__.limit == MIB


def test_what_an_earlier_attempt_raised_is_not_the_cause():
    answers = [MemoryError("once")]

    def allocate(size):
        if answers:
            raise answers.pop()
        return gpumem.MemoryPointer(gpumem.Memory(0), 0)  # a null pointer: no more

    pool = MemoryPool(allocate)
    assert failure(pool, UNIT).__cause__ is None


def test_a_failed_allocator_keeps_no_memory_while_the_request_goes_on():
    """Its frame holds garbage that the request needs; the exception must not."""
    pool = MemoryPool()
    pool.set_limit(size=2 * MIB)

    def allocate(size):
        local = pool.malloc(size)
        if refuse:
            refuse.pop()
            raise MemoryError("with a block in the frame")
        return local

    refuse = [1]
    upper = MemoryPool(allocate)
    pointer = upper.malloc(2 * MIB)
    assert pool.used_bytes() == 2 * MIB
    del pointer


def test_a_function_that_gives_null_says_so():
    allocator = gpumem.PythonFunctionAllocator(lambda size, device: 0, print)
    error = failure(allocator, 1000)
    assert (error.size, error.device, error.cause) == (1000, 0, "allocator")
    assert (error.total, error.used_bytes) == (None, None)
    assert str(error) == (
        "Out of memory: 1,000 bytes could not be allocated. "
        "Cause: allocator: what was asked for the memory has no more. "
        "Let go of memory that came from there."
    )


def test_a_raw_allocation_names_the_numbers_too(script):
    code = """
kept = gpumem.malloc(40 * MIB)
try:
    gpumem.malloc(30 * MIB)
except gpumem.CUDARuntimeError as error:
    print(error.status, error)
"""
    (line,) = on_a_small_device(script, code)
    assert line == (
        "2 cudaErrorMemoryAllocation: out of memory (allocating device memory: "
        f"{30 * MIB} bytes on device 0, which has {24 * MIB} of {64 * MIB} bytes free; "
        "let go of memory, or ask for less)"
    )


def test_so_does_every_other_kind_of_memory(script):
    code = """
pool = gpumem.MemoryPool()
pool.malloc(40 * MIB)
pinned = gpumem.PinnedMemoryPool()
pinned.malloc(MIB)
for make in (gpumem.malloc_async, gpumem.malloc_managed, gpumem.malloc_pinned):
    try:
        make(1 << 40)
    except gpumem.CUDARuntimeError as error:
        print(error.status, str(error).partition(": out of memory ")[2])
"""
    device = (
        f"{1 << 40} bytes on device 0, which has {24 * MIB} of {64 * MIB} bytes free"
    )
    step = "bytes cached: free_all_blocks() gives back what is idle of them)"
    assert on_a_small_device(script, code) == [
        f"2 (allocating memory in stream order: {device}; pools have {40 * MIB} {step}",
        f"2 (allocating managed memory: {device}; pools have {40 * MIB} {step}",
        f"2 (allocating pinned memory: {1 << 40} bytes; pools have {MIB} {step}",
    ]


@pytest.mark.sim_only
def test_a_device_fault_is_called_one(pool):
    with testing.fail("mem_alloc", code=700):
        with pytest.raises(gpumem.CUDARuntimeError, match="a device fault: this"):
            pool.malloc(UNIT)
    with testing.fail("mem_alloc", code=1):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            pool.malloc(UNIT)
    assert "fault" not in str(caught.value)


# ---- the hint ----


def test_a_hint_does_not_advise_what_is_done_already(script):
    code = """
pool = MemoryPool()
kept = pool.malloc(60 * MIB)
print(failure(pool, 6 * MIB))
pool.set_out_of_memory_callback(lambda error: False)
print(failure(pool, 6 * MIB))
pool.set_limit(size=61 * MIB)
print(failure(pool, 6 * MIB))
"""
    before, after, limit = on_a_small_device(script, code)
    assert "set_out_of_memory_callback()" in before
    assert "set_out_of_memory_callback" not in after
    assert limit.endswith(
        "Let go of pointers: the device has no room for a higher limit."
    )


def test_a_request_above_the_limit_is_told_by_how_much(pool):
    """Pointers that die make no room for it."""
    pool.set_limit(size=MIB)
    kept = pool.malloc(UNIT)
    error = failure(pool, 3 * MIB)
    assert (error.cause, error.missing_bytes) == ("limit", 2 * MIB + UNIT)
    assert str(error).endswith("Raise it by set_limit(), or ask for less at a time.")
    error = failure(pool, gpumem.Device().mem_info[1])
    assert str(error).endswith(
        "Ask for less at a time: the device has no room for a higher limit."
    )
    del kept


def test_a_size_below_0_is_recognised(pool):
    """As an unsigned number it is more than can be."""
    assert "a difference that went below 0" in str(failure(pool, 2**64 - 512))


# ---- it cannot fail ----


@pytest.mark.sim_only
@pytest.mark.parametrize("call", ["mem_info", "mem_largest"])
def test_a_device_that_does_not_answer_leaves_gaps(pool, call):
    kept = pool.malloc(UNIT)
    pool.set_limit(size=2 * UNIT)
    with testing.fail(call, count=0, code=700):
        error = failure(pool, 3 * UNIT)
    assert (error.cause, error.used_bytes, error.limit) == ("limit", UNIT, 2 * UNIT)
    assert (error.device_free, error.device_total, error.outside_bytes) == (None,) * 3
    assert "Device" not in str(error)
    assert testing.last_error() == 0
    del kept


def without_host_memory():
    """Each allocation of the interpreter fails in turn, and then all from it on. Where
    it has no memory for the traceback it puts an exception of its own before ours."""
    import _testcapi

    pool = MemoryPool()
    pool.set_limit(size=MIB)
    seen = []
    sys.unraisablehook = lambda report: None  # the collector lacks memory too
    for count in (1, 0):
        for first in range(1, 60):
            _testcapi.set_nomemory(first, first + 1 if count else 0)
            try:
                pool.malloc(2 * MIB)
            except MemoryError as error:
                _testcapi.remove_mem_hooks()
                ours = error.__context__ or error
                seen.append((type(ours).__name__, ours.cause, ours.size // MIB))
                del error, ours
    print(len(seen), *set(seen))


def test_it_is_there_though_there_is_no_host_memory_for_it(script):
    pytest.importorskip("_testcapi", reason="no allocator that fails")
    done = script(
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "import test_oom_error; test_oom_error.without_host_memory()",
        GPUMEM_BACKEND="sim",
    )
    assert (done.stdout, done.stderr) == ("118 ('OutOfMemoryError', 'limit', 2)\n", "")


@pytest.mark.sim_only
def test_nothing_is_taken_from_the_device_for_it(pool):
    pool.set_limit(size=UNIT)
    with testing.call_log() as calls:
        error = failure(pool, 3 * UNIT)
        str(error), error.__reduce__()
    assert {call.name for call in calls} <= {"mem_info", "mem_largest", "device_get"}


# ---- pickling ----

ALL = (
    *("size", "total", "device", "cause", "rounded_size", "missing_bytes", "limit"),
    *("used_bytes", "cached_bytes", "pending_bytes", "total_bytes"),
    *("largest_free_block", "largest_available_block", "device_free", "device_total"),
    *("outside_bytes", "sibling_bytes", "sibling_idle_bytes", "attempt"),
)


def numbers(error):
    return {name: getattr(error, name) for name in ALL}


@pytest.mark.parametrize(
    "again",
    [
        copy.copy,
        copy.deepcopy,
        *(
            lambda error, protocol=protocol: pickle.loads(
                pickle.dumps(error, protocol=protocol)
            )
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ],
)
def test_it_travels_with_all_it_knows(pool, again):
    pool.set_limit(size=MIB)
    kept = pool.malloc(700)
    error = failure(pool, MIB)
    error.note = "of the user"
    error.add_note("a note")
    same = again(error)
    assert type(same) is OutOfMemoryError
    assert numbers(same) == numbers(error)
    assert (str(same), same.args) == (str(error), error.args)
    assert (same.note, same.__notes__) == ("of the user", ["a note"])
    del kept


def fail_in_a_worker(limit):
    pool = SingleDeviceMemoryPool()
    pool.set_limit(size=limit)
    pool.malloc(2 * limit)


def test_it_comes_through_a_process_pool(monkeypatch):
    monkeypatch.setenv("GPUMEM_BACKEND", "sim")
    path = os.pathsep.join([str(Path(gpumem.__path__[0]).parent), str(ROOT / "tests")])
    monkeypatch.setenv("PYTHONPATH", path)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as workers:
        with pytest.raises(OutOfMemoryError) as caught:
            workers.submit(fail_in_a_worker, MIB).result(timeout=60)
    error = caught.value
    assert (error.cause, error.limit, error.size) == ("limit", MIB, 2 * MIB)
    assert "Cause: limit" in str(error)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, TypeError),
        ({"cause": "the weather"}, ValueError),
        ({"limit": "many"}, TypeError),
        ({"device": 2**40}, OverflowError),
        ({"size": 5}, AttributeError),
    ],
)
def test_a_state_that_makes_no_sense_is_refused(state, error):
    with pytest.raises(error):
        OutOfMemoryError(1, 2).__setstate__(state)


def test_pieces_that_fill_the_limit_are_named(pool):
    """What is used and the request fit the limit; the rest of a split segment is in the
    way, which a higher limit would only hide."""
    pool.set_limit(size=20 * MIB)
    pool.malloc(16 * MIB)
    kept = pool.malloc(3 * MIB)  # a part of it
    error = failure(pool, 14 * MIB)
    assert (error.cause, error.used_bytes) == ("limit", kept.mem.size)
    assert error.cached_bytes == 13 * MIB
    assert "split segments fill the limit" in str(error)
    assert str(failure(pool, 18 * MIB)).endswith("or let go of pointers.")
