/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page: growing, and serving requests with the pages of free
 * memory, on one stream.
 */
#include "paged.h"

static const gm_stream_use null_stream = {.device = 0, .announced = true};

TEST(expandable_takes_no_more_pages_than_are_touched)
{
    site s = open_paged_site(64 * MIB);
    holding a = take_by(s.pool, 512, &null_stream);
    holding b = take_by(s.pool, PAGE - 512, &null_stream);
    holding c;
    gm_stats stats;

    CHECK_EQ(stats_of(s.pool).total_bytes, PAGE);
    CHECK_EQ(b.block->addr, a.block->addr + 512);
    c = take_by(s.pool, 3 * PAGE + 512, &null_stream);
    CHECK_EQ(c.block->addr, a.block->addr + PAGE);
    stats = stats_of(s.pool);
    CHECK_EQ(stats.total_bytes, 5 * PAGE);
    CHECK_EQ(stats.free_bytes, PAGE - 512);
    CHECK_EQ(stats.segments, 1);
    CHECK_EQ(stats.pages, 5);
    CHECK_EQ(stats.mappings, 5);
    CHECK_EQ(stats.misses, 2);
    CHECK_EQ(stats.hits, 1);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, 5 * PAGE);
    drop(a);
    drop(b);
    drop(c);
    CHECK_EQ(stats_of(s.pool).free_bytes, 5 * PAGE);
    close_site(s);
}

/* A request larger than the free block at the end takes that, and pages for the rest.
 */
TEST(expandable_grows_on_from_what_is_free_at_the_end)
{
    site s = open_paged_site(64 * MIB);
    holding a = take_by(s.pool, 512, &null_stream);
    holding b = take_by(s.pool, 2 * PAGE, &null_stream);

    CHECK_EQ(b.block->addr, a.block->addr + 512);
    CHECK_EQ(stats_of(s.pool).total_bytes, 3 * PAGE);
    CHECK_EQ(stats_of(s.pool).free_bytes, PAGE - 512);
    drop(b);
    b = take_by(s.pool, 4 * PAGE - 512, &null_stream);
    CHECK_EQ(b.block->addr, a.block->addr + 512);
    CHECK_EQ(stats_of(s.pool).total_bytes, 4 * PAGE);
    drop(a);
    drop(b);
    close_site(s);
}

/* `count` blocks of a page each on a device of so many pages, of which every other one
 * is free again. The rest are stamped. */
static void
take_comb(site s, holding *held, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        held[i] = take_by(s.pool, PAGE, &null_stream);
        stamp(held[i], (unsigned)i);
    }
    for (size_t i = 0; i < count; i += 2) {
        drop(held[i]);
    }
}

static void
drop_comb(holding *held, size_t count)
{
    for (size_t i = 1; i < count; i += 2) {
        check_stamp(held[i], (unsigned)i);
        drop(held[i]);
    }
}

TEST(expandable_joins_pages_that_lie_apart)
{
    site s = open_paged_site(8 * PAGE);
    holding held[8];
    holding h;
    gm_stats stats;

    take_comb(s, held, 8);
    h = take_by(s.pool, 4 * PAGE, &null_stream);
    stamp(h, 100);
    stats = stats_of(s.pool);
    CHECK_EQ(stats.total_bytes, 8 * PAGE);
    CHECK_EQ(stats.used_bytes, 8 * PAGE);
    CHECK_EQ(stats.remapped_pages, 4);
    CHECK_EQ(stats.pages, 8);
    CHECK_EQ(stats.mappings, 12);
    CHECK_EQ(stats.upstream_allocations, 8);
    CHECK_EQ(stats.upstream_frees, 0);
    check_stamp(h, 100);
    drop_comb(held, 8);
    check_stamp(h, 100);
    drop(h);
    close_site(s);
}

/* The field's picture of fragmentation: no two free blocks meet. */
TEST(expandable_serves_half_of_a_device_that_is_a_comb)
{
    enum {
        TEETH = 64
    };
    site s = open_paged_site(TEETH * PAGE);
    const gm_request more = {.size = TEETH * PAGE / 100 * 52};
    holding held[TEETH];
    holding h;
    gm_shortage why;

    take_comb(s, held, TEETH);
    CHECK_EQ(try_for(s.pool, more.size, &null_stream, &h), GM_ERR_OUT_OF_MEMORY);
    gm_pool_explain(s.pool, &more, GM_ERR_OUT_OF_MEMORY, &why);
    CHECK_EQ(why.largest_available_block, TEETH / 2 * PAGE);
    CHECK_EQ(why.missing_bytes, gm_size_round(more.size) - TEETH / 2 * PAGE);
    h = take_by(s.pool, TEETH * PAGE / 100 * 48, &null_stream);
    stamp(h, 3);
    drop_comb(held, TEETH);
    check_stamp(h, 3);
    drop(h);
    close_site(s);
}

