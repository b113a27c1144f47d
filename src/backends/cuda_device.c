/* SPDX-License-Identifier: MIT
 *
 * Device slots of the cuda backend: count, current, name, versions, what it can do, how
 * it is reset, memory left, peers.
 *
 * The number of devices is fixed when the backend opens, as it is in the runtime. Only
 * device_set and device_push make a context current that was not; device_synchronize,
 * device_reset, mem_info and peer_enable make the device's primary context if it has
 * none, and leave the thread's own alone.
 *
 * A reset ends what is in the primary context and not its handle (cuda_context.c), so
 * the incarnation is the context's id and not its address.
 *
 * Threading: any thread.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#include <limits.h> // INT_MAX

gm_status
cuda_device_count(void *self, int *count)
{
    const cuda_self *cuda = self;

    *count = cuda->count;
    return GM_OK;
}

gm_status
cuda_device_get(void *self, int *device)
{
    return cuda_status(cuda_current(self, device));
}

gm_status
cuda_device_set(void *self, int device)
{
    if (!cuda_has_device(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    cuda_forget_current();
    return cuda_status(cudaSetDevice(device));
}

gm_status
cuda_device_push(void *self, int device, gm_device_mark *mark)
{
    CUcontext before = NULL;
    gm_status status;

    if (!cuda_has_device(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    status = cuda_status(cuda_push(self, device, &before));
    mark->before = (uintptr_t)before;
    return status;
}

void
cuda_device_pop(void *self, const gm_device_mark *mark)
{
    cuda_pop(self, (CUcontext)mark->before);
}

gm_status
cuda_device_synchronize(void *self, int device)
{
    cuda_guard guard;
    cudaError_t error = cuda_enter(self, device, &guard);

    if (error == cudaSuccess) {
        error = cudaDeviceSynchronize();
        cuda_leave(&guard);
    }
    return cuda_status(error);
}

gm_status
cuda_device_name(void *self, int device, char *text, size_t size)
{
    const cuda_self *cuda = self;
    CUresult result;

    if (!cuda_has_device(cuda, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if (size == 0) {
        return GM_ERR_INVALID_VALUE;
    }
    /* The driver's call, since the runtime's fills a kilobyte of properties whose
     * layout changes from version to version. */
    result = cuda->driver.device_get_name(text, size > INT_MAX ? INT_MAX : (int)size,
                                          cuda->devices[device].handle);
    text[result == CUDA_SUCCESS ? size - 1 : 0] = '\0';
    return cuda_status(cuda_from_driver(result));
}

gm_status
cuda_versions(void *self, int *driver, int *runtime)
{
    int found_driver = 0;
    int found_runtime = 0;
    cudaError_t error = cudaDriverGetVersion(&found_driver);

    (void)self;
    if (error == cudaSuccess) {
        error = cudaRuntimeGetVersion(&found_runtime);
    }
    if (error == cudaSuccess) {
        *driver = found_driver;
        *runtime = found_runtime;
    }
    return cuda_status(error);
}

