/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page: how large the pages are that they make, and how many
 * they make before they move any.
 */
#include "paged.h"

static const gm_stream_use null_stream = {.device = 0, .announced = true};

/* Serves a request, and returns how many pages were made for it. */
static size_t
pages_made_for(site s, size_t grains, holding *out)
{
    size_t before = stats_of(s.pool).upstream_allocations;

    *out = take_by(s.pool, grains * PAGE, &null_stream);
    CHECK_EQ(stats_of(s.pool).remapped_pages, 0);
    return stats_of(s.pool).upstream_allocations - before;
}

/* As large as the request up to four grains, and up to eight in a pool that holds 40
 * of these; larger ones are 1/168 of what is held. */
TEST(expandable_makes_large_pages_for_large_requests)
{
    site s = open_paged_site(16384 * PAGE);
    holding h[8];

    CHECK_EQ(pages_made_for(s, 1, &h[0]), 1);
    CHECK_EQ(pages_made_for(s, 4, &h[1]), 1);
    CHECK_EQ(pages_made_for(s, 7, &h[2]), 3);
    CHECK_EQ(pages_made_for(s, 8, &h[3]), 2);
    CHECK_EQ(pages_made_for(s, 1024, &h[4]), 1024 / 8);
    CHECK_EQ(pages_made_for(s, 8, &h[5]), 1);
    CHECK_EQ(pages_made_for(s, 2048, &h[6]), 2048 / 16);
    CHECK_EQ(pages_made_for(s, 16, &h[7]), 1);
    for (size_t i = 0; i < 8; i++) {
        drop(h[i]);
    }
    close_site(s);
}

/* A request of six grains or more gets more than it needs in whole pages, out of what
 * may be held beyond what is in use; the next ones have the rest. */
TEST(expandable_makes_whole_pages_for_large_requests)
{
    site s = open_paged_site(16384 * PAGE);
    holding h[5];

    CHECK_EQ(pages_made_for(s, 1024, &h[0]), 1024 / 8);
    CHECK_EQ(pages_made_for(s, 9, &h[1]), 2);
    CHECK_EQ(stats_of(s.pool).total_bytes, (1024 + 16) * PAGE);
    CHECK_EQ(pages_made_for(s, 7, &h[2]), 0);
    CHECK_EQ(pages_made_for(s, 5, &h[3]), 2);
    CHECK_EQ(gm_pool_set_limit(s.pool, 8192 * PAGE), GM_OK);
    CHECK_EQ(pages_made_for(s, 9, &h[4]), 5); // of two grains, and of one
    CHECK_EQ(stats_of(s.pool).total_bytes, (1024 + 16 + 5 + 9) * PAGE);
    for (size_t i = 0; i < 5; i++) {
        drop(h[i]);
    }
    close_site(s);
}

/* 1/384 of what is held; towards the limit, and likewise towards the end of the
 * device's memory, 1/512 of what is left. */
TEST(expandable_makes_fine_pages_under_a_limit)
{
    site s = open_paged_site(16384 * PAGE);
    holding h[4];

    CHECK_EQ(gm_pool_set_limit(s.pool, 4096 * PAGE), GM_OK);
    CHECK_EQ(pages_made_for(s, 576, &h[0]), 576);
    CHECK_EQ(pages_made_for(s, 192, &h[1]), 192 / 2);
    CHECK_EQ(pages_made_for(s, 2560, &h[2]), 2560 / 4);
    CHECK_EQ(pages_made_for(s, 512, &h[3]), 512);
    for (size_t i = 0; i < 4; i++) {
        drop(h[i]);
    }
    close_site(s);
}

TEST(expandable_makes_fine_pages_of_the_last_memory)
{
    site s = open_paged_site(4096 * PAGE);
    holding h[2];

    CHECK_EQ(pages_made_for(s, 3072, &h[0]), 3072 / 8);
    CHECK_EQ(pages_made_for(s, 512, &h[1]), 512 / 2);
    drop(h[0]);
    drop(h[1]);
    close_site(s);
}

