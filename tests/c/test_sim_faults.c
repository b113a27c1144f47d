/* SPDX-License-Identifier: MIT
 *
 * How tests drive the simulated device: streams that are held, calls that take long,
 * faults that stick, resets, contexts, other programs' memory, handles that are used
 * once, an error that somebody left behind.
 */
#include "conformance.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h> // usleep()

#define INVALID_VALUE GM_DEVICE_ERROR(1)
#define INVALID_HANDLE GM_DEVICE_ERROR(400)
#define ILLEGAL_ADDRESS GM_DEVICE_ERROR(700)
#define HELD GM_DEVICE_ERROR(10001)

typedef struct bench {
    gm_backend *b;
    gm_stream stream;
    unsigned char *bytes; // 512 of the device, all 0
} bench;

static bench
open_bench(void)
{
    bench t = {.b = open_sim((gm_sim_options){.devices = 2, .memory = 4 * MIB})};
    t.stream = take_stream(t.b, GM_STREAM_NON_BLOCKING);
    t.bytes = (unsigned char *)take(t.b, GM_MEM_DEVICE, 512);
    CHECK_EQ(gm_backend_set(t.b, (uintptr_t)t.bytes, 0, 512), GM_OK);
    return t;
}

static void
close_bench(bench t)
{
    CHECK_EQ(gm_backend_stream_destroy(t.b, t.stream), GM_OK);
    give(t.b, GM_MEM_DEVICE, (uintptr_t)t.bytes);
    check_ledger_is_empty(t.b);
    gm_backend_close(t.b);
}

static void
set(const bench *t, int value)
{
    CHECK_EQ(gm_backend_set_async(t->b, (uintptr_t)t->bytes, value, 512, t->stream),
             GM_OK);
}

static uint64_t
hold(const bench *t)
{
    uint64_t number = 0;
    CHECK_EQ(gm_sim_hold(t->b, t->stream, &number), GM_OK);
    return number;
}

/* ---- streams that are held ---- */

TEST(sim_hold_work_does_not_run)
{
    bench t = open_bench();
    gm_event event = take_event(t.b, 0);
    uint64_t number = hold(&t), again = 7;
    CHECK_EQ(gm_sim_hold(t.b, t.stream, &again), GM_BUSY);
    CHECK_EQ(gm_sim_hold(t.b, 12345, &again), INVALID_HANDLE);
    CHECK_EQ(again, 7);
    set(&t, 1);
    CHECK_EQ(gm_backend_event_record(t.b, event, t.stream), GM_OK);
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(gm_backend_stream_query(t.b, t.stream), GM_NOT_READY);
        CHECK_EQ(gm_backend_event_query(t.b, event), GM_NOT_READY);
    }
    check_all(t.bytes, 512, 0);
    gm_sim_release(t.b, number);
    check_all(t.bytes, 512, 0); // nobody waited yet
    CHECK_EQ(gm_backend_event_query(t.b, event), GM_OK);
    check_all(t.bytes, 512, 1);
    CHECK_EQ(gm_backend_event_destroy(t.b, event), GM_OK);
    close_bench(t);
}

/* Every call that would wait for the held stream is told so, and leaves nothing. */
TEST(sim_hold_the_holder_does_not_wait_for_itself)
{
    bench t = open_bench();
    gm_event event = take_event(t.b, 0);
    gm_stream blocking = take_stream(t.b, 0);
    unsigned char host[512] = {5};
    uintptr_t spare = take(t.b, GM_MEM_DEVICE, 512);
    uint64_t number = hold(&t), other = 0;
    set(&t, 1);
    CHECK_EQ(gm_backend_event_record(t.b, event, t.stream), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.stream), HELD);
    CHECK_EQ(gm_backend_event_synchronize(t.b, event), HELD);
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), HELD);
    CHECK_EQ(gm_backend_device_synchronize(t.b, 1), GM_OK);
    CHECK_EQ(gm_backend_mem_free(t.b, 0, GM_MEM_DEVICE, spare), HELD);
    CHECK_EQ(read_ledger(t.b).allocations, 2);
    CHECK_EQ(gm_backend_set(t.b, spare, 3, 512), GM_OK); // no order with that stream

    // A plain copy into memory of the caller's must not happen when he has gone on.
    CHECK_EQ(gm_sim_hold(t.b, blocking, &other), GM_OK);
    CHECK_EQ(gm_backend_set_async(t.b, spare, 4, 512, blocking), GM_OK);
    CHECK_EQ(gm_backend_copy(t.b, (uintptr_t)host, spare, 512, GM_COPY_DEVICE_TO_HOST),
             HELD);
    gm_sim_release(t.b, other);
    gm_sim_release(t.b, number);
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), GM_OK);
    CHECK_EQ(host[0], 5);
    CHECK(strcmp(gm_backend_error_name(t.b, 10001), "gpumemSimulatedStreamHeld") == 0);
    give(t.b, GM_MEM_DEVICE, spare);
    CHECK_EQ(gm_backend_event_destroy(t.b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(t.b, blocking), GM_OK);
    close_bench(t);
}

