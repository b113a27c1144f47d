/* SPDX-License-Identifier: MIT
 *
 * What the simulated device promises of its memory beyond the table: it exists only
 * when used, it is placed first fit and fragments, and bad addresses are refused.
 * See test_sim_order.c for when queued work runs, test_sim_life.c for the rest.
 */
#include "device.h"

#include <string.h>

#define GIB ((size_t)1 << 30)
#define INVALID_VALUE GM_DEVICE_ERROR(1)

/* ---- opening ---- */

TEST(sim_options_are_checked)
{
    const gm_sim_options bad[] = {
        {.devices = 0, .memory = MIB},
        {.devices = -1, .memory = MIB},
        {.devices = GM_SIM_MAX_DEVICES + 1, .memory = MIB},
        {.devices = 1, .memory = 0},
        {.devices = 1, .memory = SIZE_MAX},
        {.devices = 1, .memory = ((size_t)16 << 40) + 1},
        {.devices = 3, .memory = ((size_t)16 << 40) / 3 + 1},
        {.devices = 1, .memory = MIB, .others = MIB + 1},
    };
    gm_backend *b = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_EQ(gm_backend_sim_open(&bad[i], &b), GM_ERR_INVALID_VALUE);
    }
    CHECK(b == NULL);
}

/* Sixteen devices of 1 TiB are the most there is, and cost nothing until used. */
TEST(sim_is_as_large_as_it_says)
{
    const gm_sim_options most = {.devices = 16, .memory = (size_t)1 << 40};
    if (harness_slowness() > 1) {
        SKIP("a sanitizer or valgrind leaves too few addresses");
    }
    gm_backend *b = open_sim(most);
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_alloc(b, 15, GM_MEM_DEVICE, most.memory, &ptr), GM_OK);
    CHECK_EQ(gm_backend_mem_free(b, 15, GM_MEM_DEVICE, ptr), GM_OK);
    gm_backend_close(b);
}

TEST(sim_others_hold_their_share)
{
    gm_backend *b =
        open_sim((gm_sim_options){.devices = 2, .memory = 3 * MIB, .others = MIB + 1});
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 1, &free_bytes, &total_bytes), GM_OK);
    CHECK_EQ(total_bytes, 4 * MIB); // whole units of 2 MiB
    CHECK_EQ(free_bytes, 3 * MIB - 512);
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, 3 * MIB, &ptr),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_mem_alloc(b, 1, GM_MEM_DEVICE, 3 * MIB - 512, &ptr), GM_OK);
    gm_backend_close(b);

    b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB, .others = 2 * MIB});
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 1, &ptr), GM_ERR_OUT_OF_MEMORY);
    gm_backend_close(b);
}

/* ---- memory that exists only when used ---- */

/* Bytes of shared memory that this process has in its pages, as the kernel counts. */
static size_t
resident(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status != NULL);
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, status) != NULL) {
        if (sscanf(line, "RssShmem: %zu kB", &kib) == 1) {
            break;
        }
    }
    fclose(status);
    return kib << 10;
}

TEST(sim_memory_follows_use)
{
    if (harness_under_valgrind()) {
        SKIP("valgrind maps 32 GiB at most");
    }
    size_t before = resident();
    gm_backend *b = open_sim((gm_sim_options){.devices = 4, .memory = 64 * GIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 60 * GIB);
    CHECK(resident() < before + MIB);
    memset((void *)(ptr + 10 * GIB), 1, 64 * MIB);
    CHECK(resident() >= before + 64 * MIB);
    give(b, GM_MEM_DEVICE, ptr);
    CHECK(resident() < before + MIB);

    // Many small ones, freed in any order, go too.
    enum {
        SMALL = 4096
    };
    static uintptr_t ptrs[SMALL];
    for (size_t i = 0; i < SMALL; i++) {
        ptrs[i] = take(b, GM_MEM_DEVICE, 8192);
        memset((void *)ptrs[i], 1, 8192);
    }
    CHECK(resident() >= before + 32 * MIB);
    for (size_t i = 0; i < SMALL; i++) {
        give(b, GM_MEM_DEVICE, ptrs[i * 1021 % SMALL]);
    }
    CHECK(resident() < before + MIB);
    gm_backend_close(b);
}

/* A neighbour on the same page keeps its bytes when large ranges go. */
TEST(sim_giving_back_pages_spares_neighbours)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 64 * MIB});
    uintptr_t low = take(b, GM_MEM_DEVICE, 512);
    uintptr_t large = take(b, GM_MEM_DEVICE, MIB + 512);
    uintptr_t high = take(b, GM_MEM_DEVICE, 512);
    CHECK_EQ(gm_backend_set(b, low, 1, 512), GM_OK);
    CHECK_EQ(gm_backend_set(b, large, 2, MIB + 512), GM_OK);
    CHECK_EQ(gm_backend_set(b, high, 3, 512), GM_OK);
    give(b, GM_MEM_DEVICE, large);
    check_all((unsigned char *)low, 512, 1);
    check_all((unsigned char *)high, 512, 3);
    large = take(b, GM_MEM_DEVICE, MIB + 512);
    for (size_t i = 4096; i < MIB - 4096; i += 512) { // whole pages lost what they held
        CHECK_EQ(*(unsigned char *)(large + i), 0);
    }
    gm_backend_close(b);
}

