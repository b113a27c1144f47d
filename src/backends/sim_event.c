/* SPDX-License-Identifier: MIT
 *
 * Events: a handle on the last record queued for it.
 *
 * A record is an operation in its stream's queue, and both the event and every wait
 * queued on it hold a reference to that operation. So recording again or destroying the
 * event changes nothing for what was queued before.
 */
#include "sim.h"

#include "../core/gm_process.h"

typedef struct sim_event {
    int device;
    bool timed;
    bool polled;      // a query of this record said "not ready"
    sim_op *record;   // a reference; NULL before the first
    uint64_t capture; // the recording in which it was recorded last; 0 for none
    uint32_t node;    // ... after which node there
} sim_event;

/* NULL where the handle is dead; the caller says so with sim_bad_handle. */
static sim_event *
find_event(const gm_sim *sim, gm_event handle)
{
    return sim_table_get(&sim->events, handle);
}

static bool
has_happened(const sim_event *event)
{
    return event->record == NULL || event->record->done;
}

gm_status
sim_event_create(gm_sim *sim, int device, unsigned flags, gm_event *out)
{
    const unsigned known =
        GM_EVENT_BLOCKING_SYNC | GM_EVENT_DISABLE_TIMING | GM_EVENT_INTERPROCESS;
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    // An event for other processes cannot be timed.
    bool timed = (flags & GM_EVENT_DISABLE_TIMING) == 0;
    if ((flags & ~known) != 0 || (timed && (flags & GM_EVENT_INTERPROCESS) != 0)) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    sim_event *event = gm_host_zalloc(sizeof *event);
    if (event == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    event->device = device;
    event->timed = timed;
    gm_status status = sim_table_add(&sim->events, event, out);
    if (status != GM_OK) {
        gm_host_free(event);
        return status;
    }
    sim->ledger.events++;
    return GM_OK;
}

static void
free_event(sim_event *event)
{
    sim_op_unref(event->record);
    gm_host_free(event);
}

gm_status
sim_event_destroy(gm_sim *sim, gm_event handle)
{
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return sim_bad_handle(sim);
    }
    sim_table_remove(&sim->events, handle);
    sim->ledger.events--;
    free_event(event);
    return GM_OK;
}

void
sim_events_fini(gm_sim *sim)
{
    for (uint32_t index = 0; index < sim->events.used; index++) {
        if (sim->events.objects[index] != NULL) {
            free_event(sim->events.objects[index]);
        }
    }
    sim_table_fini(&sim->events);
}

void
sim_events_reset(gm_sim *sim, int device)
{
    for (uint32_t index = 0; index < sim->events.used; index++) {
        sim_event *event = sim->events.objects[index];
        if (event != NULL && event->device == device) {
            sim_table_remove(&sim->events, sim_table_handle(&sim->events, index));
            sim->ledger.events--;
            free_event(event);
        }
    }
}

gm_status
sim_event_record(gm_sim *sim, gm_event handle, sim_stream *stream)
{
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return sim_bad_handle(sim);
    }
    if (event->device != stream->device) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_HANDLE);
    }
    sim_op *record = NULL;
    if (stream->capture == NULL) {
        gm_status status =
            sim_submit(sim, stream, &(sim_work){.kind = SIM_OP_RECORD}, &record);
        if (status != GM_OK) {
            return status;
        }
    }
    sim_op_unref(event->record);
    event->record = record;
    event->polled = false;
    event->capture = stream->capture != NULL ? sim_capture_id(stream->capture) : 0;
    event->node = stream->newest;
    return GM_OK;
}

/* A recorded event never happens itself: to ask for it spoils the recording. Any other
 * a recording's mode may forbid. */
static gm_status
may_ask(gm_sim *sim, const sim_event *event)
{
    return event->capture == 0
               ? sim_capture_allows(sim)
               : sim_capture_spoil(sim_capture_find(sim, event->capture),
                                   SIM_CODE_CAPTURED_EVENT);
}

gm_status
sim_event_wait(gm_sim *sim, gm_event handle, sim_stream *stream)
{
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return sim_bad_handle(sim);
    }
    if (event->capture != 0) {
        sim_capture *capture = sim_capture_find(sim, event->capture);
        return capture != NULL ? sim_capture_join(sim, stream, capture, event->node)
                               : GM_DEVICE_ERROR(SIM_CODE_CAPTURED_EVENT);
    }
    if (stream->capture != NULL && event->record != NULL) {
        return sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_ISOLATION);
    }
    // Queued also where the event has happened: a wait on the legacy stream still puts
    // that stream in order with the blocking ones.
    const sim_work work = {.kind = SIM_OP_WAIT, .record = event->record};
    return sim_submit(sim, stream, &work, NULL);
}

gm_status
sim_event_query(gm_sim *sim, gm_event handle)
{
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return sim_bad_handle(sim);
    }
    gm_status status = may_ask(sim, event);
    if (status != GM_OK) {
        return status;
    }
    if (!has_happened(event) && event->polled) {
        (void)sim_run(sim, event->record->stream, event->record->number);
    }
    if (sim->fault != 0) {
        return GM_DEVICE_ERROR(sim->fault);
    }
    event->polled = true;
    return has_happened(event) ? GM_OK : GM_NOT_READY;
}

gm_status
sim_event_synchronize(gm_sim *sim, gm_event handle)
{
    sim_event *event = find_event(sim, handle);
    if (event == NULL) {
        return sim_bad_handle(sim);
    }
    gm_status status = may_ask(sim, event);
    if (status != GM_OK) {
        return status;
    }
    if (!has_happened(event)) {
        sim_op *record = event->record;
        record->refs++; // who waits lets go of the lock
        status = sim_wait(sim, record->stream, record->number);
        sim_op_unref(record);
    }
    if (status != GM_OK) {
        return status;
    }
    sim_pools_settle(sim);
    return GM_OK;
}

gm_status
sim_event_elapsed(gm_sim *sim, gm_event start, gm_event end, float *ms)
{
    const sim_event *first = find_event(sim, start);
    const sim_event *second = find_event(sim, end);
    if (first == NULL || second == NULL) {
        return sim_bad_handle(sim);
    }
    if (first->capture != 0 || second->capture != 0) {
        return GM_DEVICE_ERROR(SIM_CODE_CAPTURED_EVENT);
    }
    if (!first->timed || !second->timed || first->device != second->device ||
        first->record == NULL || second->record == NULL) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_HANDLE);
    }
    if (!first->record->done || !second->record->done) {
        return GM_NOT_READY;
    }
    double from = (double)first->record->time;
    double to = (double)second->record->time;
    *ms = (float)((to - from) / 1e6);
    return GM_OK;
}
