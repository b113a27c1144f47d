/* SPDX-License-Identifier: MIT
 *
 * The simulated device's work: what the sim_ files that queue and run it share.
 * Included through sim.h.
 *
 *   sim_stream.c   streams, their queues, and the rule by which queued work runs
 *   sim_wait.c     waiting for work; holding streams
 *   sim_event.c    events
 *   sim_capture.c  recording streams, and what that forbids
 *   sim_graph.c    recorded work, and launching it
 */
#ifndef GM_SIM_STREAM_H
#define GM_SIM_STREAM_H

#include "backends.h"

typedef struct gm_sim gm_sim;
typedef struct sim_capture sim_capture;
typedef struct sim_exec sim_exec;
typedef struct sim_op sim_op;
typedef struct sim_stream sim_stream;
typedef struct sim_work sim_work;

/* A lower number runs first, on hardware; here work runs by need alone. */
#define SIM_PRIORITY_LEAST 0
#define SIM_PRIORITY_MOST (-5)

/* ---- sim_stream.c ---- */

typedef enum sim_op_kind {
    SIM_OP_COPY,
    SIM_OP_SET,
    SIM_OP_RECORD,
    SIM_OP_WAIT,
    SIM_OP_GRAPH,
    SIM_OP_PREFETCH,
} sim_op_kind;

/* Which device touches an end of work that is memory by page. */
enum {
    SIM_BY_STREAM = -1, // not found out yet: the stream's
    SIM_BY_ANY = -2,    // it is no memory by page
};

/* What to do. */
struct sim_work {
    sim_op_kind kind;
    uintptr_t dst; // COPY, SET, PREFETCH
    uintptr_t src; // COPY
    size_t size;
    int dst_by;     // COPY, SET: a device or SIM_BY_
    int src_by;     // COPY
    int value;      // SET; PREFETCH: the device, -1 for the host
    sim_op *record; // WAIT: NULL when the event had no record
    sim_exec *exec; // GRAPH
};

/* Queued work, with a reference to what it names. Counted, because events and waits
 * remember records. */
struct sim_op {
    sim_work work;
    unsigned refs;
    uint64_t number; // order of queueing, over the whole instance
    sim_op *next;    // in its stream
    sim_stream *stream;
    bool done;
    uint64_t time; // done: nanoseconds on the virtual clock
};

struct sim_stream {
    uint64_t id;
    gm_stream handle; // 0 for a default stream
    int device;
    unsigned flags;  // GM_STREAM_*
    int priority;    // as the device took it
    bool ended;      // no handle any more; freed once the queue is empty
    unsigned waits;  // threads that wait for it: not freed meanwhile
    uint64_t holder; // the thread that holds it: no work runs; 0 for none
    sim_op *head;
    sim_op **tail;
    uint64_t last;    // number of the newest operation queued
    uint64_t polled;  // a query saw the queue up to this number and said "not ready"
    sim_stream *next; // of the device
    sim_stream *prev;

    sim_capture *capture; // the recording that it is part of
    uint32_t newest;      // ... and its newest node there, counted from 1

    // While sim_run works: how far this stream must get, and for whom.
    uint64_t target;
    sim_stream *waiter;
};

/* Whether a stream keeps order with the legacy stream of its device. */
static inline bool
sim_stream_is_blocking(const sim_stream *stream)
{
    return (stream->flags & GM_STREAM_NON_BLOCKING) == 0;
}

/* A stream of `device` without a handle. NULL without host memory. */
sim_stream *sim_stream_new(gm_sim *sim, int device, unsigned flags, int priority);

/* Ends a stream: it goes when its queue is empty, perhaps now. */
void sim_stream_end(gm_sim *sim, sim_stream *stream);

/* The stream a handle names for the calling thread. GM_ERR_HOST_MEMORY, or invalid
 * handle, which counts as an error. */
GM_MUST_CHECK gm_status sim_stream_find(gm_sim *sim,
                                        gm_stream handle,
                                        sim_stream **out);

/* The same for a stream that is to be given work or waited for: not one whose recording
 * is spoilt, nor the legacy stream while a blocking stream of its device records. */
GM_MUST_CHECK gm_status sim_stream_use(gm_sim *sim, gm_stream handle, sim_stream **out);

gm_status sim_stream_create(
    gm_sim *sim, int device, unsigned flags, int priority, gm_stream *out);
gm_status sim_stream_destroy(gm_sim *sim, gm_stream handle);
gm_status sim_stream_query(gm_sim *sim, sim_stream *stream);

/* Queues work, or adds it to the stream's recording. *kept, where asked for, is a
 * reference to the queued operation, and then the stream does not record.
 * GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_submit(gm_sim *sim,
                                   sim_stream *stream,
                                   const sim_work *work,
                                   sim_op **kept);

/* Does work now, an operation's or that of the graph which it launches. */
void sim_execute(gm_sim *sim, const sim_op *op, const sim_work *work);

/* Runs a stream up to operation `number`, and first all that this waits for. The held
 * stream that is in the way, NULL when it is done. No stream is freed. */
sim_stream *sim_run(gm_sim *sim, sim_stream *stream, uint64_t number);

