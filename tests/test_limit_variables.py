# SPDX-License-Identifier: MIT
"""GPUMEM_MEMORY_LIMIT and CUPY_GPU_MEMORY_LIMIT: the limit of new pools."""

import re

import pytest

import gpumem
from gpumem import Device, MemoryPool, OutOfMemoryError, SingleDeviceMemoryPool, testing

OURS = "GPUMEM_MEMORY_LIMIT"
THEIRS = "CUPY_GPU_MEMORY_LIMIT"
KINDS = pytest.mark.parametrize("kind", [MemoryPool, SingleDeviceMemoryPool])

pytestmark = pytest.mark.usefixtures("no_limit")


@pytest.fixture
def no_limit(monkeypatch):
    for name in (OURS, THEIRS):
        monkeypatch.delenv(name, raising=False)


def share(numerator, denominator):
    return Device().mem_info[1] * numerator // denominator


@KINDS
@pytest.mark.parametrize("name", [OURS, THEIRS])
@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("123", 123),
        ("0", 0),
        ("1.5 kb", 1500),
        ("8GiB", 8 << 30),
        ("40%", lambda: share(4, 10)),
        ("12.5 %", lambda: share(1, 8)),
        (".5%", lambda: share(1, 200)),
        ("5.%", lambda: share(1, 20)),
        ("100%", lambda: share(1, 1)),
        ("0%", 0),
    ],
)
def test_a_new_pool_starts_with_the_limit_of_the_environment(
    monkeypatch, kind, name, text, limit
):
    monkeypatch.setenv(name, text)
    assert kind().get_limit() == (limit() if callable(limit) else limit)


@KINDS
def test_without_a_variable_there_is_no_limit(kind):
    assert kind().get_limit() == 0
    assert testing.parse_limit() == {"size": None, "fraction": None}


@KINDS
def test_a_pool_has_the_limit_before_and_after_its_first_request(monkeypatch, kind):
    monkeypatch.setenv(OURS, "1MiB")
    pool = kind()
    assert pool.get_limit() == pool.stats()["limit_bytes"] == 1 << 20
    pointer = pool.malloc(1 << 20)
    assert pool.get_limit() == pool.stats()["limit_bytes"] == 1 << 20
    del pointer


@KINDS
def test_a_pool_keeps_the_limit(monkeypatch, kind):
    monkeypatch.setenv(OURS, "4KiB")
    pool = kind()
    pointer = pool.malloc(3072)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.malloc(1025)  # in whole units 1536
    error = caught.value
    assert (error.size, error.rounded_size) == (1025, 1536)
    assert (error.total, error.limit) == (3072, 4096)
    rest = pool.malloc(1024)
    assert pool.total_bytes() == 4096
    del pointer, rest


@KINDS
def test_our_own_variable_stands_before_cupys(monkeypatch, kind):
    monkeypatch.setenv(THEIRS, "1KiB")
    monkeypatch.setenv(OURS, "2KiB")
    assert kind().get_limit() == 2048
    assert testing.parse_limit() == {"size": 2048, "fraction": None}
    monkeypatch.setenv(THEIRS, "nonsense")
    assert kind().get_limit() == 2048  # and CuPy's is not looked at


@KINDS
def test_our_own_variable_can_lift_the_limit_that_cupys_sets(monkeypatch, kind):
    monkeypatch.setenv(THEIRS, "1KiB")
    monkeypatch.setenv(OURS, "0")
    assert kind().get_limit() == 0


@KINDS
def test_the_variable_is_read_for_each_new_pool(monkeypatch, kind):
    monkeypatch.setenv(OURS, "1KiB")
    first = kind()
    small = first.malloc(1)
    monkeypatch.setenv(OURS, "2KiB")
    second = kind()
    monkeypatch.delenv(OURS)
    if kind is SingleDeviceMemoryPool:  # it is made at once
        assert second.get_limit() == 2048
    assert first.get_limit() == 1024
    assert kind().get_limit() == 0
    del small


@KINDS
def test_set_limit_stands_before_the_variable(monkeypatch, kind):
    monkeypatch.setenv(OURS, "1KiB")
    pool = kind()
    pool.set_limit(size=8192)
    pointer = pool.malloc(8192)
    assert pool.get_limit() == 8192
    pool.set_limit()
    assert pool.get_limit() == 0  # it does not come back
    del pointer


@pytest.mark.two_devices
def test_the_limit_is_of_every_device_and_set_limit_of_the_current_one(monkeypatch):
    monkeypatch.setenv(OURS, "4KiB")
    pool = MemoryPool()
    pool.set_limit(size=1024)
    with Device(1):
        assert pool.get_limit() == 4096
        pointer = pool.malloc(4096)  # and the other device's bytes count for nothing
        with pytest.raises(OutOfMemoryError):
            pool.malloc(1)
        del pointer
        pool.set_limit(size=512)
    assert pool.get_limit() == 1024


@pytest.mark.two_devices
def test_a_share_is_of_each_devices_own_memory(monkeypatch):
    monkeypatch.setenv(OURS, "25%")
    pool = MemoryPool()
    for number in (0, 1):
        with Device(number):
            assert pool.get_limit() == share(1, 4)


# ---- what is not accepted ----

NOT_LIMITS = ["", " ", "1e9", "1G", "-1", "+1", "0x10", "1 2", "8GiB/s", "half"]
NOT_LIMITS += [
    "%",
    ".%",
    "1.2.3%",
    "+1%",
    "-1%",
    "100.5%",
    "1e1%",
    "nan%",
    "5 0%",
    "99999999999999999999",
]


@pytest.mark.parametrize("name", [OURS, THEIRS])
@pytest.mark.parametrize("text", NOT_LIMITS)
def test_the_error_names_the_variable_the_text_and_the_forms(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    expected = (
        f"environment variable {name} is '{text}'; accepted: a number of bytes, or a "
        "number followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB, or a percentage from "
        "0% to 100%"
    )
    for call in (
        SingleDeviceMemoryPool,
        lambda: MemoryPool().malloc(1),
        lambda: MemoryPool().set_limit(size=1),
        lambda: MemoryPool().get_limit(),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
            call()


def test_a_bad_value_takes_nothing_and_can_be_mended(monkeypatch):
    pool = MemoryPool()
    monkeypatch.setenv(OURS, "much")
    with pytest.raises(ValueError, match=OURS):
        pool.malloc(512)
    assert (pool.used_bytes(), pool.total_bytes()) == (0, 0)
    monkeypatch.setenv(OURS, "1KiB")
    pointer = pool.malloc(512)
    assert pool.get_limit() == 1024
    del pointer


def test_memory_without_a_pool_has_no_limit(monkeypatch):
    monkeypatch.setenv(OURS, "512")
    assert gpumem.malloc(4096).mem.size == 4096
    monkeypatch.setenv(OURS, "nonsense")
    assert gpumem.malloc(4096).mem.size == 4096


# ---- as the parser alone ----


def test_a_limit_as_text_is_what_set_limit_takes(pool):
    for text, limit in [("4096", 4096), ("4KiB", 4096), ("50%", share(1, 2))]:
        pool.set_limit(**testing.parse_limit(text))
        assert pool.get_limit() == limit


def test_the_parser_reads_the_environment_where_it_is_given_no_text(monkeypatch):
    monkeypatch.setenv(THEIRS, "70.5%")
    assert testing.parse_limit() == {"size": None, "fraction": 0.705}
    monkeypatch.setenv(OURS, "lots")
    with pytest.raises(ValueError, match="^'lots' is not a limit; expected a number "):
        testing.parse_limit()
