/* SPDX-License-Identifier: MIT
 *
 * Devices that were reset, and memory that waits for streams: uses and marks of the
 * old life are forgotten, those of the new life and of other devices are not.
 */
#include "lives.h"

#include "core/gm_pool_private.h" // counters that are read without a look

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

TEST(lost_streams_are_waited_for_no_more)
{
    open_backend();
    gm_pool *pool = pool_on(1); // another device's memory, used by a stream of 0
    for (int announced = 0; announced < 2; announced++) {
        for (int dropped = 0; dropped < 2; dropped++) {
            test_stream s = make_stream(0, announced);
            holding held = take_bytes(pool, UNITS(1));

            keep_busy(&s);
            use_on(held, &s);
            if (dropped) {
                let_go(held);
                CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(1));
            }
            lives[0]++;
            size_t before = events();
            gm_pools_device_lost(&table, 0);
            CHECK_EQ(events(), before); // no event of the old life is touched
            if (!dropped) {
                CHECK_EQ(sound_stats(pool).used_bytes, UNITS(1));
                let_go(held);
            }
            CHECK_EQ(sound_stats(pool).pending_bytes, 0);
            CHECK_EQ(sound_stats(pool).free_bytes, UNITS(1));
            CHECK_EQ(sound_stats(pool).lost_segments, 0);
            drop_stream(&s);
        }
    }
    gm_pool_close(pool);
    CHECK(events() > 0); // nor is it at the end of the pool
    end_scratch();
    close_backend(-1);
}

TEST(lost_streams_of_what_had_to_wait_for_its_mark)
{
    open_backend();
    gm_pool *pool = pool_on(1);
    test_stream s = make_stream(0, true);
    test_stream recorded = make_stream(1, true);
    gm_capture *capture = NULL;
    holding held = take_bytes(pool, UNITS(1));

    use_on(held, &s);
    CHECK_EQ(gm_capture_begin(&recorded.use, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    let_go(held);
    CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(1));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(sound_stats(pool).pending_bytes, 0);
    gm_capture_release(capture);
    drop_stream(&s);
    drop_stream(&recorded);
    gm_pool_close(pool);
    CHECK_EQ(events(), 0);
    close_backend(-1);
}

TEST(lost_memory_may_be_pending_for_a_device_that_is_still_there)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    test_stream s = make_stream(1, true);
    holding live = take_bytes(pool, UNITS(1));
    holding pending = take_bytes(pool, UNITS(2));

    keep_busy(&s);
    use_on(live, &s);
    use_on(pending, &s);
    let_go(pending);
    CHECK_EQ(pool->stats.pending_bytes, UNITS(2));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 2);
    let_go(live);
    CHECK_EQ(gm_backend_stream_synchronize(sim, s.handle), GM_OK);
    CHECK(pool->lanes != NULL); // waited for, though nothing is left of it
    CHECK_EQ(gm_pool_settle(pool), 0);
    CHECK(pool->lanes == NULL);
    check_empty(pool, 2);
    gm_pools_end_stream(&table, &s.use);
    drop_stream(&s);
    gm_pool_close(pool);
    end_scratch();
    CHECK_EQ(events(), 0);
    close_backend(0);
}