typedef struct waiter {
    const bench *t;
    gm_status (*wait)(const struct waiter *waiter);
    gm_event event;
    uintptr_t ptr;
    gm_status status;
    atomic_bool done;
} waiter;

static gm_status
wait_for_stream(const waiter *w)
{
    return gm_backend_stream_synchronize(w->t->b, w->t->stream);
}

static gm_status
wait_for_event(const waiter *w)
{
    return gm_backend_event_synchronize(w->t->b, w->event);
}

static gm_status
wait_for_device(const waiter *w)
{
    return gm_backend_device_synchronize(w->t->b, 0);
}

static gm_status
free_memory(const waiter *w)
{
    return gm_backend_mem_free(w->t->b, 0, GM_MEM_DEVICE, w->ptr);
}

static void *
run_waiter(void *arg)
{
    waiter *w = arg;
    w->status = w->wait(w);
    atomic_store(&w->done, true);
    return NULL;
}

TEST(sim_hold_others_block_until_the_release)
{
    gm_status (*const waits[])(const waiter *) = {wait_for_stream, wait_for_event,
                                                  wait_for_device, free_memory};
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        bench t = open_bench();
        waiter w = {.t = &t, .wait = waits[i], .event = take_event(t.b, 0)};
        w.ptr = take(t.b, GM_MEM_DEVICE, 512);
        pthread_t thread;
        uint64_t number = hold(&t);
        set(&t, 1);
        CHECK_EQ(gm_backend_event_record(t.b, w.event, t.stream), GM_OK);
        CHECK_EQ(pthread_create(&thread, NULL, run_waiter, &w), 0);
        (void)usleep(20000);
        CHECK(!atomic_load(&w.done));
        check_all(t.bytes, 512, 0);
        CHECK_EQ(gm_backend_device_synchronize(t.b, 1), GM_OK); // nothing is locked
        gm_sim_release(t.b, number);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(w.status, GM_OK);
        check_all(t.bytes, 512, 1);
        if (waits[i] != free_memory) {
            give(t.b, GM_MEM_DEVICE, w.ptr);
        }
        CHECK_EQ(gm_backend_event_destroy(t.b, w.event), GM_OK);
        close_bench(t);
    }
}

/* The handle may go first; the release is by number. */
TEST(sim_hold_outlives_the_handle)
{
    bench t = open_bench();
    uint64_t number = hold(&t);
    set(&t, 1);
    CHECK_EQ(gm_backend_stream_destroy(t.b, t.stream), GM_OK);
    t.stream = take_stream(t.b, 0); // the same handle, another stream
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), HELD);
    gm_sim_release(t.b, number);
    gm_sim_release(t.b, number); // nothing more to release
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), GM_OK);
    check_all(t.bytes, 512, 1);
    close_bench(t);
}

/* ---- calls that take long ---- */

static double
seconds_of(const gm_backend *b, bool allocate)
{
    struct timespec before, after;
    size_t bytes = 0;
    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &before), 0);
    if (allocate) {
        give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, 512));
    }
    else {
        CHECK_EQ(gm_backend_mem_info(b, 0, &bytes, &bytes), GM_OK);
    }
    CHECK_EQ(clock_gettime(CLOCK_MONOTONIC, &after), 0);
    return (double)(after.tv_sec - before.tv_sec) +
           (double)(after.tv_nsec - before.tv_nsec) / 1e9;
}

