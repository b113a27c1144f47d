# SPDX-License-Identifier: MIT
"""The total did not go down when the cache was emptied, so that the limit struck early;
elsewhere counters became negative. cupy#3008, torch#135726,
https://github.com/cupy/cupy/issues/3008"""

import gc
import random
from contextlib import nullcontext

import pytest
from casekit import UNIT
from counters_device import OUT_OF_MEMORY, Device, NoMemory, Queue, Refused
from counters_model import NEVER, Graph, Pool

import gpumem
from gpumem import (
    CUDARuntimeError,
    MemoryHook,
    MemoryPool,
    OutOfMemoryError,
    Stream,
    streamCaptureModeRelaxed,
    testing,
)

SEEDS, STEPS = 4, 25_000
RECOUNTED = 50  # steps from one recount of the model to the next
NOT_PERMITTED = 800
FAULTS = [0] * 16 + [OUT_OF_MEMORY, NOT_PERMITTED]
SIZES = (1, 700, UNIT, 3 * UNIT + 1, 20 * UNIT, 80 * UNIT, 256 * UNIT)
LIMITS = (0, 0, 800 * UNIT, 2000 * UNIT, 3000 * UNIT)
KEPT = 120  # blocks at most
PHASE = 500  # steps in which blocks become more, or fewer
MEMORY = 2 << 20  # of a simulated device; enough for them most of the time


# Methods of a pool that tell one statistic.
ONE_BY_ONE = {
    "used_bytes": "used_bytes",
    "free_bytes": "free_bytes",
    "total_bytes": "total_bytes",
    "n_free_blocks": "free_blocks",
    "get_limit": "limit_bytes",
}


class Adds(MemoryHook):
    """Adds up what was handed out and not given back."""

    def __init__(self):
        self.used = 0

    def malloc_postprocess(self, **kwargs):
        if kwargs["mem_ptr"]:
            self.used += kwargs["mem_size"]

    def free_postprocess(self, **kwargs):
        self.used -= kwargs["mem_size"]


class Side:
    """One of the devices: its streams, and what the models have for it."""

    def __init__(self, number, size):
        self.device = gpumem.Device(number)
        self.model = Pool(Device(size))
        with self.device:
            self.streams = [Stream.null]
            self.streams += [Stream(non_blocking=True) for _ in range(2)]
        self.queues = {stream: Queue(self.model.device) for stream in self.streams}


