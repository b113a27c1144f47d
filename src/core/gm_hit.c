/* SPDX-License-Identifier: MIT
 *
 * The hit path: take the best fit, cut, hand out; take back, join with the neighbours.
 *
 * Two ways through it, each function of which is one of:
 *
 * The echo. A program that asks, gives back and asks for the same again, as temporaries
 * do, gets the same bytes each time: giving back the block of the last request makes
 * the pool what it was before that request, and what an equal request gets depends on
 * nothing else. So such a block is not put back, only left to rest, and the equal
 * request takes it from there. Whatever else anybody does with the pool first carries
 * out what rests (gm_pool_entered_locked): nobody but these two functions ever sees a
 * pool with a resting block, and placement and counters are those of a pool without
 * echo.
 *
 * The index, for all the rest: gm_index.h finds and takes out the best fit.
 *
 * Cost, both ways together with hit and free: benchmarks/c/instructions.json.
 * Threading: gm_pool.h.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

/* ---- taking back ---- */

static inline void
pool_cache_locked(gm_pool *pool, gm_block *block)
{
    gm_index *index = &block->segment->arena->index;
    gm_block *next = block->next;
    gm_block *prev = block->prev;

    if (next && next->state == GM_BLOCK_FREE) {
        gm_index_remove(index, next);
        gm_block_absorb_next(block);
        gm_block_give(&pool->store, next);
        pool->stats.merges++;
    }
    if (prev && prev->state == GM_BLOCK_FREE) {
        gm_index_remove(index, prev);
        gm_block_absorb_next(prev);
        gm_block_give(&pool->store, block);
        pool->stats.merges++;
        block = prev;
    }
    block->state = GM_BLOCK_FREE;
    gm_index_put(index, block);
}

void
gm_pool_cache_locked(gm_pool *pool, gm_block *block)
{
    pool_cache_locked(pool, block);
}

/* A LIVE block whose generation was changed goes back. */
static inline void
pool_take_back_locked(gm_pool *pool, gm_block *block)
{
    pool->stats.used_bytes -= block->size;
    pool->stats.requested_bytes -= block->u.live.requested;
    pool->stats.live_blocks--;
    pool_cache_locked(pool, block);
}

