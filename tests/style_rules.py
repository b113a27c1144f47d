# SPDX-License-Identifier: MIT
"""The rules of the rooms, read off the text of the tree; test_style.py applies them.

src/README.md draws which room may know which. A compiler cannot see most of that: a
core file that calls printf or includes Python.h compiles. So each rule here is a small
function from one file to the lines that break it. The rules read text, not syntax
trees: they lean on the formatter (a definition's name, `{` and `}` stand in column 0)
and on nobody hiding an include in a macro.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

Finding = tuple[int, str]  # line, what is wrong with it

FILE_LINES = 700
FUNCTION_LINES = 60
COLUMNS = 88

# What the core may take from the system. No <stdio.h>: it does not print. <time.h> is
# for waiting; the names of its clocks are forbidden below.
CORE_SYSTEM = {
    *("assert.h", "errno.h", "inttypes.h", "limits.h", "pthread.h", "sched.h"),
    *("stdalign.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h", "stdlib.h"),
    *("string.h", "time.h"),
}
# What a backend may know of the core: the table it fills, and what that rests on.
BACKEND_CORE = {"gm_backend.h", "gm_base.h", "gm_process.h", "gm_status.h"}

# The headers that come with the package, and the folders of C code that uses gpumem
# from outside: examples/, and tests/ but for tests/c/.
PUBLIC = "gpumem/include"
OUTSIDE = ("examples", "tests")

PRINTING = r"f?printf|v[fs]?n?printf|f?puts|f?putc|putchar|perror|write"
ENDING = r"abort|_?exit|_Exit|quick_exit|raise"
HOST_MEMORY = (
    r"malloc|calloc|realloc|reallocarray|free|aligned_alloc|posix_memalign|memalign"
    r"|strn?dup"
)
SURROUNDINGS = r"getenv|secure_getenv|setenv|time|clock|clock_gettime|gettimeofday"
PYTHON = r"_?Py[A-Z_]\w*"
CUDA = r"cuda[A-Z]\w*|cu[A-Z]\w*|CU[a-z]\w*"

# The file that holds the state of the process and asks the host for memory and for the
# time, and the one that holds what a thread needs before it can ask the module.
PROCESS_STATE = "src/core/gm_process.c"
THREAD_STATE = "src/python/thread.c"
# CPython wants these tables writable, and writes to them.
PYTHON_TABLES = {
    *("PyModuleDef", "PyModuleDef_Slot", "PyMethodDef", "PyMemberDef", "PyGetSetDef"),
    *("PyType_Slot", "PyType_Spec", "PyStructSequence_Field", "PyStructSequence_Desc"),
}


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


@dataclass(frozen=True)
class Source:
    root: Path
    path: str  # from the root, with slashes

    @cached_property
    def text(self) -> str:
        return (self.root / self.path).read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def room(self) -> str:
        """ "core", "backends", "python", "c" (the C tests), or the top folder."""
        parts = self.path.split("/")
        if parts[0] == "src" or parts[:2] == ["tests", "c"]:
            return parts[1]
        return parts[0]

    @property
    def is_c(self) -> bool:
        return self.path.endswith((".c", ".h"))

    @cached_property
    def code(self) -> str:
        """C without its comments, line for line."""
        pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
        return re.sub(
            pattern,
            lambda m: _blank(m) if m[0].startswith("/") else m[0],
            self.text,
            flags=re.DOTALL,
        )

    @cached_property
    def bare(self) -> str:
        """C without comments, texts and preprocessor lines, line for line."""
        no_texts = re.sub(
            r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', _blank, self.code
        )
        return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", _blank, no_texts, flags=re.MULTILINE)

    def find(self, pattern: str, text: str | None = None) -> Iterator[tuple[int, str]]:
        """(line, match) of each whole-word match in the C code, macros included."""
        text = self.code if text is None else text
        for match in re.finditer(rf"\b(?:{pattern})\b", text):
            yield text.count("\n", 0, match.start()) + 1, match[0]


def system_includes(source: Source) -> Iterator[Finding]:
    """Core: libc and pthread. Python.h: the Python room. CUDA: cuda_* files alone."""
    for line, header in _includes(source, r"<([^>]+)>"):
        if source.room == "core" and header not in CORE_SYSTEM:
            yield line, f"the core may not include <{header}>"
        is_python = header in ("Python.h", "structmember.h", "pythread.h")
        if is_python and source.room not in ("python", *OUTSIDE):
            yield line, f"<{header}> belongs to src/python"
        is_cuda = header.startswith(("cuda", "driver_types", "vector_types", "crt/"))
        if is_cuda and not (
            source.room == "backends" and source.name.startswith("cuda_")
        ):
            yield line, f"<{header}> belongs to src/backends/cuda_*"


def own_includes(source: Source) -> Iterator[Finding]:
    """The arrows between the rooms."""
    for line, header in _includes(source, r'"([^"]+)"'):
        beside = (source.root / source.path).parent / header
        places = (beside, source.root / "src" / header, source.root / PUBLIC / header)
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            yield line, f'"{header}" is in no room'
            continue
        target = Source(
            source.root, found.resolve().relative_to(source.root.resolve()).as_posix()
        )
        if not _may_include(source, target):
            yield line, f"{source.room} may not include {target.path}"


def _includes(source: Source, form: str) -> Iterator[tuple[int, str]]:
    for match in re.finditer(
        rf"^[ \t]*#[ \t]*include[ \t]*{form}", source.code, re.MULTILINE
    ):
        yield source.code.count("\n", 0, match.start()) + 1, match[1]


def _may_include(source: Source, target: Source) -> bool:
    if source.room == target.room:
        # The CUDA headers come in through a header of the cuda files.
        return not target.name.startswith("cuda_") or source.name.startswith("cuda_")
    if source.room == "c":  # its tests look inside
        return target.room in ("core", "backends")
    if target.name.endswith("_private.h"):
        return False
    if source.room == "backends":
        return target.room == "core" and target.name in BACKEND_CORE
    if source.room in ("python", *OUTSIDE) and target.path.startswith(PUBLIC):
        return True  # what it offers to C code
    if source.room in ("python", "benchmarks"):
        return target.room == "core" or target.path == "src/backends/backends.h"
    return False


def forbidden_names(source: Source) -> Iterator[Finding]:
    """Calls and names that a room must do without."""
    if source.room not in ("core", "backends", "python", "c"):
        return
    rules: list[tuple[str, str]] = []
    if source.room in ("core", "backends", "python"):
        rules += [
            (rf"(?:{PRINTING})(?=\()", "prints"),
            (rf"(?:{ENDING})(?=\()", "ends"),
        ]
        if source.path != PROCESS_STATE:
            rules.append((rf"(?:{HOST_MEMORY})(?=\()", "goes past gm_host_*"))
    if source.room == "core" and source.path != PROCESS_STATE:
        rules.append((rf"(?:{SURROUNDINGS})(?=\()", "looks at the surroundings"))
    if source.room in ("core", "backends", "c"):
        rules.append((PYTHON, "knows Python"))
    if not (source.room == "backends" and source.name.startswith("cuda_")):
        rules.append((CUDA, "knows CUDA"))
    rules.append((r"PyGC_Disable", "switches the collector off"))
    code = re.sub(r'"(?:\\.|[^"\\\n])*"', _blank, source.code)
    for pattern, why in rules:
        for line, name in source.find(pattern, code):
            yield line, f"{name} {why}, which this room may not"


def mutable_globals(source: Source) -> Iterator[Finding]:
    """State of the process lives in one file; the module's lives in the module."""
    if source.room not in ("core", "python") or source.path == PROCESS_STATE:
        return
    for line, statement in _top_level(source.bare):
        if source.path == THREAD_STATE and "_Thread_local" in statement:
            continue
        if _is_variable(statement) and _is_mutable(statement):
            yield line, f"mutable global: {statement.split('=')[0].strip()}"
    for match in re.finditer(r"^[ \t]+static\b([^;={(]*)", source.bare, re.MULTILINE):
        if _is_mutable(match[1]):
            line = source.bare.count("\n", 0, match.start()) + 1
            yield line, f"mutable static in a function: {match[1].strip()}"


