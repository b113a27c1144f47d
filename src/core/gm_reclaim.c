/* SPDX-License-Identifier: MIT
 *
 * What a request does that the cache cannot serve at once: it tries, and where there is
 * no memory it reclaims some in the order of reclaim_stage, trying again after each
 * success; it waits for memory that other threads have on its way; at last it asks the
 * user.
 *
 * Each loop has a bound: stages by ATTEMPTS, waits by ROUNDS, the user by GM_ASKS; the
 * collector runs once for each time that the user or nobody was asked.
 *
 * Cost: reclaiming walks all segments of the pools on the device. Threading: any
 * thread; nothing is held between the steps, so others may take what was reclaimed.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

static gm_pool *
pool_of_link(gm_pool_link *link)
{
    return (gm_pool *)(void *)((char *)link - offsetof(gm_pool, link));
}

/* A reference to a pool from the list, unless its last one is gone already. */
static bool
hold_pool(gm_pool_link *link)
{
    gm_pool *pool = pool_of_link(link);
    size_t refs = atomic_load_explicit(&pool->refs, memory_order_relaxed);

    while (refs && !atomic_compare_exchange_weak_explicit(&pool->refs, &refs, refs + 1,
                                                          memory_order_acquire,
                                                          memory_order_relaxed)) {
    }
    return refs != 0;
}

gm_pool *
gm_pool_next_sibling(const gm_pool *pool, int device, uint64_t *after)
{
    gm_pool_link *link;

    while ((link = gm_process_pool_next(*after, hold_pool)) != NULL) {
        gm_pool *sibling = pool_of_link(link);

        *after = link->number;
        if (sibling != pool && sibling->device == device) {
            return sibling;
        }
        gm_pool_unref(sibling);
    }
    return NULL;
}

/* Whether what a pool takes may come from another pool: it calls a function that the
 * device does not answer for. */
static bool
may_lie_over_another(const gm_pool *pool)
{
    return !pool->upstream.room;
}

/* Gives back what the pools of the device other than `pool` have idle, or with `over`
 * only those that may lie over another pool. Returns bytes. */
static size_t
release_siblings(const gm_pool *pool, int device, bool over)
{
    size_t bytes = 0;
    uint64_t after = 0;
    gm_pool *sibling;

    while ((sibling = gm_pool_next_sibling(pool, device, &after)) != NULL) {
        if (!over || may_lie_over_another(sibling)) {
            (void)gm_pool_settle_all(sibling); // as much as comes free goes below
            bytes += gm_pool_reclaim_idle(sibling, 0);
        }
        gm_pool_lock(sibling); // its owner may have let go of it meanwhile
        gm_pool_leave(sibling);
        gm_pool_unref(sibling);
    }
    return bytes;
}

size_t
gm_pools_release_idle(int device, gm_status why)
{
    gm_pools_sweep();
    return gm_process_is_forked() ? 0
                                  : release_siblings(NULL, device, why == GM_ERR_LIMIT);
}

void
gm_pools_visit(void (*visit)(gm_pool *pool, void *context), void *context)
{
    uint64_t after = 0;
    gm_pool_link *link;

    while ((link = gm_process_pool_next(after, hold_pool)) != NULL) {
        gm_pool *pool = pool_of_link(link);

        after = link->number;
        visit(pool, context);
        gm_pool_unref(pool);
    }
}

/* An idle segment of less than this part of a request makes it hardly any room, and is
 * likely wanted again soon: it goes back if the others do not do. That leaves small
 * requests their cache where memory is short, so that they cut up nothing large. */
enum {
    WORTH_GIVING = 20,
};

typedef enum reclaim_stage {
    RECLAIM_PENDING,  // what waits for a stream: waits too
    RECLAIM_LARGE,    // this pool's idle segments that are worth it
    RECLAIM_OWN,      // all of them
    RECLAIM_SIBLINGS, // those of the other pools on this device, and the driver's
    RECLAIM_LEND,     // a block that another stream has free
    RECLAIM_GARBAGE,  // what the collector can find, then what goes back, again
} reclaim_stage;

/* What is idle outside of this pool. */
static size_t
release_others(gm_pool *pool, gm_status why, const gm_rescue *rescue)
{
    size_t bytes = release_siblings(pool, pool->device, why == GM_ERR_LIMIT);

    if (rescue && rescue->trim && why != GM_ERR_LIMIT && pool->device >= 0 &&
        !gm_process_is_special()) {
        bytes += rescue->trim(rescue->context, pool->device);
    }
    return bytes;
}

/* True when the stage may have freed something. A sibling's memory does not count
 * against this pool's limit, so giving it back does not help there, unless the sibling
 * took it from this pool. */