void
gm_pool_end_handle_locked(gm_pool *pool, gm_block *block)
{
    if (GM_LIKELY(block->state == GM_BLOCK_LIVE)) {
        block->generation++;
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

void
gm_pool_end_rest_locked(gm_pool *pool)
{
    gm_block *resting = pool->echo.resting;

    pool->echo.resting = NULL;
    pool_take_back_locked(pool, resting);
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

static inline void
raise_peak(size_t *peak, size_t now)
{
    if (GM_UNLIKELY(now > *peak)) {
        *peak = now;
    }
}

static inline void
pool_hand_out_locked(gm_pool *pool, gm_block *block, const gm_request *request)
{
    gm_stats *stats = &pool->stats;

    block->state = GM_BLOCK_LIVE;
    block->client = request->client;
    block->u.live.requested = request->size;
    stats->allocated_requested_bytes += request->size;
    stats->allocated_bytes += block->size;
    raise_peak(&stats->peak_requested_bytes, stats->requested_bytes += request->size);
    raise_peak(&stats->peak_used_bytes, stats->used_bytes += block->size);
    raise_peak(&stats->peak_live_blocks, ++stats->live_blocks);
}

void
gm_pool_hand_out_locked(gm_pool *pool, gm_block *block, const gm_request *request)
{
    pool_hand_out_locked(pool, block, request);
}

static inline gm_status
pool_hit_locked(gm_pool *pool,
                const gm_request *request,
                size_t rounded,
                gm_block **out)
{
    gm_arena *arena = gm_arena_find(&pool->arenas, request->key);
    gm_block *block = GM_LIKELY(arena) ? gm_index_take(&arena->index, rounded) : NULL;

    if (GM_UNLIKELY(!block)) {
        return GM_MISS;
    }
    if (block->size != rounded) {
        if (GM_UNLIKELY(!gm_block_store_prepare(&pool->store))) {
            gm_index_put(&arena->index, block);
            return GM_ERR_HOST_MEMORY;
        }
        gm_pool_cut_locked(pool, &arena->index, block, rounded);
    }
    pool->stats.hits++;
    gm_pool_note_cached_locked(pool);
    pool_hand_out_locked(pool, block, request);
    *out = block;
    return GM_OK;
}

gm_status
gm_pool_hit_locked(gm_pool *pool,
                   const gm_request *request,
                   size_t rounded,
                   gm_block **out)
{
    return pool_hit_locked(pool, request, rounded, out);
}

/* The request by the index, with the lock, which it lets go. What it got is the next
 * echo. */
GM_NOINLINE static gm_status
pool_serve(gm_pool *pool, const gm_request *request, gm_block **out)
{
    size_t splits;
    gm_status status;

    gm_pool_entered_locked(pool);
    splits = pool->stats.splits;
    status = pool_hit_locked(pool, request, gm_size_round(request->size), out);
    if (GM_LIKELY(status == GM_OK && !pool->attention)) {
        pool->echo.block = *out;
        pool->echo.key = request->key;
        pool->echo.cuts = pool->stats.splits - splits;
    }
    gm_lock_release(&pool->lock);
    return status;
}

/* Hands out what rests once more: to the counters it was joined with what it was cut
 * off, and cut off again. */
static inline gm_block *
pool_echo_locked(gm_pool *pool, gm_block *block, const gm_request *request)
{
    gm_stats *stats = &pool->stats;

    pool->echo.resting = NULL;
    stats->hits++;
    stats->splits += pool->echo.cuts;
    stats->merges += pool->echo.cuts;
    stats->allocated_requested_bytes += request->size;
    stats->allocated_bytes += block->size;
    stats->requested_bytes += request->size - block->u.live.requested;
    raise_peak(&stats->peak_requested_bytes, stats->requested_bytes);
    block->u.live.requested = request->size;
    block->client = request->client;
    return block;
}

gm_status
gm_pool_malloc(gm_pool *pool, const gm_request *request, gm_block **out)
{
    gm_status status = gm_request_check(request);
    gm_block *resting;

    if (GM_UNLIKELY(status != GM_OK)) {
        return status;
    }
    if (gm_process_is_special()) {
        return GM_MISS;
    }
    if (GM_UNLIKELY(!gm_lock_try(&pool->lock))) {
        return GM_BUSY;
    }
    resting = pool->echo.resting;
    if (resting && resting->size == gm_size_round(request->size) &&
        pool->echo.key == request->key &&
        !atomic_load_explicit(&pool->deferred, memory_order_relaxed)) {
        *out = pool_echo_locked(pool, resting, request);
        gm_lock_release(&pool->lock);
        return GM_OK;
    }
    return pool_serve(pool, request, out);
}

/* ---- freeing ---- */

/* The free by the index, with the lock, which it lets go. */
GM_NOINLINE static void
pool_end_handle(gm_pool *pool, gm_block *block, uint32_t generation)
{
    gm_pool_entered_locked(pool);
    if (GM_LIKELY(block->generation == generation) || block->state == GM_BLOCK_VOID) {
        gm_pool_end_handle_locked(pool, block);
    }
    if (GM_LIKELY(!pool->attention)) {
        gm_lock_release(&pool->lock);
    }
    else {
        gm_pool_leave(pool);
    }
}

void
gm_pool_free(gm_pool *pool, gm_block *block, uint32_t generation)
{
    if (gm_process_is_frozen()) {
        return;
    }
    if (GM_UNLIKELY(!gm_lock_try(&pool->lock))) {
        gm_pool_defer(pool, block);
        return;
    }
    if (block == pool->echo.block && block->generation == generation) {
        block->generation++;
        pool->echo.resting = block;
        gm_lock_release(&pool->lock);
        return;
    }
    pool_end_handle(pool, block, generation);
}
