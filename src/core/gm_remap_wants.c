/* SPDX-License-Identifier: MIT
 *
 * What a plan wants before it can be made: what the device is like, how much memory it
 * has, addresses.
 *
 * A pool asks for none of this before a request needs it. What the device is like is
 * asked once. How much memory it has is another thing from one request to the next,
 * since others take and give back as well; but as long as it had plenty the last time,
 * less what was made since, the answer would change nothing. So it is asked when there
 * is less than an eighth of it beyond the request, or a page could not be made after
 * all. Addresses are reserved far more than the device has memory, so that a
 * stream hardly ever needs them a second time; and before that its old places are given
 * up, which are addresses too.
 *
 * Cost: 7 us to ask for memory, 14 us to reserve addresses. Threading: any thread, no
 * lock held.
 */
#include "gm_peer.h"
#include "gm_remap.h"

enum {
    REACH = 4, // times the device's memory that a space gets of addresses
    PLENTY = 8 // the share of it that it has to have for not being asked again
};

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
    pool->paging.room = free_bytes;
    pool->paging.plenty = total / PLENTY;
    gm_pool_unlock(pool);
    return GM_OK;
}

/* Asks the device what it has. One that does not say is found out by trying. */
static void
ask_room(gm_attempt *a)
{
    gm_pool *pool = a->pool;
    size_t free_bytes = 0;
    size_t total = 0;

    a->asked = true;
    if (!gm_process_is_special() &&
        gm_backend_mem_info(pool->upstream.backend, pool->device, &free_bytes,
                            &total) == GM_OK) {
        a->room = free_bytes;
        gm_pool_lock(pool);
        pool->paging.room = free_bytes;
        gm_pool_unlock(pool);
    }
}

/* Reserves addresses for the stream of the request: as many as spaces get, or where
 * there are not so many fewer, but enough for the request. */
static gm_status
add_space(gm_attempt *a)
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

gm_status
gm_attempt_provide(gm_attempt *a)
{
    gm_status status = GM_OK;

    switch (a->want) {
    case GM_WANT_GRAIN:
        status = open_paging(a->pool);
        break;
    case GM_WANT_ROOM:
        ask_room(a);
        break;
    case GM_WANT_SPACE:
        if (a->cleared || !gm_echoes_clear(a->pool, a->request->key)) {
            status = add_space(a);
        }
        a->cleared = true;
        break;
    }
    return status == GM_OK ? GM_MISS : status;
}
