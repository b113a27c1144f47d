/* SPDX-License-Identifier: MIT
 *
 * When the simulated device lets stream-ordered memory be used again: at once on the
 * stream that gave it back, elsewhere when that stream has got there; and what its
 * pools keep. What every backend promises is in test_backend_pools.c.
 */
#include "device.h"

#include <string.h>

#define INVALID_VALUE GM_DEVICE_ERROR(1)
#define NOT_SUPPORTED GM_DEVICE_ERROR(801)

typedef struct bench {
    gm_backend *b;
    gm_stream first;
    gm_stream second;
    gm_mem_pool pool;
} bench;

static bench
open_bench(size_t memory, uint64_t threshold)
{
    bench t = {open_sim((gm_sim_options){.devices = 2, .memory = memory}), 0, 0, 0};
    t.first = take_stream(t.b, GM_STREAM_NON_BLOCKING);
    t.second = take_stream(t.b, GM_STREAM_NON_BLOCKING);
    CHECK_EQ(gm_backend_mem_pool_get(t.b, 0, false, &t.pool), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_write(t.b, t.pool, GM_MEM_POOL_RELEASE_THRESHOLD,
                                       threshold),
             GM_OK);
    return t;
}

static void
close_bench(bench t, size_t errors)
{
    CHECK_EQ(gm_backend_device_synchronize(t.b, 0), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(t.b, t.first), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(t.b, t.second), GM_OK);
    check_ledger_is_empty(t.b);
    CHECK_EQ(read_ledger(t.b).errors, errors);
    gm_backend_close(t.b);
}

static uintptr_t
take_async(const gm_backend *b, size_t size, gm_stream stream)
{
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, size, stream, &ptr), GM_OK);
    return ptr;
}

static void
give_async(const gm_backend *b, uintptr_t ptr, gm_stream stream)
{
    CHECK_EQ(gm_backend_mem_free_async(b, 0, ptr, stream), GM_OK);
}

static size_t
free_bytes_of(const gm_backend *b)
{
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    return free_bytes;
}

static uint64_t
read_pool(const bench *t, gm_mem_pool_field field)
{
    uint64_t value = 0;
    CHECK_EQ(gm_backend_mem_pool_read(t->b, t->pool, field, &value), GM_OK);
    return value;
}

/* ---- in the order of streams ---- */

TEST(sim_async_its_own_stream_reuses_at_once)
{
    bench t = open_bench(4 * MIB, 0);
    uintptr_t ptr = take_async(t.b, MIB, t.first);
    CHECK_EQ(gm_backend_set_async(t.b, ptr, 1, MIB, t.first), GM_OK);
    give_async(t.b, ptr, t.first);
    CHECK_EQ(take_async(t.b, MIB, t.first), ptr);
    CHECK_EQ(gm_backend_set_async(t.b, ptr, 2, MIB, t.first), GM_OK);
    CHECK_EQ(read_ledger(t.b).pending, 3); // the sets and the free: nobody waited
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    check_all((unsigned char *)ptr, MIB, 2);
    give_async(t.b, ptr, t.first);
    close_bench(t, 0);
}

TEST(sim_async_another_stream_reuses_when_the_first_got_there)
{
    bench t = open_bench(8 * MIB, UINT64_MAX);
    uintptr_t ptr = take_async(t.b, MIB, t.first);
    give_async(t.b, ptr, t.first);
    uintptr_t other = take_async(t.b, MIB, t.second);
    CHECK(other != ptr);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.second), GM_OK); // of another stream
    uintptr_t third = take_async(t.b, MIB, t.second);
    CHECK(third != ptr);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    CHECK_EQ(take_async(t.b, MIB, t.second), ptr);
    give_async(t.b, ptr, t.second);
    give_async(t.b, other, t.second);
    give_async(t.b, third, t.second);
    close_bench(t, 0);
}

/* Work that was queued before the memory was given back still runs, whatever the stream
 * made of the memory since; work queued after that is refused. */
