/* SPDX-License-Identifier: MIT
 *
 * How pools end: closed by their owner while blocks are out, the last block on another
 * thread, frees that found the lock busy. The books say that every piece went back
 * once and that upstream was ended once, not before.
 */
#include "holding.h"
#include "ledger.h"

#include "core/gm_pool_private.h" // the lock, and the list of postponed frees

typedef struct bench {
    ledger books;
    gm_pool *pool;
} bench;

static void
bench_init(bench *b)
{
    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
}

static bool
hold_any(gm_pool_link *link)
{
    (void)link;
    return true;
}

/* Insists that the pool is gone: upstream ended, and the process's list empty. */
static void
check_gone(bench *b)
{
    CHECK_EQ(b->books.ends, 1);
    CHECK(gm_process_pool_next(0, hold_any) == NULL);
    ledger_fini(&b->books);
}

static void *
let_go_on_a_thread(void *context)
{
    let_go(*(holding *)context);
    return NULL;
}

/* Another thread ends the handle, and is done when this returns. */
static void
let_go_elsewhere(holding h)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, let_go_on_a_thread, &h), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

/* The same while the lock is busy, so that it is postponed. */
static void
postpone(holding h)
{
    gm_pool_lock(h.pool);
    let_go_elsewhere(h);
    CHECK(gm_pool_has_deferred(h.pool));
    gm_pool_unlock(h.pool);
}

/* ---- closing ---- */

TEST(life_close_an_unused_pool)
{
    bench b;

    bench_init(&b);
    gm_pool_close(b.pool);
    check_gone(&b);
}

TEST(life_close_gives_cached_memory_back_at_once)
{
    bench b;
    holding h;

    bench_init(&b);
    let_go(take_for(b.pool, 4096, 1));
    let_go(take_for(b.pool, 8192, 2));
    h = take_for(b.pool, 512, 3);
    gm_pool_close(b.pool);
    CHECK_EQ(b.books.bytes, 512);
    CHECK_EQ(b.books.ends, 0);
    let_go(h);
    check_gone(&b);
}

TEST(life_blocks_outlive_the_owner)
{
    bench b;
    holding parts[3], alone;

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(3)));
    for (size_t i = 0; i < 3; i++) {
        parts[i] = take_bytes(b.pool, UNITS(1));
    }
    alone = take_bytes(b.pool, UNITS(5));
    gm_pool_close(b.pool);
    CHECK_EQ(b.books.bytes, UNITS(8));
    check_place(parts[1], 0, UNITS(1));
    let_go(parts[1]);
    let_go(parts[0]);
    CHECK_EQ(b.books.bytes, UNITS(8)); // a piece goes back whole
    let_go(parts[2]);
    CHECK_EQ(b.books.bytes, UNITS(5));
    CHECK_EQ(b.books.ends, 0);
    let_go_elsewhere(alone);
    check_gone(&b);
}

TEST(life_void_handles_keep_a_closed_pool)
{
    bench b;
    holding h;

    bench_init(&b);
    h = take_bytes(b.pool, 512);
    CHECK_EQ(gm_pool_free_address(b.pool, h.block->addr), GM_OK);
    gm_pool_close(b.pool);
    CHECK_EQ(b.books.bytes, 0); // the bytes are nobody's
    CHECK_EQ(b.books.ends, 0);  // the handle still has to end
    check_void(h);
    let_go(h);
    check_gone(&b);
}

TEST(life_memory_outlasts_many_pools)
{
    bench b;
    holding held[100];

    ledger_init(&b.books);
    for (size_t i = 0; i < 100; i++) {
        b.pool = ledger_pool(&b.books, 0);
        held[i] = take_bytes(b.pool, UNITS(i + 1));
        gm_pool_close(b.pool);
        CHECK_EQ(b.books.ends, 0);
    }
    for (size_t i = 0; i < 100; i++) {
        let_go(held[(i * 37) % 100]);
        CHECK_EQ(b.books.ends, i + 1);
    }
    CHECK(gm_process_pool_next(0, hold_any) == NULL);
    ledger_fini(&b.books);
}

/* ---- postponed frees ---- */

TEST(life_free_does_not_wait_for_a_busy_lock)
{
    bench b;
    holding x, y;
    gm_stats s;

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(2)));
    x = take_bytes(b.pool, UNITS(1));
    y = take_bytes(b.pool, UNITS(1));
    gm_pool_lock(b.pool);
    let_go(x); // returns, though this very thread has the lock
    let_go_elsewhere(y);
    CHECK_EQ(b.pool->stats.live_blocks, 2);
    CHECK_EQ(b.pool->stats.deferred_frees, 0);
    gm_pool_unlock(b.pool);
    s = stats_of(b.pool); // whoever comes next does it
    CHECK_EQ(s.live_blocks, 0);
    CHECK_EQ(s.deferred_frees, 2);
    CHECK_EQ(s.free_blocks, 1);
    CHECK_EQ(s.merges, 1);
    CHECK_EQ(s.free_bytes, UNITS(2));
    check_pool(b.pool);
    gm_pool_close(b.pool);
    check_gone(&b);
}

