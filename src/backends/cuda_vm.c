/* SPDX-License-Identifier: MIT
 *
 * Virtual memory slots of the cuda backend: addresses, physical memory, and putting the
 * one behind the other.
 *
 * All of it is the driver's, none of it the runtime's. No call needs a context or makes
 * one, none waits for the device: cuMemUnmap takes a range from under a running kernel,
 * and the fault is the caller's.
 *
 * The driver believes what it is told more than elsewhere: a handle that never was
 * crashes it, one that was released is still mapped while it is so elsewhere, and a
 * mapping may go on past the end of a reservation. The simulated device refuses all
 * three.
 *
 * Memory is made with no handle type for other processes: one that can be exported must
 * be chosen when the memory is made.
 *
 * Threading: any thread.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

static CUmemAllocationProp
properties_of(const cuda_self *cuda, int device)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = cuda->devices[device].handle},
    };
}

static gm_status
status_of(CUresult result)
{
    return cuda_status(cuda_from_driver(result));
}

static gm_status
status_of_release(CUresult result)
{
    return cuda_status_of_release(cuda_from_driver(result));
}

/* Whether the device is there and can do it at all. */
static gm_status
check_device(const cuda_self *cuda, int device)
{
    bool supported = false;
    cudaError_t error;

    if (!cuda_has_device(cuda, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    error = cuda_has_virtual_memory(cuda, device, &supported);
    if (error != cudaSuccess) {
        return cuda_status(error);
    }
    return supported ? GM_OK : GM_ERR_UNSUPPORTED;
}

cudaError_t
cuda_has_virtual_memory(const cuda_self *cuda, int device, bool *supported)
{
    int value = 0;
    CUresult result = cuda->driver.device_get_attribute(
        &value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        cuda->devices[device].handle);

    *supported = result == CUDA_SUCCESS && value != 0;
    return cuda_from_driver(result);
}

gm_status
cuda_vm_granularity(void *self, int device, size_t *bytes)
{
    const cuda_self *cuda = self;
    CUmemAllocationProp properties;
    gm_status status = check_device(cuda, device);

    if (status != GM_OK) {
        return status;
    }
    properties = properties_of(cuda, device);
    return status_of(cuda->driver.mem_get_granularity(
        bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

/* ---- addresses ---- */

gm_status
cuda_vm_reserve(void *self, size_t size, uintptr_t *out)
{
    const cuda_self *cuda = self;
    CUdeviceptr ptr = 0;
    gm_status status = status_of(cuda->driver.mem_address_reserve(&ptr, size, 0, 0, 0));

    if (status == GM_OK) {
        *out = (uintptr_t)ptr;
    }
    return status;
}

gm_status
cuda_vm_unreserve(void *self, uintptr_t ptr, size_t size)
{
    const cuda_self *cuda = self;

    return status_of_release(cuda->driver.mem_address_free((CUdeviceptr)ptr, size));
}

/* ---- physical memory ---- */

gm_status
cuda_vm_create(void *self, int device, size_t size, gm_handle *out)
{
    const cuda_self *cuda = self;
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp properties;
    gm_status status = check_device(cuda, device);

    if (status != GM_OK) {
        return status;
    }
    properties = properties_of(cuda, device);
    status = status_of(cuda->driver.mem_create(&handle, size, &properties, 0));
    if (status == GM_OK) {
        *out = handle;
    }
    return status;
}

gm_status
cuda_vm_release(void *self, gm_handle handle)
{
    const cuda_self *cuda = self;

    return status_of_release(cuda->driver.mem_release(handle));
}

/* ---- the one behind the other ---- */

gm_status
cuda_vm_map(void *self, uintptr_t ptr, size_t size, gm_handle handle)
{
    const cuda_self *cuda = self;

    return status_of(cuda->driver.mem_map((CUdeviceptr)ptr, size, 0, handle, 0));
}

gm_status
cuda_vm_unmap(void *self, uintptr_t ptr, size_t size)
{
    const cuda_self *cuda = self;

    return status_of_release(cuda->driver.mem_unmap((CUdeviceptr)ptr, size));
}

gm_status
cuda_vm_set_access(void *self, uintptr_t ptr, size_t size, int device)
{
    const cuda_self *cuda = self;
    CUmemAccessDesc access;

    if (!cuda_has_device(cuda, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    access = (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = cuda->devices[device].handle},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    return status_of(cuda->driver.mem_set_access((CUdeviceptr)ptr, size, &access, 1));
}

#endif
