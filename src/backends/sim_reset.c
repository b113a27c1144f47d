/* SPDX-License-Identifier: MIT
 *
 * Contexts of the simulated devices: when one comes to be, and how a reset ends it.
 *
 * A device has none until a call needs one; a program that only looks around makes none
 * (sim_slots.h says which calls do). Each has a number that no other had. A reset ends
 * all that the context has: memory, streams, events, graphs, pools, peers; and a sticky
 * fault of the device. Default streams stay, without their work. Memory by page stays,
 * too, with its bytes: it is the device's, and no context's.
 */
#include "sim.h"

void
sim_touch(gm_sim *sim, int device)
{
    sim_device *touched = &sim->devices[device];
    if (!touched->context) {
        touched->context = true;
        touched->incarnation = sim_next_serial();
    }
}

void
sim_reset(gm_sim *sim, int device)
{
    sim_captures_reset(sim, device);
    sim_streams_reset(sim, device);
    sim_events_reset(sim, device);
    sim_graphs_reset(sim, device);
    sim_imports_reset(sim, device);
    sim_pools_reset(sim, device);
    sim_memory_reset(sim, device);
    sim_peers_reset(sim, device);
    sim->devices[device].context = false;
    sim->devices[device].incarnation = 0;
    if (sim->fault_device == device) {
        sim->fault = 0;
    }
    (void)pthread_cond_broadcast(&sim->changed);
}

void
sim_fault(gm_sim *sim, int device)
{
    sim->ledger.faults++;
    if (sim->fault == 0) {
        sim->fault = SIM_CODE_ILLEGAL_ADDRESS;
        sim->fault_device = device;
        (void)pthread_cond_broadcast(&sim->changed);
    }
}

/* ---- for tests ---- */

bool
gm_sim_context_created(const gm_backend *b, int device)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return false;
    }
    pthread_mutex_lock(&sim->mutex);
    bool created = sim_has_device(sim, device) && sim->devices[device].context;
    pthread_mutex_unlock(&sim->mutex);
    return created;
}

gm_status
gm_sim_set_fault(const gm_backend *b, int device, int code)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    gm_status status = GM_OK;
    pthread_mutex_lock(&sim->mutex);
    if (sim->fault == 0) {
        sim->fault = code;
        sim->fault_device = device;
    }
    else if (code != 0) {
        status = GM_BUSY;
    }
    else if (sim->fault_device == device) {
        sim->fault = 0;
    }
    (void)pthread_cond_broadcast(&sim->changed);
    pthread_mutex_unlock(&sim->mutex);
    return status;
}
