/* SPDX-License-Identifier: MIT
 *
 * Recordings of graphs, and pools that map memory by page: a recording gets no event,
 * no wait and nothing unmapped of theirs, and the memory of a graph stays where it is
 * for as long as that may run. The device records as well, so that it would notice.
 */
#include "paged.h"

#include "core/gm_capture.h"

enum {
    PAGES = 8,
};

typedef struct stage {
    site s;
    gm_stream_use recorded;
    gm_stream_use other;
    gm_capture *capture;
    gm_graph graph; // 0: is being recorded
    size_t start;   // of the log
} stage;

/* Begins to record a stream that has so many pages free; they are its own. */
static stage
open_stage(size_t cached)
{
    stage t = {.s = open_paged_site(PAGES * PAGE)};
    gm_capture_state state;
    uint64_t id = 0;

    t.recorded = new_stream(t.s.sim, 0, true);
    t.other = new_stream(t.s.sim, 0, true);
    drop(take_by(t.s.pool, cached * PAGE, &t.recorded));
    CHECK_EQ(gm_capture_begin(&t.recorded, GM_CAPTURE_MODE_RELAXED, &t.capture), GM_OK);
    CHECK_EQ(
        gm_backend_capture_begin(t.s.sim, t.recorded.stream, GM_CAPTURE_MODE_RELAXED),
        GM_OK);
    CHECK_EQ(gm_backend_stream_capture(t.s.sim, t.recorded.stream, &state, &id), GM_OK);
    gm_capture_identify(t.capture, id);
    t.start = gm_sim_log_start(t.s.sim);
    return t;
}

/* How often a slot was called since the recording began. */
static size_t
calls(const stage *t, const char *name)
{
    size_t count = 0;
    gm_sim_call call;

    for (size_t i = t->start; gm_sim_log_get(t->s.sim, i, &call); i++) {
        count += strcmp(call.name, name) == 0;
    }
    return count;
}

/* That nothing was done which a recording would take in, or be spoilt by. */
static void
check_left_in_peace(const stage *t)
{
    CHECK_EQ(calls(t, "event_record"), 0);
    CHECK_EQ(calls(t, "event_query"), 0);
    CHECK_EQ(calls(t, "event_synchronize"), 0);
    CHECK_EQ(calls(t, "stream_query"), 0);
    CHECK_EQ(calls(t, "stream_wait_event"), 0);
    CHECK_EQ(calls(t, "stream_synchronize"), 0);
    CHECK_EQ(calls(t, "device_synchronize"), 0);
}

/* Ends the recording, which is whole. */
static void
end_recording(stage *t)
{
    check_left_in_peace(t);
    gm_sim_log_stop(t->s.sim);
    CHECK_EQ(gm_backend_capture_end(t->s.sim, t->recorded.stream, &t->graph), GM_OK);
    gm_capture_end(t->capture);
    check_pool(t->s.pool);
}

static void
close_stage(stage *t)
{
    if (!t->graph) {
        end_recording(t);
    }
    CHECK_EQ(gm_backend_graph_destroy(t->s.sim, t->graph), GM_OK);
    gm_capture_release(t->capture);
    end_stream(t->s.sim, t->recorded);
    end_stream(t->s.sim, t->other);
    close_site(t->s);
}

static void
launch(stage *t, gm_stream_use by)
{
    gm_graph_exec exec = 0;

    CHECK_EQ(gm_backend_graph_instantiate(t->s.sim, t->graph, &exec), GM_OK);
    CHECK_EQ(gm_capture_launched(t->capture, &by), GM_OK);
    CHECK_EQ(gm_backend_graph_launch(t->s.sim, exec, by.stream), GM_OK);
    CHECK_EQ(gm_backend_graph_exec_destroy(t->s.sim, exec), GM_OK);
}

/* ---- while something is recorded ---- */

TEST(expandable_recording_is_served_from_what_its_stream_has)
{
    stage t = open_stage(4);
    holding h = take_by(t.s.pool, 3 * PAGE, &t.recorded), more = {0};

    queue_write(t.s.sim, h, t.recorded);
    CHECK_EQ(try_for(t.s.pool, 2 * PAGE, &t.recorded, &more), GM_ERR_CAPTURING);
    drop(h);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 3 * PAGE);
    CHECK_EQ(gm_sim_log_count(t.s.sim) - t.start, 1); // the write
    close_stage(&t);
}

