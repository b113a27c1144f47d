# SPDX-License-Identifier: MIT
"""Which device is chosen: the environment's forms and faults, at first use and no
sooner, and falling back to the simulated device with one warning."""

import pytest

import gpumem
from gpumem import _core

FIRST_USE = "import gpumem; print('imported'); print(gpumem.get_backend())"
SIZE = """
import gpumem
print(gpumem.get_device_count(), gpumem.Device().mem_info[1])
"""
FORMS = (
    "a number of bytes, or a number followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB, "
    "from 1 byte to 16 TiB for all devices together"
)


@pytest.fixture(scope="module")
def cuda_works():
    """Whether this machine has a GPU that this build can use."""
    facts = _core._config()
    return facts["built_with_cuda"] and facts["cuda_devices"] > 0


def simulated(script, code, **environ):
    return script(code, **{"GPUMEM_BACKEND": "sim", **environ})


# ---- the simulated device's size ----


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (None, 80 << 30),
        ("2097152", 2 << 20),
        ("2097152B", 2 << 20),
        ("512KiB", 512 << 10),
        ("3MiB", 3 << 20),
        ("3 MiB", 3 << 20),
        ("3mib", 3 << 20),
        ("8GiB", 8 << 30),
        ("1TiB", 1 << 40),
        ("1.5GiB", 3 << 29),
        ("8KB", 8000),
        ("512MB", 512 * 10**6),
        ("8GB", 8 * 10**9),
        ("0.5TB", 5 * 10**11),
        ("1", 1),
        ("16TiB", 16 << 40),
    ],
)
def test_the_memory_is_as_large_as_the_environment_says(script, text, size):
    done = simulated(script, SIZE, GPUMEM_SIM_MEMORY=text)
    assert done.stderr == ""
    count, total = map(int, done.stdout.split())
    assert count == 1
    assert size <= total < size + (2 << 20)  # whole pages of the device


@pytest.mark.parametrize(("text", "count"), [(None, 1), ("1", 1), ("3", 3), ("16", 16)])
def test_there_are_as_many_devices_as_the_environment_says(script, text, count):
    done = simulated(script, SIZE, GPUMEM_SIM_DEVICES=text, GPUMEM_SIM_MEMORY="64MiB")
    assert (done.stderr, done.stdout.split()[0]) == ("", str(count))


@pytest.mark.parametrize(
    ("variable", "texts", "accepted"),
    [
        ("GPUMEM_BACKEND", ("", "CUDA", "gpu", "sim "), "auto, cuda or sim"),
        (
            "GPUMEM_SIM_DEVICES",
            ("", "0", "17", "-1", "+1", "two", "1.0", " 1", "1 ", "1,2", "99999999999"),
            "a whole number from 1 to 16",
        ),
        (
            "GPUMEM_SIM_MEMORY",
            ("", "0", "0.0009KB", "-1", "8G", "1e9", "1.5", "nan", "8GiB!", " 8GiB"),
            FORMS,
        ),
        # More than the device takes, than addresses go round, than 64 bits hold.
        (
            "GPUMEM_SIM_MEMORY",
            ("16.01TiB", "17592186044417", "1000TiB", "40000TiB", "99999999TiB"),
            FORMS,
        ),
    ],
)
def test_what_is_not_accepted_is_an_error_at_first_use(
    script, variable, texts, accepted
):
    code = """
import os, sys
import gpumem
pool = gpumem.MemoryPool()
for text in sys.argv[0] or VALUES:
    os.environ[VARIABLE] = text
    for use in (gpumem.get_backend, lambda: gpumem.malloc(1), lambda: pool.malloc(1)):
        try:
            use()
            print("used with", repr(text))
        except ValueError as error:
            for part in (VARIABLE, f"'{text}'", ACCEPTED):
                assert part in str(error), (part, str(error))
del os.environ[VARIABLE]
os.environ["GPUMEM_BACKEND"] = "sim"
print(gpumem.get_backend())
""".replace("sys.argv[0] or VALUES", "VALUES")
    values = f"VARIABLE, VALUES, ACCEPTED = {(variable, texts, accepted)!r}\n"
    done = simulated(script, values + code)
    assert done.stderr == ""
    assert done.stdout.split() == ["sim"]  # and nothing is kept of the failure


