/* SPDX-License-Identifier: MIT
 *
 * Memory that more than one stream uses: until when it is pending, what is recorded on
 * which stream and when, what happens to streams that end, and that nothing is lost
 * where a call fails.
 */
#include "dice.h"
#include "streams.h"

#include "core/gm_process.h"

#include <pthread.h>

/* ---- until when ---- */

TEST(pending_until_the_other_stream_has_done_what_was_queued)
{
    site s = open_site(64 * MIB);
    gm_stream_use mine = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_for(s.pool, MIB, mine.key);
    uintptr_t addr = h.block->addr;
    holding second, third;
    gm_stats stats;

    record(h, other);
    queue_write(s.sim, h,
                other); // after it was recorded: the moment of the free counts
    let_go(h);
    check_pool(s.pool);
    second = take_for(s.pool, MIB, mine.key);
    CHECK(second.block->addr != addr);
    stats = stats_of(s.pool);
    CHECK_EQ(stats.total_bytes, 2 * MIB);
    CHECK_EQ(stats.used_bytes, MIB);
    finish_stream(s.sim, other);
    third = take_for(s.pool, MIB, mine.key);
    CHECK_EQ(third.block->addr, addr);
    CHECK_EQ(stats_of(s.pool).total_bytes, 2 * MIB);
    let_go(second);
    let_go(third);
    end_stream(s.sim, mine);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_bytes_and_blocks_are_counted)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, 3 * KIB + 1);
    gm_stats stats;

    record(h, other);
    stats = stats_of(s.pool);
    CHECK_EQ(stats.live_blocks, 1);
    CHECK_EQ(stats.requested_bytes, 3 * KIB + 1);
    CHECK_EQ(stats.pending_blocks, 0);
    queue_write(s.sim, h, other);
    let_go(h);
    check_pool(s.pool);
    stats = stats_of(s.pool);
    CHECK_EQ(stats.live_blocks, 0);
    CHECK_EQ(stats.requested_bytes, 0);
    CHECK_EQ(stats.used_bytes, 0);
    CHECK_EQ(stats.pending_blocks, 1);
    CHECK_EQ(stats.pending_bytes, 3 * KIB + 512);
    CHECK_EQ(stats.free_bytes, 0);
    CHECK_EQ(stats.total_bytes, 3 * KIB + 512);
    CHECK_EQ(gm_pool_release_idle(s.pool), 3 * KIB + 512); // it asks a second time
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_waits_for_each_of_several_streams)
{
    site s = open_site(64 * MIB);
    gm_stream_use others[3];
    holding h = take_bytes(s.pool, MIB);

    for (int i = 0; i < 3; i++) {
        others[i] = new_stream(s.sim, 0, i != 1); // one of somebody else's
        record(h, others[i]);
        record(h, others[i]); // twice is once
        queue_write(s.sim, h, others[i]);
    }
    let_go(h);
    finish_stream(s.sim, others[0]);
    finish_stream(s.sim, others[2]);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 1);
    finish_stream(s.sim, others[1]);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    for (int i = 0; i < 3; i++) {
        end_stream(s.sim, others[i]);
    }
    close_site(s);
}

TEST(pending_is_not_what_is_used_on_its_own_stream)
{
    site s = open_site(64 * MIB);
    gm_stream_use mine = new_stream(s.sim, 0, true);
    gm_stream_use null = use_of(s.sim, GM_STREAM_NULL, 0, true);
    holding h = take_for(s.pool, MIB, mine.key);
    holding d = take_bytes(s.pool, MIB);

    gm_sim_log_start(s.sim);
    record(h, mine);
    record(d, null);
    let_go(h);
    let_go(d);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    CHECK_EQ(stats_of(s.pool).free_bytes, 2 * MIB);
    gm_sim_log_stop(s.sim);
    end_stream(s.sim, mine);
    close_site(s);
}

/* The default streams of two devices have one key, and are two streams. */
TEST(pending_tells_the_default_streams_of_two_devices_apart)
{
    site s = open_site(64 * MIB);
    gm_stream_use far = use_of(s.sim, GM_STREAM_NULL, 1, true);
    holding h = take_bytes(s.pool, MIB);
    int current = -1;

    record(h, far);
    CHECK_EQ(gm_backend_device_set(s.sim, 1), GM_OK);
    queue_write(s.sim, h, far);
    CHECK_EQ(gm_backend_device_set(s.sim, 0), GM_OK);
    let_go(h);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 1);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 1), GM_OK);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    CHECK_EQ(gm_backend_device_get(s.sim, &current), GM_OK);
    CHECK_EQ(current, 0);
    close_site(s);
}

