/* SPDX-License-Identifier: MIT
 *
 * The memory of the simulated devices: one window a device, and one for what lives on
 * the host's side, pinned and managed memory.
 *
 * By default a device's window is as long as it has memory, so a request needs one free
 * stretch of its size: stricter than hardware, which maps scattered pages. With
 * `scattered` the window is SCATTER times as long and capacity alone decides; first
 * fit runs out of addresses then only for a pattern that needs more than that, far
 * beyond what programs do. What somebody else holds lowers the capacity, and lies
 * nowhere.
 *
 * Managed memory takes nothing from a device's capacity: as on hardware it may be
 * larger than the device. Memory of a pool takes its share as long as the pool holds
 * it, and memory by page (sim_vm.c) as long as it exists.
 *
 * Cost: a lookup tries each window (at most 17), then a tree. The mutex is held
 * throughout, also while queued copies run: a device is one machine.
 */
#include "sim.h"

#include <sys/mman.h> // mincore()
#include <unistd.h>   // sysconf()

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
    size_t length = options->scattered ? SCATTER * memory : memory;
    size_t host = 2 * memory * (size_t)options->devices;

    sim->device_memory = memory;
    for (int device = 0; device < options->devices; device++) {
        sim->devices[device].support =
            GM_DEVICE_MEMORY_POOLS | GM_DEVICE_MANAGED | GM_DEVICE_CONCURRENT_MANAGED |
            GM_DEVICE_PAGEABLE_ACCESS | GM_DEVICE_VIRTUAL_MEMORY;
        gm_status status =
            sim_window_init(&sim->devices[device].memory, length, memory - others);
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
    sim_range *range =
        sim->host.length > 0 ? sim_window_find(&sim->host, sim->host.start) : NULL;
    for (; range != NULL; range = range->next) {
        sim_managed_forget(range);
    }
    for (int device = 0; device < GM_SIM_MAX_DEVICES; device++) {
        sim_window_fini(&sim->devices[device].memory);
    }
    sim_window_fini(&sim->host);
}

