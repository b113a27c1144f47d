# SPDX-License-Identifier: MIT
"""A pool that counts all that a real one counts, plainly: lists of segments and blocks,
each number changed where its words say that it changes, and counted anew from the lists
by `recount`. It shares no code with the pool; placement is that of oracle.py.

What waits for a stream asks the model of a device in counters_device.py.
"""

from bisect import bisect_left, insort

from counters_device import Mark, NoMemory

from oracle import UNIT, rounded

SETTLE_EVERY = 16  # dropped uses: docs/lifetime-and-streams.md


class Segment:
    def __init__(self, serial, size, queue, address):
        self.serial, self.size, self.queue, self.address = serial, size, queue, address
        self.blocks = []  # by offset

    @property
    def idle(self):
        return self.blocks[0].state == "free" and len(self.blocks) == 1


class Block:
    def __init__(self, segment, offset, size, state):
        self.segment, self.offset, self.size = segment, offset, size
        self.state = state  # "free", "live", "pending" or "captured"
        self.requested = 0
        self.uses = []  # newest first
        self.part = None  # of the graph that it belongs to
        self.open = 0  # uses that are waited for

    @property
    def place(self):
        return self.segment.serial, self.offset

    @property
    def key(self):
        return self.size, self.segment.serial, self.offset


class Use:
    """Of a block, or of a graph's memory, by a stream."""

    def __init__(self, owner, queue):
        self.owner, self.queue, self.mark = owner, queue, None


class Graph:
    """What a stream recorded, or records."""

    def __init__(self, queue):
        self.queue = queue


class Part:
    """A pool's memory of a graph."""

    def __init__(self, queue):
        self.queue, self.free, self.uses, self.open = queue, [], [], 0
        self.ended = False


PEAKS = (
    *("requested_bytes", "used_bytes", "free_bytes", "pending_bytes", "total_bytes"),
    *("live_blocks", "segments"),
)
# Nothing here resets a device, maps memory by page, keeps a reserve, or has a second
# thread that holds the pool's lock.
NEVER = (
    *("lost_segments", "lost_bytes", "deferred_frees", "pending_release_bytes"),
    *("reserve_bytes", "reserved_bytes", "pages", "mappings", "remapped_pages"),
    *("returned_pages", "driver_ns"),
)
SUMS = (
    *("requested_bytes", "used_bytes", "free_bytes", "pending_bytes", "captured_bytes"),
    *("total_bytes", "limit_bytes", "live_blocks", "free_blocks", "pending_blocks"),
    *("captured_blocks", "segments", "allocated_requested_bytes", "allocated_bytes"),
    *("freed_requested_bytes", "freed_bytes", "freed_blocks", "allocated_blocks"),
    *("upstream_allocated_bytes", "upstream_freed_bytes", "upstream_allocations"),
    *("upstream_frees", "hits", "misses", "splits", "merges", "retries"),
    *("out_of_memory", "arenas", *NEVER),
)


