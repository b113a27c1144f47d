/* SPDX-License-Identifier: MIT
 *
 * The hit path by hand: where blocks go, what the counters say after each call, and
 * what a handle is good for. test_model.c does the same at random.
 */
#include "holding.h"
#include "ledger.h"

#include "core/gm_pool_private.h" // gm_pool_lock

/* A pool over books of its own. */
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

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    CHECK_EQ(stats_of(b->pool).live_blocks, 0);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

static void
check_counts(gm_pool *pool, gm_stats expected)
{
    gm_stats stats = stats_of(pool);

    check_same_stats(&stats, &expected);
    check_pool(pool);
}

TEST(pool_new_is_empty)
{
    bench b;

    bench_init(&b);
    check_counts(b.pool, (gm_stats){0});
    CHECK_EQ(gm_pool_device(b.pool), 0);
    CHECK(gm_pool_user(b.pool) == NULL);
    gm_pool_set_user(b.pool, &b);
    CHECK(gm_pool_user(b.pool) == &b);
    CHECK_EQ(b.books.asked, 0);
    bench_fini(&b);
}

TEST(pool_knows_its_device)
{
    ledger books;
    gm_pool *pool;

    ledger_init(&books);
    pool = ledger_pool(&books, 5);
    CHECK_EQ(gm_pool_device(pool), 5);
    gm_pool_close(pool);
    ledger_fini(&books);
}

TEST(pool_cache_alone_does_not_ask_upstream)
{
    bench b;
    gm_request request = {.size = 1000};
    gm_block *block = NULL;

    bench_init(&b);
    CHECK_EQ(gm_pool_malloc(b.pool, &request, &block), GM_MISS);
    CHECK(block == NULL);
    check_counts(b.pool, (gm_stats){0});
    CHECK_EQ(b.books.asked, 0);
    bench_fini(&b);
}

TEST(pool_busy_lock_is_reported)
{
    bench b;
    gm_request request = {.size = 1000};
    gm_block *block = NULL;

    bench_init(&b);
    let_go(take_bytes(b.pool, 1000));
    gm_pool_lock(b.pool);
    CHECK_EQ(gm_pool_malloc(b.pool, &request, &block), GM_BUSY);
    gm_pool_unlock(b.pool);
    CHECK(block == NULL);
    CHECK_EQ(gm_pool_malloc(b.pool, &request, &block), GM_OK);
    let_go(hold(b.pool, block));
    bench_fini(&b);
}

static void
add_freed(gm_stats *s, size_t requested, size_t rounded)
{
    s->freed_requested_bytes += requested;
    s->freed_bytes += rounded;
    s->freed_blocks++;
}

TEST(pool_counters_through_one_life)
{
    bench b;
    holding h;
    gm_stats s = {0};

    bench_init(&b);
    h = take_bytes(b.pool, 1000);
    CHECK_EQ(h.block->size, 1024);
    s.requested_bytes = s.peak_requested_bytes = 1000;
    s.used_bytes = s.peak_used_bytes = s.total_bytes = s.peak_total_bytes = 1024;
    s.allocated_requested_bytes = 1000;
    s.allocated_bytes = s.upstream_allocated_bytes = 1024;
    s.live_blocks = s.segments = s.arenas = s.misses = s.upstream_allocations = 1;
    s.allocated_blocks = s.peak_live_blocks = s.peak_segments = 1;
    check_counts(b.pool, s);

    let_go(h);
    s.requested_bytes = s.used_bytes = s.live_blocks = 0;
    add_freed(&s, 1000, 1024);
    s.free_bytes = s.peak_free_bytes = 1024;
    s.free_blocks = 1;
    check_counts(b.pool, s);

    h = take_bytes(b.pool, 500); // a part of it
    s.requested_bytes = 500;
    s.used_bytes = s.free_bytes = 512;
    s.allocated_requested_bytes = 1500;
    s.allocated_bytes = 1536;
    s.allocated_blocks = 2;
    s.live_blocks = s.hits = s.splits = 1;
    check_counts(b.pool, s);

    let_go(h);
    s.requested_bytes = s.used_bytes = s.live_blocks = 0;
    add_freed(&s, 500, 512);
    s.free_bytes = 1024;
    s.merges = 1;
    check_counts(b.pool, s);

    h = take_bytes(b.pool, 1024); // all of it
    s.requested_bytes = s.peak_requested_bytes = s.used_bytes = 1024;
    s.free_bytes = s.free_blocks = 0;
    s.live_blocks = 1;
    s.allocated_requested_bytes = 2524;
    s.allocated_bytes = 2560;
    s.allocated_blocks = 3;
    s.hits = 2;
    check_counts(b.pool, s);

    let_go(h);
    CHECK_EQ(gm_pool_release_idle(b.pool), 1024);
    s.requested_bytes = s.used_bytes = s.total_bytes = 0;
    s.live_blocks = s.segments = s.arenas = 0;
    add_freed(&s, 1024, 1024);
    s.upstream_frees = 1;
    s.upstream_freed_bytes = 1024;
    check_counts(b.pool, s);
    CHECK_EQ(b.books.bytes, 0);
    bench_fini(&b);
}

