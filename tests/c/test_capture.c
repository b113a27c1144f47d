/* SPDX-License-Identifier: MIT
 *
 * The private memory of a capture: who is served from it, what goes back into it, what
 * waits for the recording's end, and when the memory is everybody's again. The pool is
 * told of recordings; whether the device records as well makes no difference to it.
 */
#include "host_fault.h"
#include "streams.h"

#include "core/gm_capture.h"
#include "core/gm_process.h"

enum {
    RECORDING = 77, // the number that a backend would give
};

typedef struct stage {
    site s;
    gm_stream_use stream;
    gm_capture *capture;
} stage;

static gm_capture *
begin(const gm_stream_use *stream, gm_capture_mode mode)
{
    gm_capture *capture = NULL;

    CHECK_EQ(gm_capture_begin(stream, mode, &capture), GM_OK);
    gm_capture_identify(capture, RECORDING);
    return capture;
}

/* A capture under way of a stream that has `cached` bytes in one block. */
static stage
open_stage(size_t cached)
{
    stage t = {.s = open_site(64 * MIB)};

    t.stream = new_stream(t.s.sim, 0, true);
    let_go(take_for(t.s.pool, cached, t.stream.key));
    t.capture = begin(&t.stream, GM_CAPTURE_MODE_RELAXED);
    gm_sim_log_start(t.s.sim);
    return t;
}

static void
close_stage(stage t)
{
    gm_capture_release(t.capture);
    CHECK_EQ(stats_of(t.s.pool).captured_blocks, 0);
    end_stream(t.s.sim, t.stream);
    close_site(t.s);
}

/* ---- whose it is ---- */

TEST(capture_is_taken_by_one_who_ends_it)
{
    stage t = open_stage(MIB);
    gm_stream_use other = new_stream(t.s.sim, 0, true);
    gm_capture *taken = NULL;

    CHECK_EQ(gm_capture_take(&t.stream, &taken), GM_BUSY); // it is beginning
    gm_capture_leave(t.capture);
    CHECK_EQ(gm_capture_take(&other, &taken), GM_OK);
    CHECK(!taken);
    CHECK_EQ(gm_capture_take(&t.stream, &taken), GM_OK);
    CHECK(taken == t.capture);
    CHECK_EQ(gm_capture_number(taken), RECORDING);
    CHECK_EQ(gm_capture_take(&t.stream, &taken), GM_BUSY);
    gm_capture_end(t.capture);
    CHECK_EQ(gm_capture_take(&t.stream, &taken), GM_OK);
    CHECK(!taken);
    end_stream(t.s.sim, other);
    close_stage(t);
}

TEST(capture_of_a_stream_is_one_at_a_time)
{
    stage t = open_stage(MIB);
    gm_capture *second = NULL;

    CHECK_EQ(gm_capture_begin(&t.stream, GM_CAPTURE_MODE_RELAXED, &second), GM_BUSY);
    CHECK(!second);
    gm_capture_end(t.capture);
    CHECK_EQ(gm_capture_begin(&t.stream, GM_CAPTURE_MODE_RELAXED, &second), GM_OK);
    gm_capture_release(second);
    close_stage(t);
}

/* ---- requests ---- */

TEST(capture_is_served_from_what_the_stream_has_cached)
{
    stage t = open_stage(4 * MIB);
    holding first = take_for(t.s.pool, MIB, t.stream.key);
    uintptr_t addr = first.block->addr;
    holding second;
    gm_stats stats;

    let_go(first);
    check_pool(t.s.pool);
    stats = stats_of(t.s.pool);
    CHECK_EQ(stats.captured_bytes, MIB);
    CHECK_EQ(stats.captured_blocks, 1);
    CHECK_EQ(stats.used_bytes, 0);
    CHECK_EQ(stats.free_bytes, 3 * MIB);
    CHECK_EQ(stats.total_bytes, 4 * MIB);
    second = take_for(t.s.pool, KIB, t.stream.key); // first what was dropped in here
    CHECK_EQ(second.block->addr, addr);
    stats = stats_of(t.s.pool);
    CHECK_EQ(stats.captured_bytes, MIB - KIB);
    CHECK_EQ(stats.used_bytes, KIB);
    let_go(second);
    CHECK_EQ(stats_of(t.s.pool).captured_blocks, 1); // joined again
    CHECK_EQ(gm_sim_log_count(t.s.sim), 0);
    gm_capture_end(t.capture);
    close_stage(t);
}

