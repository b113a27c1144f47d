/* SPDX-License-Identifier: MIT
 *
 * The driver's pools that are to give back what they have cached, asked for while a
 * graph is recorded: done at its end, once each, after what goes back to them; and what
 * else was asked for meanwhile.
 */
#include "streams.h"

#include "core/gm_capture.h"
#include "core/gm_process.h"

#include <string.h>

enum {
    CALLS = 16,
};

/* What the device was told, in order: 'F' and an address, 'T' and a pool. */
typedef struct device {
    uint64_t life;
    gm_status answer; // of asking for it
    size_t count;
    char kinds[CALLS];
    uintptr_t what[CALLS];
} device;

static gm_status
note_call(device *d, char kind, uintptr_t what)
{
    CHECK(d->count < CALLS);
    d->kinds[d->count] = kind;
    d->what[d->count++] = what;
    return GM_OK;
}

static gm_status
tell_life(void *self, int number, uint64_t *out)
{
    const device *d = self;

    CHECK_EQ(number, 1);
    if (d->answer == GM_OK) {
        *out = d->life;
    }
    return d->answer;
}

static gm_status
note_free(void *self, int number, gm_mem_kind kind, uintptr_t ptr)
{
    CHECK_EQ(number, 1);
    CHECK_EQ(kind, GM_MEM_DEVICE);
    return note_call(self, 'F', ptr);
}

static gm_status
note_trim(void *self, gm_mem_pool pool, size_t keep)
{
    CHECK_EQ(keep, 0);
    return note_call(self, 'T', pool);
}

static gm_backend
backend_of(device *d)
{
    *d = (device){.life = 7};
    return (gm_backend){
        .self = d,
        .device_incarnation = tell_life,
        .mem_free = note_free,
        .mem_pool_trim = note_trim,
    };
}

static gm_capture *
begin(uint64_t key)
{
    const gm_stream_use stream = {.stream = 64 + key, .key = key, .announced = true};
    gm_capture *capture = NULL;

    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    return capture;
}

/* In whichever order it was asked for: the frees first, then each pool once. */
TEST(capture_trim_comes_once_after_what_is_given_back)
{
    device d;
    gm_backend b = backend_of(&d);
    gm_capture *capture = begin(9);

    CHECK(gm_capture_postpone_trim(&b, 1, 50));
    CHECK(gm_capture_postpone_free(&b, 1, GM_MEM_DEVICE, 1000));
    CHECK(gm_capture_postpone_trim(&b, 1, 51));
    CHECK(gm_capture_postpone_trim(&b, 1, 50));
    CHECK(gm_capture_postpone_free(&b, 1, GM_MEM_DEVICE, 2000));
    CHECK(gm_capture_postpone_trim(&b, 1, 51));
    CHECK_EQ(d.count, 0);
    gm_capture_end(capture);
    CHECK_EQ(d.count, 4);
    CHECK(memcmp(d.kinds, "FFTT", 4) == 0);
    CHECK_EQ(d.what[0] + d.what[1], 3000);
    CHECK(d.what[0] != d.what[1]);
    CHECK_EQ(d.what[2] + d.what[3], 50 + 51);
    gm_capture_release(capture);
    CHECK_EQ(d.count, 4);
    CHECK(!gm_capture_postpone_trim(&b, 1, 50)); // nothing is recorded
}

TEST(capture_trim_is_not_of_a_pool_that_went_with_its_device)
{
    device d;
    gm_backend b = backend_of(&d);
    gm_capture *capture = begin(9);

    CHECK(gm_capture_postpone_trim(&b, 1, 50));
    d.life++;
    gm_capture_end(capture);
    gm_capture_release(capture);
    CHECK_EQ(d.count, 0);

    capture = begin(9); // the same where nobody says whether it did
    CHECK(gm_capture_postpone_trim(&b, 1, 50));
    d.answer = GM_DEVICE_ERROR(999);
    CHECK(!gm_capture_postpone_trim(&b, 1, 51)); // then it cannot wait
    gm_capture_end(capture);
    gm_capture_release(capture);
    CHECK_EQ(d.count, 0);
}

TEST(capture_trim_waits_for_the_last_of_several_recordings)
{
    device d;
    gm_backend b = backend_of(&d);
    gm_capture *first = begin(9), *second = begin(10);

    CHECK(gm_capture_postpone_trim(&b, 1, 50));
    gm_capture_end(second);
    CHECK_EQ(d.count, 0);
    gm_capture_end(first);
    CHECK_EQ(d.count, 1);
    gm_capture_release(first);
    gm_capture_release(second);
    CHECK_EQ(d.count, 1);
}

/* ---- pools ---- */

static gm_pool *busy;

static gm_status
release_another_stream(void *self, int number, gm_mem_kind kind, uintptr_t ptr)
{
    (void)self;
    (void)number;
    (void)kind;
    (void)ptr;
    CHECK(!gm_process_is_capturing());
    CHECK_EQ(gm_pool_release_idle_of(busy, 5), 0);
    return GM_OK;
}

/* Between the end of the recording and the pools' turn another thread asks for less:
 * what was promised before is done all the same. */
TEST(capture_trim_of_a_pool_is_not_forgotten_over_another_request)
{
    const gm_backend b = {.mem_free = release_another_stream};
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;

    busy = s.pool;
    let_go(take_bytes(s.pool, MIB));
    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK(gm_capture_postpone_free(&b, 1, GM_MEM_DEVICE, 1000));
    gm_capture_end(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
    gm_capture_release(capture);
    end_stream(s.sim, stream);
    close_site(s);
}

static gm_capture *left; // held by the test, so that it is no leak

/* A process that is ending tidies nothing up. */
TEST(capture_trim_of_a_pool_is_left_at_exit)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);

    let_go(take_bytes(s.pool, MIB));
    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &left), GM_OK);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    gm_process_exit();
    gm_sim_log_start(s.sim);
    gm_capture_end(left);
    CHECK_EQ(gm_sim_log_count(s.sim), 0);
    CHECK_EQ(stats_of(s.pool).total_bytes, MIB);
}

/* Of several targets the least counts, and the reserve that there is at the end. */
TEST(capture_trim_of_a_pool_keeps_the_target)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = new_stream(s.sim, 0, true);
    gm_capture *capture = NULL;
    holding held[8];

    for (size_t i = 0; i < 8; i++) {
        held[i] = take_bytes(s.pool, MIB);
    }
    for (size_t i = 0; i < 8; i++) {
        let_go(held[i]);
    }
    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    CHECK_EQ(gm_pool_trim(s.pool, 6 * MIB), 0);
    CHECK_EQ(gm_pool_trim(s.pool, 5 * MIB), 0);
    CHECK_EQ(gm_pool_trim(s.pool, 7 * MIB), 0);
    gm_capture_release(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, 5 * MIB);

    CHECK_EQ(gm_pool_set_reserve(s.pool, 4 * MIB), GM_OK);
    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    CHECK_EQ(gm_pool_trim(s.pool, MIB), 0);
    CHECK_EQ(gm_pool_set_reserve(s.pool, 2 * MIB), GM_OK);
    gm_capture_release(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, 2 * MIB);

    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    CHECK_EQ(gm_pool_trim(s.pool, 9 * MIB), 0); // more than there is
    gm_capture_release(capture);
    CHECK_EQ(stats_of(s.pool).total_bytes, 2 * MIB);
    end_stream(s.sim, stream);
    close_site(s);
}
