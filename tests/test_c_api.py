# SPDX-License-Identifier: MIT
"""The C interface: memory, statuses and texts, whoever calls, on whichever thread."""

import ctypes
import gc
import sys
import threading
from ctypes import byref, c_void_p

import pytest

import c_library as c
import gpumem
from gpumem import _core, testing

UNIT = 512
MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["detached", "attached"])
def lib(request):
    return c.Library(attached=request.param)


@pytest.fixture
def holder(lib, pool):
    held = lib.hold(pool)
    yield held
    lib.pool_release(held)


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """tests/c_api/probe.c, compiled against the header as an extension would be."""
    return c.build_probe(tmp_path_factory.mktemp("probe"))


def refused(call, *arguments):
    with pytest.raises(c.Failed) as caught:
        call(*arguments)
    return caught.value.args


class Ring:
    """A cycle of garbage that holds memory."""

    def __init__(self, pointer):
        self.pointer, self.itself = pointer, self


# ---- memory ----


def test_memory_is_the_pools(lib, pool, holder):
    first = lib.take(holder, 1000)
    second = lib.take(holder, 1)
    assert first % UNIT == second % UNIT == 0
    assert pool.used_bytes() == 1024 + UNIT
    assert lib.give(first) is None
    assert pool.used_bytes() == UNIT
    assert lib.take(holder, 1024) == first  # what Python's requests would get too
    lib.give(first)
    pointer = pool.malloc(600)
    assert pointer.ptr == first
    lib.give(second)
    del pointer
    assert pool.used_bytes() == 0


@pytest.mark.sim_only
def test_memory_can_be_written_to_its_last_byte(lib, holder):
    address = lib.take(holder, 3 * UNIT)
    ctypes.memset(address, 7, 3 * UNIT)
    assert ctypes.string_at(address, 3 * UNIT) == b"\x07" * 3 * UNIT
    lib.give(address)


def test_a_thousand_at_once(lib, pool, holder):
    """So many that the table of addresses grows."""
    addresses = [lib.take(holder, UNIT + n) for n in range(3000)]
    assert len(set(addresses)) == 3000
    assert lib.info(addresses[2999]).requested == UNIT + 2999
    assert pool.stats()["live_blocks"] == 3000
    for address in addresses[::2] + addresses[1::2]:
        lib.give(address)
    assert pool.used_bytes() == 0
    assert refused(lib.give, addresses[0])[0] == c.NOT_OWNED


def test_memory_outlives_pool_and_holder(lib):
    pool = gpumem.MemoryPool()
    holder = lib.hold(pool)
    address = lib.take(holder, MIB)
    single = weak_single(pool)
    lib.pool_release(holder)
    del pool
    gc.collect()
    assert single() is not None  # what is in use keeps it
    assert lib.info(address).size == MIB
    lib.give(address)
    gc.collect()
    assert single() is None


def weak_single(pool):
    """A weak reference to the pool that a MemoryPool has on the current device."""
    return pool.malloc(1).mem.pool


def test_each_device_has_its_own(lib, pool, holder):
    if gpumem.get_device_count() < 2:
        pytest.skip("needs two devices")
    addresses = [lib.take(holder, MIB, device) for device in (0, 1)]
    assert [lib.info(address).device for address in addresses] == [0, 1]
    assert [pool.used_bytes(device=device) for device in (0, 1)] == [MIB, MIB]
    with gpumem.Device(1):
        addresses.append(lib.take(holder, UNIT))
        assert lib.stats(holder).used_bytes == MIB + UNIT
    assert gpumem.get_device_id() == 0
    for address in addresses:
        lib.give(address)


def test_a_pool_of_one_device(lib):
    single = gpumem.SingleDeviceMemoryPool()
    holder = lib.hold(single)
    address = lib.take(holder, 10, 0)
    assert single.used_bytes() == UNIT
    if gpumem.get_device_count() > 1:
        status, text = refused(lib.take, holder, 10, 1)
        assert status == c.INVALID_VALUE
        assert text == "ValueError: the pool is on device 0, not on 1"
    lib.give(address)
    lib.pool_release(holder)


def test_the_default_pool_and_a_new_one(lib):
    default = gpumem.get_default_memory_pool()
    before = default.used_bytes()
    holder, made = lib.hold(None), c_void_p()
    lib.check(lib.pool_create(None, byref(made)))
    addresses = [lib.take(holder, 10), lib.take(made, MIB)]
    assert default.used_bytes() - before == UNIT
    assert lib.stats(made).total_bytes == MIB
    for address in addresses:
        lib.give(address)
    lib.pool_release(holder)
    lib.pool_release(made)
    default.free_all_blocks()


