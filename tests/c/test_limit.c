/* SPDX-License-Identifier: MIT
 *
 * The limit: exact to the byte, held at every instant, bytes on their way in or out
 * included; and reclaiming comes before failing.
 */
#include "holding.h"
#include "ledger.h"

#include <time.h>

typedef struct bench {
    ledger books;
    gm_pool *pool;
} bench;

static void
bench_init(bench *b, size_t limit)
{
    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
    gm_pool_set_limit(b->pool, limit);
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

static void
check_refused(gm_pool *pool, size_t size)
{
    gm_stats expected = stats_of(pool), actual;
    holding h;

    CHECK_EQ(try_hold(pool, size, 0, &h), GM_ERR_LIMIT);
    actual = stats_of(pool);
    expected.out_of_memory++;
    check_same_stats(&actual, &expected);
    check_pool(pool);
}

TEST(limit_is_exact)
{
    bench b;
    holding x, y;

    bench_init(&b, UNITS(4));
    CHECK_EQ(stats_of(b.pool).limit_bytes, UNITS(4));
    check_refused(b.pool, UNITS(4) + 1);
    CHECK_EQ(b.books.asked, 0); // upstream is not even asked
    x = take_bytes(b.pool, UNITS(4));
    check_refused(b.pool, 1);
    let_go(x);

    x = take_bytes(b.pool, UNITS(3)); // out of the four that are cached
    y = take_bytes(b.pool, 1);
    check_refused(b.pool, 1);
    CHECK_EQ(b.books.asked, 1);
    CHECK_EQ(b.books.bytes, UNITS(4));
    let_go(x);
    let_go(y);
    bench_fini(&b);
}

TEST(limit_counts_rounded_bytes)
{
    bench b;

    bench_init(&b, UNITS(1) - 1); // less than a unit: nothing fits
    check_refused(b.pool, 1);
    gm_pool_set_limit(b.pool, UNITS(1));
    let_go(take_bytes(b.pool, 1));
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(1));
    gm_pool_set_limit(b.pool, UNITS(2) - 1);
    check_refused(b.pool, UNITS(1) + 1);
    bench_fini(&b);
}

/* What is idle goes, and only where more is held than the limit; what is live stays. */
TEST(limit_below_what_is_held_drops_the_cache)
{
    bench b;
    holding x;

    bench_init(&b, 0);
    x = take_bytes(b.pool, UNITS(2));
    let_go(take_bytes(b.pool, UNITS(3)));
    gm_pool_set_limit(b.pool, UNITS(5));
    CHECK_EQ(b.books.bytes, UNITS(5));
    gm_pool_set_limit(b.pool, UNITS(5) - 1);
    CHECK_EQ(b.books.bytes, UNITS(2));
    gm_pool_set_limit(b.pool, UNITS(1));
    CHECK_EQ(stats_of(b.pool).used_bytes, UNITS(2));
    CHECK_EQ(stats_of(b.pool).retries, 0);
    let_go(x);
    bench_fini(&b);
}

TEST(limit_of_nothing_is_no_limit)
{
    bench b;

    bench_init(&b, UNITS(1));
    check_refused(b.pool, UNITS(2));
    gm_pool_set_limit(b.pool, 0);
    let_go(take_bytes(b.pool, (size_t)1 << 60));
    bench_fini(&b);
}

TEST(limit_near_the_largest_number_does_not_wrap)
{
    bench b;
    holding x;

    bench_init(&b, SIZE_MAX);
    x = take_bytes(b.pool, (size_t)1 << 61);
    let_go(take_bytes(b.pool, (size_t)1 << 60));
    CHECK_EQ(gm_pool_release_idle(b.pool), (size_t)1 << 60);
    gm_pool_set_limit(b.pool, UNITS(1));
    check_refused(b.pool, GM_SIZE_MAX - ((size_t)1 << 61));
    let_go(x);
    bench_fini(&b);
}

