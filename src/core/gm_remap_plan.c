/* SPDX-License-Identifier: MIT
 *
 * How a request is served by pages: whether to remap or to make new ones, which, and of
 * what size. Nothing here calls a device.
 *
 * In this order, the first that serves the request:
 *
 *  1. pages return to where they are still mapped, in the stream's own spaces: no call;
 *  2. new pages, while the pool holds hardly more than was ever in use at once: memory
 *     that the program needs anyhow, and a small reserve that keeps it from remapping
 *     each time around. For the rest pages in free memory of the stream, mapped where
 *     they are needed;
 *  3. the same with those of other streams;
 *  4. all of these, and new pages for the rest, as far as the limit lets them.
 *
 * So the pool grows beyond the reserve only when all that is free and could move has
 * moved; and it has grown by the reserve before much moves. Where that came only after
 * moving, training GPT-2 moved pages in each step, for good.
 *
 * Sizes. The calls for a page cost the same whatever its size; but the smallest block
 * in one keeps it, and what is lost at the ends of the memory in use is about half a
 * page each. So a page is a small share of what is held, of all that is left at most a
 * smaller one. Who sets a limit is short of memory. Without one pages are larger, also
 * in a pool that holds little; and the last page for a large request may be larger than
 * what is missing, if it is made before anything moves: what the request leaves of it
 * is the next one's. Over the eight traces in benchmarks/traces that makes 0.72 of the
 * calls at first that pages of at most 16 MiB do which are no larger than what is
 * missing, and at most 1.03 of what is in use is held; under a limit most of them run
 * within 1.011 times what they have in use.
 *
 * What could be had is known before anything is made: new pages are planned only as far
 * as the device says that it has memory, and addresses are wanted only for a request
 * that could then be served.
 *
 * Cost: 200 to 500 ns a look. Threading: caller holds the pool's lock.
 */
#include "gm_remap.h"

enum {
    RESERVE = 64, // the share of what was in use at once that may be held beyond

    // What a page is at most:
    SHARE = 384,      // this share of what the pool holds, if that has a limit
    SHARE_FREE = 168, // or this one
    SHARE_LEFT = 512, // of what limit and device leave this one, the last ones fine

    // Without a limit, more in a pool that holds little:
    SHARE_LITTLE = 40, // this share, where that is
    LEAST = 4,         // from so many grains
    LITTLE = 8,        // to so many

    LARGE = 6 // grains that a request has for whose sake more is made than is missing
};

/* What the limit leaves, in whole grains. */
static size_t
allowed_locked(const gm_pool *pool)
{
    const gm_stats *stats = &pool->stats;
    size_t held =
        stats->total_bytes + pool->paging.withheld + pool->reserving + pool->releasing;
    size_t limit = stats->limit_bytes ? stats->limit_bytes : GM_SIZE_MAX;
    size_t left = limit > held ? limit - held : 0;

    return left - left % pool->paging.grain;
}

/* Bytes that may be made without looking for others first. */
static size_t
reserve_locked(gm_pool *pool, size_t rounded)
{
    const gm_stats *stats = &pool->stats;
    size_t held = stats->total_bytes + pool->paging.withheld + pool->reserving;
    size_t used = stats->used_bytes + rounded;
    size_t high = used > stats->peak_used_bytes ? used : stats->peak_used_bytes;
    size_t most;

    gm_stats_raise(&pool->paging.high, high);
    most = pool->paging.high + pool->paging.high / RESERVE;
    return most > held ? most - held : 0;
}

/* Bytes of the largest page for the request in a pool without a limit that then holds
 * so much. */
static size_t
largest_free(size_t rounded, size_t held, size_t grain)
{
    size_t little = held / SHARE_LITTLE;
    size_t most = held / SHARE_FREE;

    little = little < LITTLE * grain ? little : LITTLE * grain;
    little = little > LEAST * grain ? little : LEAST * grain;
    most = most < rounded ? most : rounded;
    return most > little ? most : little;
}

/* Bytes of the largest page to be made for a request where so much is left. */
static size_t
largest_page_locked(const gm_pool *pool, size_t rounded, size_t left)
{
    size_t grain = pool->paging.grain;
    size_t held = pool->stats.total_bytes + rounded;
    size_t most =
        pool->stats.limit_bytes ? held / SHARE : largest_free(rounded, held, grain);
    size_t size = grain << (GM_PAGE_CLASSES - 1);

    most = most < left / SHARE_LEFT ? most : left / SHARE_LEFT;
    while (size > most && size > grain) {
        size /= 2;
    }
    return size;
}

/* Adds what other streams have; what nobody owns can always be had. In the order in
 * which they came to have memory by page, which is the program's, where that of the
 * table is a matter of what numbers the device gave them. */
static void
look_at_others_locked(const gm_attempt *a, gm_look *look, const gm_arena *own)
{
    gm_pool *pool = a->pool;

    for (const gm_segment *s = pool->first; s; s = s->next) {
        gm_arena *at = s->arena;
        bool anybodys = at == pool->arenas.commons;

        if (s->space && at != own && at->looked != look->number &&
            (anybodys || (at->known && !a->own))) {
            at->looked = look->number;
            gm_look_add_locked(pool, look, at);
        }
    }
}

