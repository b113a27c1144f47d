/* SPDX-License-Identifier: MIT
 *
 * An instance of the simulated device: how it opens, who holds it, how it ends.
 *
 * Its owner holds one reference and each thread record one. Close takes the streams,
 * the events and the memory; the struct, its lock and its thread key go with the last
 * reference, since a thread that used the instance may still be ending.
 *
 * A forked child has the struct but not the device: its memory is not mapped there, and
 * `here` points into a page that the fork wiped, which costs a slot one load to see.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <sys/mman.h>
#include <time.h> // CLOCK_MONOTONIC

void
sim_unref_unlock(gm_sim *sim)
{
    bool last = --sim->refs == 0;
    pthread_mutex_unlock(&sim->mutex);
    if (last) {
        (void)pthread_key_delete(sim->thread_key);
        (void)pthread_cond_destroy(&sim->changed);
        (void)pthread_mutex_destroy(&sim->mutex);
        (void)munmap((void *)(uintptr_t)sim->here, 1);
        gm_host_free(sim);
    }
}

/* Ends what was made; also half of it, when opening fails. Unlocks. */
static void
close_locked(gm_sim *sim)
{
    sim_captures_fini(sim);
    sim_events_fini(sim);
    sim_streams_fini(sim);
    sim_table_fini(&sim->streams);
    sim_graphs_fini(sim);
    for (int device = 0; device < sim->device_count; device++) {
        sim_imports_reset(sim, device);
    }
    sim_pools_fini(sim);
    sim_vm_fini(sim);
    sim_memory_fini(sim);
    sim_log_fini(sim);
    sim_thread_forget(sim);
    sim->device_count = 0;
    sim_unref_unlock(sim);
}

void
sim_close(void *self)
{
    gm_sim *sim = self;
    if (sim_is_gone(sim)) {
        return; // leaks: what another thread held at the fork is held for ever
    }
    pthread_mutex_lock(&sim->mutex);
    close_locked(sim);
}

/* The lock, and the condition with a clock that nobody sets. 0 on success. */
static int
init_locks(gm_sim *sim)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error != 0) {
        return error;
    }
    error = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (error == 0) {
        error = pthread_cond_init(&sim->changed, &attributes);
    }
    (void)pthread_condattr_destroy(&attributes);
    if (error == 0 && (error = pthread_mutex_init(&sim->mutex, NULL)) != 0) {
        (void)pthread_cond_destroy(&sim->changed);
    }
    return error;
}

/* An instance with its lock and key, and a page that a fork wipes. NULL without host
 * memory. */
static gm_sim *
new_sim(void)
{
    gm_sim *sim = gm_host_zalloc(sizeof *sim);
    char *here = MAP_FAILED;
    if (sim == NULL) {
        return NULL;
    }
    here = mmap(NULL, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (here == MAP_FAILED || madvise(here, 1, MADV_WIPEONFORK) != 0 ||
        pthread_key_create(&sim->thread_key, sim_thread_end) != 0) {
        goto fail;
    }
    if (init_locks(sim) != 0) {
        (void)pthread_key_delete(sim->thread_key);
        goto fail;
    }
    *here = 1;
    sim->here = here;
    sim->refs = 1;
    sim->table = sim_slots;
    sim->table.self = sim;
    sim_table_init(&sim->streams);
    sim_table_init(&sim->events);
    sim_table_init(&sim->pools);
    sim_table_init(&sim->graphs);
    sim_table_init(&sim->execs);
    sim_table_init(&sim->handles);
    return sim;
fail:
    if (here != MAP_FAILED) {
        (void)munmap(here, 1);
    }
    gm_host_free(sim);
    return NULL;
}

gm_status
gm_backend_sim_open(const gm_sim_options *options, gm_backend **out)
{
    if (options->devices < 1 || options->devices > GM_SIM_MAX_DEVICES) {
        return GM_ERR_INVALID_VALUE;
    }
    gm_sim *sim = new_sim();
    if (sim == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    sim->release_at_once = options->release_at_once;
    sim->device_count = options->devices;
    sim_peers_init(sim);
    gm_status status = sim_memory_init(sim, options);
    if (status == GM_OK) {
        status = sim_pools_init(sim);
    }
    for (int device = 0; status == GM_OK && device < options->devices; device++) {
        sim->devices[device].legacy = sim_stream_new(sim, device, 0, 0);
        if (sim->devices[device].legacy == NULL) {
            status = GM_ERR_HOST_MEMORY;
        }
    }
    if (status != GM_OK) {
        pthread_mutex_lock(&sim->mutex);
        close_locked(sim);
        return status;
    }
    *out = &sim->table;
    return GM_OK;
}