/* With or without a limit: the sum of all that is held can be counted, too. */
TEST(limit_of_what_can_be_counted)
{
    const size_t limits[] = {0, UNITS(1), SIZE_MAX};
    bench b;
    holding x, h = {0};

    bench_init(&b, 0);
    x = take_bytes(b.pool, UNITS(3));
    for (size_t i = 0; i < 3; i++) {
        gm_pool_set_limit(b.pool, limits[i]);
        CHECK_EQ(try_hold(b.pool, GM_SIZE_MAX, 0, &h), GM_ERR_TOO_LARGE);
        CHECK_EQ(try_hold(b.pool, GM_SIZE_MAX - UNITS(2), 0, &h), GM_ERR_TOO_LARGE);
    }
    CHECK_EQ(b.books.asked, 1);
    CHECK_EQ(try_hold(b.pool, GM_SIZE_MAX - UNITS(3), 0, &h), GM_OK);
    CHECK_EQ(stats_of(b.pool).total_bytes, GM_SIZE_MAX);
    let_go(h);
    let_go(x);
    bench_fini(&b);
}

/* What cannot fit whatever is given back costs the cache nothing. */
TEST(limit_reclaims_nothing_in_vain)
{
    bench b;

    bench_init(&b, UNITS(4));
    let_go(take_bytes(b.pool, UNITS(3)));
    check_refused(b.pool, UNITS(5));
    CHECK_EQ(stats_of(b.pool).total_bytes, UNITS(3));
    bench_fini(&b);
}

/* Nothing is freed by it, and what is cached still serves. */
TEST(limit_below_what_is_held)
{
    bench b;
    holding x, y;

    bench_init(&b, 0);
    let_go(take_bytes(b.pool, UNITS(4)));
    x = take_bytes(b.pool, UNITS(2));
    gm_pool_set_limit(b.pool, UNITS(1));
    CHECK_EQ(b.books.gives, 0);
    CHECK_EQ(stats_of(b.pool).total_bytes, UNITS(4));
    y = take_bytes(b.pool, UNITS(2)); // a hit
    check_refused(b.pool, 1);
    check_place(x, 0, 0);
    let_go(x);
    let_go(y);
    CHECK_EQ(stats_of(b.pool).total_bytes, UNITS(4));
    bench_fini(&b);
}

TEST(limit_reclaims_before_it_fails)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    let_go(take_for(b.pool, UNITS(1), 1));
    let_go(take_for(b.pool, UNITS(3), 2));
    h = take_for(b.pool, UNITS(4), 3); // both idle segments have to go
    CHECK_EQ(b.books.gives, 2);
    CHECK_EQ(stats_of(b.pool).retries, 1);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 0);
    CHECK_EQ(b.books.peak, UNITS(4));
    let_go(h);
    bench_fini(&b);
}

/* A sibling's memory does not count against this pool's limit. */
TEST(limit_leaves_siblings_alone)
{
    bench b;
    gm_pool *sibling;

    bench_init(&b, UNITS(1));
    sibling = ledger_pool(&b.books, 0);
    let_go(take_bytes(sibling, UNITS(8)));
    check_refused(b.pool, UNITS(2));
    CHECK_EQ(stats_of(sibling).total_bytes, UNITS(8));
    gm_pool_close(sibling);
    bench_fini(&b);
}

/* ---- bytes on their way ---- */

static void
ask_for_one_unit_more(ledger *books, size_t size)
{
    gm_pool *pool = books->context;
    holding h;

    (void)size;
    books->on_take = NULL;
    books->on_give = NULL;
    CHECK_EQ(try_hold(pool, UNITS(1), 1, &h), GM_ERR_LIMIT);
}

TEST(limit_counts_bytes_on_their_way_in)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    b.books.context = b.pool;
    b.books.on_take = ask_for_one_unit_more;
    h = take_bytes(b.pool, UNITS(4));
    CHECK_EQ(b.books.asked, 1);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 1);
    let_go(h);
    bench_fini(&b);
}

