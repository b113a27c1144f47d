# SPDX-License-Identifier: MIT
"""MemoryAsyncPool: the driver's pools of stream-ordered memory."""

import gc

import pytest

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    MemoryAsync,
    MemoryAsyncPool,
    OutOfMemoryError,
    Stream,
    testing,
)

SIZE = 4096
ALL = 2**64 - 1
pytestmark = pytest.mark.usefixtures("drivers_pools")


# ---- which pools ----


def test_it_takes_from_the_current_pools_and_says_which():
    pool = MemoryAsyncPool()
    assert len(pool._pools) == gpumem.get_device_count()
    assert all(type(handle) is int and handle for handle in pool._pools)
    assert pool.memoryAsyncHasStat is True
    assert MemoryAsyncPool("current")._pools == pool._pools
    pool._pools.clear()
    assert MemoryAsyncPool(pool_handles=pool._pools)._pools == pool._pools


@pytest.mark.sim_only
def test_another_librarys_pool_can_be_used():
    theirs = testing.make_memory_pool(0)
    mine = MemoryAsyncPool()
    current = [theirs] + mine._pools[1:]
    pool = MemoryAsyncPool(current)
    assert pool._pools == current
    pointer = pool.malloc(700)
    assert (pool.used_bytes(), mine.used_bytes()) == (1024, 0)
    assert MemoryAsyncPool("current")._pools == current
    assert MemoryAsyncPool("default")._pools == mine._pools
    assert MemoryAsyncPool("current")._pools == mine._pools
    del pointer


@pytest.mark.parametrize(
    ("handles", "error"),
    [
        ("create", NotImplementedError),
        ("other", ValueError),
        (None, ValueError),
        (1.5, ValueError),
        (0, ValueError),
        (-1, OverflowError),
        ([], ValueError),
        (["current"] * 99, ValueError),
        (b"a" * gpumem.get_device_count(), TypeError),
        (bytearray(b"ab"), TypeError),
        (memoryview(b"ab"), TypeError),
        ([b"default"] * gpumem.get_device_count(), TypeError),
    ],
)
def test_what_is_no_pool_is_refused(handles, error):
    with pytest.raises(error):
        MemoryAsyncPool(handles)


def keeps(pool):
    """How much of what is freed the driver's pool keeps at a wait, of 1 MiB."""
    pool.free_all_blocks()
    gpumem.malloc_async(1 << 20)
    Device().synchronize()
    kept = pool.free_bytes()
    pool.free_all_blocks()
    return kept


@pytest.mark.sim_only
@pytest.mark.two_devices
def test_arguments_are_checked_before_anything_is_set():
    pool = MemoryAsyncPool()
    pool.set_limit(size=SIZE)
    count = gpumem.get_device_count()
    theirs = testing.make_memory_pool(0)
    for wrong in ("x", None, b"x", 0):
        with testing.call_log() as calls, pytest.raises((ValueError, TypeError)):
            MemoryAsyncPool([theirs, *["current"] * (count - 2), wrong])
        names = {call.name for call in calls}
        assert not names & {"mem_pool_set", "mem_pool_write"}
    assert MemoryAsyncPool("current")._pools == pool._pools


@pytest.mark.sim_only
@pytest.mark.misuse
@pytest.mark.two_devices
@pytest.mark.parametrize("slot", ["mem_pool_set", "mem_pool_write"])
def test_what_was_set_is_set_back_where_a_device_refuses(slot):
    pool = MemoryAsyncPool()
    theirs = [testing.make_memory_pool(0), testing.make_memory_pool(1)]
    theirs += pool._pools[2:]
    pool.set_limit(size=SIZE)
    assert keeps(pool) == 0
    with pytest.raises(CUDARuntimeError):
        MemoryAsyncPool(theirs[:1] * len(theirs))  # that of another device
    for handles in (theirs, "current"):
        for nth in (1, 2):
            if (handles, slot) == ("current", "mem_pool_set"):
                continue
            with testing.fail(slot, nth), pytest.raises(CUDARuntimeError):
                MemoryAsyncPool(handles)
    assert keeps(pool) == 0
    assert MemoryAsyncPool("current")._pools == pool._pools


