/* SPDX-License-Identifier: MIT
 *
 * What every backend promises of stream-ordered memory and its pools, of what a device
 * says it can do, and of priorities. When the simulated device lets memory be used
 * again is in test_sim_async.c.
 */
#include "conformance.h"

static unsigned
support_of(const gm_backend *b, int device)
{
    unsigned support = 0;
    CHECK_EQ(gm_backend_device_support(b, device, &support), GM_OK);
    return support;
}

static void
need_pools(const gm_backend *b)
{
    if ((support_of(b, 0) & GM_DEVICE_MEMORY_POOLS) == 0) {
        SKIP("the device has no memory pools");
    }
}

static uint64_t
read_pool(const gm_backend *b, gm_mem_pool pool, gm_mem_pool_field field)
{
    uint64_t value = 7;
    CHECK_EQ(gm_backend_mem_pool_read(b, pool, field, &value), GM_OK);
    return value;
}

/* ---- what a device can do ---- */

CONFORMANCE(support_is_told_of_devices_there_are)
{
    const unsigned known = GM_DEVICE_MEMORY_POOLS | GM_DEVICE_MANAGED |
                           GM_DEVICE_CONCURRENT_MANAGED | GM_DEVICE_PAGEABLE_ACCESS |
                           GM_DEVICE_VIRTUAL_MEMORY;
    int count = 0;
    unsigned support = 7;
    CHECK_EQ(gm_backend_device_count(b, &count), GM_OK);
    for (int device = 0; device < count; device++) {
        CHECK_EQ(support_of(b, device) & ~known, 0);
        // What all devices have is what the backend is said to have.
        CHECK((b->caps & GM_CAP_STREAM_ORDERED) == 0 ||
              (support_of(b, device) & GM_DEVICE_MEMORY_POOLS) != 0);
        CHECK((b->caps & GM_CAP_MANAGED) == 0 ||
              (support_of(b, device) & GM_DEVICE_MANAGED) != 0);
        CHECK((b->caps & GM_CAP_VIRTUAL_MEMORY) == 0 ||
              (support_of(b, device) & GM_DEVICE_VIRTUAL_MEMORY) != 0);
    }
    CHECK_EQ(gm_backend_device_support(b, -1, &support), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_device_support(b, count, &support), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(support, 7);
}

CONFORMANCE(write_combined_memory)
{
    uintptr_t host = take(b, GM_MEM_WRITE_COMBINED, 5000);
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 5000);
    unsigned char bytes[5000];
    gm_pointer_info info;
    CHECK_EQ(gm_backend_pointer_info(b, host + 4999, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_HOST);
    fill((unsigned char *)host, 5000, 3);
    CHECK_EQ(gm_backend_copy(b, ptr, host, 5000, GM_COPY_HOST_TO_DEVICE), GM_OK);
    CHECK_EQ(gm_backend_copy(b, (uintptr_t)bytes, ptr, 5000, GM_COPY_DEVICE_TO_HOST),
             GM_OK);
    check_filled(bytes, 5000, 3);
    give(b, GM_MEM_DEVICE, ptr);
    give(b, GM_MEM_WRITE_COMBINED, host);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

/* ---- memory ---- */

CONFORMANCE(stream_ordered_memory_holds_bytes)
{
    need_pools(b);
    gm_stream stream = take_stream(b, GM_STREAM_NON_BLOCKING);
    unsigned char *bytes = (unsigned char *)take(b, GM_MEM_PINNED, MIB);
    for (int round = 0; round < 3; round++) {
        uintptr_t ptr = 0;
        gm_pointer_info info;
        CHECK_EQ(gm_backend_mem_alloc_async(b, 0, MIB - 3, stream, &ptr), GM_OK);
        CHECK_EQ(ptr % 256, 0);
        CHECK_EQ(gm_backend_pointer_info(b, ptr, &info), GM_OK);
        CHECK_EQ(info.kind, GM_POINTER_DEVICE);
        CHECK_EQ(info.device, 0);
        CHECK_EQ(gm_backend_set_async(b, ptr, round + 1, MIB - 3, stream), GM_OK);
        CHECK_EQ(gm_backend_copy_async(b, (uintptr_t)bytes, ptr, MIB - 3,
                                       GM_COPY_DEVICE_TO_HOST, stream),
                 GM_OK);
        CHECK_EQ(gm_backend_mem_free_async(b, 0, ptr, stream), GM_OK);
        CHECK_EQ(gm_backend_stream_synchronize(b, stream), GM_OK);
        check_all(bytes, MIB - 3, (unsigned char)(round + 1));
    }
    give(b, GM_MEM_PINNED, (uintptr_t)bytes);
    CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
}

/* Freed by the plain call, too, which waits. */
CONFORMANCE(stream_ordered_memory_can_be_freed_plainly)
{
    need_pools(b);
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 1000, GM_STREAM_PER_THREAD, &ptr), GM_OK);
    CHECK_EQ(gm_backend_set_async(b, ptr, 1, 1000, GM_STREAM_PER_THREAD), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

CONFORMANCE(stream_ordered_requests_that_cannot_be_met)
{
    need_pools(b);
    size_t free_bytes = 0, total_bytes = 0;
    uintptr_t out = 7;
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, total_bytes + 1, 0, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 0, 0, &out), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_alloc_async(b, -1, 1, 0, &out), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_mem_free_async(b, -1, 1, 0), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(out, 7);
    CHECK_EQ(gm_backend_last_error(b), 0);
}

/* ---- pools ---- */

CONFORMANCE(pools_tell_what_they_hold)
{
    need_pools(b);
    gm_mem_pool pool = 0;
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, false, &pool), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_trim(b, pool, 0), GM_OK);
    uint64_t used = read_pool(b, pool, GM_MEM_POOL_USED);

    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 4 * MIB, 0, &ptr), GM_OK);
    CHECK_EQ(read_pool(b, pool, GM_MEM_POOL_USED), used + 4 * MIB);
    CHECK(read_pool(b, pool, GM_MEM_POOL_RESERVED) >= used + 4 * MIB);
    CHECK_EQ(gm_backend_mem_free_async(b, 0, ptr, 0), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(read_pool(b, pool, GM_MEM_POOL_USED), used);
    CHECK_EQ(gm_backend_mem_pool_trim(b, pool, 0), GM_OK);
    CHECK(used > 0 || read_pool(b, pool, GM_MEM_POOL_RESERVED) == 0);
}

