/* SPDX-License-Identifier: MIT
 *
 * The simulated device on a host without memory: whichever of its own allocations
 * fails, the call says so, nothing is lost, and giving back works.
 */
#include "device.h"

#include "core/gm_process.h"

typedef struct countdown {
    int left; // allocations that still succeed
} countdown;

static bool
fail_when_down(void *context, size_t size)
{
    (void)size;
    countdown *count = context;
    return count->left-- == 0;
}

/* The first of two failures. */
static gm_status
first_of(gm_status first, gm_status second)
{
    return first != GM_OK ? first : second;
}

/* Plain memory, streams and events. */
static gm_status
use_queues(const gm_backend *b)
{
    uintptr_t ptr = 0;
    gm_stream stream = 0;
    gm_event event = 0;
    const gm_status statuses[] = {
        gm_backend_device_set(b, 0),
        gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 1000, &ptr),
        gm_backend_stream_create(b, 0, 0, 0, &stream),
        gm_backend_event_create(b, 0, 0, &event),
        ptr == 0 ? GM_OK : gm_backend_set(b, ptr, 1, 1000),
        ptr == 0 ? GM_OK : gm_backend_set_async(b, ptr, 1, 1000, GM_STREAM_PER_THREAD),
        event == 0 ? GM_OK : gm_backend_event_record(b, event, stream),
        event == 0 ? GM_OK : gm_backend_stream_wait_event(b, stream, event),
    };
    gm_status first = GM_OK;
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        first = first_of(first, statuses[i]);
    }
    // Giving back needs no memory.
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    if (event != 0) {
        CHECK_EQ(gm_backend_event_destroy(b, event), GM_OK);
    }
    if (stream != 0) {
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
    if (ptr != 0) {
        CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, ptr), GM_OK);
    }
    return first;
}

/* Stream-ordered memory, cut and given back to its pool. */
static gm_status
use_pool(const gm_backend *b)
{
    uintptr_t ptrs[2] = {0, 0};
    gm_status first = gm_backend_mem_alloc_async(b, 0, 4096, 0, &ptrs[0]);
    if (ptrs[0] != 0) {
        gm_status status = gm_backend_mem_free_async(b, 0, ptrs[0], 0);
        first = first_of(first, status);
        ptrs[0] = status == GM_OK ? 0 : ptrs[0];
    }
    first = first_of(first, gm_backend_mem_alloc_async(b, 0, 512, 0, &ptrs[1]));
    for (size_t i = 0; i < 2; i++) {
        if (ptrs[i] != 0) {
            CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, ptrs[i]), GM_OK);
        }
    }
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    return first;
}

/* A recording that becomes a graph. Whatever fails, it is over afterwards. */
static gm_status
use_graph(const gm_backend *b)
{
    uintptr_t ptr = 0;
    gm_stream stream = 0;
    gm_graph graph = 0;
    gm_graph_exec exec = 0;
    gm_status first = gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 512, &ptr);
    first = first_of(first, gm_backend_stream_create(b, 0, 0, 0, &stream));
    if (first == GM_OK && (first = gm_backend_capture_begin(
                               b, stream, GM_CAPTURE_MODE_RELAXED)) == GM_OK) {
        for (int i = 0; i < 20; i++) {
            first = first_of(first, gm_backend_set_async(b, ptr, i, 512, stream));
        }
        first = first_of(first, gm_backend_capture_end(b, stream, &graph));
    }
    if (graph != 0) {
        first = first_of(first, gm_backend_graph_instantiate(b, graph, &exec));
        CHECK_EQ(gm_backend_graph_destroy(b, graph), GM_OK);
    }
    if (exec != 0) {
        first = first_of(first, gm_backend_graph_launch(b, exec, stream));
        CHECK_EQ(gm_backend_graph_exec_destroy(b, exec), GM_OK);
    }
    if (stream != 0) {
        CHECK_EQ(gm_backend_stream_destroy(b, stream), GM_OK);
    }
    CHECK_EQ(gm_backend_device_synchronize(b, 0), GM_OK);
    if (ptr != 0) {
        CHECK_EQ(gm_backend_mem_free(b, 0, GM_MEM_DEVICE, ptr), GM_OK);
    }
    return first;
}

/* Work that allocates host memory in every way the device does. Whatever fails, fails
 * cleanly: the rest goes on, and is given back at the end. */
static gm_status
use_everything(void)
{
    const gm_sim_options options = {.devices = 2, .memory = 2 * MIB};
    gm_backend *b = NULL;
    gm_status first = gm_backend_sim_open(&options, &b);
    if (first != GM_OK) {
        return first;
    }
    gm_sim_log_start(b);
    first = use_queues(b);
    first = first_of(first, use_pool(b));
    first = first_of(first, use_graph(b));
    check_ledger_is_empty(b);
    CHECK_EQ(read_ledger(b).errors, 0);
    gm_backend_close(b);
    return first;
}

TEST(sim_survives_a_host_without_memory)
{
    int failed = 0;
    for (int n = 0;; n++) {
        countdown count = {.left = n};
        harness_note("host allocation %d", n);
        gm_host_set_fault(fail_when_down, &count);
        gm_status status = use_everything();
        gm_host_set_fault(NULL, NULL);
        if (count.left >= 0) { // nothing was made to fail any more
            CHECK_EQ(status, GM_OK);
            break;
        }
        // A log entry alone may be lost in silence.
        CHECK(status == GM_ERR_HOST_MEMORY || status == GM_OK);
        failed += status == GM_ERR_HOST_MEMORY;
    }
    CHECK(failed > 20); // the loop reached the device's inside
}
