/* SPDX-License-Identifier: MIT
 *
 * Recording uses, marking what was dropped, looking for what is done. gm_pending.h says
 * what is waited for and why; the end of a stream is gm_stream_end.c.
 *
 * The device is called without the lock, so what a call is about is taken out of other
 * hands first. A flush owns the notes it marks: they are `in_flight`, and the end of a
 * stream waits for it before the handle goes. One thread at a time settles: it alone
 * takes uses out of lanes, others append to them.
 */
#include "gm_pending.h"

#include "gm_shard_private.h"

enum {
    SETTLE_EVERY = 16, // flushes
};

/* ---- letting go ---- */

void
gm_pool_note_block_locked(gm_pool *pool, gm_block *block, gm_note *note)
{
    GM_ASSERT(block->state == GM_BLOCK_LIVE && note->kind == GM_NOTE_BLOCK);
    note->block = block;
    note->requested = block->u.live.requested;
    block->state = GM_BLOCK_NOTED;
    block->u.noted.note = note; // `deferred` may be written by a free just now
    gm_note_link_locked(pool, note);
}

/* The memory of a pending block, which waits for nothing any more. Returns the bytes
 * that anybody of its stream can have now. */
static size_t
release_block_locked(gm_pool *pool, const gm_note *note)
{
    gm_block *block = note->block;
    gm_part *part = note->part;
    size_t size;

    if (!block) { // went with its device
        return 0;
    }
    size = block->size;
    pool->stats.pending_bytes -= size;
    pool->stats.pending_blocks--;
    if (part && gm_part_put_locked(pool, part, block)) {
        return 0;
    }
    gm_pool_cache_locked(pool, block);
    return size;
}

size_t
gm_note_finish_locked(gm_pool *pool, gm_note *note)
{
    size_t bytes = 0;

    switch (note->kind) {
    case GM_NOTE_BLOCK:
        bytes = release_block_locked(pool, note);
        break;
    case GM_NOTE_ARENA:
        gm_arena_release_locked(pool, note->arena);
        break;
    case GM_NOTE_PART:
        bytes = gm_part_end_locked(pool, note->part);
        break;
    }
    gm_note_free_locked(pool, note);
    return bytes;
}

/* The uses of a note are to be marked at the next flush. */
static void
await_flush_locked(gm_pool *pool, gm_note *note)
{
    note->behind = pool->dropped;
    pool->dropped = note;
    pool->attention = true;
}

void
gm_pool_drop_note_locked(gm_pool *pool, gm_note *note)
{
    if (!note->uses) {
        gm_note_unlink_locked(pool, note);
        (void)gm_note_finish_locked(pool, note); // how much it was matters to nobody
        return;
    }
    await_flush_locked(pool, note);
}

void
gm_pool_take_back_noted_locked(gm_pool *pool, gm_block *block)
{
    gm_note *note = block->u.noted.note;

    pool->stats.used_bytes -= block->size;
    pool->stats.requested_bytes -= note->requested;
    pool->stats.live_blocks--;
    gm_block_retire(block);
    block->state = GM_BLOCK_PENDING;
    pool->stats.pending_bytes += block->size;
    pool->stats.pending_blocks++;
    gm_pool_drop_note_locked(pool, note); // where it has no uses, no more pending
    if (pool->stats.pending_bytes > pool->stats.peak_pending_bytes) {
        pool->stats.peak_pending_bytes = pool->stats.pending_bytes;
    }
}

/* ---- marking what was dropped ---- */

/* Records a mark for `use`, or takes that of `recent` for the same stream; without the
 * lock. Where the stream is gone the mark it has must do. */
static void
mark_use(gm_pool *pool, gm_use *use, const gm_use *recent)
{
    if (recent && recent->fresh && gm_stream_use_is_same(&recent->by, &use->by)) {
        use->fresh = recent->fresh;
        use->fresh->refs++; // nobody else has seen it yet
    }
    else if (!gm_stream_use_is_there(pool->upstream.backend, &use->by)) {
        use->gone = true;
    }
    else if (gm_mark_record(pool, &use->by, &use->fresh) != GM_OK) {
        use->fresh = NULL; // the note stays dropped, to be tried again
    }
}

static void
mark_notes(gm_pool *pool, const gm_note *chain)
{
    const gm_use *recent = NULL;

    for (const gm_note *note = chain; note; note = note->behind) {
        for (gm_use *use = note->uses; use; use = use->next) {
            if (!use->gone) {
                mark_use(pool, use, recent);
                recent = use;
            }
        }
    }
}