static bool
reclaim(gm_pool *pool,
        const gm_request *request,
        reclaim_stage stage,
        gm_status why,
        const gm_rescue *rescue)
{
    switch (stage) {
    case RECLAIM_PENDING:
        return gm_pool_settle_all(pool) > 0;
    case RECLAIM_LARGE:
        return !pool->paging.on && // which gives back by page
               gm_pool_reclaim_idle(pool, gm_size_round(request->size) / WORTH_GIVING) >
                   0;
    case RECLAIM_OWN:
        return gm_pool_reclaim_idle(pool, 0) > 0;
    case RECLAIM_SIBLINGS:
        return release_others(pool, why, rescue) > 0;
    case RECLAIM_LEND: // frees nothing: see pool_attempt_all
        break;
    case RECLAIM_GARBAGE:
        if (!rescue || !rescue->collect || !rescue->collect(rescue->context)) {
            return false;
        }
        // Garbage may have been live.
        (void)reclaim(pool, request, RECLAIM_PENDING, why, NULL);
        (void)reclaim(pool, request, RECLAIM_OWN, why, NULL);
        (void)reclaim(pool, request, RECLAIM_SIBLINGS, why, rescue);
        return true;
    }
    return false;
}

enum {
    ROUNDS = 64,   // how often to look again while other threads' memory is in flight
    ATTEMPTS = 64, // and to try again after something was freed
};

void
gm_pool_count(gm_pool *pool, size_t *counter)
{
    gm_pool_lock(pool);
    (*counter)++;
    gm_pool_unlock(pool);
}

/* A request that the limit alone forbids, whatever is given back. */
static bool
never_fits(gm_pool *pool, const gm_request *request)
{
    size_t limit;

    gm_pool_lock(pool);
    limit = pool->stats.limit_bytes;
    gm_pool_unlock(pool);
    return limit && gm_size_round(request->size) > limit;
}

/* Tries, and after each stage up to `last` that may have freed something again, from
 * the first stage on: what one stage frees may let an earlier one free more where pools
 * lie over pools, and the next attempt may want for something else. The collector runs
 * once. */
static gm_status
pool_attempt_all(gm_pool *pool,
                 const gm_request *request,
                 const gm_rescue *rescue,
                 reclaim_stage last,
                 gm_block **out)
{
    gm_status status = gm_pool_attempt(pool, request, rescue, out);
    reclaim_stage stage = RECLAIM_PENDING;
    int attempts = 1;

    while (gm_is_shortage(status) && stage <= last && !never_fits(pool, request)) {
        if (stage == RECLAIM_LEND && gm_pool_lend(pool, request, rescue, out)) {
            return GM_OK;
        }
        if (!reclaim(pool, request, stage, status, rescue) || attempts == ATTEMPTS) {
            stage++;
            continue;
        }
        gm_pool_count(pool, &pool->stats.retries);
        status = gm_pool_attempt(pool, request, rescue, out);
        attempts++;
        if (stage == RECLAIM_GARBAGE) {
            last = RECLAIM_LEND;
        }
        stage = RECLAIM_PENDING;
    }
    return status;
}

/* The same, again as long as memory of other threads arrives. */
static gm_status
pool_attempt_settled(gm_pool *pool,
                     const gm_request *request,
                     const gm_rescue *rescue,
                     gm_block **out)
{
    reclaim_stage last = RECLAIM_GARBAGE;
    gm_status status;
    uint64_t ended;
    int round = 0;

    do {
        ended = gm_process_flights_ended();
        status = pool_attempt_all(pool, request, rescue, last, out);
        last = RECLAIM_LEND; // once is enough for the collector
    } while (gm_is_shortage(status) && ++round < ROUNDS && !never_fits(pool, request) &&
             gm_process_flights_wait(ended));
    return status;
}

/* Asks the user for memory, after a shortage of `status`, and tries again as long as
 * told to. */
static gm_status
pool_ask_user(gm_pool *pool,
              const gm_request *request,
              const gm_rescue *rescue,
              gm_status status,
              gm_block **out)
{
    for (size_t attempt = 1; gm_is_shortage(status) && attempt <= GM_ASKS; attempt++) {
        gm_shortage shortage;

        gm_pool_explain(pool, request, status, &shortage);
        shortage.attempt = attempt;
        switch (rescue->ask(rescue->context, &shortage)) {
        case GM_ANSWER_GIVE_UP:
            return status;
        case GM_ANSWER_FAILED:
            return GM_ERR_CALLBACK;
        case GM_ANSWER_RETRY:
            gm_pool_count(pool, &pool->stats.retries);
            status = pool_attempt_settled(pool, request, rescue, out);
        }
    }
    return status;
}

gm_status
gm_pool_malloc_slow(gm_pool *pool,
                    const gm_request *request,
                    const gm_rescue *rescue,
                    gm_block **out)
{
    gm_status status = gm_request_check(request);

    if (status != GM_OK) {
        return status;
    }
    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pools_sweep();
    gm_pool_notice_reset(pool);
    if (gm_capture_serves(pool, request, rescue, &status, out)) {
        return status;
    }
    status = pool_attempt_settled(pool, request, rescue, out);
    if (rescue && rescue->ask) {
        status = pool_ask_user(pool, request, rescue, status, out);
    }
    if (gm_is_shortage(status)) {
        gm_pool_count(pool, &pool->stats.out_of_memory);
    }
    return status == GM_OK && rescue && rescue->capture
               ? gm_part_adopt(pool, rescue->capture, request, *out)
               : status;
}
