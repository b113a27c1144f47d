# SPDX-License-Identifier: MIT
"""`replay --smallest-limit`: the search by itself, against a model that tries every
limit, and what the command line tells."""

import json
import random

import pytest

import gpumem
import oracle
from gpumem import _replay, _smallest
from gpumem._smallest import PAGE, Smallest, smallest_limit
from gpumem._trace import read_trace
from test_replay import SMALL, TRACES, gpumem_command

HEADER = "op,id,size,stream,us\n"


def made_trace(folder, seed, streams=2):
    """Random blocks of up to eight pages, at most a dozen at once."""
    dice = random.Random(seed)
    live, lines, made = {}, [], 0
    for us in range(300):
        if live and (len(live) > 11 or dice.random() < 0.45):
            number = dice.choice(sorted(live))
            size, stream = live.pop(number)
            lines.append(f"f,{number},{size},{stream},{us}\n")
        else:
            live[made] = dice.randrange(1, 8 * PAGE), dice.randrange(streams)
            size, stream = live[made]
            lines.append(f"a,{made},{size},{stream},{us}\n")
            made += 1
    path = folder / f"{seed}.csv"
    path.write_text(HEADER + "".join(lines))
    return read_trace(path)


def completes(trace, limit):
    """Whether the oracle's pool gets through."""
    try:
        oracle.replay(trace, limit=limit)
    except oracle.OutOfMemory:
        return False
    return True


@pytest.mark.once
@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_completes_and_a_page_less_does_not(tmp_path, seed):
    trace = made_trace(tmp_path, seed, streams=1)
    found = smallest_limit(trace, gpumem.MemoryPool)
    assert found.limit_bytes % PAGE == 0
    assert completes(trace, found.limit_bytes)
    assert not completes(trace, found.limit_bytes - PAGE)
    assert found.ratio == pytest.approx(found.limit_bytes / trace.peak_requested)
    for part in range(11):
        limit = trace.peak_requested * (1000 + 5 * part) // 1000
        if limit > found.limit_bytes:
            assert (limit in found.failures) != completes(trace, limit)


@pytest.mark.once
def test_the_smallest_limit_of_a_recorded_trace():
    """As benchmarks elsewhere have it for a pool of this policy: 1.043."""
    trace = read_trace(TRACES / "gpt2_train.csv.gz")
    found = smallest_limit(trace, gpumem.MemoryPool)
    assert found.ratio == pytest.approx(1.043, abs=0.001)
    assert completes(trace, found.limit_bytes)
    assert not completes(trace, found.limit_bytes - PAGE)