static bool
is_kind(gm_mem_kind kind)
{
    return kind == GM_MEM_DEVICE || kind == GM_MEM_MANAGED || kind == GM_MEM_PINNED ||
           kind == GM_MEM_WRITE_COMBINED;
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

void
sim_note_peak(gm_sim *sim)
{
    size_t bytes = device_bytes(sim);
    if (bytes > sim->ledger.peak_bytes) {
        sim->ledger.peak_bytes = bytes;
    }
}

gm_status
sim_take_device_range(gm_sim *sim, int device, size_t size, sim_range **out)
{
    sim_range *range = NULL;
    gm_status status = sim_window_take(&sim->devices[device].memory, size, &range);
    if (status != GM_OK) {
        return status;
    }
    range->asked = size;
    range->kind = GM_MEM_DEVICE;
    range->device = device;
    sim_note_peak(sim);
    *out = range;
    return GM_OK;
}

/* Managed memory may be larger than its device only where host and device can use it
 * at once. */
static gm_status
take_host_range(gm_sim *sim, int device, gm_mem_kind kind, size_t size, sim_range **out)
{
    unsigned support = sim->devices[device].support;
    if (kind == GM_MEM_MANAGED) {
        if ((support & GM_DEVICE_MANAGED) == 0) {
            return GM_DEVICE_ERROR(SIM_CODE_NOT_SUPPORTED);
        }
        if ((support & GM_DEVICE_CONCURRENT_MANAGED) == 0 &&
            size > sim->device_memory) {
            return GM_ERR_OUT_OF_MEMORY;
        }
    }
    sim_range *range = NULL;
    gm_status status = sim_window_take(&sim->host, size, &range);
    if (status != GM_OK) {
        return status;
    }
    range->asked = size;
    range->kind = kind;
    range->device = device;
    *out = range;
    return GM_OK;
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
    gm_status status = kind == GM_MEM_DEVICE
                           ? sim_take_device_range(sim, device, size, &range)
                           : take_host_range(sim, device, kind, size, &range);
    if (status != GM_OK) {
        return status;
    }
    sim->ledger.allocations++;
    sim->ledger.bytes += size;
    *out = range->start;
    return GM_OK;
}

/* The live allocation of a kind that begins at `ptr`; NULL where there is none. */
static sim_range *
find_allocation(gm_sim *sim, int device, gm_mem_kind kind, uintptr_t ptr)
{
    sim_range *range = sim_window_find(window_for(sim, device, kind), ptr);
    return range != NULL && range->live && !range->parked && range->start == ptr &&
                   range->kind == kind && range->device == device
               ? range
               : NULL;
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
    if (find_allocation(sim, device, kind, ptr) == NULL) {
        return sim_bad_value(sim);
    }
    gm_status status = sim_wait_device(sim, device);
    if (status != GM_OK) {
        return status;
    }
    sim_range *range = find_allocation(sim, device, kind, ptr);
    if (range == NULL) {
        return sim_bad_value(sim); // who waited let go of the lock
    }
    sim->ledger.allocations--;
    sim->ledger.bytes -= range->asked;
    if (range->pool != NULL) {
        sim_pool_park(sim, range, NULL);
        sim_pools_settle(sim);
    }
    else {
        sim_managed_forget(range);
        sim_window_give(window_for(sim, device, kind), range);
    }
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

gm_status
sim_mem_largest(
    gm_sim *sim, int device, const gm_range *back, size_t count, size_t *bytes)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    *bytes = sim_window_largest(&sim->devices[device].memory, back, count);
    return GM_OK;
}

void
sim_pointer_info(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info)
{
    static const gm_pointer_kind kinds[] = {
        [GM_MEM_DEVICE] = GM_POINTER_DEVICE,
        [GM_MEM_MANAGED] = GM_POINTER_MANAGED,
        [GM_MEM_PINNED] = GM_POINTER_HOST,
        [GM_MEM_WRITE_COMBINED] = GM_POINTER_HOST,
    };
    const sim_range *range = find_range(sim, ptr);
    if (range == NULL &&
        (sim_import_find(sim, ptr, info) || sim_vm_info(sim, ptr, info))) {
        return;
    }
    if (range == NULL || !range->live || range->parked ||
        ptr - range->start >= range->asked) {
        *info = (gm_pointer_info){.kind = GM_POINTER_UNREGISTERED, .device = -1};
        return;
    }
    *info = (gm_pointer_info){.kind = kinds[range->kind],
                              .device = range->device,
                              .base = range->start,
                              .size = range->asked};
}

/* Whether work that was queued earlier may still touch a pool's memory: the program has
 * it, or gave it back later than that. A stream may have been given it again since, and
 * cut it, so the bounds are those of what the pool holds. */
static bool
is_pool_range_usable(const sim_range *range, uintptr_t ptr, size_t size)
{
    const sim_pool *pool = range->pool;
    uintptr_t end = ptr + size;
    while (range != NULL && range->pool == pool &&
           (!range->parked || (range->freed != NULL && !range->freed->done))) {
        if (end <= range->start + range->size) {
            return true;
        }
        range = range->next;
    }
    return false;
}

bool
sim_range_usable(const gm_sim *sim, uintptr_t ptr, size_t size, bool host, bool queued)
{
    if (ptr == 0 || size > UINTPTR_MAX - ptr) {
        return false;
    }
    const sim_range *range = find_range(sim, ptr);
    gm_pointer_info import;
    if (range == NULL && sim_import_find(sim, ptr, &import)) {
        return size <= import.size - (ptr - import.base);
    }
    if (range == NULL) {
        return host && !sim_vm_holds(sim, ptr);
    }
    if (queued && range->live && range->pool != NULL) {
        return is_pool_range_usable(range, ptr, size);
    }
    size_t offset = ptr - range->start;
    return range->live && !range->parked && offset <= range->asked &&
           size <= range->asked - offset;
}

/* Whether anything is at an address of the host's. */
static bool
is_mapped(uintptr_t ptr)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;
    return mincore((void *)(ptr & ~(page - 1)), page, &resident) == 0;
}

