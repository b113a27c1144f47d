/* SPDX-License-Identifier: MIT
 *
 * The simulated device's graphs beyond the table: the order in which recorded work
 * runs, what else spoils a recording, dead handles, and streams that die while they
 * record.
 */
#include "device.h"

#include <string.h>
#include <unistd.h> // unlink()

#define INVALID_VALUE GM_DEVICE_ERROR(1)
#define OPERATING_SYSTEM GM_DEVICE_ERROR(304)
#define INVALID_HANDLE GM_DEVICE_ERROR(400)
#define UNSUPPORTED GM_DEVICE_ERROR(900)
#define INVALIDATED GM_DEVICE_ERROR(901)
#define MERGE GM_DEVICE_ERROR(902)
#define UNMATCHED GM_DEVICE_ERROR(903)
#define IMPLICIT GM_DEVICE_ERROR(906)
#define CAPTURED_EVENT GM_DEVICE_ERROR(907)

typedef struct bench {
    gm_backend *b;
    gm_stream origin;
    gm_stream side;
    gm_event event;
    unsigned char *bytes; // 512 of the device
} bench;

static bench
open_bench(void)
{
    bench t = {.b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB})};
    t.origin = take_stream(t.b, GM_STREAM_NON_BLOCKING);
    t.side = take_stream(t.b, GM_STREAM_NON_BLOCKING);
    t.event = take_event(t.b, GM_EVENT_DISABLE_TIMING);
    t.bytes = (unsigned char *)take(t.b, GM_MEM_DEVICE, 512);
    return t;
}

static void
close_bench(bench t)
{
    CHECK_EQ(gm_backend_event_destroy(t.b, t.event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(t.b, t.origin), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(t.b, t.side), GM_OK);
    give(t.b, GM_MEM_DEVICE, (uintptr_t)t.bytes);
    check_ledger_is_empty(t.b);
    gm_backend_close(t.b);
}

static void
begin(const bench *t)
{
    CHECK_EQ(gm_backend_capture_begin(t->b, t->origin, GM_CAPTURE_MODE_RELAXED), GM_OK);
}

static void
set(const bench *t, int value, size_t size, gm_stream stream)
{
    CHECK_EQ(gm_backend_set_async(t->b, (uintptr_t)t->bytes, value, size, stream),
             GM_OK);
}

/* `stream` waits for all that `on` has now. */
static void
wait_for(const bench *t, gm_stream stream, gm_stream on)
{
    CHECK_EQ(gm_backend_event_record(t->b, t->event, on), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(t->b, stream, t->event), GM_OK);
}

static gm_graph
end(const bench *t)
{
    gm_graph graph = 0;
    CHECK_EQ(gm_backend_capture_end(t->b, t->origin, &graph), GM_OK);
    return graph;
}

/* Launches a graph once and ends it. */
static void
run(const bench *t, gm_graph graph)
{
    gm_graph_exec exec = 0;
    CHECK_EQ(gm_backend_graph_instantiate(t->b, graph, &exec), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(t->b, graph), GM_OK);
    CHECK_EQ(gm_backend_graph_launch(t->b, exec, t->origin), GM_OK);
    CHECK_EQ(gm_backend_graph_exec_destroy(t->b, exec), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(t->b, t->origin), GM_OK);
}

static void
check_spoilt(const bench *t)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    gm_graph graph = 7;
    uint64_t id = 7;
    CHECK_EQ(gm_backend_stream_capture(t->b, t->origin, &state, &id), GM_OK);
    CHECK_EQ(state, GM_CAPTURE_INVALIDATED);
    CHECK_EQ(id, 0);
    CHECK_EQ(gm_backend_set_async(t->b, (uintptr_t)t->bytes, 0, 1, t->origin),
             INVALIDATED);
    CHECK_EQ(gm_backend_capture_end(t->b, t->origin, &graph), INVALIDATED);
    CHECK_EQ(graph, 7);
}

