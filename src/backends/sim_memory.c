/* SPDX-License-Identifier: MIT
 *
 * The memory of the simulated devices: one window a device, and one for what lives on
 * the host's side, pinned and managed memory.
 *
 * By default a device's window is as long as its capacity, so a request needs one free
 * stretch of its size: stricter than hardware, which maps scattered pages. With
 * `scattered` the window is SCATTER times as long and capacity alone decides; first
 * fit runs out of addresses then only for a pattern that needs more than that, far
 * beyond what programs do. What somebody else holds is cut off the end.
 *
 * Managed memory takes nothing from a device's capacity: as on hardware it may be
 * larger than the device.
 *
 * Cost: a lookup tries each window (at most 17), then a tree. The mutex is held
 * throughout, also while queued copies run: a device is one machine.
 */
#include "sim.h"

#define SCATTER 16

/* Addresses for pinned and managed memory, at least; more where the devices are larger,
 * so that a program can exceed them. No more than that: valgrind maps 32 GiB at most.
 */
#define HOST_LEAST ((size_t)16 << 30)

gm_status
sim_memory_init(gm_sim *sim, const gm_sim_options *options)
{
    size_t memory = options->memory;
    if (memory == 0 || memory > GM_SIM_MAX_MEMORY / (size_t)options->devices ||
        options->others > memory) {
        return GM_ERR_INVALID_VALUE;
    }
    memory = (memory + SIM_SEGMENT - 1) & ~(SIM_SEGMENT - 1);
    size_t others = (options->others + SIM_UNIT - 1) & ~(SIM_UNIT - 1);
    size_t capacity = memory - others;
    size_t length = options->scattered ? SCATTER * memory : capacity;
    size_t host = 2 * memory * (size_t)options->devices;

    sim->device_memory = memory;
    for (int device = 0; device < options->devices; device++) {
        if (length == 0) {
            continue; // all of it is somebody else's
        }
        gm_status status =
            sim_window_init(&sim->devices[device].memory, length, capacity);
        if (status != GM_OK) {
            return status;
        }
    }
    if (host < HOST_LEAST) {
        host = HOST_LEAST;
    }
    return sim_window_init(&sim->host, host, host);
}

void
sim_memory_fini(gm_sim *sim)
{
    for (int device = 0; device < GM_SIM_MAX_DEVICES; device++) {
        sim_window_fini(&sim->devices[device].memory);
    }
    sim_window_fini(&sim->host);
}

static bool
is_kind(gm_mem_kind kind)
{
    return kind == GM_MEM_DEVICE || kind == GM_MEM_MANAGED || kind == GM_MEM_PINNED;
}

static sim_window *
window_for(gm_sim *sim, int device, gm_mem_kind kind)
{
    return kind == GM_MEM_DEVICE ? &sim->devices[device].memory : &sim->host;
}

/* The range, live or free, of whichever window `ptr` falls in; NULL for none. */
static const sim_range *
find_range(const gm_sim *sim, uintptr_t ptr)
{
    const sim_range *range = sim_window_find(&sim->host, ptr);
    for (int device = 0; range == NULL && device < sim->device_count; device++) {
        range = sim_window_find(&sim->devices[device].memory, ptr);
    }
    return range;
}

/* Bytes that all devices hold now. */
static size_t
device_bytes(const gm_sim *sim)
{
    size_t bytes = 0;
    for (int device = 0; device < sim->device_count; device++) {
        bytes += sim->devices[device].memory.used;
    }
    return bytes;
}

gm_status
sim_mem_alloc(gm_sim *sim, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if (!is_kind(kind)) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    sim_range *range = NULL;
    gm_status status = sim_window_take(window_for(sim, device, kind), size, &range);
    if (status != GM_OK) {
        return status;
    }
    range->asked = size;
    range->kind = kind;
    range->device = device;
    sim->ledger.allocations++;
    sim->ledger.bytes += size;
    if (kind == GM_MEM_DEVICE && device_bytes(sim) > sim->ledger.peak_bytes) {
        sim->ledger.peak_bytes = device_bytes(sim);
    }
    *out = range->start;
    return GM_OK;
}

gm_status
sim_mem_free(gm_sim *sim, int device, gm_mem_kind kind, uintptr_t ptr)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if (!is_kind(kind)) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    sim_window *window = window_for(sim, device, kind);
    sim_range *range = sim_window_find(window, ptr);
    if (range == NULL || !range->live || range->start != ptr || range->kind != kind ||
        range->device != device) {
        return sim_bad_value(sim);
    }
    sim_drain(sim, device);
    sim->ledger.allocations--;
    sim->ledger.bytes -= range->asked;
    sim_window_give(window, range);
    return GM_OK;
}

gm_status
sim_mem_info(gm_sim *sim, int device, size_t *free_bytes, size_t *total_bytes)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    const sim_window *window = &sim->devices[device].memory;
    *free_bytes = window->capacity - window->used;
    *total_bytes = sim->device_memory;
    return GM_OK;
}

void
sim_pointer_info(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info)
{
    const sim_range *range = find_range(sim, ptr);
    if (range == NULL || !range->live || ptr - range->start >= range->asked) {
        *info = (gm_pointer_info){.kind = GM_POINTER_UNREGISTERED, .device = -1};
        return;
    }
    gm_pointer_kind kind = GM_POINTER_DEVICE;
    if (range->kind == GM_MEM_MANAGED) {
        kind = GM_POINTER_MANAGED;
    }
    else if (range->kind == GM_MEM_PINNED) {
        kind = GM_POINTER_HOST;
    }
    *info = (gm_pointer_info){.kind = kind,
                              .device = range->device,
                              .base = range->start,
                              .size = range->asked};
}

bool
sim_range_usable(const gm_sim *sim, uintptr_t ptr, size_t size, bool host)
{
    if (ptr == 0 || size > UINTPTR_MAX - ptr) {
        return false;
    }
    const sim_range *range = find_range(sim, ptr);
    if (range == NULL) {
        return host;
    }
    size_t offset = ptr - range->start;
    return range->live && offset <= range->asked && size <= range->asked - offset;
}

gm_status
sim_check_copy(
    gm_sim *sim, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind)
{
    bool dst_host = kind == GM_COPY_DEVICE_TO_HOST || kind == GM_COPY_DEFAULT;
    bool src_host = kind == GM_COPY_HOST_TO_DEVICE || kind == GM_COPY_DEFAULT;
    if (kind < GM_COPY_HOST_TO_DEVICE || kind > GM_COPY_DEFAULT) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    return sim_range_usable(sim, dst, size, dst_host) &&
                   sim_range_usable(sim, src, size, src_host)
               ? GM_OK
               : sim_bad_value(sim);
}

gm_status
sim_check_set(gm_sim *sim, uintptr_t dst, size_t size)
{
    return sim_range_usable(sim, dst, size, false) ? GM_OK : sim_bad_value(sim);
}

gm_status
sim_check_managed(gm_sim *sim, uintptr_t ptr, size_t size, int device)
{
    const sim_range *range = find_range(sim, ptr);

    if (device != -1 && !sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    return range != NULL && range->kind == GM_MEM_MANAGED &&
                   sim_range_usable(sim, ptr, size, false)
               ? GM_OK
               : sim_bad_value(sim);
}