/* The same of both ends of a range. A wrong address is to be refused, where a device
 * would fault. */
static bool
is_host(uintptr_t ptr, size_t size)
{
    return size <= UINTPTR_MAX - ptr && is_mapped(ptr) && is_mapped(ptr + size - 1);
}

/* Whether one end of new work may be touched. *by is the device that does,
 * SIM_BY_STREAM for that of the stream, and becomes SIM_BY_ANY where there are no pages
 * to ask. */
static bool
is_end_usable(
    const gm_sim *sim, int device, uintptr_t ptr, size_t size, bool host, int *by)
{
    if (!sim_vm_holds(sim, ptr)) {
        *by = SIM_BY_ANY;
        return sim_range_usable(sim, ptr, size, host, false);
    }
    if (*by == SIM_BY_STREAM) {
        *by = device;
    }
    return sim_vm_usable(sim, ptr, size, *by, 0);
}

gm_status
sim_check_copy(gm_sim *sim, int device, sim_work *work, gm_copy_kind kind)
{
    uintptr_t dst = work->dst;
    uintptr_t src = work->src;
    size_t size = work->size;
    bool any = kind == GM_COPY_DEFAULT;
    bool dst_host = kind == GM_COPY_DEVICE_TO_HOST || (any && is_host(dst, size));
    bool src_host = kind == GM_COPY_HOST_TO_DEVICE || (any && is_host(src, size));
    if (kind < GM_COPY_HOST_TO_DEVICE || kind > GM_COPY_DEFAULT) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    return is_end_usable(sim, device, dst, size, dst_host, &work->dst_by) &&
                   is_end_usable(sim, device, src, size, src_host, &work->src_by)
               ? GM_OK
               : sim_bad_value(sim);
}

bool
sim_reaches_host(const gm_sim *sim, int device, uintptr_t ptr, size_t size)
{
    return (sim->devices[device].support & GM_DEVICE_PAGEABLE_ACCESS) != 0 &&
           is_host(ptr, size);
}

gm_status
sim_check_set(gm_sim *sim, int device, sim_work *work)
{
    bool host = sim_reaches_host(sim, device, work->dst, work->size);
    return is_end_usable(sim, device, work->dst, work->size, host, &work->dst_by)
               ? GM_OK
               : sim_bad_value(sim);
}

sim_range *
sim_find_managed(const gm_sim *sim, uintptr_t ptr, size_t size)
{
    sim_range *range = sim_window_find(&sim->host, ptr);
    return range != NULL && range->live && range->kind == GM_MEM_MANAGED &&
                   sim_range_usable(sim, ptr, size, false, false)
               ? range
               : NULL;
}

/* ---- the end of a device ---- */

/* Ends a device's live ranges in a window, allocations or not. */
static void
reset_window(gm_sim *sim, sim_window *window, int device)
{
    sim_range *range = sim_window_find(window, window->start);
    while (range != NULL) {
        if (!range->live || range->device != device) {
            range = range->next;
            continue;
        }
        if (!range->parked) {
            sim->ledger.allocations--;
            sim->ledger.bytes -= range->asked;
        }
        uintptr_t start = range->start;
        sim_managed_forget(range);
        sim_window_give(window, range);
        range = sim_window_find(window, start)->next; // it may have joined others
    }
}

void
sim_memory_reset(gm_sim *sim, int device)
{
    reset_window(sim, &sim->devices[device].memory, device);
    reset_window(sim, &sim->host, device);
}

/* ---- for tests ---- */

gm_status
gm_sim_set_others(const gm_backend *b, int device, size_t bytes)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return GM_ERR_FORKED;
    }
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    gm_status status = GM_ERR_OUT_OF_MEMORY;
    pthread_mutex_lock(&sim->mutex);
    sim_window *window = &sim->devices[device].memory;
    if (bytes <= sim->device_memory - window->used) {
        size_t others = (bytes + SIM_UNIT - 1) & ~(SIM_UNIT - 1);
        window->capacity = sim->device_memory - others;
        status = GM_OK;
    }
    pthread_mutex_unlock(&sim->mutex);
    return status;
}
