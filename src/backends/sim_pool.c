/* SPDX-License-Identifier: MIT
 *
 * Stream-ordered memory, and the pools it comes from.
 *
 * A pool holds ranges of its device's memory. What the program gives back in the order
 * of a stream is parked in the pool: the same stream may have it again at once, since
 * its later work runs after the work that used it; another stream only when the first
 * one has got there. Nothing looks ahead along events, so a program sees the least
 * reuse that a driver promises, and in every run the same.
 *
 * The smallest parked range that fits is taken, the oldest among equals, and cut;
 * parked neighbours that are idle are joined when nothing fits. Else the device is
 * asked, and for want of memory there the pool first gives back all that is idle in
 * it. As on hardware it does not wait for work that still uses the rest: that is the
 * caller's to do. When anybody waits for a stream, an event or the device, pools give
 * back what they hold beyond their thresholds, the oldest first.
 *
 * Cost: a request walks the parked ranges of the pool.
 */
#include "sim.h"

#include "../core/gm_process.h"

/* ---- parked ranges ---- */

/* Whether nothing queued uses a parked range any more. */
static bool
is_idle(sim_range *range)
{
    if (range->freed != NULL && range->freed->done) {
        sim_op_unref(range->freed);
        range->freed = NULL;
    }
    return range->freed == NULL;
}

static void
link_newest(gm_sim *sim, sim_range *range)
{
    sim_pool *pool = range->pool;
    range->parked = true;
    range->parked_prev = pool->newest;
    range->parked_next = NULL;
    *(pool->newest != NULL ? &pool->newest->parked_next : &pool->oldest) = range;
    pool->newest = range;
    sim->parked++;
}

static void
unlink_parked(gm_sim *sim, sim_range *range)
{
    sim_pool *pool = range->pool;
    *(range->parked_prev != NULL ? &range->parked_prev->parked_next : &pool->oldest) =
        range->parked_next;
    *(range->parked_next != NULL ? &range->parked_next->parked_prev : &pool->newest) =
        range->parked_prev;
    range->parked = false;
    sim->parked--;
}

void
sim_pool_park(gm_sim *sim, sim_range *range, sim_op *freed)
{
    range->pool->used -= range->size;
    range->freed = freed;
    link_newest(sim, range);
}

/* Gives idle ranges back to the device, the oldest first, until the pool holds no more
 * than `keep` bytes. */
static void
give_back(gm_sim *sim, sim_pool *pool, uint64_t keep)
{
    sim_range *range = pool->oldest;
    while (range != NULL && pool->reserved > keep) {
        sim_range *next = range->parked_next;
        if (is_idle(range)) {
            unlink_parked(sim, range);
            pool->reserved -= range->size;
            sim_window_give(&sim->devices[pool->device].memory, range);
        }
        range = next;
    }
}

void
sim_pools_settle(gm_sim *sim)
{
    for (int device = 0; sim->parked > 0 && device < sim->device_count; device++) {
        sim_pool *pool = sim->devices[device].pools;
        for (; pool != NULL; pool = pool->next) {
            give_back(sim, pool, pool->threshold);
        }
    }
}

/* Joins idle neighbours, so that a large request finds what small ones left. */
static void
join_idle(gm_sim *sim, sim_pool *pool)
{
    sim_range *range = pool->oldest;
    while (range != NULL) {
        sim_range *high = range->next;
        if (is_idle(range) && high != NULL && high->pool == pool && high->parked &&
            is_idle(high)) {
            unlink_parked(sim, high);
            sim_window_merge_next(&sim->devices[pool->device].memory, range);
        }
        else {
            range = range->parked_next;
        }
    }
}

/* ---- taking ---- */

/* The smallest parked range of at least `size` bytes that a stream may have; NULL when
 * there is none. */
static sim_range *
find_parked(const sim_pool *pool, size_t size, const sim_stream *stream)
{
    sim_range *best = NULL;
    for (sim_range *range = pool->oldest; range != NULL; range = range->parked_next) {
        if (range->size >= size && (best == NULL || range->size < best->size) &&
            (is_idle(range) || range->freed->stream == stream)) {
            best = range;
        }
    }
    return best;
}

