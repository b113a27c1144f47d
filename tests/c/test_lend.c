/* SPDX-License-Identifier: MIT
 *
 * Borrowing what another stream has free: whose block it is, what is counted, and what
 * becomes of it where that fails.
 */
#include "streams.h"

#include "ledger.h"
#include "spares.h"

enum {
    LENDERS = 12, // so that their arenas lie all over the table
    STEP = 64 << 10,
};

/* A full device of 2 MiB a lender, of which the n-th has n + 1 steps free. */
typedef struct bench {
    site s;
    gm_backend *fault;
    gm_pool *pool;
    gm_stream_use lenders[LENDERS];
    gm_stream_use borrower;
    holding held[LENDERS];
} bench;

static void
bench_init(bench *b)
{
    b->s = open_site(LENDERS * 2 * MIB);
    CHECK_EQ(gm_backend_fault_open(b->s.sim, &b->fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b->fault), &b->pool), GM_OK);
    b->borrower = new_stream(b->s.sim, 0, true);
    for (size_t i = 0; i < LENDERS; i++) {
        gm_stream_key key;

        b->lenders[i] = new_stream(b->s.sim, 0, true);
        key = b->lenders[i].key;
        let_go(take_for(b->pool, 2 * MIB, key));
        b->held[i] = take_for(b->pool, 2 * MIB - (i + 1) * STEP, key);
    }
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    for (size_t i = 0; i < LENDERS; i++) {
        let_go(b->held[i]);
        end_stream(b->s.sim, b->lenders[i]);
    }
    end_stream(b->s.sim, b->borrower);
    gm_pool_close(b->pool);
    gm_fault_clear(b->fault);
    gm_backend_close(b->fault);
    close_site(b->s);
}

static gm_status
borrow(bench *b, size_t size, holding *out)
{
    const gm_request request = {.size = size, .key = b->borrower.key};
    const gm_rescue rescue = {.by = &b->borrower};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc_slow(b->pool, &request, &rescue, &block);

    if (status == GM_OK) {
        *out = hold(b->pool, block);
    }
    else {
        CHECK(block == NULL);
    }
    return status;
}

TEST(lend_takes_the_best_fit_of_all_streams)
{
    bench b;

    bench_init(&b);
    for (size_t i = 0; i < LENDERS; i++) {
        size_t hits = stats_of(b.pool).hits;
        holding h;

        CHECK_EQ(borrow(&b, (i + 1) * STEP - 100, &h), GM_OK);
        CHECK_EQ(h.block->segment->arena->key, b.lenders[i].key);
        CHECK_EQ(stats_of(b.pool).hits, hits + 1);
        check_pool(b.pool);
        let_go(h);
        finish_stream(b.s.sim, b.borrower);
        CHECK_EQ(stats_of(b.pool).pending_bytes, 0);
    }
    bench_fini(&b);
}

/* It waits for the device, and takes from a stream what that may want back: so what
 * nobody uses goes back to the device first. */
TEST(lend_comes_after_what_can_be_given_back)
{
    site s = open_site(4 * MIB);
    gm_stream_use lender = new_stream(s.sim, 0, true);
    gm_stream_use borrower = new_stream(s.sim, 0, true);
    const gm_request request = {.size = 4 * MIB, .key = borrower.key};
    const gm_rescue rescue = {.by = &borrower};
    gm_block *block = NULL;

    let_go(take_for(s.pool, 4 * MIB, lender.key));
    CHECK_EQ(gm_pool_malloc_slow(s.pool, &request, &rescue, &block), GM_OK);
    CHECK_EQ(block->segment->arena->key, borrower.key);
    CHECK_EQ(stats_of(s.pool).upstream_frees, 1);
    let_go(hold(s.pool, block));
    CHECK_EQ(stats_of(s.pool).pending_bytes, 0); // it is nobody else's
    end_stream(s.sim, lender);
    end_stream(s.sim, borrower);
    close_site(s);
}

TEST(lend_is_not_asked_for_what_nobody_has)
{
    bench b;
    holding h = {0};

    bench_init(&b);
    CHECK_EQ(borrow(&b, LENDERS * STEP + 1, &h), GM_ERR_OUT_OF_MEMORY);
    // Nor where nobody says which stream it would be for.
    CHECK_EQ(try_hold(b.pool, STEP, b.borrower.key, &h), GM_ERR_OUT_OF_MEMORY);
    bench_fini(&b);
}

