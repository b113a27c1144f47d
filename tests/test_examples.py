# SPDX-License-Identifier: MIT
"""The programs in examples/ run, and print what they are to show."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="needs examples/ beside tests/"),
]


def run(name):
    root = str(Path(gpumem.__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


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
