# SPDX-License-Identifier: MIT
"""Host memory that a live block takes from Python, everything included.

    python3 -m benchmarks.host_bytes COUNT

takes COUNT blocks of 512 bytes, cut from one segment, and prints as JSON by how much
the process grew: the pages that the system has given it, before and after. That is the
pointer, its memory, the core's node, and what all allocators in between add. The list
that holds the pointers is there before. Run in an interpreter of its own, so that no
memory of something else is used again.
"""

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import gpumem

UNIT = 512


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    count = int(sys.argv[1])
    pool = gpumem.MemoryPool()
    pool.malloc(count * UNIT)  # dropped at once: from now on every request is a hit
    live: list[Any] = [None] * count
    gc.collect()
    before = resident()
    for i in range(count):
        live[i] = pool.malloc(UNIT)
    grown = resident() - before
    if pool.stats()["misses"] != 1:
        raise RuntimeError("a request was no hit")
    print(json.dumps({"blocks": count, "bytes": grown, "bytes_a_block": grown / count}))


if __name__ == "__main__":
    main()
