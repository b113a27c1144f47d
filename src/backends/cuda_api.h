/* SPDX-License-Identifier: MIT
 *
 * Private to the cuda backend: the CUDA headers, its state, and what its files give one
 * another. Included by files named cuda_*.c alone, so that nothing else in the library
 * needs a toolkit to compile.
 *
 *   cuda_backend.c   the table; looking for devices and opening them
 *   cuda_context.c   driver entry points, current device, the device guard
 *   cuda_status.c    the runtime's errors
 *   cuda_device.c    device slots, peers
 *   cuda_memory.c    allocate, free, whose address is this
 *   cuda_pool.c      stream-ordered memory and the driver's pools of it
 *   cuda_vm.c        virtual memory: addresses and what is behind them
 *   cuda_ipc.c       handles of memory for other processes
 *   cuda_copy.c      copy and set
 *   cuda_stream.c    streams and events
 *   cuda_graph.c     recording work and launching it
 *   cuda_none.c      all of it, in a build without CUDA
 *
 * The runtime is linked statically, so its last-error slot is ours alone, while the
 * current context belongs to the driver and is shared with every other library of the
 * process. No file here may assume that only we change it.
 *
 * Compiles with the headers of CUDA 12 and 13.
 */
#ifndef GM_CUDA_API_H
#define GM_CUDA_API_H

#include "backends.h"

#include <cuda.h>             // CUcontext, CUdevice, CUresult; types only, never linked
#include <cuda_runtime_api.h> // the runtime
#include <stdatomic.h>

#if CUDART_VERSION < 12000
#error "gpumem needs CUDA 12.0 or later"
#endif

/* ---- driver entry points (cuda_context.c) ---- */

/* Called by pointers found at run time (driver_symbols in cuda_context.c), since
 * libcuda is not linked. The signatures are those of CUDA 12.0, and asked for as such,
 * whatever the headers call by these names. */
#define CUDA_DRIVER_VERSION 12000

