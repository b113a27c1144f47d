/* SPDX-License-Identifier: MIT
 *
 * The pool's insides, for gm_pool.c (the hit path), gm_reclaim.c (the miss path) and
 * gm_check.c alone.
 *
 * Lock rule: functions ending in _locked are called with pool->lock held and call
 * nothing outside the core.
 */
#ifndef GM_POOL_PRIVATE_H
#define GM_POOL_PRIVATE_H

#include "gm_lock.h"
#include "gm_pool.h"
#include "gm_process.h" // gm_pool_link

#include <stdatomic.h>

struct gm_pool {
    gm_lock lock;
    gm_arena_table arenas;
    gm_block_store store;
    gm_segment *first; // segments, oldest first
    gm_segment *last;
    uint64_t next_serial;
    gm_stats stats;
    size_t reserving; // bytes asked of upstream that have not arrived
    size_t releasing; // bytes on their way back upstream
    size_t voided;    // handles whose block was given back by address
    bool closed;      // the owner let go
    bool ended;       // the reference of owner and blocks was dropped

    _Atomic(gm_block *) deferred; // frees that found the lock busy
    _Atomic(size_t) refs; // 1 for the owner and all blocks together, 1 a passing user

    int device;
    size_t segment_unit; // what is asked of upstream is a multiple of it
    gm_upstream upstream;
    void *user;
    gm_pool_link link;
};

/* Waits for the lock and drains postponed frees; gm_pool_try_lock does not wait. */
void gm_pool_lock(gm_pool *pool);
bool gm_pool_try_lock(gm_pool *pool);
void gm_pool_unlock(gm_pool *pool);

/* Unlocks for one who may have locked a closed pool: sees to the pool's end, which
 * nobody else may come by to do. Calls upstream; the caller keeps the pool alive until
 * here by a reference or a block. */
void gm_pool_leave(gm_pool *pool);

void gm_pool_ref(gm_pool *pool);
void gm_pool_unref(gm_pool *pool);

/* A block for `rounded` bytes out of the arena of request->key. GM_OK, GM_MISS, or
 * GM_ERR_HOST_MEMORY. */
gm_status gm_pool_hit_locked(gm_pool *pool,
                             const gm_request *request,
                             size_t rounded,
                             gm_block **out);

/* Makes `block` live for `request`, counting it and the peaks. */
void gm_pool_hand_out_locked(gm_pool *pool, gm_block *block, const gm_request *request);

/* Takes every idle segment, or every one of `arena` unless that is NULL, out of the
 * pool, chained by `next`. Their bytes count as releasing until gm_pool_give_back. */
gm_segment *gm_pool_unlink_idle_locked(gm_pool *pool, const gm_arena *arena);

/* Gives the pieces of such a chain upstream, without the lock. Returns bytes. */
size_t gm_pool_give_back(gm_pool *pool, gm_segment *chain);

/* GM_OK, GM_ERR_INVALID_VALUE or GM_ERR_TOO_LARGE. */
gm_status gm_request_check(const gm_request *request);

#endif
