/* SPDX-License-Identifier: MIT
 *
 * The simulated device's memory: what the sim_ files that deal with it share. Included
 * through sim.h.
 *
 *   sim_window.c   where things lie in one stretch of addresses: first fit, merging
 *   sim_memory.c   devices' memory: allocate, free, look up, check ranges
 *   sim_vm.h       memory by page, which takes from the same capacity
 *   sim_pool.c     stream-ordered memory and the pools it comes from
 *   sim_managed.c  where managed memory is, and the advice about it
 *   sim_ipc.c      handles of memory for other processes, and memory of theirs
 */
#ifndef GM_SIM_MEMORY_H
#define GM_SIM_MEMORY_H

#include "backends.h"

#define SIM_UNIT ((size_t)512)        // placement and accounting
#define SIM_SEGMENT ((size_t)2 << 20) // a device's memory is a multiple of it

typedef struct gm_sim gm_sim;
typedef struct sim_import sim_import;
typedef struct sim_op sim_op;
typedef struct sim_piece sim_piece;
typedef struct sim_pool sim_pool;
typedef struct sim_range sim_range;
typedef struct sim_stream sim_stream;
typedef struct sim_work sim_work;

/* ---- sim_window.c ---- */

/* A stretch of addresses, live or free. The ranges of a window cover it without gap;
 * no two free ones are neighbours. */
struct sim_range {
    uintptr_t start;
    size_t size;     // multiple of SIM_UNIT
    sim_range *prev; // by address
    sim_range *next;
    sim_range *left; // treap by address
    sim_range *right;
    uint32_t priority;
    bool live;
    size_t widest; // largest free range of this subtree

    // Free: the part written since its pages were last given back; empty when equal.
    uintptr_t stale_start;
    uintptr_t stale_end;

    // Live: what was asked for.
    size_t asked;
    gm_mem_kind kind;
    int device;

    // Live and of a pool: whether the program gave it back, the operation after which
    // it is idle (a reference; NULL when it is already), and its place among such.
    sim_pool *pool;
    bool parked;
    sim_op *freed;
    sim_range *parked_prev;
    sim_range *parked_next;

    // Live and managed: what is known of it, by address; NULL while nothing is.
    sim_piece *pieces;
};

/* One mapping of one memory file, and what lies in it. */
typedef struct sim_window {
    int file;
    uintptr_t start;
    size_t length;   // of the addresses
    size_t capacity; // bytes that may be live at once, at most `length`
    size_t used;     // bytes live, in units
    sim_range *root;
    uint64_t random; // state of the treap's priorities
} sim_window;

/* Maps a window; no memory is spent until it is written. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_window_init(sim_window *window,
                                        size_t length,
                                        size_t capacity);

/* Gives everything back; accepts a window that is all zero. */
void sim_window_fini(sim_window *window);

/* The lowest free place of `size` > 0 bytes; the range is live and its `asked`, `kind`
 * and `device` are the caller's to fill, the fields of pools are 0.
 * GM_ERR_OUT_OF_MEMORY, GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_window_take(sim_window *window,
                                        size_t size,
                                        sim_range **out);

/* Cuts the low `size` bytes (whole units, fewer than it has) off a live range: *out, a
 * live range of its own in front of it. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_window_cut(sim_window *window,
                                       sim_range *range,
                                       size_t size,
                                       sim_range **out);

/* Takes the live range that follows a live one into it. */
void sim_window_merge_next(sim_window *window, sim_range *range);

/* Ends a live range. Cannot fail. */
void sim_window_give(sim_window *window, sim_range *range);

/* The longest free stretch there would be without the `count` live ranges `back`, which
 * come in order of address. */
size_t sim_window_largest(const sim_window *window, const gm_range *back, size_t count);

/* The range that holds `ptr`, live or free; NULL outside of the window. */
sim_range *sim_window_find(const sim_window *window, uintptr_t ptr);

/* ---- sim_memory.c ---- */

gm_status sim_memory_init(gm_sim *sim, const gm_sim_options *options);
void sim_memory_fini(gm_sim *sim);

gm_status
sim_mem_alloc(gm_sim *sim, int device, gm_mem_kind kind, size_t size, uintptr_t *out);

/* Waits for the device first. */
gm_status sim_mem_free(gm_sim *sim, int device, gm_mem_kind kind, uintptr_t ptr);
gm_status
sim_mem_info(gm_sim *sim, int device, size_t *free_bytes, size_t *total_bytes);
gm_status sim_mem_largest(
    gm_sim *sim, int device, const gm_range *back, size_t count, size_t *bytes);
void sim_pointer_info(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info);

