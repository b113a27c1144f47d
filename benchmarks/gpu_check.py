#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs everything there is on a machine with a GPU, and says in one table how it went.

    python3 benchmarks/gpu_check.py OUTDIR [PART ...] [--commit ID] [--budget SECONDS]

Parts, in this order; all when none is named:

build    setup.py build_ext --inplace, with CUDA or not at all
c        the C tests with the CUDA backend compiled in (make test-c CUDA=1)
pytest   the Python tests on the GPU (GPUMEM_BACKEND=cuda)
replay   every trace of benchmarks/traces with --verify, on the GPU and on a simulated
         device of the same size, plain, with expandable segments, and with these under
         1.03 times the peak; both must complete, and agree in every count and in where
         each block was put. Contents are verified in a pass of their own; in those that
         are compared nothing but the pool asks for anything
speed    python -m benchmarks --quick --only b1,b1replace: the hot path beside the peers
         that are installed, recorded; judged is only that no two blocks overlapped

A part that fails or runs out of time does not stop those after it. Each has a time
limit, and all together have --budget (560 s): what they leave is what a later part
gets. The end of a failed part's output is shown; all of it is in OUTDIR/log.txt.

OUTDIR also gets summary.json and summary.md (with commit, GPU, driver, versions, date),
replay.json, speed.json and pytest.xml. Exit code 0 when every part passed, else 1.

Needs a C compiler, make, a CUDA toolkit and pytest, and no network; only the standard
library is imported here, since the machine may be bare.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.facts import machine_facts  # noqa: E402 - through the line above

TRACES = ROOT / "benchmarks" / "traces"
SHOWN_LINES = 40  # of a failed part
_GRACE = 10.0  # seconds to end in

# What a replay must give on both devices alike: all but names and times.
COMPARED = (
    *("events", "allocations", "hits", "misses", "completed"),
    *("peak_requested_bytes", "peak_used_bytes", "peak_total_bytes"),
    *("upstream_allocations", "upstream_frees"),
)


class Failure(Exception):
    """A part that did not pass; the text is its result."""


class Output(NamedTuple):
    code: int
    stdout: str


class Run:
    """One run of the script: where it writes, and how much time is left."""

    def __init__(self, out: Path, log: TextIO, deadline: float) -> None:
        self.out = out
        self.log = log
        self.deadline = deadline
        self.limit = deadline  # of the part that runs now
        self.notes: list[str] = []  # of that part: what the summary says besides

    def start_part(self, seconds: float) -> None:
        self.notes = []
        self.limit = min(self.deadline, time.monotonic() + seconds)

    def command(self, words: list[str], **environment: str) -> Output:
        """Runs a command in the repository; all it prints goes to the log, and what it
        prints on stdout comes back too. Failure when the part's time is over."""
        shown = [f"{name}={value}" for name, value in environment.items()]
        print("$", *shown, shlex.join(words), file=self.log, flush=True)
        left = self.limit - time.monotonic()
        if left <= 0:
            raise Failure("no time left")
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            stdout, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            self.log.write(_end(process))
            raise Failure("ran out of time") from None
        self.log.write(stdout)
        self.log.flush()
        return Output(process.returncode, stdout)

    def must(self, words: list[str], **environment: str) -> str:
        """The same; Failure also when the command fails. Its stdout."""
        code, stdout = self.command(words, **environment)
        if code != 0:
            raise Failure(_last_line(stdout) or f"exit code {code}")
        return stdout

    def write(self, name: str, data: Any) -> None:
        text = json.dumps(data, indent=1) + "\n"
        (self.out / name).write_text(text, encoding="utf-8")


def _end(process: subprocess.Popen[str]) -> str:
    """Ends the process and all it started; what it had printed. The process itself is
    interrupted first: pytest then tells what failed until then, and writes its report.
    """
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=_GRACE)[0]
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError):  # none of the group is left
            os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=_GRACE)[0]
    except subprocess.TimeoutExpired:  # one that left the group holds the pipe
        return ""


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip(" =")[:100] if lines else ""


# ---- parts: each returns its result in a few words, or raises Failure ----


def part_build(run: Run) -> str:
    words = [sys.executable, "setup.py", "build_ext", "--inplace"]
    run.must(words, GPUMEM_CUDA="1")
    return "built"


def part_c(run: Run) -> str:
    jobs = f"-j{os.cpu_count() or 1}"
    words = ["make", jobs, "test-c", "CUDA=1", f"PYTHON={sys.executable}"]
    return _last_line(run.must(words))


