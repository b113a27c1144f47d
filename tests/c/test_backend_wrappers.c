/* SPDX-License-Identifier: MIT
 *
 * The gm_backend_* wrappers, over a backend that breaks its promises: it scribbles on
 * out-parameters and then fails, succeeds with null addresses, and lacks every optional
 * slot.
 */
#include "harness.h"

#include "core/gm_backend.h"

#include <string.h>

/* What every slot of the bad backend returns, and how often one was reached. */
typedef struct bad_state {
    gm_status status;
    uintptr_t address; // for slots that give one
    int calls;
} bad_state;

static gm_status
answer(void *self)
{
    bad_state *bad = self;
    bad->calls++;
    return bad->status;
}

static const char *
bad_text(void *self, int code)
{
    (void)self;
    (void)code;
    return "text";
}

static gm_status
bad_int_out(void *self, int *out)
{
    *out = 99;
    return answer(self);
}

static gm_status
bad_int(void *self, int value)
{
    (void)value;
    return answer(self);
}

static gm_status
bad_push(void *self, int device, gm_device_mark *mark)
{
    (void)device;
    mark->pushed = true;
    mark->before = 7;
    return answer(self);
}

static void
bad_pop(void *self, const gm_device_mark *mark)
{
    (void)mark;
    (void)answer(self);
}

static gm_status
bad_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes)
{
    (void)device;
    *free_bytes = *total_bytes = 99;
    return answer(self);
}

static gm_status
bad_mem_alloc(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    (void)device;
    (void)kind;
    (void)size;
    *out = ((bad_state *)self)->address;
    return answer(self);
}

static gm_status
bad_mem_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr)
{
    (void)device;
    (void)kind;
    (void)ptr;
    return answer(self);
}

static gm_status
bad_copy(void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind)
{
    (void)dst;
    (void)src;
    (void)size;
    (void)kind;
    return answer(self);
}

static gm_status
bad_copy_async(void *self,
               uintptr_t dst,
               uintptr_t src,
               size_t size,
               gm_copy_kind kind,
               gm_stream stream)
{
    (void)stream;
    return bad_copy(self, dst, src, size, kind);
}

static gm_status
bad_set(void *self, uintptr_t dst, int value, size_t size)
{
    (void)dst;
    (void)value;
    (void)size;
    return answer(self);
}

static gm_status
bad_set_async(void *self, uintptr_t dst, int value, size_t size, gm_stream stream)
{
    (void)stream;
    return bad_set(self, dst, value, size);
}

static gm_status
bad_stream_create(void *self, int device, unsigned flags, int priority, gm_stream *out)
{
    (void)device;
    (void)flags;
    (void)priority;
    *out = ((bad_state *)self)->address;
    return answer(self);
}

static gm_status
bad_handle(void *self, uintptr_t handle)
{
    (void)handle;
    return answer(self);
}

static gm_status
bad_two_handles(void *self, uintptr_t one, uintptr_t two)
{
    (void)one;
    (void)two;
    return answer(self);
}

static gm_status
bad_stream_id(void *self, gm_stream stream, uint64_t *id)
{
    (void)stream;
    *id = 99;
    return answer(self);
}

static gm_status
bad_event_create(void *self, int device, unsigned flags, gm_event *out)
{
    (void)device;
    (void)flags;
    *out = ((bad_state *)self)->address;
    return answer(self);
}

