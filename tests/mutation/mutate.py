#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much the C tests notice: breaks src/core in small ways, one at a time.

    python3 tests/mutation/mutate.py [--every N] [--jobs N] [--only TEXT] [--list]
    python3 tests/mutation/mutate.py --again LOG   # those that survived before

Each mutant is one edit of one place: a comparison flipped or moved by one, a number one
higher, + for -, && for ||, a condition that is always or never so, neighbours or
operands swapped (which side of a split keeps the address), or a statement left out (a
merge, an unlock, a count). The runner of the C tests is built with it, with a check for
leaks of host memory, and with shards where the place does something only then; a mutant
is killed when a test fails or none ends for
HANG_SECONDS. What does not compile is not counted. The tests named after the file are
run before the others, for most mutants die there.

survivors.txt beside this file lists the mutants that no test can or need tell from the
original, each with the reason; they count as survivors all the same. The end of the
output names those that survived and are not listed, what is listed and is no mutant
(any more), and what is listed and was killed; its last line has the figures. Exits with
1 when less than LEAST of the mutants are killed, when one of the first two kinds is
named, or when a mutant was not reached, as after an interrupt.

Cost: about 3 s a killed mutant and 10 s a survivor, on each of the --jobs cores; works
on copies of the tree. --every N takes each N-th mutant, so that a quick look has the
same mix.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
SURVIVORS = Path(__file__).with_name("survivors.txt")
LEAST = 0.90
HANG_SECONDS = 15

# They state what must hold; the tests are what calls them.
CHECKS = ("gm_check.c", "gm_check_waits.c")

# Text that is not code, or that states what must hold rather than makes it so.
SKIPPED = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*\#(?:\\\n|[^\n])*|GM_(?:STATIC_)?ASSERT\((?:[^()]|\([^()]*\))*\)",
    re.DOTALL | re.MULTILINE,
)

BODY = re.compile(r"^\{\n.*?^\}", re.DOTALL | re.MULTILINE)  # of a function

# Pattern, replacements. Operators have spaces around them: the formatter sees to that.
TOKENS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r" < ", (" <= ", " >= ")),
    (r" <= ", (" < ", " > ")),
    (r" > ", (" >= ", " <= ")),
    (r" >= ", (" > ", " < ")),
    (r" == ", (" != ",)),
    (r" != ", (" == ",)),
    (r" && ", (" || ",)),
    (r" \|\| ", (" && ",)),
    (r" \+ ", (" - ",)),
    (r" - ", (" + ",)),
    (r" \+= ", (" -= ",)),
    (r" -= ", (" += ",)),
    (r" \|= ", (" = ",)),
    (r"\+\+", ("--",)),
    (r"--", ("++",)),
    (r"->next\b", ("->prev",)),
    (r"->prev\b", ("->next",)),
    (r"\.left\b", (".right",)),
    (r"\.right\b", (".left",)),
    (r"\b(?<!\.)[0-9]+u?\b(?!\.)", ("(\\g<0> + 1)",)),
    (r"\btrue\b", ("false",)),
    (r"\bfalse\b", ("true",)),
    (r"\bif \((?=.*\) \{$)", ("if (true || ", "if (false && ")),
)

# A whole statement on its own lines that can be left out: a call, or a count.
STATEMENT = re.compile(
    r"^[ \t]+(?!return|goto|break|continue|case|default)"
    r"(?:\(void\))?[a-z_][\w>.\-\[\]*]*"
    r"(?:\((?:[^;{}])*\)|(?:\+\+|--)|(?: [-+|]?= [^;{}]*));\n",
    re.MULTILINE,
)

# gm_block_split(block, size, tail): which part keeps the block.
SWAPS = ((r"gm_block_split\((\w+), (\w+), (\w+)\)", r"gm_block_split(\3, \2, \1)"),)


