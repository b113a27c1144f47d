# SPDX-License-Identifier: MIT
"""A block of one stream was read by another one's copy and dropped; its own stream used
it again and the copy read garbage. cupy#8068, meta-pytorch/torchrec#4231, torch#181191,
https://github.com/cupy/cupy/issues/8068"""

import pytest
from casekit import MIB, content, kept_busy, pattern, written

import gpumem
from gpumem import MemoryPointer, MemoryPool, SingleDeviceMemoryPool, Stream

POOLS = pytest.mark.parametrize("make", [MemoryPool, SingleDeviceMemoryPool])


def alias(pointer, size):
    """The same bytes as another library sees them: an address and no more."""
    memory = gpumem.UnownedMemory(pointer.ptr, size, None, pointer.device_id)
    return MemoryPointer(memory, 0)


class Setting:
    """A block of the first stream, which the second copies from, in a while."""

    def __init__(self, make):
        self.pool = make()
        self.first, self.second = (Stream(non_blocking=True) for _ in range(2))
        with self.first:
            self.pointer = written(self.pool.malloc(MIB), MIB)
        self.address = self.pointer.ptr
        self.target = gpumem.malloc(MIB)

    def copy_out(self, source):
        self.busy = kept_busy(self.second)
        self.target.copy_from_device_async(source, MIB, self.second)

    def heir(self):
        """What the first stream asks for next, and fills."""
        with self.first:
            pointer = self.pool.malloc(MIB)
            pointer.memset_async(255, MIB)
        self.first.synchronize()
        return pointer


@POOLS
def test_u30_declared_memory_is_kept_until_the_second_stream_is_done(make):
    s = Setting(make)
    s.copy_out(alias(s.pointer, MIB))
    s.pointer.record_stream(s.second)
    del s.pointer
    first_heir = s.heir()
    s.second.synchronize()
    assert content(s.target, MIB) == pattern(MIB)
    # It is no leak: with the copy done, the block is used again.
    second_heir = s.heir()
    assert s.address in (first_heir.ptr, second_heir.ptr)
    assert s.pool.stats()["pending_bytes"] == 0
    assert s.pool.used_bytes() == 2 * MIB
    assert s.pool.total_bytes() <= 2 * MIB


@POOLS
def test_u30_a_copy_made_here_declares_itself(make):
    s = Setting(make)
    s.copy_out(s.pointer)
    del s.pointer
    heirs = [s.heir()]
    s.second.synchronize()
    assert content(s.target, MIB) == pattern(MIB)
    heirs.append(s.heir())
    assert s.address in {heir.ptr for heir in heirs}
    assert s.pool.total_bytes() <= 2 * MIB


@pytest.mark.sim_only
@POOLS
def test_u30_undeclared_the_block_goes_to_the_next_request(make):
    """The program's duty, as the documents say: the pool cannot know."""
    assert "stream" in gpumem.MemoryPointer.record_stream.__doc__
    s = Setting(make)
    s.copy_out(alias(s.pointer, MIB))
    del s.pointer
    assert s.heir().ptr == s.address
    s.second.synchronize()
    assert content(s.target, MIB) == b"\xff" * MIB


@pytest.mark.sim_only
@POOLS
def test_u30_what_waits_is_counted(make):
    s = Setting(make)
    s.copy_out(s.pointer)
    del s.pointer
    stats = s.pool.stats()
    assert (stats["pending_bytes"], stats["used_bytes"]) == (MIB, 0)
    assert stats["total_bytes"] == MIB
    s.second.synchronize()
    stats = s.pool.stats()
    assert (stats["pending_bytes"], stats["free_bytes"]) == (0, MIB)
