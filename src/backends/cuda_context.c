/* SPDX-License-Identifier: MIT
 *
 * Which device is current, and making another one current for a moment.
 *
 * Both are asked of the driver and not of the runtime. cuCtxGetCurrent takes 12 ns
 * where cudaGetDevice takes 39 to 68, and the current device is asked for at each
 * request. And a guard that restored with cudaSetDevice would give the thread a context
 * on a device it never used (some hundred MiB there) when it had none before, and would
 * replace a context that somebody made for himself by the device's primary one. Pushing
 * and popping the driver's context stack puts back exactly what was.
 *
 * The map from context to device holds primary contexts alone. A primary context's
 * handle belongs to its device as long as the process lives: after a device reset
 * threads still have it current, and the next call brings it back to life. So an entry
 * cannot go stale, is written once, and is read with one relaxed load a device. A
 * context made by cuCtxCreate is never remembered, since its address may return as
 * another device's context once it is destroyed: each request made under one pays for
 * cuCtxGetDevice, 17 ns more.
 *
 * An entry stands for a retained primary context. It is retained only when it is active
 * already or is about to be used, and is not released before the process ends, as the
 * runtime itself does with those it makes.
 *
 * With one device nothing is asked: it is always current.
 *
 * A thread without a context is on the device that the runtime was last told, by
 * device_set, or on the first. Only the runtime knows, and asking it then takes 0.8 us,
 * and 11 where eight threads ask at once. So each thread keeps the answer, for
 * requests: the runtime is asked again after device_set, once the thread had a context
 * meanwhile, and by cuda_enter.
 *
 * Threading: any thread, no lock. Two threads may retain the same primary context at
 * once; the second gives its hold back.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"
#include "../core/gm_process.h" // gm_host_zalloc()

#include <string.h> // memcpy()

/* ---- driver entry points ---- */

typedef struct driver_symbol {
    const char *name;
    size_t offset; // of its field in cuda_driver
} driver_symbol;

static const driver_symbol driver_symbols[] = {
    {"cuCtxGetCurrent", offsetof(cuda_driver, ctx_get_current)},
    {"cuCtxSetCurrent", offsetof(cuda_driver, ctx_set_current)},
    {"cuCtxGetId", offsetof(cuda_driver, ctx_get_id)},
    {"cuCtxGetDevice", offsetof(cuda_driver, ctx_get_device)},
    {"cuCtxPushCurrent", offsetof(cuda_driver, ctx_push)},
    {"cuCtxPopCurrent", offsetof(cuda_driver, ctx_pop)},
    {"cuDeviceGet", offsetof(cuda_driver, device_get)},
    {"cuDeviceGetName", offsetof(cuda_driver, device_get_name)},
    {"cuDevicePrimaryCtxGetState", offsetof(cuda_driver, primary_get_state)},
    {"cuDevicePrimaryCtxRetain", offsetof(cuda_driver, primary_retain)},
    {"cuDevicePrimaryCtxRelease", offsetof(cuda_driver, primary_release)},
    {"cuStreamGetCtx", offsetof(cuda_driver, stream_get_ctx)},
    {"cuStreamGetId", offsetof(cuda_driver, stream_get_id)},
    {"cuStreamIsCapturing", offsetof(cuda_driver, stream_is_capturing)},
    {"cuMemGetAddressRange", offsetof(cuda_driver, mem_get_range)},
    {"cuDeviceGetAttribute", offsetof(cuda_driver, device_get_attribute)},
    {"cuMemGetAllocationGranularity", offsetof(cuda_driver, mem_get_granularity)},
    {"cuMemAddressReserve", offsetof(cuda_driver, mem_address_reserve)},
    {"cuMemAddressFree", offsetof(cuda_driver, mem_address_free)},
    {"cuMemCreate", offsetof(cuda_driver, mem_create)},
    {"cuMemRelease", offsetof(cuda_driver, mem_release)},
    {"cuMemMap", offsetof(cuda_driver, mem_map)},
    {"cuMemUnmap", offsetof(cuda_driver, mem_unmap)},
    {"cuMemSetAccess", offsetof(cuda_driver, mem_set_access)},
};

#define DRIVER_SYMBOLS (sizeof driver_symbols / sizeof *driver_symbols)
GM_STATIC_ASSERT(DRIVER_SYMBOLS * sizeof(void *) == sizeof(cuda_driver),
                 "every entry point is looked up");

