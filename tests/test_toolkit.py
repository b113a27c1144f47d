# SPDX-License-Identifier: MIT
"""The search for a CUDA toolkit, on toolkits made of empty files."""

import importlib.util
import platform
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent / "src" / "build"

pytestmark = [
    pytest.mark.skipif(
        not BUILD.is_dir(), reason="needs the source tree beside tests/"
    ),
    pytest.mark.skipif(
        platform.machine() not in ("x86_64", "aarch64"), reason="no CUDA for it"
    ),
]

TARGET = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}.get(platform.machine())
FOREIGN = "sbsa-linux" if TARGET == "x86_64-linux" else "x86_64-linux"


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """The module, with the machine's own /usr/local/cuda out of the way."""
    spec = importlib.util.spec_from_file_location(
        "cuda_toolkit", BUILD / "cuda_toolkit.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cuda_toolkit", module)  # dataclasses look there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "DEFAULT_ROOT", tmp_path / "default")
    return module


def make(root, version=13000, headers="include", library="lib64", crt=True):
    include = root / headers
    include.mkdir(parents=True)
    text = f"/* Version */\n#define CUDART_VERSION  {version}\n"
    (include / "cuda_runtime_api.h").write_text(text)
    if crt:
        (include / "crt").mkdir()
        (include / "crt" / "host_defines.h").touch()
    if library:
        (root / library).mkdir(parents=True, exist_ok=True)
        (root / library / "libcudart_static.a").touch()
    return root


def make_nvcc(root):
    nvcc = root / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch(mode=0o755)
    return nvcc


def test_the_order_of_the_places(toolkit, tmp_path):
    roots = {n: make(tmp_path / n) for n in ("home", "path", "compiler", "default")}
    make(tmp_path / "site" / "nvidia" / "cu13", library="lib")
    links = tmp_path / "links"
    links.mkdir()
    (links / "nvcc").symlink_to(make_nvcc(roots["compiler"]))
    environ = {
        "CUDA_HOME": str(roots["home"]),
        "CUDA_PATH": str(roots["path"]),
        "PATH": str(links),
    }
    site = [str(tmp_path / "empty"), str(tmp_path / "site")]
    seen = []
    for gone in ("CUDA_HOME", "CUDA_PATH", "PATH", None, None):
        found, note = toolkit.choose(environ, site)
        seen.append(found.include)
        assert note == f"CUDA 13.0 from {found.origin}"
        if gone:
            del environ[gone]
        else:
            (tmp_path / "default" / "include" / "cuda_runtime_api.h").unlink(True)
    assert seen == [
        *(tmp_path / n / "include" for n in ("home", "path", "compiler", "default")),
        tmp_path / "site" / "nvidia" / "cu13" / "include",
    ]
    assert found.origin == "the wheel nvidia-cuda-runtime"


@pytest.mark.parametrize(
    ("headers", "library"),
    [
        ("include", "lib64"),
        ("include", "lib"),
        ("include", f"targets/{TARGET}/lib"),
        (f"targets/{TARGET}/include", f"targets/{TARGET}/lib"),
    ],
)
def test_the_shapes_of_a_toolkit(toolkit, tmp_path, headers, library):
    root = make(tmp_path / "cuda", headers=headers, library=library)
    found, _ = toolkit.choose({"CUDA_HOME": str(root)}, [])
    assert found.include == root / headers
    assert found.library == root / library / "libcudart_static.a"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"version": 11080}, "CUDART_VERSION is 11080, below 12000"),
        ({"version": "none"}, "CUDART_VERSION is 0, below 12000"),
        ({"crt": False}, "no include/crt"),
        ({"library": None}, "no libcudart_static.a"),
        ({"library": f"targets/{FOREIGN}/lib"}, "no libcudart_static.a"),
        ({"headers": "somewhere"}, "no include/cuda_runtime_api.h"),
    ],
)
def test_what_is_not_enough_is_passed_over(toolkit, tmp_path, arguments, reason):
    bad = make(tmp_path / "bad", **arguments)
    found, note = toolkit.choose({"CUDA_HOME": str(bad)}, [])
    assert found is None
    assert reason in note
    with pytest.raises(toolkit.ToolkitError, match="pip install") as error:
        toolkit.choose({"CUDA_HOME": str(bad), "GPUMEM_CUDA": "1"}, [])
    assert reason in str(error.value)

    good = make(tmp_path / "good", version=12000)
    environ = {"CUDA_HOME": str(bad), "CUDA_PATH": str(good)}
    found, note = toolkit.choose(environ, [])
    assert found.include == good / "include"
    assert note == f"CUDA 12.0 from {good} (CUDA_PATH)"


def test_the_switch(toolkit, tmp_path):
    there = {"CUDA_HOME": str(make(tmp_path / "cuda"))}
    assert toolkit.choose(there, [])[0] is not None
    assert toolkit.choose({**there, "GPUMEM_CUDA": "auto"}, [])[0] is not None
    assert toolkit.choose({**there, "GPUMEM_CUDA": "1"}, [])[0] is not None
    left_out = toolkit.choose({**there, "GPUMEM_CUDA": "0"}, [])
    assert left_out == (None, "left out: GPUMEM_CUDA is 0")
    with pytest.raises(toolkit.ToolkitError, match="'yes'; it can be auto, 0 or 1"):
        toolkit.choose({**there, "GPUMEM_CUDA": "yes"}, [])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no wheels for it")
def test_wheels_are_asked_for_only_when_needed(toolkit, tmp_path):
    wheels = ["nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*"]
    assert toolkit.requirements({}, []) == wheels
    assert toolkit.requirements({"GPUMEM_CUDA": "1"}, []) == wheels
    assert toolkit.requirements({"GPUMEM_CUDA": "0"}, []) == []
    there = {"CUDA_HOME": str(make(tmp_path / "cuda"))}
    assert toolkit.requirements(there, []) == []


def test_the_runtime_is_linked_in_and_kept_in(toolkit, tmp_path):
    root = make(tmp_path / "cuda")
    found, _ = toolkit.choose({"CUDA_HOME": str(root)}, [])
    assert found.compile_args() == ["-isystem", str(root / "include")]
    arguments = found.link_args()
    assert arguments[0] == str(root / "lib64" / "libcudart_static.a")
    assert {"-ldl", "-lrt", "-lpthread", "-Wl,--exclude-libs,ALL"} <= set(arguments)
    assert not {"-lcuda", "-lcudart"} & set(arguments)
