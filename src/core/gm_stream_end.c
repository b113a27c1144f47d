/* SPDX-License-Identifier: MIT
 *
 * The end of a stream: its uses get their last mark while its handle still works, and
 * what its arenas hold becomes part of the commons when the stream's work is done.
 *
 * Who works on a use of the stream without the lock, or on pages that it owns, is
 * waited for, so that nobody uses the handle after this: from the first look on nobody
 * gets it any more, and those who have it wait for nobody. Cost: a look at all notes of
 * all pools; where the stream left something, one mark a pool.
 */
#include "gm_pending.h"

#include "gm_pool_private.h"

#include <sched.h> // sched_yield

void
gm_arena_release_locked(gm_pool *pool, gm_arena *arena)
{
    gm_arena_table *table = &pool->arenas;

    if (!table->commons) {
        table->commons = arena;
    }
    for (gm_segment *segment = pool->first; segment; segment = segment->next) {
        if (segment->arena == arena && table->commons != arena) {
            gm_arena_take_over(table, segment, table->commons);
        }
    }
    gm_arena_unpin(table, arena); // the note's
}

/* ---- who owns pages ---- */

/* The last mark of the stream that left the arena, if that has not happened so far. */
static gm_mark *
find_last_locked(const gm_pool *pool, const gm_arena *arena)
{
    for (const gm_note *note = pool->notes; note; note = note->next) {
        if (note->kind == GM_NOTE_ARENA && note->arena == arena && note->uses) {
            return note->uses->mark;
        }
    }
    for (const gm_use *lane = pool->lanes; lane; lane = lane->lane) {
        for (const gm_use *use = lane; use; use = use->later) {
            if (use->note->kind == GM_NOTE_ARENA && use->note->arena == arena) {
                return use->mark;
            }
        }
    }
    return NULL;
}

void
gm_owner_take_locked(gm_pool *pool, gm_arena *arena, gm_owner *out)
{
    *out = (gm_owner){
        .arena = arena,
        .by = arena->by,
        .known = arena->known,
        .done = arena == pool->arenas.commons,
        .last = arena->known ? NULL : find_last_locked(pool, arena),
    };
    if (out->last) {
        out->last->refs++;
    }
    arena->pins++;
    arena->borrowers += out->known;
}

void
gm_owner_return_locked(gm_pool *pool, const gm_owner *owner)
{
    gm_arena *arena = owner->arena;

    gm_mark_drop_locked(pool, owner->last);
    arena->known &= !owner->gone;
    arena->borrowers -= owner->known;
    gm_arena_unpin(&pool->arenas, arena);
}

/* ---- the end ---- */

typedef struct ending {
    const gm_backend *backend;
    const gm_stream_use *by;
} ending;

static gm_arena *
find_arena_locked(gm_pool *pool, const gm_stream_use *by)
{
    return pool->device == by->device ? gm_arena_search(&pool->arenas, by->key) : NULL;
}

/* Whether the stream left anything in the pool. Its handle goes to nobody from then on.
 */
static bool
is_concerned(gm_pool *pool, const gm_stream_use *by)
{
    bool concerned;
    const gm_note *note;
    gm_arena *arena;

    gm_pool_lock(pool);
    note = pool->notes;
    while (note && !gm_note_find_use(note, by)) {
        note = note->next;
    }
    arena = find_arena_locked(pool, by);
    if (arena) {
        arena->known = false;
    }
    concerned = note || arena;
    gm_pool_leave(pool);
    return concerned;
}

/* Gives the stream's uses their last mark, NULL where nothing is under way. False:
 * again, when a flush that works on one of them is done, or who has the handle is. */
static bool
end_uses_locked(gm_pool *pool, const gm_stream_use *by, gm_mark *mark)
{
    const gm_arena *arena = find_arena_locked(pool, by);
    bool all = !arena || !arena->borrowers;

    for (gm_note *note = pool->notes; note; note = note->next) {
        gm_use *use = gm_note_find_use(note, by);

        if (!use) {
            continue;
        }
        if (note->in_flight) {
            all = false;
            continue;
        }
        if (!use->gone) {
            gm_mark_drop_locked(pool, use->mark);
            use->mark = mark;
            use->gone = true;
            if (mark) {
                mark->refs++;
            }
        }
    }
    return all;
}

/* What the stream's arena holds is to become anybody's. Takes over note and use, which
 * may be NULL: without them it goes back to the device with the rest. */
static void
end_arena_locked(
    gm_pool *pool, const gm_stream_use *by, gm_mark *mark, gm_note *note, gm_use *use)
{
    gm_arena *arena = find_arena_locked(pool, by);

    if (!arena || !note || !use) {
        gm_host_free(note);
        gm_host_free(use);
        return;
    }
    arena->pins++;
    note->arena = arena;
    gm_note_link_locked(pool, note);
    if (!mark) {
        gm_host_free(use);
    }
    else {
        use->mark = mark;
        use->gone = true;
        mark->refs++;
        gm_note_give_use_locked(pool, note, use);
    }
    gm_pool_drop_note_locked(pool, note);
}

static void
end_in_pool(gm_pool *pool, void *context)
{
    const ending *e = context;
    gm_mark *mark = NULL;
    gm_note *note;
    gm_use *use;

    if (pool->upstream.backend != e->backend || !is_concerned(pool, e->by)) {
        return;
    }
    note = gm_note_new(GM_NOTE_ARENA);
    use = gm_use_new(e->by);
    if (gm_mark_record(pool, e->by, &mark) != GM_OK) {
        /* Where this fails as well, the device is lost and its memory with it. */
        (void)gm_backend_stream_synchronize(e->backend, e->by->stream);
    }
    gm_pool_lock(pool);
    while (!end_uses_locked(pool, e->by, mark)) {
        gm_pool_unlock(pool);
        sched_yield(); // neither waits for anybody
        gm_pool_lock(pool);
    }
    end_arena_locked(pool, e->by, mark, note, use);
    gm_mark_drop_locked(pool, mark);
    gm_pool_leave(pool);
}

void
gm_pools_end_stream(const gm_backend *backend, const gm_stream_use *by)
{
    ending e = {backend, by};

    if (!gm_process_is_frozen()) {
        gm_pools_visit(end_in_pool, &e);
    }
}
