/* SPDX-License-Identifier: MIT
 *
 * The parts of captures, the private memory of one stream each: joining what is
 * dropped, counting, launches of several parts, and parts that end in any order.
 */
#include "host_fault.h"
#include "streams.h"
#include "spares.h"

#include "core/gm_capture.h"

enum {
    RECORDING = 77,
    PARTS = 3,
};

static gm_capture *
begin(const gm_stream_use *stream)
{
    gm_capture *capture = NULL;

    CHECK_EQ(gm_capture_begin(stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    return capture;
}

/* A stream with so many bytes cached in one segment. */
static gm_stream_use
stream_with(site s, size_t cached)
{
    gm_stream_use stream = new_stream(s.sim, 0, true);

    let_go(take_for(s.pool, cached, stream.key));
    return stream;
}

/* ---- blocks ---- */

TEST(part_joins_what_is_dropped_in_whichever_order)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    site s = open_site(64 * MIB);
    gm_stream_use stream = stream_with(s, 4 * MIB);

    for (int i = 0; i < 6; i++) {
        gm_capture *capture = begin(&stream);
        holding held[3];

        for (int n = 0; n < 3; n++) {
            held[n] = take_for(s.pool, MIB, stream.key);
        }
        for (int n = 0; n < 3; n++) {
            let_go(held[orders[i][n]]);
            check_pool(s.pool);
            CHECK_EQ(stats_of(s.pool).captured_bytes, (size_t)(n + 1) * MIB);
        }
        CHECK_EQ(stats_of(s.pool).captured_blocks, 1);
        gm_capture_release(capture);
        CHECK_EQ(stats_of(s.pool).free_blocks, 1);
        check_pool(s.pool);
    }
    end_stream(s.sim, stream);
    close_site(s);
}

/* Two graphs side by side: what is one's is never joined with the other's. */
TEST(part_leaves_the_neighbours_of_another_graph_alone)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = stream_with(s, 4 * MIB);
    gm_capture *first = begin(&stream);
    holding a = take_for(s.pool, MIB, stream.key), b, c;

    gm_capture_end(first);
    gm_capture *second = begin(&stream);
    b = take_for(s.pool, MIB, stream.key);
    gm_capture_end(second);
    gm_capture *third = begin(&stream);
    c = take_for(s.pool, MIB, stream.key);
    gm_capture_end(third);
    let_go(a);
    let_go(c);
    let_go(b);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).captured_blocks, 3);
    gm_capture_release(second);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).captured_bytes, 2 * MIB);
    gm_capture_release(third);
    gm_capture_release(first);
    CHECK_EQ(stats_of(s.pool).free_blocks, 1);
    end_stream(s.sim, stream);
    close_site(s);
}

TEST(part_counts_what_it_hands_out)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = stream_with(s, 2 * MIB), other = stream_with(s, MIB);
    gm_capture *capture = begin(&stream);
    gm_stats before = stats_of(s.pool), stats;
    holding h, free_again = take_for(s.pool, MIB, other.key);

    CHECK_EQ(gm_pool_reset_peaks(s.pool), GM_OK);
    let_go(free_again); // looks at no peak
    h = take_for(s.pool, MIB, stream.key);
    CHECK_EQ(stats_of(s.pool).peak_free_bytes, 3 * MIB);
    let_go(h);
    h = take_for(s.pool, MIB, stream.key); // the same, whole
    stats = stats_of(s.pool);
    CHECK_EQ(stats.captured_blocks, 0);
    CHECK_EQ(stats.hits, before.hits + 3);
    CHECK_EQ(stats.misses, before.misses);
    check_pool(s.pool);
    let_go(h);
    gm_capture_release(capture);
    end_stream(s.sim, stream);
    end_stream(s.sim, other);
    close_site(s);
}

static bool
all_but_notes(void *context, size_t size)
{
    (void)context;
    return size > sizeof(gm_note);
}

/* No node for what is left of the block that is cut, and no more to be had. */
TEST(part_without_host_memory_for_a_node)
{
    site s = open_site(64 * MIB);
    gm_stream_use stream = stream_with(s, MIB);
    gm_capture *capture = begin(&stream);
    holding h = take_for(s.pool, UNITS(1), stream.key);
    spares kept = spares_hide(s.pool);

    gm_host_set_fault(all_but_notes, NULL);
    CHECK_EQ(try_hold(s.pool, UNITS(1), stream.key, &h), GM_ERR_HOST_MEMORY);
    gm_host_set_fault(NULL, NULL);
    spares_show(s.pool, &kept);
    check_pool(s.pool);
    let_go(h);
    gm_capture_release(capture);
    end_stream(s.sim, stream);
    close_site(s);
}

/* ---- the end ---- */