/* Required slots alone. */
static gm_backend
bad_backend(bad_state *state)
{
    return (gm_backend){
        .api_version = GM_BACKEND_API_VERSION,
        .name = "bad",
        .self = state,
        .error_name = bad_text,
        .error_text = bad_text,
        .device_count = bad_int_out,
        .device_get = bad_int_out,
        .device_set = bad_int,
        .device_push = bad_push,
        .device_pop = bad_pop,
        .device_synchronize = bad_int,
        .mem_info = bad_mem_info,
        .mem_alloc = bad_mem_alloc,
        .mem_free = bad_mem_free,
        .copy = bad_copy,
        .copy_async = bad_copy_async,
        .set = bad_set,
        .set_async = bad_set_async,
        .stream_create = bad_stream_create,
        .stream_destroy = bad_handle,
        .stream_query = bad_handle,
        .stream_synchronize = bad_handle,
        .stream_wait_event = bad_two_handles,
        .stream_id = bad_stream_id,
        .event_create = bad_event_create,
        .event_destroy = bad_handle,
        .event_record = bad_two_handles,
        .event_query = bad_handle,
        .event_synchronize = bad_handle,
    };
}

TEST(backend_validate_finds_each_missing_slot)
{
    bad_state state = {0};
    gm_backend b = bad_backend(&state);
    CHECK_EQ(gm_backend_validate(&b), GM_OK);
    b.api_version++;
    CHECK_EQ(gm_backend_validate(&b), GM_ERR_UNSUPPORTED);
    b = bad_backend(&state);
    b.name = NULL;
    CHECK_EQ(gm_backend_validate(&b), GM_ERR_INVALID_VALUE);
    b = bad_backend(&state);

    // Every pointer behind `self` that is set is a required slot: without it, invalid.
    int required = 0;
    for (size_t at = offsetof(gm_backend, close); at < sizeof b; at += sizeof(void *)) {
        void *slot = NULL, *none = NULL;
        memcpy(&slot, (char *)&b + at, sizeof slot);
        if (slot != NULL) {
            required++;
            memcpy((char *)&b + at, &none, sizeof none);
            CHECK_EQ(gm_backend_validate(&b), GM_ERR_INVALID_VALUE);
            memcpy((char *)&b + at, &slot, sizeof slot);
        }
    }
    CHECK_EQ(required, 26);
}

TEST(backend_results_are_untouched_by_failure)
{
    bad_state state = {.status = GM_DEVICE_ERROR(999), .address = 99};
    gm_backend b = bad_backend(&state);
    int number = 7;
    size_t free_bytes = 7, total_bytes = 7;
    uintptr_t out = 7;
    uint64_t id = 7;
    CHECK_EQ(gm_backend_device_count(&b, &number), GM_DEVICE_ERROR(999));
    CHECK_EQ(gm_backend_device_get(&b, &number), GM_DEVICE_ERROR(999));
    CHECK_EQ(gm_backend_mem_info(&b, 0, &free_bytes, &total_bytes),
             GM_DEVICE_ERROR(999));
    CHECK_EQ(gm_backend_mem_alloc(&b, 0, GM_MEM_DEVICE, 1, &out), GM_DEVICE_ERROR(999));
    CHECK_EQ(gm_backend_stream_create(&b, 0, 0, 0, &out), GM_DEVICE_ERROR(999));
    CHECK_EQ(gm_backend_event_create(&b, 0, 0, &out), GM_DEVICE_ERROR(999));
    CHECK_EQ(gm_backend_stream_id(&b, 1, &id), GM_DEVICE_ERROR(999));
    CHECK_EQ(state.calls, 7);
    CHECK_EQ(number, 7);
    CHECK_EQ(free_bytes, 7);
    CHECK_EQ(total_bytes, 7);
    CHECK_EQ(out, 7);
    CHECK_EQ(id, 7);

    state.status = GM_OK;
    CHECK_EQ(gm_backend_device_count(&b, &number), GM_OK);
    CHECK_EQ(number, 99);
    CHECK_EQ(gm_backend_mem_alloc(&b, 0, GM_MEM_DEVICE, 1, &out), GM_OK);
    CHECK_EQ(out, 99);
}

