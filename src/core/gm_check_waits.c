/* SPDX-License-Identifier: MIT
 *
 * The invariants of what waits: notes, their uses in lanes, marks, and the parts of
 * captures. gm_check.c calls it, with the segments found to be sound.
 *
 * What another thread has in its hands without the lock is left out: the marks that it
 * has recorded and nobody holds yet, and those that it waits for. Cost: the square of
 * the uses that wait, and blocks times parts. Threading: caller holds the pool's lock.
 */
#include "gm_pool_private.h"

/* Calls `count` with each use of the pool's notes; the sum of what it returns. */
static size_t
sum_of_uses(const gm_pool *pool,
            size_t (*count)(const gm_use *use, bool in_lane, const void *what),
            const void *what)
{
    size_t sum = 0;

    for (const gm_note *note = pool->notes; note; note = note->next) {
        for (const gm_use *use = note->uses; use; use = use->next) {
            sum += count(use, false, what);
        }
    }
    for (const gm_use *lane = pool->lanes; lane; lane = lane->lane) {
        for (const gm_use *use = lane; use; use = use->later) {
            sum += count(use, true, what);
        }
    }
    return sum;
}

static size_t
has_mark(const gm_use *use, bool in_lane, const void *mark)
{
    (void)in_lane;
    return use->mark == mark;
}

static size_t
is_in_lane_of(const gm_use *use, bool in_lane, const void *note)
{
    return in_lane && use->note == note;
}

/* The uses that hold the mark, pages on their way back to the device, and places that
 * were given up. */
static size_t
holders_of(const gm_pool *pool, const gm_mark *mark)
{
    size_t holders = sum_of_uses(pool, has_mark, mark);

    for (const gm_page *page = pool->paging.leaving; page; page = page->behind) {
        holders += page->mark == mark;
    }
    for (const gm_place *p = pool->paging.ending; p; p = p->older) {
        holders += p->mark == mark;
    }
    return holders;
}

static const char *
check_use(const gm_pool *pool, const gm_use *use)
{
    size_t holders = use->mark ? holders_of(pool, use->mark) : 0;
    bool others = pool->paging.in_flight || pool->waiting;

    if (use->mark &&
        (use->mark->refs < holders || (use->mark->refs > holders && !others))) {
        return "a mark is not held by as many uses and pages as it counts";
    }
    if (use->mark && use->mark->device != use->by.device) {
        return "a use has a mark of another device";
    }
    return NULL;
}

/* In a lane the uses are of one stream, each with a mark, and counted by their note. */
static const char *
check_lane(const gm_pool *pool, const gm_use *lane)
{
    const char *fault = NULL;

    for (const gm_use *use = lane; use && !fault; use = use->later) {
        if (!gm_stream_use_is_same(&use->by, &lane->by) || !use->mark) {
            return "a lane holds a use of another stream, or one without mark";
        }
        if (use->note->open != sum_of_uses(pool, is_in_lane_of, use->note)) {
            return "a note does not count its uses in lanes";
        }
        if (!use->later && lane->last != use) {
            return "a lane does not know its end";
        }
        fault = check_use(pool, use);
    }
    return fault;
}

static const char *
check_note(const gm_pool *pool, const gm_note *note)
{
    const char *fault = NULL;

    if (note->next && note->next->prev != note) {
        return "the list of notes is broken";
    }
    if (note->open) {
        return "a note on the list has uses in lanes";
    }
    for (const gm_use *use = note->uses; use && !fault; use = use->next) {
        if (use->note != note || gm_note_find_use(note, &use->by) != use) {
            return "a use is of another note, or a second one of its stream";
        }
        fault = check_use(pool, use);
    }
    return fault;
}

/* The notes of blocks that belong to the part. */
static size_t
members_of(const gm_pool *pool, const gm_part *part)
{
    size_t members = 0;

    for (const gm_segment *s = pool->first; s; s = s->next) {
        for (const gm_block *b = s->first; b; b = b->next) {
            bool noted = b->state == GM_BLOCK_NOTED || b->state == GM_BLOCK_PENDING;

            members += noted && b->u.noted.note->part == part;
        }
    }
    return members;
}

static void
find_stranger(void *part, const gm_block *block)
{
    const gm_part **link = part;

    if (*link && block->client != (*link)->number) {
        *link = NULL;
    }
}

static const char *
check_part(const gm_pool *pool, const gm_part *part)
{
    const gm_part *own = part;

    for (const gm_part *p = part->next; p; p = p->next) {
        if (p->number == part->number) {
            return "two parts have one number";
        }
    }
    if (!part->number) {
        return "a part has no number";
    }
    if (part->members != members_of(pool, part)) {
        return "a part does not count its members";
    }
    if (part->ended && (part->index.groups || !part->members)) {
        return "a part that has ended is still there, or still has memory";
    }
    gm_index_walk(&part->index, find_stranger, (void *)&own);
    return own ? NULL : "the index of a part holds a block of another one";
}

const char *
gm_check_waits_locked(const gm_pool *pool)
{
    const char *fault = NULL;

    if (pool->notes && pool->notes->prev) {
        return "the list of notes is broken";
    }
    if (pool->attention != (pool->closed || pool->dropped)) {
        return "the pool does not know whether leaving it takes more";
    }
    for (const gm_note *n = pool->notes; n && !fault; n = n->next) {
        fault = check_note(pool, n);
    }
    for (const gm_use *lane = pool->lanes; lane && !fault; lane = lane->lane) {
        fault = check_lane(pool, lane);
    }
    for (const gm_part *p = pool->parts; p && !fault; p = p->next) {
        fault = check_part(pool, p);
    }
    for (const gm_mark *mark = pool->marks; mark && !fault; mark = mark->next) {
        fault = mark->refs ? "a spare mark is held by somebody" : NULL;
    }
    return fault;
}