TEST(sim_delay_makes_calls_of_one_kind_slow)
{
    bench t = open_bench();
    CHECK_EQ(gm_sim_set_delay(t.b, "mem_alloc", 50000000, NULL), GM_OK);
    CHECK(seconds_of(t.b, true) >= 0.05);
    CHECK(seconds_of(t.b, false) < 0.05);
    uint64_t before = 7;
    CHECK_EQ(gm_sim_set_delay(t.b, "mem_alloc", 0, &before), GM_OK);
    CHECK_EQ(before, 50000000);
    CHECK(seconds_of(t.b, true) < 0.05);
    CHECK_EQ(gm_sim_set_delay(t.b, "no_such_call", 1, NULL), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_sim_set_delay(t.b, "device_get", 1, NULL), GM_ERR_INVALID_VALUE);
    close_bench(t);
}

static void *
read_memory_info(void *arg)
{
    size_t bytes = 0;
    CHECK_EQ(gm_backend_mem_info(arg, 0, &bytes, &bytes), GM_OK);
    return NULL;
}

/* Who sleeps holds no lock, and wakes up when the delay is over. */
TEST(sim_delay_ends_early)
{
    bench t = open_bench();
    pthread_t thread;
    CHECK_EQ(gm_sim_set_delay(t.b, "mem_info", 3600 * UINT64_C(1000000000), NULL),
             GM_OK);
    CHECK_EQ(pthread_create(&thread, NULL, read_memory_info, t.b), 0);
    give(t.b, GM_MEM_DEVICE, take(t.b, GM_MEM_DEVICE, 512));
    CHECK_EQ(gm_sim_set_delay(t.b, "mem_info", 0, NULL), GM_OK);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    close_bench(t);
}

/* ---- faults that stick ---- */

TEST(sim_fault_sticks_until_the_device_is_reset)
{
    bench t = open_bench();
    uintptr_t out = 7;
    size_t bytes = 7;
    int number = 7;
    CHECK_EQ(gm_sim_set_fault(t.b, 2, 700), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_sim_set_fault(t.b, 0, 700), GM_OK);
    CHECK_EQ(gm_sim_set_fault(t.b, 1, 719), GM_BUSY); // the first one sticks
    CHECK_EQ(gm_sim_set_fault(t.b, 1, 0), GM_OK);     // it is no fault of that device
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(gm_backend_mem_alloc(t.b, i, GM_MEM_DEVICE, 512, &out),
                 ILLEGAL_ADDRESS);
        CHECK_EQ(gm_backend_mem_free(t.b, 0, GM_MEM_DEVICE, (uintptr_t)t.bytes),
                 ILLEGAL_ADDRESS);
        CHECK_EQ(gm_backend_mem_info(t.b, i, &bytes, &bytes), ILLEGAL_ADDRESS);
        CHECK_EQ(gm_backend_stream_synchronize(t.b, t.stream), ILLEGAL_ADDRESS);
        CHECK_EQ(gm_backend_event_create(t.b, i, 0, &out), ILLEGAL_ADDRESS);
    }
    CHECK_EQ(out, 7);
    CHECK_EQ(bytes, 7);
    // What asks no device goes on.
    CHECK_EQ(gm_backend_device_count(t.b, &number), GM_OK);
    CHECK_EQ(gm_backend_device_get(t.b, &number), GM_OK);
    CHECK_EQ(gm_backend_device_set(t.b, 0), GM_OK);
    CHECK(strcmp(gm_backend_error_name(t.b, 700), "cudaErrorIllegalAddress") == 0);
    CHECK_EQ(gm_backend_last_error(t.b), 0);

    CHECK_EQ(gm_backend_device_reset(t.b, 1), GM_OK); // the wrong one
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), ILLEGAL_ADDRESS);
    CHECK_EQ(gm_backend_device_reset(t.b, 0), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), GM_OK);
    check_ledger_is_empty(t.b);
    gm_backend_close(t.b);
}

TEST(sim_fault_ends_a_wait)
{
    bench t = open_bench();
    waiter w = {.t = &t, .wait = wait_for_stream};
    pthread_t thread;
    uint64_t number = hold(&t);
    set(&t, 1);
    CHECK_EQ(pthread_create(&thread, NULL, run_waiter, &w), 0);
    (void)usleep(20000);
    CHECK_EQ(gm_sim_set_fault(t.b, 0, 719), GM_OK);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(w.status, GM_DEVICE_ERROR(719));
    CHECK_EQ(gm_sim_set_fault(t.b, 0, 0), GM_OK); // over without a reset
    gm_sim_release(t.b, number);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.stream), GM_OK);
    close_bench(t);
}

