/* SPDX-License-Identifier: MIT
 *
 * Devices that were reset: what was there is neither handed out nor given back, its
 * handles end without effect, the counters are right, and what is elsewhere stays.
 *
 * The backend is the simulated one with the number of each device's life in the hands
 * of the test. Its memory is really there still, so that giving it back would be seen;
 * the test does that itself in the end.
 */
#include "holding.h"

#include "backends/backends.h"
#include "core/gm_capture.h"
#include "core/gm_lost.h"
#include "core/gm_pending.h"
#include "core/gm_process.h"

enum {
    DEVICES = 2,
    TAKEN = 64,
};

static uint64_t lives[DEVICES]; // 0: nothing exists there
static gm_status answer;        // of asking for one
static uintptr_t taken[TAKEN];
static int taken_count;
static gm_backend table;
static gm_backend *sim;

static gm_status
test_incarnation(void *self, int device, uint64_t *number)
{
    (void)self;
    if (answer == GM_OK) {
        *number = lives[device];
    }
    return answer;
}

static gm_status
test_alloc(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    gm_status status = sim->mem_alloc(self, device, kind, size, out);

    if (status == GM_OK) {
        CHECK(taken_count < TAKEN);
        taken[taken_count++] = *out;
    }
    return status;
}

static const gm_backend *
open_backend(void)
{
    const gm_sim_options options = {.devices = DEVICES, .memory = (size_t)1 << 30};

    CHECK_EQ(gm_backend_sim_open(&options, &sim), GM_OK);
    table = *sim;
    table.device_incarnation = test_incarnation;
    table.mem_alloc = test_alloc;
    for (int i = 0; i < DEVICES; i++) {
        lives[i] = 1;
    }
    return &table;
}

/* How many of the allocations the device has back. */
static int
given_back(void)
{
    gm_sim_ledger ledger;

    gm_sim_read_ledger(sim, &ledger);
    CHECK_EQ(ledger.errors, 0);
    return taken_count - (int)ledger.allocations;
}

/* Gives back what is still out, as the reset would have, and insists on a clean end. */
static void
close_backend(int lost_device)
{
    gm_sim_ledger ledger;

    for (int i = 0; i < taken_count; i++) {
        gm_pointer_info info;

        CHECK_EQ(gm_backend_pointer_info(sim, taken[i], &info), GM_OK);
        if (info.kind == GM_POINTER_DEVICE && info.base == taken[i] &&
            info.device == lost_device) {
            CHECK_EQ(gm_backend_mem_free(sim, info.device, GM_MEM_DEVICE, taken[i]),
                     GM_OK);
        }
    }
    gm_sim_read_ledger(sim, &ledger);
    CHECK_EQ(ledger.allocations, 0);
    CHECK_EQ(ledger.errors, 0);
    gm_backend_close(sim);
}

static gm_pool *
pool_on(int device)
{
    gm_pool *pool = NULL;

    CHECK_EQ(gm_pool_new(device, gm_upstream_of_backend(&table), &pool), GM_OK);
    return pool;
}

static gm_stats
sound_stats(gm_pool *pool)
{
    gm_stats stats = stats_of(pool);

    check_pool(pool);
    CHECK_EQ(stats.used_bytes + stats.free_bytes + stats.pending_bytes +
                 stats.captured_bytes,
             stats.total_bytes);
    return stats;
}

static void
check_empty(gm_pool *pool, size_t lost)
{
    gm_stats stats = sound_stats(pool);

    CHECK_EQ(stats.total_bytes, 0);
    CHECK_EQ(stats.used_bytes, 0);
    CHECK_EQ(stats.requested_bytes, 0);
    CHECK_EQ(stats.live_blocks, 0);
    CHECK_EQ(stats.free_blocks, 0);
    CHECK_EQ(stats.segments, 0);
    CHECK_EQ(stats.arenas, 0);
    CHECK_EQ(stats.lost_segments, lost);
    CHECK_EQ(stats.upstream_frees, 0);
    CHECK_EQ(stats.upstream_freed_bytes, 0);
    CHECK_EQ(stats.lost_bytes, stats.upstream_allocated_bytes);
}

