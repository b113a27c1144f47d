# SPDX-License-Identifier: MIT
"""The benchmarks measure what they say: their sequences, their loops, their guard, and
the table that is made from what they find."""

import gc
import json
import os
import struct
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

import gpumem

ROOT = Path(__file__).resolve().parent.parent

if not (ROOT / "benchmarks" / "__main__.py").is_file():
    pytest.skip("needs benchmarks/ beside tests/", allow_module_level=True)

sys.path.append(str(ROOT))

from benchmarks import (  # noqa: E402 - of this tree, through the line above
    __main__ as command,
)
from benchmarks import (  # noqa: E402
    callgrind,
    contenders,
    flat,
    guard,
    hot,
    libraries,
    peers,
    plan,
    plots,
    replays,
    report,
    sequences,
    table,
    timing,
    turns,
)
from benchmarks.programs import Unavailable  # noqa: E402

PACE = timing.Pace(rounds=3, sample_ns=0, budget_ns=0)
PLAN = plan.Plan(quick=True, pace=PACE, seed=1, peers={})

SMALL = sequences.Sequence(
    "small",
    [
        (0, [(0, 1000, True), (1, 512, True)]),
        (7, [(0, 1000, False), (0, 2000, True)]),
        (0, [(1, 512, False), (0, 2000, False)]),
    ],
    places=2,
    peak=2512,
)

# ---- random numbers: what a C++ program printed that used libstdc++ ----


def test_the_engine_is_the_one_of_the_standard():
    engine = sequences.MinstdRand0()
    drawn = [engine() for _ in range(10_000)]
    assert drawn[:5] == [16807, 282475249, 1622650073, 984943658, 1144108930]
    assert drawn[-1] == 1043618065  # which the C++ standard names


@pytest.mark.parametrize(
    ("high", "drawn"),
    [
        (1 << 20, [9, 137995, 792697, 481165, 558920, 229708]),
        (64 << 20, [543, 9112105, 52343551, 31772377, 36906740, 15168106]),
        # Draws again what would make some sizes likelier than others.
        (1 << 30, [16807, 282475249, 984943658, 470211272, 101027544, 823564440]),
        # More than the engine has at once: two draws a number.
        (
            4 << 30,
            [282475249, 2617694918, 1457850878, 3262921811, 1137522503, 2291026258],
        ),
    ],
)
def test_a_range_of_integers_is_made_as_libstdc_does(high, drawn):
    random = sequences.MinstdRand0()
    assert [random.uniform(1, high) for _ in drawn] == drawn


@pytest.mark.parametrize(
    ("count", "most", "live", "peak", "digest"),
    [
        (1000, 1, 638, 323760572, 10077602396404881236),
        (1000, 64, 528, 16777102043, 12664258001669505708),
        (1000, 4096, 15, 16775344215, 7733485841864464498),
        (10_000, 64, 634, 16777214948, 14379559505564958698),
    ],
)
def test_random_allocations_are_rmms(count, most, live, peak, digest):
    """Against a C++ program of the same rules: all sizes in their order, by digest."""
    sequence = sequences.random_allocations.__wrapped__(count, most)
    ((stream, events),) = sequence.runs
    found = 0
    for _, size, taking in events:
        found = (found * 1000003 + (size if taking else ~size)) % (1 << 64)
    assert (stream, found) == (0, digest)
    assert (sequence.places, sequence.peak) == (live, peak)
    assert sequence.events == 2 * count
    check_balanced(sequence)


def check_balanced(sequence):
    live = {}
    for _, events in sequence.runs:
        for place, size, taking in events:
            if taking:
                assert place not in live
                live[place] = size
            else:
                assert live.pop(place) == size
    assert live == {}


def test_a_trace_gives_everything_back_in_the_end():
    """The counts are those that benchmarks/traces/README.md tells."""
    sequence = sequences.of_trace("gpt2_train")
    check_balanced(sequence)
    assert sequence.events == 34_322 + 2
    assert sequence.places == 17_162
    assert round(sequence.peak / (1 << 20), 1) == 7168.6
    assert sequences.of_trace("prefetch_two_streams").streams[0] == 0


# ---- loops ----