def test_a_pool_is_initialised_once():
    pool = MemoryAsyncPool()
    with pytest.raises(RuntimeError, match="once"):
        pool.__init__()
    unmade = MemoryAsyncPool.__new__(MemoryAsyncPool)
    for use in (
        *(lambda: unmade.malloc(1), unmade.used_bytes, unmade.free_all_blocks),
        *(unmade.stats, unmade.reset_peak_stats, unmade.get_limit),
    ):
        with pytest.raises(RuntimeError, match="not initialized"):
            use()
    assert unmade._pools == []


# ---- a pool's methods ----


def test_requests_are_rounded_and_counted():
    pool = MemoryAsyncPool()
    pool.free_all_blocks()
    used = pool.used_bytes()
    pointer = pool.malloc(700)
    assert type(pointer.mem) is MemoryAsync and pointer.mem.size == 1024
    assert pool.used_bytes() >= used + 1024
    assert pool.total_bytes() == pool.used_bytes() + pool.free_bytes()
    del pointer
    Device().synchronize()
    assert pool.used_bytes() == used


def test_it_serves_as_the_allocator():
    gpumem.set_allocator(MemoryAsyncPool().malloc)
    pointer = gpumem.alloc(700)
    assert type(pointer.mem) is MemoryAsync
    pointer.memset(1, 700)


@pytest.mark.sim_only
def test_it_keeps_what_is_freed_until_it_is_trimmed():
    pool = MemoryAsyncPool()
    pointer = pool.malloc(1 << 20)
    del pointer
    Device().synchronize()
    assert (pool.used_bytes(), pool.total_bytes()) == (0, 1 << 20)
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


@pytest.mark.sim_only
def test_trimming_waits_for_the_stream():
    pool = MemoryAsyncPool()
    stream = Stream(non_blocking=True)
    with stream:
        pointer = pool.malloc(1 << 20)
    pointer.memset_async(1, 1 << 20, stream)
    del pointer
    with testing.call_log() as calls:
        pool.free_all_blocks(stream)
    assert pool.total_bytes() == 0
    names = [call.name for call in calls if not call.name.startswith("device_")]
    assert names[:2] == ["stream_synchronize", "mem_pool_trim"]
    with stream:
        pool.malloc(1 << 20)
        pool.free_all_blocks(stream=None)
    assert pool.total_bytes() == 0
    with pytest.raises(TypeError, match="stream"):
        pool.free_all_blocks(5)


@pytest.mark.sim_only
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("own", [True, False])
def test_trimming_waits_for_the_end_of_a_recording(mode, own):
    """A wait would spoil it; a relaxed one too where its own stream is waited for."""
    pool = MemoryAsyncPool()
    recorded = Stream(non_blocking=True)
    with recorded if own else Stream(non_blocking=True):
        pool.malloc(1 << 20)
        kept = pool.malloc(SIZE)
        Device().synchronize()
        recorded.begin_capture(mode)
        for _ in range(3):
            pool.free_all_blocks()
        assert pool.total_bytes() == 1 << 20
        del kept
        graph = recorded.end_capture()
    assert (pool.used_bytes(), pool.total_bytes()) == (0, 0)
    graph.launch(recorded)


@pytest.mark.sim_only
def test_a_pool_that_went_with_its_device_is_not_trimmed_afterwards():
    pool = MemoryAsyncPool()
    stream = Stream(non_blocking=True)
    stream.begin_capture()
    pool.free_all_blocks()
    testing.reset_device()
    gpumem.malloc(1)
    with testing.call_log() as calls, pytest.raises((CUDARuntimeError, RuntimeError)):
        stream.end_capture()
    del stream
    gc.collect()
    assert "mem_pool_trim" not in [call.name for call in calls]


def test_how_many_blocks_are_cached_is_not_told():
    with pytest.raises(NotImplementedError):
        MemoryAsyncPool().n_free_blocks()


@pytest.mark.sim_only
def test_the_limit_is_also_the_drivers_threshold():
    pool = MemoryAsyncPool()
    assert keeps(pool) == 1 << 20
    pool.set_limit(size=SIZE)
    assert keeps(pool) == 0
    pool.set_limit(size=1 << 20)
    assert keeps(pool) == 1 << 20


@pytest.mark.sim_only
def test_the_limit_is_the_objects_and_not_what_others_set():
    mine, theirs = MemoryAsyncPool(), MemoryAsyncPool()
    theirs.set_limit(size=512)
    assert (mine.get_limit(), theirs.get_limit()) == (ALL, 512)
    assert mine.malloc(1 << 20).mem.ptr
    theirs.free_all_blocks()
    mine.set_limit(size=1 << 20)
    MemoryAsyncPool()
    assert mine.get_limit() == 1 << 20
    with pytest.raises(OutOfMemoryError) as caught:
        mine.malloc(2 << 20)
    assert (caught.value.cause, caught.value.limit) == ("limit", 1 << 20)