/* A push that failed left a mark of nothing, and popping that reaches no slot. */
TEST(backend_pop_is_for_a_push_that_succeeded)
{
    bad_state state = {.status = GM_DEVICE_ERROR(999)};
    gm_backend b = bad_backend(&state);
    gm_device_mark mark = {.pushed = true};
    CHECK_EQ(gm_backend_device_push(&b, 0, &mark), GM_DEVICE_ERROR(999));
    gm_backend_device_pop(&b, &mark);
    CHECK_EQ(state.calls, 1);
    CHECK(!mark.pushed && mark.before == 0);

    state.status = GM_OK;
    CHECK_EQ(gm_backend_device_push(&b, 0, &mark), GM_OK);
    CHECK(mark.pushed && mark.before == 7);
    gm_backend_device_pop(&b, &mark);
    CHECK_EQ(state.calls, 3);
}

TEST(backend_null_results_are_an_internal_error)
{
    bad_state state = {.status = GM_OK, .address = 0};
    gm_backend b = bad_backend(&state);
    uintptr_t out = 7;
    CHECK_EQ(gm_backend_mem_alloc(&b, 0, GM_MEM_DEVICE, 1, &out), GM_ERR_INTERNAL);
    CHECK_EQ(gm_backend_stream_create(&b, 0, 0, 0, &out), GM_ERR_INTERNAL);
    CHECK_EQ(gm_backend_event_create(&b, 0, 0, &out), GM_ERR_INTERNAL);
    CHECK_EQ(out, 7);
}

