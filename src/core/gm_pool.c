/* SPDX-License-Identifier: MIT
 *
 * The pool's life and lock, postponed frees, and what is done by address. See gm_pool.h
 * for the policy and the contracts; the hit path is gm_hit.c, the miss path
 * gm_miss.c and gm_reclaim.c.
 */
#include "gm_pending.h"
#include "gm_shard_private.h"

gm_status
gm_pool_new(int device, gm_upstream upstream, gm_pool **out)
{
    gm_pool *pool = gm_host_zalloc_aligned(_Alignof(gm_pool), sizeof(*pool));

    if (!pool) {
        return GM_ERR_HOST_MEMORY;
    }
    atomic_init(&pool->deferred, NULL);
    atomic_init(&pool->refs, 1);
    pool->device = device;
    pool->segment_unit = GM_UNIT;
    pool->upstream = upstream;
    gm_process_pool_join(&pool->link);
    *out = pool;
    return GM_OK;
}

static void
pool_destroy(gm_pool *pool)
{
    GM_ASSERT(!pool->first && pool->stats.total_bytes == 0);
    GM_ASSERT(!pool->notes && !pool->lanes && !pool->parts);
    gm_process_pool_leave(&pool->link);
    gm_marks_fini(pool);
    if (pool->upstream.end) {
        pool->upstream.end(pool->upstream.context);
    }
    gm_shards_fini(pool);
    gm_arena_table_fini(&pool->arenas);
    gm_block_store_fini(&pool->store);
    gm_host_free(pool);
}

void
gm_pool_ref(gm_pool *pool)
{
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
}

void
gm_pool_unref(gm_pool *pool)
{
    if (atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) == 1) {
        pool_destroy(pool);
    }
}

int
gm_pool_device(const gm_pool *pool)
{
    return pool->device;
}

void
gm_pool_set_user(gm_pool *pool, void *user)
{
    pool->user = user;
}

void *
gm_pool_user(const gm_pool *pool)
{
    return pool->user;
}

/* ---- the lock ---- */

void
gm_pool_drain_locked(gm_pool *pool, _Atomic(gm_block *) *list)
{
    gm_block *block = atomic_exchange_explicit(list, NULL, memory_order_acquire);

    while (block) {
        gm_block *next = block->u.live.deferred;

        pool->stats.deferred_frees++;
        gm_pool_end_handle_locked(pool, block);
        block = next;
    }
}

#if !GM_SHARDS

void
gm_shard_drain(gm_shard *shard)
{
    gm_pool_drain_locked(shard, &shard->deferred);
}

#endif

void
gm_pool_lock(gm_pool *pool)
{
    gm_lock_acquire(&pool->lock);
    gm_shards_enter(pool);
}

bool
gm_pool_try_lock(gm_pool *pool)
{
    if (GM_UNLIKELY(!gm_lock_try(&pool->lock))) {
        return false;
    }
    gm_shards_enter(pool);
    return true;
}

void
gm_pool_unlock(gm_pool *pool)
{
    gm_shards_leave(pool);
    gm_lock_release(&pool->lock);
}

/* ---- the end ---- */

/* Whether a closed pool has nothing left: uses may be waited for whose memory went with
 * a reset of another device. Where it has, but nobody holds it, it waits for a device,
 * and is counted among those who do. */
static bool
pool_may_end_locked(gm_pool *pool)
{
    bool held = pool->stats.live_blocks || pool->voided;
    bool waits = pool->parts || pool->notes || pool->lanes || pool->paging.leaving;
    bool end = !held && !pool->first && !waits;

    if (!pool->ended && pool->lingering != (!held && !end)) {
        pool->lingering = !pool->lingering;
        gm_process_linger(pool->lingering);
    }
    end &= !pool->ended;
    pool->ended |= end;
    return end;
}

/* With the lock held on a closed pool, which it releases: marks what was dropped, sends
 * idle segments upstream and, when nothing is left, drops the reference that stands for
 * owner and blocks. Looks again where it may have kept a free from ending its block,
 * because nobody else may come by: one that was postponed while the lock was held, or
 * drained on the way back from upstream. */
static void
pool_leave_closed(gm_pool *pool)
{
    bool look = true; // whether what is pending may have come free
    bool again;

    gm_pool_ref(pool);
    do {
        gm_segment *chain = gm_pool_unlink_idle_locked(pool, NULL, 0, 0);
        bool end = pool_may_end_locked(pool);
        bool waiting = look && (pool->dropped || pool->lanes);

        gm_pool_unlock(pool);
        again = gm_pool_give_back(pool, chain) > 0;
        again |= gm_pages_close(pool);
        if (waiting) {
            gm_pool_flush(pool);
            look = gm_pool_settle(pool) > 0;
            again = true; // both held the lock
        }
        if (end) {
            gm_pool_unref(pool);
        }
        again |= gm_pool_has_deferred(pool);
    } while (again && gm_pool_try_lock(pool));
    gm_pool_unref(pool);
}