def test_what_is_known_of_memory(lib, pool, holder):
    lib.give(lib.take(holder, MIB))
    address = lib.take(holder, 1000)
    info = lib.info(address)
    assert (info.size, info.requested, info.device) == (1024, 1000, 0)
    assert (info.base, info.base_size) == (address, MIB)
    assert refused(lib.info, address + UNIT)[0] == c.NOT_OWNED
    lib.give(address)


def test_statistics_are_pythons(lib, pool, holder):
    assert lib.stats(holder).total_bytes == 0
    lib.give(lib.take(holder, MIB))
    address = lib.take(holder, 1000)
    lib.check(lib.pool_set_limit(holder, -1, 2 * MIB))
    stats, expected = lib.stats(holder), pool.stats()
    for name, _ in c.Stats._fields_[1:]:
        assert getattr(stats, name) == expected[name], name
    assert pool.get_limit() == 2 * MIB
    lib.give(address)
    lib.check(lib.pool_trim(holder, -1))
    assert pool.total_bytes() == 0


def test_an_older_struct_is_filled_as_far_as_it_goes(lib, pool, holder):
    address = lib.take(holder, 1000)
    stats = c.Stats(3 * 8, 1, 1, 77)
    lib.check(lib.pool_stats(holder, -1, byref(stats)))
    assert (stats.requested_bytes, stats.used_bytes, stats.free_bytes) == (
        1000,
        1024,
        77,
    )
    info = c.Info(2 * 8, 0, 77)
    lib.check(lib.pointer_info(address, byref(info)))
    assert (info.size, info.requested) == (1024, 77)
    assert lib.pool_stats(holder, -1, byref(c.Stats(0))) == c.INVALID_VALUE
    assert lib.pointer_info(address, None) == c.INVALID_VALUE
    lib.give(address)


def test_the_table_has_the_exported_functions():
    """In the order of the header's struct, so that the places of a table that was
    compiled in are the same."""
    words = ctypes.sizeof(c_void_p)
    table = c.table()
    size = ctypes.c_size_t.from_address(table).value
    assert size == (2 + len(c.FUNCTIONS)) * words
    assert ctypes.c_uint.from_address(table + words).value == 1
    symbols = ctypes.CDLL(_core.__file__)
    symbols.gpumem_get_api.restype = c_void_p
    assert symbols.gpumem_get_api() == table
    for place, name in enumerate(c.FUNCTIONS, 2):
        symbol = ctypes.cast(getattr(symbols, f"gpumem_{name}"), c_void_p).value
        assert c_void_p.from_address(table + place * words).value == symbol, name


# ---- what goes wrong ----


def test_arguments_that_cannot_be(lib, pool, holder):
    assert refused(lib.take, holder, 0) == (c.INVALID_VALUE, "size is 0")
    assert refused(lib.take, None, 10) == (c.INVALID_VALUE, "pool is NULL")
    count = gpumem.get_device_count()
    assert refused(lib.take, holder, 10, count) == (
        c.INVALID_DEVICE,
        f"device must be from 0 to {count - 1}, not {count}",
    )
    assert refused(lib.stats, holder, -2)[0] == c.INVALID_DEVICE
    assert lib.malloc(holder, 10, -1, None, 0, None) == c.INVALID_VALUE
    assert lib.pool_default(None, None) == c.INVALID_VALUE
    assert refused(lib.stats, None) == (c.INVALID_VALUE, "pool is NULL")
    for name in (b"", b"x" * 256):
        status, text = refused(lib.hold, pool, name)
        assert status == c.INVALID_VALUE
        assert text == f"a client's name has 1 to 255 bytes, not {len(name)}"
    for wrong in (gpumem.PinnedMemoryPool(), 5, None):
        out = c_void_p()
        assert lib.pool_borrow(wrong, None, byref(out)) == c.INVALID_VALUE
        assert not out
    lib.pool_release(None)
    assert lib.free(None) == c.OK


def test_addresses_that_are_not_ours(lib, pool, holder):
    pointer = pool.malloc(MIB)
    address = lib.take(holder, MIB)
    lib.give(address)
    for wrong in (address, address + UNIT, pointer.ptr, 8):
        for call in (lib.free, lambda at: lib.record_stream(at, None)):
            assert call(wrong) == c.NOT_OWNED
            assert hex(wrong) in lib.last_error().decode()
    assert pool.used_bytes() == MIB  # Python's is untouched


