# SPDX-License-Identifier: MIT
"""What all threads have in use from pools, as of some moment: how much, the most there
was of it, and the lines of Python code that asked for it. For pytest_gpumem."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumem._memory_hook import MemoryHook, add_process_hook, remove_process_hook

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = str(Path(__file__).parent)


class Place(NamedTuple):
    """A line of Python code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class _Block(NamedTuple):
    device: int
    size: int
    place: Place | None


class Usage(MemoryHook):
    """Counts what is allocated from pools after start and not freed yet.

    What was there before is not counted, also when it is freed meanwhile. Safe in all
    threads. Each allocation costs a microsecond or two.

    Args:
        lines (bool): whether to tell the lines apart.
    """

    def __init__(self, lines: bool) -> None:
        self.name = f"{__name__}.{id(self)}"
        self._lines = lines
        self._blocks: dict[int, _Block] = {}
        self._used: Counter[int] = Counter()
        self._peaks: Counter[int] = Counter()
        self._at_peak: dict[int, list[_Block]] = {}
        # Reentrant: a finalizer may run here and free.
        self._lock = threading.RLock()

    def start(self) -> None:
        add_process_hook(self)

    def stop(self) -> None:
        remove_process_hook(self)

    def malloc_postprocess(self, **kwargs: Any) -> None:
        if not kwargs["pmem_id"]:  # it failed
            return
        place = _caller(sys._getframe(1)) if self._lines else None
        block = _Block(kwargs["device_id"], kwargs["mem_size"], place)
        with self._lock:
            self._blocks[kwargs["pmem_id"]] = block
            self._used[block.device] += block.size
            if self._used[block.device] > self._peaks[block.device]:
                self._peaks[block.device] = self._used[block.device]
                self._at_peak.pop(block.device, None)

    def free_preprocess(self, **kwargs: Any) -> None:
        with self._lock:
            block = self._blocks.get(kwargs["pmem_id"])
            if block is None:
                return
            # What was there at the peak is written down when that is left.
            if self._used[block.device] == self._peaks[block.device]:
                self._at_peak.setdefault(block.device, self._in_use(block.device))
            del self._blocks[kwargs["pmem_id"]]
            self._used[block.device] -= block.size

    def _in_use(self, device: int) -> list[_Block]:
        return [b for b in self._blocks.values() if b.device == device]

    def peaks(self) -> dict[int, int]:
        """The most bytes there were at once, by the number of the device."""
        with self._lock:
            return {device: peak for device, peak in self._peaks.items() if peak}

    def report_peak(self, device: int) -> str:
        """The lines whose memory made up the peak, the largest first."""
        with self._lock:
            blocks = self._at_peak.get(device)
            return _table(self._in_use(device) if blocks is None else blocks)

    def in_use(self) -> int:
        """Bytes in use now, on all devices."""
        with self._lock:
            return sum(self._used.values())

    def report_in_use(self) -> str:
        """The lines whose memory is in use now, the largest first."""
        with self._lock:
            return _table(list(self._blocks.values()))


def _caller(frame: FrameType | None) -> Place | None:
    """The innermost line outside this package."""
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None:
        return None
    code = frame.f_code
    return Place(code.co_filename, frame.f_lineno, code.co_name)


def _table(blocks: list[_Block]) -> str:
    sizes: Counter[Place | None] = Counter()
    counts: Counter[Place | None] = Counter()
    for block in blocks:
        sizes[block.place] += block.size
        counts[block.place] += 1
    return "\n".join(
        f"  {size:>15,} bytes in {counts[place]:,} from {place or 'no Python code'}"
        for place, size in sizes.most_common()
    )
