# SPDX-License-Identifier: MIT
"""Ready-made memory hooks: one that prints, one that adds up by line of code."""

import json
import operator
import sys
import threading
from types import FrameType
from typing import Any, TextIO

from gpumem._memory_hook import MemoryHook

__all__ = ["DebugPrintHook", "LineProfileHook"]


class DebugPrintHook(MemoryHook):
    """Prints one JSON object a line for each allocation and free.

    "hook" is alloc (the pool took memory from the device), malloc or free; pmem_id is a
    hexadecimal text that tells which malloc a free belongs to.

    Args:
        file: where to print; sys.stdout, as it is at each line, if None.
        flush (bool): whether to flush after each line.
    """

    name = "DebugPrintHook"

    def __init__(self, file: TextIO | None = None, flush: bool = True) -> None:
        self.file = file
        self.flush = flush

    def _print(self, hook: str, fields: dict[str, Any]) -> None:
        if "pmem_id" in fields:
            fields["pmem_id"] = hex(fields["pmem_id"])
        line = json.dumps({"hook": hook, **fields}, separators=(",", ":"))
        # One write a line, so that lines of several threads do not mix.
        file = sys.stdout if self.file is None else self.file
        print(line + "\n", end="", file=file, flush=self.flush)

    def alloc_postprocess(self, **kwargs: Any) -> None:
        self._print("alloc", kwargs)

    def malloc_postprocess(self, **kwargs: Any) -> None:
        self._print("malloc", kwargs)

    def free_postprocess(self, **kwargs: Any) -> None:
        self._print("free", kwargs)


_Place = tuple[str, int, str]  # file, line, function


class _Line:
    """A line of code that was on the stack, and what was allocated under it."""

    __slots__ = ("acquired", "callees", "used")

    def __init__(self) -> None:
        self.used = 0
        self.acquired = 0
        self.callees: dict[_Place, _Line] = {}


class LineProfileHook(MemoryHook):
    """Adds up allocated bytes by the lines of Python code that asked for them.

    Each line has two numbers: used, what was allocated from a pool, and acquired, what
    the pool took from the device for it. Frees are not subtracted.

    Args:
        max_depth (int): how many of the innermost callers to tell apart; 0 for all.
    """

    name = "LineProfileHook"

    def __init__(self, max_depth: int = 0) -> None:
        if operator.index(max_depth) < 0:
            raise ValueError(f"max_depth must be 0 or more, not {max_depth}")
        self._max_depth = max_depth
        self._root = _Line()
        # Reentrant: a finalizer may run here and allocate.
        self._adding = threading.RLock()

    def malloc_preprocess(self, **kwargs: Any) -> None:
        with self._adding:
            for line in self._lines():
                line.used += kwargs["mem_size"]

    def alloc_preprocess(self, **kwargs: Any) -> None:
        with self._adding:
            for line in self._lines():
                line.acquired += kwargs["mem_size"]

    def _lines(self) -> list[_Line]:
        """The root and the lines on the stack, outermost first."""
        frame: FrameType | None = sys._getframe(2)
        stack: list[_Place] = []
        while frame is not None:
            code = frame.f_code
            stack.append((code.co_filename, frame.f_lineno, code.co_name))
            frame = frame.f_back
        if self._max_depth > 0:
            del stack[self._max_depth :]
        line = self._root
        lines = [line]
        for place in reversed(stack):
            line = line.callees.setdefault(place, _Line())
            lines.append(line)
        return lines

    def print_report(self, file: TextIO | None = None) -> None:
        """Prints the tree of lines with used and acquired bytes.

        Args:
            file: where to print; sys.stdout if None.
        """
        out = sys.stdout if file is None else file
        self._print_line("_root", self._root, 0, out)

    def _print_line(self, title: str, line: _Line, depth: int, file: TextIO) -> None:
        numbers = f"({_bytes(line.used)}, {_bytes(line.acquired)})"
        print(f"{'  ' * depth}{title} {numbers}", file=file)
        for (name, number, function), callee in list(line.callees.items()):
            self._print_line(f"{name}:{number}:{function}", callee, depth + 1, file)


def _bytes(number: float) -> str:
    """`number` bytes with a unit, two decimals from a KB up."""
    if number < 1024:
        return f"{number}B"
    for unit in ("KB", "MB", "GB"):
        number /= 1024
        if number < 1024:
            return f"{number:.2f}{unit}"
    return f"{number / 1024:.2f}TB"
