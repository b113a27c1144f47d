/* SPDX-License-Identifier: MIT
 *
 * The same request again and again, which gets its block from the pool's echo and not
 * from the index (gm_hit.c). Nobody may be able to tell: whatever is asked of the pool
 * while a block rests, its answer is that of a pool to which the block went back.
 * test_model.c does the same at random.
 */
#include "holding.h"
#include "ledger.h"

typedef struct bench {
    ledger books;
    gm_pool *pool;
    holding kept; // its first unit; 15 are free behind it
} bench;

static void
bench_init(bench *b)
{
    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
    let_go(take_bytes(b->pool, UNITS(16)));
    b->kept = take_bytes(b->pool, UNITS(1));
    check_place(b->kept, 0, 0);
}

static void
bench_fini(bench *b)
{
    let_go(b->kept);
    check_pool(b->pool);
    CHECK_EQ(stats_of(b->pool).live_blocks, 0);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

/* Takes `size` bytes twice and gives them back, so that a block rests. The handle is
 * the last one's. */
static holding
rest(bench *b, size_t size)
{
    holding h = take_bytes(b->pool, size);

    let_go(h);
    h = take_bytes(b->pool, size);
    let_go(h);
    return h;
}

TEST(echo_gives_the_block_again_with_a_new_generation)
{
    bench b;
    holding first, again;

    bench_init(&b);
    first = take_bytes(b.pool, UNITS(2));
    let_go(first);
    again = take_bytes(b.pool, UNITS(2) - 100);
    CHECK(again.block == first.block);
    CHECK(again.generation != first.generation);
    let_go(first); // stale: frees nothing
    CHECK_EQ(stats_of(b.pool).live_blocks, 2);
    check_place(again, 0, UNITS(1));
    let_go(again);
    bench_fini(&b);
}

TEST(echo_is_counted_as_two_lives)
{
    bench b;
    gm_stats before, after;
    gm_request other = {.size = UNITS(3) - 5, .client = 7};
    gm_block *block = NULL;

    bench_init(&b);
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    before = stats_of(b.pool);
    let_go(take_bytes(b.pool, UNITS(3) - 1));
    CHECK_EQ(gm_pool_malloc(b.pool, &other, &block), GM_OK);
    CHECK_EQ(block->client, 7);
    after = stats_of(b.pool);
    before.requested_bytes += UNITS(3) - 5;
    before.allocated_requested_bytes += UNITS(6) - 6;
    before.freed_requested_bytes += UNITS(3) - 1;
    before.peak_requested_bytes += UNITS(3) - 1; // the first asked for more
    before.used_bytes += UNITS(3);
    before.peak_used_bytes += UNITS(3);
    before.free_bytes -= UNITS(3);
    before.allocated_bytes += UNITS(6);
    before.freed_bytes += UNITS(3);
    before.allocated_blocks += 2;
    before.freed_blocks += 1;
    before.hits += 2;
    before.splits += 2;
    before.merges += 1;
    before.live_blocks += 1;
    before.peak_live_blocks += 1;
    check_same_stats(&after, &before);
    check_pool(b.pool);
    let_go(hold(b.pool, block));
    bench_fini(&b);
}

TEST(echo_counts_no_cut_where_there_was_none)
{
    bench b;
    holding end;
    gm_stats before, after;

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(3)));
    end = take_bytes(b.pool, UNITS(15)); // all that is left: the joined block
    let_go(end);
    before = stats_of(b.pool);
    (void)rest(&b, UNITS(15));
    after = stats_of(b.pool);
    CHECK_EQ(after.splits, before.splits);
    CHECK_EQ(after.merges, before.merges);
    CHECK_EQ(after.hits, before.hits + 2);
    bench_fini(&b);
}

TEST(echo_is_for_the_same_stream_and_size_alone)
{
    bench b;
    holding h, other;

    bench_init(&b);
    (void)rest(&b, UNITS(2));
    h = take_bytes(b.pool, UNITS(3));
    check_place(h, 0, UNITS(1));
    let_go(h);
    h = take_bytes(b.pool, UNITS(2));
    CHECK_EQ(h.block->size, UNITS(2));
    let_go(h);
    (void)rest(&b, UNITS(3));
    other = take_for(b.pool, UNITS(3), 1000);
    check_place(other, 1, 0);
    let_go(other);
    let_go(take_for(b.pool, UNITS(3), 1000));
    h = take_bytes(b.pool, UNITS(3));
    check_place(h, 0, UNITS(1));
    let_go(h);
    bench_fini(&b);
}

