/* SPDX-License-Identifier: MIT
 *
 * The simulated device's work: what the sim_ files that queue and run it share.
 * Included through sim.h.
 *
 *   sim_stream.c   streams, their queues, and the rule by which queued work runs
 *   sim_event.c    events
 */
#ifndef GM_SIM_STREAM_H
#define GM_SIM_STREAM_H

#include "backends.h"

typedef struct gm_sim gm_sim;
typedef struct sim_op sim_op;
typedef struct sim_stream sim_stream;

/* A lower number runs first, on hardware; here work runs by need alone. */
#define SIM_PRIORITY_LEAST 0
#define SIM_PRIORITY_MOST (-5)

/* ---- sim_stream.c ---- */

typedef enum sim_op_kind {
    SIM_OP_COPY,
    SIM_OP_SET,
    SIM_OP_RECORD,
    SIM_OP_WAIT,
} sim_op_kind;

/* Queued work. Counted, because events and waits remember records. */
struct sim_op {
    sim_op_kind kind;
    unsigned refs;
    uint64_t number; // order of queueing, over the whole instance
    sim_op *next;    // in its stream
    sim_stream *stream;
    bool done;
    uint64_t time; // done: nanoseconds on the virtual clock

    uintptr_t dst; // COPY, SET
    uintptr_t src; // COPY
    size_t size;
    int value;      // SET
    sim_op *record; // WAIT: a reference; NULL when the event had no record
};

struct sim_stream {
    uint64_t id;
    int device;
    unsigned flags; // GM_STREAM_*
    int priority;   // as the device took it
    bool ended;     // no handle any more; freed once the queue is empty
    sim_op *head;
    sim_op **tail;
    uint64_t last;    // number of the newest operation queued
    uint64_t polled;  // a query saw the queue up to this number and said "not ready"
    sim_stream *next; // of the device
    sim_stream *prev;

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

gm_status sim_stream_create(
    gm_sim *sim, int device, unsigned flags, int priority, gm_stream *out);
gm_status sim_stream_destroy(gm_sim *sim, gm_stream handle);
gm_status sim_stream_query(gm_sim *sim, sim_stream *stream);

/* Queues what `*work` says (kind and operands; a WAIT's record gains a reference).
 * *kept, where asked for, is a reference to the queued operation. GM_ERR_HOST_MEMORY.
 */
GM_MUST_CHECK gm_status sim_submit(gm_sim *sim,
                                   sim_stream *stream,
                                   const sim_op *work,
                                   sim_op **kept);

/* Runs a stream up to operation `number`, and first all that this waits for. */
void sim_run(gm_sim *sim, sim_stream *stream, uint64_t number);

/* Runs everything queued on a device. */
void sim_drain(gm_sim *sim, int device);

/* Drops a reference; accepts NULL. */
void sim_op_unref(sim_op *op);

/* Ends all streams of all devices with no regard to their work. */
void sim_streams_fini(gm_sim *sim);

/* ---- sim_event.c ---- */

gm_status sim_event_create(gm_sim *sim, int device, unsigned flags, gm_event *out);
gm_status sim_event_destroy(gm_sim *sim, gm_event handle);
gm_status sim_event_record(gm_sim *sim, gm_event handle, sim_stream *stream);
gm_status sim_event_wait(gm_sim *sim, gm_event handle, sim_stream *stream);
gm_status sim_event_query(gm_sim *sim, gm_event handle);
gm_status sim_event_synchronize(gm_sim *sim, gm_event handle);
gm_status sim_event_elapsed(gm_sim *sim, gm_event start, gm_event end, float *ms);
void sim_events_fini(gm_sim *sim);

#endif
