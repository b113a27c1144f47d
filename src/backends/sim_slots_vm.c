/* SPDX-License-Identifier: MIT
 *
 * The simulated device's slots for memory by page (sim_vm.h). None of them waits for
 * the device, also not the one that unmaps.
 */
#include "sim_call.h"

gm_status
sim_slot_vm_granularity(void *self, int device, size_t *bytes)
{
    const sim_call call = {self, .slot = SIM_SLOT_vm_granularity, .device = device};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_vm_granularity(self, device, bytes));
}

gm_status
sim_slot_vm_reserve(void *self, size_t size, uintptr_t *out)
{
    sim_call call = {self, .slot = SIM_SLOT_vm_reserve, .size = size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    status = sim_vm_reserve(self, size, out);
    call.ptr = status == GM_OK ? *out : 0;
    return sim_leave(&call, status);
}

gm_status
sim_slot_vm_unreserve(void *self, uintptr_t ptr, size_t size)
{
    const sim_call call = {self, SIM_SLOT_vm_unreserve, 0, ptr, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_vm_unreserve(self, ptr, size));
}

gm_status
sim_slot_vm_create(void *self, int device, size_t size, gm_handle *out)
{
    sim_call call = {self, SIM_SLOT_vm_create, device, 0, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    status = sim_vm_create(self, device, size, out);
    call.ptr = status == GM_OK ? *out : 0;
    return sim_leave(&call, status);
}

gm_status
sim_slot_vm_release(void *self, gm_handle handle)
{
    const sim_call call = {self, .slot = SIM_SLOT_vm_release, .ptr = handle};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_vm_release(self, handle));
}

gm_status
sim_slot_vm_map(void *self, uintptr_t ptr, size_t size, gm_handle handle)
{
    const sim_call call = {self, SIM_SLOT_vm_map, 0, ptr, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_vm_map(self, ptr, size, handle));
}

gm_status
sim_slot_vm_unmap(void *self, uintptr_t ptr, size_t size)
{
    const sim_call call = {self, SIM_SLOT_vm_unmap, 0, ptr, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_vm_unmap(self, ptr, size));
}

gm_status
sim_slot_vm_set_access(void *self, uintptr_t ptr, size_t size, int device)
{
    const sim_call call = {self, SIM_SLOT_vm_set_access, device, ptr, size};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_vm_set_access(self, ptr, size, device));
}
