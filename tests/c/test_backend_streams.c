/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of streams and events: order, queries, identity, and
 * handles that are dead.
 */
#include "conformance.h"

#include <pthread.h>

/* ---- order ---- */

/* Two streams that know nothing of each other but an event. The event is recorded
 * again behind other work: the wait keeps to the first record. */
CONFORMANCE(events_order_streams)
{
    const size_t size = 8 * MIB;
    gm_stream writer = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_stream reader = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event written = take_event(b, GM_EVENT_DISABLE_TIMING);
    gm_event read = take_event(b, GM_EVENT_DISABLE_TIMING);
    unsigned char *host = (unsigned char *)take(b, GM_MEM_PINNED, size);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, size);

    for (int round = 1; round <= 5; round++) {
        CHECK_EQ(gm_backend_set_async(b, ptr, round, size, writer), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, written, writer), GM_OK);
        CHECK_EQ(gm_backend_stream_wait_event(b, reader, written), GM_OK);
        CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)host, ptr, size,
                                       GM_COPY_DEVICE_TO_HOST, reader),
                 GM_OK);
        CHECK_EQ(gm_backend_event_record(b, read, reader), GM_OK);
        CHECK_EQ(gm_backend_stream_wait_event(b, writer, read), GM_OK);
        CHECK_EQ(gm_backend_set_async(b, ptr, 0xee, size, writer), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, written, writer), GM_OK);
        CHECK_EQ(gm_backend_event_synchronize(b, read), GM_OK);
        check_all(host, size, (unsigned char)round);
    }
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    give(b, GM_MEM_PINNED, (uintptr_t)host);
    CHECK_EQ(gm_backend_event_destroy(b, read), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, written), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, reader), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, writer), GM_OK);
}

/* The null stream waits for blocking streams, and they for it. */
CONFORMANCE(null_stream_orders_blocking_streams)
{
    const size_t size = 8 * MIB;
    gm_stream one = take_stream(b, 0), two = take_stream(b, 0);
    unsigned char *host = (unsigned char *)take(b, GM_MEM_PINNED, size);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, size);

    CHECK_EQ(gm_backend_set_async(b, ptr, 1, size, one), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr + size / 2, 2, size / 2, GM_STREAM_NULL),
             GM_OK);
    CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)host, ptr, size,
                                   GM_COPY_DEVICE_TO_HOST, two),
             GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, two), GM_OK);
    check_all(host, size / 2, 1);
    check_all(host + size / 2, size / 2, 2);

    // The same through the plain form, which works on the null stream.
    CHECK_EQ(gm_backend_set_async(b, ptr, 3, size, one), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)host, ptr, size, GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    check_all(host, size, 3);

    give(b, GM_MEM_DEVICE, ptr);
    give(b, GM_MEM_PINNED, (uintptr_t)host);
    CHECK_EQ(gm_backend_stream_destroy(b, two), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, one), GM_OK);
}

CONFORMANCE(destroyed_stream_still_works_off)
{
    const size_t size = 8 * MIB;
    unsigned char *host = (unsigned char *)take(b, GM_MEM_PINNED, size);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, size);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event event = take_event(b, 0);
    CHECK_EQ(gm_backend_set_async(b, ptr, 9, size, stream), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);

    gm_stream other = take_stream(b, GM_STREAM_NON_BLOCKING);
    CHECK_EQ(gm_backend_stream_wait_event(b, other, event), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK); // the wait still holds
    CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)host, ptr, size,
                                   GM_COPY_DEVICE_TO_HOST, other),
             GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, other), GM_OK);
    check_all(host, size, 9);
    CHECK_EQ(gm_backend_stream_destroy(b, other), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    give(b, GM_MEM_PINNED, (uintptr_t)host);
}

