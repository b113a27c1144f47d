# SPDX-License-Identifier: MIT
"""Builds the one extension, gpumem._core, from the C files of three rooms.

The package as such is described in pyproject.toml. Switches, all by environment:

    GPUMEM_CUDA=auto|0|1     with the CUDA runtime if a toolkit is found (the default),
                             without, or not at all if there is none
    GPUMEM_DEBUG=1           no optimisation, assertions on
    GPUMEM_SANITIZE=NAME     address, undefined or thread; the interpreter then has to
                             be started with that sanitizer's runtime preloaded
    GPUMEM_WERROR=1          warnings are errors

Which CUDA was found is told on stderr and compiled in as GM_BUILD_CUDA_FROM.
"""

import os
import runpy
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

os.chdir(Path(__file__).resolve().parent)
sys.path.insert(0, str(Path("src/build").resolve()))

import cuda_toolkit  # noqa: E402 - found through the line above

ROOMS = ("core", "backends", "python")
LTO = ["-flto=auto"]
SANITIZERS = ("address", "undefined", "thread")


def room_files(suffix):
    return sorted(str(f) for room in ROOMS for f in Path("src", room).glob(suffix))


def switch(name):
    text = os.environ.get(name, "0")
    if text not in ("", "0", "1"):
        raise SystemExit(f"{name} is {text!r}; it can be 0 or 1")
    return text == "1"


def base_flags():
    lines = Path("src/build/cflags.txt").read_text(encoding="utf-8").splitlines()
    return shlex.split(" ".join(line for line in lines if not line.startswith("#")))


class BuildCore(build_ext):
    """Decides flags when it builds, not when setup.py is read: pip reads it once
    before the CUDA wheels are there."""

    def build_extension(self, ext):
        try:
            toolkit, note = cuda_toolkit.choose()
        except cuda_toolkit.ToolkitError as error:
            raise SystemExit(f"gpumem: {error}") from error
        self.tell(toolkit, note)
        cuda_from = note.splitlines()[0]

        # Python's headers do not compile clean under our warnings either.
        python_include = sysconfig.get_path("include")
        compile_args = [*base_flags(), "-isystem", python_include]
        link_args = ["-pthread"]
        macros = [
            ("GM_WITH_CUDA", "1" if toolkit else "0"),
            ("GM_BUILD_CUDA_FROM", f'"{cuda_from}"'),
        ]
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            macros.append(("GM_SHARDS", "1"))
        if switch("GPUMEM_DEBUG"):
            # Python's own flags may hold -DNDEBUG and -D_FORTIFY_SOURCE.
            compile_args += ["-O0", "-g3", "-UNDEBUG", "-U_FORTIFY_SOURCE"]
            macros.append(("GM_DEBUG", "1"))
        else:
            compile_args += ["-O3", "-fno-plt"]
        sanitizer = os.environ.get("GPUMEM_SANITIZE", "")
        plain = not (switch("GPUMEM_DEBUG") or sanitizer)
        if plain and self.can_optimise_links():
            # A hit goes through the files of two rooms: a fifth of its instructions.
            compile_args += LTO
            link_args += [*LTO, "-O3"]
        if sanitizer:
            if sanitizer not in SANITIZERS:
                raise SystemExit(
                    f"GPUMEM_SANITIZE is {sanitizer!r}; it can be one of"
                    f" {', '.join(SANITIZERS)}"
                )
            compile_args += [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"]
            link_args.append(f"-fsanitize={sanitizer}")
        if switch("GPUMEM_WERROR"):
            compile_args.append("-Werror")
        if toolkit:
            compile_args += toolkit.compile_args()
            link_args += toolkit.link_args()

        ext.define_macros = macros
        ext.extra_compile_args = compile_args
        ext.extra_link_args = link_args
        settings = self.record(macros, compile_args, link_args)
        ext.depends = [*room_files("*.h"), "gpumem/include/gpumem.h", settings]
        super().build_extension(ext)

    def can_optimise_links(self):
        """Whether compiler and linker do link-time optimisation: a try, since a
        compiler may know the flag and lack what the linker needs for it."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "probe.c")
            source.write_text("int probe(void) { return 0; }\n", encoding="utf-8")
            command = [*self.compiler.compiler_so, *LTO, "-fPIC", "-shared"]
            command += [str(source), "-o", str(source.with_suffix(".so"))]
            try:
                done = subprocess.run(command, capture_output=True, check=False)
            except OSError:
                return False
        return done.returncode == 0

    def record(self, *settings):
        """A file that changes when a setting does, so that what was built otherwise is
        built again; its name."""
        record = Path(self.build_temp, "gpumem-settings.txt")
        text = "\n".join(str(item) for item in settings)
        if not record.exists() or record.read_text(encoding="utf-8") != text:
            self.force = True  # times are compared in whole seconds, too coarse for it
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(text, encoding="utf-8")
        return str(record)

    def tell(self, toolkit, note):
        print(f"gpumem: CUDA: {note}", file=sys.stderr)
        if toolkit is None and cuda_toolkit.wanted() == "auto":
            print(
                "gpumem: this build has the simulated device alone. To have CUDA too,"
                " set CUDA_HOME to a\n"
                "gpumem: toolkit, or build with `pip install .`, which fetches what it"
                " needs; GPUMEM_CUDA=0\n"
                "gpumem: says that this is meant.",
                file=sys.stderr,
            )


# What pyproject.toml cannot say, or older setuptools take from there with a warning.
setup(
    version=runpy.run_path("gpumem/_version.py")["__version__"],
    license="MIT",
    packages=["gpumem", "gpumem.interop"],
    py_modules=["pytest_gpumem"],
    package_data={"gpumem": ["py.typed", "*.pyi", "include/*.h"]},
    ext_modules=[
        Extension(
            "gpumem._core", room_files("*.c"), include_dirs=["src", "gpumem/include"]
        ),
    ],
    cmdclass={"build_ext": BuildCore},
)
