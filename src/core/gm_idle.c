/* SPDX-License-Identifier: MIT
 *
 * Giving idle segments back upstream: all of a pool, or those of one stream.
 *
 * They leave the pool under the lock, all in one chain, and go upstream without it, one
 * after the other, which for a device waits until it is done with them. Bytes on their
 * way out count against the limit until upstream has them, so that the limit holds at
 * every instant; a chain on its way is in flight (gm_process.h), so that a request of
 * another thread that finds no memory can wait for it.
 *
 * What is asked for while a graph is being recorded is done at its end, with the least
 * of the targets that were named meanwhile.
 *
 * Cost: a walk over all segments; then what upstream costs. Threading: any thread, two
 * at once take different segments. When to do it is not decided here.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

void
gm_pool_unlink_segment_locked(gm_pool *pool, gm_segment *segment)
{
    if (segment->prev) {
        segment->prev->next = segment->next;
    }
    else {
        pool->first = segment->next;
    }
    if (segment->next) {
        segment->next->prev = segment->prev;
    }
    else {
        pool->last = segment->prev;
    }
    segment->arena->bytes -= segment->size;
    gm_arena_unpin(&pool->arenas, segment->arena);
    pool->stats.segments--;
    pool->stats.total_bytes -= segment->size;
}

static void
pool_unlink_locked(gm_pool *pool, gm_segment *segment)
{
    gm_block *block = segment->first;

    gm_pool_note_cached_locked(pool);
    gm_index_remove(&segment->arena->index, block);
    gm_block_give(&pool->store, block);
    gm_pool_unlink_segment_locked(pool, segment);
    pool->releasing += segment->size;
}

bool
gm_pool_may_spare_locked(const gm_pool *pool, size_t held, size_t size, size_t floor)
{
    size_t limit = pool->stats.limit_bytes;

    return (held >= size && held - size >= floor) || (limit && held > limit);
}

gm_segment *
gm_pool_unlink_idle_locked(gm_pool *pool,
                           const gm_arena *arena,
                           size_t smallest,
                           size_t floor)
{
    gm_segment *chain = NULL;
    gm_segment **link = &chain;
    gm_segment *segment = gm_process_is_capturing() ? NULL : pool->first;

    while (segment) {
        gm_segment *next = segment->next;

        if (gm_segment_is_idle(segment) && segment->size >= smallest &&
            (!arena || segment->arena == arena) &&
            gm_pool_may_spare_locked(pool, pool->stats.total_bytes, segment->size,
                                     floor)) {
            pool_unlink_locked(pool, segment);
            segment->next = NULL;
            *link = segment;
            link = &segment->next;
        }
        segment = next;
    }
    if (chain) {
        gm_process_flight_begin();
    }
    return chain;
}

size_t
gm_pool_give_back(gm_pool *pool, gm_segment *chain)
{
    size_t bytes = 0;
    size_t count = 0;
    size_t lost = 0;
    size_t lost_bytes = 0;

    if (!chain) {
        return 0;
    }
    while (chain) {
        gm_segment *next = chain->next;

        bytes += chain->size;
        if (gm_pool_has_lost(pool, chain)) {
            lost_bytes += chain->size;
            gm_pool_forget_segment(pool, chain);
            lost++;
        }
        else {
            pool->upstream.give(pool->upstream.context, pool->device, &chain->piece);
            gm_host_free(chain);
            count++;
        }
        chain = next;
    }
    gm_pool_lock(pool);
    pool->releasing -= bytes;
    pool->stats.upstream_frees += count;
    pool->stats.upstream_freed_bytes += bytes - lost_bytes;
    pool->stats.lost_segments += lost;
    pool->stats.lost_bytes += lost_bytes;
    gm_pool_unlock(pool);
    gm_process_flight_end();
    return bytes;
}

/* What is to be left. */
typedef struct least {
    size_t target;   // bytes in all
    bool needed;     // by a request: of the reserve nothing
    size_t smallest; // bytes: segments that are smaller
} least;

/* Does what was asked for once nothing is being recorded any more. */
static void
put_off_locked(gm_pool *pool, size_t target)
{
    if (!pool->trim || target < pool->trim_target) {
        pool->trim_target = target;
    }
    pool->trim = true;
}

/* Releases what is idle of `arena_key`, or all where it is NULL. */
static size_t
release_idle(gm_pool *pool, const gm_stream_key *arena_key, const least *left)
{
    gm_segment *chain = NULL;
    gm_arena *arena = NULL;
    size_t floor = left->target;

    if (gm_process_is_forked()) {
        return 0;
    }
    gm_pool_notice_reset(pool);
    gm_pool_flush(pool);
    (void)gm_pool_settle(pool); // what came free is looked for next
    gm_pool_lock(pool);
    if (gm_process_is_capturing()) {
        put_off_locked(pool, left->target);
    }
    if (!left->needed && floor < pool->stats.reserve_bytes) {
        floor = pool->stats.reserve_bytes;
    }
    if (arena_key) {
        arena = gm_arena_search(&pool->arenas, *arena_key);
    }
    if (!arena_key || arena) {
        chain = gm_pool_unlink_idle_locked(pool, arena, left->smallest, floor);
    }
    gm_pool_unlock(pool);
    return gm_pool_give_back(pool, chain) + gm_pages_release(pool, arena_key, floor);
}

/* The same of all streams, and of what was needed for it. */
static size_t
trim(gm_pool *pool, const least *left)
{
    size_t bytes;

    gm_pools_sweep();
    bytes = release_idle(pool, NULL, left);
    gm_marks_trim(pool); // those of what came free are spare by now
    return bytes;
}

size_t
gm_pool_release_idle(gm_pool *pool)
{
    return gm_pool_trim(pool, 0);
}

size_t
gm_pool_release_idle_of(gm_pool *pool, gm_stream_key key)
{
    return release_idle(pool, &key, &(least){0});
}

size_t
gm_pool_trim(gm_pool *pool, size_t target)
{
    return trim(pool, &(least){.target = target});
}

size_t
gm_pool_reclaim_idle(gm_pool *pool, size_t smallest)
{
    return trim(pool, &(least){.needed = true, .smallest = smallest}) +
           gm_pages_settle(pool, true);
}

gm_status
gm_pool_set_reserve(gm_pool *pool, size_t bytes)
{
    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    pool->stats.reserve_bytes = bytes;
    gm_pool_unlock(pool);
    return GM_OK;
}
