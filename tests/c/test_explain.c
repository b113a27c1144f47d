/* SPDX-License-Identifier: MIT
 *
 * What is read off a pool: peaks and their reset, where cached bytes lie, and how large
 * a request would get memory. On a device whose memory is one stretch, so that the
 * right figures can be worked out by hand.
 */
#include "device.h"
#include "holding.h"
#include "ledger.h"

#include "core/gm_process.h"

/* A small device, and a pool on it. */
typedef struct bench {
    gm_backend *sim;
    gm_pool *pool;
} bench;

static void
bench_init(bench *b, gm_sim_options options)
{
    options.devices = 1;
    b->sim = open_sim(options);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b->sim), &b->pool), GM_OK);
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    gm_pool_close(b->pool);
    check_no_pool_is_left();
    check_ledger_is_empty(b->sim);
    CHECK_EQ(read_ledger(b->sim).errors, 0);
    gm_backend_close(b->sim);
}

static gm_survey
survey_of(gm_pool *pool)
{
    gm_stats counters = stats_of(pool), stats = {0};
    gm_survey survey;

    CHECK_EQ(gm_pool_survey(pool, &stats, &survey), GM_OK);
    check_same_stats(&stats, &counters);
    CHECK_EQ(survey.idle_bytes + survey.inactive_split_bytes, stats.free_bytes);
    return survey;
}

/* A request of the largest available size is served, and one of a unit more is not.
 * Leaves the pool's idle memory given back. */
static void
check_available(gm_pool *pool, size_t size)
{
    holding h;

    CHECK_EQ(survey_of(pool).largest_available_block, size);
    if (size > 0) {
        let_go(take_bytes(pool, size));
    }
    CHECK(try_hold(pool, size + GM_UNIT, 0, &h) != GM_OK);
}

/* ---- peaks ---- */

TEST(explain_peaks_begin_anew_at_what_is_held)
{
    bench b;
    holding h;
    gm_stats s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 1000);
    let_go(take_bytes(b.pool, 5000));
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    s = stats_of(b.pool);
    CHECK_EQ(s.peak_requested_bytes, 1000);
    CHECK_EQ(s.peak_used_bytes, 1024);
    CHECK_EQ(s.peak_free_bytes, 5120);
    CHECK_EQ(s.peak_total_bytes, 6144);
    CHECK_EQ(s.peak_live_blocks, 1);
    CHECK_EQ(s.peak_segments, 2);
    CHECK_EQ(s.allocated_blocks, 2); // what is summed up goes on

    (void)gm_pool_release_idle(b.pool);
    CHECK_EQ(stats_of(b.pool).peak_free_bytes, 5120);
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    CHECK_EQ(stats_of(b.pool).peak_free_bytes, 0);
    CHECK_EQ(stats_of(b.pool).peak_total_bytes, 1024);
    CHECK_EQ(stats_of(b.pool).peak_segments, 1);
    let_go(h);
    bench_fini(&b);
}

/* The cache is at its fullest between two calls that look at no peak. */
TEST(explain_the_peak_of_the_cache_is_seen_by_whoever_takes_from_it)
{
    bench b;
    holding x, y;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    x = take_bytes(b.pool, UNITS(3));
    y = take_bytes(b.pool, UNITS(4));
    let_go(x);
    let_go(y);
    x = take_bytes(b.pool, UNITS(4)); // a hit
    CHECK_EQ(stats_of(b.pool).free_bytes, UNITS(3));
    CHECK_EQ(stats_of(b.pool).peak_free_bytes, UNITS(7));
    let_go(x);
    CHECK_EQ(gm_pool_reset_peaks(b.pool), GM_OK);
    let_go(take_bytes(b.pool, UNITS(9)));
    CHECK_EQ(gm_pool_release_idle(b.pool), UNITS(16)); // given back, not read
    CHECK_EQ(stats_of(b.pool).free_bytes, 0);
    CHECK_EQ(stats_of(b.pool).peak_free_bytes, UNITS(16));
    bench_fini(&b);
}

/* ---- where the cached bytes lie ---- */

TEST(explain_idle_and_split_segments_apart)
{
    bench b;
    holding whole, keep, other;
    gm_survey s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    whole = take_bytes(b.pool, UNITS(10));
    other = take_for(b.pool, UNITS(3), 5);
    let_go(whole);
    keep = take_bytes(b.pool, UNITS(2)); // a piece of it
    let_go(other);
    s = survey_of(b.pool);
    CHECK_EQ(s.idle_bytes, UNITS(3));
    CHECK_EQ(s.inactive_split_bytes, UNITS(8));
    CHECK_EQ(s.largest_free_block, UNITS(8));
    let_go(keep);
    s = survey_of(b.pool);
    CHECK_EQ(s.idle_bytes, UNITS(13));
    CHECK_EQ(s.inactive_split_bytes, 0);
    CHECK_EQ(s.largest_free_block, UNITS(10));
    bench_fini(&b);
}

/* ---- how much a request could get ---- */

TEST(explain_a_pool_that_took_nothing_asks_nobody)
{
    bench b;
    gm_survey s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    gm_sim_log_start(b.sim);
    s = survey_of(b.pool);
    CHECK_EQ(s.largest_available_block, 0);
    CHECK_EQ(gm_sim_log_count(b.sim), 0);
    gm_sim_log_stop(b.sim);
    bench_fini(&b);
}

