# SPDX-License-Identifier: MIT
"""Reads a recorded allocation trace.

A trace is CSV, plain or gzipped, one event a line after the header
`op,id,size,stream,us`:

op      a (allocate) or f (free)
id      the allocation's number; they count from 0 in the order of their `a` lines
size    bytes as the program asked; an `f` line repeats the size of its `a` line
stream  0 is the default stream, any other number a stream of its own
us      microseconds since the first event; checked, but not kept

Everything is checked while it is read, so whoever replays a trace may trust it: a free
names a live block, ids are dense, numbers are in range. The first thing that is wrong
ends the reading with a TraceError that says where, what was found and what was
expected.

Cost: 15 bytes an event and 8 an allocation, and no Python object that outlives its
line; about four microseconds an event.
"""

import gzip
import io
import os
import zlib
from array import array
from collections.abc import Iterator

HEADER = b"op,id,size,stream,us"

_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_NUMBER = (1 << 63) - 1
_LARGEST_STREAM = (1 << 16) - 1
_LARGEST_ID = (1 << 32) - 1

# No valid line is longer. A file that is no text at all must not be read as one line.
_LONGEST_LINE = 128

_FREED = -1


class TraceError(ValueError):
    """A trace that cannot be used.

    path      the file, as it was given
    line      number of the offending line, from 1; 0 when the file did not open
    found     what is there
    expected  what should be there
    """

    def __init__(self, path: str, line: int, found: str, expected: str) -> None:
        super().__init__(path, line, found, expected)
        self.path = path
        self.line = line
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        where = f"{self.path}, line {self.line}" if self.line else self.path
        return f"{where}: found {self.found}; expected {self.expected}"


