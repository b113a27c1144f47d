/* SPDX-License-Identifier: MIT
 *
 * Want of memory: what is reclaimed, in which order, and what a failing upstream leaves
 * behind. An upstream that comes back to its own pool, too.
 */
#include "holding.h"
#include "ledger.h"

#include "core/gm_capture.h"
#include "core/gm_pool_private.h" // gm_pool_try_lock, refs

#include <string.h>

enum {
    TRACE_BYTES = 64,
};

/* Pools over one upstream of a given capacity, and a trace of what happened: `T` a
 * take, `G` a give, `D` the driver's trimming, `C` a collection. */
typedef struct bench {
    ledger books;
    gm_pool *pool;
    gm_pool *sibling;
    char trace[TRACE_BYTES];
    size_t traced;
    holding garbage; // what the collector finds; block NULL for nothing
    bool collects;   // what it answers
} bench;

static void
note(bench *b, char what)
{
    CHECK(b->traced + 1 < TRACE_BYTES);
    b->trace[b->traced++] = what;
}

/* Nothing outside the core is called with a pool's lock held. */
static void
check_unlocked(gm_pool *pool)
{
    CHECK(gm_pool_try_lock(pool));
    gm_pool_unlock(pool);
}

static void
note_take(ledger *books, size_t size)
{
    bench *b = books->context;

    (void)size;
    note(b, 'T');
    check_unlocked(b->pool);
    check_unlocked(b->sibling);
}

static void
note_give(ledger *books, size_t size)
{
    bench *b = books->context;

    (void)size;
    note(b, 'G');
    check_unlocked(b->pool);
    check_unlocked(b->sibling);
}

static bool
collect(void *context)
{
    bench *b = context;

    note(b, 'C');
    check_unlocked(b->pool);
    check_unlocked(b->sibling);
    if (b->garbage.block != NULL) {
        let_go(b->garbage);
        b->garbage.block = NULL;
    }
    return b->collects;
}

static size_t
trim(void *context, int device)
{
    bench *b = context;

    CHECK_EQ(device, 0);
    note(b, 'D');
    check_unlocked(b->pool);
    check_unlocked(b->sibling);
    return 0;
}

static void
bench_init(bench *b, size_t capacity)
{
    *b = (bench){.collects = true};
    ledger_init(&b->books);
    b->books.capacity = capacity;
    b->books.context = b;
    b->pool = ledger_pool(&b->books, 0);
    b->sibling = ledger_pool(&b->books, 0);
}

/* From here on calls are traced. */
static void
start_trace(bench *b)
{
    b->books.on_take = note_take;
    b->books.on_give = note_give;
}

static void
check_trace(bench *b, const char *expected)
{
    b->books.on_take = NULL;
    b->books.on_give = NULL;
    if (strcmp(b->trace, expected) != 0) {
        fprintf(stderr, "the trace is %s, not %s\n", b->trace, expected);
        exit(1);
    }
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    check_pool(b->sibling);
    gm_pool_close(b->pool);
    gm_pool_close(b->sibling);
    ledger_fini(&b->books);
}

static gm_status
ask(bench *b, size_t size, holding *out)
{
    gm_request request = {.size = size};
    gm_rescue rescue = {.context = b, .collect = collect};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc_slow(b->pool, &request, &rescue, &block);

    if (status == GM_OK) {
        *out = hold(b->pool, block);
    }
    return status;
}

/* ---- the order ---- */

TEST(reclaim_own_idle_memory_first)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    let_go(take_for(b.pool, UNITS(2), 1));
    let_go(take_bytes(b.sibling, UNITS(2)));
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(2), &h), GM_OK);
    check_trace(&b, "TGT");
    CHECK_EQ(stats_of(b.sibling).total_bytes, UNITS(2)); // not needed
    CHECK_EQ(stats_of(b.pool).retries, 1);
    let_go(h);
    bench_fini(&b);
}

