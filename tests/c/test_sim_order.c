/* SPDX-License-Identifier: MIT
 *
 * When the simulated device runs queued work: in a legal order, and as late as that
 * allows. First by hand, then against a model: random programs over several streams,
 * with the happens-before relation computed here by its definition (all pairs), and
 * the device asked which of the operations had run when each one ran.
 */
#include "device.h"

#include <string.h>

static gm_backend *
open_devices(int devices, bool release_at_once)
{
    return open_sim((gm_sim_options){
        .devices = devices, .memory = 64 * MIB, .release_at_once = release_at_once});
}

static void
close_sim(gm_backend *b, size_t errors)
{
    CHECK_EQ(read_ledger(b).errors, errors);
    check_ledger_is_empty(b);
    gm_backend_close(b);
}

static size_t
pending(const gm_backend *b)
{
    return read_ledger(b).pending;
}

/* A device byte, read past the device's back. */
static int
peek(uintptr_t ptr)
{
    return *(volatile unsigned char *)ptr;
}

/* ---- by hand ---- */

TEST(sim_work_waits_until_somebody_does)
{
    gm_backend *b = open_devices(1, false);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512), other = take(b, GM_MEM_DEVICE, 512);
    CHECK_EQ(gm_backend_set(b, ptr, 1, 512), GM_OK);
    gm_stream one = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_stream two = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event event = take_event(b, 0);

    CHECK_EQ(gm_backend_set_async(b, ptr, 2, 512, one), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, event, one), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(b, two, event), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 3, 1, two), GM_OK);
    CHECK_EQ(pending(b), 4);
    // Plain work does not wait for non-blocking streams, and ends of handles for none.
    CHECK_EQ(gm_backend_set(b, other, 4, 1), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, one), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, two), GM_OK);
    CHECK_EQ(peek(ptr), 1);
    CHECK_EQ(pending(b), 4);

    give(b, GM_MEM_DEVICE, other);
    CHECK_EQ(peek(ptr), 3);
    CHECK_EQ(peek(ptr + 1), 2);
    give(b, GM_MEM_DEVICE, ptr);
    close_sim(b, 0);
}

TEST(sim_event_runs_what_it_follows_and_no_more)
{
    gm_backend *b = open_devices(1, false);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    gm_stream one = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_stream two = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event event = take_event(b, 0);
    CHECK_EQ(gm_backend_set(b, ptr, 0, 512), GM_OK);

    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 1, one), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, event, one), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr + 1, 1, 1, one), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr + 2, 1, 1, two), GM_OK);
    CHECK_EQ(gm_backend_event_synchronize(b, event), GM_OK);
    CHECK_EQ(peek(ptr), 1);
    CHECK_EQ(peek(ptr + 1), 0);
    CHECK_EQ(peek(ptr + 2), 0);
    CHECK_EQ(gm_backend_stream_synchronize(b, one), GM_OK);
    CHECK_EQ(peek(ptr + 1), 1);
    CHECK_EQ(peek(ptr + 2), 0);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(peek(ptr + 2), 1);

    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, two), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, one), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    close_sim(b, 0);
}

/* The first query of pending work says no, and changes nothing; the next lets time
 * pass up to where the first one looked. */
TEST(sim_query_says_not_ready_once)
{
    gm_backend *b = open_devices(1, false);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event event = take_event(b, 0);
    CHECK_EQ(gm_backend_set(b, ptr, 0, 512), GM_OK);

    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 1, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_query(b, stream), GM_NOT_READY);
    CHECK_EQ(peek(ptr), 0);
    CHECK_EQ(gm_backend_set_async(b, ptr + 1, 1, 1, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_query(b, stream), GM_NOT_READY);
    CHECK_EQ(peek(ptr), 1);
    CHECK_EQ(peek(ptr + 1), 0);
    CHECK_EQ(gm_backend_stream_query(b, stream), GM_OK);
    CHECK_EQ(peek(ptr + 1), 1);

    for (int round = 0; round < 2; round++) { // a new record is a new question
        CHECK_EQ(gm_backend_set_async(b, ptr, 2 + round, 1, stream), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
        CHECK_EQ(gm_backend_event_query(b, event), GM_NOT_READY);
        CHECK_EQ(peek(ptr), 1 + round);
        CHECK_EQ(gm_backend_event_query(b, event), GM_OK);
        CHECK_EQ(peek(ptr), 2 + round);
    }
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    close_sim(b, 0);
}

/* A free waits for its own device alone. */
TEST(sim_free_waits_for_its_device)
{
    gm_backend *b = open_devices(2, false);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512), other = 0;
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING), far_stream = 0;
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, 512, &other), GM_OK);
    CHECK_EQ(gm_backend_stream_create(b, 1, 0, 0, &far_stream), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, other, 1, 512, stream), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 512, far_stream), GM_OK);

    CHECK_EQ(gm_backend_mem_free(b, 1, GM_MEM_DEVICE, other), GM_OK);
    CHECK_EQ(pending(b), 1);
    // The device that wrote to it did not wait: a fault there, an error here.
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    CHECK_EQ(pending(b), 0);

    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, far_stream), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    close_sim(b, 1);
}

