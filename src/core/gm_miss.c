/* SPDX-License-Identifier: MIT
 *
 * A miss: one attempt to serve a request by a new segment, within the limit. Where
 * upstream refuses a segment that is larger than the request, it asks for the request
 * alone before anything is reclaimed.
 *
 * It has three steps: reserve the bytes and all host memory it will need (locked), ask
 * upstream (unlocked, may take long and run user code), commit or cancel (locked). So a
 * commit cannot fail, two threads cannot both pass the limit, and a failure leaves
 * every counter as it was. The cache is looked at once more first, with what came free
 * or was left by ended streams since.
 *
 * Cost: what upstream costs. Threading: any thread. What to do about a failure is
 * decided in gm_reclaim.c.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

/* A request that goes upstream, and what it holds while upstream is asked: nothing can
 * fail after that. */
typedef struct reservation {
    size_t rounded; // bytes for the request
    size_t bytes;   // to ask for; 0 while that is not decided
    gm_segment *segment;
    gm_block *block;
    gm_block *tail; // for what the request leaves of it; NULL for nothing
    gm_arena *arena;
    uint64_t life; // of the device; known once upstream gave
} reservation;

static void
cancel_locked(gm_pool *pool, const reservation *r)
{
    pool->reserving -= r->bytes;
    pool->leading -= r->bytes - r->rounded;
    gm_block_give(&pool->store, r->block);
    if (r->tail) {
        gm_block_give(&pool->store, r->tail);
    }
    gm_arena_unpin(&pool->arenas, r->arena);
    gm_host_free(r->segment);
}

/* On failure nothing is held. */
static gm_status
reserve_locked(gm_pool *pool, const gm_request *request, reservation *r)
{
    size_t limit = pool->stats.limit_bytes;
    size_t held = pool->stats.total_bytes + pool->reserving + pool->releasing;

    if (r->bytes > GM_SIZE_MAX - held) { // so the sum stays below that and cannot wrap
        return GM_ERR_TOO_LARGE;
    }
    if (limit && (r->bytes > limit || held > limit - r->bytes)) {
        return GM_ERR_LIMIT;
    }
    if (!gm_block_store_prepare(&pool->store)) {
        return GM_ERR_HOST_MEMORY;
    }
    r->arena = gm_pool_pin_arena_locked(pool, request->key);
    if (!r->arena) {
        return GM_ERR_HOST_MEMORY;
    }
    r->segment = gm_host_zalloc(sizeof(*r->segment));
    if (!r->segment) {
        gm_arena_unpin(&pool->arenas, r->arena);
        return GM_ERR_HOST_MEMORY;
    }
    r->block = gm_block_take(&pool->store);
    pool->reserving += r->bytes;
    pool->leading += r->bytes - r->rounded;
    if (gm_large_cuts(pool, r->bytes, r->rounded)) {
        if (!gm_block_store_prepare(&pool->store)) {
            cancel_locked(pool, r);
            return GM_ERR_HOST_MEMORY;
        }
        r->tail = gm_block_take(&pool->store);
    }
    return GM_OK;
}

static void
commit_locked(gm_pool *pool,
              const reservation *r,
              const gm_piece *piece,
              const gm_request *request)
{
    gm_segment *segment = r->segment;
    gm_block *block = r->block;
    gm_stats *stats = &pool->stats;

    *segment = (gm_segment){
        .piece = *piece,
        .life = r->life,
        .serial = pool->next_serial++,
        .size = r->bytes,
        .arena = r->arena,
        .first = block,
        .prev = pool->last,
    };
    if (pool->last) {
        pool->last->next = segment;
    }
    else {
        pool->first = segment;
    }
    pool->last = segment;

    block->addr = piece->base;
    block->size = r->bytes;
    block->prev = NULL;
    block->next = NULL;
    block->segment = segment;
    if (r->tail) {
        gm_block_split(block, r->rounded, r->tail);
        r->tail->state = GM_BLOCK_FREE;
        gm_index_put(&r->arena->index, r->tail);
        stats->splits++;
    }

    pool->reserving -= r->bytes;
    pool->leading -= r->bytes - r->rounded;
    segment->arena->bytes += segment->size;
    stats->segments++;
    stats->misses++;
    stats->upstream_allocations++;
    stats->upstream_allocated_bytes += r->bytes;
    stats->total_bytes += r->bytes;
    if (stats->total_bytes > stats->peak_total_bytes) {
        stats->peak_total_bytes = stats->total_bytes;
    }
    if (stats->segments > stats->peak_segments) {
        stats->peak_segments = stats->segments;
    }
    gm_pool_hand_out_locked(pool, block, request);
}