TEST(reclaim_siblings_second)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    let_go(take_for(b.pool, UNITS(2), 1));
    let_go(take_bytes(b.sibling, UNITS(2)));
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(4), &h), GM_OK);
    check_trace(&b, "TGTGT");
    CHECK_EQ(stats_of(b.sibling).total_bytes, 0);
    CHECK_EQ(stats_of(b.pool).retries, 2);
    let_go(h);
    bench_fini(&b);
}

/* The driver's pools are asked with the siblings. */
TEST(reclaim_has_the_driver_trim)
{
    bench b;
    gm_request request = {.size = UNITS(4)};
    gm_rescue rescue = {.context = &b, .collect = collect, .trim = trim};
    gm_block *block;

    bench_init(&b, UNITS(3));
    let_go(take_bytes(b.pool, UNITS(2)));
    let_go(take_bytes(b.sibling, UNITS(1)));
    start_trace(&b);
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, &rescue, &block),
             GM_ERR_OUT_OF_MEMORY);
    check_trace(&b, "TGTGDTDCDTD");
    bench_fini(&b);
}

TEST(reclaim_has_the_driver_trim_for_the_device_alone)
{
    bench b;
    holding h;
    gm_request request = {.size = UNITS(4)};
    gm_rescue rescue = {.context = &b, .collect = collect, .trim = trim};
    gm_block *block;

    bench_init(&b, UNITS(8));
    h = take_bytes(b.pool, UNITS(1));
    CHECK_EQ(gm_pool_set_limit(b.pool, UNITS(4)), GM_OK);
    start_trace(&b);
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, &rescue, &block), GM_ERR_LIMIT);
    check_trace(&b, "C");
    let_go(h);
    bench_fini(&b);
}

/* A wait for the device would spoil what is being recorded, and page-locked memory is
 * no device's. */
TEST(reclaim_has_no_driver_trim_where_it_cannot_help)
{
    const gm_stream_use stream = {.key = 1};
    gm_capture *capture = NULL;
    gm_request request = {.size = UNITS(4)};
    bench b;
    gm_rescue rescue = {.context = &b, .collect = collect, .trim = trim};
    gm_block *block;
    gm_pool *pinned;

    bench_init(&b, UNITS(3));
    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    start_trace(&b);
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, &rescue, &block),
             GM_ERR_OUT_OF_MEMORY);
    gm_capture_release(capture);
    pinned = ledger_pool(&b.books, -1);
    CHECK_EQ(gm_pool_malloc_slow(pinned, &request, &rescue, &block),
             GM_ERR_OUT_OF_MEMORY);
    check_trace(&b, "TCTTCT");
    gm_pool_close(pinned);
    bench_fini(&b);
}

/* What the collector frees comes back to the pool it was of, so that one's idle memory
 * is given back again. */
TEST(reclaim_garbage_third)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    let_go(take_for(b.pool, UNITS(1), 1));
    let_go(take_bytes(b.sibling, UNITS(1)));
    b.garbage = take_for(b.pool, UNITS(2), 2);
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(4), &h), GM_OK);
    check_trace(&b, "TGTGTCGT");
    CHECK_EQ(stats_of(b.pool).retries, 3);
    let_go(h);
    bench_fini(&b);
}

TEST(reclaim_garbage_of_siblings)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    b.garbage = take_bytes(b.sibling, UNITS(4));
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(4), &h), GM_OK);
    check_trace(&b, "TCGT");
    let_go(h);
    bench_fini(&b);
}

TEST(reclaim_garbage_at_the_limit)
{
    bench b;
    holding h;

    bench_init(&b, 0);
    gm_pool_set_limit(b.pool, UNITS(4));
    b.garbage = take_for(b.pool, UNITS(3), 1);
    let_go(take_bytes(b.sibling, UNITS(2)));
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(4), &h), GM_OK);
    check_trace(&b, "CGT"); // the sibling's memory would not have helped
    CHECK_EQ(stats_of(b.sibling).total_bytes, UNITS(2));
    let_go(h);
    bench_fini(&b);
}

