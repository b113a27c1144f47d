/* SPDX-License-Identifier: MIT
 *
 * Growth: pools that take memory ahead of requests. How far ahead, what bounds that,
 * and that nothing is given back for its sake. Sizes were worked out by hand;
 * test_model.c has growth at random.
 */
#include "holding.h"
#include "ledger.h"

#define MIB ((size_t)1 << 20)

enum {
    HELD = 16,
};

typedef struct bench {
    ledger books;
    gm_pool *pool;
    gm_status told; // what upstream says of its room, and
    size_t room;    // how much that is
    size_t questions;
    size_t inner; // bytes out after what was taken in the midst of a call
    holding held[HELD];
    size_t count;
} bench;

static gm_status
tell_room(void *context, int device, const gm_range *back, size_t count, gm_room *out)
{
    bench *b = ((ledger *)context)->context;

    (void)device;
    CHECK(back == NULL && count == 0); // nothing is to be given back for growth
    b->questions++;
    *out = (gm_room){.free_bytes = GM_SIZE_MAX, .largest = b->room};
    return b->told;
}

/* A pool whose upstream has room for anything. */
static void
bench_init(bench *b, size_t growth_step)
{
    gm_upstream upstream;

    *b = (bench){.room = SIZE_MAX};
    ledger_init(&b->books);
    b->books.context = b;
    upstream = ledger_upstream(&b->books);
    upstream.room = tell_room;
    CHECK_EQ(gm_pool_new(0, upstream, &b->pool), GM_OK);
    b->books.pools++;
    gm_pool_set_growth(b->pool, growth_step);
}

/* Takes a block that lives until let_all_go; the bytes that upstream gave for it. */
static size_t
grown_for(bench *b, size_t size, gm_stream_key key)
{
    size_t before = b->books.bytes;

    CHECK(b->count < HELD);
    b->held[b->count++] = take_for(b->pool, size, key);
    check_pool(b->pool);
    return b->books.bytes - before;
}

static void
let_all_go(bench *b)
{
    while (b->count > 0) {
        let_go(b->held[--b->count]);
    }
}

static void
bench_fini(bench *b)
{
    let_all_go(b);
    check_pool(b->pool);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

/* ---- how far ahead ---- */

TEST(grow_serves_many_requests_from_one_segment)
{
    gm_stats stats;
    bench b;

    bench_init(&b, UNITS(8));
    CHECK_EQ(grown_for(&b, 1, 0), UNITS(9));
    for (size_t i = 1; i < 9; i++) {
        CHECK_EQ(grown_for(&b, 1, 0), 0);
        check_place(b.held[i], 0, UNITS(i));
    }
    stats = stats_of(b.pool);
    CHECK_EQ(stats.upstream_allocations, 1);
    CHECK_EQ(stats.upstream_allocated_bytes, UNITS(9));
    CHECK_EQ(stats.total_bytes, UNITS(9));
    CHECK_EQ(stats.used_bytes, UNITS(9));
    CHECK_EQ(stats.peak_free_bytes, UNITS(8));
    CHECK_EQ(stats.hits, 8);
    CHECK_EQ(stats.misses, 1);
    CHECK_EQ(stats.splits, 8);
    CHECK_EQ(stats.retries, 0);
    CHECK_EQ(b.questions, 1); // no hit asks for upstream's room
    bench_fini(&b);
}

TEST(grow_takes_an_eighth_of_what_the_stream_holds)
{
    bench b;

    bench_init(&b, UNITS(2));
    CHECK_EQ(grown_for(&b, UNITS(15), 0), UNITS(15 + 2));  // 15 / 8 is less than a step
    CHECK_EQ(grown_for(&b, UNITS(23), 0), UNITS(23 + 5));  // (17 + 23) / 8
    CHECK_EQ(grown_for(&b, UNITS(35), 1), UNITS(35 + 4));  // 35 / 8: another stream
    CHECK_EQ(grown_for(&b, UNITS(36), 0), UNITS(36 + 10)); // (17 + 28 + 36) / 8
    bench_fini(&b);
}

TEST(grow_takes_whole_grains)
{
    bench b;

    bench_init(&b, 1);
    CHECK_EQ(grown_for(&b, 20 * MIB, 0), 22 * MIB);         // of 22.5
    CHECK_EQ(grown_for(&b, 13 * MIB + 1, 0), 16 * MIB);     // of 13 + 35 / 8
    CHECK_EQ(grown_for(&b, 65 * MIB / 4, 1), 18 * MIB);     // of 18.3
    CHECK_EQ(grown_for(&b, 5 * MIB / 4, 2), 45 * MIB / 32); // of 1.41: below a grain
    CHECK_EQ(grown_for(&b, 7 * MIB, 3), 7 * MIB); // of 7.9: not below the request
    bench_fini(&b);
}

TEST(grow_begins_anew_when_all_went_back)
{
    bench b;

    bench_init(&b, UNITS(2));
    CHECK_EQ(grown_for(&b, UNITS(80), 0), UNITS(90));
    CHECK_EQ(grown_for(&b, UNITS(80), 0), UNITS(80 + 21));
    let_all_go(&b);
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(90 + 101));
    CHECK_EQ(grown_for(&b, UNITS(16), 0), UNITS(18));
    bench_fini(&b);
}