typedef struct cuda_driver {
    CUresult (*ctx_get_current)(CUcontext *context);
    CUresult (*ctx_set_current)(CUcontext context);
    CUresult (*ctx_get_device)(CUdevice *handle); // of the current context
    CUresult (*ctx_push)(CUcontext context);
    CUresult (*ctx_pop)(CUcontext *context);
    CUresult (*device_get)(CUdevice *handle, int ordinal);
    CUresult (*device_get_name)(char *text, int size, CUdevice handle);
    CUresult (*primary_get_state)(CUdevice handle, unsigned *flags, int *active);
    CUresult (*primary_retain)(CUcontext *context, CUdevice handle);
    CUresult (*primary_release)(CUdevice handle);
    CUresult (*ctx_get_id)(CUcontext context, unsigned long long *id);
    CUresult (*stream_get_ctx)(CUstream stream, CUcontext *context);
    CUresult (*stream_get_id)(CUstream stream, unsigned long long *id);
    CUresult (*stream_is_capturing)(CUstream stream, CUstreamCaptureStatus *status);
    CUresult (*mem_get_range)(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
    CUresult (*device_get_attribute)(int *value,
                                     CUdevice_attribute which,
                                     CUdevice handle);
    CUresult (*mem_get_granularity)(size_t *bytes,
                                    const CUmemAllocationProp *properties,
                                    CUmemAllocationGranularity_flags option);
    CUresult (*mem_address_reserve)(CUdeviceptr *ptr,
                                    size_t size,
                                    size_t alignment,
                                    CUdeviceptr wish,
                                    unsigned long long flags);
    CUresult (*mem_address_free)(CUdeviceptr ptr, size_t size);
    CUresult (*mem_create)(CUmemGenericAllocationHandle *handle,
                           size_t size,
                           const CUmemAllocationProp *properties,
                           unsigned long long flags);
    CUresult (*mem_release)(CUmemGenericAllocationHandle handle);
    CUresult (*mem_map)(CUdeviceptr ptr,
                        size_t size,
                        size_t offset,
                        CUmemGenericAllocationHandle handle,
                        unsigned long long flags);
    CUresult (*mem_unmap)(CUdeviceptr ptr, size_t size);
    CUresult (*mem_set_access)(CUdeviceptr ptr,
                               size_t size,
                               const CUmemAccessDesc *access,
                               size_t count);
} cuda_driver;

/* ---- state ---- */

typedef struct cuda_device {
    CUdevice handle;
    _Atomic(CUcontext) primary; // NULL until we hold it; never changes after that
} cuda_device;

/* One device that was let reach another: the numbers of both primary contexts then,
 * since it is over when either ends; 0 for never. */
typedef struct cuda_peer {
    _Atomic(uint64_t) device;
    _Atomic(uint64_t) peer;
} cuda_peer;

/* What the table's `self` points to. Written while opening, then only read, but for
 * the `primary` fields and what is in `peers`. */
typedef struct cuda_self {
    int count;
    cuda_device *devices;
    cuda_peer *peers; // `count` a device
    cuda_driver driver;
} cuda_self;

/* Resolves the driver entry points and the device handles of `self`, whose `count` is
 * set. On failure `self` owns nothing. Creates no context. */
GM_MUST_CHECK gm_status cuda_self_init(cuda_self *self);

/* ---- current device (cuda_context.c) ---- */

/* The calling thread's current device. */
GM_MUST_CHECK cudaError_t cuda_current(const cuda_self *self, int *device);

/* The runtime was told of another one for the calling thread. */
void cuda_forget_current(void);

/* The number of the device's primary context, which a reset changes; 0 where it has
 * none. Makes none. */
GM_MUST_CHECK cudaError_t cuda_primary_id(const cuda_self *self,
                                          int device,
                                          uint64_t *id);

/* The device of a stream; of a default one the current device. */
GM_MUST_CHECK cudaError_t cuda_device_of_stream(const cuda_self *self,
                                                cudaStream_t stream,
                                                int *device);

static inline bool
cuda_has_device(const cuda_self *self, int device)
{
    return device >= 0 && device < self->count;
}

/* Between a successful cuda_enter and cuda_leave `device` is current; cuda_leave
 * restores what was, be it no context at all or one that somebody made for himself.
 * After a failed cuda_enter there is nothing to leave. */
typedef struct cuda_guard {
    const cuda_self *self;
    bool pushed;
} cuda_guard;

GM_MUST_CHECK cudaError_t cuda_enter(const cuda_self *self,
                                     int device,
                                     cuda_guard *guard);
void cuda_leave(const cuda_guard *guard);

/* The same around code of others, which may change what is current; leaving puts back
 * the context that was, NULL for none. */
GM_MUST_CHECK cudaError_t cuda_push(const cuda_self *self,
                                    int device,
                                    CUcontext *before);
void cuda_pop(const cuda_self *self, CUcontext before);

/* ---- errors (cuda_status.c) ---- */

/* The status for a runtime call's result; also takes its trace out of the last-error
 * slot. Every result of a slot ends in one of these two. */
gm_status cuda_status(cudaError_t error);

/* The same where something is given back: what the runtime or the context already took
 * along when it went counts as given back. */
gm_status cuda_status_of_release(cudaError_t error);

/* A driver call's result in the runtime's numbers, which are the same. */
cudaError_t cuda_from_driver(CUresult result);

/* ---- what a device can do (cuda_vm.c) ---- */

/* Whether it has virtual memory; it is there. */
GM_MUST_CHECK cudaError_t cuda_has_virtual_memory(const cuda_self *cuda,
                                                  int device,
                                                  bool *supported);

/* ---- slots, in the order of the table ---- */

const char *cuda_error_name(void *self, int code);
const char *cuda_error_text(void *self, int code);
int cuda_last_error(void *self);

gm_status cuda_device_count(void *self, int *count);
gm_status cuda_device_get(void *self, int *device);
gm_status cuda_device_set(void *self, int device);
gm_status cuda_device_push(void *self, int device, gm_device_mark *mark);
void cuda_device_pop(void *self, const gm_device_mark *mark);
gm_status cuda_device_synchronize(void *self, int device);
gm_status cuda_device_name(void *self, int device, char *text, size_t size);
gm_status cuda_versions(void *self, int *driver, int *runtime);
gm_status cuda_device_support(void *self, int device, unsigned *support);
gm_status cuda_device_reset(void *self, int device);
gm_status cuda_device_incarnation(void *self, int device, uint64_t *number);

gm_status
cuda_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes);
gm_status cuda_mem_largest(
    void *self, int device, const gm_range *back, size_t count, size_t *bytes);
gm_status
cuda_mem_alloc(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out);
gm_status cuda_mem_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr);
gm_status cuda_mem_alloc_async(
    void *self, int device, size_t size, gm_stream stream, uintptr_t *out);
gm_status cuda_mem_free_async(void *self, int device, uintptr_t ptr, gm_stream stream);
gm_status cuda_mem_pool_get(void *self, int device, bool original, gm_mem_pool *out);
gm_status cuda_mem_pool_set(void *self, int device, gm_mem_pool pool);
gm_status cuda_mem_pool_trim(void *self, gm_mem_pool pool, size_t keep);
gm_status cuda_mem_pool_read(void *self,
                             gm_mem_pool pool,
                             gm_mem_pool_field field,
                             uint64_t *value);
