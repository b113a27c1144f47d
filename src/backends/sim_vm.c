/* SPDX-License-Identifier: MIT
 *
 * Physical memory of the simulated devices, by page: made, mapped, reached.
 *
 * A handle takes its bytes from the device's capacity, beside what mem_alloc took, and
 * lies in the way of nothing: any free pages do, as on hardware, so handles fragment
 * the device neither for one another nor for allocations. In the device's memory file
 * it is a stretch past the window of those, which no other handle has or had; the file
 * is as sparse as that makes it, a page exists from the first write, and new memory
 * reads as 0.
 *
 * A mapping shows nothing before some device may reach it: until then, and once it is
 * unmapped, a touch by the host faults as one by a device would. What a device may
 * touch is checked when work is queued and again when it runs. Unmapping waits for
 * nothing: work that still was to touch the range is a fault of the program, which
 * sim_stream.c makes one of the device.
 *
 * What is wrong is refused with the driver's numbers: addresses and sizes off the unit,
 * outside of what is reserved, over what is mapped, parts of a handle or a mapping. So
 * is what a driver does not see, such as a mapping past the end of what is reserved, or
 * what it may not survive, a handle that is dead. As there all of it is the device's
 * and no context's: none is made, a reset takes nothing along, a sticky fault stops
 * nothing.
 *
 * Cost: O(segments) of the range; showing and hiding are one system call a mapping and
 * one a range. The system bounds how many mappings a
 * process has (65530 unless told otherwise); past that GM_ERR_HOST_MEMORY.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <fcntl.h> // fallocate()
#include <sys/mman.h>
#include <unistd.h> // ftruncate()

GM_STATIC_ASSERT(GM_SIM_MAX_DEVICES <= 32, "a bit a device");

static uint32_t
bit_of(int device)
{
    return (uint32_t)1 << device;
}

gm_status
sim_vm_granularity(const gm_sim *sim, int device, size_t *bytes)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if ((sim->devices[device].support & GM_DEVICE_VIRTUAL_MEMORY) == 0) {
        return GM_ERR_UNSUPPORTED;
    }
    *bytes = SIM_SEGMENT;
    return GM_OK;
}

/* ---- physical memory ---- */

/* Places new pages past all others of the device. */
static gm_status
extend_file(gm_sim *sim, sim_pages *pages)
{
    const sim_window *window = &sim->devices[pages->device].memory;
    uint64_t *end = &sim->vm.ends[pages->device];
    if (*end == 0) {
        *end = window->length;
    }
    if (ftruncate(window->file, (off_t)(*end + pages->size)) != 0) {
        return GM_ERR_HOST_MEMORY;
    }
    pages->offset = *end;
    *end += pages->size;
    return GM_OK;
}

gm_status
sim_vm_create(gm_sim *sim, int device, size_t size, gm_handle *out)
{
    size_t unit = 0;
    uintptr_t handle = 0;
    gm_status status = sim_vm_granularity(sim, device, &unit);
    if (status != GM_OK) {
        return status;
    }
    sim_window *window = &sim->devices[device].memory;
    if (size % unit != 0) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    if (size > window->capacity - window->used) {
        return GM_ERR_OUT_OF_MEMORY;
    }
    sim_pages *pages = gm_host_alloc(sizeof *pages);
    if (pages == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    *pages = (sim_pages){.device = device, .size = size, .next = sim->vm.pages};
    status = extend_file(sim, pages);
    if (status == GM_OK) {
        status = sim_table_add(&sim->handles, pages, &handle);
    }
    if (status != GM_OK) {
        gm_host_free(pages);
        return status;
    }
    pages->handle = handle;
    if (pages->next != NULL) {
        pages->next->prev = pages;
    }
    sim->vm.pages = pages;
    window->used += size;
    sim_note_peak(sim);
    sim->ledger.handles++;
    sim->ledger.handle_bytes += size;
    *out = handle;
    return GM_OK;
}

/* Ends physical memory that nobody holds and that is mapped nowhere. */
static void
end_pages(gm_sim *sim, sim_pages *pages)
{
    sim_window *window = &sim->devices[pages->device].memory;
    // A failure costs memory and nothing else: nobody gets this stretch again.
    (void)fallocate(window->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)pages->offset, (off_t)pages->size);
    window->used -= pages->size;
    sim->ledger.handles--;
    sim->ledger.handle_bytes -= pages->size;
    if (pages->prev != NULL) {
        pages->prev->next = pages->next;
    }
    else {
        sim->vm.pages = pages->next;
    }
    if (pages->next != NULL) {
        pages->next->prev = pages->prev;
    }
    gm_host_free(pages);
}

