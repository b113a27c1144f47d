/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of recording work into graphs: what is recorded does not
 * run, and runs as often as it is launched; what a recording forbids, in which mode,
 * and that a spoilt one can be ended. In which order the simulated device runs a graph
 * is in test_sim_graph.c.
 */
#include "conformance.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h> // unlink()

#define ILLEGAL_STATE GM_DEVICE_ERROR(401)
#define UNSUPPORTED GM_DEVICE_ERROR(900)
#define INVALIDATED GM_DEVICE_ERROR(901)
#define UNJOINED GM_DEVICE_ERROR(904)
#define ISOLATION GM_DEVICE_ERROR(905)
#define IMPLICIT GM_DEVICE_ERROR(906)
#define CAPTURED_EVENT GM_DEVICE_ERROR(907)
#define WRONG_THREAD GM_DEVICE_ERROR(908)

static gm_capture_state
state_of(const gm_backend *b, gm_stream stream, uint64_t *id)
{
    gm_capture_state state = GM_CAPTURE_INVALIDATED;
    CHECK_EQ(gm_backend_stream_capture(b, stream, &state, id), GM_OK);
    return state;
}

static void
check_state(const gm_backend *b, gm_stream stream, gm_capture_state expected)
{
    uint64_t id = 7;
    CHECK_EQ(state_of(b, stream, &id), expected);
    CHECK_EQ(id != 0, expected == GM_CAPTURE_ACTIVE);
}

static void
begin(const gm_backend *b, gm_stream stream, gm_capture_mode mode)
{
    CHECK_EQ(gm_backend_capture_begin(b, stream, mode), GM_OK);
    check_state(b, stream, GM_CAPTURE_ACTIVE);
}

/* Ends a recording that is whole and makes it ready. */
static gm_graph_exec
end(const gm_backend *b, gm_stream stream)
{
    gm_graph graph = 0;
    gm_graph_exec exec = 0;
    CHECK_EQ(gm_backend_capture_end(b, stream, &graph), GM_OK);
    CHECK_EQ(gm_backend_graph_instantiate(b, graph, &exec), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(b, graph), GM_OK);
    check_state(b, stream, GM_CAPTURE_NONE);
    return exec;
}

/* Ends a recording that was spoilt, and sees that the stream can be used again. */
static void
end_spoilt(const gm_backend *b, gm_stream stream)
{
    gm_graph graph = 7;
    CHECK_EQ(gm_backend_capture_end(b, stream, &graph), INVALIDATED);
    CHECK_EQ(graph, 7);
    check_state(b, stream, GM_CAPTURE_NONE);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

/* ---- recording and launching ---- */

CONFORMANCE(graph_runs_as_often_as_it_is_launched)
{
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 1000);
    unsigned char *bytes = (unsigned char *)take(b, GM_MEM_PINNED, 1000);
    memset(bytes, 9, 1000);

    begin(b, stream, GM_CAPTURE_MODE_THREAD_LOCAL);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 1000, stream), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr + 500, 2, 500, stream), GM_OK);
    CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)bytes, ptr, 1000,
                                   GM_COPY_DEVICE_TO_HOST, stream),
             GM_OK);
    gm_graph_exec exec = end(b, stream);
    CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
    check_all(bytes, 1000, 9); // recorded, not run

    CHECK_EQ(gm_backend_graph_upload(b, exec, stream), GM_OK);
    for (int round = 0; round < 3; round++) {
        memset(bytes, 9, 1000);
        CHECK_EQ(gm_backend_graph_launch(b, exec, stream), GM_OK);
        CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
        check_all(bytes, 500, 1);
        check_all(bytes + 500, 500, 2);
    }
    CHECK_EQ(gm_backend_graph_exec_destroy(b, exec), GM_OK);
    give(b, GM_MEM_PINNED, (uintptr_t)bytes);
    give(b, GM_MEM_DEVICE, ptr);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

