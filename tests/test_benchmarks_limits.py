# SPDX-License-Identifier: MIT
"""The benchmarks about memory: limits that are searched for, passes under limits,
contenders in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

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
    children,
    comb,
    contenders,
    plan,
    plots,
    report,
    sequences,
    table,
    timing,
    within,
)
from gpumem._smallest import PAGE, smallest_limit  # noqa: E402
from gpumem._trace import read_trace  # noqa: E402

MIB = 1 << 20


def sequence(*events):
    """On the default stream, of (place, bytes, whether it allocates)."""
    places = 1 + max(place for place, _, _ in events)
    live, peak, sizes = 0, 0, {}
    for place, size, taking in events:
        live += size if taking else -sizes[place]
        sizes[place] = size
        peak = max(peak, live)
    return sequences.Sequence("made", [(0, list(events))], places, peak)


# 8 MiB, then two of 5 MiB, of which one is cut off those: 13 MiB where 10 are live.
STEPPED = sequence(
    *((0, 8 * MIB, True), (0, 8 * MIB, False), (1, 5 * MIB, True)),
    *((2, 5 * MIB, True), (1, 5 * MIB, False), (2, 5 * MIB, False)),
)


def row(bench, case, who, median, **more):
    return plan.Row(bench, case, who, "", median=median, **more)


# ---- passes ----


def test_a_pass_gives_everything_back_also_where_memory_runs_out():
    made = contenders.make_gpumem()
    assert len(within.one_pass(made, STEPPED, 3)) == 3
    made.limit(9 * MIB)
    with pytest.raises(within.Short):
        within.one_pass(made, STEPPED)
    assert made.used() == 0
    made.close()


def test_other_errors_are_not_taken_for_want_of_memory():
    made = contenders.make_gpumem()
    made.names["malloc"] = lambda size: 1 / 0
    with pytest.raises(ZeroDivisionError):
        within.one_pass(made, STEPPED)
    made.close()


def test_what_runs_out_has_its_blocks_given_back_by_address():
    """Those alone that were not given back before."""
    given, taken = [], []

    class OutOfMemoryError(Exception):
        pass

    def take(size):
        if len(taken) - len(given) > 1:
            raise OutOfMemoryError
        taken.append(size)
        return 4096 * len(taken)

    names = {"take": take, "give": given.append}
    made = contenders.Contender("raw", "take(size)", "give({block})", names, int)
    with pytest.raises(within.Short):
        within.one_pass(
            made,
            sequence(
                *((0, 512, True), (0, 512, False), (1, 512, True), (2, 512, True)),
                (3, 512, True),
            ),
        )
    assert given[0] == 4096 and sorted(given) == [4096, 8192, 12288]


# ---- b5 ----


def test_the_smallest_limit_is_that_of_the_command_line():
    trace = read_trace(sequences.trace_path("gpt2_train"))
    expected = smallest_limit(trace, gpumem.MemoryPool)
    found = within.smallest_row(
        "gpumem", contenders.make_gpumem, sequences.of_trace("gpt2_train")
    )
    assert found.extra["limit_bytes"] == expected.limit_bytes
    assert found.median == pytest.approx(expected.ratio, abs=1e-6)


def test_the_smallest_limit_of_a_made_sequence():
    found = within.smallest_row("gpumem", contenders.make_gpumem, STEPPED)
    assert found.extra == {"limit_bytes": 7 * PAGE}  # 12 MiB do not do
    assert found.median == 1.4


# ---- b6 ----


def test_speed_is_told_where_the_limit_lets_it():
    made = contenders.make_gpumem
    rows = list(within._under("gpumem", made, STEPPED, 0.0, 2, [100.0]))
    assert [found.case for found in rows] == ["made, held", "made, first pass", "made"]
    assert rows[0].median == 1.3
    assert rows[2].note == "no overlap, no leak"
    assert rows[2].over_object == rows[2].median / 100
    (short,) = within._under("gpumem", made, STEPPED, 0.9, 2, [])
    assert short.error == plan.DOES_NOT_COMPLETE
    assert short.case == "made, limit 0.90"
    assert not command.is_wrong(short)


def test_rows_of_a_case_stand_together_with_their_ratio():
    rows = [row("b6", "a", "gpumem", 2.0), row("b6", "b", "gpumem", 3.0)]
    rows += [row("b6", "a", "torch", 4.0), row("b6", "b", "torch", None, error="no")]
    found = list(within._by_case(iter(rows)))
    assert [(found.case, found.who) for found in found] == [
        *(("a", "gpumem"), ("a", "torch"), ("b", "gpumem"), ("b", "torch")),
    ]
    assert [found.over_gpumem for found in found] == [1.0, 2.0, 1.0, None]


# ---- processes ----


def test_a_process_for_each_and_its_rows():
    """Where there is no GPU gpumem alone; one trace, and the error of one that ends."""
    pace = timing.Pace(1, 0, 0)
    made = plan.Plan(True, pace, 1, {}, ("gpt2_train",))
    rows = list(children.rows_of_all(made, "b5"))
    assert {found.who for found in rows} == {
        name for name in children.kinds() if name.startswith("gpumem")
    }
    assert all(found.case == "gpt2_train" and found.median > 1 for found in rows)
    broken = list(children.rows_of_all(made, "b99"))
    assert all("KeyError" in found.error for found in broken)
    assert all(command.is_wrong(found) for found in broken)


def test_torch_has_two_modes_by_its_variable():
    kinds = children.kinds()
    assert kinds["torch"].environment == {}
    assert kinds["torch, expandable"].environment == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
    }
    assert kinds["torch"].make is kinds["torch, expandable"].make


def test_a_trace_that_is_not_there_is_named():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--traces", "gpt5"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no trace 'gpt5'; there are cupy_mixed" in done.stderr


# ---- b6comb ----


def test_marks_are_at_both_ends_and_around_each_border():
    border = 2 * MIB
    assert list(comb.places(border, border)) == [0, border - 8]
    assert list(comb.places(3 * MIB, 4 * MIB)) == [
        *(0, MIB - 8, MIB, 3 * MIB - 8, 3 * MIB, 4 * MIB - 8),
    ]
    marks = {comb.mark(number, offset) for number in (0, 1) for offset in (0, 8)}
    assert len(marks) == 4 and all(len(mark) == 8 for mark in marks)


def test_a_comb_in_the_simulated_device():
    """Of 512 pages 5 are left alone and 507 make the blocks, of which 254 stay; a
    device in which ranges lie in one piece has only the gaps for a plain pool."""
    made = plan.Plan(True, timing.Pace(1, 0, 0), 1, {})
    rows = children.rows_of_all(
        made, "b6comb", GPUMEM_BACKEND="sim", GPUMEM_SIM_MEMORY="1GiB"
    )
    found = {(row.who, row.case[:3]): row for row in rows}
    paged = found["gpumem, expandable", "48%"]
    assert (paged.error, paged.note, paged.samples) == ("", "contents intact", 1)
    assert found["gpumem", "48%"].error == plan.DOES_NOT_COMPLETE
    for who, pages in (("gpumem", 8), ("gpumem, expandable", 258)):
        there = pages * PAGE
        assert found[who, "52%"].extra == {"could_be_had": there, "served": there}
    for who in ("gpumem", "gpumem, expandable"):
        row = found[who, "52%"]
        assert row.note.startswith("Out of memory: 551,550,976 bytes")
        assert f"{row.extra['could_be_had']:,}" in row.note


class Slices:
    """Memory that is handed out where `offsets` say, whatever lies there, in blocks of
    at most `above` bytes."""

    def __init__(self, offsets, above=33 * PAGE):
        self.memory = gpumem.malloc(98 * PAGE)
        self.offsets = list(offsets)
        self.above = above

    def take(self, size):
        if size > self.above:
            raise gpumem.OutOfMemoryError(size, 0)
        return self.memory.ptr + self.offsets.pop(0)

    def comb(self):
        names = {"take": self.take, "drop": lambda block: None}
        return comb.Comb(
            contenders.Contender("bad", "take(size)", "drop({block})", names, int),
            comb.BLOCKS,
        )


TEETH = range(0, comb.BLOCKS * PAGE, PAGE)


def test_a_large_block_over_another_one_is_found_out():
    told = row("b6comb", "", "bad", None)
    assert comb.fitting(Slices([*TEETH, 33 * PAGE]).comb(), told) > 0
    assert told.note.startswith("WRONG: block 33 has ")
    assert command.is_wrong(told)


def test_what_cannot_be_served_must_be_refused():
    told = row("b6comb", "", "bad", None)
    assert comb.exceeding(Slices(TEETH, above=32 * PAGE).comb(), told) > 0
    assert told.note.startswith("Out of memory: 69,206,016 bytes")
    assert not command.is_wrong(told)
    assert comb.exceeding(Slices([*TEETH, 64 * PAGE]).comb(), told) is None
    assert command.is_wrong(told)


def test_what_could_be_had_is_asked_for(monkeypatch):
    """A thousandth less each time, which is a driver's own; not for ever."""
    monkeypatch.setattr(comb, "is_short", lambda error: True)
    named = 33_000_000

    class Refusal(Exception):
        largest_available_block = named

    monkeypatch.setattr(gpumem, "OutOfMemoryError", lambda size, total: Refusal("no"))
    for most, served in ((named - 40_000, named - 66_000), (32_000_000, 0)):
        told = row("b6comb", "", "bad", None)
        comb.exceeding(Slices([*TEETH, 65 * PAGE], above=most).comb(), told)
        assert told.extra == {"could_be_had": named, "served": served}
        assert command.is_wrong(told) == (not served)


