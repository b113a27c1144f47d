# SPDX-License-Identifier: MIT
"""Rows as a table for the eye, and as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.plan import Row

FORMAT = 1

# How extra figures are shown; those that are not here are in the JSON alone.
_SHOWN = {
    "events": "{:,} events",
    "over_one_thread": "{:.2f}x one thread",
    "upstream_calls": "{:,} upstream calls",
    "remapped_pages": "{:,} pages moved",
    "driver_ms": "{} ms in the driver",
    "limit_bytes": "{:,} bytes",
    "failures": "larger ones in vain: {}",
    "could_be_had": "{:,} could be had, it says",
    "served": "{:,} were",
    "given_at_once": "{:,} bytes at once",
    "given_later": "{:,} once it is done",
    "p99": "p99 {:.0f}",
    "p99.9": "p99.9 {:.0f}",
    "max": "longest {:.0f}",
}


def figure(value: float | None) -> str:
    """A figure with as many digits as tell something."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.3f}"
    return f"{value:,.1f}" if value < 10_000 else f"{value:,.0f}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _remarks(row: Row) -> str:
    shown = [text.format(row.extra[k]) for k, text in _SHOWN.items() if k in row.extra]
    return ", ".join([*shown, *([row.note] if row.note else [])])


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of the table of one benchmark, a part for each case."""
    width = max((len(row.who) for row in rows), default=0)
    for (case, unit), group in groupby(rows, lambda row: (row.case, row.unit)):
        yield f"{case}: {unit}"
        yield (
            f"  {'':{width}}  {'median':>11}  {'low':>11}  {'high':>11}"
            f"  {'object()':>9}  {'gpumem':>9}"
        )
        for row in group:
            if row.error:
                yield f"  {row.who:{width}}  {row.error}"
                continue
            figures = "  ".join(
                f"{figure(value):>11}" for value in (row.median, row.low, row.high)
            )
            ratios = "  ".join(
                f"{_times(value):>9}" for value in (row.over_object, row.over_gpumem)
            )
            yield f"  {row.who:{width}}  {figures}  {ratios}  {_remarks(row)}".rstrip()


def to_json(about: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    """What a run has found, as it is saved."""
    return {"format": FORMAT, **about, "rows": [asdict(row) for row in rows]}


def save(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """What `save` wrote: about the run, and its rows."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if found.get("format") != FORMAT:
        raise ValueError(f"{path} is no result of this version of the benchmarks")
    rows = [Row(**row) for row in found.pop("rows")]
    return found, rows