TEST(lost_memory_is_neither_handed_out_nor_given_back)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    holding cached = take_bytes(pool, UNITS(4));
    holding live = take_bytes(pool, UNITS(2));
    uintptr_t before = cached.block->addr;

    let_go(cached);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 2);
    CHECK_EQ(given_back(), 0);

    holding fresh = take_bytes(pool, UNITS(4));
    CHECK(fresh.block->addr != before);
    let_go(live); // of no effect
    CHECK_EQ(sound_stats(pool).total_bytes, UNITS(4));
    CHECK_EQ(sound_stats(pool).used_bytes, UNITS(4));
    let_go(fresh);
    gm_pool_close(pool);
    CHECK_EQ(given_back(), 1); // that of the new life
    close_backend(0);
}

TEST(lost_memory_of_a_split_segment_is_forgotten_whole)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    holding whole = take_bytes(pool, UNITS(8));

    let_go(whole);
    holding low = take_bytes(pool, UNITS(1));
    holding middle = take_bytes(pool, UNITS(2));
    holding high = take_bytes(pool, UNITS(5));
    let_go(middle);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 1);
    let_go(low);
    let_go(high);
    check_empty(pool, 1);
    gm_pool_close(pool);
    CHECK_EQ(given_back(), 0);
    close_backend(0);
}

TEST(lost_is_one_device_and_the_others_keep_what_they_have)
{
    open_backend();
    gm_pool *pools[] = {pool_on(0), pool_on(1), pool_on(0)};
    holding held[3];

    for (int i = 0; i < 3; i++) {
        held[i] = take_bytes(pools[i], UNITS(3));
    }
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pools[0], 1);
    check_empty(pools[2], 1);
    CHECK_EQ(sound_stats(pools[1]).used_bytes, UNITS(3));
    for (int i = 0; i < 3; i++) {
        let_go(held[i]);
        gm_pool_close(pools[i]);
    }
    CHECK_EQ(given_back(), 1);
    close_backend(0);
}

TEST(lost_twice_is_lost_once)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    holding old = take_bytes(pool, UNITS(1));

    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    holding fresh = take_bytes(pool, UNITS(1));
    gm_pools_device_lost(&table, 0); // of the same reset
    CHECK_EQ(sound_stats(pool).used_bytes, UNITS(1));
    CHECK_EQ(sound_stats(pool).lost_segments, 1);
    let_go(fresh);
    let_go(old);
    gm_pool_close(pool);
    CHECK_EQ(given_back(), 1);
    close_backend(0);
}

TEST(lost_memory_is_noticed_by_the_next_miss)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    gm_pool *sibling = pool_on(0);
    holding cached = take_bytes(pool, UNITS(1));
    holding others = take_bytes(sibling, UNITS(1));

    let_go(cached);
    lives[0] = 7;
    holding missed = take_bytes(pool, UNITS(2));
    CHECK_EQ(sound_stats(pool).total_bytes, UNITS(2));
    CHECK_EQ(sound_stats(pool).lost_segments, 1);
    check_empty(sibling, 1); // who noticed it told all
    let_go(missed);
    let_go(others);
    gm_pool_close(pool);
    gm_pool_close(sibling);
    CHECK_EQ(given_back(), 1);
    close_backend(0);
}

TEST(lost_memory_is_noticed_before_it_is_given_back)
{
    open_backend();
    for (int way = 0; way < 3; way++) {
        gm_pool *pool = pool_on(0);
        holding held = take_bytes(pool, UNITS(1));

        if (way < 2) {
            let_go(held);
        }
        lives[0] = way == 1 ? 0 : lives[0] + 10; // also: nothing is there any more
        if (way == 0) {
            CHECK_EQ(gm_pool_release_idle(pool), 0);
            check_empty(pool, 1);
        }
        gm_pool_close(pool); // the cached, or all once the handle ends
        if (way == 2) {
            let_go(held);
        }
        lives[0] += 10;
    }
    CHECK_EQ(given_back(), 0);
    close_backend(0);
}

TEST(lost_is_nothing_while_the_device_does_not_say_so)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    holding cached = take_bytes(pool, UNITS(1));
    uintptr_t address = cached.block->addr;

    let_go(cached);
    answer = GM_DEVICE_ERROR(999);
    lives[0] = 2;
    holding missed = take_bytes(pool, UNITS(2));
    CHECK_EQ(sound_stats(pool).lost_segments, 0);
    answer = GM_OK;
    lives[0] = 1;
    cached = take_bytes(pool, UNITS(1));
    CHECK_EQ(cached.block->addr, address);
    let_go(cached);
    let_go(missed);
    gm_pool_close(pool);
    CHECK_EQ(given_back(), 2);
    close_backend(0);
}

