/* SPDX-License-Identifier: MIT
 *
 * Devices that were reset: what was there is neither handed out nor given back, its
 * handles end without effect, the counters are right, and what is elsewhere stays.
 */
#include "lives.h"

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
    CHECK(live.block->generation != live.generation);
    check_void(live);

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

static gm_status
reset_after_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr)
{
    gm_status status = sim->mem_free(self, device, kind, ptr);

    lives[0]++;
    return status;
}

/* The device is reset while the pool is giving back: what is left is counted as lost,
 * and not given to a device that knows nothing of it. */
TEST(lost_in_the_midst_of_giving_back)
{
    open_backend();
    table.mem_free = reset_after_free;
    gm_pool *pool = pool_on(0);
    holding held[3];

    for (size_t i = 0; i < 3; i++) {
        held[i] = take_bytes(pool, UNITS(i + 1));
    }
    for (size_t i = 0; i < 3; i++) {
        let_go(held[i]);
    }
    CHECK_EQ(gm_pool_release_idle(pool), UNITS(1 + 2 + 3));
    CHECK_EQ(given_back(), 1);
    gm_stats stats = sound_stats(pool);
    CHECK_EQ(stats.upstream_frees, 1);
    CHECK_EQ(stats.upstream_freed_bytes, UNITS(1));
    CHECK_EQ(stats.lost_segments, 2);
    CHECK_EQ(stats.lost_bytes, UNITS(2 + 3));
    gm_pool_close(pool);
    table.mem_free = sim->mem_free;
    close_backend(0);
}

/* ---- whose memory it is ---- */

/* Memory of both devices in turn, as a pool of the host's memory may have. */
static gm_status
take_in_turn(void *context, int device, size_t size, gm_piece *out)
{
    int turn = (*(int *)context)++ % DEVICES;

    (void)device;
    out->size = size;
    out->device = turn;
    return gm_backend_mem_alloc(&table, turn, GM_MEM_DEVICE, size, &out->base);
}

static void
give_to_its_device(void *context, int device, const gm_piece *piece)
{
    (void)context;
    (void)device;
    CHECK_EQ(gm_backend_mem_free(&table, piece->device, GM_MEM_DEVICE, piece->base),
             GM_OK);
}

/* The first, the last and every other segment go, and then the rest; or those between
 * them first. */
TEST(lost_segments_lie_among_those_of_other_devices)
{
    const size_t of_device[] = {UNITS(1 + 4 + 16 + 64), UNITS(2 + 8 + 32)};

    open_backend();
    for (int first = 0; first < DEVICES; first++) {
        int turns = 0;
        gm_upstream upstream = {&turns, &table, take_in_turn, give_to_its_device,
                                NULL,   NULL,   NULL};
        gm_pool *pool = NULL;
        holding held[7];

        CHECK_EQ(gm_pool_new(0, upstream, &pool), GM_OK);
        for (size_t i = 0; i < 7; i++) {
            held[i] = take_bytes(pool, UNITS((size_t)1 << i));
        }
        lives[first]++;
        gm_pools_device_lost(&table, first);
        CHECK_EQ(sound_stats(pool).used_bytes, of_device[1 - first]);
        CHECK_EQ(sound_stats(pool).lost_bytes, of_device[first]);
        lives[1 - first]++;
        gm_pools_device_lost(&table, 1 - first);
        CHECK_EQ(sound_stats(pool).total_bytes, 0);
        CHECK_EQ(sound_stats(pool).lost_segments, 7);
        for (size_t i = 0; i < 7; i++) {
            let_go(held[i]);
        }
        gm_pool_close(pool);
    }
    CHECK_EQ(given_back(), 0);
    give_back_lost(1);
    close_backend(0);
}

TEST(lost_is_nothing_of_another_backend)
{
    const gm_sim_options options = {.devices = 1, .memory = (size_t)1 << 20};
    gm_backend *elsewhere = NULL;
    gm_pool *pool = NULL;

    open_backend();
    CHECK_EQ(gm_backend_sim_open(&options, &elsewhere), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(elsewhere), &pool), GM_OK);
    holding held = take_bytes(pool, UNITS(3));
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(sound_stats(pool).used_bytes, UNITS(3));
    let_go(held);
    gm_pool_close(pool);
    gm_backend_close(elsewhere);
    close_backend(-1);
}

/* Taken while the device did not tell which life it was in: whoever says that it was
 * reset is believed. */
TEST(lost_memory_whose_life_is_not_known)
{
    open_backend();
    gm_pool *pool = pool_on(0);

    answer = GM_DEVICE_ERROR(999);
    holding held = take_bytes(pool, UNITS(2));
    answer = GM_OK;
    gm_pools_device_lost(&table, 0);
    check_empty(pool, 1);
    let_go(held);
    gm_pool_close(pool);
    close_backend(0);
}

TEST(lost_is_nobodys_business_at_exit)
{
    open_backend();
    gm_pool *pool = pool_on(0);

    (void)take_bytes(pool, UNITS(2));
    gm_process_exit();
    lives[0] = 2;
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(stats_of(pool).used_bytes, UNITS(2));
    CHECK_EQ(stats_of(pool).lost_segments, 0);
}