#ifdef GM_DEBUG
TEST(sim_freed_memory_is_poisoned)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 64 * MIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 8192);
    CHECK_EQ(gm_backend_set(b, ptr, 1, 8192), GM_OK);
    give(b, GM_MEM_DEVICE, ptr);
    check_all((unsigned char *)ptr, 8192, 0xdb);
    gm_backend_close(b);
}
#endif

/* ---- placement ---- */

TEST(sim_placement_is_contiguous_first_fit)
{
    enum {
        N = 8
    };
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = N * MIB});
    uintptr_t ptrs[N], out = 0;
    for (size_t i = 0; i < N; i++) {
        ptrs[i] = take(b, GM_MEM_DEVICE, MIB);
        CHECK_EQ(ptrs[i], ptrs[0] + i * MIB);
    }
    for (size_t i = 1; i < N; i += 2) {
        give(b, GM_MEM_DEVICE, ptrs[i]);
    }
    // Half is free, but no two neighbours are.
    size_t free_bytes = 0, total_bytes = 0;
    CHECK_EQ(gm_backend_mem_info(b, 0, &free_bytes, &total_bytes), GM_OK);
    CHECK_EQ(free_bytes, N / 2 * MIB);
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, MIB + 1, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(take(b, GM_MEM_DEVICE, MIB), ptrs[1]); // the lowest
    give(b, GM_MEM_DEVICE, ptrs[4]);                // joins both its neighbours
    CHECK_EQ(take(b, GM_MEM_DEVICE, 3 * MIB), ptrs[3]);
    gm_backend_close(b);
}

TEST(sim_scattered_placement_needs_capacity_alone)
{
    enum {
        N = 64
    };
    gm_backend *b =
        open_sim((gm_sim_options){.devices = 1, .memory = N * MIB, .scattered = true});
    uintptr_t ptrs[N], out = 0;
    for (size_t i = 0; i < N; i++) {
        ptrs[i] = take(b, GM_MEM_DEVICE, MIB);
    }
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 1, &out), GM_ERR_OUT_OF_MEMORY);
    for (size_t i = 1; i < N; i += 2) {
        give(b, GM_MEM_DEVICE, ptrs[i]);
    }
    uintptr_t large = take(b, GM_MEM_DEVICE, N / 2 * MIB);
    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 1, &out), GM_ERR_OUT_OF_MEMORY);
    give(b, GM_MEM_DEVICE, large);
    gm_backend_close(b);
}

/* First fit against the plainest model of it: a byte a unit. */
TEST(sim_placement_is_that_of_the_model)
{
    enum {
        UNITS = 4096,
        LIVE = 256
    }; // one device of 2 MiB
    static unsigned char taken[UNITS];
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    struct {
        uintptr_t ptr;
        size_t units;
    } live[LIVE] = {{0, 0}};
    uintptr_t start = take(b, GM_MEM_DEVICE, 1);
    give(b, GM_MEM_DEVICE, start);
    uint32_t random = 12345;
    int refused = 0;
    for (int step = 0; step < 50000 / harness_slowness(); step++) {
        random = random * 1664525u + 1013904223u;
        size_t slot = (random >> 8) % LIVE;
        if (live[slot].units > 0) {
            give(b, GM_MEM_DEVICE, live[slot].ptr);
            memset(taken + (live[slot].ptr - start) / 512, 0, live[slot].units);
            live[slot].units = 0;
            continue;
        }
        size_t units = 1 + (random >> 16) % ((random & 64) != 0 ? 8 : 80);
        size_t at = 0, run = 0;
        while (at < UNITS && run < units) {
            run = taken[at] != 0 ? 0 : run + 1;
            at++;
        }
        uintptr_t ptr = 0;
        gm_status status =
            gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, units * 512 - 7, &ptr);
        CHECK_EQ(status, run == units ? GM_OK : GM_ERR_OUT_OF_MEMORY);
        if (status != GM_OK) {
            refused++;
            continue;
        }
        CHECK_EQ(ptr, start + (at - units) * 512);
        memset(taken + (at - units), 1, units);
        live[slot].ptr = ptr;
        live[slot].units = units;
    }
    CHECK(refused > 0); // the device was full at times
    gm_backend_close(b);
}

/* ---- addresses that are refused ---- */

TEST(sim_bad_frees_are_counted)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 2, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 1024);
    uintptr_t pinned = take(b, GM_MEM_PINNED, 1024);
    int host = 0;
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, ptr + 512), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free(b, 1, GM_MEM_DEVICE, ptr), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_PINNED, ptr), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_MANAGED, pinned), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, (uintptr_t)&host), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, 0), INVALID_VALUE);
    CHECK_EQ(read_ledger(b).errors, 6);
    CHECK_EQ(read_ledger(b).allocations, 2);
    give(b, GM_MEM_DEVICE, ptr);
    CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, ptr), INVALID_VALUE);
    CHECK_EQ(read_ledger(b).errors, 7);
    give(b, GM_MEM_PINNED, pinned);
    check_ledger_is_empty(b);
    gm_backend_close(b);
}

