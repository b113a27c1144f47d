/* SPDX-License-Identifier: MIT
 *
 * Handles of memory for other processes.
 *
 * A handle names a whole allocation, whatever address in it was asked about; who opens
 * it gets the allocation's base. The runtime counts how often one is opened here: the
 * second opening gives the same address, and the last close ends it. A handle is not
 * for the process that made it, nor can memory of the driver's pools or managed memory
 * have one.
 *
 * Threading: any thread. Opening takes some 100 us and maps the whole allocation.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#include <string.h> // memcpy()

GM_STATIC_ASSERT(sizeof(gm_ipc_handle) == sizeof(cudaIpcMemHandle_t),
                 "a handle is the runtime's bytes");

gm_status
cuda_ipc_export(void *self, uintptr_t ptr, gm_ipc_handle *out)
{
    cudaIpcMemHandle_t handle;
    cudaError_t error = cudaIpcGetMemHandle(&handle, (void *)ptr);

    (void)self;
    if (error == cudaSuccess) {
        memcpy(out->bytes, &handle, sizeof handle);
    }
    return cuda_status(error);
}

gm_status
cuda_ipc_open(void *self, int device, const gm_ipc_handle *handle, uintptr_t *base)
{
    cudaIpcMemHandle_t named;
    cuda_guard guard;
    cudaError_t error = cuda_enter(self, device, &guard);
    void *ptr = NULL;

    if (error == cudaSuccess) {
        memcpy(&named, handle->bytes, sizeof named);
        error = cudaIpcOpenMemHandle(&ptr, named, cudaIpcMemLazyEnablePeerAccess);
        cuda_leave(&guard);
    }
    if (error == cudaSuccess) {
        *base = (uintptr_t)ptr;
    }
    return cuda_status(error);
}

/* Works in the current context, so in that of the device it was opened on. */
gm_status
cuda_ipc_close(void *self, uintptr_t base)
{
    struct cudaPointerAttributes attributes;
    cuda_guard guard;
    cudaError_t error = cudaPointerGetAttributes(&attributes, (const void *)base);

    if (error == cudaSuccess && attributes.type != cudaMemoryTypeDevice) {
        error = cudaErrorInvalidValue;
    }
    if (error == cudaSuccess) {
        error = cuda_enter(self, attributes.device, &guard);
    }
    if (error == cudaSuccess) {
        /* Nobody says that closing waits for work that uses the memory. A fault of that
         * work is in what closing returns. */
        (void)cudaDeviceSynchronize();
        error = cudaIpcCloseMemHandle((void *)base);
        cuda_leave(&guard);
    }
    return cuda_status_of_release(error);
}

#endif
