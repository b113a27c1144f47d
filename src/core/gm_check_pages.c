/* SPDX-License-Identifier: MIT
 *
 * The invariants of memory that is mapped by page: pages, their places, and that what
 * lies in holes, and only that, could not be used. gm_check.c calls it, with the
 * segments and blocks found to be sound.
 *
 * What another thread has in its hands without the lock is MOVING and left out. Cost:
 * linear in grains and blocks. Threading: caller holds the pool's lock.
 */
#include "gm_pool_private.h"

/* The grains of a block that holds bytes are homes, those of a hole are not, and no
 * place lies across the border of a hole. */
static const char *
check_block(const gm_pool *pool, const gm_block *block)
{
    size_t grain = pool->paging.grain;
    uintptr_t base = block->segment->piece.base;
    uintptr_t end = block->addr + block->size;
    bool hole = block->state == GM_BLOCK_HOLE;
    uintptr_t mapped = base + block->segment->space->count * grain;

    if (block->state == GM_BLOCK_MOVING) {
        return NULL;
    }
    if (hole && ((block->addr - base) % grain || (end - base) % grain)) {
        return "a hole does not consist of whole grains";
    }
    for (uintptr_t at = block->addr - (block->addr - base) % grain;
         at < end && (at < mapped || !hole); at += grain) {
        const gm_place *place = gm_place_at(pool, block->segment, at);
        bool home = place && place->page->home == place;

        if (home == hole) {
            return hole ? "a page is at home in a hole" : "there are bytes in no page";
        }
        if (hole && place &&
            (place->addr < block->addr || place->addr + place->page->size > end)) {
            return "a place lies across the border of a hole";
        }
    }
    return NULL;
}

static const char *
check_space(const gm_pool *pool, const gm_segment *segment)
{
    size_t holes = 0;
    size_t listed = 0;
    const char *fault = NULL;

    for (const gm_block *b = segment->first; b && !fault; b = b->next) {
        holes += b->state == GM_BLOCK_HOLE;
        if (b->state == GM_BLOCK_HOLE && b->next && b->next->state == GM_BLOCK_HOLE) {
            return "two holes that meet were not joined";
        }
        if (!b->next && b->state != GM_BLOCK_HOLE) {
            return "a space has no open end";
        }
        fault = check_block(pool, b);
    }
    for (const gm_block *b = segment->space->holes; b; b = b->u.hole.next) {
        if (b->state != GM_BLOCK_HOLE || b->segment != segment || ++listed > holes) {
            return "the list of holes holds something else";
        }
    }
    return fault ? fault : listed < holes ? "a hole is not on the list" : NULL;
}

static const char *
check_page(const gm_pool *pool, const gm_page *page, size_t *places)
{
    bool home = false;

    for (const gm_place *p = page->places; p; p = p->next) {
        for (size_t at = 0; at < page->size; at += pool->paging.grain) {
            if (gm_place_at(pool, p->segment, p->addr + at) != p) {
                return "a page is not where it says";
            }
        }
        if (p->echo == (p == page->home) || p->ending) {
            return "the echoes are not the places that are no homes";
        }
        home |= p == page->home;
        ++*places;
    }
    return home ? NULL : "a page is at home where it is not mapped";
}

/* The list of echoes, and what was given up of them. */
static const char *
check_echoes(const gm_pool *pool, size_t *places)
{
    const gm_place *older = NULL;
    size_t echoes = 0;

    for (const gm_place *p = pool->paging.oldest; p; p = p->newer) {
        if (!p->echo || p->older != older) {
            return "the list of echoes is broken";
        }
        older = p;
        echoes++;
    }
    for (const gm_place *p = pool->paging.ending; p; p = p->older) {
        if (!p->ending || p->page->ending == 0 ||
            gm_place_at(pool, p->segment, p->addr) != p ||
            p->block->state != GM_BLOCK_MOVING || p->block->addr != p->addr ||
            p->block->size != p->page->size) {
            return "a place that was given up is not there, or somebody has it";
        }
        ++*places;
    }
    return echoes == pool->paging.echoes && older == pool->paging.newest
               ? NULL
               : "the echoes are not counted right";
}

const char *
gm_check_pages_locked(const gm_pool *pool)
{
    const gm_paging *paging = &pool->paging;
    const char *fault = NULL;
    size_t pages = 0;
    size_t places = 0;
    size_t bytes = 0;
    size_t homes = 0;

    for (const gm_segment *s = pool->first; s && !fault; s = s->next) {
        if (s->space) {
            fault = check_space(pool, s);
            homes += s->space->bytes;
        }
    }
    for (const gm_page *p = paging->pages; p && !fault; p = p->next) {
        fault = check_page(pool, p, &places);
        bytes += p->size;
        pages++;
    }
    fault = fault ? fault : check_echoes(pool, &places);
    if (fault) {
        return fault;
    }
    if (pages != pool->stats.pages ||
        (paging->in_flight ? places > pool->stats.mappings
                           : places != pool->stats.mappings)) {
        return "the counters of pages are wrong";
    }
    if (paging->on && bytes != pool->stats.total_bytes + paging->withheld) {
        return "the pages are not what the pool holds";
    }
    if (bytes != homes) {
        return "the spaces do not count the pages at home in them";
    }
    return NULL;
}