static void
end_if_unused(gm_sim *sim, sim_pages *pages)
{
    if (pages->handle == 0 && pages->mappings == NULL) {
        end_pages(sim, pages);
    }
}

gm_status
sim_vm_release(gm_sim *sim, gm_handle handle)
{
    sim_pages *pages = sim_table_get(&sim->handles, (uintptr_t)handle);
    if (pages == NULL) {
        return sim_bad_value(sim);
    }
    sim_table_remove(&sim->handles, (uintptr_t)handle);
    pages->handle = 0;
    end_if_unused(sim, pages);
    return GM_OK;
}

/* ---- mappings ---- */

/* The first mapping of a range at or after *at; *at becomes the address that follows
 * it, `end` where there is none before that. */
static sim_mapping *
next_mapping(const sim_vm_range *range, uintptr_t *at, uintptr_t end)
{
    while (*at < end) {
        sim_mapping *mapping = sim_vm_mapping_at(range, *at);
        if (mapping != NULL) {
            *at = mapping->start + mapping->pages->size;
            return mapping;
        }
        *at += SIM_SEGMENT;
    }
    return NULL;
}

/* The reserved range of these addresses, where they cut no mapping in two and, unless
 * `holes` are allowed, have something behind them throughout; NULL where not. */
static sim_vm_range *
find_whole(const gm_sim *sim, uintptr_t ptr, size_t size, bool holes)
{
    sim_vm_range *range = sim_vm_find(sim, ptr, size);
    if (range == NULL || ptr % SIM_SEGMENT != 0 || size % SIM_SEGMENT != 0) {
        return NULL;
    }
    uintptr_t end = ptr + size;
    for (uintptr_t at = ptr; at < end;) {
        uintptr_t from = at;
        const sim_mapping *mapping = next_mapping(range, &at, end);
        if (at > end || (mapping != NULL && mapping->start < ptr) ||
            (!holes && (mapping == NULL || mapping->start != from))) {
            return NULL;
        }
    }
    return range;
}

static bool
is_empty(const sim_vm_range *range, uintptr_t ptr, size_t size)
{
    for (size_t offset = 0; offset < size; offset += SIM_SEGMENT) {
        if (sim_vm_mapping_at(range, ptr + offset) != NULL) {
            return false;
        }
    }
    return true;
}