CONFORMANCE(queries_come_to_an_end)
{
    uintptr_t ptr = take(b, GM_MEM_DEVICE, MIB);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event event = take_event(b, 0);

    // Nothing queued, never recorded: done, and nothing to wait for.
    CHECK_EQ(gm_backend_stream_query(b, stream), GM_OK);
    CHECK_EQ(gm_backend_event_query(b, event), GM_OK);
    CHECK_EQ(gm_backend_event_synchronize(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(b, stream, event), GM_OK);

    for (int round = 0; round < 3; round++) {
        gm_status status = GM_NOT_READY;
        CHECK_EQ(gm_backend_set_async(b, ptr, round, MIB, stream), GM_OK);
        CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
        while (status == GM_NOT_READY) {
            status = round == 0 ? gm_backend_stream_query(b, stream)
                                : gm_backend_event_query(b, event);
            CHECK_EQ(gm_backend_last_error(b), 0);
        }
        CHECK_EQ(status, GM_OK);
        CHECK_EQ(gm_backend_event_query(b, event), GM_OK);
    }
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(elapsed_time)
{
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 16 * MIB);
    gm_event start = take_event(b, 0), end = take_event(b, 0);
    gm_event untimed = take_event(b, GM_EVENT_DISABLE_TIMING);
    float ms = -1.0f;
    CHECK_EQ(gm_backend_event_record(b, start, GM_STREAM_NULL), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 0, 16 * MIB, GM_STREAM_NULL), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, end, GM_STREAM_NULL), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, untimed, GM_STREAM_NULL), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_backend_event_elapsed(b, start, end, &ms), GM_OK);
    CHECK(ms > 0.0f && ms < 10000.0f);
    ms = -1.0f;
    CHECK_EQ(gm_backend_event_elapsed(b, start, untimed, &ms), GM_DEVICE_ERROR(400));
    CHECK(ms == -1.0f);
    CHECK_EQ(gm_backend_last_error(b), 0);
    CHECK_EQ(gm_backend_event_destroy(b, untimed), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, end), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, start), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

/* A wait may cross devices; a record and a measurement may not. */
CONFORMANCE(events_and_devices)
{
    int count = 0;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    if (count < 2) {
        SKIP("one device");
    }
    gm_stream here = take_stream(b, 0), there = 0;
    gm_event event = take_event(b, 0), far_event = 0;
    float ms = 7.0f;
    CHECK_EQ(gm_backend_stream_create(b, 1, 0, 0, &there), GM_OK);
    CHECK_EQ(gm_backend_event_create(b, 1, 0, &far_event), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, event, there), GM_DEVICE_ERROR(400));
    CHECK_EQ(gm_backend_event_record(b, event, here), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, far_event, there), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(b, there, event), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, there), GM_OK);
    CHECK_EQ(gm_backend_event_query(b, event), GM_OK);
    CHECK_EQ(gm_backend_event_elapsed(b, event, far_event, &ms), GM_DEVICE_ERROR(400));
    CHECK(ms == 7.0f);
    CHECK_EQ(gm_backend_last_error(b), 0);
    CHECK_EQ(gm_backend_event_destroy(b, far_event), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, there), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, here), GM_OK);
}

/* ---- identity of streams ---- */

static uint64_t
stream_id(const gm_backend *b, gm_stream stream)
{
    uint64_t id = 0, again = 1;
    CHECK_EQ(gm_backend_stream_id(b, stream, &id), GM_OK);
    CHECK_EQ(gm_backend_stream_id(b, stream, &again), GM_OK);
    CHECK_EQ(id, again);
    return id;
}

typedef struct own_stream {
    const gm_backend *b;
    uint64_t id;
} own_stream;

static void *
read_own_stream_id(void *arg)
{
    own_stream *own = arg;
    own->id = stream_id(own->b, GM_STREAM_PER_THREAD);
    return NULL;
}

CONFORMANCE(stream_ids_are_never_used_again)
{
    enum {
        ROUNDS = 40
    };
    uint64_t ids[ROUNDS + 4];
    size_t count = 0;
    CHECK_EQ(stream_id(b, GM_STREAM_NULL), stream_id(b, GM_STREAM_LEGACY));
    ids[count++] = stream_id(b, GM_STREAM_NULL);
    ids[count++] = stream_id(b, GM_STREAM_PER_THREAD);
    for (int i = 0; i < 2; i++) {
        own_stream own = {.b = b};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, read_own_stream_id, &own), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        ids[count++] = own.id;
    }
    for (int i = 0; i < ROUNDS; i++) {
        gm_stream stream = take_stream(b, 0);
        ids[count++] = stream_id(b, stream);
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < i; j++) {
            CHECK(ids[i] != ids[j]);
        }
    }
}

