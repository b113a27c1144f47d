/* SPDX-License-Identifier: MIT
 *
 * Giving pages back to the device, without waiting for it.
 *
 * Unmapping acts in host time: the driver does not look whether the device still uses
 * an address, as it does where plain memory is freed. So a page that is to go is taken
 * out of free memory first, an event is recorded on its stream then, and when that has
 * happened all its places are unmapped and the page is released. What the page was used
 * for at earlier homes is before that event, since each move was in the order of
 * streams. Until then its bytes are held and on their way out.
 *
 * Who looks: a request that misses, statistics, whoever gives memory back; and who runs
 * out of memory waits, with nothing in its hands but the mark that it waits for. Where
 * no mark can be had the whole device is waited for, and the stream is let go before.
 *
 * An emptied space goes too. Cost: some 40 us of calls a page. Threading: any thread,
 * no lock held; pages that one thread has in its hands no other one sees.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

#include <sched.h> // sched_yield

/* ---- taking pages out ---- */

/* The page leaves free memory. */
static void
leave_locked(gm_pool *pool, gm_page *page)
{
    gm_block *block = gm_space_find(page->block, page->home->addr);

    block = gm_space_take_locked(pool, block, page->home->addr, page->size);
    block->u.move = NULL;
    page->block = block;
    page->taken = true;
    pool->stats.total_bytes -= page->size;
    pool->paging.withheld += page->size;
    pool->stats.pending_release_bytes += page->size;
}

/* Takes pages of the look, chained by `behind`, as long as the pool then holds no less
 * than `floor`; large ones first, which takes fewer calls. */
static gm_page *
take_pages_locked(gm_pool *pool, gm_look *look, size_t floor)
{
    size_t held = pool->stats.total_bytes + pool->paging.withheld -
                  pool->stats.pending_release_bytes;
    gm_page *chain = NULL;

    for (unsigned class = GM_PAGE_CLASSES; class -- > 0;) {
        gm_page *page = look->pages[class];

        while (page) {
            gm_page *next = page->behind;

            if (!gm_pool_may_spare_locked(pool, held, page->size, floor) ||
                !gm_block_store_reserve(&pool->store, 2)) {
                break;
            }
            held -= page->size;
            leave_locked(pool, page);
            page->behind = chain;
            chain = page;
            page = next;
        }
    }
    return chain;
}

/* Pages of one arena that are taken. */
typedef struct departure {
    gm_page *chain;
    gm_owner owner;
    uint64_t serial; // of the space at which they were found; none below is looked at
} departure;

/* The next arena with pages to give back; false for none. */
static bool
depart_locked(gm_pool *pool, const gm_stream_key *key, size_t floor, departure *d)
{
    for (gm_segment *s = pool->first; s; s = s->next) {
        gm_look look;

        if (!s->space || s->serial < d->serial || (key && s->arena->key != *key)) {
            continue;
        }
        gm_look_begin_locked(pool, &look);
        gm_look_add_locked(pool, &look, s->arena);
        gm_pool_note_cached_locked(pool);
        d->chain = take_pages_locked(pool, &look, floor);
        d->serial = s->serial + 1;
        if (d->chain) {
            gm_owner_take_locked(pool, s->arena, &d->owner);
            pool->paging.in_flight++;
            gm_process_flight_begin();
            return true;
        }
    }
    return false;
}

/* *out is a mark of the last use of what is being given back, for the caller to drop;
 * NULL where that is done. GM_NOT_READY: only the whole device can tell. What else is
 * returned: that cannot be told now, and it has to stay. */
static gm_status
mark_last_use(gm_pool *pool, gm_owner *owner, gm_mark **out)
{
    const gm_backend *b = pool->upstream.backend;
    gm_status status;

    if (owner->done || owner->last) {
        *out = owner->last;
        owner->last = NULL;
        return GM_OK;
    }
    owner->gone = owner->known && !gm_stream_use_is_there(b, &owner->by);
    if (!owner->known || owner->gone) {
        return GM_NOT_READY;
    }
    if (gm_stream_use_is_idle(b, &owner->by)) {
        return GM_OK; // an event recorded now would take its time
    }
    status = gm_mark_record(pool, &owner->by, out);
    return status == GM_OK || status == GM_ERR_CAPTURING ? status : GM_NOT_READY;
}

/* Waits for all that the device has to do, unlocked. The caller has pages in its hands,
 * but neither a mark nor a stream's handle: nobody has to wait for it. */
