# SPDX-License-Identifier: MIT
"""A pool that is plainly right, to hold the real one against.

The policy in words, and nothing else. Sizes are rounded up to 512 bytes. Each stream
has its own free blocks. A request takes the smallest free block of its stream that is
large enough; among equals the one in the oldest segment, then the lowest offset. What
is left over stays free. A freed block joins free neighbours and goes back to the stream
it came from. When nothing fits, a new segment of exactly the rounded size is made;
segments are numbered from 0 in the order they are made. If that would exceed the limit,
segments with no live block go back first, whatever their stream: those of at least a
twentieth of the request, and where these are not enough, all.

With growth the new segment is larger than the request: by an eighth of what the stream
has then, or by the growth, whichever is more; but by no more than leaves as much free
as used, or the growth once for each stream that has a segment, whichever is more; and
by no more than fills half the limit. It is cut to whole 2 MiB, or below that to whole
512 bytes, but not below the request. There is always memory on the device.

With a max_split_size, a request below it takes no block of that size or more; and one
above 1 MiB keeps a block whole of which 1 MiB or less would be left. A request of that
size or more takes a block whole, but none that is larger by max_non_split_rounding or
more. With a large_segment_size, the new segment for a request above 1 MiB is a whole
multiple of it where the limit allows that, but not one of max_split_size or more for a
request below. A block that is refused is a block that is not there.

It is written to be read against those paragraphs, not to be fast; a sorted list makes
it fast enough (some microseconds an event).
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

UNIT = 512
GRAIN = 2 << 20
LARGE = 1 << 20


def rounded(size):
    return -(-size // UNIT) * UNIT


class OutOfMemory(Exception):
    """The limit does not allow it, even with every idle segment given back."""


@dataclass(eq=False)
class Segment:
    serial: int
    size: int
    stream: int
    blocks: dict = field(default_factory=dict)  # offset -> Block
    ends: dict = field(default_factory=dict)  # offset just past a block -> Block

    def add(self, block):
        self.blocks[block.offset] = block
        self.ends[block.offset + block.size] = block

    def remove(self, block):
        del self.blocks[block.offset]
        del self.ends[block.offset + block.size]


@dataclass(eq=False)
class Block:
    segment: Segment
    offset: int
    size: int
    free: bool

    @property
    def place(self):
        return self.segment.serial, self.offset


class BestFitPool:
    """`malloc` gives a Block, `free` takes it back; the counters are plain sums."""

    def __init__(
        self,
        limit=None,
        growth=0,
        max_split_size=0,
        max_non_split_rounding=20 << 20,
        large_segment_size=0,
    ):
        self.limit = limit
        self.growth = growth
        self.unit = large_segment_size
        self.whole_from = max_split_size or float("inf")
        self.ruled = bool(max_split_size)
        self.slack = max_non_split_rounding
        self.used = self.total = self.peak_used = self.peak_total = 0
        self.hits = self.misses = self.upstream_frees = 0
        self._segments = {}  # serial -> Segment
        self._next_serial = 0
        self._free = {}  # stream -> sorted list of (size, serial, offset)

    def malloc(self, size, stream=0):
        size = rounded(size)
        block = self._best_fit(size, stream)
        if block is not None:
            self.hits += 1
        else:
            block = self._new_segment(size, stream)
            self.misses += 1
        if not self._stays_whole(block.size, size):
            self._cut(block, size)
        block.free = False
        self.used += block.size
        self.peak_used = max(self.peak_used, self.used)
        return block

    def free(self, block):
        if block.free:
            raise ValueError("freed twice")
        self.used -= block.size
        segment = block.segment
        before = segment.ends.get(block.offset)
        after = segment.blocks.get(block.offset + block.size)
        for neighbour in (before, after):
            if neighbour is not None and neighbour.free:
                self._unlist(neighbour)
                segment.remove(neighbour)
                segment.remove(block)
                block.offset = min(block.offset, neighbour.offset)
                block.size += neighbour.size
                segment.add(block)
        self._list(block)

    def release_idle(self, smallest=0):
        """Gives back every segment of that size or more that is one free block."""
        for segment in list(self._segments.values()):
            first = segment.blocks[0]
            if first.free and first.size == segment.size >= smallest:
                self._unlist(first)
                del self._segments[segment.serial]
                self.total -= segment.size
                self.upstream_frees += 1

    def _best_fit(self, size, stream):
        free = self._free.setdefault(stream, [])
        at = bisect_left(free, (size, -1, -1))
        if at == len(free) or self._is_refused(free[at][0], size):
            return None
        _, serial, offset = free.pop(at)
        return self._segments[serial].blocks[offset]

    def _is_refused(self, found, size):
        """Whether a block of `found` bytes is kept from a request of `size`."""
        if found == size:
            return False
        if size < self.whole_from:
            return found >= self.whole_from
        return found >= size + self.slack

    def _stays_whole(self, found, size):
        if size >= self.whole_from:
            return True
        return self.ruled and size > LARGE and found - size <= LARGE

    def _new_segment(self, size, stream):
        if self.limit is not None and self.total + size > self.limit:
            self.release_idle(size // 20)
            if self.total + size > self.limit:
                self.release_idle()
            if self.total + size > self.limit:
                raise OutOfMemory(size)
        whole = self._grown(size, stream)
        segment = Segment(self._next_serial, whole, stream)
        self._next_serial += 1
        self._segments[segment.serial] = segment
        self.total += whole
        self.peak_total = max(self.peak_total, self.total)
        block = Block(segment, 0, whole, free=False)
        segment.add(block)
        return block

    def _grown(self, size, stream):
        """The size of a new segment for a request of `size`."""
        if self.unit and size > LARGE:
            whole = -(-size // self.unit) * self.unit
            if self.limit is not None and self.total + whole > self.limit:
                return size
            return (
                whole if (size < self.whole_from) == (whole < self.whole_from) else size
            )
        if not self.growth:
            return size
        streams = {stream}
        held = size
        for segment in self._segments.values():
            streams.add(segment.stream)
            held += segment.size if segment.stream == stream else 0
        most = max(self.used + size, self.growth * len(streams))
        lead = min(max(held // 8, self.growth), most - (self.total - self.used))
        if self.limit is not None:
            lead = min(lead, self.limit // 2 - self.total - size)
        whole = size + lead
        return max(size, whole - whole % (UNIT if whole < GRAIN else GRAIN))

    def _cut(self, block, size):
        """Shortens `block` to `size`; the rest becomes a free block."""
        if block.size == size:
            return
        segment = block.segment
        segment.remove(block)
        rest = Block(segment, block.offset + size, block.size - size, free=True)
        block.size = size
        segment.add(block)
        segment.add(rest)
        self._list(rest)

    def _list(self, block):
        block.free = True
        key = (block.size, block.segment.serial, block.offset)
        insort(self._free[block.segment.stream], key)

    def _unlist(self, block):
        free = self._free[block.segment.stream]
        key = (block.size, block.segment.serial, block.offset)
        at = bisect_left(free, key)
        assert free[at] == key
        del free[at]


def replay(trace, **options):
    """Replays `trace` (of gpumem._trace); the pool afterwards, with every block freed,
    and (id, serial, offset) of each allocation."""
    pool = BestFitPool(**options)
    places = []
    live = {}
    events = zip(trace.allocates, trace.ids, trace.sizes, trace.streams, strict=True)
    for allocates, number, size, stream in events:
        if allocates:
            block = live[number] = pool.malloc(size, stream)
            places.append((number, *block.place))
        else:
            pool.free(live.pop(number))
    for block in live.values():
        pool.free(block)
    return pool, places