/* What may be held beyond what was in use at once is made before pages move, and moves
 * do for the rest; then nothing more is made. */
TEST(expandable_has_its_reserve_before_it_moves_pages)
{
    enum {
        COUNT = 128 // 1/64 of them are two
    };
    site s = open_paged_site(1024 * PAGE);
    holding held[COUNT];
    holding a, b;

    for (size_t i = 0; i < COUNT; i++) {
        held[i] = take_by(s.pool, PAGE, &null_stream);
    }
    CHECK_EQ(stats_of(s.pool).total_bytes, COUNT * PAGE);
    for (size_t i = 0; i < COUNT; i += 2) {
        drop(held[i]);
    }
    a = take_by(s.pool, 4 * PAGE, &null_stream);
    CHECK_EQ(stats_of(s.pool).total_bytes, (COUNT + 2) * PAGE);
    CHECK_EQ(stats_of(s.pool).remapped_pages, 2);
    b = take_by(s.pool, 4 * PAGE, &null_stream);
    CHECK_EQ(stats_of(s.pool).total_bytes, (COUNT + 2) * PAGE);
    CHECK_EQ(stats_of(s.pool).remapped_pages, 6);
    for (size_t i = 1; i < COUNT; i += 2) {
        drop(held[i]);
    }
    drop(a);
    drop(b);
    close_site(s);
}

/* As long as it has an eighth of its memory left beyond each request. */
TEST(expandable_asks_a_device_that_has_plenty_once)
{
    enum {
        COUNT = 64
    };
    site s = open_paged_site(8 * COUNT * PAGE);
    holding held[COUNT];
    holding large;

    gm_sim_log_start(s.sim);
    for (size_t i = 0; i < COUNT; i++) {
        held[i] = take_by(s.pool, PAGE, &null_stream);
    }
    CHECK_EQ(count_calls(s.sim, "mem_info"), 1);
    large = take_by(s.pool, 6 * COUNT * PAGE, &null_stream);
    CHECK_EQ(count_calls(s.sim, "mem_info"), 1);
    drop(large);
    CHECK(gm_pool_release_idle(s.pool) > 0);
    large = take_by(s.pool, 6 * COUNT * PAGE + 1, &null_stream);
    CHECK_EQ(count_calls(s.sim, "mem_info"), 2);
    gm_sim_log_stop(s.sim);
    for (size_t i = 0; i < COUNT; i++) {
        drop(held[i]);
    }
    drop(large);
    close_site(s);
}

/* What others took since shows when a page cannot be made: what was made in vain goes
 * back, and the device is asked, which may have less than whole pages but enough. */
TEST(expandable_notices_that_others_took_what_was_plenty)
{
    enum {
        SIZE = 16384,
        HELD = 256
    };
    site s = open_paged_site(SIZE * PAGE);
    holding a = take_by(s.pool, HELD * PAGE, &null_stream);
    holding b, none;

    CHECK_EQ(gm_sim_set_others(s.sim, 0, (SIZE - HELD - 7) * PAGE), GM_OK);
    CHECK_EQ(try_for(s.pool, 12 * PAGE, &null_stream, &none), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, HELD * PAGE);
    CHECK_EQ(gm_sim_set_others(s.sim, 0, 0), GM_OK);
    b = take_by(s.pool, PAGE, &null_stream); // asks
    drop(b);
    CHECK(gm_pool_release_idle(s.pool) > 0);
    CHECK_EQ(gm_sim_set_others(s.sim, 0, (SIZE - HELD - 7) * PAGE), GM_OK);
    b = take_by(s.pool, 7 * PAGE, &null_stream);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, (HELD + 7) * PAGE);
    CHECK_EQ(stats_of(s.pool).retries, 0);
    drop(a);
    drop(b);
    close_site(s);
}
