# SPDX-License-Identifier: MIT
"""A pytest plugin: the GPU memory of tests, as far as it comes from gpumem's pools.

    @pytest.mark.limit_gpu_memory("100 MiB")   fails a test that has more in use at once
    pytest --gpumem                            lists the most that each test had
    def test_it(gpumem_leak_check): ...        fails a test that leaves some behind

It is outside of the package so that pytest, which loads each plugin that is installed,
loads nothing of gpumem in runs that use none of these.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    from gpumem._usage import Usage

    _Result = TypeVar("_Result")
    _Wrapper = Generator[None, _Result, _Result]

MARKER = "limit_gpu_memory"
PROPERTY = "gpumem_peak_bytes"

_failed = pytest.StashKey[bool]()
_watched = pytest.StashKey["Usage"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("gpumem").addoption(
        "--gpumem",
        action="store_true",
        help="list the most bytes of gpumem's pools that each test had in use at once",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(size, device=None): the most that the test may have in use at once "
        "of gpumem's pools on a device, as bytes or as text such as '100 MiB'; "
        "without a device on each",
    )
    if config.getoption("gpumem"):
        config.pluginmanager.register(_Summary(), "gpumem-summary")


def _start(lines: bool) -> Usage:
    from gpumem._usage import Usage

    usage = Usage(lines)
    usage.start()
    return usage


# ---- the limit, and the peaks of all tests ----


def _limit(marker: pytest.Mark) -> tuple[int, int | None]:
    """The marker's size and device."""
    from gpumem.testing import parse_limit

    def read(size: int | str, device: int | None = None) -> tuple[int, int | None]:
        if isinstance(size, str):
            found = parse_limit(size)["size"]
            if not isinstance(found, int):
                raise ValueError(f"{size!r} is no number of bytes")
            size = found
        return size, device

    try:
        return read(*marker.args, **marker.kwargs)
    except (TypeError, ValueError, OverflowError) as error:
        pytest.fail(f"{MARKER}: {error}", pytrace=False)


def _check_limit(usage: Usage, limit: int, device: int | None) -> None:
    for number, peak in sorted(usage.peaks().items()):
        if device in (None, number) and peak > limit:
            pytest.fail(
                f"{peak:,} bytes of GPU memory in use at once on device {number}, "
                f"{peak - limit:,} more than the limit of {limit:,}:\n"
                f"{usage.report_peak(number)}",
                pytrace=False,
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> _Wrapper[None]:
    marker = item.get_closest_marker(MARKER)
    if marker is None and not item.config.getoption("gpumem"):
        return (yield)
    limit = _limit(marker) if marker else None
    usage = _start(lines=limit is not None)
    try:
        result = yield
    finally:
        usage.stop()
        if item.config.getoption("gpumem"):
            item.user_properties.append((PROPERTY, sum(usage.peaks().values())))
    if limit is not None:
        _check_limit(usage, *limit)
    return result


class _Summary:
    """The table at the end. What a test had comes with its report, so that it arrives
    from other processes too."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, int):
                self.peaks[report.nodeid] = max(value, self.peaks.get(report.nodeid, 0))

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        rows = [(peak, test) for test, peak in self.peaks.items() if peak]
        terminalreporter.section("most GPU memory in use at once")
        for peak, test in sorted(rows, key=lambda row: (-row[0], row[1])):
            terminalreporter.line(f"{peak:>19,} bytes  {test}")
        idle = len(self.peaks) - len(rows)
        terminalreporter.line(f"{len(rows)} tests took some, {idle} none")


# ---- leaks ----


@pytest.fixture
def gpumem_leak_check(request: pytest.FixtureRequest) -> None:
    """Fails the test if memory of gpumem's pools that was allocated since is still in
    use when everything of the test has been torn down and garbage collected, and names
    the lines that asked for it. A test that failed anyhow is not looked at, since its
    traceback keeps what it had."""
    request.node.stash[_watched] = _start(lines=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> _Wrapper[pytest.TestReport]:
    report = yield
    if report.failed or call.excinfo is not None:
        item.stash[_failed] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> _Wrapper[None]:
    try:
        result = yield
        if _watched in item.stash and not item.stash.get(_failed, False):
            _check_leaks(item, item.stash[_watched])
    finally:
        if _watched in item.stash:
            item.stash[_watched].stop()
            del item.stash[_watched]
    return result


def _forget(item: pytest.Item) -> None:
    """Lets go of what pytest keeps of a test beyond its end: the values of its fixtures
    and, up to the end of the run, the object of its class."""
    if isinstance(item, pytest.Function):
        item.funcargs.clear()
        getattr(item.instance, "__dict__", {}).clear()


def _check_leaks(item: pytest.Item, usage: Usage) -> None:
    _forget(item)
    gc.collect()
    if usage.in_use():
        pytest.fail(
            f"the test left {usage.in_use():,} bytes of GPU memory in use:\n"
            f"{usage.report_in_use()}",
            pytrace=False,
        )
