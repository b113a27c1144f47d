/* SPDX-License-Identifier: MIT
 *
 * The simulated device: a backend made of host memory.
 *
 * For developing, testing and profiling what stands on the table with no GPU. It keeps
 * to what decides correctness on a real one: memory runs out and fragments, work stays
 * queued until somebody waits, handles die and are used again, a wrong address is
 * refused. Every run does the same. A device pointer is a host address, so a test can
 * look at it.
 *
 * This file is the table. Each slot enters (locks), has the work done by the other
 * sim_ files, and leaves (logs, unlocks). Cost: one uncontended lock a slot;
 * device_get and device_count take none.
 *
 * It does not model speed (the clock of timed events is virtual and simple), kernels,
 * priorities, or which device may reach which.
 */
#include "sim.h"

#include <stdio.h> // snprintf()

/* ---- entering and leaving ---- */

/* Locks; refuses in a forked child. */
static gm_status
enter(gm_sim *sim)
{
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    return GM_OK;
}

/* Logs, unlocks, and hands the status through. */
static gm_status
leave(gm_sim *sim,
      const char *name,
      int device,
      uint64_t ptr,
      size_t size,
      gm_status status)
{
    if (sim->log.on) {
        sim_log_add(sim, &(gm_sim_call){name, device, ptr, size, status});
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}

/* What a log entry says of a call on a stream that may not have been found. */
static int
device_of(const sim_stream *stream)
{
    return stream != NULL ? stream->device : 0;
}

/* ---- identity ---- */

static const struct {
    int code;
    const char *name;
    const char *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {SIM_CODE_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {SIM_CODE_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {SIM_CODE_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {SIM_CODE_PEER_UNSUPPORTED, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {SIM_CODE_TOO_MANY_PEERS, "cudaErrorTooManyPeers",
     "peer mapping resources exhausted"},
    {SIM_CODE_INVALID_HANDLE, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {SIM_CODE_NOT_READY, "cudaErrorNotReady", "device not ready"},
};

/* What the runtime says for a number it does not know. */
#define UNKNOWN_ERROR "unrecognized error code"

static const char *
slot_error_name(void *self, int code)
{
    (void)self;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) {
            return errors[i].name;
        }
    }
    return UNKNOWN_ERROR;
}

static const char *
slot_error_text(void *self, int code)
{
    (void)self;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) {
            return errors[i].text;
        }
    }
    return UNKNOWN_ERROR;
}

/* ---- devices ---- */

static gm_status
slot_device_count(void *self, int *count)
{
    const gm_sim *sim = self;
    *count = sim->device_count;
    return GM_OK;
}

static gm_status
slot_device_get(void *self, int *device)
{
    *device = sim_thread_device(self);
    return GM_OK;
}

static gm_status
slot_device_set(void *self, int device)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = sim_has_device(sim, device) ? sim_thread_set_device(sim, device)
                                         : GM_ERR_INVALID_DEVICE;
    return leave(sim, "device_set", device, 0, 0, status);
}

static gm_status
slot_device_synchronize(void *self, int device)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(sim, device)) {
        sim_drain(sim, device);
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return leave(sim, "device_synchronize", device, 0, 0, status);
}

static gm_status
slot_device_name(void *self, int device, char *text, size_t size)
{
    if (!sim_has_device(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    (void)snprintf(text, size, "Simulated device");
    return GM_OK;
}

/* ---- memory ---- */

static gm_status
slot_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = sim_mem_info(sim, device, free_bytes, total_bytes);
    return leave(sim, "mem_info", device, 0, 0, status);
}

static gm_status
slot_mem_alloc(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    uintptr_t ptr = 0;
    status = sim_mem_alloc(sim, device, kind, size, &ptr);
    if (status == GM_OK) {
        *out = ptr;
    }
    return leave(sim, "mem_alloc", device, ptr, size, status);
}

static gm_status
slot_mem_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = sim_mem_free(sim, device, kind, ptr);
    return leave(sim, "mem_free", device, ptr, 0, status);
}

/* Queues checked work on a stream, which is found out; `wait`: and runs it, with all
 * that comes before. */
static gm_status
transfer_locked(gm_sim *sim,
                gm_stream handle,
                const sim_op *work,
                gm_copy_kind kind,
                bool wait,
                sim_stream **stream)
{
    gm_status status = sim_stream_find(sim, handle, stream);

    if (status == GM_OK) {
        status = work->kind == SIM_OP_COPY
                     ? sim_check_copy(sim, work->dst, work->src, work->size, kind)
                     : sim_check_set(sim, work->dst, work->size);
    }
    if (status == GM_OK) {
        status = sim_submit(sim, *stream, work, NULL);
    }
    if (status == GM_OK && wait) {
        sim_run(sim, *stream, (*stream)->last);
    }
    return status;
}

static gm_status
transfer(gm_sim *sim,
         const char *name,
         gm_stream handle,
         const sim_op *work,
         gm_copy_kind kind,
         bool wait)
{
    sim_stream *stream = NULL;
    gm_status status = enter(sim);

    if (status != GM_OK) {
        return status;
    }
    status = transfer_locked(sim, handle, work, kind, wait, &stream);
    return leave(sim, name, device_of(stream), work->dst, work->size, status);
}

