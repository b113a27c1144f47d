/* SPDX-License-Identifier: MIT
 *
 * The pool's life and its hit path: find the best fit, split, hand out; take back, join
 * with the neighbours. See gm_pool.h for the policy and the contracts; the miss path is
 * gm_reclaim.c.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

gm_status
gm_pool_new(int device, gm_upstream upstream, gm_pool **out)
{
    gm_pool *pool = gm_host_zalloc(sizeof(*pool));

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
gm_pool_set_segment_unit(gm_pool *pool, size_t unit)
{
    GM_ASSERT(unit > 0 && unit % GM_UNIT == 0 && pool->stats.misses == 0);
    pool->segment_unit = unit;
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

/* ---- taking back ---- */

void
gm_pool_cache_locked(gm_pool *pool, gm_block *block)
{
    gm_index *index = &block->segment->arena->index;
    gm_block *next = block->next;
    gm_block *prev = block->prev;

    if (next && next->state == GM_BLOCK_FREE) {
        gm_index_remove(index, next);
        gm_block_absorb_next(block);
        gm_block_give(&pool->store, next);
        pool->stats.free_blocks--;
        pool->stats.merges++;
    }
    if (prev && prev->state == GM_BLOCK_FREE) {
        gm_index_remove(index, prev);
        gm_block_absorb_next(prev);
        gm_block_give(&pool->store, block);
        pool->stats.free_blocks--;
        pool->stats.merges++;
        block = prev;
    }
    block->state = GM_BLOCK_FREE;
    gm_index_put(index, block);
    pool->stats.free_blocks++;
}

static void
pool_take_back_locked(gm_pool *pool, gm_block *block)
{
    pool->stats.used_bytes -= block->size;
    pool->stats.requested_bytes -= block->u.live.requested;
    pool->stats.live_blocks--;
    block->generation++;
    gm_pool_cache_locked(pool, block);
}

/* Ends the handle of `block`, with its bytes unless those went back by address. */
static void
pool_end_handle_locked(gm_pool *pool, gm_block *block)
{
    if (GM_LIKELY(block->state == GM_BLOCK_LIVE)) {
        pool_take_back_locked(pool, block);
    }
    else if (block->state == GM_BLOCK_NOTED) {
        gm_pool_take_back_noted_locked(pool, block);
    }
    else if (block->state == GM_BLOCK_VOID) {
        gm_block_give(&pool->store, block);
        pool->voided--;
    }
}

/* ---- the lock ---- */

GM_COLD static void
pool_drain_locked(gm_pool *pool)
{
    gm_block *block =
        atomic_exchange_explicit(&pool->deferred, NULL, memory_order_acquire);

    while (block) {
        gm_block *next = block->u.live.deferred;

        pool->stats.deferred_frees++;
        pool_end_handle_locked(pool, block);
        block = next;
    }
}

static inline void
pool_entered(gm_pool *pool)
{
    if (GM_UNLIKELY(atomic_load_explicit(&pool->deferred, memory_order_relaxed) !=
                    NULL)) {
        pool_drain_locked(pool);
    }
}

void
gm_pool_lock(gm_pool *pool)
{
    gm_lock_acquire(&pool->lock);
    pool_entered(pool);
}

bool
gm_pool_try_lock(gm_pool *pool)
{
    if (GM_UNLIKELY(!gm_lock_try(&pool->lock))) {
        return false;
    }
    pool_entered(pool);
    return true;
}

void
gm_pool_unlock(gm_pool *pool)
{
    gm_lock_release(&pool->lock);
}

/* ---- the end ---- */

/* Whether a closed pool has nothing left. Where it has, but nobody holds it, it waits
 * for a device, and is counted among those who do. */
