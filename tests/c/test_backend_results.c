/* SPDX-License-Identifier: MIT
 *
 * What becomes of the results of each slot of a backend: handed on as they are, left
 * out by a backend that says it succeeded, or scribbled over by one that failed. Every
 * wrapper with a result is asked, over a backend that does the same in all slots.
 */
#include "harness.h"

#include "core/gm_backend.h"

#include <string.h>

/* What every slot does: whether it writes its results, and what it returns. */
typedef struct manner {
    bool writes;
    gm_status status;
} manner;

enum {
    WRITTEN = 99,  // by a slot that writes
    ADDRESSES = 9, // how many slots give an address, which is never 0
};

#define WRITE(out)                                                                     \
    do {                                                                               \
        if (((manner *)self)->writes) {                                                \
            *(out) = WRITTEN;                                                          \
        }                                                                              \
    } while (0)

#define ANSWER (((manner *)self)->status)

static gm_status
give_int(void *self, int *out)
{
    WRITE(out);
    return ANSWER;
}

static gm_status
give_mark(void *self, int device, gm_device_mark *mark)
{
    (void)device;
    WRITE(&mark->before);
    return ANSWER;
}

static gm_status
give_two_ints(void *self, int *one, int *two)
{
    WRITE(one);
    WRITE(two);
    return ANSWER;
}

static gm_status
give_ints_of_device(void *self, int device, int *one, int *two)
{
    (void)device;
    return give_two_ints(self, one, two);
}