TEST(lost_memory_of_a_closed_pool_is_still_waited_for)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    test_stream s = make_stream(1, true);
    test_stream recorded = make_stream(1, true);
    gm_capture *capture = NULL;
    holding pending = take_bytes(pool, UNITS(2));

    use_on(pending, &s);
    CHECK_EQ(gm_capture_begin(&recorded.use, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    let_go(pending);     // its mark waits for the end of the recording
    gm_pool_close(pool); // and the pool for the mark
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    gm_capture_release(capture);
    drop_stream(&recorded);
    CHECK_EQ(gm_backend_stream_synchronize(sim, s.handle), GM_OK);
    gm_pools_sweep();
    gm_pools_end_stream(&table, &s.use);
    drop_stream(&s);
    end_scratch();
    CHECK_EQ(events(), 0);
    close_backend(0);
}

TEST(lost_marks_of_the_new_life_are_waited_for)
{
    open_backend();
    gm_pool *pool = pool_on(1);
    test_stream old = make_stream(0, true);
    holding held[3];

    for (size_t i = 0; i < 3; i++) {
        held[i] = take_bytes(pool, UNITS(i + 1));
    }
    keep_busy(&old);
    use_on(held[0], &old);
    let_go(held[0]);
    lives[0] = 2;
    test_stream fresh = make_stream(0, true);
    keep_busy(&fresh);
    use_on(held[1], &fresh);
    use_on(held[2], &fresh);
    let_go(held[1]);
    gm_pools_device_lost(&table, 0); // told late
    let_go(held[2]);
    CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(5));
    CHECK_EQ(gm_backend_stream_synchronize(sim, fresh.handle), GM_OK);
    (void)gm_pool_settle(pool);
    CHECK_EQ(sound_stats(pool).pending_bytes, 0);
    gm_pools_end_stream(&table, &fresh.use);
    drop_stream(&fresh);
    drop_stream(&old);
    gm_pool_close(pool);
    end_scratch();
    close_backend(-1);
}

/* ---- what stays ---- */

/* The default streams of a device outlive it: new work on them is waited for. */
TEST(lost_streams_are_neither_those_of_other_devices_nor_default_ones)
{
    static const gm_stream defaults[] = {GM_STREAM_LEGACY, GM_STREAM_PER_THREAD};

    open_backend();
    gm_pool *pool = pool_on(1);
    test_stream streams[3] = {make_stream(1, true)};
    holding held[3];

    CHECK_EQ(gm_backend_device_set(&table, 0), GM_OK);
    for (int i = 0; i < 2; i++) {
        uint64_t id = 0;

        CHECK_EQ(gm_backend_stream_id(&table, defaults[i], &id), GM_OK);
        streams[i + 1] = (test_stream){.handle = defaults[i],
                                       .use = {.stream = defaults[i],
                                               .key = gm_stream_key_of(defaults[i], id),
                                               .life = 1}};
    }
    for (size_t i = 0; i < 3; i++) {
        held[i] = take_bytes(pool, UNITS(1));
        use_on(held[i], &streams[i]);
    }
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    for (size_t i = 0; i < 3; i++) {
        keep_busy(&streams[i]);
        let_go(held[i]);
    }
    CHECK_EQ(sound_stats(pool).pending_blocks, 3);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(gm_backend_stream_synchronize(&table, streams[i].handle), GM_OK);
    }
    CHECK_EQ(sound_stats(pool).pending_blocks, 0);
    drop_stream(&streams[0]);
    gm_pool_close(pool);
    CHECK_EQ(events(), 2); // the first marks of the default streams, of the old life
    end_scratch();
    close_backend(-1);
}

/* A stream of which nobody said in which life it was made: gone with a device of which
 * nothing is left, else waited for like one of the present life. */
TEST(lost_streams_whose_life_is_not_known)
{
    open_backend();
    gm_pool *pool = pool_on(1);

    for (uint64_t now = 0; now <= 2; now += 2) {
        test_stream s = make_stream(0, true);
        holding held = take_bytes(pool, UNITS(1));

        s.use.life = 0;
        use_on(held, &s);
        keep_busy(&s);
        lives[0] = now;
        gm_pools_device_lost(&table, 0);
        let_go(held);
        CHECK_EQ(sound_stats(pool).pending_blocks, now ? 1 : 0);
        drop_stream(&s);
        CHECK_EQ(sound_stats(pool).pending_blocks, 0);
        lives[0] = 1;
    }
    gm_pool_close(pool);
    end_scratch();
    close_backend(-1);
}

static bool handle_is_anothers;

static gm_status
test_stream_id(void *self, gm_stream stream, uint64_t *id)
{
    gm_status status = sim->stream_id(self, stream, id);

    *id += handle_is_anothers ? 1000 : 0;
    return status;
}

