/* SPDX-License-Identifier: MIT
 *
 * Copy and set of the cuda backend.
 *
 * The plain forms are done when they return. The runtime's are not always: cudaMemcpy
 * within the device, cudaMemset and cudaMemcpyPeer only queue, and a copy from pageable
 * host memory returns once the bytes are staged. That is enough for the streams which
 * wait for the legacy stream but not for non-blocking ones, and a caller cannot tell
 * the cases apart. So they are followed by a wait for the legacy stream, on which they
 * run: 1 to 2 us when it is idle. Who wants to go on at once has the async forms.
 *
 * Addresses are unified, so a copy names no device; an async form runs on its stream.
 * The plain forms run on the legacy stream of the device whose memory they write: a set
 * is refused on another, and a wait there would not be for the copy. With several
 * devices that costs a look at the address, 108 ns. None of these makes a context but
 * where the thread has none: then the runtime makes that of the current device, like
 * any of its calls.
 *
 * Threading: any thread.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#define AS_SAME_COPY "copies pass the kind on as the runtime's"
GM_STATIC_ASSERT((int)GM_COPY_HOST_TO_DEVICE == (int)cudaMemcpyHostToDevice,
                 AS_SAME_COPY);
GM_STATIC_ASSERT((int)GM_COPY_DEVICE_TO_HOST == (int)cudaMemcpyDeviceToHost,
                 AS_SAME_COPY);
GM_STATIC_ASSERT((int)GM_COPY_DEVICE_TO_DEVICE == (int)cudaMemcpyDeviceToDevice,
                 AS_SAME_COPY);
GM_STATIC_ASSERT((int)GM_COPY_DEFAULT == (int)cudaMemcpyDefault, AS_SAME_COPY);

/* Makes the device current whose memory `ptr` is; leaves host memory's to whichever is.
 */
static cudaError_t
enter_device_of(const cuda_self *self, uintptr_t ptr, cuda_guard *guard)
{
    struct cudaPointerAttributes attributes;
    cudaError_t error;

    *guard = (cuda_guard){.self = self};
    if (self->count == 1) {
        return cudaSuccess;
    }
    error = cudaPointerGetAttributes(&attributes, (const void *)ptr);
    if (error != cudaSuccess || attributes.type != cudaMemoryTypeDevice) {
        return error;
    }
    return cuda_enter(self, attributes.device, guard);
}

gm_status
cuda_copy(void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind)
{
    cuda_guard guard;
    cudaError_t error = enter_device_of(self, dst, &guard);

    if (error == cudaSuccess) {
        error =
            cudaMemcpy((void *)dst, (const void *)src, size, (enum cudaMemcpyKind)kind);
        if (error == cudaSuccess && kind != GM_COPY_DEVICE_TO_HOST) {
            error = cudaStreamSynchronize(cudaStreamLegacy);
        }
        cuda_leave(&guard);
    }
    return cuda_status(error);
}

gm_status
cuda_copy_async(void *self,
                uintptr_t dst,
                uintptr_t src,
                size_t size,
                gm_copy_kind kind,
                gm_stream stream)
{
    (void)self;
    return cuda_status(cudaMemcpyAsync((void *)dst, (const void *)src, size,
                                       (enum cudaMemcpyKind)kind,
                                       (cudaStream_t)stream));
}

gm_status
cuda_copy_peer(void *self,
               uintptr_t dst,
               int dst_device,
               uintptr_t src,
               int src_device,
               size_t size)
{
    cuda_guard guard;
    /* cudaMemcpyPeer is ordered before later work of both devices and of the current
     * one, so waiting on the destination's legacy stream waits for it. */
    cudaError_t error = cuda_enter(self, dst_device, &guard);

    if (error == cudaSuccess) {
        error = cudaMemcpyPeer((void *)dst, dst_device, (const void *)src, src_device,
                               size);
        if (error == cudaSuccess) {
            error = cudaStreamSynchronize(cudaStreamLegacy);
        }
        cuda_leave(&guard);
    }
    return cuda_status(error);
}

gm_status
cuda_copy_peer_async(void *self,
                     uintptr_t dst,
                     int dst_device,
                     uintptr_t src,
                     int src_device,
                     size_t size,
                     gm_stream stream)
{
    (void)self;
    return cuda_status(cudaMemcpyPeerAsync((void *)dst, dst_device, (const void *)src,
                                           src_device, size, (cudaStream_t)stream));
}

gm_status
cuda_set(void *self, uintptr_t dst, int value, size_t size)
{
    cuda_guard guard;
    cudaError_t error = enter_device_of(self, dst, &guard);

    if (error == cudaSuccess) {
        error = cudaMemset((void *)dst, value, size);
        if (error == cudaSuccess) {
            error = cudaStreamSynchronize(cudaStreamLegacy);
        }
        cuda_leave(&guard);
    }
    return cuda_status(error);
}

gm_status
cuda_set_async(void *self, uintptr_t dst, int value, size_t size, gm_stream stream)
{
    (void)self;
    return cuda_status(cudaMemsetAsync((void *)dst, value, size, (cudaStream_t)stream));
}

#endif
