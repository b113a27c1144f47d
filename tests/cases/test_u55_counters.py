# SPDX-License-Identifier: MIT
"""The total did not go down when the cache was emptied, so that the limit struck early;
elsewhere counters became negative. cupy#3008, torch#135726,
https://github.com/cupy/cupy/issues/3008"""

import gc
import random
from bisect import bisect_left
from contextlib import nullcontext

import pytest
from casekit import UNIT

import gpumem
from gpumem import (
    CUDARuntimeError,
    Device,
    MemoryHook,
    MemoryPool,
    OutOfMemoryError,
    Stream,
    testing,
)
from oracle import BestFitPool, OutOfMemory, rounded

STEPS = 25_000
OUT_OF_MEMORY, NOT_PERMITTED = 2, 800
FAULTS = [0] * 16
if gpumem.get_backend() == "sim":
    FAULTS += [OUT_OF_MEMORY, NOT_PERMITTED]


class Refused(Exception):
    """The device failed, and not for want of memory."""


class Model(BestFitPool):
    """The naive pool, with the counters that the real one shows beside its own, over a
    device whose next call may fail."""

    def __init__(self):
        super().__init__()
        self.requested = self.failed = self.fault = 0

    def stats(self):
        free_blocks = sum(len(blocks) for blocks in self._free.values())
        live_blocks = sum(len(s.blocks) for s in self._segments.values()) - free_blocks
        return {
            "requested_bytes": self.requested,
            "used_bytes": self.used,
            "free_bytes": self.total - self.used,
            "pending_bytes": 0,
            "total_bytes": self.total,
            "limit_bytes": self.limit or 0,
            "peak_used_bytes": self.peak_used,
            "peak_total_bytes": self.peak_total,
            "live_blocks": live_blocks,
            "free_blocks": free_blocks,
            "segments": len(self._segments),
            "hits": self.hits,
            "misses": self.misses,
            "upstream_allocations": self.misses,
            "upstream_frees": self.upstream_frees,
            "out_of_memory": self.failed,
        }

    def malloc(self, size, stream=0):
        """Where there is no other memory, the best fit of any stream is borrowed."""
        try:
            return super().malloc(size, stream)
        except OutOfMemory:
            enough = [
                (*free[bisect_left(free, (rounded(size), -1, -1))], lender)
                for lender, free in self._free.items()
                if free and free[-1][0] >= rounded(size)
            ]
            if not enough:
                raise
            return super().malloc(size, min(enough)[-1])

    def _new_segment(self, size, stream):
        if self.limit and self.total + size > self.limit:
            self.release_idle()
            if self.total + size > self.limit:
                raise OutOfMemory(size)
        if self.fault == OUT_OF_MEMORY:  # of the first attempt
            self.release_idle()
        elif self.fault:
            raise Refused
        return super()._new_segment(size, stream)

    def set_limit(self, limit):
        """One that is below what is held drops what is idle."""
        self.limit = limit or None
        if limit and self.total > limit:
            self.release_idle()

    def would_give_back(self, size):
        """Whether one shortage of the device is overcome by what is idle."""
        segments = self._segments.values()
        idle = any(s.blocks[0].free and s.blocks[0].size == s.size for s in segments)
        return idle and (not self.limit or self.total + rounded(size) <= self.limit)

    def release_idle_of(self, stream):
        """What free_all_blocks(stream) gives back."""
        others = {
            serial: segment
            for serial, segment in self._segments.items()
            if segment.stream != stream
        }
        for serial in others:
            del self._segments[serial]
        self.release_idle()
        self._segments.update(others)


class Adds(MemoryHook):
    """Adds up what was handed out and not given back."""

    def __init__(self):
        self.used = 0

    def malloc_postprocess(self, **kwargs):
        if kwargs["mem_ptr"]:
            self.used += kwargs["mem_size"]

    def free_postprocess(self, **kwargs):
        self.used -= kwargs["mem_size"]


