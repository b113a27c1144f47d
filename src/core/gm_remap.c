/* SPDX-License-Identifier: MIT
 *
 * Requests that pages serve: whether to remap or to make new pages, and the calls.
 *
 * In this order, the first that serves the request:
 *
 *  1. pages return to where they are still mapped, in the stream's own spaces: no call;
 *  2. new pages, while the pool holds hardly more than was ever in use at once: memory
 *     that the program needs anyhow, and a small reserve that keeps it from remapping
 *     each time around. For the rest pages in free memory of the stream, mapped where
 *     they are needed;
 *  3. the same with those of other streams;
 *  4. all of these, and new pages for the rest, as far as the limit lets them.
 *
 * So the pool grows beyond the reserve only when all that is free and could move has
 * moved; and it has grown by the reserve before much moves. Where that came only after
 * moving, training GPT-2 moved pages in each step, for good.
 *
 * Sizes. The calls for a page cost the same whatever its size; but the smallest block
 * in one keeps it, and what is lost at the ends of the memory in use is about half a
 * page each. So a page is a small share of what is held, of all that is left at most a
 * smaller one, and larger where the block is: one of 16 MiB is one page. Who sets a
 * limit is short of memory, and gets no such large ones. Over the eight traces in
 * benchmarks/traces this makes 0.61 of the calls at first that pages of 1/256 of what
 * is held take, and still most of them run within 1.011 times what they have in use.
 *
 * What could be had is known before anything is made: new pages are planned only as far
 * as the device says that it has memory, and addresses are reserved only for a request
 * that could then be served. Where a device has less than it said, the pages that were
 * made in vain go back at once, and the next plan does with as many.
 *
 * Order of work. Pages of the stream itself need nothing. To those of another stream an
 * event is recorded there, and the stream of the request waits for it. Where either is
 * not known, or is being recorded, others' pages are left alone: a request that finds
 * no memory without them has them given back first, which waits as it must.
 *
 * Cost: 200 to 500 ns a look, or some 30 us a page that is mapped, and 7 us to ask the
 * device before pages are made; an event and a wait for each other stream. Threading:
 * any thread, no lock held.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

enum {
    RESERVE = 64, // the share of what was in use at once that may be held beyond
    REACH = 4,    // times the device's memory that a space gets of addresses

    // What a page is at most:
    SHARE = 384,      // this share of what the pool holds
    SHARE_LEFT = 512, // but of what limit and device leave this one, the last ones fine
    WHOLE = 8,        // or grains, as far as the request goes, if there is no limit
    WHOLE_LITTLE = 4, // the same in a pool that holds little:
    SHARE_WHOLE = 128 // less than this many of the larger ones
};

/* What a plan wants before it can be made. */
typedef enum want {
    WANT_GRAIN, // what the device is like
    WANT_ROOM,  // how much memory it has
    WANT_SPACE, // addresses
} want;

/* A request on its way through the steps. */
typedef struct attempt {
    gm_pool *pool;
    const gm_request *request;
    const gm_rescue *rescue;
    size_t rounded;
    size_t room;    // bytes that the device could make
    bool forbidden; // the device may not be asked for anything
    bool asked;     // `room` is what it says; or it may not be asked for that
    bool own;       // pages that other streams own cannot be had
    bool cleared;   // old places were given up for addresses
    gm_space *made; // the space that was added for it
    want want;
    gm_plan plan;
} attempt;

/* ---- choosing ---- */

/* What the limit leaves, in whole grains. */
static size_t
allowed_locked(const gm_pool *pool)
{
    const gm_stats *stats = &pool->stats;
    size_t held =
        stats->total_bytes + pool->paging.withheld + pool->reserving + pool->releasing;
    size_t limit = stats->limit_bytes ? stats->limit_bytes : GM_SIZE_MAX;
    size_t left = limit > held ? limit - held : 0;

    return left - left % pool->paging.grain;
}

