# SPDX-License-Identifier: MIT
"""gpumem.testing: what it reports of the simulated device, which failures it makes."""

import re
import threading
from pathlib import Path

import pytest

import gpumem
from gpumem import testing

UNIT = 512


@pytest.fixture
def pointer(pool):
    return pool.malloc(UNIT)


# ---- on every device ----


def test_a_placement_is_the_segment_and_the_offset(pool):
    pool.malloc(4 * UNIT)
    first, second, third = (pool.malloc(n * UNIT) for n in (1, 2, 8))
    assert testing.placement(first) == (0, 0)
    assert testing.placement(second) == (0, 512)
    assert testing.placement(second + 100) == (0, 512)
    assert testing.placement(third) == (1, 0)


def test_a_sound_pool_passes(pool):
    assert testing.check_pool(pool) is None
    pointer = pool.malloc(UNIT)
    assert testing.check_pool(pool) is None
    assert testing.check_pool(pointer.mem.pool()) is None


@pytest.mark.parametrize(
    ("size", "rounded"),
    [(0, 0), (1, 512), (512, 512), (513, 1024), (2**64 - 512, 2**64 - 512)],
)
def test_sizes_are_rounded_up_to_units(pool, size, rounded):
    assert testing.unit_size == 512
    assert testing.round_size(size) == rounded
    if 0 < size <= 1024:
        assert pool.malloc(size).mem.size == rounded


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, OverflowError),
        (2**64 - 511, OverflowError),
        pytest.param(10**5000, OverflowError, id="long"),
        (1.5, TypeError),
        (None, TypeError),
    ],
)
def test_what_is_no_size_is_not_rounded(size, error):
    with pytest.raises(error):
        testing.round_size(size)


def test_the_last_error_is_clean():
    assert testing.last_error() == 0


@pytest.mark.gpu
def test_the_simulated_device_is_not_asked_on_a_gpu():
    for ask in (testing.ledger, testing.call_log().__enter__):
        with pytest.raises(RuntimeError, match="simulated"):
            ask()
    with pytest.raises(RuntimeError, match="simulated"):
        with testing.fail("mem_alloc"):
            pass


# ---- the ledger ----


@pytest.mark.sim_only
def test_the_ledger_has_what_was_taken():
    start = testing.ledger()
    memory, stream, event = gpumem.malloc(1000), gpumem.Stream(), gpumem.Event()
    memory.memset_async(0, 1000, stream)
    now = testing.ledger()
    assert now.allocations == start.allocations + 1
    assert now.bytes == start.bytes + 1000
    assert now.streams == start.streams + 1
    assert now.events == start.events + 1
    assert now.pending == start.pending + 1
    assert now.errors == start.errors
    assert now.peak_bytes >= 1000
    stream.synchronize()
    assert testing.ledger().pending == start.pending
    del memory, stream, event
    assert testing.ledger()[:-1] == start[:-1]


@pytest.mark.sim_only
@pytest.mark.misuse
def test_the_ledger_counts_misuse():
    start = testing.ledger().errors
    stray = gpumem.BaseMemory()
    stray.ptr, stray.size = 0x1000, 512
    with pytest.raises(gpumem.CUDARuntimeError) as caught:
        gpumem.MemoryPointer(stray, 0).memset(0, 512)
    assert caught.value.status == 1
    assert testing.ledger().errors == start + 1


# ---- the call log ----


@pytest.mark.sim_only
def test_the_log_has_the_calls_in_their_order():
    with testing.call_log() as calls:
        pointer = gpumem.malloc(1000)
        address = pointer.ptr
        pointer.memset(1, 500)
        assert calls == []
        del pointer
    asked = {"device_get", "device_incarnation", "device_push"}
    calls = [call for call in calls if call.name not in asked]
    assert [(c.name, c.ptr, c.size, c.status) for c in calls] == [
        ("mem_alloc", address, 1000, 0),
        ("set", address, 500, 0),
        ("mem_free", address, calls[-1].size, 0),
    ]
    assert {call.device for call in calls} == {gpumem.get_device_id()}


@pytest.mark.sim_only
def test_the_log_is_kept_where_the_block_raises_and_begins_anew():
    with pytest.raises(ZeroDivisionError):
        with testing.call_log() as calls:
            gpumem.malloc(1)
            raise ZeroDivisionError
    assert "mem_alloc" in [call.name for call in calls]
    with testing.call_log() as calls:
        pass
    assert calls == []


@pytest.mark.sim_only
def test_a_log_inside_a_log_takes_nothing_from_it():
    device = gpumem.Device()
    with testing.call_log() as outer:
        device.synchronize()
        with testing.call_log() as inner:
            gpumem.Stream().synchronize()
        device.synchronize()
    names = [call.name for call in outer if call.name.endswith("synchronize")]
    assert names == ["device_synchronize", "stream_synchronize", "device_synchronize"]
    assert inner == outer[outer.index(inner[0]) :][: len(inner)]


