/* SPDX-License-Identifier: MIT
 *
 * Shards: making them, taking all of a pool at once, adding up what they counted. See
 * gm_shard.h for what they are for; hits and frees are gm_hit.c.
 */
#include "gm_shard_private.h"

#if GM_SHARDS

/* ---- life ---- */

/* The shard of a stream, made if there is none and then held like the others: who finds
 * it meanwhile finds it busy. NULL: no host memory. */
static gm_shard *
prepare_locked(gm_pool *pool, gm_stream_key key)
{
    gm_shard *shard = gm_pool_shard(pool, key);

    if (shard) {
        return shard;
    }
    shard = gm_host_zalloc_aligned(_Alignof(gm_shard), sizeof(*shard));
    if (!shard) {
        return NULL;
    }
    shard->pool = pool;
    shard->next = gm_pool_first_shard(pool);
    gm_lock_acquire(&shard->lock);
    atomic_store_explicit(&pool->first_shard, shard, memory_order_release);
    atomic_store_explicit(&pool->shards[key % GM_SHARD_COUNT], shard,
                          memory_order_release);
    return shard;
}

gm_arena *
gm_pool_pin_arena_locked(gm_pool *pool, gm_stream_key key)
{
    gm_shard *shard = prepare_locked(pool, key);
    gm_arena *arena = shard ? gm_arena_pin(&pool->arenas, key) : NULL;

    if (arena) {
        arena->shard = shard;
    }
    return arena;
}

void
gm_shards_fini(gm_pool *pool)
{
    gm_shard *shard = gm_pool_first_shard(pool);

    while (shard) {
        gm_shard *next = shard->next;

        gm_block_store_fini(&shard->store);
        gm_host_free(shard);
        shard = next;
    }
}

/* ---- counters ---- */

static void
add(gm_stats *stats, const gm_stats *more)
{
    stats->requested_bytes += more->requested_bytes;
    stats->used_bytes += more->used_bytes;
    stats->live_blocks += more->live_blocks;
    stats->allocated_requested_bytes += more->allocated_requested_bytes;
    stats->allocated_bytes += more->allocated_bytes;
    stats->hits += more->hits;
    stats->splits += more->splits;
    stats->merges += more->merges;
    stats->deferred_frees += more->deferred_frees;
}

/* Adds up what the shards counted. Each one's highest is taken with what the others
 * count now. */
static void
add_up_locked(gm_pool *pool)
{
    gm_stats *all = &pool->stats;

    for (gm_shard *shard = gm_pool_first_shard(pool); shard; shard = shard->next) {
        add(all, &shard->stats);
    }
    for (gm_shard *shard = gm_pool_first_shard(pool); shard; shard = shard->next) {
        gm_stats *own = &shard->stats;

        gm_stats_raise(&all->peak_requested_bytes, all->requested_bytes -
                                                       own->requested_bytes +
                                                       own->peak_requested_bytes);
        gm_stats_raise(&all->peak_used_bytes,
                       all->used_bytes - own->used_bytes + own->peak_used_bytes);
        gm_stats_raise(&all->peak_live_blocks,
                       all->live_blocks - own->live_blocks + own->peak_live_blocks);
        gm_stats_raise(&all->peak_free_bytes, gm_stats_cached(all) -
                                                  gm_stats_cached(own) +
                                                  own->peak_free_bytes);
        *own = (gm_stats){0};
    }
}