/* Puts the uses of a note that was dropped into lanes, or the note back among the
 * dropped where one of them got no mark. */
static void
queue_note_locked(gm_pool *pool, gm_note *note)
{
    bool complete = true;

    for (gm_use *use = note->uses; use; use = use->next) {
        if (use->fresh) {
            gm_mark_drop_locked(pool, use->mark);
            use->mark = use->fresh;
            use->fresh = NULL;
        }
        else if (!use->gone) {
            complete = false;
        }
    }
    if (!complete) {
        await_flush_locked(pool, note);
        return;
    }
    gm_note_unlink_locked(pool, note);
    for (gm_use *use = note->uses; use; use = use->next) {
        if (use->mark) {
            note->open++;
            gm_lane_append_locked(pool, use);
        }
    }
    if (note->open == 0) {
        (void)gm_note_finish_locked(pool, note); // it is free, whoever asks next
    }
}

void
gm_pool_flush(gm_pool *pool)
{
    gm_note *chain;
    bool settle;

    if (gm_process_is_special()) {
        return;
    }
    gm_pool_lock(pool);
    chain = pool->dropped;
    pool->dropped = NULL;
    pool->attention = pool->closed;
    for (gm_note *note = chain; note; note = note->behind) {
        note->in_flight = true;
    }
    gm_pool_unlock(pool);
    if (!chain) {
        return;
    }
    mark_notes(pool, chain);
    gm_pool_lock(pool);
    while (chain) {
        gm_note *note = chain;

        chain = note->behind;
        note->in_flight = false;
        queue_note_locked(pool, note);
    }
    settle = ++pool->flushes % SETTLE_EVERY == 0;
    gm_pool_unlock(pool);
    if (settle) {
        (void)gm_pool_settle(pool);
    }
}

/* ---- recording ---- */

/* What there is to do for a use of `block`: GM_OK nothing, GM_NOT_READY something,
 * GM_ERR_NOT_OWNED. */
static gm_status
look_locked(const gm_pool *pool,
            const gm_block *block,
            uint32_t generation,
            const gm_stream_use *by)
{
    const gm_use *known = NULL;

    if (block->generation != generation || !gm_block_is_live(block)) {
        return GM_ERR_NOT_OWNED;
    }
    if (block->segment->arena->key == by->key && pool->device == by->device) {
        return GM_OK;
    }
    if (block->state == GM_BLOCK_NOTED) {
        known = gm_note_find_use(block->u.noted.note, by);
    }
    return known && known->by.announced ? GM_OK : GM_NOT_READY;
}

#if GM_SHARDS

/* Whether the block was taken for that stream, by the stream's shard alone. Another
 * thread may give it back just now, so nothing in the node is trusted but what outlives
 * that: while it has the handle's generation its segment is there, and stays, since a
 * segment goes with the locks of all shards. */
static bool
is_own_use(gm_pool *pool,
           const gm_block *block,
           uint32_t generation,
           const gm_stream_use *by)
{
    gm_shard *shard = gm_pool_shard(pool, by->key);
    bool own;

    if (!shard) {
        return false;
    }
    gm_lock_acquire(&shard->lock);
    own = __atomic_load_n(&block->generation, __ATOMIC_RELAXED) == generation &&
          block->segment->arena->shard == shard &&
          look_locked(pool, block, generation, by) == GM_OK;
    gm_lock_release(&shard->lock);
    return own;
}

#endif

/* The same without a lock. A block is mostly used on the stream it was taken for. */
static gm_status
look(gm_pool *pool, const gm_block *block, uint32_t generation, const gm_stream_use *by)
{
    gm_status status;

#if GM_SHARDS
    if (is_own_use(pool, block, generation, by)) {
        return GM_OK;
    }
#endif
    gm_pool_lock(pool);
    status = look_locked(pool, block, generation, by);
    gm_pool_unlock(pool);
    return status;
}

/* A use with its first mark, where it needs one now. */
static gm_status
prepare_use(gm_pool *pool, const gm_stream_use *by, gm_use **out)
{
    gm_use *use = gm_use_new(by);
    gm_status status = GM_OK;

    if (!use) {
        return GM_ERR_HOST_MEMORY;
    }
    if (!by->announced) {
        status = gm_mark_record(pool, by, &use->mark);
        if (status == GM_ERR_CAPTURING) { // what is recorded does not run now
            status = GM_OK;
        }
    }
    if (status != GM_OK) {
        gm_host_free(use);
        return status;
    }
    *out = use;
    return GM_OK;
}