/* Bytes that may be made without looking for others first. */
static size_t
reserve_locked(gm_pool *pool, size_t rounded)
{
    const gm_stats *stats = &pool->stats;
    size_t held = stats->total_bytes + pool->paging.withheld + pool->reserving;
    size_t used = stats->used_bytes + rounded;
    size_t high = used > stats->peak_used_bytes ? used : stats->peak_used_bytes;
    size_t most;

    gm_stats_raise(&pool->paging.high, high);
    most = pool->paging.high + pool->paging.high / RESERVE;
    return most > held ? most - held : 0;
}

/* Bytes of the largest page to be made for a request where so much is left. */
static size_t
largest_page_locked(const gm_pool *pool, size_t rounded, size_t left)
{
    size_t grain = pool->paging.grain;
    size_t held = pool->stats.total_bytes + rounded;
    size_t most = held / SHARE;
    size_t size = grain << (GM_PAGE_CLASSES - 1);

    if (!pool->stats.limit_bytes) {
        size_t whole = held / SHARE_WHOLE < WHOLE * grain ? WHOLE_LITTLE : WHOLE;

        whole = rounded < whole * grain ? rounded : whole * grain;
        most = most > whole ? most : whole;
    }
    most = most < left / SHARE_LEFT ? most : left / SHARE_LEFT;
    while (size > most && size > grain) {
        size /= 2;
    }
    return size;
}

/* Adds what other streams have; what nobody owns can always be had. */
static void
look_at_others_locked(const attempt *a, gm_look *look, const gm_arena *own)
{
    gm_pool *pool = a->pool;

    for (size_t i = 0; i < pool->arenas.bucket_count; i++) {
        for (gm_arena *at = pool->arenas.buckets[i]; at; at = at->chain) {
            bool anybodys = at == pool->arenas.commons;

            if (at != own && (anybodys || (at->known && !a->own))) {
                gm_look_add_locked(pool, look, at);
            }
        }
    }
}

/* A plan by the cheapest window, or where no pages fit there, at the open end of the
 * stream's last space. */
static gm_status
plan_by_locked(attempt *a,
               const gm_arena *arena,
               const gm_look *look,
               const gm_window_costs *costs,
               const gm_sources *sources)
{
    gm_pool *pool = a->pool;
    gm_window window;
    gm_status status;

    gm_window_find_locked(pool, arena, a->rounded, look, costs, &window);
    if (!window.segment) {
        return GM_MISS;
    }
    status = gm_fill_locked(pool, &window, a->rounded, look, sources, &a->plan);
    if (status != GM_MISS || !costs->grain) {
        return status;
    }
    for (gm_segment *s = pool->last; s; s = s->prev) {
        if (s->space && s->arena == arena) {
            gm_window_at_end_locked(pool, s, &window);
            if (s->piece.base + s->size - window.addr <=
                a->rounded + pool->paging.grain) {
                return GM_MISS;
            }
            return gm_fill_locked(pool, &window, a->rounded, look, sources, &a->plan);
        }
    }
    return GM_MISS;
}

static gm_status
wants(attempt *a, want what)
{
    a->want = what;
    return GM_NOT_READY;
}

/* The same with the pages of the look and with new ones: no more than `most` bytes,
 * than the limit leaves and than the device has, which is asked first where that makes
 * a difference; `ahead` of these before any page moves. */
static gm_status
plan_pages_locked(
    attempt *a, const gm_arena *arena, const gm_look *look, size_t ahead, size_t most)
{
    static const gm_window_costs both = {.grain = 4, .echo = 1};
    size_t left = allowed_locked(a->pool);
    gm_sources sources;

    if (!a->asked && most >= a->pool->paging.grain && left >= a->pool->paging.grain) {
        return wants(a, WANT_ROOM);
    }
    left = left < a->room ? left : a->room;
    sources.budget = most < left ? most : left;
    sources.ahead = ahead < left ? ahead : left;
    sources.most = largest_page_locked(a->pool, a->rounded, left);
    return plan_by_locked(a, arena, look, &both, &sources);
}

