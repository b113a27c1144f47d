/* SPDX-License-Identifier: MIT
 *
 * Forgetting what went with a device. gm_lost.h says what and when.
 *
 * A thread that looks at marks, or records some, does so without the lock; it is waited
 * for, since nobody may take a use out of its hands. A thread that waits for a mark, or
 * for the device, has nothing else in its hands, or no mark, and is not.
 *
 * Cost: a walk over all segments, notes and marks of the pools concerned.
 */
#include "gm_lost.h"

#include "gm_pending.h"
#include "gm_pool_private.h"

#include <sched.h> // sched_yield

typedef struct loss {
    const gm_backend *backend;
    int device;
    uint64_t life; // the present one's number; 0: none, or there are no numbers
} loss;

/* Whether what was made in the life of that number is gone. */
static bool
is_of_old(const loss *l, uint64_t life)
{
    return life == 0 || life != l->life;
}

/* ---- marks and uses ---- */

static bool
is_mark_lost(const loss *l, const gm_mark *mark)
{
    return mark && mark->device == l->device && is_of_old(l, mark->life);
}

/* Whether the stream of a use went with the device. A default stream's handle outlives
 * it. Where the stream's life is not known that of its first mark tells. */
static bool
is_stream_lost(const loss *l, const gm_stream_use *by, bool mark_lost)
{
    if (by->device != l->device || by->stream <= GM_STREAM_PER_THREAD) {
        return false;
    }
    return by->life ? is_of_old(l, by->life) : mark_lost || l->life == 0;
}

/* Takes out of a note that does not stand in lanes what is lost of its uses. */
static void
forget_uses_locked(gm_pool *pool, const loss *l, gm_note *note)
{
    gm_use **link = &note->uses;

    while (*link) {
        gm_use *use = *link;
        bool mark_lost = is_mark_lost(l, use->mark);

        if (is_stream_lost(l, &use->by, mark_lost)) {
            gm_mark_drop_locked(pool, use->mark);
            *link = use->next;
            gm_host_free(use);
            continue;
        }
        if (mark_lost) {
            gm_mark_drop_locked(pool, use->mark);
            use->mark = NULL;
        }
        link = &use->next;
    }
}

/* What was dropped and waits for nothing any more goes at once. */
static void
finish_dropped_locked(gm_pool *pool)
{
    gm_note **link = &pool->dropped;

    while (*link) {
        gm_note *note = *link;

        if (note->uses) {
            link = &note->behind;
            continue;
        }
        *link = note->behind;
        gm_note_unlink_locked(pool, note);
        (void)gm_note_finish_locked(pool, note); // how much it was matters to nobody
    }
    pool->attention = pool->closed || pool->dropped;
}

/* In a lane uses stand in the order of their marks, so the lost ones come first. */
static void
forget_lanes_locked(gm_pool *pool, const loss *l)
{
    gm_use **lane = &pool->lanes;

    while (*lane) {
        if (is_mark_lost(l, (*lane)->mark)) {
            (void)gm_lane_settle_locked(pool, lane);
        }
        else {
            lane = &(*lane)->lane;
        }
    }
}

/* An arena that a lost stream owns, by a handle that may be somebody else's by now;
 * NULL for none. One whose life is not known is left to whoever can wait for the
 * device. */
static gm_arena *
find_lost_arena_locked(const gm_pool *pool, const loss *l)
{
    for (size_t i = 0; i < pool->arenas.bucket_count; i++) {
        for (gm_arena *a = pool->arenas.buckets[i]; a; a = a->chain) {
            if (!a->known || !is_stream_lost(l, &a->by, true)) {
                continue;
            }
            a->known = false;
            if (a->by.life || !l->life) {
                return a;
            }
        }
    }
    return NULL;
}

/* Memory by page outlives a device, but its last use is over with it: what its streams
 * owned is anybody's. */
