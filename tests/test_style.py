# SPDX-License-Identifier: MIT
"""The tree keeps the rules of style_rules.py, and each rule sees what it forbids."""

from pathlib import Path

import pytest

import style_rules

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not (ROOT / "src" / "core").is_dir(),
        reason="needs the source tree beside tests/",
    ),
]

C_HEAD = "/* SPDX-License-Identifier: MIT\n *\n * A file.\n */\n"
PY_HEAD = '# SPDX-License-Identifier: MIT\n"""A file."""\n'
LONG = "\n".join(f"    x{i} = {i};" for i in range(61))

# rule, file, what is in it, the line it is found on
VIOLATIONS = [
    ("system_includes", "src/core/gm_a.c", "#include <stdio.h>", 5),
    ("system_includes", "src/core/gm_a.c", "#include <Python.h>", 5),
    ("system_includes", "src/backends/sim.c", "#include <Python.h>", 5),
    ("system_includes", "src/backends/sim.c", "#include <cuda_runtime_api.h>", 5),
    ("system_includes", "src/python/a.c", "int a;\n#include <cuda.h>", 6),
    ("system_includes", "tests/c/test_a.c", "#include <Python.h>", 5),
    ("own_includes", "src/core/gm_a.c", '#include "../backends/backends.h"', 5),
    ("own_includes", "src/core/gm_a.c", '#include "python/module.h"', 5),
    ("own_includes", "src/core/gm_a.c", '#include "nowhere.h"', 5),
    ("own_includes", "src/backends/sim.c", '#include "core/gm_pool.h"', 5),
    ("own_includes", "src/backends/sim.c", '#include "../python/module.h"', 5),
    ("own_includes", "src/backends/sim.c", '#include "cuda_api.h"', 5),
    ("own_includes", "src/python/a.c", '#include "../backends/sim.h"', 5),
    ("own_includes", "src/python/a.c", '#include "core/gm_pool_private.h"', 5),
    ("own_includes", "src/core/gm_a.c", '#include "gpumem.h"', 5),
    ("own_includes", "src/backends/sim.c", '#include "gpumem.h"', 5),
    ("own_includes", "tests/c/test_a.c", '#include "python/module.h"', 5),
    ("own_includes", "benchmarks/c/a.c", '#include "core/gm_pool_private.h"', 5),
    ("own_includes", "benchmarks/c/a.c", '#include "backends/sim.h"', 5),
    ("forbidden_names", "src/core/gm_a.c", "int x = printf(1);", 5),
    ("forbidden_names", "src/core/gm_a.c", "void f(void) { abort(); }", 5),
    ("forbidden_names", "src/core/gm_a.c", "void *p = malloc(1);", 5),
    ("forbidden_names", "src/core/gm_a.c", "char *p = getenv(1);", 5),
    ("forbidden_names", "src/core/gm_a.c", "PyObject *o;", 5),
    ("forbidden_names", "src/core/gm_a.c", "#define F cudaMalloc", 5),
    ("forbidden_names", "src/backends/sim.c", "free(p);", 5),
    ("forbidden_names", "src/backends/sim.c", "cuInit(0);", 5),
    ("forbidden_names", "src/backends/cuda_a.c", "PyErr_Clear();", 5),
    ("forbidden_names", "src/python/a.c", "int r = cudaFree(p);", 5),
    ("forbidden_names", "src/python/a.c", "PyGC_Disable();", 5),
    ("mutable_globals", "src/core/gm_a.c", "static int count;", 5),
    ("mutable_globals", "src/core/gm_a.c", "int table[2] = {1, 2};", 5),
    ("mutable_globals", "src/core/gm_a.c", "static const char *name;", 5),
    ("mutable_globals", "src/core/gm_a.c", "static void (*hook)(int);", 5),
    ("mutable_globals", "src/core/gm_a.c", "_Thread_local int depth;", 5),
    ("mutable_globals", "src/core/gm_a.c", "struct s {\n    int a;\n} s;", 5),
    ("mutable_globals", "src/core/gm_a.c", "f(void)\n{\n    static int n;\n}", 7),
    ("mutable_globals", "src/python/a.c", "static PyObject *cache;", 5),
    ("mutable_globals", "src/python/a.c", "_Thread_local int depth;", 5),
    ("mutable_globals", "src/python/thread.c", "static int count;", 5),
    ("lengths", "src/core/gm_a.c", "\n" * 700, 704),
    ("lengths", "src/core/gm_a.c", f"int\nf(void)\n{{\n{LONG}\n}}", 7),
    ("lengths", "gpumem/a.py", f"def f():\n{LONG}".replace(";", ""), 3),
    ("layout", "src/core/gm_a.c", "int " + "a" * 85 + ";", 5),
    ("layout", "src/core/gm_a.c", "int a; ", 5),
    ("layout", "src/core/gm_a.c", "\tint a;", 5),
    ("marks", "src/core/gm_a.c", "// TO" + "DO: later", 5),
    ("marks", "gpumem/a.py", "# FIX" + "ME", 3),
    ("python_arrows", "gpumem/a.py", "def f():\n    import tests.oracle", 4),
    ("python_arrows", "gpumem/a.py", "from benchmarks import timing", 3),
    ("python_arrows", "gpumem/a.py", "import gc\ngc.disable()", 4),
    ("watchdogs", "tests/test_a.py", "def test_a(thread):\n    thread.join()", 4),
    ("watchdogs", "tests/cases/test_a.py", "made = Event()\nmade.wait()", 4),
    ("watchdogs", "tests/test_a.py", "met = Barrier(2)\nmet.wait()", 4),
]