/* Why no plan could be made, with all pages that could be had in the look:
 * GM_ERR_LIMIT, GM_ERR_OUT_OF_MEMORY or, where they and new ones are enough,
 * GM_NOT_READY for addresses that nothing lies between. */
static gm_status
tell_why_locked(attempt *a, const gm_look *look)
{
    size_t grain = a->pool->paging.grain;
    size_t need = (a->rounded + grain - 1) / grain * grain;
    size_t lacking = need > look->bytes ? need - look->bytes : 0;

    if (lacking > allowed_locked(a->pool)) {
        return GM_ERR_LIMIT;
    }
    if (!a->asked && lacking) {
        return wants(a, WANT_ROOM);
    }
    return lacking > a->room || a->made ? GM_ERR_OUT_OF_MEMORY : wants(a, WANT_SPACE);
}

/* The steps. `arena` is NULL where the stream has none yet. GM_NOT_READY: a->want is
 * needed first. GM_ERR_LIMIT, GM_ERR_OUT_OF_MEMORY. */
static gm_status
plan_locked(attempt *a, gm_arena *arena)
{
    static const gm_window_costs echoes = {.echo = 1};
    gm_pool *pool = a->pool;
    const gm_sources none = {.most = pool->paging.grain};
    size_t reserve = reserve_locked(pool, a->rounded);
    gm_look look;
    gm_status status = GM_MISS;

    gm_look_begin_locked(pool, &look);
    if (arena) {
        gm_look_add_locked(pool, &look, arena);
        status = plan_by_locked(a, arena, &look, &echoes, &none);
        if (status == GM_MISS) {
            status = plan_pages_locked(a, arena, &look, reserve, reserve);
        }
    }
    if (status == GM_MISS) {
        look_at_others_locked(a, &look, arena);
        status = arena ? plan_pages_locked(a, arena, &look, reserve, reserve) : GM_MISS;
    }
    if (status == GM_MISS && arena) {
        status = plan_pages_locked(a, arena, &look, reserve, GM_SIZE_MAX);
    }
    return status == GM_MISS ? tell_why_locked(a, &look) : status;
}

/* ---- what a plan wants ---- */

/* What the device is like, asked once. */
static gm_status
open_paging(gm_pool *pool)
{
    const gm_backend *b = pool->upstream.backend;
    size_t grain = 0;
    size_t free_bytes = 0;
    size_t total = 0;
    uint64_t peers;
    gm_status status = gm_backend_vm_granularity(b, pool->device, &grain);

    if (status == GM_OK) {
        status = gm_backend_mem_info(b, pool->device, &free_bytes, &total);
    }
    if (status != GM_OK) {
        return status;
    }
    peers = gm_peers_enabled(b, pool->device);
    gm_pool_lock(pool);
    pool->paging.peers |= peers;
    pool->paging.grain = grain;
    pool->paging.reach = (REACH * total + grain - 1) / grain * grain;
    gm_pool_unlock(pool);
    return GM_OK;
}

/* Asks the device what it has. One that does not say is found out by trying. */
static void
ask_room(attempt *a)
{
    gm_pool *pool = a->pool;
    size_t free_bytes = 0;
    size_t total = 0;

    a->asked = true;
    if (!gm_process_is_special() &&
        gm_backend_mem_info(pool->upstream.backend, pool->device, &free_bytes,
                            &total) == GM_OK) {
        a->room = free_bytes;
    }
}

/* Reserves addresses for the stream of the request: as many as spaces get, or where
 * there are not so many fewer, but enough for the request. */
