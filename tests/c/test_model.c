/* SPDX-License-Identifier: MIT
 *
 * The pool against the naive one of model.h: the same random requests to both, several
 * streams, with limits, releases and frees by address in between. Every block lies
 * where the model puts it and every counter says what the model counts.
 */
#include "dice.h"
#include "holding.h"
#include "ledger.h"
#include "model.h"

#include "core/gm_shard.h" // GM_SHARD_LATE

enum {
    LIVE_MAX = 400,
    KEYS = 4,
};

typedef struct pair {
    holding held;
    model_place place;
} pair;

typedef struct race {
    ledger books;
    gm_pool *pool;
    model model;
    dice d;
    pair live[LIVE_MAX];
    size_t live_count;
    bool thorough;   // walks the whole pool after each look
    unsigned rests;  // steps between looks, which end what the pool keeps of a request
    uint64_t stride; // from one stream's key to the next one's
    size_t scale;    // of sizes
} race;

#if GM_SHARDS

/* A peak of what is in use, where several shards are at work. */
static void
allow_late(size_t *expected, size_t actual, size_t late)
{
    if (actual + KEYS * 2 * late >= *expected &&
        actual <= *expected + KEYS * 2 * late) {
        *expected = actual;
    }
}

static void
allow_for_shards(const race *r, gm_stats *expected, const gm_stats *stats)
{
    if (r->stride % GM_SHARD_COUNT == 0) {
        return;
    }
    allow_late(&expected->peak_requested_bytes, stats->peak_requested_bytes,
               GM_SHARD_LATE);
    allow_late(&expected->peak_used_bytes, stats->peak_used_bytes, GM_SHARD_LATE);
    allow_late(&expected->peak_free_bytes, stats->peak_free_bytes, GM_SHARD_LATE);
    allow_late(&expected->peak_live_blocks, stats->peak_live_blocks,
               GM_SHARD_LATE_BLOCKS);
}

#else

static void
allow_for_shards(const race *r, gm_stats *expected, const gm_stats *stats)
{
    (void)r;
    (void)expected;
    (void)stats;
}

#endif

/* One of the streams. */
static uint64_t
some_key(race *r)
{
    return dice_below(&r->d, KEYS) * r->stride;
}

static void
check_counters(const race *r)
{
    const model *m = &r->model;
    model_sums sums = model_sum(m);
    gm_stats stats = stats_of(r->pool);
    gm_stats expected = {
        .requested_bytes = sums.requested,
        .used_bytes = sums.used,
        .free_bytes = sums.total - sums.used,
        .total_bytes = sums.total,
        .limit_bytes = m->limit,
        .peak_requested_bytes = m->peak_requested,
        .peak_used_bytes = m->peak_used,
        .peak_free_bytes = m->peak_free,
        .peak_total_bytes = m->peak_total,
        .peak_live_blocks = m->peak_live,
        .peak_segments = m->peak_segments,
        .allocated_requested_bytes = m->allocated_requested,
        .freed_requested_bytes = m->allocated_requested - sums.requested,
        .allocated_bytes = m->allocated,
        .freed_bytes = m->allocated - sums.used,
        .upstream_allocated_bytes = m->upstream_allocated,
        .upstream_freed_bytes = m->upstream_freed,
        .allocated_blocks = m->hits + m->misses,
        .freed_blocks = m->hits + m->misses - sums.live_blocks,
        .live_blocks = sums.live_blocks,
        .free_blocks = sums.free_blocks,
        .segments = m->segment_count,
        .arenas = sums.keys,
        .hits = m->hits,
        .misses = m->misses,
        .splits = m->splits,
        .merges = m->merges,
        .upstream_allocations = m->misses,
        .upstream_frees = m->releases,
        .retries = m->retries,
        .out_of_memory = m->refusals,
    };

    allow_for_shards(r, &expected, &stats);
    check_same_stats(&stats, &expected);
    CHECK_EQ(r->books.bytes, sums.total);
}

/* Mostly a few units, at times many. */
static size_t
some_size(race *r)
{
    dice *d = &r->d;

    switch (dice_below(d, 8)) {
    case 0:
        return 1 + dice_below(d, UNITS(2000) * r->scale);
    case 1:
    case 2:
        return UNITS(1 + dice_below(d, 40)) * r->scale;
    default:
        return 1 + dice_below(d, UNITS(12) * r->scale);
    }
}