TEST(lend_sees_the_cache_at_its_fullest)
{
    bench b;
    holding more, h;
    size_t fullest;

    bench_init(&b);
    more = take_for(b.pool, STEP, b.lenders[5].key);
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    fullest = stats_of(b.pool).free_bytes + STEP;
    let_go(more); // looks at no peak
    CHECK_EQ(borrow(&b, STEP, &h), GM_OK);
    CHECK_EQ(stats_of(b.pool).peak_free_bytes, fullest);
    let_go(h);
    bench_fini(&b);
}

/* What tells a pool with a loan that failed from one that was never asked. */
static void
check_same_counts(gm_stats now, gm_stats before)
{
    now.retries = before.retries;
    now.out_of_memory = before.out_of_memory;
    now.peak_free_bytes = before.peak_free_bytes; // looked at, as for any request
#define SAME(name, text) CHECK_EQ(now.name, before.name);
    GM_STATS_LIST(SAME)
#undef SAME
}

TEST(lend_gives_back_what_it_cannot_wait_for)
{
    const size_t sizes[] = {STEP, STEP - GM_UNIT, STEP - 1}; // whole, cut, not rounded

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        bench b;
        holding h = {0};

        bench_init(&b);
        CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
        gm_stats before = stats_of(b.pool);
        CHECK_EQ(gm_fault_plan(b.fault, "device_synchronize", 1, 0, GM_DEVICE_ERROR(9)),
                 GM_OK);
        CHECK_EQ(borrow(&b, sizes[i], &h), GM_ERR_OUT_OF_MEMORY);
        check_same_counts(stats_of(b.pool), before);
        bench_fini(&b);
    }
}

/* A peak from before stays as well, whether the loan was above it or not. */
TEST(lend_leaves_peaks_that_are_not_its_own)
{
    const size_t steps[] = {1, 3};

    for (size_t i = 0; i < 2; i++) {
        bench b;
        holding more, h = {0};

        bench_init(&b);
        more = take_for(b.pool, 2 * STEP, b.lenders[7].key);
        CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
        let_go(more);
        gm_stats before = stats_of(b.pool);
        CHECK_EQ(gm_fault_plan(b.fault, "device_synchronize", 1, 0, GM_DEVICE_ERROR(9)),
                 GM_OK);
        CHECK_EQ(borrow(&b, steps[i] * STEP, &h), GM_ERR_OUT_OF_MEMORY);
        check_same_counts(stats_of(b.pool), before);
        bench_fini(&b);
    }
}

/* ---- what others do while the device is waited for ---- */

typedef enum deed {
    TAKES_THE_REST, // of the block that the loan was cut off
    GIVES_BACK,     // what lies before the loan
    FREES_THE_LOAN, // by its address
} deed;

/* A pool of one segment whose lender holds `held` and has `left` free behind it, and
 * what another thread does with it while somebody waits for the device, which fails. */
typedef struct scene {
    gm_pool *pool;
    gm_stream_key lender;
    holding held;
    deed what;
    holding rest;
    gm_stats then;
} scene;

static scene *playing;

static gm_status
fail_to_synchronize(void *self, int device)
{
    scene *p = playing;

    (void)self;
    (void)device;
    switch (p->what) {
    case TAKES_THE_REST:
        p->rest = take_for(p->pool, 2 * STEP, p->lender);
        break;
    case GIVES_BACK:
        let_go(p->held);
        break;
    case FREES_THE_LOAN:
        CHECK_EQ(gm_pool_free_address(p->pool, p->held.block->addr + STEP), GM_OK);
        break;
    }
    p->then = stats_of(p->pool);
    return GM_DEVICE_ERROR(9);
}

/* Borrows `size` of 3 steps that lie behind a block of one, in vain. */
static scene
play(site s, deed what, size_t size)
{
    static gm_backend table;
    scene p = {.lender = 1000, .what = what};
    gm_stream_use borrower = new_stream(s.sim, 0, true);
    const gm_request request = {.size = size, .key = borrower.key};
    const gm_rescue rescue = {.by = &borrower};
    gm_block *block = NULL;

    table = *s.sim;
    table.device_synchronize = fail_to_synchronize;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &p.pool), GM_OK);
    CHECK_EQ(gm_pool_set_limit(p.pool, 4 * STEP), GM_OK);
    let_go(take_for(p.pool, 4 * STEP, p.lender));
    p.held = take_for(p.pool, STEP, p.lender);
    playing = &p;
    CHECK_EQ(gm_pool_malloc_slow(p.pool, &request, &rescue, &block), GM_ERR_LIMIT);
    CHECK(block == NULL);
    check_pool(p.pool);
    end_stream(s.sim, borrower);
    return p;
}

