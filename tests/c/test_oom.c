/* SPDX-License-Identifier: MIT
 *
 * Failures one by one: a scenario runs again and again, and in round n the n-th host
 * allocation, or the n-th call of the backend, fails. Each time the right status comes
 * out, the counters are as before the call, the pool is sound, and in the end nothing
 * is left behind. The rounds stop when one gets through with no failure.
 */
#include "device.h"
#include "holding.h"
#include "ledger.h"

#include "core/gm_process.h"

/* ---- the scenario ---- */

enum {
    SLOTS = 100,
};

typedef struct scenario {
    gm_pool *pool;
    holding held[SLOTS];
    gm_status expected;      // of a request that fails
    bool (*was_hit)(void *); // whether the last request met the failure; resets
    void *context;
    size_t failed;  // requests that did
    size_t ignored; // that met it and succeeded all the same
} scenario;

/* A request that fails leaves no trace but in the counters about failing; want of
 * device memory also gives idle segments back. */
static void
check_untouched(gm_pool *pool, gm_stats before, gm_status status)
{
    gm_stats after = stats_of(pool);

    if (status == GM_ERR_OUT_OF_MEMORY) {
        size_t bytes = before.total_bytes - after.total_bytes;

        CHECK_EQ(after.out_of_memory, before.out_of_memory + 1);
        CHECK_EQ(after.retries, before.retries + (bytes > 0));
        CHECK_EQ(before.segments - after.segments,
                 after.upstream_frees - before.upstream_frees);
        CHECK_EQ(after.upstream_freed_bytes - before.upstream_freed_bytes, bytes);
        CHECK_EQ(before.free_bytes - after.free_bytes, bytes);
        CHECK_EQ(gm_pool_release_idle(pool), 0);
        before.total_bytes = after.total_bytes;
        before.free_bytes = after.free_bytes;
        before.free_blocks = after.free_blocks;
        before.segments = after.segments;
        before.arenas = after.arenas;
        before.upstream_frees = after.upstream_frees;
        before.upstream_freed_bytes = after.upstream_freed_bytes;
        before.out_of_memory = after.out_of_memory;
        before.retries = after.retries;
    }
    check_same_stats(&after, &before);
}

static void
request(scenario *s, size_t slot, size_t size, gm_stream_key key)
{
    gm_stats before = stats_of(s->pool);
    gm_status status = try_hold(s->pool, size, key, &s->held[slot]);
    bool hit = s->was_hit(s->context);

    check_pool(s->pool);
    if (status == GM_OK) {
        s->ignored += hit;
        return;
    }
    CHECK(hit);
    CHECK_EQ(status, s->expected);
    s->failed++;
    s->held[slot].block = NULL;
    check_untouched(s->pool, before, status);
}

static void
end(scenario *s, size_t slot)
{
    if (s->held[slot].block != NULL) {
        let_go(s->held[slot]);
        s->held[slot].block = NULL;
        check_pool(s->pool);
    }
}

/* A void handle is left where the address could be freed. */
static void
end_by_address(scenario *s, size_t slot)
{
    gm_stats before = stats_of(s->pool);
    gm_status status;

    if (s->held[slot].block == NULL) {
        return;
    }
    status = gm_pool_free_address(s->pool, s->held[slot].block->addr);
    check_pool(s->pool);
    if (s->was_hit(s->context)) {
        CHECK_EQ(status, GM_ERR_HOST_MEMORY);
        check_untouched(s->pool, before, status);
        s->failed++;
    }
    else {
        CHECK_EQ(status, GM_OK);
    }
}

/* Many blocks of one segment (more slabs), many streams (a larger table), hits with and
 * without a split, frees by either way, idle segments. */
static void
run_scenario(scenario *s)
{
    request(s, 0, UNITS(150), 0);
    end(s, 0);
    for (size_t i = 0; i < SLOTS; i++) {
        request(s, i, UNITS(1), 0);
    }
    for (size_t i = 0; i < SLOTS; i += 2) {
        i % 4 == 0 ? end(s, i) : end_by_address(s, i);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        end(s, i);
    }
    for (size_t i = 0; i < 40; i++) {
        request(s, i, UNITS(1 + i), i);
        if (i % 3 == 1) {
            end(s, i);
        }
    }
    for (size_t i = 0; i < 40; i++) {
        end(s, i);
    }
    (void)gm_pool_release_idle(s->pool);
    CHECK_EQ(stats_of(s->pool).total_bytes, 0);
    request(s, 0, UNITS(2), 7); // outlives the pool's owner
    gm_pool_close(s->pool);
    if (s->held[0].block != NULL) {
        let_go(s->held[0]);
    }
    CHECK(!s->was_hit(s->context)); // giving back allocates nothing
}

/* ---- host memory ---- */

typedef struct host_plan {
    size_t until; // allocations before the first that fails
    bool for_ever;
    size_t seen;
    bool hit;
} host_plan;

static bool
host_fails(void *context, size_t size)
{
    host_plan *plan = context;
    bool fails = plan->for_ever ? plan->seen >= plan->until : plan->seen == plan->until;

    (void)size;
    plan->seen++;
    plan->hit |= fails;
    return fails;
}

static bool
host_was_hit(void *context)
{
    host_plan *plan = context;
    bool hit = plan->hit;

    plan->hit = false;
    return hit;
}