TEST(sim_bad_copies_are_refused)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 1000), after = take(b, GM_MEM_DEVICE, 1000);
    unsigned char bytes[2000] = {0};
    uintptr_t host = (uintptr_t)bytes;
    give(b, GM_MEM_DEVICE, after);
    const struct {
        uintptr_t dst;
        uintptr_t src;
        size_t size;
        gm_copy_kind kind;
    } bad[] = {
        {ptr, host, 1001, GM_COPY_HOST_TO_DEVICE},     // past the end
        {ptr + 999, host, 2, GM_COPY_DEFAULT},         //
        {host, ptr + 1, 1000, GM_COPY_DEVICE_TO_HOST}, //
        {host, after, 1, GM_COPY_DEVICE_TO_HOST},      // freed
        {after, host, 1, GM_COPY_HOST_TO_DEVICE},      //
        {ptr, after, 1, GM_COPY_DEVICE_TO_DEVICE},     //
        {host, host + 500, 1, GM_COPY_HOST_TO_DEVICE}, // not a device's
        {host, host + 500, 1, GM_COPY_DEVICE_TO_HOST}, //
        {ptr, host, 1, GM_COPY_DEVICE_TO_DEVICE},      //
        {ptr, 0, 1, GM_COPY_HOST_TO_DEVICE},           // null
        {0, ptr, 1, GM_COPY_DEFAULT},                  //
        {host, ptr, SIZE_MAX, GM_COPY_DEFAULT},        // wraps
        {host, host + 500, SIZE_MAX, GM_COPY_DEFAULT}, //
    };
    size_t count = sizeof bad / sizeof bad[0];
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(gm_backend_copy(b, bad[i].dst, bad[i].src, bad[i].size, bad[i].kind),
                 INVALID_VALUE);
        CHECK_EQ(gm_backend_copy_async(b, bad[i].dst, bad[i].src, bad[i].size,
                                       bad[i].kind, 0),
                 INVALID_VALUE);
    }
    gm_sim_set_support(b, 0, GM_DEVICE_MANAGED); // does not reach the host's memory
    CHECK_EQ(gm_backend_set(b, host, 0, 1), INVALID_VALUE);
    CHECK_EQ(gm_backend_set_async(b, ptr, 0, 1001, 0), INVALID_VALUE);
    CHECK_EQ(read_ledger(b).errors, 2 * count + 2);
    CHECK_EQ(read_ledger(b).pending, 0);
    CHECK_EQ(gm_backend_copy(b, ptr, host, 1, (gm_copy_kind)9), INVALID_VALUE);

    gm_pointer_info info;
    CHECK_EQ(gm_backend_pointer_info(b, after, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_UNREGISTERED);
    CHECK_EQ(gm_backend_pointer_info(b, ptr + 1000, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_UNREGISTERED);
    gm_backend_close(b);
}

TEST(sim_plain_host_memory_is_reached_where_the_device_can)
{
    gm_backend *b = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    uintptr_t ptr = take(b, GM_MEM_DEVICE, 1000);
    unsigned char bytes[1000] = {0};
    uintptr_t host = (uintptr_t)bytes;

    CHECK_EQ(gm_backend_set(b, host, 7, 1000), GM_OK);
    CHECK_EQ(bytes[999], 7);
    CHECK_EQ(gm_backend_set_async(b, host, 9, 500, 0), GM_OK);
    CHECK_EQ(gm_backend_mem_prefetch(b, host, 1000, 0, 0), GM_OK);
    CHECK_EQ(gm_backend_mem_prefetch(b, host, 1000, -1, 0), GM_OK);
    CHECK_EQ(gm_backend_mem_advise(b, host, 1000, 1, 0), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    CHECK_EQ(bytes[499], 9);
    CHECK_EQ(bytes[500], 7);
    CHECK_EQ(read_ledger(b).errors, 0);
    CHECK_EQ(gm_backend_set(b, 4096, 1, 1), INVALID_VALUE); // nothing is there
    CHECK_EQ(gm_backend_set(b, host, 1, SIZE_MAX - host), INVALID_VALUE);
    CHECK_EQ(read_ledger(b).errors, 2);

    gm_sim_set_support(b, 0, GM_DEVICE_CONCURRENT_MANAGED);
    CHECK_EQ(gm_backend_set(b, host, 1, 1), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_prefetch(b, host, 1000, 0, 0), INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_advise(b, host, 1000, 1, -1), INVALID_VALUE);
    CHECK_EQ(read_ledger(b).errors, 5);
    CHECK_EQ(bytes[0], 9);
    give(b, GM_MEM_DEVICE, ptr);
    gm_backend_close(b);
}
