/* SPDX-License-Identifier: MIT
 *
 * Memory by page of the simulated device: what it refuses, what it counts, who may
 * touch it and what becomes of work that is left queued over an unmapping. What it
 * shares with a driver is in test_backend_vm.c.
 */
#include "device.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNIT (2 * MIB)
#define INVALID GM_DEVICE_ERROR(1)
#define ILLEGAL_ADDRESS GM_DEVICE_ERROR(700)

static uintptr_t
reserve(const gm_backend *b, size_t size)
{
    uintptr_t ptr = 0;
    CHECK_EQ(gm_backend_vm_reserve(b, size, &ptr), GM_OK);
    return ptr;
}

static gm_handle
create(const gm_backend *b, int device, size_t size)
{
    gm_handle handle = 0;
    CHECK_EQ(gm_backend_vm_create(b, device, size, &handle), GM_OK);
    return handle;
}

static size_t
free_bytes(const gm_backend *b, int device)
{
    size_t free_now = 0, total = 0;
    CHECK_EQ(gm_backend_mem_info(b, device, &free_now, &total), GM_OK);
    return free_now;
}

/* One range of eight units. At 0 and 1 the same handle, at 2 a second one, nothing at
 * 3, one of two units at 4; all of it within reach of device 0. */
typedef struct scene {
    gm_backend *sim;
    uintptr_t at[8];
    gm_handle twice, single, pair;
} scene;

static scene
open_scene(void)
{
    scene s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = 16 * MIB})};
    s.at[0] = reserve(s.sim, 8 * UNIT);
    for (size_t i = 1; i < 8; i++) {
        s.at[i] = s.at[0] + i * UNIT;
    }
    s.twice = create(s.sim, 0, UNIT);
    s.single = create(s.sim, 0, UNIT);
    s.pair = create(s.sim, 0, 2 * UNIT);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[0], UNIT, s.twice), GM_OK);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[1], UNIT, s.twice), GM_OK);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[2], UNIT, s.single), GM_OK);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[4], 2 * UNIT, s.pair), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(s.sim, s.at[0], 3 * UNIT, 0), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(s.sim, s.at[4], 2 * UNIT, 0), GM_OK);
    return s;
}

static void
give_back(scene *s)
{
    gm_backend *sim = s->sim;
    CHECK_EQ(gm_backend_vm_unmap(sim, s->at[0], 3 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, s->at[4], 2 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, s->twice), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, s->single), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, s->pair), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, s->at[0], 8 * UNIT), GM_OK);
}

/* Gives all of a scene back and sees that `errors` calls were wrong. */
static void
close_scene(scene *s, size_t errors)
{
    gm_backend *sim = s->sim;
    give_back(s);
    check_ledger_is_empty(sim);
    CHECK_EQ(read_ledger(sim).errors, errors);
    CHECK_EQ(free_bytes(sim, 0), 16 * MIB);
    gm_backend_close(sim);
}

/* Whether a child that reads there is killed for it; this process goes on. */
static bool
read_kills(uintptr_t ptr)
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        (void)*(volatile unsigned char *)ptr;
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status);
}

/* ---- reserved addresses ---- */