static void
forget_pages_locked(gm_pool *pool, const loss *l)
{
    gm_arena *arena;

    if (pool->device != l->device) {
        return;
    }
    pool->paging.life = l->life;
    while ((arena = find_lost_arena_locked(pool, l)) != NULL) {
        arena->pins++;
        gm_arena_release_locked(pool, arena);
    }
    for (gm_page *page = pool->paging.leaving; page; page = page->behind) {
        if (is_mark_lost(l, page->mark)) {
            gm_mark_drop_locked(pool, page->mark);
            page->mark = NULL;
        }
    }
    for (gm_place *place = pool->paging.ending; place; place = place->older) {
        if (is_mark_lost(l, place->mark)) {
            gm_mark_drop_locked(pool, place->mark);
            place->mark = NULL;
        }
    }
}

/* Spare ones; the others have become spare by now. Their events are not destroyed. */
static void
forget_marks_locked(gm_pool *pool, const loss *l)
{
    gm_mark **link = &pool->marks;

    while (*link) {
        gm_mark *mark = *link;

        if (is_mark_lost(l, mark)) {
            *link = mark->next;
            gm_host_free(mark);
        }
        else {
            link = &mark->next;
        }
    }
}

/* ---- memory ---- */

/* The handle of a live block gets nothing to give back. */
static void
void_block_locked(gm_pool *pool, gm_block *block, size_t requested)
{
    pool->stats.used_bytes -= block->size;
    pool->stats.requested_bytes -= requested;
    pool->stats.live_blocks--;
    gm_block_retire(block);
    block->state = GM_BLOCK_VOID; // `deferred` may be written by a free just now
    pool->voided++;
}

static void
forget_noted_locked(gm_pool *pool, gm_block *block)
{
    gm_note *note = block->u.noted.note;

    void_block_locked(pool, block, note->requested);
    gm_note_unlink_locked(pool, note);
    if (note->part) {
        gm_part_leave_locked(pool, note->part);
    }
    gm_note_free_locked(pool, note);
}

/* The note goes on waiting, for other devices, without the memory. */
static void
forget_pending_locked(gm_pool *pool, gm_block *block)
{
    gm_note *note = block->u.noted.note;

    pool->stats.pending_bytes -= block->size;
    pool->stats.pending_blocks--;
    if (note->part) {
        gm_part_leave_locked(pool, note->part);
    }
    note->part = NULL;
    note->block = NULL;
    gm_block_give(&pool->store, block);
}

static void
forget_block_locked(gm_pool *pool, gm_block *block)
{
    switch ((gm_block_state)block->state) {
    case GM_BLOCK_LIVE:
        void_block_locked(pool, block, block->u.live.requested);
        break;
    case GM_BLOCK_NOTED:
        forget_noted_locked(pool, block);
        break;
    case GM_BLOCK_PENDING:
        forget_pending_locked(pool, block);
        break;
    case GM_BLOCK_CAPTURED:
        gm_part_forget_locked(pool, block);
        gm_block_give(&pool->store, block);
        break;
    case GM_BLOCK_FREE:
        gm_index_remove(&block->segment->arena->index, block);
        gm_block_give(&pool->store, block);
        break;
    case GM_BLOCK_SPARE:
    case GM_BLOCK_MOVING:
    case GM_BLOCK_HOLE:
    case GM_BLOCK_VOID:
        GM_ASSERT(false); // in no segment that can be lost
        break;
    }
}

static void
unlink_locked(gm_pool *pool, gm_segment *segment)
{
    gm_pool_unlink_segment_locked(pool, segment);
    pool->stats.lost_segments++;
    pool->stats.lost_bytes += segment->size;
}

/* Takes the segments that are gone out of the pool, chained by `next`. */
static gm_segment *
forget_memory_locked(gm_pool *pool, const loss *l)
{
    gm_segment *chain = NULL;
    gm_segment *segment = pool->first;

    while (segment) {
        gm_segment *next = segment->next;

        if (segment->piece.device == l->device && is_of_old(l, segment->life)) {
            gm_block *block = segment->first;

            while (block) {
                gm_block *above = block->next;

                pool->uncounted += above ? 1 : 0;
                forget_block_locked(pool, block);
                block = above;
            }
            unlink_locked(pool, segment);
            segment->next = chain;
            chain = segment;
        }
        segment = next;
    }
    return chain;
}