static gm_status
wait_for_device_locked(gm_pool *pool)
{
    gm_status status;

    pool->paging.waiting++;
    gm_pool_unlock(pool);
    status = gm_backend_device_synchronize(pool->upstream.backend, pool->device);
    gm_pool_lock(pool);
    pool->paging.waiting--;
    return status;
}

/* The pages get their mark and are among those that leave. */
static void
queue_locked(gm_pool *pool, gm_page *chain, gm_mark *mark)
{
    while (chain) {
        gm_page *next = chain->behind;

        chain->mark = mark;
        if (mark) {
            mark->refs++;
        }
        chain->behind = pool->paging.leaving;
        pool->paging.leaving = chain;
        chain = next;
    }
}

/* The pages are free memory again. */
static void
stay_locked(gm_pool *pool, gm_page *chain)
{
    while (chain) {
        gm_page *next = chain->behind;

        chain->taken = false;
        pool->stats.total_bytes += chain->size;
        pool->paging.withheld -= chain->size;
        pool->stats.pending_release_bytes -= chain->size;
        gm_space_put_free_locked(pool, chain->block);
        chain = next;
    }
}

/* Finds out until when the pages are in use. */
static void
queue(gm_pool *pool, departure *d)
{
    gm_mark *mark = NULL;
    gm_status status = mark_last_use(pool, &d->owner, &mark);

    gm_pool_lock(pool);
    gm_owner_return_locked(pool, &d->owner);
    if (status == GM_NOT_READY) {
        status = wait_for_device_locked(pool);
    }
    if (status == GM_OK) {
        queue_locked(pool, d->chain, mark);
    }
    else {
        stay_locked(pool, d->chain);
    }
    gm_mark_drop_locked(pool, mark);
    pool->paging.in_flight--;
    gm_pool_unlock(pool);
    gm_process_flight_end();
}

/* ---- what is done ---- */

/* Unmaps the page wherever it is and releases it. False where a place refuses:
 * it is tried again later. */
static bool
end_page(const gm_backend *b, gm_page *page)
{
    for (gm_place *place = page->places; place; place = place->next) {
        if (place->unmapped) {
            continue;
        }
        if (gm_backend_vm_unmap(b, place->addr, page->size) != GM_OK) {
            return false;
        }
        place->unmapped = true;
    }
    /* A device that refuses has lost the memory; there is nobody to tell. */
    (void)gm_backend_vm_release(b, page->handle);
    return true;
}

/* A page that is gone leaves a hole. */
static void
forget_page_locked(gm_pool *pool, gm_page *page)
{
    size_t size = page->size;

    gm_page_drop_places_locked(pool, page);
    gm_page_unlink_locked(pool, page);
    gm_mark_drop_locked(pool, page->mark);
    gm_space_put_hole_locked(pool, page->block);
    gm_host_free(page);
    pool->paging.withheld -= size;
    pool->stats.pending_release_bytes -= size;
    pool->stats.upstream_frees++;
    pool->stats.upstream_freed_bytes += size;
}

/* Takes spaces out of the pool in which nothing is left, chained by `next`. */
static gm_segment *
unlink_empty_locked(gm_pool *pool)
{
    gm_segment *chain = NULL;
    gm_segment *segment = pool->first;

    while (segment) {
        gm_segment *next = segment->next;

        if (gm_space_is_empty(segment)) {
            gm_space_unlink_locked(pool, segment);
            segment->next = chain;
            chain = segment;
        }
        segment = next;
    }
    return chain;
}

/* Gives the addresses of spaces back in which nothing is left. Returns how many. */
static size_t
end_spaces(gm_pool *pool)
{
    gm_segment *chain;
    size_t count = 0;

    gm_pool_lock(pool);
    chain = unlink_empty_locked(pool);
    gm_pool_unlock(pool);
    while (chain) {
        gm_segment *next = chain->next;

        /* Where that fails addresses are lost, of which there are plenty. */
        (void)gm_backend_vm_unreserve(pool->upstream.backend, chain->piece.base,
                                      chain->piece.size);
        gm_host_free(chain);
        chain = next;
        count++;
    }
    return count;
}