class Trace:
    """A whole, valid trace: parallel arrays with one entry an event.

    path            the file it was read from, as given
    allocates       1 where the event allocates, 0 where it frees
    ids             number of the allocation concerned
    sizes           bytes as requested, for a free too
    streams         number of the stream that was current
    peak_requested  highest sum of requested bytes live at once
    """

    __slots__ = ("allocates", "ids", "path", "peak_requested", "sizes", "streams")

    def __init__(self, path: str) -> None:
        self.path = path
        self.allocates = bytearray()
        self.ids = array("I")
        self.sizes = array("q")
        self.streams = array("H")
        self.peak_requested = 0

    @property
    def events(self) -> int:
        return len(self.ids)

    @property
    def allocations(self) -> int:
        return sum(self.allocates)

    @property
    def live_at_end(self) -> int:
        """Allocations that the trace never frees."""
        return 2 * self.allocations - self.events

    def event_of_allocation(self, number: int) -> int:
        """Index of the event that made allocation `number`: no free comes before it."""
        return self.ids.index(number)

    def live_requested(self, event: int) -> int:
        """Sum of requested bytes that are live just before event number `event`."""
        return sum(
            size if allocates else -size
            for allocates, size in zip(
                self.allocates[:event], self.sizes[:event], strict=True
            )
        )


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Reads the trace in `path`; TraceError when there is anything wrong with it."""
    return _Reader(os.fspath(path)).read()


class _Reader:
    """One reading of one file: where it is, and what it knows so far."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._line = 0
        self._trace = Trace(path)
        self._live = array("q")  # size of each allocation, by id; _FREED once it is
        self._requested = 0

    def read(self) -> Trace:
        try:
            with open(self._path, "rb") as file:
                lines = self._lines(file)
                self._header(next(lines, b""))
                for line in lines:
                    self._event(line)
        except OSError as error:  # gzip.BadGzipFile is one of them
            raise self._unreadable(error) from error
        except EOFError as error:
            self._line += 1
            raise self._unexpected(
                "gzip data that is cut short, here or soon after", "a whole gzip file"
            ) from error
        except zlib.error as error:
            self._line += 1
            raise self._unexpected(
                f"damaged gzip data ({error})", "a whole gzip file"
            ) from error
        if not self._trace.events:
            self._line += 1
            raise self._unexpected("no event", "at least one, as 'a,0,4096,0,0'")
        return self._trace

    def _lines(self, file: io.BufferedReader) -> Iterator[bytes]:
        """The file's lines, unpacked, without their ends; keeps count."""
        source = file
        if file.peek(2)[:2] == _GZIP_MAGIC:
            # GzipFile reads lines in Python; a buffer above it does so in C.
            source = io.BufferedReader(gzip.GzipFile(fileobj=file))
        elif self._path.endswith(".gz"):
            raise self._unexpected("data that is not gzip", "gzip, as the name says")
        while line := source.readline(_LONGEST_LINE):
            self._line += 1
            yield line.rstrip(b"\r\n")

    def _header(self, line: bytes) -> None:
        if not self._line:
            raise self._unexpected("an empty file", f"the header {_shown(HEADER)}")
        if line != HEADER:
            raise self._unexpected(_shown(line), f"the header {_shown(HEADER)}")

    def _event(self, line: bytes) -> None:
        fields = line.split(b",")
        if len(fields) != 5:
            raise self._unexpected(
                f"{len(fields)} columns in {_shown(line)}" if line else "an empty line",
                f"5 columns, {_shown(HEADER)}",
            )
        op = fields[0]
        number = self._number("id", fields[1], _LARGEST_ID)
        size = self._number("size", fields[2], _LARGEST_NUMBER)
        stream = self._number("stream", fields[3], _LARGEST_STREAM)
        self._number("us", fields[4], _LARGEST_NUMBER)
        if op == b"a":
            self._allocation(number, size)
        elif op == b"f":
            self._free(number, size)
        else:
            raise self._unexpected(f"op {_shown(op)}", "op 'a' or 'f'")
        trace = self._trace
        trace.allocates.append(op == b"a")
        trace.ids.append(number)
        trace.sizes.append(size)
        trace.streams.append(stream)

    def _number(self, column: str, text: bytes, largest: int) -> int:
        # isdigit of bytes knows ASCII digits alone: no sign, blank or underscore.
        value = int(text) if text.isdigit() else -1
        if not 0 <= value <= largest:
            raise self._unexpected(
                f"{column} {_shown(text)}", f"a whole number from 0 to {largest}"
            )
        return value

    def _allocation(self, number: int, size: int) -> None:
        expected = len(self._live)
        if number != expected:
            again = "a second allocation with " if number < expected else ""
            raise self._unexpected(
                f"{again}id {number}", f"id {expected}, the next one"
            )
        self._live.append(size)
        self._requested += size
        if self._requested > self._trace.peak_requested:
            self._trace.peak_requested = self._requested

    def _free(self, number: int, size: int) -> None:
        if number >= len(self._live):
            raise self._unexpected(
                f"a free of id {number}, which was never allocated",
                "the id of a live allocation",
            )
        allocated = self._live[number]
        if allocated == _FREED:
            raise self._unexpected(
                f"a free of id {number}, which is free already",
                "the id of a live allocation",
            )
        if size != allocated:
            raise self._unexpected(
                f"size {size} for the free of id {number}",
                f"size {allocated}, as it was allocated",
            )
        self._live[number] = _FREED
        self._requested -= size

    def _unreadable(self, error: OSError) -> TraceError:
        if isinstance(error, gzip.BadGzipFile):
            self._line += 1
            return self._unexpected(f"damaged gzip data ({error})", "a whole gzip file")
        found = error.strerror or str(error)
        return self._unexpected(found.lower(), "a readable trace file")

    def _unexpected(self, found: str, expected: str) -> TraceError:
        return TraceError(self._path, self._line, found, expected)


def _shown(text: bytes) -> str:
    """`text` in quotes, one line, not too long, whatever bytes it is made of."""
    shown = repr(text[:60])[1:]
    return shown if len(text) <= 60 else shown + "..."