static gm_status
slot_copy(void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind)
{
    const sim_op work = {.kind = SIM_OP_COPY, .dst = dst, .src = src, .size = size};
    return transfer(self, "copy", GM_STREAM_LEGACY, &work, kind, true);
}

static gm_status
slot_copy_async(void *self,
                uintptr_t dst,
                uintptr_t src,
                size_t size,
                gm_copy_kind kind,
                gm_stream stream)
{
    const sim_op work = {.kind = SIM_OP_COPY, .dst = dst, .src = src, .size = size};
    return transfer(self, "copy_async", stream, &work, kind, false);
}

/* Between devices the runtime lets all earlier work of both go first. Each reaches the
 * other, with peer access or without. */
static gm_status
slot_copy_peer(void *self,
               uintptr_t dst,
               int dst_device,
               uintptr_t src,
               int src_device,
               size_t size)
{
    const sim_op work = {.kind = SIM_OP_COPY, .dst = dst, .src = src, .size = size};
    sim_stream *stream = NULL;
    gm_sim *sim = self;
    gm_status status = enter(sim);

    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(sim, dst_device) && sim_has_device(sim, src_device)) {
        sim_drain(sim, src_device);
        sim_drain(sim, dst_device);
        status = transfer_locked(sim, GM_STREAM_LEGACY, &work, GM_COPY_DEVICE_TO_DEVICE,
                                 true, &stream);
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return leave(sim, "copy_peer", dst_device, dst, size, status);
}

static gm_status
slot_copy_peer_async(void *self,
                     uintptr_t dst,
                     int dst_device,
                     uintptr_t src,
                     int src_device,
                     size_t size,
                     gm_stream stream)
{
    const sim_op work = {.kind = SIM_OP_COPY, .dst = dst, .src = src, .size = size};

    if (!sim_has_device(self, dst_device) || !sim_has_device(self, src_device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    return transfer(self, "copy_peer_async", stream, &work, GM_COPY_DEVICE_TO_DEVICE,
                    false);
}

static gm_status
slot_set(void *self, uintptr_t dst, int value, size_t size)
{
    const sim_op work = {.kind = SIM_OP_SET, .dst = dst, .value = value, .size = size};
    return transfer(self, "set", GM_STREAM_LEGACY, &work, GM_COPY_DEFAULT, true);
}

static gm_status
slot_set_async(void *self, uintptr_t dst, int value, size_t size, gm_stream stream)
{
    const sim_op work = {.kind = SIM_OP_SET, .dst = dst, .value = value, .size = size};
    return transfer(self, "set_async", stream, &work, GM_COPY_DEFAULT, false);
}

/* ---- streams ---- */

static gm_status
slot_stream_create(void *self, int device, unsigned flags, int priority, gm_stream *out)
{
    (void)priority; // work runs by need alone
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    gm_stream stream = 0;
    status = sim_stream_create(sim, device, flags, &stream);
    if (status == GM_OK) {
        *out = stream;
    }
    return leave(sim, "stream_create", device, stream, 0, status);
}

static gm_status
slot_stream_destroy(void *self, gm_stream stream)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    const sim_stream *found = sim_table_get(&sim->streams, stream);
    int device = device_of(found);
    status = sim_stream_destroy(sim, stream);
    return leave(sim, "stream_destroy", device, stream, 0, status);
}

static gm_status
slot_stream_query(void *self, gm_stream stream)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *found = NULL;
    status = sim_stream_find(sim, stream, &found);
    if (status == GM_OK) {
        status = sim_stream_query(sim, found);
    }
    return leave(sim, "stream_query", device_of(found), stream, 0, status);
}

static gm_status
slot_stream_synchronize(void *self, gm_stream stream)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *found = NULL;
    status = sim_stream_find(sim, stream, &found);
    if (status == GM_OK) {
        sim_run(sim, found, found->last);
    }
    return leave(sim, "stream_synchronize", device_of(found), stream, 0, status);
}

static gm_status
slot_stream_wait_event(void *self, gm_stream stream, gm_event event)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *found = NULL;
    status = sim_stream_find(sim, stream, &found);
    if (status == GM_OK) {
        status = sim_event_wait(sim, event, found);
    }
    return leave(sim, "stream_wait_event", device_of(found), event, 0, status);
}

static gm_status
slot_stream_id(void *self, gm_stream stream, uint64_t *id)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *found = NULL;
    status = sim_stream_find(sim, stream, &found);
    if (status == GM_OK) {
        *id = found->id;
    }
    return leave(sim, "stream_id", device_of(found), stream, 0, status);
}

/* ---- events ---- */

static gm_status
slot_event_create(void *self, int device, unsigned flags, gm_event *out)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    gm_event event = 0;
    status = sim_event_create(sim, device, flags, &event);
    if (status == GM_OK) {
        *out = event;
    }
    return leave(sim, "event_create", device, event, 0, status);
}