TEST(reclaim_gives_up_after_one_collection)
{
    bench b;
    holding x, h;
    gm_stats before, after;

    bench_init(&b, UNITS(4));
    x = take_bytes(b.pool, UNITS(4));
    start_trace(&b);
    before = stats_of(b.pool);
    CHECK_EQ(ask(&b, UNITS(1), &h), GM_ERR_OUT_OF_MEMORY);
    check_trace(&b, "TCT");
    after = stats_of(b.pool);
    before.retries++;
    before.out_of_memory++;
    check_same_stats(&after, &before);
    let_go(x);
    bench_fini(&b);
}

TEST(reclaim_does_not_retry_for_nothing)
{
    bench b;
    holding x, h;

    bench_init(&b, UNITS(4));
    x = take_bytes(b.pool, UNITS(4));
    b.collects = false;
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(1), &h), GM_ERR_OUT_OF_MEMORY);
    check_trace(&b, "TC");
    CHECK_EQ(stats_of(b.pool).retries, 0);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 1);
    let_go(x);
    bench_fini(&b);
}

TEST(reclaim_without_a_collector)
{
    bench b;
    gm_rescue none = {0};
    gm_request request = {.size = UNITS(1)};
    gm_block *block = NULL;
    holding x;

    bench_init(&b, UNITS(4));
    x = take_bytes(b.pool, UNITS(4));
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, &none, &block),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, NULL, &block), GM_ERR_OUT_OF_MEMORY);
    CHECK(block == NULL);
    let_go(x);
    bench_fini(&b);
}