/* Whether to ask a device now would spoil a recording. */
static bool
is_forbidden(const gm_rescue *rescue)
{
    return (rescue && rescue->recording) || gm_capture_is_forbidding();
}

/* Serves the request from the cache, also, with `look`, from what came free since
 * somebody looked. */
static gm_status
pool_find(
    gm_pool *pool, const gm_request *request, size_t rounded, bool look, gm_block **out)
{
    gm_status status;
    bool waiting;

    gm_pool_lock(pool);
    status = gm_pool_hit_locked(pool, request, rounded, out);
    waiting = pool->lanes || pool->dropped;
    gm_pool_unlock(pool);
    if (status == GM_MISS && waiting && look) {
        gm_pool_flush(pool);
        (void)gm_pool_settle(pool); // the next look tells
    }
    return status;
}

/* One attempt, by a new segment where the cache has nothing: one of r->bytes or, where
 * these are not decided, as large as gm_grow.c wants it with `room` upstream. */
static gm_status
pool_take(gm_pool *pool,
          const gm_request *request,
          reservation *r,
          size_t room,
          bool forbidden,
          gm_block **out)
{
    gm_piece piece = {0};
    gm_status status;
    bool reserved;

    gm_pool_lock(pool);
    gm_pool_adopt_locked(pool, request->key, r->rounded);
    status = gm_pool_hit_locked(pool, request, r->rounded, out);
    if (status == GM_MISS && forbidden) {
        status = GM_ERR_CAPTURING;
    }
    else if (status == GM_MISS) {
        if (!r->bytes) {
            r->bytes = gm_grow_segment_locked(pool, request, r->rounded, room);
        }
        status = reserve_locked(pool, request, r);
    }
    reserved = status == GM_OK && r->block;
    if (reserved) { // before anybody can miss the bytes
        gm_process_flight_begin();
    }
    gm_pool_unlock(pool);
    if (!reserved) {
        return status;
    }

    status =
        pool->upstream.take(pool->upstream.context, pool->device, r->bytes, &piece);
    GM_ASSERT(status != GM_OK || (piece.base && piece.size >= r->bytes));
    r->life = status == GM_OK ? gm_pool_ask_life(pool, piece.device) : 0;

    gm_pool_lock(pool);
    if (status == GM_OK) {
        commit_locked(pool, r, &piece, request);
        *out = r->block;
    }
    else {
        cancel_locked(pool, r);
    }
    gm_pool_unlock(pool);
    gm_process_flight_end();
    return status;
}

gm_status
gm_pool_attempt(gm_pool *pool,
                const gm_request *request,
                const gm_rescue *rescue,
                gm_block **out)
{
    size_t rounded = gm_size_round(request->size);
    reservation whole = {.rounded = rounded};
    reservation alone = {.rounded = rounded, .bytes = rounded};
    bool forbidden = is_forbidden(rescue);
    gm_status status = pool_find(pool, request, rounded, !forbidden, out);

    if (status != GM_MISS) {
        return status;
    }
    if (pool->paging.on) {
        return gm_remap_attempt(pool, request, rescue, forbidden, out);
    }
    status = pool_take(pool, request, &whole, forbidden ? 0 : gm_grow_room(pool),
                       forbidden, out);
    if (whole.bytes <= rounded ||
        (!gm_is_shortage(status) && status != GM_ERR_TOO_LARGE)) {
        return status;
    }
    if (whole.block) { // upstream was asked
        gm_pool_count(pool, &pool->stats.retries);
    }
    return pool_take(pool, request, &alone, 0, forbidden, out);
}
