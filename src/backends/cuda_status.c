/* SPDX-License-Identifier: MIT
 *
 * The runtime's errors: into our statuses, into text, out of the last-error slot.
 *
 * The runtime keeps the last failure of each thread until somebody reads it. A failure
 * that a slot has already returned must not be found there later by a check that has
 * nothing to do with it, so every failure is read out here, where all results pass. A
 * sticky fault (an illegal address, say) survives that: the runtime returns it again
 * from every later call, which is what the user has to see.
 *
 * Threading: any thread; the last-error slot is the calling thread's.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"
#include "../core/gm_process.h" // gm_process_is_forked()

/* The runtime took the driver's numbers for the errors that both can have. */
GM_STATIC_ASSERT((int)CUDA_ERROR_OUT_OF_MEMORY == (int)cudaErrorMemoryAllocation,
                 "cuda_from_driver");
GM_STATIC_ASSERT((int)CUDA_ERROR_DEINITIALIZED == (int)cudaErrorCudartUnloading,
                 "cuda_from_driver");
GM_STATIC_ASSERT((int)CUDA_ERROR_CONTEXT_IS_DESTROYED ==
                     (int)cudaErrorContextIsDestroyed,
                 "cuda_from_driver");
GM_STATIC_ASSERT((int)CUDA_ERROR_INVALID_DEVICE == (int)cudaErrorInvalidDevice,
                 "cuda_from_driver");
GM_STATIC_ASSERT((int)CUDA_ERROR_NOT_INITIALIZED == (int)cudaErrorInitializationError,
                 "cuda_from_driver");

cudaError_t
cuda_from_driver(CUresult result)
{
    return (cudaError_t)result;
}

gm_status
cuda_status(cudaError_t error)
{
    if (GM_LIKELY(error == cudaSuccess)) {
        return GM_OK;
    }
    (void)cudaGetLastError(); // clears it; `error` is the one to return
    switch (error) {
    case cudaErrorMemoryAllocation:
        return GM_ERR_OUT_OF_MEMORY;
    case cudaErrorNotReady:
        return GM_NOT_READY;
    case cudaErrorInvalidDevice:
        return GM_ERR_INVALID_DEVICE;
    case cudaErrorInitializationError:
        /* What a driver opened before a fork says to the child. */
        return gm_process_is_forked() ? GM_ERR_FORKED : GM_DEVICE_ERROR((int)error);
    default:
        return GM_DEVICE_ERROR((int)error);
    }
}

gm_status
cuda_status_of_release(cudaError_t error)
{
    gm_status status = cuda_status(error);

    if (error == cudaErrorCudartUnloading || error == cudaErrorContextIsDestroyed) {
        return GM_OK;
    }
    return status;
}

const char *
cuda_error_name(void *self, int code)
{
    (void)self;
    return cudaGetErrorName((cudaError_t)code);
}

const char *
cuda_error_text(void *self, int code)
{
    (void)self;
    return cudaGetErrorString((cudaError_t)code);
}

int
cuda_last_error(void *self)
{
    (void)self;
    return (int)cudaPeekAtLastError();
}

#endif
