/* SPDX-License-Identifier: MIT
 *
 * What every call of the simulated device does before and after its work.
 *
 * Entering refuses in a forked child and locks; leaving logs and unlocks. Cost: one
 * uncontended lock.
 */
#include "sim_call.h"

static const char *const slot_names[] = {
#define SLOT_NAME(name) #name,
    SIM_SLOTS(SLOT_NAME)
#undef SLOT_NAME
};

gm_status
sim_enter(const sim_call *call)
{
    gm_sim *sim = call->sim;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    return GM_OK;
}

gm_status
sim_leave(const sim_call *call, gm_status status)
{
    gm_sim *sim = call->sim;
    if (sim->log.on) {
        sim_log_add(sim, &(gm_sim_call){slot_names[call->slot], call->device, call->ptr,
                                        call->size, status});
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}
