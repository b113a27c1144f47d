/* SPDX-License-Identifier: MIT
 *
 * Where the event is recorded by which a stream's use of memory is waited for: on the
 * stream's own device, in no graph, once a stream, and what happens where it fails.
 */
#include "streams.h"

#include "ledger.h"

#include "core/gm_capture.h"

static bool
always(void *context, size_t size)
{
    (void)context;
    (void)size;
    return true;
}

static int
current_device(const gm_backend *b)
{
    int device = -1;

    CHECK_EQ(gm_backend_device_get(b, &device), GM_OK);
    return device;
}

/* Somebody else records the stream, and nobody has told the core of it. */
TEST(mark_is_never_recorded_into_a_graph)
{
    for (int announced = 0; announced < 2; announced++) {
        site s = open_site(64 * MIB);
        gm_stream_use other = new_stream(s.sim, 0, announced);
        holding h = take_bytes(s.pool, MIB);
        gm_graph graph = 0;

        CHECK_EQ(gm_backend_capture_begin(s.sim, other.stream, GM_CAPTURE_MODE_RELAXED),
                 GM_OK);
        gm_sim_log_start(s.sim);
        record(h, other);
        let_go(h);
        CHECK_EQ(count_calls(s.sim, "event_record"), 0);
        CHECK_EQ(stats_of(s.pool).pending_bytes, MIB);
        gm_sim_log_stop(s.sim);
        CHECK_EQ(gm_backend_capture_end(s.sim, other.stream, &graph), GM_OK);
        CHECK_EQ(gm_backend_graph_destroy(s.sim, graph), GM_OK);
        let_go(take_bytes(s.pool, KIB)); // a miss: marks what was dropped
        check_pool(s.pool);
        finish_stream(s.sim, other);
        CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
        end_stream(s.sim, other);
        close_site(s);
    }
}

/* A handle that means a stream of whichever device is current, or of the thread. */
TEST(mark_of_a_default_stream_is_of_its_device)
{
    static const gm_stream defaults[] = {GM_STREAM_LEGACY, GM_STREAM_PER_THREAD};

    for (int i = 0; i < 2; i++) {
        for (int announced = 0; announced < 2; announced++) {
            site s = open_site(64 * MIB);
            holding h = take_for(s.pool, MIB, 7);
            gm_stream_use far;
            uintptr_t there = 0;

            CHECK_EQ(gm_backend_device_set(s.sim, 1), GM_OK);
            far = use_of(s.sim, defaults[i], 1, announced);
            CHECK_EQ(gm_backend_mem_alloc(s.sim, 1, GM_MEM_DEVICE, 512, &there), GM_OK);
            CHECK_EQ(gm_backend_set_async(s.sim, there, 1, 512, far.stream), GM_OK);
            CHECK_EQ(gm_backend_device_set(s.sim, 0), GM_OK);
            record(h, far);
            let_go(h);
            check_pool(s.pool);
            CHECK_EQ(current_device(s.sim), 0);
            CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
            CHECK_EQ(stats_of(s.pool).pending_blocks, 1); // it is not this one's work
            CHECK_EQ(gm_backend_device_synchronize(s.sim, 1), GM_OK);
            CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
            CHECK_EQ(gm_backend_mem_free(s.sim, 1, GM_MEM_DEVICE, there), GM_OK);
            close_site(s);
        }
    }
}

TEST(mark_leaves_the_current_device_as_it_is)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, false);
    holding h = take_bytes(s.pool, MIB);

    CHECK_EQ(gm_backend_device_set(s.sim, 1), GM_OK);
    record(h, other);
    CHECK_EQ(current_device(s.sim), 1);
    let_go(h);
    CHECK_EQ(current_device(s.sim), 1);
    CHECK_EQ(gm_backend_device_set(s.sim, 0), GM_OK);
    finish_stream(s.sim, other);
    end_stream(s.sim, other);
    close_site(s);
}

/* A foreign stream that is recorded again gets a new mark in place of the old one. */
TEST(mark_is_one_a_stream)
{
    site s = open_site(64 * MIB);
    gm_stream_use foreign = new_stream(s.sim, 0, false);
    holding h = take_bytes(s.pool, MIB);

    for (int i = 0; i < 5; i++) {
        record(h, foreign);
        check_pool(s.pool);
    }
    CHECK_EQ(read_ledger(s.sim).events, 2); // the spare one and that in use, in turn
    let_go(h);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 1);
    finish_stream(s.sim, foreign);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    end_stream(s.sim, foreign);
    close_site(s);
}

