/* SPDX-License-Identifier: MIT
 *
 * A wrapper around any backend that makes chosen calls fail.
 *
 * It proves error paths: "the third mem_alloc from now runs out of memory", or "the
 * n-th call of whatever slot fails" for n = 1, 2, 3, ... until nothing fails any more.
 * A call that is told to fail does not reach the wrapped backend; so a release that is
 * told to fail (mem_free, stream_destroy) stays undone there.
 *
 * All slots that return a status are in one list below: their functions, their names
 * and the table are made of it. They go through the wrappers of core/gm_backend.h, so
 * a slot that the wrapped backend lacks keeps its default answer.
 *
 * Threading: any thread; one mutex around the plan, released before the wrapped backend
 * is called. In a forked child it is not taken, since another thread may have held it
 * at the fork: nothing is counted there and the plan is over. Cost: one load where
 * there is no plan, else that lock.
 */
#include "backends.h"

#include "../core/gm_process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h> // strcmp()

/* X(slot, its parameters, the arguments of its wrapper on the wrapped backend) */
#define FAULT_SLOTS(X)                                                                 \
    X(device_count, (void *self, int *count), (inner, count))                          \
    X(device_get, (void *self, int *device), (inner, device))                          \
    X(device_set, (void *self, int device), (inner, device))                           \
    X(device_push, (void *self, int device, gm_device_mark *mark),                     \
      (inner, device, mark))                                                           \
    X(device_synchronize, (void *self, int device), (inner, device))                   \
    X(device_name, (void *self, int device, char *text, size_t size),                  \
      (inner, device, text, size))                                                     \
    X(versions, (void *self, int *driver, int *runtime), (inner, driver, runtime))     \
    X(device_support, (void *self, int device, unsigned *support),                     \
      (inner, device, support))                                                        \
    X(device_reset, (void *self, int device), (inner, device))                         \
    X(device_incarnation, (void *self, int device, uint64_t *number),                  \
      (inner, device, number))                                                         \
    X(mem_info, (void *self, int device, size_t *free_bytes, size_t *total_bytes),     \
      (inner, device, free_bytes, total_bytes))                                        \
    X(mem_largest,                                                                     \
      (void *self, int device, const gm_range *back, size_t count, size_t *bytes),     \
      (inner, device, back, count, bytes))                                             \
    X(mem_alloc,                                                                       \
      (void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out),         \
      (inner, device, kind, size, out))                                                \
    X(mem_free, (void *self, int device, gm_mem_kind kind, uintptr_t ptr),             \
      (inner, device, kind, ptr))                                                      \
    X(mem_alloc_async,                                                                 \
      (void *self, int device, size_t size, gm_stream stream, uintptr_t *out),         \
      (inner, device, size, stream, out))                                              \
    X(mem_free_async, (void *self, int device, uintptr_t ptr, gm_stream stream),       \
      (inner, device, ptr, stream))                                                    \
    X(mem_pool_get, (void *self, int device, bool original, gm_mem_pool *out),         \
      (inner, device, original, out))                                                  \
    X(mem_pool_set, (void *self, int device, gm_mem_pool pool), (inner, device, pool)) \
    X(mem_pool_trim, (void *self, gm_mem_pool pool, size_t keep), (inner, pool, keep)) \
    X(mem_pool_read,                                                                   \
      (void *self, gm_mem_pool pool, gm_mem_pool_field field, uint64_t *value),        \
      (inner, pool, field, value))                                                     \
    X(mem_pool_write,                                                                  \
      (void *self, gm_mem_pool pool, gm_mem_pool_field field, uint64_t value),         \
      (inner, pool, field, value))                                                     \
    X(copy,                                                                            \
      (void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind),      \
      (inner, dst, src, size, kind))                                                   \
    X(copy_async,                                                                      \
      (void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind,       \
       gm_stream stream),                                                              \
      (inner, dst, src, size, kind, stream))                                           \
    X(copy_peer,                                                                       \
      (void *self, uintptr_t dst, int dst_device, uintptr_t src, int src_device,       \
       size_t size),                                                                   \
      (inner, dst, dst_device, src, src_device, size))                                 \
    X(copy_peer_async,                                                                 \
      (void *self, uintptr_t dst, int dst_device, uintptr_t src, int src_device,       \
       size_t size, gm_stream stream),                                                 \
      (inner, dst, dst_device, src, src_device, size, stream))                         \
    X(set, (void *self, uintptr_t dst, int value, size_t size),                        \
      (inner, dst, value, size))                                                       \
    X(set_async,                                                                       \
      (void *self, uintptr_t dst, int value, size_t size, gm_stream stream),           \
      (inner, dst, value, size, stream))                                               \
    X(stream_create,                                                                   \
      (void *self, int device, unsigned flags, int priority, gm_stream *out),          \
      (inner, device, flags, priority, out))                                           \
    X(stream_destroy, (void *self, gm_stream stream), (inner, stream))                 \
    X(stream_query, (void *self, gm_stream stream), (inner, stream))                   \
    X(stream_synchronize, (void *self, gm_stream stream), (inner, stream))             \
    X(stream_wait_event, (void *self, gm_stream stream, gm_event event),               \
      (inner, stream, event))                                                          \
    X(stream_id, (void *self, gm_stream stream, uint64_t *id), (inner, stream, id))    \
    X(stream_priority_range, (void *self, int device, int *least, int *most),          \
      (inner, device, least, most))                                                    \
    X(stream_info,                                                                     \
      (void *self, gm_stream stream, unsigned *flags, int *priority, int *device),     \
      (inner, stream, flags, priority, device))                                        \
    X(stream_capture,                                                                  \
      (void *self, gm_stream stream, gm_capture_state *state, uint64_t *id),           \
      (inner, stream, state, id))                                                      \
    X(capture_begin, (void *self, gm_stream stream, gm_capture_mode mode),             \
      (inner, stream, mode))                                                           \
    X(capture_end, (void *self, gm_stream stream, gm_graph *out),                      \
      (inner, stream, out))                                                            \
    X(graph_instantiate, (void *self, gm_graph graph, gm_graph_exec *out),             \
      (inner, graph, out))                                                             \
    X(graph_launch, (void *self, gm_graph_exec exec, gm_stream stream),                \
      (inner, exec, stream))                                                           \
    X(graph_upload, (void *self, gm_graph_exec exec, gm_stream stream),                \
      (inner, exec, stream))                                                           \
    X(graph_debug_dot, (void *self, gm_graph graph, const char *path, unsigned flags), \
      (inner, graph, path, flags))                                                     \
    X(graph_destroy, (void *self, gm_graph graph), (inner, graph))                     \
    X(graph_exec_destroy, (void *self, gm_graph_exec exec), (inner, exec))             \
    X(event_create, (void *self, int device, unsigned flags, gm_event *out),           \
      (inner, device, flags, out))                                                     \
    X(event_destroy, (void *self, gm_event event), (inner, event))                     \
    X(event_record, (void *self, gm_event event, gm_stream stream),                    \
      (inner, event, stream))                                                          \
    X(event_query, (void *self, gm_event event), (inner, event))                       \
    X(event_synchronize, (void *self, gm_event event), (inner, event))                 \
    X(event_elapsed, (void *self, gm_event start, gm_event end, float *ms),            \
      (inner, start, end, ms))                                                         \
    X(pointer_info, (void *self, uintptr_t ptr, gm_pointer_info *info),                \
      (inner, ptr, info))                                                              \
    X(peer_can_access, (void *self, int device, int peer, bool *can),                  \
      (inner, device, peer, can))                                                      \
    X(peer_enable, (void *self, int device, int peer), (inner, device, peer))          \
    X(peer_enabled, (void *self, int device, int peer, bool *enabled),                 \
      (inner, device, peer, enabled))                                                  \
    X(mem_prefetch,                                                                    \
      (void *self, uintptr_t ptr, size_t size, int device, gm_stream stream),          \
      (inner, ptr, size, device, stream))                                              \
    X(mem_advise, (void *self, uintptr_t ptr, size_t size, int advice, int device),    \
      (inner, ptr, size, advice, device))                                              \
    X(vm_granularity, (void *self, int device, size_t *bytes), (inner, device, bytes)) \
    X(vm_reserve, (void *self, size_t size, uintptr_t *out), (inner, size, out))       \
    X(vm_unreserve, (void *self, uintptr_t ptr, size_t size), (inner, ptr, size))      \
    X(vm_create, (void *self, int device, size_t size, gm_handle *out),                \
      (inner, device, size, out))                                                      \
    X(vm_release, (void *self, gm_handle handle), (inner, handle))                     \
    X(vm_map, (void *self, uintptr_t ptr, size_t size, gm_handle handle),              \
      (inner, ptr, size, handle))                                                      \
    X(vm_unmap, (void *self, uintptr_t ptr, size_t size), (inner, ptr, size))          \
    X(vm_set_access, (void *self, uintptr_t ptr, size_t size, int device),             \
      (inner, ptr, size, device))                                                      \
    X(ipc_export, (void *self, uintptr_t ptr, gm_ipc_handle *out), (inner, ptr, out))  \
    X(ipc_open,                                                                        \
      (void *self, int device, const gm_ipc_handle *handle, uintptr_t *base),          \
      (inner, device, handle, base))                                                   \
    X(ipc_close, (void *self, uintptr_t base), (inner, base))