/* Takes those of the pages that are done out of *chain, which are gone then. */
static gm_page *
end_done(gm_pool *pool, gm_page **chain)
{
    const gm_backend *b = pool->upstream.backend;
    const gm_mark *happened = NULL;
    const gm_mark *open = NULL;
    gm_page *ended = NULL;

    while (*chain) {
        gm_page *page = *chain;
        bool done = !page->mark || page->mark == happened;

        if (!done && page->mark != open) {
            done = gm_backend_event_query(b, page->mark->event) == GM_OK;
            *(done ? &happened : &open) = page->mark;
        }
        if (done && end_page(b, page)) {
            *chain = page->behind;
            page->behind = ended;
            ended = page;
        }
        else {
            chain = &page->behind;
        }
    }
    return ended;
}

void
gm_pages_lock_to_unmap(gm_pool *pool)
{
    gm_pool_lock(pool);
    while (pool->paging.opening) {
        gm_pool_unlock(pool);
        sched_yield(); // it waits for nobody
        gm_pool_lock(pool);
    }
}

void
gm_pages_begin_to_unmap_locked(gm_pool *pool)
{
    pool->paging.in_flight++;
    pool->paging.unmapping++;
    gm_process_flight_begin();
}

void
gm_pages_end_to_unmap(gm_pool *pool)
{
    pool->paging.in_flight--;
    pool->paging.unmapping--;
    gm_pool_unlock(pool);
    gm_process_flight_end();
}

/* The pages that leave, without those of which a place has to end before. */
static gm_page *
take_leaving_locked(gm_pool *pool)
{
    gm_page **link = &pool->paging.leaving;
    gm_page *chain = NULL;

    while (*link) {
        gm_page *page = *link;

        if (page->ending) {
            link = &page->behind;
            continue;
        }
        *link = page->behind;
        page->behind = chain;
        chain = page;
    }
    return chain;
}

/* Gives back what is done. Returns bytes. */
static size_t
settle(gm_pool *pool)
{
    size_t bytes = 0;
    gm_page *chain;
    gm_page *ended;

    gm_echoes_settle(pool);
    gm_pages_lock_to_unmap(pool);
    chain = take_leaving_locked(pool);
    if (chain) {
        gm_pages_begin_to_unmap_locked(pool);
    }
    gm_pool_unlock(pool);
    if (!chain) {
        return 0;
    }
    ended = end_done(pool, &chain);
    gm_pool_lock(pool);
    while (ended) {
        gm_page *next = ended->behind;

        bytes += ended->size;
        forget_page_locked(pool, ended);
        ended = next;
    }
    while (chain) {
        gm_page *next = chain->behind;

        chain->behind = pool->paging.leaving;
        pool->paging.leaving = chain;
        chain = next;
    }
    gm_pages_end_to_unmap(pool);
    return bytes;
}

/* How many pages and places wait for a mark, and one of these. */
static size_t
look_at_leaving_locked(const gm_pool *pool, gm_mark **mark)
{
    size_t count = 0;

    for (const gm_page *page = pool->paging.leaving; page; page = page->behind) {
        *mark = page->mark ? page->mark : *mark;
        count += page->mark != NULL;
    }
    for (const gm_place *p = pool->paging.ending; p; p = p->older) {
        *mark = p->mark ? p->mark : *mark;
        count += p->mark != NULL;
    }
    return count;
}

size_t
gm_pages_settle(gm_pool *pool, bool wait)
{
    size_t bytes;

    if (!pool->paging.on || gm_process_is_special()) {
        return 0;
    }
    bytes = settle(pool);
    return bytes + (wait ? gm_marks_wait(pool, look_at_leaving_locked, settle) : 0);
}

/* As far as it can be done now; *spaces is how many went. */
static size_t
release(gm_pool *pool, const gm_stream_key *key, size_t floor, size_t *spaces)
{
    departure d = {0};
    size_t bytes;
    bool more = true;

    if (!pool->paging.on || gm_process_is_special()) {
        *spaces = 0;
        return 0;
    }
    while (more) {
        gm_pool_lock(pool);
        more = depart_locked(pool, key, floor, &d);
        gm_pool_unlock(pool);
        if (more) {
            queue(pool, &d);
        }
    }
    bytes = gm_pages_settle(pool, false);
    *spaces = end_spaces(pool);
    return bytes;
}

size_t
gm_pages_release(gm_pool *pool, const gm_stream_key *key, size_t floor)
{
    size_t spaces;

    return release(pool, key, floor, &spaces);
}

bool
gm_pages_close(gm_pool *pool)
{
    size_t spaces;

    return release(pool, NULL, 0, &spaces) > 0 || spaces > 0;
}