TEST(mark_that_cannot_be_had_is_told_and_changes_nothing)
{
    static const char *const calls[] = {"event_create", "device_get", "device_push",
                                        "event_record", "stream_capture"};
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_pool *pool = NULL;
    gm_stream_use other = new_stream(s.sim, 1, false);

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    CHECK_EQ(gm_backend_device_set(s.sim, 1), GM_OK);
    gm_stream_use far = use_of(s.sim, GM_STREAM_LEGACY, 1, false);
    CHECK_EQ(gm_backend_device_set(s.sim, 0), GM_OK);
    for (size_t i = 0; i < 5; i++) {
        holding h = take_for(pool, MIB, 7);
        const gm_stream_use *by = i < 3 ? &far : &other;

        CHECK_EQ(gm_fault_plan(fault, calls[i], 1, 1, GM_DEVICE_ERROR(999)), GM_OK);
        CHECK_EQ(gm_pool_record_use(h.pool, h.block, h.generation, by),
                 GM_DEVICE_ERROR(999));
        gm_fault_clear(fault);
        check_pool(pool);
        let_go(h);
        CHECK_EQ(stats_of(pool).free_bytes, MIB);
    }
    gm_pool_close(pool);
    gm_backend_close(fault);
    end_stream(s.sim, other);
    close_site(s);
}

/* Dropped while a graph was recorded, all get their marks at once: one serves all. */
TEST(mark_serves_all_that_waits_for_the_same_moment)
{
    site s = open_site(64 * MIB);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    holding held[10];

    for (int i = 0; i < 10; i++) {
        held[i] = take_bytes(s.pool, KIB);
        record(held[i], other);
    }
    CHECK_EQ(gm_capture_begin(&recorded, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    for (int i = 0; i < 10; i++) {
        let_go(held[i]);
    }
    gm_sim_log_start(s.sim);
    gm_capture_release(capture);
    CHECK_EQ(count_calls(s.sim, "event_record"), 1);
    gm_sim_log_stop(s.sim);
    check_pool(s.pool);
    finish_stream(s.sim, other);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    end_stream(s.sim, other);
    end_stream(s.sim, recorded);
    close_site(s);
}

/* Of two streams one could not be marked; when that is tried again the other, which
 * nobody announced the end of, is gone: its last mark stands. */
TEST(mark_stands_where_the_stream_is_gone_at_the_next_try)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_pool *pool = NULL;
    gm_stream_use foreign = new_stream(s.sim, 0, false), heir;
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    h = take_bytes(pool, MIB);
    record(h, foreign);
    record(h, other); // marked first
    queue_write(s.sim, h, foreign);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 1, GM_DEVICE_ERROR(999)), GM_OK);
    let_go(h);
    check_pool(pool);
    end_stream(s.sim, foreign);
    heir = new_stream(s.sim, 0, true);
    CHECK_EQ(heir.stream, foreign.stream);
    CHECK_EQ(gm_pool_release_idle(pool), 0); // tries again
    check_pool(pool);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(pool).pending_blocks, 0);
    check_pool(pool);
    end_stream(s.sim, heir);
    end_stream(s.sim, other);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}

/* A foreign stream of which nobody can tell whether it is still there: its first mark
 * stands. */
TEST(mark_stands_where_nobody_can_tell_of_the_stream)
{
    static const char *const calls[] = {"device_get", "stream_id"};

    for (size_t i = 0; i < 2; i++) {
        gm_backend *fault = NULL;
        site s = open_site(64 * MIB);
        gm_pool *pool = NULL;
        gm_stream_use foreign;
        holding h;

        CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
        CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
        h = take_for(pool, MIB, 7);
        foreign = use_of(s.sim, GM_STREAM_LEGACY, 0, false);
        queue_write(s.sim, h, foreign);
        record(h, foreign);
        CHECK_EQ(gm_fault_plan(fault, calls[i], 1, 1, GM_DEVICE_ERROR(999)), GM_OK);
        gm_sim_log_start(s.sim);
        let_go(h);
        CHECK_EQ(count_calls(s.sim, "event_record"), 0);
        gm_sim_log_stop(s.sim);
        CHECK_EQ(stats_of(pool).pending_blocks, 1);
        CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
        CHECK_EQ(stats_of(pool).pending_blocks, 0);
        check_pool(pool);
        gm_pool_close(pool);
        gm_backend_close(fault);
        close_site(s);
    }
}