TEST(vm_addresses_cost_nothing_but_addresses)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    uintptr_t ranges[10];
    const size_t size = (size_t)3 << 40;

    if (harness_under_valgrind()) {
        SKIP("valgrind cannot map so much");
    }
    for (size_t i = 0; i < 10; i++) {
        ranges[i] = reserve(sim, size);
        CHECK_EQ(ranges[i] % UNIT, 0);
    }
    CHECK_EQ(read_ledger(sim).reservations, 10);
    CHECK_EQ(read_ledger(sim).reserved_bytes, 10 * size);
    CHECK_EQ(free_bytes(sim, 0), 2 * MIB);
    gm_handle handle = create(sim, 0, UNIT);
    for (size_t i = 0; i < 10; i++) {
        uintptr_t last = ranges[i] + size - UNIT;
        CHECK_EQ(gm_backend_vm_map(sim, last, UNIT, handle), GM_OK);
        CHECK_EQ(gm_backend_vm_set_access(sim, last, UNIT, 0), GM_OK);
        *(unsigned char *)last = (unsigned char)(i + 1);
    }
    for (size_t i = 0; i < 10; i++) {
        uintptr_t last = ranges[i] + size - UNIT;
        CHECK_EQ(*(unsigned char *)last, 10); // one memory at ten places
        CHECK_EQ(gm_backend_vm_unmap(sim, last, UNIT), GM_OK);
        CHECK_EQ(gm_backend_vm_unreserve(sim, ranges[i], size), GM_OK);
    }
    CHECK_EQ(gm_backend_vm_release(sim, handle), GM_OK);
    check_ledger_is_empty(sim);
    gm_backend_close(sim);
}

TEST(vm_addresses_there_are_not_are_refused)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    uintptr_t ptr = 0;

    CHECK_EQ(gm_backend_vm_reserve(sim, UNIT + 4096, &ptr), INVALID);
    CHECK_EQ(gm_backend_vm_reserve(sim, 512, &ptr), INVALID);
    CHECK_EQ(gm_backend_vm_reserve(sim, (size_t)1 << 60, &ptr), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_vm_reserve(sim, SIZE_MAX - UNIT + 1, &ptr),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(ptr, 0);
    check_ledger_is_empty(sim);
    gm_backend_close(sim);
}

TEST(vm_unreserve_takes_exactly_what_reserve_gave)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB});
    uintptr_t ptr = reserve(sim, 4 * UNIT);

    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr + UNIT, 3 * UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, 5 * UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, 0), INVALID);
    CHECK_EQ(gm_backend_vm_unreserve(sim, 0, UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, 4 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, 4 * UNIT), INVALID);
    CHECK_EQ(read_ledger(sim).errors, 6);
    gm_backend_close(sim);
}

TEST(vm_unreserve_refuses_what_is_mapped_in)
{
    scene s = open_scene();
    CHECK_EQ(gm_backend_vm_unreserve(s.sim, s.at[0], 8 * UNIT), INVALID);
    close_scene(&s, 1);
}

/* ---- physical memory ---- */

TEST(vm_handles_share_the_capacity_and_not_the_places)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 16 * MIB});
    gm_handle handles[4], whole = 0;
    uintptr_t low = take(sim, GM_MEM_DEVICE, 2 * MIB);

    for (size_t i = 0; i < 4; i++) {
        handles[i] = create(sim, 0, UNIT);
    }
    CHECK_EQ(free_bytes(sim, 0), 6 * MIB);
    CHECK_EQ(gm_backend_vm_create(sim, 0, 8 * MIB, &whole), GM_ERR_OUT_OF_MEMORY);
    // Every other one goes: what is left needs no stretch of its own.
    CHECK_EQ(gm_backend_vm_release(sim, handles[0]), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handles[2]), GM_OK);
    whole = create(sim, 0, 10 * MIB);
    CHECK_EQ(free_bytes(sim, 0), 0);
    CHECK_EQ(read_ledger(sim).peak_bytes, 16 * MIB);
    CHECK_EQ(read_ledger(sim).handles, 3);
    CHECK_EQ(read_ledger(sim).handle_bytes, 14 * MIB);
    CHECK_EQ(gm_backend_vm_release(sim, whole), GM_OK);
    uintptr_t high = take(sim, GM_MEM_DEVICE, 10 * MIB); // nor is it in the way of this
    give(sim, GM_MEM_DEVICE, high);
    give(sim, GM_MEM_DEVICE, low);
    CHECK_EQ(gm_backend_vm_release(sim, handles[1]), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handles[3]), GM_OK);
    check_ledger_is_empty(sim);
    CHECK_EQ(free_bytes(sim, 0), 16 * MIB);
    gm_backend_close(sim);
}

