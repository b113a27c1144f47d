# SPDX-License-Identifier: MIT
"""Limits and sizes as people write and read them: "8GiB", "50%", 7.00 GiB.

Both are read where the environment's are, in the extension.
"""

from gpumem import _core

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def parse_limit(text: str) -> dict[str, int | float]:
    """The keyword argument of `MemoryPool.set_limit` that `text` means; ValueError says
    what is wrong with the text."""
    limit = _core._parse_limit(text)
    return {name: value for name, value in limit.items() if value is not None}


def format_bytes(size: int) -> str:
    """`size` in the largest unit that keeps it at one or more: 512 B, 7.00 GiB."""
    unit = "B"
    for name, factor in _UNITS.items():
        if size >= factor:
            unit = name
    if unit == "B":
        return f"{size} B"
    return f"{size / _UNITS[unit]:.2f} {unit}"
