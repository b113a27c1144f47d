# SPDX-License-Identifier: MIT
"""__dlpack__ and __dlpack_device__: pointers as tensors of other libraries."""

import ctypes
import gc
import threading
from pathlib import Path

import pytest

import gpumem
from dlpack_tensors import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    IS_COPIED,
    LEGACY,
    UINT,
    VERSIONED,
    Taken,
    get_name,
)
from gpumem import Stream, testing

HERE = Path(__file__).resolve().parent
SIZE = 4096
on_the_host = pytest.mark.sim_only  # all of its memory is


def exported(pointer, **asked):
    return Taken(pointer.__dlpack__(max_version=(1, 1), **asked))


@pytest.fixture
def pointer(pool):
    return pool.malloc(SIZE)


# ---- the tensor ----


def test_it_is_the_bytes_from_the_pointer_to_the_end_of_the_memory(pointer):
    taken = exported(pointer + 96)
    tensor = taken.tensor
    assert taken.start == pointer.ptr + 96
    assert (tensor.ndim, tensor.shape[0], tensor.strides[0]) == (1, SIZE - 96, 1)
    kind = tensor.type
    assert (kind.code, kind.bits, kind.lanes) == (UINT, 8, 1)
    device = tensor.device
    assert (device.type, device.id) == pointer.__dlpack_device__()
    taken.delete()


@pytest.mark.parametrize(
    ("max_version", "name"),
    [(None, LEGACY), ((0, 8), LEGACY), ((1, 0), VERSIONED), ((2, 5), VERSIONED)],
)
def test_the_capsule_is_one_that_the_consumer_knows(pointer, max_version, name):
    capsule = pointer.__dlpack__(max_version=max_version)
    assert get_name(capsule) == name
    taken = Taken(capsule)
    if name == VERSIONED:
        assert (taken.managed.major, taken.managed.flags) == (1, 0)
    assert taken.tensor.shape[0] == SIZE
    taken.delete()


@pytest.mark.sim_only
def test_the_simulated_device_is_host_memory(pointer):
    assert pointer.__dlpack_device__() == (CPU, 0)
    assert gpumem.alloc_pinned_memory(8).__dlpack_device__() == (CPU, 0)


@pytest.mark.gpu
def test_where_the_memory_is(pointer):
    assert pointer.__dlpack_device__() == (CUDA, 0)
    assert gpumem.malloc_async(8).__dlpack_device__() == (CUDA, 0)
    assert gpumem.malloc_managed(8).__dlpack_device__() == (CUDA_MANAGED, 0)
    assert gpumem.alloc_pinned_memory(8).__dlpack_device__() == (CUDA_HOST, 0)


def test_nothing_is_a_tensor_at_0():
    taken = exported(gpumem.malloc(0))
    assert (taken.tensor.data, taken.tensor.shape[0]) == (None, 0)
    taken.delete()


@on_the_host
def test_numpy_views_it(pointer):
    numpy = pytest.importorskip("numpy")
    pointer.memset(7, SIZE)
    array = numpy.from_dlpack(pointer)
    assert (array.dtype, array.shape) == (numpy.uint8, (SIZE,))
    assert (array == 7).all()
    array[:4] = [1, 2, 3, 4]
    back = bytearray(4)
    pointer.copy_to_host(back, 4)
    assert back == b"\1\2\3\4"


@pytest.mark.parametrize("make", [gpumem.malloc_managed, gpumem.alloc_pinned_memory])
def test_numpy_views_what_the_host_sees(make):
    numpy = pytest.importorskip("numpy")
    pointer = make(64)
    array = numpy.from_dlpack(pointer)
    array[:] = numpy.arange(64)
    assert ctypes.string_at(pointer.ptr, 64) == bytes(range(64))


def test_numpy_copies_where_it_cannot_view(pointer):
    numpy = pytest.importorskip("numpy", "2.1")
    pointer.memset_async(9, SIZE)
    array = numpy.from_dlpack(pointer, device="cpu", copy=True)
    assert (array == 9).all()
    array[:] = 1
    back = bytearray(SIZE)
    pointer.copy_to_host(back, SIZE)
    assert back == b"\x09" * SIZE


# ---- how long ----


def test_the_tensor_keeps_the_memory_until_its_deleter_is_called():
    pool = gpumem.MemoryPool()
    taken = exported(pool.malloc(512))
    gc.collect()
    assert pool.used_bytes() == 512
    taken.delete()
    assert pool.used_bytes() == 0


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_capsule_that_nobody_unpacks_gives_back(pool, max_version):
    capsule = pool.malloc(512).__dlpack__(max_version=max_version)
    assert pool.used_bytes() == 512
    del capsule
    assert pool.used_bytes() == 0


def test_a_capsule_that_was_unpacked_gives_nothing_back(pool):
    capsule = pool.malloc(512).__dlpack__()
    taken = Taken(capsule)
    del capsule
    assert pool.used_bytes() == 512
    taken.delete()
    assert pool.used_bytes() == 0