static gm_status
give_support(void *self, int device, unsigned *out)
{
    (void)device;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_incarnation(void *self, int device, uint64_t *out)
{
    (void)device;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes)
{
    (void)device;
    WRITE(free_bytes);
    WRITE(total_bytes);
    return ANSWER;
}

static gm_status
give_largest(void *self, int device, const gm_range *back, size_t count, size_t *out)
{
    (void)device;
    (void)back;
    (void)count;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_memory(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    (void)device;
    (void)kind;
    (void)size;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_memory_async(void *self, int device, size_t size, gm_stream stream, uintptr_t *out)
{
    (void)device;
    (void)size;
    (void)stream;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_mem_pool(void *self, int device, bool original, gm_mem_pool *out)
{
    (void)device;
    (void)original;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_field(void *self, gm_mem_pool pool, gm_mem_pool_field field, uint64_t *out)
{
    (void)pool;
    (void)field;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_stream(void *self, int device, unsigned flags, int priority, gm_stream *out)
{
    (void)device;
    (void)flags;
    (void)priority;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_of_handle(void *self, uintptr_t handle, uintptr_t *out)
{
    (void)handle;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_id(void *self, gm_stream stream, uint64_t *out)
{
    (void)stream;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_stream_info(
    void *self, gm_stream stream, unsigned *flags, int *priority, int *device)
{
    (void)stream;
    WRITE(flags);
    WRITE(priority);
    WRITE(device);
    return ANSWER;
}

/* Says that the stream is being recorded in any case. */
static gm_status
give_capture(void *self, gm_stream stream, gm_capture_state *state, uint64_t *id)
{
    (void)stream;
    *state = GM_CAPTURE_ACTIVE;
    WRITE(id);
    return ANSWER;
}

static gm_status
give_event(void *self, int device, unsigned flags, gm_event *out)
{
    (void)device;
    (void)flags;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_elapsed(void *self, gm_event start, gm_event end, float *ms)
{
    (void)start;
    (void)end;
    WRITE(ms);
    return ANSWER;
}

static gm_status
give_pointer_info(void *self, uintptr_t ptr, gm_pointer_info *info)
{
    (void)ptr;
    WRITE(&info->device);
    WRITE(&info->base);
    WRITE(&info->size);
    return ANSWER;
}

static gm_status
give_can(void *self, int device, int peer, bool *can)
{
    (void)device;
    (void)peer;
    WRITE(can);
    return ANSWER;
}

static gm_status
give_granularity(void *self, int device, size_t *bytes)
{
    (void)device;
    WRITE(bytes);
    return ANSWER;
}

static gm_status
give_range(void *self, size_t size, uintptr_t *out)
{
    (void)size;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_handle(void *self, int device, size_t size, gm_handle *out)
{
    (void)device;
    (void)size;
    WRITE(out);
    return ANSWER;
}

static gm_status
give_ipc(void *self, uintptr_t ptr, gm_ipc_handle *out)
{
    (void)ptr;
    WRITE(&out->bytes[0]);
    return ANSWER;
}

static gm_status
give_opened(void *self, int device, const gm_ipc_handle *handle, uintptr_t *out)
{
    (void)device;
    (void)handle;
    WRITE(out);
    return ANSWER;
}

static gm_backend
backend_with(manner *m)
{
    return (gm_backend){
        .self = m,
        .device_count = give_int,
        .device_get = give_int,
        .device_push = give_mark,
        .versions = give_two_ints,
        .device_support = give_support,
        .device_incarnation = give_incarnation,
        .mem_info = give_mem_info,
        .mem_largest = give_largest,
        .mem_alloc = give_memory,
        .mem_alloc_async = give_memory_async,
        .mem_pool_get = give_mem_pool,
        .mem_pool_read = give_field,
        .stream_create = give_stream,
        .stream_id = give_id,
        .stream_priority_range = give_ints_of_device,
        .stream_info = give_stream_info,
        .stream_capture = give_capture,
        .capture_end = give_of_handle,
        .graph_instantiate = give_of_handle,
        .event_create = give_event,
        .event_elapsed = give_elapsed,
        .pointer_info = give_pointer_info,
        .peer_can_access = give_can,
        .vm_granularity = give_granularity,
        .vm_reserve = give_range,
        .vm_create = give_handle,
        .ipc_export = give_ipc,
        .ipc_open = give_opened,
    };
}

/* ---- what comes back ---- */

typedef struct results {
    int count, device, driver, runtime, least, most, priority, of;
    unsigned support, flags;
    uint64_t incarnation, id, recording, field;
    size_t free_bytes, total_bytes, largest, granularity;
    uintptr_t addresses[ADDRESSES];
    gm_handle handle;
    gm_capture_state state;
    float ms;
    gm_pointer_info info;
    gm_ipc_handle ipc;
    bool can;
} results;

/* Asks every wrapper that gives an address or a handle of what it made. */
static void
ask_for_addresses(const gm_backend *b, results *r, gm_status expected)
{
    uintptr_t *out = r->addresses;
    int i = 0;

    CHECK_EQ(gm_backend_mem_alloc(b, 0, GM_MEM_DEVICE, 1, &out[i++]), expected);
    CHECK_EQ(gm_backend_mem_alloc_async(b, 0, 1, 0, &out[i++]), expected);
    CHECK_EQ(gm_backend_mem_pool_get(b, 0, true, &out[i++]), expected);
    CHECK_EQ(gm_backend_stream_create(b, 0, 0, 0, &out[i++]), expected);
    CHECK_EQ(gm_backend_capture_end(b, 64, &out[i++]), expected);
    CHECK_EQ(gm_backend_graph_instantiate(b, 64, &out[i++]), expected);
    CHECK_EQ(gm_backend_event_create(b, 0, 0, &out[i++]), expected);
    CHECK_EQ(gm_backend_vm_reserve(b, 1, &out[i++]), expected);
    CHECK_EQ(gm_backend_ipc_open(b, 0, &r->ipc, &out[i++]), expected);
    CHECK_EQ(i, ADDRESSES);
    CHECK_EQ(gm_backend_vm_granularity(b, 0, &r->granularity), expected);
}

/* Asks all the others. */
static void
ask_for_figures(const gm_backend *b, results *r, gm_status expected)
{
    CHECK_EQ(gm_backend_device_count(b, &r->count), expected);
    CHECK_EQ(gm_backend_device_get(b, &r->device), expected);
    CHECK_EQ(gm_backend_versions(b, &r->driver, &r->runtime), expected);
    CHECK_EQ(gm_backend_device_support(b, 0, &r->support), expected);
    CHECK_EQ(gm_backend_device_incarnation(b, 0, &r->incarnation), expected);
    CHECK_EQ(gm_backend_mem_info(b, 0, &r->free_bytes, &r->total_bytes), expected);
    CHECK_EQ(gm_backend_mem_largest(b, 0, NULL, 0, &r->largest), expected);
    CHECK_EQ(gm_backend_mem_pool_read(b, 64, GM_MEM_POOL_USED, &r->field), expected);
    CHECK_EQ(gm_backend_stream_id(b, 64, &r->id), expected);
    CHECK_EQ(gm_backend_stream_priority_range(b, 0, &r->least, &r->most), expected);
    CHECK_EQ(gm_backend_stream_info(b, 64, &r->flags, &r->priority, &r->of), expected);
    CHECK_EQ(gm_backend_stream_capture(b, 64, &r->state, &r->recording), expected);
    CHECK_EQ(gm_backend_event_elapsed(b, 1, 2, &r->ms), expected);
    CHECK_EQ(gm_backend_pointer_info(b, 4096, &r->info), expected);
    CHECK_EQ(gm_backend_peer_can_access(b, 0, 1, &r->can), expected);
    CHECK_EQ(gm_backend_vm_create(b, 0, 1, &r->handle), expected);
    CHECK_EQ(gm_backend_ipc_export(b, 4096, &r->ipc), expected);
}

static void
check_addresses(const results *r, uintptr_t expected)
{
    for (int i = 0; i < ADDRESSES; i++) {
        CHECK_EQ(r->addresses[i], expected);
    }
    CHECK_EQ(r->granularity, expected);
}

static void
check_figures(const results *r, int expected)
{
    const int ints[] = {r->count, r->device, r->driver,   r->runtime,
                        r->least, r->most,   r->priority, r->ipc.bytes[0]};
    const uint64_t numbers[] = {r->support,     r->flags,  r->incarnation, r->id,
                                r->recording,   r->field,  r->free_bytes,  r->largest,
                                r->total_bytes, r->handle, r->info.base,   r->info.size,
                                (uint64_t)r->ms};

    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        CHECK_EQ(ints[i], expected);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        CHECK_EQ(numbers[i], expected);
    }
}

TEST(backend_results_are_handed_on)
{
    manner m = {.writes = true, .status = GM_OK};
    gm_backend b = backend_with(&m);
    gm_device_mark mark = {0};
    results r = {0};

    ask_for_addresses(&b, &r, GM_OK);
    check_addresses(&r, WRITTEN);
    ask_for_figures(&b, &r, GM_OK);
    check_figures(&r, WRITTEN);
    CHECK_EQ(r.state, GM_CAPTURE_ACTIVE);
    CHECK_EQ(r.info.device, WRITTEN);
    CHECK_EQ(r.of, WRITTEN);
    CHECK(r.can);
    CHECK_EQ(gm_backend_device_push(&b, 0, &mark), GM_OK);
    CHECK(mark.pushed && mark.before == WRITTEN);
}

/* A device of 0, none of an address, and an address of nobody's: never what was left on
 * the stack. */
TEST(backend_results_that_a_backend_leaves_out_are_none)
{
    manner m = {.writes = false, .status = GM_OK};
    gm_backend b = backend_with(&m);
    gm_device_mark mark;
    results r;

    memset(&r, 7, sizeof r);
    memset(r.addresses, 0, sizeof r.addresses);
    r.granularity = 0;
    ask_for_addresses(&b, &r, GM_ERR_INTERNAL);
    check_addresses(&r, 0);
    ask_for_figures(&b, &r, GM_OK);
    check_figures(&r, 0);
    CHECK_EQ(r.info.device, -1);
    CHECK_EQ(r.of, -1);
    CHECK(!r.can);
    memset(&mark, 7, sizeof mark);
    CHECK_EQ(gm_backend_device_push(&b, 0, &mark), GM_OK);
    CHECK(mark.pushed && mark.before == 0);
    b.mem_largest = NULL; // then what is free
    r.largest = 7;
    CHECK_EQ(gm_backend_mem_largest(&b, 0, NULL, 0, &r.largest), GM_OK);
    CHECK_EQ(r.largest, 0);
}

TEST(backend_results_of_every_slot_are_untouched_by_failure)
{
    manner m = {.writes = true, .status = GM_DEVICE_ERROR(999)};
    gm_backend b = backend_with(&m);
    results before, r;

    memset(&before, 7, sizeof before);
    before.can = false;
    memcpy(&r, &before, sizeof r);
    ask_for_addresses(&b, &r, GM_DEVICE_ERROR(999));
    ask_for_figures(&b, &r, GM_DEVICE_ERROR(999));
    CHECK(memcmp(&r, &before, sizeof r) == 0);
}
