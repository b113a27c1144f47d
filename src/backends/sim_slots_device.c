/* SPDX-License-Identifier: MIT
 *
 * The simulated device's slots for devices and peers.
 *
 * device_count, device_get and device_pop take no lock: the number never changes, the
 * rest is the thread's own.
 */
#include "sim_call.h"

#include <stdio.h> // snprintf()

/* ---- devices ---- */

gm_status
sim_slot_device_count(void *self, int *count)
{
    const gm_sim *sim = self;
    *count = sim->device_count;
    return GM_OK;
}

gm_status
sim_slot_device_get(void *self, int *device)
{
    *device = sim_thread_device(self);
    return GM_OK;
}

gm_status
sim_slot_device_set(void *self, int device)
{
    const sim_call call = {self, .slot = SIM_SLOT_device_set, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    status = sim_has_device(self, device) ? sim_thread_set_device(self, device)
                                          : GM_ERR_INVALID_DEVICE;
    return sim_leave(&call, status);
}

gm_status
sim_slot_device_push(void *self, int device, gm_device_mark *mark)
{
    const sim_call call = {self, .slot = SIM_SLOT_device_push, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    mark->before = (uintptr_t)sim_thread_device(self);
    status = sim_has_device(self, device) ? sim_thread_set_device(self, device)
                                          : GM_ERR_INVALID_DEVICE;
    return sim_leave(&call, status);
}

void
sim_slot_device_pop(void *self, const gm_device_mark *mark)
{
    sim_thread_restore_device(self, (int)mark->before);
}

gm_status
sim_slot_device_synchronize(void *self, int device)
{
    const sim_call call = {self, .slot = SIM_SLOT_device_synchronize, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    status = sim_has_device(self, device) ? sim_capture_allows_wait(self, device)
                                          : GM_ERR_INVALID_DEVICE;
    if (status == GM_OK) {
        status = sim_wait_device(self, device);
    }
    if (status == GM_OK) {
        sim_pools_settle(self);
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_device_name(void *self, int device, char *text, size_t size)
{
    if (!sim_has_device(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    (void)snprintf(text, size, "Simulated device");
    return GM_OK;
}

gm_status
sim_slot_device_support(void *self, int device, unsigned *support)
{
    const sim_call call = {self, .slot = SIM_SLOT_device_support, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(self, device)) {
        *support = call.sim->devices[device].support;
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_device_reset(void *self, int device)
{
    const sim_call call = {self, .slot = SIM_SLOT_device_reset, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(self, device)) {
        sim_reset(self, device);
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_device_incarnation(void *self, int device, uint64_t *number)
{
    const sim_call call = {self, .slot = SIM_SLOT_device_incarnation, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(self, device)) {
        *number = call.sim->devices[device].incarnation;
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return sim_leave(&call, status);
}

void
gm_sim_set_support(const gm_backend *b, int device, unsigned support)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return;
    }
    pthread_mutex_lock(&sim->mutex);
    if (sim_has_device(sim, device)) {
        sim->devices[device].support = support;
    }
    pthread_mutex_unlock(&sim->mutex);
}

/* ---- peers ---- */

gm_status
sim_slot_peer_can_access(void *self, int device, int peer, bool *can)
{
    const sim_call call = {self, SIM_SLOT_peer_can_access, device, (uint64_t)peer, 0};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(self, device) && sim_has_device(self, peer)) {
        *can = sim_peer_possible(self, device, peer);
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_peer_enable(void *self, int device, int peer)
{
    const sim_call call = {self, SIM_SLOT_peer_enable, device, (uint64_t)peer, 0};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    status =
        sim_has_device(self, device) && sim_has_device(self, peer) && device != peer
            ? sim_peer_enable(self, device, peer)
            : GM_ERR_INVALID_DEVICE;
    return sim_leave(&call, status);
}

gm_status
sim_slot_peer_enabled(void *self, int device, int peer, bool *enabled)
{
    const gm_sim *sim = self;
    const sim_call call = {self, SIM_SLOT_peer_enabled, device, (uint64_t)peer, 0};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    if (sim_has_device(sim, device) && sim_has_device(sim, peer)) {
        *enabled = sim->peers[device][peer].enabled;
    }
    else {
        status = GM_ERR_INVALID_DEVICE;
    }
    return sim_leave(&call, status);
}