/* The mark that a foreign stream got when it was told of is all there is, once its
 * handle is another stream's. */
TEST(lost_marks_are_not_those_of_other_devices)
{
    open_backend();
    table.stream_id = test_stream_id;
    gm_pool *pool = pool_on(1);
    test_stream foreign = make_stream(1, false);
    holding held = take_for(pool, UNITS(1), 7);

    keep_busy(&foreign);
    use_on(held, &foreign);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    handle_is_anothers = true;
    let_go(held);
    CHECK_EQ(sound_stats(pool).pending_blocks, 1);
    drop_stream(&foreign);
    CHECK_EQ(sound_stats(pool).pending_blocks, 0);
    gm_pool_close(pool);
    end_scratch();
    close_backend(-1);
}

static gm_status
refuse_record(void *self, gm_event event, gm_stream stream)
{
    (void)self;
    (void)event;
    (void)stream;
    return GM_DEVICE_ERROR(999);
}

/* Dropped while a graph was recorded, so without any mark yet. */
TEST(lost_streams_of_one_device_leave_what_was_dropped_to_the_others)
{
    open_backend();
    gm_pool *pool = pool_on(1);
    test_stream gone = make_stream(0, true), there = make_stream(1, true);
    test_stream recorded = make_stream(1, true);
    gm_capture *capture = NULL;
    holding both = take_bytes(pool, UNITS(1)), one = take_bytes(pool, UNITS(2));

    use_on(both, &gone);
    use_on(both, &there);
    use_on(one, &gone);
    CHECK_EQ(gm_capture_begin(&recorded.use, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    let_go(one);
    let_go(both);
    keep_busy(&gone);
    keep_busy(&there);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(1));
    gm_capture_release(capture);
    CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(1));
    drop_stream(&there);
    CHECK_EQ(sound_stats(pool).pending_bytes, 0);
    drop_stream(&gone);
    drop_stream(&recorded);
    gm_pool_close(pool);
    end_scratch();
    close_backend(-1);
}

/* Spare marks of both devices: the event of the old life is never touched, the others
 * are used again and destroyed with the pool. */
