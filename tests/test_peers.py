# SPDX-License-Identifier: MIT
"""Copies between devices: direct where the devices reach each other, right anyway."""

from itertools import permutations

import pytest

import gpumem
from gpumem import Device, Stream, testing

SIZE = 3000
PEERS_AT_MOST = 8  # that a device can reach at once
PEERS_EXHAUSTED = 711
UNSUPPORTED = 217

pytestmark = pytest.mark.two_devices

FORMS = pytest.mark.parametrize("form", ["plain", "async", "either", "either_async"])


def pattern(seed):
    return bytes((seed + 7 * i) % 256 for i in range(SIZE))


def filled(device, seed):
    with Device(device):
        pointer = gpumem.malloc(SIZE)
        pointer.copy_from_host(pattern(seed), SIZE)
    return pointer


def content(pointer):
    host = bytearray(SIZE)
    pointer.copy_to_host(host, SIZE)
    return bytes(host)


def copy(target, source, form):
    if form == "plain":
        target.copy_from_device(source, SIZE)
    elif form == "either":
        target.copy_from(source, SIZE)
    else:
        stream = Stream()
        way = target.copy_from_device_async
        if form == "either_async":
            way = target.copy_from_async
        way(source, SIZE, stream)
        stream.synchronize()


def about_peers(calls):
    return [
        (call.name, call.device, call.ptr)
        for call in calls
        if call.name.startswith("peer_")
    ]


@pytest.fixture
def refused():
    """Device 0 cannot reach device 1."""
    testing.set_peer(0, 1, False)
    yield
    testing.set_peer(0, 1, True)


@pytest.fixture
def forgotten():
    """Nothing was enabled yet between the two devices."""
    testing.set_peer(0, 1, True)
    testing.set_peer(1, 0, True)


# ---- on every machine with two devices ----


@FORMS
@pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("current", [0, 1])
def test_the_bytes_arrive_whatever_is_current(form, here, there, current):
    source, target = filled(here, 1), filled(there, 2)
    with Device(current):
        for _ in range(2):  # the second finds access enabled
            copy(target, source, form)
            assert content(target) == pattern(1)
            assert content(source) == pattern(1)
            assert gpumem.get_device_id() == current
            assert testing.last_error() == 0
            target.memset(0, SIZE)


def test_a_copy_within_a_device_stays_on_it():
    with Device(1):
        source, target = filled(1, 3), filled(1, 4)
    target.copy_from_device(source, SIZE)
    assert content(target) == pattern(3)
    assert gpumem.get_device_id() == 0


# ---- memory by page ----

PAGE = 2 << 20


@pytest.fixture
def paged():
    """A pool that maps by page."""
    return gpumem.MemoryPool(expandable_segments=True)


def blocks_of_pages(pool, device):
    """A block that was joined from pages that lay apart, and one that was not."""
    with Device(device):
        held = [pool.malloc(PAGE) for _ in range(8)]
        del held[::2]
        return pool.malloc(4 * PAGE), held[0]


def test_the_host_reaches_pages_whatever_is_current(paged):
    if gpumem.get_backend() == "sim":
        testing.set_peer(0, 1, True)  # nothing that was enabled helps
    for pointer in blocks_of_pages(paged, 1):
        assert gpumem.get_device_id() == 0
        pointer.copy_from_host(pattern(3), SIZE)
        assert content(pointer) == pattern(3)
        (pointer + 4096).copy_from_device(pointer, SIZE)
        assert content(pointer + 4096) == pattern(3)
        pointer.memset(9, SIZE)
        assert content(pointer) == bytes([9]) * SIZE


def is_refused(pointer, device):
    """Whether a kernel of that device may not touch the memory."""
    with Device(device):
        stream = Stream(non_blocking=True)
        try:
            pointer.memset_async(0, SIZE, stream)
        except gpumem.CUDARuntimeError as error:
            assert error.status == 1
            return True
        stream.synchronize()
        return False