TEST(sim_async_earlier_work_runs_in_memory_given_back)
{
    bench t = open_bench(4 * MIB, 0);
    uintptr_t ptr = take_async(t.b, MIB, t.first);
    CHECK_EQ(gm_backend_set_async(t.b, ptr, 1, MIB, t.first), GM_OK);
    give_async(t.b, ptr, t.first);
    CHECK_EQ(gm_backend_set_async(t.b, ptr, 9, MIB, t.first), INVALID_VALUE);
    gm_pointer_info info;
    CHECK_EQ(gm_backend_pointer_info(t.b, ptr, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_UNREGISTERED);

    uintptr_t small = take_async(t.b, 1000, t.first); // cut off the same range
    CHECK_EQ(small, ptr);
    CHECK_EQ(gm_backend_set_async(t.b, small, 2, 1000, t.first), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    check_all((unsigned char *)small, 1000, 2);
    give_async(t.b, small, t.first);
    close_bench(t, 1);
}

/* A stream that did not wait: its work meets memory that is gone. */
TEST(sim_async_a_missing_wait_is_an_error)
{
    bench t = open_bench(4 * MIB, UINT64_MAX);
    uintptr_t ptr = take_async(t.b, MIB, t.first);
    CHECK_EQ(gm_backend_set_async(t.b, ptr, 1, MIB, t.second), GM_OK);
    give_async(t.b, ptr, t.first);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.second), GM_OK);
    close_bench(t, 1);
}

TEST(sim_async_bad_frees_are_counted)
{
    bench t = open_bench(4 * MIB, 0);
    uintptr_t ptr = take_async(t.b, 1024, t.first);
    uintptr_t plain = take(t.b, GM_MEM_DEVICE, 1024);
    CHECK_EQ(gm_backend_mem_free_async(t.b, 0, ptr + 512, t.first), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free_async(t.b, 1, ptr, t.first), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free_async(t.b, 0, plain, t.first), INVALID_VALUE);
    give_async(t.b, ptr, t.first);
    CHECK_EQ(gm_backend_mem_free_async(t.b, 0, ptr, t.first), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free(t.b, 0, GM_MEM_DEVICE, ptr), INVALID_VALUE);
    give(t.b, GM_MEM_DEVICE, plain);
    close_bench(t, 5);
}

TEST(sim_async_a_stream_serves_its_own_device)
{
    bench t = open_bench(4 * MIB, 0);
    uintptr_t out = 7;
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 1, 512, t.first, &out), INVALID_VALUE);
    CHECK_EQ(out, 7);
    close_bench(t, 0);
}

/* ---- what a pool keeps ---- */

TEST(sim_async_a_wait_gives_back_beyond_the_threshold)
{
    bench t = open_bench(8 * MIB, 2 * MIB);
    uintptr_t ptrs[4];
    for (size_t i = 0; i < 4; i++) {
        ptrs[i] = take_async(t.b, MIB, t.first);
    }
    CHECK_EQ(free_bytes_of(t.b), 4 * MIB);
    for (size_t i = 0; i < 4; i++) {
        give_async(t.b, ptrs[i], t.first);
    }
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_USED), 0);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED), 4 * MIB);
    CHECK_EQ(gm_backend_stream_query(t.b, t.first), GM_NOT_READY); // asks, waits not
    CHECK_EQ(gm_backend_stream_query(t.b, t.first), GM_OK);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED), 4 * MIB);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.second), GM_OK); // anybody's wait
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED), 2 * MIB);
    CHECK_EQ(free_bytes_of(t.b), 6 * MIB);
    CHECK_EQ(take_async(t.b, MIB, t.second), ptrs[2]); // the oldest went
    give_async(t.b, ptrs[2], t.second);
    close_bench(t, 0);
}