/* Takes `size` bytes, whole units, of a parked range. GM_ERR_HOST_MEMORY. */
static gm_status
take_parked(gm_sim *sim, sim_range *range, size_t size, sim_range **out)
{
    sim_pool *pool = range->pool;
    if (range->size == size) {
        unlink_parked(sim, range);
        sim_op_unref(range->freed);
        range->freed = NULL;
        *out = range;
        return GM_OK;
    }
    sim_range *low = NULL;
    gm_status status =
        sim_window_cut(&sim->devices[pool->device].memory, range, size, &low);
    if (status != GM_OK) {
        return status;
    }
    low->kind = GM_MEM_DEVICE;
    low->device = pool->device;
    low->pool = pool;
    *out = low;
    return GM_OK;
}

static void
raise_high(size_t *high, size_t now)
{
    *high = now > *high ? now : *high;
}

/* Takes `size` bytes, whole units, for a pool from its device. */
static gm_status
take_fresh(gm_sim *sim, sim_pool *pool, size_t size, sim_range **out)
{
    sim_range *range = NULL;
    gm_status status = sim_take_device_range(sim, pool->device, size, &range);
    if (status == GM_ERR_OUT_OF_MEMORY && pool->oldest != NULL) {
        give_back(sim, pool, 0);
        status = sim_take_device_range(sim, pool->device, size, &range);
    }
    if (status == GM_OK) {
        range->pool = pool;
        pool->reserved += size;
        raise_high(&pool->reserved_high, pool->reserved);
        *out = range;
    }
    return status;
}

gm_status
sim_mem_alloc_async(
    gm_sim *sim, int device, size_t size, sim_stream *stream, uintptr_t *out)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    sim_device *owner = &sim->devices[device];
    if ((owner->support & GM_DEVICE_MEMORY_POOLS) == 0) {
        return GM_DEVICE_ERROR(SIM_CODE_NOT_SUPPORTED);
    }
    if (stream->device != device) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    if (stream->capture != NULL) {
        return sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_UNSUPPORTED);
    }
    if (size > owner->memory.capacity) {
        return GM_ERR_OUT_OF_MEMORY; // also what rounding could not express
    }
    sim_pool *pool = owner->pool;
    size_t units = (size + SIM_UNIT - 1) & ~(SIM_UNIT - 1);
    sim_range *found = find_parked(pool, units, stream);
    if (found == NULL) {
        join_idle(sim, pool);
        found = find_parked(pool, units, stream);
    }
    sim_range *range = NULL;
    gm_status status = found != NULL ? take_parked(sim, found, units, &range)
                                     : take_fresh(sim, pool, units, &range);
    if (status != GM_OK) {
        return status;
    }
    range->asked = size;
    pool->used += range->size;
    raise_high(&pool->used_high, pool->used);
    sim->ledger.allocations++;
    sim->ledger.bytes += size;
    *out = range->start;
    return GM_OK;
}

gm_status
sim_mem_free_async(gm_sim *sim, int device, uintptr_t ptr, sim_stream *stream)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    sim_range *range = sim_window_find(&sim->devices[device].memory, ptr);
    if (range == NULL || !range->live || range->parked || range->pool == NULL ||
        range->start != ptr) {
        return sim_bad_value(sim);
    }
    if (stream->capture != NULL) {
        return sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_UNSUPPORTED);
    }
    sim_op *freed = NULL;
    gm_status status =
        sim_submit(sim, stream, &(sim_work){.kind = SIM_OP_RECORD}, &freed);
    if (status != GM_OK) {
        return status;
    }
    sim->ledger.allocations--;
    sim->ledger.bytes -= range->asked;
    sim_pool_park(sim, range, freed);
    return GM_OK;
}

/* ---- pools ---- */

