/* SPDX-License-Identifier: MIT
 *
 * Which pages come to a window, and what becomes of the blocks involved: planning a
 * remapping, and the end of it one way or the other. Nothing here calls a device.
 *
 * In a window what is free stays, an echo gets its page back, and grains that were
 * never mapped get pages, new ones as long as these come ahead of others: the largest
 * that fit into what is missing there. For a large request the last new one, and where
 * only larger ones are left the smallest of these, may reach beyond the window, if
 * there is room; what the request leaves of it is free memory at its place.
 *
 * A plan cuts everything out of free memory and holes that it is about, a MOVING block
 * a page at both ends of its way, so that whether the calls for it succeed decides what
 * each block becomes, and nothing has to be allocated for either end.
 *
 * Cost: linear in the pages that move, and in the pieces that they were cut from.
 * Threading: as gm_page.h.
 */
#include "gm_pool_private.h"

/* A plan that is being made. */
typedef struct filling {
    gm_pool *pool;
    gm_look look; // whose lists shrink as pages are taken
    const gm_window *window;
    const gm_sources *sources;
    gm_plan *plan;
    size_t ahead;  // what is left of what may be made
    size_t budget; // likewise
    gm_status status;
} filling;

/* ---- choosing ---- */

/* Whether the page is at home in the window, where it stays. */
static bool
is_in_window(const filling *f, const gm_page *page)
{
    const gm_place *home = page->home;
    uintptr_t end = f->plan->addr + f->plan->rounded;

    return home->segment == f->window->segment && home->addr < end &&
           home->addr + page->size > f->plan->addr;
}

/* The first page of a class that may be taken; NULL for none. */
static gm_page *
first_of_class(filling *f, unsigned class)
{
    gm_page **link = &f->look.pages[class];

    while (*link && ((*link)->taken || is_in_window(f, *link))) {
        *link = (*link)->behind;
    }
    return *link;
}

/* A page for `missing` bytes, behind which `room` bytes are free of places. */
static gm_page *
choose_page(filling *f, size_t missing, size_t room)
{
    size_t grain = f->pool->paging.grain;
    gm_page *page = NULL;

    for (unsigned class = GM_PAGE_CLASSES; class -- > 0 && !page;) {
        if (grain << class <= missing) {
            page = first_of_class(f, class);
        }
    }
    for (unsigned class = 0; class < GM_PAGE_CLASSES && !page; class ++) {
        if (grain << class > missing && grain << class <= room) {
            page = first_of_class(f, class);
        }
    }
    return page;
}

static void
add_owner(gm_plan *plan, gm_arena *arena)
{
    size_t i = 0;

    while (i < plan->owner_count && plan->owners[i] != arena) {
        i++;
    }
    if (i == plan->owner_count) {
        plan->owners[plan->owner_count++] = arena;
    }
}

/* Doubles the room for moves, and for owners. False: no host memory. */
static bool
grow(gm_plan *plan)
{
    size_t room = plan->room ? 2 * plan->room : 16;
    gm_move *moves = gm_host_zalloc(room * sizeof(gm_move));
    gm_arena **owners = gm_host_zalloc(room * sizeof(gm_arena *));

    if (!moves || !owners) {
        gm_host_free(moves);
        gm_host_free(owners);
        return false;
    }
    for (size_t i = 0; i < plan->count; i++) {
        moves[i] = plan->moves[i];
    }
    for (size_t i = 0; i < plan->owner_count; i++) {
        owners[i] = plan->owners[i];
    }
    gm_host_free(plan->moves);
    gm_host_free(plan->owners);
    plan->moves = moves;
    plan->owners = owners;
    plan->room = room;
    return true;
}

/* One page more that comes; `place` is NULL where it has none at `addr` yet, and `page`
 * where one of `size` is to be made. */
