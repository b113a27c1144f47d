/* SPDX-License-Identifier: MIT
 *
 * The calls that carry a plan out: the streams that pages come from, and what is to be
 * made and mapped.
 *
 * Pages of the stream itself need nothing. For those of another stream that has work
 * under way an event is recorded there, and the stream of the request waits for it.
 * Where either is not known, or is being recorded, others' pages are left alone: a
 * request that finds no memory without them has them given back first, which waits as
 * it must. A stream that has nothing under way gets no event: it costs more than to
 * ask, and for some microseconds the stream would be at work because of it, so that
 * what the pool decides next (gm_echo.c, gm_release.c) would depend on how soon it
 * looks.
 *
 * Where a device has less than it said, the pages that were made in vain go back at
 * once, and the next plan does with as many.
 *
 * Cost: some 30 us a page that is mapped; an event and a wait for each other stream.
 * Threading: any thread, no lock held. What this does not do: change the pool, which
 * the plan's end does (gm_fill.c).
 */
#include "gm_peer.h"
#include "gm_pending.h"
#include "gm_remap.h"

/* Makes the stream of the request wait for what the owner has queued. */
static gm_status
wait_for_owner(gm_attempt *a, const gm_owner *owner)
{
    gm_pool *pool = a->pool;
    const gm_backend *b = pool->upstream.backend;
    const gm_stream_use *by = a->rescue->by;
    gm_mark *mark = NULL;
    gm_device_mark back;
    gm_status status = gm_mark_record(pool, &owner->by, &mark);

    if (status != GM_OK) {
        return status;
    }
    status = gm_stream_use_enter(b, by, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_wait_event(b, by->stream, mark->event);
        gm_stream_use_leave(b, &back);
    }
    gm_pool_lock(pool);
    gm_mark_drop_locked(pool, mark);
    gm_pool_unlock(pool);
    return status;
}

/* The same with all owners, who are let go. GM_MISS: they cannot be waited for so. */
static gm_status
wait_for_owners(gm_attempt *a, gm_owner *owners)
{
    gm_pool *pool = a->pool;
    const gm_backend *b = pool->upstream.backend;
    gm_status status = GM_OK;
    size_t count = a->plan.owner_count;

    for (size_t i = 0; i < count && status == GM_OK; i++) {
        gm_owner *owner = &owners[i];

        if (owner->done) {
            continue;
        }
        owner->gone = !gm_stream_use_is_there(b, &owner->by);
        if (owner->gone) {
            status = GM_MISS;
        }
        else if (!gm_stream_use_is_idle(b, &owner->by)) {
            status = wait_for_owner(a, owner);
        }
    }
    gm_pool_lock(pool);
    for (size_t i = 0; i < count; i++) {
        gm_owner_return_locked(pool, &owners[i]);
    }
    gm_pool_unlock(pool);
    if (status == GM_ERR_CAPTURING) { // somebody records that stream
        status = GM_MISS;
    }
    a->own |= status == GM_MISS;
    return status;
}

/* Makes and maps the page, as far as either is to be done, within reach of the pool's
 * device and of `peers`. On failure neither is. */
static gm_status
make_move(gm_pool *pool, gm_move *move, uint64_t peers)
{
    const gm_backend *b = pool->upstream.backend;
    gm_page *page = move->page;
    uintptr_t addr = move->place->addr;
    gm_status status = GM_OK;

    if (!move->map) {
        return GM_OK;
    }
    if (!page->home) {
        status = gm_backend_vm_create(b, pool->device, page->size, &page->handle);
        if (status != GM_OK) {
            return status;
        }
    }
    status = gm_backend_vm_map(b, addr, page->size, page->handle);
    if (status == GM_OK) {
        status = gm_backend_vm_set_access(b, addr, page->size, pool->device);
        if (status == GM_OK) {
            status = gm_peers_open(b, addr, page->size, peers);
        }
        if (status != GM_OK) {
            (void)gm_backend_vm_unmap(b, addr, page->size); // nobody has used it
        }
    }
    if (status != GM_OK && !page->home) {
        (void)gm_backend_vm_release(b, page->handle);
    }
    return status;
}

/* Takes the pages back that were made, which nobody has used: the others could not be.
 * What a device refuses to take stays with the pool. Returns how many bytes they were.
 */
static size_t
unmake_moves(const gm_backend *b, gm_plan *plan)
{
    size_t bytes = 0;

    for (size_t i = 0; i < plan->count; i++) {
        gm_move *move = &plan->moves[i];
        gm_page *page = move->page;

        if (!move->done || page->home) {
            continue;
        }
        bytes += page->size;
        if (gm_backend_vm_unmap(b, move->place->addr, page->size) == GM_OK) {
            (void)gm_backend_vm_release(b, page->handle);
            move->done = false;
        }
    }
    return bytes;
}

/* The device has less than it said: `made` bytes, or what it says now where that was
 * an earlier answer. */
static void
forget_room(gm_attempt *a, size_t made)
{
    gm_pool_lock(a->pool);
    a->pool->paging.room = 0;
    gm_pool_unlock(a->pool);
    a->room = made;
    a->asked &= !a->recalled;
    a->recalled = false;
}

gm_status
gm_attempt_carry_out(gm_attempt *a, gm_owner *owners, uint64_t *ns)
{
    gm_plan *plan = &a->plan;
    gm_status status = wait_for_owners(a, owners);
    bool calls = false;
    uint64_t start;

    if (status != GM_OK) {
        return status;
    }
    for (size_t i = 0; i < plan->count; i++) {
        calls |= plan->moves[i].map;
    }
    start = calls ? gm_process_now_ns() : 0;
    for (size_t i = 0; i < plan->count && status == GM_OK; i++) {
        status = make_move(a->pool, &plan->moves[i], plan->peers);
        plan->moves[i].done = status == GM_OK;
    }
    if (status != GM_OK) {
        size_t made = unmake_moves(a->pool->upstream.backend, plan);

        if (status == GM_ERR_OUT_OF_MEMORY && a->room > 0) {
            forget_room(a, made);
            status = GM_MISS;
        }
    }
    *ns = calls ? gm_process_now_ns() - start + 1 : 0;
    return status;
}

void
gm_plan_lock_open(gm_pool *pool, gm_plan *plan)
{
    const gm_backend *b = pool->upstream.backend;

    gm_pool_lock(pool);
    while (pool->paging.peers & ~plan->peers) {
        uint64_t fresh = pool->paging.peers & ~plan->peers;
        gm_status status = GM_OK;

        gm_pool_unlock(pool);
        for (size_t i = 0; i < plan->count; i++) {
            const gm_move *move = &plan->moves[i];

            if (move->map && move->done && status == GM_OK) {
                status = gm_peers_open(b, move->place->addr, move->page->size, fresh);
            }
        }
        plan->peers |= fresh;
        gm_pool_lock(pool);
        if (status != GM_OK) {
            pool->paging.peers &= ~fresh;
        }
    }
}