TEST(pending_blocks_of_one_stream_share_a_lane_and_its_queries)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding held[10];

    for (int i = 0; i < 10; i++) {
        held[i] = take_bytes(s.pool, MIB);
        record(held[i], other);
        queue_write(s.sim, held[i], other);
    }
    for (int i = 0; i < 10; i++) {
        let_go(held[i]);
    }
    gm_sim_log_start(s.sim);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 10);
    CHECK_EQ(count_calls(s.sim, "event_query"), 1);
    gm_sim_log_stop(s.sim);
    finish_stream(s.sim, other);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_marks_are_used_again)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);

    for (int i = 0; i < 50; i++) {
        holding h = take_bytes(s.pool, MIB);

        record(h, other);
        queue_write(s.sim, h, other);
        let_go(h);
        finish_stream(s.sim, other);
        CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    }
    CHECK_EQ(read_ledger(s.sim).events, 1);
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_costs_unrecorded_blocks_no_call)
{
    site s = open_site(64 * MIB);
    holding h = take_bytes(s.pool, MIB);

    gm_sim_log_start(s.sim);
    let_go(h);
    h = take_bytes(s.pool, MIB);
    let_go(h);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    gm_sim_log_stop(s.sim);
    close_site(s);
}

TEST(pending_is_settled_every_so_often_where_nobody_asks)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding held[16];

    for (int i = 0; i < 16; i++) {
        held[i] = take_bytes(s.pool, KIB);
        record(held[i], other); // nothing is queued: it has happened at once
    }
    CHECK_EQ(gm_pool_release_idle(s.pool), 0); // not one of those that count
    gm_sim_log_start(s.sim);
    for (int i = 0; i < 15; i++) {
        let_go(held[i]);
    }
    CHECK_EQ(count_calls(s.sim, "event_query"), 0);
    let_go(held[15]);
    CHECK(count_calls(s.sim, "event_query") > 0);
    gm_sim_log_stop(s.sim);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_handles_that_are_void_cannot_be_recorded)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, MIB);

    let_go(h);
    CHECK_EQ(gm_pool_record_use(h.pool, h.block, h.generation, &other),
             GM_ERR_NOT_OWNED);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_holds_for_a_free_by_address)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, MIB);

    record(h, other);
    queue_write(s.sim, h, other);
    CHECK_EQ(gm_pool_free_address(s.pool, h.block->addr), GM_OK);
    check_void(h);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 1);
    let_go(h);                                    // only the handle ends
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0); // asked a second time
    check_pool(s.pool);
    end_stream(s.sim, other);
    close_site(s);
}

/* ---- no memory ---- */

TEST(pending_memory_is_waited_for_before_a_request_fails)
{
    site s = open_site(8 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, 6 * MIB);

    record(h, other);
    queue_write(s.sim, h, other);
    let_go(h);
    h = take_bytes(s.pool, 8 * MIB);
    CHECK_EQ(stats_of(s.pool).total_bytes, 8 * MIB);
    let_go(h);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_memory_of_a_sibling_is_waited_for_too)
{
    site s = open_site(8 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_pool *sibling = NULL;
    holding h = take_bytes(s.pool, 6 * MIB);

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(s.sim), &sibling), GM_OK);
    record(h, other);
    queue_write(s.sim, h, other);
    let_go(h);
    h = take_bytes(sibling, 8 * MIB);
    let_go(h);
    gm_pool_close(sibling);
    end_stream(s.sim, other);
    close_site(s);
}

/* ---- streams that end ---- */

TEST(pending_outlives_a_stream_that_is_destroyed)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding before = take_bytes(s.pool, MIB);
    holding after = take_bytes(s.pool, MIB);

    record(before, other);
    record(after, other);
    queue_write(s.sim, before, other);
    queue_write(s.sim, after, other);
    let_go(before);
    end_stream(s.sim, other);
    let_go(after);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 2);
    check_pool(s.pool);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    close_site(s);
}

/* Its end is announced to nobody: the backend says that the handle is another's. */
TEST(pending_leaves_the_handle_alone_that_went_to_another_stream)
{
    site s = open_site(64 * MIB);
    gm_stream_use foreign = new_stream(s.sim, 0, false);
    holding h = take_bytes(s.pool, MIB);
    gm_stream_use heir;

    queue_write(s.sim, h, foreign);
    record(h, foreign);
    end_stream(s.sim, foreign);
    heir = new_stream(s.sim, 0, true);
    CHECK_EQ(heir.stream, foreign.stream); // the very handle
    gm_sim_log_start(s.sim);
    let_go(h);
    CHECK_EQ(count_calls(s.sim, "event_record"), 0);
    gm_sim_log_stop(s.sim);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 1); // for what was queued before
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    end_stream(s.sim, heir);
    close_site(s);
}

