/* SPDX-License-Identifier: MIT
 *
 * Windows: where in the spaces of its stream a request goes that no free block can
 * serve.
 *
 * What lies between two blocks that are in use is a run of free memory, echoes and
 * grains that were never mapped. A request may go anywhere in a run; what is free there
 * is used as it is, and the rest has to be mapped, or made a home again where an echo
 * of a page that is free now lies. An echo whose page is in use is as good as in use.
 * The window is where that costs the least; where that is nowhere better, in the
 * smallest run, and in the oldest space and at the lowest address.
 *
 * The cost along a run changes its slope only where one end of the request meets the
 * border of a stretch, so these positions are all that is tried.
 *
 * Cost: linear in the holes of the stream's spaces, and in what lies in them and beside
 * them. Threading: as gm_page.h.
 */
#include "gm_pool_private.h"

enum {
    STRETCHES = 256 // a run of more is looked at in parts
};

/* A part of a run. */
typedef struct stretch {
    gm_block *block;
    uintptr_t addr;
    size_t size;
    size_t cost; // of all of it
    bool mapped; // no matter how much of it is used, that is the cost
} stretch;

/* The stretches of a run as far as nothing is in the way, and what is to be done with
 * them. */
typedef struct run run;
struct run {
    gm_pool *pool;
    const gm_look *look;
    const gm_window_costs *costs;
    void (*visit)(run *r);
    gm_window *best; // of what is looked for
    size_t rounded;
    size_t mapped;  // bytes of pages that could come here
    size_t largest; // of the requests that could be served
    size_t count;
    stretch *stretches;
};

static uintptr_t
end_of(const stretch *s)
{
    return s->addr + s->size;
}

/* What the bytes from `from` to `to` of the stretch cost. */
static size_t
part_cost(const run *r, const stretch *s, uintptr_t from, uintptr_t to)
{
    size_t grain = r->pool->paging.grain;

    if (s->mapped) {
        return s->cost;
    }
    return ((to - s->addr + grain - 1) / grain - (from - s->addr) / grain) *
           r->costs->grain;
}

/* Offers a position to the best window so far. */
static void
offer(run *r, const stretch *first, uintptr_t addr, size_t cost)
{
    const stretch *last = &r->stretches[r->count - 1];
    gm_window w = {
        .segment = first->block->segment,
        .first = first->block,
        .addr = addr,
        .cost = cost,
        .run = end_of(last) - r->stretches[0].addr,
    };
    const gm_window *best = r->best;
    bool better;

    if (!best->segment || w.cost != best->cost) {
        better = !best->segment || w.cost < best->cost;
    }
    else if (w.run != best->run) {
        better = w.run < best->run;
    }
    else if (w.segment != best->segment) {
        better = w.segment->serial < best->segment->serial;
    }
    else {
        better = w.addr < best->addr;
    }
    if (better) {
        *r->best = w;
    }
}

/* Positions that begin where a stretch does. */
static void
try_starts(run *r)
{
    const stretch *s = r->stretches;
    size_t whole = 0; // cost of the stretches from `i` to below `j`
    size_t j = 0;

    for (size_t i = 0; i < r->count; i++) {
        uintptr_t to = s[i].addr + r->rounded;

        while (j < r->count && end_of(&s[j]) < to) {
            whole += s[j++].cost;
        }
        if (j == r->count) {
            return;
        }
        offer(r, &s[i], s[i].addr, whole + part_cost(r, &s[j], s[j].addr, to));
        whole -= j > i ? s[i].cost : 0;
        j += j == i;
    }
}

/* Positions that end where free memory does. */
static void
try_ends(run *r)
{
    const stretch *s = r->stretches;
    size_t whole = 0; // cost of the stretches above `i` and below `j`
    size_t i = 0;

    for (size_t j = 0; j < r->count; j++) {
        uintptr_t from = end_of(&s[j]) - r->rounded;

        if (end_of(&s[j]) - s[0].addr >= r->rounded) {
            while (end_of(&s[i]) <= from) {
                i++;
                whole -= i < j ? s[i].cost : 0;
            }
            if (i < j) {
                offer(r, &s[i], from,
                      part_cost(r, &s[i], from, end_of(&s[i])) + whole + s[j].cost);
            }
        }
        whole += i < j ? s[j].cost : 0;
    }
}

static void
try_positions(run *r)
{
    if (end_of(&r->stretches[r->count - 1]) - r->stretches[0].addr >= r->rounded) {
        try_starts(r);
        try_ends(r);
    }
}

/* Something is in the way: looks at what there is so far, and forgets it. */
static void
end_run(run *r)
{
    if (r->count) {
        r->visit(r);
    }
    r->count = 0;
}

static void
add(run *r, const stretch *s)
{
    if (r->count == STRETCHES) {
        end_run(r);
    }
    r->stretches[r->count++] = *s;
}