def part_pytest(run: Run) -> str:
    report = run.out / "pytest.xml"
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "pytest", "tests", "-q", "-rs"]
    words += ["-p", "no:cacheprovider", f"--junitxml={report}"]
    try:
        code, stdout = run.command(words, GPUMEM_BACKEND="cuda")
    except Failure:
        if report.exists():
            run.notes += _skips_and_failures(_suites(report))
        raise
    if not report.exists():
        raise Failure(_last_line(stdout) or f"exit code {code}, no report")
    suites = _suites(report)
    run.notes += _skips_and_failures(suites)
    result = _count_tests(suites)
    if code != 0:
        raise Failure(result)
    return result


def _suites(report: Path) -> list[ElementTree.Element]:
    return list(ElementTree.parse(report).getroot().iter("testsuite"))


def _count_tests(suites: list[ElementTree.Element]) -> str:
    def total(kind: str) -> int:
        return sum(int(suite.get(kind, 0)) for suite in suites)

    failed = total("failures") + total("errors")
    passed = total("tests") - failed - total("skipped")
    return f"{passed} passed, {failed} failed, {total('skipped')} skipped"


def _skips_and_failures(suites: list[ElementTree.Element]) -> list[str]:
    """A line for each test that did not pass, with the reason it gave."""
    return [
        f"{outcome.tag} {test.get('classname')}.{test.get('name')}:"
        f" {outcome.get('message', '').partition(chr(10))[0]}"
        for suite in suites
        for test in suite.iter("testcase")
        for outcome in test
        if outcome.tag in ("skipped", "failure", "error")
    ]


def part_replay(run: Run) -> str:
    traces = sorted(TRACES.glob("*.csv.gz"))
    if not traces:
        raise Failure("there are no traces")
    memory = str(_device_memory(run))
    rows = []
    for trace in traces:
        plain = _compared(run, trace, memory)
        peak = plain["sim"].get("peak_requested_bytes", 0)
        rows += [
            plain,
            _compared(run, trace, memory, "--expandable"),
            _compared(run, trace, memory, "--expandable", "--limit", _tight(peak)),
        ]
        run.notes += [
            f"{row['trace']}: {what}" for row in rows[-3:] for what in row["wrong"]
        ]
        run.write("replay.json", [_without_placements(row) for row in rows])
    bad = [row["trace"] for row in rows if row["wrong"]]
    if bad:
        raise Failure(f"{len(bad)} of {len(rows)} replays: {', '.join(bad)}"[:100])
    return f"{len(rows)} replays verified, cuda and sim agree"