@FORMS
@pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])
def test_pages_arrive_like_other_memory(paged, form, here, there):
    for source in (*blocks_of_pages(paged, here), filled(here, 1)):
        source.copy_from_host(pattern(1), SIZE)
        for target in (*blocks_of_pages(paged, there), filled(there, 2)):
            copy(target, source, form)
            assert content(target) == pattern(1)
            assert content(source) == pattern(1)
    assert gpumem.get_device_id() == 0


def test_who_may_copy_there_directly_reaches_pages_too(paged):
    """Those that are there, and those that are mapped later."""
    source = filled(0, 1)
    joined, single = blocks_of_pages(paged, 1)
    copy(joined, source, "plain")
    with Device(1):
        later = paged.malloc(3 * PAGE)
    for pointer in (joined, single, later):
        pointer.memset(255, SIZE)
        assert not is_refused(pointer, 0)
        assert content(pointer) == bytes(SIZE)


@pytest.mark.misuse
@pytest.mark.sim_only
@pytest.mark.usefixtures("forgotten")
def test_pages_are_closed_to_those_who_were_not_let_in(paged):
    joined, single = blocks_of_pages(paged, 1)
    assert is_refused(joined, 0)
    assert is_refused(single, 0)
    copy(joined, filled(0, 1), "plain")
    assert not is_refused(joined, 0)
    assert not is_refused(single, 0)


@pytest.mark.misuse
@pytest.mark.sim_only
@pytest.mark.usefixtures("refused")
def test_pages_arrive_where_nobody_can_be_let_in(paged):
    source = filled(0, 1)
    joined, single = blocks_of_pages(paged, 1)
    for target in (joined, single):
        copy(target, source, "plain")
        assert content(target) == pattern(1)
    assert is_refused(joined, 0)


# ---- what the device was asked ----


@pytest.mark.sim_only
@FORMS
@pytest.mark.usefixtures("forgotten")
def test_the_sources_device_is_let_reach_the_targets(form):
    source, target = filled(0, 1), filled(1, 2)
    asked = []
    for _ in range(2):
        with testing.call_log() as calls:
            copy(target, source, form)
        asked.append(about_peers(calls))
    assert asked == [[("peer_can_access", 0, 1), ("peer_enable", 0, 1)]] * 2


@pytest.mark.sim_only
@pytest.mark.usefixtures("forgotten")
def test_nothing_is_asked_within_a_device_or_for_no_bytes():
    here, also_here, there = filled(0, 1), filled(0, 2), filled(1, 3)
    with testing.call_log() as calls:
        also_here.copy_from_device(here, SIZE)
        there.copy_from_device(here, 0)
        there.copy_from_device_async(here, 0)
    assert about_peers(calls) == []


@pytest.mark.sim_only
@FORMS
@pytest.mark.usefixtures("refused")
def test_a_pair_that_cannot_reach_each_other_is_copied_all_the_same(form):
    source, target = filled(0, 1), filled(1, 2)
    for _ in range(2):
        with testing.call_log() as calls:
            copy(target, source, form)
        assert about_peers(calls) == [("peer_can_access", 0, 1)]
        assert content(target) == pattern(1)
        assert testing.last_error() == 0
        target.memset(0, SIZE)


@pytest.mark.sim_only
@pytest.mark.usefixtures("refused")
def test_the_two_directions_are_two_questions():
    source, target = filled(1, 1), filled(0, 2)
    with testing.call_log() as calls:
        target.copy_from_device(source, SIZE)
    assert about_peers(calls) == [("peer_can_access", 1, 0), ("peer_enable", 1, 0)]
    assert content(target) == pattern(1)


