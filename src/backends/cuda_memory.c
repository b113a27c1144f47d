/* SPDX-License-Identifier: MIT
 *
 * Allocate and free of the cuda backend: device, managed, pinned; and what kind of
 * memory an address is.
 *
 * Costs on an H200: cudaMalloc 31 us for 1 MiB and 81 us for 1 GiB; cudaFree 26 to
 * 339 us, and it waits for all work of the device; cudaHostAlloc and its free 675 us
 * for 1 MiB. That is why there is a pool above.
 *
 * Allocating is no part of a graph that a stream records meanwhile, and spoils none:
 * the runtime forbids it to threads that record in another mode than relaxed, lest
 * somebody means it to be a part, and is told that nobody does. Giving back waits for
 * the device, which really cannot be done then.
 *
 * Giving back succeeds also when the runtime is unloading or the context is destroyed:
 * the memory went with it.
 *
 * Threading: any thread.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#define AS_SAME_KIND "pointer_info passes the runtime's number on"
GM_STATIC_ASSERT((int)GM_POINTER_UNREGISTERED == (int)cudaMemoryTypeUnregistered,
                 AS_SAME_KIND);
GM_STATIC_ASSERT((int)GM_POINTER_HOST == (int)cudaMemoryTypeHost, AS_SAME_KIND);
GM_STATIC_ASSERT((int)GM_POINTER_DEVICE == (int)cudaMemoryTypeDevice, AS_SAME_KIND);
GM_STATIC_ASSERT((int)GM_POINTER_MANAGED == (int)cudaMemoryTypeManaged, AS_SAME_KIND);

static cudaError_t
alloc_kind(gm_mem_kind kind, size_t size, void **out)
{
    switch (kind) {
    case GM_MEM_DEVICE:
        return cudaMalloc(out, size);
    case GM_MEM_MANAGED:
        return cudaMallocManaged(out, size, cudaMemAttachGlobal);
    case GM_MEM_PINNED:
        return cudaHostAlloc(out, size, cudaHostAllocDefault);
    case GM_MEM_WRITE_COMBINED:
        return cudaHostAlloc(out, size, cudaHostAllocWriteCombined);
    default:
        return cudaErrorInvalidValue;
    }
}

gm_status
cuda_mem_alloc(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    cuda_guard guard;
    cudaError_t error = cuda_enter(self, device, &guard);
    void *ptr = NULL;

    if (error == cudaSuccess) {
        enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

        error = cudaThreadExchangeStreamCaptureMode(&mode); // `mode` is what it was
        if (error == cudaSuccess) {
            error = alloc_kind(kind, size, &ptr);
            (void)cudaThreadExchangeStreamCaptureMode(
                &mode); // fails for bad modes alone
        }
        cuda_leave(&guard);
    }
    if (error == cudaSuccess) {
        *out = (uintptr_t)ptr;
    }
    return cuda_status(error);
}

static bool
is_host_memory(gm_mem_kind kind)
{
    return kind == GM_MEM_PINNED || kind == GM_MEM_WRITE_COMBINED;
}

gm_status
cuda_mem_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr)
{
    cuda_guard guard;
    /* cudaFree finds the device by the address, but in a thread without a context it
     * would first make one on device 0. */
    cudaError_t error = cuda_enter(self, device, &guard);

    if (error == cudaSuccess) {
        error =
            is_host_memory(kind) ? cudaFreeHost((void *)ptr) : cudaFree((void *)ptr);
        cuda_leave(&guard);
    }
    return cuda_status_of_release(error);
}

/* Fills base and size; leaves them 0 where the driver does not know a range, as for
 * pinned memory that somebody registered. The driver tells it to a thread with a
 * context only, which one that has memory by page alone may lack, so one is pushed. */
static void
find_range(const cuda_self *cuda, uintptr_t ptr, gm_pointer_info *info)
{
    CUdeviceptr base = 0;
    size_t size = 0;
    CUcontext before = NULL;

    if (cuda_push(cuda, info->device, &before) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    if (cuda->driver.mem_get_range(&base, &size, (CUdeviceptr)ptr) == CUDA_SUCCESS) {
        info->base = (uintptr_t)base;
        info->size = size;
    }
    cuda_pop(cuda, before);
}

gm_status
cuda_pointer_info(void *self, uintptr_t ptr, gm_pointer_info *info)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error = cudaPointerGetAttributes(&attributes, (const void *)ptr);

    if (error != cudaSuccess) {
        return cuda_status(error);
    }
    *info = (gm_pointer_info){
        .kind = (gm_pointer_kind)attributes.type,
        .device = attributes.device,
    };
    if (info->kind == GM_POINTER_UNREGISTERED) {
        info->device = -1; // the runtime has more than one number for "none"
    }
    else {
        find_range(self, ptr, info);
    }
    return GM_OK;
}

#endif