TEST(life_postponed_frees_serve_the_next_request)
{
    bench b;
    holding h;
    gm_request request = {.size = 512};
    gm_block *block = NULL;

    bench_init(&b);
    h = take_bytes(b.pool, 512);
    postpone(h);
    CHECK_EQ(gm_pool_malloc(b.pool, &request, &block), GM_OK);
    CHECK(block == h.block);
    CHECK(block->generation != h.generation);
    let_go(hold(b.pool, block));
    gm_pool_close(b.pool);
    check_gone(&b);
}

TEST(life_postponed_free_of_a_void_handle)
{
    bench b;
    holding h, now;

    bench_init(&b);
    h = take_bytes(b.pool, 512);
    CHECK_EQ(gm_pool_free_address(b.pool, h.block->addr), GM_OK);
    now = take_bytes(b.pool, 512);
    postpone(h);
    CHECK_EQ(stats_of(b.pool).live_blocks, 1);
    check_place(now, 0, 0);
    check_pool(b.pool);
    let_go(now);
    gm_pool_close(b.pool);
    check_gone(&b);
}

TEST(life_close_takes_postponed_frees_along)
{
    bench b;

    bench_init(&b);
    postpone(take_bytes(b.pool, 512));
    gm_pool_close(b.pool);
    check_gone(&b);
}

TEST(life_next_free_takes_postponed_ones_along)
{
    bench b;
    holding x, y;

    bench_init(&b);
    x = take_bytes(b.pool, 512);
    y = take_bytes(b.pool, 512);
    gm_pool_close(b.pool);
    postpone(x);
    CHECK_EQ(b.books.ends, 0);
    let_go(y);
    check_gone(&b);
}

TEST(life_look_at_a_placement_takes_postponed_frees_along)
{
    bench b;
    holding x, y;

    bench_init(&b);
    x = take_bytes(b.pool, 512);
    y = take_bytes(b.pool, 1024);
    gm_pool_close(b.pool);
    postpone(x);
    CHECK_EQ(b.books.bytes, 1536);
    check_place(y, 1, 0);
    CHECK_EQ(b.books.bytes, 1024); // closed: what comes back goes upstream
    let_go(y);
    check_gone(&b);
}

TEST(life_leaving_a_closed_pool_looks_for_postponed_frees)
{
    bench b;
    holding h;

    bench_init(&b);
    h = take_bytes(b.pool, 512);
    gm_pool_close(b.pool);
    gm_pool_lock(b.pool);
    let_go_elsewhere(h);
    CHECK_EQ(b.books.ends, 0);
    gm_pool_leave(b.pool);
    check_gone(&b);
}

/* ---- a free that is postponed while a closed pool gives memory back ---- */

static void
postpone_once(ledger *books, size_t size)
{
    holding *waiting = books->context;

    (void)size;
    books->on_give = NULL;
    postpone(*waiting);
}

/* On a closed pool nobody else comes by: the one who gives back has to look again. */
TEST(life_closed_pool_looks_again_after_giving_back)
{
    bench b;
    holding x, y;

    bench_init(&b);
    x = take_bytes(b.pool, 512);
    y = take_bytes(b.pool, 1024);
    gm_pool_close(b.pool);
    b.books.context = &y;
    b.books.on_give = postpone_once;
    let_go(x);
    check_gone(&b);
}

TEST(life_close_looks_again_after_giving_back)
{
    bench b;
    holding y;

    bench_init(&b);
    y = take_bytes(b.pool, 1024);
    let_go(take_bytes(b.pool, 512));
    CHECK_EQ(stats_of(b.pool).segments, 2);
    b.books.context = &y;
    b.books.on_give = postpone_once;
    gm_pool_close(b.pool);
    check_gone(&b);
}

/* A pool short of memory looks at a closed sibling whose last block is postponed. */
TEST(life_visitor_of_a_closed_pool_sees_it_out)
{
    bench b;
    gm_pool *needy;
    holding x, got;

    bench_init(&b);
    x = take_bytes(b.pool, UNITS(4));
    gm_pool_close(b.pool);
    postpone(x);
    needy = ledger_pool(&b.books, 0);
    b.books.capacity = UNITS(4);
    got = take_bytes(needy, UNITS(2));
    CHECK_EQ(b.books.ends, 1);
    CHECK_EQ(b.books.bytes, UNITS(2));
    let_go(got);
    gm_pool_close(needy);
    CHECK_EQ(b.books.ends, 2);
    ledger_fini(&b.books);
}

/* The owner closes the sibling while the visitor gives its idle memory back. */
static void
close_and_postpone(ledger *books, size_t size)
{
    holding *waiting = books->context;

    (void)size;
    books->on_give = NULL;
    gm_pool_close(waiting->pool);
    postpone(*waiting);
}

TEST(life_visitor_of_a_pool_closed_meanwhile_sees_it_out)
{
    bench b;
    gm_pool *needy;
    holding x, y, got;

    bench_init(&b);
    x = take_bytes(b.pool, UNITS(2));
    y = take_bytes(b.pool, UNITS(4));
    needy = ledger_pool(&b.books, 0);
    let_go(x);
    b.books.context = &y;
    b.books.on_give = close_and_postpone;
    b.books.capacity = UNITS(6);
    got = take_bytes(needy, UNITS(2));
    CHECK_EQ(b.books.ends, 1);
    CHECK_EQ(b.books.bytes, UNITS(2));
    let_go(got);
    gm_pool_close(needy);
    CHECK_EQ(b.books.ends, 2);
    ledger_fini(&b.books);
}