CONFORMANCE(streams_do_not_record_graphs)
{
    gm_capture_state state = GM_CAPTURE_INVALIDATED;
    uint64_t id = 1;
    gm_stream stream = take_stream(b, 0);
    CHECK_EQ(gm_backend_stream_capture(b, stream, &state, &id), GM_OK);
    CHECK_EQ(state, GM_CAPTURE_NONE);
    CHECK_EQ(id, 0);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

/* ---- dead handles ---- */

static void
check_no_stream(const gm_backend *b, gm_stream dead, gm_event event, uintptr_t ptr)
{
    const gm_status invalid = GM_DEVICE_ERROR(400);
    uint64_t id = 7;
    CHECK_EQ(gm_backend_stream_query(b, dead), invalid);
    CHECK_EQ(gm_backend_stream_synchronize(b, dead), invalid);
    CHECK_EQ(gm_backend_stream_wait_event(b, dead, event), invalid);
    CHECK_EQ(gm_backend_stream_id(b, dead, &id), invalid);
    CHECK_EQ(gm_backend_stream_destroy(b, dead), invalid);
    CHECK_EQ(gm_backend_event_record(b, event, dead), invalid);
    CHECK_EQ(gm_backend_set_async(b, ptr, 0, 512, dead), invalid);
    CHECK_EQ(gm_backend_copy_async(b, ptr, ptr, 512, GM_COPY_DEFAULT, dead), invalid);
    CHECK_EQ(id, 7);
}

static void
check_no_event(const gm_backend *b, gm_event dead, gm_event event, gm_stream stream)
{
    const gm_status invalid = GM_DEVICE_ERROR(400);
    float ms = 7.0f;
    CHECK_EQ(gm_backend_event_query(b, dead), invalid);
    CHECK_EQ(gm_backend_event_synchronize(b, dead), invalid);
    CHECK_EQ(gm_backend_event_record(b, dead, stream), invalid);
    CHECK_EQ(gm_backend_stream_wait_event(b, stream, dead), invalid);
    CHECK_EQ(gm_backend_event_elapsed(b, dead, event, &ms), invalid);
    CHECK_EQ(gm_backend_event_elapsed(b, event, dead, &ms), invalid);
    CHECK_EQ(gm_backend_event_destroy(b, dead), invalid);
    CHECK(ms == 7.0f);
}

CONFORMANCE(dead_handles_are_refused)
{
    if (!is_simulated(b)) {
        SKIP("undefined on a real device");
    }
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    gm_stream stream = take_stream(b, 0), dead_stream = take_stream(b, 0);
    gm_event event = take_event(b, 0), dead_event = take_event(b, 0);
    CHECK_EQ(gm_backend_stream_destroy(b, dead_stream), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, dead_event), GM_OK);
    check_no_stream(b, dead_stream, event, ptr);
    check_no_event(b, dead_event, event, stream);
    // Nor is one kind taken for the other, nor what was never a handle.
    check_no_stream(b, event, event, ptr);
    check_no_event(b, stream, event, stream);
    check_no_stream(b, (gm_stream)&ptr, event, ptr);
    check_no_event(b, 0, event, stream);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(default_streams_stay)
{
    const gm_stream streams[] = {GM_STREAM_NULL, GM_STREAM_LEGACY,
                                 GM_STREAM_PER_THREAD};
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(gm_backend_stream_destroy(b, streams[i]), GM_DEVICE_ERROR(400));
        CHECK_EQ(gm_backend_stream_synchronize(b, streams[i]), GM_OK);
        CHECK_EQ(gm_backend_last_error(b), 0);
    }
}
