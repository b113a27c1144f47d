# SPDX-License-Identifier: MIT
"""Finds the CUDA headers and the static CUDA runtime that gpumem is built with.

One search, used by everybody who builds: setup.py, the build backend (which asks pip
for the wheels when the search comes back empty) and the Makefile (which runs this
file). The order is CUDA_HOME, CUDA_PATH, the nvcc on PATH, /usr/local/cuda, and last
the wheels `nvidia-cuda-runtime` and `nvidia-cuda-crt` where this Python can import
them. A place counts when it has all three: headers of CUDA 12.0 or later, the `crt/`
headers these include, and libcudart_static.a. A place that lacks one is passed over,
and said so if nothing else is found.

GPUMEM_CUDA decides whether to look at all: `auto` (the default) takes CUDA if it is
there, `0` leaves it out, `1` makes its absence an error.

Nothing here needs a GPU or a driver, and nothing is executed or imported from what is
found.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OLDEST = 12000  # CUDART_VERSION, 1000*major + 10*minor
DEFAULT_ROOT = Path("/usr/local/cuda")
STATIC_RUNTIME = "libcudart_static.a"
LIBRARIES = ("dl", "rt", "pthread")  # what the static runtime itself needs

# The runtime's wheel has the headers and the library; the headers include crt/*.h,
# which has a wheel of its own since CUDA 13.
WHEELS = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*")
WHEEL_ROOT = Path("nvidia/cu13")

# Names that a toolkit gives the folders of one machine under targets/.
TARGETS = {"x86_64": ("x86_64-linux",), "aarch64": ("sbsa-linux", "aarch64-linux")}


class ToolkitError(Exception):
    """The build was told to have CUDA and cannot, or was told something unclear."""


@dataclass(frozen=True)
class Toolkit:
    """A place with everything the build needs."""

    include: Path
    library: Path  # libcudart_static.a itself: it is linked by its full path
    version: int  # CUDART_VERSION
    origin: str  # for people, and for show_config()

    @property
    def version_text(self) -> str:
        return f"{self.version // 1000}.{self.version % 1000 // 10}"

    def compile_args(self) -> list[str]:
        """-isystem, because the headers do not compile clean under our warnings."""
        return ["-isystem", str(self.include)]

    def link_args(self) -> list[str]:
        """The runtime's symbols stay inside: a process may hold several runtimes."""
        libraries = [f"-l{name}" for name in LIBRARIES]
        return [str(self.library), *libraries, "-Wl,--exclude-libs,ALL"]


def wanted(environ: Mapping[str, str] = os.environ) -> str:
    """GPUMEM_CUDA as one of "auto", "0" and "1"."""
    text = environ.get("GPUMEM_CUDA", "auto")
    if text not in ("auto", "0", "1"):
        raise ToolkitError(f"GPUMEM_CUDA is {text!r}; it can be auto, 0 or 1")
    return text


def choose(
    environ: Mapping[str, str] = os.environ, path: Sequence[str] | None = None
) -> tuple[Toolkit | None, str]:
    """The toolkit to build with, or None, and one sentence on what was chosen and why.

    `path` is where wheels are looked for, sys.path unless given. Raises ToolkitError
    when GPUMEM_CUDA is 1 and there is none.
    """
    mode = wanted(environ)
    if mode == "0":
        return None, "left out: GPUMEM_CUDA is 0"
    passed_over: list[str] = []
    for origin, root in _places(environ, sys.path if path is None else path):
        found = _inspect(origin, root)
        if isinstance(found, Toolkit):
            return found, f"CUDA {found.version_text} from {found.origin}"
        passed_over.append(found)
    detail = "".join(f"\n  {reason}" for reason in passed_over)
    if mode == "1":
        raise ToolkitError(
            "GPUMEM_CUDA is 1 and no CUDA toolkit was found. Set CUDA_HOME to one, or"
            f" install the wheels: pip install {shlex.join(WHEELS)}{detail}"
        )
    return None, f"left out: no CUDA toolkit was found{detail}"


def requirements(
    environ: Mapping[str, str] = os.environ, path: Sequence[str] | None = None
) -> list[str]:
    """The wheels that an isolated build has to ask for: none if CUDA is not wanted, if
    a toolkit is there, or on a machine for which NVIDIA publishes no wheels."""
    published = platform.machine() in TARGETS and platform.libc_ver()[0] == "glibc"
    if wanted(environ) == "0" or not published:
        return []
    toolkit, _ = choose({**environ, "GPUMEM_CUDA": "auto"}, path)
    return [] if toolkit else list(WHEELS)


def _places(
    environ: Mapping[str, str], path: Sequence[str]
) -> Iterator[tuple[str, Path]]:
    """(name for people, root) of every place to look, in order."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            root = Path(environ[variable])
            yield f"{root} ({variable})", root
    nvcc = shutil.which("nvcc", path=environ.get("PATH", ""))
    if nvcc:
        root = Path(nvcc).resolve().parent.parent
        yield f"{root} (nvcc)", root
    if DEFAULT_ROOT.is_dir():
        yield str(DEFAULT_ROOT), DEFAULT_ROOT
    for entry in path:
        root = Path(entry) / WHEEL_ROOT
        if root.is_dir():
            # The folder of an isolated build is gone by the time anybody reads this.
            yield "the wheel nvidia-cuda-runtime", root


def _inspect(origin: str, root: Path) -> Toolkit | str:
    """What is at `root`: a toolkit, or the reason why it is none."""
    targets = [root / "targets" / name for name in TARGETS.get(platform.machine(), ())]
    includes = [base / "include" for base in (root, *targets)]
    header = _first(includes, "cuda_runtime_api.h")
    if header is None:
        return f"{origin}: no include/cuda_runtime_api.h"
    if not (header.parent / "crt" / "host_defines.h").is_file():
        return f"{origin}: no include/crt (the wheel nvidia-cuda-crt has it)"
    define = re.search(
        r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)",
        header.read_text(encoding="utf-8", errors="replace"),
        re.MULTILINE,
    )
    version = int(define[1]) if define else 0
    if version < OLDEST:
        return f"{origin}: CUDART_VERSION is {version}, below {OLDEST}"
    libraries = [root / "lib64", root / "lib", *(base / "lib" for base in targets)]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:  # where Debian's own packages put it
        libraries.append(root / "lib" / multiarch)
    library = _first(libraries, STATIC_RUNTIME)
    if library is None:
        return f"{origin}: no {STATIC_RUNTIME} in lib64, lib or targets/*/lib"
    return Toolkit(header.parent, library, version, origin)


def _first(folders: Sequence[Path], name: str) -> Path | None:
    return next((f / name for f in folders if (f / name).is_file()), None)


def main() -> int:
    parser = argparse.ArgumentParser(description="Print what the CUDA build needs.")
    parser.add_argument("what", choices=("origin", "cflags", "libs"))
    arguments = parser.parse_args()
    try:
        toolkit, note = choose({**os.environ, "GPUMEM_CUDA": "1"})
    except ToolkitError as error:
        print(f"cuda_toolkit: {error}", file=sys.stderr)
        return 1
    assert toolkit is not None  # choose() raises where CUDA is demanded
    answers = {
        "origin": note,
        "cflags": shlex.join(["-DGM_WITH_CUDA=1", *toolkit.compile_args()]),
        "libs": shlex.join(toolkit.link_args()),
    }
    print(answers[arguments.what])
    return 0


if __name__ == "__main__":
    sys.exit(main())
