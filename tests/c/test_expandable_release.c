/* SPDX-License-Identifier: MIT
 *
 * Giving pages back to the device: what goes at once, what waits for a stream, and that
 * nobody waits for it.
 */
#include "paged.h"

static const gm_stream_use null_stream = {.device = 0, .announced = true};

TEST(expandable_gives_back_each_page_with_nothing_live_in_it)
{
    site s = open_paged_site(64 * MIB);
    holding a = take_by(s.pool, 512, &null_stream);
    holding b = take_by(s.pool, 4 * PAGE, &null_stream);
    holding c = take_by(s.pool, 512, &null_stream);

    stamp(a, 1);
    stamp(c, 2);
    drop(b);
    CHECK_EQ(stats_of(s.pool).total_bytes, 5 * PAGE);
    CHECK_EQ(gm_pool_release_idle(s.pool), 3 * PAGE);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).total_bytes, 2 * PAGE);
    CHECK_EQ(stats_of(s.pool).upstream_frees, 3);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, 2 * PAGE);
    check_stamp(a, 1);
    check_stamp(c, 2);
    b = take_by(s.pool, 4 * PAGE, &null_stream); // where it was: that takes three pages
    CHECK_EQ(b.block->addr, a.block->addr + 512);
    CHECK_EQ(stats_of(s.pool).total_bytes, 5 * PAGE);
    drop(a);
    drop(b);
    drop(c);
    CHECK_EQ(gm_pool_release_idle(s.pool), 5 * PAGE);
    CHECK_EQ(stats_of(s.pool).segments, 0);
    CHECK_EQ(read_ledger(s.sim).reservations, 0);
    close_site(s);
}

TEST(expandable_waits_for_nobody_when_it_gives_back)
{
    site s = open_paged_site(64 * MIB);
    gm_stream_use own = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding a = take_by(s.pool, 2 * PAGE, &own);
    holding b = take_by(s.pool, 2 * PAGE, &other);
    uint64_t hold;
    gm_stats stats;

    queue_write(s.sim, a, own);
    CHECK_EQ(gm_sim_hold(s.sim, own.stream, &hold), GM_OK);
    drop(a);
    drop(b);
    CHECK_EQ(gm_pool_release_idle(s.pool), 2 * PAGE); // the other stream's
    check_pool(s.pool);
    stats = stats_of(s.pool);
    CHECK_EQ(stats.pending_release_bytes, 2 * PAGE);
    CHECK_EQ(stats.total_bytes, 2 * PAGE);
    CHECK_EQ(stats.free_bytes, 0);
    gm_sim_release(s.sim, hold);
    stats = stats_of(s.pool); // looks
    CHECK_EQ(stats.pending_release_bytes, 0);
    CHECK_EQ(stats.total_bytes, 0);
    CHECK_EQ(read_ledger(s.sim).handles, 0);
    end_stream(s.sim, own);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(expandable_is_waited_for_where_memory_runs_out)
{
    site s = open_paged_site(4 * PAGE);
    gm_stream_use own = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding a = take_by(s.pool, 4 * PAGE, &own);

    queue_write(s.sim, a, own);
    drop(a);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0); // it is not said to be done yet
    a = take_by(s.pool, 4 * PAGE, &other);
    drop(a);
    end_stream(s.sim, own);
    end_stream(s.sim, other);
    close_site(s);
}

/* Pages that another stream was recorded to use are neither moved nor given back before
 * it is done, and then not before their own one is. */
TEST(expandable_pages_wait_for_each_stream_that_uses_them)
{
    site s = open_paged_site(4 * PAGE);
    gm_stream_use own = new_stream(s.sim, 0, true);
    gm_stream_use user = new_stream(s.sim, 0, true);
    gm_stream_use third = new_stream(s.sim, 0, true);
    holding h = take_by(s.pool, 4 * PAGE, &own), big;
    uint64_t holds[2];

    queue_write(s.sim, h, own);
    record(h, user);
    queue_write(s.sim, h, user);
    CHECK_EQ(gm_sim_hold(s.sim, own.stream, &holds[0]), GM_OK);
    CHECK_EQ(gm_sim_hold(s.sim, user.stream, &holds[1]), GM_OK);
    drop(h);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 4 * PAGE);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 0);
    CHECK_EQ(try_for(s.pool, PAGE, &third, &big), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(try_for(s.pool, PAGE, &own, &big), GM_ERR_OUT_OF_MEMORY);

    gm_sim_release(s.sim, holds[1]);
    finish_stream(s.sim, user);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 4 * PAGE);
    gm_sim_release(s.sim, holds[0]);
    big = take_by(s.pool, 4 * PAGE, &third);
    drop(big);
    end_stream(s.sim, own);
    end_stream(s.sim, user);
    end_stream(s.sim, third);
    close_site(s);
}

/* The stream that gets the pages waits for the one they are of, in the device. */
TEST(expandable_pages_that_were_used_elsewhere_move_in_order)
{
    site s = open_paged_site(4 * PAGE);
    gm_stream_use own = new_stream(s.sim, 0, true);
    gm_stream_use user = new_stream(s.sim, 0, true);
    gm_stream_use third = new_stream(s.sim, 0, true);
    holding h = take_by(s.pool, 4 * PAGE, &own), big;

    CHECK_EQ(gm_backend_set_async(s.sim, h.block->addr, 1, h.block->size, own.stream),
             GM_OK);
    record(h, user);
    CHECK_EQ(gm_backend_set_async(s.sim, h.block->addr, 2, h.block->size, user.stream),
             GM_OK);
    drop(h);
    big = take_by(s.pool, 4 * PAGE, &third); // has waited for `user`, not for `own`
    CHECK_EQ(
        gm_backend_set_async(s.sim, big.block->addr, 3, big.block->size, third.stream),
        GM_OK);
    finish_stream(s.sim, third);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    for (size_t at = 0; at < big.block->size; at += 4096) {
        CHECK_EQ(((unsigned char *)big.block->addr)[at], 3);
    }
    drop(big);
    end_stream(s.sim, own);
    end_stream(s.sim, user);
    end_stream(s.sim, third);
    close_site(s);
}

TEST(expandable_pool_that_is_closed_goes_when_its_stream_is_done)
{
    site s = open_paged_site(64 * MIB);
    gm_stream_use own = new_stream(s.sim, 0, true);
    gm_pool *pool;
    holding a;
    uint64_t hold;

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(s.sim), &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    a = take_by(pool, 2 * PAGE, &own);
    queue_write(s.sim, a, own);
    CHECK_EQ(gm_sim_hold(s.sim, own.stream, &hold), GM_OK);
    drop(a);
    gm_pool_close(pool);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    gm_pools_sweep();
    CHECK_EQ(read_ledger(s.sim).handle_bytes, 0);
    CHECK_EQ(read_ledger(s.sim).reservations, 0);
    end_stream(s.sim, own);
    close_site(s);
}
