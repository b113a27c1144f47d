# SPDX-License-Identifier: MIT
"""Device: a value with a number, and the current device of each thread."""

import copy
import ctypes
import operator
import sys
import threading

import pytest

import gpumem
from gpumem import Device, get_device_count, get_device_id, testing


@pytest.fixture(autouse=True)
def current_device_kept():
    """Every test starts on device 0 and leaves the current device as it found it."""
    Device(0).use()
    yield
    assert get_device_id() == 0


@pytest.fixture
def in_thread(in_threads):
    """What a function returns, or raises, when another thread runs it."""
    return lambda function: in_threads(1, lambda _: function())[0]


# ---- as a value ----


def test_a_device_is_made_from_its_number_or_another_device_or_the_current_one():
    assert Device(0).id == 0
    assert Device(device=0).id == 0
    assert Device(Device(0)).id == 0
    assert Device().id == Device(None).id == get_device_id()


def test_every_device_that_is_counted_can_be_named():
    devices = [Device(number) for number in range(get_device_count())]
    assert [device.id for device in devices] == list(range(get_device_count()))
    assert all(isinstance(device.name, str) and device.name for device in devices)


@pytest.mark.parametrize("number", [-1, -(2**31), 10_000])
def test_a_number_without_a_device_is_named_in_the_error(number):
    last = get_device_count() - 1
    with pytest.raises(ValueError, match=rf"\b{last}\b.*{number}\b"):
        Device(number)


@pytest.mark.parametrize("wrong", [1.0, 0.0, "0", b"0", [], object()])
def test_what_is_no_integer_is_no_device(wrong):
    with pytest.raises(TypeError, match=type(wrong).__name__):
        Device(wrong)


def test_anything_with_an_index_is_an_integer():
    class Number:
        def __index__(self):
            return 0

    assert Device(Number()).id == 0


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="number"):
        Device(number=0)
    with pytest.raises(TypeError, match="at most 1"):
        Device(0, 0)


@pytest.mark.two_devices
def test_equal_numbers_are_equal_devices():
    assert Device(0) == Device(0) and not Device(0) != Device(0)
    assert Device(0) != Device(1) and not Device(0) == Device(1)
    assert len({Device(0), Device(0), Device(1)}) == 2
    assert Device(0) < Device(1) <= Device(1) and Device(1) > Device(0)
    assert sorted([Device(1), Device(0)]) == [Device(0), Device(1)]
    assert not Device(1) < Device(0) and Device(1) >= Device(0)


def test_a_device_is_not_its_number():
    assert Device(0) != 0
    with pytest.raises(TypeError):
        operator.lt(Device(0), 1)


def test_a_device_can_stand_where_its_number_is_wanted():
    assert int(Device(0)) == 0
    assert operator.index(Device(0)) == 0
    assert "ab"[Device(0)] == "a"


def test_repr_names_type_and_number():
    assert repr(Device(0)) == "<gpumem.Device 0>"


def test_a_device_cannot_be_changed():
    with pytest.raises(AttributeError):
        Device(0).id = 1
    with pytest.raises(TypeError):
        Device.id = 1


def test_a_subclass_keeps_its_own_arguments_and_the_behaviour():
    class Named(Device):
        def __new__(cls, device, label):
            self = super().__new__(cls, device)
            self.label = label
            return self

    named = Named(0, "first")
    assert (named.id, named.label) == (0, "first")
    assert named == Device(0) and hash(named) == hash(Device(0))
    with named as entered:
        assert entered is named


@pytest.mark.two_devices
def test_copies_do_not_come_to_be_another_device():
    with pytest.raises(TypeError):
        copy.copy(Device(1))


def test_the_type_is_not_leaked():
    before = sys.getrefcount(Device)
    for _ in range(100):
        Device(0)
    assert sys.getrefcount(Device) == before


# ---- the current device ----


@pytest.mark.two_devices
def test_a_thread_starts_on_device_0(in_thread):
    with Device(1):
        assert in_thread(get_device_id) == 0


@pytest.mark.two_devices
def test_use_is_for_good_and_for_this_thread(in_thread):
    def use():
        Device(1).use()
        return get_device_id(), Device()

    assert in_thread(use) == (1, Device(1))
    assert get_device_id() == 0


@pytest.mark.two_devices
def test_what_a_thread_was_told_of_its_device_does_not_outlast_a_change(in_thread):
    pool = gpumem.MemoryPool()

    def work():
        asked = [get_device_id(), pool.malloc(512).device_id]
        for number in (1, 0):
            Device(number).use()
            asked += [pool.malloc(512).device_id for _ in range(2)]
        with Device(1):
            asked.append(pool.malloc(512).device_id)
        return [*asked, get_device_id()]

    assert in_thread(work) == [0, 0, 1, 1, 0, 0, 1, 0]


@pytest.mark.two_devices
def test_with_goes_back_and_nests():
    with Device(1) as first:
        assert first == Device(1)
        with Device(0):
            assert get_device_id() == 0
            with Device(1):
                assert get_device_id() == 1
            assert get_device_id() == 0
        assert get_device_id() == 1
    assert get_device_id() == 0


@pytest.mark.two_devices
def test_with_goes_back_after_an_error_and_lets_it_pass():
    with pytest.raises(KeyError, match="mine"):
        with Device(1):
            raise KeyError("mine")
    assert get_device_id() == 0