/* A plan by the cheapest window, or where no pages fit there, at the open end of the
 * stream's last space. */
static gm_status
plan_by_locked(gm_attempt *a,
               const gm_arena *arena,
               const gm_look *look,
               const gm_window_costs *costs,
               const gm_sources *sources)
{
    gm_pool *pool = a->pool;
    gm_window window;
    gm_status status;

    gm_window_find_locked(pool, arena, a->rounded, look, costs, &window);
    if (!window.segment) {
        return GM_MISS;
    }
    status = gm_fill_locked(pool, &window, a->rounded, look, sources, &a->plan);
    if (status != GM_MISS || !costs->grain) {
        return status;
    }
    for (gm_segment *s = pool->last; s; s = s->prev) {
        if (s->space && s->arena == arena) {
            gm_window_at_end_locked(pool, s, &window);
            if (s->piece.base + s->size - window.addr <=
                a->rounded + pool->paging.grain) {
                return GM_MISS;
            }
            return gm_fill_locked(pool, &window, a->rounded, look, sources, &a->plan);
        }
    }
    return GM_MISS;
}

static gm_status
wants(gm_attempt *a, gm_want what)
{
    a->want = what;
    return GM_NOT_READY;
}

/* Does with what the device said before, where it had plenty. */
static bool
recall_room_locked(gm_attempt *a)
{
    const gm_paging *paging = &a->pool->paging;

    if (paging->room < paging->plenty || paging->room - paging->plenty < a->rounded) {
        return false;
    }
    a->room = paging->room;
    a->asked = true;
    a->recalled = true;
    return true;
}

/* The same with the pages of the look and with new ones: no more than `most` bytes,
 * than the limit leaves and than the device has, which is asked first where that makes
 * a difference; `ahead` of these before any page moves. */
static gm_status
plan_pages_locked(gm_attempt *a,
                  const gm_arena *arena,
                  const gm_look *look,
                  size_t ahead,
                  size_t most)
{
    static const gm_window_costs both = {.grain = 4, .echo = 1};
    size_t left = allowed_locked(a->pool);
    gm_sources sources;

    if (!a->asked && most >= a->pool->paging.grain && left >= a->pool->paging.grain &&
        !recall_room_locked(a)) {
        return wants(a, GM_WANT_ROOM);
    }
    left = left < a->room ? left : a->room;
    sources.budget = most < left ? most : left;
    sources.ahead = ahead < left ? ahead : left;
    sources.most = largest_page_locked(a->pool, a->rounded, left);
    sources.whole =
        !a->pool->stats.limit_bytes && a->rounded >= LARGE * a->pool->paging.grain;
    return plan_by_locked(a, arena, look, &both, &sources);
}

/* Why no plan could be made, with all pages that could be had in the look:
 * GM_ERR_LIMIT, GM_ERR_OUT_OF_MEMORY or, where they and new ones are enough,
 * GM_NOT_READY for addresses that nothing lies between. */
static gm_status
tell_why_locked(gm_attempt *a, const gm_look *look)
{
    size_t grain = a->pool->paging.grain;
    size_t need = (a->rounded + grain - 1) / grain * grain;
    size_t lacking = need > look->bytes ? need - look->bytes : 0;

    if (lacking > allowed_locked(a->pool)) {
        return GM_ERR_LIMIT;
    }
    if (!a->asked && lacking && !recall_room_locked(a)) {
        return wants(a, GM_WANT_ROOM);
    }
    return lacking > a->room || a->made ? GM_ERR_OUT_OF_MEMORY
                                        : wants(a, GM_WANT_SPACE);
}

gm_status
gm_attempt_plan_locked(gm_attempt *a, gm_arena *arena)
{
    static const gm_window_costs echoes = {.echo = 1};
    gm_pool *pool = a->pool;
    const gm_sources none = {.most = pool->paging.grain};
    gm_look look;
    gm_status status = GM_MISS;
    size_t reserve;

    if (!pool->paging.grain) {
        return wants(a, GM_WANT_GRAIN);
    }
    reserve = reserve_locked(pool, a->rounded);
    gm_look_begin_locked(pool, &look);
    if (arena) {
        gm_look_add_locked(pool, &look, arena);
        status = plan_by_locked(a, arena, &look, &echoes, &none);
        if (status == GM_MISS) {
            status = plan_pages_locked(a, arena, &look, reserve, reserve);
        }
    }
    if (status == GM_MISS) {
        look_at_others_locked(a, &look, arena);
        status = arena ? plan_pages_locked(a, arena, &look, reserve, reserve) : GM_MISS;
    }
    if (status == GM_MISS && arena) {
        status = plan_pages_locked(a, arena, &look, reserve, GM_SIZE_MAX);
    }
    return status == GM_MISS ? tell_why_locked(a, &look) : status;
}