def _top_level(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each declaration or definition; what stands in braces is left
    out."""
    depth = 0
    kept: list[str] = []
    line = start = 1
    for char in text:
        line += char == "\n"
        if char == "}":
            depth -= 1
        if depth == 0 and (kept or not char.isspace()) and char != "}":
            start = start if kept else line
            kept.append(char)
        if char == "{":
            depth += 1
        # A function's body ends its text; an initialiser goes on to the semicolon.
        statement = "".join(kept)
        is_body = char == "}" and depth == 0 and statement.rstrip("{ \n").endswith(")")
        if is_body or (char == ";" and depth == 0):
            yield start, " ".join(statement.rstrip(";").split())
            kept.clear()


def _is_variable(statement: str) -> bool:
    head = statement.split("=")[0].strip()
    if re.match(r"(typedef|extern|_Static_assert)\b", head) or not head:
        return False
    if re.fullmatch(r"(struct|enum|union)\b[^{=]*(\{.*)?", head) and (
        head.endswith("{") or len(head.split()) == 2
    ):
        return False
    head = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", head)
    is_function_pointer = re.match(r"[^(]*\(\s*\*", head)
    return "(" not in head or is_function_pointer is not None


def _is_mutable(declaration: str) -> bool:
    head = re.sub(r"\[.*", "", declaration.split("=")[0])
    words = re.findall(r"\w+", head)
    if "inline" in words or PYTHON_TABLES.intersection(words):
        return False
    if "*" in head:
        return not head.rsplit("*", 1)[1].strip().startswith("const")
    return "const" not in words


def lengths(source: Source) -> Iterator[Finding]:
    lines = source.text.splitlines()
    is_stub = source.path.endswith(".pyi")  # as long as the module that it declares
    if len(lines) > FILE_LINES and not is_stub:
        yield len(lines), f"{len(lines)} lines; a file has at most {FILE_LINES}"
    if source.is_c:
        start = 0
        for number, line in enumerate(source.bare.splitlines(), 1):
            if line.rstrip() == "{":
                start = number
            elif line.rstrip() == "}" and start:
                if number - start - 1 > FUNCTION_LINES:
                    yield start, f"a function of {number - start - 1} lines"
                start = 0
    elif source.path.endswith(".py"):
        for node in ast.walk(ast.parse(source.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield node.lineno, f"{node.name} has {length} lines"


def layout(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.split("\n"), 1):
        if len(line) > COLUMNS:
            yield number, f"{len(line)} columns; a line has at most {COLUMNS}"
        if line != line.rstrip():
            yield number, "space at the end of the line"
        if "\t" in line:
            yield number, "a tab"
    if source.text and not source.text.endswith("\n"):
        yield source.text.count("\n") + 1, "no end of line at the end of the file"


def heads(source: Source) -> Iterator[Finding]:
    """License and a comment on what the file is, before anything else."""
    if source.is_c:
        if not source.text.startswith("/* SPDX-License-Identifier: MIT\n"):
            yield 1, "no license line"
        if not re.match(r"/\*[^\n]*\n \*\n \* \w", source.text):
            yield 1, "no comment at the head on what this file is"
        return
    text = re.sub(r"\A#![^\n]*\n", "", source.text)
    if not text.startswith("# SPDX-License-Identifier: MIT\n"):
        yield 1, "no license line"
    if source.path.endswith(".py") and ast.get_docstring(ast.parse(text)) is None:
        yield 1, "no docstring on what this file is"


def marks(source: Source) -> Iterator[Finding]:
    """Work left over is not left in the code."""
    words = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"))
    yield from ((n, f"{word} left over") for n, word in source.find(words, source.text))


def python_arrows(source: Source) -> Iterator[Finding]:
    """The package stands alone, and leaves the collector as it is."""
    if source.room != "gpumem" or not source.path.endswith((".py", ".pyi")):
        return
    for node in ast.walk(ast.parse(source.text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "gc.disable":
            yield node.lineno, "gc.disable"
        for name in names:
            if name.split(".")[0] in ("tests", "benchmarks", "conftest", "oracle"):
                yield node.lineno, f"the package may not import {name}"


def watchdogs(source: Source) -> Iterator[Finding]:
    """Nothing in a test waits for a thread, an event or a process without a limit. A
    barrier may have its limit from when it was made. The mutator is no test."""
    is_python = source.room == "tests" and source.path.endswith(".py")
    if not is_python or source.path.startswith("tests/mutation/"):
        return
    tree = ast.parse(source.text)
    limited = {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if "timeout" in [keyword.arg for keyword in node.value.keywords]
        for target in node.targets
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or node.args or node.keywords:
            continue
        call = node.func
        if isinstance(call, ast.Attribute) and call.attr in ("join", "wait"):
            if ast.unparse(call.value) not in limited:
                yield node.lineno, f"{ast.unparse(node)} may wait for ever"


RULES: dict[str, Callable[[Source], Iterator[Finding]]] = {
    rule.__name__: rule
    for rule in (
        *(system_includes, own_includes, forbidden_names, mutable_globals),
        *(lengths, layout, heads, marks, python_arrows, watchdogs),
    )
}
C_ONLY = {"system_includes", "own_includes", "forbidden_names", "mutable_globals"}


def sources(root: Path) -> list[Source]:
    patterns = (
        *(
            "src/**/*.[ch]",
            f"{PUBLIC}/*.h",
            "tests/c/**/*.[ch]",
            "benchmarks/**/*.[ch]",
            "*.py",
        ),
        *("src/**/*.py", "gpumem/**/*.py", "gpumem/**/*.pyi", "tests/**/*.py"),
        *("benchmarks/**/*.py", "examples/**/*.[ch]", "examples/**/*.py"),
        *("tests/c_api/*.c", ".ci/**/*.py"),
    )
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return [Source(root, path.relative_to(root).as_posix()) for path in sorted(found)]


def broken(root: Path, rule: str) -> list[str]:
    """`path:line: what` for every place under `root` that breaks the rule."""
    return [
        f"{source.path}:{line}: {what}"
        for source in sources(root)
        if source.is_c or rule not in C_ONLY
        for line, what in RULES[rule](source)
    ]
