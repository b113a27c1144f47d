# SPDX-License-Identifier: MIT
"""The current stream of each thread and device, and whose memory is whose by it."""

import ctypes
import threading
import weakref

import pytest

import gpumem
from gpumem import Device, ExternalStream, Stream, get_current_stream, testing


@pytest.fixture(autouse=True)
def current_stream_kept():
    """Every test starts with nothing current and leaves nothing behind."""
    Device(0).use()
    Stream.null.use()
    yield
    assert get_current_stream() is Stream.null


@pytest.fixture
def in_thread(in_threads):
    """What a function returns, or raises, when another thread runs it."""
    return lambda function: in_threads(1, lambda _: function())[0]


# ---- which one is current ----


def test_the_default_stream_is_current_at_first(in_thread):
    assert in_thread(get_current_stream) is Stream.null


def test_use_is_for_good_and_gives_the_stream():
    stream = Stream()
    assert stream.use() is stream
    assert get_current_stream() is stream
    assert get_current_stream(0) is get_current_stream(device_id=-1) is stream
    equal = ExternalStream(stream.ptr)
    equal.use()
    assert get_current_stream() is equal  # the object itself, not an equal one
    Stream.null.use()


def test_with_goes_back_and_nests():
    first, second = Stream(), Stream()
    with first as entered:
        assert entered is first is get_current_stream()
        with second, first:
            assert get_current_stream() is first
        assert get_current_stream() is first
        with Stream.null:
            assert get_current_stream() is Stream.null
        assert get_current_stream() is first
    assert get_current_stream() is Stream.null


def test_with_goes_back_after_an_error_and_lets_it_pass():
    with pytest.raises(KeyError, match="mine"):
        with Stream():
            raise KeyError("mine")
    assert get_current_stream() is Stream.null


def test_with_goes_back_although_use_was_called_inside():
    first, second = Stream().use(), Stream()
    with second:
        Stream().use()
    assert get_current_stream() is first
    Stream.null.use()


def test_the_outer_of_two_may_be_left_first():
    outer, inner = Stream(), Stream()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert get_current_stream() is inner
    inner.__exit__(None, None, None)
    assert get_current_stream() is Stream.null


@pytest.mark.sim_only
def test_generators_that_are_left_in_the_order_they_were_entered():
    def hold(stream):
        with stream:
            yield

    before = testing.ledger().streams
    generators = [hold(Stream()) for _ in range(10)]
    for generator in generators:
        next(generator)
    last = get_current_stream()
    for generator in generators[:-1]:
        generator.close()
        assert get_current_stream() is last
    generators[-1].close()
    assert get_current_stream() is Stream.null
    del generators, generator, last
    assert testing.ledger().streams == before


def test_leaving_what_was_not_entered_is_an_error(in_thread):
    stream, other = Stream(), Stream()
    with pytest.raises(RuntimeError, match="did not enter"):
        stream.__exit__(None, None, None)
    with stream:
        with pytest.raises(RuntimeError, match="did not enter"):
            other.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="did not enter"):
            in_thread(lambda: stream.__exit__(None, None, None))
        assert get_current_stream() is stream
    with pytest.raises(RuntimeError, match="did not enter"):
        stream.__exit__(None, None, None)


def test_each_thread_has_its_own(in_thread):
    mine, theirs = Stream(), Stream()
    with mine:

        def use_theirs():
            first = get_current_stream()
            theirs.use()
            return first, get_current_stream()

        assert in_thread(use_theirs) == (Stream.null, theirs)
        assert get_current_stream() is mine


@pytest.mark.two_devices
def test_each_device_has_its_own():
    first = Stream().use()
    with Device(1):
        assert get_current_stream() is Stream.null
        second = Stream().use()
        assert get_current_stream(-1) is get_current_stream(1) is second
        assert get_current_stream(0) is get_current_stream(Device(0)) is first
        Stream.null.use()
    assert get_current_stream() is first
    Stream.null.use()


@pytest.mark.two_devices
def test_a_stream_of_another_device_cannot_become_current():
    stream = Stream()
    for default in (ExternalStream(0, 0), stream):
        with Device(1):
            for make_current in (default.use, default.__enter__):
                with pytest.raises(RuntimeError, match="device 0 .*device 1"):
                    make_current()
            assert get_current_stream() is Stream.null
    assert get_current_stream() is Stream.null