TEST(vm_create_refuses)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 16 * MIB});
    gm_handle handle = 0;
    size_t unit = 0;

    CHECK_EQ(gm_backend_vm_granularity(sim, 0, &unit), GM_OK);
    CHECK_EQ(unit, UNIT);
    CHECK_EQ(gm_backend_vm_create(sim, 0, UNIT + 512, &handle), INVALID);
    CHECK_EQ(gm_backend_vm_create(sim, 0, UNIT / 2, &handle), INVALID);
    CHECK_EQ(gm_backend_vm_create(sim, 0, 18 * MIB, &handle), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(gm_backend_vm_create(sim, 1, UNIT, &handle), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_vm_create(sim, -1, UNIT, &handle), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_vm_granularity(sim, 1, &unit), GM_ERR_INVALID_DEVICE);
    gm_sim_set_support(sim, 0, GM_DEVICE_MANAGED);
    CHECK_EQ(gm_backend_vm_create(sim, 0, UNIT, &handle), GM_ERR_UNSUPPORTED);
    CHECK_EQ(gm_backend_vm_granularity(sim, 0, &unit), GM_ERR_UNSUPPORTED);
    check_ledger_is_empty(sim);
    gm_backend_close(sim);
}

TEST(vm_memory_stays_while_it_is_mapped)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 4 * MIB});
    uintptr_t ptr = reserve(sim, 2 * UNIT);
    gm_handle handle = create(sim, 0, UNIT);

    CHECK_EQ(gm_backend_vm_map(sim, ptr, UNIT, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(sim, ptr, UNIT, 0), GM_OK);
    memset((void *)ptr, 0x5a, UNIT);
    CHECK_EQ(gm_backend_vm_release(sim, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handle), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, ptr + UNIT, UNIT, handle), INVALID);
    CHECK_EQ(free_bytes(sim, 0), 2 * MIB);
    check_all((unsigned char *)ptr, UNIT, 0x5a);
    CHECK_EQ(gm_backend_vm_unmap(sim, ptr, UNIT), GM_OK);
    CHECK_EQ(free_bytes(sim, 0), 4 * MIB);

    handle = create(sim, 0, UNIT); // and what comes next does not show what was
    CHECK_EQ(gm_backend_vm_map(sim, ptr, UNIT, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(sim, ptr, UNIT, 0), GM_OK);
    check_all((unsigned char *)ptr, UNIT, 0);
    CHECK_EQ(gm_backend_vm_unmap(sim, ptr, UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, 2 * UNIT), GM_OK);
    check_ledger_is_empty(sim);
    CHECK_EQ(read_ledger(sim).errors, 2);
    gm_backend_close(sim);
}

TEST(vm_a_dead_handle_stays_dead_where_handles_are_not_recycled)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 4 * MIB});
    gm_handle first = create(sim, 0, UNIT);

    CHECK_EQ(gm_backend_vm_release(sim, first), GM_OK);
    gm_handle again = create(sim, 0, UNIT);
    CHECK_EQ(again, first); // as a driver may
    CHECK_EQ(gm_backend_vm_release(sim, again), GM_OK);
    (void)gm_sim_recycle_handles(sim, false);
    gm_handle other = create(sim, 0, UNIT);
    CHECK(other != first);
    CHECK_EQ(gm_backend_vm_release(sim, first), INVALID);
    CHECK_EQ(gm_backend_vm_release(sim, other), GM_OK);
    gm_backend_close(sim);
}

/* ---- mappings ---- */

TEST(vm_map_refuses)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;

    CHECK_EQ(gm_backend_vm_map(sim, s.at[3] + 4096, UNIT, s.single), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[0] - UNIT, UNIT, s.single), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[7] + UNIT, UNIT, s.single), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[7], 2 * UNIT, s.pair), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[3], UNIT, s.pair), GM_DEVICE_ERROR(801));
    CHECK_EQ(gm_backend_vm_map(sim, s.at[6], 2 * UNIT, s.single), GM_DEVICE_ERROR(801));
    CHECK_EQ(gm_backend_vm_map(sim, s.at[2], UNIT, s.twice), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[2], UNIT, s.single), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[3], 2 * UNIT, s.pair), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[3], UNIT, 0), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[3], UNIT, 12345), INVALID);
    CHECK_EQ(read_ledger(sim).mappings, 4);
    CHECK_EQ(read_ledger(sim).mapped_bytes, 5 * UNIT);
    close_scene(&s, 11);
}