class Walk:
    """A random walk of one pool on all devices, in step with its models."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.pool, self.hook = MemoryPool(), Adds()
        self.devices = list(range(gpumem.get_device_count()))[:2]
        self.models = [Model() for _ in self.devices]
        self.streams = []
        for device in self.devices:
            with Device(device):
                made = [Stream(non_blocking=True) for _ in range(2)]
            self.streams.append([Stream.null, *made])
        self.live = []  # (pointer, device, block of the model, size)

    def malloc(self, device):
        size = self.rng.choice((1, 200, UNIT, 3 * UNIT + 1, 20 * UNIT, 64 * UNIT))
        size += self.rng.randrange(UNIT)
        which = self.rng.randrange(3)
        model = self.models[device]
        model.fault = self.rng.choice(FAULTS)
        if model.fault == OUT_OF_MEMORY and not model.would_give_back(size):
            model.fault = 0
        failing = nullcontext()
        if model.fault:
            failing = testing.fail("mem_alloc", code=model.fault)
        with self.streams[device][which], failing:
            try:
                block = model.malloc(size, which)
            except OutOfMemory:
                model.failed += 1
                with pytest.raises(OutOfMemoryError):
                    self.pool.malloc(size)
            except Refused:
                with pytest.raises(CUDARuntimeError):
                    self.pool.malloc(size)
            else:
                pointer = self.pool.malloc(size)
                assert testing.placement(pointer) == block.place
                model.requested += size
                self.live.append((pointer, device, block, size))
                if self.rng.random() < 0.2:
                    pointer.record_stream(self.rng.choice(self.streams[device]))

    def free(self):
        if self.live:
            at = self.rng.randrange(len(self.live))
            pointer, device, block, size = self.live.pop(at)
            del pointer  # borrowed or recorded, it returns when its streams are done
            Device(device).synchronize()
            self.models[device].free(block)
            self.models[device].requested -= size

    def step(self):
        device = self.rng.choice(self.devices)
        what = self.rng.random()
        with Device(device):
            if what < 0.5:
                self.malloc(device)
            elif what < 0.92 or len(self.live) > 60:
                self.free()
            elif what < 0.95:
                self.pool.free_all_blocks()
                self.models[device].release_idle()
            elif what < 0.97:
                which = self.rng.randrange(3)
                self.pool.free_all_blocks(self.streams[device][which])
                self.models[device].release_idle_of(which)
            else:
                limit = self.rng.choice((0, 200 * UNIT, 500 * UNIT, 2000 * UNIT))
                self.pool.set_limit(size=limit)
                self.models[device].set_limit(limit)

    def compare(self):
        for device in self.devices:
            with Device(device):
                shown = self.pool.stats()
                expected = self.models[device].stats()
                assert {name: shown[name] for name in expected} == expected
                assert self.pool.used_bytes() == expected["used_bytes"]
                assert self.pool.free_bytes() == expected["free_bytes"]
                assert self.pool.total_bytes() == expected["total_bytes"]
                assert self.pool.n_free_blocks() == expected["free_blocks"]
        assert self.hook.used == sum(model.used for model in self.models)

    def end(self):
        while self.live:
            self.free()
        self.compare()
        for device in self.devices:
            with Device(device):
                testing.check_pool(self.pool)
                self.pool.free_all_blocks()
                assert self.pool.total_bytes() == 0
                assert self.pool.stats()["segments"] == 0


@pytest.fixture
def little_garbage():
    """Each refused request collects it: not pytest's objects each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(4))
def test_u55_every_counter_is_the_models_after_every_step(seed, little_garbage):
    """Over three streams of two devices, with limits, faults, a hook, and memory that
    several streams use."""
    walk = Walk(seed)
    with walk.hook:
        for _ in range(STEPS):
            walk.step()
            walk.compare()
        walk.end()
    assert walk.hook.used == 0
    failed = sum(model.failed for model in walk.models)
    assert failed > 0 and sum(model.upstream_frees for model in walk.models) > 0


def test_u55_emptying_the_cache_lets_the_limit_go_further(pool):
    pool.set_limit(size=64 * UNIT)
    for _ in range(5):
        blocks = [pool.malloc(16 * UNIT) for _ in range(4)]
        del blocks
        pool.free_all_blocks()
        assert pool.total_bytes() == pool.free_bytes() == 0
    assert pool.malloc(64 * UNIT).mem.size == 64 * UNIT