TEST(pool_peaks_stay)
{
    bench b;
    holding x, y;
    gm_stats s;

    bench_init(&b);
    x = take_bytes(b.pool, 1);
    y = take_bytes(b.pool, 1025);
    let_go(x);
    let_go(y);
    (void)gm_pool_release_idle(b.pool);
    let_go(take_bytes(b.pool, 600));
    s = stats_of(b.pool);
    CHECK_EQ(s.peak_requested_bytes, 1026);
    CHECK_EQ(s.peak_used_bytes, 512 + 1536);
    CHECK_EQ(s.peak_total_bytes, 512 + 1536);
    CHECK_EQ(s.peak_free_bytes, 512 + 1536);
    CHECK_EQ(s.peak_live_blocks, 2);
    CHECK_EQ(s.peak_segments, 2);
    bench_fini(&b);
}

/* Four units, freed, serve two requests of two: the lower half first. */
TEST(pool_splits_from_the_low_end)
{
    bench b;
    holding whole, head, tail;
    uintptr_t base;

    bench_init(&b);
    whole = take_bytes(b.pool, UNITS(4));
    base = whole.block->addr;
    let_go(whole);
    head = take_bytes(b.pool, UNITS(2));
    tail = take_bytes(b.pool, UNITS(2));
    CHECK_EQ(head.block->addr, base);
    CHECK_EQ(tail.block->addr, base + UNITS(2));
    check_place(head, 0, 0);
    check_place(tail, 0, UNITS(2));
    CHECK_EQ(b.books.takes, 1);
    let_go(tail);
    let_go(head);
    bench_fini(&b);
}

TEST(pool_gives_back_the_block_freed_last_of_one_size)
{
    bench b;
    holding h;
    uintptr_t addr;

    bench_init(&b);
    h = take_bytes(b.pool, 4096);
    addr = h.block->addr;
    for (int i = 0; i < 10; i++) {
        let_go(h);
        h = take_bytes(b.pool, 4096);
        CHECK_EQ(h.block->addr, addr);
    }
    let_go(h);
    bench_fini(&b);
}

/* In which order they came back does not matter: the older segment goes first, though
 * it lies higher. */
TEST(pool_prefers_the_older_segment_of_equals)
{
    bench b;
    holding first, second, h;

    bench_init(&b);
    first = take_bytes(b.pool, 4096);
    second = take_bytes(b.pool, 4096);
    CHECK(first.block->addr > second.block->addr);
    let_go(first);
    let_go(second);
    h = take_bytes(b.pool, 4096);
    check_place(h, 0, 0);
    let_go(h);

    first = take_bytes(b.pool, 4096);
    second = take_bytes(b.pool, 4096);
    let_go(second);
    let_go(first);
    h = take_bytes(b.pool, 4096);
    check_place(h, 0, 0);
    let_go(h);
    bench_fini(&b);
}