class Notes:
    """A contender's functions, which write down how they are called."""

    def __init__(self):
        self.calls = []

    def take(self, size, stream):
        self.calls.append(("take", size, stream))
        return len(self.calls)

    def give(self, block, size, stream):
        self.calls.append(("give", size, stream))

    def lanes(self, numbers):
        return {
            n: (f"s{n}", lambda n=n: self.calls.append(("use", n))) for n in numbers
        }

    def contender(self):
        names = {"take": self.take, "give": self.give}
        return contenders.Contender(
            *("notes", "take(size, stream)", "give({block}, size, stream)", names, int),
            lanes=self.lanes,
        )


def test_a_sequence_is_replayed_in_its_order_on_its_streams():
    notes = Notes()
    case = replays.replay_case(notes.contender(), SMALL)
    assert case.events == 6
    assert case.timed(1) > 0
    assert notes.calls == [
        ("use", 0),
        ("take", 1000, "s0"),
        ("take", 512, "s0"),
        ("use", 7),
        ("give", 1000, "s7"),
        ("take", 2000, "s7"),
        ("use", 0),
        ("give", 512, "s0"),
        ("give", 2000, "s0"),
    ]


def test_a_pair_is_one_request_and_one_free():
    notes = Notes()
    case = hot.pair_case(notes.contender(), 4096)
    case.timed(2)
    assert notes.calls[1:] == [("take", 4096, "s0"), ("give", 4096, "s0")] * 2


def test_what_is_replaced_is_given_back_with_its_own_size():
    notes = Notes()
    crowd = hot.Crowd(notes.contender(), 5, seed=1)
    assert len(crowd.blocks) == len(crowd.sizes) == 5
    sizes = list(crowd.sizes)
    notes.calls.clear()
    case = hot.replacing_case(notes.contender(), crowd, [(3, 700), (3, 800)])
    case.timed(1)
    assert notes.calls == [
        ("give", sizes[3], "s0"),
        ("take", 700, "s0"),
        ("give", 700, "s0"),
        ("take", 800, "s0"),
    ]


def test_cases_take_turns_and_figures_are_medians_of_rounds():
    turns = []

    def runs(name, times):
        times = iter(times)

        def timed(count):
            turns.append(name)
            return next(times) * count

        return timed

    # The first two of each are the warming up.
    slow = timing.Case("slow", runs("slow", [9, 8, 40, 10, 60]), events=2)
    base = timing.Case("gpumem", runs("base", [9, 8, 4, 5, 2]), events=2)
    timing.measure([slow, base], PACE)
    assert turns == ["slow"] * 2 + ["base"] * 2 + ["slow", "base"] * 3
    assert slow.samples == [20, 5, 30]
    assert timing.ratio(slow, base) == 10  # of 10, 2 and 30
    row = plan.row_of("b", "c", "ns", slow, None, base)
    assert (row.median, row.low, row.high, row.over_gpumem) == (20, 5, 30, 10)


def test_what_takes_too_long_is_sampled_once():
    pace = replace(PACE, patience=1e-6)
    spans = iter([1_001])
    slow = timing.Case("slow", lambda count: next(spans), events=2)
    base = timing.Case("gpumem", lambda count: 1_000 * count)
    timing.measure([slow, base], pace)
    assert slow.samples == [500.5]
    assert base.samples == [1_000] * 3
    assert not slow.error


def test_the_collector_is_left_as_it_was():
    import gc

    assert gc.isenabled()
    with timing.quiet():
        assert not gc.isenabled()
    assert gc.isenabled()


# ---- the guard ----


def test_what_is_right_passes():
    made = contenders.make_gpumem()
    assert guard.verify(made, SMALL) == "no overlap, no leak"
    made.close()


def address_of(addresses):
    """A contender whose blocks lie at `addresses`, in turn."""
    addresses = iter(addresses)
    return contenders.Contender(
        "wrong", "take()", "", {"take": lambda: next(addresses)}, lambda block: block
    )


@pytest.mark.parametrize("second", [1000, 1500, 1999, 489])
def test_blocks_that_overlap_are_seen(second):
    """The first has 1,000 bytes at 1000, the second 512."""
    with pytest.raises(guard.GuardError, match="overlaps the live one at 0x3e8"):
        guard.verify(address_of([1000, second]), SMALL)


def test_blocks_that_touch_are_right():
    assert guard.verify(address_of([1000, 2000, 2512]), SMALL) == "no overlap"
    assert guard.verify(address_of([1000, 488, 1000]), SMALL) == "no overlap"


