/* SPDX-License-Identifier: MIT
 *
 * Memory by page of the simulated device: what it refuses, what it counts, what there
 * is to see of it. Who may touch it is in test_sim_vm_work.c, what it shares with a
 * driver in test_backend_vm.c.
 */
#include "pages.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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
#ifdef __SANITIZE_THREAD__ // has 1.5 TiB of addresses to give
    const size_t size = (size_t)64 << 30;
#else
    const size_t size = (size_t)3 << 40;
#endif

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
