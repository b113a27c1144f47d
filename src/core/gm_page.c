/* SPDX-License-Identifier: MIT
 *
 * Pages, the places where they are mapped, and which pages lie in free memory.
 * gm_page.h says what they are.
 *
 * A look walks the free blocks that could hold a page and gives each page found there
 * its number, so that whether a page is free can be told from the page. It is of its
 * moment: what the cache gives out afterwards it does not see, so it is used up before
 * the lock is let go of.
 *
 * Cost: a look is linear in the free blocks of a grain and more and in their pages.
 * Threading: as gm_page.h.
 */
#include "gm_pool_private.h"

gm_place *
gm_place_at(const gm_pool *pool, const gm_segment *segment, uintptr_t addr)
{
    size_t grain = (addr - segment->piece.base) / pool->paging.grain;

    return grain < segment->space->count ? segment->space->at[grain] : NULL;
}

/* Writes `what` for each grain of a place. */
static void
place_mark_locked(const gm_pool *pool, const gm_place *place, gm_place *what)
{
    size_t grain = pool->paging.grain;
    size_t first = (place->addr - place->segment->piece.base) / grain;

    for (size_t i = 0; i < place->page->size / grain; i++) {
        place->segment->space->at[first + i] = what;
    }
}

void
gm_place_link_locked(gm_pool *pool, gm_place *place)
{
    place->next = place->page->places;
    place->page->places = place;
    place_mark_locked(pool, place, place);
    pool->stats.mappings++;
}

void
gm_place_forget_locked(gm_pool *pool, const gm_place *place)
{
    place_mark_locked(pool, place, NULL);
    pool->stats.mappings--;
}

void
gm_echo_list_locked(gm_pool *pool, gm_place *place)
{
    gm_paging *paging = &pool->paging;

    place->echo = true;
    place->newer = NULL;
    place->older = paging->newest;
    *(paging->newest ? &paging->newest->newer : &paging->oldest) = place;
    paging->newest = place;
    paging->echoes++;
}

void
gm_echo_unlist_locked(gm_pool *pool, gm_place *place)
{
    gm_paging *paging = &pool->paging;

    place->echo = false;
    *(place->older ? &place->older->newer : &paging->oldest) = place->newer;
    *(place->newer ? &place->newer->older : &paging->newest) = place->older;
    paging->echoes--;
}

void
gm_page_drop_places_locked(gm_pool *pool, gm_page *page)
{
    gm_page_settle_at_locked(pool, page, NULL);
    while (page->places) {
        gm_place *place = page->places;

        page->places = place->next;
        gm_echo_unlist_locked(pool, place);
        gm_place_forget_locked(pool, place);
        gm_host_free(place);
    }
}

void
gm_page_link_locked(gm_pool *pool, gm_page *page)
{
    page->prev = NULL;
    page->next = pool->paging.pages;
    if (page->next) {
        page->next->prev = page;
    }
    pool->paging.pages = page;
    pool->stats.pages++;
}

void
gm_page_unlink_locked(gm_pool *pool, gm_page *page)
{
    *(page->prev ? &page->prev->next : &pool->paging.pages) = page->next;
    if (page->next) {
        page->next->prev = page->prev;
    }
    pool->stats.pages--;
}

void
gm_page_settle_at_locked(gm_pool *pool, gm_page *page, gm_place *place)
{
    if (page->home) {
        page->home->segment->space->bytes -= page->size;
        gm_echo_list_locked(pool, page->home);
    }
    page->home = place;
    if (place) {
        place->segment->space->bytes += page->size;
    }
    if (place && place->echo) {
        gm_echo_unlist_locked(pool, place);
    }
}

unsigned
gm_page_class(const gm_pool *pool, size_t size)
{
    return (unsigned)__builtin_ctzll(size / pool->paging.grain);
}

/* ---- looks ---- */

void
gm_look_begin_locked(gm_pool *pool, gm_look *look)
{
    *look = (gm_look){.number = ++pool->paging.looks};
}

typedef struct looking {
    gm_pool *pool;
    gm_look *look;
} looking;

static void
add_page(gm_pool *pool, gm_look *look, gm_page *page, gm_block *block)
{
    unsigned class = gm_page_class(pool, page->size);

    page->look = look->number;
    page->block = block;
    page->behind = NULL;
    *(look->last[class] ? &look->last[class]->behind : &look->pages[class]) = page;
    look->last[class] = page;
    look->bytes += page->size;
}

/* Adds the pages that lie in the block as a whole. */
static void
look_at_block(void *context, const gm_block *block)
{
    const looking *l = context;
    gm_pool *pool = l->pool;
    uintptr_t end = block->addr + block->size;
    uintptr_t addr = block->addr;

    if (!block->segment->space) {
        return;
    }
    while (addr < end) {
        gm_place *place = gm_place_at(pool, block->segment, addr);
        uintptr_t above = place->addr + place->page->size;

        if (place->addr >= block->addr && above <= end) {
            add_page(pool, l->look, place->page, (gm_block *)(uintptr_t)block);
        }
        addr = above;
    }
}

void
gm_look_add_locked(gm_pool *pool, gm_look *look, const gm_arena *arena)
{
    looking l = {pool, look};

    gm_index_walk_from(&arena->index, pool->paging.grain, look_at_block, &l);
}