/* ---- resets ---- */

static uint64_t
incarnation_of(const gm_backend *b, int device)
{
    uint64_t number = 7;
    CHECK_EQ(gm_backend_device_incarnation(b, device, &number), GM_OK);
    return number;
}

CONFORMANCE(reset_begins_a_new_incarnation)
{
    uint64_t out = 7;
    CHECK_EQ(incarnation_of(b, 0), 0);
    give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, 512));
    uint64_t first = incarnation_of(b, 0);
    CHECK(first != 0);
    CHECK_EQ(incarnation_of(b, 0), first);

    (void)take(b, GM_MEM_DEVICE, MIB); // goes along
    (void)take_stream(b, 0);
    CHECK_EQ(gm_backend_device_reset(b, 0), GM_OK);
    CHECK(incarnation_of(b, 0) != first);
    give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, 512));
    CHECK(incarnation_of(b, 0) != first);
    CHECK(incarnation_of(b, 0) != 0);

    CHECK_EQ(gm_backend_device_incarnation(b, -1, &out), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_device_reset(b, -1), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(out, 7);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

TEST(sim_reset_takes_all_there_is_on_the_device)
{
    bench t = open_bench();
    const gm_backend *b = t.b;
    gm_event event = take_event(b, 0), far_event = 0;
    uintptr_t far_ptr = 0, pooled = 0;
    gm_stream far_stream = 0, recording = take_stream(b, 0);
    gm_mem_pool pool = 0, current = 0;
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_stream_create(b, 1, 0, 0, &far_stream), GM_OK);
    CHECK_EQ(gm_backend_event_create(b, 1, 0, &far_event), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, 512, &far_ptr), GM_OK);
    CHECK_EQ(gm_sim_make_pool(b, 0, &pool), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_set(b, 0, pool), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 512, t.stream, &pooled), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 512, t.stream, &far_ptr), GM_OK);
    CHECK_EQ(gm_backend_mem_free_async(b, 0, far_ptr, t.stream), GM_OK);
    (void)take(b, GM_MEM_PINNED, 512);
    CHECK_EQ(gm_backend_mem_advise(b, take(b, GM_MEM_MANAGED, 512), 512, 1, 0), GM_OK);
    set(&t, 1);
    CHECK_EQ(gm_backend_event_record(b, event, t.stream), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(b, far_stream, event), GM_OK);
    CHECK_EQ(gm_backend_capture_begin(b, recording, GM_CAPTURE_MODE_RELAXED), GM_OK);

    CHECK_EQ(gm_backend_device_reset(b, 0), GM_OK);
    CHECK_EQ(read_ledger(b).allocations, 1); // those of the other device
    CHECK_EQ(read_ledger(b).bytes, 512);
    CHECK_EQ(read_ledger(b).streams, 1);
    CHECK_EQ(read_ledger(b).events, 1);
    CHECK_EQ(read_ledger(b).captures, 0);
    CHECK_EQ(read_ledger(b).pending, 1);
    CHECK_EQ(read_ledger(b).errors, 0);
    CHECK_EQ(gm_backend_stream_synchronize(b, far_stream), GM_OK); // waits for nothing
    CHECK_EQ(gm_backend_stream_query(b, t.stream), INVALID_HANDLE);
    CHECK_EQ(gm_backend_event_query(b, event), INVALID_HANDLE);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, (uintptr_t)t.bytes),
             INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_pool_trim(b, pool, 0), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, true, &pool), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, false, &current), GM_OK);
    CHECK_EQ(current, pool);
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    CHECK_EQ(free_bytes, total_bytes);
    gm_backend_close(t.b);
}

/* ---- contexts ---- */