/* Adds what is in a hole. The last grain of the open end is never used. */
static void
add_hole(run *r, gm_block *hole)
{
    const gm_segment *segment = hole->segment;
    size_t grain = r->pool->paging.grain;
    uintptr_t mapped = segment->piece.base + segment->space->count * grain;
    uintptr_t end = hole->addr + hole->size - (gm_space_is_end(hole) ? grain : 0);
    uintptr_t addr = hole->addr;

    while (addr < end) {
        const gm_place *place = gm_place_at(r->pool, segment, addr);
        stretch s = {.block = hole, .addr = addr, .mapped = place != NULL};

        if (place) {
            s.size = place->page->size;
            s.cost = s.size / grain * r->costs->echo;
        }
        else {
            do {
                s.size += addr + s.size < mapped ? grain : end - addr - s.size;
            } while (addr + s.size < end &&
                     !gm_place_at(r->pool, segment, addr + s.size));
            s.cost = s.size / grain * r->costs->grain;
        }
        if (place ? r->costs->echo && gm_look_has(r->look, place->page)
                  : r->costs->grain > 0) {
            add(r, &s);
        }
        else {
            end_run(r);
        }
        addr += s.size;
    }
}

static bool
is_usable(const gm_block *block)
{
    return block && (block->state == GM_BLOCK_FREE || block->state == GM_BLOCK_HOLE);
}

/* Whether the run that begins with the block is long enough, all of it taken as if
 * nothing were in the way: its places are many, its blocks few. */
static bool
may_hold(const run *r, const gm_block *block)
{
    size_t size = 0;

    while (size < r->rounded && is_usable(block)) {
        size += block->size;
        block = block->next;
    }
    return size >= r->rounded;
}

/* Looks at the run that the hole is in, if it is the first hole of it. */
static void
look_at_run(run *r, gm_block *hole)
{
    gm_block *block = is_usable(hole->prev) ? hole->prev : hole;

    if ((block != hole && is_usable(block->prev)) || !may_hold(r, block)) {
        return;
    }
    for (; is_usable(block); block = block->next) {
        if (block->state == GM_BLOCK_HOLE) {
            add_hole(r, block);
        }
        else {
            add(r, &(stretch){
                       .block = block,
                       .addr = block->addr,
                       .size = block->size,
                       .mapped = true,
                   });
        }
    }
    end_run(r);
}

static void
look_at_runs(run *r, const gm_arena *arena)
{
    for (gm_segment *s = r->pool->first; s; s = s->next) {
        if (!s->space || s->arena != arena) {
            continue;
        }
        for (gm_block *hole = s->space->holes; hole; hole = hole->u.hole.next) {
            look_at_run(r, hole);
        }
    }
}

void
gm_window_find_locked(gm_pool *pool,
                      const gm_arena *arena,
                      size_t rounded,
                      const gm_look *look,
                      const gm_window_costs *costs,
                      gm_window *out)
{
    stretch stretches[STRETCHES];
    run r = {
        .pool = pool,
        .look = look,
        .costs = costs,
        .visit = try_positions,
        .best = out,
        .rounded = rounded,
        .stretches = stretches,
    };

    *out = (gm_window){0};
    look_at_runs(&r, arena);
}

/* ---- how large a request could be ---- */

/* Bytes of the pages of the look that lie in the block. */
static size_t
movable_in(const run *r, const gm_block *block)
{
    uintptr_t end = block->addr + block->size;
    uintptr_t addr = block->addr;
    size_t bytes = 0;

    while (addr < end) {
        const gm_place *place = gm_place_at(r->pool, block->segment, addr);

        if (gm_look_has(r->look, place->page)) {
            bytes += place->page->size;
        }
        addr = place->addr + place->page->size;
    }
    return bytes;
}

/* All that is free in the run, and all that could come to it. */
static void
measure(run *r)
{
    const stretch *s = r->stretches;
    size_t length = end_of(&s[r->count - 1]) - s[0].addr;
    size_t bytes = r->mapped;

    for (size_t i = 0; i < r->count; i++) {
        if (s[i].block->state == GM_BLOCK_FREE) {
            bytes += s[i].size - movable_in(r, s[i].block);
        }
    }
    bytes = bytes < length ? bytes : length;
    r->largest = bytes > r->largest ? bytes : r->largest;
}

size_t
gm_window_largest_locked(gm_pool *pool, const gm_arena *arena, size_t made)
{
    static const gm_window_costs any = {1, 1};
    stretch stretches[STRETCHES];
    gm_look look;
    run r = {
        .pool = pool,
        .look = &look,
        .costs = &any,
        .visit = measure,
        .stretches = stretches,
    };

    gm_look_begin_locked(pool, &look);
    for (size_t i = 0; i < pool->arenas.bucket_count; i++) {
        for (gm_arena *a = pool->arenas.buckets[i]; a; a = a->chain) {
            gm_look_add_locked(pool, &look, a);
        }
    }
    r.mapped = look.bytes + made;
    r.largest = r.mapped; // in a new space
    look_at_runs(&r, arena);
    return r.largest;
}

void
gm_window_at_end_locked(gm_pool *pool, gm_segment *segment, gm_window *out)
{
    const gm_space *space = segment->space;
    gm_block *end = space->holes;
    gm_block *below;
    uintptr_t addr;

    while (!gm_space_is_end(end)) {
        end = end->u.hole.next;
    }
    addr = segment->piece.base + space->count * pool->paging.grain;
    while (addr > end->addr && !gm_place_at(pool, segment, addr - 1)) {
        addr -= pool->paging.grain;
    }
    addr = addr > end->addr ? addr : end->addr;
    below = addr == end->addr ? end->prev : NULL;
    if (below && below->state == GM_BLOCK_FREE) {
        *out = (gm_window){.segment = segment, .first = below, .addr = below->addr};
    }
    else {
        *out = (gm_window){.segment = segment, .first = end, .addr = addr};
    }
}