gm_status
cuda_device_support(void *self, int device, unsigned *support)
{
    static const struct {
        enum cudaDeviceAttr attribute;
        unsigned bit;
    } asked[] = {
        {cudaDevAttrMemoryPoolsSupported, GM_DEVICE_MEMORY_POOLS},
        {cudaDevAttrManagedMemory, GM_DEVICE_MANAGED},
        {cudaDevAttrConcurrentManagedAccess, GM_DEVICE_CONCURRENT_MANAGED},
        {cudaDevAttrPageableMemoryAccess, GM_DEVICE_PAGEABLE_ACCESS},
    };
    cudaError_t error = cudaSuccess;
    bool virtual_memory = false;
    unsigned found = 0;

    if (!cuda_has_device(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    for (size_t i = 0; i < sizeof asked / sizeof asked[0] && error == cudaSuccess;
         i++) {
        int value = 0;

        error = cudaDeviceGetAttribute(&value, asked[i].attribute, device);
        found |= value ? asked[i].bit : 0;
    }
    if (error == cudaSuccess) {
        error = cuda_has_virtual_memory(self, device, &virtual_memory);
        found |= virtual_memory ? GM_DEVICE_VIRTUAL_MEMORY : 0;
    }
    if (error == cudaSuccess) {
        *support = found;
    }
    return cuda_status(error);
}

gm_status
cuda_device_reset(void *self, int device)
{
    cuda_guard guard;
    cudaError_t error = cuda_enter(self, device, &guard);

    if (error == cudaSuccess) {
        error = cudaDeviceReset();
        cuda_leave(&guard);
    }
    return cuda_status(error);
}

gm_status
cuda_device_incarnation(void *self, int device, uint64_t *number)
{
    if (!cuda_has_device(self, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    return cuda_status(cuda_primary_id(self, device, number));
}

gm_status
cuda_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes)
{
    cuda_guard guard;
    cudaError_t error = cuda_enter(self, device, &guard);
    size_t free_now = 0;
    size_t total = 0;

    if (error == cudaSuccess) {
        error = cudaMemGetInfo(&free_now, &total);
        cuda_leave(&guard);
    }
    if (error == cudaSuccess) {
        *free_bytes = free_now;
        *total_bytes = total;
    }
    return cuda_status(error);
}

/* cudaMalloc takes whole pages for what is large. What the driver keeps for itself of
 * what it calls free it does not tell. */
gm_status
cuda_mem_largest(
    void *self, int device, const gm_range *back, size_t count, size_t *bytes)
{
    const size_t page = (size_t)2 << 20;
    size_t largest = 0;
    size_t total = 0;
    gm_status status = cuda_mem_info(self, device, &largest, &total);

    if (status != GM_OK) {
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        largest += back[i].size;
    }
    *bytes = largest < page ? largest : largest - largest % page;
    return GM_OK;
}

gm_status
cuda_peer_can_access(void *self, int device, int peer, bool *can)
{
    int answer = 0;
    cudaError_t error;

    if (!cuda_has_device(self, device) || !cuda_has_device(self, peer)) {
        return GM_ERR_INVALID_DEVICE;
    }
    error = cudaDeviceCanAccessPeer(&answer, device, peer);
    if (error == cudaSuccess) {
        *can = answer != 0;
    }
    return cuda_status(error);
}

/* The numbers of both primary contexts, 0 where there is none. */
static cudaError_t
peer_ids(const cuda_self *cuda, int device, int peer, uint64_t ids[2])
{
    cudaError_t error = cuda_primary_id(cuda, device, &ids[0]);

    return error == cudaSuccess ? cuda_primary_id(cuda, peer, &ids[1]) : error;
}

static cuda_peer *
peer_entry(const cuda_self *cuda, int device, int peer)
{
    return &cuda->peers[(size_t)device * (size_t)cuda->count + (size_t)peer];
}

/* Where the contexts cannot be told it counts as not enabled. */
static void
remember_peer(const cuda_self *cuda, int device, int peer)
{
    cuda_peer *entry = peer_entry(cuda, device, peer);
    uint64_t ids[2];

    if (peer_ids(cuda, device, peer, ids) == cudaSuccess) {
        atomic_store_explicit(&entry->device, ids[0], memory_order_relaxed);
        atomic_store_explicit(&entry->peer, ids[1], memory_order_relaxed);
    }
}

gm_status
cuda_peer_enable(void *self, int device, int peer)
{
    cuda_guard guard;
    cudaError_t error = cuda_enter(self, device, &guard);
    gm_status status;

    if (error == cudaSuccess) {
        error = cudaDeviceEnablePeerAccess(peer, 0);
        cuda_leave(&guard);
    }
    status = cuda_status(error);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        status = GM_OK;
    }
    if (status == GM_OK) {
        remember_peer(self, device, peer);
    }
    return status;
}

gm_status
cuda_peer_enabled(void *self, int device, int peer, bool *enabled)
{
    const cuda_self *cuda = self;
    const cuda_peer *entry;
    uint64_t ids[2];
    cudaError_t error;

    if (!cuda_has_device(cuda, device) || !cuda_has_device(cuda, peer)) {
        return GM_ERR_INVALID_DEVICE;
    }
    error = peer_ids(cuda, device, peer, ids);
    if (error == cudaSuccess) {
        entry = peer_entry(cuda, device, peer);
        *enabled =
            ids[0] && ids[1] &&
            atomic_load_explicit(&entry->device, memory_order_relaxed) == ids[0] &&
            atomic_load_explicit(&entry->peer, memory_order_relaxed) == ids[1];
    }
    return cuda_status(error);
}

#endif