/* A chain through as many streams as there are links: running the last one first must
 * not need a stack as deep. */
TEST(sim_long_chains_run)
{
    enum {
        LINKS = 20000
    };
    gm_backend *b = open_devices(1, false);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, LINKS);
    gm_event event = take_event(b, GM_EVENT_DISABLE_TIMING);
    gm_stream stream = 0;
    CHECK_EQ(gm_backend_set(b, ptr, 1, 1), GM_OK);
    for (size_t i = 1; i < LINKS; i++) {
        stream = take_stream(b, GM_STREAM_NON_BLOCKING);
        CHECK_EQ(gm_backend_stream_wait_event(b, stream, event), GM_OK);
        CHECK_EQ(gm_backend_copy_async(b, ptr + i, ptr + i - 1, 1,
                                       GM_COPY_DEVICE_TO_DEVICE, stream),
                 GM_OK);
        CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
    CHECK_EQ(gm_backend_event_synchronize(b, event), GM_OK);
    CHECK_EQ(peek(ptr + LINKS - 1), 1);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    close_sim(b, 0);
}

/* Timed by a virtual clock: the same in each run, longer for more bytes. */
TEST(sim_time_is_virtual)
{
    float ms[2][2];
    for (int run = 0; run < 2; run++) {
        gm_backend *b = open_devices(1, false);
        uintptr_t ptr = take(b, GM_MEM_DEVICE, 32 * MIB);
        gm_event events[3];
        for (int i = 0; i < 3; i++) {
            events[i] = take_event(b, 0);
        }
        CHECK_EQ(gm_backend_event_record(b, events[0], 0), GM_OK);
        CHECK_EQ(gm_backend_set_async(b, ptr, 0, MIB, 0), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, events[1], 0), GM_OK);
        CHECK_EQ(gm_backend_set_async(b, ptr, 0, 32 * MIB, 0), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, events[2], 0), GM_OK);
        CHECK_EQ(gm_backend_event_elapsed(b, events[0], events[1], &ms[run][0]),
                 GM_NOT_READY);
        CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(gm_backend_event_elapsed(b, events[i], events[i + 1], &ms[run][i]),
                     GM_OK);
        }
        CHECK(ms[run][0] > 0.0f && ms[run][1] > ms[run][0]);
        gm_backend_close(b); // with everything still open
    }
    CHECK(memcmp(ms[0], ms[1], sizeof ms[0]) == 0);
}

/* ---- against a model ---- */

enum {
    STEPS = 60, // a bit each in a mask
    STREAMS = 5,
    EVENTS = 3,
    LEGACY = 0, // then two blocking streams, then two that are not
    FIRST_NON_BLOCKING = 3,
};

/* One queued thing, work or record or wait, and all that must run before it. */
typedef struct node {
    int stream;
    bool is_work;
    uint64_t before; // mask of nodes, itself included
} node;

typedef struct program {
    gm_backend *b;
    uint32_t random;
    gm_stream streams[STREAMS];
    gm_event events[EVENTS];
    int recorded[EVENTS]; // node of the last record, -1 before
    node nodes[STEPS];
    int count;
    uint64_t ran;   // nodes that must have run by now, and no others
    uintptr_t done; // device: a byte a node, 1 once its work ran
    uintptr_t saw;  // device: for each node, `done` as it was when it ran
} program;

static unsigned
draw(program *p, unsigned bound)
{
    p->random = p->random * 1664525u + 1013904223u;
    return (p->random >> 16) % bound;
}

/* Adds a node: behind the last of its own stream, behind what the legacy rule says,
 * and behind `also` (a node, or -1). */
static int
add_node(program *p, int stream, bool is_work, int also)
{
    int index = p->count++;
    node *added = &p->nodes[index];
    *added = (node){.stream = stream, .is_work = is_work};
    for (int i = 0; i < index; i++) {
        int other = p->nodes[i].stream;
        bool both_blocking = stream < FIRST_NON_BLOCKING && other < FIRST_NON_BLOCKING;
        bool ordered =
            other == stream || (both_blocking && (stream == LEGACY || other == LEGACY));
        if (ordered || i == also) {
            added->before |= p->nodes[i].before;
        }
    }
    added->before |= (uint64_t)1 << index;
    return index;
}