TEST(sim_async_a_pool_knows_its_most_since_that_was_set_to_0)
{
    bench t = open_bench(8 * MIB, UINT64_MAX);
    uintptr_t kept = take_async(t.b, MIB, t.first);
    uintptr_t more = take_async(t.b, 2 * MIB, t.first);
    give_async(t.b, more, t.first);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_trim(t.b, t.pool, 0), GM_OK);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_USED_HIGH), 3 * MIB);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED_HIGH), 3 * MIB);

    const gm_mem_pool_field high[] = {GM_MEM_POOL_USED_HIGH, GM_MEM_POOL_RESERVED_HIGH};
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(gm_backend_mem_pool_write(t.b, t.pool, high[i], 1), INVALID_VALUE);
        CHECK_EQ(read_pool(&t, high[i]), 3 * MIB);
        CHECK_EQ(gm_backend_mem_pool_write(t.b, t.pool, high[i], 0), GM_OK);
        CHECK_EQ(read_pool(&t, high[i]), 0);
    }
    CHECK_EQ(gm_backend_mem_pool_write(t.b, t.pool, GM_MEM_POOL_USED, 0),
             INVALID_VALUE);
    give_async(t.b, take_async(t.b, MIB, t.first), t.first);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_USED_HIGH), 2 * MIB);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED_HIGH), 2 * MIB);
    give_async(t.b, kept, t.first);
    close_bench(t, 0);
}

TEST(sim_async_a_trim_leaves_what_is_in_use_or_not_done)
{
    bench t = open_bench(8 * MIB, UINT64_MAX);
    uintptr_t live = take_async(t.b, MIB, t.first);
    uintptr_t undone = take_async(t.b, MIB, t.first);
    uintptr_t idle = take_async(t.b, MIB, t.first);
    give_async(t.b, idle, t.first);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    give_async(t.b, undone, t.first);
    CHECK_EQ(gm_backend_mem_pool_trim(t.b, t.pool, 3 * MIB), GM_OK);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED), 3 * MIB);
    CHECK_EQ(gm_backend_mem_pool_trim(t.b, t.pool, 0), GM_OK);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED), 2 * MIB);
    give_async(t.b, live, t.first);
    close_bench(t, 0);
}

/* Idle pieces of a range are joined for a request that needs them all. */
TEST(sim_async_idle_neighbours_are_joined)
{
    enum {
        PIECES = 8
    };
    bench t = open_bench(2 * MIB, UINT64_MAX);
    uintptr_t ptrs[PIECES];
    for (size_t i = 0; i < PIECES; i++) {
        ptrs[i] = take_async(t.b, MIB / PIECES, t.first);
    }
    uintptr_t guard = take(t.b, GM_MEM_DEVICE, MIB);
    for (size_t i = 0; i < PIECES; i++) {
        give_async(t.b, ptrs[i * 5 % PIECES], t.first);
    }
    uintptr_t out = 0;
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 0, MIB, t.second, &out),
             GM_ERR_OUT_OF_MEMORY); // the first stream has not got there
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    CHECK_EQ(take_async(t.b, MIB, t.second), ptrs[0]);
    give_async(t.b, ptrs[0], t.second);
    give(t.b, GM_MEM_DEVICE, guard);
    close_bench(t, 0);
}

/* For want of memory a pool gives up what it keeps idle in the wrong places. */
TEST(sim_async_a_full_device_gets_idle_memory_back)
{
    bench t = open_bench(4 * MIB, UINT64_MAX);
    uintptr_t low = take_async(t.b, MIB, t.first), live = take_async(t.b, MIB, t.first);
    give_async(t.b, low, t.first);
    CHECK_EQ(gm_backend_stream_synchronize(t.b, t.first), GM_OK);
    uintptr_t out = 0;
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 0, 2 * MIB + 1, t.first, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_RESERVED), MIB);
    uintptr_t high = take_async(t.b, 2 * MIB, t.first);
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 0, SIZE_MAX, t.first, &out),
             GM_ERR_OUT_OF_MEMORY);
    give_async(t.b, high, t.first);
    give_async(t.b, live, t.first);
    close_bench(t, 0);
}

