/* SPDX-License-Identifier: MIT
 *
 * Pages of streams that end, or are recorded, while another thread gives the pages back
 * or takes them: no handle is used that is gone, nobody waits who need not, nobody runs
 * out of memory that is on its way.
 */
#include "paged.h"

#include "core/gm_capture.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h> // nanosleep

/* ---- a stream that ends in the midst ---- */

static gm_backend table;
static gm_backend *real;
static gm_stream_use ending;
static pthread_t helper;
static atomic_bool arrived, ended;

static void *
end_it(void *context)
{
    atomic_store(&arrived, true);
    gm_pools_end_stream(&table, &ending);
    atomic_store(&ended, true);
    return context;
}

/* While a mark is recorded on it. */
static gm_status
end_meanwhile(void *self, gm_event event, gm_stream stream)
{
    if (!atomic_load(&arrived)) {
        CHECK_EQ(stream, ending.stream);
        CHECK_EQ(pthread_create(&helper, NULL, end_it, NULL), 0);
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

/* A site whose pool calls the device by the table, and `count` pages of a stream, free
 * and in use by the device. */
static site
open_owned(size_t memory, size_t count)
{
    site s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = memory})};
    holding h;

    real = s.sim;
    table = *s.sim;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &s.pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(s.pool), GM_OK);
    ending = new_stream(s.sim, 0, true);
    h = take_by(s.pool, count * PAGE, &ending);
    queue_write(s.sim, h, ending);
    drop(h);
    return s;
}

/* Ends a stream as the pool's backend does. */
static void
end_owner(gm_stream_use by)
{
    gm_pools_end_stream(&table, &by);
    CHECK_EQ(gm_backend_stream_destroy(real, by.stream), GM_OK);
}

static void
join_helper(site s)
{
    CHECK_EQ(pthread_join(helper, NULL), 0);
    table = *s.sim;
}

TEST(expandable_stream_ends_after_who_gives_its_pages_back)
{
    site s = open_owned(8 * PAGE, 2);
    uint64_t hold;

    CHECK_EQ(gm_sim_hold(s.sim, ending.stream, &hold), GM_OK);
    table.event_record = end_meanwhile;
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    join_helper(s);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, ending.stream), GM_OK);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
    close_site(s);
}

TEST(expandable_stream_ends_after_who_takes_its_pages)
{
    site s = open_owned(2 * PAGE, 2);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h;

    table.event_record = end_meanwhile;
    h = take_by(s.pool, 2 * PAGE, &other);
    join_helper(s);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, ending.stream), GM_OK);
    CHECK_EQ(stats_of(s.pool).remapped_pages, 2);
    queue_write(s.sim, h, other);
    drop(h);
    end_owner(other);
    close_site(s);
}

/* What it left is in use until its last mark, which is all there is to wait for. */
TEST(expandable_pages_of_an_ended_stream_are_not_waited_for)
{
    site s = open_owned(8 * PAGE, 2);
    uint64_t hold;

    CHECK_EQ(gm_sim_hold(s.sim, ending.stream, &hold), GM_OK);
    end_owner(ending);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0); // here the device cannot be waited for
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
    close_site(s);
}

/* The same while its mark is still to stand in a lane. */
TEST(expandable_pages_of_a_stream_that_ended_before_a_recording_did)
{
    site s = open_owned(8 * PAGE, 2);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    uint64_t hold;

    CHECK_EQ(gm_sim_hold(s.sim, ending.stream, &hold), GM_OK);
    CHECK_EQ(gm_capture_begin(&recorded, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    end_owner(ending);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 0);
    gm_capture_end(capture); // gives back what was asked for
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
    gm_capture_release(capture);
    end_owner(recorded);
    close_site(s);
}

/* Nobody said so: who asks finds that its handle means nothing any more, and waits for
 * the device. A request leaves such pages alone, until there are no others. */
TEST(expandable_pages_of_a_stream_that_went_unannounced)
{
    site s = open_paged_site(4 * PAGE);
    gm_stream_use foreign = new_stream(s.sim, 0, false);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_by(s.pool, 3 * PAGE, &foreign);

    queue_write(s.sim, h, foreign);
    drop(h);
    finish_stream(s.sim, foreign);
    end_stream(s.sim, foreign);
    gm_sim_recycle_handles(s.sim, false);
    h = take_by(s.pool, 4 * PAGE, &other);
    CHECK_EQ(stats_of(s.pool).remapped_pages, 0);
    CHECK(stats_of(s.pool).upstream_frees >= 3);
    drop(h);
    end_stream(s.sim, other);
    gm_pool_close(s.pool);
    CHECK_EQ(read_ledger(s.sim).handles, 0);
    gm_backend_close(s.sim);
}

/* ---- a stream that somebody else records ---- */

static gm_graph
end_recording(site s, gm_stream_use stream)
{
    gm_graph graph = 0;

    CHECK_EQ(gm_backend_capture_end(s.sim, stream.stream, &graph), GM_OK);
    return graph;
}

/* The pool was not told: asking the device about that stream would spoil the recording,
 * and so would waiting for the device. */
TEST(expandable_pages_of_a_stream_that_is_recorded_stay)
{
    site s = open_paged_site(4 * PAGE);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h = take_by(s.pool, 2 * PAGE, &recorded);
    gm_graph graph;

    drop(h);
    CHECK_EQ(gm_backend_capture_begin(s.sim, recorded.stream, GM_CAPTURE_MODE_RELAXED),
             GM_OK);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).free_bytes, 2 * PAGE);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 0);
    CHECK_EQ(try_for(s.pool, 3 * PAGE, &other, &h), GM_ERR_OUT_OF_MEMORY);
    graph = end_recording(s, recorded);
    h = take_by(s.pool, 3 * PAGE, &other);
    drop(h);
    CHECK_EQ(gm_backend_graph_destroy(s.sim, graph), GM_OK);
    end_stream(s.sim, recorded);
    end_stream(s.sim, other);
    close_site(s);
}