/* Holes of 3, 1, 2 and 1 units in one segment, with live blocks between. */
TEST(pool_takes_the_smallest_hole_that_fits)
{
    static const size_t sizes[] = {3, 1, 1, 1, 2, 1, 1, 1};
    bench b;
    holding parts[8], one, two, three;

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(11)));
    for (size_t i = 0; i < 8; i++) {
        parts[i] = take_bytes(b.pool, UNITS(sizes[i]));
    }
    for (size_t i = 0; i < 8; i += 2) {
        let_go(parts[i]);
    }
    CHECK_EQ(stats_of(b.pool).free_blocks, 4);
    three = take_bytes(b.pool, UNITS(3));
    check_place(three, 0, 0);
    one = take_bytes(b.pool, UNITS(1)); // the lower of the two
    check_place(one, 0, UNITS(4));
    two = take_bytes(b.pool, UNITS(2));
    check_place(two, 0, UNITS(6));
    CHECK_EQ(b.books.takes, 1);
    let_go(three);
    let_go(one);
    let_go(two);
    for (size_t i = 1; i < 8; i += 2) {
        let_go(parts[i]);
    }
    CHECK_EQ(stats_of(b.pool).free_blocks, 1);
    bench_fini(&b);
}

/* Three neighbours freed in each of the six orders join into the whole. */
TEST(pool_joins_neighbours_in_any_order)
{
    static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                          {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    bench b;
    holding parts[3];

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(6)));
    for (size_t i = 0; i < 6; i++) {
        size_t merges = stats_of(b.pool).merges;

        for (size_t j = 0; j < 3; j++) {
            parts[j] = take_bytes(b.pool, UNITS(2));
            check_place(parts[j], 0, UNITS(2 * j));
        }
        for (size_t j = 0; j < 3; j++) {
            let_go(parts[orders[i][j]]);
            check_pool(b.pool);
        }
        CHECK_EQ(stats_of(b.pool).free_blocks, 1);
        CHECK_EQ(stats_of(b.pool).merges, merges + 2);
    }
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(6));
    bench_fini(&b);
}

TEST(pool_streams_do_not_share_blocks)
{
    bench b;
    holding h;

    bench_init(&b);
    let_go(take_for(b.pool, 4096, 1));
    h = take_for(b.pool, 4096, 2);
    CHECK_EQ(b.books.takes, 2);
    CHECK_EQ(stats_of(b.pool).arenas, 2);
    let_go(h);
    h = take_for(b.pool, 4096, 1);
    check_place(h, 0, 0);
    CHECK_EQ(b.books.takes, 2);
    let_go(h);
    CHECK_EQ(gm_pool_release_idle_of(b.pool, 3), 0);
    CHECK_EQ(gm_pool_release_idle_of(b.pool, 2), 4096);
    CHECK_EQ(stats_of(b.pool).arenas, 1);
    CHECK_EQ(gm_pool_release_idle_of(b.pool, 2), 0);
    CHECK_EQ(gm_pool_release_idle_of(b.pool, 1), 4096);
    CHECK_EQ(stats_of(b.pool).arenas, 0);
    bench_fini(&b);
}

TEST(pool_releases_only_whole_segments)
{
    bench b;
    holding part;

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(4)));
    part = take_bytes(b.pool, UNITS(1));
    let_go(take_bytes(b.pool, UNITS(8)));
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(8));
    CHECK_EQ(stats_of(b.pool).total_bytes, UNITS(4));
    check_place(part, 0, 0);
    let_go(part);
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(4));
    bench_fini(&b);
}

TEST(pool_notes_on_whose_account)
{
    bench b;
    gm_request request = {.size = 512, .client = 7};
    gm_block *block = NULL;

    bench_init(&b);
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, NULL, &block), GM_OK);
    CHECK_EQ(block->client, 7);
    let_go(hold(b.pool, block));
    request.client = 9;
    CHECK_EQ(gm_pool_malloc(b.pool, &request, &block), GM_OK);
    CHECK_EQ(block->client, 9);
    let_go(hold(b.pool, block));
    bench_fini(&b);
}

