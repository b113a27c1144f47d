/* SPDX-License-Identifier: MIT
 *
 * Requests that pages serve, from the cache's miss to the block.
 *
 * Round after round a plan is made with the lock held, or what it wants is seen to
 * without. Between a plan and its end the lock is let go for the calls; what the plan
 * is about is MOVING meanwhile, so others do without it, and each round looks into the
 * cache first, where one of them may have left something.
 *
 * Cost: that of the plan and of the calls (gm_remap_plan.c, gm_remap_calls.c); rounds
 * are two for a request that makes pages. Threading: any thread, no lock held. What
 * this does not do: give anything back for a request that finds no memory, which is
 * gm_reclaim.c.
 */
#include "gm_remap.h"

/* The streams of the pages that come from others. NULL: no host memory. */
static gm_owner *
take_owners_locked(gm_pool *pool, const gm_plan *plan)
{
    gm_owner *owners = gm_host_zalloc((plan->owner_count + 1) * sizeof *owners);

    for (size_t i = 0; owners && i < plan->owner_count; i++) {
        gm_owner_take_locked(pool, plan->owners[i], &owners[i]);
    }
    return owners;
}

/* From the plan to its end. GM_MISS: to be tried again. */
static gm_status
serve(gm_attempt *a, gm_owner *owners, gm_block **out)
{
    gm_pool *pool = a->pool;
    gm_plan *plan = &a->plan;
    uint64_t ns = 0;
    gm_status status =
        owners ? gm_attempt_carry_out(a, owners, &ns) : GM_ERR_HOST_MEMORY;

    gm_plan_lock_open(pool, plan);
    pool->stats.driver_ns += ns;
    if (status == GM_OK) {
        *(ns ? &pool->stats.misses : &pool->stats.hits) += 1;
        *out = gm_plan_commit_locked(pool, plan);
        gm_pool_hand_out_locked(pool, *out, a->request);
    }
    else {
        gm_plan_abort_locked(pool, plan);
    }
    gm_pool_leave(pool);
    return status;
}

/* One round: the cache once more, then a plan. */
static gm_status
attempt_once(gm_attempt *a, gm_block **out)
{
    gm_pool *pool = a->pool;
    gm_owner *owners = NULL;
    gm_arena *arena;
    gm_status status;

    gm_pool_lock(pool);
    gm_pool_adopt_locked(pool, a->request->key, a->rounded);
    status = gm_pool_hit_locked(pool, a->request, a->rounded, out);
    if (status == GM_MISS && a->forbidden) {
        status = GM_ERR_CAPTURING;
    }
    if (status != GM_MISS) {
        gm_pool_unlock(pool);
        return status;
    }
    arena = gm_arena_find(&pool->arenas, a->request->key);
    if (arena && a->rescue && a->rescue->by) {
        arena->by = *a->rescue->by;
        arena->known = true;
    }
    status = gm_attempt_plan_locked(a, arena);
    if (status == GM_OK) {
        owners = take_owners_locked(pool, &a->plan);
        gm_process_flight_begin();
    }
    gm_pool_unlock(pool);
    if (status == GM_NOT_READY) {
        return gm_attempt_provide(a);
    }
    if (status == GM_OK) {
        status = serve(a, owners, out);
        gm_process_flight_end();
        gm_host_free(owners);
    }
    return status;
}

gm_status
gm_remap_attempt(gm_pool *pool,
                 const gm_request *request,
                 const gm_rescue *rescue,
                 bool forbidden,
                 gm_block **out)
{
    enum {
        ROUNDS = 16 // what a plan wants, a full device, a stream that is recorded
    };
    gm_attempt a = {
        .pool = pool,
        .request = request,
        .rescue = rescue,
        .rounded = gm_size_round(request->size),
        .room = GM_SIZE_MAX,
        .forbidden = forbidden,
        .own = !rescue || !rescue->by || gm_process_is_special(),
    };
    gm_status status = GM_MISS;

    (void)gm_pages_settle(pool, false);
    gm_echoes_prune(pool);
    for (int round = 0; status == GM_MISS && round < ROUNDS; round++) {
        status = attempt_once(&a, out);
    }
    if (a.made) {
        gm_pool_lock(pool);
        a.made->awaited = false;
        gm_pool_unlock(pool);
    }
    return status == GM_MISS ? GM_ERR_OUT_OF_MEMORY : status;
}

gm_status
gm_pool_set_paging(gm_pool *pool)
{
    const gm_backend *b = pool->upstream.backend;

    GM_ASSERT(pool->stats.misses == 0);
    if (!b || !(b->caps & GM_CAP_VIRTUAL_MEMORY)) {
        return GM_ERR_UNSUPPORTED;
    }
    pool->paging.on = true;
    return GM_OK;
}