TEST(expandable_recording_lets_others_have_new_pages)
{
    stage t = open_stage(4);
    holding h = take_by(t.s.pool, 3 * PAGE, &t.other), again;

    queue_write(t.s.sim, h, t.other);
    CHECK_EQ(calls(&t, "vm_create"), 3); // the last of the device's memory
    CHECK_EQ(calls(&t, "vm_unmap"), 0);
    drop(h);
    again = take_by(t.s.pool, 3 * PAGE, &t.other);
    drop(again);
    CHECK_EQ(stats_of(t.s.pool).total_bytes, 7 * PAGE);
    close_stage(&t);
}

/* Pages of their own move as ever, which is in the order of their stream. */
TEST(expandable_recording_lets_others_move_their_own_pages)
{
    stage t = open_stage(2);
    holding held[6], h;

    for (size_t i = 0; i < 6; i++) {
        held[i] = take_by(t.s.pool, PAGE, &t.other);
    }
    for (size_t i = 0; i < 6; i += 2) {
        drop(held[i]);
    }
    h = take_by(t.s.pool, 3 * PAGE, &t.other);
    CHECK_EQ(stats_of(t.s.pool).remapped_pages, 3);
    CHECK_EQ(calls(&t, "vm_unmap"), 0);
    drop(h);
    for (size_t i = 1; i < 6; i += 2) {
        drop(held[i]);
    }
    close_stage(&t);
}

/* Neither what the graph has, nor what it may still want, is anybody else's, though
 * memory runs out; it is afterwards. */
TEST(expandable_recording_keeps_its_pages_where_memory_runs_out)
{
    stage t = open_stage(4);
    holding h = take_by(t.s.pool, PAGE, &t.recorded), big = {0};

    stamp(h, 5);
    CHECK_EQ(try_for(t.s.pool, 5 * PAGE, &t.other, &big), GM_ERR_OUT_OF_MEMORY);
    check_stamp(h, 5);
    CHECK_EQ(stats_of(t.s.pool).total_bytes, 4 * PAGE); // what was made in vain went
    end_recording(&t);
    big = take_by(t.s.pool, 7 * PAGE, &t.other);
    check_stamp(h, 5);
    drop(big);
    drop(h);
    close_stage(&t);
}

/* What an ended stream left is no stream's, so that nothing has to be waited for. */
TEST(expandable_recording_lets_others_have_what_nobody_owns)
{
    stage t = open_stage(2);
    gm_stream_use brief = new_stream(t.s.sim, 0, true);
    holding h = {0};

    gm_sim_log_stop(t.s.sim);
    CHECK_EQ(gm_backend_capture_end(t.s.sim, t.recorded.stream, &t.graph), GM_OK);
    gm_capture_release(t.capture);
    drop(take_by(t.s.pool, 4 * PAGE, &brief)); // two are the recorded stream's
    end_stream(t.s.sim, brief);
    (void)gm_pool_settle_all(t.s.pool);
    CHECK_EQ(stats_of(t.s.pool).total_bytes, 4 * PAGE);
    t.start = gm_sim_log_start(t.s.sim);
    CHECK_EQ(gm_capture_begin(&t.recorded, GM_CAPTURE_MODE_RELAXED, &t.capture), GM_OK);
    h = take_by(t.s.pool, 6 * PAGE, &t.other);
    check_left_in_peace(&t);
    drop(h);
    gm_sim_log_stop(t.s.sim);
    close_stage(&t);
}