@pytest.mark.two_devices
def test_a_scope_goes_back_on_the_device_where_it_was_entered():
    outer, inner = Stream(), Stream()
    with outer:
        inner.__enter__()
        with Device(1):
            other = Stream().use()
            inner.__exit__(None, None, None)
            assert get_current_stream() is other
            Stream.null.use()
        assert get_current_stream() is outer


def test_asking_for_a_device_there_is_not():
    with pytest.raises(ValueError, match="10000"):
        get_current_stream(10000)
    with pytest.raises(ValueError, match="-2"):
        get_current_stream(-2)
    with pytest.raises(TypeError, match="str"):
        get_current_stream("0")


def test_one_os_thread_with_two_thread_states_starts_afresh():
    """The interpreter gives a foreign thread a new state each time it calls in: what
    the first had current is nothing to the second."""
    libc = ctypes.CDLL(None)
    seen = []
    streams = []

    def look_and_use():
        seen.append((threading.get_native_id(), get_current_stream() is Stream.null))
        streams.append(weakref.ref(Stream().use()))
        seen.append((threading.get_native_id(), get_current_stream() is streams[-1]()))

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def first_state(_):
        look_and_use()
        libc.pthread_setspecific(key, ctypes.c_void_p(1))  # so second_state comes last
        return None

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def second_state(_):
        look_and_use()

    key = ctypes.c_uint()
    thread = ctypes.c_ulong()
    assert libc.pthread_key_create(ctypes.byref(key), second_state) == 0
    assert libc.pthread_create(ctypes.byref(thread), None, first_state, None) == 0
    assert libc.pthread_join(thread, None) == 0
    assert libc.pthread_key_delete(key) == 0
    native = seen[0][0]
    assert native != threading.get_native_id()
    assert seen == [(native, True)] * 4
    assert [stream() for stream in streams] == [None, None]  # each went with its state


# ---- whose memory is whose ----


@pytest.fixture
def placed():
    """Where a pool puts 512 bytes on a stream: the same place means the same arena,
    because everything is given back at once."""
    pool = gpumem.MemoryPool()

    def place(stream):
        with stream:
            return testing.placement(pool.malloc(512))

    return place


def test_each_stream_has_its_own_memory(placed):
    streams = [Stream.null, Stream(), Stream(non_blocking=True), Stream.ptds]
    places = [placed(stream) for stream in streams]
    assert len(set(places)) == len(streams)
    assert [placed(stream) for stream in streams] == places


def test_every_name_of_a_stream_has_the_same_memory(placed):
    stream = Stream()
    assert placed(stream) == placed(ExternalStream(stream.ptr))
    assert placed(Stream.null) == placed(ExternalStream(0)) == placed(ExternalStream(1))
    assert placed(Stream.null) == placed(Stream(null=True))
    assert placed(Stream.ptds) == placed(ExternalStream(2)) != placed(Stream.null)


def test_the_per_thread_stream_is_each_threads_own(placed, in_threads):
    """As long as the threads live: what a stream had cached goes to others after it."""
    both_have_it = threading.Barrier(2)

    def twice(_):
        first = placed(Stream.ptds)
        both_have_it.wait(30)
        return first, placed(Stream.ptds)

    here = placed(Stream.ptds)
    places = in_threads(2, twice)
    assert all(first == second for first, second in places)
    assert len({here, *(first for first, _ in places)}) == 3
    assert placed(Stream.ptds) == here


@pytest.mark.two_devices
def test_the_per_thread_stream_that_names_its_device_is_that_devices():
    with Device(1):
        pool = gpumem.SingleDeviceMemoryPool()
        with Stream.ptds:
            pool.malloc(512)
    with pytest.raises(ValueError, match="device 0"):
        pool.free_all_blocks(ExternalStream(2, device_id=0))
    assert pool.total_bytes() == 512
    pool.free_all_blocks(ExternalStream(2, device_id=1))
    assert pool.total_bytes() == 0
    assert gpumem.get_device_id() == 0


@pytest.mark.sim_only
def test_a_stream_with_the_handle_of_a_dead_one_does_not_get_its_memory(placed):
    dead = Stream()
    ptr, place = dead.ptr, placed(dead)
    del dead
    born = Stream()
    assert born.ptr == ptr  # the simulated device gives handles out again at once
    assert placed(born) != place
