/* SPDX-License-Identifier: MIT
 *
 * Shorthand for tests that drive a pool: a holding is a block with what its holder has
 * to remember. Ends the test where something does not go as it says.
 */
#ifndef HOLDING_H
#define HOLDING_H

#include "harness.h"

#include "core/gm_pool.h"
#include "core/gm_process.h"

#define KIB ((size_t)1 << 10)
#define UNITS(n) ((size_t)(n)*GM_UNIT)

typedef struct holding {
    gm_pool *pool;
    gm_block *block;
    uint32_t generation;
} holding;

static inline holding
hold(gm_pool *pool, gm_block *block)
{
    return (holding){pool, block, block->generation};
}

/* As a binding asks: the cache first, then with all means. `out` only on success. */
static inline gm_status
try_hold(gm_pool *pool, size_t size, gm_stream_key key, holding *out)
{
    gm_request request = {.size = size, .key = key};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc(pool, &request, &block);

    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_malloc_slow(pool, &request, NULL, &block);
    }
    if (status == GM_OK) {
        *out = hold(pool, block);
    }
    else {
        CHECK(block == NULL);
    }
    return status;
}

static inline holding
take_for(gm_pool *pool, size_t size, gm_stream_key key)
{
    holding h = {0};

    CHECK_EQ(try_hold(pool, size, key, &h), GM_OK);
    return h;
}

static inline holding
take_bytes(gm_pool *pool, size_t size)
{
    return take_for(pool, size, GM_STREAM_KEY_DEFAULT);
}

static inline void
let_go(holding h)
{
    gm_pool_free(h.pool, h.block, h.generation);
}

static inline gm_stats
stats_of(gm_pool *pool)
{
    gm_stats stats;

    CHECK_EQ(gm_pool_read_stats(pool, &stats), GM_OK);
    return stats;
}

static inline void
check_same_stats(const gm_stats *actual, const gm_stats *expected)
{
#define CHECK_FIELD(name, text) CHECK_EQ(actual->name, expected->name);
    GM_STATS_LIST(CHECK_FIELD)
#undef CHECK_FIELD
}

static inline void
check_pool(gm_pool *pool)
{
    const char *fault = gm_pool_check(pool);

    if (fault != NULL) {
        fprintf(stderr, "the pool is broken: %s\n", fault);
        exit(1);
    }
}

static inline bool
is_any_pool(gm_pool_link *link)
{
    return link != NULL;
}

/* Insists that every pool of the process has ended. */
static inline void
check_no_pool_is_left(void)
{
    CHECK(gm_process_pool_next(0, is_any_pool) == NULL);
}

/* Insists that the block lies at `offset` of the segment numbered `serial`. */
static inline void
check_place(holding h, uint64_t serial, size_t offset)
{
    uint64_t actual_serial = 0;
    size_t actual_offset = 0;

    CHECK_EQ(gm_pool_placement(h.pool, h.block, h.generation, &actual_serial,
                               &actual_offset),
             GM_OK);
    CHECK_EQ(actual_serial, serial);
    CHECK_EQ(actual_offset, offset);
}

/* Nobody's address any more. */
static inline void
check_void(holding h)
{
    uint64_t serial = 7;
    size_t offset = 7;

    CHECK_EQ(gm_pool_placement(h.pool, h.block, h.generation, &serial, &offset),
             GM_ERR_NOT_OWNED);
    CHECK_EQ(serial, 7);
    CHECK_EQ(offset, 7);
}

#endif