/* ---- handles ---- */

TEST(pool_block_changes_generation_when_it_goes_back)
{
    bench b;
    holding old, now;

    bench_init(&b);
    old = take_bytes(b.pool, 512);
    let_go(old);
    check_void(old);
    now = take_bytes(b.pool, 512);
    CHECK(now.block == old.block);
    CHECK(now.generation != old.generation);
    check_void(old);
    let_go(old); // somebody else's block by now
    check_place(now, 0, 0);
    CHECK_EQ(stats_of(b.pool).live_blocks, 1);
    let_go(now);
    bench_fini(&b);
}

TEST(pool_handle_is_void_once_its_address_was_freed)
{
    bench b;
    holding old, now;
    gm_stats before;

    bench_init(&b);
    old = take_bytes(b.pool, 512);
    CHECK_EQ(gm_pool_free_address(b.pool, old.block->addr), GM_OK);
    CHECK(old.block->generation != old.generation); // so that its holder can tell
    check_void(old);
    check_pool(b.pool);
    CHECK_EQ(stats_of(b.pool).live_blocks, 0);
    CHECK_EQ(stats_of(b.pool).free_bytes, 512);

    now = take_bytes(b.pool, 512); // the bytes go to another
    CHECK(now.block != old.block);
    check_place(now, 0, 0);
    before = stats_of(b.pool);
    let_go(old);
    check_counts(b.pool, before);
    check_place(now, 0, 0);
    let_go(now);
    bench_fini(&b);
}

/* In the middle, at the start and at the end of a segment: the neighbours must find
 * the node that takes over. */
TEST(pool_frees_by_address_anywhere_in_a_segment)
{
    bench b;

    bench_init(&b);
    let_go(take_bytes(b.pool, UNITS(3)));
    for (size_t which = 0; which < 3; which++) {
        holding parts[3];

        for (size_t i = 0; i < 3; i++) {
            parts[i] = take_bytes(b.pool, UNITS(1));
        }
        CHECK_EQ(gm_pool_free_address(b.pool, parts[which].block->addr), GM_OK);
        check_pool(b.pool);
        for (size_t i = 0; i < 3; i++) {
            let_go(parts[i]);
            check_pool(b.pool);
        }
        CHECK_EQ(stats_of(b.pool).free_blocks, 1);
    }
    bench_fini(&b);
}

TEST(pool_refuses_addresses_it_does_not_own)
{
    bench b, other;
    holding low, high, foreign;
    gm_stats before;

    bench_init(&b);
    bench_init(&other);
    other.books.lowest /= 2; // addresses of its own
    let_go(take_bytes(b.pool, UNITS(4)));
    low = take_bytes(b.pool, UNITS(2));
    high = take_bytes(b.pool, UNITS(1));
    foreign = take_bytes(other.pool, UNITS(1) + 1);
    const uintptr_t addresses[] = {
        0,
        1,
        UINTPTR_MAX,
        low.block->addr - 1,
        low.block->addr + 1,        // inside a block
        low.block->addr + UNITS(1), // the same, on a unit
        low.block->addr + UNITS(3), // a free block
        low.block->addr + UNITS(4), // the end of the segment
    };

    before = stats_of(b.pool);
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        harness_note("address %zu", i);
        CHECK_EQ(gm_pool_free_address(b.pool, addresses[i]), GM_ERR_NOT_OWNED);
    }
    check_counts(b.pool, before);
    CHECK_EQ(gm_pool_free_address(other.pool, high.block->addr), GM_ERR_NOT_OWNED);
    check_place(foreign, 0, 0);

    CHECK_EQ(gm_pool_free_address(b.pool, high.block->addr), GM_OK);
    CHECK_EQ(gm_pool_free_address(b.pool, high.block->addr), GM_ERR_NOT_OWNED);
    let_go(high);
    let_go(low);
    CHECK_EQ(gm_pool_free_address(b.pool, low.block->addr), GM_ERR_NOT_OWNED);
    let_go(foreign);
    bench_fini(&b);
    bench_fini(&other);
}
