/* SPDX-License-Identifier: MIT
 *
 * Looking which marks have happened: what comes free by that and is said to, who looks
 * and who does not, one thread at a time, and for how long somebody waits.
 */
#include "streams.h"

#include "core/gm_capture.h"
#include "core/gm_pool_private.h" // the pool's attention

/* A block of the pool's own stream that `other` still writes to, given back. */
static void
leave_pending(site s, size_t size, gm_stream_use other)
{
    holding h = take_bytes(s.pool, size);

    record(h, other);
    queue_write(s.sim, h, other);
    let_go(h);
}

/* ---- what comes free ---- */

TEST(pending_settle_says_what_came_free_with_the_last_stream)
{
    site s = open_site(64 * MIB);
    gm_stream_use first = new_stream(s.sim, 0, true);
    gm_stream_use second = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, MIB);

    record(h, first);
    record(h, second);
    queue_write(s.sim, h, first);
    queue_write(s.sim, h, second);
    let_go(h);
    finish_stream(s.sim, first);
    CHECK_EQ(gm_pool_settle(s.pool), 0); // not in use on that one alone
    finish_stream(s.sim, second);
    CHECK_EQ(gm_pool_settle(s.pool), MIB);
    CHECK_EQ(gm_pool_settle(s.pool), 0);
    end_stream(s.sim, first);
    end_stream(s.sim, second);
    close_site(s);
}

/* It was free before, and is now for others as well. */
TEST(pending_settle_says_nothing_of_what_an_ended_stream_left)
{
    site s = open_site(64 * MIB);
    gm_stream_use brief = new_stream(s.sim, 0, true);
    holding h = take_for(s.pool, MIB, brief.key);

    queue_write(s.sim, h, brief);
    let_go(h);
    end_stream(s.sim, brief);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(gm_pool_settle(s.pool), 0);
    h = take_bytes(s.pool, MIB);
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
    let_go(h);
    close_site(s);
}

TEST(pending_settle_says_nothing_of_what_goes_to_a_graph)
{
    site s = open_site(64 * MIB);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    holding h;

    let_go(take_for(s.pool, MIB, recorded.key));
    CHECK_EQ(gm_capture_begin(&recorded, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    h = take_for(s.pool, MIB, recorded.key);
    record(h, other);
    gm_capture_end(capture);
    queue_write(s.sim, h, other);
    let_go(h);
    CHECK_EQ(stats_of(s.pool).pending_bytes, MIB);
    finish_stream(s.sim, other);
    CHECK_EQ(gm_pool_settle(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
    CHECK_EQ(stats_of(s.pool).captured_bytes, MIB);
    gm_capture_release(capture);
    end_stream(s.sim, recorded);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_settle_leaves_the_peak_where_it_was)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);

    leave_pending(s, 3 * MIB, other);
    CHECK_EQ(gm_pool_settle_all(s.pool), 3 * MIB);
    leave_pending(s, MIB, other);
    CHECK_EQ(stats_of(s.pool).pending_bytes, MIB);
    CHECK_EQ(stats_of(s.pool).peak_pending_bytes, 3 * MIB);
    finish_stream(s.sim, other);
    end_stream(s.sim, other);
    close_site(s);
}

/* The bytes have a new owner by then, whom a stale handle must not reach. */
TEST(pending_settle_gives_the_bytes_to_another_handle)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, MIB), heir;

    record(h, other);
    let_go(h);
    check_void(h);
    finish_stream(s.sim, other);
    CHECK_EQ(gm_pool_settle(s.pool), MIB);
    heir = take_bytes(s.pool, MIB);
    CHECK(heir.block == h.block);
    check_void(h);
    let_go(h); // of no effect
    CHECK_EQ(stats_of(s.pool).used_bytes, MIB);
    check_place(heir, 0, 0);
    let_go(heir);
    end_stream(s.sim, other);
    close_site(s);
}

/* ---- waiting ---- */

