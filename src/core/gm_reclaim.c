/* SPDX-License-Identifier: MIT
 *
 * The miss path: ask upstream within the limit, and when there is no memory, reclaim in
 * order and ask again.
 *
 * A miss is three steps: reserve the bytes and all host memory it will need (locked),
 * ask upstream (unlocked, may take long and run user code), commit or cancel (locked).
 * So a commit cannot fail, two threads cannot both pass the limit, and a failure leaves
 * every counter as it was. Bytes on their way out count against the limit until
 * upstream has them, so that the limit holds at every instant.
 *
 * Cost: what upstream costs; reclaiming walks all segments.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

/* ---- giving idle segments back ---- */

static void
pool_unlink_locked(gm_pool *pool, gm_segment *segment)
{
    gm_block *block = segment->first;

    gm_pool_note_cached_locked(pool);
    gm_index_remove(&segment->arena->index, block);
    gm_block_give(&pool->store, block);
    gm_arena_unpin(&pool->arenas, segment->arena);
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
    pool->stats.segments--;
    pool->stats.total_bytes -= segment->size;
    pool->releasing += segment->size;
}

gm_segment *
gm_pool_unlink_idle_locked(gm_pool *pool, const gm_arena *arena)
{
    gm_segment *chain = NULL;
    gm_segment **link = &chain;
    gm_segment *segment = gm_process_is_capturing() ? NULL : pool->first;

    while (segment) {
        gm_segment *next = segment->next;

        if (gm_segment_is_idle(segment) && (!arena || segment->arena == arena)) {
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

/* Releases the idle segments of `arena_key`, or all where it is NULL. */
static size_t
release_idle(gm_pool *pool, const gm_stream_key *arena_key)
{
    gm_segment *chain = NULL;
    gm_arena *arena = NULL;

    if (gm_process_is_forked()) {
        return 0;
    }
    gm_pool_notice_reset(pool);
    gm_pool_flush(pool);
    (void)gm_pool_settle(pool); // what came free is looked for next
    gm_pool_lock(pool);
    pool->trim |= gm_process_is_capturing();
    if (arena_key) {
        arena = gm_arena_find(&pool->arenas, *arena_key);
    }
    if (!arena_key || arena) {
        chain = gm_pool_unlink_idle_locked(pool, arena);
    }
    gm_pool_unlock(pool);
    return gm_pool_give_back(pool, chain);
}

size_t
gm_pool_release_idle(gm_pool *pool)
{
    gm_pools_sweep();
    return release_idle(pool, NULL);
}

size_t
gm_pool_release_idle_of(gm_pool *pool, gm_stream_key key)
{
    return release_idle(pool, &key);
}

/* ---- one attempt ---- */

/* What a request holds while upstream is asked: nothing can fail after that. */
typedef struct reservation {
    gm_segment *segment;
    gm_block *block;
    gm_block *tail; // for what the request leaves of it; NULL for nothing
    gm_arena *arena;
    uint64_t life; // of the device; known once upstream gave
    size_t bytes;
    size_t rounded; // of them for the request
} reservation;

static void
cancel_locked(gm_pool *pool, const reservation *r)
{
    pool->reserving -= r->bytes;
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
    r->arena = gm_arena_pin(&pool->arenas, request->key);
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
    if (r->bytes > r->rounded) {
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

/* One attempt, by a segment of `bytes` where the cache has nothing. */
static gm_status
pool_attempt_with(gm_pool *pool,
                  const gm_request *request,
                  size_t bytes,
                  const gm_rescue *rescue,
                  gm_block **out)
{
    reservation r = {.bytes = bytes, .rounded = gm_size_round(request->size)};
    gm_piece piece = {0};
    bool forbidden = is_forbidden(rescue);
    gm_status status = pool_find(pool, request, r.rounded, !forbidden, out);

    if (status != GM_MISS) {
        return status;
    }
    gm_pool_lock(pool);
    gm_pool_adopt_locked(pool, request->key, r.rounded);
    status = gm_pool_hit_locked(pool, request, r.rounded, out);
    if (status == GM_MISS) {
        status = forbidden ? GM_ERR_CAPTURING : reserve_locked(pool, request, &r);
    }
    gm_pool_unlock(pool);
    if (status != GM_OK || !r.block) {
        return status;
    }

    gm_process_flight_begin();
    status = pool->upstream.take(pool->upstream.context, pool->device, r.bytes, &piece);
    GM_ASSERT(status != GM_OK || (piece.base && piece.size >= r.bytes));
    r.life = status == GM_OK ? gm_pool_ask_life(pool, piece.device) : 0;

    gm_pool_lock(pool);
    if (status == GM_OK) {
        commit_locked(pool, &r, &piece, request);
        *out = r.block;
    }
    else {
        cancel_locked(pool, &r);
    }
    gm_pool_unlock(pool);
    gm_process_flight_end();
    return status;
}

static bool
is_shortage(gm_status status)
{
    return status == GM_ERR_OUT_OF_MEMORY || status == GM_ERR_LIMIT;
}

static gm_status
pool_attempt(gm_pool *pool,
             const gm_request *request,
             const gm_rescue *rescue,
             gm_block **out)
{
    size_t rounded = gm_size_round(request->size);
    size_t odd = rounded % pool->segment_unit;
    size_t missing = odd ? pool->segment_unit - odd : 0;
    gm_status status;

    if (missing && missing <= GM_SIZE_MAX - rounded) {
        status = pool_attempt_with(pool, request, rounded + missing, rescue, out);
        if (!is_shortage(status) && status != GM_ERR_TOO_LARGE) {
            return status;
        }
    }
    return pool_attempt_with(pool, request, rounded, rescue, out);
}

/* ---- reclaiming ---- */

static gm_pool *
pool_of_link(gm_pool_link *link)
{
    return (gm_pool *)(void *)((char *)link - offsetof(gm_pool, link));
}

/* A reference to a pool from the list, unless its last one is gone already. */
static bool
hold_pool(gm_pool_link *link)
{
    gm_pool *pool = pool_of_link(link);
    size_t refs = atomic_load_explicit(&pool->refs, memory_order_relaxed);

    while (refs && !atomic_compare_exchange_weak_explicit(&pool->refs, &refs, refs + 1,
                                                          memory_order_acquire,
                                                          memory_order_relaxed)) {
    }
    return refs != 0;
}

gm_pool *
gm_pool_next_sibling(const gm_pool *pool, uint64_t *after)
{
    gm_pool_link *link;

    while ((link = gm_process_pool_next(*after, hold_pool)) != NULL) {
        gm_pool *sibling = pool_of_link(link);

        *after = link->number;
        if (sibling != pool && sibling->device == pool->device) {
            return sibling;
        }
        gm_pool_unref(sibling);
    }
    return NULL;
}

/* Whether what a pool takes may come from another pool: it calls a function that the
 * device does not answer for. */
static bool
may_lie_over_another(const gm_pool *pool)
{
    return !pool->upstream.room;
}

/* Gives back what the other pools of the device have idle, or with `over` only those
 * that may lie over another pool. Returns bytes. */
static size_t
release_siblings(const gm_pool *pool, bool over)
{
    size_t bytes = 0;
    uint64_t after = 0;
    gm_pool *sibling;

    while ((sibling = gm_pool_next_sibling(pool, &after)) != NULL) {
        if (!over || may_lie_over_another(sibling)) {
            (void)gm_pool_settle_all(sibling); // as much as comes free goes below
            bytes += gm_pool_release_idle(sibling);
        }
        gm_pool_lock(sibling); // its owner may have let go of it meanwhile
        gm_pool_leave(sibling);
        gm_pool_unref(sibling);
    }
    return bytes;
}

void
gm_pools_visit(void (*visit)(gm_pool *pool, void *context), void *context)
{
    uint64_t after = 0;
    gm_pool_link *link;

    while ((link = gm_process_pool_next(after, hold_pool)) != NULL) {
        gm_pool *pool = pool_of_link(link);

        after = link->number;
        visit(pool, context);
        gm_pool_unref(pool);
    }
}

typedef enum reclaim_stage {
    RECLAIM_PENDING,  // what waits for a stream: waits too
    RECLAIM_OWN,      // this pool's idle segments
    RECLAIM_SIBLINGS, // those of the other pools on this device
    RECLAIM_LEND,     // a block that another stream has free
    RECLAIM_GARBAGE,  // what the collector can find, then the first three again
} reclaim_stage;

/* True when the stage may have freed something. A sibling's memory does not count
 * against this pool's limit, so giving it back does not help there, unless the sibling
 * took it from this pool. */
static bool
reclaim(gm_pool *pool, reclaim_stage stage, gm_status why, const gm_rescue *rescue)
{
    switch (stage) {
    case RECLAIM_PENDING:
        return gm_pool_settle_all(pool) > 0;
    case RECLAIM_OWN:
        return gm_pool_release_idle(pool) > 0;
    case RECLAIM_SIBLINGS:
        return release_siblings(pool, why == GM_ERR_LIMIT) > 0;
    case RECLAIM_LEND: // frees nothing: see pool_attempt_all
        return false;
    case RECLAIM_GARBAGE:
        if (!rescue || !rescue->collect || !rescue->collect(rescue->context)) {
            return false;
        }
        (void)reclaim(pool, RECLAIM_PENDING, why, NULL); // garbage may have been live
        (void)reclaim(pool, RECLAIM_OWN, why, NULL);
        (void)reclaim(pool, RECLAIM_SIBLINGS, why, NULL);
        return true;
    }
    return false;
}

enum {
    ROUNDS = 64,   // how often to look again while other threads' memory is in flight
    ATTEMPTS = 64, // and to try again after something was freed
};

static void
pool_count(gm_pool *pool, size_t *counter)
{
    gm_pool_lock(pool);
    (*counter)++;
    gm_pool_unlock(pool);
}

/* A request that the limit alone forbids, whatever is given back. */
static bool
never_fits(gm_pool *pool, const gm_request *request)
{
    size_t limit;

    gm_pool_lock(pool);
    limit = pool->stats.limit_bytes;
    gm_pool_unlock(pool);
    return limit && gm_size_round(request->size) > limit;
}

/* Tries, and after each stage up to `last` that may have freed something again, from
 * the first stage on: what one stage frees may let an earlier one free more where pools
 * lie over pools, and the next attempt may want for something else. The collector runs
 * once. */
static gm_status
pool_attempt_all(gm_pool *pool,
                 const gm_request *request,
                 const gm_rescue *rescue,
                 reclaim_stage last,
                 gm_block **out)
{
    gm_status status = pool_attempt(pool, request, rescue, out);
    reclaim_stage stage = RECLAIM_PENDING;
    int attempts = 1;

    while (is_shortage(status) && stage <= last && !never_fits(pool, request)) {
        if (stage == RECLAIM_LEND && gm_pool_lend(pool, request, rescue, out)) {
            return GM_OK;
        }
        if (!reclaim(pool, stage, status, rescue) || attempts == ATTEMPTS) {
            stage++;
            continue;
        }
        pool_count(pool, &pool->stats.retries);
        status = pool_attempt(pool, request, rescue, out);
        attempts++;
        if (stage == RECLAIM_GARBAGE) {
            last = RECLAIM_LEND;
        }
        stage = RECLAIM_PENDING;
    }
    return status;
}

/* The same, again as long as memory of other threads arrives. */
static gm_status
pool_attempt_settled(gm_pool *pool,
                     const gm_request *request,
                     const gm_rescue *rescue,
                     gm_block **out)
{
    reclaim_stage last = RECLAIM_GARBAGE;
    gm_status status;
    uint64_t ended;
    int round = 0;

    do {
        ended = gm_process_flights_ended();
        status = pool_attempt_all(pool, request, rescue, last, out);
        last = RECLAIM_LEND; // once is enough for the collector
    } while (is_shortage(status) && ++round < ROUNDS && !never_fits(pool, request) &&
             gm_process_flights_wait(ended));
    return status;
}

/* Asks the user for memory, after a shortage of `status`, and tries again as long as
 * told to. */
static gm_status
pool_ask_user(gm_pool *pool,
              const gm_request *request,
              const gm_rescue *rescue,
              gm_status status,
              gm_block **out)
{
    for (size_t attempt = 1; is_shortage(status) && attempt <= GM_ASKS; attempt++) {
        gm_shortage shortage;

        gm_pool_explain(pool, request, status, &shortage);
        shortage.attempt = attempt;
        switch (rescue->ask(rescue->context, &shortage)) {
        case GM_ANSWER_GIVE_UP:
            return status;
        case GM_ANSWER_FAILED:
            return GM_ERR_CALLBACK;
        case GM_ANSWER_RETRY:
            pool_count(pool, &pool->stats.retries);
            status = pool_attempt_settled(pool, request, rescue, out);
        }
    }
    return status;
}

gm_status
gm_pool_malloc_slow(gm_pool *pool,
                    const gm_request *request,
                    const gm_rescue *rescue,
                    gm_block **out)
{
    gm_status status = gm_request_check(request);

    if (status != GM_OK) {
        return status;
    }
    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pools_sweep();
    gm_pool_notice_reset(pool);
    if (gm_capture_serves(pool, request, rescue, &status, out)) {
        return status;
    }
    status = pool_attempt_settled(pool, request, rescue, out);
    if (rescue && rescue->ask) {
        status = pool_ask_user(pool, request, rescue, status, out);
    }
    if (is_shortage(status)) {
        pool_count(pool, &pool->stats.out_of_memory);
    }
    return status;
}