def test_a_limit_is_bytes_or_a_fraction():
    pool = MemoryAsyncPool()
    assert pool.get_limit() == ALL
    pool.set_limit(size=1 << 20)
    assert pool.get_limit() == 1 << 20
    pool.set_limit(fraction=0.5)
    assert pool.get_limit() == Device().mem_info[1] // 2
    for none in ({}, {"size": 0}, {"fraction": 0}):
        pool.set_limit(size=1)
        pool.set_limit(**none)
        assert pool.get_limit() == ALL
    for wrong in (
        {"size": 1, "fraction": 0.5},
        {"size": -1},
        {"fraction": 1.5},
        {"fraction": float("nan")},
    ):
        with pytest.raises(ValueError):
            pool.set_limit(**wrong)


@pytest.mark.sim_only
def test_a_request_that_would_pass_the_limit_first_makes_room():
    pool = MemoryAsyncPool()
    pool.set_limit(size=1 << 20)
    pointer = pool.malloc(512 << 10)
    del pointer  # cached
    kept = pool.malloc(768 << 10)
    assert pool.total_bytes() <= 1 << 20
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(512 << 10)
    error = caught.value
    assert (error.size, error.total, error.limit) == (512 << 10, 768 << 10, 1 << 20)
    assert pool.malloc(256 << 10).mem.size == 256 << 10
    del kept


@pytest.mark.sim_only
def test_a_limit_below_what_is_held_frees_nothing():
    pool = MemoryAsyncPool()
    kept = pool.malloc(1 << 20)
    pool.set_limit(size=512)
    assert kept.mem.ptr and pool.used_bytes() == 1 << 20
    with pytest.raises(OutOfMemoryError):
        pool.malloc(512)


