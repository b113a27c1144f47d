# SPDX-License-Identifier: MIT
"""MemoryPointer as a buffer, and __cuda_array_interface__."""

import gc
import sys

import pytest

import gpumem
from gpumem import Device, MemoryPointer, Stream, testing

SIZE = 4096
on_the_host = pytest.mark.sim_only  # all of its memory is


def managed(size):
    return gpumem.malloc_managed(size)


def pinned(size):
    return MemoryPointer(gpumem.PinnedMemory(size), 0)


MAKERS = [
    pytest.param(gpumem.malloc, marks=on_the_host),
    managed,
    pinned,
    gpumem.malloc_system,
    pytest.param(lambda size: gpumem.MemoryPool().malloc(size), marks=on_the_host),
    lambda size: gpumem.MemoryPool(gpumem.malloc_managed).malloc(size),
]


def wait():
    Stream.null.synchronize()


# ---- the buffer ----


@pytest.mark.parametrize("make", MAKERS)
def test_it_is_the_memory_from_the_pointer_to_its_end(make):
    pointer = make(SIZE) + 96
    pointer.memset(7, 100)
    wait()
    view = memoryview(pointer)
    assert (view.nbytes, view.format, view.readonly) == (SIZE - 96, "B", False)
    assert bytes(view[:100]) == b"\7" * 100
    view[:3] = b"abc"
    back = bytearray(3)
    pointer.copy_to_host(back, 3)
    assert back == b"abc"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make", [gpumem.malloc, lambda n: gpumem.MemoryPool().malloc(n)]
)
def test_the_host_does_not_look_into_a_gpu(make):
    with pytest.raises(BufferError, match="copy_to_host"):
        memoryview(make(SIZE))


@on_the_host
def test_nothing_is_an_empty_buffer():
    assert bytes(gpumem.malloc(0)) == b""
    assert bytes(gpumem.malloc(SIZE) + SIZE) == b""


def test_a_pointer_outside_its_memory_is_no_buffer():
    pointer = managed(SIZE)
    for outside in (pointer + SIZE + 1, pointer - 1):
        with pytest.raises(ValueError, match="outside the memory of 4096 bytes"):
            memoryview(outside)


def test_an_unfinished_pointer_is_no_buffer():
    with pytest.raises(ValueError, match="not initialized"):
        memoryview(MemoryPointer.__new__(MemoryPointer))


def test_it_is_the_place_at_which_the_pointer_was():
    pointer = managed(SIZE)
    view = memoryview(pointer)
    pointer += 100
    assert view.nbytes == SIZE
    assert memoryview(pointer).nbytes == SIZE - 100


@on_the_host
def test_a_buffer_keeps_the_memory():
    pool = gpumem.MemoryPool()
    view = memoryview(pool.malloc(512))
    del pool
    gc.collect()
    view[:] = b"\1" * 512
    assert bytes(view) == b"\1" * 512


@on_the_host
def test_what_is_freed_by_hand_goes_back_with_the_last_buffer(pool):
    pointer = pool.malloc(512)
    first, second = memoryview(pointer), memoryview(pointer)
    address, alive = pointer.ptr, pointer.mem.pool
    assert alive() is not None
    pointer.mem.free()
    assert (pointer.mem.ptr, pool.used_bytes()) == (0, 512)
    assert pointer.mem.pool() is None  # it was given back, says the handle
    assert pool.malloc(512).ptr != address
    with pytest.raises(ValueError, match="given back"):
        memoryview(pointer)
    pointer.mem.free()  # harmless
    first.release()
    second[:] = b"x" * 512
    assert pool.used_bytes() == 512
    second.release()
    assert pool.used_bytes() == 0
    assert pool.malloc(512).ptr == address


@on_the_host
def test_freeing_by_hand_is_put_off_for_who_sees_it_alone(pool):
    seen, other = pool.malloc(512), pool.malloc(512)
    view = memoryview(seen)
    other.mem.free()
    assert pool.used_bytes() == 512
    view.release()
    seen.mem.free()
    assert pool.used_bytes() == 0


@on_the_host
def test_many_objects_are_seen_at_once(pool):
    views = [memoryview(pool.malloc(512)) for _ in range(500)]
    pointers = [view.obj for view in views]
    for pointer in pointers:
        pointer.mem.free()
    assert pool.used_bytes() == 500 * 512
    for count, view in enumerate(views, 1):
        view.release()
        assert pool.used_bytes() == (500 - count) * 512