TEST(pending_reaches_to_the_free_for_a_foreign_stream_that_is_there)
{
    site s = open_site(64 * MIB);
    gm_stream_use foreign = new_stream(s.sim, 0, false);
    holding h = take_bytes(s.pool, MIB);

    record(h, foreign);
    queue_write(s.sim, h, foreign); // after it was recorded
    let_go(h);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 1);
    finish_stream(s.sim, foreign);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    end_stream(s.sim, foreign);
    close_site(s);
}

TEST(pending_what_ended_streams_left_serves_any_stream)
{
    site s = open_site(64 * MIB);

    for (int i = 0; i < 1000 / harness_slowness(); i++) {
        gm_stream_use brief = new_stream(s.sim, 0, true);
        holding h = take_for(s.pool, MIB, brief.key);

        queue_write(s.sim, h, brief);
        let_go(h);
        finish_stream(s.sim, brief);
        end_stream(s.sim, brief);
        check_pool(s.pool);
    }
    // Two, because the device says of each stream once that it is not done yet.
    CHECK(stats_of(s.pool).total_bytes <= 2 * MIB);
    CHECK(stats_of(s.pool).arenas <= 2);
    close_site(s);
}

TEST(pending_what_an_ended_stream_left_waits_for_its_work)
{
    site s = open_site(64 * MIB);
    gm_stream_use brief = new_stream(s.sim, 0, true);
    holding h = take_for(s.pool, MIB, brief.key);
    uintptr_t addr = h.block->addr;
    holding live = take_for(s.pool, MIB, brief.key);
    holding other;

    queue_write(s.sim, h, brief);
    let_go(h);
    end_stream(s.sim, brief);
    other = take_bytes(s.pool, MIB);
    CHECK(other.block->addr != addr);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    h = take_bytes(s.pool, MIB);
    CHECK_EQ(h.block->addr, addr);
    check_pool(s.pool);
    let_go(live); // of a segment that moved meanwhile
    let_go(other);
    let_go(h);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).arenas,
             2); // the default stream's, and what nobody needed
    CHECK_EQ(stats_of(s.pool).free_bytes, 3 * MIB);
    close_site(s);
}

TEST(pending_an_end_that_concerns_nobody_calls_nothing)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);

    gm_sim_log_start(s.sim);
    gm_pools_end_stream(s.sim, &other);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    gm_sim_log_stop(s.sim);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, other.stream), GM_OK);
    close_site(s);
}

/* ---- lending ---- */

TEST(pending_a_request_borrows_what_another_stream_has_free)
{
    site s = open_site(8 * MIB);
    gm_stream_use lender = new_stream(s.sim, 0, true);
    gm_stream_use borrower = new_stream(s.sim, 0, true);
    const gm_rescue rescue = {.by = &borrower};
    const gm_request request = {.size = MIB, .key = borrower.key};
    holding whole = take_for(s.pool, 8 * MIB, lender.key);
    holding piece;
    gm_block *block = NULL;

    let_go(whole);
    piece = take_for(s.pool, MIB, lender.key);
    CHECK_EQ(gm_pool_malloc_slow(s.pool, &request, NULL, &block),
             GM_ERR_OUT_OF_MEMORY); // nobody to note whose it would be
    queue_write(s.sim, piece, lender);
    CHECK_EQ(gm_pool_malloc_slow(s.pool, &request, &rescue, &block), GM_OK);
    CHECK_EQ(read_ledger(s.sim).pending, 0); // it waited for the device
    CHECK_EQ(block->segment->arena->key, lender.key);
    queue_write(s.sim, hold(s.pool, block), borrower);
    let_go(hold(s.pool, block));
    CHECK_EQ(stats_of(s.pool).pending_bytes, MIB);
    finish_stream(s.sim, borrower);
    let_go(piece);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
    whole = take_for(s.pool, 8 * MIB, lender.key);
    let_go(whole);
    end_stream(s.sim, lender);
    end_stream(s.sim, borrower);
    close_site(s);
}

/* ---- the end of a pool ---- */

TEST(pending_blocks_keep_a_closed_pool_until_somebody_looks)
{
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_bytes(s.pool, MIB);

    record(h, other);
    queue_write(s.sim, h, other);
    gm_pool_close(s.pool);
    CHECK(!gm_process_is_anyone_lingering());
    let_go(h);
    CHECK(gm_process_is_anyone_lingering());
    CHECK_EQ(read_ledger(s.sim).allocations, 1);
    CHECK_EQ(read_ledger(s.sim).pending, 1 + 1); // the write and its mark: no wait
    finish_stream(s.sim, other);
    gm_pools_sweep();
    CHECK(!gm_process_is_anyone_lingering());
    CHECK_EQ(gm_backend_stream_destroy(s.sim, other.stream), GM_OK);
    check_ledger_is_empty(s.sim);
    gm_backend_close(s.sim);
}

/* ---- failures ---- */

