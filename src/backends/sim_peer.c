/* SPDX-License-Identifier: MIT
 *
 * Which simulated device reaches which other's memory: a matrix of what is possible,
 * one of what was enabled, and the limit of peers a device can have at once. Copies
 * between devices work either way, as on hardware; only the calls here tell.
 *
 * Locking: the instance's mutex is held, except by gm_sim_set_peer, which takes it.
 */
#include "sim.h"

void
sim_peers_init(gm_sim *sim)
{
    for (int i = 0; i < sim->device_count; i++) {
        for (int j = 0; j < sim->device_count; j++) {
            sim->peers[i][j].possible = i != j;
        }
    }
}

bool
sim_peer_possible(const gm_sim *sim, int device, int peer)
{
    return sim->peers[device][peer].possible;
}

/* The runtime's answers: unsupported, already enabled (which the table's contract makes
 * a success), too many. */
gm_status
sim_peer_enable(gm_sim *sim, int device, int peer)
{
    sim_peer *pair = &sim->peers[device][peer];
    int enabled = 0;

    if (!pair->possible) {
        return GM_DEVICE_ERROR(SIM_CODE_PEER_UNSUPPORTED);
    }
    for (int i = 0; i < sim->device_count; i++) {
        enabled += sim->peers[device][i].enabled;
    }
    if (!pair->enabled && enabled >= GM_SIM_MAX_PEERS) {
        return GM_DEVICE_ERROR(SIM_CODE_TOO_MANY_PEERS);
    }
    pair->enabled = true;
    return GM_OK;
}

void
sim_peers_reset(gm_sim *sim, int device)
{
    for (int other = 0; other < sim->device_count; other++) {
        sim->peers[device][other].enabled = false;
        sim->peers[other][device].enabled = false;
    }
}

gm_status
gm_sim_set_peer(const gm_backend *b, int device, int peer, bool can)
{
    gm_sim *sim = b->self;

    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    if (!sim_has_device(sim, device) || !sim_has_device(sim, peer) || device == peer) {
        return GM_ERR_INVALID_DEVICE;
    }
    pthread_mutex_lock(&sim->mutex);
    sim->peers[device][peer] = (sim_peer){.possible = can};
    pthread_mutex_unlock(&sim->mutex);
    return GM_OK;
}
