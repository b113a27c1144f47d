/* SPDX-License-Identifier: MIT
 *
 * Which other devices reach memory that is mapped by page.
 *
 * A pool has a bit for each device that its mappings are open to. One that is enabled
 * later gets its bit first, so that whoever maps something from then on opens that too,
 * or notices before the page is used (gm_remap_calls.c); then what is there is opened,
 * mapping by mapping without the lock. Nothing is unmapped meanwhile: an address could
 * be somebody else's by then.
 *
 * Cost: some 30 to 100 us a mapping and device, so devices get in only where that was
 * asked for, and it makes each mapping dearer from then on. Threading: any thread, no
 * lock held. What this does not do: take access back, or see what another library
 * enabled.
 */
#include "gm_peer.h"

#include "gm_pool_private.h"

#include <sched.h> // sched_yield

enum {
    DEVICES = 64 // bits
};

static uint64_t
bit_of(int device)
{
    return (uint64_t)1 << device;
}

uint64_t
gm_peers_enabled(const gm_backend *b, int device)
{
    uint64_t peers = 0;
    int count = 0;

    if (gm_backend_device_count(b, &count) != GM_OK) {
        return 0;
    }
    for (int other = 0; other < count && other < DEVICES; other++) {
        bool enabled = false;

        if (other != device &&
            gm_backend_peer_enabled(b, other, device, &enabled) == GM_OK && enabled) {
            peers |= bit_of(other);
        }
    }
    return peers;
}

gm_status
gm_peers_open(const gm_backend *b, uintptr_t addr, size_t size, uint64_t peers)
{
    gm_status status = GM_OK;

    for (int device = 0; peers && status == GM_OK; device++, peers >>= 1) {
        if (peers & 1) {
            status = gm_backend_vm_set_access(b, addr, size, device);
        }
    }
    return status;
}

/* The mapping after `place` of `page`, whose page *page is then; the first where that
 * is NULL. NULL at the end. */
static const gm_place *
next_place_locked(const gm_pool *pool, const gm_page **page, const gm_place *place)
{
    if (place && place->next) {
        return place->next;
    }
    *page = place ? (*page)->next : pool->paging.pages;
    return *page ? (*page)->places : NULL;
}

/* Opens what is mapped. No page and no place goes meanwhile; those that come are in
 * front. */
static gm_status
open_all(gm_pool *pool, int device)
{
    const gm_backend *b = pool->upstream.backend;
    const gm_page *page = NULL;
    const gm_place *place = NULL;
    gm_status status = GM_OK;

    do {
        gm_pool_lock(pool);
        place = next_place_locked(pool, &page, place);
        gm_pool_unlock(pool);
        if (place) {
            status = gm_backend_vm_set_access(b, place->addr, page->size, device);
        }
    } while (place && status == GM_OK);
    return status;
}

typedef struct opening {
    const gm_backend *backend;
    int device;
    int peer;
    gm_status status;
} opening;

static bool
is_open_locked(const gm_pool *pool, int device)
{
    return (pool->paging.peers & bit_of(device)) != 0;
}

static void
open_pool(gm_pool *pool, void *context)
{
    opening *o = context;
    gm_paging *paging = &pool->paging;
    gm_status status;

    if (pool->upstream.backend != o->backend || pool->device != o->peer) {
        return;
    }
    gm_pool_lock(pool);
    while (paging->opening || (paging->unmapping && !is_open_locked(pool, o->device))) {
        gm_pool_unlock(pool);
        sched_yield(); // neither waits for the device
        gm_pool_lock(pool);
    }
    if (!paging->on || is_open_locked(pool, o->device)) {
        gm_pool_leave(pool);
        return;
    }
    paging->peers |= bit_of(o->device);
    paging->opening = true;
    gm_pool_unlock(pool);
    status = open_all(pool, o->device);
    gm_pool_lock(pool);
    if (status != GM_OK) {
        paging->peers &= ~bit_of(o->device);
        o->status = status;
    }
    paging->opening = false;
    gm_pool_leave(pool);
}

gm_status
gm_peer_enable(const gm_backend *b, int device, int peer)
{
    opening o = {b, device, peer, GM_OK};
    bool can = false;
    gm_status status = gm_backend_peer_can_access(b, device, peer, &can);

    if (status == GM_OK) {
        status = can ? gm_backend_peer_enable(b, device, peer) : GM_ERR_UNSUPPORTED;
    }
    if (status == GM_OK && device < DEVICES && !gm_process_is_frozen()) {
        gm_pools_visit(open_pool, &o);
        status = o.status;
    }
    return status;
}
