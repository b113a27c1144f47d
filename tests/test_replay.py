# SPDX-License-Identifier: MIT
"""`python -m gpumem`: the recorded traces against the oracle, and what can go wrong.

The traces run as a user runs them, each in one process of its own that times, verifies
and writes placements; what came out is then held against the oracle and against sums
taken straight from the file.
"""

import gzip
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
import oracle
from gpumem import _replay
from gpumem._trace import read_trace

TRACES = Path(__file__).parent.parent / "benchmarks" / "traces"

NAMES = (
    "cupy_mixed",
    "fasterrcnn_train",
    "four_streams",
    "gpt2_lora_ckpt_offload",
    "gpt2_train",
    "gpt2_train_varlen",
    "llama_generate",
    "prefetch_two_streams",
)

KEYS = [
    "trace",
    "backend",
    "pool",
    "events",
    "allocations",
    "peak_requested_bytes",
    "peak_used_bytes",
    "peak_total_bytes",
    "overhead",
    "hits",
    "misses",
    "upstream_allocations",
    "upstream_frees",
    "ns_per_event",
    "ns_per_event_warm",
    "completed",
]

HEADER = "op,id,size,stream,us\n"

# 2048 and 1024 live, then 512 more: with a limit of 3 KiB the third does not fit.
SMALL = HEADER + "a,0,2048,0,0\na,1,1000,1,1\na,2,512,0,2\nf,0,2048,0,3\n"