# ---- what is made of the rows ----


def told(measure, rows):
    (line,) = [line for line in table.LINES if line.measure.startswith(measure)]
    return line.tell([found for found in rows if found.bench == line.bench])


def test_lines_about_limits():
    ours, theirs = "gpumem, expandable", "torch, expandable"
    rows = [
        *(row("b5", "a", ours, 1.01), row("b5", "b", ours, 1.03)),
        *(row("b5", "a", theirs, 1.02), row("b5", "b", theirs, 1.02)),
        *(row("b6", "a, held", ours, 1.02), row("b6", "a", ours, 50.0)),
    ]
    assert told("smallest limit", rows) == "1.010 to 1.030, 1.020 mean"
    assert told("the same, no more than with PyTorch's", rows) == (
        "1 of 2; 1.010 times as much at most"
    )
    assert told("the same, no more than with CuPy's", rows) is None
    assert told("held at the most", rows) == "1.020 to 1.020, 1.020 mean"


def test_lines_about_speed_under_a_limit_and_giving_back():
    case = "a, limit 1.05"
    rows = [
        row("b6", case, "gpumem, expandable", 90.0, over_object=3.0),
        row("b6", case, "torch, expandable", 900.0, over_object=21.0),
        row("b6", case, "torch", 800.0, over_object=18.0),
        row("b6", "b, limit 1.05", "gpumem, expandable", 90.0, over_object=3.0),
        row("b9", "behind a kernel on another stream", "gpumem", 58.0),
        row("b9", "behind a kernel on another stream", "gpumem, expandable", 1.25),
    ]
    assert told("recorded traces, warm, at a limit of 1.05", rows) == "6.00x"
    assert told("the same at 1.03", rows) is None
    assert told("giving back", rows) == "1.25 ms; 58 ms with plain segments"


