/* SPDX-License-Identifier: MIT
 *
 * One wrapper a slot of the backend table: the only callers of its functions.
 *
 * A wrapper gives a missing optional slot its default answer, refuses what no backend
 * should be asked (a size of 0), and checks what comes back. Results are taken into a
 * local and handed on only on success, so that a backend that scribbles on its
 * out-parameter and then fails cannot leave half a result with the caller. A success
 * with a null address or handle is the backend's broken promise: GM_ERR_INTERNAL.
 *
 * Cost: a branch or two on top of the indirect call. Threading: as the slots. Required
 * slots are called unchecked: gm_backend_validate has seen the table.
 */
#include "gm_backend_private.h"

#include <string.h> // strlen(), memcpy()

gm_status
gm_backend_validate(const gm_backend *b)
{
    if (b->api_version != GM_BACKEND_API_VERSION) {
        return GM_ERR_UNSUPPORTED;
    }
    bool complete =
        b->name != NULL && b->error_name != NULL && b->error_text != NULL &&
        b->device_count != NULL && b->device_get != NULL && b->device_set != NULL &&
        b->device_push != NULL && b->device_pop != NULL &&
        b->device_synchronize != NULL && b->mem_info != NULL && b->mem_alloc != NULL &&
        b->mem_free != NULL && b->copy != NULL && b->copy_async != NULL &&
        b->set != NULL && b->set_async != NULL && b->stream_create != NULL &&
        b->stream_destroy != NULL && b->stream_query != NULL &&
        b->stream_synchronize != NULL && b->stream_wait_event != NULL &&
        b->stream_id != NULL && b->event_create != NULL && b->event_destroy != NULL &&
        b->event_record != NULL && b->event_query != NULL &&
        b->event_synchronize != NULL;
    return complete ? GM_OK : GM_ERR_INVALID_VALUE;
}

/* ---- identity ---- */

void
gm_backend_close(const gm_backend *b)
{
    if (b->close != NULL) {
        b->close(b->self);
    }
}

const char *
gm_backend_error_name(const gm_backend *b, int code)
{
    return b->error_name(b->self, code);
}

const char *
gm_backend_error_text(const gm_backend *b, int code)
{
    return b->error_text(b->self, code);
}

int
gm_backend_last_error(const gm_backend *b)
{
    return b->last_error != NULL ? b->last_error(b->self) : 0;
}

/* ---- devices ---- */

gm_status
gm_backend_device_count(const gm_backend *b, int *count)
{
    int value = 0;
    gm_status status = b->device_count(b->self, &value);
    if (status == GM_OK) {
        *count = value;
    }
    return status;
}

gm_status
gm_backend_device_get(const gm_backend *b, int *device)
{
    int value = 0;
    gm_status status = b->device_get(b->self, &value);
    if (status == GM_OK) {
        *device = value;
    }
    return status;
}

gm_status
gm_backend_device_set(const gm_backend *b, int device)
{
    return b->device_set(b->self, device);
}

gm_status
gm_backend_device_push(const gm_backend *b, int device, gm_device_mark *mark)
{
    gm_device_mark value = {0};
    gm_status status = b->device_push(b->self, device, &value);
    *mark = (gm_device_mark){0};
    if (status == GM_OK) {
        *mark = value;
        mark->pushed = true;
    }
    return status;
}

void
gm_backend_device_pop(const gm_backend *b, const gm_device_mark *mark)
{
    if (mark->pushed) {
        b->device_pop(b->self, mark);
    }
}

gm_status
gm_backend_device_synchronize(const gm_backend *b, int device)
{
    return b->device_synchronize(b->self, device);
}

gm_status
gm_backend_device_name(const gm_backend *b, int device, char *text, size_t size)
{
    if (size == 0) {
        return GM_ERR_INVALID_VALUE; // no room even for the terminator
    }
    if (b->device_name != NULL) {
        return b->device_name(b->self, device, text, size);
    }
    size_t length = strlen(b->name);
    if (length >= size) {
        length = size - 1;
    }
    memcpy(text, b->name, length);
    text[length] = '\0';
    return GM_OK;
}

gm_status
gm_backend_versions(const gm_backend *b, int *driver, int *runtime)
{
    int driver_value = 0, runtime_value = 0;
    gm_status status = GM_OK;
    if (b->versions != NULL) {
        status = b->versions(b->self, &driver_value, &runtime_value);
    }
    if (status == GM_OK) {
        *driver = driver_value;
        *runtime = runtime_value;
    }
    return status;
}

