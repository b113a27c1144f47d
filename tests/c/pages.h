/* SPDX-License-Identifier: MIT
 *
 * For tests of the simulated device's memory by page: shorthand that insists on
 * success, and a scene with some of everything.
 */
#ifndef PAGES_H
#define PAGES_H

#include "device.h"

#define UNIT (2 * MIB)
#define INVALID GM_DEVICE_ERROR(1)

static inline uintptr_t
reserve(const gm_backend *b, size_t size)
{
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_vm_reserve(b, size, &ptr), GM_OK);
    return ptr;
}

static inline gm_handle
create(const gm_backend *b, int device, size_t size)
{
    gm_handle handle = 0;
    CHECK_EQ(gm_backend_vm_create(b, device, size, &handle), GM_OK);
    return handle;
}

static inline size_t
free_bytes(const gm_backend *b, int device)
{
    size_t free_now = 0, total = 0;
    CHECK_EQ(gm_backend_mem_info(b, device, &free_now, &total), GM_OK);
    return free_now;
}

/* One range of eight units. At 0 and 1 the same handle, at 2 a second one, nothing at
 * 3, one of two units at 4; all of it within reach of device 0. */
typedef struct scene {
    gm_backend *sim;
    uintptr_t at[8];
    gm_handle twice, single, pair;
} scene;

static inline scene
open_scene(void)
{
    scene s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = 16 * MIB})};
    s.at[0] = reserve(s.sim, 8 * UNIT);
    for (size_t i = 1; i < 8; i++) {
        s.at[i] = s.at[0] + i * UNIT;
    }
    s.twice = create(s.sim, 0, UNIT);
    s.single = create(s.sim, 0, UNIT);
    s.pair = create(s.sim, 0, 2 * UNIT);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[0], UNIT, s.twice), GM_OK);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[1], UNIT, s.twice), GM_OK);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[2], UNIT, s.single), GM_OK);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[4], 2 * UNIT, s.pair), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(s.sim, s.at[0], 3 * UNIT, 0), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(s.sim, s.at[4], 2 * UNIT, 0), GM_OK);
    return s;
}

static inline void
give_back(scene *s)
{
    gm_backend *sim = s->sim;
    CHECK_EQ(gm_backend_vm_unmap(sim, s->at[0], 3 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, s->at[4], 2 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, s->twice), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, s->single), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, s->pair), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, s->at[0], 8 * UNIT), GM_OK);
}

/* Gives all of a scene back and sees that `errors` calls were wrong. */
static inline void
close_scene(scene *s, size_t errors)
{
    gm_backend *sim = s->sim;
    give_back(s);
    check_ledger_is_empty(sim);
    CHECK_EQ(read_ledger(sim).errors, errors);
    CHECK_EQ(free_bytes(sim, 0), 16 * MIB);
    gm_backend_close(sim);
}

#endif
