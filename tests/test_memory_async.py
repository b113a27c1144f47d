# SPDX-License-Identifier: MIT
"""MemoryAsync and malloc_async: memory of the driver's, in the order of a stream."""

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
    Stream,
    testing,
)

SIZE = 4096


pytestmark = pytest.mark.usefixtures("drivers_pools")


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
    thread.join(60)
    assert not thread.is_alive()
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
