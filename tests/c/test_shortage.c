/* SPDX-License-Identifier: MIT
 *
 * A request that finds no memory: the user is asked, as the last stage and not for
 * ever, and what is said of it afterwards has the right cause and numbers.
 */
#include "device.h"
#include "holding.h"
#include "ledger.h"

#include "core/gm_capture.h"
#include "core/gm_pool_private.h" // gm_pool_try_lock
#include "core/gm_process.h"

#include <string.h>

/* A small device, a pool on it, and a user who lets go of `kept` when asked. */
typedef struct bench {
    gm_backend *sim;
    gm_backend *fault;
    gm_pool *pool;
    gm_pool *other;
    holding kept[16];
    size_t kept_count;
    gm_answer answer;
    size_t asked;
    gm_shortage told; // last
} bench;

static void
bench_init(bench *b, gm_sim_options options)
{
    options.devices = 2;
    *b = (bench){.sim = open_sim(options), .answer = GM_ANSWER_RETRY};
    CHECK_EQ(gm_backend_fault_open(b->sim, &b->fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b->fault), &b->pool), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b->fault), &b->other), GM_OK);
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    check_pool(b->other);
    gm_pool_close(b->pool);
    gm_pool_close(b->other);
    gm_backend_close(b->fault);
    check_ledger_is_empty(b->sim);
    CHECK_EQ(read_ledger(b->sim).errors, 0);
    gm_backend_close(b->sim);
}

static void
keep(bench *b, size_t size)
{
    b->kept[b->kept_count++] = take_bytes(b->pool, size);
}

static gm_answer
ask(void *context, const gm_shortage *shortage)
{
    bench *b = context;

    CHECK(gm_pool_try_lock(b->pool));
    gm_pool_unlock(b->pool);
    b->asked++;
    CHECK_EQ(shortage->attempt, b->asked);
    b->told = *shortage;
    if (b->kept_count > 0) {
        let_go(b->kept[--b->kept_count]);
    }
    return b->answer;
}

static gm_status
request(bench *b, size_t size, holding *out)
{
    gm_request wanted = {.size = size};
    gm_rescue rescue = {.context = b, .ask = ask};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc_slow(b->pool, &wanted, &rescue, &block);

    if (status == GM_OK) {
        *out = hold(b->pool, block);
    }
    else {
        CHECK(block == NULL);
    }
    return status;
}

/* Of a request that has to fail with `status`. */
static gm_shortage
explain(gm_pool *pool, size_t size, gm_status status)
{
    gm_request wanted = {.size = size};
    gm_shortage s;
    holding h;

    CHECK_EQ(try_hold(pool, size, 0, &h), status);
    gm_pool_explain(pool, &wanted, status, &s);
    CHECK_EQ(s.size, size);
    CHECK_EQ(s.device, gm_pool_device(pool));
    CHECK_EQ(s.attempt, 0);
    return s;
}

/* ---- asking ---- */

TEST(shortage_the_user_is_asked_until_there_is_enough)
{
    bench b;
    holding h = {0};
    gm_stats s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    for (size_t i = 0; i < 4; i++) {
        keep(&b, 16 * MIB);
    }
    CHECK_EQ(request(&b, 40 * MIB, &h), GM_OK);
    CHECK_EQ(b.asked, 3); // 16, 32, 48
    CHECK_EQ(b.told.missing_bytes, 40 * MIB - 32 * MIB);
    CHECK_EQ(b.told.largest_available_block, 32 * MIB);
    s = stats_of(b.pool);
    CHECK_EQ(s.out_of_memory, 0);
    CHECK_EQ(s.used_bytes, 56 * MIB);
    let_go(h);
    let_go(b.kept[0]);
    bench_fini(&b);
}

TEST(shortage_the_user_is_not_asked_for_ever)
{
    bench b;
    holding h;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 40 * MIB);
    CHECK_EQ(request(&b, 40 * MIB, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(b.asked, 8);
    CHECK_EQ(stats_of(b.pool).retries, 8);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 1);
    CHECK_EQ(stats_of(b.pool).used_bytes, 40 * MIB);
    let_go(h);
    bench_fini(&b);
}

