# SPDX-License-Identifier: MIT
"""Instructions of a hit and a free in the C core, counted by valgrind.

    python3 -m benchmarks.callgrind [--record] [--json]

Builds benchmarks/c/hit_free.c, runs it under callgrind for each of its ways with two
counts of pairs, and divides the difference of the instructions by that of the pairs:
what is left is exact, the same on every run and every machine with that compiler.

The figures are held against those recorded in benchmarks/c/instructions.json, by the
compiler's major version: more than 110% of one is exit code 1. A compiler that has no
record is told and passes. --record writes what was counted. Without valgrind or a
compiler, exit code 2.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks import programs

RECORD = programs.ROOT / "benchmarks" / "c" / "instructions.json"
WAYS = {
    "exact": "the same again, the block has just the size",
    "split": "the same again, cut off a larger block",
    "turns": "by turns, the block has just the size",
    "cut": "by turns, cut off and joined again",
    "joined": "four blocks freed out of order",
    "crowded": "by turns, 65,536 free blocks of one size",
    "deep": "by turns, cut and joined, 65,536 of each size",
}
MOST = 1.10

_COUNTS = (2_000, 10_000)


def compiler() -> str:
    """The C compiler's name and major version: what figures depend on."""
    done = programs.run(["cc", "-v"])
    match = re.search(r"(gcc|clang) version (\d+)", done.stderr)
    return f"{match[1]} {match[2]}" if match else "unknown"


def _instructions(way: str, count: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "callgrind.out")
        program = str(programs.program("hit_free"))
        words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}"]
        done = programs.run([*words, program, way, str(count)], timeout=300)
    match = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or match is None:
        raise programs.Unavailable(
            f"valgrind failed: {programs.last_line(done.stderr)}"
        )
    return int(match[1])


def count_all() -> dict[str, float]:
    """Instructions a pair, by way; programs.Unavailable where there is no counting."""
    if shutil.which("valgrind") is None:
        raise programs.Unavailable("valgrind is not installed")
    programs.build()
    few, many = _COUNTS
    return {
        way: round(
            (_instructions(way, many) - _instructions(way, few)) / (many - few), 1
        )
        for way in WAYS
    }


def recorded() -> dict[str, dict[str, float]]:
    """Figures by compiler."""
    if not RECORD.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def judge(counted: dict[str, float], record: dict[str, float]) -> list[str]:
    """The ways that take more than they may, a sentence each."""
    return [
        f"{way}: {counted[way]:.1f} instructions, recorded {record[way]:.1f}"
        for way in counted
        if way in record and counted[way] > MOST * record[way]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--json", action="store_true", help="one object, no table")
    args = parser.parse_args()
    try:
        counted = count_all()
    except programs.Unavailable as error:
        print(f"benchmarks.callgrind: {error}", file=sys.stderr)
        return 2
    name = compiler()
    records = recorded()
    record = records.get(name, {})
    if args.json:
        print(json.dumps({"compiler": name, "instructions": counted}))
    else:
        print(f"instructions, {name}")
        for way, count in counted.items():
            before = f"recorded {record[way]:7.1f}" if way in record else "no record"
            print(f"  {WAYS[way]:45} {count:7.1f}  {before}")
    if args.record:
        text = json.dumps({**records, name: counted}, indent=1, sort_keys=True)
        RECORD.write_text(text + "\n", encoding="utf-8")
        return 0
    if not record:
        print(f"nothing is recorded for {name}: see --record", file=sys.stderr)
    wrong = judge(counted, record)
    print("\n".join(wrong), end="\n" * bool(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
