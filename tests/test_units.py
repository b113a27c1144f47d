# SPDX-License-Identifier: MIT
"""Sizes and limits as people write them, read to the byte, and sizes written."""

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem import _core
from gpumem._units import format_bytes, parse_limit

UNITS = {
    **{"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("123", 123),
        ("0123", 123),
        ("123B", 123),
        ("123 b", 123),
        ("8GiB", 8 * 1024**3),
        ("8 GiB", 8 * 1024**3),
        ("1.5KiB", 1536),
        ("0.1KiB", 102),
        ("2TiB", 2 * 1024**4),
        ("8gib", 8 * 1024**3),
        ("1GB", 10**9),
        ("1.5kb", 1500),
        ("1.5 tb", 15 * 10**11),
        (str(2**53 + 1), 2**53 + 1),  # no double
        ("8.2TB", 8_200_000_000_000),  # one less in doubles
        ("0.9999999999999999999999999KB", 999),
        (f"0.{'0' * 400}1TiB", 0),
        (f"{'0' * 400}1", 1),
        (str(LARGEST), LARGEST),
        ("8388607.99999999999999999999TiB", LARGEST),
    ],
)
def test_sizes_are_read(text, size):
    assert _core._parse_size(text) == size
    assert parse_limit(text) == {"size": size}


@given(
    whole=st.integers(0, 10**20),
    digits=st.text("0123456789", max_size=40),
    unit=st.sampled_from(sorted(UNITS)),
    upper=st.booleans(),
    space=st.booleans(),
)
def test_sizes_are_exact(whole, digits, unit, upper, space):
    number = f"{whole}.{digits}" if digits else str(whole)
    exact = int(Fraction(number) * UNITS[unit])
    text = number + " " * space + (unit.upper() if upper else unit.lower())
    if exact <= LARGEST:
        assert _core._parse_size(text) == exact
    else:
        with pytest.raises(OverflowError, match=f"'{re.escape(text)}' is too large"):
            _core._parse_size(text)


NOT_SIZES = [
    *("", " ", "GiB", "B", ".", "1G", "1PiB", "-1", "+1", "1e9", "0x10", "1_000"),
    *("1.5", "1.5B", "1.", "1.GiB", ".5GiB", "1..5GiB", "1.5.5GiB", "1,5GiB"),
    *(" 1", "1 ", "1  GiB", "1\tGiB", "1GiB ", "1GiBs", "1Gi", "1 G iB", "nan", "inf"),
    *(
        "1\0",
        "1GiB\0",
        "\u0661GiB",
        "1\u212aB",
        "1G\u0131B",
        "1\udcff",
        "1 \xa0GiB",
        "\u3131",
    ),
]


@pytest.mark.parametrize("text", NOT_SIZES, ids=ascii)
def test_other_sizes_are_refused(text):
    expected = f"{text!r} is not a size; expected {_core._SIZE_FORMS}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        _core._parse_size(text)
    expected = f"{text!r} is not a limit; expected {_core._LIMIT_FORMS}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        parse_limit(text)


@pytest.mark.parametrize("text", [b"1", 1, None])
def test_a_size_is_a_text(text):
    with pytest.raises(TypeError, match="a size is given as a str, not "):
        _core._parse_size(text)


@pytest.mark.parametrize("text", [b"1", 1])
def test_a_limit_is_a_text(text):
    with pytest.raises(TypeError, match="a limit is given as a str, not "):
        parse_limit(text)


@pytest.mark.parametrize(
    "text",
    [str(2**63), str(2**64), str(2**64 + 5), "9" * 400, "8388608TiB", "16777216TiB"],
)
def test_sizes_past_63_bits_are_refused(text):
    with pytest.raises(OverflowError, match=f"the largest size is {LARGEST} bytes"):
        _core._parse_size(text)
    with pytest.raises(ValueError, match=f"'{text}' is not a limit"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("50%", 0.5),
        ("70.5 %", 0.705),
        ("070.50%", 0.705),
        ("100%", 1.0),
        ("0%", 0.0),
        (".5%", 0.005),
        ("5.%", 0.05),
    ],
)
def test_shares_are_read(text, part):
    assert parse_limit(text) == {"fraction": part}


@pytest.mark.parametrize(
    "text",
    ["%", " %", "100.1%", "200%", "-1%", "+1%", "1e1%", "nan%", "inf%", ".%"]
    + [
        "1.2.3%",
        " 5%",
        "5%%",
        "5  %",
        "5% ",
        "5\t%",
        "0x1%",
        "5\0%",
        "٥%",
        "9" * 99 + "%",
    ],
    ids=ascii,
)
def test_other_shares_are_refused(text):
    expected = f"{text!r} is not a limit; expected {_core._LIMIT_FORMS}"
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (7516803784, "7.00 GiB"),
        (1 << 50, "1024.00 TiB"),
    ],
)
def test_sizes_are_written(size, text):
    assert format_bytes(size) == text
