/* SPDX-License-Identifier: MIT
 *
 * What every call of the simulated device does before and after its work.
 *
 * Entering refuses in a forked child, locks, and refuses what a recording forbids;
 * leaving logs and unlocks. Cost: one uncontended lock.
 */
#include "sim_call.h"

static const struct {
    const char *name;
    unsigned special;
} slots[] = {
#define SLOT_ROW(name, special) {#name, special},
    SIM_SLOTS(SLOT_ROW)
#undef SLOT_ROW
};

gm_status
sim_enter(const sim_call *call)
{
    gm_sim *sim = call->sim;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    if ((slots[call->slot].special & SIM_UNSAFE) != 0) {
        gm_status status = sim_capture_allows(sim);
        if (status != GM_OK) {
            return sim_leave(call, status);
        }
    }
    return GM_OK;
}

gm_status
sim_leave(const sim_call *call, gm_status status)
{
    gm_sim *sim = call->sim;
    if (sim->log.on) {
        sim_log_add(sim, &(gm_sim_call){slots[call->slot].name, call->device, call->ptr,
                                        call->size, status});
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}