def test_given_back_by_its_address_in_python(lib):
    single = gpumem.SingleDeviceMemoryPool()
    holder = lib.hold(single)
    address = lib.take(holder, 10)
    single.free(address, 10)
    assert single.used_bytes() == 0
    assert refused(lib.info, address)[0] == c.NOT_OWNED
    assert lib.record_stream(address, None) == c.NOT_OWNED
    assert lib.take(holder, 10) == address  # and the void entry goes
    testing.check_pool(single)
    lib.give(address)
    assert refused(lib.give, address)[0] == c.NOT_OWNED
    address = lib.take(holder, 10)
    single.free(address, 10)
    lib.give(address)  # its owner could not know
    testing.check_pool(single)
    lib.pool_release(holder)


def test_every_status_has_a_text(lib):
    texts = [lib.status_text(status).decode() for status in range(15)]
    assert len(set(texts)) == 15 and texts[0] == "success"
    assert lib.status_text(15) == lib.status_text(-1) == b"unknown status"


@pytest.mark.parametrize("size", [3 * MIB, 1 << 63, 2**64 - 1])
def test_out_of_memory_says_what_python_says(lib, pool, holder, size):
    pool.set_limit(size=2 * MIB)
    address = lib.take(holder, MIB)
    with pytest.raises(gpumem.OutOfMemoryError) as caught:
        pool.malloc(size)
    assert refused(lib.take, holder, size) == (c.OUT_OF_MEMORY, str(caught.value))
    assert pool.stats()["out_of_memory"] == (2 if size < 1 << 60 else 0)
    lib.give(address)


@pytest.mark.sim_only
def test_the_device_is_full(lib, pool, holder):
    with pytest.raises(gpumem.OutOfMemoryError) as caught:
        pool.malloc(1 << 45)
    assert refused(lib.take, holder, 1 << 45) == (c.OUT_OF_MEMORY, str(caught.value))


@pytest.mark.sim_only
def test_the_device_refuses(lib, holder):
    with testing.fail("mem_alloc", code=719):
        status, text = refused(lib.take, holder, MIB)
    assert status == c.DEVICE and "719" in text and "cudaErrorLaunchFailure" in text


# ---- want of memory: Python is asked ----


def test_garbage_is_collected(lib, pool, holder, no_automatic_collection):
    pool.set_limit(size=MIB)
    Ring(pool.malloc(MIB))
    lib.give(lib.take(holder, MIB))


def test_the_callback_is_asked(lib, pool, holder):
    pool.set_limit(size=MIB)
    kept, asked = [pool.malloc(MIB)], []

    def let_go(error):
        asked.append((type(error), error.size, error.attempt, threading.get_ident()))
        kept.clear()
        return True

    pool.set_out_of_memory_callback(let_go)
    lib.give(lib.take(holder, MIB))
    ident = threading.get_ident()
    assert asked == [(gpumem.OutOfMemoryError, MIB, 1, ident)]


def test_what_the_callback_raises_is_the_last_error(lib, pool, holder):
    pool.set_limit(size=MIB)

    def complain(error):
        raise LookupError("nothing to let go of")

    pool.set_out_of_memory_callback(complain)
    assert refused(lib.take, holder, 2 * MIB) == (
        c.PYTHON,
        "LookupError: nothing to let go of",
    )
    pool.set_out_of_memory_callback(lambda error: False)
    status, text = refused(lib.take, holder, 2 * MIB)
    assert status == c.OUT_OF_MEMORY and text.startswith("Out of memory: 2,097,152")


def test_who_must_not_wait_for_python_does_not(lib, pool, no_automatic_collection):
    holder = lib.hold(pool, flags=c.NO_PYTHON)
    pool.set_limit(size=MIB)
    pool.set_out_of_memory_callback(lambda error: pytest.fail("was asked"))
    Ring(pool.malloc(MIB))
    assert refused(lib.take, holder, MIB)[0] == c.OUT_OF_MEMORY
    gc.collect()
    lib.give(lib.take(holder, MIB))
    lib.pool_release(holder)


def test_a_thread_of_c_needs_no_interpreter(pool, probe):
    """The caller has the interpreter's lock, and keeps it until a thread that Python
    never saw has had its memory: from the device, and then from the cache."""
    lib = c.Library(attached=True)
    holder = lib.hold(pool, flags=c.NO_PYTHON)
    assert probe.in_a_thread(c.table(), holder, MIB) == c.OK
    stats = pool.stats()
    assert (stats["misses"], stats["hits"], stats["used_bytes"]) == (1, 1, 0)
    lib.pool_release(holder)


