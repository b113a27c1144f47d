# SPDX-License-Identifier: MIT
"""MemoryPointer: a place in memory, what can be reckoned with it, what it keeps."""

import gc
import operator
import re
import weakref

import pytest

import gpumem
from gpumem import BaseMemory, Device, MemoryPointer, PinnedMemoryPointer, testing


@pytest.fixture
def memory():
    """Memory that is nowhere: arithmetic touches no device."""
    memory = BaseMemory()
    memory.ptr, memory.size, memory.device_id = 0x10000, 4096, 0
    return memory


@pytest.fixture
def null():
    return MemoryPointer(BaseMemory(), 0)


class Index:
    def __index__(self):
        return 512


# ---- what it says ----


def test_a_pointer_is_a_place_in_its_memory(memory):
    pointer = MemoryPointer(memory, 512)
    assert pointer.ptr == int(pointer) == 0x10200
    assert pointer.mem is memory
    assert pointer.device_id == 0
    assert pointer.device == Device(0)
    assert MemoryPointer(mem=memory, offset=-512).ptr == 0xFE00


def test_the_text_of_a_pointer_has_the_address_and_the_memory(memory):
    text = repr(MemoryPointer(memory, 512))
    assert re.fullmatch(
        rf"<MemoryPointer 0x10200 device=0 mem={re.escape(repr(memory))}>", text
    )


def test_a_pointer_takes_its_device_from_its_memory(memory):
    memory.device_id = 3
    assert MemoryPointer(memory, 0).device_id == 3


@pytest.mark.parametrize("name", ["ptr", "mem", "device_id", "device"])
def test_a_pointer_cannot_be_written_to(memory, name):
    with pytest.raises(AttributeError):
        setattr(MemoryPointer(memory, 0), name, 0)


# ---- arithmetic ----


def test_a_sum_is_a_new_pointer_into_the_same_memory(memory):
    pointer = MemoryPointer(memory, 0)
    for moved in (pointer + 512, 512 + pointer, pointer + Index(), pointer - -512):
        assert type(moved) is MemoryPointer
        assert moved is not pointer
        assert (moved.ptr, moved.mem) == (0x10200, memory)
    assert (pointer + 512 - 512).ptr == pointer.ptr == 0x10000
    assert (pointer + True).ptr == 0x10001


def test_an_augmented_sum_moves_the_pointer_under_all_its_names(memory):
    pointer = alias = MemoryPointer(memory, 0)
    pointer += 1024
    assert pointer is alias
    assert alias.ptr == 0x10400
    alias -= 512
    assert pointer.ptr == 0x10200
    assert memory.ptr == 0x10000


def test_numpy_integers_are_offsets(memory):
    numpy = pytest.importorskip("numpy")
    pointer = MemoryPointer(memory, numpy.int64(0))
    assert (pointer + numpy.int32(512)).ptr == 0x10200
    assert (numpy.int64(512) + pointer).ptr == 0x10200
    pointer -= numpy.int8(16)
    assert pointer.ptr == 0xFFF0


def test_numpy_does_not_reckon_with_the_bytes_of_a_pointer(pool):
    numpy = pytest.importorskip("numpy")
    pointer = pool.malloc(512)
    assert (numpy.uint8(16) + pointer).ptr == pointer.ptr + 16
    assert (numpy.int64(3) == pointer) is False
    for reckon in (numpy.add, numpy.equal):
        with pytest.raises(TypeError, match="__array_ufunc__"):
            reckon(pointer, 1)


@pytest.mark.parametrize("other", [1.0, "1", None, b"1", [1]])
@pytest.mark.parametrize(
    "reckon", [operator.add, operator.sub, operator.iadd, operator.isub]
)
def test_what_is_no_integer_cannot_be_added(memory, reckon, other):
    pointer = MemoryPointer(memory, 0)
    with pytest.raises(TypeError):
        reckon(pointer, other)
    assert pointer.ptr == 0x10000