def test_the_devices_share_the_largest_size(script):
    code = "import gpumem; print([gpumem.Device(n).mem_info[1] for n in range(4)])"
    done = simulated(script, code, GPUMEM_SIM_DEVICES="4", GPUMEM_SIM_MEMORY="4TiB")
    assert (done.stderr, done.stdout) == ("", f"{[4 << 40] * 4}\n")
    done = simulated(script, code, GPUMEM_SIM_DEVICES="4", GPUMEM_SIM_MEMORY="4.1TiB")
    assert "ValueError: environment variable GPUMEM_SIM_MEMORY is '4.1TiB'" in (
        done.stderr
    )


def test_a_bad_value_is_no_reason_to_fail_an_import(script):
    done = script(FIRST_USE, GPUMEM_BACKEND="nonsense")
    assert done.stdout == "imported\n"
    assert done.returncode == 1
    assert (
        "ValueError: environment variable GPUMEM_BACKEND is 'nonsense'" in done.stderr
    )


def test_the_simulated_devices_variables_do_not_matter_elsewhere(script, cuda_works):
    if not cuda_works:
        pytest.skip("needs a GPU, to have another device than the simulated one")
    done = script(FIRST_USE, GPUMEM_BACKEND="cuda", GPUMEM_SIM_MEMORY="nonsense")
    assert (done.stderr, done.stdout.split()[-1]) == ("", "cuda")


# ---- the choice ----


def test_the_choice_is_made_once(script):
    code = """
import os, gpumem
before = gpumem.get_backend()
os.environ["GPUMEM_BACKEND"] = "nonsense"
os.environ["GPUMEM_SIM_DEVICES"] = "4"
print(before, gpumem.get_backend(), gpumem.get_device_count())
"""
    assert simulated(script, code).stdout.split() == ["sim", "sim", "1"]


def test_the_environment_counts_as_it_is_at_first_use(script):
    code = """
import os, gpumem
os.environ["GPUMEM_BACKEND"] = "sim"
os.environ["GPUMEM_SIM_DEVICES"] = "3"
print(gpumem.get_backend(), gpumem.get_device_count())
"""
    assert script(code, GPUMEM_BACKEND="nonsense").stdout.split() == ["sim", "3"]


def test_without_a_gpu_the_simulated_device_is_used_with_one_warning(
    script, cuda_works
):
    if cuda_works:
        pytest.skip("this machine has a GPU to use")
    code = FIRST_USE + "\ngpumem.malloc(1); gpumem.MemoryPool().malloc(1)"
    for text in (None, "auto"):
        done = script(code, options=("-W", "always"), GPUMEM_BACKEND=text)
        assert done.stdout.split() == ["imported", "sim"]
        warnings = [line for line in done.stderr.splitlines() if "Warning" in line]
        assert len(warnings) == 1
        assert "RuntimeWarning: gpumem uses the simulated device: " in warnings[0]
        assert "GPUMEM_BACKEND=sim" in warnings[0]


@pytest.mark.parametrize(
    "use",
    [
        "gpumem.malloc(1)",
        "gpumem.MemoryHook().__enter__()",
        "gpumem.using_allocator().__enter__()",
    ],
)
def test_the_warning_names_the_line_that_used_the_library(script, cuda_works, use):
    if cuda_works:
        pytest.skip("this machine has a GPU to use")
    code = f"import gpumem\n\n\n{use}"
    done = script(code, options=("-W", "always"), GPUMEM_BACKEND=None)
    assert done.stderr.startswith("<string>:4: RuntimeWarning: gpumem uses"), use


