/* SPDX-License-Identifier: MIT
 *
 * What a pool says of itself: its counters, and a survey of what it could give.
 *
 * The counters are copied under the lock. A survey also walks segments and arenas, for
 * what no request should pay to count. How large a request could be served depends on
 * the room that upstream has once everything idle went back, so the idle segments of
 * this pool and of its siblings are listed, one pool's lock at a time, and upstream is
 * asked with no lock held. Nothing is given back for it.
 *
 * Cost: a survey is linear in the segments and arenas of the pools on the device, and
 * one question to upstream. Threading: any thread. Siblings and upstream are read one
 * after the other, so while other threads allocate the figure is an estimate.
 */
#include "gm_pending.h" // gm_pool_settle
#include "gm_pool_private.h"

#include <stdlib.h> // qsort()
#include <string.h> // memcpy()

/* ---- counters ---- */

static void
copy_stats_locked(const gm_pool *pool, gm_stats *out)
{
    *out = pool->stats;
    out->arenas = pool->arenas.count;
    out->free_bytes = gm_pool_cached_locked(pool);
    if (out->free_bytes > out->peak_free_bytes) {
        out->peak_free_bytes = out->free_bytes;
    }
    out->freed_requested_bytes = out->allocated_requested_bytes - out->requested_bytes;
    out->freed_bytes = out->allocated_bytes - out->used_bytes;
    out->allocated_blocks = out->hits + out->misses;
    out->freed_blocks = out->allocated_blocks - out->live_blocks;
}

gm_status
gm_pool_read_stats(gm_pool *pool, gm_stats *out)
{
    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    (void)gm_pool_settle(pool); // how much it was is in the counters
    gm_pool_lock(pool);
    copy_stats_locked(pool, out);
    gm_pool_unlock(pool);
    return GM_OK;
}

gm_status
gm_pool_reset_peaks(gm_pool *pool)
{
    gm_stats *stats = &pool->stats;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    stats->peak_requested_bytes = stats->requested_bytes;
    stats->peak_used_bytes = stats->used_bytes;
    stats->peak_free_bytes = gm_pool_cached_locked(pool);
    stats->peak_pending_bytes = stats->pending_bytes;
    stats->peak_total_bytes = stats->total_bytes;
    stats->peak_live_blocks = stats->live_blocks;
    stats->peak_segments = stats->segments;
    gm_pool_unlock(pool);
    return GM_OK;
}

/* ---- the survey ---- */

/* Bytes in idle segments. */
static size_t
idle_bytes_locked(const gm_pool *pool)
{
    size_t bytes = 0;

    for (const gm_segment *s = pool->first; s; s = s->next) {
        bytes += gm_segment_is_idle(s) ? s->size : 0;
    }
    return bytes;
}

/* The largest free block of any arena. */
static size_t
largest_free_locked(const gm_pool *pool)
{
    size_t largest = 0;

    for (size_t i = 0; i < pool->arenas.bucket_count; i++) {
        for (const gm_arena *a = pool->arenas.buckets[i]; a; a = a->chain) {
            size_t size = gm_index_largest(&a->index);

            largest = size > largest ? size : largest;
        }
    }
    return largest;
}

/* What the limit lets a request take from upstream once `idle` bytes are back there. */
static size_t
allowed_locked(const gm_pool *pool, size_t idle)
{
    size_t held = pool->stats.total_bytes + pool->reserving + pool->releasing - idle;
    size_t limit = pool->stats.limit_bytes ? pool->stats.limit_bytes : GM_SIZE_MAX;

    return limit > held ? limit - held : 0;
}

/* Memory that could go back to the device. */
typedef struct idle_list {
    gm_range *ranges;
    size_t count;
    size_t room;
} idle_list;

static bool
list_grow(idle_list *list, size_t room)
{
    gm_range *ranges = gm_host_alloc(room * sizeof *ranges);

    if (!ranges) {
        return false;
    }
    if (list->count) {
        memcpy(ranges, list->ranges, list->count * sizeof *ranges);
    }
    gm_host_free(list->ranges);
    list->ranges = ranges;
    list->room = room;
    return true;
}

/* Adds the idle segments as far as there is room; how many there are. */
static size_t
list_fill_locked(idle_list *list, const gm_pool *pool)
{
    size_t found = 0;

    for (const gm_segment *s = pool->first; s; s = s->next) {
        if (!gm_segment_is_idle(s)) {
            continue;
        }
        if (list->count + found < list->room) {
            list->ranges[list->count + found] = (gm_range){s->piece.base, s->size};
        }
        found++;
    }
    return found;
}

/* Adds the idle segments of `pool`, which the caller keeps alive. No host memory is
 * taken under the lock, so it may take a second look. False without host memory. */
static bool
list_add(idle_list *list, gm_pool *pool)
{
    size_t found;

    for (;;) {
        gm_pool_lock(pool);
        found = list_fill_locked(list, pool);
        gm_pool_leave(pool); // its owner may have let go of it meanwhile
        if (found <= list->room - list->count) {
            list->count += found;
            return true;
        }
        if (!list_grow(list, list->count + found + found / 4)) {
            return false;
        }
    }
}

static int
by_address(const void *a, const void *b)
{
    uintptr_t left = ((const gm_range *)a)->base;
    uintptr_t right = ((const gm_range *)b)->base;

    return (left > right) - (left < right);
}

/* What could go back to the device of `pool`: its own idle segments, and those of
 * siblings whose memory comes from the device itself. Less where host memory is short.
 */
static void
list_idle(idle_list *list, gm_pool *pool)
{
    uint64_t after = 0;
    bool complete = list_add(list, pool);
    gm_pool *sibling;

    while (complete && (sibling = gm_pool_next_sibling(pool, &after)) != NULL) {
        complete = !sibling->upstream.room || list_add(list, sibling);
        gm_pool_unref(sibling);
    }
    if (list->count) {
        qsort(list->ranges, list->count, sizeof *list->ranges, by_address);
    }
}

/* The most that upstream could give in one piece once all that is idle went back; 0
 * where it does not tell. */
static size_t
largest_from_upstream(gm_pool *pool)
{
    idle_list list = {0};
    gm_room room = {0};

    list_idle(&list, pool);
    (void)pool->upstream.room(pool->upstream.context, pool->device, list.ranges,
                              list.count, &room); // on failure there is no room
    gm_host_free(list.ranges);
    return room.largest / GM_UNIT * GM_UNIT;
}

gm_status
gm_pool_survey(gm_pool *pool, gm_stats *stats, gm_survey *survey)
{
    size_t allowed;
    bool ask;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    (void)gm_pool_settle(pool); // how much it was is in the counters
    gm_pool_lock(pool);
    copy_stats_locked(pool, stats);
    survey->idle_bytes = idle_bytes_locked(pool);
    survey->inactive_split_bytes = stats->free_bytes - survey->idle_bytes;
    survey->largest_free_block = largest_free_locked(pool);
    allowed = allowed_locked(pool, survey->idle_bytes);
    ask = pool->next_serial > 0 && pool->upstream.room;
    gm_pool_unlock(pool);

    survey->largest_available_block = survey->largest_free_block;
    if (ask && !gm_process_is_special()) {
        size_t fresh = largest_from_upstream(pool);

        fresh = fresh < allowed ? fresh : allowed / GM_UNIT * GM_UNIT;
        if (fresh > survey->largest_available_block) {
            survey->largest_available_block = fresh;
        }
    }
    return GM_OK;
}