static gm_status
add_space(attempt *a)
{
    gm_pool *pool = a->pool;
    const gm_backend *b = pool->upstream.backend;
    uintptr_t base = 0;
    gm_arena *arena;
    gm_segment *segment = NULL;
    gm_status status;
    size_t grain;
    size_t least;
    size_t size;

    gm_pool_lock(pool);
    grain = pool->paging.grain;
    least = (a->rounded + grain - 1) / grain * grain + 2 * grain;
    size = pool->paging.reach > least ? pool->paging.reach : least;
    gm_pool_unlock(pool);
    gm_pool_begin_life(pool); // the device is in use by now
    status = gm_backend_vm_reserve(b, size, &base);
    while (status != GM_OK && size > least) {
        size = size / 2 > least ? size / 2 / grain * grain : least;
        status = gm_backend_vm_reserve(b, size, &base);
    }
    if (status != GM_OK) {
        return status;
    }
    gm_pool_lock(pool);
    arena = gm_pool_pin_arena_locked(pool, a->request->key);
    if (arena) {
        segment = gm_space_new_locked(pool, arena, base, size);
        if (!segment) {
            gm_arena_unpin(&pool->arenas, arena);
        }
    }
    if (segment) {
        segment->space->awaited = true;
        a->made = segment->space;
    }
    gm_pool_unlock(pool);
    if (!segment) {
        (void)gm_backend_vm_unreserve(b, base, size); // nothing is in it
        return GM_ERR_HOST_MEMORY;
    }
    return GM_OK;
}

/* GM_MISS: it is there, and the plan to be made again. */
static gm_status
provide(attempt *a)
{
    gm_status status = GM_OK;

    switch (a->want) {
    case WANT_GRAIN:
        status = open_paging(a->pool);
        break;
    case WANT_ROOM:
        ask_room(a);
        break;
    case WANT_SPACE:
        if (a->cleared || !gm_echoes_clear(a->pool, a->request->key)) {
            status = add_space(a);
        }
        a->cleared = true;
        break;
    }
    return status == GM_OK ? GM_MISS : status;
}

/* ---- calls ---- */

/* Makes the stream of the request wait for what the owner has queued. */
static gm_status
wait_for_owner(attempt *a, const gm_owner *owner)
{
    gm_pool *pool = a->pool;
    const gm_backend *b = pool->upstream.backend;
    const gm_stream_use *by = a->rescue->by;
    gm_mark *mark = NULL;
    gm_device_mark back;
    gm_status status = gm_mark_record(pool, &owner->by, &mark);

    if (status != GM_OK) {
        return status;
    }
    status = gm_stream_use_enter(b, by, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_wait_event(b, by->stream, mark->event);
        gm_stream_use_leave(b, &back);
    }
    gm_pool_lock(pool);
    gm_mark_drop_locked(pool, mark);
    gm_pool_unlock(pool);
    return status;
}

/* The same with all owners, who are let go. GM_MISS: they cannot be waited for so. */
static gm_status
wait_for_owners(attempt *a, gm_owner *owners)
{
    gm_pool *pool = a->pool;
    gm_status status = GM_OK;
    size_t count = a->plan.owner_count;

    for (size_t i = 0; i < count && status == GM_OK; i++) {
        gm_owner *owner = &owners[i];

        if (owner->done) {
            continue;
        }
        owner->gone = !gm_stream_use_is_there(pool->upstream.backend, &owner->by);
        status = owner->gone ? GM_MISS : wait_for_owner(a, owner);
    }
    gm_pool_lock(pool);
    for (size_t i = 0; i < count; i++) {
        gm_owner_return_locked(pool, &owners[i]);
    }
    gm_pool_unlock(pool);
    if (status == GM_ERR_CAPTURING) { // somebody records that stream
        status = GM_MISS;
    }
    a->own |= status == GM_MISS;
    return status;
}

/* Makes and maps the page, as far as either is to be done, within reach of the pool's
 * device and of `peers`. On failure neither is. */