def command_environment(**changes):
    """An environment that finds the gpumem that these tests import."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.path.dirname(gpumem.__path__[0])
    env["GPUMEM_SIM_MEMORY"] = "64GiB"
    env.update(changes)
    return env


def gpumem_command(*args, **environment):
    """`python -m gpumem` with `args`."""
    return subprocess.run(
        [sys.executable, "-m", "gpumem", *map(str, args)],
        env=command_environment(**environment),
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    return path


# ---- the recorded traces ----


class Replayed:
    """One trace, through the command line and through the oracle."""

    def __init__(self, name, folder):
        self.path = TRACES / f"{name}.csv.gz"
        placements = folder / f"{name}.csv"
        done = gpumem_command(
            "replay", self.path, "--json", "--verify", "--placements", placements
        )
        assert done.returncode == 0, done.stderr
        self.report = json.loads(done.stdout)
        self.placements = placements.read_text().splitlines()
        self.oracle, self.oracle_placements = oracle.replay(read_trace(self.path))


@pytest.fixture(scope="module", params=NAMES)
def replayed(request, tmp_path_factory):
    return Replayed(request.param, tmp_path_factory.mktemp("placements"))


@pytest.mark.once
def test_every_block_lies_where_the_oracle_puts_it(replayed):
    expected = [f"{n},{serial},{at}" for n, serial, at in replayed.oracle_placements]
    assert replayed.placements[0] == "id,serial,offset"
    assert replayed.placements[1:] == expected


@pytest.mark.once
def test_the_counters_are_those_of_the_oracle(replayed):
    report, pool = replayed.report, replayed.oracle
    assert report["hits"] == pool.hits
    assert report["misses"] == report["upstream_allocations"] == pool.misses
    assert report["upstream_frees"] == pool.upstream_frees == 0
    assert report["peak_total_bytes"] == pool.peak_total


@pytest.mark.once
def test_the_peaks_are_sums_over_the_file(replayed):
    requested = used = peak_requested = peak_used = events = allocations = 0
    with gzip.open(replayed.path, "rt") as file:
        next(file)
        for line in file:
            op, _, size, _, _ = line.split(",")
            size = int(size)
            sign = 1 if op == "a" else -1
            requested += sign * size
            used += sign * (size + 511) // 512 * 512 if sign > 0 else 0
            used -= (size + 511) // 512 * 512 if sign < 0 else 0
            peak_requested = max(peak_requested, requested)
            peak_used = max(peak_used, used)
            events += 1
            allocations += sign > 0
    report = replayed.report
    assert report["events"] == events
    assert report["allocations"] == allocations
    assert report["peak_requested_bytes"] == peak_requested
    assert report["peak_used_bytes"] == peak_used
    assert report["overhead"] == pytest.approx(
        report["peak_total_bytes"] / peak_requested, abs=1e-6
    )


@pytest.mark.once
def test_the_report_has_exactly_its_keys(replayed):
    report = replayed.report
    assert list(report) == KEYS
    assert report["trace"] == str(replayed.path)
    assert report["backend"] == gpumem.get_backend()
    assert report["pool"] == "pool"
    assert report["completed"] is True
    assert report["ns_per_event"] > 0
    assert report["ns_per_event_warm"] > 0


# ---- limits ----


def test_under_a_limit_placement_still_equals_the_oracle(tmp_path):
    path = TRACES / "prefetch_two_streams.csv.gz"
    limit = 5 << 30  # without one it takes 5.7 GiB
    out = tmp_path / "placements.csv"
    done = gpumem_command(
        "replay", path, "--json", "--limit", "5GiB", "--placements", out
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    pool, placements = oracle.replay(read_trace(path), limit=limit)
    expected = [f"{number},{serial},{at}" for number, serial, at in placements]
    assert out.read_text().splitlines()[1:] == expected
    assert report["peak_total_bytes"] == pool.peak_total <= limit
    assert report["upstream_frees"] == pool.upstream_frees > 0


@pytest.mark.parametrize("as_json", [False, True])
def test_a_trace_that_does_not_fit_says_where_and_why(small, as_json):
    done = gpumem_command(
        "replay", small, "--limit", "3KiB", *(["--json"] if as_json else [])
    )
    assert done.returncode == 1
    for part in (
        "out of memory at event 2 of 4",
        "allocation 2 of 512 bytes on stream 0",
        "3048 requested bytes live",
        "holds 3072 bytes, 3072 used and 0 free, limit 3072",
    ):
        assert part in done.stderr
    if not as_json:
        assert "NOT COMPLETED" in done.stdout
        return
    report = json.loads(done.stdout)
    assert list(report) == KEYS
    assert report["completed"] is False
    assert report["ns_per_event"] is report["ns_per_event_warm"] is None
    assert report["overhead"] is None
    assert report["peak_requested_bytes"] == 3560  # what the whole trace needs
    assert report["peak_used_bytes"] == report["peak_total_bytes"] == 3072
    assert (report["hits"], report["misses"]) == (0, 2)


def test_a_share_of_the_device_is_a_limit(tmp_path):
    device = {"GPUMEM_BACKEND": "sim", "GPUMEM_SIM_MEMORY": "4MiB"}
    path = tmp_path / "large.csv"
    path.write_text(f"{HEADER}a,0,{2 << 20},0,0\n")
    fits = gpumem_command("replay", path, "--limit", "50%", **device)
    assert fits.returncode == 0, fits.stderr
    fails = gpumem_command("replay", path, "--limit", "49.9%", **device)
    assert fails.returncode == 1
    assert f"limit {int((4 << 20) * 0.499)}" in fails.stderr


@pytest.mark.parametrize("pool", ["pool", "raw"])
def test_a_device_that_is_full_is_out_of_memory_too(tmp_path, pool):
    path = tmp_path / "large.csv"
    path.write_text(f"{HEADER}a,0,{2 << 20},0,0\na,1,{3 << 20},0,0\n")
    done = gpumem_command(
        "replay", path, "--pool", pool, GPUMEM_BACKEND="sim", GPUMEM_SIM_MEMORY="4MiB"
    )
    assert done.returncode == 1
    assert "out of memory at event 1 of 2" in done.stderr
    assert "Traceback" not in done.stderr


# ---- other ways to run ----


def test_raw_has_no_pool_to_report_on(small):
    done = gpumem_command("replay", small, "--pool", "raw", "--verify", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == KEYS
    nulls = [key for key in KEYS if report[key] is None]
    assert nulls == [
        "peak_used_bytes",
        "peak_total_bytes",
        "overhead",
        "hits",
        "misses",
        "upstream_allocations",
        "upstream_frees",
    ]
    assert report["peak_requested_bytes"] == 3560


@pytest.mark.parametrize(
    ("growth", "total"),
    [("on", 2 * (64 << 20)), ("1KiB", (2048 + 1024) + (1024 + 1024)), ("0", 3584)],
)
def test_growth_is_the_pools(small, growth, total):
    """Two segments, one a stream, each with as much more; the third request is served
    from the first."""
    done = gpumem_command(
        "replay", small, "--growth", growth, "--json", GPUMEM_BACKEND="sim"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert list(report) == KEYS
    assert report["pool"] == "pool with growth"
    assert report["peak_total_bytes"] == total


def test_one_pass_has_no_warm_figure(small):
    done = gpumem_command("replay", small, "--repeat", "1", "--json")
    report = json.loads(done.stdout)
    assert report["ns_per_event"] > 0
    assert report["ns_per_event_warm"] is None


def test_the_text_tells_a_person_the_same(small):
    done = gpumem_command("replay", small, "--repeat", "4", "--verify")
    assert done.returncode == 0, done.stderr
    lines = {line[:16].strip(): line[16:].strip() for line in done.stdout.splitlines()}
    assert lines["events"] == "4: 3 allocations, 2 never freed, 2 streams"
    assert lines["peak requested"] == "3,560 bytes (3.48 KiB)"
    assert lines["peak used"] == "3,584 bytes (3.50 KiB)"
    assert lines["peak total"] == "3,584 bytes (3.50 KiB), 1.007 of requested"
    assert lines["hits, misses"] == "0, 3"
    assert lines["upstream"] == "3 allocations, 0 frees"
    assert "ns an event, median of 3, " in lines["warm"]
    assert "verified: no overlap" in done.stdout


def test_blocks_of_no_bytes_are_replayed_and_have_no_place(tmp_path):
    path, out = tmp_path / "zero.csv", tmp_path / "placements.csv"
    path.write_text(HEADER + "a,0,0,0,0\na,1,1,0,0\nf,0,0,0,0\n")
    done = gpumem_command("replay", path, "--verify", "--placements", out)
    assert done.returncode == 0, done.stderr
    assert out.read_text() == "id,serial,offset\n1,0,0\n"


def stderr_of_replay(small, reader, writer):
    """What `replay --verify` writes to the file descriptor `writer`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpumem", "replay", small, "--verify"],
        env=command_environment(GPUMEM_BACKEND="sim", TERM="xterm"),
        stdout=subprocess.DEVNULL,
        stderr=writer,
    )
    os.close(writer)
    written = b""
    try:
        while part := os.read(reader, 4096):
            written += part
    except OSError:  # how a terminal says that nobody is left to write
        pass
    finally:
        os.close(reader)
    assert process.wait(60) == 0
    return written