/* False when the plan had nothing to fail any more. */
static bool
run_host_round(size_t until, bool for_ever, size_t *ignored)
{
    ledger books;
    host_plan plan = {.until = until, .for_ever = for_ever};
    scenario s = {
        .expected = GM_ERR_HOST_MEMORY, .was_hit = host_was_hit, .context = &plan};

    harness_note("allocation %zu fails%s", until, for_ever ? " and all after it" : "");
    ledger_init(&books);
    gm_host_set_fault(host_fails, &plan);
    if (gm_pool_new(0, ledger_upstream(&books), &s.pool) != GM_OK) {
        CHECK(s.pool == NULL && until == 0);
        gm_host_set_fault(NULL, NULL);
        CHECK_EQ(books.ends, 0); // upstream was not taken over
        return true;
    }
    books.pools = 1;
    run_scenario(&s);
    gm_host_set_fault(NULL, NULL);
    ledger_fini(&books);
    *ignored += s.ignored;
    return plan.seen > until;
}

/* A table of arenas that cannot grow is only slower: the one growth that happens here,
 * from 8 buckets, is the one failure that nobody sees. */
TEST(oom_of_the_host_at_each_allocation)
{
    size_t rounds = 0, ignored = 0;

    while (run_host_round(rounds, false, &ignored)) {
        rounds++;
    }
    CHECK(rounds > 80); // the pool, a table, slabs, and for 41 misses two each
    CHECK_EQ(ignored, 1);
}

TEST(oom_of_the_host_from_each_allocation_on)
{
    size_t rounds = 0, ignored = 0;

    while (run_host_round(rounds, true, &ignored)) {
        rounds++;
    }
    CHECK(rounds > 80);
}

/* ---- the backend ---- */

typedef struct device_plan {
    gm_backend *sim;
    gm_backend *fault;
    uint64_t known; // failures accounted for
} device_plan;

static bool
device_was_hit(void *context)
{
    device_plan *plan = context;
    uint64_t seen = 0, injected = 0;
    bool hit;

    gm_fault_counts(plan->fault, &seen, &injected);
    hit = injected > plan->known;
    plan->known = injected;
    return hit;
}

static void
device_open(device_plan *plan)
{
    *plan = (device_plan){
        .sim = open_sim((gm_sim_options){.devices = 1, .memory = 64 * MIB})};
    CHECK_EQ(gm_backend_fault_open(plan->sim, &plan->fault), GM_OK);
}

static void
device_close(device_plan *plan)
{
    gm_backend_close(plan->fault);
    check_ledger_is_empty(plan->sim);
    CHECK_EQ(read_ledger(plan->sim).errors, 0);
    gm_backend_close(plan->sim);
}

static bool
run_device_round(uint64_t nth, uint64_t count, gm_status why, size_t *ignored)
{
    device_plan plan;
    scenario s = {.expected = why, .was_hit = device_was_hit, .context = &plan};
    uint64_t seen = 0, injected = 0;

    harness_note("call %llu fails with %d", (unsigned long long)nth, why);
    device_open(&plan);
    CHECK_EQ(gm_fault_plan(plan.fault, "mem_alloc", nth, count, why), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(plan.fault), &s.pool), GM_OK);
    run_scenario(&s);
    gm_fault_counts(plan.fault, &seen, &injected);
    CHECK_EQ(s.failed + s.ignored > 0, injected > 0);
    device_close(&plan);
    *ignored += s.ignored;
    return injected > 0;
}

/* Runs all rounds; how many there were, in how many a failure was made up for. */
static size_t
run_device_rounds(uint64_t count, gm_status why, size_t *ignored)
{
    uint64_t nth = 1;

    *ignored = 0;
    while (run_device_round(nth, count, why, ignored)) {
        nth++;
    }
    return (size_t)nth - 1;
}

TEST(oom_of_the_backend_at_each_call)
{
    static const gm_status codes[] = {GM_DEVICE_ERROR(700), GM_ERR_INTERNAL,
                                      GM_ERR_INVALID_DEVICE};
    size_t ignored = 0;

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        // The large one, 40 streams less the one that hits, the last.
        CHECK_EQ(run_device_rounds(1, codes[i], &ignored), 41);
        CHECK_EQ(ignored, 0);
        CHECK(run_device_rounds(0, codes[i], &ignored) >= 41);
    }
}

/* One shortage is made up for wherever there is idle memory to give back. */
TEST(oom_of_the_device_at_each_call)
{
    size_t ignored = 0;

    CHECK(run_device_rounds(1, GM_ERR_OUT_OF_MEMORY, &ignored) > 0);
    CHECK(ignored > 0);
    (void)run_device_rounds(0, GM_ERR_OUT_OF_MEMORY, &ignored);
}

/* Memory that a device will not take back is lost to the device, not to the pool. */
TEST(oom_frees_that_fail_do_not_disturb)
{
    device_plan plan;
    gm_pool *pool = NULL;
    gm_stats s;
    holding h;

    device_open(&plan);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(plan.fault), &pool), GM_OK);
    let_go(take_bytes(pool, UNITS(2)));
    let_go(take_for(pool, UNITS(3), 1));
    CHECK_EQ(gm_fault_plan(plan.fault, "mem_free", 1, 1, GM_DEVICE_ERROR(700)), GM_OK);
    CHECK_EQ(gm_pool_release_idle(pool), UNITS(5));
    s = stats_of(pool);
    CHECK_EQ(s.total_bytes, 0);
    CHECK_EQ(s.upstream_frees, 2);
    check_pool(pool);
    CHECK_EQ(read_ledger(plan.sim).bytes, UNITS(2)); // the one that failed
    h = take_bytes(pool, UNITS(1));
    let_go(h);
    gm_pool_close(pool);
    CHECK_EQ(read_ledger(plan.sim).bytes, UNITS(2));
    gm_backend_close(plan.fault);
    gm_backend_close(plan.sim);
}
