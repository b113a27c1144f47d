# SPDX-License-Identifier: MIT
"""A picture of a replay: how much is live, used and held, and where it lies.

Above, bytes over time: what the program asked for and has not freed, what that takes
once rounded, and what the pool holds. Below, the same time against the address space:
a block is drawn over the addresses that it has while it lives, in front of what the
pool holds there. So what is held and not live, the holes, shows between the blocks; and
where a pool moves memory to other addresses, blocks go on elsewhere. Addresses at which
the pool never had anything are left out, so that ranges lie one above the other.

One untimed pass records it. A pool does not tell which segment it gives back when, but
it can be worked out: it gives back at once all that is idle, as its total shows. One
with expandable segments has ranges of addresses, which are drawn from when they were
first used, since what was mapped stays so while its pages serve elsewhere; blocks that
pages were mapped anew for have a colour of their own.

The map is summed up by pixel, from the corners of its rectangles: a pixel is as dark as
the part of its bytes and of its time that was live. So a quarter of a million events
take about as long to draw as they take to replay.

Needs matplotlib, which is asked for before anything is replayed.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import gpumem
from gpumem import _replay, testing
from gpumem._trace import Trace

GIB = 1 << 30

# Of Okabe and Ito's colours, which people with any kind of sight can tell apart.
_LIVE = "#0072B2"
_HELD = "#E69F00"
_REQUESTED = "#000000"
_MOVED = "#009E73"

_PIXELS = (1480, 560)  # of the map: across, up

Rectangle = tuple[int, int, int, int]
"""First and last event, lowest and highest address, the last ones not included."""


class NoMatplotlib(RuntimeError):
    """It is not installed; the text says how to get it."""


@dataclass
class Record:
    """What one pass was like.

    used, total  bytes after each event
    blocks       every block that was handed out, from then until it was dropped
    segments     every range of addresses that the pool held, from when until when
    moved        those of the blocks that pages were moved for
    expandable   whether the pool has expandable segments
    """

    used: list[int] = field(default_factory=list)
    total: list[int] = field(default_factory=list)
    blocks: list[Rectangle] = field(default_factory=list)
    segments: list[Rectangle] = field(default_factory=list)
    moved: list[Rectangle] = field(default_factory=list)
    expandable: bool = False
    completed: bool = True


@dataclass(slots=True)
class _Segment:
    since: int
    base: int
    end: int
    live: int = 0


class _Recorder:
    """Follows a pass, event by event."""

    def __init__(self, pool: gpumem.MemoryPool, expandable: bool) -> None:
        self.record = Record(expandable=expandable)
        self._pool = pool
        self._remapped = 0
        self._moved: set[int] = set()  # allocations
        self._reached: list[_Segment] = []  # parts of ranges of pages
        self._live: dict[int, tuple[int, int, int, int]] = {}  # by allocation
        self._segments: dict[int, _Segment] = {}  # by serial

    def allocated(self, number: int, size: int, pointer: Any) -> None:
        event = len(self.record.total)
        if size:
            serial, offset = testing.placement(pointer)
            start, end = pointer.ptr, pointer.ptr + pointer.mem.size
            if self.record.expandable:
                self._extend(event, number, serial, start, end)
            else:
                self._place(event, serial, start - offset, end)
            self._live[number] = (event, serial, start, end)
        self._count()

    def freeing(self, number: int, size: int, pointer: Any) -> None:
        if size:
            self._drop(number, len(self.record.total))
        # The bytes of what is about to be dropped.
        self._count(pointer.mem.size)

    def finish(self) -> Record:
        """What is still there is so to the end."""
        end = len(self.record.total)
        for number in list(self._live):
            self._drop(number, end)
        for segment in self._reached or self._segments.values():
            self._end(segment, end)
        return self.record

    def _count(self, dropped: int = 0) -> None:
        self.record.used.append(self._pool.used_bytes() - dropped)
        self.record.total.append(self._pool.total_bytes())

    def _place(self, event: int, serial: int, base: int, end: int) -> None:
        """A block lies there."""
        before = self.record.total[-1] if self.record.total else 0
        now = self._pool.total_bytes()
        segment = self._segments.get(serial)
        taken = 0
        if segment is None:
            taken = max(end - base, now - before)
            segment = _Segment(event, base, base + taken)
        if now < before + taken:
            for number, other in list(self._segments.items()):
                if not other.live and number != serial:
                    self._end(self._segments.pop(number), event)
        self._segments[serial] = segment
        segment.base = min(segment.base, base)
        segment.end = max(segment.end, end)
        segment.live += 1

    def _extend(
        self, event: int, number: int, serial: int, start: int, end: int
    ) -> None:
        """The same in a range of pages: what of it was not used before begins now."""
        segment = self._segments.get(serial)
        if segment is None:
            segment = self._segments[serial] = _Segment(event, start, start)
        if start < segment.base:
            self._reached.append(_Segment(event, start, segment.base))
            segment.base = start
        if end > segment.end:
            self._reached.append(_Segment(event, segment.end, end))
            segment.end = end
        segment.live += 1
        remapped = self._pool.stats()["remapped_pages"]
        if remapped > self._remapped:
            self._moved.add(number)
        self._remapped = remapped

    def _drop(self, number: int, event: int) -> None:
        since, serial, start, end = self._live.pop(number)
        self.record.blocks.append((since, event, start, end))
        if number in self._moved:
            self.record.moved.append((since, event, start, end))
        self._segments[serial].live -= 1

    def _end(self, segment: _Segment, event: int) -> None:
        self.record.segments.append((segment.since, event, segment.base, segment.end))


def record(
    trace: Trace,
    pool: gpumem.MemoryPool,
    *,
    expandable: bool = False,
    progress: _replay.Progress | None = None,
) -> Record:
    """Replays `trace` once with an empty pool, which has `expandable` segments or plain
    ones, as far as memory lasts, and says what it was like."""
    recorder = _Recorder(pool, expandable)
    completed = True
    with _replay.installed(pool):
        try:
            _replay.walk(trace, recorder, "recording", progress, drop=False)
        except gpumem.OutOfMemoryError:
            completed = False
    _replay.check_given_back(pool)
    found = recorder.finish()
    found.completed = completed
    return found


# ---- the map ----


def require_matplotlib() -> ModuleType:
    """NoMatplotlib where there is none."""
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError as error:
        raise NoMatplotlib(
            "--plot needs matplotlib, which is not here: pip install 'gpumem[plot]'"
        ) from error
    return matplotlib


def pack(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The union of ranges of addresses as (start, end, where it starts once the gaps in
    between are left out)."""
    packed: list[tuple[int, int, int]] = []
    top = 0
    for start, end in sorted(ranges):
        if packed and start <= packed[-1][1]:
            last_start, last_end, at = packed[-1]
            top += max(0, end - last_end)
            packed[-1] = (last_start, max(last_end, end), at)
        else:
            packed.append((start, end, top))
            top += end - start
    return packed


