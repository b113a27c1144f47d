# SPDX-License-Identifier: MIT
"""With more devices than one can reach at once, or where two do not reach each other, a
copy between them failed, or did something else when it was made again.
torch/cutorch#774, TF#14759, cupy#5379, https://github.com/cupy/cupy/issues/5379"""

import itertools

import pytest
from casekit import content, pattern, written

import gpumem
from gpumem import Device, Stream, testing

SIZE = 3000
REFUSED = [(0, 3), (3, 0), (5, 6), (6, 5), (8, 1)]
NOT_PERMITTED, INVALID_VALUE = 800, 1

WAYS = ("plain", "async", "either way")


def filled(device, seed):
    with Device(device):
        return written(gpumem.malloc(SIZE), SIZE, seed)


def copy(target, source, way):
    if way == "plain":
        target.copy_from_device(source, SIZE)
        return
    stream = Stream()
    if way == "async":
        target.copy_from_device_async(source, SIZE, stream)
    else:
        target.copy_from_async(source, SIZE, stream)
    stream.synchronize()


def copied(target, source, seed, way):
    """Copies, and looks at everything a copy must leave as it was. Returns what became
    of the attempts to reach the other device."""
    target.memset(0, SIZE)
    before = gpumem.get_device_id()
    with testing.call_log() as calls:
        copy(target, source, way)
    assert content(target, SIZE) == pattern(SIZE, seed)
    assert content(source, SIZE) == pattern(SIZE, seed)
    assert gpumem.get_device_id() == before
    assert testing.last_error() == 0
    return [call.status for call in calls if call.name == "peer_enable"]


def ten_devices():
    """Out and back between device 0 and each of the nine others, and between all the
    others too: every time as the first time."""
    for pair in REFUSED:
        testing.set_peer(*pair, False)
    count = gpumem.get_device_count()
    assert count == 10
    memories = [filled(device, device + 1) for device in range(count)]
    targets = [filled(device, 0) for device in range(count)]
    exhausted = 0
    for way in WAYS:
        outcomes = []
        for _ in range(2):
            outcomes.append({})
            pairs = [(0, n) for n in range(1, count)] + [
                (n, 0) for n in range(1, count)
            ]
            pairs += itertools.permutations(range(1, count), 2)
            for here, there in pairs:
                outcomes[-1][here, there] = copied(
                    targets[there], memories[here], here + 1, way
                )
        assert outcomes[0] == outcomes[1]
        for pair, statuses in outcomes[0].items():
            assert pair not in REFUSED or statuses == []
        exhausted += sum(any(statuses) for statuses in outcomes[0].values())
    assert exhausted > 0  # some are one too many


@pytest.mark.sim_only
def test_u52_ten_devices_of_which_eight_can_be_reached(apart):
    apart(ten_devices, devices=10, memory="64MiB")


@pytest.mark.two_devices
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("here", "there"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("current", [0, 1])
def test_u52_two_devices_time_and_again(way, here, there, current):
    """On real ones too, whether or not they reach each other."""
    source, target = filled(here, 1), filled(there, 2)
    with Device(current):
        for _ in range(3):
            target.memset(0, SIZE)
            copy(target, source, way)
            assert content(target, SIZE) == content(source, SIZE) == pattern(SIZE)
            assert gpumem.get_device_id() == current
            assert testing.last_error() == 0


@pytest.fixture
def forgotten():
    """Nothing was enabled yet; afterwards all is as it was."""
    for pair in ((0, 1), (1, 0)):
        testing.set_peer(*pair, True)
    yield
    for pair in ((0, 1), (1, 0)):
        testing.set_peer(*pair, True)


@pytest.mark.sim_only
@pytest.mark.two_devices
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("code", [INVALID_VALUE, NOT_PERMITTED])
def test_u52_a_failed_attempt_is_no_failed_copy_and_is_not_remembered(
    forgotten, way, code
):
    source, target = filled(0, 1), filled(1, 2)
    for _ in range(2):
        with testing.fail("peer_enable", code=code):
            copied(target, source, 1, way)
    assert 0 in copied(target, source, 1, way)  # it is tried again, and works


@pytest.mark.sim_only
@pytest.mark.two_devices
@pytest.mark.parametrize("way", WAYS)
def test_u52_access_that_is_there_already_is_no_error(forgotten, way):
    """Somebody else, or an earlier copy, made it; and somebody may take it away."""
    source, target = filled(0, 1), filled(1, 2)
    copied(target, source, 1, way)
    copied(target, source, 1, way)
    testing.set_peer(0, 1, False)
    assert copied(target, source, 1, way) == []
    testing.set_peer(0, 1, True)
    copied(target, source, 1, way)
