# SPDX-License-Identifier: MIT
"""A step of a pipeline ran once and not again, since another step had taken a piece of
the large block that it left cached; the error told of enough free memory.
DiamondLightSource/httomo#667, and torch#173049 of a hint to switch on what was on
already, https://github.com/DiamondLightSource/httomo/issues/667"""

from casekit import MIB

from gpumem import MemoryPool, OutOfMemoryError


def failure(pool, size):
    try:
        pool.malloc(size)
    except OutOfMemoryError as error:
        return error
    raise AssertionError("there was memory")


def a_step_that_does_not_run_again():
    """Of 8 MiB: o1, o2 inside what t left, o3 too; two free there and three after."""
    pool = MemoryPool()
    outputs = [pool.malloc(MIB)]
    pool.malloc(4 * MIB)
    outputs.append(pool.malloc(MIB))
    outputs.append(pool.malloc(MIB))
    error = failure(pool, 4 * MIB)
    assert error.cause == "fragmented"
    assert (error.cached_bytes, error.device_free) == (2 * MIB, 3 * MIB)
    assert (error.largest_free_block, error.largest_available_block) == (
        *(2 * MIB, 3 * MIB),
    )
    text = str(error)
    assert "fragmented: 5,242,880 bytes free in total, largest block 3,145,728" in text
    assert pool.stats()["inactive_split_bytes"] == 2 * MIB
    del outputs[:]
    assert pool.malloc(8 * MIB).mem.size == 8 * MIB


def test_u11_the_error_names_what_is_free_and_the_largest_block(apart):
    apart(a_step_that_does_not_run_again, memory="8MiB")


def what_the_hint_advises():
    """Long-lived memory from a pool of its own."""
    lasting, pool = MemoryPool(), MemoryPool()
    outputs = [lasting.malloc(MIB)]
    for _ in range(3):
        outputs.append(lasting.malloc(MIB))
        assert pool.malloc(4 * MIB).mem.size == 4 * MIB
    assert len(outputs) == 4


def test_u11_following_its_hint_lets_the_step_run_again(apart):
    apart(what_the_hint_advises, memory="8MiB")


def not_what_is_done_already():
    pool = MemoryPool()
    kept = pool.malloc(7 * MIB)
    hint = "set_out_of_memory_callback()"
    assert hint in str(failure(pool, 2 * MIB))
    asked = []
    pool.set_out_of_memory_callback(asked.append)
    assert hint not in str(failure(pool, 2 * MIB))
    assert hint not in str(asked[0])
    pool.set_out_of_memory_callback(None)
    pool.set_limit(size=MIB)
    assert "set_limit()" in str(failure(pool, MIB // 2))
    pool.set_limit()
    assert "set_limit()" not in str(failure(pool, 2 * MIB))
    del kept


def test_u11_no_hint_advises_what_is_done_already(apart):
    apart(not_what_is_done_already, memory="8MiB")