/* Asks both; false where the limit forbids it. Looks at the block itself, since to ask
 * the pool for its place is one more thing done with the pool. */
static bool
ask_both(race *r, size_t size, uint64_t key, pair *out)
{
    bool fits = model_malloc(&r->model, size, key, &out->place);

    CHECK_EQ(try_hold(r->pool, size, key, &out->held), fits ? GM_OK : GM_ERR_LIMIT);
    if (fits) {
        const gm_block *block = out->held.block;

        CHECK_EQ(block->size, out->place.size);
        CHECK_EQ(block->segment->serial, out->place.serial);
        CHECK_EQ(block->addr - block->segment->piece.base, out->place.offset);
    }
    return fits;
}

static void
step_malloc(race *r)
{
    pair p = {0};

    size_t size = some_size(r);

    if (ask_both(r, size, some_key(r), &p)) {
        r->live[r->live_count++] = p;
    }
}

/* One block after the other, each given back at once: mostly of one size after rounding
 * and for one stream. */
static void
step_temporaries(race *r)
{
    size_t units = (some_size(r) + 511) / 512;
    uint64_t key = some_key(r);

    for (size_t i = dice_below(&r->d, 6); i-- > 0;) {
        pair p = {0};

        if (dice_below(&r->d, 8) == 0) {
            key = some_key(r);
        }
        if (dice_below(&r->d, 8) == 0) {
            units = 1 + dice_below(&r->d, units + 1);
        }
        if (!ask_both(r, UNITS(units) - dice_below(&r->d, 512), key, &p)) {
            return;
        }
        CHECK(model_free(&r->model, p.place));
        let_go(p.held);
    }
}

static void
step_free(race *r)
{
    size_t at = dice_below(&r->d, r->live_count);
    pair p = r->live[at];

    r->live[at] = r->live[--r->live_count];
    CHECK(model_free(&r->model, p.place));
    if (dice_below(&r->d, 10) == 0) {
        CHECK_EQ(gm_pool_free_address(r->pool, p.held.block->addr), GM_OK);
        check_void(p.held);
    }
    let_go(p.held);
}

static void
step_other(race *r)
{
    uint64_t key = some_key(r);

    switch (dice_below(&r->d, 3)) {
    case 0:
        CHECK_EQ(gm_pool_release_idle(r->pool), model_release(&r->model, NULL));
        break;
    case 1:
        CHECK_EQ(gm_pool_release_idle_of(r->pool, key), model_release(&r->model, &key));
        break;
    default:
        // At times below what is held, at times none.
        r->model.limit = dice_below(&r->d, 2) == 0
                             ? 0
                             : model_sum(&r->model).total / 2 +
                                   dice_below(&r->d, UNITS(1500) * r->scale);
        gm_pool_set_limit(r->pool, r->model.limit);
        if (r->model.limit && model_sum(&r->model).total > r->model.limit) {
            model_release(&r->model, NULL);
        }
    }
}

static void
step(race *r, size_t wanted_live)
{
    if (dice_below(&r->d, 200) == 0) {
        step_other(r);
    }
    else if (dice_below(&r->d, 8) == 0) {
        step_temporaries(r);
    }
    else if (r->live_count == 0 ||
             (r->live_count < LIVE_MAX &&
              dice_below(&r->d, 2 * wanted_live) >= r->live_count)) {
        step_malloc(r);
    }
    else {
        step_free(r);
    }
    if (dice_below(&r->d, r->rests + 1) == 0) {
        check_counters(r);
        if (r->thorough) {
            check_pool(r->pool);
        }
    }
}

/* A race that is not set up yet. */
static race *
begin(uint64_t seed, bool thorough, unsigned rests)
{
    static race r;

    harness_note("seed %llu", (unsigned long long)seed);
    r = (race){.d = {seed}, .thorough = thorough, .rests = rests, .scale = 1};
    r.stride = seed % 2 == 0 ? 1024 : 1000; // one shard for all streams, or several
    ledger_init(&r.books);
    r.pool = ledger_pool(&r.books, 0);
    return &r;
}