TEST(capture_never_asks_the_device)
{
    stage t = open_stage(MIB);
    holding h = {0};

    CHECK_EQ(try_hold(t.s.pool, MIB + 1, t.stream.key, &h), GM_ERR_CAPTURING);
    h = take_for(t.s.pool, MIB, t.stream.key);
    CHECK_EQ(try_hold(t.s.pool, 1, t.stream.key, &h), GM_ERR_CAPTURING);
    CHECK_EQ(gm_sim_log_count(t.s.sim), 0);
    CHECK_EQ(stats_of(t.s.pool).out_of_memory, 0);
    CHECK_EQ(stats_of(t.s.pool).misses, 1);
    check_pool(t.s.pool);
    gm_capture_end(t.capture);
    let_go(h);
    close_stage(t);
}

TEST(capture_refuses_sizes_that_are_none)
{
    stage t = open_stage(MIB);
    holding h = {0};

    CHECK_EQ(try_hold(t.s.pool, 0, t.stream.key, &h), GM_ERR_INVALID_VALUE);
    CHECK_EQ(try_hold(t.s.pool, SIZE_MAX, t.stream.key, &h), GM_ERR_TOO_LARGE);
    gm_capture_end(t.capture);
    close_stage(t);
}

TEST(capture_leaves_other_streams_alone)
{
    stage t = open_stage(MIB);
    holding other = take_bytes(t.s.pool, 2 * MIB); // of the device, which allows it

    let_go(other);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 0);
    CHECK_EQ(stats_of(t.s.pool).free_bytes, 3 * MIB);
    let_go(take_bytes(t.s.pool, 2 * MIB));
    CHECK_EQ(stats_of(t.s.pool).misses, 2);
    gm_capture_end(t.capture);
    close_stage(t);
}

TEST(capture_of_the_whole_process_lets_nobody_ask_the_device)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    holding h = {0};
    gm_capture *capture;

    let_go(take_bytes(s.pool, MIB));
    capture = begin(&stream, GM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(try_hold(s.pool, 2 * MIB, GM_STREAM_KEY_DEFAULT, &h), GM_ERR_CAPTURING);
    h = take_bytes(s.pool, MIB); // from the cache, which needs nobody
    gm_capture_release(capture);
    let_go(h);
    capture = begin(&stream, GM_CAPTURE_MODE_THREAD_LOCAL); // of this thread
    CHECK_EQ(try_hold(s.pool, 2 * MIB, GM_STREAM_KEY_DEFAULT, &h), GM_ERR_CAPTURING);
    gm_capture_release(capture);
    let_go(take_bytes(s.pool, 2 * MIB));
    end_stream(s.sim, stream);
    close_site(s);
}

/* A stream that takes part has a part of its own: its order is not that of the first.
 */
TEST(capture_knows_streams_that_take_part_by_its_number)
{
    stage t = open_stage(MIB);
    gm_stream_use joined = new_stream(t.s.sim, 0, true);
    const gm_request request = {.size = MIB, .key = joined.key};
    const gm_rescue rescue = {.recording = RECORDING};
    gm_block *block = NULL;
    holding h = take_for(t.s.pool, MIB, t.stream.key);

    let_go(h); // captured, for the first stream
    CHECK_EQ(gm_pool_malloc_slow(t.s.pool, &request, &rescue, &block),
             GM_ERR_CAPTURING);
    CHECK(block == NULL);
    gm_capture_end(t.capture);
    end_stream(t.s.sim, joined);
    close_stage(t);
}

TEST(capture_is_of_one_device)
{
    site s = open_site(64 * MIB);
    gm_stream_use far = new_stream(s.sim, 1, true);
    gm_capture *capture;

    far.key = GM_STREAM_KEY_DEFAULT; // as two default streams have one key
    capture = begin(&far, GM_CAPTURE_MODE_RELAXED);
    gm_capture_identify(capture, 0);
    let_go(take_bytes(s.pool, MIB));
    CHECK_EQ(stats_of(s.pool).captured_bytes, 0);
    gm_capture_release(capture);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, far.stream), GM_OK);
    close_site(s);
}

/* ---- until the graph is gone ---- */

TEST(capture_keeps_its_memory_until_it_is_released)
{
    stage t = open_stage(2 * MIB);
    holding inside = take_for(t.s.pool, MIB, t.stream.key);
    holding lasting = take_for(t.s.pool, KIB, t.stream.key);
    uintptr_t addr = inside.block->addr;
    holding h;

    let_go(inside);
    gm_capture_end(t.capture);
    gm_sim_log_stop(t.s.sim);
    h = take_for(t.s.pool, MIB, t.stream.key);
    CHECK(h.block->addr != addr);
    CHECK_EQ(gm_pool_release_idle(t.s.pool), 0);
    let_go(lasting); // after the recording, and still the graph's
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, MIB + KIB);
    check_pool(t.s.pool);
    gm_capture_release(t.capture);
    check_pool(t.s.pool);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 0);
    CHECK_EQ(stats_of(t.s.pool).free_bytes, 2 * MIB);
    let_go(h);
    end_stream(t.s.sim, t.stream);
    close_site(t.s);
}

