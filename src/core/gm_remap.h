/* SPDX-License-Identifier: MIT
 *
 * A request on its way to being served by pages, for the gm_remap files alone:
 * gm_remap.c leads it, round after round; in each gm_remap_plan.c chooses with the lock
 * held, and without it gm_remap_wants.c sees to what is missing for a plan or
 * gm_remap_calls.c carries the plan out.
 *
 * Threading: an attempt is its thread's own.
 */
#ifndef GM_REMAP_H
#define GM_REMAP_H

#include "gm_pool_private.h"

/* What a plan wants before it can be made. */
typedef enum gm_want {
    GM_WANT_GRAIN, // what the device is like
    GM_WANT_ROOM,  // how much memory it has
    GM_WANT_SPACE, // addresses
} gm_want;

/* A request on its way through the steps. */
typedef struct gm_attempt {
    gm_pool *pool;
    const gm_request *request;
    const gm_rescue *rescue;
    size_t rounded;
    size_t room;    // bytes that the device could make
    bool forbidden; // the device may not be asked for anything
    bool asked;     // `room` is what it says; or it may not be asked for that
    bool recalled;  // `room` is what it said before, less what was made since
    bool own;       // pages that other streams own cannot be had
    bool cleared;   // old places were given up for addresses
    gm_space *made; // the space that was added for it
    gm_want want;
    gm_plan plan;
} gm_attempt;

/* ---- gm_remap_plan.c ---- */

/* Goes through the steps to a plan. `arena` is NULL where the stream has none yet.
 * GM_NOT_READY: a->want is needed first. GM_ERR_LIMIT, GM_ERR_OUT_OF_MEMORY,
 * GM_ERR_HOST_MEMORY. */
gm_status gm_attempt_plan_locked(gm_attempt *a, gm_arena *arena);

/* ---- gm_remap_wants.c ---- */

/* Sees to what the plan wants. GM_MISS: it is there, and the plan to be made again. */
gm_status gm_attempt_provide(gm_attempt *a);

/* ---- gm_remap_calls.c ---- */

/* Carries the plan out, with the streams of the pages that come from others, who are
 * let go. *ns is how long its calls took, 0 for none. GM_MISS: it cannot be done so,
 * and the attempt knows why; to be planned again. */
gm_status gm_attempt_carry_out(gm_attempt *a, gm_owner *owners, uint64_t *ns);

/* Locks, when all that was mapped is open to the devices that the pool's mappings are
 * open to: one may have been let in meanwhile. Where that fails the request has what it
 * wanted, and the device counts as not let in: the next time opens all. */
void gm_plan_lock_open(gm_pool *pool, gm_plan *plan);

#endif
