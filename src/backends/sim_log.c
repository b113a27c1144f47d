/* SPDX-License-Identifier: MIT
 *
 * The call log and the ledger: what tests ask a simulated device afterwards.
 *
 * The log grows by doubling while somebody reads it; where host memory has no room for
 * an entry, the entry is dropped and the call it tells of is not disturbed. In a forked
 * child both are empty, and starting and stopping do nothing.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <string.h>

static gm_sim *
sim_of(const gm_backend *b)
{
    return b->self;
}

void
gm_sim_read_ledger(const gm_backend *b, gm_sim_ledger *out)
{
    gm_sim *sim = sim_of(b);
    *out = (gm_sim_ledger){0};
    if (sim_is_gone(sim)) {
        return;
    }
    pthread_mutex_lock(&sim->mutex);
    *out = sim->ledger;
    pthread_mutex_unlock(&sim->mutex);
}

gm_status
sim_bad_handle(gm_sim *sim)
{
    sim->ledger.errors++;
    return GM_DEVICE_ERROR(SIM_CODE_INVALID_HANDLE);
}

gm_status
sim_bad_value(gm_sim *sim)
{
    sim->ledger.errors++;
    return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
}

void
sim_log_add(gm_sim *sim, const gm_sim_call *call)
{
    sim_log *log = &sim->log;
    if (log->count == log->capacity) {
        size_t capacity = log->capacity > 0 ? 2 * log->capacity : 256;
        gm_sim_call *calls = gm_host_alloc(capacity * sizeof *calls);
        if (calls == NULL) {
            return;
        }
        if (log->count > 0) {
            memcpy(calls, log->calls, log->count * sizeof *calls);
        }
        gm_host_free(log->calls);
        log->calls = calls;
        log->capacity = capacity;
    }
    log->calls[log->count++] = *call;
}

void
sim_log_fini(gm_sim *sim)
{
    gm_host_free(sim->log.calls);
    sim->log = (sim_log){0};
}

size_t
gm_sim_log_start(const gm_backend *b)
{
    gm_sim *sim = sim_of(b);
    if (sim_is_gone(sim)) {
        return 0;
    }
    pthread_mutex_lock(&sim->mutex);
    sim->log.readers++;
    size_t next = sim->log.count;
    pthread_mutex_unlock(&sim->mutex);
    return next;
}

void
gm_sim_log_stop(const gm_backend *b)
{
    gm_sim *sim = sim_of(b);
    if (sim_is_gone(sim)) {
        return;
    }
    pthread_mutex_lock(&sim->mutex);
    if (sim->log.readers > 1) {
        sim->log.readers--;
    }
    else {
        sim_log_fini(sim);
    }
    pthread_mutex_unlock(&sim->mutex);
}

size_t
gm_sim_log_count(const gm_backend *b)
{
    gm_sim *sim = sim_of(b);
    if (sim_is_gone(sim)) {
        return 0;
    }
    pthread_mutex_lock(&sim->mutex);
    size_t count = sim->log.count;
    pthread_mutex_unlock(&sim->mutex);
    return count;
}

bool
gm_sim_log_get(const gm_backend *b, size_t index, gm_sim_call *out)
{
    gm_sim *sim = sim_of(b);
    if (sim_is_gone(sim)) {
        return false;
    }
    pthread_mutex_lock(&sim->mutex);
    bool there = index < sim->log.count;
    if (there) {
        *out = sim->log.calls[index];
    }
    pthread_mutex_unlock(&sim->mutex);
    return there;
}