/* Raises a peak that other shards may raise at the same time. */
static void
raise_shared(size_t *peak, size_t now)
{
    size_t known = __atomic_load_n(peak, __ATOMIC_RELAXED);

    while ((ptrdiff_t)now > (ptrdiff_t)known &&
           !__atomic_compare_exchange_n(peak, &known, now, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}

/* Tells of one counter, which is then 0. Returns what it came to without that. */
static size_t
tell(size_t *all, size_t *peak, size_t *own, size_t *own_peak)
{
    size_t before = __atomic_fetch_add(all, *own, __ATOMIC_RELAXED);

    raise_shared(peak, before + *own_peak);
    *own = 0;
    *own_peak = 0;
    return before;
}

void
gm_shard_tell(gm_shard *shard)
{
    gm_stats *all = &shard->pool->stats;
    gm_stats *own = &shard->stats;
    size_t used;

    tell(&all->requested_bytes, &all->peak_requested_bytes, &own->requested_bytes,
         &own->peak_requested_bytes);
    tell(&all->live_blocks, &all->peak_live_blocks, &own->live_blocks,
         &own->peak_live_blocks);
    used = tell(&all->used_bytes, &all->peak_used_bytes, &own->used_bytes,
                &own->peak_used_bytes);
    raise_shared(&all->peak_free_bytes, all->total_bytes - all->pending_bytes -
                                            all->captured_bytes - used +
                                            own->peak_free_bytes);
    own->peak_free_bytes = 0;
}

/* ---- postponed frees ---- */

/* What is not this shard's to take back goes on to whoever holds the pool's lock. */
void
gm_shard_drain(gm_shard *shard)
{
    gm_block *block =
        atomic_exchange_explicit(&shard->deferred, NULL, memory_order_acquire);

    while (block) {
        gm_block *next = block->u.live.deferred;

        if (gm_shard_has(shard, block, block->generation)) {
            shard->stats.deferred_frees++;
            gm_block_retire(block);
            gm_block_take_back(&shard->stats, &shard->store, block);
        }
        else {
            gm_block_defer(&shard->pool->deferred, block);
        }
        block = next;
    }
}

/* As gm_pool_defer. A pool that needs attention is for who has its lock: he looks at
 * the shards' lists as well. */
void
gm_shard_defer(gm_shard *shard, gm_block *block)
{
    gm_pool *pool = shard->pool;

    gm_pool_ref(pool);
    gm_block_defer(&shard->deferred, block);
    if (gm_lock_try(&shard->lock)) {
        if (GM_LIKELY(!pool->attention)) {
            gm_shard_entered(shard);
            gm_shard_leave(shard);
        }
        else {
            gm_lock_release(&shard->lock);
            if (gm_pool_try_lock(pool)) {
                gm_pool_leave(pool);
            }
        }
    }
    gm_pool_unref(pool);
}

/* ---- all at once ---- */

/* The pool's own store has nodes if any shard has. */
static void
collect_nodes_locked(gm_pool *pool)
{
    gm_shard *shard = gm_pool_first_shard(pool);

    while (shard && !pool->store.spare) {
        pool->store.spare = shard->store.spare;
        shard->store.spare = NULL;
        shard = shard->next;
    }
}

/* Gives a shard that has none a few: what was taken from here may have come back
 * there, and the other way. */
static void
share_nodes_locked(gm_pool *pool, gm_shard *shard)
{
    enum {
        SHARE = 16
    };

    for (int i = 0; i < SHARE && pool->store.spare; i++) {
        gm_block_give(&shard->store, gm_block_take(&pool->store));
    }
}

void
gm_shards_enter(gm_pool *pool)
{
    gm_shard *first = gm_pool_first_shard(pool);

    for (gm_shard *shard = first; shard; shard = shard->next) {
        gm_lock_acquire(&shard->lock);
        shard->recent = NULL; // it may end
        shard->echo.block = NULL;
        if (shard->echo.resting) {
            gm_shard_end_rest(shard);
        }
    }
    add_up_locked(pool);
    for (gm_shard *shard = first; shard; shard = shard->next) {
        gm_pool_drain_locked(pool, &shard->deferred);
    }
    gm_pool_drain_locked(pool, &pool->deferred);
    collect_nodes_locked(pool);
}

void
gm_shards_leave(gm_pool *pool)
{
    for (gm_shard *shard = gm_pool_first_shard(pool); shard; shard = shard->next) {
        if (!shard->store.spare) {
            share_nodes_locked(pool, shard);
        }
        gm_lock_release(&shard->lock);
    }
}

#endif