TEST(capture_releases_what_is_live_as_it_is_dropped)
{
    stage t = open_stage(MIB);
    holding h = take_for(t.s.pool, MIB, t.stream.key);

    gm_capture_release(t.capture);
    check_pool(t.s.pool);
    CHECK_EQ(stats_of(t.s.pool).used_bytes, MIB);
    let_go(h);
    check_pool(t.s.pool);
    CHECK_EQ(stats_of(t.s.pool).free_bytes, MIB);
    end_stream(t.s.sim, t.stream);
    close_site(t.s);
}

TEST(capture_waits_for_its_launches)
{
    stage t = open_stage(2 * MIB);
    gm_stream_use launching = new_stream(t.s.sim, 0, true);
    holding dropped = take_for(t.s.pool, MIB, t.stream.key);
    holding live = take_for(t.s.pool, MIB, t.stream.key);

    let_go(dropped);
    gm_capture_end(t.capture);
    CHECK_EQ(gm_capture_launched(t.capture, &launching), GM_OK);
    queue_write(t.s.sim, live, launching); // the launch
    gm_capture_release(t.capture);
    let_go(live);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 2 * MIB);
    check_pool(t.s.pool);
    finish_stream(t.s.sim, launching);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 0);
    CHECK_EQ(stats_of(t.s.pool).free_bytes, 2 * MIB);
    check_pool(t.s.pool);
    end_stream(t.s.sim, launching);
    end_stream(t.s.sim, t.stream);
    close_site(t.s);
}

TEST(capture_survives_the_stream_it_was_launched_on)
{
    stage t = open_stage(MIB);
    gm_stream_use launching = new_stream(t.s.sim, 0, true);
    holding h = take_for(t.s.pool, MIB, t.stream.key);

    gm_capture_end(t.capture);
    CHECK_EQ(gm_capture_launched(t.capture, &launching), GM_OK);
    queue_write(t.s.sim, h, launching);
    let_go(h);
    end_stream(t.s.sim, launching);
    gm_capture_release(t.capture);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, MIB);
    CHECK_EQ(gm_backend_device_synchronize(t.s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 0);
    end_stream(t.s.sim, t.stream);
    close_site(t.s);
}

/* Used on a second stream within the graph: not for the first one again in there. */
TEST(capture_does_not_reuse_what_another_of_its_streams_uses)
{
    stage t = open_stage(MIB);
    gm_stream_use joined = new_stream(t.s.sim, 0, true);
    holding h = take_for(t.s.pool, MIB, t.stream.key);

    gm_sim_log_stop(t.s.sim);
    gm_sim_log_start(t.s.sim);
    record(h, joined);
    let_go(h);
    CHECK_EQ(stats_of(t.s.pool).pending_bytes, MIB);
    CHECK_EQ(try_hold(t.s.pool, MIB, t.stream.key, &h), GM_ERR_CAPTURING);
    CHECK_EQ(gm_sim_log_count(t.s.sim), 0);
    gm_capture_end(t.capture);
    CHECK_EQ(gm_backend_device_synchronize(t.s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, MIB);
    end_stream(t.s.sim, joined);
    close_stage(t);
}

TEST(capture_of_a_pool_that_is_closed)
{
    stage t = open_stage(MIB);
    holding h = take_for(t.s.pool, MIB, t.stream.key);

    gm_pool_close(t.s.pool);
    let_go(h);
    CHECK_EQ(gm_sim_log_count(t.s.sim), 0);
    CHECK_EQ(read_ledger(t.s.sim).allocations, 1); // the graph may run
    gm_capture_end(t.capture);
    CHECK_EQ(read_ledger(t.s.sim).allocations, 1);
    gm_capture_release(t.capture);
    CHECK_EQ(gm_backend_stream_destroy(t.s.sim, t.stream.stream), GM_OK);
    check_ledger_is_empty(t.s.sim);
    gm_backend_close(t.s.sim);
}

/* ---- what has to wait ---- */

TEST(capture_puts_off_all_that_only_tidies_up)
{
    stage t = open_stage(MIB);
    gm_stream_use other = new_stream(t.s.sim, 0, true);
    gm_pool *closed = NULL;
    uintptr_t raw = 0;
    holding used, last;

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(t.s.sim), &closed), GM_OK);
    used = take_bytes(t.s.pool, 2 * MIB);
    last = take_bytes(closed, MIB);
    CHECK_EQ(gm_backend_mem_alloc(t.s.sim, 0, GM_MEM_DEVICE, MIB, &raw), GM_OK);
    record(used, other);
    gm_sim_log_stop(t.s.sim);
    gm_sim_log_start(t.s.sim);

    let_go(used);
    gm_pool_close(closed);
    let_go(last);
    CHECK(gm_capture_postpone_free(t.s.sim, 0, GM_MEM_DEVICE, raw));
    CHECK_EQ(gm_pool_release_idle(t.s.pool), 0);
    CHECK_EQ(stats_of(t.s.pool).pending_bytes, 2 * MIB);
    CHECK_EQ(gm_sim_log_count(t.s.sim), 0);

    gm_capture_end(t.capture);
    CHECK(!gm_process_is_capturing());
    CHECK_EQ(gm_backend_device_synchronize(t.s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(t.s.pool).pending_bytes, 0);
    // The cached segment went, the pending one too if it was done by then.
    CHECK(stats_of(t.s.pool).total_bytes <= 2 * MIB);
    CHECK_EQ(read_ledger(t.s.sim).bytes, stats_of(t.s.pool).total_bytes);
    CHECK(!gm_capture_postpone_free(t.s.sim, 0, GM_MEM_DEVICE, raw));
    end_stream(t.s.sim, other);
    close_stage(t);
}