# Things that look alike and are allowed, one tree.
ALLOWED = {
    "src/core/gm_a.c": '#include "gm_a.h"\n\n#include <string.h>\n\n'
    'static const char *const names[] = {\n    "printf(1)", // malloc(1)\n};\n'
    "static const int unit = 512;\nextern volatile int flag;\n"
    "typedef struct node node;\nstruct node {\n    int free;\n};\n"
    'enum { A = 1 };\n_Static_assert(sizeof(int) == 4, "int");\n'
    "static inline int\nf(int n)\n{\n    static const int k = 1;\n"
    "    return n + k;\n}\nstatic int g(void *p, int (*call)(int));\n"
    "/* Never calls free(p), PyErr_Clear() or cudaFree(). */\n"
    "void\nh(node *n)\n{\n    gm_host_free(n);\n}\n",
    "src/core/gm_a.h": '#include "gm_base.h"\n',
    "src/core/gm_process.c": "static int frozen;\nvoid *p = malloc(1);\n",
    "src/backends/cuda_a.c": '#include "cuda_api.h"\n#include "../core/gm_backend.h"\n'
    "#include <cuda_runtime_api.h>\nint r = cudaFree(p);\n",
    "src/python/a.c": '#include <Python.h>\n\n#include "backends/backends.h"\n'
    '#include "gpumem.h"\n'
    '#include "core/gm_pool.h"\nstatic PyMethodDef methods[] = {{0}};\n',
    "src/python/thread.c": "static _Thread_local int depth;\n",
    "tests/c/test_a.c": '#include "core/gm_pool_private.h"\n#include <stdio.h>\n',
    "benchmarks/c/a.c": '#include "core/gm_pool.h"\n#include "backends/backends.h"\n'
    "#include <stdio.h>\nint n = printf(1);\n",
    "tests/test_a.py": "met = Barrier(2, timeout=5)\nmet.wait()\n"
    'met.wait(5)\nthread.join(5)\n", ".join(names)\n',
    "gpumem/a.py": "import gc\n\nfrom . import tests\n\ngc.collect()\n",
}
HEADERS = (
    *("core/gm_base.h", "core/gm_backend.h", "core/gm_pool.h"),
    *("core/gm_pool_private.h", "backends/backends.h", "backends/sim.h"),
    *("backends/cuda_api.h", "python/module.h"),
)


def plant(root, files):
    for path in ["gpumem/include/gpumem.h", *(f"src/{name}" for name in HEADERS)]:
        files.setdefault(path, "")
    for path, text in files.items():
        head = PY_HEAD if path.endswith(".py") else C_HEAD
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{head}{text}" + "\n" * (not text.endswith("\n")))


@pytest.mark.parametrize("rule", style_rules.RULES)
def test_the_tree_keeps(rule):
    assert len(style_rules.sources(ROOT)) > 20  # the tree was found and read
    findings = style_rules.broken(ROOT, rule)
    assert not findings, "\n" + "\n".join(findings)


@pytest.mark.parametrize(
    ("rule", "path", "text", "line"),
    VIOLATIONS,
    ids=[f"{rule}-{i}" for i, (rule, *_) in enumerate(VIOLATIONS)],
)
def test_a_violation_is_seen(tmp_path, rule, path, text, line):
    plant(tmp_path, {path: text})
    places = [finding.split(": ")[0] for finding in style_rules.broken(tmp_path, rule)]
    assert f"{path}:{line}" in places
    assert {place.split(":")[0] for place in places} == {path}


@pytest.mark.parametrize("rule", style_rules.RULES)
def test_what_is_allowed_is_let_through(tmp_path, rule):
    plant(tmp_path, dict(ALLOWED))
    assert style_rules.broken(tmp_path, rule) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/core/gm_a.c", "int a;\n"),
        ("src/core/gm_a.c", "/* SPDX-License-Identifier: MIT */\nint a;\n"),
        ("src/core/gm_a.h", "// SPDX-License-Identifier: MIT\n"),
        ("gpumem/a.py", '"""No license."""\n'),
        ("gpumem/a.py", "# SPDX-License-Identifier: MIT\nimport os\n"),
    ],
)
def test_a_missing_head_is_seen(tmp_path, path, text):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    findings = style_rules.broken(tmp_path, "heads")
    assert findings and all(finding.startswith(f"{path}:1: ") for finding in findings)