/* Pages found behind such are given back all the same. */
TEST(expandable_pages_of_others_go_past_a_recording)
{
    site s = open_paged_site(16 * PAGE);
    gm_stream_use recorded = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    holding h[2] = {take_by(s.pool, 2 * PAGE, &recorded),
                    take_by(s.pool, PAGE, &other)};
    gm_graph graph;

    drop(h[0]);
    drop(h[1]);
    CHECK_EQ(gm_backend_capture_begin(s.sim, recorded.stream, GM_CAPTURE_MODE_RELAXED),
             GM_OK);
    CHECK_EQ(gm_pool_release_idle(s.pool), PAGE);
    check_pool(s.pool);
    graph = end_recording(s, recorded);
    CHECK_EQ(gm_pool_release_idle(s.pool), 2 * PAGE);
    CHECK_EQ(gm_backend_graph_destroy(s.sim, graph), GM_OK);
    end_stream(s.sim, recorded);
    end_stream(s.sim, other);
    close_site(s);
}

/* ---- a pool that is closed in the midst ---- */

static gm_pool *closing;

static gm_status
close_meanwhile(void *self, gm_event event, gm_stream stream)
{
    if (closing) {
        gm_pool *pool = closing;

        closing = NULL;
        gm_pool_close(pool); // by its owner, while others have its pages
        CHECK(read_ledger(real).handle_bytes > 0);
    }
    return real->event_record(self, event, stream);
}

TEST(expandable_pool_that_is_closed_while_others_have_its_pages)
{
    site s = open_owned(8 * PAGE, 2);
    uint64_t hold;

    closing = s.pool;
    CHECK_EQ(gm_sim_hold(s.sim, ending.stream, &hold), GM_OK);
    table.event_record = close_meanwhile;
    (void)gm_pools_release_idle(0, GM_ERR_OUT_OF_MEMORY); // as of a request elsewhere
    CHECK(!closing);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    finish_stream(s.sim, ending);
    gm_pools_sweep();
    check_no_pool_is_left();
    CHECK_EQ(gm_backend_stream_destroy(s.sim, ending.stream), GM_OK);
    check_ledger_is_empty(s.sim);
    gm_backend_close(s.sim);
}

/* ---- memory on its way ---- */

static site field;
static gm_stream_use late;
static gm_status late_status;

static void *
ask_late(void *context)
{
    const gm_request request = {.size = 4 * PAGE, .key = late.key};
    const gm_rescue rescue = {.by = &late};
    gm_block *block = NULL;

    atomic_store(&arrived, true);
    late_status = gm_pool_malloc_slow(field.pool, &request, &rescue, &block);
    if (late_status == GM_OK) {
        let_go(hold(field.pool, block));
    }
    atomic_store(&ended, true);
    return context;
}

static gm_status
ask_meanwhile(void *self, gm_event event, gm_stream stream)
{
    const struct timespec pause = {.tv_nsec = 20000000};

    if (!atomic_load(&arrived)) {
        CHECK_EQ(pthread_create(&helper, NULL, ask_late, NULL), 0);
        while (!atomic_load(&arrived)) {
            sched_yield();
        }
        nanosleep(&pause, NULL); // far more than it takes to fail
        CHECK(!atomic_load(&ended));
    }
    return real->event_record(self, event, stream);
}

/* Pages that another thread has in its hands are neither free nor among those that
 * leave: who needs them waits for that thread. */
TEST(expandable_pages_in_the_hands_of_another_thread_are_waited_for)
{
    field = open_owned(4 * PAGE, 4);
    late = new_stream(field.sim, 0, true);
    table.event_record = ask_meanwhile;
    (void)gm_pool_release_idle(field.pool);
    join_helper(field);
    CHECK_EQ(late_status, GM_OK);
    end_owner(ending);
    end_owner(late);
    close_site(field);
}