class Pool:
    def __init__(self, device):
        self.device = device
        self.segments = {}  # serial -> Segment
        self.next_serial = 0
        self.free = {}  # Queue -> sorted keys of its free blocks
        self.parts = {}  # graph -> Part
        self.dropped = []  # blocks and parts without marks, newest first
        self.lanes = {}  # Queue -> uses with marks, in order
        self.flushes = 0
        self.recording = None  # the graph that a stream records, whichever pool's
        self.trim = False
        self.n = dict.fromkeys(SUMS, 0)
        self.reset_peaks()

    # ---- what is counted ----

    def reset_peaks(self):
        self.peaks = {name: self.n[name] for name in PEAKS}

    def look(self):
        """Notes the peaks, after each change."""
        n, peaks = self.n, self.peaks
        for name in PEAKS:
            if n[name] > peaks[name]:
                peaks[name] = n[name]

    def stats(self):
        idle = [each for each in self.segments.values() if each.idle]
        idle_bytes = sum(each.size for each in idle)
        largest = max((keys[-1][0] for keys in self.free.values() if keys), default=0)
        shown = {**self.n, **{f"peak_{name}": n for name, n in self.peaks.items()}}
        shown["idle_bytes"] = idle_bytes
        shown["inactive_split_bytes"] = self.n["free_bytes"] - idle_bytes
        shown["largest_free_block"] = largest
        if self.device.size is not None:
            shown["largest_available_block"] = max(largest, self.fresh(idle))
        return shown

    def fresh(self, idle):
        """The largest new segment, with what is idle given back."""
        if not self.next_serial or self.recording:  # then the device is not asked
            return 0
        room = self.device.largest(idle)
        if self.n["limit_bytes"]:
            held = self.n["total_bytes"] - sum(each.size for each in idle)
            room = min(room, max(self.n["limit_bytes"] - held, 0))
        return room // UNIT * UNIT

    def recount(self):
        """What of the numbers follows from the lists."""
        blocks = [b for s in self.segments.values() for b in s.blocks]
        found = {"total_bytes": sum(s.size for s in self.segments.values())}
        found["segments"] = len(self.segments)
        found["arenas"] = len({s.queue for s in self.segments.values()})
        for state in ("live", "free", "pending", "captured"):
            sizes = [b.size for b in blocks if b.state == state]
            found[f"{state}_blocks"] = len(sizes)
            found[f"{'used' if state == 'live' else state}_bytes"] = sum(sizes)
        found["requested_bytes"] = sum(b.requested for b in blocks if b.state == "live")
        keys = sorted(key for keys in self.free.values() for key in keys)
        assert keys == sorted(b.key for b in blocks if b.state == "free")
        return found

    # ---- blocks ----

    def count(self, block, sign):
        """Counts a block among those of its state, or no more."""
        n, state = self.n, block.state
        n[f"{state}_blocks"] += sign
        n["used_bytes" if state == "live" else f"{state}_bytes"] += sign * block.size
        if state == "live":
            n["requested_bytes"] += sign * block.requested

    def put(self, block, keys, state):
        """Makes a block a free one or a graph's, joined with neighbours like it."""
        blocks = block.segment.blocks
        at = blocks.index(block)
        block.state = state
        block.requested, block.uses = 0, []
        for neighbour in blocks[at + 1 : at + 2] + blocks[max(at - 1, 0) : at]:
            if neighbour.state == state and neighbour.part is block.part:
                self.unlist(neighbour, keys)
                blocks.remove(neighbour)
                block.offset = min(block.offset, neighbour.offset)
                block.size += neighbour.size
                self.n["merges"] += 1
        insort(keys, block.key)
        self.count(block, 1)

    def unlist(self, block, keys):
        keys.remove(block.key)
        self.count(block, -1)

    def cache(self, block):
        block.part = None
        self.put(block, self.free.setdefault(block.segment.queue, []), "free")

    def fit(self, keys, size):
        """The best fit among sorted keys, cut to size and in no list; or None."""
        at = bisect_left(keys, (size, -1, -1))
        if at == len(keys):
            return None
        serial, offset = keys[at][1:]
        blocks = self.segments[serial].blocks
        block = next(b for b in blocks if b.offset == offset)
        self.unlist(block, keys)
        if block.size > size:
            rest = Block(block.segment, offset + size, block.size - size, block.state)
            rest.part, block.size = block.part, size
            blocks.insert(blocks.index(block) + 1, rest)
            insort(keys, rest.key)
            self.count(rest, 1)
            self.n["splits"] += 1
        return block

    def hand_out(self, block, requested, how):
        block.state, block.requested = "live", requested
        self.count(block, 1)
        n = self.n
        n[how] += 1
        n["allocated_blocks"] += 1
        n["allocated_bytes"] += block.size
        n["allocated_requested_bytes"] += requested
        self.look()
        return block

    # ---- requests ----

    def malloc(self, requested, queue):
        if self.recording and self.recording.queue is queue:
            return self.malloc_recorded(requested, queue)
        try:
            return self.malloc_reclaiming(requested, queue)
        except NoMemory:
            self.n["out_of_memory"] += 1
            raise

    def malloc_recorded(self, requested, queue):
        """From the graph's own memory, then from what its stream has cached."""
        part = self.parts.setdefault(self.recording, Part(queue))
        size = rounded(requested)
        block = self.fit(part.free, size) or self.fit(self.free.get(queue, []), size)
        if block is None:
            raise NoMemory
        block.part = part
        return self.hand_out(block, requested, "hits")

    def attempt(self, requested, queue):
        """From the cache, then with what was done meanwhile, then from the device."""
        size, n = rounded(requested), self.n
        block = self.fit(self.free.get(queue, []), size)
        if block is None and self.lanes:
            self.settle()
            block = self.fit(self.free.get(queue, []), size)
        if block is not None:
            return self.hand_out(block, requested, "hits")
        if n["limit_bytes"] and n["total_bytes"] + size > n["limit_bytes"]:
            raise NoMemory
        address = self.device.take(size)
        segment = Segment(self.next_serial, size, queue, address)
        self.segments[self.next_serial] = segment
        self.next_serial += 1
        segment.blocks.append(Block(segment, 0, size, "live"))
        n["total_bytes"] += size
        n["segments"] += 1
        n["upstream_allocations"] += 1
        n["upstream_allocated_bytes"] += size
        self.count_arenas()
        return self.hand_out(segment.blocks[0], requested, "misses")

    def count_arenas(self):
        self.n["arenas"] = len({each.queue for each in self.segments.values()})

    def malloc_reclaiming(self, requested, queue):
        """Each stage that gave something is followed by another attempt, and then by
        the first stage again; garbage, of which there is none, is looked for once."""
        collected = False
        while True:
            try:
                return self.attempt(requested, queue)
            except NoMemory:
                if 0 < self.n["limit_bytes"] < rounded(requested):
                    raise
            worth = rounded(requested) // 20
            if not (
                self.wait_for_pending()
                or self.release_idle(smallest=worth)
                or self.release_idle()
            ):
                block = self.lend(requested, queue)
                if block is not None:
                    return block
                if collected:
                    raise NoMemory
                collected = True
            self.n["retries"] += 1

    def lend(self, requested, queue):
        """The best fit of any stream, after all work; it returns there."""
        size = rounded(requested)
        fits = []
        for lender, keys in self.free.items():
            at = bisect_left(keys, (size, -1, -1))
            if at < len(keys):
                fits.append((keys[at], lender))
        if not fits:
            return None
        lender = min(fits, key=lambda fit: fit[0])[1]
        block = self.hand_out(self.fit(self.free[lender], size), requested, "hits")
        self.device.run()
        self.record(block, queue)
        return block

    # ---- what is given back ----

    def record(self, block, queue):
        """Says that a stream uses the block; its own stream need not be told."""
        if queue is not block.segment.queue:
            if queue not in [use.queue for use in block.uses]:
                block.uses.insert(0, Use(block, queue))

    def drop(self, block):
        n = self.n
        self.count(block, -1)
        n["freed_blocks"] += 1
        n["freed_bytes"] += block.size
        n["freed_requested_bytes"] += block.requested
        if block.uses:
            block.state = "pending"
            self.count(block, 1)
            self.dropped.insert(0, block)
            self.look()
            self.flush()
        else:
            self.come_free(block)

    def come_free(self, block):
        """Nothing waits for a block any more that is counted nowhere."""
        part = block.part
        if part and not part.ended:
            self.put(block, part.free, "captured")
        else:
            self.cache(block)
        self.look()

    def flush(self):
        """Marks what was dropped; uses in a row by one stream share a mark."""
        if self.recording or not self.dropped:
            return
        chain, self.dropped = self.dropped, []
        recent = None
        for owner in chain:
            for use in owner.uses:
                same = recent is not None and recent.queue is use.queue
                use.mark = recent.mark if same else Mark(use.queue)
                self.lanes.setdefault(use.queue, []).append(use)
                recent = use
            owner.open = len(owner.uses)
        self.flushes += 1
        if self.flushes % SETTLE_EVERY == 0:
            self.settle()

    def settle(self):
        """Looks what is done, a question or more a stream."""
        if self.recording:
            return
        for queue, lane in list(self.lanes.items()):
            while lane and lane[0].mark.happened():
                self.finish(lane.pop(0))
            if not lane:
                del self.lanes[queue]

    def finish(self, use):
        owner = use.owner
        owner.open -= 1
        if owner.open == 0:
            if isinstance(owner, Part):
                self.end(owner)
            else:
                self.count(owner, -1)
                self.come_free(owner)

    def wait_for_pending(self):
        """Whether that made pending bytes free."""
        before = self.n["pending_bytes"]
        self.flush()
        if not self.recording:
            for lane in self.lanes.values():
                lane[-1].mark.run()
            self.settle()
        return self.n["pending_bytes"] < before

    def release_idle(self, queue=None, smallest=0):
        """Of all streams, or of one; segments of `smallest` bytes or more. Whether
        there was any."""
        self.flush()
        self.settle()
        if self.recording:
            self.trim = True
            return False
        idle = [each for each in self.segments.values() if each.idle]
        idle = [each for each in idle if queue in (None, each.queue)]
        idle = [each for each in idle if each.size >= smallest]
        for segment in idle:
            self.unlist(segment.blocks[0], self.free[segment.queue])
            del self.segments[segment.serial]
            self.device.give(segment)
            self.n["total_bytes"] -= segment.size
            self.n["segments"] -= 1
            self.n["upstream_frees"] += 1
            self.n["upstream_freed_bytes"] += segment.size
        self.count_arenas()
        return bool(idle)

    def set_limit(self, limit):
        """One below what is held gives back what is idle."""
        self.n["limit_bytes"] = limit
        if limit and self.n["total_bytes"] > limit:
            self.release_idle()

    # ---- graphs ----

    def stop_recording(self):
        """What was put off is done."""
        self.recording = None
        if self.trim:
            self.trim = False
            self.release_idle()
        self.flush()

    def launched(self, graph, queue):
        part = self.parts.get(graph)
        if part and queue not in [use.queue for use in part.uses]:
            part.uses.insert(0, Use(part, queue))

    def release(self, graph):
        """The graph is gone: its memory is its stream's when the launches are done."""
        part = self.parts.pop(graph, None)
        if part and part.uses:
            self.dropped.insert(0, part)
            self.flush()
        elif part:
            self.end(part)

    def end(self, part):
        part.ended = True
        for _, serial, offset in list(part.free):
            blocks = self.segments[serial].blocks
            block = next(b for b in blocks if b.offset == offset)
            self.unlist(block, part.free)
            self.cache(block)
        self.look()
