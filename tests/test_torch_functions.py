# SPDX-License-Identifier: MIT
"""The functions of torch's shapes, called by C++ code as torch's is: what they give,
and the errors that they throw. With torch itself: interop/test_torch.py."""

import shutil
import subprocess
from pathlib import Path

import pytest

import gpumem
from gpumem.interop import torch as adaptor

HERE = Path(__file__).resolve().parent

# One pool a process is torch's, so each test runs in one of its own.
PROGRAM = """if True:
    import ctypes, gc, sys
    from ctypes import (byref, c_char_p, c_double, c_int, c_size_t, c_ssize_t,
                        c_ulonglong, c_void_p)
    import gpumem
    from gpumem import _core
    from gpumem.interop import torch as adaptor
    errors = ctypes.CDLL({library!r})
    ours = ctypes.CDLL(_core.__file__)
    MIB = 1 << 20

    def address(name):
        return ctypes.cast(getattr(ours, "gpumem_torch_" + name), c_void_p)

    def functions():
        libraries = {{"libc10.so": errors, "libc10_cuda.so": errors}}
        for library, name in adaptor._FUNCTIONS:
            found = libraries.get(library) or ctypes.CDLL(library)
            yield ctypes.addressof(ctypes.c_char.in_dll(found, name))

    def take(size, device=0, alloc="alloc", stream=None):
        memory, text = c_void_p(), ctypes.create_string_buffer(4096)
        where = device, c_void_p(stream and stream.ptr)
        arguments = address(alloc), c_ssize_t(size), *where, byref(memory), text, 4096
        call = errors.take(*arguments)
        return call, memory.value or text.value.decode()

    def begin(*name, device=0):
        text = ctypes.create_string_buffer(4096)
        arguments = address("begin_pool"), device, *map(c_ulonglong, name), text, 4096
        return errors.begin(*arguments), text.value.decode()

    def about(function, *name, device=0):
        errors.about(address(function), device, *map(c_ulonglong, name))

    def give(memory, function=ours.gpumem_torch_free):
        function(c_void_p(memory), c_ssize_t(0), 0, None)

    pool = gpumem.MemoryPool()
    _core._torch_open(pool, tuple(functions()))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    made = tmp_path_factory.mktemp("cxx") / "errors.so"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = HERE / "c_api" / "torch_errors.cpp"
    command = ["g++", *flags, str(source), "-o", str(made)]
    subprocess.run(command, check=True, timeout=120)
    return str(made)


@pytest.fixture
def with_torchs_pool(script, library):
    """Runs code where torch was given a pool; its output."""

    def run(code):
        lines = [line[8:] for line in code.splitlines()]
        text = PROGRAM.format(library=library) + "\n".join(f"    {x}" for x in lines)
        done = script(text)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.splitlines()

    return run


def test_memory_comes_and_goes_on_torchs_account(with_torchs_pool):
    assert with_torchs_pool("""
        call, memory = take(1000)
        print(call, pool.stats_by_client()["torch"]["requested_bytes"])
        give(memory)
        print(pool.used_bytes(), take(1000)[1] == memory)
        give(memory)
        print(take(0))
        stats = adaptor.memory_stats(pool=pool)
        print(stats["allocated_bytes.all.current"], stats["reserved_bytes.all.peak"])
    """) == ["0 1000", "0 True", "(0, '')", "0 1024"]


def test_want_of_memory_is_thrown_as_torchs_error(with_torchs_pool):
    shown, thrown, leaked = with_torchs_pool("""
        pool.set_limit(size=MIB)
        try: pool.malloc(2 * MIB)
        except gpumem.OutOfMemoryError as error: print(error)
        call, text = take(2 * MIB)
        print(call, text)
        for _ in range(1000): take(2 * MIB)
        print(errors.alive(), pool.used_bytes(), pool.stats()["out_of_memory"])
    """)
    assert thrown == f"1 CUDA out of memory. {shown}"
    assert leaked == "0 0 1002"


def test_any_other_error_is_thrown_as_one(with_torchs_pool):
    device, graph = with_torchs_pool("""
        print(*take(10, device=7))
        print(*begin(1, 0))
        print(*begin(1, 0))
    """)[::2]
    assert device == "2 device must be from 0 to 0, not 7"
    assert graph.startswith("2 a graph is being recorded with this memory already")


def test_below_torchs_own_cache_null_says_that_there_is_none(with_torchs_pool):
    """And nobody waits for the interpreter: garbage stays."""
    assert with_torchs_pool("""
        gc.disable()
        pool.set_limit(size=MIB)
        ring = [pool.malloc(MIB)]
        ring.append(ring)
        del ring
        print(take(MIB, alloc="pool_alloc"))
        call, memory = take(MIB)
        print(call)
        give(memory)
    """) == ["(0, '')", "0"]


def test_the_rest_does_what_torch_asks_for(with_torchs_pool):
    assert with_torchs_pool("""
        stream = gpumem.Stream()
        memory = take(MIB)[1]
        size = c_size_t()
        ours.gpumem_torch_base_alloc.restype = c_void_p
        base = ours.gpumem_torch_base_alloc(c_void_p(memory), byref(size))
        print(base == memory, size.value == MIB)
        ours.gpumem_torch_record_stream(c_void_p(memory), c_void_p(stream.ptr))
        ours.gpumem_torch_record_stream(None, c_void_p(stream.ptr))
        pool.malloc(512).memset_async(1, 512, stream)
        give(memory)
        stream.synchronize()
        ours.gpumem_torch_memory_fraction(c_double(0.25), 0)
        print(pool.get_limit() / gpumem.Device(0).mem_info[1])
        ours.gpumem_torch_empty_cache()
        print(pool.total_bytes())
    """) == ["True True", "0.25", "0"]


# ---- graphs ----


def captured(text):
    """A program with two streams and what it takes to record torch's graphs."""
    head = """
        stream, other = gpumem.Stream(), gpumem.Stream()
        def kept():
            return pool.stats()["captured_bytes"] // MIB
        def taken(size=MIB, on=stream):
            call, memory = take(size, stream=on)
            assert call == 0, memory
            return memory
        def end(*name):
            graph = stream.end_capture()
            about("end_pool", *name)
            return graph
    """
    return head + text