TEST(lost_pools_end_with_their_last_handle)
{
    open_backend();
    gm_pool *pool = pool_on(0);
    holding live = take_bytes(pool, UNITS(1));

    gm_pool_close(pool);
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    let_go(live); // the sanitizers say whether the pool went
    CHECK_EQ(given_back(), 0);
    close_backend(0);
}

TEST(lost_memory_of_a_backend_without_numbers_goes_when_somebody_says_so)
{
    open_backend();
    table.device_incarnation = NULL;
    gm_pool *pool = pool_on(0);
    holding held = take_bytes(pool, UNITS(1));

    gm_pools_device_lost(&table, 0);
    check_empty(pool, 1);
    let_go(held);
    gm_pool_close(pool);
    close_backend(0);
}

static int forgotten;

static void
count_forgotten(void *context, int device, const gm_piece *piece)
{
    CHECK(context == sim);
    CHECK_EQ(device, 0);
    CHECK(piece->base && piece->size);
    forgotten++;
}

TEST(lost_pieces_are_told_to_upstream_once_each)
{
    const gm_backend *backend = open_backend();
    gm_upstream upstream = gm_upstream_of_backend(backend);
    gm_pool *pool = NULL;

    upstream.forget = count_forgotten;
    upstream.context = sim; // takes and gives as the table does
    CHECK_EQ(gm_pool_new(0, upstream, &pool), GM_OK);
    holding first = take_bytes(pool, UNITS(1));
    holding second = take_bytes(pool, UNITS(1));
    let_go(first);
    lives[0] = 2;
    gm_pools_device_lost(backend, 0);
    CHECK_EQ(forgotten, 2);
    let_go(second);
    gm_pool_close(pool);
    CHECK_EQ(forgotten, 2);
    gm_backend_close(sim); // its ledger was not asked
}

/* ---- what waits for streams ---- */

typedef struct test_stream {
    gm_stream handle;
    gm_stream_use use;
} test_stream;

static test_stream
make_stream(int device, bool announced)
{
    test_stream s = {0};
    uint64_t id;

    CHECK_EQ(
        gm_backend_stream_create(&table, device, GM_STREAM_NON_BLOCKING, 0, &s.handle),
        GM_OK);
    CHECK_EQ(gm_backend_stream_id(&table, s.handle, &id), GM_OK);
    s.use = (gm_stream_use){
        .stream = s.handle,
        .key = gm_stream_key_of(s.handle, id),
        .device = device,
        .life = announced ? lives[device] : 0,
        .announced = announced,
    };
    return s;
}

static uintptr_t scratch[DEVICES];

/* Work that keeps the stream busy until somebody waits. */
static void
keep_busy(const test_stream *s)
{
    int device = s->use.device;

    if (!scratch[device]) {
        CHECK_EQ(
            gm_backend_mem_alloc(sim, device, GM_MEM_DEVICE, 512, &scratch[device]),
            GM_OK);
    }
    CHECK_EQ(gm_backend_set_async(sim, scratch[device], 0, 512, s->handle), GM_OK);
}

static void
use_on(holding h, const test_stream *s)
{
    CHECK_EQ(gm_pool_record_use(h.pool, h.block, h.generation, &s->use), GM_OK);
}

static void
drop_stream(const test_stream *s)
{
    CHECK_EQ(gm_backend_stream_synchronize(sim, s->handle), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(sim, s->handle), GM_OK);
}

static void
end_scratch(void)
{
    for (int i = 0; i < DEVICES; i++) {
        if (scratch[i]) {
            CHECK_EQ(gm_backend_mem_free(sim, i, GM_MEM_DEVICE, scratch[i]), GM_OK);
            scratch[i] = 0;
        }
    }
}

/* How many events exist. */
static size_t
events(void)
{
    gm_sim_ledger ledger;

    gm_sim_read_ledger(sim, &ledger);
    return ledger.events;
}

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
    CHECK_EQ(sound_stats(pool).pending_bytes, UNITS(2));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 2);
    let_go(live);
    CHECK_EQ(gm_backend_stream_synchronize(sim, s.handle), GM_OK);
    (void)gm_pool_settle(pool);
    check_empty(pool, 2);
    gm_pools_end_stream(&table, &s.use);
    drop_stream(&s);
    gm_pool_close(pool);
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
