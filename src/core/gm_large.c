/* SPDX-License-Identifier: MIT
 *
 * Rules for large requests, for owners who want them: blocks that stay whole, and
 * segments that similar requests can use in turn.
 *
 * A pool that always cuts may cut a large block for a small request that lives long,
 * and the next large request finds no room: fragmentation that no later free mends
 * before the small one goes. The rules are those of PyTorch's caching allocator
 * (get_free_block, should_split and get_allocation_size in its
 * c10/cuda/CUDACachingAllocator.cpp), whose names they have. With M the
 * max_split_size, R the max_non_split_rounding, b the best fit for r rounded bytes:
 *
 *   - r below M: b is refused if it has M bytes or more. Else it is cut; but where r is
 *     above GM_LARGE and what would be left is not, it is handed out whole.
 *   - r of M or more: b is refused if it has R bytes more than r, or above; else it is
 *     handed out whole. One of just r bytes always serves.
 *   - a segment for r above GM_LARGE is a whole multiple of large_segment_size, as far
 *     as that does not make it one of M or more for a request below M. So every free
 *     block of M or more is a whole segment, which goes back when memory runs out: no
 *     request fails for a rule's sake.
 *
 * What is refused is a miss, like what is not there. Where nothing could be taken
 * instead, the rules do not hold: a recording, which may not ask the device
 * (gm_part.c), and a request that would fail (gm_lend.c) cut whatever fits.
 *
 * What differs from there: small requests have no segments of their own, so they may be
 * cut off any block below M, however little is left of it.
 *
 * The hit path knows nothing of this. A pool that cuts by rules hides its arenas from
 * it (gm_arena_table), so that each of its requests finds nothing there and comes here;
 * it has no echo (gm_hit.c). Frees are as ever.
 *
 * Cost: a hash lookup and a search more than a hit. Threading: the pool's lock is held,
 * or where said that of a shard.
 */
#include "gm_pool_private.h"

void
gm_pool_set_large_rules(gm_pool *pool, const gm_large_rules *rules)
{
    GM_ASSERT(pool->stats.misses == 0 && !pool->growth_step);
    GM_ASSERT(rules->large_segment_size <= GM_SIZE_MAX &&
              rules->large_segment_size % GM_UNIT == 0);
    pool->large = *rules;
    pool->arenas.hidden = rules->max_split_size != 0;
}

bool
gm_large_cuts(const gm_pool *pool, size_t size, size_t rounded)
{
    size_t most = pool->large.max_split_size;

    if (size == rounded) {
        return false;
    }
    return !most ||
           (rounded < most && (rounded <= GM_LARGE || size - rounded > GM_LARGE));
}

/* Whether the rules give a block of `size` bytes to a request of `rounded`. */
static bool
may_serve(const gm_large_rules *rules, size_t size, size_t rounded)
{
    size_t most = rules->max_split_size;

    if (!most || size == rounded) {
        return true;
    }
    return rounded < most ? size < most
                          : size - rounded < rules->max_non_split_rounding;
}

gm_block *
gm_large_best(const gm_pool *pool, const gm_arena *arena, size_t rounded)
{
    gm_block *block = gm_index_best(&arena->index, rounded);

    return block && may_serve(&pool->large, block->size, rounded) ? block : NULL;
}

gm_status
gm_large_take(const gm_pool *pool,
              gm_stats *stats,
              gm_block_store *store,
              gm_stream_key key,
              size_t rounded,
              gm_block **out)
{
    gm_arena *arena = pool->arenas.hidden ? gm_arena_search(&pool->arenas, key) : NULL;
    gm_block *block = arena ? gm_large_best(pool, arena, rounded) : NULL;
    bool cut;

    if (!block) {
        return GM_MISS;
    }
    cut = gm_large_cuts(pool, block->size, rounded);
    if (cut && !gm_block_store_prepare(store)) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_index_remove(&arena->index, block);
    if (cut) {
        gm_block_cut(stats, store, &arena->index, block, rounded);
    }
    *out = block;
    return GM_OK;
}

size_t
gm_large_segment(const gm_pool *pool, size_t rounded)
{
    size_t unit = pool->large.large_segment_size;
    size_t most = pool->large.max_split_size;
    size_t odd = rounded % unit;
    size_t bytes = odd ? rounded - odd + unit : rounded; // one too large is refused

    return rounded <= GM_LARGE || (rounded < most && bytes >= most) ? rounded : bytes;
}
