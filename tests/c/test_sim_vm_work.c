/* SPDX-License-Identifier: MIT
 *
 * Memory by page of the simulated device: who may touch it, what becomes of work that
 * is left queued over an unmapping, and what does not concern it: contexts, resets,
 * recordings.
 */
#include "pages.h"

#include <string.h>

#define ILLEGAL_ADDRESS GM_DEVICE_ERROR(700)

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