def test_the_command_line_tells_the_warning_as_its_own(script, cuda_works):
    if cuda_works:
        pytest.skip("this machine has a GPU to use")
    code = "import sys; from gpumem._cli import main; sys.exit(main(['info']))"
    done = script(code, GPUMEM_BACKEND=None)
    assert done.returncode == 0
    assert done.stderr.startswith("gpumem: gpumem uses the simulated device: ")
    assert done.stderr.count("\n") == 1


def test_choosing_the_simulated_device_warns_of_nothing(script):
    done = simulated(script, FIRST_USE)
    assert (done.stdout.split(), done.stderr) == (["imported", "sim"], "")


def test_the_warning_can_be_made_an_error_and_leaves_nothing_open(script, cuda_works):
    if cuda_works:
        pytest.skip("this machine has a GPU to use")
    code = """
import os, gpumem
for use in (gpumem.get_backend, lambda: gpumem.malloc(1), gpumem.MemoryPool().malloc):
    try:
        use(*([1] if use.__name__ == "malloc" else []))
    except RuntimeWarning as warning:
        print("warned")
os.environ["GPUMEM_BACKEND"] = "sim"
print(gpumem.get_backend(), gpumem.malloc(1).mem.size)
"""
    done = script(code, options=("-W", "error"), GPUMEM_BACKEND=None)
    assert (done.stderr, done.stdout.split()) == ("", ["warned"] * 3 + ["sim", "1"])


def test_cuda_that_is_not_there_is_an_error_and_never_a_simulation(script, cuda_works):
    if cuda_works:
        pytest.skip("this machine has a GPU to use")
    done = script(FIRST_USE, GPUMEM_BACKEND="cuda")
    assert (done.returncode, done.stdout) == (1, "imported\n")
    assert "RuntimeError: " in done.stderr
    assert "GPUMEM_BACKEND=sim" in done.stderr


@pytest.mark.gpu
def test_auto_takes_the_gpu_where_there_is_one(script):
    for text in (None, "auto", "cuda"):
        done = script(FIRST_USE, options=("-W", "error"), GPUMEM_BACKEND=text)
        assert (done.stderr, done.stdout.split()[-1]) == ("", "cuda")


def test_the_devices_are_as_many_as_are_counted():
    count = gpumem.get_device_count()
    assert count >= 1
    assert gpumem.Device(count - 1).mem_info[1] > 0
    expected = "must be 0, the only one" if count == 1 else f"from 0 to {count - 1}"
    for number in (-1, count, 2**31 - 1):
        with pytest.raises(ValueError, match=expected):
            gpumem.Device(number)


def test_one_device_is_not_called_a_range(script):
    code = """
import gpumem
try:
    gpumem.Device(5)
except ValueError as error:
    print(error)
"""
    done = simulated(script, code, GPUMEM_SIM_DEVICES="1")
    assert done.stdout == "device must be 0, the only one there is, not 5\n"


# ---- what is asked of the driver ----


def test_reading_the_configuration_opens_nothing(script):
    code = """
import gpumem
gpumem.show_config()
print(gpumem._config.config()["backend in use"])
"""
    done = script(code, GPUMEM_BACKEND="nonsense")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1] == "not chosen yet"
    assert "gpumem" in lines[0]


def test_memory_taken_while_the_warning_is_shown_stays_valid(script, cuda_works):
    if cuda_works:
        pytest.skip("this machine has a GPU to use")
    code = """
import warnings, gpumem
from gpumem import testing
kept = []
def show(*args, **kwargs):
    if not kept:
        kept.append(None)
        kept[0] = gpumem.MemoryPool().malloc(1 << 20)
warnings.showwarning = show
gpumem.get_backend()
print(testing.ledger().allocations)
kept.clear()
print(testing.ledger().allocations)
"""
    done = script(code, GPUMEM_BACKEND="auto")
    assert (done.stdout, done.stderr) == ("1\n0\n", "")
