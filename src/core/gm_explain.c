/* SPDX-License-Identifier: MIT
 *
 * What a pool says of itself: its counters, a survey of what it could give, and what a
 * request lacks that it could not serve.
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
    out->total_bytes += pool->paging.withheld;
    out->free_bytes = gm_pool_cached_locked(pool);
    out->free_blocks = gm_pool_cached_blocks_locked(pool);
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
    (void)gm_pages_settle(pool, false);
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
    stats->peak_total_bytes = stats->total_bytes + pool->paging.withheld;
    stats->peak_live_blocks = stats->live_blocks;
    stats->peak_segments = stats->segments;
    gm_pool_unlock(pool);
    return GM_OK;
}

/* ---- the survey ---- */

/* Bytes in idle segments, and in pages that could go. */
static size_t
idle_bytes_locked(gm_pool *pool)
{
    size_t bytes = pool->paging.grain ? gm_window_largest_locked(pool, NULL, 0) : 0;

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
    size_t held = pool->stats.total_bytes + pool->paging.withheld + pool->reserving +
                  pool->releasing - idle;
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
 * taken under the lock, so it may take a second look. None without host memory. */
static void
list_add(idle_list *list, gm_pool *pool)
{
    size_t found;

    for (;;) {
        gm_pool_lock(pool);
        found = list_fill_locked(list, pool);
        gm_pool_leave(pool); // its owner may have let go of it meanwhile
        if (found <= list->room - list->count) {
            list->count += found;
            return;
        }
        if (!list_grow(list, list->count + found + found / 4)) {
            return;
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
    gm_pool *sibling;

    list_add(list, pool);
    while ((sibling = gm_pool_next_sibling(pool, pool->device, &after)) != NULL) {
        if (sibling->upstream.room) {
            list_add(list, sibling);
        }
        gm_pool_unref(sibling);
    }
    if (list->count) {
        qsort(list->ranges, list->count, sizeof *list->ranges, by_address);
    }
}

/* What upstream says of its memory, as if all that is idle had gone back. False where
 * it says nothing. Not while a graph is being recorded, which a question could spoil.
 */
static bool
ask_upstream(gm_pool *pool, gm_room *room)
{
    const gm_upstream *up = &pool->upstream;
    idle_list list = {0};
    gm_status status;

    if (!up->room || gm_process_is_special()) {
        return false;
    }
    list_idle(&list, pool);
    status = up->room(up->context, pool->device, list.ranges, list.count, room);
    if (pool->paging.on) { // pages need not lie in one piece
        room->largest = room->free_bytes;
        for (size_t i = 0; i < list.count; i++) {
            room->largest += list.ranges[i].size;
        }
    }
    gm_host_free(list.ranges);
    return status == GM_OK;
}

/* The largest request that pages serve of which `fresh` bytes could be made, in the
 * spaces of `arena` or, where that is NULL, of any. */
static size_t
largest_paged_locked(gm_pool *pool, const gm_arena *arena, size_t fresh)
{
    size_t largest = gm_window_largest_locked(pool, arena, fresh);

    for (const gm_segment *s = arena ? NULL : pool->first; s; s = s->next) {
        size_t size = gm_window_largest_locked(pool, s->arena, fresh);

        largest = size > largest ? size : largest;
    }
    return largest;
}

/* The largest request that `largest_free` or, within `allowed`, upstream serves; with
 * pages, for the stream of `request` or, where that is NULL, for any. `idle` bytes of
 * what is allowed are pages that the pool has. */
static size_t
largest_available(gm_pool *pool,
                  const gm_request *request,
                  size_t largest_free,
                  size_t allowed,
                  size_t idle,
                  size_t upstream)
{
    size_t fresh;

    gm_pool_lock(pool);
    if (pool->paging.grain) {
        allowed -= idle < allowed ? idle : allowed;
        fresh = upstream < allowed ? upstream : allowed;
        fresh = largest_paged_locked(
            pool, request ? gm_arena_find(&pool->arenas, request->key) : NULL,
            fresh - fresh % pool->paging.grain);
    }
    else {
        fresh = (upstream < allowed ? upstream : allowed) / GM_UNIT * GM_UNIT;
    }
    gm_pool_unlock(pool);
    return fresh > largest_free ? fresh : largest_free;
}

gm_status
gm_pool_survey(gm_pool *pool, gm_stats *stats, gm_survey *survey)
{
    gm_room room = {0};
    size_t allowed;
    bool used;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    (void)gm_pool_settle(pool); // how much it was is in the counters
    (void)gm_pages_settle(pool, false);
    gm_pool_lock(pool);
    copy_stats_locked(pool, stats);
    survey->idle_bytes = idle_bytes_locked(pool);
    survey->inactive_split_bytes = stats->free_bytes - survey->idle_bytes;
    survey->largest_free_block = largest_free_locked(pool);
    allowed = allowed_locked(pool, survey->idle_bytes);
    used = pool->next_serial > 0;
    gm_pool_unlock(pool);
    if (used) {
        (void)ask_upstream(pool, &room); // it has nothing where it does not say
    }
    survey->largest_available_block =
        largest_available(pool, NULL, survey->largest_free_block, allowed,
                          survey->idle_bytes, room.largest);
    return GM_OK;
}

/* ---- a request that found no memory ---- */

/* The largest free block of the arenas that the request may take from without further
 * ado: its stream's, and what ended streams left. */
static size_t
largest_own_locked(gm_pool *pool, gm_stream_key key)
{
    const gm_arena *arenas[] = {gm_arena_search(&pool->arenas, key),
                                pool->arenas.commons};
    size_t largest = 0;

    for (size_t i = 0; i < 2; i++) {
        size_t size = arenas[i] ? gm_index_largest(&arenas[i]->index) : 0;

        largest = size > largest ? size : largest;
    }
    return largest;
}

/* The pool's own part of the explanation. Returns what the limit lets upstream give
 * once *idle bytes are back there. */
static size_t
explain_pool_locked(gm_pool *pool,
                    const gm_request *request,
                    gm_shortage *s,
                    size_t *idle)
{
    gm_stats stats;
    size_t largest = largest_free_locked(pool);

    copy_stats_locked(pool, &stats);
    s->limit = stats.limit_bytes;
    s->used_bytes = stats.used_bytes;
    s->cached_bytes = stats.free_bytes;
    s->pending_bytes = stats.pending_bytes + stats.captured_bytes;
    s->total_bytes = stats.total_bytes;
    /* A block of another stream was refused, where it is large enough. */
    s->largest_free_block =
        largest < request->size ? largest : largest_own_locked(pool, request->key);
    *idle = idle_bytes_locked(pool);
    return allowed_locked(pool, *idle);
}

static size_t
less(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

static size_t
at_most(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Bytes of a pool that are no other pool's blocks, which that one counts. */
static size_t
own_bytes_locked(const gm_pool *pool)
{
    size_t bytes = 0;

    for (const gm_segment *s = pool->first; s; s = s->next) {
        bytes += s->piece.pooled ? 0 : gm_segment_bytes(s);
    }
    return bytes;
}

/* What the pools on the device other than `pool` hold. */
static void
explain_siblings(const gm_pool *pool, gm_shortage *s)
{
    uint64_t after = 0;
    gm_pool *sibling;

    s->sibling_bytes = s->sibling_idle_bytes = 0;
    while ((sibling = gm_pool_next_sibling(pool, s->device, &after)) != NULL) {
        size_t own;
        size_t cached;

        gm_pool_lock(sibling);
        own = own_bytes_locked(sibling);
        cached = gm_pool_cached_locked(sibling);
        gm_pool_leave(sibling);
        gm_pool_unref(sibling);
        s->sibling_bytes += own;
        s->sibling_idle_bytes += at_most(cached, own);
    }
}

/* What there is of the device, and who has it. A pool over managed memory holds what
 * need not be on the device. */
static void
explain_device(gm_shortage *s, size_t device_free, size_t device_total)
{
    s->device_free = device_free;
    s->device_total = device_total;
    s->outside_bytes = less(device_total, device_free);
    if (s->total_bytes != GM_UNKNOWN) {
        s->outside_bytes = less(s->outside_bytes, s->total_bytes);
    }
    s->sibling_bytes = at_most(s->sibling_bytes, s->outside_bytes);
    s->sibling_idle_bytes = at_most(s->sibling_idle_bytes, s->outside_bytes);
}

/* Why a device that has `s->rounded_size` bytes refused. */
static gm_cause
cause_on_device(const gm_shortage *s)
{
    size_t own = s->total_bytes;
    size_t siblings = s->sibling_bytes;
    size_t others = less(s->outside_bytes, siblings);

    if (s->rounded_size <= s->device_free ||
        s->rounded_size - s->device_free <= s->cached_bytes) {
        return GM_CAUSE_FRAGMENTED;
    }
    if (siblings > own && siblings >= others) {
        return GM_CAUSE_OTHER_POOL;
    }
    return others > own ? GM_CAUSE_OTHER_PROCESS : GM_CAUSE_FULL;
}

/* `room`: the device answers for its memory, rather than a callable. */
static gm_cause
cause_of(bool room, gm_status status, const gm_shortage *s)
{
    switch (status) {
    case GM_ERR_LIMIT:
        return GM_CAUSE_LIMIT;
    case GM_ERR_TOO_LARGE:
        return GM_CAUSE_TOO_LARGE;
    case GM_ERR_CAPTURING:
        return GM_CAUSE_CAPTURE;
    default:
        break;
    }
    if (!room) {
        return GM_CAUSE_ALLOCATOR;
    }
    if (s->device_total == GM_UNKNOWN || s->total_bytes == GM_UNKNOWN) {
        return GM_CAUSE_FULL; // it said so, and nothing more
    }
    return s->rounded_size > s->device_total ? GM_CAUSE_TOO_LARGE : cause_on_device(s);
}

void
gm_pool_explain(gm_pool *pool,
                const gm_request *request,
                gm_status status,
                gm_shortage *out)
{
    gm_shortage s = gm_shortage_of(request->size);
    gm_room room = {0};
    size_t allowed;
    size_t idle;
    bool rounds = request->size <= GM_SIZE_MAX;

    s.device = pool->device;
    s.rounded_size = rounds ? gm_size_round(request->size) : GM_UNKNOWN;
    s.attempt = 0;
    gm_pool_lock(pool);
    allowed = explain_pool_locked(pool, request, &s, &idle);
    gm_pool_unlock(pool);
    explain_siblings(pool, &s);
    if (ask_upstream(pool, &room)) {
        explain_device(&s, room.free_bytes, room.total_bytes);
    }
    s.cause = cause_of(pool->upstream.room != NULL, status, &s);
    s.largest_available_block =
        s.cause == GM_CAUSE_CAPTURE
            ? s.largest_free_block
            : largest_available(pool, request, s.largest_free_block, allowed, idle,
                                room.largest);
    if (rounds) {
        s.missing_bytes = less(s.rounded_size, s.largest_available_block);
    }
    *out = s;
}

void
gm_explain_outside(const gm_backend *backend, gm_status status, gm_shortage *s)
{
    size_t device_free = 0;
    size_t device_total = 0;

    explain_siblings(NULL, s);
    if (s->device >= 0 && !gm_process_is_special() &&
        gm_backend_mem_info(backend, s->device, &device_free, &device_total) == GM_OK) {
        explain_device(s, device_free, device_total);
    }
    s->cause = cause_of(true, status, s);
}
