/* SPDX-License-Identifier: MIT
 *
 * The simulated device's slots for copies and sets: ranges are checked when the work is
 * queued, and again when it runs (sim_stream.c). The plain forms run on the legacy
 * stream of the current device and wait for it.
 */
#include "sim_call.h"

/* Queues work and waits for it. Where that cannot be, it is taken back: the caller's
 * memory may be gone by the time it would run. */
static gm_status
submit_and_wait(gm_sim *sim, sim_stream *stream, const sim_work *work)
{
    sim_op *queued = NULL;
    gm_status status = sim_submit(sim, stream, work, &queued);
    if (status != GM_OK) {
        return status;
    }
    status = sim_wait(sim, stream, queued->number);
    if (status != GM_OK) {
        queued->work.kind = SIM_OP_WAIT; // for nothing
    }
    sim_op_unref(queued);
    return status;
}

/* Checks work and queues it on a stream, which is found out; `wait`: and runs it, with
 * all that comes before. */
static gm_status
transfer_locked(gm_sim *sim,
                gm_stream handle,
                const sim_work *asked,
                gm_copy_kind kind,
                bool wait,
                sim_stream **stream)
{
    sim_work work = *asked;
    gm_status status = sim_stream_use(sim, handle, stream);

    if (status == GM_OK && wait) {
        status = sim_capture_allows(sim);
    }
    if (status == GM_OK) {
        status = work.kind == SIM_OP_COPY
                     ? sim_check_copy(sim, (*stream)->device, &work, kind)
                     : sim_check_set(sim, (*stream)->device, &work);
    }
    if (status == GM_OK) {
        status = wait ? submit_and_wait(sim, *stream, &work)
                      : sim_submit(sim, *stream, &work, NULL);
    }
    return status;
}

static gm_status
transfer(gm_sim *sim,
         sim_slot slot,
         gm_stream handle,
         const sim_work *work,
         gm_copy_kind kind,
         bool wait)
{
    sim_call call = {sim, slot, 0, work->dst, work->size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *stream = NULL;
    status = transfer_locked(sim, handle, work, kind, wait, &stream);
    call.device = sim_device_of(stream);
    return sim_leave(&call, status);
}

/* A copy between memory that the devices given reach, or the stream's own. */
static sim_work
copy_work(uintptr_t dst, int dst_by, uintptr_t src, int src_by, size_t size)
{
    return (sim_work){.kind = SIM_OP_COPY,
                      .dst = dst,
                      .src = src,
                      .size = size,
                      .dst_by = dst_by,
                      .src_by = src_by};
}

static sim_work
set_work(uintptr_t dst, int value, size_t size)
{
    return (sim_work){.kind = SIM_OP_SET,
                      .dst = dst,
                      .value = value,
                      .size = size,
                      .dst_by = SIM_BY_STREAM};
}

gm_status
sim_slot_copy(void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind)
{
    const sim_work work = copy_work(dst, SIM_BY_STREAM, src, SIM_BY_STREAM, size);
    return transfer(self, SIM_SLOT_copy, GM_STREAM_LEGACY, &work, kind, true);
}

gm_status
sim_slot_copy_async(void *self,
                    uintptr_t dst,
                    uintptr_t src,
                    size_t size,
                    gm_copy_kind kind,
                    gm_stream stream)
{
    const sim_work work = copy_work(dst, SIM_BY_STREAM, src, SIM_BY_STREAM, size);
    return transfer(self, SIM_SLOT_copy_async, stream, &work, kind, false);
}

/* Between devices the runtime lets all earlier work of both go first. Each reaches the
 * other, with peer access or without, and touches its own end alone. */
gm_status
sim_slot_copy_peer(void *self,
                   uintptr_t dst,
                   int dst_device,
                   uintptr_t src,
                   int src_device,
                   size_t size)
{
    const sim_work work = copy_work(dst, dst_device, src, src_device, size);
    const sim_call call = {self, SIM_SLOT_copy_peer, dst_device, dst, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *stream = NULL;
    if (!sim_has_device(self, dst_device) || !sim_has_device(self, src_device)) {
        return sim_leave(&call, GM_ERR_INVALID_DEVICE);
    }
    status = sim_stream_use(self, GM_STREAM_LEGACY, &stream);
    if (status == GM_OK) {
        status = sim_wait_device(self, src_device);
    }
    if (status == GM_OK) {
        status = sim_wait_device(self, dst_device);
    }
    if (status == GM_OK) {
        status = transfer_locked(self, GM_STREAM_LEGACY, &work,
                                 GM_COPY_DEVICE_TO_DEVICE, true, &stream);
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_copy_peer_async(void *self,
                         uintptr_t dst,
                         int dst_device,
                         uintptr_t src,
                         int src_device,
                         size_t size,
                         gm_stream stream)
{
    const sim_work work = copy_work(dst, dst_device, src, src_device, size);

    if (!sim_has_device(self, dst_device) || !sim_has_device(self, src_device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    return transfer(self, SIM_SLOT_copy_peer_async, stream, &work,
                    GM_COPY_DEVICE_TO_DEVICE, false);
}

gm_status
sim_slot_set(void *self, uintptr_t dst, int value, size_t size)
{
    const sim_work work = set_work(dst, value, size);
    return transfer(self, SIM_SLOT_set, GM_STREAM_LEGACY, &work, GM_COPY_DEFAULT, true);
}

gm_status
sim_slot_set_async(void *self, uintptr_t dst, int value, size_t size, gm_stream stream)
{
    const sim_work work = set_work(dst, value, size);
    return transfer(self, SIM_SLOT_set_async, stream, &work, GM_COPY_DEFAULT, false);
}