TEST(shortage_the_user_may_give_up_or_fail)
{
    bench b;
    holding h;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 40 * MIB);
    b.answer = GM_ANSWER_GIVE_UP;
    CHECK_EQ(request(&b, 40 * MIB, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(b.asked, 1);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 1);
    b.asked = 0;
    b.answer = GM_ANSWER_FAILED;
    CHECK_EQ(request(&b, 40 * MIB, &h), GM_ERR_CALLBACK);
    CHECK_EQ(b.asked, 1);
    CHECK_EQ(stats_of(b.pool).out_of_memory, 1); // that is not what it failed of
    CHECK_EQ(stats_of(b.pool).retries, 0);
    let_go(h);
    bench_fini(&b);
}

/* Also where the request alone is above the limit, which the user may raise. */
TEST(shortage_the_user_is_asked_for_the_limits_sake_too)
{
    bench b;
    holding h = {0};

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    CHECK_EQ(gm_pool_set_limit(b.pool, 8 * MIB), GM_OK);
    keep(&b, 6 * MIB);
    CHECK_EQ(request(&b, 7 * MIB, &h), GM_OK);
    CHECK_EQ(b.asked, 1);
    CHECK_EQ(b.told.cause, GM_CAUSE_LIMIT);
    CHECK_EQ(b.told.missing_bytes, 5 * MIB);
    b.asked = 0;
    b.kept[0] = h;
    b.kept_count = 1;
    CHECK_EQ(request(&b, 9 * MIB, &h), GM_ERR_LIMIT);
    CHECK_EQ(b.asked, 8);
    CHECK_EQ(b.told.missing_bytes, MIB);
    bench_fini(&b);
}

TEST(shortage_nobody_is_asked_where_nothing_is_missing)
{
    bench b;
    holding h;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    CHECK_EQ(gm_fault_plan(b.fault, "mem_alloc", 1, 1, GM_DEVICE_ERROR(700)), GM_OK);
    CHECK_EQ(request(&b, MIB, &h), GM_DEVICE_ERROR(700));
    CHECK_EQ(request(&b, SIZE_MAX, &h), GM_ERR_TOO_LARGE);
    CHECK_EQ(b.asked, 0);
    bench_fini(&b);
}

/* ---- causes ---- */

TEST(shortage_of_the_limit)
{
    bench b;
    holding h;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB, .others = 4 * MIB});
    CHECK_EQ(gm_pool_set_limit(b.pool, 8 * MIB), GM_OK);
    h = take_bytes(b.pool, 5 * MIB - 100);
    let_go(take_bytes(b.pool, MIB)); // is given back before
    s = explain(b.pool, 4 * MIB - 1, GM_ERR_LIMIT);
    CHECK_EQ(s.cause, GM_CAUSE_LIMIT);
    CHECK_EQ(s.rounded_size, 4 * MIB);
    CHECK_EQ(s.limit, 8 * MIB);
    CHECK_EQ(s.used_bytes, 5 * MIB);
    CHECK_EQ(s.cached_bytes, 0);
    CHECK_EQ(s.total_bytes, 5 * MIB);
    CHECK_EQ(s.largest_available_block, 3 * MIB);
    CHECK_EQ(s.missing_bytes, MIB);
    CHECK_EQ(s.device_free, 55 * MIB);
    CHECK_EQ(s.device_total, 64 * MIB);
    CHECK_EQ(s.outside_bytes, 4 * MIB);
    CHECK_EQ(s.sibling_bytes, 0);
    let_go(h);
    bench_fini(&b);
}

TEST(shortage_of_a_device_that_this_pool_fills)
{
    bench b;
    holding h;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 60 * MIB);
    s = explain(b.pool, 6 * MIB, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_FULL);
    CHECK_EQ(s.limit, 0);
    CHECK_EQ(s.device_free, 4 * MIB);
    CHECK_EQ(s.outside_bytes, 0);
    CHECK_EQ(s.missing_bytes, 2 * MIB);
    let_go(h);
    bench_fini(&b);
}

