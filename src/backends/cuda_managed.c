/* SPDX-License-Identifier: MIT
 *
 * Managed memory slots of the cuda backend: moving it, and telling the driver how it
 * will be used.
 *
 * CUDA 13 names the place by a location struct where CUDA 12 took a device number with
 * -1 for the host; both are compiled from here.
 *
 * Threading: any thread.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#if CUDART_VERSION >= 13000
static struct cudaMemLocation
location_of(int device)
{
    return device < 0 ? (struct cudaMemLocation){.type = cudaMemLocationTypeHost}
                      : (struct cudaMemLocation){.type = cudaMemLocationTypeDevice,
                                                 .id = device};
}
#else
static int
location_of(int device)
{
    return device < 0 ? cudaCpuDeviceId : device;
}
#endif

static bool
location_exists(const cuda_self *cuda, int device)
{
    return device >= -1 && device < cuda->count;
}

/* A device that is there is an invalid one for what it cannot do. */
static gm_status
status_of(cudaError_t error)
{
    gm_status status = cuda_status(error);

    return status == GM_ERR_INVALID_DEVICE ? GM_ERR_UNSUPPORTED : status;
}

gm_status
cuda_mem_prefetch(void *self, uintptr_t ptr, size_t size, int device, gm_stream stream)
{
    if (!location_exists(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
#if CUDART_VERSION >= 13000
    return status_of(cudaMemPrefetchAsync((void *)ptr, size, location_of(device), 0,
                                          (cudaStream_t)stream));
#else
    return status_of(cudaMemPrefetchAsync((void *)ptr, size, location_of(device),
                                          (cudaStream_t)stream));
#endif
}

gm_status
cuda_mem_advise(void *self, uintptr_t ptr, size_t size, int advice, int device)
{
    if (!location_exists(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    return status_of(cudaMemAdvise((void *)ptr, size, (enum cudaMemoryAdvise)advice,
                                   location_of(device)));
}

#endif
