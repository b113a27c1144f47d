/* SPDX-License-Identifier: MIT
 *
 * Many threads on one pool and on pools that come and go. Blocks change hands: who
 * frees one is rarely who took it, and its pool may be closed by then. Blocks have host
 * memory behind them and their holders write to it without locks, so that two holders
 * of one byte are a data race that ThreadSanitizer sees, and a wrong value everywhere
 * else. In the end every number is exact.
 */
#include "dice.h"
#include "holding.h"
#include "ledger.h"

#include "core/gm_pool_private.h" // the lock

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    TRADERS = 8,
    SLOTS = 64,
};

typedef struct parcel {
    holding held;
    size_t size;
    unsigned char mark;
} parcel;

typedef struct market {
    ledger books;
    gm_pool *pool;
    _Atomic(parcel *) slots[SLOTS];
    atomic_size_t taken; // blocks of `pool`
    atomic_size_t refused;
    atomic_bool done;
} market;

typedef struct trader {
    market *m;
    uint64_t seed;
} trader;

static size_t
rounds_for(size_t rounds)
{
    return rounds / (size_t)harness_slowness();
}

/* ---- parcels ---- */

static void
parcel_mark(parcel *p)
{
    memset((void *)p->held.block->addr, p->mark, p->size);
}

static void
parcel_end(parcel *p)
{
    const unsigned char *bytes = (const unsigned char *)p->held.block->addr;

    for (size_t i = 0; i < p->size; i++) {
        CHECK_EQ(bytes[i], p->mark);
    }
    let_go(p->held);
    free(p);
}

/* NULL when there is no memory. */
static parcel *
parcel_take(gm_pool *pool, dice *d)
{
    parcel *p = malloc(sizeof *p);
    gm_status status;

    CHECK(p != NULL);
    p->size = 1 + dice_below(d, 4096);
    p->mark = (unsigned char)dice_below(d, 256);
    status = try_hold(pool, p->size, dice_below(d, 3), &p->held);
    if (status != GM_OK) {
        CHECK_EQ(status, GM_ERR_OUT_OF_MEMORY);
        free(p);
        return NULL;
    }
    parcel_mark(p);
    return p;
}

/* Puts a parcel (or none) where somebody will find it and ends the one that was there.
 */
static void
swap_in(market *m, dice *d, parcel *p)
{
    parcel *old = atomic_exchange(&m->slots[dice_below(d, SLOTS)], p);

    if (old != NULL) {
        parcel_end(old);
    }
}

/* ---- the threads ---- */

/* Between two rounds of a helper, so that it does not live in the lock. */
static void
rest(void)
{
    struct timespec pause = {.tv_nsec = 50000};

    (void)nanosleep(&pause, NULL);
}

static void *
trade(void *context)
{
    trader *t = context;
    dice d = {t->seed};
    size_t rounds = rounds_for(30000);

    for (size_t i = 0; i < rounds; i++) {
        parcel *p = dice_below(&d, 4) == 0 ? NULL : parcel_take(t->m->pool, &d);

        if (p != NULL) {
            atomic_fetch_add(&t->m->taken, 1);
        }
        if (p != NULL && dice_below(&d, 3) == 0) {
            parcel_end(p);
        }
        else {
            swap_in(t->m, &d, p);
        }
    }
    return NULL;
}

static void *
release(void *context)
{
    market *m = context;

    while (!atomic_load(&m->done)) {
        (void)gm_pool_release_idle(m->pool);
        rest();
        (void)gm_pool_release_idle_of(m->pool, 1);
        rest();
    }
    return NULL;
}

static void *
watch(void *context)
{
    market *m = context;
    gm_stats last = {0}, s;

    while (!atomic_load(&m->done)) {
        s = stats_of(m->pool);
        CHECK_EQ(s.used_bytes + s.free_bytes, s.total_bytes);
        CHECK(s.requested_bytes <= s.used_bytes);
        CHECK(s.peak_used_bytes >= s.used_bytes && s.peak_total_bytes >= s.total_bytes);
        CHECK(s.peak_total_bytes >= last.peak_total_bytes);
        CHECK(s.hits >= last.hits && s.upstream_frees >= last.upstream_frees);
        last = s;
        check_pool(m->pool);
        rest();
    }
    return NULL;
}

