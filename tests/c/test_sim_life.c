/* SPDX-License-Identifier: MIT
 *
 * How instances of the simulated device live and what they tell: the ledger, the log,
 * several instances at once, threads and forks.
 */
#include "device.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h> // fork(), pipe(), write()

#define INVALID_VALUE GM_DEVICE_ERROR(1)

/* ---- ledger and log ---- */

TEST(sim_ledger_counts)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 1000), far_ptr = 0;
    uintptr_t pinned = take(b, GM_MEM_PINNED, 5000);
    uintptr_t managed = take(b, GM_MEM_MANAGED, 6000);
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, 1, &far_ptr), GM_OK);
    gm_stream stream = take_stream(b, 0);
    gm_event event = take_event(b, 0);
    CHECK_EQ(gm_backend_set_async(b, ptr, 0, 1, stream), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);

    gm_sim_ledger ledger = read_ledger(b);
    CHECK_EQ(ledger.allocations, 4);
    CHECK_EQ(ledger.bytes, 1000 + 5000 + 6000 + 1);
    CHECK_EQ(ledger.streams, 1);
    CHECK_EQ(ledger.events, 1);
    CHECK_EQ(ledger.pending, 2);
    CHECK_EQ(ledger.errors, 0);
    CHECK_EQ(ledger.peak_bytes, 1024 + 512); // of the devices, in units

    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_DEVICE_ERROR(400));
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    CHECK_EQ(read_ledger(b).pending, 2); // it runs all the same, later
    give(b, GM_MEM_DEVICE, ptr);
    CHECK_EQ(gm_backend_mem_free(b, 1, GM_MEM_DEVICE, far_ptr), GM_OK);
    give(b, GM_MEM_PINNED, pinned);
    give(b, GM_MEM_MANAGED, managed);
    give(b, GM_MEM_DEVICE, take(b, GM_MEM_DEVICE, 1)); // less than the peak
    ledger = read_ledger(b);
    CHECK_EQ(ledger.errors, 1);
    CHECK_EQ(ledger.peak_bytes, 1024 + 512);
    check_ledger_is_empty(b);
    gm_backend_close(b);
}

static void
check_call(const gm_backend *b, size_t index, gm_sim_call expected)
{
    gm_sim_call call;
    CHECK(gm_sim_log_get(b, index, &call));
    CHECK(strcmp(call.name, expected.name) == 0);
    CHECK_EQ(call.device, expected.device);
    CHECK_EQ(call.ptr, expected.ptr);
    CHECK_EQ(call.size, expected.size);
    CHECK_EQ(call.status, expected.status);
}

TEST(sim_log_tells_what_was_called)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    uintptr_t ptr = 0, none = 0;
    int device = 0;
    gm_stream stream = 0;
    CHECK_EQ(gm_backend_device_set(b, 0), GM_OK);
    CHECK_EQ(gm_sim_log_count(b), 0); // off until asked for
    gm_sim_log_start(b);
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, 100, &ptr), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 1024 * MIB, &none),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK); // reaches no device
    CHECK_EQ(gm_backend_stream_create(b, 1, 0, 0, &stream), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 7, 100, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_query(b, stream), GM_NOT_READY);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    CHECK_EQ(gm_backend_mem_free(b, 1, GM_MEM_DEVICE, ptr), GM_OK);

    CHECK_EQ(gm_sim_log_count(b), 7);
    check_call(b, 0, (gm_sim_call){"mem_alloc", 1, ptr, 100, GM_OK});
    check_call(b, 1,
               (gm_sim_call){"mem_alloc", 0, 0, 1024 * MIB, GM_ERR_OUT_OF_MEMORY});
    check_call(b, 2, (gm_sim_call){"stream_create", 1, stream, 0, GM_OK});
    check_call(b, 3, (gm_sim_call){"set_async", 1, ptr, 100, GM_OK});
    check_call(b, 4, (gm_sim_call){"stream_query", 1, stream, 0, GM_NOT_READY});
    check_call(b, 5, (gm_sim_call){"stream_destroy", 1, stream, 0, GM_OK});
    check_call(b, 6, (gm_sim_call){"mem_free", 1, ptr, 0, GM_OK});
    gm_sim_call call;
    CHECK(!gm_sim_log_get(b, 7, &call));

    gm_sim_log_stop(b);
    CHECK_EQ(gm_sim_log_count(b), 0);
    CHECK_EQ(gm_backend_device_synchronize(b, 1), GM_OK);
    CHECK_EQ(gm_sim_log_count(b), 0);
    gm_sim_log_start(b);
    for (int i = 0; i < 1000; i++) { // past any first size
        CHECK_EQ(gm_backend_device_synchronize(b, 1), GM_OK);
    }
    CHECK_EQ(gm_sim_log_count(b), 1000);
    check_call(b, 0, (gm_sim_call){"device_synchronize", 1, 0, 0, GM_OK});
    check_call(b, 999, (gm_sim_call){"device_synchronize", 1, 0, 0, GM_OK});
    gm_backend_close(b);
}