static gm_status
slot_event_record(void *self, gm_event event, gm_stream stream)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *found = NULL;
    status = sim_stream_find(sim, stream, &found);
    if (status == GM_OK) {
        status = sim_event_record(sim, event, found);
    }
    return leave(sim, "event_record", device_of(found), event, 0, status);
}

/* The slots that take an event and nothing else. */
static gm_status
on_event(gm_sim *sim,
         const char *name,
         gm_event event,
         gm_status (*work)(gm_sim *sim, gm_event event))
{
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    return leave(sim, name, 0, event, 0, work(sim, event));
}

static gm_status
slot_event_destroy(void *self, gm_event event)
{
    return on_event(self, "event_destroy", event, sim_event_destroy);
}

static gm_status
slot_event_query(void *self, gm_event event)
{
    return on_event(self, "event_query", event, sim_event_query);
}

static gm_status
slot_event_synchronize(void *self, gm_event event)
{
    return on_event(self, "event_synchronize", event, sim_event_synchronize);
}

static gm_status
slot_event_elapsed(void *self, gm_event start, gm_event end, float *ms)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = sim_event_elapsed(sim, start, end, ms);
    return leave(sim, "event_elapsed", 0, end, 0, status);
}

/* ---- addresses ---- */

static gm_status
slot_pointer_info(void *self, uintptr_t ptr, gm_pointer_info *info)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    sim_pointer_info(sim, ptr, info);
    return leave(sim, "pointer_info", 0, ptr, 0, GM_OK);
}

/* ---- peers ---- */

static gm_status
slot_peer_can_access(void *self, int device, int peer, bool *can)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(sim, device) && sim_has_device(sim, peer)) {
        *can = sim_peer_possible(sim, device, peer);
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return leave(sim, "peer_can_access", device, (uint64_t)peer, 0, status);
}

static gm_status
slot_peer_enable(void *self, int device, int peer)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = sim_has_device(sim, device) && sim_has_device(sim, peer) && device != peer
                 ? sim_peer_enable(sim, device, peer)
                 : GM_ERR_INVALID_DEVICE;
    return leave(sim, "peer_enable", device, (uint64_t)peer, 0, status);
}

/* ---- managed memory ---- */

/* Its pages are the host's, so there is nothing to move: only the order in the stream.
 */
static gm_status
slot_mem_prefetch(void *self, uintptr_t ptr, size_t size, int device, gm_stream handle)
{
    gm_sim *sim = self;
    sim_stream *stream = NULL;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = sim_stream_find(sim, handle, &stream);
    if (status == GM_OK) {
        status = sim_check_managed(sim, ptr, size, device);
    }
    return leave(sim, "mem_prefetch", device, ptr, size, status);
}

enum {
    ADVICE_FIRST = 1, // cudaMemAdviseSetReadMostly
    ADVICE_LAST = 6,  // cudaMemAdviseUnsetAccessedBy
};

static gm_status
slot_mem_advise(void *self, uintptr_t ptr, size_t size, int advice, int device)
{
    gm_sim *sim = self;
    gm_status status = enter(sim);
    if (status != GM_OK) {
        return status;
    }
    status = advice >= ADVICE_FIRST && advice <= ADVICE_LAST
                 ? sim_check_managed(sim, ptr, size, device)
                 : GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    return leave(sim, "mem_advise", device, ptr, size, status);
}

/* ---- the table ---- */

/* Slots that are not here: last_error, because a failed slot leaves nothing behind;
 * versions, because there is no driver; the rest, because this device does not do it.
 */
const gm_backend sim_slots = {
    .api_version = GM_BACKEND_API_VERSION,
    .caps = GM_CAP_SIMULATED | GM_CAP_MANAGED,
    .name = "sim",
    .close = sim_close,
    .error_name = slot_error_name,
    .error_text = slot_error_text,
    .device_count = slot_device_count,
    .device_get = slot_device_get,
    .device_set = slot_device_set,
    .device_synchronize = slot_device_synchronize,
    .device_name = slot_device_name,
    .mem_info = slot_mem_info,
    .mem_alloc = slot_mem_alloc,
    .mem_free = slot_mem_free,
    .copy = slot_copy,
    .copy_async = slot_copy_async,
    .copy_peer = slot_copy_peer,
    .copy_peer_async = slot_copy_peer_async,
    .set = slot_set,
    .set_async = slot_set_async,
    .stream_create = slot_stream_create,
    .stream_destroy = slot_stream_destroy,
    .stream_query = slot_stream_query,
    .stream_synchronize = slot_stream_synchronize,
    .stream_wait_event = slot_stream_wait_event,
    .stream_id = slot_stream_id,
    .event_create = slot_event_create,
    .event_destroy = slot_event_destroy,
    .event_record = slot_event_record,
    .event_query = slot_event_query,
    .event_synchronize = slot_event_synchronize,
    .event_elapsed = slot_event_elapsed,
    .pointer_info = slot_pointer_info,
    .peer_can_access = slot_peer_can_access,
    .peer_enable = slot_peer_enable,
    .mem_prefetch = slot_mem_prefetch,
    .mem_advise = slot_mem_advise,
};
