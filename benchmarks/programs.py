# SPDX-License-Identifier: MIT
"""Programs beside the interpreter: the C benchmarks, how they are built and run."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Unavailable(RuntimeError):
    """This machine lacks what it takes, or a program failed; the text says which."""


def last_line(text: str) -> str:
    """The last line that a program said, cut to what a table bears."""
    return text.strip().rpartition("\n")[2][:160]


def run(
    words: list[str], timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a command in the repository and returns what it printed. Unavailable where
    it is not there or does not come to an end."""
    try:
        return subprocess.run(
            words,
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{words[0]}: {error}") from error


def build() -> None:
    """Builds the C programs. Unavailable where that fails."""
    if shutil.which("make") is None:
        raise Unavailable("make is not installed")
    jobs = f"-j{os.cpu_count() or 1}"
    done = run(["make", jobs, "bench-c", f"PYTHON={sys.executable}"], timeout=300)
    if done.returncode:
        raise Unavailable(f"make bench-c failed: {last_line(done.stderr)}")


def program(name: str) -> Path:
    """Where a C program lies once it was built."""
    return ROOT / "build" / "c" / "bench" / name


def figures(words: list[str], **environment: str) -> dict[str, Any]:
    """The JSON object that a program prints."""
    done = run(words, timeout=300, **environment)
    if done.returncode:
        raise Unavailable(f"{Path(words[0]).name}: {last_line(done.stderr)}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
