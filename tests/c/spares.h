/* SPDX-License-Identifier: MIT
 *
 * Takes the spare nodes of a pool away for a while, so that the next block that is cut
 * needs host memory.
 */
#ifndef SPARES_H
#define SPARES_H

#include "core/gm_shard_private.h"

typedef struct spares {
    gm_block *of_pool;
#if GM_SHARDS
    gm_block *of_shards[GM_SHARD_COUNT];
#endif
} spares;

static inline gm_block *
spares_swap(gm_block_store *store, gm_block *spare)
{
    gm_block *before = store->spare;

    store->spare = spare;
    return before;
}

/* Exchanges what is kept with what the pool has. The pool's lock is held. */
static inline void
spares_exchange(gm_pool *pool, spares *kept)
{
    kept->of_pool = spares_swap(&pool->store, kept->of_pool);
#if GM_SHARDS
    size_t i = 0;

    for (gm_shard *s = gm_pool_first_shard(pool); s; s = s->next) {
        kept->of_shards[i] = spares_swap(&s->store, kept->of_shards[i]);
        i++;
    }
#endif
}

static inline spares
spares_hide(gm_pool *pool)
{
    spares kept = {0};

    gm_pool_lock(pool);
    spares_exchange(pool, &kept);
    gm_pool_unlock(pool);
    return kept;
}

/* No shard was made meanwhile, nor a node. */
static inline void
spares_show(gm_pool *pool, spares *kept)
{
    gm_pool_lock(pool);
    spares_exchange(pool, kept);
    gm_pool_unlock(pool);
}

#endif