TEST(sim_async_pools_can_be_made_and_chosen)
{
    bench t = open_bench(4 * MIB, 0);
    gm_mem_pool made = 0, current = 0, first = 0, far_pool = 0;
    uint64_t value = 0;
    CHECK_EQ(gm_sim_make_pool(t.b, 0, &made), GM_OK);
    CHECK_EQ(gm_sim_make_pool(t.b, 1, &far_pool), GM_OK);
    CHECK_EQ(gm_sim_make_pool(t.b, 2, &made), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_mem_pool_set(t.b, 0, made), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_get(t.b, 0, false, &current), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_get(t.b, 0, true, &first), GM_OK);
    CHECK_EQ(current, made);
    CHECK_EQ(first, t.pool);

    uintptr_t ptr = take_async(t.b, MIB, t.first);
    CHECK_EQ(read_pool(&t, GM_MEM_POOL_USED), 0);
    CHECK_EQ(gm_backend_mem_pool_read(t.b, made, GM_MEM_POOL_USED, &value), GM_OK);
    CHECK_EQ(value, MIB);
    give_async(t.b, ptr, t.first);

    CHECK_EQ(gm_backend_mem_pool_set(t.b, 0, far_pool), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_pool_set(t.b, 0, 12345), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_pool_trim(t.b, 12345, 0), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_pool_read(t.b, 12345, GM_MEM_POOL_USED, &value),
             INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_pool_write(t.b, 12345, GM_MEM_POOL_RELEASE_THRESHOLD, 0),
             INVALID_VALUE);
    close_bench(t, 5);
}

/* ---- devices that cannot ---- */

TEST(sim_a_device_without_pools_says_so)
{
    bench t = open_bench(4 * MIB, 0);
    uintptr_t out = 7;
    unsigned support = 0;
    gm_sim_set_support(t.b, 0, GM_DEVICE_MANAGED);
    CHECK_EQ(gm_backend_device_support(t.b, 0, &support), GM_OK);
    CHECK_EQ(support, GM_DEVICE_MANAGED);
    CHECK_EQ(gm_backend_mem_alloc_async(t.b, 0, 512, t.first, &out), NOT_SUPPORTED);
    CHECK_EQ(gm_backend_mem_pool_get(t.b, 0, false, &out), NOT_SUPPORTED);
    CHECK_EQ(out, 7);
    CHECK_EQ(gm_backend_device_support(t.b, 1, &support), GM_OK);
    CHECK((support & GM_DEVICE_MEMORY_POOLS) != 0);
    CHECK(strcmp(gm_backend_error_name(t.b, 801), "cudaErrorNotSupported") == 0);
    close_bench(t, 0);
}

TEST(sim_a_device_without_concurrent_managed_access_moves_nothing)
{
    bench t = open_bench(4 * MIB, 0);
    uintptr_t ptr = take(t.b, GM_MEM_MANAGED, MIB), out = 7;
    gm_sim_set_support(t.b, 0, GM_DEVICE_MANAGED);
    CHECK_EQ(gm_backend_mem_prefetch(t.b, ptr, MIB, 0, t.first), GM_ERR_UNSUPPORTED);
    CHECK_EQ(gm_backend_mem_prefetch(t.b, ptr, MIB, -1, t.first), GM_OK);
    CHECK_EQ(gm_backend_mem_advise(t.b, ptr, MIB, 3, 0), GM_ERR_UNSUPPORTED);
    CHECK_EQ(gm_backend_mem_alloc(t.b, 0, GM_MEM_MANAGED, 4 * MIB + 1, &out),
             GM_ERR_OUT_OF_MEMORY);
    gm_sim_set_support(t.b, 0, 0);
    CHECK_EQ(gm_backend_mem_alloc(t.b, 0, GM_MEM_MANAGED, 512, &out), NOT_SUPPORTED);
    CHECK_EQ(out, 7);
    give(t.b, GM_MEM_MANAGED, ptr);
    close_bench(t, 0);
}