typedef enum fault_slot {
#define FAULT_ENUM(slot, parameters, arguments) FAULT_##slot,
    FAULT_SLOTS(FAULT_ENUM)
#undef FAULT_ENUM
    FAULT_ANY // also how many there are
} fault_slot;

static const char *const slot_names[] = {
#define FAULT_NAME(slot, parameters, arguments) #slot,
    FAULT_SLOTS(FAULT_NAME)
#undef FAULT_NAME
};

typedef struct gm_fault {
    gm_backend table;
    const gm_backend *inner; // borrowed
    pthread_mutex_t mutex;   // what follows

    atomic_bool active; // also read without it: most calls find no plan
    fault_slot slot;    // the one that fails, or FAULT_ANY
    uint64_t nth;
    uint64_t count; // 0: for ever
    gm_status status;
    uint64_t seen;
    uint64_t injected;
} gm_fault;

/* Counts a call of `slot`; not GM_OK when the plan wants it to fail. */
static gm_status
count_call(gm_fault *fault, fault_slot slot)
{
    gm_status status = GM_OK;
    if (!atomic_load_explicit(&fault->active, memory_order_acquire) ||
        gm_process_is_forked()) {
        return GM_OK;
    }
    pthread_mutex_lock(&fault->mutex);
    if (fault->active && (fault->slot == slot || fault->slot == FAULT_ANY)) {
        fault->seen++;
        if (fault->seen >= fault->nth &&
            (fault->count == 0 || fault->seen - fault->nth < fault->count)) {
            fault->injected++;
            status = fault->status;
        }
    }
    pthread_mutex_unlock(&fault->mutex);
    return status;
}

