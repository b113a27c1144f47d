/* SPDX-License-Identifier: MIT
 *
 * Captures of another library's recordings: requests name them, several recordings
 * share one, and what the cache lacks comes from upstream.
 */
#include "host_fault.h"
#include "streams.h"

#include "core/gm_capture.h"

#include "core/gm_process.h"

typedef struct stage {
    site s;
    gm_stream_use stream;
    gm_capture *capture;
} stage;

/* A capture that is open, and a stream whose cache is empty. */
static stage
open_stage(void)
{
    stage t = {.s = open_site(64 * MIB)};

    t.stream = new_stream(t.s.sim, 0, true);
    CHECK_EQ(gm_capture_new(&t.capture), GM_OK);
    gm_capture_open(t.capture);
    return t;
}

static void
close_stage(stage t)
{
    end_stream(t.s.sim, t.stream);
    close_site(t.s);
}

/* A request of the stream that names the capture; `out` only on success. */
static gm_status
try_named(stage t, size_t size, holding *out)
{
    const gm_rescue rescue = {.by = &t.stream, .capture = t.capture};
    const gm_request request = {.size = size, .key = t.stream.key};
    gm_block *block = NULL;
    gm_status status;

    CHECK_EQ(gm_pool_malloc(t.s.pool, &request, &block), GM_MISS); // it is special
    status = gm_pool_malloc_slow(t.s.pool, &request, &rescue, &block);
    if (status == GM_OK) {
        *out = hold(t.s.pool, block);
    }
    return status;
}

static holding
take_named(stage t, size_t size)
{
    holding h = {0};

    CHECK_EQ(try_named(t, size, &h), GM_OK);
    return h;
}

TEST(capture_named_takes_from_upstream_and_keeps_it)
{
    stage t = open_stage();
    holding first = take_named(t, MIB);
    uintptr_t addr = first.block->addr;
    holding plain;

    CHECK_EQ(stats_of(t.s.pool).misses, 1);
    let_go(first);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, MIB);
    plain = take_for(t.s.pool, MIB, t.stream.key); // the stream does not lead to it
    CHECK(plain.block->addr != addr);
    first = take_named(t, MIB);
    CHECK_EQ(first.block->addr, addr);
    check_pool(t.s.pool);
    gm_capture_end(t.capture);
    CHECK(!gm_process_is_capturing());
    let_go(first);
    let_go(plain);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, MIB);
    gm_capture_release(t.capture);
    CHECK_EQ(stats_of(t.s.pool).captured_bytes, 0);
    check_pool(t.s.pool);
    close_stage(t);
}

TEST(capture_named_is_shared_by_recordings)
{
    stage t = open_stage();
    holding h = take_named(t, MIB);
    uintptr_t addr = h.block->addr;

    let_go(h);
    gm_capture_end(t.capture);
    gm_capture_open(t.capture);
    CHECK(gm_process_is_capturing());
    h = take_named(t, MIB);
    CHECK_EQ(h.block->addr, addr);
    let_go(h);
    gm_capture_release(t.capture); // ends it too
    CHECK(!gm_process_is_capturing());
    close_stage(t);
}

/* A stream of the program's that happens to have no number is not taken for its. */
TEST(capture_named_is_no_streams)
{
    stage t = open_stage();
    const gm_stream_use none = {.device = -1};
    gm_capture *other = NULL;

    CHECK_EQ(gm_capture_take(&none, &other), GM_OK);
    CHECK(other == NULL);
    CHECK_EQ(gm_capture_begin(&none, GM_CAPTURE_MODE_RELAXED, &other), GM_OK);
    gm_capture_release(other);
    gm_capture_release(t.capture);
    close_stage(t);
}

TEST(capture_named_without_memory_upstream)
{
    stage t = open_stage();
    holding h = take_named(t, MIB);

    CHECK_EQ(gm_pool_set_limit(t.s.pool, MIB), GM_OK);
    CHECK_EQ(try_named(t, MIB, &h), GM_ERR_LIMIT);
    CHECK_EQ(stats_of(t.s.pool).out_of_memory, 1);
    check_pool(t.s.pool);
    let_go(h);
    let_go(take_named(t, MIB));
    gm_capture_release(t.capture);
    close_stage(t);
}

/* What was released before its request came back from upstream. */
TEST(capture_named_that_was_released_gives_nothing)
{
    stage t = open_stage();
    holding h;

    gm_capture_ref(t.capture);
    gm_capture_release(t.capture);
    gm_capture_unref(t.capture);
    CHECK_EQ(gm_capture_new(&t.capture), GM_OK);
    gm_capture_ref(t.capture);
    gm_capture_open(t.capture);
    h = take_named(t, MIB);
    gm_capture_release(t.capture);
    gm_capture_open(t.capture); // only so that requests take the slow path
    CHECK_EQ(try_named(t, MIB, &h), GM_ERR_CAPTURING);
    gm_capture_end(t.capture);
    gm_capture_unref(t.capture);
    let_go(h);
    CHECK_EQ(stats_of(t.s.pool).live_blocks, 0);
    check_pool(t.s.pool);
    close_stage(t);
}

TEST(capture_named_whichever_host_allocation_fails)
{
    gm_status status = GM_ERR_HOST_MEMORY;
    size_t count = 0;

    for (; status != GM_OK; count++) {
        stage t = open_stage();
        size_t left = count;
        holding h;

        CHECK(count < 20);
        gm_host_set_fault(fail_nth, &left);
        status = try_named(t, MIB, &h);
        gm_host_set_fault(NULL, NULL);
        CHECK(status == GM_OK || status == GM_ERR_HOST_MEMORY);
        check_pool(t.s.pool);
        if (status == GM_OK) {
            let_go(h);
        }
        gm_capture_release(t.capture);
        CHECK_EQ(stats_of(t.s.pool).live_blocks, 0);
        close_stage(t);
    }
    CHECK(count > 4); // two notes, a part, a segment and its arena
}