TEST(sim_log_has_several_readers)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    CHECK_EQ(gm_sim_log_start(b), 0);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_sim_log_start(b), 1);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    gm_sim_log_stop(b);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_sim_log_count(b), 3);
    gm_sim_log_stop(b);
    CHECK_EQ(gm_sim_log_count(b), 0);
    gm_sim_log_stop(b); // one too many
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_sim_log_count(b), 0);
    CHECK_EQ(gm_sim_log_start(b), 0);
    gm_backend_close(b);
}

/* ---- instances ---- */

TEST(sim_instances_are_strangers)
{
    gm_backend *one = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    gm_backend *two = open_sim((gm_sim_options){.devices = 3, .memory = 4 * MIB});
    uintptr_t ptr = take(one, GM_MEM_DEVICE, 2 * MIB);
    gm_stream stream = take_stream(one, 0);
    gm_event event = take_event(one, 0);
    uint64_t id_one = 0, id_two = 0;
    int device = -1;

    CHECK_EQ(gm_backend_device_set(two, 2), GM_OK);
    CHECK_EQ(gm_backend_device_get(one, &device), GM_OK);
    CHECK_EQ(device, 0);
    CHECK_EQ(gm_backend_stream_query(two, stream), GM_DEVICE_ERROR(400));
    CHECK_EQ(gm_backend_event_query(two, event), GM_DEVICE_ERROR(400));
    CHECK_EQ(gm_backend_mem_free(two, 0, GM_MEM_DEVICE, ptr), INVALID_VALUE);
    CHECK_EQ(gm_backend_stream_id(one, GM_STREAM_NULL, &id_one), GM_OK);
    CHECK_EQ(gm_backend_stream_id(two, GM_STREAM_NULL, &id_two), GM_OK);
    CHECK(id_one != id_two);
    CHECK_EQ(take_stream(two, 0) == stream, false);
    gm_backend_close(two);
    CHECK_EQ(gm_backend_stream_query(one, stream), GM_OK);
    gm_backend_close(one);
}

/* A handle is used again at once, as by a driver; what it named before is not. */
TEST(sim_handles_are_used_again)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    gm_stream first = take_stream(b, 0);
    gm_event event = take_event(b, 0);
    uint64_t id = 0, id_again = 0;
    CHECK_EQ(gm_backend_stream_id(b, first, &id), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, first), GM_OK);
    CHECK_EQ(take_stream(b, 0), first);
    CHECK_EQ(gm_backend_stream_id(b, first, &id_again), GM_OK);
    CHECK(id != id_again);
    CHECK_EQ(gm_backend_stream_query(b, first + 1), GM_DEVICE_ERROR(400));
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(take_event(b, 0), event);
    gm_backend_close(b);
}

/* More instances, one after the other, than a process has thread keys. */
TEST(sim_opens_again_and_again)
{
    for (int i = 0; i < 3000 / harness_slowness(); i++) {
        gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
        CHECK_EQ(gm_backend_device_set(b, 1), GM_OK);
        gm_backend_close(b);
    }
}

/* ---- threads ---- */

typedef struct hammer {
    const gm_backend *b;
    unsigned number;
} hammer;

/* Memory that only this thread uses, on a stream of its own and on the thread's default
 * one: whatever the others do, its bytes are its own. */