static cudaError_t
driver_find(const char *name, void **out)
{
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *function = NULL;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error = cudaGetDriverEntryPointByVersion(name, &function, CUDA_DRIVER_VERSION,
                                             cudaEnableDefault, &found);
#else
    /* Gives the symbol as of the runtime's own version, 12.0 to 12.4. */
    error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) {
        return error;
    }
    if (found != cudaDriverEntryPointSuccess || !function) {
        return cudaErrorSymbolNotFound;
    }
    *out = function;
    return cudaSuccess;
}

static cudaError_t
driver_load(cuda_driver *driver)
{
    for (size_t i = 0; i < DRIVER_SYMBOLS; i++) {
        void *function = NULL;
        cudaError_t error = driver_find(driver_symbols[i].name, &function);

        if (error != cudaSuccess) {
            return error;
        }
        /* C has no conversion from an object pointer to a function pointer; POSIX
         * promises that the bytes are the same. */
        memcpy((char *)driver + driver_symbols[i].offset, &function, sizeof function);
    }
    return cudaSuccess;
}

gm_status
cuda_self_init(cuda_self *self)
{
    cudaError_t error = driver_load(&self->driver);
    size_t count = (size_t)self->count;
    gm_status status;

    if (error != cudaSuccess) {
        return cuda_status(error);
    }
    self->devices = gm_host_zalloc(count * sizeof *self->devices);
    self->peers = gm_host_zalloc(count * count * sizeof *self->peers);
    if (!self->devices || !self->peers) {
        status = GM_ERR_HOST_MEMORY;
        goto fail;
    }
    for (int i = 0; i < self->count && error == cudaSuccess; i++) {
        error = cuda_from_driver(self->driver.device_get(&self->devices[i].handle, i));
    }
    status = cuda_status(error);
    if (status != GM_OK) {
        goto fail;
    }
    return GM_OK;

fail:
    gm_host_free(self->devices);
    gm_host_free(self->peers);
    self->devices = NULL;
    self->peers = NULL;
    return status;
}

/* ---- primary contexts ---- */

/* The primary context of `device`, retained; makes it active if it is not. */
static cudaError_t
primary_hold(const cuda_self *self, int device, CUcontext *out)
{
    cuda_device *d = &self->devices[device];
    CUcontext context = atomic_load_explicit(&d->primary, memory_order_relaxed);
    CUcontext none = NULL;
    CUresult result;

    if (!context) {
        result = self->driver.primary_retain(&context, d->handle);
        if (result != CUDA_SUCCESS) {
            return cuda_from_driver(result);
        }
        if (!atomic_compare_exchange_strong(&d->primary, &none, context)) {
            /* Another thread was first with the same context; its hold is enough. */
            (void)self->driver.primary_release(d->handle);
        }
    }
    *out = context;
    return cudaSuccess;
}

static bool
primary_is_active(const cuda_self *self, int device)
{
    unsigned flags;
    int active = 0;

    return self->driver.primary_get_state(self->devices[device].handle, &flags,
                                          &active) == CUDA_SUCCESS &&
           active;
}

cudaError_t
cuda_primary_id(const cuda_self *self, int device, uint64_t *id)
{
    unsigned long long found = 0;
    CUcontext context = NULL;
    cudaError_t error = cudaSuccess;

    if (primary_is_active(self, device)) {
        error = primary_hold(self, device, &context);
        if (error == cudaSuccess) {
            error = cuda_from_driver(self->driver.ctx_get_id(context, &found));
        }
    }
    if (error == cudaSuccess) {
        *id = found;
    }
    return error;
}

/* ---- current device ---- */

/* The number of the device of that handle. */
static cudaError_t
number_of(const cuda_self *self, CUdevice handle, int *device)
{
    for (int i = 0; i < self->count; i++) {
        if (self->devices[i].handle == handle) {
            *device = i;
            return cudaSuccess;
        }
    }
    return cudaErrorInvalidDevice;
}

/* The device of a current context that is in no entry: a primary one not seen before,
 * which is entered now, or one that is not to be remembered. */
static GM_COLD cudaError_t
current_unknown(const cuda_self *self, int *device)
{
    CUcontext primary;
    CUdevice handle;
    CUresult result = self->driver.ctx_get_device(&handle);
    cudaError_t error = result == CUDA_SUCCESS ? number_of(self, handle, device)
                                               : cuda_from_driver(result);

    if (error == cudaSuccess && primary_is_active(self, *device)) {
        /* Failing costs the next request this detour again, nothing else. */
        (void)primary_hold(self, *device, &primary);
    }
    return error;
}