@dataclass(frozen=True)
class Mutant:
    file: str
    start: int
    end: int
    new: str
    line: int
    function: str
    old_line: str

    @property
    def name(self) -> str:
        """Says what is changed where, and stays the same when lines move."""
        change = self.new.strip() or "left out"
        return f"{self.file} {self.function}: {self.old_line} | {change}"


def function_at(text: str, offset: int) -> str:
    """The function that `offset` lies in: its name stands at the start of a line."""
    found = "-"
    for match in re.finditer(
        r"^(?:static .*\s)?\*?(\w+)\(", text[:offset], re.MULTILINE
    ):
        found = match[1]
    return found


def needs_shards(text: str, offset: int) -> bool:
    """Whether what lies there is compiled only where a pool has shards."""
    inside: list[bool] = []
    for match in re.finditer(r"^#(if|else|endif)(.*)$", text[:offset], re.MULTILINE):
        if match[1] == "endif":
            inside.pop()
        elif match[1] == "else":
            inside[-1] = False
        else:  # also #ifdef and #ifndef
            inside.append(match[2] == " GM_SHARDS")
    return any(inside)


def is_for_shards(line: str) -> bool:
    """Whether it does nothing where a pool has none."""
    return "gm_shards_" in line or "GM_SHARDS" in line


def mutants_of(path: Path) -> Iterator[Mutant]:
    text = path.read_text()
    skipped = [match.span() for match in SKIPPED.finditer(text)]
    bodies = [match.span() for match in BODY.finditer(text)]

    def mutant(start: int, end: int, new: str) -> Iterator[Mutant]:
        if not any(a <= start and end <= b for a, b in bodies):
            return
        if any(a < end and start < b for a, b in skipped):
            return
        line = text.count("\n", 0, start) + 1
        middle = start + len(text[start:end]) - len(text[start:end].lstrip())
        at = text.rfind("\n", 0, middle) + 1
        old = " ".join(text[at : text.index("\n", max(middle, end - 1))].split())
        name = str(path.relative_to(ROOT))
        yield Mutant(name, start, end, new, line, function_at(text, start), old)

    for pattern, replacements in TOKENS:
        for match in re.finditer(pattern, text, re.MULTILINE):
            for new in replacements:
                yield from mutant(*match.span(), match.expand(new))
    for pattern, new in SWAPS:
        for match in re.finditer(pattern, text):
            yield from mutant(*match.span(), match.expand(new))
    for match in STATEMENT.finditer(text):
        declares = re.match(r"\s*(?:const |struct |static |\w+ \*?\w+ =)", match[0])
        if not declares:
            yield from mutant(*match.span(), "")


def all_mutants() -> list[Mutant]:
    files = sorted((ROOT / "src/core").glob("*.[ch]"))
    return [m for path in files if path.name not in CHECKS for m in mutants_of(path)]


def compiles(tree: Path, shards: bool) -> bool:
    done = subprocess.run(
        ["make", "-s", "DEBUG=1", "SAN=leak", f"SHARDS={int(shards)}", runner(shards)],
        cwd=tree,
        capture_output=True,
        timeout=600,
        start_new_session=True,  # an interrupt is this program's alone
    )
    return done.returncode == 0


def runner(shards: bool) -> str:
    return f"build/c/leak{'-shards' if shards else ''}/runner"


