# SPDX-License-Identifier: MIT
"""`replay --plot`: what is recorded of a pass, the map, and the file."""

import struct
import subprocess
import sys

import pytest

import gpumem
from gpumem import _picture
from gpumem._picture import pack, record
from gpumem._trace import read_trace
from test_replay import SMALL, command_environment, gpumem_command

HEADER = "op,id,size,stream,us\n"
UNIT = 512
MIB = 1 << 20


@pytest.fixture
def trace_of(tmp_path):
    def made(*events):
        path = tmp_path / "trace.csv"
        lines = [f"{event},{us}\n" for us, event in enumerate(events)]
        path.write_text(HEADER + "".join(lines))
        return read_trace(path)

    return made


# ---- what is recorded ----


def test_bytes_after_each_event(trace_of):
    trace = trace_of("a,0,1000,0", "a,1,0,0", "a,2,512,0", "f,0,1000,0", "f,1,0,0")
    found = record(trace, gpumem.MemoryPool())
    assert found.used == [1024, 1024, 1536, 512, 512]
    assert found.total == [1024, 1024, 1536, 1536, 1536]
    assert found.completed


def test_where_blocks_and_segments_lie_and_how_long(trace_of):
    trace = trace_of(
        *(f"a,0,{4 * MIB},0", f"f,0,{4 * MIB},0", f"a,1,{MIB},0", f"a,2,{MIB},0"),
        f"f,1,{MIB},0",
    )
    found = record(trace, gpumem.MemoryPool())
    ((since, until, base, end),) = found.segments
    assert (since, until, end - base) == (0, 5, 4 * MIB)
    assert sorted(found.blocks) == [
        (0, 1, base, base + 4 * MIB),
        (2, 4, base, base + MIB),
        (3, 5, base + MIB, base + 2 * MIB),  # never freed: to the end
    ]


def test_segments_end_when_the_pool_gives_them_back(trace_of):
    trace = trace_of(
        *(f"a,0,{MIB},0", f"a,1,{2 * MIB},0", f"f,0,{MIB},0", f"a,2,{4 * MIB},0"),
        f"f,2,{4 * MIB},0",
    )
    pool = gpumem.MemoryPool()
    pool.set_limit(size=6 * MIB)
    found = record(trace, pool)
    lengths = sorted((s, u, end - base) for s, u, base, end in found.segments)
    assert lengths == [(0, 3, MIB), (1, 5, 2 * MIB), (3, 5, 4 * MIB)]
    assert found.total == [MIB, 3 * MIB, 3 * MIB, 6 * MIB, 6 * MIB]


def test_a_pass_that_runs_out_of_memory_is_recorded_up_to_there(trace_of):
    trace = trace_of(f"a,0,{MIB},0", f"a,1,{MIB},0", f"f,1,{MIB},0")
    pool = gpumem.MemoryPool()
    pool.set_limit(size=MIB)
    found = record(trace, pool)
    assert not found.completed
    assert found.total == [MIB]
    assert pool.total_bytes() == 0


def test_ranges_of_pages_grow_and_what_moved_is_told(trace_of):
    """Every other piece of 4 pages is dropped; their pages serve above them."""
    piece = 8 * MIB
    trace = trace_of(
        *(f"a,{i},{piece},0" for i in range(8)),
        *(f"f,{i},{piece},0" for i in range(0, 8, 2)),
        f"a,8,{4 * piece},0",
    )
    found = record(trace, gpumem.MemoryPool(expandable_segments=True), expandable=True)
    assert found.expandable
    assert found.total[-1] == found.total[7] == 8 * piece
    ((since, until, start, end),) = found.moved
    assert (since, until, end - start) == (12, 13, 4 * piece)
    base = min(low for _, _, low, _ in found.segments)
    reached = [(since, high - base) for since, _, _, high in found.segments]
    assert reached == [*((i, (i + 1) * piece) for i in range(8)), (12, end - base)]
    assert {until for _, until, _, _ in found.segments} == {13}
    assert start >= base + 7 * piece


# ---- the map ----


def test_gaps_between_addresses_are_left_out():
    assert pack([]) == []
    assert pack([(100, 200), (300, 350), (150, 220), (350, 360), (305, 310)]) == [
        (100, 220, 0),
        (300, 360, 120),
    ]