/* ---- the order ---- */

/* What another stream recorded runs no earlier than a recorded wait needs it. */
TEST(sim_graph_a_missing_wait_shows)
{
    bench t = open_bench();
    CHECK_EQ(gm_backend_set(t.b, (uintptr_t)t.bytes, 0, 512), GM_OK);
    begin(&t);
    wait_for(&t, t.side, t.origin);
    set(&t, 1, 512, t.side);
    CHECK_EQ(gm_backend_copy_async(t.b, (uintptr_t)t.bytes + 256, (uintptr_t)t.bytes,
                                   256, GM_COPY_DEVICE_TO_DEVICE, t.origin),
             GM_OK); // should have waited
    wait_for(&t, t.origin, t.side);
    run(&t, end(&t));
    check_all(t.bytes, 512, 1); // the set came last
    close_bench(t);
}

TEST(sim_graph_keeps_every_dependency)
{
    enum {
        ROUNDS = 200
    };
    bench t = open_bench();
    uintptr_t ptr = take(t.b, GM_MEM_DEVICE, ROUNDS * 512);
    begin(&t);
    for (size_t i = 0; i < ROUNDS; i++) {
        // From stream to stream, each step writes what the next one copies.
        gm_stream stream = i % 2 == 0 ? t.origin : t.side;
        uintptr_t dst = ptr + i * 512;
        if (i == 0) {
            CHECK_EQ(gm_backend_set_async(t.b, dst, 5, 512, stream), GM_OK);
        }
        else {
            wait_for(&t, stream, i % 2 == 0 ? t.side : t.origin);
            CHECK_EQ(gm_backend_copy_async(t.b, dst, dst - 512, 512,
                                           GM_COPY_DEVICE_TO_DEVICE, stream),
                     GM_OK);
        }
    }
    wait_for(&t, t.origin, t.side);
    CHECK_EQ(read_ledger(t.b).captures, 1);
    gm_graph graph = end(&t);
    CHECK_EQ(read_ledger(t.b).captures, 0);
    CHECK_EQ(read_ledger(t.b).graphs, 1);
    run(&t, graph);
    check_all((unsigned char *)ptr, ROUNDS * 512, 5);
    give(t.b, GM_MEM_DEVICE, ptr);
    close_bench(t);
}

/* Memory that went away between recording and launching is an error of the launch. */
TEST(sim_graph_checks_its_memory_when_it_runs)
{
    bench t = open_bench();
    uintptr_t ptr = take(t.b, GM_MEM_DEVICE, 512);
    begin(&t);
    CHECK_EQ(gm_backend_set_async(t.b, ptr, 1, 512, t.origin), GM_OK);
    gm_graph graph = end(&t);
    give(t.b, GM_MEM_DEVICE, ptr);
    CHECK_EQ(read_ledger(t.b).errors, 0);
    run(&t, graph);
    CHECK_EQ(read_ledger(t.b).errors, 1);
    close_bench(t);
}

/* ---- what spoils ---- */

TEST(sim_graph_two_recordings_do_not_mix)
{
    bench t = open_bench();
    gm_graph graph = 0;
    begin(&t);
    CHECK_EQ(gm_backend_capture_begin(t.b, t.side, GM_CAPTURE_MODE_RELAXED), GM_OK);
    CHECK_EQ(gm_backend_event_record(t.b, t.event, t.origin), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(t.b, t.side, t.event), MERGE);
    CHECK_EQ(gm_backend_stream_wait_event(t.b, t.side, t.event), INVALIDATED);
    check_spoilt(&t);
    CHECK_EQ(gm_backend_capture_end(t.b, t.side, &graph), INVALIDATED);
    close_bench(t);
}

