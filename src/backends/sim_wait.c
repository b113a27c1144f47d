/* SPDX-License-Identifier: MIT
 *
 * Waiting for work, and holding streams so that it does not run.
 *
 * Work usually runs the moment somebody waits for it. A held stream stands still: what
 * is asked about it says "not ready", and who waits for it sleeps, with the lock let
 * go, until another thread releases it. The thread that holds a stream cannot wait for
 * it: nobody else is expected to release it, so instead of hanging that is an error.
 *
 * A sticky fault ends all waiting.
 */
#include "sim.h"

/* Sleeps until something changed; says why there is nothing to wait for. */
static gm_status
await_release(gm_sim *sim, const sim_stream *held)
{
    if (held->holder == sim_thread_number_if_any(sim)) {
        return GM_DEVICE_ERROR(SIM_CODE_HELD);
    }
    (void)pthread_cond_wait(&sim->changed, &sim->mutex);
    return sim->fault == 0 ? GM_OK : GM_DEVICE_ERROR(sim->fault);
}

/* The end of waiting: what was waited for may have faulted. */
static gm_status
with_fault(const gm_sim *sim, gm_status status)
{
    return status == GM_OK && sim->fault != 0 ? GM_DEVICE_ERROR(sim->fault) : status;
}

gm_status
sim_wait(gm_sim *sim, sim_stream *stream, uint64_t number)
{
    gm_status status = GM_OK;
    stream->waits++;
    while (status == GM_OK) {
        const sim_stream *held = sim_run(sim, stream, number);
        if (held == NULL) {
            break;
        }
        status = await_release(sim, held);
    }
    stream->waits--;
    return with_fault(sim, status);
}

/* Runs a device's work. The held stream in the way; NULL when all of it is done. */
static const sim_stream *
run_device(gm_sim *sim, int device)
{
    const sim_stream *held = NULL;
    sim_stream *stream = sim->devices[device].streams;
    for (; stream != NULL && held == NULL; stream = stream->next) {
        held = sim_run(sim, stream, stream->last);
    }
    return held;
}

gm_status
sim_wait_device(gm_sim *sim, int device)
{
    const sim_stream *held = NULL;
    gm_status status = GM_OK;
    while (status == GM_OK && (held = run_device(sim, device)) != NULL) {
        status = await_release(sim, held);
    }
    return with_fault(sim, status);
}

/* ---- for tests ---- */

gm_status
gm_sim_hold(const gm_backend *b, gm_stream handle, uint64_t *hold)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    sim_stream *stream = NULL;
    uint64_t thread = 0;
    gm_status status = sim_stream_find(sim, handle, &stream);
    if (status == GM_OK) {
        status = sim_thread_number(sim, &thread);
    }
    if (status == GM_OK && stream->holder != 0) {
        status = GM_BUSY;
    }
    if (status == GM_OK) {
        stream->holder = thread;
        *hold = stream->id;
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}

void
gm_sim_release(const gm_backend *b, uint64_t hold)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return;
    }
    pthread_mutex_lock(&sim->mutex);
    for (int device = 0; device < sim->device_count; device++) {
        sim_stream *stream = sim->devices[device].streams;
        for (; stream != NULL; stream = stream->next) {
            if (stream->id == hold) {
                stream->holder = 0;
            }
        }
    }
    (void)pthread_cond_broadcast(&sim->changed);
    pthread_mutex_unlock(&sim->mutex);
}
