# SPDX-License-Identifier: MIT
"""Two arrays of one segment exported the same handle, and whoever imported it read the
wrong one; opening one handle twice failed. cupy#9436, numba/numba#3310,
pytorch/tensorpipe#248, openucx/ucx#11724, torch#14736,
https://github.com/cupy/cupy/issues/9436"""

import gc
import pickle
import subprocess
import sys

import pytest
from casekit import MIB, UNIT, content, device_calls, on_sim, pattern, written

import gpumem
from gpumem import (
    IPCBufferDescriptor,
    IPCMemory,
    MemoryPointer,
    MemoryPool,
    Stream,
    testing,
)

# What exports: it answers each line by evaluating it, until its input ends.
EXPORTER = """
import pickle, sys
import gpumem
from gpumem import IPCBufferDescriptor, Memory, MemoryPointer, MemoryPool
pool, kept = MemoryPool(), {}

def share(name, pointer, byte=0):
    size = pointer.mem.size
    pointer.memset(byte, size)
    gpumem.Device().synchronize()
    kept[name] = pointer, IPCBufferDescriptor(pointer)
    return kept[name][1]

def fill(pointer, byte, size):
    pointer.memset(byte, size)
    gpumem.Device().synchronize()

def read(pointer, size):
    host = bytearray(size)
    pointer.copy_to_host(host, size)
    return bytes(host)

for line in sys.stdin:
    answer = eval(line)
    sys.stdout.write(pickle.dumps(answer).hex() + "\\n")
    sys.stdout.flush()
"""


