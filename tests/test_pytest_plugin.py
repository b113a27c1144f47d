# SPDX-License-Identifier: MIT
"""pytest_gpumem, in pytest runs of its own: limits, peaks, leaks."""

import tomllib
from pathlib import Path

import pytest

import gpumem

ROOT = Path(gpumem.__path__[0]).parent

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.sim_only

HEAD = """
import gpumem, pytest, threading, unittest
pool = gpumem.MemoryPool()
kept = []
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs a file of tests in a process of its own; returns the result."""
    monkeypatch.setenv("GPUMEM_BACKEND", "sim")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("CI", "BUILD_NUMBER"):  # with which pytest tells each failure twice
        monkeypatch.delenv(name, raising=False)

    def run(tests, *options):
        pytester.makepyfile(HEAD + tests)
        return pytester.runpytest_subprocess(
            *("-p", "pytest_gpumem", "--strict-markers", "-p", "no:cacheprovider"),
            *options,
        )

    return run


def lines_of(result):
    return "\n".join(result.outlines)


# ---- nothing is used ----


def test_a_run_that_uses_nothing_loads_nothing(run, pytester):
    pytester.makepyfile(
        test_bare="""
import sys

def test_nothing():
    assert "pytest_gpumem" in sys.modules
    assert not any(name.partition(".")[0] == "gpumem" for name in sys.modules)
"""
    )
    run("", "test_bare.py").assert_outcomes(passed=1)


def test_the_marker_is_told_of(run):
    result = run("", "--markers")
    assert "@pytest.mark.limit_gpu_memory(size, device=None)" in lines_of(result)


# ---- the limit ----


def test_more_than_the_limit_fails_with_numbers_and_lines(run):
    result = run(
        """
@pytest.mark.limit_gpu_memory("100 KiB")
def test_it():
    first = pool.malloc(60 << 10)
    more = []
    for _ in range(2):
        more.append(pool.malloc(30 << 10))
    del first
    more.clear()
    pool.malloc(512)
"""
    )
    result.assert_outcomes(failed=1)
    text = lines_of(result)
    assert (
        "122,880 bytes of GPU memory in use at once on device 0, 20,480 more than the "
        "limit of 102,400:" in text
    )
    assert "61,440 bytes in 1 from" in text and "61,440 bytes in 2 from" in text
    assert ".py:7 in test_it" in text and ".py:10 in test_it" in text


@pytest.mark.parametrize("limit", ['"120 KiB"', "120 << 10", '"1 GiB", device=0'])
def test_what_is_within_the_limit_passes(run, limit):
    result = run(
        f"""
before = pool.malloc(10 << 20)
@pytest.mark.limit_gpu_memory({limit})
def test_it():
    for _ in range(5):
        pointers = [pool.malloc(60 << 10) for _ in range(2)]
        del pointers
"""
    )
    result.assert_outcomes(passed=1)


def test_memory_of_threads_counts(run):
    result = run(
        """
@pytest.mark.limit_gpu_memory(1024)
def test_it():
    thread = threading.Thread(target=lambda: pool.malloc(2048))
    thread.start()
    thread.join(60)
"""
    )
    result.assert_outcomes(failed=1)
    assert "2,048 bytes in 1 from" in lines_of(result)


@pytest.mark.parametrize("wrong", ["", "'1 QiB'", "'40%'", "1, 2, 3", "None, size=1"])
def test_a_marker_that_makes_no_sense_is_a_failure(run, wrong):
    result = run(f"@pytest.mark.limit_gpu_memory({wrong})\ndef test_it(): pass")
    result.assert_outcomes(failed=1)
    assert "limit_gpu_memory: " in lines_of(result)


def test_a_test_that_fails_itself_says_why(run):
    result = run(
        """
@pytest.mark.limit_gpu_memory(512)
def test_it():
    pool.malloc(4096)
    raise KeyError("its own")

@pytest.mark.limit_gpu_memory(512)
@pytest.mark.xfail(strict=True, reason="known")
def test_expected():
    pool.malloc(4096)

@pytest.mark.limit_gpu_memory(512)
def test_skipped():
    pytest.skip("now")
"""
    )
    result.assert_outcomes(failed=1, xfailed=1, skipped=1)
    text = lines_of(result)
    assert "its own" in text and "more than the limit" not in text