/* Each is released while one of its blocks is live, which is dropped later. */
TEST(part_that_is_released_goes_with_its_last_block)
{
    site s = open_site(64 * MIB);
    gm_stream_use streams[PARTS];

    for (int i = 0; i < PARTS; i++) {
        streams[i] = stream_with(s, MIB);
    }
    for (int first = 0; first < PARTS; first++) {
        gm_capture *captures[PARTS];
        holding held[PARTS];

        for (int i = 0; i < PARTS; i++) {
            captures[i] = begin(&streams[i]);
            held[i] = take_for(s.pool, KIB, streams[i].key);
        }
        for (int i = 0; i < PARTS; i++) {
            gm_capture_release(captures[i]);
            check_pool(s.pool);
        }
        for (int i = 0; i < PARTS; i++) {
            let_go(held[(first + i) % PARTS]);
            check_pool(s.pool);
        }
        CHECK_EQ(stats_of(s.pool).free_bytes, PARTS * MIB);
    }
    for (int i = 0; i < PARTS; i++) {
        end_stream(s.sim, streams[i]);
    }
    close_site(s);
}

/* There are more captures in the life of a pool than a part's number can tell apart. */
TEST(part_numbers_are_used_again_but_not_those_in_use)
{
    site s = open_site(64 * MIB);
    gm_stream_use lasting = stream_with(s, MIB), stream = stream_with(s, MIB);
    gm_capture *long_one = begin(&lasting);

    let_go(take_for(s.pool, KIB, lasting.key));
    gm_capture_end(long_one);
    for (unsigned i = 0; i < UINT16_MAX + 3u; i++) {
        gm_capture *capture = begin(&stream);

        let_go(take_for(s.pool, KIB, stream.key));
        if (i < 3 || i > UINT16_MAX - 3u) {
            check_pool(s.pool);
            CHECK_EQ(stats_of(s.pool).captured_bytes, 2 * KIB);
        }
        gm_capture_release(capture);
    }
    CHECK_EQ(stats_of(s.pool).captured_bytes, KIB);
    gm_capture_release(long_one);
    CHECK_EQ(stats_of(s.pool).captured_bytes, 0);
    end_stream(s.sim, lasting);
    end_stream(s.sim, stream);
    close_site(s);
}

/* ---- launches ---- */

/* A recording in which two streams take part, each with memory of its own. */
typedef struct graph {
    site s;
    gm_stream_use streams[2];
    gm_capture *capture;
} graph;

static graph
open_graph(void)
{
    graph g = {.s = open_site(64 * MIB)};
    const gm_rescue rescue = {.recording = RECORDING};

    for (int i = 0; i < 2; i++) {
        g.streams[i] = stream_with(g.s, MIB);
    }
    g.capture = begin(&g.streams[0]);
    gm_capture_identify(g.capture, RECORDING);
    for (int i = 0; i < 2; i++) {
        const gm_request request = {.size = MIB, .key = g.streams[i].key};
        gm_block *block = NULL;

        CHECK_EQ(gm_pool_malloc_slow(g.s.pool, &request, &rescue, &block), GM_OK);
        let_go(hold(g.s.pool, block));
    }
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 2);
    gm_capture_end(g.capture);
    return g;
}

static void
close_graph(graph g)
{
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 0);
    for (int i = 0; i < 2; i++) {
        end_stream(g.s.sim, g.streams[i]);
    }
    close_site(g.s);
}

/* Work on a stream that lasts until somebody waits for it. */
static uintptr_t
keep_busy(site s, gm_stream_use use)
{
    uintptr_t ptr = take(s.sim, GM_MEM_DEVICE, 512);

    CHECK_EQ(gm_backend_set_async(s.sim, ptr, 1, 512, use.stream), GM_OK);
    return ptr;
}

/* Of a stream whose end nobody announces a launch is marked at once: another may have
 * its handle by the time that the graph goes. */
TEST(part_remembers_a_launch_on_a_foreign_stream)
{
    graph g = open_graph();
    gm_stream_use foreign = new_stream(g.s.sim, 0, false), heir;
    uintptr_t ptr = keep_busy(g.s, foreign);

    CHECK_EQ(gm_capture_launched(g.capture, &foreign), GM_OK);
    check_pool(g.s.pool);
    CHECK_EQ(gm_capture_launched(g.capture, &foreign), GM_OK);
    check_pool(g.s.pool);
    end_stream(g.s.sim, foreign);
    heir = new_stream(g.s.sim, 0, true);
    CHECK_EQ(heir.stream, foreign.stream);
    gm_capture_release(g.capture);
    check_pool(g.s.pool);
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 2);
    CHECK_EQ(gm_backend_device_synchronize(g.s.sim, 0), GM_OK);
    CHECK_EQ(gm_pool_settle(g.s.pool), 2 * MIB); // and tells how much came free
    CHECK_EQ(gm_pool_settle(g.s.pool), 0);
    give(g.s.sim, GM_MEM_DEVICE, ptr);
    end_stream(g.s.sim, heir);
    close_graph(g);
}