static void
drop_use(gm_pool *pool, gm_use *use)
{
    gm_pool_lock(pool);
    gm_mark_drop_locked(pool, use->mark);
    gm_pool_unlock(pool);
    gm_host_free(use);
}

gm_status
gm_pool_record_use(gm_pool *pool,
                   gm_block *block,
                   uint32_t generation,
                   const gm_stream_use *by)
{
    gm_note *note = NULL;
    gm_use *use = NULL;
    gm_status status;

    if (gm_process_is_frozen()) {
        return gm_process_status();
    }
    status = look(pool, block, generation, by);
    if (status != GM_NOT_READY) {
        return status;
    }
    if (!pool->upstream.backend) {
        return GM_ERR_UNSUPPORTED;
    }
    status = prepare_use(pool, by, &use);
    if (status != GM_OK) {
        return status;
    }
    note = gm_note_new(GM_NOTE_BLOCK);
    if (!note) {
        drop_use(pool, use);
        return GM_ERR_HOST_MEMORY;
    }
    gm_pool_lock(pool);
    status = look_locked(pool, block, generation, by);
    if (status == GM_NOT_READY) {
        if (block->state == GM_BLOCK_LIVE) {
            gm_pool_note_block_locked(pool, block, note);
            note = NULL;
        }
        gm_note_give_use_locked(pool, block->u.noted.note, use);
        use = NULL;
        status = GM_OK;
    }
    else {
        gm_mark_drop_locked(pool, use->mark);
    }
    gm_pool_leave(pool);
    gm_host_free(note);
    gm_host_free(use);
    return status;
}

/* ---- looking for what is done ---- */

size_t
gm_lane_settle_locked(gm_pool *pool, gm_use **lane)
{
    gm_use *use = gm_lane_pop_locked(lane);
    gm_note *note = use->note;

    gm_mark_drop_locked(pool, use->mark); // others may use it before the note is done
    use->mark = NULL;
    return --note->open == 0 ? gm_note_finish_locked(pool, note) : 0;
}

size_t
gm_pool_settle(gm_pool *pool)
{
    const gm_backend *b = pool->upstream.backend;
    size_t bytes = 0;
    gm_use **lane = &pool->lanes;

    if (gm_process_is_special()) {
        return 0;
    }
    gm_pool_lock(pool);
    if (pool->settling) {
        gm_pool_unlock(pool);
        return 0;
    }
    pool->settling = true;
    while (*lane) {
        gm_use *first = *lane;
        gm_event event = first->mark->event;
        gm_status status;

        gm_pool_unlock(pool);
        status = gm_backend_event_query(b, event);
        gm_pool_lock(pool);
        /* New lanes come in at the front of the list, so *lane may be another now. */
        while (*lane != first) {
            lane = &(*lane)->lane;
        }
        if (status == GM_OK) {
            bytes += gm_lane_settle_locked(pool, lane);
        }
        else { // not there yet, or the device is lost and its memory with it
            lane = &first->lane;
        }
    }
    pool->settling = false;
    gm_pool_unlock(pool);
    return bytes;
}

/* How many uses stand in all lanes, and the mark at the head of one. */
static size_t
look_at_lanes_locked(const gm_pool *pool, gm_mark **mark)
{
    size_t count = 0;

    for (const gm_use *lane = pool->lanes; lane; lane = lane->lane) {
        *mark = lane->mark;
        for (const gm_use *use = lane; use; use = use->later) {
            count++;
        }
    }
    return count;
}

size_t
gm_pool_settle_all(gm_pool *pool)
{
    size_t before;
    size_t after;

    gm_pool_lock(pool);
    before = pool->stats.pending_bytes;
    gm_pool_unlock(pool);
    gm_pool_flush(pool);
    (void)gm_marks_wait(pool, look_at_lanes_locked, gm_pool_settle);
    gm_pool_lock(pool);
    after = pool->stats.pending_bytes;
    gm_pool_unlock(pool);
    return (before > after ? before - after : 0) + gm_pages_settle(pool, true);
}

/* ---- pools that wait for a device ---- */

static void
pass_by(gm_pool *pool, void *context)
{
    (void)context;
    gm_pool_lock(pool);
    gm_pool_leave(pool);
}

void
gm_pools_sweep(void)
{
    if (!gm_process_is_special() && gm_process_is_anyone_lingering()) {
        gm_pools_visit(pass_by, NULL);
    }
}
