/* SPDX-License-Identifier: MIT
 *
 * What a pool keeps of its idle memory: targets and reserves, of plain segments and of
 * pages, and that a limit goes before both.
 */
#include "device.h"
#include "holding.h"

/* Eight idle segments, or as many pages. */
static void
fill_idle(gm_pool *pool)
{
    holding held[8];

    for (size_t i = 0; i < 8; i++) {
        held[i] = take_bytes(pool, 2 * MIB);
    }
    for (size_t i = 0; i < 8; i++) {
        let_go(held[i]);
    }
}

static gm_pool *
open_idle(const gm_backend *b, bool paged)
{
    gm_pool *pool = NULL;

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b), &pool), GM_OK);
    if (paged) {
        CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    }
    fill_idle(pool);
    CHECK_EQ(stats_of(pool).total_bytes, 16 * MIB);
    return pool;
}

static void
close_idle(gm_backend *b, gm_pool *pool)
{
    check_pool(pool);
    gm_pool_close(pool);
    check_ledger_is_empty(b);
    gm_backend_close(b);
}

/* What goes is as much as the limit asks, and a reserve that fits is kept. */
static void
check_limit_and_reserve(gm_pool *pool)
{
    CHECK_EQ(gm_pool_set_reserve(pool, 12 * MIB), GM_OK);
    CHECK_EQ(gm_pool_set_limit(pool, 14 * MIB), GM_OK);
    CHECK_EQ(stats_of(pool).total_bytes, 12 * MIB);
    CHECK_EQ(gm_pool_set_limit(pool, 7 * MIB), GM_OK);
    CHECK_EQ(stats_of(pool).total_bytes, 6 * MIB);
    CHECK_EQ(gm_pool_release_idle(pool), 0); // the reserve wants as much as may be
    CHECK_EQ(gm_pool_set_limit(pool, 6 * MIB), GM_OK);
    CHECK_EQ(stats_of(pool).total_bytes, 6 * MIB);
    check_pool(pool);
}

TEST(limit_below_the_reserve_is_kept)
{
    for (int paged = 0; paged < 2; paged++) {
        gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 64 * MIB});
        gm_pool *pool = open_idle(b, paged);

        check_limit_and_reserve(pool);
        close_idle(b, pool);
    }
}

static void
check_target_and_reserve(gm_pool *pool)
{
    CHECK_EQ(gm_pool_trim(pool, 20 * MIB), 0);
    CHECK_EQ(gm_pool_trim(pool, 13 * MIB), 2 * MIB); // what is left is no less
    CHECK_EQ(gm_pool_set_reserve(pool, 9 * MIB), GM_OK);
    CHECK_EQ(gm_pool_trim(pool, 5 * MIB), 4 * MIB);
    CHECK_EQ(gm_pool_release_idle(pool), 0);
    CHECK_EQ(gm_pool_release_idle_of(pool, GM_STREAM_KEY_DEFAULT), 0);
    CHECK_EQ(gm_pool_set_reserve(pool, 0), GM_OK);
    CHECK_EQ(gm_pool_release_idle_of(pool, 77), 0); // another stream's
    CHECK_EQ(gm_pool_release_idle_of(pool, GM_STREAM_KEY_DEFAULT), 10 * MIB);
}

TEST(reserve_and_target_are_kept)
{
    for (int paged = 0; paged < 2; paged++) {
        gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 64 * MIB});
        gm_pool *pool = open_idle(b, paged);

        check_target_and_reserve(pool);
        close_idle(b, pool);
    }
}

/* Who needs the memory takes no heed of it: here the other pool of the device. */
TEST(reserve_is_no_reason_to_run_out_of_memory)
{
    for (int paged = 0; paged < 2; paged++) {
        gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 16 * MIB});
        gm_pool *pool = open_idle(b, paged), *other = NULL;

        CHECK_EQ(gm_pool_set_reserve(pool, 16 * MIB), GM_OK);
        CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b), &other), GM_OK);
        let_go(take_bytes(other, 16 * MIB));
        CHECK_EQ(stats_of(pool).total_bytes, 0);
        gm_pool_close(other);
        close_idle(b, pool);
    }
}