def test_progress_is_shown_on_a_terminal(small):
    shown = stderr_of_replay(small, *pty.openpty())
    for part in (b"timing", b"verifying", b"100%"):
        assert part in shown


def test_progress_is_not_shown_elsewhere(small):
    assert stderr_of_replay(small, *os.pipe()) == b""


# ---- bad input ----


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ([], "required"),
        (["reply"], "invalid choice"),
        (["replay"], "required"),
        (["replay", "TRACE", "--pool", "best"], "invalid choice"),
        (["replay", "TRACE", "--repeat", "0"], "'0' is not a number of passes"),
        (["replay", "TRACE", "--repeat", "1.5"], "'1.5' is not a number of passes"),
        (["replay", "TRACE", "--limit", "8G"], "'8G' is not a limit"),
        (["replay", "TRACE", "--limit", "120%"], "percentage from 0% to 100%"),
        (["replay", "TRACE", "--growth", "off"], "'off' is not a size; expected"),
        (["replay", "TRACE", "--growth", "99999999TiB"], "is too large"),
        (["replay", "TRACE", "--pool", "raw", "--growth", "on"], "needs a pool"),
        (["replay", "TRACE", "--pool", "raw", "--limit", "1"], "--limit needs a pool"),
        (
            ["replay", "TRACE", "--pool", "raw", "--placements", "x"],
            "--placements needs a pool",
        ),
        (["replay", "TRACE", "--placements", "/nowhere/x"], "cannot write /nowhere/x"),
        (["replay", "/nowhere/trace.csv"], "found no such file"),
        (["replay", "/"], "found is a directory"),
    ],
)
def test_bad_usage_is_one_complaint_and_exit_code_2(small, args, complaint):
    done = gpumem_command(*[small if arg == "TRACE" else arg for arg in args])
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_malformed_trace_is_one_complaint_and_exit_code_2(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(SMALL + "f,0,2048,0,4\n")
    done = gpumem_command("replay", path)
    assert done.returncode == 2
    assert done.stderr == (
        f"gpumem: {path}, line 6: found a free of id 0, which is free already; "
        "expected the id of a live allocation\n"
    )


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("GPUMEM_BACKEND", "info"),
        ("GPUMEM_BACKEND", "replay"),
        ("GPUMEM_SIM_DEVICES", "info"),
        ("GPUMEM_SIM_MEMORY", "replay"),
    ],
)
def test_a_bad_environment_is_one_complaint_and_exit_code_2(small, name, command):
    args = [command, small] if command == "replay" else [command]
    done = gpumem_command(*args, **{"GPUMEM_BACKEND": "sim", name: "plenty"})
    assert done.returncode == 2
    assert name in done.stderr
    assert "'plenty'" in done.stderr
    assert "Traceback" not in done.stderr


# ---- what the replay promises to a caller in the same process ----


@pytest.mark.parametrize("limit", [0, 3072])
def test_allocator_and_stream_are_put_back(small, limit):
    def mine(size):
        return gpumem.malloc(size)

    before = gpumem.get_allocator()
    outer = gpumem.get_current_stream()
    stream = gpumem.Stream(non_blocking=True)
    gpumem.set_allocator(mine)
    stream.use()
    try:
        pool = gpumem.MemoryPool()
        pool.set_limit(size=limit)
        report = _replay.replay(read_trace(small), pool)
        assert report.completed == (limit == 0)
        assert gpumem.get_allocator() is mine
        assert gpumem.get_current_stream() == stream
        assert (pool.used_bytes(), pool.total_bytes()) == (0, 0)
    finally:
        gpumem.set_allocator(before)
        outer.use()