def test_a_limit_that_just_holds_the_peak_can_be_it(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text(HEADER + f"a,0,{4 * PAGE},0,0\nf,0,{4 * PAGE},0,1\n")
    trace = read_trace(path)
    assert smallest_limit(trace, gpumem.MemoryPool) == Smallest(4 * PAGE, 1.0, ())


@pytest.mark.parametrize("answer", range(1, 40))
def test_bisecting(answer):
    asked = []

    def does(limit):
        asked.append(limit)
        return limit >= answer * PAGE

    assert _smallest.bisect(0, 40 * PAGE, does) == answer * PAGE
    assert len(asked) <= 6
    assert 0 not in asked  # which is no limit


def test_each_half_percent_above_is_attempted(tmp_path, monkeypatch):
    trace = made_trace(tmp_path, 1)
    peak = trace.peak_requested
    vain = [peak * 1030 // 1000, peak * 1050 // 1000]
    asked = []

    def one_pass(trace, runs, pool):
        limit = pool.get_limit()
        asked.append(limit)
        if not limit:
            return 2 * peak
        return limit if limit >= peak * 1.02 and limit not in vain else None

    monkeypatch.setattr(_replay, "peak_of_one_pass", one_pass)
    found = smallest_limit(trace, gpumem.MemoryPool)
    assert 1.02 <= found.ratio <= 1.02 + PAGE / peak
    assert found.failures == tuple(vain)
    assert asked[1:12] == [peak * part // 1000 for part in range(1000, 1051, 5)]


def test_the_first_step_that_will_do_counts_also_far_above():
    """Where 1.2 to 1.3 and 1.5 on will do, the lower ones are found."""
    peak = 1000 * PAGE

    def does(limit):
        return 1.2 * peak <= limit < 1.3 * peak or limit >= 1.5 * peak

    assert _smallest.search(peak, 2 * peak, does) == (1200 * PAGE, [])
    assert _smallest.search(peak, 2 * peak, lambda limit: limit >= peak) == (peak, [])
    assert _smallest.search(peak, peak, lambda limit: 1 / 0) == (peak, [])
    assert _smallest.search(0, 0, lambda limit: 1 / 0) == (PAGE, [])


def test_a_pool_that_holds_more_than_its_limit_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(_replay, "peak_of_one_pass", lambda *_: 100 * PAGE)
    with pytest.raises(_replay.ReplayError, match="its limit is"):
        smallest_limit(made_trace(tmp_path, 1), gpumem.MemoryPool)


def test_it_is_told_as_text_and_as_json(tmp_path):
    trace = made_trace(tmp_path, 3)
    found = smallest_limit(trace, gpumem.MemoryPool)
    command = ("replay", trace.path, "--smallest-limit", "--repeat", "1")
    environment = {"GPUMEM_BACKEND": "sim"}
    done = gpumem_command(*command, "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert list(report)[-3:] == [
        "smallest_limit_bytes",
        "smallest_limit_ratio",
        "smallest_limit_failures",
    ]
    assert report["smallest_limit_bytes"] == found.limit_bytes
    assert report["smallest_limit_ratio"] == found.ratio
    assert report["smallest_limit_failures"] == list(found.failures)
    done = gpumem_command(*command, **environment)
    assert f"{found.limit_bytes:,} bytes" in done.stdout
    assert f"{found.ratio:.3f} of requested" in done.stdout


def test_options_of_the_pool_are_those_of_each_attempt(tmp_path):
    path = tmp_path / "two.csv"
    path.write_text(HEADER + f"a,0,{3 * PAGE},0,0\na,1,{PAGE},0,1\n")
    done = gpumem_command(
        *("replay", path, "--smallest-limit", "--json"),
        *("--large-segment-size", "8MiB"),
        GPUMEM_BACKEND="sim",
    )
    report = json.loads(done.stdout)
    assert report["pool"] == "pool with large_segment_size"
    assert report["peak_total_bytes"] == 4 * PAGE
    assert report["smallest_limit_bytes"] == 4 * PAGE


def test_a_trace_that_never_completes_has_none(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(SMALL.replace("2048", str(1 << 40)))
    done = gpumem_command(
        "replay", path, "--smallest-limit", "--json", GPUMEM_BACKEND="sim"
    )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["smallest_limit_bytes"] is report["smallest_limit_ratio"] is None
    done = gpumem_command("replay", path, "--smallest-limit", GPUMEM_BACKEND="sim")
    assert "does not complete without one" in done.stdout


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        (("--limit", "1GiB"), "goes with no --limit"),
        (("--pool", "raw"), "--smallest-limit needs a pool"),
    ],
)
def test_what_it_does_not_go_with(tmp_path, option, complaint):
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    done = gpumem_command("replay", path, "--smallest-limit", *option)
    assert done.returncode == 2
    assert complaint in done.stderr


@pytest.mark.once
@pytest.mark.parametrize("name", ["cupy_mixed", "gpt2_lora_ckpt_offload"])
def test_expandable_segments_take_little_more_than_is_live(name):
    """What is found holds for each larger limit, and beats plain segments by far."""
    done = gpumem_command(
        *("replay", TRACES / f"{name}.csv.gz", "--expandable", "--smallest-limit"),
        *("--repeat", "1", "--verify", "--json"),
        GPUMEM_BACKEND="sim",
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["pool"] == "pool with expandable_segments"
    assert 1 <= report["smallest_limit_ratio"] <= 1.012
    assert report["smallest_limit_failures"] == []


@pytest.mark.parametrize("other", [("--growth", "on"), ("--max-split-size", "1MiB")])
def test_expandable_segments_go_with_no_other_kind(tmp_path, other):
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    done = gpumem_command("replay", path, "--expandable", *other, GPUMEM_BACKEND="sim")
    assert done.returncode == 2
    assert "leave out one of them" in done.stderr