TEST(limit_counts_bytes_on_their_way_out)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    let_go(take_bytes(b.pool, UNITS(4)));
    b.books.context = b.pool;
    b.books.on_give = ask_for_one_unit_more;
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(4));
    CHECK_EQ(stats_of(b.pool).out_of_memory, 1);
    CHECK_EQ(b.books.asked, 1);
    h = take_bytes(b.pool, UNITS(4)); // now they are out
    let_go(h);
    bench_fini(&b);
}

/* Upstream is slow to take something back; somebody is told when it begins. */
static void
dawdle(ledger *books, size_t size)
{
    struct timespec pause = {.tv_nsec = 20000000};

    (void)size;
    (void)pthread_barrier_wait(books->context);
    (void)nanosleep(&pause, NULL);
}

static void *
release_on_a_thread(void *context)
{
    bench *b = context;

    CHECK_EQ(gm_pool_release_idle(b->pool), UNITS(4));
    return NULL;
}

/* What another thread is giving back is there in a moment: worth waiting for. */
TEST(limit_waits_for_bytes_on_their_way_out)
{
    bench b;
    holding h;
    pthread_barrier_t begun;
    pthread_t thread;

    bench_init(&b, UNITS(4));
    let_go(take_bytes(b.pool, UNITS(4)));
    CHECK_EQ(pthread_barrier_init(&begun, NULL, 2), 0);
    b.books.context = &begun;
    b.books.on_give = dawdle;
    CHECK_EQ(pthread_create(&thread, NULL, release_on_a_thread, &b), 0);
    (void)pthread_barrier_wait(&begun);
    h = take_for(b.pool, UNITS(4), 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(b.books.peak, UNITS(4));
    CHECK_EQ(b.books.takes, 2);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 0);
    (void)pthread_barrier_destroy(&begun);
    b.books.on_give = NULL;
    let_go(h);
    bench_fini(&b);
}

TEST(limit_forgets_bytes_that_did_not_come)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    b.books.failures = 1;
    b.books.why = GM_DEVICE_ERROR(700);
    CHECK_EQ(try_hold(b.pool, UNITS(4), 0, &h), GM_DEVICE_ERROR(700));
    h = take_bytes(b.pool, UNITS(4));
    let_go(h);
    bench_fini(&b);
}

/* ---- many threads at the limit ---- */

enum {
    THREADS = 4,
    HELD = 3,
};

/* Takes and frees sizes that together go far beyond the limit. */
static void *
press(void *context)
{
    bench *b = context;
    size_t rounds = 3000 / (size_t)harness_slowness();

    for (size_t i = 0; i < rounds; i++) {
        holding held[HELD];
        size_t count = 0;

        for (size_t j = 0; j < HELD; j++) {
            gm_stream_key key = i % 7;
            gm_status status =
                try_hold(b->pool, UNITS(1 + (i + j) % 9), key, &held[count]);

            CHECK(status == GM_OK || status == GM_ERR_LIMIT);
            count += status == GM_OK;
        }
        while (count > 0) {
            let_go(held[--count]);
        }
    }
    return NULL;
}

/* Upstream's own books say how much was out at most. */
TEST(limit_holds_at_every_instant)
{
    bench b;
    pthread_t threads[THREADS];
    gm_stats s;

    bench_init(&b, UNITS(20));
    for (size_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, press, &b), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    s = stats_of(b.pool);
    CHECK(b.books.peak <= UNITS(20));
    CHECK(s.peak_total_bytes <= UNITS(20));
    CHECK(s.out_of_memory > 0 && s.retries > 0); // it was pressed
    CHECK_EQ(s.live_blocks, 0);
    CHECK_EQ(s.total_bytes, b.books.bytes);
    bench_fini(&b);
}
