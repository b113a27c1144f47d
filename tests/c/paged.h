/* SPDX-License-Identifier: MIT
 *
 * Shorthand for tests of pools that map memory by page, over the simulated device.
 */
#ifndef PAGED_H
#define PAGED_H

#include "streams.h"

#define PAGE (2 * MIB)

static inline site
open_paged_site(size_t memory)
{
    site s = open_site(memory);

    CHECK_EQ(gm_pool_set_paging(s.pool), GM_OK);
    return s;
}

/* A request of a stream, with all means. `out` only on success. */
static inline gm_status
try_hold_for(gm_pool *pool, size_t size, const gm_stream_use *by, holding *out)
{
    const gm_request request = {.size = size, .key = by->key};
    const gm_rescue rescue = {.by = by};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc(pool, &request, &block);

    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_malloc_slow(pool, &request, &rescue, &block);
    }
    if (status == GM_OK) {
        *out = hold(pool, block);
    }
    return status;
}

/* The same, and the pool is sound. */
static inline gm_status
try_for(gm_pool *pool, size_t size, const gm_stream_use *by, holding *out)
{
    gm_status status = try_hold_for(pool, size, by, out);

    check_pool(pool);
    return status;
}

static inline holding
take_by(gm_pool *pool, size_t size, const gm_stream_use *by)
{
    holding h = {0};

    CHECK_EQ(try_for(pool, size, by, &h), GM_OK);
    return h;
}

static inline void
drop(holding h)
{
    let_go(h);
    check_pool(h.pool);
}

/* What the byte at an address is to be for a block of that seed. */
static inline unsigned char
stamp_of(uintptr_t addr, unsigned seed)
{
    return (unsigned char)(addr * 31 + (addr >> 21) * 7 + seed);
}

/* Calls `each` with the first and last byte of the block, and with those at both sides
 * of each border of grains in it. */
static inline void
at_borders(holding h, unsigned seed, void (*each)(uintptr_t addr, unsigned seed))
{
    uintptr_t start = h.block->addr;
    uintptr_t end = start + h.block->size;

    each(start, seed);
    each(end - 1, seed);
    for (uintptr_t at = (start + PAGE) & ~(PAGE - 1); at < end; at += PAGE) {
        each(at - 1, seed);
        each(at, seed);
    }
}

static inline void
stamp_byte(uintptr_t addr, unsigned seed)
{
    *(unsigned char *)addr = stamp_of(addr, seed);
}

static inline void
check_byte(uintptr_t addr, unsigned seed)
{
    CHECK_EQ(*(unsigned char *)addr, stamp_of(addr, seed));
}

static inline void
stamp(holding h, unsigned seed)
{
    at_borders(h, seed, stamp_byte);
}

static inline void
check_stamp(holding h, unsigned seed)
{
    at_borders(h, seed, check_byte);
}

static inline size_t
mapped(site s)
{
    return read_ledger(s.sim).mappings;
}

#endif