/* The loan cannot be joined again with what it was cut off, so the cut stays; nor is a
 * peak lowered that both together made. */
TEST(lend_fails_when_the_rest_is_somebody_elses)
{
    site s = open_site(64 * MIB);
    scene p = play(s, TAKES_THE_REST, STEP);
    gm_stats now = stats_of(p.pool);

    CHECK_EQ(p.then.used_bytes, 4 * STEP);
    CHECK_EQ(now.used_bytes, 3 * STEP);
    CHECK_EQ(now.peak_used_bytes, 4 * STEP);
    CHECK_EQ(now.peak_live_blocks, 3);
    CHECK_EQ(now.splits, p.then.splits);
    CHECK_EQ(now.merges, p.then.merges);
    CHECK_EQ(now.hits, p.then.hits - 1); // the loan was none
    let_go(p.rest);
    let_go(p.held);
    CHECK_EQ(stats_of(p.pool).free_blocks, 1);
    check_pool(p.pool);
    gm_pool_close(p.pool);
    close_site(s);
}

/* A loan of the whole block is joined with its neighbour: no cut is undone by that. */
TEST(lend_fails_when_its_neighbour_has_become_free)
{
    site s = open_site(64 * MIB);
    scene p = play(s, GIVES_BACK, 3 * STEP);
    gm_stats now = stats_of(p.pool);

    CHECK_EQ(now.used_bytes, 0);
    CHECK_EQ(now.free_blocks, 1);
    CHECK_EQ(now.splits, p.then.splits);
    CHECK_EQ(now.merges, p.then.merges + 1);
    check_pool(p.pool);
    gm_pool_close(p.pool);
    close_site(s);
}

TEST(lend_fails_when_its_address_was_freed)
{
    site s = open_site(64 * MIB);
    scene p = play(s, FREES_THE_LOAN, 2 * STEP);

    CHECK_EQ(stats_of(p.pool).used_bytes, STEP);
    CHECK_EQ(stats_of(p.pool).free_blocks, 1);
    let_go(p.held);
    CHECK_EQ(gm_pool_release_idle(p.pool), 4 * STEP);
    gm_pool_close(p.pool);
    close_site(s);
}

static bool
always(void *context, size_t size)
{
    (void)context;
    (void)size;
    return true;
}

/* No node for what is left of the block, and none to be had. The limit keeps the
 * request from needing one earlier. */
TEST(lend_without_host_memory)
{
    bench b;
    holding h = {0};
    spares kept;

    bench_init(&b);
    CHECK_EQ(gm_pool_set_limit(b.pool, stats_of(b.pool).total_bytes), GM_OK);
    kept = spares_hide(b.pool);
    gm_host_set_fault(always, NULL);
    CHECK_EQ(borrow(&b, STEP - GM_UNIT, &h), GM_ERR_LIMIT);
    gm_host_set_fault(NULL, NULL);
    spares_show(b.pool, &kept);
    check_pool(b.pool);
    bench_fini(&b);
}

/* Memory of an upstream that knows no streams is for nobody else. */
TEST(lend_knows_streams_or_does_nothing)
{
    ledger books;
    const gm_stream_use by = {.stream = 64, .key = 9, .announced = true};
    const gm_request request = {.size = UNITS(2), .key = by.key};
    const gm_rescue rescue = {.by = &by};
    gm_block *block = NULL;
    gm_pool *pool;
    holding held;

    ledger_init(&books);
    books.capacity = UNITS(8);
    pool = ledger_pool(&books, 0);
    let_go(take_for(pool, UNITS(8), 5));
    held = take_for(pool, UNITS(4), 5);
    CHECK_EQ(gm_pool_malloc_slow(pool, &request, &rescue, &block),
             GM_ERR_OUT_OF_MEMORY);
    CHECK(block == NULL);
    let_go(held);
    gm_pool_close(pool);
    ledger_fini(&books);
}