TEST(grow_not_at_all_without_a_step)
{
    bench b;

    bench_init(&b, 0);
    CHECK_EQ(grown_for(&b, UNITS(80), 0), UNITS(80));
    CHECK_EQ(b.questions, 0);
    bench_fini(&b);
}

/* ---- the bound ---- */

TEST(grow_leaves_no_more_cached_than_is_in_use)
{
    bench b;

    bench_init(&b, UNITS(4));
    CHECK_EQ(grown_for(&b, UNITS(10), 0), UNITS(14)); // 4 cached
    CHECK_EQ(grown_for(&b, UNITS(5), 1), UNITS(9));   // 8 cached
    let_go(b.held[0]);                                // 18 cached, 5 in use
    b.held[0] = b.held[--b.count];
    CHECK_EQ(grown_for(&b, UNITS(15), 0), UNITS(15 + 2)); // 20 cached, 20 in use
    CHECK_EQ(grown_for(&b, UNITS(5), 1), UNITS(5 + 4));   // 24 cached, 25 in use
    let_go(b.held[1]);                                    // 39 cached, 10 in use
    b.held[1] = b.held[--b.count];
    CHECK_EQ(grown_for(&b, UNITS(29), 2), UNITS(29)); // 39 cached, 39 in use
    CHECK_EQ(stats_of(b.pool).free_bytes, stats_of(b.pool).used_bytes);
    bench_fini(&b);
}

TEST(grow_has_a_step_for_each_stream)
{
    bench b;

    bench_init(&b, UNITS(100));
    for (size_t key = 0; key < 4; key++) {
        CHECK_EQ(grown_for(&b, 1, key), UNITS(101));
    }
    CHECK_EQ(grown_for(&b, UNITS(101), 0), UNITS(101)); // 400 cached: all four
    bench_fini(&b);
}

/* Takes a block in the midst of the first call upstream, for stream 0. */
static void
take_within(ledger *books, size_t size)
{
    bench *b = books->context;

    (void)size;
    books->on_take = NULL;
    CHECK_EQ(grown_for(b, UNITS(6), 0), UNITS(6)); // 8 are on their way
    CHECK_EQ(grown_for(b, UNITS(6), 1), UNITS(14));
}

TEST(grow_counts_what_is_on_its_way)
{
    bench b;

    bench_init(&b, UNITS(8));
    b.books.on_take = take_within;
    let_go(take_for(b.pool, UNITS(3), 0));
    CHECK_EQ(b.books.bytes, UNITS(6 + 14 + 11));
    CHECK_EQ(b.books.asked, 3);
    bench_fini(&b);
}

/* ---- what there is room for ---- */

TEST(grow_fills_half_of_the_limit)
{
    bench b;

    bench_init(&b, UNITS(8));
    CHECK_EQ(gm_pool_set_limit(b.pool, UNITS(63)), GM_OK);
    CHECK_EQ(grown_for(&b, UNITS(10), 0), UNITS(10 + 8));
    CHECK_EQ(grown_for(&b, UNITS(9), 1), UNITS(9 + 4)); // 31 of 31.5
    CHECK_EQ(grown_for(&b, UNITS(20), 0), UNITS(20));   // what it needs
    CHECK_EQ(grown_for(&b, UNITS(12), 0), UNITS(12));
    CHECK_EQ(stats_of(b.pool).total_bytes, UNITS(63));
    CHECK_EQ(stats_of(b.pool).retries, 0);
    CHECK_EQ(b.books.gives, 0);
    bench_fini(&b);
}

static void
take_six(ledger *books, size_t size)
{
    bench *b = books->context;

    (void)size;
    books->on_take = NULL;
    books->on_give = NULL;
    (void)grown_for(b, UNITS(6), 1);
    b->inner = books->bytes;
}

TEST(grow_counts_what_is_on_its_way_against_the_limit)
{
    bench b;

    bench_init(&b, UNITS(8));
    CHECK_EQ(gm_pool_set_limit(b.pool, UNITS(40)), GM_OK);
    b.books.on_take = take_six;
    let_go(take_for(b.pool, UNITS(3), 0));
    CHECK_EQ(b.inner, UNITS(6 + 3)); // 11 and 9 are half of 40
    let_all_go(&b);
    (void)gm_pool_release_idle(b.pool);
    CHECK_EQ(b.books.bytes, 0);

    let_go(take_for(b.pool, UNITS(3), 0));
    b.books.on_give = take_six;
    (void)gm_pool_release_idle(b.pool);
    CHECK_EQ(b.inner, UNITS(11 + 6 + 3)); // the 11 are not back yet
    bench_fini(&b);
}