@pytest.mark.sim_only
@pytest.mark.misuse
def test_the_log_has_the_runtimes_error_numbers(pointer):
    stream, stray = gpumem.Stream(non_blocking=True), gpumem.BaseMemory()
    stray.ptr, stray.size = 0x1000, 512
    pointer.memset_async(1, 1, stream)
    with testing.call_log() as calls:
        assert not stream.done
        for failing in (
            lambda: gpumem.malloc(1 << 50),
            lambda: gpumem.MemoryPointer(stray, 0).memset(0, 512),
        ):
            with pytest.raises(gpumem.CUDARuntimeError):
                failing()
    found = {call.name: call.status for call in calls if call.status}
    assert found == {"stream_query": 600, "mem_alloc": 2, "set": 1}
    stream.synchronize()


# ---- injected failures ----


def outcomes(count):
    """Which of `count` raw requests fail, by status; 0 is success."""
    found = []
    for _ in range(count):
        try:
            gpumem.malloc(1)
            found.append(0)
        except gpumem.CUDARuntimeError as error:
            found.append(error.status)
    return found


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [2, 0, 0, 0, 0]),
        ({"nth": 3}, [0, 0, 2, 0, 0]),
        ({"nth": 2, "count": 2}, [0, 2, 2, 0, 0]),
        ({"nth": 4, "count": 0}, [0, 0, 0, 2, 2]),
        ({"code": 700}, [700, 0, 0, 0, 0]),
        ({"count": 9, "code": 1}, [1, 1, 1, 1, 1]),
    ],
)
def test_the_calls_that_were_named_fail_and_no_others(arguments, expected):
    with testing.fail("mem_alloc", **arguments):
        assert outcomes(5) == expected
    assert outcomes(5) == [0] * 5


@pytest.mark.sim_only
def test_any_call_can_be_made_to_fail(pointer):
    with testing.fail(None, code=1):
        with pytest.raises(gpumem.CUDARuntimeError):
            gpumem.Device().mem_info  # noqa: B018
    with testing.fail("mem_info"):
        pointer.memset(0, 1)  # another call


@pytest.mark.sim_only
def test_a_call_that_fails_does_not_reach_the_device():
    with testing.call_log() as calls:
        with testing.fail("mem_alloc", count=0):
            outcomes(3)
    assert [call for call in calls if call.name == "mem_alloc"] == []


@pytest.mark.sim_only
def test_failures_end_with_the_block_also_where_it_raises():
    with pytest.raises(ZeroDivisionError):
        with testing.fail("mem_alloc", count=0):
            raise ZeroDivisionError
    assert outcomes(1) == [0]


@pytest.mark.sim_only
def test_there_must_be_a_call_of_that_name():
    with pytest.raises(ValueError, match="no_such_call"):
        with testing.fail("no_such_call"):
            pass
    assert outcomes(1) == [0]


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"nth": 0}, ValueError),
        ({"nth": -1}, ValueError),
        ({"count": -1}, ValueError),
        ({"code": 0}, ValueError),
        ({"code": -2}, ValueError),
        ({"code": 10**6}, ValueError),
        ({"nth": 1.0}, TypeError),
        ({"code": None}, TypeError),
        ({"nth": 2**64}, ValueError),
        ({"count": 2**64}, ValueError),
    ],
)
def test_numbers_that_make_no_plan(arguments, error):
    with pytest.raises(error):
        with testing.fail("mem_alloc", **arguments):
            pass
    assert outcomes(1) == [0]
    with testing.fail("mem_alloc"):
        assert outcomes(2) == [2, 0]


@pytest.mark.sim_only
def test_one_plan_at_a_time():
    with testing.fail("mem_alloc", nth=2):
        with pytest.raises(RuntimeError, match="already"):
            with testing.fail("copy"):
                pass
        assert outcomes(3) == [0, 2, 0]


# ---- peers ----


@pytest.mark.sim_only
@pytest.mark.two_devices
def test_who_reaches_whom_is_said_for_each_direction():
    def taken(device):
        with gpumem.Device(device):
            return gpumem.malloc(UNIT)

    def enabled(source, target):
        """Whether a copy lets the source's device reach the target's."""
        with testing.call_log() as calls:
            taken(target).copy_from_device(taken(source), UNIT)
        pairs = [(c.device, c.ptr) for c in calls if c.name == "peer_enable"]
        assert pairs in ([], [(source, target)])
        return bool(pairs)

    assert enabled(0, 1) and enabled(1, 0)
    testing.set_peer(0, 1, False)
    try:
        assert not enabled(0, 1)
        assert enabled(1, 0)
    finally:
        testing.set_peer(0, 1, True)
    assert enabled(0, 1)
    with pytest.raises(ValueError, match="itself"):
        testing.set_peer(1, 1, False)
    for pair in ((0, 99), (99, 0), (-1, 0)):
        with pytest.raises(ValueError, match="device"):
            testing.set_peer(*pair, False)
    with pytest.raises(TypeError):
        testing.set_peer("0", 1, False)