/* On each stream by itself: the work of one does not wait for that of another. */
TEST(pending_settle_all_waits_for_every_stream)
{
    site s = open_site(64 * MIB);
    gm_stream_use others[3];
    holding held[6];

    for (size_t i = 0; i < 3; i++) {
        others[i] = new_stream(s.sim, 0, true);
    }
    for (size_t i = 0; i < 6; i++) {
        held[i] = take_bytes(s.pool, (i + 1) * MIB);
        record(held[i], others[i % 3]);
        queue_write(s.sim, held[i], others[i % 3]);
    }
    for (size_t i = 0; i < 6; i++) {
        let_go(held[i]);
    }
    CHECK_EQ(gm_pool_settle_all(s.pool), 21 * MIB);
    CHECK_EQ(gm_pool_settle_all(s.pool), 0);
    for (size_t i = 0; i < 3; i++) {
        end_stream(s.sim, others[i]);
    }
    close_site(s);
}

/* Nothing was marked when it was dropped, since the device refused. */
TEST(pending_settle_all_marks_what_has_no_mark)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_stream_use others[3];
    gm_pool *own = s.pool;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &s.pool), GM_OK);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 0, GM_DEVICE_ERROR(999)), GM_OK);
    for (size_t i = 0; i < 3; i++) {
        others[i] = new_stream(s.sim, 0, true);
        leave_pending(s, MIB, others[i]); // each tries again what was dropped before
        check_pool(s.pool);
    }
    CHECK_EQ(gm_pool_settle_all(s.pool), 0);
    gm_fault_clear(fault);
    CHECK_EQ(gm_pool_settle_all(s.pool), 3 * MIB);
    check_pool(s.pool);
    for (size_t i = 0; i < 3; i++) {
        end_stream(s.sim, others[i]);
    }
    gm_pool_close(s.pool);
    gm_backend_close(fault);
    s.pool = own;
    close_site(s);
}

/* What stays pending was not waited for. */
TEST(pending_settle_all_says_what_came_free)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_stream_use others[2] = {new_stream(s.sim, 0, true), new_stream(s.sim, 0, true)};
    gm_pool *own = s.pool;
    holding held[2];

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &s.pool), GM_OK);
    for (size_t i = 0; i < 2; i++) {
        held[i] = take_bytes(s.pool, (i + 1) * MIB);
        record(held[i], others[i]);
        queue_write(s.sim, held[i], others[i]);
    }
    let_go(held[0]);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 0, GM_DEVICE_ERROR(999)), GM_OK);
    let_go(held[1]);
    CHECK_EQ(gm_pool_settle_all(s.pool), MIB);
    gm_fault_clear(fault);
    CHECK_EQ(gm_pool_settle_all(s.pool), 2 * MIB);
    end_stream(s.sim, others[0]);
    end_stream(s.sim, others[1]);
    gm_pool_close(s.pool);
    gm_backend_close(fault);
    s.pool = own;
    close_site(s);
}

/* ---- a device that does as the test says ---- */

static gm_backend *real;
static gm_pool *looked_at;
static size_t queries, waits;

static gm_status
never_ready(void *self, gm_event event)
{
    (void)self;
    (void)event;
    queries++;
    return GM_NOT_READY;
}

static gm_status
wait_for_nothing(void *self, gm_event event)
{
    (void)self;
    (void)event;
    waits++;
    return GM_OK;
}

/* Others may queue ever more: it is waited for what there was, once each. */
TEST(pending_settle_all_waits_for_no_more_than_there_was)
{
    gm_backend table;
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_pool *own = s.pool;

    table = *s.sim;
    table.event_query = never_ready;
    table.event_synchronize = wait_for_nothing;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &s.pool), GM_OK);
    for (int i = 0; i < 3; i++) {
        leave_pending(s, MIB, other);
    }
    CHECK_EQ(gm_pool_settle_all(s.pool), 0);
    CHECK_EQ(waits, 3);
    table.event_query = s.sim->event_query;
    table.event_synchronize = s.sim->event_synchronize;
    CHECK_EQ(gm_pool_settle_all(s.pool), 3 * MIB);
    end_stream(s.sim, other);
    gm_pool_close(s.pool);
    s.pool = own;
    close_site(s);
}