TEST(grow_fills_half_of_what_upstream_has_and_gave)
{
    bench b;

    bench_init(&b, UNITS(100));
    b.room = UNITS(30);
    CHECK_EQ(grown_for(&b, UNITS(4), 0), UNITS(4 + 11));
    b.room = UNITS(41);
    CHECK_EQ(grown_for(&b, UNITS(12), 0), UNITS(12 + 1)); // 28 of 15 + 41
    b.room = UNITS(28);
    CHECK_EQ(grown_for(&b, UNITS(13), 0), UNITS(13));
    b.room = 0; // upstream may be wrong
    CHECK_EQ(grown_for(&b, UNITS(14), 0), UNITS(14));
    CHECK_EQ(stats_of(b.pool).retries, 0);
    bench_fini(&b);
}

TEST(grow_goes_by_whichever_is_less)
{
    bench b;

    bench_init(&b, UNITS(100));
    CHECK_EQ(gm_pool_set_limit(b.pool, UNITS(30)), GM_OK);
    b.room = UNITS(20);
    CHECK_EQ(grown_for(&b, UNITS(4), 0), UNITS(4 + 6));
    b.room = UNITS(40);
    CHECK_EQ(grown_for(&b, UNITS(7), 1), UNITS(7)); // 10 + 7 are over half of 30
    bench_fini(&b);
}

TEST(grow_not_where_upstream_cannot_tell_its_room)
{
    bench b;

    bench_init(&b, UNITS(100));
    b.told = GM_DEVICE_ERROR(700);
    CHECK_EQ(grown_for(&b, UNITS(4), 0), UNITS(4));
    b.told = GM_ERR_UNSUPPORTED; // nobody can
    CHECK_EQ(grown_for(&b, UNITS(4), 0), UNITS(104));
    bench_fini(&b);
}

TEST(grow_gives_way_to_a_short_upstream)
{
    gm_stats stats;
    bench b;

    bench_init(&b, UNITS(8));
    let_go(take_for(b.pool, UNITS(1), 1)); // 9 units idle
    b.books.capacity = UNITS(9 + 20);
    CHECK_EQ(grown_for(&b, UNITS(20), 0), UNITS(20)); // of 28 wanted
    stats = stats_of(b.pool);
    CHECK_EQ(stats.retries, 1);
    CHECK_EQ(stats.upstream_allocations, 2);
    CHECK_EQ(stats.out_of_memory, 0);
    CHECK_EQ(b.books.asked, 3);
    CHECK_EQ(b.books.gives, 0); // nothing was given back for it
    bench_fini(&b);
}

/* Then what is idle goes back, for the request and not for more. */
TEST(grow_reclaims_for_the_request_alone)
{
    gm_stats stats;
    bench b;

    bench_init(&b, UNITS(8));
    let_go(take_for(b.pool, UNITS(1), 1));
    b.books.capacity = UNITS(20);
    CHECK_EQ(grown_for(&b, UNITS(20), 0), UNITS(20) - UNITS(9));
    stats = stats_of(b.pool);
    CHECK_EQ(stats.retries, 3); // for less, with 9 units back, for less again
    CHECK_EQ(stats.total_bytes, UNITS(20));
    CHECK_EQ(b.books.asked, 1 + 2 + 2);
    bench_fini(&b);
}

TEST(grow_is_no_matter_to_other_failures)
{
    gm_stats before, after;
    holding h = {0};
    bench b;

    bench_init(&b, UNITS(8));
    before = stats_of(b.pool);
    b.books.failures = 1;
    b.books.why = GM_DEVICE_ERROR(700);
    CHECK_EQ(try_hold(b.pool, 1, 0, &h), GM_DEVICE_ERROR(700));
    CHECK_EQ(b.books.asked, 1);
    after = stats_of(b.pool);
    check_same_stats(&after, &before);
    CHECK_EQ(grown_for(&b, 1, 0), UNITS(9));
    bench_fini(&b);
}

TEST(grow_asks_nothing_while_a_graph_is_recorded)
{
    gm_request request = {.size = 1};
    gm_rescue recording = {.recording = 1};
    gm_block *block = NULL;
    bench b;

    bench_init(&b, UNITS(8));
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, &recording, &block),
             GM_ERR_CAPTURING);
    CHECK_EQ(b.questions, 0);
    CHECK_EQ(b.books.asked, 0);
    bench_fini(&b);
}

/* ---- extremes ---- */

TEST(grow_by_more_than_there_can_be)
{
    bench b;

    bench_init(&b, SIZE_MAX);
    CHECK_EQ(grown_for(&b, 1, 0), GM_SIZE_MAX / 2 / (2 * MIB) * (2 * MIB));
    bench_fini(&b);
    bench_init(&b, GM_SIZE_MAX / 2);
    b.books.capacity = MIB;
    for (size_t key = 0; key < 4; key++) { // so many steps have no sum
        CHECK_EQ(grown_for(&b, 1, key), UNITS(1));
    }
    CHECK_EQ(stats_of(b.pool).retries, 4);
    CHECK_EQ(grown_for(&b, GM_UNIT - 1, 0), UNITS(1));
    bench_fini(&b);
}

TEST(grow_for_the_largest_request)
{
    bench b;

    bench_init(&b, UNITS(8));
    CHECK_EQ(grown_for(&b, GM_SIZE_MAX, 0), GM_SIZE_MAX);
    bench_fini(&b);
}