def test_what_a_recording_takes_is_its_graphs_until_that_is_gone(with_torchs_pool):
    """From the device too, which a recording's mode may forbid but torch's does not."""
    assert with_torchs_pool(
        captured("""
        print(begin(1, 0)); stream.begin_capture()
        first = taken()
        give(first)
        print(taken() == first, pool.total_bytes() // MIB)
        elsewhere = taken(on=other)
        print(elsewhere != first)
        second = taken()
        give(second)
        graph = end(1, 0)
        print(kept(), taken() not in (first, second))
        give(first)
        ours.gpumem_torch_empty_cache()
        print(kept(), taken() not in (first, second))
        graph.launch(stream)
        about("release_pool", 1, 0)
        print(kept())
        print(pool.stats()["live_blocks"], pool.used_bytes() // MIB)
        stream.begin_capture(); stream.end_capture()  # nobody's
        ours.gpumem_torch_empty_cache()
        print(pool.total_bytes() // MIB)
    """)
    ) == ["(0, '')", "True 1", "True", "1 True", "2 True", "0", "3 3", "3"]


def test_graphs_share_memory_by_its_name(with_torchs_pool):
    assert with_torchs_pool(
        captured("""
        seen = []
        for name in ((1, 0), (1, 0), (0, 1)):
            begin(*name); stream.begin_capture()
            seen.append(taken())
            give(seen[-1])
            end(*name)
        print(seen[0] == seen[1] != seen[2], kept())
        about("release_pool", 1, 0)
        print(kept())
        about("release_pool", 0, 1)
        print(kept())
        about("release_pool", 1, 0)
        print(kept())
        for function in ("release_pool", "end_pool"): about(function, 7, 7)
    """)
    ) == ["True 2", "2", "1", "0"]


@pytest.mark.sim_only  # reads the device's memory by its address
def test_a_graph_that_goes_is_waited_for(with_torchs_pool):
    """torch launched it, and said nothing of that."""
    assert with_torchs_pool(
        captured("""
        begin(1, 0); stream.begin_capture()
        memory = taken()
        place = gpumem.MemoryPointer(gpumem.UnownedMemory(memory, MIB, None, 0), 0)
        place.memset_async(5, MIB, stream)
        give(memory)
        graph = end(1, 0)
        graph.launch(other)
        about("release_pool", 1, 0)
        print(ctypes.string_at(memory, MIB) == bytes([5]) * MIB)
    """)
    ) == ["True"]


def test_a_stream_that_joins_takes_part(with_torchs_pool):
    assert with_torchs_pool(
        captured("""
        begin(1, 0); stream.begin_capture()
        other.wait_event(stream.record())
        give(taken(on=other))
        stream.wait_event(other.record())
        end(1, 0)
        print(kept())
    """)
    ) == ["1"]


def test_memory_used_on_another_stream_is_kept_to_the_end_of_a_recording(
    with_torchs_pool,
):
    assert with_torchs_pool(
        captured("""
        def used(memory, on):
            ours.gpumem_torch_record_stream(c_void_p(memory), c_void_p(on.ptr))
        outside = taken(on=None)
        begin(1, 0); stream.begin_capture()
        other.wait_event(stream.record())
        memory, live = taken(), taken()
        for on in (other, other, stream): used(memory, on)
        used(live, other)
        used(outside, other)
        give(memory)
        give(outside)
        print(taken() not in (memory, outside), kept(), taken(on=None) != outside)
        stream.wait_event(other.record())
        end(1, 0)
        print(kept(), taken(on=None) == outside)
        give(live)
        print(kept())
    """)
    ) == ["True 0 True", "1 True", "2"]


