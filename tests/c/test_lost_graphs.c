/* SPDX-License-Identifier: MIT
 *
 * Devices that were reset, and the memory of recorded graphs: the parts of captures are
 * forgotten with it, and end when they would have.
 */
#include "lives.h"

TEST(lost_memory_of_a_graph_is_forgotten_with_it)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    test_stream s = make_stream(0, true);
    gm_request request = {.size = UNITS(2), .key = s.use.key};
    gm_capture *capture = NULL;
    holding cached = take_for(pool, UNITS(8), s.use.key);
    gm_block *block;

    let_go(cached);
    CHECK_EQ(gm_capture_begin(&s.use, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    CHECK_EQ(gm_pool_malloc_slow(pool, &request, NULL, &block), GM_OK);
    holding dropped = hold(pool, block);
    CHECK_EQ(gm_pool_malloc_slow(pool, &request, NULL, &block), GM_OK);
    holding live = hold(pool, block);
    let_go(dropped);
    gm_capture_end(capture);
    CHECK_EQ(sound_stats(pool).captured_bytes, UNITS(2));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 1);
    let_go(live);
    gm_capture_release(capture);
    check_empty(pool, 1);
    drop_stream(&s);
    gm_pool_close(pool);
    close_backend(0);
}

/* Of several graphs, of which some are gone but for a block that is still in use. */
TEST(lost_memory_of_several_graphs)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    test_stream streams[4];
    gm_capture *captures[4];
    holding live[4];

    for (int i = 0; i < 4; i++) {
        streams[i] = make_stream(0, true);
        let_go(take_for(pool, UNITS(8), streams[i].use.key));
        CHECK_EQ(
            gm_capture_begin(&streams[i].use, GM_CAPTURE_MODE_RELAXED, &captures[i]),
            GM_OK);
        live[i] = take_for(pool, UNITS(2), streams[i].use.key);
        let_go(take_for(pool, UNITS(3), streams[i].use.key));
        gm_capture_end(captures[i]);
    }
    gm_capture_release(captures[0]);
    gm_capture_release(captures[2]);
    CHECK_EQ(sound_stats(pool).captured_bytes, UNITS(6));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 4);
    for (int i = 0; i < 4; i++) {
        let_go(live[i]);
        drop_stream(&streams[i]);
    }
    gm_capture_release(captures[1]);
    gm_capture_release(captures[3]);
    check_empty(pool, 4);
    gm_pool_close(pool);
    close_backend(0);
}

/* A block of the graph that waits for a stream of another device as well. */
TEST(lost_memory_of_a_graph_that_was_used_on_another_device)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    test_stream s = make_stream(0, true), far = make_stream(1, true);
    gm_capture *capture = NULL;
    holding held[2];

    let_go(take_for(pool, UNITS(8), s.use.key));
    CHECK_EQ(gm_capture_begin(&s.use, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    for (int i = 0; i < 2; i++) {
        held[i] = take_for(pool, UNITS(2), s.use.key);
        use_on(held[i], &far);
    }
    gm_capture_end(capture);
    keep_busy(&far);
    let_go(held[0]);
    CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(2));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 1);
    gm_capture_release(capture);
    check_empty(pool, 1);
    let_go(held[1]);
    drop_stream(&far);
    (void)gm_pool_settle(pool);
    check_empty(pool, 1);
    drop_stream(&s);
    gm_pool_close(pool);
    end_scratch();
    close_backend(0);
}
