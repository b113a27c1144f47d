/* SPDX-License-Identifier: MIT
 *
 * Who takes part in a recording, what has to wait until it ends, and what happens to a
 * capture meanwhile: an end or a release in the midst of something, exit, no memory.
 */
#include "streams.h"

#include "core/gm_capture.h"
#include "core/gm_process.h"

static gm_capture *
begin(const gm_stream_use *stream)
{
    gm_capture *capture = NULL;

    CHECK_EQ(gm_capture_begin(stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    return capture;
}

/* Of a stream that the backend says takes part in the recording of that number. */
static holding
take_in(gm_pool *pool, size_t size, gm_stream_key key, uint64_t recording)
{
    const gm_request request = {.size = size, .key = key};
    const gm_rescue rescue = {.recording = recording};
    gm_block *block = NULL;

    CHECK_EQ(gm_pool_malloc_slow(pool, &request, &rescue, &block), GM_OK);
    return hold(pool, block);
}

/* ---- who takes part ---- */

TEST(capture_end_knows_its_streams_by_the_number_it_was_told)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 0, true);
    gm_capture *capture;

    let_go(take_for(s.pool, MIB, other.key));
    capture = begin(&stream);
    let_go(take_in(s.pool, MIB, other.key, 1)); // it has no number yet
    CHECK_EQ(stats_of(s.pool).captured_bytes, 0);
    gm_capture_identify(capture, 1);
    let_go(take_for(s.pool, MIB, other.key)); // takes part in nothing
    let_go(take_in(s.pool, MIB, other.key, 2));
    CHECK_EQ(stats_of(s.pool).captured_bytes, 0);
    let_go(take_in(s.pool, MIB, other.key, 1));
    CHECK_EQ(stats_of(s.pool).captured_bytes, MIB);
    gm_capture_release(capture);
    end_stream(s.sim, stream);
    end_stream(s.sim, other);
    close_site(s);
}

/* ---- what waits ---- */

/* Nobody asked for what is cached to go back while it was recorded. */
TEST(capture_end_gives_back_no_more_than_was_asked_for)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    gm_capture *capture;

    let_go(take_bytes(s.pool, MIB));
    capture = begin(&stream);
    gm_capture_end(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
    gm_capture_release(capture);
    capture = begin(&stream);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
    gm_capture_end(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
    let_go(take_bytes(s.pool, MIB));
    gm_capture_release(capture); // asked for once, done once
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
    end_stream(s.sim, stream);
    close_site(s);
}

typedef struct seen {
    size_t count;
    uintptr_t last;
} seen;

static gm_status
note_exec(void *self, gm_graph_exec exec)
{
    seen *s = self;

    s->count++;
    s->last = exec;
    return GM_OK;
}

TEST(capture_end_ends_the_graphs_that_had_to_wait)
{
    seen ended = {0};
    const gm_backend b = {.self = &ended, .graph_exec_destroy = note_exec};
    const gm_stream_use stream = {.stream = 64, .key = 9, .announced = true};
    gm_capture *capture = begin(&stream);

    CHECK(gm_capture_postpone_end(&b, 77));
    CHECK_EQ(ended.count, 0);
    gm_capture_end(capture);
    CHECK_EQ(ended.count, 1);
    CHECK_EQ(ended.last, 77);
    gm_capture_release(capture);
    CHECK_EQ(ended.count, 1);
    CHECK(!gm_capture_postpone_end(&b, 78)); // nothing is recorded
}

/* Said twice of one of two: the other is under way all the same. */
TEST(capture_end_is_of_one_recording)
{
    const gm_stream_use streams[] = {{.stream = 64, .key = 9, .announced = true},
                                     {.stream = 65, .key = 10, .announced = true},
                                     {.stream = 66, .key = 11, .announced = true}};

    for (int ended = 0; ended < 3; ended++) {
        gm_capture *captures[3];

        for (int i = 0; i < 3; i++) {
            captures[i] = begin(&streams[i]);
        }
        gm_capture_end(captures[ended]);
        CHECK(gm_process_is_capturing());
        gm_capture_end(captures[(ended + 1) % 3]);
        gm_capture_end(captures[ended]);     // when its neighbours are others
        gm_capture_release(captures[ended]); // says it once more
        CHECK(gm_process_is_capturing());
        gm_capture_end(captures[(ended + 2) % 3]);
        CHECK(!gm_process_is_capturing());
        gm_capture_release(captures[(ended + 1) % 3]);
        gm_capture_release(captures[(ended + 2) % 3]);
    }
}

/* ---- in the midst of something ---- */

static gm_capture *victim;

static bool
release_victim(void *context, size_t size)
{
    (void)context;
    (void)size;
    gm_host_set_fault(NULL, NULL);
    gm_capture_release(victim);
    return false;
}

/* Another thread releases it while a request of its stream is under way. */
TEST(capture_end_while_a_request_is_served)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    holding h = {0};

    let_go(take_for(s.pool, MIB, stream.key));
    victim = begin(&stream);
    gm_host_set_fault(release_victim, NULL);
    CHECK_EQ(try_hold(s.pool, MIB, stream.key, &h), GM_ERR_CAPTURING);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).free_bytes, MIB);
    let_go(take_for(s.pool, MIB, stream.key));
    CHECK_EQ(stats_of(s.pool).captured_bytes, 0);
    end_stream(s.sim, stream);
    close_site(s);
}

/* The same while something is put off: then it is not, and the caller's still. */
TEST(capture_end_while_something_is_put_off)
{
    seen ended = {0};
    const gm_backend b = {.self = &ended, .graph_exec_destroy = note_exec};
    const gm_stream_use stream = {.stream = 64, .key = 9, .announced = true};

    victim = begin(&stream);
    gm_host_set_fault(release_victim, NULL);
    CHECK(!gm_capture_postpone_end(&b, 77));
    CHECK_EQ(ended.count, 0);
}

static bool
always(void *context, size_t size)
{
    (void)context;
    (void)size;
    return true;
}

TEST(capture_end_without_host_memory_nothing_is_put_off)
{
    seen ended = {0};
    const gm_backend b = {.self = &ended, .graph_exec_destroy = note_exec};
    const gm_stream_use stream = {.stream = 64, .key = 9, .announced = true};
    gm_capture *capture = NULL;

    gm_host_set_fault(always, NULL);
    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture),
             GM_ERR_HOST_MEMORY);
    gm_host_set_fault(NULL, NULL);
    CHECK(capture == NULL);
    CHECK(!gm_process_is_capturing());
    capture = begin(&stream);
    gm_host_set_fault(always, NULL);
    CHECK(!gm_capture_postpone_end(&b, 77));
    gm_host_set_fault(NULL, NULL);
    gm_capture_release(capture);
    CHECK_EQ(ended.count, 0);
}

/* Nothing is done any more: no call of the device, nobody's list is touched. */
TEST(capture_end_at_exit)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    gm_stream_use launching = new_stream(s.sim, 0, true);

    let_go(take_for(s.pool, MIB, stream.key));
    victim = begin(&stream); // held by the test, so that it is no leak
    let_go(take_for(s.pool, MIB, stream.key));
    CHECK_EQ(stats_of(s.pool).captured_bytes, MIB);
    gm_process_exit();
    gm_sim_log_start(s.sim);
    CHECK_EQ(gm_capture_launched(victim, &launching), GM_ERR_EXITING);
    gm_capture_release(victim);
    CHECK(gm_process_is_capturing());
    CHECK_EQ(stats_of(s.pool).captured_bytes, MIB);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
}