def _tight(peak: int) -> str:
    """A limit under which pages have to move."""
    return str(peak * 103 // 100)


def _compared(run: Run, trace: Path, memory: str, *how: str) -> dict[str, Any]:
    """The row of one replay, on the GPU and on a simulated device like it."""
    row: dict[str, Any] = {"trace": " ".join((trace.name.split(".")[0], *how))}
    row["cuda"] = _replay(run, trace, how, GPUMEM_BACKEND="cuda")
    row["sim"] = _replay(
        run,
        trace,
        how,
        GPUMEM_BACKEND="sim",
        GPUMEM_SIM_DEVICES="1",
        GPUMEM_SIM_MEMORY=memory,
    )
    row["wrong"] = _wrong(row["cuda"], row["sim"])
    return row


def _device_memory(run: Run) -> int:
    words = [sys.executable, "-m", "gpumem", "info", "--json"]
    info = json.loads(run.must(words, GPUMEM_BACKEND="cuda"))
    return int(info["devices"][0]["total_bytes"])


def _replay(
    run: Run, trace: Path, how: tuple[str, ...], **environment: str
) -> dict[str, Any]:
    """What the replay reports, with its exit code and where it put each block."""
    with tempfile.TemporaryDirectory() as folder:
        placements = Path(folder, "placements.csv")
        words = [sys.executable, "-m", "gpumem", "replay", str(trace.relative_to(ROOT))]
        words += [*how, "--verify", "--json", "--placements", str(placements)]
        code, stdout = run.command(words, **environment)
        found: dict[str, Any] = {"exit_code": code, "placements": ""}
        if placements.exists():
            found["placements"] = placements.read_text(encoding="ascii")
    try:
        found |= json.loads(stdout)
    except ValueError:
        found["completed"] = False
    return found


def _wrong(cuda: dict[str, Any], sim: dict[str, Any]) -> list[str]:
    """What keeps a trace from passing; empty when nothing does."""
    wrong = [
        f"{name} did not complete (exit code {report['exit_code']})"
        for name, report in (("cuda", cuda), ("sim", sim))
        if report["exit_code"] != 0 or report["completed"] is not True
    ]
    if wrong:
        return wrong
    if (cuda["backend"], sim["backend"]) != ("cuda", "sim"):
        wrong.append(f"ran on {cuda['backend']} and {sim['backend']}")
    for key in COMPARED:
        if cuda[key] != sim[key]:
            wrong.append(f"{key}: cuda {cuda[key]}, sim {sim[key]}")
    if not cuda["placements"] or cuda["placements"] != sim["placements"]:
        wrong.append("blocks were not put at the same places")
    return wrong


def _without_placements(row: dict[str, Any]) -> dict[str, Any]:
    def without(report: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in report.items() if key != "placements"}

    return {**row, "cuda": without(row["cuda"]), "sim": without(row["sim"])}


def part_speed(run: Run) -> str:
    words = [sys.executable, "-m", "benchmarks", "--quick", "--only", "b1,b1replace"]
    words += ["--out", str(run.out), "--name", "speed"]
    run.must(words, GPUMEM_BACKEND="cuda")
    data = json.loads((run.out / "speed.json").read_text(encoding="utf-8"))
    shown = [
        f"{row['who']} {row['median']:.1f} ns"
        for row in data["rows"]
        if row["case"] == "pool, 4 KiB" and row["who"] in ("object()", "gpumem")
    ]
    return ", ".join(shown)


# Seconds that each may take, when the budget allows.
PARTS: dict[str, tuple[Callable[[Run], str], float]] = {
    "build": (part_build, 150),
    "c": (part_c, 150),
    "pytest": (part_pytest, 460),
    "replay": (part_replay, 400),
    "speed": (part_speed, 120),
}


# ---- running and telling ----


def run_part(run: Run, name: str) -> dict[str, Any]:
    function, seconds = PARTS[name]
    print(f"\n==== {name} ====", file=run.log, flush=True)
    started = time.monotonic()
    mark = run.log.tell()
    run.start_part(seconds)
    try:
        result, passed = function(run), True
    except Failure as failure:
        result, passed = str(failure), False
    except Exception as error:  # a part that breaks fails; the others still run
        result, passed = f"{type(error).__name__}: {error}"[:100], False
    if not passed:
        run.log.flush()
        log = Path(run.log.name).read_text(encoding="utf-8", errors="replace")
        lines = log.encode()[mark:].decode(errors="replace").splitlines()
        print(f"---- {name}: {result}", *lines[-SHOWN_LINES:], *run.notes, sep="\n")
    return {
        "part": name,
        "passed": passed,
        "result": result,
        "seconds": round(time.monotonic() - started, 1),
        "notes": run.notes,
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a Markdown table."""
    cells = [("part", "", "result", "seconds")]
    for row in rows:
        verdict = "passed" if row["passed"] else "FAILED"
        cells.append((row["part"], verdict, row["result"], f"{row['seconds']:.1f}"))
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return lines


def write_summary(run: Run, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    run.write("summary.json", {"machine": facts, "parts": rows})
    lines = ["# All parts on a GPU", ""]
    for name, value in facts.items():
        text = ", ".join(value) if isinstance(value, list) else value
        lines.append(f"- {name}: {text or 'none'}")
    lines += ["", *table(rows), ""]
    for row in rows:
        if row["notes"]:
            lines += [f"{row['part']}:", "", *(f"- {n}" for n in row["notes"]), ""]
    (run.out / "summary.md").write_text("\n".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outdir", type=Path, metavar="OUTDIR")
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--commit", default="", help="what is being run; git says it")
    parser.add_argument("--budget", type=float, default=560, metavar="SECONDS")
    args = parser.parse_args()
    unknown = [name for name in args.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    names = [name for name in PARTS if name in args.parts or not args.parts]

    out = args.outdir.resolve()
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.budget
    facts = machine_facts(args.commit)
    rows: list[dict[str, Any]] = []
    with open(out / "log.txt", "w", encoding="utf-8") as log:
        run = Run(out, log, deadline)
        for name in names:
            rows.append(run_part(run, name))
            write_summary(run, facts, rows)
    print(f"{', '.join(facts['gpus']) or 'no GPU'}; commit {facts['commit']}")
    print("\n".join(table(rows)))
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