TEST(vm_unmap_takes_whole_mappings)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;

    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[4], UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[5], UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[2], 3 * UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[5], 2 * UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[6], 3 * UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[0] + 4096, UNIT), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[0], UNIT + 4096), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[7] + UNIT, UNIT), INVALID);
    CHECK_EQ(read_ledger(sim).mappings, 4);
    *(unsigned char *)s.at[0] = 7; // all of it is still there
    CHECK_EQ(*(unsigned char *)s.at[1], 7);
    close_scene(&s, 8);
}

TEST(vm_unmap_takes_gaps_along)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;

    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[1], 7 * UNIT), GM_OK);
    CHECK_EQ(read_ledger(sim).mappings, 1);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[2], UNIT), GM_OK); // nothing but a gap
    CHECK_EQ(*(unsigned char *)s.at[0], 0);
    close_scene(&s, 0);
}

TEST(vm_set_access_takes_whole_mappings)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;

    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[3], UNIT, 0), INVALID);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[2], 2 * UNIT, 0), INVALID);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[4], UNIT, 0), INVALID);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[5], UNIT, 0), INVALID);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[0] + 512, UNIT, 0), INVALID);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[0], UNIT, 2), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[0], UNIT, -1), GM_ERR_INVALID_DEVICE);
    CHECK_EQ(gm_sim_set_peer(sim, 1, 0, false), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[0], UNIT, 1), GM_DEVICE_ERROR(217));
    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[0], UNIT, 0), GM_OK);
    close_scene(&s, 5);
}

TEST(vm_the_host_faults_where_nothing_is)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 4 * MIB});
    uintptr_t ptr = reserve(sim, 2 * UNIT);
    gm_handle handle = create(sim, 0, UNIT);

    if (harness_under_valgrind()) {
        SKIP("valgrind reports what a child does on purpose");
    }
    CHECK(read_kills(ptr));
    CHECK_EQ(gm_backend_vm_map(sim, ptr, UNIT, handle), GM_OK);
    CHECK(read_kills(ptr));
    CHECK_EQ(gm_backend_vm_set_access(sim, ptr, UNIT, 0), GM_OK);
    *(volatile unsigned char *)(ptr + UNIT - 1) = 1;
    CHECK(read_kills(ptr)); // a forked child has no device
    CHECK(read_kills(ptr + UNIT));
    CHECK_EQ(gm_backend_vm_unmap(sim, ptr, UNIT), GM_OK);
    CHECK(read_kills(ptr));
    CHECK_EQ(gm_backend_vm_release(sim, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, 2 * UNIT), GM_OK);
    gm_backend_close(sim);
}

/* ---- who may touch it ---- */

