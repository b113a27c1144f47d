/* SPDX-License-Identifier: MIT
 *
 * The simulated devices' memory by page: what the sim_ files that deal with it share.
 * Included through sim.h.
 *
 *   sim_vm_range.c  reserved addresses: the table of what is mapped where
 *   sim_vm.c        physical memory, mapped and reachable
 *
 * A handle is physical memory, a mapping one place of it among the addresses, a
 * reserved range the addresses that mappings may take.
 */
#ifndef GM_SIM_VM_H
#define GM_SIM_VM_H

#include "backends.h"

typedef struct gm_sim gm_sim;
typedef struct sim_mapping sim_mapping;
typedef struct sim_pages sim_pages;

/* Physical memory: a stretch of its device's memory file. */
struct sim_pages {
    gm_handle handle; // 0 once released
    int device;
    size_t size;
    uint64_t offset; // in the file
    sim_mapping *mappings;
    sim_pages *next; // of the instance
    sim_pages *prev;
};

struct sim_mapping {
    uintptr_t start;
    sim_pages *pages;
    uint32_t access;   // a bit a device that reaches it
    uint64_t since;    // number of the newest operation when it was made
    sim_mapping *next; // of the same pages
    sim_mapping *prev;
};

typedef struct sim_vm_range {
    uintptr_t start;
    size_t size;
    sim_mapping **table; // what is mapped, an entry a SIM_SEGMENT
    size_t mappings;
} sim_vm_range;

typedef struct sim_vm {
    sim_vm_range *ranges; // by address
    size_t count;
    size_t capacity;
    sim_pages *pages;                  // all that there is, held or only mapped
    uint64_t ends[GM_SIM_MAX_DEVICES]; // where each device's file ends; 0 for untouched
} sim_vm;

/* ---- sim_vm_range.c ---- */

gm_status sim_vm_reserve(gm_sim *sim, size_t size, uintptr_t *out);
gm_status sim_vm_unreserve(gm_sim *sim, uintptr_t ptr, size_t size);

/* The reserved range that holds all of these bytes; NULL for none. */
sim_vm_range *sim_vm_find(const gm_sim *sim, uintptr_t ptr, size_t size);

/* Whether an address is reserved, with something behind it or not. */
bool sim_vm_holds(const gm_sim *sim, uintptr_t ptr);

/* What is mapped at an address of a range; NULL for nothing. */
sim_mapping *sim_vm_mapping_at(const sim_vm_range *range, uintptr_t ptr);

/* Enters or (NULL) clears what is mapped at some segments. */
void
sim_vm_table_set(sim_vm_range *range, uintptr_t ptr, size_t size, sim_mapping *mapping);

/* Makes reserved addresses show nothing: who touches them faults. False where the
 * system has no more mappings to give: they are as they were. */
bool sim_vm_hide(uintptr_t ptr, size_t size);

/* Ends all ranges with no regard to what is mapped. */
void sim_vm_ranges_fini(gm_sim *sim);

/* ---- sim_vm.c ---- */

gm_status sim_vm_granularity(const gm_sim *sim, int device, size_t *bytes);
gm_status sim_vm_create(gm_sim *sim, int device, size_t size, gm_handle *out);
gm_status sim_vm_release(gm_sim *sim, gm_handle handle);
gm_status sim_vm_map(gm_sim *sim, uintptr_t ptr, size_t size, gm_handle handle);
gm_status sim_vm_unmap(gm_sim *sim, uintptr_t ptr, size_t size);
gm_status sim_vm_set_access(gm_sim *sim, uintptr_t ptr, size_t size, int device);

/* Whether all of a range is mapped and reachable by a device: for work that is queued
 * now (0) or that was queued as operation `queued`. What was mapped later than that was
 * not meant. */
bool sim_vm_usable(
    const gm_sim *sim, uintptr_t ptr, size_t size, int device, uint64_t queued);

/* The mapping that an address is in; false where it is in none. */
bool sim_vm_info(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info);

/* Ends all of it, for close. */
void sim_vm_fini(gm_sim *sim);

#endif