def test_pointers_cannot_be_added_to_or_taken_from_each_other(memory):
    pointer = MemoryPointer(memory, 0)
    for reckon in (operator.add, operator.sub, operator.iadd, operator.isub):
        with pytest.raises(TypeError):
            reckon(pointer, MemoryPointer(memory, 0))
    with pytest.raises(TypeError):
        512 - pointer


@pytest.mark.parametrize("offset", [2**63, 2**64, -(2**63) - 1, 10**30])
def test_an_offset_that_does_not_fit_says_so(memory, offset):
    pointer = MemoryPointer(memory, 0)
    for reckon in (operator.add, operator.sub, operator.iadd, operator.isub):
        with pytest.raises(OverflowError, match="offset"):
            reckon(pointer, offset)
    with pytest.raises(OverflowError, match="offset"):
        MemoryPointer(memory, offset)
    assert pointer.ptr == 0x10000


def test_a_pointer_does_not_leave_the_address_range(memory):
    pointer = MemoryPointer(memory, 0)
    for reckon, offset in (
        (operator.sub, 0x10001),
        (operator.add, -0x10001),
        (operator.isub, 0x10001),
        (operator.sub, -(2**63)),  # not even its opposite fits
        (operator.isub, -(2**63)),
    ):
        with pytest.raises(OverflowError):
            reckon(pointer, offset)
    memory.ptr = 2**64 - 512
    with pytest.raises(OverflowError):
        MemoryPointer(memory, 512)
    assert MemoryPointer(memory, 511).ptr == 2**64 - 1
    assert pointer.ptr == 0x10000


def test_offsets_beyond_the_memory_are_for_the_copies_to_judge(memory):
    assert (MemoryPointer(memory, 0) + 2**40).ptr == 0x10000 + 2**40


# ---- null ----


def test_a_null_pointer_takes_no_offset_but_0(null):
    assert null.ptr == (null + 0).ptr == (0 + null).ptr == (null - 0).ptr == 0
    for reckon in (operator.add, operator.sub, operator.iadd, operator.isub):
        for offset in (1, -1, 512):
            with pytest.raises(AssertionError):
                reckon(null, offset)
    with pytest.raises(AssertionError):
        MemoryPointer(BaseMemory(), 1)
    assert null.ptr == 0


# ---- construction ----


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((), TypeError),
        ((BaseMemory(),), TypeError),
        ((BaseMemory(), 0, 0), TypeError),
        ((BaseMemory(), 0.0), TypeError),
        ((BaseMemory(), None), TypeError),
        ((0x1000, 0), TypeError),
        ((None, 0), TypeError),
    ],
)
def test_a_pointer_needs_memory_and_an_offset(arguments, error):
    with pytest.raises(error):
        MemoryPointer(*arguments)


def test_a_pointer_into_a_pointer_is_refused(memory):
    with pytest.raises(TypeError, match="BaseMemory"):
        MemoryPointer(MemoryPointer(memory, 0), 0)


def test_a_pointer_is_initialised_once(memory):
    pointer = MemoryPointer(memory, 0)
    with pytest.raises(RuntimeError, match="once"):
        pointer.__init__(memory, 512)
    assert pointer.ptr == 0x10000


@pytest.mark.parametrize("kind", [MemoryPointer, PinnedMemoryPointer])
@pytest.mark.sim_only  # where memory can be looked at
def test_a_pointer_is_initialised_once_also_by_its_offset(pool, kind):
    """The offset's own code makes it, and looks at it, before the call that asks."""
    malloc = pool.malloc if kind is MemoryPointer else gpumem.alloc_pinned_memory
    first, second = malloc(4096), malloc(4096)

    class Offset:
        def __init__(self, made, mem):
            self.made, self.mem, self.views = made, mem, []

        def __index__(self):
            self.made.__init__(self.mem, 0)
            self.views.append(memoryview(self.made))
            return 8

    made = kind.__new__(kind)
    offset = Offset(made, first.mem)
    with pytest.raises(RuntimeError, match="once"):
        made.__init__(second.mem, offset)
    assert (made.mem, made.ptr) == (first.mem, first.ptr)
    offset.views.pop().release()