TEST(vm_copies_need_a_mapping_within_reach)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;
    static unsigned char bytes[UNIT];
    uintptr_t host = (uintptr_t)bytes;

    CHECK_EQ(gm_backend_set(sim, s.at[0], 3, 3 * UNIT), GM_OK); // over several
    CHECK_EQ(gm_backend_copy(sim, host, s.at[1] + UNIT / 2, UNIT, GM_COPY_DEFAULT),
             GM_OK);
    check_all(bytes, UNIT, 3);
    CHECK_EQ(gm_backend_set(sim, s.at[2], 3, UNIT + 1), INVALID);
    CHECK_EQ(gm_backend_set(sim, s.at[3], 3, 1), INVALID);
    CHECK_EQ(gm_backend_copy(sim, s.at[3], host, 1, GM_COPY_HOST_TO_DEVICE), INVALID);
    CHECK_EQ(gm_backend_copy(sim, host, s.at[3], 1, GM_COPY_HOST_TO_DEVICE), INVALID);
    CHECK_EQ(gm_backend_copy(sim, host, s.at[3], 1, GM_COPY_DEFAULT), INVALID);
    CHECK_EQ(gm_backend_vm_map(sim, s.at[3], UNIT, s.single), GM_OK);
    CHECK_EQ(gm_backend_set(sim, s.at[3], 3, 1), INVALID); // not within reach yet
    CHECK_EQ(gm_backend_mem_prefetch(sim, s.at[0], UNIT, 0, GM_STREAM_NULL), INVALID);
    CHECK_EQ(gm_backend_mem_free(sim, 0, GM_MEM_DEVICE, s.at[0]), INVALID);
    gm_ipc_handle handle;
    CHECK_EQ(gm_backend_ipc_export(sim, s.at[0], &handle), INVALID);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[3], UNIT), GM_OK);
    close_scene(&s, 9);
}

TEST(vm_access_is_each_devices_own)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;
    uintptr_t other = 0;
    gm_stream stream = 0;

    CHECK_EQ(gm_backend_mem_alloc(sim, 1, GM_MEM_DEVICE, UNIT, &other), GM_OK);
    CHECK_EQ(gm_backend_stream_create(sim, 1, 0, 0, &stream), GM_OK);
    CHECK_EQ(gm_backend_set(sim, s.at[0], 4, UNIT), GM_OK);
    CHECK_EQ(gm_backend_set_async(sim, s.at[0], 4, UNIT, stream), INVALID);
    CHECK_EQ(gm_backend_copy_async(sim, other, s.at[0], UNIT, GM_COPY_DEVICE_TO_DEVICE,
                                   stream),
             INVALID);
    // Each end by its own device needs no access of the other's.
    CHECK_EQ(gm_backend_copy_peer(sim, other, 1, s.at[0], 0, UNIT), GM_OK);
    check_all((unsigned char *)other, UNIT, 4);
    CHECK_EQ(gm_backend_copy_peer(sim, s.at[2], 1, s.at[0], 0, UNIT), INVALID);

    CHECK_EQ(gm_backend_vm_set_access(sim, s.at[0], 2 * UNIT, 1), GM_OK);
    CHECK_EQ(gm_backend_set_async(sim, s.at[0], 5, UNIT, stream), GM_OK);
    CHECK_EQ(gm_backend_set(sim, s.at[1], 6, 8), GM_OK); // device 0 keeps its own
    CHECK_EQ(gm_backend_stream_synchronize(sim, stream), GM_OK);
    CHECK_EQ(*(unsigned char *)(s.at[1] + 100), 5);
    CHECK_EQ(gm_backend_stream_destroy(sim, stream), GM_OK);
    CHECK_EQ(gm_backend_mem_free(sim, 1, GM_MEM_DEVICE, other), GM_OK);
    close_scene(&s, 3);
}