static gm_status
note_close(void *self, uintptr_t base)
{
    *(uintptr_t *)self += base;
    return GM_OK;
}

/* Memory of another process: closing it would spoil a recording too. */
TEST(capture_puts_off_closing_what_is_of_another_process)
{
    stage t = open_stage(MIB);
    gm_stream_use other = new_stream(t.s.sim, 0, true);
    gm_capture *second = begin(&other, GM_CAPTURE_MODE_RELAXED);
    uintptr_t closed = 0;
    const gm_backend b = {.self = &closed, .ipc_close = note_close};

    CHECK(gm_capture_postpone_close(&b, 4096));
    CHECK(gm_capture_postpone_close(&b, 512));
    CHECK_EQ(closed, 0);
    gm_capture_end(second);
    CHECK_EQ(closed, 0); // the other recording goes on
    gm_capture_end(t.capture);
    CHECK_EQ(closed, 4096 + 512);
    CHECK(!gm_capture_postpone_close(&b, 4096));
    gm_capture_release(second);
    end_stream(t.s.sim, other);
    close_stage(t);
}

TEST(capture_one_of_two_that_ends_leaves_the_other_in_peace)
{
    stage t = open_stage(MIB);
    gm_stream_use other = new_stream(t.s.sim, 0, true);
    gm_capture *second = begin(&other, GM_CAPTURE_MODE_RELAXED);
    uintptr_t raw = 0;

    CHECK_EQ(gm_backend_mem_alloc(t.s.sim, 0, GM_MEM_DEVICE, MIB, &raw), GM_OK);
    gm_sim_log_stop(t.s.sim);
    gm_sim_log_start(t.s.sim);
    CHECK(gm_capture_postpone_free(t.s.sim, 0, GM_MEM_DEVICE, raw));
    CHECK_EQ(gm_pool_release_idle(t.s.pool), 0);
    gm_capture_end(second);
    CHECK_EQ(gm_sim_log_count(t.s.sim), 0);
    gm_capture_end(t.capture);
    CHECK_EQ(read_ledger(t.s.sim).allocations, 0);
    gm_capture_release(second);
    end_stream(t.s.sim, other);
    close_stage(t);
}

TEST(capture_ends_once_however_often_it_is_said)
{
    stage t = open_stage(MIB);

    gm_capture_end(t.capture);
    gm_capture_end(t.capture);
    CHECK(!gm_process_is_capturing());
    close_stage(t);
}

/* ---- failures ---- */

TEST(capture_whichever_host_allocation_fails_nothing_changes)
{
    gm_status status = GM_ERR_HOST_MEMORY;

    for (size_t n = 0; status != GM_OK; n++) {
        stage t = open_stage(2 * MIB);
        holding h = {0};
        size_t left = n;

        CHECK(n < 20);
        gm_host_set_fault(fail_nth, &left);
        status = try_hold(t.s.pool, MIB, t.stream.key, &h);
        gm_host_set_fault(NULL, NULL);
        CHECK(status == GM_OK || status == GM_ERR_HOST_MEMORY);
        check_pool(t.s.pool);
        if (status == GM_OK) {
            let_go(h);
        }
        else {
            CHECK_EQ(stats_of(t.s.pool).free_bytes, 2 * MIB);
        }
        gm_capture_end(t.capture);
        close_stage(t);
    }
}