typedef struct failing {
    size_t after; // this one fails, from 0
    size_t seen;
} failing;

static bool
fail_nth(void *context, size_t size)
{
    failing *f = context;

    (void)size;
    return f->seen++ == f->after;
}

/* Each time from the start: what one attempt left would save the next an allocation. */
TEST(pending_whichever_host_allocation_fails_nothing_changes)
{
    gm_status status = GM_ERR_HOST_MEMORY;

    for (size_t n = 0; status != GM_OK; n++) {
        site s = open_site(64 * MIB);
        gm_stream_use other = new_stream(s.sim, 0, false);
        holding h = take_bytes(s.pool, MIB);
        failing f = {.after = n};

        CHECK(n < 50);
        gm_host_set_fault(fail_nth, &f);
        status = gm_pool_record_use(h.pool, h.block, h.generation, &other);
        gm_host_set_fault(NULL, NULL);
        CHECK(status == GM_OK || status == GM_ERR_HOST_MEMORY);
        check_pool(s.pool);
        let_go(h);
        finish_stream(s.sim, other);
        CHECK_EQ(stats_of(s.pool).free_bytes, MIB);
        end_stream(s.sim, other);
        close_site(s);
    }
}

/* One more pool at the site, over a device whose calls can be made to fail. */
static gm_pool *
open_faulty(site s, gm_backend **fault)
{
    gm_pool *pool = NULL;

    CHECK_EQ(gm_backend_fault_open(s.sim, fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(*fault), &pool), GM_OK);
    return pool;
}

static void
close_faulty(gm_pool *pool, gm_backend *fault)
{
    gm_pool_close(pool);
    gm_fault_clear(fault);
    gm_backend_close(fault);
}

TEST(pending_a_mark_that_fails_is_tried_again)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_pool *pool = open_faulty(s, &fault);
    holding h;

    h = take_bytes(pool, MIB);
    record(h, other);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 1, GM_DEVICE_ERROR(999)), GM_OK);
    let_go(h);
    check_pool(pool);
    CHECK_EQ(stats_of(pool).pending_blocks, 1);
    let_go(take_bytes(pool, KIB)); // a miss: marks, and looks
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(pool).pending_blocks, 0);
    close_faulty(pool, fault);
    end_stream(s.sim, other);
    close_site(s);
}

TEST(pending_a_stream_that_cannot_be_marked_is_waited_for_when_it_ends)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_pool *pool = open_faulty(s, &fault);
    holding h;

    h = take_bytes(pool, MIB);
    record(h, other);
    queue_write(s.sim, h, other);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 1, GM_DEVICE_ERROR(999)), GM_OK);
    gm_pools_end_stream(fault, &other);
    CHECK_EQ(read_ledger(s.sim).pending, 0);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, other.stream), GM_OK);
    let_go(h);
    CHECK_EQ(stats_of(pool).free_bytes, MIB);
    close_faulty(pool, fault);
    close_site(s);
}

/* ---- threads ---- */

enum {
    WORKERS = 4,
    ROUNDS = 2000,
};

typedef struct worker {
    site *s;
    uint64_t seed;
    gm_stream_use foreign; // there until all threads are done: nobody announces its end
} worker;

static void *
work(void *context)
{
    const worker *w = context;
    const gm_backend *b = w->s->sim;
    dice d = {w->seed};
    gm_stream_use mine = new_stream(b, 0, true);

    for (int i = 0; i < ROUNDS / harness_slowness(); i++) {
        gm_stream_use other = new_stream(b, 0, true);
        holding h = take_for(w->s->pool, 1 + dice_below(&d, 64 * KIB), mine.key);

        queue_write(b, h, other);
        record(h, other);
        if (dice_below(&d, 3) == 0) {
            record(h, w->foreign);
        }
        if (dice_below(&d, 2) == 0) {
            let_go(h);
            end_stream(b, other);
        }
        else {
            end_stream(b, other);
            let_go(h);
        }
    }
    end_stream(b, mine);
    return NULL;
}

TEST(pending_threads_that_share_a_pool)
{
    site s = open_site(256 * MIB);
    pthread_t threads[WORKERS];
    worker workers[WORKERS];

    for (uint64_t i = 0; i < WORKERS; i++) {
        workers[i] = (worker){&s, i + 1, new_stream(s.sim, 0, false)};
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    (void)gm_pool_settle_all(s.pool);
    for (int i = 0; i < WORKERS; i++) {
        end_stream(s.sim, workers[i].foreign);
    }
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(s.pool).live_blocks, 0);
    CHECK_EQ(stats_of(s.pool).pending_blocks, 0);
    check_pool(s.pool);
    CHECK_EQ(gm_pool_release_idle(s.pool), stats_of(s.pool).peak_total_bytes);
    close_site(s);
}
