# SPDX-License-Identifier: MIT
"""CuPy, PyTorch, Numba and gpumem itself on one pool, in one process (together.py)."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "together.py"
LIBRARIES = ("cupy", "torch", "numba")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in LIBRARIES),
        reason="needs CuPy, PyTorch and Numba",
    ),
]


def run(seed, how):
    words = [sys.executable, str(PROGRAM), str(seed), how]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_one_wrote_the_others_read(seed):
    found = run(seed, "ordered")
    assert found["reads"] > 100
    assert found["wrong"] == {"order": [], "reuse": []}
    assert found["unaccounted"] == [0]
    assert {"cupy", "gpumem", "numba", "torch"} <= set(found["clients"])


def test_a_stream_that_is_missed_shows():
    """So that the test above can fail: the same without what makes the order."""
    wrong = run(1, "unordered")["wrong"]
    for writer in ("torch", "cupy", "numba", "gpumem"):
        assert any(pair.startswith(writer) for pair in wrong["order"])
    assert any(pair.startswith("torch") for pair in wrong["reuse"])
    assert any(pair.startswith("gpumem") for pair in wrong["reuse"])