def test_nothing_keeps_what_a_contender_names(in_threads):
    """Also where an interpreter keeps functions for ever once there was a thread."""

    class Named:
        def __call__(self, size):
            return size

    in_threads(1, lambda index: None)
    named = Named()
    ended = weakref.ref(named)
    made = contenders.Contender("one", "take(size)", "", {"take": named}, None)
    take, give = made.functions()
    block = take(5, None)
    give(block, 5, None)
    assert block == 5
    del named, made, take, give
    gc.collect()
    assert ended() is None


def test_what_is_not_given_back_is_seen():
    kept = []
    made = contenders.make_gpumem()
    made.take = "keep(malloc(size))"
    made.names["keep"] = lambda block: kept.append(block) or block
    with pytest.raises(guard.GuardError, match="3584 bytes are still used"):
        guard.verify(made, SMALL)
    kept.clear()


def test_a_pool_that_keeps_memory_when_closed_is_seen():
    made = contenders.make_gpumem()
    block = made.names["malloc"](512)
    with pytest.raises(RuntimeError, match="512 bytes are still held"):
        made.close()
    del block


def test_the_verdict_is_in_the_row(monkeypatch):
    monkeypatch.setattr(replays, "verify", lambda contender, sequence: 1 / 0)
    rows = list(replays.duels(PLAN, "b4", SMALL, {}, first=True))
    notes = {row.who: row.note for row in rows if row.case == "small"}
    assert notes["gpumem"] == "WRONG: division by zero"
    assert command.is_wrong(rows[0])


# ---- peers that fail ----


def broken(room=None):
    raise ImportError("no such library")


def tired(room=None):
    """Serves three requests, then no more."""
    served = iter(range(3))
    return contenders.Contender(
        *("tired", "take()", "", {"take": lambda: next(served) * 4096 + 1}, int)
    )


def test_a_peer_that_fails_is_a_row_with_its_error():
    others = {"broken": broken, "tired": tired}
    rows = list(replays.duels(PLAN, "b3", SMALL, others, first=False))
    found = {row.who: row for row in rows}
    assert list(found) == ["gpumem", "object()", "broken", "tired"]
    assert found["broken"].error == "ImportError: no such library"
    assert found["tired"].error.startswith("StopIteration")
    assert found["gpumem"].median > 0 and found["gpumem"].over_object > 0
    assert found["gpumem"].samples == 3 * PACE.rounds  # one group for each
    assert not any(command.is_wrong(row) for row in rows)


def test_programs_that_computed_something_else_are_told():
    same = [(1.0).hex(), (2.0).hex(), (-4.0).hex()]
    assert libraries.difference(same, same) == "same results"
    other = [(1.0).hex(), (2.5).hex(), (-4.2).hex()]
    told = libraries.difference(other, same)
    assert told == "results differ from step 1 on, by 2.5e-01 at the most"


class Stub:
    """In place of a process: the n-th takes n milliseconds more with each step."""

    started: ClassVar[list[tuple[str, str, bool]]] = []
    asked: ClassVar[list[str]] = []

    def __init__(self, words, seconds, **environment):
        program, self.who = words[-2:]
        expandable = "PYTORCH_CUDA_ALLOC_CONF" in environment
        self.started.append((program, self.who, expandable))
        self.number, self.steps = len(self.started), 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.steps = None

    def wait_until_ready(self):
        if self.who == "gpumem, expandable":
            raise Unavailable("no room")

    def step(self):
        self.asked.append(self.who)
        self.steps += 1  # of one that was ended: an error
        result = 2.0 if self.who == "gpumem" and self.steps == 7 else 1.0
        peak = 7.5 * self.steps
        spent = float(self.number * max(self.steps - libraries.WARM_UP, 0))
        return {"ms": spent, "peak_mib": peak, "result": result.hex()}