TEST(sim_graph_is_ended_in_the_stream_it_began_in)
{
    bench t = open_bench();
    gm_graph graph = 0;
    begin(&t);
    wait_for(&t, t.side, t.origin);
    CHECK_EQ(gm_backend_capture_end(t.b, t.side, &graph), UNMATCHED);
    check_spoilt(&t);
    close_bench(t);
}

TEST(sim_graph_waiting_for_the_device_spoils)
{
    bench t = open_bench();
    begin(&t);
    CHECK_EQ(gm_backend_device_synchronize(t.b, 1), GM_OK); // another one
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), UNSUPPORTED);
    check_spoilt(&t);
    close_bench(t);
}

TEST(sim_graph_plain_copies_use_the_legacy_stream)
{
    bench t = open_bench();
    gm_stream blocking = take_stream(t.b, 0);
    gm_graph graph = 0;
    uintptr_t ptr = (uintptr_t)t.bytes;
    const gm_backend *b = t.b;
    CHECK_EQ(gm_backend_capture_begin(b, t.origin, GM_CAPTURE_MODE_RELAXED), GM_OK);
    CHECK_EQ(gm_backend_set(b, ptr, 0, 1), GM_OK); // no order with that stream
    CHECK_EQ(gm_backend_capture_end(b, t.origin, &graph), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(b, graph), GM_OK);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(gm_backend_capture_begin(b, blocking, GM_CAPTURE_MODE_RELAXED), GM_OK);
        gm_status status =
            i == 0   ? gm_backend_set(b, ptr, 0, 1)
            : i == 1 ? gm_backend_copy(b, ptr, ptr + 1, 1, GM_COPY_DEVICE_TO_DEVICE)
                     : gm_backend_copy_peer(b, ptr, 0, ptr + 1, 0, 1);
        CHECK_EQ(status, IMPLICIT);
        CHECK_EQ(gm_backend_capture_end(b, blocking, &graph), INVALIDATED);
    }
    CHECK_EQ(gm_backend_stream_destroy(b, blocking), GM_OK);
    close_bench(t);
}

/* Things that have nothing to do with the recording. */
typedef struct outside {
    const gm_backend *b;
    gm_stream stream;
    gm_event event;
    gm_mem_pool pool;
    uintptr_t ptr;
} outside;

static gm_status
call_forbidden(const outside *o, int number)
{
    switch (number) {
    case 0:
        return gm_backend_mem_free(o->b, 0, GM_MEM_DEVICE, o->ptr);
    case 1:
        return gm_backend_stream_query(o->b, o->stream);
    case 2:
        return gm_backend_stream_synchronize(o->b, o->stream);
    case 3:
        return gm_backend_event_query(o->b, o->event);
    case 4:
        return gm_backend_event_synchronize(o->b, o->event);
    case 5:
        return gm_backend_device_synchronize(o->b, 1);
    case 6:
        return gm_backend_set(o->b, o->ptr, 0, 1);
    case 7:
        return gm_backend_mem_pool_trim(o->b, o->pool, 0);
    case 8:
        return gm_backend_peer_enable(o->b, 0, 1);
    default:
        return GM_OK; // that was all
    }
}

TEST(sim_graph_the_mode_forbids)
{
    bench t = open_bench();
    outside o = {.b = t.b,
                 .stream = t.side,
                 .event = take_event(t.b, 0),
                 .ptr = take(t.b, GM_MEM_DEVICE, 512)};
    gm_status status = UNSUPPORTED;
    CHECK_EQ(gm_backend_mem_pool_get(t.b, 0, true, &o.pool), GM_OK);
    for (int i = 0; status != GM_OK; i++) {
        harness_note("call %d", i);
        CHECK_EQ(gm_backend_capture_begin(t.b, t.origin, GM_CAPTURE_MODE_GLOBAL),
                 GM_OK);
        status = call_forbidden(&o, i);
        if (status != GM_OK) {
            CHECK_EQ(status, UNSUPPORTED);
            check_spoilt(&t);
        }
    }
    // What does not wait is allowed, and to take memory.
    uintptr_t ptr = take(t.b, GM_MEM_DEVICE, 512);
    uintptr_t pinned = take(t.b, GM_MEM_PINNED, 512);
    gm_event event = take_event(t.b, 0);
    CHECK_EQ(gm_backend_event_record(t.b, event, t.side), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(t.b, t.side, event), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(t.b, event), GM_OK);
    set(&t, 1, 512, t.side);
    CHECK_EQ(gm_backend_graph_destroy(t.b, end(&t)), GM_OK);

    CHECK_EQ(gm_backend_event_destroy(t.b, o.event), GM_OK);
    give(t.b, GM_MEM_DEVICE, o.ptr);
    give(t.b, GM_MEM_DEVICE, ptr);
    give(t.b, GM_MEM_PINNED, pinned);
    close_bench(t);
}