TEST(vm_addresses_are_device_memory_once_mapped)
{
    scene s = open_scene();
    gm_pointer_info info;

    CHECK_EQ(gm_backend_pointer_info(s.sim, s.at[5] + 17, &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_DEVICE);
    CHECK_EQ(info.device, 0);
    CHECK_EQ(info.base, s.at[4]);
    CHECK_EQ(info.size, 2 * UNIT);
    CHECK_EQ(gm_backend_pointer_info(s.sim, s.at[3], &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_UNREGISTERED);
    CHECK_EQ(info.device, -1);
    CHECK_EQ(gm_backend_vm_map(s.sim, s.at[3], UNIT, s.single), GM_OK);
    CHECK_EQ(gm_backend_pointer_info(s.sim, s.at[3], &info), GM_OK);
    CHECK_EQ(info.kind, GM_POINTER_DEVICE);
    CHECK_EQ(info.base, 0); // nobody reaches it yet
    CHECK_EQ(gm_backend_vm_unmap(s.sim, s.at[3], UNIT), GM_OK);
    close_scene(&s, 0);
}

/* ---- work that was left queued ---- */

/* Queues a set on a scene's first unit, has `meddle` do something, and sees that the
 * work faults when somebody waits for it. */
static void
check_faults(void (*meddle)(scene *s))
{
    scene s = open_scene();
    gm_backend *sim = s.sim;
    gm_stream stream = take_stream(sim, GM_STREAM_NON_BLOCKING);

    CHECK_EQ(gm_backend_set_async(sim, s.at[2], 9, UNIT, stream), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[2], UNIT), GM_OK);
    CHECK_EQ(read_ledger(sim).faults, 0); // nobody knows yet
    meddle(&s);
    CHECK_EQ(gm_backend_stream_synchronize(sim, stream), ILLEGAL_ADDRESS);
    CHECK_EQ(read_ledger(sim).faults, 1);
    CHECK_EQ(gm_backend_stream_synchronize(sim, stream), ILLEGAL_ADDRESS); // it sticks
    CHECK_EQ(gm_backend_device_reset(sim, 0), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(sim, 0), GM_OK);
    CHECK_EQ(read_ledger(sim).faults, 1);
    gm_backend_close(sim);
}

static void
do_nothing(scene *s)
{
    (void)s;
}

/* What is there now is not what the work was to touch. */
static void
map_another(scene *s)
{
    CHECK_EQ(gm_backend_vm_map(s->sim, s->at[2], UNIT, s->twice), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(s->sim, s->at[2], UNIT, 0), GM_OK);
}

static void
map_the_same(scene *s)
{
    CHECK_EQ(gm_backend_vm_map(s->sim, s->at[2], UNIT, s->single), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(s->sim, s->at[2], UNIT, 0), GM_OK);
}

/* The addresses may be anybody's then. */
static void
unreserve_all(scene *s)
{
    CHECK_EQ(gm_backend_vm_unmap(s->sim, s->at[0], 2 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(s->sim, s->at[4], 2 * UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(s->sim, s->at[0], 8 * UNIT), GM_OK);
}

TEST(vm_unmapping_under_queued_work_faults)
{
    check_faults(do_nothing);
}

TEST(vm_mapping_something_else_under_queued_work_faults)
{
    check_faults(map_another);
}

TEST(vm_mapping_the_same_again_under_queued_work_faults)
{
    check_faults(map_the_same);
}

TEST(vm_giving_up_the_addresses_under_queued_work_faults)
{
    check_faults(unreserve_all);
}

/* Each way to hear of it. */
TEST(vm_a_fault_comes_out_of_whatever_runs_the_work)
{
    for (int way = 0; way < 5; way++) {
        scene s = open_scene();
        gm_backend *sim = s.sim;
        gm_stream stream = take_stream(sim, 0);
        gm_event event = take_event(sim, 0);
        unsigned char byte = 0;

        CHECK_EQ(gm_backend_copy_async(sim, s.at[2], s.at[4], UNIT,
                                       GM_COPY_DEVICE_TO_DEVICE, stream),
                 GM_OK);
        CHECK_EQ(gm_backend_event_record(sim, event, stream), GM_OK);
        CHECK_EQ(gm_backend_vm_unmap(sim, s.at[4], 2 * UNIT), GM_OK);
        switch (way) {
        case 0:
            CHECK_EQ(gm_backend_stream_query(sim, stream), GM_NOT_READY);
            CHECK_EQ(gm_backend_stream_query(sim, stream), ILLEGAL_ADDRESS);
            break;
        case 1:
            CHECK_EQ(gm_backend_event_query(sim, event), GM_NOT_READY);
            CHECK_EQ(gm_backend_event_query(sim, event), ILLEGAL_ADDRESS);
            break;
        case 2:
            CHECK_EQ(gm_backend_event_synchronize(sim, event), ILLEGAL_ADDRESS);
            break;
        case 3:
            CHECK_EQ(gm_backend_device_synchronize(sim, 0), ILLEGAL_ADDRESS);
            break;
        default:
            CHECK_EQ(gm_backend_copy(sim, (uintptr_t)&byte, s.at[0], 1,
                                     GM_COPY_DEVICE_TO_HOST),
                     ILLEGAL_ADDRESS);
            break;
        }
        CHECK_EQ(read_ledger(sim).faults, 1);
        // Even so all of it can be given back, and more be had.
        CHECK_EQ(gm_backend_set(sim, s.at[0], 1, 1), ILLEGAL_ADDRESS);
        CHECK_EQ(gm_backend_vm_map(sim, s.at[4], 2 * UNIT, s.pair), GM_OK);
        CHECK_EQ(gm_backend_vm_set_access(sim, s.at[4], 2 * UNIT, 0), GM_OK);
        CHECK_EQ(gm_sim_set_fault(sim, 0, 0), GM_OK);
        CHECK_EQ(gm_backend_event_destroy(sim, event), GM_OK);
        CHECK_EQ(gm_backend_stream_destroy(sim, stream), GM_OK);
        give_back(&s);
        gm_backend_close(sim);
    }
}

TEST(vm_remapping_after_the_work_is_done_is_right)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;
    gm_stream stream = take_stream(sim, GM_STREAM_NON_BLOCKING);

    for (int round = 0; round < 4; round++) {
        gm_handle handle = round % 2 == 0 ? s.twice : s.single;
        CHECK_EQ(gm_backend_set_async(sim, s.at[2], round + 1, UNIT, stream), GM_OK);
        CHECK_EQ(gm_backend_stream_synchronize(sim, stream), GM_OK);
        CHECK_EQ(gm_backend_vm_unmap(sim, s.at[2], UNIT), GM_OK);
        CHECK_EQ(gm_backend_vm_map(sim, s.at[2], UNIT, handle), GM_OK);
        CHECK_EQ(gm_backend_vm_set_access(sim, s.at[2], UNIT, 0), GM_OK);
    }
    CHECK_EQ(gm_backend_stream_destroy(sim, stream), GM_OK);
    close_scene(&s, 0);
}

/* A graph names addresses: what counts is what is there when it is launched. */
TEST(vm_a_graph_touches_what_is_mapped_when_it_is_launched)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;
    gm_stream stream = take_stream(sim, GM_STREAM_NON_BLOCKING);
    gm_graph graph = 0;
    gm_graph_exec exec = 0;

    CHECK_EQ(gm_backend_capture_begin(sim, stream, GM_CAPTURE_MODE_GLOBAL), GM_OK);
    CHECK_EQ(gm_backend_set_async(sim, s.at[2], 8, UNIT, stream), GM_OK);
    CHECK_EQ(gm_backend_capture_end(sim, stream, &graph), GM_OK);
    CHECK_EQ(gm_backend_graph_instantiate(sim, graph, &exec), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[2], UNIT), GM_OK);
    map_another(&s);
    CHECK_EQ(gm_backend_graph_launch(sim, exec, stream), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(sim, stream), GM_OK);
    check_all((unsigned char *)s.at[0], UNIT, 8);

    CHECK_EQ(gm_backend_graph_launch(sim, exec, stream), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, s.at[2], UNIT), GM_OK);
    CHECK_EQ(gm_backend_stream_synchronize(sim, stream), ILLEGAL_ADDRESS);
    gm_backend_close(sim);
}