def test_programs_take_steps_by_turns(monkeypatch):
    monkeypatch.setattr(libraries, "Stepper", Stub)
    monkeypatch.setattr(Stub, "started", [])
    monkeypatch.setattr(Stub, "asked", [])
    rows = list(libraries.gpt2(replace(PLAN, peers={"torch": None}, quick=False)))
    turn = [
        ("gpt2", "torch", False),
        ("gpt2", "torch, expandable", True),
        ("gpt2", "gpumem", False),
        ("gpt2", "gpumem, expandable", False),
    ]
    assert Stub.started == turn + turn[1:] + turn[:1] + turn[2:] + turn[:2]
    whole = ["torch", "torch, expandable", "gpumem"]
    assert Stub.asked[:35] == (whole * 12)[:35]
    assert len(Stub.asked) == 3 * 3 * 35
    time, peak = rows[:2]
    assert (time.case, time.who, time.note) == ("gpt2, time", "torch", "same results")
    # The first, the eighth and the eleventh process; 1 to 30 times their number.
    assert (time.low, time.median, time.high) == (15.5, 8 * 15.5, 11 * 15.5)
    assert time.samples == 3
    # gpumem was the third, the sixth and the ninth: the same step, the same round.
    assert time.over_gpumem == pytest.approx(11 / 9)
    assert (peak.case, peak.unit, peak.median) == ("gpt2, peak", "MiB held", 7.5 * 35)
    assert rows[4].note.startswith("results differ from step 6 on, by 1.0e+00")
    assert (rows[6].who, rows[6].error) == ("gpumem, expandable", "no room")


PROGRAM = """
import json, sys
print("ready", flush=True)
for number, line in enumerate(sys.stdin):
    if number == 2:
        sys.exit("out of steps")
    print(json.dumps({"number": number, "line": line}), flush=True)
"""


def test_a_stepper_does_a_step_when_told():
    with turns.Stepper([sys.executable, "-c", PROGRAM], 60) as process:
        process.wait_until_ready()
        assert process.step() == {"number": 0, "line": "step\n"}
        assert process.step() == {"number": 1, "line": "step\n"}
        for _ in range(2):  # the second finds a pipe that nobody reads
            with pytest.raises(Unavailable, match="out of steps"):
                process.step()


def test_a_stepper_that_hangs_is_ended():
    with turns.Stepper([sys.executable, "-c", "input()"], 0.2) as process:
        with pytest.raises(Unavailable, match="exit code -9"):
            process.wait_until_ready()
    with pytest.raises(Unavailable, match="no/such/program"):
        turns.Stepper(["no/such/program"], 1)


def test_without_a_gpu_there_are_no_peers():
    if gpumem.get_backend() == "sim":
        assert peers.installed() == {}
    assert not peers.is_installed("no_such_package.of_anyone")


