/* SPDX-License-Identifier: MIT
 *
 * The end of a stream: what becomes of its arena where something is in the way, such as
 * no host memory, a recording, or a thread that is recording marks just then; and whose
 * memory stays as it is.
 */
#include "host_fault.h"
#include "streams.h"

#include "core/gm_capture.h"
#include "core/gm_pool_private.h" // the commons

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* Two ended streams share what they left; nobody else's becomes theirs. */
TEST(stream_end_leaves_the_memory_of_others_alone)
{
    site s = open_site(64 * MIB);
    gm_stream_use living = new_stream(s.sim, 0, true);
    gm_stream_use brief[2] = {new_stream(s.sim, 0, true), new_stream(s.sim, 0, true)};
    holding h;

    let_go(take_for(s.pool, 3 * MIB, living.key));
    let_go(take_for(s.pool, MIB, brief[0].key));
    let_go(take_for(s.pool, MIB, brief[1].key));
    for (size_t i = 0; i < 2; i++) {
        end_stream(s.sim, brief[i]);
        (void)gm_pool_settle_all(s.pool);
        check_pool(s.pool);
    }
    CHECK_EQ(stats_of(s.pool).arenas, 2);
    h = take_bytes(s.pool, 2 * MIB);
    CHECK_EQ(stats_of(s.pool).total_bytes, (3 + 1 + 1 + 2) * MIB); // not of the 3
    let_go(h);
    h = take_bytes(s.pool, MIB);
    let_go(take_bytes(s.pool, MIB));
    let_go(h);
    CHECK_EQ(stats_of(s.pool).total_bytes, (3 + 1 + 1 + 2) * MIB);
    h = take_for(s.pool, 3 * MIB, living.key);
    CHECK_EQ(stats_of(s.pool).total_bytes, (3 + 1 + 1 + 2) * MIB);
    let_go(h);
    end_stream(s.sim, living);
    close_site(s);
}

/* A stream of another backend may have the same key. */
TEST(stream_end_is_of_one_backend)
{
    site s = open_site(64 * MIB), elsewhere = open_site(64 * MIB);
    gm_stream_use brief = new_stream(s.sim, 0, true);
    holding h;

    let_go(take_for(elsewhere.pool, MIB, brief.key));
    let_go(take_for(s.pool, MIB, brief.key));
    end_stream(s.sim, brief);
    (void)gm_pool_settle_all(s.pool);
    (void)gm_pool_settle_all(elsewhere.pool);
    h = take_bytes(s.pool, MIB);
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
    let_go(h);
    h = take_bytes(elsewhere.pool, MIB);
    CHECK_EQ(stats_of(elsewhere.pool).total_bytes, 2 * MIB);
    let_go(h);
    let_go(take_for(elsewhere.pool, MIB, brief.key)); // as cached
    CHECK_EQ(stats_of(elsewhere.pool).hits, 1);
    gm_pool_close(elsewhere.pool);
    check_ledger_is_empty(elsewhere.sim);
    CHECK_EQ(read_ledger(elsewhere.sim).errors, 0);
    gm_backend_close(elsewhere.sim);
    close_site(s);
}

/* Its memory is not lost by that: it goes back to the device with the rest. */
TEST(stream_end_without_host_memory)
{
    size_t count = 0;
    bool failed = true;

    for (; failed; count++) {
        site s = open_site(64 * MIB);
        gm_stream_use brief = new_stream(s.sim, 0, true);
        holding used = take_bytes(s.pool, MIB);
        size_t left = count;

        CHECK(count < 20);
        let_go(take_for(s.pool, 2 * MIB, brief.key));
        record(used, brief);
        queue_write(s.sim, used, brief);
        gm_host_set_fault(fail_nth, &left);
        gm_pools_end_stream(s.sim, &brief);
        gm_host_set_fault(NULL, NULL);
        failed = left > count;
        CHECK_EQ(gm_backend_stream_destroy(s.sim, brief.stream), GM_OK);
        check_pool(s.pool);
        let_go(used);
        CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
        CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
        CHECK_EQ(gm_pool_release_idle(s.pool), 3 * MIB);
        CHECK_EQ(stats_of(s.pool).arenas, 0);
        close_site(s);
    }
    CHECK(count > 3); // a note, its use, a mark
}

