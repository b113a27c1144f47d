/* SPDX-License-Identifier: MIT
 *
 * The fault wrapper: which calls fail, with what, and that the wrapped backend does not
 * see them. With no plan it is held to the whole conformance suite.
 */
#include "device.h"

#include "core/gm_process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h> // fork(), alarm()

typedef struct pair {
    gm_backend *sim;
    gm_backend *b; // the wrapper
} pair;

static pair
open_pair(void)
{
    pair p = {open_sim((gm_sim_options){.devices = 1, .memory = 2 * MIB}), NULL};
    CHECK_EQ(gm_backend_fault_open(p.sim, &p.b), GM_OK);
    return p;
}

static void
close_pair(pair p)
{
    gm_backend_close(p.b);
    check_ledger_is_empty(p.sim);
    gm_backend_close(p.sim);
}

static void
check_counts(const gm_backend *b, uint64_t seen, uint64_t injected)
{
    uint64_t seen_now = 99, injected_now = 99;
    gm_fault_counts(b, &seen_now, &injected_now);
    CHECK_EQ(seen_now, seen);
    CHECK_EQ(injected_now, injected);
}

TEST(fault_hits_the_nth_call_and_those_after)
{
    pair p = open_pair();
    const struct {
        uint64_t nth;
        uint64_t count;
        const char *fails; // of ten calls
    } cases[] = {
        {1, 1, "x........."},          {3, 1, "..x......."},
        {3, 4, "..xxxx...."},          {9, 0, "........xx"},
        {1, 0, "xxxxxxxxxx"},          {11, 1, ".........."},
        {2, UINT64_MAX, ".xxxxxxxxx"}, {UINT64_MAX, UINT64_MAX, ".........."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t injected = 0;
        harness_note("case %zu", i);
        CHECK_EQ(
            gm_fault_plan(p.b, "mem_alloc", cases[i].nth, cases[i].count, GM_ERR_LIMIT),
            GM_OK);
        for (size_t call = 0; call < 10; call++) {
            uintptr_t ptr = 7;
            bool fails = cases[i].fails[call] == 'x';
            injected += fails;
            CHECK_EQ(gm_backend_mem_alloc(p.b, 0, GM_MEM_DEVICE, 512, &ptr),
                     fails ? GM_ERR_LIMIT : GM_OK);
            CHECK((ptr == 7) == fails);
            if (!fails) {
                give(p.b, GM_MEM_DEVICE, ptr);
            }
        }
        check_counts(p.b, 10, injected);
    }
    close_pair(p);
}

TEST(fault_does_not_reach_the_wrapped_backend)
{
    pair p = open_pair();
    uintptr_t out = 7;
    gm_sim_log_start(p.sim);
    CHECK_EQ(gm_fault_plan(p.b, "mem_alloc", 1, 1, GM_ERR_OUT_OF_MEMORY), GM_OK);
    CHECK_EQ(gm_backend_mem_alloc(p.b, 0, GM_MEM_DEVICE, 512, &out),
             GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(out, 7);
    CHECK_EQ(gm_sim_log_count(p.sim), 0);
    close_pair(p);
}

TEST(fault_spares_other_slots)
{
    pair p = open_pair();
    CHECK_EQ(gm_fault_plan(p.b, "stream_create", 1, 0, GM_DEVICE_ERROR(999)), GM_OK);
    give(p.b, GM_MEM_DEVICE, take(p.b, GM_MEM_DEVICE, 512));
    check_counts(p.b, 0, 0);
    gm_stream stream = 0;
    CHECK_EQ(gm_backend_stream_create(p.b, 0, 0, 0, &stream), GM_DEVICE_ERROR(999));
    check_counts(p.b, 1, 1);
    gm_fault_clear(p.b);
    stream = take_stream(p.b, 0);
    CHECK_EQ(gm_backend_stream_destroy(p.b, stream), GM_OK);
    check_counts(p.b, 1, 1); // what the plan saw can still be read
    close_pair(p);
}

TEST(fault_any_slot_counts_them_all)
{
    pair p = open_pair();
    int number = 0;
    CHECK_EQ(gm_fault_plan(p.b, NULL, 3, 1, GM_ERR_INTERNAL), GM_OK);
    CHECK_EQ(gm_backend_device_count(p.b, &number), GM_OK);
    CHECK_EQ(gm_backend_device_get(p.b, &number), GM_OK);
    CHECK_EQ(gm_backend_device_synchronize(p.b, 0), GM_ERR_INTERNAL);
    CHECK_EQ(gm_backend_device_synchronize(p.b, 0), GM_OK);
    check_counts(p.b, 4, 1);
    // What cannot fail is not counted.
    CHECK(strcmp(gm_backend_error_name(p.b, 2), "cudaErrorMemoryAllocation") == 0);
    CHECK(strcmp(gm_backend_error_text(p.b, 2), "out of memory") == 0);
    CHECK_EQ(gm_backend_last_error(p.b), 0);
    check_counts(p.b, 4, 1);
    close_pair(p);
}

TEST(fault_bad_plans_change_nothing)
{
    pair p = open_pair();
    CHECK_EQ(gm_fault_plan(p.b, "device_set", 1, 0, GM_ERR_LIMIT), GM_OK);
    CHECK_EQ(gm_fault_plan(p.b, "no_such_slot", 1, 1, GM_ERR_LIMIT),
             GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_fault_plan(p.b, "close", 1, 1, GM_ERR_LIMIT), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_fault_plan(p.b, "", 1, 1, GM_ERR_LIMIT), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_fault_plan(p.b, "mem_alloc", 0, 1, GM_ERR_LIMIT), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_fault_plan(p.b, "mem_alloc", 1, 1, GM_OK), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_device_set(p.b, 0), GM_ERR_LIMIT);
    close_pair(p);
}

/* A slot answers as it does in the wrapped backend, also one that it lacks, and can be
 * made to fail. */
TEST(fault_keeps_defaults)
{
    pair p = open_pair();
    uintptr_t out = 7;
    int driver = 7, runtime = 7;
    CHECK_EQ(p.b->caps, p.sim->caps);
    CHECK_EQ(gm_backend_vm_reserve(p.b, 1, &out),
             gm_backend_vm_reserve(p.sim, 1, &out));
    CHECK_EQ(gm_backend_versions(p.b, &driver, &runtime), GM_OK);
    CHECK_EQ(driver, 0);
    CHECK_EQ(gm_fault_plan(p.b, "vm_reserve", 1, 1, GM_ERR_OUT_OF_MEMORY), GM_OK);
    CHECK_EQ(gm_backend_vm_reserve(p.b, 1, &out), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(out, 7);
    close_pair(p);
}

/* ---- every slot of the table that returns a status can be named, and is wrapped ----
 */

/* The slot that the plan names is the one that fails. */
#define FAILS(slot, ...)                                                               \
    do {                                                                               \
        CHECK_EQ(gm_fault_plan(b, #slot, 1, 1, GM_ERR_EXITING), GM_OK);                \
        CHECK_EQ(gm_backend_##slot(b, __VA_ARGS__), GM_ERR_EXITING);                   \
        check_counts(b, 1, 1);                                                         \
        slots++;                                                                       \
    } while (0)

static size_t
fail_devices_and_memory(const gm_backend *b)
{
    size_t slots = 0, bytes = 7;
    uintptr_t ptr = 7;
    int number = 7;
    unsigned flags = 7;
    uint64_t value = 7;
    bool can = false;
    char text[8];
    gm_pointer_info info;
    gm_device_mark mark;
    FAILS(device_count, &number);
    FAILS(device_get, &number);
    FAILS(device_set, 0);
    FAILS(device_push, 0, &mark);
    FAILS(device_synchronize, 0);
    FAILS(device_name, 0, text, sizeof text);
    FAILS(versions, &number, &number);
    FAILS(device_support, 0, &flags);
    FAILS(device_reset, 0);
    FAILS(device_incarnation, 0, &value);
    FAILS(mem_info, 0, &bytes, &bytes);
    FAILS(mem_largest, 0, NULL, 0, &bytes);
    FAILS(mem_alloc, 0, GM_MEM_DEVICE, 1, &ptr);
    FAILS(mem_free, 0, GM_MEM_DEVICE, 1);
    FAILS(mem_alloc_async, 0, 1, 0, &ptr);
    FAILS(mem_free_async, 0, 1, 0);
    FAILS(mem_pool_get, 0, true, &ptr);
    FAILS(mem_pool_set, 0, 1);
    FAILS(mem_pool_trim, 1, 0);
    FAILS(mem_pool_read, 1, GM_MEM_POOL_USED, &value);
    FAILS(mem_pool_write, 1, GM_MEM_POOL_RELEASE_THRESHOLD, 0);
    FAILS(copy, 1, 2, 1, GM_COPY_DEFAULT);
    FAILS(copy_async, 1, 2, 1, GM_COPY_DEFAULT, 0);
    FAILS(copy_peer, 1, 0, 2, 1, 1);
    FAILS(copy_peer_async, 1, 0, 2, 1, 1, 0);
    FAILS(set, 1, 0, 1);
    FAILS(set_async, 1, 0, 1, 0);
    FAILS(pointer_info, 1, &info);
    FAILS(peer_can_access, 0, 1, &can);
    FAILS(peer_enable, 0, 1);
    FAILS(peer_enabled, 0, 1, &can);
    FAILS(mem_prefetch, 1, 1, 0, 0);
    FAILS(mem_advise, 1, 1, 0, 0);
    return slots;
}

static size_t
fail_streams_and_events(const gm_backend *b)
{
    size_t slots = 0;
    uintptr_t handle = 7;
    uint64_t id = 7;
    float ms = 7.0f;
    unsigned flags = 7;
    int priority = 7;
    FAILS(stream_create, 0, 0, 0, &handle);
    FAILS(stream_destroy, 1);
    FAILS(stream_query, 1);
    FAILS(stream_synchronize, 1);
    FAILS(stream_wait_event, 1, 2);
    FAILS(stream_id, 1, &id);
    FAILS(stream_priority_range, 0, &priority, &priority);
    FAILS(stream_info, 1, &flags, &priority, &priority);
    FAILS(event_create, 0, 0, &handle);
    FAILS(event_destroy, 1);
    FAILS(event_record, 1, 2);
    FAILS(event_query, 1);
    FAILS(event_synchronize, 1);
    FAILS(event_elapsed, 1, 2, &ms);
    return slots;
}

static size_t
fail_graphs(const gm_backend *b)
{
    size_t slots = 0;
    uintptr_t handle = 7;
    gm_capture_state capture = GM_CAPTURE_NONE;
    uint64_t number = 0;
    FAILS(stream_capture, 1, &capture, &number);
    FAILS(capture_begin, 1, GM_CAPTURE_MODE_RELAXED);
    FAILS(capture_end, 1, &handle);
    FAILS(graph_instantiate, 1, &handle);
    FAILS(graph_launch, 1, 2);
    FAILS(graph_upload, 1, 2);
    FAILS(graph_debug_dot, 1, "unused", 0);
    FAILS(graph_destroy, 1);
    FAILS(graph_exec_destroy, 1);
    return slots;
}

static size_t
fail_virtual_memory_and_ipc(const gm_backend *b)
{
    size_t slots = 0, bytes = 7;
    uintptr_t ptr = 7;
    uint64_t id = 7;
    gm_ipc_handle ipc = {{0}};
    FAILS(vm_granularity, 0, &bytes);
    FAILS(vm_reserve, 1, &ptr);
    FAILS(vm_unreserve, 1, 1);
    FAILS(vm_create, 0, 1, &id);
    FAILS(vm_release, 1);
    FAILS(vm_map, 1, 1, 1);
    FAILS(vm_unmap, 1, 1);
    FAILS(vm_set_access, 1, 1, 0);
    FAILS(ipc_export, 1, &ipc);
    FAILS(ipc_open, 0, &ipc, &ptr);
    FAILS(ipc_close, 1);
    return slots;
}

#undef FAILS

TEST(fault_knows_every_slot)
{
    pair p = open_pair();
    size_t slots = fail_devices_and_memory(p.b) + fail_streams_and_events(p.b) +
                   fail_graphs(p.b) + fail_virtual_memory_and_ipc(p.b);
    // All but name, self, close, last_error, the two texts and device_pop.
    size_t pointers = (sizeof *p.b - offsetof(gm_backend, name)) / sizeof(void *);
    CHECK_EQ(slots, pointers - 7);
    close_pair(p);
}

/* ---- threads and forks ---- */

static void *
call_often(void *arg)
{
    const gm_backend *b = arg;
    int device = 0;
    uint64_t failures = 0;
    for (int i = 0; i < 1000; i++) {
        failures += gm_backend_device_get(b, &device) != GM_OK;
    }
    return (void *)(uintptr_t)failures;
}

TEST(fault_counts_exactly_with_threads)
{
    enum {
        THREADS = 8
    };
    pair p = open_pair();
    pthread_t threads[THREADS];
    uint64_t failures = 0;
    CHECK_EQ(gm_fault_plan(p.b, "device_get", 1001, 3000, GM_ERR_LIMIT), GM_OK);
    for (size_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, call_often, p.b), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        void *result = NULL;
        CHECK_EQ(pthread_join(threads[i], &result), 0);
        failures += (uintptr_t)result;
    }
    CHECK_EQ(failures, 3000);
    check_counts(p.b, 8000, 3000);
    close_pair(p);
}

typedef struct endless {
    pair p;
    atomic_bool stop;
} endless;

/* Holds the locks of wrapper and device as often as it can. */
static void *
call_without_end(void *arg)
{
    endless *e = arg;
    size_t bytes = 0;
    uint64_t count = 0;
    while (!atomic_load(&e->stop)) {
        CHECK_EQ(gm_backend_mem_info(e->p.b, 0, &bytes, &bytes), GM_OK);
        gm_fault_counts(e->p.b, &count, &count);
    }
    return NULL;
}

/* Everything that would take a lock, in a child. */
static void
call_in_child(pair p)
{
    size_t bytes = 7;
    gm_sim_call call;
    CHECK_EQ(gm_backend_mem_info(p.b, 0, &bytes, &bytes), GM_ERR_FORKED);
    CHECK_EQ(bytes, 7);
    CHECK_EQ(gm_fault_plan(p.b, "mem_info", 1, 1, GM_ERR_LIMIT), GM_ERR_FORKED);
    check_counts(p.b, 0, 0);
    gm_fault_clear(p.b);
    check_ledger_is_empty(p.sim);
    gm_sim_log_start(p.sim);
    CHECK_EQ(gm_sim_log_count(p.sim), 0);
    CHECK(!gm_sim_log_get(p.sim, 0, &call));
    gm_sim_log_stop(p.sim);
    gm_backend_close(p.b);
    gm_backend_close(p.sim);
}

/* A lock that another thread held at the fork is held in the child for ever. */
TEST(fault_waits_for_no_lock_in_a_forked_child)
{
    if (harness_under_valgrind()) {
        SKIP("valgrind does not know that a fork can unmap");
    }
    endless e = {.p = open_pair()};
    uintptr_t ptr = take(e.p.b, GM_MEM_DEVICE, 512);
    pthread_t thread;
    gm_process_opened();
    CHECK_EQ(gm_fault_plan(e.p.b, "mem_info", UINT64_MAX, 1, GM_ERR_LIMIT), GM_OK);
    CHECK_EQ(pthread_create(&thread, NULL, call_without_end, &e), 0);
    for (int i = 0; i < 300 / harness_slowness(); i++) {
        int status = -1;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            (void)alarm(20);
            call_in_child(e.p);
            _exit(0);
        }
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
    }
    atomic_store(&e.stop, true);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    give(e.p.b, GM_MEM_DEVICE, ptr);
    close_pair(e.p);
}

/* ---- opening ---- */

static bool
fail_always(void *context, size_t size)
{
    (void)context;
    (void)size;
    return true;
}

TEST(fault_needs_host_memory_to_open)
{
    pair p = open_pair();
    gm_backend *b = NULL;
    gm_host_set_fault(fail_always, NULL);
    CHECK_EQ(gm_backend_fault_open(p.sim, &b), GM_ERR_HOST_MEMORY);
    gm_host_set_fault(NULL, NULL);
    CHECK(b == NULL);
    close_pair(p);
}