def test_coverage_is_the_area_of_each_pixel():
    numpy = pytest.importorskip("numpy")
    dice = numpy.random.default_rng(1)
    columns, rows, fine = 7, 5, 12
    grid = numpy.zeros((rows * fine, columns * fine))
    rectangles = []
    for _ in range(40):  # on a finer grid, each where there is none yet
        x = numpy.sort(dice.integers(0, columns * fine + 1, 2))
        y = numpy.sort(dice.integers(0, rows * fine + 1, 2))
        if not grid[y[0] : y[1], x[0] : x[1]].any():
            grid[y[0] : y[1], x[0] : x[1]] = 1
            rectangles.append((*x, *y))
    assert len(rectangles) > 5
    expected = grid.reshape(rows, fine, columns, fine).mean(axis=(1, 3))
    found = _picture._coverage(
        numpy, rectangles, columns * fine, rows * fine, (columns, rows)
    )
    assert found == pytest.approx(expected)
    nothing = _picture._coverage(numpy, [], 1, 1, (columns, rows))
    assert nothing.shape == (rows, columns) and not nothing.any()


# ---- the file ----


def size_of_png(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def test_the_picture_has_live_blocks_holes_and_nothing(trace_of, tmp_path):
    pytest.importorskip("matplotlib")
    numpy = pytest.importorskip("numpy")
    from matplotlib import colors, image

    trace = trace_of(
        *(f"a,0,{4 * MIB},0", f"a,1,{4 * MIB},0", f"f,0,{4 * MIB},0"),
        *(f"a,2,{MIB},0", f"f,2,{MIB},0"),
    )
    pool = gpumem.MemoryPool()
    pool.set_limit(size=9 * MIB)
    path = tmp_path / "picture.png"
    _picture.draw(str(path), trace, record(trace, pool), title="a title", limit=9 * MIB)
    assert size_of_png(path) == (1600, 1000)
    pixels = image.imread(path)[:, :, :3]
    for color, least in ((_picture._LIVE, 0.1), (_picture._HELD, 0.05)):
        same = numpy.abs(pixels - colors.to_rgb(color)).max(axis=2) < 0.02
        assert same.mean() > least


def test_the_command_draws_it(tmp_path):
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "small.csv", tmp_path / "out.png"
    path.write_text(SMALL)
    done = gpumem_command("replay", path, "--plot", picture, GPUMEM_BACKEND="sim")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"picture: {picture}\n")
    assert size_of_png(picture) == (1600, 1000)
    done = gpumem_command(
        "replay", path, "--plot", tmp_path / "no" / "x.png", GPUMEM_BACKEND="sim"
    )
    assert done.returncode == 2
    assert "cannot write" in done.stderr


def test_a_picture_of_pages_has_moved_blocks(tmp_path):
    pytest.importorskip("matplotlib")
    numpy = pytest.importorskip("numpy")
    from matplotlib import colors, image

    path, picture = tmp_path / "moving.csv", tmp_path / "out.png"
    piece = 8 * MIB
    events = [f"a,{i},{piece},0" for i in range(8)]
    events += [f"f,{i},{piece},0" for i in range(0, 8, 2)] + [f"a,8,{4 * piece},0"]
    lines = [f"{event},{us}\n" for us, event in enumerate(events)]
    path.write_text(HEADER + "".join(lines))
    done = gpumem_command(
        "replay", path, "--expandable", "--plot", picture, GPUMEM_BACKEND="sim"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pool with expandable_segments" in done.stdout
    pixels = image.imread(picture)[:, :, :3]
    for color in (_picture._LIVE, _picture._HELD, _picture._MOVED):
        same = numpy.abs(pixels - colors.to_rgb(color)).max(axis=2) < 0.02
        assert same.mean() > 0.01


def test_without_matplotlib_it_says_so_before_anything_is_done(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from gpumem._cli import main\n"
        f"sys.exit(main(['replay', {str(path)!r}, '--plot', 'x.png']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=command_environment(GPUMEM_BACKEND="sim"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "gpumem: --plot needs matplotlib, which is not here: "
        "pip install 'gpumem[plot]'\n"
    )
    assert not (tmp_path / "x.png").exists()


def test_a_raw_allocator_has_no_picture(tmp_path):
    path = tmp_path / "small.csv"
    path.write_text(SMALL)
    done = gpumem_command("replay", path, "--pool", "raw", "--plot", "x.png")
    assert done.returncode == 2
    assert "--plot needs a pool" in done.stderr
