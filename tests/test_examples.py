# SPDX-License-Identifier: MIT
"""The programs in examples/ run, and print what they are to show. Those that are about
a library run where it is installed, and on a GPU."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs the source tree"),
]

# The libraries that one needs, and what it prints between "before: 0" and "after: 0".
OF_LIBRARIES = {
    "cupy_arrays.py": ("cupy", r"arrays: \d{7,8} \d+"),
    "torch_tensors.py": ("torch", r"tensors: 4194304 sum 1048576"),
    "numba_arrays.py": ("numba_cuda", r"arrays: 8388608 sum 549755289600"),
    "rmm_buffers.py": ("rmm", r"buffer: 1048576 sum 0"),
    "cuda_core_buffers.py": ("cuda.core", r"buffer: 1048576"),
}


def run(name, **environment):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, "PYTHONPATH": str(Path(gpumem.__path__[0]).parent)}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_every_example_is_run():
    there = {path.name for path in EXAMPLES.glob("*.py")}
    assert there == {*OF_LIBRARIES, "numpy_view.py"}


def test_numpy_arrays_in_memory_of_a_pool():
    pytest.importorskip("numpy")
    printed = run("numpy_view.py", GPUMEM_BACKEND="sim")
    # 96 and 4000 bytes, in whole units of 512
    assert printed == ["before: 0", "arrays: 4608 sum 66.0", "after: 0"]


def test_the_extension_in_c():
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    before, after, requests, error = run("c/run.py")
    assert before == "before: 0 MiB held"
    held = re.fullmatch(r"after:  (\d+) MiB held, 0 bytes in use", after)
    assert 2 <= int(held[1]) <= 8  # four threads, 2 MiB each, if all met
    counted = re.fullmatch(r"4000 requests, (\d) of the device", requests)
    assert int(counted[1]) == int(held[1]) // 2
    assert error.startswith("Out of memory: 2,097,152 bytes could not be allocated")


@pytest.mark.gpu
@pytest.mark.parametrize("name", OF_LIBRARIES)
def test_another_librarys_memory_in_a_pool(name):
    library, between = OF_LIBRARIES[name]
    try:
        found = importlib.util.find_spec(library)
    except ModuleNotFoundError:  # not even the package that it is in
        found = None
    if found is None:
        pytest.skip(f"{library} is not installed")
    before, arrays, after = run(name)
    assert (before, after) == ("before: 0", "after: 0")
    assert re.fullmatch(between, arrays)
