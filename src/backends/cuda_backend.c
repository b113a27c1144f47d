/* SPDX-License-Identifier: MIT
 *
 * The cuda backend: its table, and finding out whether it can be used.
 *
 * There is one for the process, opened once and never closed: the runtime is one for
 * the process too, and memory from it may outlive anything that would close it. Opening
 * counts the devices (which initialises the driver but makes no context), resolves the
 * driver entry points and asks what every device can do.
 *
 * With no driver there is no last-error slot to keep clean: the runtime answers every
 * call with cudaErrorInsufficientDriver then, also the one that reads the slot.
 *
 * Threading: open and probe from any thread; open is serialised by a lock of its own,
 * held while the driver initialises, under which nothing of ours is called back.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#include <pthread.h>

static cuda_self opened_self;

static gm_backend opened_table = {
    .api_version = GM_BACKEND_API_VERSION,
    .name = "cuda",

    .error_name = cuda_error_name,
    .error_text = cuda_error_text,
    .last_error = cuda_last_error,

    .device_count = cuda_device_count,
    .device_get = cuda_device_get,
    .device_set = cuda_device_set,
    .device_push = cuda_device_push,
    .device_pop = cuda_device_pop,
    .device_synchronize = cuda_device_synchronize,
    .device_name = cuda_device_name,
    .versions = cuda_versions,
    .device_support = cuda_device_support,
    .device_reset = cuda_device_reset,
    .device_incarnation = cuda_device_incarnation,

    .mem_info = cuda_mem_info,
    .mem_largest = cuda_mem_largest,
    .mem_alloc = cuda_mem_alloc,
    .mem_free = cuda_mem_free,
    .mem_alloc_async = cuda_mem_alloc_async,
    .mem_free_async = cuda_mem_free_async,
    .mem_pool_get = cuda_mem_pool_get,
    .mem_pool_set = cuda_mem_pool_set,
    .mem_pool_trim = cuda_mem_pool_trim,
    .mem_pool_read = cuda_mem_pool_read,
    .mem_pool_write = cuda_mem_pool_write,

    .copy = cuda_copy,
    .copy_async = cuda_copy_async,
    .copy_peer = cuda_copy_peer,
    .copy_peer_async = cuda_copy_peer_async,
    .set = cuda_set,
    .set_async = cuda_set_async,

    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_query = cuda_stream_query,
    .stream_synchronize = cuda_stream_synchronize,
    .stream_wait_event = cuda_stream_wait_event,
    .stream_id = cuda_stream_id,
    .stream_priority_range = cuda_stream_priority_range,
    .stream_info = cuda_stream_info,

    .stream_capture = cuda_stream_capture,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .graph_instantiate = cuda_graph_instantiate,
    .graph_launch = cuda_graph_launch,
    .graph_upload = cuda_graph_upload,
    .graph_debug_dot = cuda_graph_debug_dot,
    .graph_destroy = cuda_graph_destroy,
    .graph_exec_destroy = cuda_graph_exec_destroy,

    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_query = cuda_event_query,
    .event_synchronize = cuda_event_synchronize,
    .event_elapsed = cuda_event_elapsed,

    .pointer_info = cuda_pointer_info,
    .mem_prefetch = cuda_mem_prefetch,
    .mem_advise = cuda_mem_advise,
    .peer_can_access = cuda_peer_can_access,
    .peer_enable = cuda_peer_enable,
    .peer_enabled = cuda_peer_enabled,

    .vm_granularity = cuda_vm_granularity,
    .vm_reserve = cuda_vm_reserve,
    .vm_unreserve = cuda_vm_unreserve,
    .vm_create = cuda_vm_create,
    .vm_release = cuda_vm_release,
    .vm_map = cuda_vm_map,
    .vm_unmap = cuda_vm_unmap,
    .vm_set_access = cuda_vm_set_access,

    .ipc_export = cuda_ipc_export,
    .ipc_open = cuda_ipc_open,
    .ipc_close = cuda_ipc_close,
};

void
gm_backend_cuda_probe(gm_cuda_probe *out)
{
    cudaError_t error;

    *out = (gm_cuda_probe){.built = true};
    /* Neither fails: the runtime knows its own version, and says 0 for no driver. */
    (void)cudaRuntimeGetVersion(&out->runtime);
    (void)cudaDriverGetVersion(&out->driver);
    error = cudaGetDeviceCount(&out->devices);
    if (error != cudaSuccess) {
        out->devices = 0;
        out->error = (int)error;
        (void)cudaGetLastError();
    }
}

static gm_status
probe_status(const gm_cuda_probe *probe)
{
    if (probe->driver == 0 || probe->error == cudaErrorNoDevice) {
        return GM_ERR_NO_DRIVER;
    }
    if (probe->error == cudaErrorInsufficientDriver) {
        return GM_ERR_DRIVER_TOO_OLD;
    }
    if (probe->error != cudaSuccess) {
        return cuda_status((cudaError_t)probe->error);
    }
    return probe->devices > 0 ? GM_OK : GM_ERR_NO_DRIVER;
}

/* What every device can do; one that cannot be asked can do nothing. */
static uint32_t
find_caps(int count)
{
    unsigned common =
        GM_DEVICE_MEMORY_POOLS | GM_DEVICE_MANAGED | GM_DEVICE_VIRTUAL_MEMORY;
    uint32_t caps = GM_CAP_IPC;

    for (int device = 0; device < count; device++) {
        unsigned support = 0;

        (void)cuda_device_support(&opened_self, device, &support);
        common &= support;
    }
    if ((common & GM_DEVICE_MEMORY_POOLS) != 0) {
        caps |= GM_CAP_STREAM_ORDERED;
    }
    if ((common & GM_DEVICE_MANAGED) != 0) {
        caps |= GM_CAP_MANAGED;
    }
    if ((common & GM_DEVICE_VIRTUAL_MEMORY) != 0) {
        caps |= GM_CAP_VIRTUAL_MEMORY;
    }
    return caps;
}

static gm_status
open_once_locked(void)
{
    gm_cuda_probe probe;
    gm_status status;

    if (opened_table.self) {
        return GM_OK;
    }
    gm_backend_cuda_probe(&probe);
    status = probe_status(&probe);
    if (status != GM_OK) {
        return status;
    }
    opened_self.count = probe.devices;
    status = cuda_self_init(&opened_self);
    if (status != GM_OK) {
        return status;
    }
    opened_table.caps = find_caps(probe.devices);
    opened_table.self = &opened_self;
    return GM_OK;
}

gm_status
gm_backend_cuda_open(const gm_backend **out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    gm_status status;

    pthread_mutex_lock(&lock);
    status = open_once_locked();
    pthread_mutex_unlock(&lock);
    if (status == GM_OK) {
        *out = &opened_table;
    }
    return status;
}

#endif