# ---- what a device can do ----


@pytest.mark.sim_only
def test_an_ability_is_taken_and_given_back():
    memory = gpumem.malloc_managed(UNIT).mem
    memory.prefetch(gpumem.Stream(null=True))
    with testing.without("concurrent_managed", "memory_pools"):
        with pytest.raises(RuntimeError, match="prefetch"):
            memory.prefetch(gpumem.Stream(null=True))
        with testing.without("managed"):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                gpumem.malloc_managed(UNIT)
        assert caught.value.status == 801
        gpumem.malloc_managed(UNIT)
    memory.prefetch(gpumem.Stream(null=True))


@pytest.mark.sim_only
def test_an_ability_or_a_device_that_is_not_there():
    with pytest.raises(ValueError, match="flying.*memory_pools"):
        with testing.without("flying"):
            pass
    with pytest.raises(ValueError, match="device"):
        with testing.without("managed", device=99):
            pass


@pytest.mark.sim_only
def test_memory_by_page_is_an_ability_and_its_calls_have_names():
    start = testing.ledger()
    assert (start.reservations, start.handles, start.mappings) == (0, 0, 0)
    assert (start.reserved_bytes, start.handle_bytes, start.mapped_bytes) == (0, 0, 0)
    assert start.faults == 0
    with testing.without("virtual_memory"):
        gpumem.malloc(UNIT)  # needs none of it
    for name in ("reserve", "unreserve", "create", "release", "map", "unmap"):
        with testing.fail("vm_" + name), testing.slow_calls("vm_" + name, 0):
            pass
    assert testing.ledger()[:-1] == start[:-1]


@pytest.mark.sim_only
def test_pools_are_made_with_handles_of_their_own():
    assert testing.make_memory_pool() != testing.make_memory_pool()
    with pytest.raises(ValueError, match="device"):
        testing.make_memory_pool(99)


# ---- streams that are held ----


@pytest.fixture
def held(pointer):
    """A stream with work that sets the pointer's first byte to 1."""
    stream = gpumem.Stream(non_blocking=True)
    pointer.memset(0, UNIT)
    with testing.hold_stream(stream):
        pointer.memset_async(1, 1, stream)
        yield stream
    stream.synchronize()


@pytest.mark.sim_only
def test_a_held_stream_does_nothing(held, pointer):
    event = gpumem.Event()
    event.record(held)
    for _ in range(3):
        assert not held.done and not event.done
    with pytest.raises(ValueError, match="held"):
        with testing.hold_stream(held):
            pass


@pytest.mark.sim_only
def test_its_holder_does_not_hang(held):
    event = gpumem.Event()
    event.record(held)
    for wait in (held.synchronize, event.synchronize, gpumem.Device().synchronize):
        with pytest.raises(gpumem.CUDARuntimeError, match="StreamHeld") as caught:
            wait()
        assert caught.value.status == 10001


@pytest.mark.sim_only
def test_other_threads_wait_for_its_release(pointer):
    stream, done = gpumem.Stream(non_blocking=True), threading.Event()

    def wait():
        stream.synchronize()
        done.set()

    thread = threading.Thread(target=wait, daemon=True)
    with testing.hold_stream(stream):
        pointer.memset_async(1, 1, stream)
        thread.start()
        assert not done.wait(0.05)
    assert done.wait(30)
    thread.join(30)


@pytest.mark.sim_only
@pytest.mark.misuse
def test_a_stream_that_is_not_there_cannot_be_held():
    stream = gpumem.Stream()

    class Dead:
        ptr = stream.ptr

    del stream
    with pytest.raises(gpumem.CUDARuntimeError) as caught:
        with testing.hold_stream(Dead):
            pass
    assert caught.value.status == 400


# ---- calls that take long ----


@pytest.mark.sim_only
def test_a_slow_call_stops_nobody_else():
    """It would sleep for an hour: it ends since this thread runs on and says so."""
    thread = threading.Thread(target=gpumem.malloc, args=(1,), daemon=True)
    with testing.slow_calls("mem_alloc", 3600):
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        assert gpumem.Device().mem_info
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.sim_only
def test_a_shorter_sleep_inside_a_longer_one_ends_alone():
    with testing.slow_calls("mem_alloc", 3600):
        with testing.slow_calls("mem_alloc", 0):
            gpumem.malloc(1)
        thread = threading.Thread(target=gpumem.malloc, args=(1,), daemon=True)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.sim_only
