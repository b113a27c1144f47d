# SPDX-License-Identifier: MIT
"""`python -m gpumem` where its surroundings fail it: output that cannot be written, a
host without memory, names that are no text. One complaint, or none, and an exit code;
never a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem import _core

TRACE = "op,id,size,stream,us\na,0,2048,0,0\nf,0,2048,0,1\n"
FULL = "gpumem: cannot write the output: No space left on device\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture
def commands(trace):
    """Command lines that write to stdout, by name."""
    return {
        "info": ["info"],
        "info --json": ["info", "--json"],
        "replay": ["replay", trace],
        "replay --json": ["replay", trace, "--json"],
        "--help": ["--help"],
        "replay --help": ["replay", "--help"],
    }


WRITING = ("info", "info --json", "replay", "replay --json", "--help", "replay --help")


def run(words, options=(), shell="", environ=None, **streams):
    """`python -m gpumem` with `words` on the simulated device; `options` are the
    interpreter's, `shell` is a line that runs it as "$@"."""
    command = [sys.executable, *options, "-m", "gpumem", *map(os.fspath, words)]
    if shell:
        command = ["sh", "-c", shell, "sh", *command]
    root = str(Path(gpumem.__path__[0]).parent)
    base = {**os.environ, "PYTHONPATH": root, "GPUMEM_BACKEND": "sim"}
    base.pop("PYTHONUNBUFFERED", None)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(
        command, env={**base, **(environ or {})}, timeout=120, **streams
    )


@pytest.fixture
def broken_pipe():
    """A pipe to write to that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full():
    with open("/dev/full", "wb") as file:
        yield file


# ---- output that cannot be written ----


@pytest.mark.parametrize("name", WRITING)
def test_a_reader_that_left_is_not_told(commands, name, broken_pipe):
    done = run(commands[name], stdout=broken_pipe)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("name", WRITING)
def test_output_that_does_not_fit_is_one_complaint(commands, name, full):
    done = run(commands[name], stdout=full)
    assert (done.returncode, done.stderr.decode()) == (2, FULL)


def test_nor_does_it_matter_when_it_is_written(commands, broken_pipe, full):
    done = run(commands["replay"], ["-u"], stdout=broken_pipe)
    assert (done.returncode, done.stderr) == (141, b"")
    done = run(commands["replay"], ["-u"], stdout=full)
    assert (done.returncode, done.stderr.decode()) == (2, FULL)


@pytest.mark.parametrize("words", [["replay", "/nowhere/x"], ["replay"], ["nonsense"]])
def test_a_complaint_that_cannot_be_made_leaves_the_exit_code(words, full, broken_pipe):
    done = run(words, stderr=full)
    assert (done.returncode, done.stdout) == (2, b"")
    done = run(words, stderr=broken_pipe)
    assert done.returncode in (2, 141)
    assert done.stdout == b""


def test_neither_can_be_written(commands, full, broken_pipe):
    assert run(commands["info"], stdout=full, stderr=full).returncode == 2
    done = run(commands["info"], stdout=broken_pipe, stderr=broken_pipe)
    assert done.returncode == 141


def test_what_is_closed_is_not_written_to(trace):
    done = run(["replay", trace], shell='exec "$@" >&-')
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = run(["replay", trace], shell='exec "$@" 2>&-')
    assert done.returncode == 0
    assert b"2: 1 allocations" in done.stdout
    done = run(["replay", "/nowhere/x"], shell='exec "$@" 2>&-')
    assert (done.returncode, done.stdout) == (2, b"")


# ---- a host without memory ----


def test_a_host_without_memory_is_one_complaint(trace):
    for words in (["info"], ["replay", trace]):
        done = run(
            words,
            shell='ulimit -v 8000000; exec "$@"',
            environ={"GPUMEM_SIM_MEMORY": "64GiB"},
        )
        assert (done.returncode, done.stdout) == (1, b"")
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("gpumem: ")
        assert "the host has no memory left" in line


# ---- names that are no text ----


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8:strict", rb"tr\udcffc\u20ac.csv".replace(rb"\u20ac", "€".encode())),
        ("ascii:strict", rb"tr\udcffc\u20ac.csv"),
        ("utf-8:surrogateescape", b"tr\xffc" + "€.csv".encode()),
    ],
)
def test_a_name_that_is_no_text_is_shown_all_the_same(tmp_path, encoding, shown):
    name = b"tr\xffc" + "€.csv".encode()
    path = tmp_path / os.fsdecode(name)
    path.write_text(TRACE)
    utf8 = {"PYTHONUTF8": "1"}
    done = run(["replay", path], environ={**utf8, "PYTHONIOENCODING": encoding})
    assert done.stderr == b""
    assert done.returncode == 0
    assert done.stdout.split(b": pool on sim", 1)[0].endswith(b"/" + shown)
    missing = run(["replay", os.fsdecode(b"/nowhere/" + name)], environ=utf8)
    assert missing.returncode == 2
    assert missing.stderr.startswith(rb"gpumem: /nowhere/tr\udcffc")


# ---- what else used to be a traceback ----


def test_a_warning_that_is_an_error_is_one_complaint():
    facts = _core._config()
    if facts["built_with_cuda"] and facts["cuda_devices"] > 0:
        pytest.skip("this machine has a GPU, so nothing warns")
    done = run(["info"], ["-W", "error"], environ={"GPUMEM_BACKEND": "auto"})
    assert done.returncode == 2
    assert done.stderr.startswith(b"gpumem: gpumem uses the simulated device")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("variable", ["GPUMEM_MEMORY_LIMIT", "CUPY_GPU_MEMORY_LIMIT"])
@pytest.mark.parametrize("options", [[], ["--json"], ["--limit", "1GiB"], ["--verify"]])
def test_a_limit_variable_that_is_none_is_one_complaint(trace, variable, options):
    done = run(["replay", trace, *options], environ={variable: "abc"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(
        f"gpumem: environment variable {variable} is 'abc'; accepted: ".encode()
    )
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("GPUMEM_BACKEND", "gpu", 2),
        ("GPUMEM_SIM_DEVICES", "0", 2),
        ("GPUMEM_MEMORY_LIMIT", "abc", 2),
    ],
)
def test_info_says_what_it_can_when_a_variable_is_bad(variable, value, code):
    done = run(["info"], environ={variable: value})
    assert done.returncode == code
    assert b"built with CUDA" in done.stdout
    assert f"{variable}: '{value}'".encode() in done.stdout
    assert done.stderr.startswith(f"gpumem: environment variable {variable}".encode())


def test_info_says_what_was_built_where_there_is_no_device():
    facts = _core._config()
    if facts["built_with_cuda"] and facts["cuda_devices"] > 0:
        pytest.skip("this machine has a GPU")
    done = run(["info"], environ={"GPUMEM_BACKEND": "cuda"})
    assert done.returncode == 1
    assert b"built with CUDA" in done.stdout
    assert done.stderr.startswith(b"gpumem: ")


@pytest.mark.parametrize("text", ["9" * 5000, "1000001", "\u0663"])
def test_too_many_passes_are_one_complaint(trace, text):
    done = run(["replay", trace, "--repeat", text], environ={"PYTHONUTF8": "1"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.rstrip().endswith(
        b"is not a number of passes; expected 1 to 1000000"
    )