@pytest.mark.sim_only
@FORMS
@pytest.mark.parametrize("call", ["peer_can_access", "peer_enable"])
@pytest.mark.parametrize("code", [2, UNSUPPORTED, PEERS_EXHAUSTED, 999])
def test_a_failure_to_let_it_reach_is_no_failure_to_copy(form, call, code):
    source, target = filled(0, 1), filled(1, 2)
    with Device(1):
        with testing.fail(call, count=0, code=code):
            copy(target, source, form)
            assert gpumem.get_device_id() == 1
            assert testing.last_error() == 0
        assert content(target) == pattern(1)
    with testing.call_log() as calls:  # and it is tried again
        copy(target, source, form)
    assert ("peer_enable", 0, 1) in about_peers(calls)


@pytest.mark.sim_only
@pytest.mark.parametrize("call", ["copy_peer", "copy_peer_async"])
def test_a_failure_to_copy_is_told_and_the_device_restored(call):
    source, target = filled(0, 1), filled(1, 2)
    with Device(1):
        with testing.fail(call, code=700):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                copy(target, source, "async" if call.endswith("async") else "plain")
        assert caught.value.status == 700
        assert gpumem.get_device_id() == 1
    assert content(target) == pattern(2)


@pytest.mark.sim_only
def test_a_copy_after_it_was_taken_back_enables_it_again():
    source, target = filled(0, 1), filled(1, 2)
    copy(target, source, "plain")
    testing.set_peer(0, 1, True)  # what was enabled is forgotten
    with testing.call_log() as calls:
        copy(target, source, "plain")
    assert [call.status for call in calls if call.name == "peer_enable"] == [0]


# ---- more devices than can be reached ----

MANY = f"""
import itertools
import gpumem
from gpumem import Device, testing

COUNT, SIZE = 10, {SIZE}
assert gpumem.get_device_count() == COUNT

def pattern(seed):
    return bytes((seed + 7 * i) % 256 for i in range(SIZE))

def filled(device):
    with Device(device):
        pointer = gpumem.malloc(SIZE)
        pointer.copy_from_host(pattern(device), SIZE)
    return pointer

def content(pointer):
    host = bytearray(SIZE)
    pointer.copy_to_host(host, SIZE)
    return bytes(host)

refused = {{(0, 3), (5, 6), (6, 5)}}
for pair in refused:
    testing.set_peer(*pair, False)
sources = [filled(device) for device in range(COUNT)]
targets = [filled(device) for device in range(COUNT)]
first = None
for turn in range(2):
    outcomes = {{}}
    for here, there in itertools.permutations(range(COUNT), 2):
        for queued in (False, True):
            targets[there].memset(255, SIZE)
            with testing.call_log() as calls:
                if queued:
                    targets[there].copy_from_device_async(sources[here], SIZE)
                    gpumem.get_current_stream().synchronize()
                else:
                    targets[there].copy_from_device(sources[here], SIZE)
            assert content(targets[there]) == pattern(here), (here, there, queued)
            assert gpumem.get_device_id() == 0
            assert testing.last_error() == 0
            outcomes[here, there, queued] = [
                call.status for call in calls if call.name == "peer_enable"
            ]
    if first is None:
        first = outcomes
    assert outcomes == first
enabled = [0] * COUNT
for (here, there, queued), statuses in first.items():
    if (here, there) in refused:
        assert statuses == []
    else:
        assert len(statuses) == 1
        enabled[here] += statuses == [0] and not queued
print(enabled)
"""


@pytest.mark.sim_only
def test_every_pair_of_ten_devices_of_which_some_refuse_and_some_are_one_too_many(
    script,
):
    done = script(
        MANY, GPUMEM_BACKEND="sim", GPUMEM_SIM_DEVICES="10", GPUMEM_SIM_MEMORY="1GiB"
    )
    assert (done.returncode, done.stderr) == (0, "")
    # Nine others each, of which a device reaches eight at once; 0, 5 and 6 have eight
    # that do not refuse.
    assert len(list(permutations(range(10), 2))) == 90
    assert done.stdout == f"{[PEERS_AT_MOST] * 10}\n"