static bool
add_move(filling *f, gm_page *page, gm_place *place, uintptr_t addr, size_t size)
{
    gm_plan *plan = f->plan;
    gm_move move = {.page = page, .place = place, .map = !place};

    if (plan->count == plan->room && !grow(plan)) {
        return false;
    }
    if (!place) {
        move.place = gm_host_zalloc(sizeof(gm_place));
    }
    if (!page) {
        move.page = gm_host_zalloc(sizeof(gm_page));
    }
    if (!move.place || !move.page) {
        gm_host_free(move.place);
        gm_host_free(page ? NULL : move.page);
        return false;
    }
    if (!page) {
        move.page->size = size;
        plan->created += size;
        f->budget -= size;
        f->ahead -= size < f->ahead ? size : f->ahead;
    }
    else if (page->home->segment->arena != plan->arena) {
        add_owner(plan, page->home->segment->arena);
    }
    if (!place) {
        *move.place =
            (gm_place){.addr = addr, .segment = f->window->segment, .page = move.page};
    }
    move.page->taken = true;
    plan->moves[plan->count++] = move;
    return true;
}

/* The size of a page to be made for `missing` bytes, behind which `room` bytes are free
 * of places. */
static size_t
made_size(const filling *f, size_t missing, size_t room)
{
    size_t whole = f->sources->whole ? f->ahead : 0;
    size_t size = f->sources->most;

    whole = whole < room ? whole : room;
    while (size > missing && size > whole) {
        size /= 2;
    }
    return size;
}

/* Pages for the grains from `addr` on, of which `missing` bytes are needed and `room`
 * could be had. Returns how many bytes they are; 0: there is none. */
static size_t
fill_grains(filling *f, uintptr_t addr, size_t missing, size_t room)
{
    size_t done = 0;

    while (done < missing) {
        gm_page *page = NULL;
        size_t size = made_size(f, missing - done, room - done);

        if (size > f->ahead) {
            page = choose_page(f, missing - done, room - done);
        }
        size = page ? page->size : size;
        if (!page && size > f->budget) {
            f->status = GM_MISS;
            return 0;
        }
        if (!add_move(f, page, NULL, addr + done, size)) {
            f->status = GM_ERR_HOST_MEMORY;
            return 0;
        }
        done += size;
    }
    return done;
}

/* Bytes from `addr` on to the end of the hole, or to the first place. */
static size_t
unmapped_from(const gm_pool *pool, const gm_block *hole, uintptr_t addr)
{
    const gm_segment *segment = hole->segment;
    size_t grain = pool->paging.grain;
    uintptr_t mapped = segment->piece.base + segment->space->count * grain;
    uintptr_t end = hole->addr + hole->size - (gm_space_is_end(hole) ? grain : 0);
    uintptr_t at = addr;

    while (at < end && at < mapped && !gm_place_at(pool, segment, at)) {
        at += grain;
    }
    return (at < mapped ? at : end) - addr;
}

/* What lies at `addr` in the hole gets its page, or pages, for the bytes up to `to`.
 * Returns where they end; 0: there is none. */
static uintptr_t
fill_at(filling *f, const gm_block *hole, uintptr_t addr, uintptr_t to)
{
    const gm_pool *pool = f->pool;
    gm_place *place = gm_place_at(pool, hole->segment, addr);
    uintptr_t base = hole->segment->piece.base;
    size_t grain = pool->paging.grain;
    size_t missing;
    size_t room;
    size_t size;

    if (place) {
        if (!gm_look_has(&f->look, place->page) || is_in_window(f, place->page)) {
            f->status = GM_MISS;
            return 0;
        }
        if (!add_move(f, place->page, place, place->addr, place->page->size)) {
            f->status = GM_ERR_HOST_MEMORY;
            return 0;
        }
        return place->addr + place->page->size;
    }
    addr -= (addr - base) % grain;
    room = unmapped_from(pool, hole, addr);
    missing = to - addr < room ? (to - addr + grain - 1) / grain * grain : room;
    size = fill_grains(f, addr, missing, room);
    return size ? addr + size : 0;
}