def passes(tree: Path, shards: bool, tests: str = "") -> bool:
    """Whether none of the tests whose name contains `tests` fails or hangs."""
    process = subprocess.Popen(
        [tree / runner(shards), tests],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(HANG_SECONDS, process.kill)
    timer.start()
    try:
        last = ""
        for last in process.stdout:
            timer.cancel()
            if last.startswith("FAIL"):
                return False
            timer = threading.Timer(HANG_SECONDS, process.kill)
            timer.start()
        return ", 0 failed, " in last  # its closing line; without it, it was killed
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def verdict(tree: Path, mutant: Mutant) -> str:
    path = tree / mutant.file
    text = path.read_text()
    shards = needs_shards(text, mutant.start) or is_for_shards(mutant.old_line)
    path.write_text(text[: mutant.start] + mutant.new + text[mutant.end :])
    try:
        if not compiles(tree, shards):
            return "does not compile"
        nearest = path.stem.removeprefix("gm_").removesuffix("_private") + "_"
        survived = passes(tree, shards, nearest) and passes(tree, shards)
        return "SURVIVED" if survived else "killed"
    except subprocess.TimeoutExpired:
        return "does not compile"
    finally:
        path.write_text(text)


def work(tree: Path, queue: "SimpleQueue[Mutant]", results: dict[Mutant, str]) -> None:
    """One worker: a copy of the tree, and mutants until there are none. What it cannot
    do stays in the queue, and counts as not reached."""
    for folder in ("src", "tests/c"):
        shutil.copytree(ROOT / folder, tree / folder)
    shutil.copy(ROOT / "Makefile", tree)
    for shards in (False, True):
        if not compiles(tree, shards) or not passes(tree, shards):
            print("the C tests do not pass without any mutant", file=sys.stderr)
            return
    while True:
        try:
            mutant = queue.get_nowait()
        except Empty:
            return
        results[mutant] = verdict(tree, mutant)
        print(f"{results[mutant]:16}  {mutant.line:4}  {mutant.name}", flush=True)


def survived_before(log: Path) -> set[str]:
    """The names in the output of an earlier run."""
    found = re.findall(r"^SURVIVED +\d+  (.*)$", log.read_text(), re.MULTILINE)
    return set(found)


def listed_survivors() -> set[str]:
    lines = SURVIVORS.read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", "    "))}


def empty(queue: "SimpleQueue[Mutant]") -> None:
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass


def run(mutants: list[Mutant], jobs: int) -> dict[Mutant, str]:
    """The verdicts, as far as they were reached."""
    queue: SimpleQueue[Mutant] = SimpleQueue()
    results: dict[Mutant, str] = {}
    for mutant in mutants:
        queue.put(mutant)
    with tempfile.TemporaryDirectory() as scratch:
        workers = [
            threading.Thread(target=work, args=(Path(scratch, str(i)), queue, results))
            for i in range(jobs)
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except KeyboardInterrupt:
            empty(queue)  # each worker ends with the mutant it is at
            for worker in workers:
                worker.join()
    return results


def report(mutants: list[Mutant], results: dict[Mutant, str]) -> bool:
    """Prints the end of the output; whether all is well."""
    listed = listed_survivors()
    survivors = [m.name for m, result in results.items() if result == "SURVIVED"]
    unlisted = [name for name in survivors if name not in listed]
    stale = sorted(listed - {mutant.name for mutant in all_mutants()})
    killed = [m.name for m, result in results.items() if result == "killed"]
    counted = len(killed) + len(survivors)
    share = len(killed) / counted if counted else 0.0
    missed = len(mutants) - len(results)
    for name in unlisted:
        print(f"not listed: {name}")
    for name in stale:
        print(f"listed, and no mutant: {name}")
    for name in sorted(listed.intersection(killed).difference(survivors)):
        print(f"listed, and killed: {name}")
    print(
        f"{len(killed)} of {counted} killed ({share:.1%}); {len(survivors)} survived, "
        f"{len(unlisted)} of them not listed; "
        f"{len(results) - counted} did not compile; {missed} not reached"
    )
    return share >= LEAST and not unlisted and not stale and not missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--every", type=int, default=1, help="take each N-th mutant")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--only", default="", help="those whose name contains it")
    parser.add_argument("--again", type=Path, help="those that survived in that log")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    args = parser.parse_args()
    mutants = [m for m in all_mutants() if args.only in m.name]
    if args.again:
        before = survived_before(args.again)
        mutants = [m for m in mutants if m.name in before]
    mutants = mutants[:: args.every]
    if args.list:
        print("\n".join(m.name for m in mutants))
        return 0
    return 0 if report(mutants, run(mutants, args.jobs)) else 1


if __name__ == "__main__":
    sys.exit(main())
