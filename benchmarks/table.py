# SPDX-License-Identifier: MIT
"""README's table of results, made from what was recorded.

    python3 -m benchmarks.table [--check]

Takes the newest run on a GPU in benchmarks/results/ that has the benchmark of a line,
and the recorded instruction counts, and writes the lines between the two markers of
README.md; --check only says whether they stand there. A line for which nothing was
recorded is not in the table; a figure that misses its target is, as it is.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import callgrind, report
from benchmarks.lines import LINES, Line
from benchmarks.plan import Row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- made by python3 -m benchmarks.table -->"
END = "<!-- end of what is made -->"


# ---- the table ----


def runs() -> list[tuple[dict[str, Any], list[Row]]]:
    """The recorded runs on a GPU, the newest first."""
    found = [report.load(path) for path in RESULTS.glob("bench_*.json")]
    found = [run for run in found if run[0]["backend"] == "cuda"]
    return sorted(found, key=lambda run: str(run[0]["machine"]["date"]), reverse=True)


Run = tuple[dict[str, Any], list[Row]]


def _together(first: Run, others: list[Run], bench: str) -> list[Row]:
    """The rows of a benchmark in a run and in older ones of the same commit and device:
    what takes long is measured in parts. Of a row that several have, the newest."""
    about, _ = first
    rows: dict[tuple[str, str], Row] = {}
    for other, some in [first, *others]:
        if other["machine"].get("commit") == about["machine"].get("commit") and (
            other["device"],
            other["build"],
        ) == (about["device"], about["build"]):
            for row in some:
                if row.bench == bench:
                    rows.setdefault((row.case, row.who), row)
    return list(rows.values())


def _told(line: Line, recorded: list[Run]) -> tuple[str, str] | None:
    """What the newest run that has it says, and on what it ran."""
    for number, run in enumerate(recorded):
        about, _ = run
        if line.build in ("", about["build"]):
            text = line.tell(_together(run, recorded[number + 1 :], line.bench))
            if text is not None:
                return text, str(about["device"])
    return None


# Instructions of a hit and the free after it, by the ways of callgrind.py.
TARGETS = {
    "exact": "100 or less",
    "turns": "100 or less",
    "split": "160 or less",
    "cut": "160 or less",
    "deep": "bounded",
}


def lines() -> list[str]:
    """The lines of the table; none where nothing was recorded."""
    recorded = runs()
    body = []
    for line in LINES:
        found = _told(line, recorded)
        if found is not None:
            body.append((line.measure, line.target, *found))
    for compiler, counts in sorted(callgrind.recorded().items()):
        for way, target in TARGETS.items():
            measure = f"instructions in the core: {callgrind.WAYS[way]}"
            body.append((measure, target, f"{counts[way]:.0f}", compiler))
    if not body:
        return []
    head = [("measure", "target", "measured", "on"), ("---", "---", "---", "---")]
    return ["| " + " | ".join(cells) + " |" for cells in [*head, *body]]


def written(text: str, table: list[str]) -> str:
    """`text` with `table` between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md lacks the markers {BEGIN} and {END}")
    return "\n".join([before + begin, "", *table, "", end + after])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    new = written(text, lines())
    if args.check:
        return 0 if new == text else 1
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
