/* SPDX-License-Identifier: MIT
 *
 * What one thread has in one instance: its current device, and its own default streams.
 *
 * A record hangs on a pthread key of the instance, so that reading the current device
 * takes no lock, and is made only when a thread first sets a device or uses its own
 * stream. A thread may end after the instance was closed (a joined Python thread still
 * runs its destructors), so a record holds a reference to the instance: close takes
 * the streams and the memory, the last record takes the rest.
 */
#include "sim.h"

#include "../core/gm_process.h"

typedef struct sim_thread {
    gm_sim *sim;                         // a reference
    uint64_t number;                     // of the thread
    int device;                          // current; touched by its thread alone
    int last_error;                      // the same
    sim_stream *own[GM_SIM_MAX_DEVICES]; // GM_STREAM_PER_THREAD, made when first used
} sim_thread;

int
sim_thread_device(const gm_sim *sim)
{
    const sim_thread *record = pthread_getspecific(sim->thread_key);
    return record != NULL ? record->device : 0;
}

/* The calling thread's record, made when missing. NULL without host memory. */
static sim_thread *
get_record(gm_sim *sim)
{
    sim_thread *record = pthread_getspecific(sim->thread_key);
    if (record != NULL) {
        return record;
    }
    record = gm_host_zalloc(sizeof *record);
    if (record == NULL || pthread_setspecific(sim->thread_key, record) != 0) {
        gm_host_free(record);
        return NULL;
    }
    record->sim = sim;
    record->number = sim_next_serial();
    sim->refs++;
    return record;
}

gm_status
sim_thread_set_device(gm_sim *sim, int device)
{
    sim_thread *record = get_record(sim);
    if (record == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    record->device = device;
    return GM_OK;
}

gm_status
sim_thread_number(gm_sim *sim, uint64_t *number)
{
    const sim_thread *record = get_record(sim);
    if (record == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    *number = record->number;
    return GM_OK;
}

void
sim_thread_restore_device(const gm_sim *sim, int device)
{
    sim_thread *record = pthread_getspecific(sim->thread_key);
    if (record != NULL) {
        record->device = device;
    }
}

uint64_t
sim_thread_number_if_any(const gm_sim *sim)
{
    const sim_thread *record = pthread_getspecific(sim->thread_key);
    return record != NULL ? record->number : 0;
}

int
sim_thread_last_error(const gm_sim *sim)
{
    const sim_thread *record = pthread_getspecific(sim->thread_key);
    return record != NULL ? record->last_error : 0;
}

gm_status
gm_sim_set_last_error(const gm_backend *b, int code)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    sim_thread *record = get_record(sim);
    if (record != NULL) {
        record->last_error = code;
    }
    pthread_mutex_unlock(&sim->mutex);
    return record != NULL ? GM_OK : GM_ERR_HOST_MEMORY;
}

sim_stream *
sim_thread_stream(gm_sim *sim)
{
    sim_thread *record = get_record(sim);
    if (record == NULL) {
        return NULL;
    }
    sim_stream **own = &record->own[record->device];
    if (*own == NULL) {
        *own = sim_stream_new(sim, record->device, 0, 0);
    }
    return *own;
}

void
sim_thread_forget(gm_sim *sim)
{
    sim_thread *record = pthread_getspecific(sim->thread_key);
    if (record != NULL) {
        (void)pthread_setspecific(sim->thread_key, NULL);
        gm_host_free(record);
        sim->refs--;
    }
}

void
sim_thread_end(void *arg)
{
    sim_thread *record = arg;
    gm_sim *sim = record->sim;
    if (sim_is_gone(sim)) {
        return;
    }
    pthread_mutex_lock(&sim->mutex);
    for (int device = 0; device < sim->device_count; device++) {
        if (record->own[device] != NULL) {
            sim_stream_end(sim, record->own[device]);
        }
    }
    gm_host_free(record);
    sim_unref_unlock(sim);
}