/* Nothing is asked that the stream's owner has answered: a stream whose end will be
 * announced is there, one of its own is of no current device, the default stream cannot
 * be recorded. So a device that does not say is no obstacle. */
TEST(mark_asks_for_nothing_that_is_known)
{
    static const char *const calls[] = {"stream_id", "device_get", "stream_capture"};
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_pool *pool = NULL;
    gm_stream_use streams[3] = {new_stream(s.sim, 0, true), new_stream(s.sim, 0, true),
                                use_of(s.sim, GM_STREAM_LEGACY, 0, true)};

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    for (size_t i = 0; i < 3; i++) {
        holding h = take_for(pool, MIB, 7);

        record(h, streams[i]);
        queue_write(s.sim, h, streams[i]);
        CHECK_EQ(gm_fault_plan(fault, calls[i], 1, 0, GM_DEVICE_ERROR(999)), GM_OK);
        gm_sim_log_start(s.sim);
        let_go(h);
        CHECK_EQ(count_calls(s.sim, "event_record"), 1);
        gm_sim_log_stop(s.sim);
        gm_fault_clear(fault);
        finish_stream(s.sim, streams[i]);
        CHECK_EQ(gm_pool_settle(pool), MIB);
    }
    end_stream(s.sim, streams[0]);
    end_stream(s.sim, streams[1]);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}

/* Known already, and nothing to do until it is given back. */
TEST(mark_of_a_stream_that_is_noted_costs_nothing)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, MIB);

    record(h, other);
    gm_host_set_fault(always, NULL);
    gm_sim_log_start(s.sim);
    record(h, other);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    gm_sim_log_stop(s.sim);
    gm_host_set_fault(NULL, NULL);
    let_go(h);
    finish_stream(s.sim, other);
    end_stream(s.sim, other);
    close_site(s);
}

/* ---- in the midst of it ---- */

/* What another thread does while a use is being recorded: at the second host
 * allocation, which is that of the note. */
typedef struct meanwhile {
    holding h;
    gm_stream_use other;
    bool drops;
    int seen;
} meanwhile;

static bool
act_meanwhile(void *context, size_t size)
{
    meanwhile *m = context;

    (void)size;
    if (++m->seen == 2) {
        gm_host_set_fault(NULL, NULL);
        if (m->drops) {
            let_go(m->h);
        }
        else {
            record(m->h, m->other);
        }
    }
    return false;
}

TEST(mark_of_a_block_that_is_given_back_meanwhile)
{
    for (int drops = 0; drops < 2; drops++) {
        site s = open_site(64 * MIB);
        meanwhile m = {.h = take_bytes(s.pool, MIB), .drops = drops != 0};

        m.other = new_stream(s.sim, 0, true);
        gm_host_set_fault(act_meanwhile, &m);
        CHECK_EQ(gm_pool_record_use(s.pool, m.h.block, m.h.generation, &m.other),
                 drops ? GM_ERR_NOT_OWNED : GM_OK);
        CHECK_EQ(m.seen, 2);
        check_pool(s.pool);
        if (!drops) { // it was recorded meanwhile, and is once
            queue_write(s.sim, m.h, m.other);
            let_go(m.h);
            CHECK_EQ(stats_of(s.pool).pending_blocks, 1);
            finish_stream(s.sim, m.other);
        }
        CHECK_EQ(stats_of(s.pool).free_bytes, MIB);
        end_stream(s.sim, m.other);
        close_site(s);
    }
}

/* The first mark of a foreign stream is spare again, where it is of no use. */
TEST(mark_that_came_too_late_is_used_again)
{
    site s = open_site(64 * MIB);
    meanwhile m = {.h = take_bytes(s.pool, MIB), .drops = true};
    holding h;

    m.other = new_stream(s.sim, 0, false);
    h = take_bytes(s.pool, MIB);
    record(h, m.other); // so that there is a mark, and none is made below
    let_go(h);
    finish_stream(s.sim, m.other);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    CHECK_EQ(read_ledger(s.sim).events, 2); // the one at first and the one at last
    m.seen = -1;                            // the device allocates for the record
    gm_host_set_fault(act_meanwhile, &m);
    CHECK_EQ(gm_pool_record_use(s.pool, m.h.block, m.h.generation, &m.other),
             GM_ERR_NOT_OWNED);
    for (int i = 0; i < 3; i++) {
        h = take_bytes(s.pool, MIB);
        record(h, m.other);
        let_go(h);
        finish_stream(s.sim, m.other);
        CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    }
    CHECK_EQ(read_ledger(s.sim).events, 2);
    end_stream(s.sim, m.other);
    close_site(s);
}

