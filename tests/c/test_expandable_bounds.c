/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page: what is asked, made and reserved for a request that
 * cannot be served, or only just.
 */
#include "paged.h"

static const gm_stream_use null_stream = {.device = 0, .announced = true};

/* A pool over a device that can be made to fail, of `pages` pages. */
typedef struct bench {
    site s;
    gm_backend *fault;
    gm_pool *pool;
} bench;

static bench
open_bench(size_t pages)
{
    bench f = {.s = open_site(pages * PAGE)};

    CHECK_EQ(gm_backend_fault_open(f.s.sim, &f.fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(f.fault), &f.pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(f.pool), GM_OK);
    return f;
}

static void
close_bench(bench f)
{
    gm_pool_close(f.pool);
    gm_backend_close(f.fault);
    close_site(f.s);
}

/* Nothing is made in vain, however often memory is looked for. */
TEST(expandable_makes_no_page_for_what_the_device_has_not)
{
    site s = open_paged_site(8 * PAGE);
    const gm_request request = {.size = 7 * PAGE};
    holding a = take_by(s.pool, 2 * PAGE, &null_stream);
    holding h;
    gm_shortage why;

    (void)gm_sim_log_start(s.sim);
    CHECK_EQ(try_for(s.pool, request.size, &null_stream, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(count_calls(s.sim, "vm_create"), 0);
    CHECK_EQ(count_calls(s.sim, "vm_reserve"), 0);
    CHECK_EQ(stats_of(s.pool).retries, 0);
    CHECK_EQ(stats_of(s.pool).total_bytes, 2 * PAGE);
    gm_pool_explain(s.pool, &request, GM_ERR_OUT_OF_MEMORY, &why);
    CHECK_EQ(why.largest_available_block, 6 * PAGE);
    CHECK_EQ(why.missing_bytes, PAGE);
    h = take_by(s.pool, 6 * PAGE, &null_stream);
    drop(h);
    drop(a);
    close_site(s);
}

/* The first request of a stream has no addresses yet, and gets none where the limit or
 * the device say no. */
TEST(expandable_reserves_nothing_for_what_cannot_be)
{
    site s = open_paged_site(8 * PAGE);
    holding h;

    CHECK_EQ(gm_pool_set_limit(s.pool, 4 * PAGE), GM_OK);
    (void)gm_sim_log_start(s.sim);
    CHECK_EQ(try_for(s.pool, (size_t)1 << 40, &null_stream, &h), GM_ERR_LIMIT);
    CHECK_EQ(gm_pool_set_limit(s.pool, 0), GM_OK);
    CHECK_EQ(try_for(s.pool, 9 * PAGE, &null_stream, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(count_calls(s.sim, "vm_reserve"), 0);
    CHECK_EQ(stats_of(s.pool).reserved_bytes, 0);
    close_site(s);
}

/* A device that has less than it says: what was made in vain goes back at once. */
TEST(expandable_keeps_no_page_of_a_request_that_failed)
{
    bench f = open_bench(8);
    holding a = take_by(f.pool, PAGE, &null_stream);
    holding h;

    CHECK_EQ(gm_fault_plan(f.fault, "vm_create", 3, 1000, GM_ERR_OUT_OF_MEMORY), GM_OK);
    CHECK_EQ(try_for(f.pool, 4 * PAGE, &null_stream, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(read_ledger(f.s.sim).handle_bytes, PAGE);
    CHECK_EQ(stats_of(f.pool).total_bytes, PAGE);
    CHECK_EQ(stats_of(f.pool).retries, 0);
    gm_fault_clear(f.fault);
    h = take_by(f.pool, 4 * PAGE, &null_stream);
    drop(h);
    drop(a);
    close_bench(f);
}

/* Two pages of four grains each, apart; a hole of six that they do not fit into, and no
 * more addresses behind. New ones serve the request, with what there is of memory. */
TEST(expandable_takes_new_addresses_rather_than_give_up)
{
    enum {
        BLOCKS = 275
    };
    bench f = open_bench(8192);
    holding a, b, c, h;
    holding blocks[BLOCKS];
    gm_stats before;

    /* Under a limit pages are as fine as what is held is little. */
    CHECK_EQ(gm_pool_set_limit(f.pool, 8192 * PAGE), GM_OK);

    /* Spaces just as large as the first request needs: no longer ones are to be had. */
    CHECK_EQ(gm_fault_plan(f.fault, "vm_reserve", 1, 6, GM_ERR_OUT_OF_MEMORY), GM_OK);
    drop(take_by(f.pool, 520 * PAGE, &null_stream));
    CHECK_EQ(stats_of(f.pool).reserved_bytes, 522 * PAGE);
    CHECK_EQ(stats_of(f.pool).pages, 520);
    a = take_by(f.pool, 2 * PAGE, &null_stream);
    b = take_by(f.pool, 6 * PAGE, &null_stream);
    c = take_by(f.pool, 512 * PAGE, &null_stream);
    drop(b);
    CHECK_EQ(gm_pool_release_idle(f.pool), 6 * PAGE);
    CHECK_EQ(gm_fault_plan(f.fault, "vm_reserve", 1, 5, GM_ERR_OUT_OF_MEMORY), GM_OK);
    drop(take_by(f.pool, 4 * BLOCKS * PAGE, &null_stream));
    CHECK_EQ(stats_of(f.pool).reserved_bytes, (522 + 4 * BLOCKS + 2) * PAGE);
    CHECK_EQ(stats_of(f.pool).pages, 514 + BLOCKS);
    for (size_t i = 0; i < BLOCKS; i++) {
        blocks[i] = take_by(f.pool, 4 * PAGE, &null_stream);
    }
    drop(blocks[100]);
    drop(blocks[102]);
    CHECK_EQ(gm_pool_set_limit(f.pool, stats_of(f.pool).total_bytes), GM_OK);
    before = stats_of(f.pool);
    h = take_by(f.pool, 5 * PAGE, &null_stream);
    CHECK_EQ(stats_of(f.pool).remapped_pages, before.remapped_pages + 2);
    CHECK_EQ(stats_of(f.pool).upstream_frees, before.upstream_frees);
    CHECK_EQ(stats_of(f.pool).retries, before.retries);
    CHECK_EQ(stats_of(f.pool).segments, 3);
    for (size_t i = 0; i < BLOCKS; i++) {
        if (i != 100 && i != 102) {
            let_go(blocks[i]);
        }
    }
    drop(a);
    drop(c);
    drop(h);
    close_bench(f);
}

/* What is on its way back is held, and so belongs to the peak. */
TEST(expandable_resets_the_peak_to_all_that_is_held)
{
    site s = open_paged_site(8 * PAGE);
    gm_stream_use own = new_stream(s.sim, 0, true);
    holding a = take_by(s.pool, 2 * PAGE, &own);
    uint64_t hold;

    queue_write(s.sim, a, own);
    CHECK_EQ(gm_sim_hold(s.sim, own.stream, &hold), GM_OK);
    drop(a);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(gm_pool_reset_peaks(s.pool), GM_OK);
    CHECK_EQ(stats_of(s.pool).total_bytes, 2 * PAGE);
    CHECK_EQ(stats_of(s.pool).peak_total_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    end_stream(s.sim, own);
    close_site(s);
}
