/* SPDX-License-Identifier: MIT
 *
 * What is done with a shard (gm_shard.h), in both kinds of build, for gm_hit.c,
 * gm_pool.c, gm_pending.c and gm_shard.c alone.
 *
 * Threading: its lock is held, where nothing else is said.
 */
#ifndef GM_SHARD_PRIVATE_H
#define GM_SHARD_PRIVATE_H

#include "gm_pool_private.h"

/* Postpones a free. No lock needed. */
void gm_block_defer(_Atomic(gm_block *) *list, gm_block *block);

/* Whether one was postponed. A read-modify-write: either it sees the free, or the free
 * sees each lock released that was before. No lock needed. */
static inline bool
gm_block_is_deferred(_Atomic(gm_block *) *list)
{
    return atomic_fetch_add(list, 0) != NULL;
}

/* Carries out postponed frees. The pool's lock is held. */
void gm_pool_drain_locked(gm_pool *pool, _Atomic(gm_block *) *list);

/* Carries out the free of the block that rests; and postponed frees, as far as a shard
 * may. */
GM_NOINLINE void gm_shard_end_rest(gm_shard *shard);
GM_COLD void gm_shard_drain(gm_shard *shard);

/* The first thing done with the lock, but for what the echo serves. */
static inline void
gm_shard_entered(gm_shard *shard)
{
    shard->echo.block = NULL;
    if (shard->echo.resting) {
        gm_shard_end_rest(shard);
    }
    if (GM_UNLIKELY(atomic_load_explicit(&shard->deferred, memory_order_relaxed) !=
                    NULL)) {
        gm_shard_drain(shard);
    }
}

/* Puts a block that nobody uses any more among the free ones of its arena, joined with
 * free neighbours. */
static inline void
gm_block_cache(gm_stats *stats, gm_block_store *store, gm_block *block)
{
    gm_index *index = &block->segment->arena->index;
    gm_block *next = block->next;
    gm_block *prev = block->prev;

    if (next && next->state == GM_BLOCK_FREE) {
        gm_index_remove(index, next);
        gm_block_absorb_next(block);
        gm_block_give(store, next);
        stats->merges++;
    }
    if (prev && prev->state == GM_BLOCK_FREE) {
        gm_index_remove(index, prev);
        gm_block_absorb_next(prev);
        gm_block_give(store, block);
        stats->merges++;
        block = prev;
    }
    block->state = GM_BLOCK_FREE;
    gm_index_put(index, block);
}

/* The same with a LIVE block whose generation was changed. */
static inline void
gm_block_take_back(gm_stats *stats, gm_block_store *store, gm_block *block)
{
    stats->used_bytes -= block->size;
    stats->requested_bytes -= block->u.live.requested;
    stats->live_blocks--;
    gm_block_cache(stats, store, block);
}

#if GM_SHARDS

static inline gm_pool *
gm_shard_pool(const gm_shard *shard)
{
    return shard->pool;
}

/* The shard of a stream; NULL: none, so that it has no memory. No lock needed. */
static inline gm_shard *
gm_pool_shard(const gm_pool *pool, gm_stream_key key)
{
    return atomic_load_explicit(&pool->shards[key % GM_SHARD_COUNT],
                                memory_order_acquire);
}

/* Where a block was handed out; NULL where the handle is void. For whoever ends the
 * handle, which nobody else does meanwhile; no lock needed then. */
static inline gm_shard *
gm_pool_shard_of(gm_pool *pool, const gm_block *block, uint32_t generation)
{
    (void)pool;
    return __atomic_load_n(&block->generation, __ATOMIC_RELAXED) == generation
               ? block->u.live.shard
               : NULL;
}

/* Whether the block of that handle is live, of this shard's memory, and in use on its
 * own stream alone. */
static inline bool
gm_shard_has(const gm_shard *shard, const gm_block *block, uint32_t generation)
{
    return block->generation == generation && block->state == GM_BLOCK_LIVE &&
           block->segment->arena->shard == shard;
}

/* The arena of a key of this shard; NULL for none. */
static inline gm_arena *
gm_shard_find_arena(gm_shard *shard, gm_stream_key key)
{
    const gm_arena_table *table = &shard->pool->arenas;
    gm_arena *recent = shard->recent;

    if (GM_LIKELY(recent && recent->key == key)) {
        return recent;
    }
    return shard->recent = table->hidden ? NULL : gm_arena_search(table, key);
}

/* Tells the pool what was counted, for the peaks. */
GM_COLD void gm_shard_tell(gm_shard *shard);

static inline bool
gm_shard_is_late(size_t count, size_t most)
{
    return count + most > 2 * most;
}

/* Lets go of a shard where something was counted. */
static inline void
gm_shard_leave(gm_shard *shard)
{
    const gm_stats *stats = &shard->stats;

    if (GM_UNLIKELY(gm_shard_is_late(stats->used_bytes, GM_SHARD_LATE) ||
                    gm_shard_is_late(stats->requested_bytes, GM_SHARD_LATE) ||
                    gm_shard_is_late(stats->live_blocks, GM_SHARD_LATE_BLOCKS))) {
        gm_shard_tell(shard);
    }
    gm_lock_release(&shard->lock);
}

/* The shard's lock is busy: leaves the end of a handle to whoever holds it next. */
GM_COLD void gm_shard_defer(gm_shard *shard, gm_block *block);

/* The shards that a pool has, by `next`. No lock needed. */
static inline gm_shard *
gm_pool_first_shard(const gm_pool *pool)
{
    return atomic_load_explicit(&pool->first_shard, memory_order_acquire);
}

/* With the pool's lock: takes all shards, what they counted and what was left to do;
 * lets go of them. */
void gm_shards_enter(gm_pool *pool);
void gm_shards_leave(gm_pool *pool);

/* At the pool's end. */
void gm_shards_fini(gm_pool *pool);

#else

static inline gm_pool *
gm_shard_pool(gm_shard *shard)
{
    return shard;
}

static inline gm_shard *
gm_pool_shard(gm_pool *pool, gm_stream_key key)
{
    (void)key;
    return pool;
}

static inline gm_shard *
gm_pool_shard_of(gm_pool *pool, const gm_block *block, uint32_t generation)
{
    (void)block;
    (void)generation;
    return pool;
}

static inline gm_arena *
gm_shard_find_arena(gm_shard *shard, gm_stream_key key)
{
    return gm_arena_find(&shard->arenas, key);
}

static inline void
gm_shard_leave(gm_shard *shard)
{
    gm_lock_release(&shard->lock);
}

static inline void
gm_shard_defer(gm_shard *shard, gm_block *block)
{
    gm_pool_defer(shard, block);
}

static inline void
gm_shards_enter(gm_pool *pool)
{
    gm_shard_entered(pool);
}

static inline void
gm_shards_leave(gm_pool *pool)
{
    (void)pool;
}

static inline void
gm_shards_fini(gm_pool *pool)
{
    (void)pool;
}

#endif
#endif