/* As another thread would that comes while a query is under way. */
static gm_status
look_meanwhile(void *self, gm_event event)
{
    queries++;
    CHECK_EQ(gm_pool_settle(looked_at), 0);
    return real->event_query(self, event);
}

TEST(pending_settle_is_for_one_at_a_time)
{
    gm_backend table;
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_pool *own = s.pool;

    real = s.sim;
    table = *s.sim;
    table.event_query = look_meanwhile;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &s.pool), GM_OK);
    looked_at = s.pool;
    leave_pending(s, MIB, other);
    finish_stream(s.sim, other);
    CHECK_EQ(gm_pool_settle(s.pool), MIB);
    CHECK_EQ(queries, 1);
    leave_pending(s, MIB, other); // and it goes on being looked at
    finish_stream(s.sim, other);
    CHECK_EQ(gm_pool_settle(s.pool), MIB);
    end_stream(s.sim, other);
    gm_pool_close(s.pool);
    s.pool = own;
    close_site(s);
}

/* ---- who looks ---- */

TEST(pending_settle_is_left_while_something_is_recorded)
{
    site s = open_site(64 * MIB);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;

    leave_pending(s, MIB, other);
    finish_stream(s.sim, other);
    CHECK_EQ(gm_capture_begin(&recorded, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    gm_sim_log_start(s.sim);
    CHECK_EQ(gm_pool_settle(s.pool), 0);
    CHECK_EQ(gm_pool_settle_all(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).pending_bytes, MIB);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    gm_sim_log_stop(s.sim);
    gm_capture_release(capture);
    CHECK_EQ(gm_pool_settle(s.pool), MIB);
    end_stream(s.sim, recorded);
    end_stream(s.sim, other);
    close_site(s);
}

/* A request by the long way, as one that was told of a recording that the pool does not
 * know, or one that the cache serves. */
static void
ask(site s, size_t size, uint64_t recording, gm_status expected)
{
    const gm_request request = {.size = size};
    const gm_rescue rescue = {.recording = recording};
    gm_block *block = NULL;

    CHECK_EQ(gm_pool_malloc_slow(s.pool, &request, &rescue, &block), expected);
    if (block) {
        let_go(hold(s.pool, block));
    }
}

TEST(pending_settle_is_for_misses_that_may_ask_the_device)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);

    let_go(take_bytes(s.pool, KIB));
    leave_pending(s, MIB, other);
    finish_stream(s.sim, other);
    gm_sim_log_start(s.sim);
    ask(s, KIB, 0, GM_OK);
    CHECK_EQ(count_calls(s.sim, "event_query"), 0);
    ask(s, MIB, 5, GM_ERR_CAPTURING);
    CHECK_EQ(count_calls(s.sim, "event_query"), 0);
    ask(s, 2 * MIB, 0, GM_OK);
    CHECK_EQ(count_calls(s.sim, "event_query"), 1);
    gm_sim_log_stop(s.sim);
    CHECK_EQ(gm_pool_settle(s.pool), 0); // it was seen
    end_stream(s.sim, other);
    close_site(s);
}

/* A miss marks what could not be marked before, so that it comes free some time. */
TEST(pending_settle_follows_marking_at_a_miss)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_pool *own = s.pool;
    holding h;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &s.pool), GM_OK);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 1, GM_DEVICE_ERROR(999)), GM_OK);
    leave_pending(s, MIB, other);
    CHECK(s.pool->attention);
    gm_sim_log_start(s.sim);
    h = take_bytes(s.pool, KIB);
    CHECK_EQ(count_calls(s.sim, "event_record"), 1);
    gm_sim_log_stop(s.sim);
    CHECK(!s.pool->attention); // from here on leaving is quick again
    let_go(h);
    finish_stream(s.sim, other);
    CHECK_EQ(gm_pool_settle(s.pool), MIB);
    end_stream(s.sim, other);
    gm_pool_close(s.pool);
    gm_backend_close(fault);
    s.pool = own;
    close_site(s);
}
