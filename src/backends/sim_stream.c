/* SPDX-License-Identifier: MIT
 *
 * Streams: queues of work that nobody runs until somebody must have the result.
 *
 * There are no threads. (A held stream, sim_wait.c, stands still even then.) An
 * operation gets the next number of the instance and waits in its stream; it runs when
 * a caller waits for it, releases what it may use, or has been told "not ready" once
 * and asks again. Work that nothing waits for stays undone for as long as a device
 * might leave it undone, so a program that forgot to wait reads stale bytes in every
 * run and not one time in a thousand.
 *
 * Order. Let h be the operation at the head of its stream. It may run unless
 *   - it waits for an event whose record has not run: that record comes first
 *   - its stream is the device's legacy stream, and a blocking stream of the device has
 *     work with a smaller number
 *   - its stream is another blocking one, and the legacy stream has such work
 * Whatever must come first has a smaller number than h, and so does what that waits
 * for: the search ends, and no stream is entered twice, so the streams themselves are
 * the stack (`waiter`) and running needs neither recursion nor memory.
 *
 * Cost: queueing O(1) and one host allocation; running O(1) an operation, on the legacy
 * stream O(streams of the device).
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <string.h> // memmove(), memset()

/* The virtual clock: what an operation costs, in nanoseconds. */
#define LAUNCH_NS 1000
#define LINK_BYTES_A_NS 25     // between host and device
#define MEMORY_BYTES_A_NS 2000 // inside a device

/* ---- operations ---- */

void
sim_op_unref(sim_op *op)
{
    while (op != NULL && --op->refs == 0) {
        sim_op *record = op->work.record; // has none itself: two rounds at most
        sim_exec_unref(op->work.exec);
        gm_host_free(op);
        op = record;
    }
}

