# SPDX-License-Identifier: MIT
"""Limits and sizes as people write and read them: "8GiB", "50%", 7.00 GiB.

Sizes are read where the environment's are, in the extension; a limit may be a share of
the device's memory besides.
"""

import re
from fractions import Fraction

from gpumem._core import _SIZE_FORMS, _parse_size

LIMIT_FORMS = f"{_SIZE_FORMS}, or a share of the device's memory as 50%"

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_PERCENT = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?%")


def parse_limit(text: str) -> dict[str, int | float]:
    """The keyword argument of `MemoryPool.set_limit` that `text` means; ValueError says
    what is wrong with the text."""
    match = _PERCENT.fullmatch(text)
    if match is not None:
        share = Fraction(match[1]) / 100
        if share > 1:
            raise ValueError(
                f"{text!r} is more than the device has; expected 0% to 100%"
            )
        return {"fraction": float(share)}
    try:
        return {"size": _parse_size(text)}
    except OverflowError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError(f"{text!r} is not a limit; expected {LIMIT_FORMS}") from error


def format_bytes(size: int) -> str:
    """`size` in the largest unit that keeps it at one or more: 512 B, 7.00 GiB."""
    unit = "B"
    for name, factor in _UNITS.items():
        if size >= factor:
            unit = name
    if unit == "B":
        return f"{size} B"
    return f"{size / _UNITS[unit]:.2f} {unit}"