def test_a_thread_of_c_may_have_garbage_collected(pool, probe, no_automatic_collection):
    """It attaches itself; the caller has let go of the interpreter."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("without the interpreter's lock what this thread made ends in it")
    lib = c.Library()
    holder = lib.hold(pool)
    pool.set_limit(size=MIB)
    Ring(pool.malloc(MIB))
    assert probe.in_a_thread_detached(c.table(), holder, MIB) == c.OK
    assert pool.used_bytes() == 0
    lib.pool_release(holder)


def test_an_exception_that_the_caller_has_pending_stays(pool, probe):
    """Of an extension that asks for memory while it handles an error."""
    holder = c.Library().hold(pool)
    pool.set_limit(size=MIB)
    asked = []
    pool.set_out_of_memory_callback(lambda error: asked.append(error))
    with pytest.raises(KeyError, match="pending"):
        probe.while_an_error_is_pending(c.table(), holder, 2 * MIB)
    assert len(asked) == 1
    c.Library().pool_release(holder)


# ---- memory that Python code gives ----


def test_a_pool_over_a_callable(lib):
    taken = []

    def take(size):
        taken.append(size)
        return gpumem.malloc(size)

    holder = lib.hold(gpumem.MemoryPool(take))
    lib.give(lib.take(holder, 1000))
    assert taken == [1024]
    alone = lib.hold(gpumem.MemoryPool(take), flags=c.NO_PYTHON)
    status, text = refused(lib.take, alone, 1000)
    assert status == c.UNSUPPORTED and "GPUMEM_NO_PYTHON" in text
    assert taken == [1024]
    lib.pool_release(holder)
    lib.pool_release(alone)


def test_what_the_callable_raises_is_the_last_error(lib):
    def take(size):
        raise KeyError("no such shelf")

    holder = lib.hold(gpumem.MemoryPool(take))
    assert refused(lib.take, holder, 10) == (c.PYTHON, "KeyError: 'no such shelf'")

    def run_out(size):
        raise MemoryError("the shelf is empty")

    lib.pool_release(holder)
    holder = lib.hold(gpumem.MemoryPool(run_out))
    status, text = refused(lib.take, holder, 10)
    assert status == c.OUT_OF_MEMORY and "Cause: allocator" in text
    lib.pool_release(holder)


def test_hooks_hear_of_what_is_taken_from_the_device_alone(lib, pool, holder):
    heard = []

    class Hook(gpumem.MemoryHook):
        name = "heard"

        def alloc_preprocess(self, **kwargs):
            heard.append(("alloc", kwargs["mem_size"]))

        def malloc_preprocess(self, **kwargs):
            heard.append("malloc")

        def free_preprocess(self, **kwargs):
            heard.append("free")

    with Hook():
        lib.give(lib.take(holder, 1000))
        lib.give(lib.take(holder, 1000))
    assert heard == [("alloc", 1024)]


# ---- streams ----


def test_memory_stays_with_its_stream(lib, pool, holder):
    stream, other = gpumem.Stream(), gpumem.Stream()
    first = lib.take(holder, MIB, stream=stream.ptr)
    lib.give(first)
    second = lib.take(holder, MIB, stream=other.ptr)
    assert second != first
    assert lib.take(holder, MIB, stream=stream.ptr) == first
    with stream:
        lib.give(first)
        assert pool.malloc(MIB).ptr == first  # the same stream in Python
    lib.give(second)


@pytest.mark.sim_only
def test_a_handle_that_is_used_again_is_another_stream(lib, pool, holder):
    stream = gpumem.Stream()
    handle = stream.ptr
    first = lib.take(holder, MIB, stream=handle)
    with testing.hold_stream(gpumem.ExternalStream(handle)):
        pool.malloc(UNIT).memset_async(1, UNIT, stream)  # work that does not end
        lib.give(first)
        del stream
        streams = [gpumem.Stream() for _ in range(100)]
        assert handle in [again.ptr for again in streams]
        second = lib.take(holder, MIB, stream=handle)
        assert second != first
    lib.give(second)


@pytest.mark.sim_only
def test_the_stream_is_asked_for_unless_it_is_known(lib, pool, holder):
    stream = gpumem.Stream()

    def questions(**which):
        lib.give(lib.take(holder, MIB, **which))
        with testing.call_log() as calls:
            lib.give(lib.take(holder, MIB, **which))
        return [call.name for call in calls]

    assert questions(stream=stream.ptr) == ["stream_id"]
    assert questions(stream=stream.ptr, stream_id=77) == []
    assert questions() == questions(stream=1) == []  # default streams
    assert questions(stream=2) == ["stream_id"]  # the thread's own
    lib.check(lib.pool_trim(holder, 0))


@pytest.mark.misuse
def test_a_stream_that_is_none(lib, holder):
    if gpumem.get_backend() != "sim":
        pytest.skip("a driver may crash")
    status, text = refused(lib.take, holder, MIB, -1, 1 << 20)
    assert status == c.DEVICE and "cudaErrorInvalidResourceHandle" in text


@pytest.mark.sim_only
def test_memory_that_a_second_stream_uses(lib, pool, holder):
    stream = gpumem.Stream()
    address = lib.take(holder, MIB)
    with testing.hold_stream(stream):
        stream.record()
        lib.check(lib.record_stream(address, stream.ptr))
        lib.give(address)
        assert lib.stats(holder).pending_bytes == MIB
        other = lib.take(holder, MIB)
        assert other != address
    stream.synchronize()
    assert lib.stats(holder).pending_bytes == 0
    lib.give(other)


# ---- threads, the process ----


def test_threads_share_a_pool(lib, pool, holder, in_threads):
    def work(index):
        kept = []
        for n in range(400):
            kept.append(lib.take(holder, 1 + (index * 37 + n * 101) % 5000))
            if n % 3:
                lib.give(kept.pop(n % len(kept)))
        return kept

    kept = [address for part in in_threads(8, work) for address in part]
    assert len(set(kept)) == len(kept)
    # One thread's memory may be given back by another.
    in_threads(4, lambda index: [lib.give(address) for address in kept[index::4]])
    assert pool.used_bytes() == 0


def test_the_last_error_is_the_threads(lib, holder, in_threads):
    lib.malloc(holder, 0, -1, None, 0, byref(c_void_p()))
    assert in_threads(1, lambda index: lib.last_error()) == [b""]
    assert lib.last_error() == b"size is 0"


PROGRAM = """if True:
    import os, sys, gpumem
    sys.path.append({here!r})
    import c_library as c
    lib = c.Library()
    pool = gpumem.MemoryPool()
    holder = lib.hold(pool)
    address = lib.take(holder, 1000)
