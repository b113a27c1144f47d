# SPDX-License-Identifier: MIT
"""Where and with what something was measured. Needs the standard library alone."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

_PACKAGES = (
    *("torch", "rmm-cu13", "rmm-cu12", "cuda-core", "cuda-bindings"),
    *("numpy", "pytest", "hypothesis"),
)
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def ask(*words: str) -> str:
    """What a command prints, "" when there is no such command or it fails."""
    try:
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _commit() -> str:
    commit = ask("git", "rev-parse", "HEAD")
    if not commit:
        return "unknown"
    changed = ask("git", "status", "--porcelain", "--untracked-files=no")
    return commit + (" with changes" if changed else "")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    names = [line for line in text.splitlines() if line.startswith("model name")]
    return names[0].partition(":")[2].strip() if names else platform.processor()


def machine_facts(commit: str = "") -> dict[str, Any]:
    """The machine, the versions, the date, and the commit unless it is given."""
    gpus = ask("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    driver = ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    nvcc = ask("nvcc", "--version") or ask("/usr/local/cuda/bin/nvcc", "--version")
    facts = {
        "commit": commit or _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpus": gpus.splitlines(),
        "driver": driver.partition("\n")[0],
        "cuda toolkit": next((x for x in nvcc.splitlines() if "release" in x), ""),
        "python": platform.python_version(),
        "compiler": ask("gcc", "--version").partition("\n")[0],
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "processor": _processor(),
        "cupy": next((_version(name) for name in _CUPY if _version(name)), ""),
    }
    return facts | {package: _version(package) for package in _PACKAGES}