gm_status
sim_submit(gm_sim *sim, sim_stream *stream, const sim_work *work, sim_op **kept)
{
    if (stream->capture != NULL) {
        GM_ASSERT(kept == NULL);
        return sim_capture_add(sim, stream, work, 0);
    }
    sim_op *op = gm_host_alloc(sizeof *op);
    if (op == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    *op = (sim_op){.work = *work, .refs = 1, .number = ++sim->number, .stream = stream};
    if (work->record != NULL) {
        work->record->refs++;
    }
    if (work->exec != NULL) {
        sim_exec_ref(work->exec);
    }
    if (kept != NULL) {
        op->refs++;
        *kept = op;
    }
    *stream->tail = op;
    stream->tail = &op->next;
    stream->last = op->number;
    sim->ledger.pending++;
    if (sim->release_at_once) {
        (void)sim_run(sim, stream, op->number);
    }
    return GM_OK;
}

/* Whether an end of work is still there. One that was freed since is a counted error:
 * on a device it might go unnoticed. Pages that were unmapped since are a fault. */
static bool
is_still_usable(gm_sim *sim, const sim_op *op, uintptr_t ptr, size_t size, int by)
{
    if (by == SIM_BY_ANY) {
        bool usable = sim_range_usable(sim, ptr, size, true, true);
        if (!usable) {
            (void)sim_bad_value(sim); // queued long ago: nobody is here to be told
        }
        return usable;
    }
    bool usable = sim_vm_usable(sim, ptr, size, by, op->number);
    if (!usable) {
        sim_fault(sim, op->stream->device);
    }
    return usable;
}

/* Moves the bytes, unless what they lie in is gone. */
void
sim_execute(gm_sim *sim, const sim_op *op, const sim_work *work)
{
    switch (work->kind) {
    case SIM_OP_COPY:
        if (!is_still_usable(sim, op, work->dst, work->size, work->dst_by) ||
            !is_still_usable(sim, op, work->src, work->size, work->src_by)) {
            break;
        }
        memmove((void *)work->dst, (const void *)work->src, work->size);
        sim->clock += LAUNCH_NS + work->size / LINK_BYTES_A_NS;
        break;
    case SIM_OP_SET:
        if (!is_still_usable(sim, op, work->dst, work->size, work->dst_by)) {
            break;
        }
        memset((void *)work->dst, work->value & 0xff, work->size);
        sim->clock += LAUNCH_NS + work->size / MEMORY_BYTES_A_NS;
        break;
    case SIM_OP_GRAPH:
        sim_exec_run(sim, op);
        break;
    case SIM_OP_PREFETCH:
        sim_managed_move(sim, work->dst, work->size, work->value);
        sim->clock += LAUNCH_NS + work->size / LINK_BYTES_A_NS;
        break;
    case SIM_OP_RECORD:
    case SIM_OP_WAIT:
        break;
    }
}

/* Counts a stream that nothing keeps any more; freed when the call ends, since who runs
 * work may be walking the streams. */
static void
note_empty(gm_sim *sim, const sim_stream *stream)
{
    if (stream->ended && stream->head == NULL) {
        sim->ghosts++;
    }
}

/* Runs the head of a stream, which nothing blocks. */
static void
run_head(gm_sim *sim, sim_stream *stream)
{
    sim_op *op = stream->head;
    stream->head = op->next;
    if (stream->head == NULL) {
        stream->tail = &stream->head;
        note_empty(sim, stream);
    }
    op->next = NULL;
    sim->ledger.pending--;
    sim_execute(sim, op, &op->work);
    op->time = sim->clock;
    op->done = true;
    sim_op_unref(op);
}

static bool
has_before(const sim_stream *stream, uint64_t number)
{
    return stream->head != NULL && stream->head->number < number;
}

/* The stream that must get on before `op`, the head of its own, may run, with how far
 * in its `target`; NULL when nothing must. */
static sim_stream *
find_blocker(const gm_sim *sim, const sim_op *op)
{
    const sim_op *record = op->work.record;
    if (record != NULL && !record->done) {
        record->stream->target = record->number;
        return record->stream;
    }
    if (!sim_stream_is_blocking(op->stream)) {
        return NULL;
    }
    const sim_device *device = &sim->devices[op->stream->device];
    sim_stream *blocker = NULL;
    if (op->stream != device->legacy) {
        blocker = has_before(device->legacy, op->number) ? device->legacy : NULL;
    }
    else {
        blocker = device->streams;
        while (blocker != NULL &&
               !(sim_stream_is_blocking(blocker) && has_before(blocker, op->number))) {
            blocker = blocker->next;
        }
    }
    if (blocker != NULL) {
        blocker->target = op->number - 1;
    }
    return blocker;
}

sim_stream *
sim_run(gm_sim *sim, sim_stream *stream, uint64_t number)
{
    stream->target = number;
    stream->waiter = NULL;
    while (stream != NULL) {
        if (!has_before(stream, stream->target + 1)) {
            stream = stream->waiter;
            continue;
        }
        sim_stream *blocker = find_blocker(sim, stream->head);
        if (blocker == NULL && stream->holder != 0) {
            return stream;
        }
        if (blocker == NULL) {
            run_head(sim, stream);
        }
        else {
            GM_ASSERT(blocker != stream);
            blocker->waiter = stream;
            stream = blocker;
        }
    }
    return NULL;
}

/* ---- streams ---- */

static void
free_stream(gm_sim *sim, sim_stream *stream)
{
    if (stream->prev != NULL) {
        stream->prev->next = stream->next;
    }
    else {
        sim->devices[stream->device].streams = stream->next;
    }
    if (stream->next != NULL) {
        stream->next->prev = stream->prev;
    }
    gm_host_free(stream);
}

void
sim_lay_ghosts(gm_sim *sim)
{
    for (int device = 0; sim->ghosts > 0 && device < sim->device_count; device++) {
        sim_stream *stream = sim->devices[device].streams;
        while (stream != NULL) {
            sim_stream *next = stream->next;
            if (stream->ended && stream->head == NULL && stream->waits == 0) {
                free_stream(sim, stream);
                sim->ghosts--;
            }
            stream = next;
        }
    }
}

sim_stream *
sim_stream_new(gm_sim *sim, int device, unsigned flags, int priority)
{
    sim_stream *stream = gm_host_zalloc(sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    sim_device *owner = &sim->devices[device];
    stream->id = sim_next_serial();
    stream->device = device;
    stream->flags = flags;
    stream->priority = priority;
    stream->tail = &stream->head;
    stream->next = owner->streams;
    if (stream->next != NULL) {
        stream->next->prev = stream;
    }
    owner->streams = stream;
    return stream;
}

void
sim_stream_end(gm_sim *sim, sim_stream *stream)
{
    if (stream->capture != NULL) {
        sim_capture_leave(sim, stream);
    }
    if (stream->head == NULL && stream->waits == 0) {
        free_stream(sim, stream);
        return;
    }
    stream->ended = true;
    note_empty(sim, stream);
}

/* Takes a stream's work away, as done: nothing waits for it any more. */
static void
forget_work(gm_sim *sim, sim_stream *stream)
{
    if (stream->head == NULL) {
        return;
    }
    while (stream->head != NULL) {
        sim_op *op = stream->head;
        stream->head = op->next;
        op->next = NULL;
        op->done = true;
        op->time = sim->clock;
        sim->ledger.pending--;
        sim_op_unref(op);
    }
    stream->tail = &stream->head;
    note_empty(sim, stream);
}

void
sim_streams_reset(gm_sim *sim, int device)
{
    sim_stream *stream = sim->devices[device].streams;
    while (stream != NULL) {
        sim_stream *next = stream->next;
        forget_work(sim, stream);
        stream->holder = 0;
        if (stream->handle != 0) {
            sim_table_remove(&sim->streams, stream->handle);
            sim->ledger.streams--;
            stream->handle = 0;
            sim_stream_end(sim, stream);
        }
        stream = next;
    }
}

void
sim_streams_fini(gm_sim *sim)
{
    for (int device = 0; device < sim->device_count; device++) {
        sim_stream *stream = sim->devices[device].streams;
        while (stream != NULL) {
            while (stream->head != NULL) {
                sim_op *op = stream->head;
                stream->head = op->next;
                sim_op_unref(op);
            }
            sim_stream *next = stream->next;
            gm_host_free(stream);
            stream = next;
        }
    }
}

gm_status
sim_stream_find(gm_sim *sim, gm_stream handle, sim_stream **out)
{
    sim_stream *stream = NULL;
    switch (handle) {
    case GM_STREAM_NULL:
    case GM_STREAM_LEGACY:
        stream = sim->devices[sim_thread_device(sim)].legacy;
        sim_touch(sim, stream->device);
        break;
    case GM_STREAM_PER_THREAD:
        stream = sim_thread_stream(sim);
        if (stream == NULL) {
            return GM_ERR_HOST_MEMORY;
        }
        sim_touch(sim, stream->device);
        break;
    default:
        stream = sim_table_get(&sim->streams, handle);
        if (stream == NULL) {
            return sim_bad_handle(sim);
        }
        break;
    }
    *out = stream;
    return GM_OK;
}

gm_status
sim_stream_use(gm_sim *sim, gm_stream handle, sim_stream **out)
{
    sim_stream *stream = NULL;
    gm_status status = sim_stream_find(sim, handle, &stream);
    if (status == GM_OK && sim->captures != NULL) {
        status = sim_capture_allows_use(sim, stream);
    }
    if (status == GM_OK) {
        *out = stream;
    }
    return status;
}

static int
clamp_priority(int priority)
{
    if (priority > SIM_PRIORITY_LEAST) {
        return SIM_PRIORITY_LEAST;
    }
    return priority < SIM_PRIORITY_MOST ? SIM_PRIORITY_MOST : priority;
}

gm_status
sim_stream_create(gm_sim *sim, int device, unsigned flags, int priority, gm_stream *out)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if ((flags & ~(unsigned)GM_STREAM_NON_BLOCKING) != 0) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    sim_stream *stream = sim_stream_new(sim, device, flags, clamp_priority(priority));
    if (stream == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_status status = sim_table_add(&sim->streams, stream, &stream->handle);
    if (status != GM_OK) {
        free_stream(sim, stream);
        return status;
    }
    *out = stream->handle;
    sim->ledger.streams++;
    return GM_OK;
}

gm_status
sim_stream_destroy(gm_sim *sim, gm_stream handle)
{
    // Default streams are not in the table, so they are refused as well.
    sim_stream *stream = sim_table_get(&sim->streams, handle);
    if (stream == NULL) {
        return sim_bad_handle(sim);
    }
    sim_table_remove(&sim->streams, handle);
    stream->handle = 0;
    sim->ledger.streams--;
    sim_stream_end(sim, stream);
    return GM_OK;
}

gm_status
sim_stream_query(gm_sim *sim, sim_stream *stream)
{
    if (stream->capture != NULL) {
        return sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_UNSUPPORTED);
    }
    if (has_before(stream, stream->polled + 1)) {
        (void)sim_run(sim, stream, stream->polled);
    }
    if (sim->fault != 0) {
        return GM_DEVICE_ERROR(sim->fault);
    }
    if (stream->head == NULL) {
        return GM_OK;
    }
    stream->polled = stream->last;
    return GM_NOT_READY;
}