def test_two_recordings_at_once(with_torchs_pool):
    """Each is known by the thread that began it; then by the driver's number."""
    assert with_torchs_pool(
        captured("""
        import threading
        begin(1, 0); stream.begin_capture()
        def work():
            begin(2, 0); other.begin_capture()
            seen.append(taken(on=other))
            give(seen[0])
            seen.append(taken(on=stream))  # as autograd's threads do
            give(seen[1])
            other.end_capture(); about("end_pool", 2, 0)
        seen = []
        thread = threading.Thread(target=work); thread.start(); thread.join()
        end(1, 0)
        print(kept())
        about("release_pool", 2, 0)
        print(kept())
        about("release_pool", 1, 0)
        print(kept())
    """)
    ) == ["2", "1", "0"]


def test_a_graph_that_goes_while_another_is_recorded_is_waited_for_later(
    with_torchs_pool,
):
    assert with_torchs_pool(
        captured("""
        begin(1, 0); stream.begin_capture()
        give(taken())
        graph = end(1, 0)
        begin(2, 0); stream.begin_capture()
        about("release_pool", 1, 0)
        print(kept())
        end(2, 0)
        print(kept())
    """)
    ) == ["1", "0"]


def test_a_recording_that_failed_is_noticed(with_torchs_pool):
    """torch does not say that it is over: it would forbid for ever to give back."""
    assert with_torchs_pool(
        captured("""
        begin(1, 0); stream.begin_capture()
        give(taken())
        stream.end_capture()
        give(taken(on=other))
        ours.gpumem_torch_empty_cache()
        print(pool.total_bytes() // MIB)
        begin(1, 0); stream.begin_capture()
        give(taken())
        end(1, 0)
        print(kept())
    """)
    ) == ["1", "1"]


def test_each_recording_that_failed_is_noticed(with_torchs_pool):
    """The newer of two and the older one."""
    assert with_torchs_pool(
        captured("""
        import threading
        def record(name, on):
            print(name, *begin(name, 0)); on.begin_capture()
            give(taken(on=on))
        def in_a_thread(*args):
            thread = threading.Thread(target=record, args=args)
            thread.start(); thread.join()
        record(1, stream)
        in_a_thread(2, other)
        other.end_capture()
        in_a_thread(2, other)
        stream.end_capture()
        record(1, stream)
    """)
    ) == ["1 0 ", "2 0 ", "2 0 ", "1 0 "]


def test_want_of_memory_in_a_recording(with_torchs_pool):
    """Is thrown; the recording goes on."""
    assert with_torchs_pool(
        captured("""
        pool.set_limit(size=MIB)
        begin(1, 0); stream.begin_capture()
        memory = taken()
        call, text = take(MIB, stream=stream)
        print(call, text.startswith("CUDA out of memory. Out of memory: 1,048,576"))
        give(memory)
        print(taken() == memory)
        end(1, 0)
    """)
    ) == ["1 True", "True"]


def test_one_pool_a_process(with_torchs_pool):
    assert with_torchs_pool("""
        _core._torch_open(pool, ())
        try: _core._torch_open(gpumem.MemoryPool(), tuple(functions()))
        except RuntimeError as error: print(error)
    """) == [
        "torch has a gpumem pool already, and one a process is all that it can be given"
    ]


def test_memory_in_use_at_the_end_is_left(with_torchs_pool):
    """And given back after the interpreter's end, as static destructors do."""
    assert with_torchs_pool("""
        import atexit
        memory = take(MIB)[1]
        atexit._run_exitfuncs()
        give(memory)
        print(take(10))
    """) == ["(0, '')"]


def test_functions_that_are_none(script):
    done = script(
        "import gpumem\n"
        "from gpumem import _core\n"
        "for wrong in (5, (), (1,) * 7, (0,) * 8, ('a',) * 8):\n"
        "    try: _core._torch_open(gpumem.MemoryPool(), wrong)\n"
        "    except (TypeError, ValueError) as error: print(type(error).__name__)\n"
        "try: _core._torch_open(5, (8,) * 8)\n"
        "except RuntimeError as error: print(error)\n"
    )
    *kinds, last = done.stdout.splitlines()
    assert kinds == ["TypeError"] * 3 + ["ValueError", "TypeError"], done.stderr
    assert "pool must be a MemoryPool" in last


@pytest.mark.skipif(gpumem.get_backend() != "sim", reason="needs the simulated device")
@pytest.mark.parametrize("ask", [adaptor.enable, adaptor.memory_pool])
def test_the_simulated_device_is_refused(ask, monkeypatch):
    """Whether or not torch is there: only a module of that name is looked for."""
    import sys
    import types

    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.raises(RuntimeError, match="PyTorch cannot use the memory of the sim"):
        ask()
    assert adaptor.disable() is None