def test_line_about_the_first_pass():
    rows = [
        row("b6", "a, first pass", "gpumem, expandable", 90.0, over_object=20.0),
        row("b6", "a, first pass", "cupy", 80.0, over_object=25.0),
        row("b6", "b, first pass", "gpumem, expandable", 50.0, over_object=10.0),
        row("b6", "b, first pass", "cupy", 40.0, over_object=8.0),
        row("b6", "b, first pass", "torch", 4.0, over_object=1.0),
        row("b6", "b", "cupy", 400.0, over_object=80.0),
    ]
    assert told("recorded traces, first pass", rows) == "0.80 to 1.25x"


def test_line_about_pieces():
    who, could = "gpumem, expandable", {"could_be_had": 3 << 29}
    case = "% of the device, half of it free"
    fits = row("b6comb", f"48{case}", who, 123.4, note="contents intact")
    exceeds = row("b6comb", f"52{case}", who, 150.0, extra=could)
    measure = "every other 64th of the card"
    assert told(measure, [fits, exceeds]) == (
        "123 ms, contents intact; of 52% 1.5 GiB named"
    )
    assert told(measure, [exceeds]) is None


def test_lines_about_programs():
    def rows_of(who, peak, spent):
        return [
            row("b14gpt2", "gpt2, time", who, 77.0, over_gpumem=spent),
            row("b14gpt2", "gpt2, peak", who, peak),
        ]

    theirs = rows_of("torch", 300.0, 1.0) + rows_of("torch, expandable", 200.0, 1.25)
    ours = rows_of("gpumem", 100.0, 0.5) + rows_of("gpumem, expandable", 190.0, 1.05)
    assert told("training GPT-2", theirs + ours) == "0.950x, 1.050x"
    assert told("training GPT-2", ours) is None


def test_small_ratios_are_told_to_the_thousandth():
    assert report.figure(1.0437) == "1.044"
    assert report.figure(12.345) == "12.3"
    assert report.figure(None) == ""


def test_pictures_of_limits(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        *(row("b5", "gpt2_train", "gpumem", 1.04), row("b5", "gpt2_train", "cupy", 3)),
        row("b6", "gpt2_train, held", "gpumem", 1.05),
        row("b6", "gpt2_train, limit 1.05", "gpumem", 60.0),
    ]
    drawn = plots.draw(rows, tmp_path, "stem", "title")
    assert [path.name for path in drawn] == [
        *("stem_limits.svg", "stem_held.svg", "stem_tight.svg"),
    ]


def test_parts_of_one_commit_are_told_together():
    def run(commit, *rows):
        about = {"machine": {"commit": commit}, "device": "H", "build": "b"}
        return about, list(rows)

    who = "gpumem, expandable"
    recorded = [
        run("new", row("b5", "a", who, 1.01), row("b6", "a, held", who, 1.02)),
        run("new", row("b5", "b", who, 1.03), row("b5", "a", who, 9.0)),
        run("old", row("b5", "c", who, 9.0)),
    ]
    (line,) = [line for line in table.LINES if line.measure.startswith("smallest")]
    assert table._told(line, recorded) == ("1.010 to 1.030, 1.020 mean", "H")
