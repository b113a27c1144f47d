/* SPDX-License-Identifier: MIT
 *
 * What the C benchmarks share: asking a pool as a binding does, ending where something
 * fails, and an upstream that gives addresses and no memory. The core never touches the
 * memory it hands out, so a pool over it works, and no device's cost is in the figures.
 */
#ifndef BENCH_H
#define BENCH_H

#include "core/gm_pool.h"

#include <stdio.h>
#include <stdlib.h>

/* A benchmark without its figures is of no use: says what failed and ends. */
static inline void
bench_insist(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* ---- addresses without memory ---- */

typedef struct bench_addresses {
    uintptr_t next; // not given out yet
    size_t calls;
} bench_addresses;

static inline gm_status
bench_take_addresses(void *context, int device, size_t size, gm_piece *out)
{
    bench_addresses *addresses = context;

    (void)device;
    *out = (gm_piece){.base = addresses->next, .size = size};
    addresses->next += gm_size_round(size);
    addresses->calls++;
    return GM_OK;
}

static inline void
bench_give_addresses(void *context, int device, const gm_piece *piece)
{
    (void)context;
    (void)device;
    (void)piece;
}

/* `addresses` outlives the pool. */
static inline gm_pool *
bench_pool(bench_addresses *addresses)
{
    gm_upstream upstream = {
        .context = addresses,
        .take = bench_take_addresses,
        .give = bench_give_addresses,
    };
    gm_pool *pool = NULL;

    *addresses = (bench_addresses){.next = (uintptr_t)1 << 40};
    bench_insist(gm_pool_new(0, upstream, &pool) == GM_OK, "no pool");
    return pool;
}

/* ---- requests ---- */

/* A block, and what its holder has to remember. */
typedef struct bench_block {
    gm_block *block;
    uint32_t generation;
} bench_block;

/* The cache first, then with all means. */
static inline bench_block
bench_take(gm_pool *pool, size_t size, gm_stream_key key)
{
    gm_request request = {.size = size, .key = key};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc(pool, &request, &block);

    if (GM_UNLIKELY(status != GM_OK)) {
        if (status == GM_MISS || status == GM_BUSY) {
            status = gm_pool_malloc_slow(pool, &request, NULL, &block);
        }
        bench_insist(status == GM_OK, "no memory");
    }
    return (bench_block){block, block->generation};
}

static inline void
bench_give(gm_pool *pool, bench_block taken)
{
    gm_pool_free(pool, taken.block, taken.generation);
}

/* Nothing is used, no invariant is broken; ends the pool. */
static inline void
bench_close(gm_pool *pool)
{
    gm_stats stats;
    const char *fault = gm_pool_check(pool);

    bench_insist(!fault, fault);
    bench_insist(gm_pool_read_stats(pool, &stats) == GM_OK, "no statistics");
    bench_insist(stats.used_bytes == 0, "something was not given back");
    gm_pool_close(pool);
}

#endif
