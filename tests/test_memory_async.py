# SPDX-License-Identifier: MIT
"""MemoryAsync, malloc_async and MemoryAsyncPool: the driver's stream-ordered memory."""

import contextlib
import ctypes
import gc
import threading
import weakref

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


@pytest.fixture(autouse=True)
def settled():
    """Skips where there are no such pools; leaves the driver's as they were found."""
    try:
        before = [MemoryAsyncPool()._pools, MemoryAsyncPool("default")._pools]
    except RuntimeError as error:
        pytest.skip(str(error))
    yield
    gc.collect()
    for handles in (before[1], before[0]):
        pool = MemoryAsyncPool(handles)
    for device in range(gpumem.get_device_count()):
        with Device(device):
            Device(device).synchronize()
            pool.set_limit()
            pool.free_all_blocks()


def order(calls):
    """(name, stream or address, device) of what was asked of the driver's pools."""
    return [(call.name, call.device) for call in calls if call.name.startswith("mem_")]


# ---- the memory ----


def test_it_is_memory_of_the_current_device_and_stream():
    with Stream() as stream:
        memory = MemoryAsync(SIZE)
        pointer = gpumem.malloc_async(SIZE)
    for each in (memory, pointer.mem):
        assert isinstance(each, gpumem.BaseMemory)
        assert each.ptr > 0 and each.size == SIZE
        assert each.device_id == gpumem.get_device_id()
        assert each.stream_ref() == stream
    pointer.memset_async(7, SIZE, stream)
    back = bytearray(SIZE)
    pointer.copy_to_host_async(back, SIZE, stream)
    stream.synchronize()
    assert back == b"\7" * SIZE


@pytest.mark.sim_only
def test_it_is_taken_and_given_back_on_its_stream_without_a_wait():
    stream = Stream(non_blocking=True)
    with testing.call_log() as calls:
        memory = MemoryAsync(SIZE, stream)
        del memory
    names = [call.name for call in calls]
    assert "mem_alloc_async" in names and "mem_free_async" in names
    assert not [name for name in names if name.endswith("synchronize")]
    assert MemoryAsync(size=SIZE, stream=stream).stream_ref() is stream


@pytest.mark.sim_only
def test_the_next_of_the_stream_gets_it_and_others_do_not_yet():
    first, second = Stream(non_blocking=True), Stream(non_blocking=True)
    pointer = MemoryAsync(SIZE, first)
    address = pointer.ptr
    gpumem.MemoryPointer(pointer, 0).memset_async(1, SIZE, first)  # still queued
    del pointer
    other = MemoryAsync(SIZE, second)
    assert other.ptr != address
    again = MemoryAsync(SIZE, first)
    assert again.ptr == address


def test_the_memory_keeps_its_stream():
    """Freed on another one it could go to somebody while its own still works on it."""
    stream = Stream(non_blocking=True)
    memory = MemoryAsync(SIZE, stream)
    gpumem.MemoryPointer(memory, 0).memset_async(1, SIZE, stream)
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is memory.stream_ref()
    del memory
    assert gone() is None


def test_a_cycle_through_the_stream_is_collected():
    class Mine(Stream):
        pass

    stream = Mine()
    stream.memory = MemoryAsync(SIZE, stream)
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None


@pytest.mark.sim_only
@pytest.mark.misuse
def test_where_another_librarys_stream_is_gone_the_device_is_waited_for():
    theirs = Stream(non_blocking=True)
    memory = MemoryAsync(SIZE, gpumem.ExternalStream(theirs.ptr))
    gpumem.MemoryPointer(memory, 0).memset_async(1, SIZE, theirs)
    del theirs
    with testing.call_log() as calls:
        del memory
    names = [call.name for call in calls if call.status == 0]
    assert names[-2:] == ["device_synchronize", "mem_free_async"]
    assert testing.ledger().pending <= 1  # the free alone


@pytest.mark.sim_only
def test_the_default_stream_of_a_thread_is_not_that_of_another():
    kept = []

    def work():
        memory = MemoryAsync(SIZE, Stream.ptds)
        gpumem.MemoryPointer(memory, 0).memset_async(1, SIZE, Stream.ptds)
        kept.append(memory)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    with testing.call_log() as calls:
        kept.clear()
    names = [call.name for call in calls]
    assert names[-2:] == ["device_synchronize", "mem_free_async"]


@pytest.mark.two_devices
def test_it_is_on_the_streams_device_and_goes_back_there():
    with Device(1):
        stream = Stream()
        pointer = gpumem.malloc_async(SIZE)
    memory = MemoryAsync(SIZE, stream)
    assert (memory.device_id, pointer.device_id) == (1, 1)
    del memory, pointer
    assert gpumem.get_device_id() == 0