/* One more pool of a device, in front of its others. GM_ERR_HOST_MEMORY. */
static gm_status
new_pool(gm_sim *sim, int device, sim_pool **out)
{
    sim_pool *pool = gm_host_zalloc(sizeof *pool);
    if (pool == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_status status = sim_table_add(&sim->pools, pool, &pool->handle);
    if (status != GM_OK) {
        gm_host_free(pool);
        return status;
    }
    pool->device = device;
    pool->next = sim->devices[device].pools;
    sim->devices[device].pools = pool;
    *out = pool;
    return GM_OK;
}

gm_status
sim_pools_init(gm_sim *sim)
{
    gm_status status = GM_OK;
    for (int device = 0; status == GM_OK && device < sim->device_count; device++) {
        status = new_pool(sim, device, &sim->devices[device].pool);
    }
    return status;
}

void
sim_pools_fini(gm_sim *sim)
{
    for (int device = 0; device < sim->device_count; device++) {
        while (sim->devices[device].pools != NULL) {
            sim_pool *pool = sim->devices[device].pools;
            sim_range *range = pool->oldest;
            for (; range != NULL; range = range->parked_next) {
                sim_op_unref(range->freed);
            }
            sim->devices[device].pools = pool->next;
            gm_host_free(pool);
        }
    }
    sim_table_fini(&sim->pools);
}

static sim_pool *
first_pool(const gm_sim *sim, int device)
{
    sim_pool *pool = sim->devices[device].pools;
    while (pool->next != NULL) {
        pool = pool->next;
    }
    return pool;
}

/* Forgets the ranges that the program gave back to a pool. */
static void
forget_parked(gm_sim *sim, sim_pool *pool)
{
    while (pool->oldest != NULL) {
        sim_range *range = pool->oldest;
        sim_op_unref(range->freed);
        range->freed = NULL;
        unlink_parked(sim, range);
        range->parked = true; // no allocation, for who ends it
    }
}

void
sim_pools_reset(gm_sim *sim, int device)
{
    sim_device *owner = &sim->devices[device];
    sim_pool *pool = owner->pools;
    while (pool != NULL) {
        sim_pool *next = pool->next;
        forget_parked(sim, pool);
        if (next != NULL) {
            sim_table_remove(&sim->pools, pool->handle);
            gm_host_free(pool);
        }
        else { // the one that the device was made with
            *pool = (sim_pool){.handle = pool->handle, .device = device};
            owner->pools = pool;
            owner->pool = pool;
        }
        pool = next;
    }
}

gm_status
sim_pool_get(gm_sim *sim, int device, bool original, gm_mem_pool *out)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if ((sim->devices[device].support & GM_DEVICE_MEMORY_POOLS) == 0) {
        return GM_DEVICE_ERROR(SIM_CODE_NOT_SUPPORTED);
    }
    *out =
        original ? first_pool(sim, device)->handle : sim->devices[device].pool->handle;
    return GM_OK;
}

gm_status
sim_pool_set(gm_sim *sim, int device, gm_mem_pool handle)
{
    sim_pool *pool = sim_table_get(&sim->pools, handle);
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if (pool == NULL || pool->device != device) {
        return sim_bad_value(sim);
    }
    sim->devices[device].pool = pool;
    return GM_OK;
}

gm_status
sim_pool_trim(gm_sim *sim, gm_mem_pool handle, size_t keep)
{
    sim_pool *pool = sim_table_get(&sim->pools, handle);
    if (pool == NULL) {
        return sim_bad_value(sim);
    }
    give_back(sim, pool, keep);
    return GM_OK;
}

gm_status
sim_pool_read(gm_sim *sim, gm_mem_pool handle, gm_mem_pool_field field, uint64_t *value)
{
    const sim_pool *pool = sim_table_get(&sim->pools, handle);
    if (pool == NULL) {
        return sim_bad_value(sim);
    }
    switch (field) {
    case GM_MEM_POOL_USED:
        *value = pool->used;
        return GM_OK;
    case GM_MEM_POOL_RESERVED:
        *value = pool->reserved;
        return GM_OK;
    case GM_MEM_POOL_RELEASE_THRESHOLD:
        *value = pool->threshold;
        return GM_OK;
    case GM_MEM_POOL_USED_HIGH:
        *value = pool->used_high;
        return GM_OK;
    case GM_MEM_POOL_RESERVED_HIGH:
        *value = pool->reserved_high;
        return GM_OK;
    default:
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
}

gm_status
sim_pool_write(gm_sim *sim, gm_mem_pool handle, gm_mem_pool_field field, uint64_t value)
{
    sim_pool *pool = sim_table_get(&sim->pools, handle);
    if (pool == NULL) {
        return sim_bad_value(sim);
    }
    if (field == GM_MEM_POOL_RELEASE_THRESHOLD) {
        pool->threshold = value;
        return GM_OK;
    }
    if (value != 0) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    switch (field) {
    case GM_MEM_POOL_USED_HIGH:
        pool->used_high = 0;
        return GM_OK;
    case GM_MEM_POOL_RESERVED_HIGH:
        pool->reserved_high = 0;
        return GM_OK;
    default:
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
}

/* ---- for tests ---- */

gm_status
gm_sim_make_pool(const gm_backend *b, int device, gm_mem_pool *out)
{
    gm_sim *sim = b->self;
    sim_pool *pool = NULL;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&sim->mutex);
    gm_status status = sim_has_device(sim, device) ? new_pool(sim, device, &pool)
                                                   : GM_ERR_INVALID_DEVICE;
    if (status == GM_OK) {
        *out = pool->handle;
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}