def test_what_is_freed_by_hand_goes_back_with_the_tensor(pool):
    pointer = pool.malloc(512)
    taken = exported(pointer)
    address = pointer.ptr
    pointer.mem.free()
    assert pool.used_bytes() == 512 and pool.malloc(512).ptr != address
    with pytest.raises(ValueError, match="given back"):
        pointer.__dlpack__()
    taken.delete()
    assert pool.used_bytes() == 0


@pytest.mark.parametrize("without_interpreter", [False, True])
def test_the_deleter_may_be_called_by_any_thread(pool, without_interpreter):
    taken = [exported(pool.malloc(512)) for _ in range(8)]
    thread = threading.Thread(
        target=lambda: [each.delete(without_interpreter) for each in taken]
    )
    thread.start()
    thread.join(60)
    assert not thread.is_alive() and pool.used_bytes() == 0


def test_a_pending_exception_survives_the_end_of_a_capsule(pool):
    class Hook(gpumem.MemoryHook):
        def free_preprocess(self, **event):
            told.append(event["mem_size"])

    told = []

    def fail():
        capsule = pool.malloc(512).__dlpack__()  # noqa: F841
        raise KeyError("mine")

    with Hook(), pytest.raises(KeyError, match="mine"):
        fail()
    gc.collect()
    assert told == [512]