CONFORMANCE(graph_records_streams_that_join)
{
    gm_stream origin = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_stream side = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event fork = take_event(b, GM_EVENT_DISABLE_TIMING);
    gm_event join = take_event(b, GM_EVENT_DISABLE_TIMING);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    unsigned char bytes[512] = {0};
    uint64_t id = 0, side_id = 0;

    begin(b, origin, GM_CAPTURE_MODE_THREAD_LOCAL);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 512, origin), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, fork, origin), GM_OK);
    check_state(b, side, GM_CAPTURE_NONE);
    CHECK_EQ(gm_backend_stream_wait_event(b, side, fork), GM_OK);
    CHECK_EQ(state_of(b, origin, &id), GM_CAPTURE_ACTIVE);
    CHECK_EQ(state_of(b, side, &side_id), GM_CAPTURE_ACTIVE);
    CHECK_EQ(side_id, id);
    CHECK_EQ(gm_backend_set_async(b, ptr, 2, 100, side), GM_OK);
    CHECK_EQ(gm_backend_event_record(b, join, side), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(b, origin, join), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 3, 50, origin), GM_OK);
    gm_graph_exec exec = end(b, origin);
    check_state(b, side, GM_CAPTURE_NONE);

    CHECK_EQ(gm_backend_graph_launch(b, exec, side), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(b, side), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)bytes, ptr, 512, GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    check_all(bytes, 50, 3);
    check_all(bytes + 50, 50, 2);
    check_all(bytes + 100, 412, 1);

    CHECK_EQ(gm_backend_graph_exec_destroy(b, exec), GM_OK); // a recording forbids it

    begin(b, origin, GM_CAPTURE_MODE_THREAD_LOCAL); // another one has another number
    CHECK_EQ(state_of(b, origin, &side_id), GM_CAPTURE_ACTIVE);
    CHECK(side_id != id);
    CHECK_EQ(gm_backend_graph_exec_destroy(b, end(b, origin)), GM_OK); // of nothing
    CHECK_EQ(gm_backend_event_destroy(b, fork), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, join), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, origin), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, side), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(graph_launch_outlives_its_handle)
{
    gm_stream stream = take_stream(b, 0);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    unsigned char bytes[512] = {0};
    begin(b, stream, GM_CAPTURE_MODE_RELAXED);
    CHECK_EQ(gm_backend_set_async(b, ptr, 5, 512, stream), GM_OK);
    gm_graph_exec exec = end(b, stream);
    CHECK_EQ(gm_backend_graph_launch(b, exec, stream), GM_OK);
    CHECK_EQ(gm_backend_graph_exec_destroy(b, exec), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)bytes, ptr, 512, GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    check_all(bytes, 512, 5);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(graph_is_drawn_in_dot)
{
    gm_stream stream = take_stream(b, 0);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    char path[] = "/tmp/gpumem-graph-XXXXXX", text[8] = "";
    int file = mkstemp(path);
    gm_graph graph = 0;
    CHECK(file >= 0);
    begin(b, stream, GM_CAPTURE_MODE_RELAXED);
    CHECK_EQ(gm_backend_set_async(b, ptr, 5, 512, stream), GM_OK);
    CHECK_EQ(gm_backend_capture_end(b, stream, &graph), GM_OK);
    CHECK_EQ(gm_backend_graph_debug_dot(b, graph, path, 0), GM_OK);
    CHECK_EQ(close(file), 0);
    FILE *dot = fopen(path, "r");
    CHECK(dot != NULL);
    CHECK_EQ(fread(text, 1, 7, dot), 7);
    CHECK(strcmp(text, "digraph") == 0);
    fclose(dot);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(gm_backend_graph_destroy(b, graph), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

/* ---- what spoils a recording ---- */

CONFORMANCE(graph_waiting_for_what_is_recorded_spoils_it)
{
    const gm_capture_mode modes[] = {
        GM_CAPTURE_MODE_GLOBAL, GM_CAPTURE_MODE_THREAD_LOCAL, GM_CAPTURE_MODE_RELAXED};
    gm_event event = take_event(b, 0);
    for (size_t i = 0; i < 3; i++) {
        gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
        begin(b, stream, modes[i]);
        CHECK_EQ(gm_backend_stream_synchronize(b, stream), UNSUPPORTED);
        check_state(b, stream, GM_CAPTURE_INVALIDATED);
        end_spoilt(b, stream);

        begin(b, stream, modes[i]);
        CHECK_EQ(gm_backend_stream_query(b, stream), UNSUPPORTED);
        end_spoilt(b, stream);

        begin(b, stream, modes[i]);
        CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK);
        CHECK_EQ(gm_backend_event_query(b, event), CAPTURED_EVENT);
        check_state(b, stream, GM_CAPTURE_INVALIDATED);
        end_spoilt(b, stream);
        CHECK_EQ(gm_backend_event_record(b, event, stream), GM_OK); // usable again
        CHECK_EQ(gm_backend_event_synchronize(b, event), GM_OK);
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
}

CONFORMANCE(graph_hides_which_stream_it_is_and_stays_whole)
{
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    uint64_t before = 0;
    uint64_t id = 0;

    CHECK_EQ(gm_backend_stream_id(b, stream, &before), GM_OK);
    begin(b, stream, GM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(gm_backend_stream_id(b, stream, &id), GM_ERR_CAPTURING);
    CHECK_EQ(gm_backend_stream_id(b, GM_STREAM_LEGACY, &id), GM_OK);
    check_state(b, stream, GM_CAPTURE_ACTIVE);
    CHECK_EQ(gm_backend_graph_exec_destroy(b, end(b, stream)), GM_OK);
    CHECK_EQ(gm_backend_stream_id(b, stream, &id), GM_OK);
    CHECK_EQ(id, before);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

CONFORMANCE(graph_depends_on_nothing_from_outside)
{
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_stream other = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event event = take_event(b, GM_EVENT_DISABLE_TIMING);
    CHECK_EQ(gm_backend_event_record(b, event, other), GM_OK);
    begin(b, stream, GM_CAPTURE_MODE_RELAXED);
    CHECK_EQ(gm_backend_stream_wait_event(b, stream, event), ISOLATION);
    end_spoilt(b, stream);
    CHECK_EQ(gm_backend_stream_synchronize(b, other), GM_OK);
    CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, other), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

CONFORMANCE(graph_needs_all_its_streams_back)
{
    gm_stream origin = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_stream side = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_event fork = take_event(b, GM_EVENT_DISABLE_TIMING);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    gm_graph graph = 7;
    begin(b, origin, GM_CAPTURE_MODE_RELAXED);
    CHECK_EQ(gm_backend_event_record(b, fork, origin), GM_OK);
    CHECK_EQ(gm_backend_stream_wait_event(b, side, fork), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 512, side), GM_OK);
    CHECK_EQ(gm_backend_capture_end(b, origin, &graph), UNJOINED);
    CHECK_EQ(graph, 7);
    check_state(b, origin, GM_CAPTURE_NONE);
    check_state(b, side, GM_CAPTURE_NONE);
    CHECK_EQ(gm_backend_event_destroy(b, fork), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, origin), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(b, side), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(graph_and_the_legacy_stream)
{
    gm_stream blocking = take_stream(b, 0);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 512);
    gm_capture_state state = GM_CAPTURE_INVALIDATED;
    uint64_t id = 7;
    CHECK_EQ(gm_backend_capture_begin(b, GM_STREAM_LEGACY, GM_CAPTURE_MODE_RELAXED),
             UNSUPPORTED);
    begin(b, blocking, GM_CAPTURE_MODE_RELAXED);
    // Asking spoils nothing, using does.
    CHECK_EQ(gm_backend_stream_capture(b, GM_STREAM_LEGACY, &state, &id), IMPLICIT);
    CHECK_EQ(id, 7);
    check_state(b, blocking, GM_CAPTURE_ACTIVE);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 512, GM_STREAM_LEGACY), IMPLICIT);
    check_state(b, blocking, GM_CAPTURE_INVALIDATED);
    end_spoilt(b, blocking);
    CHECK_EQ(gm_backend_stream_destroy(b, blocking), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
}

CONFORMANCE(graph_begins_and_ends_once)
{
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    gm_graph graph = 7;
    CHECK_EQ(gm_backend_capture_end(b, stream, &graph), ILLEGAL_STATE);
    CHECK_EQ(graph, 7);
    begin(b, stream, GM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(gm_backend_capture_begin(b, stream, GM_CAPTURE_MODE_GLOBAL),
             ILLEGAL_STATE);
    (void)gm_backend_capture_end(b, stream, &graph);
    if (graph != 7) {
        CHECK_EQ(gm_backend_graph_destroy(b, graph), GM_OK);
    }
    check_state(b, stream, GM_CAPTURE_NONE);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

/* ---- what the mode forbids ---- */

typedef struct taken {
    const gm_backend *b;
    uintptr_t ptr;
    gm_status status; // of giving it back
} taken;

/* Allocating, which is always allowed, and giving back; here or in another thread. */
static void *
take_and_give(void *arg)
{
    taken *t = arg;

    CHECK_EQ(gm_backend_mem_alloc(t->b, 0, GM_MEM_DEVICE, 512, &t->ptr), GM_OK);
    t->status = gm_backend_mem_free(t->b, 0, GM_MEM_DEVICE, t->ptr);
    CHECK_EQ(gm_backend_last_error(t->b), 0);
    return NULL;
}

CONFORMANCE(graph_mode_says_who_may_give_back)
{
    const struct {
        gm_capture_mode mode;
        bool elsewhere;
        gm_status status;
    } cases[] = {
        {GM_CAPTURE_MODE_GLOBAL, false, UNSUPPORTED},
        {GM_CAPTURE_MODE_GLOBAL, true, UNSUPPORTED},
        {GM_CAPTURE_MODE_THREAD_LOCAL, false, UNSUPPORTED},
        {GM_CAPTURE_MODE_THREAD_LOCAL, true, GM_OK},
        {GM_CAPTURE_MODE_RELAXED, false, GM_OK},
        {GM_CAPTURE_MODE_RELAXED, true, GM_OK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
        taken t = {.b = b};
        pthread_t thread;

        harness_note("case %zu", i);
        begin(b, stream, cases[i].mode);
        if (cases[i].elsewhere) {
            CHECK_EQ(pthread_create(&thread, NULL, take_and_give, &t), 0);
            CHECK_EQ(pthread_join(thread, NULL), 0);
        }
        else {
            (void)take_and_give(&t);
        }
        CHECK_EQ(t.status, cases[i].status);
        if (t.status == GM_OK) {
            CHECK_EQ(gm_backend_graph_exec_destroy(b, end(b, stream)), GM_OK);
        }
        else {
            end_spoilt(b, stream);
            CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, t.ptr), GM_OK);
        }
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
}

typedef struct other_end {
    const gm_backend *b;
    gm_stream stream;
    gm_status status;
} other_end;

static void *
end_elsewhere(void *arg)
{
    other_end *other = arg;
    gm_graph graph = 0;
    other->status = gm_backend_capture_end(other->b, other->stream, &graph);
    if (other->status == GM_OK) {
        CHECK_EQ(gm_backend_graph_destroy(other->b, graph), GM_OK);
    }
    return NULL;
}

CONFORMANCE(graph_is_ended_where_it_began_unless_relaxed)
{
    const gm_capture_mode modes[] = {GM_CAPTURE_MODE_THREAD_LOCAL,
                                     GM_CAPTURE_MODE_RELAXED};
    for (size_t i = 0; i < 2; i++) {
        other_end other = {b, take_stream(b, GM_STREAM_NON_BLOCKING), -1};
        gm_graph graph = 0;
        pthread_t thread;
        begin(b, other.stream, modes[i]);
        CHECK_EQ(pthread_create(&thread, NULL, end_elsewhere, &other), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(other.status, i == 0 ? WRONG_THREAD : GM_OK);
        if (i == 0 && gm_backend_capture_end(b, other.stream, &graph) == GM_OK) {
            CHECK_EQ(gm_backend_graph_destroy(b, graph), GM_OK);
        }
        check_state(b, other.stream, GM_CAPTURE_NONE);
        CHECK_EQ(gm_backend_stream_destroy(b, other.stream), GM_OK);
    }
}