/* What the runtime said of this thread when it had no context, and 1 more; 0: it was
 * not asked since device_set. */
static _Thread_local int without_context;

void
cuda_forget_current(void)
{
    without_context = 0;
}

/* The device of a thread without a context; asks anew unless `kept` will do. */
static GM_NOINLINE cudaError_t
current_without_context(bool kept, int *device)
{
    cudaError_t error = cudaSuccess;

    if (!kept || !without_context) {
        int found = 0;

        error = cudaGetDevice(&found);
        without_context = error == cudaSuccess ? found + 1 : 0;
    }
    *device = without_context - 1;
    return error;
}

static inline cudaError_t
current_device(const cuda_self *self, bool kept, int *device)
{
    CUcontext context = NULL;

    if (self->count == 1) {
        *device = 0;
        return cudaSuccess;
    }
    if (self->driver.ctx_get_current(&context) != CUDA_SUCCESS || !context) {
        return current_without_context(kept, device);
    }
    without_context = 0; // what was said before may not be so after this context
    for (int i = 0; i < self->count; i++) {
        if (atomic_load_explicit(&self->devices[i].primary, memory_order_relaxed) ==
            context) {
            *device = i;
            return cudaSuccess;
        }
    }
    return current_unknown(self, device);
}

cudaError_t
cuda_current(const cuda_self *self, int *device)
{
    return current_device(self, true, device);
}

/* By its context, which every driver tells; cudaStreamGetDevice needs one of 12.8. */
cudaError_t
cuda_device_of_stream(const cuda_self *self, cudaStream_t stream, int *device)
{
    CUcontext context = NULL;
    CUcontext ours;
    CUdevice handle;
    CUresult result;

    if (self->count == 1) {
        *device = 0;
        return cudaSuccess;
    }
    result = self->driver.stream_get_ctx(stream, &context);
    if (result == CUDA_SUCCESS) {
        result = self->driver.ctx_push(context);
    }
    if (result != CUDA_SUCCESS) {
        return cuda_from_driver(result);
    }
    result = self->driver.ctx_get_device(&handle);
    /* Fails only when the driver is gone. */
    (void)self->driver.ctx_pop(&ours);
    return result == CUDA_SUCCESS ? number_of(self, handle, device)
                                  : cuda_from_driver(result);
}

/* ---- guard ---- */

cudaError_t
cuda_enter(const cuda_self *self, int device, cuda_guard *guard)
{
    CUcontext context = NULL;
    cudaError_t error;
    int current = -1;

    if (!cuda_has_device(self, device)) {
        return cudaErrorInvalidDevice;
    }
    guard->self = self;
    guard->pushed = false;
    error = current_device(self, false, &current);
    if (error != cudaSuccess || current == device) {
        return error;
    }
    error = primary_hold(self, device, &context);
    if (error != cudaSuccess) {
        return error;
    }
    error = cuda_from_driver(self->driver.ctx_push(context));
    guard->pushed = error == cudaSuccess;
    return error;
}

void
cuda_leave(const cuda_guard *guard)
{
    CUcontext ours;

    if (guard->pushed) {
        /* Fails only when the driver is gone, and with it what there was to restore. */
        (void)guard->self->driver.ctx_pop(&ours);
    }
}

/* Pushes also where the device is current already, that is its context once more, since
 * what runs on top may make another one current. */
cudaError_t
cuda_push(const cuda_self *self, int device, CUcontext *before)
{
    CUcontext context = NULL;
    cudaError_t error = cudaSuccess;
    int current = -1;

    if (!cuda_has_device(self, device)) {
        return cudaErrorInvalidDevice;
    }
    if (self->driver.ctx_get_current(&context) == CUDA_SUCCESS && context) {
        error = cuda_current(self, &current);
    }
    *before = context;
    if (error == cudaSuccess && current != device) {
        error = primary_hold(self, device, &context);
    }
    return error == cudaSuccess ? cuda_from_driver(self->driver.ctx_push(context))
                                : error;
}

void
cuda_pop(const cuda_self *self, CUcontext before)
{
    CUcontext context = NULL;

    /* Both fail only when the driver is gone, or `before` was destroyed meanwhile. */
    (void)self->driver.ctx_pop(&context);
    context = NULL;
    (void)self->driver.ctx_get_current(&context);
    if (context != before) { // somebody pushed, or popped, without the other
        (void)self->driver.ctx_set_current(before);
    }
}

#endif
