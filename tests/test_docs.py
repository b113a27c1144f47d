# SPDX-License-Identifier: MIT
"""The documents tell of this tree: its files, names, commands, output and variables."""

import inspect
import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

import gpumem

ROOT = Path(__file__).resolve().parent.parent
PAGES = tuple(sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md")))
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "src/README.md", "tests/README.md"),
    *PAGES,
)
ROOMS = ("core", "backends", "python", "build")

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        not (ROOT / "src" / "core").is_dir(),
        reason="needs the source tree beside tests/",
    ),
]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def prose(name):
    """The document without what is set off as code."""
    text = re.sub(r"^```.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def quoted(text):
    """What stands in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def table_rows(text, title):
    """The rows of the table below the heading `title`, as lists of cells."""
    section = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def python(*arguments, cwd=None):
    """Runs Python with the gpumem under test, on the simulated device."""
    environ = {name: text for name, text in os.environ.items() if name[:7] != "GPUMEM_"}
    environ |= {
        "GPUMEM_BACKEND": "sim",
        "PYTHONPATH": str(Path(gpumem.__path__[0]).parent),
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environ,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- files ----


def files(folder, *patterns):
    return {path.name for pattern in patterns for path in (ROOT / folder).glob(pattern)}


@pytest.mark.parametrize("room", ROOMS)
def test_the_map_names_every_source_file(room):
    section = read("src/README.md").split(f"### {room}\n", 1)[1].split("\n#", 1)[0]
    named = {name for name in quoted(section) if re.fullmatch(r"\w+\.\w+", name)}
    assert named == files(f"src/{room}", "*.[ch]", "*.py", "*.txt")


def test_the_tests_guide_names_every_test_file():
    named = {
        name.rsplit("/", 1)[-1]
        for name in quoted(prose("tests/README.md"))
        if re.fullmatch(r"(c/|cases/|interop/)?\w+\.(c|h|py)", name)
    }
    there = files("tests", "*.py") | files("tests/c", "*.[ch]")
    assert named == there | files("tests/cases", "*.py") | files(
        "tests/interop", "*.py"
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_exist(document):
    """A quoted path is one from the root, or from the folder that a map is about."""
    bases = [ROOT, ROOT / "src", *(ROOT / "src" / room for room in ROOMS)]
    bases += [ROOT / "tests", ROOT / "tests" / "c"]
    form = r"\.?[\w/.-]*(/|\.(c|h|py|pyi|md|toml|txt|gz))"
    paths = {name for name in quoted(prose(document)) if re.fullmatch(form, name)}
    assert paths or document in PAGES
    missing = [
        path
        for path in paths - {"/usr/local/cuda"}
        if "NAME" not in path and not any((base / path).exists() for base in bases)
    ]
    assert missing == []


# ---- names ----


@pytest.mark.parametrize("document", ["src/README.md", "tests/README.md"])
def test_quoted_identifiers_are_in_the_sources(document):
    names = {
        name
        for name in quoted(prose(document))
        if re.fullmatch(r"(gm|GM|gmpy|GMPY)_\w+", name)
    }
    text = "\n".join(path.read_text() for path in sorted(ROOT.glob("src/*/*.[ch]")))
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_tests_that_are_told_of_exist():
    named = {
        name
        for name in quoted(prose("tests/README.md"))
        if re.fullmatch(r"test_\w+", name)
    }
    text = "\n".join(path.read_text() for path in sorted(ROOT.glob("tests/test_*.py")))
    there = re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)
    assert named
    assert sorted(name for name in named if name not in there) == []


def test_the_table_of_names_is_the_public_interface():
    cells = [row[1] for row in table_rows(read("README.md"), "The names")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(names) == sorted(gpumem.__all__)


def members():
    for name in gpumem.__all__:
        thing = getattr(gpumem, name)
        yield name, thing
        if inspect.isclass(thing):
            for member, what in vars(thing).items():
                if not member.startswith("_"):
                    yield f"{name}.{member}", what


def test_everything_public_has_a_docstring():
    assert [name for name, thing in members() if not inspect.getdoc(thing)] == []


# ---- commands ----


def test_the_commands_are_those_that_ci_runs():
    commands = re.findall(r"^    (pip install .*)$", read("README.md"), re.MULTILINE)
    assert len(commands) == 2
    run = re.findall(r'^readme_command="(.*)"$', read(".ci/run"), re.MULTILINE)
    assert run == commands


def test_the_output_shown_is_what_the_replay_prints():
    (shown,) = blocks(read("README.md"), "text")
    command = re.search(r"&& python (-m gpumem replay .*)$", read("README.md"), re.M)
    printed = python(*command[1].split(), cwd=ROOT)

    def without_times(text):
        return list(takewhile(lambda line: "first pass" not in line, text.splitlines()))

    assert without_times(shown) == without_times(printed)
    assert len(shown.splitlines()) == len(printed.splitlines())


def test_the_example_runs_and_prints_what_it_says():
    (example,) = blocks(read("README.md"), "python")
    said = re.search(r"print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert python("-c", example) == said[1] + "\n"


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run_and_print_what_they_say(page):
    """One after the other, as they stand on the page."""
    examples = blocks(read(page), "python")
    said = [
        line
        for example in examples
        for line in re.findall(r"^# prints (.*)$", example, re.MULTILINE)
    ]
    assert python("-c", "\n".join(examples)).splitlines() == said


@pytest.mark.parametrize("page", PAGES)
def test_readme_leads_to_the_page(page):
    assert f"]({page})" in read("README.md")


def test_make_targets_that_are_told_of_exist():
    makefile = read("Makefile")
    for document in DOCUMENTS:
        for target in re.findall(r"\bmake ([a-z][a-z-]*)\b", read(document)):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (document, target)


# ---- environment ----


def test_the_table_of_variables_is_what_the_sources_read():
    rows = table_rows(read("README.md"), "Environment")
    named = [name for row in rows for name in quoted(row[0])]
    asked = {
        name
        for path in ROOT.glob("src/*/*.c")
        for name in re.findall(r'getenv\("(\w+)"\)', path.read_text(encoding="utf-8"))
    }
    assert sorted(named) == sorted(asked)