/* Pools on the same device that are closed while their blocks are out. What is left in
 * their caches, and the want of memory, makes the pools visit one another. */
static void *
open_and_close(void *context)
{
    trader *t = context;
    dice d = {t->seed};

    while (!atomic_load(&t->m->done)) {
        gm_pool *pool = ledger_pool(&t->m->books, 0);

        for (size_t i = 0; i < 8; i++) {
            parcel *p = parcel_take(pool, &d);

            if (p != NULL && i % 4 == 0) {
                parcel_end(p);
            }
            else {
                swap_in(t->m, &d, p);
            }
        }
        gm_pool_close(pool);
        rest();
    }
    return NULL;
}

static void
start(pthread_t *thread, void *(*body)(void *), void *context)
{
    CHECK_EQ(pthread_create(thread, NULL, body, context), 0);
}

static void
join(pthread_t thread)
{
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void
run_market(size_t capacity)
{
    static market m;
    pthread_t threads[TRADERS], helpers[4];
    trader traders[TRADERS + 2];
    gm_stats s;

    ledger_init(&m.books);
    m.books.backed = true;
    m.books.capacity = capacity;
    m.pool = ledger_pool(&m.books, 0);
    for (size_t i = 0; i < TRADERS + 2; i++) {
        traders[i] = (trader){&m, i + 1};
    }
    start(&helpers[0], release, &m);
    start(&helpers[1], watch, &m);
    start(&helpers[2], open_and_close, &traders[TRADERS]);
    start(&helpers[3], open_and_close, &traders[TRADERS + 1]);
    for (size_t i = 0; i < TRADERS; i++) {
        start(&threads[i], trade, &traders[i]);
    }
    for (size_t i = 0; i < TRADERS; i++) {
        join(threads[i]);
    }
    atomic_store(&m.done, true);
    for (size_t i = 0; i < 4; i++) {
        join(helpers[i]);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        parcel *p = atomic_load(&m.slots[i]);

        if (p != NULL) {
            parcel_end(p);
        }
    }

    check_pool(m.pool);
    s = stats_of(m.pool);
    CHECK_EQ(s.hits + s.misses, atomic_load(&m.taken));
    CHECK_EQ(s.used_bytes, 0);
    CHECK_EQ(s.requested_bytes, 0);
    CHECK_EQ(s.live_blocks, 0);
    CHECK_EQ(s.free_blocks, s.segments);
    CHECK_EQ(s.upstream_allocations, s.misses);
    CHECK_EQ(s.upstream_allocations - s.upstream_frees, s.segments);
    CHECK_EQ(m.books.ends, m.books.pools - 1); // every other pool is gone
    CHECK_EQ(m.books.bytes, s.total_bytes);
    CHECK_EQ(gm_pool_release_idle(m.pool), s.total_bytes);
    CHECK_EQ(stats_of(m.pool).arenas, 0);
    CHECK_EQ(m.books.bytes, 0);
    gm_pool_close(m.pool);
    ledger_fini(&m.books);
}

TEST(threads_trade_blocks)
{
    run_market(0);
}

TEST(threads_trade_blocks_with_little_memory)
{
    run_market(96 * KIB);
}

/* ---- the last blocks of closed pools, freed at the same time ---- */

typedef struct pairs {
    holding *held;
    size_t count;
    pthread_barrier_t *barrier;
} pairs;

static void *
let_go_in_step(void *context)
{
    pairs *p = context;

    for (size_t i = 0; i < p->count; i++) {
        (void)pthread_barrier_wait(p->barrier);
        let_go(p->held[i]);
    }
    return NULL;
}

TEST(threads_free_the_last_blocks_of_closed_pools)
{
    enum {
        COUNT = 3000,
        HANDS = 3,
    };
    static holding held[HANDS][COUNT];
    size_t count = rounds_for(COUNT);
    ledger books;
    pthread_barrier_t barrier;
    pthread_t threads[HANDS];
    pairs hands[HANDS];

    ledger_init(&books);
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, HANDS), 0);
    for (size_t i = 0; i < count; i++) {
        gm_pool *pool = ledger_pool(&books, 0);

        for (size_t j = 0; j < HANDS; j++) {
            held[j][i] = take_bytes(pool, UNITS(j + 1));
        }
        gm_pool_close(pool);
    }
    CHECK_EQ(books.ends, 0);
    for (size_t j = 0; j < HANDS; j++) {
        hands[j] = (pairs){held[j], count, &barrier};
        start(&threads[j], let_go_in_step, &hands[j]);
    }
    for (size_t j = 0; j < HANDS; j++) {
        join(threads[j]);
    }
    (void)pthread_barrier_destroy(&barrier);
    CHECK_EQ(books.ends, count);
    ledger_fini(&books);
}