/* Eight units: one in use, one of the four that were cached, three free at the end.
 * After one more of the cached ones two are left in the cache: five, in twos and
 * threes. */
TEST(shortage_of_one_piece)
{
    bench b;
    holding first, second, third;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 8 * MIB});
    first = take_bytes(b.pool, MIB);
    let_go(take_bytes(b.pool, 4 * MIB));
    second = take_bytes(b.pool, MIB);
    third = take_bytes(b.pool, MIB);
    s = explain(b.pool, 4 * MIB, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_FRAGMENTED);
    CHECK_EQ(s.cached_bytes, 2 * MIB);
    CHECK_EQ(s.largest_free_block, 2 * MIB);
    CHECK_EQ(s.device_free, 3 * MIB);
    CHECK_EQ(s.largest_available_block, 3 * MIB);
    CHECK_EQ(s.missing_bytes, MIB);
    let_go(first);
    let_go(second);
    let_go(third);
    bench_fini(&b);
}

/* The boundary: what is free in total is just enough, or a unit less. */
TEST(shortage_is_of_one_piece_as_soon_as_the_sum_would_do)
{
    for (size_t more = 0; more < 2; more++) {
        bench b;
        holding h;
        gm_shortage s;

        bench_init(&b, (gm_sim_options){.memory = 8 * MIB});
        let_go(take_bytes(b.pool, 6 * MIB));
        h = take_bytes(b.pool, 5 * MIB); // 1 cached, 2 free
        s = explain(b.pool, 3 * MIB + more, GM_ERR_OUT_OF_MEMORY);
        CHECK_EQ(s.cause, more ? GM_CAUSE_FULL : GM_CAUSE_FRAGMENTED);
        let_go(h);
        bench_fini(&b);
    }
}

TEST(shortage_for_another_pools_sake)
{
    bench b;
    holding a, c, d;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB, .others = 8 * MIB});
    a = take_bytes(b.pool, 10 * MIB);
    c = take_bytes(b.other, 40 * MIB);
    let_go(c);
    d = take_bytes(b.other, 30 * MIB); // so that 10 of the 40 are cached
    s = explain(b.pool, 12 * MIB, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_OTHER_POOL);
    CHECK_EQ(s.sibling_bytes, 40 * MIB);
    CHECK_EQ(s.sibling_idle_bytes, 10 * MIB);
    CHECK_EQ(s.outside_bytes, 48 * MIB);
    CHECK_EQ(s.missing_bytes, 6 * MIB);
    let_go(a);
    let_go(d);
    bench_fini(&b);
}

/* A pool of another device is no sibling. */
TEST(shortage_knows_whose_device_it_is)
{
    bench b;
    gm_pool *far = NULL;
    holding a, c;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    CHECK_EQ(gm_pool_new(1, gm_upstream_of_backend(b.fault), &far), GM_OK);
    c = take_bytes(far, 60 * MIB);
    a = take_bytes(b.pool, 50 * MIB);
    s = explain(b.pool, 20 * MIB, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_FULL);
    CHECK_EQ(s.sibling_bytes, 0);
    s = explain(far, 20 * MIB, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.device_free, 4 * MIB);
    let_go(a);
    let_go(c);
    gm_pool_close(far);
    bench_fini(&b);
}

TEST(shortage_for_another_processs_sake)
{
    bench b;
    holding h;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB, .others = 40 * MIB});
    h = take_bytes(b.pool, 20 * MIB);
    s = explain(b.pool, 6 * MIB, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_OTHER_PROCESS);
    CHECK_EQ(s.outside_bytes, 40 * MIB);
    let_go(h);
    bench_fini(&b);
}

TEST(shortage_of_a_device_of_that_size)
{
    bench b;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    s = explain(b.pool, 64 * MIB + 1, GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_TOO_LARGE);
    CHECK_EQ(s.largest_available_block, 64 * MIB);
    CHECK_EQ(s.missing_bytes, GM_UNIT);
    s = explain(b.pool, SIZE_MAX, GM_ERR_TOO_LARGE);
    CHECK_EQ(s.cause, GM_CAUSE_TOO_LARGE);
    CHECK_EQ(s.rounded_size, GM_UNKNOWN);
    CHECK_EQ(s.missing_bytes, GM_UNKNOWN);
    bench_fini(&b);
}

