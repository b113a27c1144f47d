# SPDX-License-Identifier: MIT
"""The smallest limit under which a trace completes.

Every attempt is one pass with a new pool under a limit. First steps of half a percent
of the peak are attempted, from the peak of what the trace has live, which nothing can
do with less than, until one will do, and in any case up to 1.05 of it. Between the
first that will do and the one before, the limit is bisected to 2 MiB, a page of the
device's memory.

More is not always enough where less was: a limit decides when idle segments go back,
and so where everything after that is put. That is why a limit is not bisected from the
start, and steps above the one that was found are told under which the trace does not
complete.

Threading: as _replay.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpumem
from gpumem import _replay
from gpumem._trace import Trace

PAGE = 2 << 20

# In thousandths of the peak: a step, and where they end.
_STEP = 5
_LAST = 50


@dataclass(frozen=True)
class Smallest:
    """limit_bytes  the smallest limit that was found; None: the trace does not complete
                    without a limit either
    ratio           that over the peak of requested bytes
    failures        larger limits that were attempted in vain, in bytes
    """

    limit_bytes: int | None
    ratio: float | None
    failures: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "smallest_limit_bytes": self.limit_bytes,
            "smallest_limit_ratio": self.ratio,
            "smallest_limit_failures": list(self.failures),
        }


def bisect(failing: int, completing: int, completes: Callable[[int], bool]) -> int:
    """The limit that was found between two of whole pages, of which the first does not
    do and the second does."""
    while completing - failing > PAGE:
        limit = (failing + completing) // 2 // PAGE * PAGE
        if completes(limit):
            completing = limit
        else:
            failing = limit
    return completing


def search(
    peak: int, held: int, completes: Callable[[int], bool]
) -> tuple[int, list[int]]:
    """The smallest limit, and the steps above it that were attempted in vain, for a
    trace whose peak is `peak`, of which `held` bytes were held without a limit."""
    failing = (peak - 1) // PAGE * PAGE if peak else 0
    completing = 0
    vain: list[int] = []
    part = 0
    while part <= _LAST or not completing:
        limit = peak + peak * part // 1000
        part += _STEP
        if limit >= held or completes(limit):
            completing = completing or max(-(-min(limit, held) // PAGE), 1) * PAGE
        else:
            vain.append(limit)
            if not completing:
                failing = max(failing, limit // PAGE * PAGE)
    found = bisect(failing, completing, completes)
    return found, [limit for limit in vain if limit > found]


def smallest_limit(
    trace: Trace,
    make_pool: Callable[[], gpumem.MemoryPool],
    *,
    progress: _replay.Progress | None = None,
) -> Smallest:
    """Looks for it with pools of `make_pool`, whose own limit does not matter.
    ReplayError where a pool breaks a promise on the way."""
    runs = _replay.decode(trace)
    peak = trace.peak_requested
    made = 0

    def attempt(limit: int) -> int | None:
        """What a pool under `limit`, 0 for none, held at most; None: in vain."""
        nonlocal made
        if progress is not None:
            progress("looking for the smallest limit", made, made + 10)
        made += 1
        pool = make_pool()
        pool.set_limit(size=limit)
        held = _replay.peak_of_one_pass(trace, runs, pool)
        if limit and held is not None and held > limit:
            raise _replay.ReplayError(
                f"the pool held {held} bytes, its limit is {limit}"
            )
        return held

    held = attempt(0)
    if held is None:
        return Smallest(None, None)
    found, failures = search(peak, held, lambda limit: attempt(limit) is not None)
    ratio = round(found / peak, 6) if peak else None
    return Smallest(found, ratio, tuple(failures))