class Walk:
    """A random walk of one pool on all devices, in step with its models. `patient`: the
    devices are waited for after each change, and nothing is done that looks at work
    which was queued since, so that it is known of a GPU what is done; how much of it is
    left others decide, so the largest request is not compared then."""

    def __init__(self, seed, patient):
        self.rng, self.patient = random.Random(seed), patient
        self.seen = set()  # statistics that were not 0 at some time
        self.pool, self.hook = MemoryPool(), Adds()
        size = None if patient else MEMORY
        numbers = range(min(gpumem.get_device_count(), 2))
        self.sides = [Side(number, size) for number in numbers]
        self.live = []  # (pointer, side, block of the model)
        self.graphs = []  # (graph, its model)
        self.steps = 0
        for side in self.sides:  # the pools are made in this order
            self.pool.set_limit(size=0, device=side.device)

    # ---- what it does ----

    def request(self, side, stream, size, fault=0, look=True):
        """Whether it was served; then it is the newest of the live blocks. `look`: at
        where it lies, for which the pool is asked."""
        model = side.model
        model.device.fault = fault
        failing = testing.fail("mem_alloc", code=fault) if fault else nullcontext()
        with stream, failing:
            try:
                block = model.malloc(size, side.queues[stream])
            except (NoMemory, Refused) as error:
                refused = isinstance(error, Refused)
                with pytest.raises(CUDARuntimeError if refused else OutOfMemoryError):
                    self.pool.malloc(size)
                block = None
            else:
                pointer = self.pool.malloc(size)
                assert not look or testing.placement(pointer) == block.place
                self.live.append((pointer, side, block))
        model.device.fault = 0
        return block is not None

    def a_size(self):
        return self.rng.choice(SIZES) + self.rng.randrange(UNIT)

    def malloc(self, side, stream=None):
        if stream:
            self.request(side, stream, self.a_size())
        else:
            fault = 0 if self.patient else self.rng.choice(FAULTS)
            self.request(side, self.rng.choice(side.streams), self.a_size(), fault)

    def temporaries(self, side):
        """The same again and again, with nobody looking in between."""
        stream, size = self.rng.choice(side.streams), self.a_size()
        for _ in range(self.rng.randrange(2, 5)):
            size += self.rng.randrange(-2, 3) if size > 2 else 0
            if self.request(side, stream, size, look=False):
                self.drop(side, -1)
            self.be_patient()

    def use(self, side):
        """Another stream uses a block, perhaps one of the other device."""
        if self.live:
            pointer, owner, block = self.rng.choice(self.live)
            stream = self.rng.choice(side.streams[owner is not side :])
            pointer.record_stream(stream)
            owner.model.record(block, side.queues[stream])

    def drop(self, _, at=None):
        if self.live:
            at = self.rng.randrange(len(self.live)) if at is None else at
            pointer, side, block = self.live.pop(at)
            del pointer
            side.model.drop(block)

    def free_all(self, side):
        self.pool.free_all_blocks()
        side.model.release_idle()

    def free_all_of_one(self, side):
        stream = self.rng.choice(side.streams)
        self.pool.free_all_blocks(stream)
        side.model.release_idle(side.queues[stream])

    def set_limit(self, side):
        limit = self.rng.choice(LIMITS)
        self.pool.set_limit(size=limit)
        side.model.set_limit(limit)

    def reset_peaks(self, side):
        self.pool.reset_peak_stats()
        side.model.reset_peaks()

    def wait(self, side):
        stream = self.rng.choice(side.streams)
        stream.synchronize()
        side.queues[stream].run()

    def wait_for_all(self, side):
        side.device.synchronize()
        side.model.device.run()

    def record(self, side):
        """A graph, in which memory is taken, and whatever there is dropped."""
        stream = self.rng.choice(side.streams[1:])
        model = Graph(side.queues[stream])
        stream.begin_capture(streamCaptureModeRelaxed)
        for each in self.sides:
            each.model.recording = model
        for _ in range(self.rng.randrange(12)):
            what = self.rng.random()
            if what < 0.05:
                if not self.patient:
                    self.free_all(side)
            elif what < 0.5:
                self.drop(side)
            else:
                self.malloc(side, stream)
            self.compare()
        self.graphs.append((stream.end_capture(), model))
        for each in self.sides:
            each.model.stop_recording()

    def launch(self, side):
        if self.graphs:
            graph, model = self.rng.choice(self.graphs)
            owner = next(s for s in self.sides if s.model.device is model.queue.device)
            stream = self.rng.choice(owner.streams)
            with owner.device:
                graph.launch(stream)
            for each in self.sides:
                each.model.launched(model, owner.queues[stream])

    def release(self, _):
        if self.graphs:
            graph, model = self.graphs.pop(self.rng.randrange(len(self.graphs)))
            del graph
            for each in self.sides:
                each.model.release(model)

    # ---- how it goes ----

    WHAT = (
        (40, malloc),
        (30, drop),
        (10, use),
        (6, temporaries),
        (1, free_all),
        (1, free_all_of_one),
        (1, set_limit),
        (0.5, reset_peaks),
        (1, wait),
        (0.5, wait_for_all),
        (0.5, record),
        (0.5, launch),
        (0.5, release),
    )

    def step(self):
        side = self.rng.choice(self.sides)
        kinds, weights = [each for _, each in self.WHAT], [n for n, _ in self.WHAT]
        if self.steps // PHASE % 2:
            weights[:2] = weights[1::-1]
        (what,) = self.rng.choices(kinds, weights)
        if what is Walk.malloc and len(self.live) >= KEPT:
            what = Walk.drop
        with side.device:
            what(self, side)
            self.be_patient()
        self.compare()

    def be_patient(self):
        if self.patient:
            for each in self.sides:
                self.wait_for_all(each)

    def compare(self):
        self.steps += 1
        for side in self.sides:
            shown = self.pool.stats(side.device)
            side.model.settle()
            expected = side.model.stats()
            if self.patient:
                del shown["largest_available_block"]
            assert shown == expected
            if self.steps % RECOUNTED == 0:
                self.recount(side, expected)
        assert self.hook.used == sum(s.model.n["used_bytes"] for s in self.sides)

    def recount(self, side, expected):
        """The model itself, and what the pool tells number by number."""
        self.seen.update(name for name, n in expected.items() if n)
        found = side.model.recount()
        assert {name: expected[name] for name in found} == found
        for method, name in ONE_BY_ONE.items():
            told = getattr(self.pool, method)(device=side.device)
            side.model.settle()
            assert told == side.model.n[name], method

    def end(self):
        while self.live:
            self.drop(None)
        while self.graphs:
            self.release(None)
        for side in self.sides:
            self.wait_for_all(side)
        for side in self.sides:
            with side.device:
                testing.check_pool(self.pool)
                self.free_all(side)
                assert self.pool.total_bytes() == self.pool.stats()["segments"] == 0
        assert self.hook.used == 0


def walked(seed, steps, patient=False):
    gc.collect()
    gc.freeze()  # each refused request collects the rest
    walk = Walk(seed, patient)
    with walk.hook:
        while walk.steps < steps:
            walk.step()
        walk.end()
    gc.unfreeze()
    return walk


def walk_everywhere(seed, steps):
    walk = walked(seed, steps)
    names = set(walk.sides[0].model.stats())
    assert names - walk.seen == set(NEVER)


@pytest.mark.sim_only
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_u55_every_counter_is_the_models_after_every_step(apart, seed):
    """Over three streams of each of two devices, with limits, faults, a hook, memory
    that several streams use, and graphs."""
    apart(walk_everywhere, seed, STEPS, memory=str(MEMORY), devices=2, timeout=300)


@pytest.mark.timeout(120)
def test_u55_so_it_is_where_the_device_is_waited_for():
    walked(SEEDS, STEPS // 10, patient=True)


def test_u55_emptying_the_cache_lets_the_limit_go_further(pool):
    pool.set_limit(size=64 * UNIT)
    for _ in range(5):
        blocks = [pool.malloc(16 * UNIT) for _ in range(4)]
        del blocks
        pool.free_all_blocks()
        assert pool.total_bytes() == pool.free_bytes() == 0
    assert pool.malloc(64 * UNIT).mem.size == 64 * UNIT
