# SPDX-License-Identifier: MIT
"""show_config: what was built, and what is in use. get_include: where the header is."""

from __future__ import annotations

import os.path
import sys

from gpumem import _core
from gpumem._version import __version__

TYPE_CHECKING = False  # typing itself would take longer to import than all of this
if TYPE_CHECKING:
    from typing import TextIO


def _version(number: int) -> str:
    """1000 * major + 10 * minor as text; 0 is none."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else "none"


def config() -> dict[str, str]:
    """Returns what show_config prints, as a dictionary of texts. Opens no device."""
    facts = _core._config()
    built = facts["built_with_cuda"]
    return {
        "gpumem": __version__,
        "Python": sys.version.split()[0],
        "compiler": facts["compiler"].strip(),
        "built with CUDA": _version(facts["cuda_runtime_version"]) if built else "no",
        "CUDA toolkit": facts["cuda_toolkit"] or "none",
        "driver": _version(facts["driver_version"]),
        "CUDA devices": str(facts["cuda_devices"]),
        "backend in use": facts["backend"] or "not chosen yet",
        "devices in use": str(facts["devices"]),
    }


def show_config(file: TextIO | None = None) -> None:
    """Prints what was built and what is in use; opens no device.

    Args:
        file: where to print; sys.stdout if None.
    """
    facts = config()
    width = max(map(len, facts))
    for name, text in facts.items():
        print(f"{name:<{width}}  {text}", file=file)


def get_include() -> str:
    """Returns the folder with gpumem.h, for a C compiler's include path."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")
