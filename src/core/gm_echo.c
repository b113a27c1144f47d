/* SPDX-License-Identifier: MIT
 *
 * The end of old places.
 *
 * A page stays mapped wherever it was at home. A program that repeats itself comes back
 * there; one that does not leaves more and more places behind, each a mapping of the
 * driver's, some host memory, and addresses that nothing else can have. So there is a
 * bound: GM_PLACES places for each page and GM_PLACES_SPARE more. Beyond it those that
 * were left longest ago are given up, an eighth of them at a time. And where a stream
 * has no addresses left that lie together all of its old places are, before it gets
 * more: a program that came back to them would not be there.
 *
 * Nobody uses an old place any more; but what was queued before it was left may. So an
 * event is recorded on its stream when it is given up, and it is unmapped when that has
 * happened, by whoever looks next. Nobody waits for it: until then it is mapped beyond
 * the bound. Meanwhile its addresses are a MOVING block, and its page goes on being
 * used where it is; but it does not go back to the device before its last place has
 * ended.
 *
 * Cost: where the bound is exceeded a walk over the old places and the grains of all
 * spaces, and an event a space; some 20 us of calls a place that ends. Threading: any
 * thread, no lock held. What this does not do: keep the bound for a stream that is not
 * known or is being recorded, where there is no telling when its work is done.
 */
#include "gm_pool_private.h"

/* ---- which ---- */

/* Chooses what is to end, off the list of echoes: as many as are too many, and an
 * eighth more; or, unless `arena` is NULL, all in its spaces. Returns how many they
 * are.
 */
static size_t
choose_locked(gm_pool *pool, const gm_arena *arena)
{
    gm_paging *paging = &pool->paging;
    size_t most = (GM_PLACES - 1) * pool->stats.pages + GM_PLACES_SPARE;
    size_t least = paging->echoes > most ? most - most / 8 : paging->echoes;
    gm_place *place = paging->oldest;
    size_t count = 0;

    if (!arena && paging->echoes <= least) {
        return 0;
    }
    /* Each that is cut out leaves at most two more blocks. */
    if (!gm_block_store_reserve(
            &pool->store, 2 * (arena ? paging->echoes : paging->echoes - least))) {
        return 0;
    }
    while (place && (arena || paging->echoes > least)) {
        gm_place *newer = place->newer;

        if (!place->page->taken && (!arena || place->segment->arena == arena)) {
            gm_echo_unlist_locked(pool, place);
            place->ending = true;
            count++;
        }
        place = newer;
    }
    return count;
}

/* ---- out of the holes ---- */

static void
unlink_from_page(gm_place *place)
{
    gm_place **link = &place->page->places;

    while (*link != place) {
        link = &(*link)->next;
    }
    *link = place->next;
    place->page->ending++;
}

/* Cuts the chosen places of a hole out of it and puts them in front of `chain`. */
static gm_place *
cut_hole_locked(gm_pool *pool, gm_block *hole, gm_place *chain)
{
    const gm_segment *segment = hole->segment;
    size_t grain = pool->paging.grain;
    uintptr_t mapped = segment->piece.base + segment->space->count * grain;
    uintptr_t end = hole->addr + hole->size;
    uintptr_t addr = hole->addr;

    end = end < mapped ? end : mapped;
    while (addr < end) {
        gm_place *place = gm_place_at(pool, segment, addr);

        addr += place ? place->page->size : grain;
        if (place && place->ending) {
            place->block =
                gm_space_take_locked(pool, hole, place->addr, place->page->size);
            place->block->u.move = NULL;
            hole = place->block->next; // what is left of it, where there is more
            unlink_from_page(place);
            place->older = chain;
            chain = place;
        }
    }
    return chain;
}

/* All chosen places, by `older`, those of a space in a row. */
static gm_place *
cut_locked(gm_pool *pool)
{
    gm_place *chain = NULL;

    for (gm_segment *s = pool->first; s; s = s->next) {
        gm_block *hole = s->space ? s->space->holes : NULL;

        while (hole) {
            gm_block *next = hole->u.hole.next; // what is left of it goes in front

            chain = cut_hole_locked(pool, hole, chain);
            hole = next;
        }
    }
    return chain;
}

/* The place stays after all. */
static void
stay_locked(gm_pool *pool, gm_place *place)
{
    gm_page *page = place->page;

    place->ending = false;
    place->next = page->places;
    page->places = place;
    page->ending--;
    gm_echo_list_locked(pool, place);
    gm_space_put_hole_locked(pool, place->block);
}

/* ---- until when ---- */

/* *out is a mark of the last use of what lies in the owner's spaces, NULL where that is
 * done. What else is returned: that cannot be told without waiting. */
