# SPDX-License-Identifier: MIT
"""What the adaptors share."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpumem import _core

if TYPE_CHECKING:
    from typing import TypeAlias

    Pool: TypeAlias = _core.MemoryPool | _core.SingleDeviceMemoryPool


def load(name: str, library: str) -> Any:
    """Imports a module of `library`, or says what is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"this needs {library}, which cannot be imported: {error}",
            name=error.name,
            path=error.path,
        ) from error


def refuse_simulated(library: str) -> None:
    """Raises RuntimeError where gpumem uses the simulated device."""
    if _core.get_backend() == "sim":
        raise RuntimeError(
            f"{library} cannot use the memory of the simulated device, which gpumem "
            "uses here: there is no GPU, or GPUMEM_BACKEND says so"
        )