/* Work looks at all `done` bytes, then sets its own: two operations of one stream. */
static void
queue_work(program *p, int stream)
{
    int index = add_node(p, stream, true, -1);
    uintptr_t row = p->saw + (uintptr_t)index * STEPS;
    CHECK_EQ(gm_backend_copy_async(p->b, row, p->done, STEPS, GM_COPY_DEVICE_TO_DEVICE,
                                   p->streams[stream]),
             GM_OK);
    CHECK_EQ(gm_backend_set_async(p->b, p->done + (uintptr_t)index, 1, 1,
                                  p->streams[stream]),
             GM_OK);
}

static void
queue_something(program *p)
{
    int stream = (int)draw(p, STREAMS);
    int event = (int)draw(p, EVENTS);
    switch (draw(p, 4)) {
    case 0:
        p->recorded[event] = add_node(p, stream, false, -1);
        CHECK_EQ(gm_backend_event_record(p->b, p->events[event], p->streams[stream]),
                 GM_OK);
        break;
    case 1:
        (void)add_node(p, stream, false, p->recorded[event]);
        CHECK_EQ(
            gm_backend_stream_wait_event(p->b, p->streams[stream], p->events[event]),
            GM_OK);
        break;
    default:
        queue_work(p, stream);
        break;
    }
}

/* Waits for one stream, or for one event. */
static void
wait_for_something(program *p)
{
    int event = (int)draw(p, EVENTS);
    if (draw(p, 2) == 0 && p->recorded[event] >= 0) {
        CHECK_EQ(gm_backend_event_synchronize(p->b, p->events[event]), GM_OK);
        p->ran |= p->nodes[p->recorded[event]].before;
        return;
    }
    int stream = (int)draw(p, STREAMS);
    CHECK_EQ(gm_backend_stream_synchronize(p->b, p->streams[stream]), GM_OK);
    for (int i = 0; i < p->count; i++) {
        if (p->nodes[i].stream == stream) {
            p->ran |= p->nodes[i].before;
        }
    }
}

/* Exactly the work in p->ran was done, or with `at_once` all of it. */
static void
check_done(const program *p, bool at_once)
{
    for (int i = 0; i < p->count; i++) {
        bool expected = at_once || (p->ran >> i & 1) != 0;
        if (p->nodes[i].is_work) {
            CHECK_EQ(peek(p->done + (uintptr_t)i), expected);
        }
    }
}

/* Each operation saw done whatever must come before it. */
static void
check_order(const program *p)
{
    for (int i = 0; i < p->count; i++) {
        for (int j = 0; p->nodes[i].is_work && j < i; j++) {
            if (p->nodes[j].is_work && (p->nodes[i].before >> j & 1) != 0) {
                CHECK_EQ(peek(p->saw + (uintptr_t)(i * STEPS + j)), 1);
            }
        }
    }
}

static void
run_program(uint32_t seed, bool at_once)
{
    harness_note("seed %u", seed);
    program p = {.b = open_devices(1, at_once), .random = seed};
    for (int i = 1; i < STREAMS; i++) {
        p.streams[i] =
            take_stream(p.b, i < FIRST_NON_BLOCKING ? 0 : GM_STREAM_NON_BLOCKING);
    }
    for (int i = 0; i < EVENTS; i++) {
        p.events[i] = take_event(p.b, GM_EVENT_DISABLE_TIMING);
        p.recorded[i] = -1;
    }
    p.done = take(p.b, GM_MEM_DEVICE, STEPS);
    p.saw = take(p.b, GM_MEM_DEVICE, STEPS * STEPS);
    CHECK_EQ(gm_backend_set(p.b, p.done, 0, STEPS), GM_OK);
    CHECK_EQ(gm_backend_set(p.b, p.saw, 0, STEPS * STEPS), GM_OK);

    while (p.count < STEPS) {
        queue_something(&p);
        if (draw(&p, 8) == 0) {
            wait_for_something(&p);
        }
        check_done(&p, at_once);
    }
    CHECK_EQ(gm_backend_device_synchronize(p.b, 0), GM_OK);
    check_done(&p, true);
    check_order(&p);

    for (int i = 0; i < EVENTS; i++) {
        CHECK_EQ(gm_backend_event_destroy(p.b, p.events[i]), GM_OK);
    }
    for (int i = 1; i < STREAMS; i++) {
        CHECK_EQ(gm_backend_stream_destroy(p.b, p.streams[i]), GM_OK);
    }
    give(p.b, GM_MEM_DEVICE, p.saw);
    give(p.b, GM_MEM_DEVICE, p.done);
    close_sim(p.b, 0);
}

TEST(sim_order_is_that_of_the_model)
{
    uint32_t seeds = (uint32_t)(1000 / harness_slowness());
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        run_program(seed, false);
    }
}

TEST(sim_order_at_once_is_that_of_the_model)
{
    uint32_t seeds = (uint32_t)(100 / harness_slowness());
    for (uint32_t seed = 1; seed <= seeds; seed++) {
        run_program(seed, true);
    }
}
