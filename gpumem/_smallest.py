# SPDX-License-Identifier: MIT
"""The smallest limit under which a trace completes.

Every attempt is one pass with a new pool under a limit. The limit is bisected to 2 MiB,
a page of the device's memory: below is the peak of what the trace has live, which
nothing can do with less than, above what the pool held at the most without a limit.

More is not always enough where less was: a limit decides when idle segments go back,
and so where everything after that is put. So each step of half a percent of the peak
above what was found is attempted as well, up to five percent, and those under which the
trace does not complete are told.

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


def steps(peak: int, above: int) -> list[int]:
    """The limits above `above` at each half percent of `peak` up to 1.05 of it."""
    limits = [peak + peak * part // 1000 for part in range(0, _LAST + 1, _STEP)]
    return [limit for limit in limits if limit > above]


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
    failing = (peak - 1) // PAGE * PAGE if peak else 0
    completing = max(-(-held // PAGE), 1) * PAGE
    found = bisect(failing, completing, lambda limit: attempt(limit) is not None)
    failures = [limit for limit in steps(peak, found) if attempt(limit) is None]
    ratio = round(found / peak, 6) if peak else None
    return Smallest(found, ratio, tuple(failures))