TEST(sim_graph_does_not_record_what_it_cannot)
{
    bench t = open_bench();
    uintptr_t ptr = 0, out = 7;
    gm_graph_exec exec = 0;
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 0, 512, t.origin, &ptr), GM_OK);
    begin(&t);
    gm_graph graph = end(&t);
    CHECK_EQ(gm_backend_graph_instantiate(t.b, graph, &exec), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(t.b, graph), GM_OK);
    begin(&t);
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 0, 512, t.origin, &out), UNSUPPORTED);
    CHECK_EQ(out, 7);
    check_spoilt(&t);
    begin(&t);
    CHECK_EQ(gm_backend_mem_free_async(t.b, 0, ptr, t.origin), UNSUPPORTED);
    check_spoilt(&t);
    begin(&t);
    CHECK_EQ(gm_backend_graph_launch(t.b, exec, t.origin), UNSUPPORTED);
    check_spoilt(&t);
    CHECK_EQ(gm_backend_mem_free_async(t.b, 0, ptr, t.origin), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.origin), GM_OK);
    CHECK_EQ(gm_backend_graph_exec_destroy(t.b, exec), GM_OK);
    close_bench(t);
}

TEST(sim_graph_mode_is_one_of_three)
{
    bench t = open_bench();
    CHECK_EQ(gm_backend_capture_begin(t.b, t.origin, (gm_capture_mode)3),
             INVALID_VALUE);
    CHECK_EQ(gm_backend_capture_begin(t.b, 12345, GM_CAPTURE_MODE_RELAXED),
             INVALID_HANDLE);
    close_bench(t);
}

/* ---- events ---- */

TEST(sim_graph_events_outlive_their_recording_in_vain)
{
    bench t = open_bench();
    float ms = 7.0f;
    begin(&t);
    CHECK_EQ(gm_backend_event_record(t.b, t.event, t.origin), GM_OK);
    CHECK_EQ(gm_backend_event_elapsed(t.b, t.event, t.event, &ms), CAPTURED_EVENT);
    run(&t, end(&t));
    CHECK_EQ(gm_backend_event_query(t.b, t.event), CAPTURED_EVENT);
    CHECK_EQ(gm_backend_event_synchronize(t.b, t.event), CAPTURED_EVENT);
    CHECK_EQ(gm_backend_stream_wait_event(t.b, t.side, t.event), CAPTURED_EVENT);
    CHECK_EQ(gm_backend_event_record(t.b, t.event, t.side), GM_OK);
    CHECK_EQ(gm_backend_event_synchronize(t.b, t.event), GM_OK);
    close_bench(t);
}

/* An event that was never recorded is nothing to wait for, in a recording either. */
TEST(sim_graph_waits_for_no_event_without_a_record)
{
    bench t = open_bench();
    begin(&t);
    CHECK_EQ(gm_backend_stream_wait_event(t.b, t.origin, t.event), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(t.b, end(&t)), GM_OK);
    close_bench(t);
}

/* ---- the end of handles ---- */