/* Chooses all pages. */
static gm_status
choose(filling *f)
{
    uintptr_t addr = f->plan->addr;
    uintptr_t to = addr + f->plan->rounded;
    gm_block *block = f->window->first;

    f->status = GM_OK;
    while (addr < to && f->status == GM_OK) {
        block = gm_space_find(block, addr);
        if (block->state == GM_BLOCK_HOLE) {
            addr = fill_at(f, block, addr, to);
        }
        else {
            addr = block->addr + block->size;
        }
    }
    return f->status;
}

/* ---- taking ---- */

/* Host memory for all that follows. */
static bool
prepare(filling *f)
{
    gm_pool *pool = f->pool;
    gm_plan *plan = f->plan;
    uintptr_t end = plan->addr + plan->rounded;

    for (size_t i = 0; i < plan->count; i++) {
        uintptr_t above = plan->moves[i].place->addr + plan->moves[i].page->size;

        end = above > end ? above : end;
    }
    /* Each block that is cut out leaves at most two more. */
    return gm_space_prepare(pool, f->window->segment, end) &&
           gm_block_store_reserve(&pool->store, 6 * plan->count + 8);
}

/* Takes free bytes that somebody could have had. */
static gm_block *
take_free_locked(filling *f, gm_block *from, uintptr_t addr, size_t size)
{
    gm_pool *pool = f->pool;
    gm_block *block = gm_space_find(from, addr);

    block = gm_space_take_locked(pool, block, addr, size);
    block->u.move = NULL;
    pool->stats.total_bytes -= size;
    pool->paging.withheld += size;
    f->plan->withheld += size;
    return block;
}

/* Cuts the window out, block by block: a page each, and what is free between them. */
static void
take_window_locked(filling *f)
{
    gm_plan *plan = f->plan;
    uintptr_t addr = plan->addr;
    uintptr_t to = addr + plan->rounded;
    gm_block *block = gm_space_find(f->window->first, addr);

    for (size_t i = 0; i < plan->count; i++) {
        gm_move *move = &plan->moves[i];

        if (addr < move->place->addr) {
            block = take_free_locked(f, block, addr, move->place->addr - addr);
            plan->first = plan->first ? plan->first : block;
        }
        block = gm_space_find(block, move->place->addr);
        block =
            gm_space_take_locked(f->pool, block, move->place->addr, move->page->size);
        block->u.move = move;
        move->arrival = block;
        plan->first = plan->first ? plan->first : block;
        addr = block->addr + block->size;
    }
    if (addr < to) {
        block = take_free_locked(f, block, addr, to - addr);
        plan->first = plan->first ? plan->first : block;
        addr = to;
    }
    plan->end = addr;
}

static void
take_pages_locked(filling *f)
{
    gm_plan *plan = f->plan;

    for (size_t i = 0; i < plan->count; i++) {
        gm_page *page = plan->moves[i].page;

        if (page->home) {
            plan->moves[i].departure =
                take_free_locked(f, page->block, page->home->addr, page->size);
        }
    }
}

/* Frees what the moves were to have, and the plan's own memory. */
static void
drop_moves(gm_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        gm_move *move = &plan->moves[i];

        if (move->done) {
            continue;
        }
        move->page->taken = false;
        if (move->map) {
            gm_host_free(move->place);
        }
        if (!move->page->home) {
            gm_host_free(move->page);
        }
    }
    gm_host_free(plan->moves);
    gm_host_free(plan->owners);
    plan->moves = NULL;
    plan->owners = NULL;
}

gm_status
gm_fill_locked(gm_pool *pool,
               const gm_window *window,
               size_t rounded,
               const gm_look *look,
               const gm_sources *sources,
               gm_plan *out)
{
    gm_plan plan = {
        .segment = window->segment,
        .arena = window->segment->arena,
        .rounded = rounded,
        .addr = window->addr,
        .peers = pool->paging.peers,
    };
    filling f = {
        .pool = pool,
        .look = *look,
        .window = window,
        .sources = sources,
        .plan = &plan,
        .ahead = sources->ahead,
        .budget = sources->budget,
    };
    gm_status status = choose(&f);

    if (status == GM_OK && !prepare(&f)) {
        status = GM_ERR_HOST_MEMORY;
    }
    if (status != GM_OK) {
        drop_moves(&plan);
        return status;
    }
    gm_pool_note_cached_locked(pool);
    take_window_locked(&f);
    take_pages_locked(&f);
    plan.spare[0] = gm_block_take(&pool->store);
    plan.spare[1] = gm_block_take(&pool->store);
    plan.arena->pins++;
    pool->reserving += plan.created;
    pool->paging.in_flight++;
    *out = plan;
    return GM_OK;
}