def test_after_the_end_of_the_interpreter_the_deleter_does_nothing(script):
    """A consumer that outlives the interpreter: a C library's exit handler."""
    done = script(
        f"import ctypes, sys; sys.path.append({str(HERE)!r})\n"
        "import gpumem\n"
        "from dlpack_tensors import Taken\n"
        "taken = Taken(gpumem.MemoryPool().malloc(512).__dlpack__())\n"
        "register = ctypes.CDLL(None).__cxa_atexit\n"
        "register.argtypes = [ctypes.c_void_p] * 3\n"
        "assert register(taken.managed.deleter, taken.address, None) == 0\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- streams ----


@pytest.mark.sim_only
def test_the_consumers_stream_waits_for_the_current_one(pool):
    mine, theirs = Stream(non_blocking=True), Stream(non_blocking=True)
    with mine:
        source = pool.malloc(512)
        source.memset_async(7, 512)
        taken = exported(source, stream=theirs.ptr)
    there = gpumem.malloc(512)
    there.copy_from_async(source, 512, theirs)
    theirs.synchronize()
    assert bytes(there) == b"\7" * 512
    taken.delete()


@pytest.mark.sim_only
def test_asked_for_no_order_there_is_none(pool):
    mine, theirs = Stream(non_blocking=True), Stream(non_blocking=True)
    with mine:
        source = pool.malloc(512)
        source.memset(1, 512)
        source.memset_async(7, 512)
        with testing.call_log() as calls:
            taken = exported(source, stream=-1)
    assert not {call.name for call in calls} & {"event_record", "stream_synchronize"}
    there = gpumem.malloc(512)
    there.copy_from_async(source, 512, theirs)
    theirs.synchronize()
    assert bytes(there) == b"\1" * 512  # it had not waited
    mine.synchronize()
    taken.delete()


@pytest.mark.sim_only
@pytest.mark.parametrize("number", [1, 2])
def test_default_streams_have_numbers(pool, number):
    stream = Stream(non_blocking=True)
    with stream:
        source = pool.malloc(512)
        source.memset_async(7, 512)
        taken = exported(source, stream=number)
    there = gpumem.malloc(512)
    there.copy_from_async(source, 512, Stream.null if number == 1 else Stream.ptds)
    (Stream.null if number == 1 else Stream.ptds).synchronize()
    assert bytes(there) == b"\7" * 512
    taken.delete()


@pytest.mark.sim_only
def test_between_a_stream_and_itself_nothing_is_queued(pool):
    stream = Stream()
    with stream:
        source = pool.malloc(512)
        with testing.call_log() as calls:
            taken = exported(source, stream=stream.ptr)
    assert "event_create" not in {call.name for call in calls}
    taken.delete()


@pytest.mark.sim_only
def test_a_consumer_of_the_host_finds_the_work_done(pool):
    stream = Stream(non_blocking=True)
    with stream:
        source = pool.malloc(512)
        source.memset_async(7, 512)
        taken = exported(source)
    assert taken.bytes() == b"\7" * 512
    taken.delete()


@pytest.mark.gpu
@pytest.mark.parametrize("make", [gpumem.malloc_managed, gpumem.malloc_pinned])
def test_a_consumer_that_may_be_the_host_finds_the_work_done(make):
    stream, size = Stream(non_blocking=True), 64 << 20
    with stream:
        pointer = make(size)
        gpumem.MemoryPointer(pointer.mem, 0).memset_async(7, size)
        taken = exported(pointer)
    assert taken.bytes() == b"\7" * size
    taken.delete()


@pytest.mark.sim_only
def test_the_memory_goes_to_nobody_under_the_consumer(pool):
    mine, theirs = Stream(non_blocking=True), Stream(non_blocking=True)
    with mine:
        source = pool.malloc(512)
        taken = exported(source, stream=theirs.ptr)
        there = gpumem.malloc(512)
        source.memset(5, 512)
        with testing.hold_stream(theirs):
            there.copy_from_async(
                gpumem.MemoryPointer(gpumem.UnownedMemory(source.ptr, 512, None, 0), 0),
                512,
                theirs,
            )
            address = source.ptr
            del source
            taken.delete()
            assert pool.stats()["pending_bytes"] == 512
            assert pool.malloc(512).ptr != address
        theirs.synchronize()
        assert bytes(there) == b"\5" * 512
        assert pool.stats()["pending_bytes"] == 0


@pytest.mark.sim_only
def test_while_a_graph_is_recorded_no_order_is_made_with_others(pool):
    mine, theirs = Stream(non_blocking=True), Stream(non_blocking=True)
    pointer = pool.malloc(512)
    with mine:
        mine.begin_capture()
        for asked in ({"stream": theirs.ptr}, {}, {"copy": True}):
            with pytest.raises(RuntimeError, match="records a graph"):
                pointer.__dlpack__(**asked)
        pointer.memset_async(1, 512, mine)
        mine.end_capture()  # it was not spoilt


@pytest.mark.parametrize("stream", [0, -2, 1 << 64, "1", 1.0])
def test_what_is_no_stream_is_refused(pointer, stream):
    with pytest.raises((TypeError, ValueError, OverflowError), match="stream"):
        pointer.__dlpack__(stream=stream)


@pytest.mark.gpu
def test_the_host_has_no_stream(pointer):
    with pytest.raises(ValueError, match="the host has none"):
        pointer.__dlpack__(stream=1, dl_device=(CPU, 0))


# ---- copies and devices ----


def test_a_copy_is_the_consumers_own(pool, pointer):
    pointer.memset_async(3, SIZE)
    taken = exported(pointer, copy=True)
    assert taken.managed.flags == IS_COPIED
    assert taken.start != pointer.ptr
    pointer.memset(4, SIZE)
    copy = gpumem.malloc(SIZE)
    kind = gpumem.UnownedMemory(taken.start, SIZE, taken, 0)
    copy.copy_from(gpumem.MemoryPointer(kind, 0), SIZE)
    back = bytearray(SIZE)
    copy.copy_to_host(back, SIZE)
    assert back == b"\3" * SIZE
    del pointer, copy, kind
    taken.delete()


@pytest.mark.gpu
def test_a_copy_on_the_device_comes_from_the_current_allocator(pool):
    pointer = pool.malloc(512)
    with gpumem.using_allocator(pool.malloc):
        taken = exported(pointer, copy=True)
    assert pool.used_bytes() == 1024
    assert (taken.tensor.device.type, taken.tensor.device.id) == (CUDA, 0)
    taken.delete()
    assert pool.used_bytes() == 512


def test_the_host_gets_a_copy_or_a_view(pointer):
    pointer.memset_async(6, SIZE)
    taken = exported(pointer, dl_device=(CPU, 0))
    assert taken.tensor.device.type == CPU
    assert taken.bytes() == b"\6" * SIZE
    taken.delete()


@pytest.mark.gpu
def test_a_gpus_memory_is_not_viewed_by_the_host(pointer):
    with pytest.raises(BufferError, match="without a copy"):
        pointer.__dlpack__(dl_device=(CPU, 0), copy=False)
    taken = exported(pointer, dl_device=(CPU, 0))
    assert taken.managed.flags == IS_COPIED
    taken.delete()


@pytest.mark.parametrize("device", [(CUDA, 7), (12, 0), (CPU, 1)])
def test_another_device_is_refused(pointer, device):
    with pytest.raises(BufferError, match=r"to \(\d+, \d\)$"):
        pointer.__dlpack__(dl_device=device)


@pytest.mark.parametrize(
    "asked",
    [
        {"dl_device": 1},
        {"dl_device": (1,)},
        {"dl_device": (1.0, 0)},
        {"max_version": 1},
        {"max_version": ("1", 0)},
        {"version": (1, 0)},
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(pointer, asked):
    with pytest.raises(TypeError):
        pointer.__dlpack__(**asked)


def test_arguments_are_by_keyword_alone(pointer):
    with pytest.raises(TypeError):
        pointer.__dlpack__(None)


@pytest.mark.sim_only
@pytest.mark.parametrize("call", ["event_create", "event_record", "stream_wait_event"])
def test_where_the_device_refuses_nothing_is_kept(pool, call):
    mine, theirs = Stream(non_blocking=True), Stream(non_blocking=True)
    with mine:
        pointer = pool.malloc(512)
        with testing.fail(call, 1), pytest.raises(gpumem.CUDARuntimeError):
            pointer.__dlpack__(stream=theirs.ptr)
    pointer.mem.free()
    assert pool.used_bytes() == 0
