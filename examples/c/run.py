# SPDX-License-Identifier: MIT
"""Compiles scratch.c with gcc, as setuptools would, and calls it.

    python3 examples/c/run.py

Runs without a GPU as well: the simulated device is used then.
"""

import importlib.util
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import gpumem

MIB = 1 << 20


def build(folder):
    """The compiled extension."""
    source = Path(__file__).with_name("scratch.c")
    target = Path(folder, "scratch" + sysconfig.get_config_var("EXT_SUFFIX"))
    includes = [f"-I{gpumem.get_include()}", f"-I{sysconfig.get_path('include')}"]
    flags = ["-std=c11", "-Wall", "-O2", "-shared", "-fPIC", "-pthread"]
    subprocess.run(
        ["gcc", *flags, *includes, str(source), "-o", str(target)], check=True
    )
    return target


def load(path):
    spec = importlib.util.spec_from_file_location("scratch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    pool = gpumem.get_default_memory_pool()
    with tempfile.TemporaryDirectory() as folder:
        scratch = load(build(folder))
        print(f"before: {pool.total_bytes() // MIB} MiB held")
        held = scratch.run(2 * MIB, 4)
        stats = pool.stats()
        print(f"after:  {held // MIB} MiB held, {stats['used_bytes']} bytes in use")
        print(f"{stats['allocated_blocks']} requests, {stats['misses']} of the device")
        pool.free_all_blocks()
        pool.set_limit(size=MIB)
        try:
            scratch.run(2 * MIB, 1)
        except MemoryError as error:
            print(error)


if __name__ == "__main__":
    main()
