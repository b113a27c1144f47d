/* SPDX-License-Identifier: MIT
 *
 * What each client has in use of a pool: of live blocks alone, of whichever state, and
 * once where one pool lies over another.
 */
#include "holding.h"
#include "streams.h"

#include "core/gm_pending.h"

enum {
    CLIENTS = 4,
};

static holding
take_as(gm_pool *pool, size_t size, uint16_t client)
{
    const gm_request request = {.size = size, .client = client};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc(pool, &request, &block);

    if (status == GM_MISS) {
        status = gm_pool_malloc_slow(pool, &request, NULL, &block);
    }
    CHECK_EQ(status, GM_OK);
    return hold(pool, block);
}

static void
check_usage(gm_usage usage, size_t used, size_t requested, size_t blocks)
{
    CHECK_EQ(usage.used_bytes, used);
    CHECK_EQ(usage.requested_bytes, requested);
    CHECK_EQ(usage.live_blocks, blocks);
}

TEST(usage_is_of_live_blocks_by_who_asked_for_them)
{
    site s = open_site(MIB);
    gm_pool *pool = s.pool;
    gm_usage usages[CLIENTS] = {{0}};
    holding kept[3];

    let_go(take_as(pool, UNITS(100), 3)); // cached: nobody's
    kept[0] = take_as(pool, 1000, 0);
    kept[1] = take_as(pool, 1, 2);
    kept[2] = take_as(pool, UNITS(1), 2);
    let_go(
        take_as(pool, UNITS(1), 2)); // given back, and the next may get it as another
    CHECK_EQ(gm_pool_count_clients(pool, false, usages, CLIENTS), GM_OK);
    check_usage(usages[0], UNITS(2), 1000, 1);
    check_usage(usages[1], 0, 0, 0);
    check_usage(usages[2], UNITS(2), 1 + UNITS(1), 2);
    check_usage(usages[3], 0, 0, 0);
    CHECK_EQ(gm_pool_count_clients(pool, false, usages, CLIENTS), GM_OK); // adds
    check_usage(usages[0], UNITS(4), 2000, 2);
    for (int i = 0; i < 3; i++) {
        let_go(kept[i]);
    }
    close_site(s);
}

TEST(usage_is_not_counted_where_a_client_has_no_place)
{
    site s = open_site(MIB);
    gm_pool *pool = s.pool;
    gm_usage usages[CLIENTS] = {{0}};
    holding first = take_as(pool, UNITS(1), 0);
    holding second = take_as(pool, UNITS(1), 2);

    CHECK_EQ(gm_pool_count_clients(pool, false, usages, 2), GM_BUSY);
    check_usage(usages[0], 0, 0, 0);
    CHECK_EQ(gm_pool_count_clients(pool, false, usages, 3), GM_OK);
    check_usage(usages[2], UNITS(1), UNITS(1), 1);
    let_go(first);
    let_go(second);
    close_site(s);
}

/* A use by another stream keeps the bytes asked for elsewhere; once given back the
 * block is pending, and nobody's. */
TEST(usage_of_a_block_that_another_stream_uses)
{
    site s = open_site(MIB);
    gm_pool *pool = s.pool;
    gm_stream_use by = new_stream(s.sim, 0, true);
    holding kept = take_as(pool, 700, 1);
    gm_usage before[CLIENTS] = {{0}};
    gm_usage after[CLIENTS] = {{0}};

    CHECK_EQ(gm_pool_record_use(pool, kept.block, kept.generation, &by), GM_OK);
    CHECK_EQ(gm_pool_count_clients(pool, false, before, CLIENTS), GM_OK);
    check_usage(before[1], UNITS(2), 700, 1);
    let_go(kept);
    CHECK_EQ(gm_pool_count_clients(pool, false, after, CLIENTS), GM_OK);
    check_usage(after[1], 0, 0, 0);
    end_stream(s.sim, by);
    close_site(s);
}
