/* SPDX-License-Identifier: MIT
 *
 * What every call of the simulated device does before and after its work.
 *
 * Entering refuses in a forked child, sleeps as long as a test wants this call to take,
 * and locks; then it refuses what a sticky fault or a recording forbids, and makes the
 * context that the call needs. Leaving logs and unlocks. Cost: one uncontended lock.
 */
#include "sim_call.h"

#include <string.h> // strcmp()
#include <time.h>

static const struct {
    const char *name;
    unsigned special;
} slots[] = {
#define SLOT_ROW(name, special) {#name, special},
    SIM_SLOTS(SLOT_ROW)
#undef SLOT_ROW
};

#define BILLION 1000000000u

/* Sleeps, with the lock let go, for as long as this call is to take longer, or until it
 * is not any more. */
static void
sleep_through_delay(gm_sim *sim, sim_slot slot)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t nanoseconds = (uint64_t)until.tv_nsec + sim->delays[slot] % BILLION;
    until.tv_sec += (time_t)(sim->delays[slot] / BILLION + nanoseconds / BILLION);
    until.tv_nsec = (long)(nanoseconds % BILLION);
    int error = 0;
    while (sim->delays[slot] != 0 && error == 0) {
        error = pthread_cond_timedwait(&sim->changed, &sim->mutex, &until);
    }
}

/* Why a call may not go on. */
static gm_status
refusal(gm_sim *sim, unsigned special)
{
    if (sim->fault != 0 && (special & SIM_SURVIVES) == 0) {
        return GM_DEVICE_ERROR(sim->fault);
    }
    return (special & SIM_UNSAFE) != 0 ? sim_capture_allows(sim) : GM_OK;
}

gm_status
sim_enter(const sim_call *call)
{
    gm_sim *sim = call->sim;
    unsigned special = slots[call->slot].special;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    if (sim->delays[call->slot] != 0) {
        sleep_through_delay(sim, call->slot);
    }
    gm_status status = refusal(sim, special);
    if (status != GM_OK) {
        return sim_leave(call, status);
    }
    if ((special & SIM_CONTEXT) != 0 && sim_has_device(sim, call->device)) {
        sim_touch(sim, call->device);
    }
    return GM_OK;
}

gm_status
sim_leave(const sim_call *call, gm_status status)
{
    gm_sim *sim = call->sim;
    if (sim->log.readers > 0) {
        sim_log_add(sim, &(gm_sim_call){slots[call->slot].name, call->device, call->ptr,
                                        call->size, status});
    }
    sim_lay_ghosts(sim);
    pthread_mutex_unlock(&sim->mutex);
    return status;
}

/* ---- for tests ---- */

gm_status
gm_sim_set_delay(const gm_backend *b,
                 const char *name,
                 uint64_t nanoseconds,
                 uint64_t *before)
{
    gm_sim *sim = b->self;
    int slot = 0;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    while (slot < SIM_SLOT_COUNT && strcmp(slots[slot].name, name) != 0) {
        slot++;
    }
    if (slot == SIM_SLOT_COUNT) {
        return GM_ERR_INVALID_VALUE;
    }
    pthread_mutex_lock(&sim->mutex);
    if (before != NULL) {
        *before = sim->delays[slot];
    }
    sim->delays[slot] = nanoseconds;
    (void)pthread_cond_broadcast(&sim->changed);
    pthread_mutex_unlock(&sim->mutex);
    return GM_OK;
}