def test_a_pointer_that_was_never_initialised_is_of_no_use():
    pointer = MemoryPointer.__new__(MemoryPointer)
    assert pointer.ptr == 0
    repr(pointer)
    with pytest.raises(AttributeError):
        pointer.mem  # noqa: B018
    with pytest.raises(ValueError):
        pointer + 0
    with pytest.raises(ValueError):
        pointer.memset(0, 1)
    with pytest.raises(TypeError):
        testing.placement(pointer)
    with pytest.raises(ValueError, match="not initialized"):
        gpumem.MemoryPool(lambda size: pointer).malloc(1)


def test_a_pointer_can_be_subclassed(memory):
    class Place(MemoryPointer):
        def __init__(self, mem, offset, name):
            super().__init__(mem, offset)
            self.name = name

    place = Place(memory, 512, "here")
    assert (place.ptr, place.name) == (0x10200, "here")
    assert type(place + 512) is MemoryPointer  # as built in types do it
    place += 512
    assert (type(place), place.ptr) == (Place, 0x10400)


# ---- what it keeps ----


def test_a_pointer_keeps_its_memory(pool):
    pointer = pool.malloc(4096)
    middle = pointer + 2048
    del pointer
    assert pool.used_bytes() == 4096
    del middle
    assert pool.used_bytes() == 0


def test_the_memory_of_a_pointer_is_one_object_from_first_to_last(pool):
    pointer = pool.malloc(5000)
    start = pointer.ptr
    pointer += 512  # before anybody asked for the memory
    memory = pointer.mem
    assert (memory.ptr, memory.size, pointer.ptr) == (start, 5120, start + 512)
    assert pointer.mem is memory
    assert (pointer + 1).mem is memory
    del pointer
    assert pool.used_bytes() == 5120
    memory.free()
    assert (memory.ptr, pool.used_bytes()) == (0, 0)


def test_threads_that_ask_at_once_get_the_same_memory(pool, in_threads):
    for _ in range(50):
        pointer = pool.malloc(512)
        asked = in_threads(4, lambda number, p=pointer: p.mem)
        assert all(memory is asked[0] for memory in asked)
        del asked, pointer
        assert pool.used_bytes() == 0


def test_a_pointer_from_a_pool_is_initialised_already(pool, memory):
    pointer = pool.malloc(512)
    with pytest.raises(RuntimeError, match="once"):
        pointer.__init__(memory, 0)
    assert pointer.mem.size == 512
    del pointer
    assert pool.used_bytes() == 0


def test_the_collector_sees_a_pointer_only_where_it_may_be_in_a_cycle(pool):
    class Own(BaseMemory):
        pass

    for pointer in (pool.malloc(1), gpumem.malloc(1), pool.malloc(0)):
        assert not gc.is_tracked(pointer)
        assert not gc.is_tracked(pointer + 0)
    assert gc.is_tracked(MemoryPointer(Own(), 0))


def test_a_cycle_through_a_pointer_is_collected():
    class Own(gpumem.Memory):
        pass

    memory = Own(4096)
    memory.pointer = MemoryPointer(memory, 512)
    memory.moved = memory.pointer + 512
    alive = weakref.ref(memory)
    del memory
    assert alive() is not None
    gc.collect()
    assert alive() is None


def test_a_dead_pointer_is_not_seen_in_a_new_one(pool):
    """Dead pointers are kept for reuse; nothing of the old one may show."""
    for _ in range(3):
        pointers = [pool.malloc(512) + 8 * i for i in range(300)]
        assert len({pointer.ptr for pointer in pointers}) == 300
        assert all(pointer.mem.size == 512 for pointer in pointers)
        del pointers
    assert pool.used_bytes() == 0