static bool
pool_may_end_locked(gm_pool *pool)
{
    bool held = pool->stats.live_blocks || pool->voided;
    bool end = !held && !pool->first && !pool->parts;

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
 * drained on the way back from upstream. The look is a read-modify-write so that either
 * it sees the postponed free or the free sees the lock released. */
static void
pool_leave_closed(gm_pool *pool)
{
    bool look = true; // whether what is pending may have come free
    bool again;

    gm_pool_ref(pool);
    do {
        gm_segment *chain = gm_pool_unlink_idle_locked(pool, NULL);
        bool end = pool_may_end_locked(pool);
        bool waiting = look && (pool->dropped || pool->lanes);

        gm_pool_unlock(pool);
        again = gm_pool_give_back(pool, chain) > 0;
        if (waiting) {
            gm_pool_flush(pool);
            look = gm_pool_settle(pool) > 0;
            again = true; // both held the lock
        }
        if (end) {
            gm_pool_unref(pool);
        }
        again |= atomic_fetch_add(&pool->deferred, 0) != NULL;
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

/* ---- handing out ---- */

gm_status
gm_request_check(const gm_request *request)
{
    if (GM_UNLIKELY(request->size - 1 >= GM_SIZE_MAX)) {
        return request->size ? GM_ERR_TOO_LARGE : GM_ERR_INVALID_VALUE;
    }
    return GM_OK;
}

void
gm_pool_hand_out_locked(gm_pool *pool, gm_block *block, const gm_request *request)
{
    gm_stats *stats = &pool->stats;

    block->state = GM_BLOCK_LIVE;
    block->client = request->client;
    block->u.live.requested = request->size;
    stats->live_blocks++;
    stats->requested_bytes += request->size;
    stats->used_bytes += block->size;
    stats->allocated_requested_bytes += request->size;
    stats->allocated_bytes += block->size;
    if (stats->requested_bytes > stats->peak_requested_bytes) {
        stats->peak_requested_bytes = stats->requested_bytes;
    }
    if (stats->used_bytes > stats->peak_used_bytes) {
        stats->peak_used_bytes = stats->used_bytes;
    }
    if (stats->live_blocks > stats->peak_live_blocks) {
        stats->peak_live_blocks = stats->live_blocks;
    }
}

gm_status
gm_pool_hit_locked(gm_pool *pool,
                   const gm_request *request,
                   size_t rounded,
                   gm_block **out)
{
    gm_arena *arena = gm_arena_find(&pool->arenas, request->key);
    gm_block *block = arena ? gm_index_best(&arena->index, rounded) : NULL;

    if (!block) {
        return GM_MISS;
    }
    if (block->size != rounded && !gm_block_store_prepare(&pool->store)) {
        return GM_ERR_HOST_MEMORY;
    }
    if (!gm_pool_carve_locked(pool, &arena->index, block, rounded)) {
        pool->stats.free_blocks--;
    }
    pool->stats.hits++;
    gm_pool_note_cached_locked(pool);
    gm_pool_hand_out_locked(pool, block, request);
    *out = block;
    return GM_OK;
}

gm_status
gm_pool_malloc(gm_pool *pool, const gm_request *request, gm_block **out)
{
    gm_status status = gm_request_check(request);

    if (GM_UNLIKELY(status != GM_OK)) {
        return status;
    }
    if (gm_process_is_special()) {
        return GM_MISS;
    }
    if (GM_UNLIKELY(!gm_pool_try_lock(pool))) {
        return GM_BUSY;
    }
    status = gm_pool_hit_locked(pool, request, gm_size_round(request->size), out);
    gm_pool_unlock(pool);
    return status;
}

/* ---- freeing ---- */

/* Leaves the end of a handle to whoever holds the lock next. The block keeps the pool
 * alive until it is drained; the reference covers the rest of this function. */
GM_COLD static void
pool_defer(gm_pool *pool, gm_block *block)
{
    gm_block *head = atomic_load_explicit(&pool->deferred, memory_order_relaxed);

    gm_pool_ref(pool);
    do {
        block->u.live.deferred = head;
    } while (!atomic_compare_exchange_weak(&pool->deferred, &head, block));
    if (gm_pool_try_lock(pool)) {
        gm_pool_leave(pool);
    }
    gm_pool_unref(pool);
}

void
gm_pool_free(gm_pool *pool, gm_block *block, uint32_t generation)
{
    if (gm_process_is_frozen()) {
        return;
    }
    if (GM_UNLIKELY(!gm_pool_try_lock(pool))) {
        pool_defer(pool, block);
        return;
    }
    if (GM_LIKELY(block->generation == generation) || block->state == GM_BLOCK_VOID) {
        pool_end_handle_locked(pool, block);
    }
    gm_pool_leave(pool);
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
    block->generation++;
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
        pool_end_handle_locked(pool, block);
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
gm_pool_set_limit(gm_pool *pool, size_t limit)
{
    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    pool->stats.limit_bytes = limit;
    gm_pool_unlock(pool);
    return GM_OK;
}