static gm_status
mark_last_use(gm_pool *pool, gm_owner *owner, gm_mark **out)
{
    const gm_backend *b = pool->upstream.backend;

    if (owner->done || owner->last) {
        *out = owner->last;
        return GM_OK;
    }
    owner->gone = owner->known && !gm_stream_use_is_there(b, &owner->by);
    if (!owner->known || owner->gone) {
        return GM_NOT_READY;
    }
    if (gm_stream_use_is_idle(b, &owner->by)) {
        return GM_OK;
    }
    return gm_mark_record(pool, &owner->by, out);
}

/* Finds out until when the first space's places of the chain are in use. Returns the
 * rest of it. */
static gm_place *
queue(gm_pool *pool, gm_place *chain)
{
    gm_segment *segment = chain->segment;
    gm_mark *mark = NULL;
    gm_owner owner;
    gm_status status;

    gm_pool_lock(pool);
    gm_owner_take_locked(pool, segment->arena, &owner);
    gm_pool_unlock(pool);
    status = mark_last_use(pool, &owner, &mark);
    gm_pool_lock(pool);
    while (chain && chain->segment == segment) {
        gm_place *place = chain;

        chain = place->older;
        if (status != GM_OK) {
            stay_locked(pool, place);
            continue;
        }
        place->mark = mark;
        if (mark) {
            mark->refs++;
        }
        place->older = pool->paging.ending;
        pool->paging.ending = place;
    }
    if (mark != owner.last) {
        gm_mark_drop_locked(pool, mark);
    }
    gm_owner_return_locked(pool, &owner);
    gm_pool_unlock(pool);
    return chain;
}

/* Ends what is chosen. Returns how many they are. */
static size_t
give_up(gm_pool *pool, const gm_stream_key *key)
{
    gm_place *chain = NULL;
    size_t count = 0;
    const gm_arena *arena;

    gm_pool_lock(pool);
    arena = key ? gm_arena_find(&pool->arenas, *key) : NULL;
    if (!pool->paging.opening && (arena || !key)) {
        count = choose_locked(pool, arena);
    }
    if (count) {
        chain = cut_locked(pool);
        gm_pages_begin_to_unmap_locked(pool); // some may come back as they were
    }
    gm_pool_unlock(pool);
    if (!count) {
        return 0;
    }
    while (chain) {
        chain = queue(pool, chain);
    }
    gm_pool_lock(pool);
    gm_pages_end_to_unmap(pool);
    return count;
}

void
gm_echoes_prune(gm_pool *pool)
{
    if (!gm_process_is_special()) {
        (void)give_up(pool, NULL); // how many they were matters to nobody
    }
}

bool
gm_echoes_clear(gm_pool *pool, gm_stream_key key)
{
    if (gm_process_is_special() || give_up(pool, &key) == 0) {
        return false;
    }
    gm_echoes_settle(pool);
    return true;
}

/* ---- what is done ---- */

/* Unmaps those that are done and takes them out of *chain. */
static gm_place *
end_done(const gm_backend *b, gm_place **chain)
{
    const gm_mark *open = NULL;
    const gm_mark *happened = NULL;
    gm_place *ended = NULL;

    while (*chain) {
        gm_place *place = *chain;
        bool done = !place->mark || place->mark == happened;

        if (!done && place->mark != open) {
            done = gm_backend_event_query(b, place->mark->event) == GM_OK;
            *(done ? &happened : &open) = place->mark;
        }
        if (done && gm_backend_vm_unmap(b, place->addr, place->page->size) == GM_OK) {
            *chain = place->older;
            place->older = ended;
            ended = place;
        }
        else {
            chain = &place->older;
        }
    }
    return ended;
}

/* The place is no more, and leaves a hole. */
static void
forget_locked(gm_pool *pool, gm_place *place)
{
    place->page->ending--;
    gm_mark_drop_locked(pool, place->mark);
    gm_place_forget_locked(pool, place);
    gm_space_put_hole_locked(pool, place->block);
    gm_host_free(place);
}

void
gm_echoes_settle(gm_pool *pool)
{
    gm_place *chain;
    gm_place *ended;

    gm_pages_lock_to_unmap(pool);
    chain = pool->paging.ending;
    pool->paging.ending = NULL;
    if (chain) {
        gm_pages_begin_to_unmap_locked(pool);
    }
    gm_pool_unlock(pool);
    if (!chain) {
        return;
    }
    ended = end_done(pool->upstream.backend, &chain);
    gm_pool_lock(pool);
    while (ended) {
        gm_place *next = ended->older;

        forget_locked(pool, ended);
        ended = next;
    }
    while (chain) {
        gm_place *next = chain->older;

        chain->older = pool->paging.ending;
        pool->paging.ending = chain;
        chain = next;
    }
    gm_pages_end_to_unmap(pool);
}
