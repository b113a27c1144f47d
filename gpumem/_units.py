# SPDX-License-Identifier: MIT
"""Sizes as people write and read them: "8GiB", "50%", 7.00 GiB.

The forms are those that the environment variables take. A fraction of a unit is allowed
and cut to whole bytes; bytes without a unit are whole.
"""

import re
from fractions import Fraction

SIZE_FORMS = (
    "a number of bytes, or a number followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB"
)
LIMIT_FORMS = f"{SIZE_FORMS}, or a share of the device's memory as 50%"

_BINARY = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_DECIMAL = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FACTORS = {name.upper(): factor for name, factor in (_BINARY | _DECIMAL).items()}
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"
_SIZE = re.compile(
    rf"{_NUMBER} ?([KMGT]i?B)|([0-9]{{1,20}})(?: ?B)?", re.IGNORECASE | re.ASCII
)
_PERCENT = re.compile(rf"{_NUMBER} ?%")
_LARGEST = (1 << 63) - 1


def parse_size(text: str) -> int:
    """Bytes meant by `text`; ValueError names the text and the accepted forms."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; expected {SIZE_FORMS}")
    size = int(Fraction(match[1] or match[3]) * _FACTORS[(match[2] or "B").upper()])
    if size > _LARGEST:
        raise ValueError(f"{text!r} is too large; the largest size is {_LARGEST} bytes")
    return size


def parse_limit(text: str) -> dict[str, int | float]:
    """The keyword argument of `MemoryPool.set_limit` that `text` means."""
    match = _PERCENT.fullmatch(text)
    if match is not None:
        share = Fraction(match[1]) / 100
        if share > 1:
            raise ValueError(
                f"{text!r} is more than the device has; expected 0% to 100%"
            )
        return {"fraction": float(share)}
    if _SIZE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a limit; expected {LIMIT_FORMS}")
    return {"size": parse_size(text)}


def format_bytes(size: int) -> str:
    """`size` in the largest unit that keeps it at one or more: 512 B, 7.00 GiB."""
    unit = "B"
    for name, factor in _BINARY.items():
        if size >= factor:
            unit = name
    if unit == "B":
        return f"{size} B"
    return f"{size / _BINARY[unit]:.2f} {unit}"