TEST(sim_graph_streams_may_die_while_they_record)
{
    bench t = open_bench();
    gm_stream dying = take_stream(t.b, 0);
    CHECK_EQ(gm_backend_capture_begin(t.b, dying, GM_CAPTURE_MODE_GLOBAL), GM_OK);
    wait_for(&t, t.side, dying);
    CHECK_EQ(gm_backend_stream_destroy(t.b, dying), GM_OK); // takes the recording along
    CHECK_EQ(read_ledger(t.b).captures, 0);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.side), GM_OK);

    dying = take_stream(t.b, 0);
    begin(&t);
    wait_for(&t, dying, t.origin);
    CHECK_EQ(gm_backend_stream_destroy(t.b, dying), GM_OK);
    check_spoilt(&t);
    close_bench(t);
}

TEST(sim_graph_dead_handles_are_refused)
{
    bench t = open_bench();
    gm_graph_exec exec = 7;
    begin(&t);
    gm_graph graph = end(&t);
    CHECK_EQ(gm_backend_graph_destroy(t.b, graph), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(t.b, graph), INVALID_HANDLE);
    CHECK_EQ(gm_backend_graph_instantiate(t.b, graph, &exec), INVALID_HANDLE);
    CHECK_EQ(gm_backend_graph_debug_dot(t.b, graph, "/dev/null", 0), INVALID_HANDLE);
    CHECK_EQ(gm_backend_graph_launch(t.b, graph, t.origin), INVALID_HANDLE);
    CHECK_EQ(gm_backend_graph_upload(t.b, graph, t.origin), INVALID_HANDLE);
    CHECK_EQ(gm_backend_graph_exec_destroy(t.b, graph), INVALID_HANDLE);
    CHECK_EQ(exec, 7);
    CHECK_EQ(read_ledger(t.b).errors, 6);
    close_bench(t);
}

/* What is left when the instance closes goes with it. */
TEST(sim_graph_close_takes_all)
{
    bench t = open_bench();
    gm_graph_exec exec = 0;
    begin(&t);
    set(&t, 1, 512, t.origin);
    gm_graph graph = end(&t);
    CHECK_EQ(gm_backend_graph_instantiate(t.b, graph, &exec), GM_OK);
    CHECK_EQ(gm_backend_graph_launch(t.b, exec, t.side), GM_OK);
    begin(&t);
    set(&t, 1, 512, t.origin);
    gm_backend_close(t.b);
}

/* ---- drawing ---- */

TEST(sim_graph_is_drawn)
{
    bench t = open_bench();
    char path[] = "/tmp/gpumem-graph-XXXXXX", text[512] = "";
    int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(close(file), 0);
    begin(&t);
    set(&t, 1, 512, t.origin);
    wait_for(&t, t.side, t.origin);
    wait_for(&t, t.origin, t.side);
    gm_graph graph = end(&t);
    CHECK_EQ(gm_backend_graph_debug_dot(t.b, graph, path, 0), GM_OK);
    FILE *dot = fopen(path, "r");
    CHECK(dot != NULL);
    CHECK(fread(text, 1, sizeof text - 1, dot) > 0);
    fclose(dot);
    CHECK_EQ(unlink(path), 0);
    CHECK(strcmp(text, "digraph dot {\n"
                       "    node_0 [label=\"set 512 bytes\"];\n"
                       "    node_1 [label=\"wait 0 bytes\"];\n"
                       "    node_0 -> node_1;\n"
                       "    node_2 [label=\"wait 0 bytes\"];\n"
                       "    node_0 -> node_2;\n"
                       "    node_1 -> node_2;\n"
                       "}\n") == 0);
    CHECK_EQ(gm_backend_graph_debug_dot(t.b, graph, "/no/such/folder", 0),
             OPERATING_SYSTEM);
    CHECK_EQ(gm_backend_graph_destroy(t.b, graph), GM_OK);
    close_bench(t);
}
