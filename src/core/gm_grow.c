/* SPDX-License-Identifier: MIT
 *
 * How large a segment a request gets that the cache cannot serve.
 *
 * Exactly as large as the rounded request, unless the pool's owner chose otherwise,
 * which is one of whole multiples for large requests (gm_large.c) and
 *
 * Whole units. What the request leaves of the last one is cached.
 *
 * Growth, so that one call upstream serves many requests of a pool that starts cold.
 * The segment is larger than its request by the lead, which is the least of
 *
 *   - a share of what the stream holds then, but at least one step: so the calls are
 *     few, the more the pool holds the fewer;
 *   - what the bound leaves: with the lead, no more is cached than is in use, or than a
 *     step for each stream that holds memory, whichever is more. So growth alone never
 *     takes a pool past twice what it needs, and memory that was given back, of
 *     whichever stream, comes before more of it;
 *   - what fills half of the pool's reach, which is its limit or, where that is less,
 *     what it holds and upstream has room for. A lead that is left over in the end is
 *     too small for somebody, and where memory is short that would be a request that
 *     fails for growth's sake; so from there on each gets what it needs.
 *
 * The segment is cut to whole grains, since drivers back memory by large pages.
 *
 * The bound counts the leads that are on their way, so that it holds whatever threads
 * do. It is about the moment at which a segment is taken: what a program gives back
 * later is cached too.
 *
 * Cost: a few comparisons a miss under the lock, and with growth one question about
 * upstream's room without it. Threading: as said at each. What this does not do is give
 * way where upstream has no room after all: gm_miss.c then asks for the request alone.
 */
#include "gm_pool_private.h"

enum {
    SHARE = 8,         // the lead is an eighth of what the stream holds
    GRAIN = 2u << 20u, // bytes
};

void
gm_pool_set_segment_unit(gm_pool *pool, size_t unit)
{
    GM_ASSERT(unit > 0 && unit <= GM_SIZE_MAX && unit % GM_UNIT == 0);
    GM_ASSERT(pool->stats.misses == 0);
    pool->segment_unit = unit;
}

void
gm_pool_set_growth(gm_pool *pool, size_t step)
{
    GM_ASSERT(pool->stats.misses == 0);
    pool->growth_step = step;
}

static size_t
least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* What is left of `all` beyond `part`. */
static size_t
beyond(size_t all, size_t part)
{
    return all > part ? all - part : 0;
}

size_t
gm_grow_room(const gm_pool *pool)
{
    const gm_upstream *up = &pool->upstream;
    gm_room room = {.largest = SIZE_MAX};
    gm_status status = GM_OK;

    if (pool->growth_step && up->room) {
        status = up->room(up->context, pool->device, NULL, 0, &room);
    }
    /* No time for more than what is needed. */
    return status == GM_OK || status == GM_ERR_UNSUPPORTED ? room.largest : 0;
}

/* What the bound leaves for a lead, with `rounded` bytes more in use. */
static size_t
bound_locked(const gm_pool *pool, const gm_arena *arena, size_t rounded)
{
    size_t streams = pool->arenas.count + (arena ? 0 : 1);
    size_t step = pool->growth_step;
    size_t used = pool->stats.used_bytes + rounded;
    size_t most = step > GM_SIZE_MAX / streams ? GM_SIZE_MAX : step * streams;

    return beyond(most > used ? most : used,
                  gm_pool_cached_locked(pool) + pool->leading);
}

static size_t
lead_locked(gm_pool *pool, const gm_request *request, size_t rounded, size_t room)
{
    const gm_arena *arena = gm_arena_search(&pool->arenas, request->key);
    size_t held = pool->stats.total_bytes + pool->reserving + pool->releasing;
    size_t reach = room < GM_SIZE_MAX - held ? held + room : GM_SIZE_MAX;
    size_t limit = pool->stats.limit_bytes;
    size_t share = ((arena ? arena->bytes : 0) + rounded) / SHARE;
    size_t lead = share > pool->growth_step ? share : pool->growth_step;

    reach = limit ? least(reach, limit) : reach;
    lead = least(lead, bound_locked(pool, arena, rounded));
    return least(lead, beyond(reach / 2, held + rounded));
}

size_t
gm_grow_segment_locked(gm_pool *pool,
                       const gm_request *request,
                       size_t rounded,
                       size_t room)
{
    size_t unit = pool->segment_unit;
    size_t bytes;

    if (pool->large.large_segment_size) {
        return gm_large_segment(pool, rounded);
    }
    if (!pool->growth_step) {
        size_t odd = rounded % unit;

        return odd ? rounded - odd + unit : rounded; // one too large is refused
    }
    bytes = rounded + lead_locked(pool, request, rounded, room);
    bytes -= bytes % (bytes < GRAIN ? GM_UNIT : GRAIN);
    return bytes > rounded ? bytes : rounded;
}