TEST(lost_spare_marks_are_those_of_the_device)
{
    open_backend();
    gm_pool *pool = pool_on(1);
    test_stream streams[] = {make_stream(0, true), make_stream(1, true),
                             make_stream(0, true)};
    holding held[3];

    for (size_t i = 0; i < 3; i++) {
        held[i] = take_bytes(pool, UNITS(1));
        use_on(held[i], &streams[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        let_go(held[i]); // each gets a mark
        CHECK_EQ(gm_backend_stream_synchronize(&table, streams[i].handle), GM_OK);
    }
    CHECK_EQ(sound_stats(pool).pending_blocks, 0);
    CHECK_EQ(events(), 3);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    held[1] = take_bytes(pool, UNITS(1));
    use_on(held[1], &streams[1]);
    let_go(held[1]);
    CHECK_EQ(gm_backend_stream_synchronize(&table, streams[1].handle), GM_OK);
    CHECK_EQ(sound_stats(pool).pending_blocks, 0);
    CHECK_EQ(events(), 3);
    for (size_t i = 0; i < 3; i++) {
        drop_stream(&streams[i]);
    }
    gm_pool_close(pool);
    CHECK_EQ(events(), 2);
    close_backend(-1);
}

/* Thirty spare marks, of which a look gives back those beyond a few. Of a life that is
 * over no event is touched: its handle may be another's. Where it is not known of which
 * life they are, nobody has said that it is over. */
TEST(lost_spare_marks_that_are_too_many)
{
    for (int way = 0; way < 3; way++) {
        bool lost = way == 1, unknown = way == 2;

        open_backend();
        gm_pool *pool = pool_on(1);
        test_stream s = make_stream(0, true);
        holding held[30];
        size_t all;

        for (size_t i = 0; i < 30; i++) {
            held[i] = take_bytes(pool, UNITS(1));
            use_on(held[i], &s);
        }
        answer = unknown ? GM_DEVICE_ERROR(999) : GM_OK;
        for (size_t i = 0; i < 30; i++) {
            keep_busy(&s);
            let_go(held[i]);
        }
        answer = GM_OK;
        CHECK(gm_pool_settle_all(pool) > 0);
        CHECK_EQ(sound_stats(pool).pending_blocks, 0);
        all = events();
        CHECK(all >= 20);
        lives[0] += lost ? 1 : 0; // nobody has said so yet
        (void)gm_pool_release_idle(pool);
        CHECK(lost ? events() == all : events() < all);
        check_pool(pool);
        gm_pools_device_lost(&table, 0);
        drop_stream(&s);
        gm_pool_close(pool);
        end_scratch();
        close_backend(-1);
    }
}

/* Dropped and refused a mark; then its device is reset by somebody else. Nobody is
 * working on it any more, so that is not waited for. */
TEST(lost_streams_of_what_could_not_be_marked)
{
    open_backend();
    gm_pool *pool = pool_on(1);
    test_stream s = make_stream(0, true);
    holding held = take_bytes(pool, UNITS(1));

    use_on(held, &s);
    table.event_record = refuse_record;
    let_go(held);
    table.event_record = sim->event_record;
    CHECK_EQ(pool->stats.pending_bytes, UNITS(1));
    check_pool(pool);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(sound_stats(pool).pending_bytes, 0);
    CHECK_EQ(sound_stats(pool).free_bytes, UNITS(1));
    drop_stream(&s);
    gm_pool_close(pool);
    close_backend(-1);
}

/* ---- another thread at it ---- */

static pthread_t teller;
static atomic_bool arrived, told;

static void *
tell(void *context)
{
    atomic_store(&arrived, true);
    gm_pools_device_lost(&table, 0);
    atomic_store(&told, true);
    return context;
}

/* From within a call about a mark, without the lock: a thread that tells of a reset has
 * to wait for the end of that. */
static void
tell_meanwhile(void)
{
    if (lives[0] == 1) {
        lives[0] = 2;
        CHECK_EQ(pthread_create(&teller, NULL, tell, NULL), 0);
        while (!atomic_load(&arrived)) {
            sched_yield();
        }
        for (int i = 0; i < 2000; i++) {
            sched_yield();
        }
        CHECK(!atomic_load(&told));
    }
}

static gm_status
query_meanwhile(void *self, gm_event event)
{
    tell_meanwhile();
    return sim->event_query(self, event);
}

static gm_status
record_meanwhile(void *self, gm_event event, gm_stream stream)
{
    tell_meanwhile();
    return sim->event_record(self, event, stream);
}

/* Two blocks used on a stream of the device, one of them dropped. */
static void
lose_meanwhile(void)
{
    gm_pool *pool = pool_on(1);
    test_stream s = make_stream(0, true);
    holding first = take_bytes(pool, UNITS(1)), second = take_bytes(pool, UNITS(2));

    keep_busy(&s);
    use_on(first, &s);
    use_on(second, &s);
    let_go(first);
    (void)gm_pool_settle(pool);
    CHECK(atomic_load(&arrived));
    CHECK_EQ(pthread_join(teller, NULL), 0);
    CHECK_EQ(sound_stats(pool).pending_bytes, 0);
    let_go(second);
    CHECK_EQ(sound_stats(pool).free_bytes, UNITS(3));
    drop_stream(&s);
    gm_pool_close(pool);
    end_scratch();
    close_backend(-1);
}

TEST(lost_while_another_thread_looks_at_a_mark)
{
    open_backend();
    table.event_query = query_meanwhile;
    lose_meanwhile();
}

TEST(lost_while_another_thread_records_a_mark)
{
    open_backend();
    table.event_record = record_meanwhile;
    lose_meanwhile();
}
