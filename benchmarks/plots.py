# SPDX-License-Identifier: MIT
"""Pictures of what a run has found, where matplotlib is installed.

One for each benchmark that has a shape to it: a line for each allocator over sizes,
live blocks or threads, bars for the traces.
"""

import importlib
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.plan import Row

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Plot:
    """name of the file, rows of which benchmark, which of its cases and where on the
    horizontal axis (a number, or a name for bars), what the axes say. Ratios that are
    all close to one have a linear axis that begins there."""

    name: str
    bench: str
    place: Callable[[str], float | str | None]
    across: str
    up: str
    scale: str = "log"  # of the vertical axis


def _size(case: str) -> float | None:
    match = re.fullmatch(r"pool, (\d+) (\w+)", case)
    return int(match[1]) * _UNITS[match[2]] if match else None


def _live(case: str) -> float | None:
    match = re.fullmatch(r"replacing all of ([\d,]+)", case)
    return int(match[1].replace(",", "")) if match else None


def _threads(case: str) -> float | None:
    return int(case.split()[0])


def _warm_trace(case: str) -> str | None:
    return None if "," in case else case


def _any_trace(case: str) -> str | None:
    return case


def _ending(end: str) -> Callable[[str], str | None]:
    """Cases that end so, without that."""
    return lambda case: case.removesuffix(end) if case.endswith(end) else None


_LIMIT = "smallest limit over the peak that is live"
_HELD = "held at the most over the peak that is live"
_TIGHT = "ns an event, warm, at a limit of 1.05 times the peak"

PLOTS = (
    Plot("pair", "b1", _size, "bytes", "ns: allocate and drop"),
    Plot("live", "b2", _live, "live blocks", "ns: replace one"),
    Plot("traces", "b4", _warm_trace, "", "ns an event, warm"),
    Plot("limits", "b5", _any_trace, "", _LIMIT, "linear"),
    Plot("held", "b6", _ending(", held"), "", _HELD, "linear"),
    Plot("tight", "b6", _ending(", limit 1.05"), "", _TIGHT),
    Plot("threads", "b7", _threads, "threads", "ns a pair, all threads together"),
)


def _points(plot: Plot, rows: list[Row]) -> dict[str, list[tuple[float | str, float]]]:
    """(place, median) by allocator."""
    found: dict[str, list[tuple[float | str, float]]] = defaultdict(list)
    for row in rows:
        if row.bench == plot.bench and row.median is not None:
            place = plot.place(row.case)
            if place is not None:
                found[row.who].append((place, row.median))
    return found


def _draw(axes: Any, plot: Plot, points: dict[str, Any]) -> None:
    if any(isinstance(place, str) for some in points.values() for place, _ in some):
        names = sorted({place for some in points.values() for place, _ in some})
        width = 0.8 / len(points)
        for number, (who, some) in enumerate(points.items()):
            at = [names.index(place) + number * width for place, _ in some]
            axes.bar(at, [value for _, value in some], width, label=who)
        axes.set_xticks([i + 0.4 for i in range(len(names))], names, rotation=20)
    else:
        for who, some in points.items():
            axes.plot(*zip(*some, strict=True), marker="o", label=who)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(plot.across)
    axes.set_yscale(plot.scale)
    if plot.scale == "linear":
        highest = max(value for some in points.values() for _, value in some)
        axes.set_ylim(1, min(highest, 2) * 1.02)  # few are beyond that, and far
    axes.set_ylabel(plot.up)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def draw(rows: list[Row], folder: Path, stem: str, title: str) -> list[Path]:
    """Writes the pictures that `rows` have figures for, and returns their files; none
    without matplotlib."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("svg")
        pyplot = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return []
    # Text stays text, and the same figures give the same file.
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = stem
    drawn = []
    for plot in PLOTS:
        points = _points(plot, rows)
        if not points:
            continue
        shape, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
        _draw(axes, plot, points)
        axes.set_title(title)
        drawn.append(folder / f"{stem}_{plot.name}.svg")
        shape.savefig(drawn[-1], metadata={"Date": None})
        pyplot.close(shape)
    return drawn
