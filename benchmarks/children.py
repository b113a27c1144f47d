# SPDX-License-Identifier: MIT
"""Contenders in processes of their own.

PyTorch reads its allocator's options once, when it is first used, so its two modes
cannot be in one process; and where memory runs out on purpose, nobody's remains are to
be in the way of the next. So each contender has a process, which measures `object()`
beside it where times are told: they are compared by their ratios to that.

    python3 -m benchmarks.children BENCH WHO QUICK TRACE...

prints the rows of one contender as JSON.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial

from benchmarks import peers, programs
from benchmarks.contenders import Maker, make_gpumem, pool_kinds
from benchmarks.plan import Plan, Row

_PATIENCE = 590  # seconds for one process

Measure = Callable[[str, Maker, bool, list[str]], Iterator[Row]]
"""name of the contender, who makes it, whether quickly, names of traces -> rows"""


@dataclass(frozen=True)
class Kind:
    """A contender: the peer that it is, "" for gpumem; the environment it needs."""

    peer: str
    make: Maker
    environment: dict[str, str] = field(default_factory=dict)


def kinds() -> dict[str, Kind]:
    """Everybody who can have a limit, by name."""
    mine = {
        kind.name: Kind("", partial(make_gpumem, kind=kind))
        for kind in pool_kinds()
        if "growth" not in kind.arguments
    }
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return {
        **mine,
        "cupy": Kind("cupy", peers.make_cupy),
        "torch": Kind("torch", peers.make_torch),
        "torch, expandable": Kind("torch", peers.make_torch, expandable),
    }


def rows_of_all(plan: Plan, bench: str, **environment: str) -> Iterator[Row]:
    """The rows of gpumem's kinds and of the peers that are there, one after the
    other, all with `environment`; of who has none, one with the error."""
    names = plan.trace_names()
    for name, kind in kinds().items():
        if kind.peer and kind.peer not in plan.peers:
            continue
        quick = "quick" if plan.quick else "full"
        words = [sys.executable, "-m", "benchmarks.children", bench, name, quick]
        variables = {**environment, **kind.environment, "PYTHONPATH": _path()}
        try:
            done = programs.run([*words, *names], timeout=_PATIENCE, **variables)
            if done.returncode:
                raise programs.Unavailable(programs.last_line(done.stderr))
            yield from (Row(**row) for row in json.loads(done.stdout))
        except (programs.Unavailable, ValueError) as error:
            yield Row(bench, "all", name, "", error=str(error))


def _path() -> str:
    """Where the child finds what this process does, unpacked wheels included."""
    return os.pathsep.join(path for path in sys.path if path)


def main() -> int:
    from benchmarks import comb, giving, within

    measures: dict[str, Measure] = {
        "b5": within.smallest_of,
        "b6": within.limits_of,
        "b6comb": comb.comb_of,
        "b9": giving.giving_of,
    }
    bench, name, quick, *traces = sys.argv[1:]
    rows = measures[bench](name, kinds()[name].make, quick == "quick", traces)
    print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
