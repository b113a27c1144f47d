# SPDX-License-Identifier: MIT
"""What came out of the build: its symbols, its needs, and what importing it costs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem import _core

CORE = _core.__file__
ROOT = Path(CORE).resolve().parent.parent


def run(*command, **environ):
    done = subprocess.run(
        command,
        env={**os.environ, "LC_ALL": "C", **environ},
        cwd=ROOT,  # not the checkout, which may hold another gpumem
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done


def python(*arguments):
    """A fresh interpreter that imports the gpumem under test; -I would lose it where
    it was built in place."""
    return run(sys.executable, *arguments, PYTHONPATH=str(ROOT), PYTHONSAFEPATH="1")


def tool(name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} (binutils) is not installed")
    return name


def symbols(*flags):
    """Names in the dynamic symbol table, versions cut off."""
    lines = run(tool("nm"), "-D", *flags, CORE).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def is_ours(name):
    """The module's entry, and the functions for C callers."""
    return name == "PyInit__core" or name in documented()


def documented():
    """What the header declares."""
    header = Path(gpumem.get_include(), "gpumem.h").read_text(encoding="utf-8")
    form = r"^GPUMEM_EXPORT[^;(]*?(gpumem_\w+)\("
    return set(re.findall(form, header, re.MULTILINE))


def test_only_documented_symbols_are_exported():
    exported = symbols("--defined-only")
    # A linker may add these for every library.
    exported -= {"_init", "_fini", "_edata", "_end", "__bss_start"}
    assert exported == {"PyInit__core", *documented()}
    assert "gpumem_malloc" in exported


def test_the_symbol_check_sees_a_leak(tmp_path):
    """The same command on a library that exports too much."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source = tmp_path / "leak.c"
    source.write_text("int gm_leak(void) { return 1; }\n")
    library = tmp_path / "leak.so"
    run("gcc", "-shared", "-fPIC", "-o", str(library), str(source))
    lines = run(tool("nm"), "-D", "--defined-only", str(library)).stdout.splitlines()
    leaked = {line.split()[-1] for line in lines if not is_ours(line.split()[-1])}
    assert "gm_leak" in leaked


def test_nothing_of_cuda_is_needed_to_load_it():
    needed = re.findall(r"NEEDED.*\[(.*)\]", run(tool("readelf"), "-d", CORE).stdout)
    assert any(name.startswith("libc.") for name in needed)
    assert not [name for name in needed if "cuda" in name or "nvidia" in name]
    undefined = symbols("--undefined-only")
    assert any(name.startswith("Py") for name in undefined)
    assert not [name for name in undefined if re.match(r"cu[A-Z]|cuda|__cuda", name)]


def test_import_touches_no_driver_and_no_numpy():
    """Looked at from inside, after the import: a driver would be mapped, an open device
    would be a descriptor, and both stay for the life of a process."""
    program = """if True:
        import os, sys, gpumem
        with open("/proc/self/maps") as file:
            maps = file.read()
        files = []
        for number in os.listdir("/proc/self/fd"):
            try:
                files.append(os.readlink(f"/proc/self/fd/{number}"))
            except FileNotFoundError:  # the descriptor of the listing itself
                pass
        print("numpy" in sys.modules)
        print(any(name in maps for name in ("libcuda", "libnvidia", "/dev/nvidia")))
        print(any("nvidia" in name for name in files))
        print(gpumem.__file__)
    """
    *answers, imported = python("-c", program).stdout.splitlines()
    assert imported == gpumem.__file__
    assert answers == ["False"] * 3


def test_import_adds_at_most_ten_milliseconds():
    """The time of the import itself and of all it imports, as the interpreter counts
    it. The best of several: a busy machine adds to each, and nothing takes away."""
    times = []
    for _ in range(12):
        report = python("-X", "importtime", "-c", "import gpumem").stderr
        match = re.search(r"\|\s*(\d+) \| gpumem$", report, re.MULTILINE)
        assert match, report
        times.append(int(match[1]) / 1000)
    assert min(times) <= 10, times
