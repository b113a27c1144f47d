# SPDX-License-Identifier: MIT
"""BaseMemory, Memory, PooledMemory and malloc: what they say, take and give back."""

import gc
import re

import pytest

import gpumem
from gpumem import BaseMemory, Device, Memory, MemoryPointer, PooledMemory, testing

ALIGNMENT = 256  # what cudaMalloc promises


class Index:
    """An integer that is not an int."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


# ---- Memory ----


def test_memory_says_where_it_is_how_long_it_is_and_whose():
    memory = Memory(1000)
    assert memory.ptr > 0 and memory.ptr % ALIGNMENT == 0
    assert int(memory) == memory.ptr
    assert memory.size == 1000
    assert memory.device_id == gpumem.get_device_id()
    assert memory.device == Device()
    assert isinstance(memory, BaseMemory)


@pytest.mark.parametrize(
    "make",
    [
        Memory,
        gpumem.malloc,
        gpumem.ManagedMemory,
        gpumem.malloc_managed,
        gpumem.MemoryAsync,
        gpumem.malloc_async,
        lambda size: gpumem.MemoryAsyncPool().malloc(size),
        gpumem.PinnedMemory,
        gpumem.malloc_pinned,
        lambda size: gpumem.PinnedMemoryPool().malloc(size),
    ],
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


def test_the_size_may_be_given_by_name():
    assert Memory(size=512).size == 512
    assert gpumem.malloc(size=512).mem.size == 512


@pytest.mark.parametrize("size", [True, Index(1)])
def test_anything_with_an_index_is_a_size(size):
    assert Memory(size).size == 1
    assert gpumem.malloc(size).mem.size == 1


def test_numpy_integers_are_sizes(pool):
    numpy = pytest.importorskip("numpy")
    assert Memory(numpy.int32(700)).size == 700
    assert pool.malloc(numpy.uint64(700)).mem.size == 1024


def test_two_memories_do_not_overlap():
    first, second = Memory(4096), Memory(4096)
    assert abs(first.ptr - second.ptr) >= 4096


def test_the_text_of_a_memory_has_what_it_says():
    memory = Memory(1000)
    assert re.fullmatch(
        rf"<Memory {hex(memory.ptr)} size=1000 device={memory.device_id}>",
        repr(memory),
    )


@pytest.mark.parametrize("make", [Memory, lambda size: gpumem.malloc(size).mem])
@pytest.mark.sim_only
def test_memory_is_taken_once_and_given_back_once(make):
    with testing.call_log() as calls:
        memory = make(1000)
        address = memory.ptr
        del memory
    names = [(call.name, call.ptr) for call in calls if call.name.startswith("mem_")]
    assert names == [("mem_alloc", address), ("mem_free", address)]
    assert [call.size for call in calls if call.name == "mem_alloc"] == [1000]


@pytest.mark.sim_only
def test_memory_of_no_bytes_takes_nothing():
    with testing.call_log() as calls:
        memory = Memory(0)
        pointer = gpumem.malloc(0)
    assert (memory.ptr, memory.size) == (0, 0)
    assert (pointer.ptr, pointer.mem.ptr, pointer.mem.size) == (0, 0, 0)
    assert memory.device_id == pointer.device_id == gpumem.get_device_id()
    assert [call for call in calls if call.name.startswith("mem_")] == []


def test_memory_that_was_never_initialised_has_nothing():
    memory = Memory.__new__(Memory)
    assert (memory.ptr, memory.size) == (0, 0)


@pytest.mark.sim_only
def test_memory_is_initialised_once():
    memory = Memory(1000)
    address = memory.ptr
    with testing.call_log() as calls:
        with pytest.raises(RuntimeError, match="once"):
            memory.__init__(2000)
    assert not calls
    assert (memory.ptr, memory.size) == (address, 1000)


@pytest.mark.sim_only
def test_what_is_freed_is_what_was_taken_whatever_the_attributes_say(unraisable):
    memory = Memory(1000)
    address = memory.ptr
    memory.ptr, memory.size, memory.device_id = 0x1234, 7, 99
    assert (memory.ptr, memory.size, memory.device_id) == (0x1234, 7, 99)
    with testing.call_log() as calls:
        del memory
    freed = [(c.device, c.ptr) for c in calls if c.name == "mem_free"]
    assert freed == [(gpumem.get_device_id(), address)]
    assert unraisable == []


@pytest.mark.sim_only
def test_memory_with_a_null_ptr_is_not_freed():
    memory = Memory(1000)
    address, memory.ptr = memory.ptr, 0
    with testing.call_log() as calls:
        assert testing.ledger().allocations == 1
        memory.ptr = address
        del memory
    assert [call.ptr for call in calls if call.name == "mem_free"] == [address]


@pytest.mark.two_devices
def test_memory_belongs_to_the_device_that_was_current():
    with Device(1):
        memory = Memory(1000)
        pointer = gpumem.malloc(1000)
    assert memory.device_id == pointer.device_id == 1
    assert memory.device == pointer.device == Device(1)
    del memory, pointer
    assert gpumem.get_device_id() == 0


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_memory_goes_back_to_its_own_device_whatever_is_current():
    with Device(1):
        memory = Memory(1000)
    with testing.call_log() as calls:
        del memory
    assert [call.device for call in calls if call.name == "mem_free"] == [1]
    assert gpumem.get_device_id() == 0


def test_the_device_counts_what_is_taken():
    size = 64 << 20
    # A real device may serve others too.
    tolerance = 0 if gpumem.get_backend() == "sim" else 2 << 20
    before, total = Device().mem_info
    memory = Memory(size)
    assert Device().mem_info == (pytest.approx(before - size, abs=tolerance), total)
    del memory
    assert Device().mem_info == (pytest.approx(before, abs=tolerance), total)


def test_memory_is_not_tracked_by_the_collector(pool):
    assert not gc.is_tracked(Memory(1))
    assert not gc.is_tracked(pool.malloc(1).mem)


# ---- what stands in for memory ----


def test_a_subclass_can_stand_in_for_memory():
    class Mock(Memory):
        def __init__(self, ptr, size):  # takes nothing from the device
            self.ptr, self.size, self.device_id = ptr, size, 0

    pointer = MemoryPointer(Mock(0x1000, 4096), 512)
    assert pointer.ptr == 0x1200
    assert pointer.mem.size == 4096


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("ptr", "1", TypeError),
        ("ptr", 1.0, TypeError),
        ("ptr", -1, OverflowError),
        ("ptr", 2**64, OverflowError),
        ("size", -1, OverflowError),
        ("size", 2**64, OverflowError),
        ("device_id", "0", TypeError),
        ("device_id", 2**31, OverflowError),
    ],
)
def test_an_attribute_keeps_its_value_where_a_new_one_does_not_fit(
    attribute, value, error
):
    memory = BaseMemory()
    setattr(memory, attribute, 5)
    with pytest.raises(error):
        setattr(memory, attribute, value)
    assert getattr(memory, attribute) == 5


# ---- PooledMemory ----


def test_pooled_memory_is_whole_units_long(pool):
    assert [pool.malloc(size).mem.size for size in (1, 512, 513)] == [512, 512, 1024]


def test_pooled_memory_is_made_by_pools_alone():
    with pytest.raises(TypeError):
        PooledMemory()
    with pytest.raises(TypeError):
        type("Derived", (PooledMemory,), {})


def test_pooled_memory_cannot_be_written_to(pool):
    memory = pool.malloc(512).mem
    for name in ("ptr", "size", "device_id", "pool"):
        with pytest.raises(AttributeError):
            setattr(memory, name, 0)


@pytest.mark.parametrize("name", ["ptr", "size", "device_id"])
def test_pooled_memory_cannot_be_written_to_through_its_base(pool, name):
    memory = pool.malloc(512).mem
    before = getattr(memory, name)
    attribute = vars(BaseMemory)[name]
    with pytest.raises(AttributeError, match=f"{name} of a PooledMemory"):
        attribute.__set__(memory, 0)
    with pytest.raises(AttributeError, match=f"{name} of a PooledMemory"):
        attribute.__delete__(memory)
    assert getattr(memory, name) == before
    attribute.__set__(BaseMemory(), 0)


def test_freeing_pooled_memory_gives_it_back_at_once_and_only_once(pool):
    pointer = pool.malloc(1024)
    pointer.mem.free()
    assert pointer.mem.ptr == 0
    assert (pool.used_bytes(), pool.n_free_blocks()) == (0, 1)
    other = pool.malloc(1024)
    pointer.mem.free()
    assert pool.used_bytes() == 1024
    del pointer
    assert pool.used_bytes() == 1024
    testing.check_pool(pool)
    del other


def test_pooled_memory_knows_its_pool_until_it_went_back(pool):
    memory = pool.malloc(512).mem
    owner = memory.pool()
    assert isinstance(owner, gpumem.SingleDeviceMemoryPool)
    assert owner.used_bytes() == 512
    memory.free()
    assert memory.pool() is None


def test_the_pool_of_pooled_memory_is_a_weak_reference():
    single = gpumem.SingleDeviceMemoryPool()
    memory = single.malloc(512).mem
    reference = memory.pool
    assert reference() is single
    del single
    assert reference() is None
    assert memory.pool() is None
    assert memory.ptr > 0