static gm_status
make_move(gm_pool *pool, gm_move *move, uint64_t peers)
{
    const gm_backend *b = pool->upstream.backend;
    gm_page *page = move->page;
    uintptr_t addr = move->place->addr;
    gm_status status = GM_OK;

    if (!move->map) {
        return GM_OK;
    }
    if (!page->home) {
        status = gm_backend_vm_create(b, pool->device, page->size, &page->handle);
        if (status != GM_OK) {
            return status;
        }
    }
    status = gm_backend_vm_map(b, addr, page->size, page->handle);
    if (status == GM_OK) {
        status = gm_backend_vm_set_access(b, addr, page->size, pool->device);
        if (status == GM_OK) {
            status = gm_peers_open(b, addr, page->size, peers);
        }
        if (status != GM_OK) {
            (void)gm_backend_vm_unmap(b, addr, page->size); // nobody has used it
        }
    }
    if (status != GM_OK && !page->home) {
        (void)gm_backend_vm_release(b, page->handle);
    }
    return status;
}

/* Takes the pages back that were made, which nobody has used: the others could not be.
 * What a device refuses to take stays with the pool. Returns how many bytes they were.
 */
static size_t
unmake_moves(const gm_backend *b, gm_plan *plan)
{
    size_t bytes = 0;

    for (size_t i = 0; i < plan->count; i++) {
        gm_move *move = &plan->moves[i];
        gm_page *page = move->page;

        if (!move->done || page->home) {
            continue;
        }
        bytes += page->size;
        if (gm_backend_vm_unmap(b, move->place->addr, page->size) == GM_OK) {
            (void)gm_backend_vm_release(b, page->handle);
            move->done = false;
        }
    }
    return bytes;
}

/* Carries the plan out. *ns is how long its calls took, 0 for none. */
static gm_status
carry_out(attempt *a, gm_owner *owners, uint64_t *ns)
{
    gm_plan *plan = &a->plan;
    gm_status status = wait_for_owners(a, owners);
    bool calls = false;
    uint64_t start;

    if (status != GM_OK) {
        return status;
    }
    for (size_t i = 0; i < plan->count; i++) {
        calls |= plan->moves[i].map;
    }
    start = calls ? gm_process_now_ns() : 0;
    for (size_t i = 0; i < plan->count && status == GM_OK; i++) {
        status = make_move(a->pool, &plan->moves[i], plan->peers);
        plan->moves[i].done = status == GM_OK;
    }
    if (status != GM_OK) {
        size_t made = unmake_moves(a->pool->upstream.backend, plan);

        if (status == GM_ERR_OUT_OF_MEMORY && a->room > 0) {
            a->room = made;
            status = GM_MISS;
        }
    }
    *ns = calls ? gm_process_now_ns() - start + 1 : 0;
    return status;
}

/* ---- an attempt ---- */

/* The streams of the pages that come from others. NULL: no host memory. */
static gm_owner *
take_owners_locked(gm_pool *pool, const gm_plan *plan)
{
    gm_owner *owners = gm_host_zalloc((plan->owner_count + 1) * sizeof *owners);

    for (size_t i = 0; owners && i < plan->owner_count; i++) {
        gm_owner_take_locked(pool, plan->owners[i], &owners[i]);
    }
    return owners;
}

/* Locks, when all that was mapped is open to the devices that the pool's mappings are
 * open to: one may have been let in meanwhile. Where that fails the request has what it
 * wanted, and the device counts as not let in: the next time opens all. */
static void
lock_open(gm_pool *pool, gm_plan *plan)
{
    const gm_backend *b = pool->upstream.backend;

    gm_pool_lock(pool);
    while (pool->paging.peers & ~plan->peers) {
        uint64_t fresh = pool->paging.peers & ~plan->peers;
        gm_status status = GM_OK;

        gm_pool_unlock(pool);
        for (size_t i = 0; i < plan->count; i++) {
            const gm_move *move = &plan->moves[i];

            if (move->map && move->done && status == GM_OK) {
                status = gm_peers_open(b, move->place->addr, move->page->size, fresh);
            }
        }
        plan->peers |= fresh;
        gm_pool_lock(pool);
        if (status != GM_OK) {
            pool->paging.peers &= ~fresh;
        }
    }
}