/* ---- no context's ---- */

TEST(vm_memory_needs_no_context_and_makes_none)
{
    scene s = open_scene();
    uint64_t number = 7;
    CHECK(!gm_sim_context_created(s.sim, 0));
    CHECK_EQ(gm_backend_device_incarnation(s.sim, 0, &number), GM_OK);
    CHECK_EQ(number, 0);
    close_scene(&s, 0);
}

TEST(vm_a_reset_leaves_it_as_it_is)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;

    CHECK_EQ(gm_backend_set(sim, s.at[0], 6, UNIT), GM_OK);
    CHECK_EQ(gm_backend_device_reset(sim, 0), GM_OK);
    CHECK_EQ(read_ledger(sim).handles, 3);
    CHECK_EQ(read_ledger(sim).mappings, 4);
    CHECK_EQ(free_bytes(sim, 0), 8 * MIB);
    check_all((unsigned char *)s.at[1], UNIT, 6);
    CHECK_EQ(gm_backend_set(sim, s.at[4], 1, UNIT), GM_OK);
    close_scene(&s, 0);
}

TEST(vm_memory_can_be_had_while_something_is_recorded)
{
    scene s = open_scene();
    gm_backend *sim = s.sim;
    gm_stream stream = take_stream(sim, GM_STREAM_NON_BLOCKING);
    gm_graph graph = 0;

    CHECK_EQ(gm_backend_capture_begin(sim, stream, GM_CAPTURE_MODE_GLOBAL), GM_OK);
    uintptr_t ptr = reserve(sim, UNIT);
    gm_handle handle = create(sim, 0, UNIT);
    CHECK_EQ(gm_backend_vm_map(sim, ptr, UNIT, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(sim, ptr, UNIT, 0), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, ptr, UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, UNIT), GM_OK);
    CHECK_EQ(gm_backend_capture_end(sim, stream, &graph), GM_OK);
    CHECK_EQ(gm_backend_graph_destroy(sim, graph), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(sim, stream), GM_OK);
    close_scene(&s, 0);
}

