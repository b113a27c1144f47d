/* SPDX-License-Identifier: MIT
 *
 * Pools that take larger segments than a request needs: small requests share one, what
 * a segment has left is cached, and neither the limit nor a short upstream is in the
 * way of a request that fits.
 */
#include "holding.h"
#include "ledger.h"

#include "core/gm_process.h"

#define UNIT UNITS(8)

enum {
    MANY = 70, // more than the nodes that are made at once
};

typedef struct bench {
    ledger books;
    gm_pool *pool;
} bench;

static void
bench_init(bench *b)
{
    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
    gm_pool_set_segment_unit(b->pool, UNIT);
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

TEST(segment_unit_is_shared_by_small_requests)
{
    holding small[8];
    gm_stats stats;
    bench b;

    bench_init(&b);
    for (size_t i = 0; i < 8; i++) {
        small[i] = take_bytes(b.pool, 1);
        check_place(small[i], 0, UNITS(i));
        check_pool(b.pool);
    }
    CHECK_EQ(b.books.asked, 1);
    CHECK_EQ(b.books.bytes, UNIT);
    stats = stats_of(b.pool);
    CHECK_EQ(stats.total_bytes, UNIT);
    CHECK_EQ(stats.used_bytes, UNIT);
    CHECK_EQ(stats.requested_bytes, 8);
    CHECK_EQ(stats.misses, 1);
    CHECK_EQ(stats.hits, 7);
    let_go(take_bytes(b.pool, 1)); // the ninth takes another
    CHECK_EQ(b.books.bytes, 2 * UNIT);
    for (size_t i = 0; i < 8; i++) {
        let_go(small[i]);
    }
    CHECK_EQ(gm_pool_release_idle(b.pool), 2 * UNIT);
    bench_fini(&b);
}

TEST(segment_unit_leaves_the_rest_in_the_cache)
{
    holding large, rest;
    gm_stats stats;
    bench b;

    bench_init(&b);
    large = take_bytes(b.pool, UNIT + 1);
    stats = stats_of(b.pool);
    CHECK_EQ(stats.total_bytes, 2 * UNIT);
    CHECK_EQ(stats.used_bytes, UNIT + UNITS(1));
    CHECK_EQ(stats.free_bytes, UNIT - UNITS(1));
    CHECK_EQ(stats.free_blocks, 1);
    CHECK_EQ(stats.splits, 1);
    check_pool(b.pool);
    rest = take_bytes(b.pool, UNIT - UNITS(1));
    check_place(rest, 0, UNIT + UNITS(1));
    let_go(large);
    let_go(rest);
    CHECK_EQ(stats_of(b.pool).free_blocks, 1); // they are one again
    bench_fini(&b);
}

TEST(segment_unit_does_not_grow_what_fits_it)
{
    gm_stats stats;
    bench b;

    bench_init(&b);
    let_go(take_bytes(b.pool, 3 * UNIT));
    stats = stats_of(b.pool);
    CHECK_EQ(stats.total_bytes, 3 * UNIT);
    CHECK_EQ(stats.splits, 0);
    bench_fini(&b);
}

TEST(segment_unit_gives_way_to_the_limit)
{
    holding x, y, h = {0};
    bench b;

    bench_init(&b);
    gm_pool_set_limit(b.pool, UNITS(3));
    x = take_bytes(b.pool, UNITS(2));
    CHECK_EQ(b.books.bytes, UNITS(2));
    y = take_bytes(b.pool, UNITS(1));
    CHECK_EQ(b.books.bytes, UNITS(3));
    CHECK_EQ(try_hold(b.pool, 1, 0, &h), GM_ERR_LIMIT);
    let_go(x);
    let_go(y);
    bench_fini(&b);
}

TEST(segment_unit_gives_way_to_a_short_upstream)
{
    holding x;
    bench b;

    bench_init(&b);
    b.books.capacity = UNITS(7);
    x = take_bytes(b.pool, UNITS(7));
    CHECK_EQ(b.books.bytes, UNITS(7));
    CHECK_EQ(b.books.asked, 2); // for a whole unit first
    CHECK_EQ(stats_of(b.pool).retries, 1);
    let_go(x);
    bench_fini(&b);
}

TEST(segment_unit_is_no_matter_to_other_failures)
{
    gm_stats before, after;
    holding h = {0};
    bench b;

    bench_init(&b);
    before = stats_of(b.pool);
    b.books.failures = 1;
    b.books.why = GM_DEVICE_ERROR(700);
    CHECK_EQ(try_hold(b.pool, 1, 0, &h), GM_DEVICE_ERROR(700));
    CHECK_EQ(b.books.asked, 1); // asked once: it is not want of room
    after = stats_of(b.pool);
    check_same_stats(&after, &before);
    CHECK_EQ(try_hold(b.pool, GM_SIZE_MAX, 0, &h), GM_OK); // not wrapped
    let_go(h);
    bench_fini(&b);
}

static size_t asked[4];

static void
note_size(ledger *books, size_t size)
{
    CHECK(books->asked < 4);
    asked[books->asked] = size;
}

/* Up to the largest size there is, and no more. */
TEST(segment_unit_at_the_largest_size)
{
    holding h = {0};
    bench b;

    ledger_init(&b.books);
    b.books.capacity = UNIT;
    b.books.on_take = note_size;
    b.pool = ledger_pool(&b.books, 0);
    gm_pool_set_segment_unit(b.pool, UNITS(3));
    CHECK_EQ(GM_SIZE_MAX % UNITS(3), 0);
    CHECK_EQ(try_hold(b.pool, GM_SIZE_MAX - UNITS(1), 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(b.books.asked, 2);
    CHECK_EQ(asked[0], GM_SIZE_MAX);
    CHECK_EQ(asked[1], GM_SIZE_MAX - UNITS(1));
    bench_fini(&b);

    bench_init(&b);
    b.books.capacity = UNIT;
    b.books.on_take = note_size;
    CHECK_EQ(try_hold(b.pool, GM_SIZE_MAX - UNITS(1), 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(b.books.asked, 1); // whole units of it would be more
    CHECK_EQ(asked[0], GM_SIZE_MAX - UNITS(1));
    bench_fini(&b);
}

/* Wherever host memory runs out on the way, nothing is left behind. */
typedef struct countdown {
    size_t left;
} countdown;

static bool
fails_in_turn(void *context, size_t size)
{
    countdown *c = context;

    (void)size;
    return c->left-- == 0;
}

/* A request with `live` other blocks out, whose n-th host allocation fails; whether it
 * never came to the n-th. */
static bool
request_failing_at(size_t n, size_t live)
{
    countdown c = {n};
    holding others[MANY], h = {0};
    gm_stats before, after;
    gm_status status;
    bool done;
    bench b;

    bench_init(&b);
    for (size_t i = 0; i < live; i++) {
        others[i] = take_bytes(b.pool, UNIT);
    }
    before = stats_of(b.pool);
    gm_host_set_fault(fails_in_turn, &c);
    status = try_hold(b.pool, 1, 0, &h);
    gm_host_set_fault(NULL, NULL);
    after = stats_of(b.pool);
    done = c.left <= n;
    CHECK_EQ(status, done ? GM_OK : GM_ERR_HOST_MEMORY);
    CHECK_EQ(after.total_bytes, before.total_bytes + (done ? UNIT : 0));
    CHECK_EQ(b.books.takes, live + done);
    check_pool(b.pool);
    if (done) {
        let_go(h);
    }
    for (size_t i = 0; i < live; i++) {
        let_go(others[i]);
    }
    bench_fini(&b);
    return done;
}

/* Also where the node of the request was the last one ready. */
TEST(segment_unit_and_no_host_memory)
{
    for (size_t live = 0; live <= MANY; live++) {
        size_t n = 0;

        while (!request_failing_at(n, live)) {
            CHECK(++n < 20);
        }
    }
}