/* Every other one of 64 pieces: half the device is free and no two pieces of it meet.
 */
TEST(explain_a_checkerboard_has_room_for_one_piece)
{
    bench b;
    holding held[64];

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    for (size_t i = 0; i < 64; i++) {
        held[i] = take_bytes(b.pool, MIB);
    }
    for (size_t i = 0; i < 64; i += 2) {
        let_go(held[i]);
    }
    CHECK_EQ(survey_of(b.pool).largest_free_block, MIB);
    check_available(b.pool, MIB);
    for (size_t i = 1; i < 64; i += 2) {
        let_go(held[i]);
    }
    bench_fini(&b);
}

/* The same where pages may lie anywhere: what is free is obtainable. */
TEST(explain_a_scattered_checkerboard_has_room_for_all_that_is_free)
{
    bench b;
    holding held[64];

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB, .scattered = true});
    for (size_t i = 0; i < 64; i++) {
        held[i] = take_bytes(b.pool, MIB);
    }
    for (size_t i = 0; i < 64; i += 2) {
        let_go(held[i]);
    }
    check_available(b.pool, 32 * MIB);
    for (size_t i = 1; i < 64; i += 2) {
        let_go(held[i]);
    }
    bench_fini(&b);
}

/* Idle segments that meet make room together, of whichever pool they are. */
TEST(explain_what_siblings_could_give_back_counts)
{
    bench b;
    gm_pool *sibling = NULL;
    holding a, c;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b.sim), &sibling), GM_OK);
    a = take_bytes(b.pool, 8 * MIB);
    c = take_bytes(sibling, 16 * MIB);
    let_go(take_bytes(b.pool, 4 * MIB));
    let_go(c);
    // 8 in use, then 16 idle, 4 idle and 36 that nobody has.
    CHECK_EQ(survey_of(b.pool).largest_free_block, 4 * MIB);
    check_available(b.pool, 56 * MIB);
    let_go(a);
    gm_pool_close(sibling);
    bench_fini(&b);
}

TEST(explain_the_limit_bounds_what_is_available)
{
    bench b;
    holding h;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 2 * MIB);
    let_go(take_bytes(b.pool, 3 * MIB));
    CHECK_EQ(gm_pool_set_limit(b.pool, 12 * MIB + 700), GM_OK);
    check_available(b.pool, 10 * MIB + 512);
    let_go(take_bytes(b.pool, 3 * MIB));
    CHECK_EQ(gm_pool_set_limit(b.pool, 5 * MIB), GM_OK);          // as much as is held
    CHECK_EQ(survey_of(b.pool).largest_available_block, 3 * MIB); // the cached block
    CHECK_EQ(gm_pool_set_limit(b.pool, MIB), GM_OK);              // less than is in use
    CHECK_EQ(survey_of(b.pool).largest_available_block, 0);
    let_go(h);
    bench_fini(&b);
}

/* What somebody else holds is nobody's to give back. */
TEST(explain_what_others_hold_is_not_available)
{
    bench b;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB, .others = 24 * MIB});
    let_go(take_bytes(b.pool, MIB));
    check_available(b.pool, 40 * MIB);
    bench_fini(&b);
}

/* Where upstream does not tell, or there is no host memory for the list, the pool's own
 * cache is what is known. */
TEST(explain_without_an_answer_the_cache_is_what_there_is)
{
    ledger books;
    gm_pool *pool;

    ledger_init(&books);
    pool = ledger_pool(&books, 0);
    let_go(take_bytes(pool, UNITS(5)));
    CHECK_EQ(survey_of(pool).largest_available_block, UNITS(5));
    gm_pool_close(pool);
    ledger_fini(&books);
}

static bool
always(void *context, size_t size)
{
    (void)context;
    (void)size;
    return true;
}

TEST(explain_needs_no_host_memory)
{
    bench b;
    holding h;
    gm_survey s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 32 * MIB);
    let_go(take_bytes(b.pool, 8 * MIB));
    gm_host_set_fault(always, NULL);
    s = survey_of(b.pool);
    gm_host_set_fault(NULL, NULL);
    CHECK_EQ(s.largest_free_block, 8 * MIB);
    CHECK_EQ(s.largest_available_block, 24 * MIB); // as if nothing were given back
    CHECK_EQ(survey_of(b.pool).largest_available_block, 32 * MIB);
    let_go(h);
    bench_fini(&b);
}

/* A device that does not answer is no reason to fail. */
TEST(explain_survives_a_device_that_does_not_answer)
{
    static const char *const calls[] = {"mem_info", "mem_largest"};
    bench b;
    gm_backend *fault = NULL;
    gm_pool *pool = NULL;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    CHECK_EQ(gm_backend_fault_open(b.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    let_go(take_bytes(pool, MIB));
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(gm_fault_plan(fault, calls[i], 1, 0, GM_DEVICE_ERROR(700)), GM_OK);
        CHECK_EQ(survey_of(pool).largest_available_block, MIB);
    }
    gm_fault_clear(fault);
    CHECK_EQ(survey_of(pool).largest_available_block, 64 * MIB);
    gm_pool_close(pool);
    gm_backend_close(fault);
    bench_fini(&b);
}