/* An announced one is marked when the graph goes, once. */
TEST(part_marks_an_announced_stream_when_its_graph_goes)
{
    graph g = open_graph();
    gm_stream_use launching = new_stream(g.s.sim, 0, true);
    uintptr_t ptr;

    for (int i = 0; i < 10; i++) {
        CHECK_EQ(gm_capture_launched(g.capture, &launching), GM_OK);
    }
    CHECK_EQ(read_ledger(g.s.sim).events, 0);
    ptr = keep_busy(g.s, launching);
    gm_capture_release(g.capture);
    CHECK_EQ(read_ledger(g.s.sim).events, 1);
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 2);
    check_pool(g.s.pool);
    finish_stream(g.s.sim, launching);
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 0);
    give(g.s.sim, GM_MEM_DEVICE, ptr);
    end_stream(g.s.sim, launching);
    close_graph(g);
}

/* A launch that could not be noted in full is told of, and nothing is broken. Each time
 * from the start: what one launch left would save the next an allocation. */
TEST(part_whichever_host_allocation_fails_in_a_launch)
{
    gm_status status = GM_ERR_HOST_MEMORY;
    size_t count = 0;

    for (; status != GM_OK; count++) {
        graph g = open_graph();
        gm_stream_use foreign = new_stream(g.s.sim, 0, false);
        size_t left = count;

        CHECK(count < 20);
        gm_host_set_fault(fail_nth, &left);
        status = gm_capture_launched(g.capture, &foreign);
        gm_host_set_fault(NULL, NULL);
        CHECK_EQ(status, left <= count ? GM_OK : GM_ERR_HOST_MEMORY);
        check_pool(g.s.pool);
        gm_capture_release(g.capture);
        check_pool(g.s.pool);
        CHECK_EQ(gm_backend_device_synchronize(g.s.sim, 0), GM_OK);
        CHECK_EQ(stats_of(g.s.pool).captured_blocks, 0);
        end_stream(g.s.sim, foreign);
        close_graph(g);
    }
    CHECK(count > 3); // a mark, and a use for each of the two parts
}

/* Its end was announced, and then its destruction failed: what is launched on it after
 * that is waited for like anything else. */
TEST(part_waits_for_a_stream_that_did_not_end_after_all)
{
    graph g = open_graph();
    gm_stream_use launching = new_stream(g.s.sim, 0, true);
    uintptr_t ptr;

    CHECK_EQ(gm_capture_launched(g.capture, &launching), GM_OK);
    gm_pools_end_stream(g.s.sim, &launching);
    CHECK_EQ(gm_capture_launched(g.capture, &launching), GM_OK);
    ptr = keep_busy(g.s, launching);
    gm_capture_release(g.capture);
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 2);
    check_pool(g.s.pool);
    finish_stream(g.s.sim, launching);
    CHECK_EQ(stats_of(g.s.pool).captured_blocks, 0);
    give(g.s.sim, GM_MEM_DEVICE, ptr);
    end_stream(g.s.sim, launching);
    close_graph(g);
}

/* A mark that cannot be had is told of, whichever of the pools it is. */
TEST(part_tells_that_a_launch_could_not_be_marked)
{
    for (int faulty = 0; faulty < 2; faulty++) {
        site s = open_site(64 * MIB);
        gm_backend *fault = NULL;
        gm_pool *pools[2];
        gm_stream_use stream = new_stream(s.sim, 0, true);
        gm_stream_use foreign = new_stream(s.sim, 0, false);
        gm_capture *capture;

        CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
        for (int i = 0; i < 2; i++) {
            const gm_backend *b = i == faulty ? fault : s.sim;

            CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b), &pools[i]), GM_OK);
            let_go(take_for(pools[i], MIB, stream.key));
        }
        capture = begin(&stream);
        for (int i = 0; i < 2; i++) {
            let_go(take_for(pools[i], MIB, stream.key));
        }
        gm_capture_end(capture);
        CHECK_EQ(gm_fault_plan(fault, "event_record", 1, 0, GM_DEVICE_ERROR(999)),
                 GM_OK);
        CHECK_EQ(gm_capture_launched(capture, &foreign), GM_DEVICE_ERROR(999));
        gm_fault_clear(fault);
        check_pool(pools[0]);
        check_pool(pools[1]);
        gm_capture_release(capture);
        finish_stream(s.sim, foreign);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(stats_of(pools[i]).captured_blocks, 0);
            gm_pool_close(pools[i]);
        }
        end_stream(s.sim, foreign);
        end_stream(s.sim, stream);
        gm_backend_close(fault);
        close_site(s);
    }
}