gm_status
sim_vm_map(gm_sim *sim, uintptr_t ptr, size_t size, gm_handle handle)
{
    sim_pages *pages = sim_table_get(&sim->handles, (uintptr_t)handle);
    sim_vm_range *range = sim_vm_find(sim, ptr, size);
    if (pages == NULL || range == NULL || ptr % SIM_SEGMENT != 0) {
        return sim_bad_value(sim);
    }
    if (size != pages->size) {
        sim->ledger.errors++;
        return GM_DEVICE_ERROR(SIM_CODE_NOT_SUPPORTED);
    }
    if (!is_empty(range, ptr, size)) {
        return sim_bad_value(sim);
    }
    sim_mapping *mapping = gm_host_alloc(sizeof *mapping);
    if (mapping == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    *mapping = (sim_mapping){
        .start = ptr, .pages = pages, .since = sim->number, .next = pages->mappings};
    if (mapping->next != NULL) {
        mapping->next->prev = mapping;
    }
    pages->mappings = mapping;
    sim_vm_table_set(range, ptr, size, mapping);
    range->mappings++;
    sim->ledger.mappings++;
    sim->ledger.mapped_bytes += size;
    return GM_OK;
}

/* Forgets a mapping that shows nothing any more. */
static void
end_mapping(gm_sim *sim, sim_vm_range *range, sim_mapping *mapping)
{
    sim_pages *pages = mapping->pages;
    sim_vm_table_set(range, mapping->start, pages->size, NULL);
    range->mappings--;
    sim->ledger.mappings--;
    sim->ledger.mapped_bytes -= pages->size;
    if (mapping->prev != NULL) {
        mapping->prev->next = mapping->next;
    }
    else {
        pages->mappings = mapping->next;
    }
    if (mapping->next != NULL) {
        mapping->next->prev = mapping->prev;
    }
    gm_host_free(mapping);
}

gm_status
sim_vm_unmap(gm_sim *sim, uintptr_t ptr, size_t size)
{
    sim_vm_range *range = find_whole(sim, ptr, size, true);
    if (range == NULL) {
        return sim_bad_value(sim);
    }
    if (!sim_vm_hide(ptr, size)) {
        return GM_ERR_HOST_MEMORY;
    }
    uintptr_t at = ptr;
    sim_mapping *mapping = next_mapping(range, &at, ptr + size);
    while (mapping != NULL) {
        sim_pages *pages = mapping->pages;
        end_mapping(sim, range, mapping);
        end_if_unused(sim, pages);
        mapping = next_mapping(range, &at, ptr + size);
    }
    return GM_OK;
}

/* ---- who reaches it ---- */

/* Puts a mapping's bytes where it is. A forked child does not get them. */
static gm_status
show(const gm_sim *sim, const sim_mapping *mapping)
{
    const sim_pages *pages = mapping->pages;
    void *bytes = mmap((void *)mapping->start, pages->size, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
                       sim->devices[pages->device].memory.file, (off_t)pages->offset);
    if (bytes == MAP_FAILED) {
        return GM_ERR_HOST_MEMORY;
    }
    if (madvise(bytes, pages->size, MADV_DONTFORK) != 0) {
        (void)sim_vm_hide(mapping->start, pages->size);
        return GM_ERR_HOST_MEMORY;
    }
    return GM_OK;
}

/* Shows what nobody reached yet of some whole mappings; all of it or nothing. */
static gm_status
show_all(const gm_sim *sim, const sim_vm_range *range, uintptr_t ptr, size_t size)
{
    gm_status status = GM_OK;
    uintptr_t at = ptr;
    while (status == GM_OK && at < ptr + size) {
        const sim_mapping *mapping = next_mapping(range, &at, ptr + size);
        if (mapping->access == 0) {
            status = show(sim, mapping);
        }
    }
    uintptr_t end = status == GM_OK ? ptr : at;
    for (at = ptr; at < end;) {
        const sim_mapping *mapping = next_mapping(range, &at, end);
        if (mapping->access == 0) {
            (void)sim_vm_hide(mapping->start, mapping->pages->size);
        }
    }
    return status;
}

gm_status
sim_vm_set_access(gm_sim *sim, uintptr_t ptr, size_t size, int device)
{
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    sim_vm_range *range = find_whole(sim, ptr, size, false);
    if (range == NULL) {
        return sim_bad_value(sim);
    }
    for (uintptr_t at = ptr; at < ptr + size;) {
        int owner = next_mapping(range, &at, ptr + size)->pages->device;
        if (owner != device && !sim_peer_possible(sim, device, owner)) {
            return GM_DEVICE_ERROR(SIM_CODE_PEER_UNSUPPORTED);
        }
    }
    gm_status status = show_all(sim, range, ptr, size);
    if (status != GM_OK) {
        return status;
    }
    for (uintptr_t at = ptr; at < ptr + size;) {
        next_mapping(range, &at, ptr + size)->access |= bit_of(device);
    }
    return GM_OK;
}

bool
sim_vm_usable(
    const gm_sim *sim, uintptr_t ptr, size_t size, int device, uint64_t queued)
{
    const sim_vm_range *range = sim_vm_find(sim, ptr, size);
    uintptr_t at = ptr;
    while (range != NULL && at < ptr + size) {
        const sim_mapping *mapping = sim_vm_mapping_at(range, at);
        if (mapping == NULL || (mapping->access & bit_of(device)) == 0 ||
            (queued != 0 && mapping->since >= queued)) {
            return false;
        }
        at = mapping->start + mapping->pages->size;
    }
    return range != NULL;
}

bool
sim_vm_info(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info)
{
    const sim_vm_range *range = sim_vm_find(sim, ptr, 1);
    const sim_mapping *mapping = range != NULL ? sim_vm_mapping_at(range, ptr) : NULL;
    if (mapping == NULL) {
        return false;
    }
    *info =
        (gm_pointer_info){.kind = GM_POINTER_DEVICE, .device = mapping->pages->device};
    if (mapping->access != 0) { // before that a driver does not tell
        info->base = mapping->start;
        info->size = mapping->pages->size;
    }
    return true;
}

void
sim_vm_fini(gm_sim *sim)
{
    while (sim->vm.pages != NULL) {
        sim_pages *pages = sim->vm.pages;
        while (pages->mappings != NULL) {
            sim_mapping *mapping = pages->mappings;
            pages->mappings = mapping->next;
            gm_host_free(mapping);
        }
        sim->vm.pages = pages->next;
        gm_host_free(pages);
    }
    sim_vm_ranges_fini(sim);
    sim_table_fini(&sim->handles);
}