gm_status
gm_backend_device_support(const gm_backend *b, int device, unsigned *support)
{
    unsigned value = 0;
    gm_status status = GM_OK;
    if (b->device_support != NULL) {
        status = b->device_support(b->self, device, &value);
    }
    if (status == GM_OK) {
        *support = value;
    }
    return status;
}

gm_status
gm_backend_device_reset(const gm_backend *b, int device)
{
    return CALL_OPTIONAL(b, device_reset, device);
}

gm_status
gm_backend_device_incarnation(const gm_backend *b, int device, uint64_t *number)
{
    uint64_t value = 0;
    gm_status status = GM_OK;
    if (b->device_incarnation != NULL) {
        status = b->device_incarnation(b->self, device, &value);
    }
    if (status == GM_OK) {
        *number = value;
    }
    return status;
}

/* ---- memory ---- */

gm_status
gm_backend_mem_info(const gm_backend *b,
                    int device,
                    size_t *free_bytes,
                    size_t *total_bytes)
{
    size_t free_value = 0, total_value = 0;
    gm_status status = b->mem_info(b->self, device, &free_value, &total_value);
    if (status == GM_OK) {
        *free_bytes = free_value;
        *total_bytes = total_value;
    }
    return status;
}

gm_status
gm_backend_mem_largest(
    const gm_backend *b, int device, const gm_range *back, size_t count, size_t *bytes)
{
    size_t value = 0, total = 0;
    gm_status status;
    if (b->mem_largest != NULL) {
        status = b->mem_largest(b->self, device, back, count, &value);
    }
    else {
        status = b->mem_info(b->self, device, &value, &total);
        for (size_t i = 0; i < count; i++) {
            value += back[i].size;
        }
    }
    if (status == GM_OK) {
        *bytes = value;
    }
    return status;
}

gm_status
gm_backend_mem_alloc(
    const gm_backend *b, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    if (size == 0) {
        return GM_ERR_INVALID_VALUE;
    }
    uintptr_t ptr = 0;
    gm_status status = b->mem_alloc(b->self, device, kind, size, &ptr);
    return take_nonzero(status, ptr, out);
}

gm_status
gm_backend_mem_free(const gm_backend *b, int device, gm_mem_kind kind, uintptr_t ptr)
{
    return b->mem_free(b->self, device, kind, ptr);
}

gm_status
gm_backend_mem_alloc_async(
    const gm_backend *b, int device, size_t size, gm_stream stream, uintptr_t *out)
{
    if (size == 0) {
        return GM_ERR_INVALID_VALUE;
    }
    uintptr_t ptr = 0;
    gm_status status = CALL_OPTIONAL(b, mem_alloc_async, device, size, stream, &ptr);
    return take_nonzero(status, ptr, out);
}

gm_status
gm_backend_mem_free_async(const gm_backend *b,
                          int device,
                          uintptr_t ptr,
                          gm_stream stream)
{
    return CALL_OPTIONAL(b, mem_free_async, device, ptr, stream);
}

gm_status
gm_backend_mem_pool_get(const gm_backend *b,
                        int device,
                        bool original,
                        gm_mem_pool *out)
{
    gm_mem_pool pool = 0;
    gm_status status = CALL_OPTIONAL(b, mem_pool_get, device, original, &pool);
    return take_nonzero(status, pool, out);
}

gm_status
gm_backend_mem_pool_set(const gm_backend *b, int device, gm_mem_pool pool)
{
    return CALL_OPTIONAL(b, mem_pool_set, device, pool);
}

gm_status
gm_backend_mem_pool_trim(const gm_backend *b, gm_mem_pool pool, size_t keep)
{
    return CALL_OPTIONAL(b, mem_pool_trim, pool, keep);
}

gm_status
gm_backend_mem_pool_read(const gm_backend *b,
                         gm_mem_pool pool,
                         gm_mem_pool_field field,
                         uint64_t *value)
{
    uint64_t read = 0;
    gm_status status = CALL_OPTIONAL(b, mem_pool_read, pool, field, &read);
    if (status == GM_OK) {
        *value = read;
    }
    return status;
}

gm_status
gm_backend_mem_pool_write(const gm_backend *b,
                          gm_mem_pool pool,
                          gm_mem_pool_field field,
                          uint64_t value)
{
    return CALL_OPTIONAL(b, mem_pool_write, pool, field, value);
}