def _coverage(
    numpy: Any, rectangles: Any, across: float, up: float, pixels: tuple[int, int]
) -> Any:
    """How much of each pixel the rectangles cover, rows from the bottom: 1 is all of
    it. `across` and `up` are how far the axes go."""
    columns, rows = pixels
    grid = numpy.zeros((rows + 2, columns + 2))
    if len(rectangles):
        places = numpy.asarray(rectangles, dtype=float)
        x = numpy.clip(places[:, :2] * (columns / across), 0, columns)
        y = numpy.clip(places[:, 2:] * (rows / up), 0, rows)
        # The sum over all that is left of and below a pixel, twice taken, is a
        # rectangle; a corner inside a pixel is shared with the next one.
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            sign = 1.0 if i == j else -1.0
            column = x[:, i].astype(int)
            row = y[:, j].astype(int)
            part_x = x[:, i] - column
            part_y = y[:, j] - row
            for more_x, share_x in ((0, 1 - part_x), (1, part_x)):
                for more_y, share_y in ((0, 1 - part_y), (1, part_y)):
                    at = (row + more_y, column + more_x)
                    numpy.add.at(grid, at, sign * share_x * share_y)
    summed = grid.cumsum(axis=0).cumsum(axis=1)
    return numpy.clip(summed[:rows, :columns], 0, 1)


def _moved(
    numpy: Any, rectangles: list[Rectangle], packed: list[tuple[int, int, int]]
) -> Any:
    """The rectangles with their addresses as `packed` has them."""
    if not rectangles:
        return numpy.zeros((0, 4))
    places = numpy.asarray(rectangles, dtype=numpy.int64)
    starts = numpy.asarray([start for start, _, _ in packed], dtype=numpy.int64)
    shift = numpy.asarray([at - start for start, _, at in packed], dtype=numpy.int64)
    which = numpy.searchsorted(starts, places[:, 2], side="right") - 1
    places[:, 2:] += shift[which][:, None]
    return places