/* From the plan to its end. GM_MISS: to be tried again. */
static gm_status
serve(attempt *a, gm_owner *owners, gm_block **out)
{
    gm_pool *pool = a->pool;
    gm_plan *plan = &a->plan;
    uint64_t ns = 0;
    gm_status status = owners ? carry_out(a, owners, &ns) : GM_ERR_HOST_MEMORY;

    lock_open(pool, plan);
    pool->stats.driver_ns += ns;
    if (status == GM_OK) {
        *(ns ? &pool->stats.misses : &pool->stats.hits) += 1;
        *out = gm_plan_commit_locked(pool, plan);
        gm_pool_hand_out_locked(pool, *out, a->request);
    }
    else {
        gm_plan_abort_locked(pool, plan);
    }
    gm_pool_leave(pool);
    return status;
}

/* One round: the cache once more, then a plan. */
static gm_status
attempt_once(attempt *a, gm_block **out)
{
    gm_pool *pool = a->pool;
    gm_owner *owners = NULL;
    gm_arena *arena;
    gm_status status;

    gm_pool_lock(pool);
    gm_pool_adopt_locked(pool, a->request->key, a->rounded);
    status = gm_pool_hit_locked(pool, a->request, a->rounded, out);
    if (status == GM_MISS && a->forbidden) {
        status = GM_ERR_CAPTURING;
    }
    if (status != GM_MISS) {
        gm_pool_unlock(pool);
        return status;
    }
    arena = gm_arena_find(&pool->arenas, a->request->key);
    if (arena && a->rescue && a->rescue->by) {
        arena->by = *a->rescue->by;
        arena->known = true;
    }
    status = pool->paging.grain ? plan_locked(a, arena) : wants(a, WANT_GRAIN);
    if (status == GM_OK) {
        owners = take_owners_locked(pool, &a->plan);
        gm_process_flight_begin();
    }
    gm_pool_unlock(pool);
    if (status == GM_NOT_READY) {
        return provide(a);
    }
    if (status == GM_OK) {
        status = serve(a, owners, out);
        gm_process_flight_end();
        gm_host_free(owners);
    }
    return status;
}

gm_status
gm_remap_attempt(gm_pool *pool,
                 const gm_request *request,
                 const gm_rescue *rescue,
                 bool forbidden,
                 gm_block **out)
{
    enum {
        ROUNDS = 16 // what a plan wants, a full device, a stream that is recorded
    };
    attempt a = {
        .pool = pool,
        .request = request,
        .rescue = rescue,
        .rounded = gm_size_round(request->size),
        .room = GM_SIZE_MAX,
        .forbidden = forbidden,
        .own = !rescue || !rescue->by || gm_process_is_special(),
    };
    gm_status status = GM_MISS;

    (void)gm_pages_settle(pool, false);
    gm_echoes_prune(pool);
    for (int round = 0; status == GM_MISS && round < ROUNDS; round++) {
        status = attempt_once(&a, out);
    }
    if (a.made) {
        gm_pool_lock(pool);
        a.made->awaited = false;
        gm_pool_unlock(pool);
    }
    return status == GM_MISS ? GM_ERR_OUT_OF_MEMORY : status;
}

gm_status
gm_pool_set_paging(gm_pool *pool)
{
    const gm_backend *b = pool->upstream.backend;

    GM_ASSERT(pool->stats.misses == 0);
    if (!b || !(b->caps & GM_CAP_VIRTUAL_MEMORY)) {
        return GM_ERR_UNSUPPORTED;
    }
    pool->paging.on = true;
    return GM_OK;
}