class BrokenPool:
    """Looks like a pool; `malloc` is the broken part."""

    def __init__(self, malloc, used=0, total=0):
        self.malloc = malloc
        self.used_bytes = lambda: used
        self.total_bytes = lambda: total
        self.free_all_blocks = lambda: None


class Piece(gpumem.BaseMemory):
    """A part of some other memory."""

    def __init__(self, whole, offset, size):
        self.whole = whole
        self.ptr = whole.ptr + offset
        self.size = size
        self.device_id = whole.device_id


def pieces(offsets):
    """An allocator that puts what it is asked for at `offsets`."""
    whole = gpumem.malloc(1 << 16).mem
    offsets = iter(offsets)

    def malloc(size):
        piece = Piece(whole, next(offsets), oracle.rounded(size))
        return gpumem.MemoryPointer(piece, 0)

    return malloc


def test_verify_allows_blocks_that_touch(small):
    _replay.verify(
        read_trace(small), BrokenPool(pieces((4096, 4096 + 2048, 4096 - 512)))
    )


@pytest.mark.parametrize(
    "second", [4096 + 2048 - 512, 4096 + 512, 4096, 4096 - 512], ids=str
)
def test_verify_sees_overlapping_blocks(small, second):
    broken = BrokenPool(pieces((4096, second)))
    with pytest.raises(_replay.ReplayError, match="allocation 1 at .* overlaps"):
        _replay.verify(read_trace(small), broken)


@pytest.mark.parametrize("where", [0, 2047])
def test_verify_sees_changed_contents(small, where):
    made = []

    def malloc(size):
        pointer = gpumem.malloc(size)
        made.append(pointer)
        if len(made) == 3:  # the first, of 2048 bytes, is still live
            kept = bytearray(1)
            (made[0] + where).copy_to_host(kept, 1)
            (made[0] + where).copy_from_host(bytes([kept[0] ^ 1]), 1)
        return pointer

    at = 0 if where == 0 else 2040
    with pytest.raises(_replay.ReplayError, match=f"allocation 0 .* at offset {at} "):
        _replay.verify(read_trace(small), BrokenPool(malloc))


@pytest.mark.parametrize(
    ("used", "total", "complaint"),
    [(512, 512, "512 bytes are still used"), (0, 1024, "1024 bytes are still held")],
)
def test_verify_sees_what_is_not_given_back(small, used, total, complaint):
    with pytest.raises(_replay.ReplayError, match=complaint):
        _replay.verify(read_trace(small), BrokenPool(gpumem.malloc, used, total))


def test_verify_sees_a_block_that_is_too_small(small):
    with pytest.raises(_replay.ReplayError, match="of 2048 bytes got 512 bytes"):
        _replay.verify(read_trace(small), BrokenPool(lambda size: gpumem.malloc(512)))


# ---- info ----


def test_info_names_backend_devices_and_environment():
    device = {"GPUMEM_BACKEND": "sim", "GPUMEM_SIM_DEVICES": "2"}
    device["GPUMEM_SIM_MEMORY"] = "4MiB"
    done = gpumem_command("info", "--json", **device)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["config"]["gpumem"] == gpumem.__version__
    assert facts["config"]["backend in use"] == "sim"
    assert [entry["id"] for entry in facts["devices"]] == [0, 1]
    assert {entry["total_bytes"] for entry in facts["devices"]} == {4 << 20}
    assert facts["environment"]["GPUMEM_SIM_MEMORY"]["value"] == "4MiB"
    assert facts["environment"]["GPUMEM_SIM_DEVICES"]["value"] == "2"

    text = gpumem_command("info", **device)
    assert text.returncode == 0, text.stderr
    for part in (
        gpumem.__version__,
        "backend in use",
        "4.00 MiB free of 4.00 MiB",
        "GPUMEM_SIM_DEVICES: '2'",
    ):
        assert part in text.stdout


def test_verified_blocks_are_marked_at_their_ends_and_across_page_borders():
    mib = 1 << 20
    marks = _replay._marks(7, 5 * mib, 3 * mib)  # at addresses of 3 to 8 MiB
    assert [offset for offset, _ in marks] == [0, 5 * mib - 8, mib - 8, 3 * mib - 8]
    assert [len(mark) for _, mark in marks] == [8, 8, 16, 16]
    assert len({mark[:8] for _, mark in marks}) == 4
    assert marks != _replay._marks(8, 5 * mib, 3 * mib)
    assert len(_replay._marks(7, 2 * mib, 2 * mib)) == 2  # one page, no border in it
    assert _replay._marks(7, 3, 0) == [(0, marks[0][1][:3])]