/* Notes the most bytes that all devices held at once, after more were taken. */
void sim_note_peak(gm_sim *sim);

/* A live range of a device's memory of `size` bytes, counted in the peak but not as an
 * allocation. GM_ERR_OUT_OF_MEMORY, GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_take_device_range(gm_sim *sim,
                                              int device,
                                              size_t size,
                                              sim_range **out);

/* Whether all of a range may be touched by work that is queued now, or (`queued`) was
 * queued earlier and runs now: it lies in one live allocation or, where `host` allows
 * that, in none of the device's windows. Not for reserved addresses (sim_vm.h). */
bool
sim_range_usable(const gm_sim *sim, uintptr_t ptr, size_t size, bool host, bool queued);

/* Checks the ranges of work that a device is to do, and notes which device touches
 * which of them; invalid value, and counted, when one is bad. */
gm_status sim_check_copy(gm_sim *sim, int device, sim_work *work, gm_copy_kind kind);
gm_status sim_check_set(gm_sim *sim, int device, sim_work *work);

/* Whether a device reads and writes plain host memory, and both ends of this are there.
 */
bool sim_reaches_host(const gm_sim *sim, int device, uintptr_t ptr, size_t size);

/* The live range of managed memory that holds all of these bytes; NULL for none. */
sim_range *sim_find_managed(const gm_sim *sim, uintptr_t ptr, size_t size);

/* Ends all allocations of a device. */
void sim_memory_reset(gm_sim *sim, int device);

/* ---- sim_pool.c ---- */

struct sim_pool {
    gm_mem_pool handle;
    int device;
    size_t used;      // bytes the program has
    size_t reserved;  // bytes held from the device
    size_t used_high; // the most there was since that was last set to 0
    size_t reserved_high;
    uint64_t threshold; // bytes kept when somebody waits
    sim_range *oldest;  // parked ranges, in the order they were given back
    sim_range *newest;
    sim_pool *next; // of the device
};

/* Gives each device its first pool. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_pools_init(gm_sim *sim);
void sim_pools_fini(gm_sim *sim);

/* Forgets what a device's pools have, and the pools but the first; the ranges are the
 * caller's to give back. */
void sim_pools_reset(gm_sim *sim, int device);

gm_status sim_mem_alloc_async(
    gm_sim *sim, int device, size_t size, sim_stream *stream, uintptr_t *out);
gm_status
sim_mem_free_async(gm_sim *sim, int device, uintptr_t ptr, sim_stream *stream);

/* Gives a pool's live range back to it; idle after `freed`, a reference that goes with
 * it, or at once with NULL. */
void sim_pool_park(gm_sim *sim, sim_range *range, sim_op *freed);

/* What waiting for anything does besides: pools give back what they hold beyond their
 * thresholds. */
void sim_pools_settle(gm_sim *sim);

gm_status sim_pool_get(gm_sim *sim, int device, bool original, gm_mem_pool *out);
gm_status sim_pool_set(gm_sim *sim, int device, gm_mem_pool handle);
gm_status sim_pool_trim(gm_sim *sim, gm_mem_pool handle, size_t keep);
gm_status sim_pool_read(gm_sim *sim,
                        gm_mem_pool handle,
                        gm_mem_pool_field field,
                        uint64_t *value);
gm_status sim_pool_write(gm_sim *sim,
                         gm_mem_pool handle,
                         gm_mem_pool_field field,
                         uint64_t value);

/* ---- sim_managed.c ---- */

/* Checks a range of managed memory, or of plain host memory where that is reached, and
 * a place for it: a device, or the host as -1. */
gm_status sim_check_managed(gm_sim *sim, uintptr_t ptr, size_t size, int device);

/* Notes that a range is somewhere now; nothing where it is no managed memory any more.
 * Without host memory the note is lost. */
void sim_managed_move(gm_sim *sim, uintptr_t ptr, size_t size, int device);

/* Notes advice about a range that was checked. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status
sim_managed_advise(gm_sim *sim, uintptr_t ptr, size_t size, int advice, int device);
void sim_managed_forget(sim_range *range);

/* ---- sim_ipc.c ---- */

gm_status sim_ipc_export(gm_sim *sim, uintptr_t ptr, gm_ipc_handle *out);
gm_status
sim_ipc_open(gm_sim *sim, int device, const gm_ipc_handle *handle, uintptr_t *base);

/* Waits for the device first. */
gm_status sim_ipc_close(gm_sim *sim, uintptr_t base);

/* The allocation of another process that an address is in; false where it is in none.
 */
bool sim_import_find(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info);

/* Ends the memory of other processes on a device. */
void sim_imports_reset(gm_sim *sim, int device);

#endif
