# SPDX-License-Identifier: MIT
"""The suite's surroundings: which device it runs on, and that each test leaves nothing.

GPUMEM_BACKEND chooses the device, the simulated one unless it says cuda. In this
process that one has two devices, so that what needs two is tested everywhere; programs
that the tests start get the default of one. A GPUMEM_SIM_DEVICES that is set stands.
"""

import functools
import gc
import itertools
import operator
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gpumem
from gpumem import testing
from own_functions import Books

MARKERS = {
    "gpu": "needs a real GPU: runs with GPUMEM_BACKEND=cuda",
    "sim_only": "looks into the simulated device, or injects failures into it",
    "two_devices": "needs two devices",
    "pageable": "needs a device that reads plain host memory",
    "once": "about the tree or placement: the same under every interpreter and build",
    "misuse": "has the device refuse a bad address or handle, which it counts",
}
WATCHDOG_SECONDS = 60

# Off in a free-threaded interpreter that was not told otherwise.
INTERPRETER_LOCK = getattr(sys.flags, "gil", 1) == 1


def open_backend():
    """Opens the device of this process."""
    os.environ.setdefault("GPUMEM_BACKEND", "sim")
    if "GPUMEM_SIM_DEVICES" in os.environ:
        return gpumem.get_backend()
    os.environ["GPUMEM_SIM_DEVICES"] = "2"
    try:
        return gpumem.get_backend()
    finally:
        del os.environ["GPUMEM_SIM_DEVICES"]


def pytest_addoption(parser):
    parser.addoption(
        "--gc-threshold",
        type=int,
        metavar="N",
        help="collect garbage after N new containers; 1 is as often as can be",
    )


def pytest_configure(config):
    threshold = config.getoption("gc_threshold")
    if threshold is not None:
        gc.set_threshold(threshold)
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    try:
        open_backend()
    except (RuntimeError, ValueError) as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header():
    devices = gpumem.get_device_count()
    return f"gpumem: {gpumem.get_backend()}, devices: {devices}"


def reaches_host_memory():
    """Whether the current device reads plain host memory."""
    try:
        gpumem.SystemMemory(1)
    except RuntimeError:
        return False
    return True


def pytest_collection_modifyitems(items):
    """Skips, with the reason, what this device cannot run. A parameter that names plain
    host memory stands for its marker."""
    for item in items:
        if re.search(r"\[.*(SystemMemory|malloc_system)", item.name):
            item.add_marker(pytest.mark.pageable)
    sim = gpumem.get_backend() == "sim"
    reasons = {
        "gpu": sim and "needs a GPU: set GPUMEM_BACKEND=cuda on a machine with one",
        "sim_only": not sim and "asks the simulated device for what it saw",
        "pageable": not reaches_host_memory() and "the device reads no host memory",
        "two_devices": gpumem.get_device_count() < 2 and "needs two devices",
    }
    for item in items:
        for name, reason in reasons.items():
            if reason and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if outcome.get_result().failed:
        item.gpumem_failed = True  # its traceback holds what it held


def has_interpreter_lock():
    return not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()


def held():
    """What the simulated device has given out and not got back."""
    found = testing.ledger()._asdict()
    del found["peak_bytes"], found["errors"], found["faults"]
    return found


def mistakes():
    """Bad addresses and handles that it was given, work that ran into nothing."""
    now = testing.ledger()
    return now.errors, now.faults


def more_held(before):
    """What is held now beyond `before`; less is what an earlier test lost."""
    return {name: n for name, n in held().items() if n > before[name]}


def synchronize_all():
    for number in range(gpumem.get_device_count()):
        gpumem.Device(number).synchronize()


def settle(test, before):
    """Ends what is left of a test by right: what its fixtures gave it, work that is
    still queued, the cycle of an exception it kept and its frame, work that the end of
    these queued."""
    test.funcargs.clear()
    synchronize_all()
    if more_held(before):
        gc.collect()
        synchronize_all()