TEST(sim_context_is_made_by_what_needs_one)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    int number = 0;
    bool can = false;
    char text[64];
    unsigned support = 0;
    uint64_t id = 0;
    // The calls that promise to make none.
    CHECK_EQ(gm_backend_device_count(b, &number), GM_OK);
    CHECK_EQ(gm_backend_device_get(b, &number), GM_OK);
    CHECK_EQ(gm_backend_versions(b, &number, &number), GM_OK);
    CHECK_EQ(gm_backend_device_name(b, 1, text, sizeof text), GM_OK);
    CHECK_EQ(gm_backend_device_support(b, 1, &support), GM_OK);
    CHECK_EQ(gm_backend_device_incarnation(b, 1, &id), GM_OK);
    CHECK_EQ(gm_backend_peer_can_access(b, 1, 0, &can), GM_OK);
    CHECK_EQ(gm_backend_last_error(b), 0);
    CHECK(!gm_sim_context_created(b, 0));
    CHECK(!gm_sim_context_created(b, 1));
    CHECK(!gm_sim_context_created(b, 2));

    size_t bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 1, &bytes, &bytes), GM_OK);
    CHECK(gm_sim_context_created(b, 1));
    CHECK(!gm_sim_context_created(b, 0));
    gm_pointer_info info;
    CHECK_EQ(gm_backend_pointer_info(b, 1, &info), GM_OK); // of the current device
    CHECK(gm_sim_context_created(b, 0));
    CHECK_EQ(gm_backend_device_reset(b, 0), GM_OK);
    CHECK(!gm_sim_context_created(b, 0));
    CHECK_EQ(gm_backend_stream_query(b, GM_STREAM_LEGACY), GM_OK);
    CHECK(gm_sim_context_created(b, 0));
    gm_backend_close(b);
}

/* ---- what others hold ---- */

TEST(sim_others_come_and_go)
{
    bench t = open_bench();
    size_t free_bytes = 0, total_bytes = 0;
    uintptr_t out = 0;
    CHECK_EQ(gm_sim_set_others(t.b, 0, 3 * MIB - 1), GM_OK);
    CHECK_EQ(gm_backend_mem_info(t.b, 0, &free_bytes, &total_bytes), GM_OK);
    CHECK_EQ(free_bytes, MIB - 512);
    CHECK_EQ(total_bytes, 4 * MIB);
    CHECK_EQ(gm_backend_mem_alloc(t.b, 0, GM_MEM_DEVICE, MIB, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_sim_set_others(t.b, 0, 4 * MIB), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_sim_set_others(t.b, 0, 4 * MIB - 512), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc(t.b, 0, GM_MEM_DEVICE, 1, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_sim_set_others(t.b, 0, 0), GM_OK);
    give(t.b, GM_MEM_DEVICE, take(t.b, GM_MEM_DEVICE, 3 * MIB));
    CHECK_EQ(gm_sim_set_others(t.b, 2, 0), GM_ERR_INVALID_DEVICE);
    close_bench(t);
}

/* ---- handles ---- */

TEST(sim_handles_are_used_once_on_demand)
{
    bench t = open_bench();
    gm_stream seen[64];
    CHECK(gm_sim_recycle_handles(t.b, false));
    for (size_t i = 0; i < 64; i++) {
        seen[i] = take_stream(t.b, 0);
        CHECK_EQ(gm_backend_stream_destroy(t.b, seen[i]), GM_OK);
        for (size_t j = 0; j < i; j++) {
            CHECK(seen[j] != seen[i]);
        }
    }
    CHECK(!gm_sim_recycle_handles(t.b, true));
    gm_stream again = take_stream(t.b, 0);
    CHECK_EQ(again, seen[63]);
    CHECK_EQ(gm_backend_stream_destroy(t.b, again), GM_OK);
    close_bench(t);
}

/* ---- the last error ---- */

static void *
see_no_error(void *arg)
{
    CHECK_EQ(gm_backend_last_error(arg), 0);
    return NULL;
}

TEST(sim_last_error_of_others_stays)
{
    bench t = open_bench();
    uintptr_t out = 0;
    pthread_t thread;
    CHECK_EQ(gm_sim_set_last_error(t.b, 719), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc(t.b, 0, GM_MEM_DEVICE, 8 * MIB, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_stream_query(t.b, t.stream), GM_OK);
    CHECK_EQ(gm_backend_last_error(t.b), 719);
    CHECK_EQ(pthread_create(&thread, NULL, see_no_error, t.b), 0); // it is a thread's
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(gm_sim_set_last_error(t.b, 0), GM_OK);
    CHECK_EQ(gm_backend_last_error(t.b), 0);
    close_bench(t);
}
