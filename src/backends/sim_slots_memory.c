/* SPDX-License-Identifier: MIT
 *
 * The simulated device's slots for memory: allocate and free, pools of stream-ordered
 * memory, managed memory, what an address is, and memory of other processes.
 */
#include "sim_call.h"

/* ---- allocate and free ---- */

gm_status
sim_slot_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes)
{
    const sim_call call = {self, .slot = SIM_SLOT_mem_info, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_mem_info(self, device, free_bytes, total_bytes));
}

gm_status
sim_slot_mem_largest(
    void *self, int device, const gm_range *back, size_t count, size_t *bytes)
{
    const sim_call call = {self, .slot = SIM_SLOT_mem_largest, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_mem_largest(self, device, back, count, bytes));
}

gm_status
sim_slot_mem_alloc(
    void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    sim_call call = {self, SIM_SLOT_mem_alloc, device, 0, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    uintptr_t ptr = 0;
    status = sim_mem_alloc(self, device, kind, size, &ptr);
    if (status == GM_OK) {
        *out = ptr;
    }
    call.ptr = ptr;
    return sim_leave(&call, status);
}

gm_status
sim_slot_mem_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr)
{
    const sim_call call = {self, SIM_SLOT_mem_free, device, ptr, 0};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_mem_free(self, device, kind, ptr));
}

/* ---- in the order of a stream ---- */

gm_status
sim_slot_mem_alloc_async(
    void *self, int device, size_t size, gm_stream handle, uintptr_t *out)
{
    sim_call call = {self, SIM_SLOT_mem_alloc_async, device, 0, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *stream = NULL;
    uintptr_t ptr = 0;
    status = sim_stream_use(self, handle, &stream);
    if (status == GM_OK) {
        status = sim_mem_alloc_async(self, device, size, stream, &ptr);
    }
    if (status == GM_OK) {
        *out = ptr;
    }
    call.ptr = ptr;
    return sim_leave(&call, status);
}

gm_status
sim_slot_mem_free_async(void *self, int device, uintptr_t ptr, gm_stream handle)
{
    const sim_call call = {self, SIM_SLOT_mem_free_async, device, ptr, 0};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *stream = NULL;
    status = sim_stream_use(self, handle, &stream);
    if (status == GM_OK) {
        status = sim_mem_free_async(self, device, ptr, stream);
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_mem_pool_get(void *self, int device, bool original, gm_mem_pool *out)
{
    const sim_call call = {self, .slot = SIM_SLOT_mem_pool_get, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_pool_get(self, device, original, out));
}

gm_status
sim_slot_mem_pool_set(void *self, int device, gm_mem_pool pool)
{
    const sim_call call = {self, SIM_SLOT_mem_pool_set, device, pool, 0};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_pool_set(self, device, pool));
}

gm_status
sim_slot_mem_pool_trim(void *self, gm_mem_pool pool, size_t keep)
{
    const sim_call call = {self, SIM_SLOT_mem_pool_trim, 0, pool, keep};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_pool_trim(self, pool, keep));
}

gm_status
sim_slot_mem_pool_read(void *self,
                       gm_mem_pool pool,
                       gm_mem_pool_field field,
                       uint64_t *value)
{
    const sim_call call = {self, .slot = SIM_SLOT_mem_pool_read, .ptr = pool};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_pool_read(self, pool, field, value));
}

gm_status
sim_slot_mem_pool_write(void *self,
                        gm_mem_pool pool,
                        gm_mem_pool_field field,
                        uint64_t value)
{
    const sim_call call = {self, .slot = SIM_SLOT_mem_pool_write, .ptr = pool};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_pool_write(self, pool, field, value));
}

/* ---- managed memory ---- */

gm_status
sim_slot_mem_prefetch(
    void *self, uintptr_t ptr, size_t size, int device, gm_stream handle)
{
    const sim_work work = {
        .kind = SIM_OP_PREFETCH, .dst = ptr, .size = size, .value = device};
    const sim_call call = {self, SIM_SLOT_mem_prefetch, device, ptr, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *stream = NULL;
    status = sim_stream_use(self, handle, &stream);
    if (status == GM_OK) {
        status = sim_check_managed(self, ptr, size, device);
    }
    if (status == GM_OK) {
        status = sim_submit(self, stream, &work, NULL);
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_mem_advise(void *self, uintptr_t ptr, size_t size, int advice, int device)
{
    const sim_call call = {self, SIM_SLOT_mem_advise, device, ptr, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_managed_advise(self, ptr, size, advice, device));
}

/* ---- addresses ---- */

gm_status
sim_slot_pointer_info(void *self, uintptr_t ptr, gm_pointer_info *info)
{
    const sim_call call = {self, .slot = SIM_SLOT_pointer_info, .ptr = ptr};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_touch(self, sim_thread_device(self)); // as the runtime does
    sim_pointer_info(self, ptr, info);
    return sim_leave(&call, GM_OK);
}

/* ---- other processes ---- */

gm_status
sim_slot_ipc_export(void *self, uintptr_t ptr, gm_ipc_handle *out)
{
    const sim_call call = {self, .slot = SIM_SLOT_ipc_export, .ptr = ptr};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_ipc_export(self, ptr, out));
}

gm_status
sim_slot_ipc_open(void *self, int device, const gm_ipc_handle *handle, uintptr_t *base)
{
    sim_call call = {self, .slot = SIM_SLOT_ipc_open, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    status = sim_ipc_open(self, device, handle, base);
    call.ptr = status == GM_OK ? *base : 0;
    return sim_leave(&call, status);
}

gm_status
sim_slot_ipc_close(void *self, uintptr_t base)
{
    const sim_call call = {self, .slot = SIM_SLOT_ipc_close, .ptr = base};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_ipc_close(self, base));
}