@pytest.fixture(autouse=True, scope="module")
def little_to_collect():
    """What is there before a file's first test, imported libraries and earlier reports,
    outlives it: no collection need look at it. Those that tests ask for take a
    thirtieth of the time then, and they are most of the time of some files."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_left(request):
    """Each test begins without an allocator and ends as it began: nothing taken from
    the device, no fault of ours noticed by it, the collector, the interpreter lock and
    the thread's settings as they were."""
    gpumem.set_allocator(None)
    collecting = gc.isenabled()
    sim = gpumem.get_backend() == "sim"
    before, made = (held(), mistakes()) if sim else ({}, (0, 0))
    yield
    gpumem.set_allocator(None)
    if hasattr(request.node, "gpumem_failed"):
        return
    assert gc.isenabled() == collecting
    assert has_interpreter_lock() == INTERPRETER_LOCK
    assert gpumem.get_allocator() is gpumem.malloc
    assert testing.last_error() == 0
    if sim:
        settle(request.node, before)
        assert more_held(before) == {}
        if not request.node.get_closest_marker("misuse"):
            assert mistakes() == made


@pytest.fixture
def pool():
    """A new MemoryPool, whose invariants must hold at the end."""
    pool = gpumem.MemoryPool()
    yield pool
    testing.check_pool(pool)


@pytest.fixture
def unraisable(monkeypatch):
    """The exceptions that were reported out of destructors."""
    reports = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda report: reports.append(report.exc_value)
    )
    return reports


@pytest.fixture
def no_automatic_collection(unraisable):
    """So that what is still there was not collected yet; nothing may be reported."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if was_on:
        gc.enable()
    assert unraisable == []


@pytest.fixture
def books():
    """What functions of the test's own took and freed, which must come to nothing."""
    books = Books()
    yield books
    for _ in range(2):
        gc.collect()
    assert books.balanced()


@pytest.fixture
def script():
    """A function that runs Python code in an interpreter of its own, with the gpumem
    under test, and returns the CompletedProcess. Keywords are environment variables,
    None takes one away; `options` are the interpreter's."""
    root = Path(gpumem.__path__[0]).parent

    def run(code, *, options=(), timeout=WATCHDOG_SECONDS, **environ):
        environ = {**os.environ, "PYTHONPATH": str(root), **environ}
        return subprocess.run(
            [sys.executable, *options, "-c", code],
            env={name: text for name, text in environ.items() if text is not None},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def in_threads():
    """A function that runs `work(index)` in `count` threads at once, hands back what
    they returned, and raises what one raised; it fails where they do not come to an
    end in time."""

    def run(count, work):
        results = [None] * count
        errors = []
        start = threading.Barrier(count)

        def body(index):
            try:
                start.wait(WATCHDOG_SECONDS)
                results[index] = work(index)
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=body, args=(index,), daemon=True)
            for index in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WATCHDOG_SECONDS)
        assert not any(thread.is_alive() for thread in threads), "threads hang"
        if errors:
            raise errors[0]
        return results

    return run


@pytest.fixture
def lets_others_run():
    """A function that says whether other threads run during `call(*args)`, which must
    not be Python code.

    Functions in C alone make the calls one after the other and look at what the other
    thread does, so the interpreter has no other chance to switch than the calls.
    """
    turns = []
    stop = False

    def take_turns():
        while not stop:
            turns.append(None)

    def often(call):
        return map(operator.call, itertools.repeat(call, 10**6))

    def run(call, *args):
        calls = often(functools.partial(call, *args))
        look = turns.__len__
        watched = zip(often(look), calls, often(look), strict=True)
        before_and_after = map(operator.itemgetter(0, 2), watched)
        return any(itertools.starmap(operator.ne, before_and_after))

    thread = threading.Thread(target=take_turns, daemon=True)
    thread.start()
    yield run
    stop = True
    thread.join(WATCHDOG_SECONDS)
    assert not thread.is_alive()


@pytest.fixture
def drivers_pools():
    """Skips where there are no such pools; leaves the driver's as they were found."""
    try:
        before = [
            gpumem.MemoryAsyncPool()._pools,
            gpumem.MemoryAsyncPool("default")._pools,
        ]
    except RuntimeError as error:
        pytest.skip(str(error))
    yield
    gc.collect()
    for handles in (before[1], before[0]):
        pool = gpumem.MemoryAsyncPool(handles)
    for device in range(gpumem.get_device_count()):
        with gpumem.Device(device):
            gpumem.Device(device).synchronize()
            pool.set_limit()
            pool.free_all_blocks()
