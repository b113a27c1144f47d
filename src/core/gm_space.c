/* SPDX-License-Identifier: MIT
 *
 * Spaces: their life, and how their blocks change between free memory, holes and what
 * is MOVING. gm_page.h says what they are.
 *
 * What is to be moved is cut out of free memory or a hole as a MOVING block, which is
 * in no index and in no list; whoever has it puts it back as either. Neither counts as
 * a split or a merge, which are those of requests; `uncounted` makes up for it.
 *
 * Cost: a few index operations each. Threading: as gm_page.h.
 */
#include "gm_pool_private.h"

gm_segment *
gm_space_new_locked(gm_pool *pool, gm_arena *arena, uintptr_t base, size_t size)
{
    gm_segment *segment = gm_host_zalloc(sizeof(*segment));
    gm_space *space = gm_host_zalloc(sizeof(*space));
    gm_block *block;

    if (!segment || !space || !gm_block_store_prepare(&pool->store)) {
        gm_host_free(space);
        gm_host_free(segment);
        return NULL;
    }
    block = gm_block_take(&pool->store);
    *segment = (gm_segment){
        .piece = {.base = base, .size = size, .device = -1},
        .serial = pool->next_serial++,
        .size = size,
        .space = space,
        .arena = arena,
        .first = block,
        .prev = pool->last,
    };
    *(pool->last ? &pool->last->next : &pool->first) = segment;
    pool->last = segment;
    block->addr = base;
    block->size = size;
    block->prev = NULL;
    block->next = NULL;
    block->segment = segment;
    block->state = GM_BLOCK_MOVING;
    pool->uncounted++;
    pool->stats.segments++;
    pool->stats.reserved_bytes += size;
    gm_stats_raise(&pool->stats.peak_segments, pool->stats.segments);
    gm_space_put_hole_locked(pool, block);
    return segment;
}

bool
gm_space_is_empty(const gm_segment *segment)
{
    const gm_space *space = segment->space;

    if (!space || space->awaited || segment->first->state != GM_BLOCK_HOLE ||
        segment->first->next) {
        return false;
    }
    for (size_t i = 0; i < space->count; i++) {
        if (space->at[i]) {
            return false;
        }
    }
    return true;
}

void
gm_space_unlink_locked(gm_pool *pool, gm_segment *segment)
{
    GM_ASSERT(gm_space_is_empty(segment));
    *(segment->prev ? &segment->prev->next : &pool->first) = segment->next;
    *(segment->next ? &segment->next->prev : &pool->last) = segment->prev;
    gm_block_give(&pool->store, segment->first);
    pool->uncounted--;
    pool->stats.segments--;
    pool->stats.reserved_bytes -= segment->size;
    gm_arena_unpin(&pool->arenas, segment->arena);
    gm_space_free(segment);
}

void
gm_space_free(gm_segment *segment)
{
    if (segment->space) {
        gm_host_free(segment->space->at);
        gm_host_free(segment->space);
        segment->space = NULL;
    }
}

bool
gm_space_prepare(const gm_pool *pool, gm_segment *segment, uintptr_t end)
{
    gm_space *space = segment->space;
    size_t need =
        (end - segment->piece.base + pool->paging.grain - 1) / pool->paging.grain;
    size_t count = space->count ? space->count : 64;
    gm_place **at;

    if (need <= space->count) {
        return true;
    }
    while (count < need) {
        count *= 2;
    }
    at = gm_host_zalloc(count * sizeof(gm_place *));
    if (!at) {
        return false;
    }
    for (size_t i = 0; i < space->count; i++) {
        at[i] = space->at[i];
    }
    gm_host_free(space->at);
    space->at = at;
    space->count = count;
    return true;
}

gm_block *
gm_space_find(gm_block *from, uintptr_t addr)
{
    while (addr - from->addr >= from->size) {
        from = from->next;
    }
    return from;
}

/* ---- holes ---- */

static void
link_hole_locked(gm_block *block)
{
    gm_space *space = block->segment->space;

    block->state = GM_BLOCK_HOLE;
    block->u.hole.prev = NULL;
    block->u.hole.next = space->holes;
    if (space->holes) {
        space->holes->u.hole.prev = block;
    }
    space->holes = block;
}

static void
unlink_hole_locked(gm_block *block)
{
    gm_block *prev = block->u.hole.prev;
    gm_block *next = block->u.hole.next;

    *(prev ? &prev->u.hole.next : &block->segment->space->holes) = next;
    if (next) {
        next->u.hole.prev = prev;
    }
}

void
gm_space_put_hole_locked(gm_pool *pool, gm_block *block)
{
    gm_block *next = block->next;
    gm_block *prev = block->prev;

    GM_ASSERT(block->state == GM_BLOCK_MOVING);
    if (next && next->state == GM_BLOCK_HOLE) {
        unlink_hole_locked(next);
        gm_block_absorb_next(block);
        gm_block_give(&pool->store, next);
    }
    if (prev && prev->state == GM_BLOCK_HOLE) {
        unlink_hole_locked(prev);
        gm_block_absorb_next(prev);
        gm_block_give(&pool->store, block);
        block = prev;
    }
    link_hole_locked(block);
}

void
gm_space_put_free_locked(gm_pool *pool, gm_block *block)
{
    size_t merges = pool->stats.merges;

    GM_ASSERT(block->state == GM_BLOCK_MOVING);
    gm_pool_cache_locked(pool, block);
    pool->uncounted += pool->stats.merges - merges - 1;
    pool->stats.merges = merges;
}

/* ---- taking ---- */

/* Puts what is left of a block that was cut to where the whole one was. */
static void
put_rest_locked(gm_pool *pool, gm_block *rest, bool hole)
{
    if (hole) {
        link_hole_locked(rest);
        return;
    }
    rest->state = GM_BLOCK_FREE;
    gm_index_put(&rest->segment->arena->index, rest);
    pool->uncounted--;
}

gm_block *
gm_space_take_locked(gm_pool *pool, gm_block *block, uintptr_t addr, size_t size)
{
    bool hole = block->state == GM_BLOCK_HOLE;

    GM_ASSERT(hole || block->state == GM_BLOCK_FREE);
    GM_ASSERT(addr >= block->addr && addr - block->addr <= block->size - size);
    if (hole) {
        unlink_hole_locked(block);
    }
    else {
        gm_index_remove(&block->segment->arena->index, block);
        pool->uncounted++;
    }
    if (addr > block->addr) {
        gm_block *rest = block;

        block = gm_block_take(&pool->store);
        gm_block_split(rest, addr - rest->addr, block);
        put_rest_locked(pool, rest, hole);
    }
    if (size < block->size) {
        gm_block *rest = gm_block_take(&pool->store);

        gm_block_split(block, size, rest);
        put_rest_locked(pool, rest, hole);
    }
    block->state = GM_BLOCK_MOVING;
    return block;
}
