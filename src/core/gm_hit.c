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
 * out what rests (gm_shard_entered): nobody but these two functions ever sees a
 * pool with a resting block, and placement and counters are those of a pool without
 * echo.
 *
 * The index, for all the rest: gm_index.h finds and takes out the best fit.
 *
 * Where a pool has shards (gm_shard.h), "the pool" is the stream's shard in all this.
 *
 * Cost, both ways together with hit and free: benchmarks/c/instructions.json.
 * Threading: gm_pool.h.
 */
#include "gm_pending.h"
#include "gm_shard_private.h"

/* ---- taking back ---- */

void
gm_pool_cache_locked(gm_pool *pool, gm_block *block)
{
    gm_block_cache(&pool->stats, &pool->store, block);
}

void
gm_pool_end_handle_locked(gm_pool *pool, gm_block *block)
{
    if (GM_LIKELY(block->state == GM_BLOCK_LIVE)) {
        gm_block_retire(block);
        gm_block_take_back(&pool->stats, &pool->store, block);
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
gm_shard_end_rest(gm_shard *shard)
{
    gm_block *resting = shard->echo.resting;

    shard->echo.resting = NULL;
    gm_block_take_back(&shard->stats, &shard->store, resting);
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
hand_out(gm_stats *stats, gm_block *block, const gm_request *request)
{
    block->state = GM_BLOCK_LIVE;
    block->client = request->client;
    block->u.live.requested = request->size;
#if GM_SHARDS
    block->u.live.shard = block->segment->arena->shard;
#endif
    stats->allocated_requested_bytes += request->size;
    stats->allocated_bytes += block->size;
    gm_stats_raise(&stats->peak_requested_bytes,
                   stats->requested_bytes += request->size);
    gm_stats_raise(&stats->peak_used_bytes, stats->used_bytes += block->size);
    gm_stats_raise(&stats->peak_live_blocks, ++stats->live_blocks);
}

void
gm_pool_hand_out_locked(gm_pool *pool, gm_block *block, const gm_request *request)
{
    hand_out(&pool->stats, block, request);
}

/* Serves the request from `arena`, NULL for none. */
static inline gm_status
hit(gm_arena *arena,
    gm_stats *stats,
    gm_block_store *store,
    const gm_request *request,
    size_t rounded,
    gm_block **out)
{
    gm_block *block = GM_LIKELY(arena) ? gm_index_take(&arena->index, rounded) : NULL;

    if (GM_UNLIKELY(!block)) {
        return GM_MISS;
    }
    if (block->size != rounded) {
        if (GM_UNLIKELY(!gm_block_store_prepare(store))) {
            gm_index_put(&arena->index, block);
            return GM_ERR_HOST_MEMORY;
        }
        gm_block_cut(stats, store, &arena->index, block, rounded);
    }
    stats->hits++;
    gm_stats_note_cached(stats);
    hand_out(stats, block, request);
    *out = block;
    return GM_OK;
}

/* What is a miss so far, in a pool whose arenas are hidden from the hit path. */
GM_COLD static gm_status
hit_by_rules(const gm_pool *pool,
             gm_stats *stats,
             gm_block_store *store,
             const gm_request *request,
             gm_block **out)
{
    size_t rounded = gm_size_round(request->size);
    gm_status status = gm_large_take(pool, stats, store, request->key, rounded, out);

    if (status == GM_OK) {
        stats->hits++;
        gm_stats_note_cached(stats);
        hand_out(stats, *out, request);
    }
    return status;
}

gm_status
gm_pool_hit_locked(gm_pool *pool,
                   const gm_request *request,
                   size_t rounded,
                   gm_block **out)
{
    gm_status status = hit(gm_arena_find(&pool->arenas, request->key), &pool->stats,
                           &pool->store, request, rounded, out);

    return status == GM_MISS
               ? hit_by_rules(pool, &pool->stats, &pool->store, request, out)
               : status;
}

/* The request by the index, with the shard's lock, which it lets go. What it got is the
 * next echo. */
GM_NOINLINE static gm_status
shard_serve(gm_shard *shard, const gm_request *request, gm_block **out)
{
    size_t splits;
    gm_status status;

    gm_shard_entered(shard);
    splits = shard->stats.splits;
    status = hit(gm_shard_find_arena(shard, request->key), &shard->stats, &shard->store,
                 request, gm_size_round(request->size), out);
    if (GM_UNLIKELY(status == GM_MISS)) {
        status = hit_by_rules(gm_shard_pool(shard), &shard->stats, &shard->store,
                              request, out);
    }
    else if (GM_LIKELY(status == GM_OK && !gm_shard_pool(shard)->attention)) {
        shard->echo.block = *out;
        shard->echo.key = request->key;
        shard->echo.cuts = shard->stats.splits - splits;
    }
    gm_shard_leave(shard);
    return status;
}

/* Hands out what rests once more: to the counters it was joined with what it was cut
 * off, and cut off again. */
static inline gm_block *
shard_echo(gm_shard *shard, gm_block *block, const gm_request *request)
{
    gm_stats *stats = &shard->stats;

    shard->echo.resting = NULL;
    stats->hits++;
    stats->splits += shard->echo.cuts;
    stats->merges += shard->echo.cuts;
    stats->allocated_requested_bytes += request->size;
    stats->allocated_bytes += block->size;
    stats->requested_bytes += request->size - block->u.live.requested;
    gm_stats_raise(&stats->peak_requested_bytes, stats->requested_bytes);
    block->u.live.requested = request->size;
    block->client = request->client;
    return block;
}

gm_status
gm_pool_malloc(gm_pool *pool, const gm_request *request, gm_block **out)
{
    gm_status status = gm_request_check(request);
    gm_shard *shard;
    gm_block *resting;

    if (GM_UNLIKELY(status != GM_OK)) {
        return status;
    }
    if (gm_process_is_special()) {
        return GM_MISS;
    }
    shard = gm_pool_shard(pool, request->key);
    if (GM_SHARDS && GM_UNLIKELY(!shard)) {
        return GM_MISS;
    }
    if (GM_UNLIKELY(!gm_lock_try(&shard->lock))) {
        return GM_BUSY;
    }
    resting = shard->echo.resting;
    if (resting && resting->size == gm_size_round(request->size) &&
        shard->echo.key == request->key &&
        !atomic_load_explicit(&shard->deferred, memory_order_relaxed)) {
        *out = shard_echo(shard, resting, request);
        gm_lock_release(&shard->lock);
        return GM_OK;
    }
    return shard_serve(shard, request, out);
}

/* ---- freeing ---- */

/* The free with the pool's lock, which it lets go. */
static inline void
pool_end_handle(gm_pool *pool, gm_block *block, uint32_t generation)
{
    if (GM_LIKELY(block->generation == generation) || block->state == GM_BLOCK_VOID) {
        gm_pool_end_handle_locked(pool, block);
    }
    if (GM_LIKELY(!pool->attention)) {
        gm_shards_leave(pool);
        gm_lock_release(&pool->lock);
    }
    else {
        gm_pool_leave(pool);
    }
}

#if GM_SHARDS

/* What a shard cannot do alone. */
GM_NOINLINE static void
pool_free(gm_pool *pool, gm_block *block, uint32_t generation)
{
    if (gm_pool_try_lock(pool)) {
        pool_end_handle(pool, block, generation);
    }
    else {
        gm_pool_defer(pool, block);
    }
}

/* The free by the index, with the shard's lock, which it lets go. The block keeps the
 * pool until it is back. */
GM_NOINLINE static void
shard_end_handle(gm_shard *shard, gm_block *block, uint32_t generation)
{
    gm_pool *pool = shard->pool;

    if (GM_UNLIKELY(!gm_shard_has(shard, block, generation) || pool->attention)) {
        gm_lock_release(&shard->lock);
        pool_free(pool, block, generation);
        return;
    }
    gm_shard_entered(shard);
    gm_block_retire(block);
    gm_block_take_back(&shard->stats, &shard->store, block);
    gm_shard_leave(shard);
}

#else

/* The same without shards. */
GM_NOINLINE static void
shard_end_handle(gm_shard *shard, gm_block *block, uint32_t generation)
{
    gm_shard_entered(shard);
    pool_end_handle(shard, block, generation);
}

#endif

void
gm_pool_free(gm_pool *pool, gm_block *block, uint32_t generation)
{
    gm_shard *shard;

    if (gm_process_is_frozen()) {
        return;
    }
    shard = gm_pool_shard_of(pool, block, generation);
#if GM_SHARDS
    if (GM_UNLIKELY(!shard)) {
        pool_free(pool, block, generation);
        return;
    }
#endif
    if (GM_UNLIKELY(!gm_lock_try(&shard->lock))) {
        gm_shard_defer(shard, block);
        return;
    }
    if (block == shard->echo.block && block->generation == generation) {
        gm_block_retire(block);
        shard->echo.resting = block;
        gm_lock_release(&shard->lock);
        return;
    }
    shard_end_handle(shard, block, generation);
}