static void
run(race *r, size_t wanted_live, size_t steps)
{
    for (size_t i = 0; i < steps; i++) {
        step(r, wanted_live);
    }
    check_pool(r->pool);
    while (r->live_count > 0) {
        step_free(r);
    }
    check_counters(r);
    gm_pool_close(r->pool);
    model_fini(&r->model);
    ledger_fini(&r->books);
}

static void
run_grown_race(uint64_t seed,
               size_t growth_step,
               size_t wanted_live,
               size_t steps,
               bool thorough,
               unsigned rests)
{
    race *r = begin(seed, thorough, rests);

    r->model.step = growth_step;
    gm_pool_set_growth(r->pool, growth_step);
    run(r, wanted_live, steps);
}

static void
run_ruled_race(uint64_t seed,
               const gm_large_rules *rules,
               size_t wanted_live,
               size_t steps,
               bool thorough,
               unsigned rests)
{
    race *r = begin(seed, thorough, rests);

    /* To 8 MiB. A block that rests in one shard counts as in use when another one tells
     * of a peak, so with several shards sizes stay below what is allowed for. */
    r->scale = r->stride % 64 == 0 ? 8 : 1;
    r->model.whole_from = rules->max_split_size;
    r->model.whole_slack = rules->max_non_split_rounding;
    r->model.unit = rules->large_segment_size;
    gm_pool_set_large_rules(r->pool, rules);
    run(r, wanted_live, steps);
}

static void
run_race(uint64_t seed, size_t wanted_live, size_t steps, bool thorough, unsigned rests)
{
    run_grown_race(seed, 0, wanted_live, steps, thorough, rests);
}

TEST(model_long_runs_agree)
{
    for (uint64_t seed = 1; seed <= 4; seed++) {
        run_race(seed, 200, 50000 / (size_t)harness_slowness(), false, 0);
    }
}

TEST(model_runs_of_few_blocks_agree)
{
    for (uint64_t seed = 100; seed < 120; seed++) {
        run_race(seed, 8, 5000 / (size_t)harness_slowness(), true, 0);
    }
}

TEST(model_runs_checked_at_each_step_agree)
{
    for (uint64_t seed = 200; seed < 205; seed++) {
        run_race(seed, 80, 2000 / (size_t)harness_slowness(), true, 0);
    }
}

TEST(model_runs_seldom_looked_at_agree)
{
    for (uint64_t seed = 300; seed < 304; seed++) {
        run_race(seed, 100, 50000 / (size_t)harness_slowness(), false, 20);
    }
    for (uint64_t seed = 304; seed < 324; seed++) {
        run_race(seed, 6, 5000 / (size_t)harness_slowness(), true, 5);
    }
}

/* Steps from less than most requests to more than most of what is in use. */
TEST(model_runs_with_growth_agree)
{
    for (uint64_t seed = 400; seed < 420; seed++) {
        size_t growth_step = UNITS(1) << (seed - 400);

        run_grown_race(seed, growth_step, 8, 5000 / (size_t)harness_slowness(), true,
                       0);
        run_grown_race(seed, growth_step, 150, 5000 / (size_t)harness_slowness(), false,
                       5);
    }
}

/* Blocks kept whole from less than most requests to more than all; with some slack,
 * with none, with any; and segments as large as requests, or of whole units. */
TEST(model_runs_with_rules_for_large_requests_agree)
{
    const size_t slacks[] = {0, UNITS(300), UNITS(4000), SIZE_MAX};

    for (uint64_t seed = 500; seed < 532; seed++) {
        gm_large_rules rules = {
            .max_split_size = seed % 8 == 7 ? 0 : UNITS(20) << 2 * (seed % 8),
            .max_non_split_rounding = slacks[seed / 8 % 4],
            .large_segment_size = seed % 3 == 0 ? 0 : UNITS(5000),
        };

        run_ruled_race(seed, &rules, 8, 5000 / (size_t)harness_slowness(), true, 0);
        run_ruled_race(seed, &rules, 150, 5000 / (size_t)harness_slowness(), false, 5);
    }
}
