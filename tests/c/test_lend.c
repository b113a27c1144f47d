/* SPDX-License-Identifier: MIT
 *
 * Borrowing what another stream has free: whose block it is, what is counted, and what
 * becomes of it where that fails.
 */
#include "streams.h"

#include "ledger.h"

#include "core/gm_pool_private.h" // the spare nodes

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

/* A peak from before, higher than the loan made anything, stays as well. */
TEST(lend_leaves_peaks_that_are_not_its_own)
{
    bench b;
    holding more, h = {0};

    bench_init(&b);
    more = take_for(b.pool, 2 * STEP, b.lenders[7].key);
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    let_go(more);
    gm_stats before = stats_of(b.pool);
    CHECK_EQ(gm_fault_plan(b.fault, "device_synchronize", 1, 0, GM_DEVICE_ERROR(9)),
             GM_OK);
    CHECK_EQ(borrow(&b, STEP, &h), GM_ERR_OUT_OF_MEMORY);
    check_same_counts(stats_of(b.pool), before);
    bench_fini(&b);
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
    holding taken[2 * LENDERS * STEP / GM_UNIT], h = {0};
    size_t count = 0;

    bench_init(&b);
    while (b.pool->store.spare) {
        taken[count++] = take_for(b.pool, 1, b.lenders[LENDERS - 1].key);
    }
    CHECK_EQ(gm_pool_set_limit(b.pool, stats_of(b.pool).total_bytes), GM_OK);
    gm_host_set_fault(always, NULL);
    CHECK_EQ(borrow(&b, STEP - GM_UNIT, &h), GM_ERR_LIMIT);
    gm_host_set_fault(NULL, NULL);
    check_pool(b.pool);
    while (count > 0) {
        let_go(taken[--count]);
    }
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