class Exporter:
    """Another process, which shares memory with this one."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", EXPORTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, expression):
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return pickle.loads(bytes.fromhex(self.process.stdout.readline()))

    def end(self):
        if self.process.returncode is None:
            self.process.communicate(timeout=60)


@pytest.fixture
def exporter():
    process = Exporter()
    yield process
    process.end()


@pytest.fixture(autouse=True)
def nothing_stays_open(unraisable):
    yield
    gc.collect()
    assert unraisable == []
    if on_sim():
        assert testing.ledger().imports == 0


def opened(descriptor):
    return MemoryPointer(IPCMemory(descriptor), 0)


@pytest.mark.parametrize("first_closed", ["a", "b"])
def test_u58_each_of_two_blocks_of_a_segment_is_itself(exporter, first_closed):
    exporter("kept.update(segment=pool.malloc(1 << 20)) or kept.clear()")
    named = {
        name: exporter(f"share({name!r}, pool.malloc(512), {byte})")
        for name, byte in (("a", 1), ("b", 2))
    }
    assert named["a"].handle == named["b"].handle  # they are in one segment
    assert (named["a"].offset, named["b"].offset) == (0, UNIT)
    assert named["a"].size == named["b"].size == UNIT
    pointers = {name: opened(each) for name, each in named.items()}
    assert pointers["b"].ptr - pointers["a"].ptr == UNIT  # and share its mapping
    assert content(pointers["a"], UNIT) == bytes([1]) * UNIT
    assert content(pointers["b"], UNIT) == bytes([2]) * UNIT

    other = "ab".replace(first_closed, "")
    byte = {"a": 1, "b": 2}[other]
    del pointers[first_closed]
    assert content(pointers[other], UNIT) == bytes([byte]) * UNIT
    written(pointers[other], UNIT, seed=7)
    gpumem.Device().synchronize()
    assert exporter(f"read(kept[{other!r}][0], 512)") == pattern(UNIT, 7)


def test_u58_one_descriptor_is_opened_as_often_as_one_likes(exporter):
    named = exporter("share('a', pool.malloc(512), 5)")
    with device_calls() as calls:
        first, second = opened(named), opened(named)
        assert first.ptr == second.ptr
        del first
        assert content(second, UNIT) == bytes([5]) * UNIT
        third = opened(pickle.loads(pickle.dumps(named)))
        assert third.ptr == second.ptr
        del second
        assert content(third, UNIT) == bytes([5]) * UNIT
        del third
    if on_sim():
        names = [call.name for call in calls if call.name.startswith("ipc_")]
        assert names.count("ipc_open") == names.count("ipc_close") == 3
        assert testing.ledger().imports == 0


def test_u58_what_the_exporter_drops_stays_while_it_is_shared(exporter):
    """Its descriptor keeps it: the pool hands it out to nobody and does not free it."""
    named = exporter("share('b', pool.malloc(512), 2)")
    pointer = opened(named)
    exporter("kept.update(b=kept['b'][1])")  # the pointer is dropped
    exporter("pool.free_all_blocks()")
    exporter("[fill(pool.malloc(512), 9, 512) for _ in range(4)] and None")
    assert content(pointer, UNIT) == bytes([2]) * UNIT
    assert exporter("pool.used_bytes()") == UNIT
    exporter("kept.clear()")
    assert exporter("(pool.used_bytes(), pool.free_all_blocks())") == (0, None)
    assert exporter("pool.total_bytes()") == 0


def test_u58_a_pointer_into_a_block_shares_the_rest_of_it(exporter):
    exporter("share('a', pool.malloc(1 << 20))")
    named = exporter("IPCBufferDescriptor(kept['a'][0] + 1000)")
    assert (named.offset, named.size) == (1000, MIB - 1000)
    exporter("fill(kept['a'][0] + 1000, 6, 3)")
    pointer = opened(named)
    assert (pointer.mem.size, pointer.device_id) == (MIB - 1000, gpumem.get_device_id())
    assert content(pointer, 4) == bytes([6, 6, 6, 0])
    with pytest.raises(ValueError):  # its bounds are those of what was shared
        pointer.memset(0, MIB)


def test_u58_memory_without_a_pool_is_shared_as_well(exporter):
    named = exporter("share('a', MemoryPointer(Memory(1000), 0), 4)")
    assert (named.offset, named.size) == (0, 1000)
    assert content(opened(named), 1000) == bytes([4]) * 1000


@pytest.mark.sim_only
def test_u58_nothing_is_unmapped_under_queued_work(exporter):
    pointer = opened(exporter("share('a', pool.malloc(512), 3)"))
    host, stream = bytearray(UNIT), Stream(non_blocking=True)
    pointer.copy_to_host_async(host, UNIT, stream)
    del pointer
    stream.synchronize()
    assert bytes(host) == bytes([3]) * UNIT
    assert testing.ledger().errors == 0


@pytest.mark.sim_only
def test_u58_while_a_graph_is_recorded_closing_waits(exporter):
    pointer = opened(exporter("share('a', pool.malloc(512), 3)"))
    stream = Stream(non_blocking=True)
    stream.begin_capture()
    with device_calls() as calls:
        del pointer
    assert [call.name for call in calls if call.name.startswith("ipc_")] == []
    assert testing.ledger().imports == 1
    stream.end_capture()
    assert testing.ledger().imports == 0


@pytest.mark.sim_only
def test_u58_after_a_reset_nothing_is_closed(apart, exporter):
    named = exporter("share('a', pool.malloc(512), 3)")
    apart(reset_while_open, pickle.dumps(named))


def reset_while_open(pickled):
    pointer = opened(pickle.loads(pickled))
    assert content(pointer, UNIT) == bytes([3]) * UNIT
    gpumem.Device().reset()
    assert testing.ledger().imports == 0
    with device_calls() as calls:
        del pointer
    assert "ipc_close" not in [call.name for call in calls]
    assert testing.ledger().errors == 0


def test_u58_what_cannot_be_shared():
    with pytest.raises(TypeError, match="MemoryPointer"):
        IPCBufferDescriptor(1)
    for pointer in (
        gpumem.malloc_managed(UNIT),
        MemoryPointer(gpumem.BaseMemory(), 0),
        gpumem.malloc(UNIT) + UNIT,
    ):
        with pytest.raises(ValueError):
            IPCBufferDescriptor(pointer)
    pooled = MemoryPool().malloc(UNIT)
    pooled.mem.free()
    with pytest.raises(ValueError, match="given back"):
        IPCBufferDescriptor(pooled)


@pytest.mark.misuse
def test_u58_what_cannot_be_opened(exporter):
    named = exporter("share('a', pool.malloc(512))")

    class Lies:
        handle, offset, size = named.handle, named.offset, named.size

    with pytest.raises(gpumem.CUDARuntimeError, match="use the pointer"):
        IPCMemory(IPCBufferDescriptor(gpumem.malloc(UNIT)))
    for wrong in (None, 7, object()):
        with pytest.raises(TypeError, match="IPCBufferDescriptor"):
            IPCMemory(wrong)
    for name, value, error in (
        ("size", named.size + (1 << 30), ValueError),
        ("size", 2**64 - 1, ValueError),
        ("offset", 1 << 40, ValueError),
        ("offset", -1, OverflowError),
        ("size", 1.0, TypeError),
        ("handle", b"short", TypeError),
        ("handle", "x" * 64, TypeError),
        ("handle", bytes(64), gpumem.CUDARuntimeError),
    ):
        lies = Lies()
        setattr(lies, name, value)
        with pytest.raises(error):
            IPCMemory(lies)
    memory = IPCMemory(named)
    with pytest.raises(RuntimeError, match="once"):
        memory.__init__(named)
    assert bytes(content(MemoryPointer(memory, 0), UNIT)) == bytes(UNIT)


@pytest.mark.misuse
def test_u58_the_handle_of_a_process_that_ended(exporter):
    named = exporter("share('a', pool.malloc(512))")
    exporter.end()
    with pytest.raises(gpumem.CUDARuntimeError):
        IPCMemory(named)


@pytest.mark.two_devices
def test_u58_it_is_opened_on_the_current_device(exporter):
    named = exporter("share('a', pool.malloc(512), 8)")
    with gpumem.Device(1):
        with device_calls() as calls:
            pointer = opened(named)
        if on_sim():
            opens = [call for call in calls if call.name == "ipc_open"]
            assert [call.device for call in opens] == [1]
        assert pointer.device_id == pointer.mem.device_id == 1
        assert content(pointer, UNIT) == bytes([8]) * UNIT
    with device_calls() as calls:
        del pointer
    assert gpumem.get_device_id() == 0
    assert not on_sim() or "ipc_close" in [call.name for call in calls]