"""


def program(text):
    import os
    import textwrap

    here = os.path.dirname(os.path.abspath(__file__))
    return PROGRAM.format(here=here) + textwrap.indent(textwrap.dedent(text), "    ")


@pytest.mark.sim_only
def test_a_forked_child_touches_nothing(script):
    done = script(
        program("""
        child = os.fork()
        if child == 0:
            calls = (lambda: lib.take(holder, 10), lambda: lib.give(address),
                     lambda: lib.stats(holder), lambda: lib.info(address))
            for call in calls:
                try: call()
                except c.Failed as error: print(error.args[0], flush=True)
            lib.pool_release(holder)
            os._exit(0)
        os.waitpid(child, 0)
        lib.give(address)
        print(lib.stats(holder).used_bytes)
        """)
    )
    assert done.stdout.split() == [str(c.FORKED)] * 4 + ["0"], done.stderr


def test_after_the_interpreters_end_calls_say_so(script):
    """atexit runs the newest function first, so gpumem's own has run by then."""
    done = script(
        "import atexit\n"
        "def last():\n"
        "    for call in (lambda: lib.take(holder, 10), lambda: lib.give(address)):\n"
        "        try: call()\n"
        "        except c.Failed as error: print(*error.args)\n"
        "    lib.pool_release(holder)\n"
        "atexit.register(last)\n" + program("")
    )
    line = f"{c.EXITING} gpumem: the process is exiting"
    assert (done.stdout.splitlines(), done.stderr) == ([line, line], "")


def test_before_gpumem_is_imported(script):
    done = script(
        "import ctypes, importlib.util, sys\n"
        f"lib = ctypes.CDLL({_core.__file__!r})\n"
        "lib.gpumem_last_error.restype = ctypes.c_char_p\n"
        "out = ctypes.c_void_p()\n"
        "print(lib.gpumem_pool_default(None, ctypes.byref(out)))\n"
        "print(lib.gpumem_last_error().decode())\n"
    )
    assert done.stdout.splitlines() == [
        str(c.NOT_LOADED),
        "import the Python module gpumem before its C interface is used",
    ]