void
gm_pool_leave(gm_pool *pool)
{
    if (GM_LIKELY(!pool->attention)) {
        gm_pool_unlock(pool);
    }
    else if (pool->closed) {
        pool_leave_closed(pool);
    }
    else { // something dropped, which alone may have kept the pool
        gm_pool_ref(pool);
        gm_pool_unlock(pool);
        gm_pool_flush(pool);
        gm_pool_unref(pool);
    }
}

void
gm_pool_close(gm_pool *pool)
{
    if (gm_process_is_frozen()) {
        return;
    }
    /* Waiting is safe even in a destructor: a holder needs nothing that the caller may
     * hold, and is done within a few operations. */
    gm_pool_lock(pool);
    pool->closed = true;
    pool->attention = true;
    pool_leave_closed(pool);
}

/* ---- postponed frees ---- */

void
gm_block_defer(_Atomic(gm_block *) *list, gm_block *block)
{
    gm_block *head = atomic_load_explicit(list, memory_order_relaxed);

    do {
        block->u.live.deferred = head;
    } while (!atomic_compare_exchange_weak(list, &head, block));
}

bool
gm_pool_has_deferred(gm_pool *pool)
{
    bool found = gm_block_is_deferred(&pool->deferred);

#if GM_SHARDS
    for (gm_shard *s = gm_pool_first_shard(pool); s; s = s->next) {
        found |= gm_block_is_deferred(&s->deferred);
    }
#endif
    return found;
}

/* The block keeps the pool alive until it is drained; the reference covers the rest of
 * this function. */
void
gm_pool_defer(gm_pool *pool, gm_block *block)
{
    gm_pool_ref(pool);
    gm_block_defer(&pool->deferred, block);
    if (gm_pool_try_lock(pool)) {
        gm_pool_leave(pool);
    }
    gm_pool_unref(pool);
}

/* ---- by address ---- */

static gm_block *
pool_find_locked(gm_pool *pool, uintptr_t addr)
{
    gm_segment *segment = pool->first;
    gm_block *block;

    while (segment && addr - segment->piece.base >= segment->size) {
        segment = segment->next;
    }
    block = segment ? segment->first : NULL;
    while (block && block->addr != addr) {
        block = block->next;
    }
    return block && gm_block_is_live(block) ? block : NULL;
}

/* The bytes of `block` go on under a new node; its own node stays with its handle. */
static gm_block *
pool_void_handle_locked(gm_pool *pool, gm_block *block)
{
    gm_block *twin = gm_block_take(&pool->store);

    /* All but `deferred`, which a free of the handle may be writing just now. */
    *twin = (gm_block){
        .addr = block->addr,
        .size = block->size,
        .prev = block->prev,
        .next = block->next,
        .segment = block->segment,
        .generation = twin->generation,
        .client = block->client,
        .state = block->state,
        .rank = twin->rank,
    };
    if (block->state == GM_BLOCK_NOTED) {
        twin->u.noted.note = block->u.noted.note;
        twin->u.noted.note->block = twin;
    }
    else {
        twin->u.live.requested = block->u.live.requested;
    }
    if (twin->prev) {
        twin->prev->next = twin;
    }
    else {
        twin->segment->first = twin;
    }
    if (twin->next) {
        twin->next->prev = twin;
    }
    block->state = GM_BLOCK_VOID;
    gm_block_retire(block);
    pool->voided++;
    return twin;
}

gm_status
gm_pool_free_address(gm_pool *pool, uintptr_t addr)
{
    gm_status status = GM_OK;
    gm_block *block;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    block = pool_find_locked(pool, addr);
    if (!block) {
        status = GM_ERR_NOT_OWNED;
    }
    else if (!gm_block_store_prepare(&pool->store)) {
        status = GM_ERR_HOST_MEMORY;
    }
    else {
        block = pool_void_handle_locked(pool, block);
        gm_pool_end_handle_locked(pool, block);
    }
    gm_pool_leave(pool);
    return status;
}

gm_status
gm_pool_placement(gm_pool *pool,
                  const gm_block *block,
                  uint32_t generation,
                  uint64_t *serial,
                  size_t *offset)
{
    gm_status status = GM_ERR_NOT_OWNED;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    if (block->generation == generation && gm_block_is_live(block)) {
        *serial = block->segment->serial;
        *offset = block->addr - block->segment->piece.base;
        status = GM_OK;
    }
    gm_pool_leave(pool);
    return status;
}

gm_status
gm_pool_range(gm_pool *pool, const gm_block *block, uint32_t generation, gm_range *out)
{
    gm_status status = GM_ERR_NOT_OWNED;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    if (block->generation == generation && gm_block_is_live(block)) {
        *out = (gm_range){block->segment->piece.base, block->segment->piece.size};
        status = GM_OK;
    }
    gm_pool_leave(pool);
    return status;
}

gm_status
gm_pool_set_limit(gm_pool *pool, size_t limit)
{
    bool above;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    pool->stats.limit_bytes = limit;
    above = limit && pool->stats.total_bytes + pool->paging.withheld > limit;
    gm_pool_unlock(pool);
    if (above) {
        (void)gm_pool_release_idle(pool);
    }
    return GM_OK;
}