def test_no_bytes_are_none():
    memory = MemoryAsync(0)
    assert (memory.ptr, memory.size) == (0, 0)
    assert gpumem.malloc_async(0).ptr == 0
    assert MemoryAsyncPool().malloc(0).ptr == 0


@pytest.mark.parametrize(
    "make",
    [MemoryAsync, gpumem.malloc_async, lambda size: MemoryAsyncPool().malloc(size)],
)
@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, OverflowError),
        (2**64, OverflowError),
        (1.0, TypeError),
        ("1", TypeError),
        (None, TypeError),
    ],
)
def test_what_is_no_size_is_refused(make, size, error):
    with pytest.raises(error):
        make(size)


@pytest.mark.parametrize("stream", [1, "s", gpumem.malloc(0), object()])
def test_a_stream_must_be_a_stream(stream):
    with pytest.raises(TypeError, match="stream"):
        MemoryAsync(SIZE, stream)


def test_it_is_initialised_once():
    memory = MemoryAsync(SIZE)
    address = memory.ptr
    with pytest.raises(RuntimeError, match="once"):
        memory.__init__(SIZE)
    assert memory.ptr == address


@pytest.mark.sim_only
def test_a_shortage_is_the_runtimes():
    with pytest.raises(CUDARuntimeError) as caught:
        MemoryAsync(2**50)
    assert caught.value.status == 2


@pytest.mark.sim_only
@pytest.mark.parametrize("size", [0, SIZE])
def test_a_device_without_such_pools_is_named(size):
    message = r"device 0 \(.+\) cannot allocate memory in stream order"
    pool = MemoryAsyncPool()
    with testing.without("memory_pools"):
        for make in (
            lambda: MemoryAsync(size),
            lambda: gpumem.malloc_async(size),
            lambda: pool.malloc(size),
            MemoryAsyncPool,
        ):
            with pytest.raises(RuntimeError, match=message):
                make()


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
    ],
)
def test_what_is_no_pool_is_refused(handles, error):
    with pytest.raises(error):
        MemoryAsyncPool(handles)


def test_a_pool_is_initialised_once():
    pool = MemoryAsyncPool()
    with pytest.raises(RuntimeError, match="once"):
        pool.__init__()
    unmade = MemoryAsyncPool.__new__(MemoryAsyncPool)
    for use in (lambda: unmade.malloc(1), unmade.used_bytes, unmade.free_all_blocks):
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


def test_the_limit_is_the_drivers_threshold():
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


def test_exiting_with_such_memory_is_silent(script):
    done = script(
        "import gpumem\n"
        "pool = gpumem.MemoryAsyncPool()\n"
        "stream = gpumem.Stream()\n"
        "with stream: kept = [pool.malloc(1), gpumem.MemoryAsync(1)]\n"
        "kept.append(kept)\n",
        GPUMEM_BACKEND="sim",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.sim_only
def test_a_device_pointer_is_where_a_copy_goes():
    pointer = gpumem.malloc_async(SIZE)
    pointer.copy_from_host(b"x" * SIZE, SIZE)
    assert ctypes.string_at(pointer.ptr, SIZE) == b"x" * SIZE


@contextlib.contextmanager
def recorded_by_another_library(stream):
    """The device records, and the library was not told: its call failed half way."""
    with testing.fail(None, nth=2, count=2):  # it asks which number, and gives up
        with pytest.raises(gpumem.CUDARuntimeError):
            stream.begin_capture()
    assert stream.is_capturing()
    try:
        yield
    finally:
        graph = stream.end_capture()
    assert "mem" not in graph.debug_dot_str()


@pytest.mark.sim_only
@pytest.mark.parametrize("external", [False, True])
def test_where_another_library_records_its_stream_it_is_freed_later(external):
    """A free would be part of the graph, and a wait would spoil the recording."""
    stream, before = Stream(non_blocking=True), testing.ledger()
    named = gpumem.ExternalStream(stream.ptr) if external else stream
    memory = MemoryAsync(SIZE, named)
    with testing.call_log() as calls, recorded_by_another_library(stream):
        del memory
        assert testing.ledger().allocations == before.allocations + 1
        MemoryAsync(0)  # a look, and it is recorded still
    names = [call.name for call in calls]
    assert names.index("mem_free_async") > names.index("capture_end", 3)
    assert "device_synchronize" not in names
    stream.synchronize()
    assert testing.ledger().allocations == before.allocations
