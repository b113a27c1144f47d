# SPDX-License-Identifier: MIT
"""The programs of examples/ that need no GPU run, and print what they should."""

import os
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


def test_numpy_arrays_in_memory_of_a_pool():
    pytest.importorskip("numpy")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "numpy_view.py"],
        env={**os.environ, "PYTHONPATH": str(Path(gpumem.__path__[0]).parent)}
        | {"GPUMEM_BACKEND": "sim"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # 96 and 4000 bytes, in whole units of 512
    assert done.stdout == "before: 0\narrays: 4608 sum 66.0\nafter: 0\n"