TEST(expandable_recording_puts_off_what_goes_back)
{
    stage t = open_stage(4);

    drop(take_by(t.s.pool, 2 * PAGE, &t.other));
    gm_sim_log_stop(t.s.sim);
    t.start = gm_sim_log_start(t.s.sim);
    CHECK_EQ(gm_pool_release_idle_of(t.s.pool, t.other.key), 0);
    CHECK_EQ(gm_pool_release_idle(t.s.pool), 0);
    CHECK_EQ(gm_pool_trim(t.s.pool, PAGE), 0);
    CHECK_EQ(gm_pool_set_limit(t.s.pool, 3 * PAGE), GM_OK);
    CHECK_EQ(stats_of(t.s.pool).total_bytes, 6 * PAGE);
    CHECK_EQ(gm_sim_log_count(t.s.sim) - t.start, 0);
    end_recording(&t);
    CHECK_EQ(gm_backend_device_synchronize(t.s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(t.s.pool).total_bytes, 0);
    close_stage(&t);
}

/* Pages that were on their way before wait until it is over. */
TEST(expandable_recording_puts_off_what_was_going)
{
    site s = open_paged_site(PAGES * PAGE);
    gm_stream_use own = new_stream(s.sim, 0, true);
    holding h = take_by(s.pool, 2 * PAGE, &own);
    gm_capture *capture = NULL;

    queue_write(s.sim, h, own);
    drop(h);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(gm_capture_begin(&own, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    finish_stream(s.sim, own);
    gm_sim_log_start(s.sim);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 2 * PAGE);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    gm_sim_log_stop(s.sim);
    gm_capture_release(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
    end_stream(s.sim, own);
    close_site(s);
}

/* ---- while the graph may run ---- */

TEST(expandable_graph_keeps_its_pages)
{
    stage t = open_stage(4);
    holding h = take_by(t.s.pool, PAGE, &t.recorded), kept = h, big = {0};

    queue_write(t.s.sim, h, t.recorded); // of 1
    drop(h);
    end_recording(&t);
    CHECK_EQ(gm_pool_release_idle(t.s.pool), 3 * PAGE);
    *(unsigned char *)kept.block->addr = 7;
    CHECK_EQ(try_for(t.s.pool, PAGES * PAGE, &t.other, &big), GM_ERR_OUT_OF_MEMORY);
    big = take_by(t.s.pool, (PAGES - 1) * PAGE, &t.other);
    CHECK_EQ(gm_backend_set(t.s.sim, big.block->addr, 9, big.block->size), GM_OK);
    CHECK_EQ(*(unsigned char *)kept.block->addr, 7);
    launch(&t, t.other);
    finish_stream(t.s.sim, t.other);
    CHECK_EQ(*(unsigned char *)kept.block->addr, 1);
    drop(big);
    close_stage(&t);
}

/* The graph is gone, but a launch of it is not done: its pages neither move nor go. */
TEST(expandable_graph_keeps_its_pages_until_its_launches_are_done)
{
    stage t = open_stage(4);
    holding h = take_by(t.s.pool, 4 * PAGE, &t.recorded), big = {0};
    uint64_t hold;

    queue_write(t.s.sim, h, t.recorded);
    drop(h);
    end_recording(&t);
    CHECK_EQ(gm_sim_hold(t.s.sim, t.other.stream, &hold), GM_OK);
    launch(&t, t.other);
    gm_capture_release(t.capture);
    CHECK_EQ(gm_pool_release_idle(t.s.pool), 0);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 4 * PAGE);
    CHECK_EQ(try_for(t.s.pool, 5 * PAGE, &t.recorded, &big), GM_ERR_OUT_OF_MEMORY);
    gm_sim_release(t.s.sim, hold);
    big = take_by(t.s.pool, 5 * PAGE, &t.recorded);
    CHECK_EQ(read_ledger(t.s.sim).faults, 0);
    drop(big);
    CHECK_EQ(gm_capture_begin(&t.recorded, GM_CAPTURE_MODE_RELAXED, &t.capture), GM_OK);
    close_stage(&t);
}

/* ---- pools that are closed meanwhile ---- */

TEST(expandable_pool_that_is_closed_while_something_is_recorded)
{
    stage t = open_stage(1);
    gm_pool *pool;

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(t.s.sim), &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    drop(take_by(pool, 2 * PAGE, &t.other));
    gm_pool_close(pool);
    CHECK_EQ(read_ledger(t.s.sim).handle_bytes, 3 * PAGE);
    CHECK_EQ(calls(&t, "vm_unmap"), 0);
    end_recording(&t);
    CHECK_EQ(read_ledger(t.s.sim).handle_bytes, PAGE);
    close_stage(&t);
}