gm_status
gm_backend_copy(
    const gm_backend *b, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind)
{
    return size > 0 ? b->copy(b->self, dst, src, size, kind) : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_copy_async(const gm_backend *b,
                      uintptr_t dst,
                      uintptr_t src,
                      size_t size,
                      gm_copy_kind kind,
                      gm_stream stream)
{
    return size > 0 ? b->copy_async(b->self, dst, src, size, kind, stream)
                    : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_copy_peer(const gm_backend *b,
                     uintptr_t dst,
                     int dst_device,
                     uintptr_t src,
                     int src_device,
                     size_t size)
{
    return size > 0
               ? CALL_OPTIONAL(b, copy_peer, dst, dst_device, src, src_device, size)
               : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_copy_peer_async(const gm_backend *b,
                           uintptr_t dst,
                           int dst_device,
                           uintptr_t src,
                           int src_device,
                           size_t size,
                           gm_stream stream)
{
    if (size == 0) {
        return GM_ERR_INVALID_VALUE;
    }
    return CALL_OPTIONAL(b, copy_peer_async, dst, dst_device, src, src_device, size,
                         stream);
}

gm_status
gm_backend_set(const gm_backend *b, uintptr_t dst, int value, size_t size)
{
    return size > 0 ? b->set(b->self, dst, value, size) : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_set_async(
    const gm_backend *b, uintptr_t dst, int value, size_t size, gm_stream stream)
{
    return size > 0 ? b->set_async(b->self, dst, value, size, stream)
                    : GM_ERR_INVALID_VALUE;
}

/* ---- streams ---- */

gm_status
gm_backend_stream_create(
    const gm_backend *b, int device, unsigned flags, int priority, gm_stream *out)
{
    gm_stream stream = 0;
    gm_status status = b->stream_create(b->self, device, flags, priority, &stream);
    return take_nonzero(status, stream, out);
}

gm_status
gm_backend_stream_destroy(const gm_backend *b, gm_stream stream)
{
    return b->stream_destroy(b->self, stream);
}

gm_status
gm_backend_stream_query(const gm_backend *b, gm_stream stream)
{
    return b->stream_query(b->self, stream);
}

gm_status
gm_backend_stream_synchronize(const gm_backend *b, gm_stream stream)
{
    return b->stream_synchronize(b->self, stream);
}

gm_status
gm_backend_stream_wait_event(const gm_backend *b, gm_stream stream, gm_event event)
{
    return b->stream_wait_event(b->self, stream, event);
}

gm_status
gm_backend_stream_id(const gm_backend *b, gm_stream stream, uint64_t *id)
{
    uint64_t value = 0;
    gm_status status = b->stream_id(b->self, stream, &value);
    if (status == GM_OK) {
        *id = value;
    }
    return status;
}

gm_status
gm_backend_stream_priority_range(const gm_backend *b, int device, int *least, int *most)
{
    int least_value = 0, most_value = 0;
    gm_status status = GM_OK;
    if (b->stream_priority_range != NULL) {
        status = b->stream_priority_range(b->self, device, &least_value, &most_value);
    }
    if (status == GM_OK) {
        *least = least_value;
        *most = most_value;
    }
    return status;
}

gm_status
gm_backend_stream_info(
    const gm_backend *b, gm_stream stream, unsigned *flags, int *priority, int *device)
{
    unsigned flags_value = 0;
    int priority_value = 0;
    int device_value = -1;
    gm_status status = GM_OK;
    if (b->stream_info != NULL) {
        status = b->stream_info(b->self, stream, &flags_value, &priority_value,
                                &device_value);
    }
    if (status == GM_OK) {
        *flags = flags_value;
        *priority = priority_value;
        *device = device_value;
    }
    return status;
}

/* ---- recorded graphs ---- */

gm_status
gm_backend_stream_capture(const gm_backend *b,
                          gm_stream stream,
                          gm_capture_state *state,
                          uint64_t *id)
{
    gm_capture_state value = GM_CAPTURE_NONE;
    uint64_t number = 0;
    gm_status status = GM_OK;
    if (b->stream_capture != NULL) {
        status = b->stream_capture(b->self, stream, &value, &number);
    }
    if (status == GM_OK) {
        *state = value;
        *id = value == GM_CAPTURE_ACTIVE ? number : 0;
    }
    return status;
}

gm_status
gm_backend_capture_begin(const gm_backend *b, gm_stream stream, gm_capture_mode mode)
{
    return CALL_OPTIONAL(b, capture_begin, stream, mode);
}

gm_status
gm_backend_capture_end(const gm_backend *b, gm_stream stream, gm_graph *out)
{
    gm_graph graph = 0;
    gm_status status = CALL_OPTIONAL(b, capture_end, stream, &graph);
    return take_nonzero(status, graph, out);
}

gm_status
gm_backend_graph_instantiate(const gm_backend *b, gm_graph graph, gm_graph_exec *out)
{
    gm_graph_exec exec = 0;
    gm_status status = CALL_OPTIONAL(b, graph_instantiate, graph, &exec);
    return take_nonzero(status, exec, out);
}

gm_status
gm_backend_graph_launch(const gm_backend *b, gm_graph_exec exec, gm_stream stream)
{
    return CALL_OPTIONAL(b, graph_launch, exec, stream);
}

gm_status
gm_backend_graph_upload(const gm_backend *b, gm_graph_exec exec, gm_stream stream)
{
    return CALL_OPTIONAL(b, graph_upload, exec, stream);
}

gm_status
gm_backend_graph_debug_dot(const gm_backend *b,
                           gm_graph graph,
                           const char *path,
                           unsigned flags)
{
    return CALL_OPTIONAL(b, graph_debug_dot, graph, path, flags);
}

gm_status
gm_backend_graph_destroy(const gm_backend *b, gm_graph graph)
{
    return CALL_OPTIONAL(b, graph_destroy, graph);
}

gm_status
gm_backend_graph_exec_destroy(const gm_backend *b, gm_graph_exec exec)
{
    return CALL_OPTIONAL(b, graph_exec_destroy, exec);
}

/* ---- events ---- */

gm_status
gm_backend_event_create(const gm_backend *b, int device, unsigned flags, gm_event *out)
{
    gm_event event = 0;
    gm_status status = b->event_create(b->self, device, flags, &event);
    return take_nonzero(status, event, out);
}

gm_status
gm_backend_event_destroy(const gm_backend *b, gm_event event)
{
    return b->event_destroy(b->self, event);
}

gm_status
gm_backend_event_record(const gm_backend *b, gm_event event, gm_stream stream)
{
    return b->event_record(b->self, event, stream);
}

gm_status
gm_backend_event_query(const gm_backend *b, gm_event event)
{
    return b->event_query(b->self, event);
}

gm_status
gm_backend_event_synchronize(const gm_backend *b, gm_event event)
{
    return b->event_synchronize(b->self, event);
}

gm_status
gm_backend_event_elapsed(const gm_backend *b, gm_event start, gm_event end, float *ms)
{
    float value = 0.0f;
    gm_status status = CALL_OPTIONAL(b, event_elapsed, start, end, &value);
    if (status == GM_OK) {
        *ms = value;
    }
    return status;
}

/* ---- addresses, peers, managed memory ---- */

gm_status
gm_backend_pointer_info(const gm_backend *b, uintptr_t ptr, gm_pointer_info *info)
{
    gm_pointer_info value = {.device = -1};
    gm_status status = CALL_OPTIONAL(b, pointer_info, ptr, &value);
    if (status == GM_OK) {
        *info = value;
    }
    return status;
}

gm_status
gm_backend_peer_can_access(const gm_backend *b, int device, int peer, bool *can)
{
    bool value = false;
    gm_status status = GM_OK;
    if (b->peer_can_access != NULL) {
        status = b->peer_can_access(b->self, device, peer, &value);
    }
    if (status == GM_OK) {
        *can = value;
    }
    return status;
}

gm_status
gm_backend_peer_enable(const gm_backend *b, int device, int peer)
{
    return CALL_OPTIONAL(b, peer_enable, device, peer);
}

gm_status
gm_backend_peer_enabled(const gm_backend *b, int device, int peer, bool *enabled)
{
    bool value = false;
    gm_status status = GM_OK;
    if (b->peer_enabled != NULL) {
        status = b->peer_enabled(b->self, device, peer, &value);
    }
    if (status == GM_OK) {
        *enabled = value;
    }
    return status;
}

gm_status
gm_backend_mem_prefetch(
    const gm_backend *b, uintptr_t ptr, size_t size, int device, gm_stream stream)
{
    return size > 0 ? CALL_OPTIONAL(b, mem_prefetch, ptr, size, device, stream)
                    : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_mem_advise(
    const gm_backend *b, uintptr_t ptr, size_t size, int advice, int device)
{
    return size > 0 ? CALL_OPTIONAL(b, mem_advise, ptr, size, advice, device)
                    : GM_ERR_INVALID_VALUE;
}