/* ---- one block freed by handle and by address at the same time ---- */

typedef struct by_address {
    gm_pool *pool;
    uintptr_t *addresses;
    size_t count;
    pthread_barrier_t *barrier;
} by_address;

static void *
free_addresses_in_step(void *context)
{
    by_address *a = context;

    for (size_t i = 0; i < a->count; i++) {
        gm_status status;

        (void)pthread_barrier_wait(a->barrier);
        status = gm_pool_free_address(a->pool, a->addresses[i]);
        CHECK(status == GM_OK || status == GM_ERR_NOT_OWNED);
    }
    return NULL;
}

/* Whoever comes first, the bytes go back once and the handle ends once. */
TEST(threads_free_by_handle_and_by_address)
{
    enum {
        COUNT = 10000, // the two meet a few times, in any build
    };
    static holding held[COUNT];
    static uintptr_t addresses[COUNT];
    ledger books;
    gm_pool *pool;
    pthread_barrier_t barrier;
    pthread_t threads[2];
    gm_stats s;

    ledger_init(&books);
    pool = ledger_pool(&books, 0);
    let_go(take_bytes(pool, UNITS(COUNT)));
    for (size_t i = 0; i < COUNT; i++) {
        held[i] = take_bytes(pool, UNITS(1));
        addresses[i] = held[i].block->addr;
    }
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, 2), 0);
    pairs hand = {held, COUNT, &barrier};
    by_address other = {pool, addresses, COUNT, &barrier};
    start(&threads[0], let_go_in_step, &hand);
    start(&threads[1], free_addresses_in_step, &other);
    join(threads[0]);
    join(threads[1]);
    (void)pthread_barrier_destroy(&barrier);

    check_pool(pool);
    s = stats_of(pool);
    CHECK_EQ(s.live_blocks, 0);
    CHECK_EQ(s.free_blocks, 1);
    CHECK_EQ(s.free_bytes, UNITS(COUNT));
    gm_pool_close(pool);
    CHECK_EQ(books.ends, 1); // no handle was left void
    ledger_fini(&books);
}

/* ---- the lock ---- */

typedef struct tally {
    gm_lock lock;
    size_t count; // behind the lock
    size_t rounds;
} tally;

static void *
count_up(void *context)
{
    tally *t = context;

    for (size_t i = 0; i < t->rounds; i++) {
        if (i % 2 == 0 || !gm_lock_try(&t->lock)) {
            gm_lock_acquire(&t->lock);
        }
        t->count++;
        gm_lock_release(&t->lock);
    }
    return NULL;
}

TEST(threads_lock_lets_one_in)
{
    tally t = {.rounds = rounds_for(200000)};
    pthread_t threads[TRADERS];

    for (size_t i = 0; i < TRADERS; i++) {
        start(&threads[i], count_up, &t);
    }
    for (size_t i = 0; i < TRADERS; i++) {
        join(threads[i]);
    }
    CHECK_EQ(t.count, TRADERS * t.rounds);
}

/* Longer than anybody spins: the waiter sleeps, and still gets in. */
TEST(threads_lock_is_got_after_a_long_wait)
{
    struct timespec pause = {.tv_nsec = 20000000};
    tally t = {.rounds = 1};
    pthread_t thread;

    gm_lock_acquire(&t.lock);
    CHECK(!gm_lock_try(&t.lock));
    start(&thread, count_up, &t);
    (void)nanosleep(&pause, NULL);
    CHECK_EQ(t.count, 0);
    t.count = 10;
    gm_lock_release(&t.lock);
    join(thread);
    CHECK_EQ(t.count, 11);
    CHECK(gm_lock_try(&t.lock));
}