static void *
hammer_device(void *arg)
{
    const hammer *h = arg;
    const gm_backend *b = h->b;
    int device = (int)(h->number % 2);
    unsigned char bytes[777];
    gm_stream stream = 0;
    gm_event event = 0;
    CHECK_EQ(gm_backend_device_set(b, device), GM_OK);
    CHECK_EQ(gm_backend_stream_create(b, device, h->number % 3, 0, &stream),
             h->number % 3 < 2 ? GM_OK : INVALID_VALUE);
    if (stream == 0) {
        CHECK_EQ(gm_backend_stream_create(b, device, 0, 0, &stream), GM_OK);
    }
    CHECK_EQ(gm_backend_event_create(b, device, 0, &event), GM_OK);
    for (int round = 0; round < 2000 / harness_slowness(); round++) {
        gm_stream other = round % 2 == 0 ? GM_STREAM_PER_THREAD : GM_STREAM_NULL;
        unsigned char value = (unsigned char)(h->number * 16 + (unsigned)round % 16);
        uintptr_t ptr = 0;
        int current = -1;
        CHECK_EQ(gm_backend_mem_alloc(b, device, GM_MEM_DEVICE, 777, &ptr), GM_OK);
        CHECK_EQ(gm_backend_set_async(b, ptr, value, 777, stream), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
        CHECK_EQ(gm_backend_stream_wait_event(b, other, event), GM_OK);
        CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)bytes, ptr, 777,
                                       GM_COPY_DEVICE_TO_HOST, other),
                 GM_OK);
        CHECK_EQ(gm_backend_stream_synchronize(b, other), GM_OK);
        check_all(bytes, 777, value);
        CHECK_EQ(gm_backend_mem_free(b, device, GM_MEM_DEVICE, ptr), GM_OK);
        CHECK_EQ(gm_backend_device_get(b, &current), GM_OK);
        CHECK_EQ(current, device);
    }
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    return NULL;
}

TEST(sim_threads)
{
    enum {
        THREADS = 8
    };
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    pthread_t threads[THREADS];
    hammer hammers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        hammers[i] = (hammer){.b = b, .number = i};
        CHECK_EQ(pthread_create(&threads[i], NULL, hammer_device, &hammers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    check_ledger_is_empty(b);
    CHECK_EQ(read_ledger(b).errors, 0);
    gm_backend_close(b);
}

typedef struct late_thread {
    const gm_backend *b;
    pthread_barrier_t used;   // the thread has its record
    pthread_barrier_t closed; // the instance is closed
} late_thread;

static void *
end_late(void *arg)
{
    late_thread *late = arg;
    uint64_t id = 0;
    CHECK_EQ(gm_backend_device_set(late->b, 1), GM_OK);
    CHECK_EQ(gm_backend_stream_id(late->b, GM_STREAM_PER_THREAD, &id), GM_OK);
    pthread_barrier_wait(&late->used);
    pthread_barrier_wait(&late->closed);
    return NULL; // and what the thread had in the instance is cleaned up now
}

TEST(sim_threads_may_end_after_close)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    late_thread late = {.b = b};
    pthread_t thread;
    CHECK_EQ(pthread_barrier_init(&late.used, NULL, 2), 0);
    CHECK_EQ(pthread_barrier_init(&late.closed, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, end_late, &late), 0);
    pthread_barrier_wait(&late.used);
    gm_backend_close(b);
    pthread_barrier_wait(&late.closed);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&late.closed);
    pthread_barrier_destroy(&late.used);
}

/* ---- a forked child ---- */

TEST(sim_is_gone_in_a_forked_child)
{
    if (harness_under_valgrind()) {
        SKIP("valgrind does not know that a fork can unmap");
    }
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    CHECK_EQ(gm_backend_set(b, ptr, 5, 512), GM_OK);
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uintptr_t out = 7;
        // Its parent's device memory is no address here.
        bool unmapped = write(ends[1], (void *)ptr, 1) == -1 && errno == EFAULT;
        bool refused =
            gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 512, &out) == GM_ERR_FORKED &&
            gm_backend_mem_free(b, 0, GM_MEM_DEVICE, ptr) == GM_ERR_FORKED &&
            gm_backend_set(b, ptr, 6, 512) == GM_ERR_FORKED && out == 7 &&
            read_ledger(b).allocations == 0;
        gm_backend_close(b);
        // A device of its own it may have.
        const gm_sim_options options = {.devices = 1, .memory = 2 * MIB};
        gm_backend *own = NULL;
        bool opened = gm_backend_sim_open(&options, &own) == GM_OK &&
                      gm_backend_mem_alloc(own, 0, GM_MEM_DEVICE, 512, &out) == GM_OK &&
                      gm_backend_set(own, out, 6, 512) == GM_OK;
        _exit(unmapped && refused && opened ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    check_all((unsigned char *)ptr, 512, 5);
    give(b, GM_MEM_DEVICE, ptr);
    check_ledger_is_empty(b);
    gm_backend_close(b);
}