def _map(numpy: Any, colors: Any, found: Record) -> tuple[Any, float]:
    """The picture of the address space, and how high it is in bytes."""
    packed = pack([(low, high) for _, _, low, high in found.segments])
    height = max(packed[-1][2] + packed[-1][1] - packed[-1][0], 1) if packed else 1
    events = max(len(found.total), 1)
    layers = [
        _coverage(numpy, _moved(numpy, some, packed), events, height, _PIXELS)
        for some in (found.segments, found.blocks, found.moved)
    ]
    held = layers[0]
    live = numpy.minimum(layers[1], held)
    moved = numpy.minimum(layers[2], live)
    white, hole, block, other = (
        numpy.asarray(colors.to_rgb(color)) for color in ("white", _HELD, _LIVE, _MOVED)
    )
    shares = (1 - held, held - live, live - moved, moved)
    image = sum(
        share[:, :, None] * color
        for share, color in zip(shares, (white, hole, block, other), strict=True)
    )
    return numpy.clip(image, 0, 1), float(height)


# ---- the picture ----


def _requested(trace: Trace) -> list[int]:
    """Requested bytes that are live after each event."""
    live, found = 0, []
    for allocates, size in zip(trace.allocates, trace.sizes, strict=True):
        live += size if allocates else -size
        found.append(live)
    return found


def _legend(axes: Any, **handles: Any) -> None:
    """Above the axes, where it hides nothing."""
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.3}
    axes.legend(**place, ncols=4, frameon=False, **handles)


def _lines(axes: Any, trace: Trace, found: Record, limit: int) -> None:
    events = len(found.total)
    curves = (
        ("held by the pool (total)", found.total, _HELD, "-"),
        ("live, rounded (used)", found.used, _LIVE, "-"),
        ("live, as requested", _requested(trace)[:events], _REQUESTED, ":"),
    )
    for label, values, color, style in curves:
        peak = max(values, default=0)
        axes.plot(
            range(events),
            [value / GIB for value in values],
            color=color,
            linestyle=style,
            linewidth=1.4,
            label=f"{label}, at most {peak / GIB:.3f} GiB",
        )
    if limit:
        label = f"limit, {limit / GIB:.3f} GiB"
        axes.axhline(limit / GIB, color="#CC79A7", linestyle="--", label=label)
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    _legend(axes)


def draw(path: str, trace: Trace, found: Record, *, title: str, limit: int = 0) -> None:
    """Writes the picture, 1600 by 1000 pixels, to `path`; OSError as from open."""
    require_matplotlib()
    numpy = importlib.import_module("numpy")
    colors = importlib.import_module("matplotlib.colors")
    patches = importlib.import_module("matplotlib.patches")
    figures = importlib.import_module("matplotlib.figure")
    backend = importlib.import_module("matplotlib.backends.backend_agg")

    shape = figures.Figure(figsize=(16, 10), dpi=100, layout="constrained")
    backend.FigureCanvasAgg(shape)
    above, below = shape.subplots(2, 1, sharex=True, height_ratios=(2, 3))
    stopped = "" if found.completed else ", out of memory at the end"
    shape.suptitle(f"{title}{stopped}", fontsize="large")
    _lines(above, trace, found, limit)
    image, height = _map(numpy, colors, found)
    events = max(len(found.total), 1)
    below.imshow(
        image,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0, events, 0, height / GIB),
    )
    below.set_xlim(0, events)
    below.set_xlabel("event")
    below.set_ylabel("addresses that the pool ever held, GiB")
    hole = "held, not live: holes"
    if found.expandable:
        hole = "nothing live: holes, whose pages may serve elsewhere"
    legend = [(_LIVE, "live"), (_HELD, hole), ("white", "not held")]
    if found.moved:
        legend[1:1] = [(_MOVED, "live, on pages that were moved there")]
    _legend(
        below,
        handles=[
            patches.Patch(facecolor=color, edgecolor="black", label=label)
            for color, label in legend
        ],
    )
    shape.savefig(path, format="png", metadata={"Software": "gpumem"})