/* ---- spare ones ---- */

TEST(mark_spares_are_those_of_their_device)
{
    site s = open_site(64 * MIB);
    gm_stream_use streams[] = {new_stream(s.sim, 0, true), new_stream(s.sim, 1, true)};

    for (int round = 0; round < 3; round++) {
        holding held[2];

        for (size_t i = 0; i < 2; i++) {
            held[i] = take_for(s.pool, MIB, 7);
            record(held[i], streams[(i + (size_t)round) % 2]);
        }
        let_go(held[0]);
        let_go(held[1]);
        finish_stream(s.sim, streams[0]);
        finish_stream(s.sim, streams[1]);
        CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
        check_pool(s.pool);
    }
    CHECK_EQ(read_ledger(s.sim).events, 2); // one a device, ever again
    end_stream(s.sim, streams[0]);
    end_stream(s.sim, streams[1]);
    close_site(s);
}

/* Forty blocks that wait for forty moments of a stream, all there in the end. */
static void
use_forty_marks(site s, gm_stream_use other)
{
    holding held[40];

    for (int i = 0; i < 40; i++) {
        held[i] = take_bytes(s.pool, MIB);
        record(held[i], other);
    }
    for (int i = 0; i < 40; i++) {
        queue_write(s.sim, held[i], other);
        let_go(held[i]);
    }
    CHECK(read_ledger(s.sim).events >= 30); // less what was settled on the way
    CHECK(gm_pool_settle_all(s.pool) > 0);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
}

TEST(mark_spares_are_destroyed_but_for_a_few)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    size_t all, few;

    use_forty_marks(s, other);
    all = read_ledger(s.sim).events;
    CHECK_EQ(gm_capture_begin(&other, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    (void)gm_pool_release_idle(s.pool);
    CHECK_EQ(read_ledger(s.sim).events, all); // nothing is tidied up meanwhile
    gm_capture_end(capture);                  // but then
    gm_capture_release(capture);
    few = read_ledger(s.sim).events;
    CHECK(few > 0 && few < all);
    (void)gm_pool_release_idle(s.pool);
    CHECK_EQ(read_ledger(s.sim).events, few); // and no fewer
    check_pool(s.pool);
    gm_sim_log_start(s.sim);
    let_go(take_bytes(s.pool, MIB));
    for (size_t i = 0; i < few; i++) {
        holding h = take_bytes(s.pool, MIB);

        record(h, other);
        let_go(h);
        finish_stream(s.sim, other);
        CHECK_EQ(gm_pool_settle(s.pool), MIB);
    }
    CHECK_EQ(count_calls(s.sim, "event_create"), 0);
    gm_sim_log_stop(s.sim);
    end_stream(s.sim, other);
    close_site(s);
}

/* An upstream that knows no streams: what needs no mark is answered all the same. */
TEST(mark_is_for_memory_that_streams_are_known_of)
{
    ledger books;
    const gm_stream_use own = {.key = GM_STREAM_KEY_DEFAULT, .announced = true};
    const gm_stream_use other = {.stream = 64, .key = 9, .announced = true};
    gm_pool *pool;
    holding h;

    ledger_init(&books);
    pool = ledger_pool(&books, 0);
    h = take_bytes(pool, KIB);
    CHECK_EQ(gm_pool_record_use(pool, h.block, h.generation, &own), GM_OK);
    CHECK_EQ(gm_pool_record_use(pool, h.block, h.generation, &other),
             GM_ERR_UNSUPPORTED);
    CHECK_EQ(gm_pool_record_use(pool, h.block, h.generation + 1, &other),
             GM_ERR_NOT_OWNED);
    let_go(h);
    CHECK_EQ(gm_pool_record_use(pool, h.block, h.generation, &other), GM_ERR_NOT_OWNED);
    gm_pool_close(pool);
    ledger_fini(&books);
}
