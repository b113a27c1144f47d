# SPDX-License-Identifier: MIT
"""Reading statistics or giving back memory made a context of some 500 MB on device 0,
which the program did not use. torch#25752, torch#144025, torch#30447, torch#10832,
https://github.com/pytorch/pytorch/issues/25752"""

import gc

import pytest
from casekit import MIB, UNIT

import gpumem
from gpumem import Device, MemoryHook, MemoryPool, SingleDeviceMemoryPool, Stream

# Each of them looks at a pool that has memory on device 1 alone.
LOOKS = {
    "its text": repr,
    "bytes": lambda pool: (pool.used_bytes(), pool.free_bytes(), pool.total_bytes()),
    "bytes of 0": lambda pool: (
        pool.used_bytes(0),
        pool.free_bytes(Device(0)),
        pool.total_bytes(device=0),
        pool.n_free_blocks(0),
    ),
    "statistics": lambda pool: pool.stats(),
    "statistics of 0": lambda pool: pool.stats(0),
    "peaks of 0": lambda pool: pool.reset_peak_stats(0),
    "the limit": lambda pool: pool.get_limit(),
    "the limit of 0": lambda pool: pool.get_limit(0),
    "a limit": lambda pool: pool.set_limit(size=64 * MIB),
    "a limit of a part": lambda pool: pool.set_limit(fraction=0.5),
    "giving all back": lambda pool: pool.free_all_blocks(),
    "giving back of 0": lambda pool: pool.free_all_blocks(device=0),
    "a collection": lambda pool: gc.collect(),
}


class Counts(MemoryHook):
    def __init__(self):
        self.calls = 0

    def count(self, **kwargs):
        self.calls += 1

    alloc_preprocess = malloc_preprocess = malloc_postprocess = count


def only_device_1():
    """A program that uses device 1, in all ways, with another device beside it."""
    from gpumem.testing import device_context_created

    assert not device_context_created(0) and not device_context_created(1)
    Device(1).use()
    assert gpumem.get_device_id() == 1
    assert not device_context_created(0)
    pools = [MemoryPool(), SingleDeviceMemoryPool()]
    hook, stream = Counts(), Stream(non_blocking=True)
    for pool in pools:
        with hook, stream:
            pointer = pool.malloc(UNIT)
            pointer.memset_async(1, UNIT)
            pointer.copy_to_host(bytearray(UNIT), UNIT)
            repr(pointer), repr(pointer.mem), repr(pool), repr(stream)
        stream.synchronize()
        del pointer
    assert hook.calls > 0
    assert device_context_created(1)
    for name, look in LOOKS.items():
        for pool in pools:
            if "of 0" in name and isinstance(pool, SingleDeviceMemoryPool):
                continue  # it is about its own device alone
            look(pool)
            assert not device_context_created(0), name
    memory = [gpumem.malloc(UNIT), gpumem.malloc_managed(UNIT)]
    memory += [gpumem.malloc_async(UNIT), gpumem.alloc_pinned_memory(UNIT)]
    memory += [gpumem.get_default_memory_pool().malloc(UNIT)]
    with pytest.raises(gpumem.OutOfMemoryError):
        pools[0].malloc(1 << 50)
    with pytest.raises(ValueError):
        pools[0].used_bytes(7)
    memory.clear()
    gpumem.get_default_memory_pool().free_all_blocks()
    gpumem.get_default_pinned_memory_pool().free_all_blocks()
    assert not device_context_created(0)
    pools.clear()


def nothing_but_looking():
    """A program that uses none."""
    from gpumem.testing import device_context_created

    pool = MemoryPool()
    for name, look in LOOKS.items():
        if name != "a limit of a part":  # of how much, the device has to be asked
            look(pool)
            assert not device_context_created(0), name
            assert not device_context_created(1), name
    assert pool.stats(1)["segments"] == 0
    assert gpumem.get_device_id() == 0
    repr(Device(1))
    assert not device_context_created(0) and not device_context_created(1)


def one_device_after_the_other():
    """Its own numbers are asked of a device, and of no other."""
    from gpumem.testing import device_context_created

    for device in (2, 1):
        assert Device(device).mem_info[1] > 0
        assert [device_context_created(n) for n in range(3)] == [
            False,
            device == 1,
            True,
        ]


def a_with_statement():
    """Leaving it does not use the device that it goes back to; nor does the end of the
    process, though memory, a stream and a hook of device 1 are left then."""
    import atexit

    from gpumem.testing import device_context_created

    global kept
    for inside in (lambda: None, Device(2).use):
        with Device(1):
            inside()
            with Device(2), Stream():
                MemoryPool().malloc(UNIT)
        assert gpumem.get_device_id() == 0
        assert not device_context_created(0)
    with Device(1):
        kept = MemoryPool().malloc(UNIT), Stream(), Counts()

    def at_exit():
        assert not device_context_created(0)

    atexit.register(at_exit)


def a_look_makes_no_pool():
    """It would have the limit of the environment as it was when somebody looked."""
    import os

    pool = MemoryPool()
    with Device(1):
        for name, look in LOOKS.items():
            if "a limit" not in name:
                look(pool)
    os.environ["GPUMEM_MEMORY_LIMIT"] = "1MiB"
    assert [pool.get_limit(n) for n in range(3)] == [MIB] * 3
    pool.malloc(1)
    assert pool.stats()["limit_bytes"] == MIB


@pytest.mark.parametrize(
    "body",
    [
        only_device_1,
        nothing_but_looking,
        one_device_after_the_other,
        a_with_statement,
        a_look_makes_no_pool,
    ],
)
def test_u51_no_context_is_made_where_none_is_used(apart, body):
    apart(body, devices=3, timeout=60)