# ---- the command ----


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        env={**os.environ, "GPUMEM_SIM_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_run_prints_a_table_and_saves_its_figures(tmp_path):
    done = run("--quick", "--rounds", "1", "--only", "b1replace", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "about" in done.stdout.splitlines()[1]
    assert "replacing 500 of 5,500 live" in done.stdout
    (path,) = tmp_path.glob("*.json")
    about, rows = report.load(path)
    assert about["backend"] == gpumem.get_backend()
    assert about["machine"]["commit"] and about["machine"]["date"]
    ours = [row for row in rows if row.who == "gpumem"]
    assert len(ours) == 2
    assert all(row.median > 0 and row.note == "no overlap, no leak" for row in ours)


def test_a_benchmark_that_is_not_there_is_named():
    done = run("--only", "b1,b99")
    assert done.returncode == 2
    assert "no benchmark 'b99'; there are b1," in done.stderr


def test_peers_are_chosen_by_name():
    there = {"cupy": 1, "torch": 2, "rmm pool": 3}
    both = {"cupy": 1, "rmm pool": 3}
    assert command._chosen(there, None) == there
    assert command._chosen(there, "rmm pool,cupy,cuda.core") == both
    assert command._chosen(there, "") == {}
    with pytest.raises(SystemExit, match="no peer 'cupyy'; there are cupy,"):
        command._chosen(there, "torch,cupyy")


def test_the_list_tells_everything_that_can_be_run():
    done = run("--list")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names[: len(command.BENCHMARKS)] == list(command.BENCHMARKS)
    guide = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name in command.BENCHMARKS:
        assert f"| `{name}` |" in guide


def test_a_benchmark_that_breaks_does_not_stop_the_others(monkeypatch):
    def breaks(plan):
        yield plan_row("b2", "c", "gpumem", 1.0)
        raise RuntimeError("it broke")

    def works(plan):
        yield plan_row("b7", "c", "gpumem", 1.0)

    for name, function in (("b2", breaks), ("b7", works)):
        changed = replace(command.BENCHMARKS[name], run=function)
        monkeypatch.setitem(command.BENCHMARKS, name, changed)
    rows, _ = command.run(["b2", "b7"], PLAN, lambda line: None)
    assert [(row.bench, row.error) for row in rows] == [
        ("b2", ""),
        ("b2", "RuntimeError: it broke"),
        ("b7", ""),
    ]
    assert [command.is_wrong(row) for row in rows] == [False, True, False]


def test_pictures_are_drawn_where_matplotlib_is(tmp_path):
    rows = [
        plan_row("b1", "pool, 512 B", "gpumem", 50.0),
        plan_row("b1", "pool, 1 MiB", "gpumem", 60.0),
        plan_row("b4", "gpt2_train", "gpumem", 60.0),
        plan_row("b4", "gpt2_train, first pass", "gpumem", 90.0),
    ]
    pytest.importorskip("matplotlib")
    drawn = plots.draw(rows, tmp_path, "stem", "title")
    assert [path.name for path in drawn] == ["stem_pair.svg", "stem_traces.svg"]
    assert all("<svg" in path.read_text(encoding="utf-8") for path in drawn)


# ---- the flat file, and the instruction counts ----


def test_the_flat_file_is_what_its_reader_expects(tmp_path):
    path = tmp_path / "flat"
    flat.write(SMALL, path)
    data = path.read_bytes()
    assert data[:8] == b"gmtrace1"
    assert struct.unpack("<QQ", data[8:24]) == (6, 2)
    assert len(data) == 24 + 6 * 16
    assert struct.unpack("<QIHH", data[24 + 3 * 16 :][:16]) == (2000, 0, 7, 1)


def test_more_than_a_tenth_above_the_record_is_too_much():
    record = {"exact": 100.0, "split": 200.0}
    assert callgrind.judge({"exact": 110.0, "split": 219.9}, record) == []
    (found,) = callgrind.judge({"exact": 110.1, "split": 150.0}, record)
    assert found == "exact: 110.1 instructions, recorded 100.0"


def test_the_record_has_every_way():
    for counts in callgrind.recorded().values():
        assert sorted(counts) == sorted(callgrind.WAYS)


# ---- README's table ----


def plan_row(bench, case, who, median, **others):
    return plan.Row(bench, case, who, "ns", median, median, median, 7, **others)


def test_readme_has_the_table_that_the_results_give():
    text = table.README.read_text(encoding="utf-8")
    assert table.written(text, table.lines()) == text, "run python -m benchmarks.table"


def record(folder, name, rows, date, backend="cuda", build="interpreter lock"):
    about = {
        "backend": backend,
        "build": build,
        "device": f"device of {name}",
        "machine": {"date": date},
    }
    report.save(folder / f"bench_{name}.json", report.to_json(about, rows))


def test_the_table_takes_the_newest_run_on_a_gpu(tmp_path, monkeypatch):
    def pairs(times):
        return [
            plan_row("b1", "pool, 512 B", "gpumem", 50.0, over_object=1.2),
            plan_row("b1", "pool, 1 MiB", "gpumem", 50.0, over_object=1.1),
            plan_row("b1", "pool, 512 B", "cupy", 500.0, over_gpumem=times),
        ]

    record(tmp_path, "old", pairs(8.0), "2026-01-01")
    record(tmp_path, "new", pairs(9.5), "2026-01-02")
    record(tmp_path, "sim", pairs(7.0), "2026-01-03", backend="sim")
    tails = [plan_row("b10", "t, take", "core", 50.0, extra={"p50": 50, "p99.9": 200})]
    record(tmp_path, "oldest", tails, "2025-01-01")
    crew = [plan_row("b7", "8 threads", "gpumem", 9.0, extra={"over_one_thread": 5.5})]
    record(tmp_path, "locked", crew, "2026-01-04")
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(callgrind, "RECORD", tmp_path / "none.json")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.lines()]
    assert [row[2:] for row in cells[2:]] == [
        ["9.50x", "device of new"],
        ["1.10 to 1.20x", "device of new"],
        ["4.00x", "device of oldest"],
    ]
    record(tmp_path, "free", crew, "2026-01-01", build="free-threaded")
    assert any("5.50x | device of free" in line for line in table.lines())


def test_a_result_of_another_format_is_refused(tmp_path):
    path = tmp_path / "bench_x.json"
    path.write_text(json.dumps({"format": 0, "rows": []}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"bench_x\.json is no result"):
        report.load(path)