TEST(shortage_of_a_recording)
{
    bench b;
    gm_stream stream;
    gm_capture *capture = NULL;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    stream = take_stream(b.sim, 0);
    let_go(take_bytes(b.pool, 2 * MIB));
    gm_stream_use by = {.stream = stream, .key = 77, .announced = true};
    CHECK_EQ(gm_capture_begin(&by, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    gm_request wanted = {.size = MIB, .key = 77};
    gm_block *block = NULL;
    CHECK_EQ(gm_pool_malloc_slow(b.pool, &wanted, NULL, &block), GM_ERR_CAPTURING);
    gm_sim_log_start(b.sim);
    gm_pool_explain(b.pool, &wanted, GM_ERR_CAPTURING, &s);
    CHECK_EQ(gm_sim_log_count(b.sim), 0); // a question could spoil it
    gm_sim_log_stop(b.sim);
    CHECK_EQ(s.cause, GM_CAUSE_CAPTURE);
    CHECK_EQ(s.cached_bytes, 2 * MIB);
    CHECK_EQ(s.largest_free_block, 0); // what is cached is another stream's
    CHECK_EQ(s.largest_available_block, 0);
    CHECK_EQ(s.device_total, GM_UNKNOWN);
    gm_capture_end(capture);
    gm_capture_release(capture);
    CHECK_EQ(gm_backend_stream_destroy(b.sim, stream), GM_OK);
    bench_fini(&b);
}

/* ---- without answers ---- */

TEST(shortage_of_an_upstream_that_does_not_tell)
{
    ledger books;
    gm_upstream upstream = ledger_upstream(&books);
    gm_pool *pool = NULL;
    holding h;
    gm_shortage s;

    ledger_init(&books);
    books.capacity = UNITS(10);
    books.pools = 1;
    upstream.room = NULL;
    CHECK_EQ(gm_pool_new(0, upstream, &pool), GM_OK);
    h = take_bytes(pool, UNITS(7));
    s = explain(pool, UNITS(4), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(s.cause, GM_CAUSE_ALLOCATOR);
    CHECK_EQ(s.total_bytes, UNITS(7));
    CHECK_EQ(s.missing_bytes, UNITS(4));
    CHECK_EQ(s.device_free, GM_UNKNOWN);
    CHECK_EQ(s.device_total, GM_UNKNOWN);
    CHECK_EQ(s.outside_bytes, GM_UNKNOWN);
    let_go(h);
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

TEST(shortage_is_explained_without_host_memory_or_an_answer)
{
    gm_request wanted = {.size = 6 * MIB};
    bench b;
    holding h;
    gm_shortage s;

    bench_init(&b, (gm_sim_options){.memory = 64 * MIB});
    h = take_bytes(b.pool, 60 * MIB);
    gm_host_set_fault(always, NULL);
    gm_pool_explain(b.pool, &wanted, GM_ERR_OUT_OF_MEMORY, &s);
    gm_host_set_fault(NULL, NULL);
    CHECK_EQ(s.cause, GM_CAUSE_FULL);
    CHECK_EQ(s.device_free, 4 * MIB);

    CHECK_EQ(gm_fault_plan(b.fault, "mem_info", 1, 0, GM_DEVICE_ERROR(700)), GM_OK);
    gm_pool_explain(b.pool, &wanted, GM_ERR_OUT_OF_MEMORY, &s);
    CHECK_EQ(s.cause, GM_CAUSE_FULL);
    CHECK_EQ(s.device_free, GM_UNKNOWN);
    CHECK_EQ(s.device_total, GM_UNKNOWN);
    CHECK_EQ(s.outside_bytes, GM_UNKNOWN);
    CHECK_EQ(s.used_bytes, 60 * MIB);
    let_go(h);
    bench_fini(&b);
}