@pytest.mark.two_devices
def test_with_goes_back_although_use_was_called_inside():
    Device(1).use()
    with Device(0):
        Device(1).use()
        Device(0).use()
    assert get_device_id() == 1
    Device(0).use()


@pytest.mark.two_devices
def test_one_object_can_be_entered_twice():
    device = Device(1)
    with device:
        with Device(0):
            with device:
                assert get_device_id() == 1
            assert get_device_id() == 0
        assert get_device_id() == 1
    assert get_device_id() == 0


@pytest.mark.two_devices
def test_one_object_can_be_entered_by_two_threads_at_once():
    device = Device(1)
    both_inside = threading.Barrier(2, timeout=30)
    one_left = threading.Event()
    seen = {}

    def stay_longer():
        Device(1).use()
        with device:
            both_inside.wait()
            one_left.wait(30)
            seen["inside"] = get_device_id()
        seen["after"] = get_device_id()

    thread = threading.Thread(target=stay_longer)
    thread.start()
    with device:
        both_inside.wait()
    seen["here"] = get_device_id()
    one_left.set()
    thread.join(60)
    assert not thread.is_alive()
    assert seen == {"here": 0, "inside": 1, "after": 1}


@pytest.mark.two_devices
def test_the_outer_of_two_may_be_left_first():
    outer, inner = Device(1), Device(0)
    Device(1).use()
    inner.__enter__()
    outer.__enter__()
    inner.__exit__(None, None, None)
    assert get_device_id() == 1  # the one entered later stays
    Device(0).use()
    outer.__exit__(None, None, None)
    assert get_device_id() == 1  # what was current before both
    Device(0).use()


def test_leaving_what_was_not_entered_is_an_error(in_thread):
    device = Device(0)
    with pytest.raises(RuntimeError, match="gpumem.Device 0"):
        device.__exit__(None, None, None)
    with device:
        with pytest.raises(RuntimeError, match="did not enter"):
            in_thread(lambda: device.__exit__(None, None, None))


@pytest.mark.sim_only
def test_a_device_that_cannot_be_used_is_not_entered():
    device = Device(0)
    with testing.fail("device_push", code=46):
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            device.__enter__()
    assert caught.value.status == 46
    with pytest.raises(RuntimeError, match="did not enter"):
        device.__exit__(None, None, None)


@pytest.mark.two_devices
def test_many_nested_scopes():
    devices = [Device(number % 2) for number in range(100)]
    for device in devices:
        device.__enter__()
    for device in reversed(devices):
        assert get_device_id() == device.id
        device.__exit__(None, None, None)
    assert get_device_id() == 0


# ---- asking it ----


@pytest.mark.sim_only
def test_mem_info_counts_what_is_taken():
    free, total = Device(0).mem_info
    memory = gpumem.malloc(1 << 20)
    assert Device(0).mem_info == (free - (1 << 20), total)
    del memory
    assert Device(0).mem_info == (free, total)


def test_mem_info_is_plausible():
    free, total = Device(0).mem_info
    assert 0 < free <= total


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_mem_info_is_of_this_device_and_not_of_the_current_one():
    before = [Device(number).mem_info[0] for number in (0, 1)]
    with Device(1):
        memory = gpumem.malloc(4096)
    assert [Device(number).mem_info[0] for number in (0, 1)] == [
        before[0],
        before[1] - 4096,
    ]
    del memory


@pytest.mark.two_devices
@pytest.mark.sim_only
def test_synchronize_waits_for_the_work_of_this_device_alone():
    host = ctypes.create_string_buffer(64)
    memories = []
    for number in (0, 1):
        with Device(number):
            memories.append(gpumem.malloc(64))
            memories[-1].copy_from_host_async(
                ctypes.addressof(host), 64, gpumem.Stream.null
            )
    pending = testing.ledger().pending
    Device(1).synchronize()
    assert testing.ledger().pending == pending - 1
    Device(0).synchronize()
    assert testing.ledger().pending == pending - 2


@pytest.mark.sim_only
def test_errors_of_the_runtime_come_out():
    for call, use in [
        ("device_synchronize", lambda: Device(0).synchronize()),
        ("mem_info", lambda: Device(0).mem_info),
        ("device_name", lambda: Device(0).name),
        ("device_set", lambda: Device(0).use()),
    ]:
        with testing.fail(call, code=999):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                use()
        assert caught.value.status == 999, call


# ---- by address ----


def test_an_address_says_whose_it_is():
    for number in range(gpumem.get_device_count()):
        with Device(number):
            memories = [gpumem.malloc(512), gpumem.MemoryPool().malloc(512) + 100]
        for memory in memories:
            device = Device.from_pointer(memory.ptr)
            assert device == Device(number) and type(device) is Device
    assert Device.from_pointer(gpumem.malloc_managed(512).ptr) == Device()


def test_an_address_that_is_of_no_device_is_refused():
    host = ctypes.create_string_buffer(64)
    with pytest.raises(ValueError, match="plain host memory"):
        Device.from_pointer(ctypes.addressof(host))
    with pytest.raises(ValueError, match="null pointer"):
        Device.from_pointer(0)
    with pytest.raises(TypeError, match="ptr must be an integer"):
        Device.from_pointer(gpumem.malloc(512).mem)
    with pytest.raises(OverflowError, match="ptr"):
        Device.from_pointer(-1)


def test_from_pointer_makes_objects_of_the_subclass():
    class Card(Device):
        pass

    assert type(Card.from_pointer(gpumem.malloc(512).ptr)) is Card