/* The threshold keeps what was freed, a trim takes it. */
CONFORMANCE(pools_keep_what_the_threshold_says)
{
    need_pools(b);
    gm_mem_pool pool = 0;
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, false, &pool), GM_OK);
    uint64_t before = read_pool(b, pool, GM_MEM_POOL_RELEASE_THRESHOLD);
    CHECK_EQ(
        gm_backend_mem_pool_write(b, pool, GM_MEM_POOL_RELEASE_THRESHOLD, UINT64_MAX),
        GM_OK);
    CHECK_EQ(read_pool(b, pool, GM_MEM_POOL_RELEASE_THRESHOLD), UINT64_MAX);
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 4 * MIB, 0, &ptr), GM_OK);
    CHECK_EQ(gm_backend_mem_free_async(b, 0, ptr, 0), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK(read_pool(b, pool, GM_MEM_POOL_RESERVED) >= 4 * MIB);
    CHECK_EQ(gm_backend_mem_pool_trim(b, pool, 0), GM_OK);
    CHECK(read_pool(b, pool, GM_MEM_POOL_RESERVED) < 4 * MIB + before);
    CHECK_EQ(gm_backend_mem_pool_write(b, pool, GM_MEM_POOL_RELEASE_THRESHOLD, before),
             GM_OK);
    CHECK_EQ(gm_backend_mem_pool_write(b, pool, GM_MEM_POOL_USED, 0),
             GM_DEVICE_ERROR(1));
    CHECK_EQ(gm_backend_last_error(b), 0);
}

CONFORMANCE(the_first_pool_can_be_chosen_again)
{
    need_pools(b);
    gm_mem_pool first = 0, current = 0, out = 7;
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, true, &first), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_set(b, 0, first), GM_OK);
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, false, &current), GM_OK);
    CHECK_EQ(current, first);
    CHECK_EQ(gm_backend_mem_pool_get(b, -1, true, &out), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_mem_pool_set(b, -1, first), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(out, 7);
}

/* ---- priorities ---- */

CONFORMANCE(priorities_are_kept_within_their_range)
{
    int least = 7, most = 7, priority = 7, device = 7;
    unsigned flags = 7;
    CHECK_EQ(gm_backend_stream_priority_range(b, 0, &least, &most), GM_OK);
    CHECK_EQ(least, 0);
    CHECK(most <= least);
    CHECK_EQ(gm_backend_stream_priority_range(b, -1, &least, &most),
             GM_ERR_INVALID_DEVICE);
    const int asked[] = {0, most, most - 1, least + 1, 1000, -1000};
    const int taken[] = {0, most, most, least, least, most};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        gm_stream stream = 0;
        unsigned wanted = i % 2 == 0 ? 0 : GM_STREAM_NON_BLOCKING;
        CHECK_EQ(gm_backend_stream_create(b, 0, wanted, asked[i], &stream), GM_OK);
        CHECK_EQ(gm_backend_stream_info(b, stream, &flags, &priority, &device), GM_OK);
        CHECK_EQ(flags, wanted);
        CHECK_EQ(priority, taken[i]);
        CHECK_EQ(device, 0);
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
    CHECK_EQ(gm_backend_stream_info(b, GM_STREAM_LEGACY, &flags, &priority, &device),
             GM_OK);
    CHECK_EQ(flags, 0);
    CHECK_EQ(priority, 0);
}