@pytest.mark.parametrize(
    ("name", "seconds"), [("device_get", 1), ("none", 1), ("copy", -1), ("copy", 1e9)]
)
def test_what_cannot_be_slow(name, seconds):
    with pytest.raises(ValueError):
        with testing.slow_calls(name, seconds):
            pass


# ---- faults and resets ----


@pytest.mark.sim_only
def test_a_sticky_fault_is_in_every_call():
    stream, event = gpumem.Stream(), gpumem.Event()
    with testing.sticky_fault(719):
        for call in (
            lambda: gpumem.malloc(1),
            lambda: gpumem.Device().mem_info,
            stream.synchronize,
            event.record,
        ):
            with pytest.raises(gpumem.CUDARuntimeError) as caught:
                call()
            assert caught.value.status == 719
    gpumem.malloc(1)
    for bad in ({"device": 99}, {"code": 0}, {"code": -1}):
        with pytest.raises(ValueError):
            with testing.sticky_fault(**bad):
                pass


@pytest.mark.sim_only
def test_the_first_fault_sticks():
    with testing.sticky_fault(719):
        with pytest.raises(ValueError, match="first"):
            with testing.sticky_fault(700):
                pass
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            gpumem.malloc(1)
        assert caught.value.status == 719
    gpumem.malloc(1)


@pytest.mark.sim_only
def test_a_reset_ends_what_was_there_and_the_fault(script):
    done = script(
        """
import gpumem
from gpumem import testing
assert not testing.device_context_created()
kept = gpumem.malloc(1000)
assert testing.device_context_created()
with testing.sticky_fault():
    testing.reset_device()
    assert not testing.device_context_created()
    assert testing.ledger().allocations == 0
    gpumem.malloc(1)
    assert testing.device_context_created()
kept.mem.ptr = 0
""",
        GPUMEM_BACKEND="sim",
    )
    assert done.returncode == 0, done.stderr


# ---- other programs ----


@pytest.mark.sim_only
def test_others_hold_memory_until_they_do_not():
    free, total = gpumem.Device().mem_info
    testing.set_others(total - 10 * UNIT)
    try:
        assert gpumem.Device().mem_info[1] == total
        assert gpumem.Device().mem_info[0] <= 10 * UNIT
        with pytest.raises(gpumem.CUDARuntimeError) as caught:
            gpumem.malloc(11 * UNIT)
        assert caught.value.status == 2
    finally:
        testing.set_others(0)
    assert gpumem.Device().mem_info == (free, total)
    for size, device in ((total + 1, 0), (-1, 0), (0, 99)):
        with pytest.raises(ValueError):
            testing.set_others(size, device)


@pytest.mark.sim_only
def test_handles_are_used_once_where_that_is_asked_for():
    def handle():
        return gpumem.Stream().ptr

    with testing.recycle_handles(False):
        assert len({handle() for _ in range(10)}) == 10
        with testing.recycle_handles(True):
            assert handle() == handle()
        assert handle() != handle()
    assert handle() == handle()


@pytest.mark.sim_only
def test_an_error_of_somebody_else_stays():
    testing.set_last_error(719)
    try:
        with pytest.raises(gpumem.CUDARuntimeError):
            gpumem.malloc(1 << 50)
        assert testing.last_error() == 719
    finally:
        testing.set_last_error(0)


# ---- managed memory ----


@pytest.mark.sim_only
def test_managed_memory_says_what_is_known_of_it():
    memory = gpumem.malloc_managed(UNIT).mem
    stream = gpumem.Stream(non_blocking=True)
    assert testing.managed_state(memory.ptr) == (None, False, None, frozenset())
    memory.advise(1, 0)  # mostly read
    memory.advise(3, -1)  # best on the host
    memory.advise(5, -1)  # used by the host
    memory.advise(5, 0)  # and by the device
    memory.prefetch(stream)
    assert testing.managed_state(memory.ptr).location is None
    stream.synchronize()
    known = testing.managed_state(memory.ptr + UNIT - 1)
    assert known == (0, True, -1, frozenset({-1, 0}))
    with pytest.raises(ValueError, match="managed"):
        testing.managed_state(gpumem.malloc(1).ptr)


# ---- the page about it ----

PAGE = Path(__file__).resolve().parent.parent / "docs" / "simulated-device.md"


@pytest.mark.sim_only
@pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree beside tests/")
def test_the_examples_of_the_page_pass(script, tmp_path):
    page = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    file = tmp_path / "test_page.py"
    file.write_text("\n".join(examples), encoding="utf-8")
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    done = script(
        f"import pytest, sys; sys.exit(pytest.main({arguments!r}))",
        GPUMEM_BACKEND="sim",
    )
    count = len(re.findall(r"^def test_", page, re.MULTILINE))
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