/* ---- the end ---- */

/* The page is at home where it went. */
static void
arrive_locked(gm_pool *pool, gm_move *move)
{
    gm_page *page = move->page;

    if (!page->home) {
        gm_page_link_locked(pool, page);
        pool->paging.room -=
            page->size < pool->paging.room ? page->size : pool->paging.room;
        pool->stats.total_bytes += page->size;
        pool->stats.upstream_allocations++;
        pool->stats.upstream_allocated_bytes += page->size;
    }
    else if (move->map) {
        pool->stats.remapped_pages++;
    }
    else {
        pool->stats.returned_pages++;
    }
    if (move->map) {
        gm_place_link_locked(pool, move->place);
    }
    gm_page_settle_at_locked(pool, page, move->place);
    page->taken = false;
    if (move->departure) {
        gm_space_put_hole_locked(pool, move->departure);
    }
}

/* What both ends of a plan have in common. */
static void
end_locked(gm_pool *pool, gm_plan *plan)
{
    pool->stats.total_bytes += plan->withheld;
    pool->paging.withheld -= plan->withheld;
    gm_stats_raise(&pool->stats.peak_total_bytes,
                   pool->stats.total_bytes + pool->paging.withheld);
    for (size_t i = 0; i < 2; i++) {
        if (plan->spare[i]) {
            gm_block_give(&pool->store, plan->spare[i]);
        }
    }
    pool->reserving -= plan->created;
    pool->paging.in_flight--;
    gm_arena_unpin(&pool->arenas, plan->arena);
    drop_moves(plan);
}

/* Cuts `size` bytes off the MOVING block, which keeps them; returns the rest, a spare
 * node of the plan's. */
static gm_block *
cut_locked(gm_block **spare, gm_block *block, size_t size)
{
    gm_block *rest = *spare;

    *spare = NULL;
    gm_block_split(block, size, rest);
    rest->state = GM_BLOCK_MOVING;
    return rest;
}

gm_block *
gm_plan_commit_locked(gm_pool *pool, gm_plan *plan)
{
    gm_block *block = plan->first;

    for (size_t i = 0; i < plan->count; i++) {
        arrive_locked(pool, &plan->moves[i]);
    }
    while (block->addr + block->size < plan->end) {
        gm_block *next = block->next;

        gm_block_absorb_next(block);
        gm_block_give(&pool->store, next);
    }
    if (block->addr < plan->addr) {
        gm_block *below = block;

        block = cut_locked(&plan->spare[0], below, plan->addr - below->addr);
        gm_space_put_free_locked(pool, below);
    }
    if (block->size > plan->rounded) {
        gm_space_put_free_locked(pool,
                                 cut_locked(&plan->spare[1], block, plan->rounded));
    }
    pool->uncounted--; // it holds bytes from now on
    end_locked(pool, plan);
    return block;
}

void
gm_plan_abort_locked(gm_pool *pool, gm_plan *plan)
{
    gm_block *block = plan->first;
    bool more = true;

    while (more) {
        gm_block *next = block->next;
        const gm_move *move = block->u.move;

        more = block->addr + block->size < plan->end;
        if (!move || move->done) {
            gm_space_put_free_locked(pool, block);
        }
        else {
            gm_space_put_hole_locked(pool, block);
        }
        block = next;
    }
    for (size_t i = 0; i < plan->count; i++) {
        gm_move *move = &plan->moves[i];

        if (move->done) {
            arrive_locked(pool, move);
        }
        else if (move->departure) {
            gm_space_put_free_locked(pool, move->departure);
        }
    }
    end_locked(pool, plan);
}
