# SPDX-License-Identifier: MIT
"""A sequence as a flat file, for the C program benchmarks/c/tail.c.

A header of 24 bytes: `gmtrace1`, how many events, how many places the list of live
blocks needs. Then 16 bytes an event: size in bytes (64 bits), place (32), stream (16),
1 for an allocation and 0 for a free (16). All numbers are little-endian.
"""

import struct
from pathlib import Path

from benchmarks.sequences import Sequence

MAGIC = b"gmtrace1"
_HEADER = struct.Struct("<8sQQ")
_EVENT = struct.Struct("<QIHH")


def write(sequence: Sequence, path: Path) -> None:
    """Writes `sequence` to `path`."""
    pack = _EVENT.pack
    with open(path, "wb") as file:
        file.write(_HEADER.pack(MAGIC, sequence.events, sequence.places))
        for stream, events in sequence.runs:
            file.writelines(
                pack(size, place, stream, taking) for place, size, taking in events
            )
