/* SPDX-License-Identifier: MIT
 *
 * The simulated device: a backend made of host memory.
 *
 * For developing, testing and profiling what stands on the table with no GPU. It keeps
 * to what decides correctness on a real one: memory runs out and fragments, work stays
 * queued until somebody waits, handles die and are used again, a wrong address is
 * refused. Every run does the same. A device pointer is a host address, so a test can
 * look at it.
 *
 * This file is the table. Each slot (sim_slots_ files) enters, has the work done by the
 * other sim_ files, and leaves. Cost: one uncontended lock a slot; device_get and
 * device_count take none.
 *
 * It does not model speed (the clock of timed events is virtual and simple), kernels,
 * or what a priority is for.
 */
#include "sim_call.h"

/* ---- identity ---- */

static const struct {
    int code;
    const char *name;
    const char *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {SIM_CODE_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {SIM_CODE_OUT_OF_MEMORY, "cudaErrorMemoryAllocation", "out of memory"},
    {SIM_CODE_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {SIM_CODE_NO_CONTEXT, "cudaErrorDeviceUninitialized", "invalid device context"},
    {SIM_CODE_PEER_UNSUPPORTED, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {SIM_CODE_TOO_MANY_PEERS, "cudaErrorTooManyPeers",
     "peer mapping resources exhausted"},
    {SIM_CODE_OPERATING_SYSTEM, "cudaErrorOperatingSystem",
     "OS call failed or operation not supported on this OS"},
    {SIM_CODE_INVALID_HANDLE, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {SIM_CODE_ILLEGAL_STATE, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {SIM_CODE_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {SIM_CODE_LAUNCH_FAILURE, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {SIM_CODE_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {SIM_CODE_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
    {SIM_CODE_CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {SIM_CODE_CAPTURE_INVALIDATED, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {SIM_CODE_CAPTURE_MERGE, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {SIM_CODE_CAPTURE_UNMATCHED, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {SIM_CODE_CAPTURE_UNJOINED, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {SIM_CODE_CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {SIM_CODE_CAPTURE_IMPLICIT, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {SIM_CODE_CAPTURED_EVENT, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {SIM_CODE_CAPTURE_WRONG_THREAD, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {SIM_CODE_HELD, "gpumemSimulatedStreamHeld",
     "this thread holds the stream, so waiting for it here would never end"},
};

/* What the runtime says for a number it does not know. */
#define UNKNOWN_ERROR "unrecognized error code"

static const char *
slot_error_name(void *self, int code)
{
    (void)self;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) {
            return errors[i].name;
        }
    }
    return UNKNOWN_ERROR;
}

static const char *
slot_error_text(void *self, int code)
{
    (void)self;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) {
            return errors[i].text;
        }
    }
    return UNKNOWN_ERROR;
}

/* A failed slot leaves nothing there, so it is what a test put there. */
static int
slot_last_error(void *self)
{
    return sim_thread_last_error(self);
}

/* ---- the table ---- */

/* The slot that is not here: versions, because there is no driver. */
const gm_backend sim_slots = {
    .api_version = GM_BACKEND_API_VERSION,
    .caps = GM_CAP_SIMULATED | GM_CAP_STREAM_ORDERED | GM_CAP_MANAGED |
            GM_CAP_VIRTUAL_MEMORY | GM_CAP_IPC,
    .name = "sim",
    .close = sim_close,
    .error_name = slot_error_name,
    .error_text = slot_error_text,
    .last_error = slot_last_error,
    .device_count = sim_slot_device_count,
    .device_get = sim_slot_device_get,
    .device_set = sim_slot_device_set,
    .device_push = sim_slot_device_push,
    .device_pop = sim_slot_device_pop,
    .device_synchronize = sim_slot_device_synchronize,
    .device_name = sim_slot_device_name,
    .device_support = sim_slot_device_support,
    .device_reset = sim_slot_device_reset,
    .device_incarnation = sim_slot_device_incarnation,
    .peer_can_access = sim_slot_peer_can_access,
    .peer_enable = sim_slot_peer_enable,
    .peer_enabled = sim_slot_peer_enabled,
    .mem_info = sim_slot_mem_info,
    .mem_largest = sim_slot_mem_largest,
    .mem_alloc = sim_slot_mem_alloc,
    .mem_free = sim_slot_mem_free,
    .mem_alloc_async = sim_slot_mem_alloc_async,
    .mem_free_async = sim_slot_mem_free_async,
    .mem_pool_get = sim_slot_mem_pool_get,
    .mem_pool_set = sim_slot_mem_pool_set,
    .mem_pool_trim = sim_slot_mem_pool_trim,
    .mem_pool_read = sim_slot_mem_pool_read,
    .mem_pool_write = sim_slot_mem_pool_write,
    .mem_prefetch = sim_slot_mem_prefetch,
    .mem_advise = sim_slot_mem_advise,
    .pointer_info = sim_slot_pointer_info,
    .vm_granularity = sim_slot_vm_granularity,
    .vm_reserve = sim_slot_vm_reserve,
    .vm_unreserve = sim_slot_vm_unreserve,
    .vm_create = sim_slot_vm_create,
    .vm_release = sim_slot_vm_release,
    .vm_map = sim_slot_vm_map,
    .vm_unmap = sim_slot_vm_unmap,
    .vm_set_access = sim_slot_vm_set_access,
    .ipc_export = sim_slot_ipc_export,
    .ipc_open = sim_slot_ipc_open,
    .ipc_close = sim_slot_ipc_close,
    .copy = sim_slot_copy,
    .copy_async = sim_slot_copy_async,
    .copy_peer = sim_slot_copy_peer,
    .copy_peer_async = sim_slot_copy_peer_async,
    .set = sim_slot_set,
    .set_async = sim_slot_set_async,
    .stream_create = sim_slot_stream_create,
    .stream_destroy = sim_slot_stream_destroy,
    .stream_query = sim_slot_stream_query,
    .stream_synchronize = sim_slot_stream_synchronize,
    .stream_wait_event = sim_slot_stream_wait_event,
    .stream_id = sim_slot_stream_id,
    .stream_priority_range = sim_slot_stream_priority_range,
    .stream_info = sim_slot_stream_info,
    .event_create = sim_slot_event_create,
    .event_record = sim_slot_event_record,
    .event_destroy = sim_slot_event_destroy,
    .event_query = sim_slot_event_query,
    .event_synchronize = sim_slot_event_synchronize,
    .event_elapsed = sim_slot_event_elapsed,
    .stream_capture = sim_slot_stream_capture,
    .capture_begin = sim_slot_capture_begin,
    .capture_end = sim_slot_capture_end,
    .graph_instantiate = sim_slot_graph_instantiate,
    .graph_launch = sim_slot_graph_launch,
    .graph_upload = sim_slot_graph_upload,
    .graph_debug_dot = sim_slot_graph_debug_dot,
    .graph_destroy = sim_slot_graph_destroy,
    .graph_exec_destroy = sim_slot_graph_exec_destroy,
};