gm_status cuda_mem_pool_write(void *self,
                              gm_mem_pool pool,
                              gm_mem_pool_field field,
                              uint64_t value);

gm_status
cuda_copy(void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind);
gm_status cuda_copy_async(void *self,
                          uintptr_t dst,
                          uintptr_t src,
                          size_t size,
                          gm_copy_kind kind,
                          gm_stream stream);
gm_status cuda_copy_peer(void *self,
                         uintptr_t dst,
                         int dst_device,
                         uintptr_t src,
                         int src_device,
                         size_t size);
gm_status cuda_copy_peer_async(void *self,
                               uintptr_t dst,
                               int dst_device,
                               uintptr_t src,
                               int src_device,
                               size_t size,
                               gm_stream stream);
gm_status cuda_set(void *self, uintptr_t dst, int value, size_t size);
gm_status
cuda_set_async(void *self, uintptr_t dst, int value, size_t size, gm_stream stream);

gm_status cuda_stream_create(
    void *self, int device, unsigned flags, int priority, gm_stream *out);
gm_status cuda_stream_destroy(void *self, gm_stream stream);
gm_status cuda_stream_query(void *self, gm_stream stream);
gm_status cuda_stream_synchronize(void *self, gm_stream stream);
gm_status cuda_stream_wait_event(void *self, gm_stream stream, gm_event event);
gm_status cuda_stream_id(void *self, gm_stream stream, uint64_t *id);
gm_status cuda_stream_priority_range(void *self, int device, int *least, int *most);
gm_status cuda_stream_info(
    void *self, gm_stream stream, unsigned *flags, int *priority, int *device);

gm_status cuda_stream_capture(void *self,
                              gm_stream stream,
                              gm_capture_state *state,
                              uint64_t *id);
gm_status cuda_capture_begin(void *self, gm_stream stream, gm_capture_mode mode);
gm_status cuda_capture_end(void *self, gm_stream stream, gm_graph *out);
gm_status cuda_graph_instantiate(void *self, gm_graph graph, gm_graph_exec *out);
gm_status cuda_graph_launch(void *self, gm_graph_exec exec, gm_stream stream);
gm_status cuda_graph_upload(void *self, gm_graph_exec exec, gm_stream stream);
gm_status
cuda_graph_debug_dot(void *self, gm_graph graph, const char *path, unsigned flags);
gm_status cuda_graph_destroy(void *self, gm_graph graph);
gm_status cuda_graph_exec_destroy(void *self, gm_graph_exec exec);

gm_status cuda_event_create(void *self, int device, unsigned flags, gm_event *out);
gm_status cuda_event_destroy(void *self, gm_event event);
gm_status cuda_event_record(void *self, gm_event event, gm_stream stream);
gm_status cuda_event_query(void *self, gm_event event);
gm_status cuda_event_synchronize(void *self, gm_event event);
gm_status cuda_event_elapsed(void *self, gm_event start, gm_event end, float *ms);

gm_status cuda_pointer_info(void *self, uintptr_t ptr, gm_pointer_info *info);
gm_status
cuda_mem_prefetch(void *self, uintptr_t ptr, size_t size, int device, gm_stream stream);
gm_status
cuda_mem_advise(void *self, uintptr_t ptr, size_t size, int advice, int device);
gm_status cuda_peer_can_access(void *self, int device, int peer, bool *can);
gm_status cuda_peer_enable(void *self, int device, int peer);
gm_status cuda_peer_enabled(void *self, int device, int peer, bool *enabled);

gm_status cuda_vm_granularity(void *self, int device, size_t *bytes);
gm_status cuda_vm_reserve(void *self, size_t size, uintptr_t *out);
gm_status cuda_vm_unreserve(void *self, uintptr_t ptr, size_t size);
gm_status cuda_vm_create(void *self, int device, size_t size, gm_handle *out);
gm_status cuda_vm_release(void *self, gm_handle handle);
gm_status cuda_vm_map(void *self, uintptr_t ptr, size_t size, gm_handle handle);
gm_status cuda_vm_unmap(void *self, uintptr_t ptr, size_t size);
gm_status cuda_vm_set_access(void *self, uintptr_t ptr, size_t size, int device);

gm_status cuda_ipc_export(void *self, uintptr_t ptr, gm_ipc_handle *out);
gm_status
cuda_ipc_open(void *self, int device, const gm_ipc_handle *handle, uintptr_t *base);
gm_status cuda_ipc_close(void *self, uintptr_t base);

#endif
