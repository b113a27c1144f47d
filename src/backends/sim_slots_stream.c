/* SPDX-License-Identifier: MIT
 *
 * The simulated device's slots for streams and events.
 */
#include "sim_call.h"

/* ---- streams ---- */

gm_status
sim_slot_stream_create(
    void *self, int device, unsigned flags, int priority, gm_stream *out)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_create, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    gm_stream stream = 0;
    status = sim_stream_create(self, device, flags, priority, &stream);
    if (status == GM_OK) {
        *out = stream;
    }
    call.ptr = stream;
    return sim_leave(&call, status);
}

/* Begins a call about a stream and finds that, with sim_stream_find or sim_stream_use.
 * With GM_OK there is a stream and the lock is held; otherwise the call has ended. */
static gm_status
enter_stream(sim_call *call,
             gm_stream handle,
             gm_status (*find)(gm_sim *sim, gm_stream handle, sim_stream **out),
             sim_stream **out)
{
    gm_status status = sim_enter(call);
    if (status != GM_OK) {
        return status;
    }
    status = find(call->sim, handle, out);
    if (status != GM_OK) {
        return sim_leave(call, status);
    }
    call->device = (*out)->device;
    return GM_OK;
}

gm_status
sim_slot_stream_destroy(void *self, gm_stream handle)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_destroy, .ptr = handle};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    const sim_stream *stream = sim_table_get(&call.sim->streams, handle);
    call.device = sim_device_of(stream);
    return sim_leave(&call, sim_stream_destroy(self, handle));
}

gm_status
sim_slot_stream_query(void *self, gm_stream handle)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_query, .ptr = handle};
    sim_stream *stream = NULL;
    gm_status status = enter_stream(&call, handle, sim_stream_use, &stream);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_stream_query(self, stream));
}

gm_status
sim_slot_stream_synchronize(void *self, gm_stream handle)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_synchronize, .ptr = handle};
    sim_stream *stream = NULL;
    gm_status status = enter_stream(&call, handle, sim_stream_use, &stream);
    if (status != GM_OK) {
        return status;
    }
    if (stream->capture != NULL) {
        status = sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_UNSUPPORTED);
        return sim_leave(&call, status);
    }
    status = sim_wait(self, stream, stream->last);
    if (status == GM_OK) {
        sim_pools_settle(self);
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_stream_wait_event(void *self, gm_stream handle, gm_event event)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_wait_event, .ptr = event};
    sim_stream *stream = NULL;
    gm_status status = enter_stream(&call, handle, sim_stream_use, &stream);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_event_wait(self, event, stream));
}

gm_status
sim_slot_stream_id(void *self, gm_stream handle, uint64_t *id)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_id, .ptr = handle};
    sim_stream *stream = NULL;
    gm_status status = enter_stream(&call, handle, sim_stream_find, &stream);
    if (status != GM_OK) {
        return status;
    }
    if (stream->capture != NULL) {
        return sim_leave(&call, GM_ERR_CAPTURING);
    }
    *id = stream->id;
    return sim_leave(&call, GM_OK);
}

gm_status
sim_slot_stream_priority_range(void *self, int device, int *least, int *most)
{
    const sim_call call = {self, .slot = SIM_SLOT_stream_priority_range,
                           .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    if (!sim_has_device(self, device)) {
        return sim_leave(&call, GM_ERR_INVALID_DEVICE);
    }
    *least = SIM_PRIORITY_LEAST;
    *most = SIM_PRIORITY_MOST;
    return sim_leave(&call, GM_OK);
}

gm_status
sim_slot_stream_info(
    void *self, gm_stream handle, unsigned *flags, int *priority, int *device)
{
    sim_call call = {self, .slot = SIM_SLOT_stream_info, .ptr = handle};
    sim_stream *stream = NULL;
    gm_status status = enter_stream(&call, handle, sim_stream_find, &stream);
    if (status != GM_OK) {
        return status;
    }
    *flags = stream->flags;
    *priority = stream->priority;
    *device = stream->device;
    return sim_leave(&call, GM_OK);
}

/* ---- events ---- */

gm_status
sim_slot_event_create(void *self, int device, unsigned flags, gm_event *out)
{
    sim_call call = {self, .slot = SIM_SLOT_event_create, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    gm_event event = 0;
    status = sim_event_create(self, device, flags, &event);
    if (status == GM_OK) {
        *out = event;
    }
    call.ptr = event;
    return sim_leave(&call, status);
}

gm_status
sim_slot_event_record(void *self, gm_event event, gm_stream handle)
{
    sim_call call = {self, .slot = SIM_SLOT_event_record, .ptr = event};
    sim_stream *stream = NULL;
    gm_status status = enter_stream(&call, handle, sim_stream_use, &stream);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_event_record(self, event, stream));
}

/* The slots that take an event and nothing else. */
static gm_status
on_event(gm_sim *sim,
         sim_slot slot,
         gm_event event,
         gm_status (*work)(gm_sim *sim, gm_event event))
{
    const sim_call call = {sim, .slot = slot, .ptr = event};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, work(sim, event));
}

gm_status
sim_slot_event_destroy(void *self, gm_event event)
{
    return on_event(self, SIM_SLOT_event_destroy, event, sim_event_destroy);
}

gm_status
sim_slot_event_query(void *self, gm_event event)
{
    return on_event(self, SIM_SLOT_event_query, event, sim_event_query);
}

gm_status
sim_slot_event_synchronize(void *self, gm_event event)
{
    return on_event(self, SIM_SLOT_event_synchronize, event, sim_event_synchronize);
}

gm_status
sim_slot_event_elapsed(void *self, gm_event start, gm_event end, float *ms)
{
    const sim_call call = {self, .slot = SIM_SLOT_event_elapsed, .ptr = end};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_event_elapsed(self, start, end, ms));
}