TEST(backend_size_zero_does_not_reach_the_slot)
{
    bad_state state = {.status = GM_OK, .address = 99};
    gm_backend b = bad_backend(&state);
    uintptr_t out = 7;
    gm_handle handle = 7;
    CHECK_EQ(gm_backend_mem_alloc(&b, 0, GM_MEM_DEVICE, 0, &out), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_alloc_async(&b, 0, 0, 0, &out), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_copy(&b, 1, 2, 0, GM_COPY_DEFAULT), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_copy_async(&b, 1, 2, 0, GM_COPY_DEFAULT, 0),
             GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_copy_peer(&b, 1, 0, 2, 1, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_copy_peer_async(&b, 1, 0, 2, 1, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_set(&b, 1, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_set_async(&b, 1, 0, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_prefetch(&b, 1, 0, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_mem_advise(&b, 1, 0, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_vm_reserve(&b, 0, &out), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_vm_create(&b, 0, 0, &handle), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_vm_map(&b, 1, 0, 1), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_vm_unmap(&b, 1, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_vm_set_access(&b, 1, 0, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(state.calls, 0);
    CHECK_EQ(out, 7);
    CHECK_EQ(handle, 7);
}

TEST(backend_missing_slots_have_their_defaults)
{
    bad_state state = {.status = GM_OK};
    gm_backend b = bad_backend(&state);
    int driver = 7, runtime = 7;
    int least = 7, most = 7, priority = 7;
    unsigned support = 7, flags = 7;
    char text[8] = "xxxxxxx", shorter[3] = "";
    gm_capture_state capture = GM_CAPTURE_ACTIVE;
    uint64_t number = 1;
    bool can = true;
    bool enabled = true;
    const gm_range back[] = {{512, 1024}, {4096, 512}};
    size_t bytes = 7;
    CHECK_EQ(gm_backend_mem_largest(&b, 0, back, 2, &bytes), GM_OK);
    CHECK_EQ(bytes, 99 + 1024 + 512);
    CHECK_EQ(gm_backend_last_error(&b), 0);
    CHECK_EQ(gm_backend_versions(&b, &driver, &runtime), GM_OK);
    CHECK_EQ(driver, 0);
    CHECK_EQ(runtime, 0);
    CHECK_EQ(gm_backend_device_name(&b, 0, text, sizeof text), GM_OK);
    CHECK(memcmp(text, "bad\0xxx", sizeof text) == 0); // and not a byte more
    CHECK_EQ(gm_backend_device_name(&b, 0, shorter, sizeof shorter), GM_OK);
    CHECK(strcmp(shorter, "ba") == 0);
    CHECK_EQ(gm_backend_device_name(&b, 0, text, 0), GM_ERR_INVALID_VALUE);
    CHECK_EQ(gm_backend_stream_capture(&b, 0, &capture, &number), GM_OK);
    CHECK_EQ(capture, GM_CAPTURE_NONE);
    CHECK_EQ(number, 0);
    number = 7;
    CHECK_EQ(gm_backend_device_incarnation(&b, 0, &number), GM_OK);
    CHECK_EQ(number, 0);
    CHECK_EQ(gm_backend_device_support(&b, 0, &support), GM_OK);
    CHECK_EQ(support, 0);
    int device = 7;
    CHECK_EQ(gm_backend_stream_priority_range(&b, 0, &least, &most), GM_OK);
    CHECK_EQ(least, 0);
    CHECK_EQ(most, 0);
    CHECK_EQ(gm_backend_stream_info(&b, 64, &flags, &priority, &device), GM_OK);
    CHECK_EQ(flags, 0);
    CHECK_EQ(priority, 0);
    CHECK_EQ(device, -1);
    CHECK_EQ(gm_backend_peer_enabled(&b, 0, 1, &enabled), GM_OK);
    CHECK(!enabled);
    CHECK_EQ(gm_backend_peer_can_access(&b, 0, 1, &can), GM_OK);
    CHECK(!can);
    gm_backend_close(&b); // nothing to do, and nothing is done
}

TEST(backend_missing_slots_are_unsupported)
{
    bad_state state = {.status = GM_OK};
    gm_backend b = bad_backend(&state);
    const gm_status no = GM_ERR_UNSUPPORTED;
    uintptr_t out = 7;
    size_t bytes = 7;
    gm_handle handle = 7;
    float ms = 7.0f;
    gm_pointer_info info = {.size = 7};
    gm_ipc_handle ipc = {{7}};
    CHECK_EQ(gm_backend_mem_alloc_async(&b, 0, 1, 0, &out), no);
    CHECK_EQ(gm_backend_mem_free_async(&b, 0, 1, 0), no);
    CHECK_EQ(gm_backend_copy_peer(&b, 1, 0, 2, 1, 1), no);
    CHECK_EQ(gm_backend_copy_peer_async(&b, 1, 0, 2, 1, 1, 0), no);
    CHECK_EQ(gm_backend_event_elapsed(&b, 1, 2, &ms), no);
    CHECK_EQ(gm_backend_pointer_info(&b, 1, &info), no);
    CHECK_EQ(gm_backend_peer_enable(&b, 0, 1), no);
    CHECK_EQ(gm_backend_mem_prefetch(&b, 1, 1, 0, 0), no);
    CHECK_EQ(gm_backend_mem_advise(&b, 1, 1, 0, 0), no);
    CHECK_EQ(gm_backend_vm_granularity(&b, 0, &bytes), no);
    CHECK_EQ(gm_backend_vm_reserve(&b, 1, &out), no);
    CHECK_EQ(gm_backend_vm_unreserve(&b, 1, 1), no);
    CHECK_EQ(gm_backend_vm_create(&b, 0, 1, &handle), no);
    CHECK_EQ(gm_backend_vm_release(&b, 1), no);
    CHECK_EQ(gm_backend_vm_map(&b, 1, 1, 1), no);
    CHECK_EQ(gm_backend_vm_unmap(&b, 1, 1), no);
    CHECK_EQ(gm_backend_vm_set_access(&b, 1, 1, 0), no);
    CHECK_EQ(gm_backend_ipc_export(&b, 1, &ipc), no);
    CHECK_EQ(gm_backend_ipc_open(&b, 0, &ipc, &out), no);
    CHECK_EQ(gm_backend_ipc_close(&b, 1), no);
    CHECK_EQ(state.calls, 0);
    CHECK_EQ(out, 7);
    CHECK_EQ(bytes, 7);
    CHECK_EQ(handle, 7);
    CHECK_EQ(info.size, 7);
    CHECK_EQ(ipc.bytes[0], 7);
    CHECK(ms == 7.0f);
}
