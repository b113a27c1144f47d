# SPDX-License-Identifier: MIT
"""The limit "did not work", since nvidia-smi showed more: the context and other
libraries are outside of it; and the message told of the whole card though a limit was
set. torch#58466, torch#107667, torch#111363, cupy#8558, cupy#5177, cupy#2241, cupy#314,
rapidsai/dask-cuda#280, rapidsai/dask-cuda#443,
https://github.com/pytorch/pytorch/issues/58466"""

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from casekit import MIB, UNIT, device_calls, in_a_cycle, most_held

import gpumem
from gpumem import Device, MemoryPool, OutOfMemoryError, testing

HERE = Path(__file__).resolve().parent
CONTEXT, OTHERS, CARD = 300 * MIB, 200 * MIB, 1024 * MIB


def failure(pool, size):
    try:
        pool.malloc(size)
    except OutOfMemoryError as error:
        return error
    raise AssertionError("there was memory")


def filled_to(pool, limit, step=60 * MIB):
    """Pointers to as much as the limit allows, to the unit."""
    pointers = []
    while pool.used_bytes() + step <= limit:
        pointers.append(pool.malloc(step))
    rest = (limit - pool.used_bytes()) // UNIT * UNIT
    if rest:
        pointers.append(pool.malloc(rest))
    return pointers


def to_the_limit(arguments, limit):
    testing.set_others(CONTEXT + OTHERS)
    pool = MemoryPool()
    pool.set_limit(**arguments)
    assert pool.get_limit() == limit
    with testing.call_log() as calls:
        pool.malloc(20 * MIB)  # cached, and in the way later
        pointers = filled_to(pool, limit)
        error = failure(pool, MIB)
    assert most_held(calls, {}) == limit == pool.used_bytes()
    assert (error.cause, error.limit) == ("limit", limit)
    assert error.total_bytes == error.used_bytes == limit
    assert error.device_total == CARD
    assert error.device_free == CARD - CONTEXT - OTHERS - limit
    assert error.outside_bytes == CONTEXT + OTHERS
    text = str(error)
    for number in (limit, error.device_free, CONTEXT + OTHERS):
        assert f"{number:,}" in text
    assert f"limit {limit:,} bytes" in text
    assert "outside this pool" in text
    assert pool.stats()["peak_total_bytes"] == limit
    del pointers


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [({"fraction": 0.5}, 512 * MIB), ({"size": 500 * MIB}, 500 * MIB)],
)
def test_u57_the_limit_is_met_and_the_error_tells_who_has_the_rest(
    apart, arguments, limit
):
    apart(to_the_limit, arguments, limit, memory="1GiB")


def above_the_card():
    """Then the device is what sets bounds, and the error says so."""
    testing.set_others(CONTEXT + OTHERS)
    pool = MemoryPool()
    pool.set_limit(size=4 * CARD)
    assert pool.get_limit() == 4 * CARD
    kept = pool.malloc(CARD - CONTEXT - OTHERS)
    error = failure(pool, UNIT)
    assert (error.cause, error.limit, error.device_free) == ("full", 4 * CARD, 0)
    assert "set_limit" not in str(error)
    del kept
    error = failure(pool, CARD)
    assert (error.cause, error.outside_bytes) == ("other process", CONTEXT + OTHERS)
    error = failure(pool, 2 * CARD)
    assert (error.cause, error.device_total) == ("too large", CARD)


def test_u57_a_limit_above_the_card(apart):
    apart(above_the_card, memory="1GiB")


def test_u57_lowering_drops_the_cache_and_nothing_that_is_in_use(pool):
    kept = pool.malloc(8 * UNIT)
    kept.memset(7, 8 * UNIT)
    pool.malloc(16 * UNIT)
    with gpumem.Stream():
        pool.malloc(32 * UNIT)
    with device_calls() as calls:
        pool.set_limit(size=4 * UNIT)
    assert pool.total_bytes() == pool.used_bytes() == 8 * UNIT
    assert "mem_alloc" not in [call.name for call in calls]
    host = bytearray(8 * UNIT)
    kept.copy_to_host(host, 8 * UNIT)
    assert host == b"\x07" * (8 * UNIT)
    error = failure(pool, UNIT)
    assert (error.cause, error.missing_bytes) == ("limit", UNIT)
    del kept
    assert pool.malloc(4 * UNIT).mem.size == 4 * UNIT
    pool.free_all_blocks()
    last = pool.malloc(4 * UNIT)
    assert pool.total_bytes() == 4 * UNIT
    del last


def test_u57_two_small_requests_fit_and_a_third_does_not(pool):
    """The limit counts whole units of 512."""
    pool.set_limit(size=1024)
    first, second = pool.malloc(12), pool.malloc(12)
    error = failure(pool, 12)
    assert (error.size, error.rounded_size, error.limit) == (12, 512, 1024)
    del first
    third = pool.malloc(12)
    del second, third


def test_u57_the_figures_are_of_after_everything_was_given_back(pool):
    pool.set_limit(size=8 * MIB)
    kept = pool.malloc(2 * MIB)
    pool.malloc(MIB)
    in_a_cycle(pool.malloc(3 * MIB))
    error = failure(pool, 7 * MIB)
    assert (error.used_bytes, error.cached_bytes) == (2 * MIB, 0)
    assert (error.total_bytes, error.missing_bytes) == (2 * MIB, MIB)
    assert f"({2 * MIB:,} bytes allocated so far, limit {8 * MIB:,} bytes)" in str(
        error
    )
    del kept


def fail_in_a_worker(limit):
    pool = gpumem.SingleDeviceMemoryPool()
    pool.set_limit(size=limit)
    kept = pool.malloc(limit // 2)
    pool.malloc(limit)
    del kept


def test_u57_the_error_comes_whole_out_of_a_worker_process(monkeypatch):
    root = Path(gpumem.__path__[0]).parent
    path = os.pathsep.join(map(str, (HERE, HERE.parent, root)))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("GPUMEM_BACKEND", "sim")
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as workers:
        with pytest.raises(OutOfMemoryError) as caught:
            workers.submit(fail_in_a_worker, MIB).result(timeout=60)
    error = caught.value
    assert (error.size, error.limit, error.used_bytes) == (MIB, MIB, MIB // 2)
    assert error.missing_bytes == MIB // 2
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.cause) == (str(error), "limit")
    assert "limit 1,048,576 bytes" in str(again)


def test_u57_a_fraction_is_of_what_the_device_says_that_it_has(pool):
    """Of a part of a card that counts as a device it is of that part."""
    pool.set_limit(fraction=0.25)
    assert pool.get_limit() == int(Device().mem_info[1] * 0.25)