/* What a caller's variable holds when a request misses is no answer to it. */
TEST(echo_is_of_requests_that_were_served)
{
    bench b;
    holding h;
    gm_request far = {.size = UNITS(2), .key = 1000};
    gm_block *block;

    bench_init(&b);
    h = take_bytes(b.pool, UNITS(2));
    block = h.block;
    CHECK_EQ(gm_pool_malloc(b.pool, &far, &block), GM_MISS);
    CHECK(block == h.block);
    let_go(h);
    CHECK_EQ(gm_pool_malloc(b.pool, &far, &block), GM_MISS); // it is another stream's
    check_pool(b.pool);
    CHECK_EQ(stats_of(b.pool).live_blocks, 1);
    bench_fini(&b);
}

/* A better fit that came free meanwhile is taken. */
TEST(echo_ends_when_another_block_is_given_back)
{
    bench b;
    holding low, between, high, again;

    bench_init(&b);
    low = take_bytes(b.pool, UNITS(2));
    between = take_bytes(b.pool, UNITS(1));
    high = take_bytes(b.pool, UNITS(2));
    let_go(high); // rests
    let_go(low);
    again = take_bytes(b.pool, UNITS(2));
    check_place(again, 0, UNITS(1));
    let_go(between); // the last request was `again`
    let_go(again);
    again = take_bytes(b.pool, UNITS(2));
    check_place(again, 0, UNITS(1));
    check_pool(b.pool);
    let_go(again);
    bench_fini(&b);
}

TEST(echo_a_resting_block_has_no_owner)
{
    bench b;
    holding h;

    bench_init(&b);
    h = rest(&b, UNITS(2));
    CHECK_EQ(gm_pool_free_address(b.pool, h.block->addr), GM_ERR_NOT_OWNED);
    h = rest(&b, UNITS(2));
    check_void(h);
    h = rest(&b, UNITS(2));
    let_go(h); // a second time: the caller's error, which the generation catches
    CHECK_EQ(stats_of(b.pool).live_blocks, 1);
    check_pool(b.pool);
    bench_fini(&b);
}

TEST(echo_a_resting_block_is_idle_memory)
{
    bench b;

    bench_init(&b);
    let_go(b.kept);
    (void)rest(&b, UNITS(4));
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(16));
    CHECK_EQ(stats_of(b.pool).total_bytes, 0);
    b.kept = take_bytes(b.pool, UNITS(1));
    check_place(b.kept, 1, 0);
    bench_fini(&b);
}

TEST(echo_peaks_begin_anew_between_two_requests)
{
    bench b;
    holding h;
    gm_stats s;

    bench_init(&b);
    h = rest(&b, UNITS(5));
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    s = stats_of(b.pool);
    CHECK_EQ(s.peak_used_bytes, UNITS(1));
    CHECK_EQ(s.peak_free_bytes, UNITS(15));
    h = take_bytes(b.pool, UNITS(5));
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK); // while it is live
    let_go(h);
    h = take_bytes(b.pool, UNITS(5));
    s = stats_of(b.pool);
    CHECK_EQ(s.peak_used_bytes, UNITS(6));
    CHECK_EQ(s.peak_free_bytes, UNITS(15)); // before the last request
    let_go(h);
    bench_fini(&b);
}

TEST(echo_a_closed_pool_ends_with_its_last_block)
{
    bench b;
    holding h;

    bench_init(&b);
    let_go(b.kept);
    (void)rest(&b, UNITS(2));
    gm_pool_close(b.pool); // with a resting block
    ledger_fini(&b.books); // everything went back

    bench_init(&b);
    let_go(b.kept);
    (void)rest(&b, UNITS(2));
    h = take_bytes(b.pool, UNITS(2));
    gm_pool_close(b.pool); // with the block of the last request live
    let_go(h);
    ledger_fini(&b.books);
}
