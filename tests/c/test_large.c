/* SPDX-License-Identifier: MIT
 *
 * Rules for large requests, one at a time: which blocks stay whole, whom they serve,
 * how large segments are, and where the rules give way. test_model.c has them at
 * random.
 */
#include "holding.h"
#include "ledger.h"

#include "core/gm_process.h"

#define MIB ((size_t)1 << 20)
#define MOST (8 * MIB)
#define SLACK (2 * MIB)

typedef struct bench {
    ledger books;
    gm_pool *pool;
} bench;

static void
bench_init(bench *b, size_t unit)
{
    const gm_large_rules rules = {MOST, SLACK, unit};

    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
    gm_pool_set_large_rules(b->pool, &rules);
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

/* Takes `size` bytes and gives them back; how much the pool holds then. */
static size_t
pass(bench *b, size_t size)
{
    let_go(take_bytes(b->pool, size));
    check_pool(b->pool);
    return stats_of(b->pool).total_bytes;
}

TEST(large_blocks_are_not_cut_for_small_requests)
{
    bench b;

    bench_init(&b, 0);
    CHECK_EQ(pass(&b, MOST), MOST);
    CHECK_EQ(pass(&b, MOST - 1), MOST); // is as much, rounded
    CHECK_EQ(pass(&b, 512), MOST + 512);
    CHECK_EQ(pass(&b, MOST - 512), 2 * MOST); // this is one below
    CHECK_EQ(stats_of(b.pool).splits, 0);
    CHECK_EQ(stats_of(b.pool).hits, 1);
    bench_fini(&b);
}

TEST(large_blocks_serve_requests_close_to_their_size)
{
    holding h;
    bench b;

    bench_init(&b, 0);
    CHECK_EQ(pass(&b, MOST + SLACK), MOST + SLACK);
    h = take_bytes(b.pool, MOST + 512); // 512 less than the slack
    CHECK_EQ(h.block->size, MOST + SLACK);
    CHECK_EQ(stats_of(b.pool).used_bytes, MOST + SLACK);
    CHECK_EQ(stats_of(b.pool).requested_bytes, MOST + 512);
    let_go(h);
    CHECK_EQ(stats_of(b.pool).used_bytes, 0);
    CHECK_EQ(pass(&b, MOST), 2 * MOST + SLACK); // the slack itself is too much
    bench_fini(&b);
}

TEST(large_requests_keep_what_is_too_little_for_another)
{
    holding h;
    bench b;

    bench_init(&b, 0);
    CHECK_EQ(pass(&b, 4 * MIB), 4 * MIB);
    h = take_bytes(b.pool, 3 * MIB); // 1 MiB would be left
    CHECK_EQ(h.block->size, 4 * MIB);
    let_go(h);
    h = take_bytes(b.pool, 3 * MIB - 512);
    CHECK_EQ(h.block->size, 3 * MIB - 512);
    CHECK_EQ(stats_of(b.pool).free_bytes, MIB + 512);
    let_go(h);
    CHECK_EQ(pass(&b, 2 * MIB), 4 * MIB);
    h = take_bytes(b.pool, MIB); // small ones are always cut off
    CHECK_EQ(h.block->size, MIB);
    let_go(take_bytes(b.pool, 3 * MIB));
    let_go(h);
    CHECK_EQ(stats_of(b.pool).total_bytes, 4 * MIB);
    bench_fini(&b);
}

TEST(large_segments_are_whole_units)
{
    holding h;
    bench b;

    bench_init(&b, 3 * MIB);
    CHECK_EQ(pass(&b, MIB), MIB); // as a small one
    CHECK_EQ(pass(&b, MIB + 1), MIB + 3 * MIB);
    CHECK_EQ(pass(&b, MOST - 512), 4 * MIB + MOST - 512); // 9 MiB would not be cut
    h = take_bytes(b.pool, MOST);
    CHECK_EQ(h.block->size, 9 * MIB);
    CHECK_EQ(stats_of(b.pool).total_bytes, 4 * MIB + MOST - 512 + 9 * MIB);
    let_go(h);
    bench_fini(&b);
}

TEST(large_segments_give_way_to_the_limit_and_to_upstream)
{
    holding h, more;
    bench b;

    bench_init(&b, 3 * MIB);
    gm_pool_set_limit(b.pool, 5 * MIB);
    h = take_bytes(b.pool, 2 * MIB); // 3 MiB, of which 1 MiB is too little to cut
    CHECK_EQ(h.block->size, 3 * MIB);
    more = take_bytes(b.pool, 2 * MIB);
    CHECK_EQ(more.block->size, 2 * MIB);
    gm_pool_set_limit(b.pool, 0);
    b.books.capacity = 7 * MIB;
    let_go(take_bytes(b.pool, 2 * MIB));
    CHECK_EQ(b.books.bytes, 7 * MIB);
    CHECK_EQ(stats_of(b.pool).retries, 1);
    let_go(h);
    let_go(more);
    bench_fini(&b);
}

TEST(large_blocks_go_back_before_a_small_request_fails)
{
    bench b;

    bench_init(&b, 0);
    gm_pool_set_limit(b.pool, MOST);
    CHECK_EQ(pass(&b, MOST), MOST);
    CHECK_EQ(pass(&b, 512), 512);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 0);
    CHECK_EQ(stats_of(b.pool).upstream_frees, 1);
    bench_fini(&b);
}

TEST(large_rules_hold_for_each_stream_by_itself)
{
    holding h = {0};
    bench b;

    bench_init(&b, 0);
    CHECK_EQ(try_hold(b.pool, 4 * MIB, 7, &h), GM_OK);
    let_go(h);
    CHECK_EQ(pass(&b, 2 * MIB), 6 * MIB);
    CHECK_EQ(try_hold(b.pool, 2 * MIB, 7, &h), GM_OK);
    CHECK_EQ(stats_of(b.pool).total_bytes, 6 * MIB);
    let_go(h);
    CHECK_EQ(gm_pool_release_idle_of(b.pool, 7), 4 * MIB);
    bench_fini(&b);
}

/* Fails from the n-th on. */
static bool
fails_late(void *context, size_t size)
{
    size_t *left = context;

    (void)size;
    *left -= *left > 0;
    return *left == 0;
}

/* Small blocks are cut off until there is no node for another: nothing is lost then. */
TEST(large_rules_and_no_host_memory)
{
    for (size_t n = 1; n <= 4; n++) {
        holding small[300]; // more than the nodes that are made at once
        size_t left = n;
        size_t count = 0;
        bench b;

        bench_init(&b, 0);
        CHECK_EQ(pass(&b, 4 * MIB), 4 * MIB);
        gm_host_set_fault(fails_late, &left);
        while (count < 300 && try_hold(b.pool, 512, 0, &small[count]) == GM_OK) {
            count++;
        }
        gm_host_set_fault(NULL, NULL);
        CHECK(count > 0 && (count == 300) == (left > 0));
        CHECK_EQ(stats_of(b.pool).used_bytes, count * 512);
        CHECK_EQ(stats_of(b.pool).total_bytes, 4 * MIB);
        check_pool(b.pool);
        while (count > 0) {
            let_go(small[--count]);
        }
        CHECK_EQ(pass(&b, 4 * MIB), 4 * MIB);
        bench_fini(&b);
    }
}