/* Drops a reference; accepts NULL. */
void sim_op_unref(sim_op *op);

/* Ends all streams of all devices with no regard to their work. */
void sim_streams_fini(gm_sim *sim);

/* Forgets all work of a device's streams, as done, and ends those that have handles. */
void sim_streams_reset(gm_sim *sim, int device);

/* Frees the ended streams that have no work and nobody waiting; the end of each call.
 */
void sim_lay_ghosts(gm_sim *sim);

/* ---- sim_wait.c ---- */

/* Waits until a stream has done its operations up to `number`, or all of a device's
 * have done theirs; lets go of the lock while another thread holds a stream that is in
 * the way. Held by the calling thread it would never end:
 * GM_DEVICE_ERROR(SIM_CODE_HELD). Or the code of a sticky fault. */
GM_MUST_CHECK gm_status sim_wait(gm_sim *sim, sim_stream *stream, uint64_t number);
GM_MUST_CHECK gm_status sim_wait_device(gm_sim *sim, int device);

/* ---- sim_event.c ---- */

gm_status sim_event_create(gm_sim *sim, int device, unsigned flags, gm_event *out);
gm_status sim_event_destroy(gm_sim *sim, gm_event handle);
gm_status sim_event_record(gm_sim *sim, gm_event handle, sim_stream *stream);
gm_status sim_event_wait(gm_sim *sim, gm_event handle, sim_stream *stream);
gm_status sim_event_query(gm_sim *sim, gm_event handle);
gm_status sim_event_synchronize(gm_sim *sim, gm_event handle);
gm_status sim_event_elapsed(gm_sim *sim, gm_event start, gm_event end, float *ms);
void sim_events_fini(gm_sim *sim);
void sim_events_reset(gm_sim *sim, int device);

/* ---- sim_capture.c ---- */

/* One piece of recorded work. It comes after up to two others: the one before it in its
 * stream, and the one that a wait is for; both counted from 1, 0 for none. */
typedef struct sim_node {
    sim_work work;
    uint32_t after[2];

    // While a walk through the nodes goes on.
    bool seen;
    uint32_t from;
} sim_node;

gm_status sim_capture_begin(gm_sim *sim, gm_stream handle, gm_capture_mode mode);
gm_status sim_capture_end(gm_sim *sim, gm_stream handle, gm_graph *out);
gm_status
sim_capture_info(gm_sim *sim, gm_stream handle, gm_capture_state *state, uint64_t *id);

/* The recording of a number; NULL when it has ended. */
sim_capture *sim_capture_find(const gm_sim *sim, uint64_t id);
uint64_t sim_capture_id(const sim_capture *capture);

/* Adds work to a stream's recording, after its newest node and node `after`.
 * GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_capture_add(gm_sim *sim,
                                        sim_stream *stream,
                                        const sim_work *work,
                                        uint32_t after);

/* Makes a stream wait for a node of a recording, which it joins. */
gm_status
sim_capture_join(gm_sim *sim, sim_stream *stream, sim_capture *capture, uint32_t node);

/* Spoils a recording, if there is one, and hands the code on as a status. */
gm_status sim_capture_spoil(sim_capture *capture, int code);

/* Whether calls that a recording may forbid are allowed to the calling thread; spoils
 * the recordings that forbid them. */
gm_status sim_capture_allows(gm_sim *sim);

/* Whether a stream may be used; and a device waited for. */
gm_status sim_capture_allows_use(gm_sim *sim, const sim_stream *stream);
gm_status sim_capture_allows_wait(gm_sim *sim, int device);

/* A stream ends: what it records is spoilt, and dropped with the stream it began in. */
void sim_capture_leave(gm_sim *sim, sim_stream *stream);
void sim_captures_fini(gm_sim *sim);

/* Drops the recordings that a device's streams are part of. */
void sim_captures_reset(gm_sim *sim, int device);

/* ---- sim_graph.c ---- */

/* A graph of `nodes`, which go over to it, and are freed without host memory. */
GM_MUST_CHECK gm_status
sim_graph_new(gm_sim *sim, int device, sim_node *nodes, uint32_t count, gm_graph *out);

gm_status sim_graph_instantiate(gm_sim *sim, gm_graph handle, gm_graph_exec *out);
gm_status sim_graph_launch(gm_sim *sim, gm_graph_exec handle, sim_stream *stream);
gm_status sim_graph_upload(gm_sim *sim, gm_graph_exec handle, sim_stream *stream);
gm_status sim_graph_debug_dot(gm_sim *sim, gm_graph handle, const char *path);
gm_status sim_graph_destroy(gm_sim *sim, gm_graph handle);
gm_status sim_graph_exec_destroy(gm_sim *sim, gm_graph_exec handle);
void sim_graphs_fini(gm_sim *sim);
void sim_graphs_reset(gm_sim *sim, int device);

/* Does the work of the graph that an operation launches, in order; dropping a reference
 * to it, NULL accepted. */
void sim_exec_run(gm_sim *sim, const sim_op *op);
void sim_exec_ref(sim_exec *exec);
void sim_exec_unref(sim_exec *exec);

#endif