@on_the_host
def test_a_hook_is_told_of_the_free_when_it_happens(pool):
    events = []

    class Hook(gpumem.MemoryHook):
        def free_preprocess(self, **event):
            events.append(event["mem_ptr"])

    pointer = pool.malloc(512)
    address = pointer.ptr
    with Hook():
        view = memoryview(pointer)
        pointer.mem.free()
        assert events == []
        view.release()
    assert events == [address]


@on_the_host
def test_a_buffer_and_a_free_may_race(pool, in_threads):
    """Whoever comes first, a buffer that was had is of memory that nobody else has."""

    def work(index):
        for _ in range(300):
            try:
                with memoryview(pointer) as view:
                    view[index] = 1
            except ValueError:
                pass
            pointer.mem.free()

    for _ in range(20):
        pointer = pool.malloc(512)
        in_threads(4, work)
        assert pool.used_bytes() == 0


@on_the_host
def test_a_reset_takes_the_buffer_with_it():
    pointer = gpumem.malloc(512)
    Device(0).reset()
    with pytest.raises(RuntimeError, match="reset"):
        memoryview(pointer)


def test_for_copies_a_pointer_stays_the_devices_side():
    pointer = managed(SIZE)
    for call in (pointer.copy_from_host, pointer.copy_to_host):
        with pytest.raises(TypeError, match="not a MemoryPointer"):
            call(managed(SIZE), 8)


# ---- __cuda_array_interface__ ----


@pytest.mark.parametrize(
    "make", [gpumem.malloc, managed, pinned, lambda n: gpumem.MemoryPool().malloc(n)]
)
def test_the_interface_names_the_bytes_and_the_stream(make):
    pointer = make(SIZE) + 96
    assert pointer.__cuda_array_interface__ == {
        "shape": (SIZE - 96,),
        "typestr": "|u1",
        "data": (pointer.ptr, False),
        "stream": 1,
        "version": 3,
    }


def test_the_stream_is_the_current_one_of_the_memorys_device(pool):
    pointer, stream = pool.malloc(512), Stream()
    with stream:
        assert pointer.__cuda_array_interface__["stream"] == stream.ptr
    with Stream.ptds:
        assert pointer.__cuda_array_interface__["stream"] == 2
    with Stream.null:
        assert pointer.__cuda_array_interface__["stream"] == 1


@pytest.mark.two_devices
def test_the_stream_is_not_that_of_another_device(pool):
    pointer = pool.malloc(512)
    with Device(1), Stream():
        assert pointer.__cuda_array_interface__["stream"] == 1


def test_nothing_has_address_0_and_no_stream():
    for pointer in (gpumem.malloc(0), gpumem.malloc(SIZE) + SIZE):
        interface = pointer.__cuda_array_interface__
        assert interface["shape"] == (0,)
        assert interface["data"] == (0, False)
        assert interface["stream"] is None


def test_what_was_given_back_has_none(pool):
    pointer = pool.malloc(512)
    pointer.mem.free()
    with pytest.raises(ValueError, match="given back"):
        pointer.__cuda_array_interface__  # noqa: B018


@pytest.mark.sim_only
def test_plain_host_memory_that_no_device_reaches_has_none():
    back = bytearray(64)
    memory = gpumem.UnownedMemory(0x1000, 64, back, 0)
    assert hasattr(MemoryPointer(memory, 0), "__cuda_array_interface__")
    with testing.without("pageable_access"):
        assert not hasattr(MemoryPointer(memory, 0), "__cuda_array_interface__")


@pytest.mark.sim_only
def test_the_pool_is_told_of_the_stream_that_is_named(pool):
    pointer, stream = pool.malloc(512), Stream(non_blocking=True)
    with stream:
        pointer.__cuda_array_interface__  # noqa: B018
    with testing.hold_stream(stream):
        del pointer
        assert pool.stats()["pending_bytes"] == 512
    stream.synchronize()
    assert pool.stats()["pending_bytes"] == 0


def test_a_pinned_pointer_is_the_hosts_and_has_none():
    assert not hasattr(gpumem.alloc_pinned_memory(8), "__cuda_array_interface__")


@pytest.mark.sim_only
def test_a_device_number_that_python_wrote_is_looked_at():
    memory = gpumem.Memory(512)
    memory.device_id = 1 << 20
    with pytest.raises(ValueError, match="no device 1048576"):
        MemoryPointer(memory, 0).__cuda_array_interface__  # noqa: B018
    memory.device_id = 0


def test_the_reader_keeps_the_pointer_and_not_the_interface(pool):
    pointer = pool.malloc(512)
    interface = pointer.__cuda_array_interface__
    count = sys.getrefcount(pointer)
    del interface
    assert sys.getrefcount(pointer) == count