#define FAULT_FUNCTION(slot, parameters, arguments)                                    \
    static gm_status slot_##slot parameters                                            \
    {                                                                                  \
        gm_fault *fault = self;                                                        \
        const gm_backend *inner = fault->inner;                                        \
        gm_status status = count_call(fault, FAULT_##slot);                            \
        return status == GM_OK ? gm_backend_##slot arguments : status;                 \
    }
FAULT_SLOTS(FAULT_FUNCTION)
#undef FAULT_FUNCTION

/* ---- slots that cannot fail ---- */

static const char *
slot_error_name(void *self, int code)
{
    const gm_fault *fault = self;
    return gm_backend_error_name(fault->inner, code);
}

static const char *
slot_error_text(void *self, int code)
{
    const gm_fault *fault = self;
    return gm_backend_error_text(fault->inner, code);
}

static int
slot_last_error(void *self)
{
    const gm_fault *fault = self;
    return gm_backend_last_error(fault->inner);
}

static void
slot_device_pop(void *self, const gm_device_mark *mark)
{
    const gm_fault *fault = self;
    gm_backend_device_pop(fault->inner, mark);
}

/* The wrapped backend stays: it is not ours. */
static void
slot_close(void *self)
{
    gm_fault *fault = self;
    if (gm_process_is_forked()) {
        return; // leaks
    }
    (void)pthread_mutex_destroy(&fault->mutex);
    gm_host_free(fault);
}

/* ---- the plan ---- */

gm_status
gm_backend_fault_open(const gm_backend *inner, gm_backend **out)
{
    gm_fault *fault = gm_host_zalloc(sizeof *fault);
    if (fault == NULL || pthread_mutex_init(&fault->mutex, NULL) != 0) {
        gm_host_free(fault);
        return GM_ERR_HOST_MEMORY;
    }
    fault->inner = inner;
    fault->table = (gm_backend){.api_version = GM_BACKEND_API_VERSION,
                                .caps = inner->caps,
                                .name = "fault",
                                .self = fault,
                                .close = slot_close,
                                .error_name = slot_error_name,
                                .error_text = slot_error_text,
                                .last_error = slot_last_error,
                                .device_pop = slot_device_pop,
#define FAULT_FIELD(slot, parameters, arguments) .slot = slot_##slot,
                                FAULT_SLOTS(FAULT_FIELD)
#undef FAULT_FIELD
    };
    *out = &fault->table;
    return GM_OK;
}

/* FAULT_ANY for NULL; -1 where there is no such slot. */
static int
find_slot(const char *name)
{
    if (name == NULL) {
        return FAULT_ANY;
    }
    for (int slot = 0; slot < FAULT_ANY; slot++) {
        if (strcmp(slot_names[slot], name) == 0) {
            return slot;
        }
    }
    return -1;
}

gm_status
gm_fault_plan(const gm_backend *b,
              const char *name,
              uint64_t nth,
              uint64_t count,
              gm_status status)
{
    gm_fault *fault = b->self;
    int slot = find_slot(name);
    if (slot < 0 || nth == 0 || status == GM_OK) {
        return GM_ERR_INVALID_VALUE;
    }
    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    pthread_mutex_lock(&fault->mutex);
    fault->active = true;
    fault->slot = (fault_slot)slot;
    fault->nth = nth;
    fault->count = count;
    fault->status = status;
    fault->seen = 0;
    fault->injected = 0;
    pthread_mutex_unlock(&fault->mutex);
    return GM_OK;
}

void
gm_fault_clear(const gm_backend *b)
{
    gm_fault *fault = b->self;
    if (gm_process_is_forked()) {
        return;
    }
    pthread_mutex_lock(&fault->mutex);
    fault->active = false;
    pthread_mutex_unlock(&fault->mutex);
}

void
gm_fault_counts(const gm_backend *b, uint64_t *seen, uint64_t *injected)
{
    gm_fault *fault = b->self;
    *seen = 0;
    *injected = 0;
    if (gm_process_is_forked()) {
        return;
    }
    pthread_mutex_lock(&fault->mutex);
    *seen = fault->seen;
    *injected = fault->injected;
    pthread_mutex_unlock(&fault->mutex);
}