@pytest.mark.sim_only
def test_garbage_makes_room_under_the_limit():
    pool = MemoryAsyncPool()
    pool.set_limit(size=1 << 20)
    cycle = [pool.malloc(1 << 20)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert pool.malloc(1 << 20).mem.ptr
    finally:
        gc.enable()


@pytest.mark.sim_only
def test_a_full_device_is_asked_again_after_a_wait():
    pool = MemoryAsyncPool()
    with testing.fail("mem_alloc_async", count=2), testing.call_log() as calls:
        assert pool.malloc(700).mem.ptr
    names = [call.name for call in calls if "synchronize" in call.name]
    assert names == ["stream_synchronize", "device_synchronize"]
    with testing.fail("mem_alloc_async", count=0):
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(700)
    assert (caught.value.size, caught.value.limit) == (700, 0)
    with testing.fail("mem_alloc_async", code=999):
        with pytest.raises(CUDARuntimeError) as caught:
            pool.malloc(700)
    assert caught.value.status == 999


@pytest.mark.sim_only
def test_other_pools_give_back_what_is_idle_before_garbage_is_collected():
    free, total = Device().mem_info
    other = gpumem.MemoryPool()
    other.malloc(free - total // 8)
    pool = MemoryAsyncPool()
    gc.disable()  # what is counted are collections that are asked for
    try:
        collections = sum(each["collections"] for each in gc.get_stats())
        assert pool.malloc(total // 2).mem.ptr
        assert sum(each["collections"] for each in gc.get_stats()) == collections
    finally:
        gc.enable()
    assert other.total_bytes() == 0


@pytest.mark.sim_only
def test_under_a_limit_pools_over_it_give_back_what_is_idle():
    pool = MemoryAsyncPool()
    pool.set_limit(size=1 << 20)
    over = gpumem.MemoryPool(pool.malloc)
    apart = gpumem.MemoryPool()
    apart.malloc(1 << 20)
    over.malloc(768 << 10)
    assert pool.malloc(768 << 10).mem.ptr
    assert (over.total_bytes(), apart.total_bytes()) == (0, 1 << 20)


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("holder", "cause"),
    [("others", "other process"), ("pool", "other pool"), ("itself", "full")],
)
def test_the_cause_is_who_holds_the_device(holder, cause):
    free, total = Device().mem_info
    pool = MemoryAsyncPool()
    most = free - total // 16
    kept = None
    if holder == "others":
        testing.set_others(most)
    try:
        if holder != "others":
            kept = (pool if holder == "itself" else gpumem.MemoryPool()).malloc(most)
        with pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(total // 2)
        with pytest.raises(OutOfMemoryError) as of_pool:
            gpumem.MemoryPool().malloc(total // 2)
    finally:
        testing.set_others(0)
    error = caught.value
    assert error.cause == cause
    assert error.outside_bytes == (0 if holder == "itself" else most)
    assert error.sibling_bytes == (most if holder == "pool" else 0)
    assert error.used_bytes == error.total == (most if holder == "itself" else 0)
    assert (error.device_free, error.device_total) == (total // 16, total)
    if holder != "itself":
        assert of_pool.value.cause == cause
    assert str(2**64 - 1) not in str(error).replace(",", "")
    del kept


@pytest.mark.sim_only
def test_while_its_stream_is_recorded_it_has_nothing_to_give():
    pool = MemoryAsyncPool()
    stream = Stream(non_blocking=True)
    with stream:
        pool.malloc(SIZE)
        stream.synchronize()
        stream.begin_capture()
        with testing.call_log() as calls, pytest.raises(OutOfMemoryError) as caught:
            pool.malloc(SIZE)
        assert pool.malloc(0).ptr == 0
        stream.end_capture()
    error = caught.value
    assert (error.cause, error.size, error.cached_bytes) == ("capture", SIZE, SIZE)
    assert str(2**64 - 1) not in str(error).replace(",", "")
    assert not [call.name for call in calls if "synchronize" in call.name]


# ---- statistics ----


@pytest.mark.sim_only
def test_its_statistics_are_what_the_driver_tells():
    pool = MemoryAsyncPool()
    pool.free_all_blocks()
    pool.reset_peak_stats()
    zeros = dict.fromkeys(pool.stats(), 0)
    assert pool.stats() == zeros
    assert zeros.keys() < gpumem.MemoryPool().stats().keys()
    kept = pool.malloc(1 << 20)
    more = pool.malloc(3 << 20)
    del more
    Device().synchronize()
    expected = {
        "used_bytes": 1 << 20,
        "free_bytes": 3 << 20,
        "total_bytes": 4 << 20,
        "limit_bytes": 0,
        "peak_used_bytes": 4 << 20,
        "peak_total_bytes": 4 << 20,
    }
    assert pool.stats() == expected
    pool.free_all_blocks()
    expected |= {"free_bytes": 0, "total_bytes": 1 << 20}
    assert pool.stats() == expected
    pool.set_limit(size=2 << 20)
    pool.reset_peak_stats()
    expected |= {"limit_bytes": 2 << 20}
    expected |= {"peak_used_bytes": 1 << 20, "peak_total_bytes": 1 << 20}
    assert pool.stats() == expected
    del kept
    Device().synchronize()
    pool.free_all_blocks()
    assert pool.stats()["peak_used_bytes"] in (0, 1 << 20)


@pytest.mark.two_devices
def test_its_statistics_are_about_a_device():
    pool = MemoryAsyncPool()
    for device in range(2):
        pool.free_all_blocks(device=device)
        pool.reset_peak_stats(device)
    pointer = pool.malloc(SIZE, device=1)
    assert pool.stats(1)["used_bytes"] == pool.stats(device=1)["peak_used_bytes"] > 0
    assert pool.stats()["used_bytes"] == pool.stats(0)["peak_used_bytes"] == 0
    pool.reset_peak_stats(device=1)
    assert pool.stats(1)["peak_used_bytes"] == pool.stats(1)["used_bytes"] > 0
    del pointer


# ---- after a reset ----

RESETS = [lambda: Device().reset(), testing.reset_device]


@pytest.mark.sim_only
@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("handles", ["current", "default"])
@pytest.mark.parametrize("noticed", [True, False])
def test_after_a_reset_it_takes_from_what_is_there(reset, handles, noticed):
    theirs = testing.make_memory_pool(0)
    pool = MemoryAsyncPool([theirs, *MemoryAsyncPool()._pools[1:]])
    pool = MemoryAsyncPool(handles)
    pool.malloc(SIZE)
    pool.set_limit(size=1 << 20)
    reset()
    if noticed:
        gpumem.malloc(1)
    assert (pool.used_bytes(), pool.get_limit()) == (0, 1 << 20)
    pointer = pool.malloc(SIZE)
    assert pool.used_bytes() == SIZE
    with pytest.raises(OutOfMemoryError, match="limit"):
        pool.malloc(2 << 20)
    assert pool._pools == MemoryAsyncPool("default")._pools
    pool.set_limit()
    assert keeps(pool) == 1 << 20
    del pointer


@pytest.mark.sim_only
def test_after_a_reset_the_pool_keeps_what_it_kept_before():
    pool = MemoryAsyncPool()
    pool.malloc(SIZE)
    testing.reset_device()
    assert keeps(pool) == 1 << 20


@pytest.mark.sim_only
@pytest.mark.parametrize("reset", RESETS)
def test_a_native_handle_from_before_a_reset_is_refused(reset):
    theirs = testing.make_memory_pool(0)
    pool = MemoryAsyncPool([theirs, *MemoryAsyncPool()._pools[1:]])
    pool.malloc(SIZE)
    reset()
    gpumem.malloc(1)
    with testing.call_log() as calls:
        for use in (
            *(pool.used_bytes, pool.stats, pool.reset_peak_stats, pool.get_limit),
            *(pool.set_limit, pool.free_all_blocks, pool.n_free_blocks),
            *(lambda: pool.malloc(SIZE), lambda: pool._pools),
        ):
            with pytest.raises(RuntimeError, match="device 0 was reset"):
                use()
    assert {call.name for call in calls} == {"device_incarnation"}
    assert MemoryAsyncPool().malloc(SIZE).mem.ptr


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**62])
def test_more_than_can_be_is_out_of_memory(size):
    with pytest.raises(OutOfMemoryError):
        MemoryAsyncPool().malloc(size)


@pytest.mark.two_devices
def test_every_method_is_about_the_current_device():
    pool = MemoryAsyncPool()
    with Device(1):
        pointer = pool.malloc(SIZE)
        assert pointer.device_id == 1
        used = pool.used_bytes()
        pool.set_limit(size=1 << 30)
    assert used >= SIZE
    assert pool.get_limit() == ALL
    assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
def test_every_method_is_about_the_device_it_is_given():
    pool = MemoryAsyncPool()
    for device in (1, Device(1)):
        before = pool.used_bytes(device)
        with Stream(non_blocking=True):  # of device 0, and no matter here
            pointer = pool.malloc(SIZE, device=device)
        assert (pointer.device_id, gpumem.get_device_id()) == (1, 0)
        assert pool.used_bytes(device) == before + pointer.mem.size
        pool.set_limit(size=1 << 30, device=device)
        assert (pool.get_limit(device), pool.get_limit()) == (1 << 30, ALL)
        del pointer
        pool.free_all_blocks(device=device)
        assert (pool.free_bytes(device), pool.used_bytes(device)) == (0, before)
        assert pool.total_bytes(device=device) == before
        pool.set_limit(device=device)
        assert pool.get_limit(device) == ALL
        assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
def test_a_device_is_waited_for_by_its_own_stream():
    pool, stream = MemoryAsyncPool(), None
    with Device(1):
        stream = Stream(non_blocking=True)
        stream.use()
        pool.malloc(SIZE)
    pool.free_all_blocks(device=1)
    assert pool.free_bytes(1) == 0
    with Device(1):
        Stream.null.use()


@pytest.mark.parametrize("device", [-1, 99])
def test_a_device_that_is_not_there_is_refused(device):
    pool = MemoryAsyncPool()
    for method in (
        *(pool.used_bytes, pool.free_bytes, pool.total_bytes, pool.get_limit),
        *(pool.n_free_blocks, lambda bad: pool.malloc(SIZE, device=bad)),
        *(pool.stats, pool.reset_peak_stats),
        lambda bad: pool.malloc(0, device=bad),
        lambda bad: pool.free_all_blocks(device=bad),
        lambda bad: pool.set_limit(size=1, device=bad),
    ):
        with pytest.raises(ValueError, match="device"):
            method(device)


def test_the_limit_of_the_environment_is_each_devices(script):
    done = script(
        "import gpumem\nprint(gpumem.MemoryAsyncPool().get_limit())\n",
        GPUMEM_BACKEND="sim",
        GPUMEM_MEMORY_LIMIT="1MiB",
    )
    assert (done.stdout, done.stderr) == ("1048576\n", "")