/* What was mapped once stays mapped: the second time around costs no call. */
TEST(expandable_returns_pages_without_a_call)
{
    site s = open_paged_site(8 * PAGE);
    holding held[8];
    holding h;
    size_t places;

    take_comb(s, held, 8);
    drop(take_by(s.pool, 4 * PAGE, &null_stream));
    for (size_t i = 0; i < 8; i += 2) { // where they were, for the free block is larger
        held[i] = take_by(s.pool, PAGE, &null_stream);
    }
    places = mapped(s);
    for (size_t round = 0; round < 3; round++) {
        gm_stats before = stats_of(s.pool);

        for (size_t i = 0; i < 8; i += 2) {
            drop(held[i]);
        }
        h = take_by(s.pool, 4 * PAGE, &null_stream);
        stamp(h, (unsigned)round);
        check_stamp(h, (unsigned)round);
        drop(h);
        for (size_t i = 0; i < 8; i += 2) {
            held[i] = take_by(s.pool, PAGE, &null_stream);
        }
        CHECK_EQ(mapped(s), places);
        CHECK_EQ(stats_of(s.pool).misses, before.misses);
    }
    for (size_t i = 0; i < 8; i += 2) {
        drop(held[i]);
    }
    drop_comb(held, 8);
    close_site(s);
}

/* Cuts and joins that only move pages are not the program's. */
TEST(expandable_counts_as_joined_what_the_program_gave_back)
{
    site s = open_paged_site(8 * PAGE);
    holding held[8];
    holding h;
    gm_stats before;
    gm_stats after;

    take_comb(s, held, 8);
    before = stats_of(s.pool);
    CHECK_EQ(before.splits, 0); // each page was made for its block
    CHECK_EQ(before.merges, 0);
    h = take_by(s.pool, 3 * PAGE + 512, &null_stream); // the fourth page is cut
    after = stats_of(s.pool);
    CHECK_EQ(after.remapped_pages, 4);
    CHECK_EQ(after.splits, 0);
    CHECK_EQ(after.merges, 0);
    CHECK_EQ(after.free_blocks, 1);
    drop(h); // joins the rest of that page
    CHECK_EQ(stats_of(s.pool).merges, 1);
    CHECK_EQ(stats_of(s.pool).free_blocks, 1);
    drop_comb(held, 8);
    close_site(s);
}

/* The pages that a failure sends back join what they were cut off. */
TEST(expandable_counts_nothing_of_what_failed)
{
    gm_backend *fault = NULL;
    site s = open_site(8 * PAGE);
    gm_pool *pool = NULL;
    holding h;
    gm_stats before;
    gm_stats after;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    drop(take_by(pool, 3 * PAGE, &null_stream));
    before = stats_of(pool);
    CHECK_EQ(gm_fault_plan(fault, "vm_create", 2, 1, GM_DEVICE_ERROR(999)), GM_OK);
    CHECK_EQ(try_for(pool, 5 * PAGE, &null_stream, &h), GM_DEVICE_ERROR(999));
    after = stats_of(pool);
    CHECK_EQ(after.merges, before.merges);
    CHECK_EQ(after.splits, before.splits);
    CHECK_EQ(after.free_blocks, before.free_blocks);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}

TEST(expandable_keeps_the_limit_in_pages)
{
    site s = open_paged_site(64 * MIB);
    holding a;
    holding h = {0};

    CHECK_EQ(gm_pool_set_limit(s.pool, 2 * PAGE + PAGE / 2), GM_OK);
    a = take_by(s.pool, 2 * PAGE, &null_stream);
    CHECK_EQ(try_for(s.pool, 512, &null_stream, &h), GM_ERR_LIMIT);
    drop(a);
    CHECK_EQ(try_for(s.pool, 2 * PAGE + 512, &null_stream, &h), GM_ERR_LIMIT);
    CHECK_EQ(stats_of(s.pool).peak_total_bytes, 2 * PAGE);
    close_site(s);
}

TEST(expandable_needs_a_backend_that_can)
{
    site s = open_site(64 * MIB);
    gm_upstream upstream = gm_upstream_of_backend(s.sim);
    gm_pool *pool;

    upstream.backend = NULL;
    CHECK_EQ(gm_pool_new(0, upstream, &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_ERR_UNSUPPORTED);
    gm_pool_close(pool);
    close_site(s);
}