void
gm_pool_forget_segment(gm_pool *pool, gm_segment *segment)
{
    if (pool->upstream.forget) {
        pool->upstream.forget(pool->upstream.context, pool->device, &segment->piece);
    }
    gm_host_free(segment);
}

/* ---- a pool ---- */

/* Waits until no other thread works on marks without the lock, which is then held. */
static void
lock_settled(gm_pool *pool)
{
    bool busy;

    do {
        const gm_note *note;

        gm_pool_lock(pool);
        note = pool->notes;
        while (note && !note->in_flight) {
            note = note->next;
        }
        busy = note || pool->settling || pool->paging.in_flight > pool->paging.waiting;
        if (busy) {
            gm_pool_unlock(pool);
            sched_yield(); // none of them waits for a device
        }
    } while (busy);
}

static void
lose_in_pool(gm_pool *pool, void *context)
{
    const loss *l = context;
    gm_segment *chain;

    if (pool->upstream.backend != l->backend) {
        return;
    }
    lock_settled(pool);
    forget_pages_locked(pool, l);
    forget_lanes_locked(pool, l);
    for (gm_note *note = pool->notes; note; note = note->next) {
        forget_uses_locked(pool, l, note);
    }
    finish_dropped_locked(pool);
    forget_marks_locked(pool, l);
    chain = forget_memory_locked(pool, l);
    gm_pool_unlock(pool);
    while (chain) {
        gm_segment *next = chain->next;

        gm_pool_forget_segment(pool, chain);
        chain = next;
    }
    gm_pool_lock(pool);
    gm_pool_leave(pool); // the last that a closed pool waited for may be gone
}

void
gm_pools_device_lost(const gm_backend *backend, int device)
{
    loss l = {.backend = backend, .device = device};

    if (gm_process_is_frozen()) {
        return;
    }
    /* One that does not answer has no life that anything could be of. */
    (void)gm_backend_device_incarnation(backend, device, &l.life);
    gm_pools_visit(lose_in_pool, &l);
}

/* As the slot, where there is something to ask. */
static bool
ask_life(const gm_pool *pool, int device, uint64_t *life)
{
    return pool->upstream.backend && device >= 0 &&
           gm_backend_device_incarnation(pool->upstream.backend, device, life) == GM_OK;
}

uint64_t
gm_pool_ask_life(const gm_pool *pool, int device)
{
    uint64_t life = 0;

    (void)ask_life(pool, device, &life); // not known then
    return life;
}

/* A device that does not answer has said nothing of a reset. */
static bool
has_ended(const gm_pool *pool, int device, uint64_t life)
{
    uint64_t now = 0;

    return life && ask_life(pool, device, &now) && now != life;
}

bool
gm_pool_has_lost(const gm_pool *pool, const gm_segment *segment)
{
    return has_ended(pool, segment->piece.device, segment->life);
}

void
gm_pool_begin_life(gm_pool *pool)
{
    uint64_t life = gm_pool_ask_life(pool, pool->device);

    gm_pool_lock(pool);
    if (!pool->paging.life) {
        pool->paging.life = life;
    }
    gm_pool_unlock(pool);
}

void
gm_pool_notice_reset(gm_pool *pool)
{
    uint64_t life = 0;
    int device = -1;

    if (gm_process_is_special()) {
        return;
    }
    gm_pool_lock(pool);
    if (pool->paging.on) {
        device = pool->device;
        life = pool->paging.life;
    }
    else if (pool->last) {
        device = pool->last->piece.device;
        life = pool->last->life;
    }
    gm_pool_unlock(pool);
    if (pool->paging.on && !life) {
        gm_pool_begin_life(pool);
    }
    else if (has_ended(pool, device, life)) {
        gm_pools_device_lost(pool->upstream.backend, device);
    }
}