/* Marks are recorded at the end of the recording, when the handle is dead. */
TEST(stream_end_while_something_is_recorded)
{
    site s = open_site(64 * MIB);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use brief = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    holding h = take_for(s.pool, MIB, brief.key);
    holding used = take_bytes(s.pool, 2 * MIB);

    record(used, brief);
    queue_write(s.sim, h, brief);
    let_go(h);
    CHECK_EQ(gm_capture_begin(&recorded, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    end_stream(s.sim, brief);
    let_go(used);
    check_pool(s.pool);
    gm_capture_release(capture);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 2 * MIB); // for what was queued by then
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
    let_go(take_bytes(s.pool, MIB)); // what it left is anybody's
    CHECK_EQ(stats_of(s.pool).total_bytes, 3 * MIB);
    end_stream(s.sim, recorded);
    close_site(s); // the device saw no dead handle
}

/* Known as somebody else's first, by whom nothing would have been announced: the mark
 * it got then gives way to the last one. */
TEST(stream_end_of_one_that_was_foreign)
{
    site s = open_site(64 * MIB);
    gm_stream_use foreign = new_stream(s.sim, 0, false), own = foreign;
    holding h = take_bytes(s.pool, MIB);

    own.announced = true;
    record(h, foreign);
    queue_write(s.sim, h, foreign);
    end_stream(s.sim, own);
    check_pool(s.pool);
    let_go(h);
    CHECK_EQ(stats_of(s.pool).pending_bytes, MIB); // for the write as well
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(s.pool).pending_bytes, 0);
    close_site(s); // no event is left
}

/* Then it is waited for, and what it left is anybody's at once. */
TEST(stream_end_that_cannot_be_marked)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_pool *pool = NULL;
    gm_stream_use brief = new_stream(s.sim, 0, true);
    holding h;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    h = take_for(pool, MIB, brief.key);
    queue_write(s.sim, h, brief);
    let_go(h);
    CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 0, GM_DEVICE_ERROR(999)), GM_OK);
    gm_pools_end_stream(fault, &brief);
    CHECK_EQ(read_ledger(s.sim).pending, 0);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, brief.stream), GM_OK);
    check_pool(pool);
    let_go(take_bytes(pool, MIB));
    CHECK_EQ(stats_of(pool).total_bytes, MIB);
    gm_fault_clear(fault);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}

/* The second time the device knows no such stream: the first mark stands. */
TEST(stream_end_said_twice)
{
    gm_backend *fault = NULL;
    site s = open_site(64 * MIB);
    gm_pool *pool = NULL;
    gm_stream_use brief = new_stream(s.sim, 0, true);
    holding h;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    h = take_bytes(pool, MIB);
    record(h, brief);
    queue_write(s.sim, h, brief);
    gm_pools_end_stream(fault, &brief);
    CHECK_EQ(gm_fault_plan(fault, NULL, 1, 0, GM_DEVICE_ERROR(400)), GM_OK);
    gm_pools_end_stream(fault, &brief);
    gm_fault_clear(fault);
    let_go(h);
    check_pool(pool);
    CHECK_EQ(stats_of(pool).pending_bytes, MIB);
    finish_stream(s.sim, brief);
    CHECK_EQ(stats_of(pool).pending_bytes, 0);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, brief.stream), GM_OK);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}

/* A process that is ending asks nobody for anything. */
TEST(stream_end_at_exit)
{
    site s = open_site(64 * MIB);
    gm_stream_use brief = new_stream(s.sim, 0, true);

    let_go(take_for(s.pool, MIB, brief.key));
    gm_process_exit();
    gm_sim_log_start(s.sim);
    gm_pools_end_stream(s.sim, &brief);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
}

/* ---- another thread at it ---- */

static gm_backend table;
static gm_backend *real;
static gm_stream_use ending;
static pthread_t ender;
static atomic_bool arrived, ended;

static void *
end_it(void *context)
{
    atomic_store(&arrived, true);
    gm_pools_end_stream(&table, &ending);
    atomic_store(&ended, true);
    return context;
}

/* In the midst of marking what was dropped: the stream must not go before that mark. */
static gm_status
record_meanwhile(void *self, gm_event event, gm_stream stream)
{
    if (!atomic_load(&arrived)) {
        CHECK_EQ(pthread_create(&ender, NULL, end_it, NULL), 0);
        while (!atomic_load(&arrived)) {
            sched_yield();
        }
        for (int i = 0; i < 2000; i++) {
            sched_yield();
        }
        CHECK(!atomic_load(&ended));
    }
    return real->event_record(self, event, stream);
}

TEST(stream_end_waits_for_a_thread_that_is_marking)
{
    site s = open_site(64 * MIB);
    gm_pool *pool = NULL;
    holding h;

    real = s.sim;
    table = *s.sim;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &pool), GM_OK);
    ending = new_stream(s.sim, 0, true);
    h = take_for(pool, MIB, 7);
    record(h, ending);
    queue_write(s.sim, h, ending);
    table.event_record = record_meanwhile;
    let_go(h);
    CHECK_EQ(pthread_join(ender, NULL), 0);
    table.event_record = real->event_record;
    CHECK_EQ(gm_backend_stream_destroy(s.sim, ending.stream), GM_OK);
    check_pool(pool);
    CHECK_EQ(stats_of(pool).pending_bytes, MIB);
    CHECK_EQ(gm_backend_device_synchronize(s.sim, 0), GM_OK);
    CHECK_EQ(stats_of(pool).pending_bytes, 0);
    gm_pool_close(pool);
    close_site(s);
}
