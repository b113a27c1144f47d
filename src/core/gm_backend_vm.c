/* SPDX-License-Identifier: MIT
 *
 * The wrappers of the slots that are all optional and go together: memory by page, and
 * memory of other processes. What a wrapper does is said in gm_backend.c.
 */
#include "gm_backend_private.h"

/* ---- virtual memory ---- */

gm_status
gm_backend_vm_granularity(const gm_backend *b, int device, size_t *bytes)
{
    size_t value = 0;
    gm_status status = CALL_OPTIONAL(b, vm_granularity, device, &value);
    return take_nonzero(status, value, bytes);
}

gm_status
gm_backend_vm_reserve(const gm_backend *b, size_t size, uintptr_t *out)
{
    if (size == 0) {
        return GM_ERR_INVALID_VALUE;
    }
    uintptr_t ptr = 0;
    gm_status status = CALL_OPTIONAL(b, vm_reserve, size, &ptr);
    return take_nonzero(status, ptr, out);
}

gm_status
gm_backend_vm_unreserve(const gm_backend *b, uintptr_t ptr, size_t size)
{
    return CALL_OPTIONAL(b, vm_unreserve, ptr, size);
}

gm_status
gm_backend_vm_create(const gm_backend *b, int device, size_t size, gm_handle *out)
{
    if (size == 0) {
        return GM_ERR_INVALID_VALUE;
    }
    gm_handle handle = 0;
    gm_status status = CALL_OPTIONAL(b, vm_create, device, size, &handle);
    if (status == GM_OK) {
        *out = handle; // 0 may be a handle: physical memory has no address
    }
    return status;
}

gm_status
gm_backend_vm_release(const gm_backend *b, gm_handle handle)
{
    return CALL_OPTIONAL(b, vm_release, handle);
}

gm_status
gm_backend_vm_map(const gm_backend *b, uintptr_t ptr, size_t size, gm_handle handle)
{
    return size > 0 ? CALL_OPTIONAL(b, vm_map, ptr, size, handle)
                    : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_vm_unmap(const gm_backend *b, uintptr_t ptr, size_t size)
{
    return size > 0 ? CALL_OPTIONAL(b, vm_unmap, ptr, size) : GM_ERR_INVALID_VALUE;
}

gm_status
gm_backend_vm_set_access(const gm_backend *b, uintptr_t ptr, size_t size, int device)
{
    return size > 0 ? CALL_OPTIONAL(b, vm_set_access, ptr, size, device)
                    : GM_ERR_INVALID_VALUE;
}

/* ---- other processes ---- */

gm_status
gm_backend_ipc_export(const gm_backend *b, uintptr_t ptr, gm_ipc_handle *out)
{
    gm_ipc_handle value = {{0}};
    gm_status status = CALL_OPTIONAL(b, ipc_export, ptr, &value);
    if (status == GM_OK) {
        *out = value;
    }
    return status;
}

gm_status
gm_backend_ipc_open(const gm_backend *b,
                    int device,
                    const gm_ipc_handle *handle,
                    uintptr_t *base)
{
    uintptr_t ptr = 0;
    gm_status status = CALL_OPTIONAL(b, ipc_open, device, handle, &ptr);
    return take_nonzero(status, ptr, base);
}

gm_status
gm_backend_ipc_close(const gm_backend *b, uintptr_t base)
{
    return CALL_OPTIONAL(b, ipc_close, base);
}
