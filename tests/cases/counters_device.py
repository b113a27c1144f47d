# SPDX-License-Identifier: MIT
"""A device, plainly, as docs/simulated-device.md describes it: memory placed first fit,
a call that may fail, and streams whose work is done as late as is legal: when somebody
waits for it, frees memory of its device, or asks for the second time."""

from bisect import insort

OUT_OF_MEMORY = 2  # an error of the device, by its number


class NoMemory(Exception):
    """A request failed for want of memory."""


class Refused(Exception):
    """The device failed, and not for want of memory."""


class Queue:
    """A stream: operations by number."""

    def __init__(self, device):
        self.device, self.queued, self.done = device, 0, 0
        device.queues.append(self)

    def add(self):
        self.queued += 1
        return self.queued

    def run(self):
        self.done = self.queued


class Mark:
    """An event that was recorded."""

    def __init__(self, queue):
        self.queue, self.number, self.asked = queue, queue.add(), False

    def happened(self):
        if self.asked:
            self.run()
        self.asked = True
        return self.queue.done >= self.number

    def run(self):
        self.queue.done = max(self.queue.done, self.number)


class Device:
    """One of `size` bytes, or with None one that answers every request."""

    def __init__(self, size):
        self.size, self.fault = size, 0
        self.queues = []
        self.taken = []  # (offset, size), sorted

    def run(self):
        for queue in self.queues:
            queue.run()

    def gaps(self, taken):
        end = 0
        for offset, size in [*taken, (self.size, 0)]:
            if offset > end:
                yield end, offset - end
            end = offset + size

    def take(self, size):
        fault, self.fault = self.fault, 0
        if fault == OUT_OF_MEMORY:
            raise NoMemory
        if fault:
            raise Refused
        if self.size is None:
            return None
        for offset, room in self.gaps(self.taken):
            if room >= size:
                insort(self.taken, (offset, size))
                return offset
        raise NoMemory

    def give(self, segment):
        self.run()
        if self.size is not None:
            self.taken.remove((segment.address, segment.size))

    def largest(self, without):
        """The longest gap once the segments `without` were given back."""
        back = {segment.address for segment in without}
        left = [each for each in self.taken if each[0] not in back]
        return max((room for _, room in self.gaps(left)), default=0)