TEST(reclaim_spares_other_devices)
{
    bench b;
    gm_pool *elsewhere;
    holding h;

    bench_init(&b, UNITS(4));
    elsewhere = ledger_pool(&b.books, 1);
    let_go(take_bytes(elsewhere, UNITS(4)));
    CHECK_EQ(try_hold(b.pool, UNITS(1), 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(stats_of(elsewhere).total_bytes, UNITS(4));
    gm_pool_close(elsewhere);
    bench_fini(&b);
}

TEST(reclaim_leaves_siblings_their_live_blocks)
{
    bench b;
    holding part, h;

    bench_init(&b, UNITS(8));
    let_go(take_bytes(b.sibling, UNITS(4)));
    part = take_bytes(b.sibling, UNITS(1));
    let_go(take_for(b.sibling, UNITS(4), 1));
    h = take_bytes(b.pool, UNITS(4));
    check_place(part, 0, 0);
    CHECK_EQ(stats_of(b.sibling).total_bytes, UNITS(4));
    let_go(part);
    let_go(h);
    bench_fini(&b);
}

/* One whose last reference is gone, but which is still on the list. */
TEST(reclaim_does_not_revive_a_sibling)
{
    bench b;
    holding h;

    bench_init(&b, UNITS(4));
    let_go(take_bytes(b.sibling, UNITS(4)));
    CHECK_EQ(atomic_exchange(&b.sibling->refs, 0), 1);
    CHECK_EQ(try_hold(b.pool, UNITS(4), 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(atomic_exchange(&b.sibling->refs, 1), 0);
    CHECK_EQ(stats_of(b.sibling).total_bytes, UNITS(4));
    bench_fini(&b);
}

/* ---- failing upstreams ---- */

static void
check_failure(gm_status why)
{
    bench b;
    holding idle, h;
    gm_stats before, after;

    bench_init(&b, 0);
    idle = take_for(b.pool, UNITS(2), 1);
    let_go(idle); // reclaiming would find this
    before = stats_of(b.pool);
    b.books.failures = 1;
    b.books.why = why;
    start_trace(&b);
    CHECK_EQ(ask(&b, UNITS(1), &h), why);
    check_trace(&b, "T");
    after = stats_of(b.pool);
    check_same_stats(&after, &before);
    check_pool(b.pool);
    bench_fini(&b);
}

TEST(reclaim_is_for_shortages_alone)
{
    check_failure(GM_DEVICE_ERROR(2));
    check_failure(GM_DEVICE_ERROR(700));
    check_failure(GM_ERR_CALLBACK);
    check_failure(GM_ERR_HOST_MEMORY);
    check_failure(GM_ERR_INVALID_DEVICE);
    check_failure(GM_ERR_INTERNAL);
}

static gm_status
fail_after_the_limit(gm_status why)
{
    bench b;
    holding x, h;
    gm_status status;

    bench_init(&b, 0);
    x = take_bytes(b.pool, UNITS(2));
    let_go(take_for(b.pool, UNITS(2), 1));
    gm_pool_set_limit(b.pool, UNITS(4));
    b.books.failures = 1;
    b.books.why = why;
    start_trace(&b);
    status = ask(&b, UNITS(2), &h);
    CHECK_EQ(stats_of(b.pool).live_blocks, status == GM_OK ? 2 : 1);
    check_trace(&b, status == GM_OK ? "GTCT" : "GT");
    if (status == GM_OK) {
        let_go(h);
    }
    let_go(x);
    bench_fini(&b);
    return status;
}

/* First the limit, and after reclaiming something else: a shortage of the device is
 * reclaimed for in its turn, anything else is reported as it is. */
TEST(reclaim_goes_by_the_latest_failure)
{
    CHECK_EQ(fail_after_the_limit(GM_DEVICE_ERROR(700)), GM_DEVICE_ERROR(700));
    CHECK_EQ(fail_after_the_limit(GM_ERR_CALLBACK), GM_ERR_CALLBACK);
    CHECK_EQ(fail_after_the_limit(GM_ERR_OUT_OF_MEMORY), GM_OK);
}

/* ---- an upstream that comes back ---- */

/* What an upstream written by a user may do with the pool it serves. */
static void
use_the_pool(ledger *books, size_t size)
{
    bench *b = books->context;
    holding x, y;

    (void)size;
    books->on_take = NULL;
    books->on_give = NULL;
    x = take_bytes(b->pool, UNITS(3));
    y = take_for(b->pool, UNITS(1), 5);
    check_pool(b->pool);
    let_go(x);
    CHECK_EQ(gm_pool_release_idle(b->pool), UNITS(3));
    let_go(y);
    check_pool(b->pool);
}

TEST(reclaim_upstream_may_use_the_pool_while_it_takes)
{
    bench b;
    holding h;
    gm_stats s;

    bench_init(&b, 0);
    b.books.on_take = use_the_pool;
    h = take_bytes(b.pool, UNITS(2));
    s = stats_of(b.pool);
    CHECK_EQ(s.misses, 3);
    CHECK_EQ(s.used_bytes, UNITS(2));
    CHECK_EQ(s.total_bytes, UNITS(3));
    CHECK_EQ(s.upstream_frees, 1);
    CHECK_EQ(b.books.bytes, UNITS(3));
    check_place(h, 2, 0); // serials go by arrival
    let_go(h);
    bench_fini(&b);
}

TEST(reclaim_upstream_may_use_the_pool_and_then_fail)
{
    bench b;
    holding h;
    gm_stats s;

    bench_init(&b, UNITS(8)); // too small for what is asked, not for what is used
    b.collects = false;
    b.books.on_take = use_the_pool;
    CHECK_EQ(ask(&b, UNITS(9), &h), GM_ERR_OUT_OF_MEMORY);
    s = stats_of(b.pool);
    CHECK_EQ(s.misses, 2);
    CHECK_EQ(s.used_bytes, 0);
    CHECK_EQ(s.total_bytes, 0); // reclaimed in vain
    CHECK_EQ(s.arenas, 0);
    bench_fini(&b);
}

TEST(reclaim_upstream_may_use_the_pool_while_it_is_given)
{
    bench b;
    gm_stats s;

    bench_init(&b, 0);
    let_go(take_bytes(b.pool, UNITS(2)));
    let_go(take_for(b.pool, UNITS(2), 1));
    b.books.on_give = use_the_pool;
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(4));
    s = stats_of(b.pool);
    CHECK_EQ(s.total_bytes, UNITS(1));
    CHECK_EQ(s.upstream_frees, 3);
    CHECK_EQ(b.books.bytes, UNITS(1));
    bench_fini(&b);
}