def test_unittest_cases_are_tests_too(run):
    result = run(
        """
class Case(unittest.TestCase):
    @pytest.mark.limit_gpu_memory(512)
    def test_more(self):
        pool.malloc(4096)

    @pytest.mark.limit_gpu_memory(512)
    def test_own(self):
        pool.malloc(4096)
        self.fail("its own")

    @pytest.mark.limit_gpu_memory(4096)
    def test_less(self):
        pool.malloc(4096)
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    assert lines_of(result).count("more than the limit of 512") == 1


# ---- the table ----


def test_the_table_has_the_peak_of_each_test(run):
    result = run(
        """
def test_small():
    for _ in range(3): pool.malloc(1024)

def test_large():
    a, b = pool.malloc(1 << 20), pool.malloc(1 << 20)

def test_none():
    pass

def test_fails():
    pool.malloc(2048)
    raise ValueError
""",
        "--gpumem",
    )
    result.assert_outcomes(passed=3, failed=1)
    at = result.outlines.index
    rows = [line.split() for line in result.outlines if " bytes  " in line]
    name = "test_the_table_has_the_peak_of_each_test.py::test_"
    assert rows == [
        ["2,097,152", "bytes", name + "large"],
        ["2,048", "bytes", name + "fails"],
        ["1,024", "bytes", name + "small"],
    ]
    assert at("3 tests took some, 1 none")


def test_without_the_option_there_is_no_table(run):
    result = run("def test_it(): pool.malloc(512)")
    result.assert_outcomes(passed=1)
    assert "GPU memory" not in lines_of(result)


def test_the_table_gathers_what_other_processes_ran(run):
    pytest.importorskip("xdist")
    result = run(
        "@pytest.mark.parametrize('n', range(1, 5))\n"
        "def test_it(n): pool.malloc(n * 512)",
        *("-p", "xdist", "-n", "2", "--gpumem"),
    )
    result.assert_outcomes(passed=4)
    assert sum(" bytes  " in line for line in result.outlines) == 4


# ---- leaks ----


def test_memory_that_a_test_leaves_fails_it_with_the_lines(run):
    result = run(
        """
def keep(size):
    kept.append(pool.malloc(size))

def test_it(gpumem_leak_check):
    keep(1024)
    keep(512)
    pool.malloc(4096)

def test_next():
    pass
"""
    )
    result.assert_outcomes(passed=2, errors=1)
    text = lines_of(result)
    assert "ERROR at teardown of test_it" in text
    assert "the test left 1,536 bytes of GPU memory in use:" in text
    assert "1,536 bytes in 2 from" in text and ".py:6 in keep" in text


def test_what_goes_with_the_test_is_no_leak(run):
    result = run(
        """
@pytest.fixture(scope="module")
def shared():
    return pool.malloc(1024)

@pytest.fixture
def own():
    return pool.malloc(512)

@pytest.fixture
def given_back():
    pointer = pool.malloc(512)
    yield
    pointer.mem.free()

pytestmark = pytest.mark.usefixtures("gpumem_leak_check")

def test_it(shared, own, given_back):
    cycle = [pool.malloc(512)]
    cycle.append(cycle)

class TestClass:
    def test_it(self, own):
        self.pointer = pool.malloc(512)

class Case(unittest.TestCase):
    def setUp(self):
        self.pointer = pool.malloc(512)

    def test_it(self):
        self.other = pool.malloc(512)
"""
    )
    result.assert_outcomes(passed=3)


def test_a_test_that_failed_is_not_looked_at(run):
    result = run(
        """
@pytest.fixture
def breaks():
    kept.append(pool.malloc(512))
    raise ValueError("in setup")

@pytest.fixture
def breaks_later():
    yield
    raise ValueError("in teardown")

def test_it(gpumem_leak_check):
    pointer = pool.malloc(512)
    assert False, "its own"

def test_setup(gpumem_leak_check, breaks): pass
def test_teardown(gpumem_leak_check, breaks_later): pass
def test_fine(gpumem_leak_check): pass
"""
    )
    result.assert_outcomes(failed=1, passed=2, errors=2)
    assert "GPU memory in use" not in lines_of(result)


def test_hooks_are_left_as_they_were(run):
    result = run(
        """
class Hook(gpumem.MemoryHook):
    name, told = "mine", 0
    def malloc_postprocess(self, **event): Hook.told += 1

gpumem.add_process_hook(Hook())

@pytest.mark.limit_gpu_memory("1 MiB")
def test_it(gpumem_leak_check): pool.malloc(512)

def test_after():
    assert Hook.told == 1
    with pytest.raises(KeyError): gpumem.add_process_hook(Hook())
""",
        "--gpumem",
    )
    result.assert_outcomes(passed=2)


def test_the_plugin_is_an_entry_point():
    file = ROOT / "pyproject.toml"
    if not file.is_file():
        pytest.skip("needs the source tree")
    project = tomllib.loads(file.read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"gpumem": "pytest_gpumem"}
