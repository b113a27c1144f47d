/* SPDX-License-Identifier: MIT
 *
 * Reclaiming comes to an end, whatever happens meanwhile, and leaves nothing out: it
 * begins anew after each success; closed pools that wait for a device end with it.
 */
#include "streams.h"

#include "ledger.h"

#include "core/gm_process.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* ---- of all pools ---- */

TEST(reclaim_of_all_pools_says_how_much_it_was)
{
    ledger books;
    gm_upstream over;
    gm_pool *pools[4] = {NULL};
    holding live;

    ledger_init(&books);
    over = ledger_upstream(&books);
    over.room = NULL; // may lie over another pool
    for (int i = 0; i < 3; i++) {
        pools[i] = ledger_pool(&books, i == 2 ? 1 : 0);
    }
    CHECK_EQ(gm_pool_new(0, over, &pools[3]), GM_OK);
    books.pools++;
    for (size_t i = 0; i < 4; i++) {
        let_go(take_bytes(pools[i], UNITS(i + 1)));
    }
    live = take_for(pools[0], UNITS(9), 5);
    CHECK_EQ(gm_pools_release_idle(0, GM_ERR_LIMIT), UNITS(4));
    CHECK_EQ(gm_pools_release_idle(0, GM_ERR_OUT_OF_MEMORY), UNITS(1 + 2));
    CHECK_EQ(gm_pools_release_idle(0, GM_ERR_OUT_OF_MEMORY), 0);
    CHECK_EQ(stats_of(pools[2]).total_bytes, UNITS(3)); // of another device
    let_go(live);
    for (int i = 0; i < 4; i++) {
        gm_pool_close(pools[i]);
    }
    ledger_fini(&books);
}

/* ---- closed pools that wait for a device ---- */

static void
ask_for_more(site s)
{
    let_go(take_bytes(s.pool, 2 * MIB));
}

static void
release_own(site s)
{
    (void)gm_pool_release_idle(s.pool);
}

static void
release_all(site s)
{
    (void)s;
    (void)gm_pools_release_idle(1, GM_ERR_OUT_OF_MEMORY); // has no pool
}

/* Whoever calls the core about a device sees them out, on whichever device they are. */
TEST(reclaim_sees_closed_pools_out)
{
    static void (*const ways[])(site s) = {ask_for_more, release_own, release_all};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        site s = open_site(64 * MIB);
        gm_stream_use far = new_stream(s.sim, 1, true);
        gm_pool *closed = NULL;
        holding h;

        CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(s.sim), &closed), GM_OK);
        h = take_bytes(closed, MIB);
        record(h, far);
        queue_write(s.sim, h, far);
        gm_pool_close(closed);
        let_go(h);
        finish_stream(s.sim, far);
        CHECK(gm_process_is_anyone_lingering());
        ways[i](s);
        CHECK(!gm_process_is_anyone_lingering());
        CHECK_EQ(gm_backend_stream_destroy(s.sim, far.stream), GM_OK);
        close_site(s);
    }
}

/* ---- the order ---- */

typedef struct bench {
    ledger books;
    gm_pool *pool;
    gm_pool *sibling;
    holding held;
} bench;

static void
bench_init(bench *b, size_t capacity)
{
    ledger_init(&b->books);
    b->books.capacity = capacity;
    b->books.context = b;
    b->pool = ledger_pool(&b->books, 0);
    b->sibling = ledger_pool(&b->books, 0);
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

static void
drop_held(ledger *books, size_t size)
{
    bench *b = books->context;

    (void)size;
    books->on_give = NULL;
    let_go(b->held);
}

/* What the sibling gives back lets go of a block of this pool, as where pools lie over
 * pools: its own memory is idle then, and looked for once more. */
TEST(reclaim_begins_anew_after_each_success)
{
    bench b;

    bench_init(&b, UNITS(4));
    b.held = take_for(b.pool, UNITS(3), 5);
    let_go(take_bytes(b.sibling, UNITS(1)));
    b.books.on_give = drop_held;
    let_go(take_bytes(b.pool, UNITS(4)));
    CHECK_EQ(stats_of(b.pool).retries, 2);
    bench_fini(&b);
}

/* ---- without end ---- */

/* An upstream that leaves the pool something idle each time it is asked, so that there
 * always is something to give back, and never enough. */
static void
leave_something(ledger *books, size_t size)
{
    bench *b = books->context;

    if (size > UNITS(1)) {
        let_go(take_for(b->pool, UNITS(1), 5));
    }
}

TEST(reclaim_ends_though_there_is_always_something)
{
    bench b;
    holding h = {0};
    gm_stats stats;

    bench_init(&b, UNITS(2));
    b.books.on_take = leave_something;
    CHECK_EQ(try_hold(b.pool, UNITS(3), 0, &h), GM_ERR_OUT_OF_MEMORY);
    stats = stats_of(b.pool);
    CHECK(stats.retries > 1 && stats.retries < 100);
    CHECK_EQ(stats.out_of_memory, 1);
    b.books.on_take = NULL;
    bench_fini(&b);
}

static atomic_bool told;

static void *
fly(void *context)
{
    while (!atomic_load(&told)) {
        gm_process_flight_begin();
        sched_yield();
        gm_process_flight_end();
    }
    return context;
}

/* Memory of another thread arrives all the time, and none of it is for this one. */
TEST(reclaim_ends_though_others_have_memory_on_its_way)
{
    bench b;
    holding live, h = {0};
    pthread_t thread;

    bench_init(&b, UNITS(2));
    live = take_bytes(b.pool, UNITS(2));
    CHECK_EQ(pthread_create(&thread, NULL, fly, NULL), 0);
    CHECK_EQ(try_hold(b.pool, UNITS(1), 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK(b.books.asked < 100);
    atomic_store(&told, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    b.books.asked = 0;
    CHECK_EQ(try_hold(b.pool, UNITS(1), 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(b.books.asked, 1); // what arrived before is no reason to ask again
    let_go(live);
    bench_fini(&b);
}