TEST(vm_closing_takes_along_what_is_left)
{
    scene s = open_scene();
    gm_backend_close(s.sim);
}

/* ---- the log, and slow calls ---- */

TEST(vm_calls_are_in_the_log)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 4 * MIB});
    static const char *const names[] = {
        "vm_reserve", "vm_create",    "vm_map",     "vm_set_access", "vm_unmap",
        "vm_release", "vm_unreserve", "vm_release", "vm_granularity"};
    size_t first = gm_sim_log_start(sim);
    uintptr_t ptr = reserve(sim, UNIT);
    gm_handle handle = create(sim, 0, UNIT);
    size_t unit;

    CHECK_EQ(gm_backend_vm_map(sim, ptr, UNIT, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_set_access(sim, ptr, UNIT, 0), GM_OK);
    CHECK_EQ(gm_backend_vm_unmap(sim, ptr, UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handle), GM_OK);
    CHECK_EQ(gm_backend_vm_unreserve(sim, ptr, UNIT), GM_OK);
    CHECK_EQ(gm_backend_vm_release(sim, handle), INVALID);
    CHECK_EQ(gm_backend_vm_granularity(sim, 0, &unit), GM_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        gm_sim_call call;
        CHECK(gm_sim_log_get(sim, first + i, &call));
        CHECK_EQ(strcmp(call.name, names[i]), 0);
        CHECK_EQ(call.status, i == 7 ? INVALID : GM_OK);
        CHECK_EQ(call.size, i == 5 || i > 6 ? 0 : UNIT);
        CHECK_EQ(call.ptr, i == 8 ? 0 : i == 1 || i == 5 || i == 7 ? handle : ptr);
    }
    CHECK_EQ(gm_sim_log_count(sim), first + 9);
    gm_sim_log_stop(sim);
    gm_backend_close(sim);
}

TEST(vm_calls_can_be_made_slow)
{
    gm_backend *sim = open_sim((gm_sim_options){.devices = 1, .memory = 4 * MIB});
    uint64_t before = 1;

    CHECK_EQ(gm_sim_set_delay(sim, "vm_unmap", 5, &before), GM_OK);
    CHECK_EQ(before, 0);
    CHECK_EQ(gm_sim_set_delay(sim, "vm_unmap", 0, &before), GM_OK);
    CHECK_EQ(before, 5);
    gm_backend_close(sim);
}
