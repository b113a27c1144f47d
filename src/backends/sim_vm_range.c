/* SPDX-License-Identifier: MIT
 *
 * Reserved addresses of memory by page, and the table of what is mapped where.
 *
 * A reservation is a stretch of the process's addresses that nobody may touch: it costs
 * no memory however long it is, and belongs to no device. Its table has one entry for
 * each SIM_SEGMENT bytes, as a page table would, and is itself made only where it is
 * written; so a look-up costs a search among the ranges, which are few, and one load.
 *
 * A forked child inherits the addresses, with nothing behind them.
 *
 * Not here: physical memory, and who may reach it.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <string.h> // memcpy(), memmove()
#include <sys/mman.h>

#define NO_ACCESS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

/* ---- addresses ---- */

/* Addresses that nobody else has, at a whole segment; 0 where there are not so many. */
static uintptr_t
take_addresses(size_t size)
{
    if (size > SIZE_MAX - SIM_SEGMENT) {
        return 0;
    }
    void *taken = mmap(NULL, size + SIM_SEGMENT, PROT_NONE, NO_ACCESS, -1, 0);
    if (taken == MAP_FAILED) {
        return 0;
    }
    uintptr_t low = (uintptr_t)taken;
    uintptr_t start = (low + SIM_SEGMENT - 1) & ~(SIM_SEGMENT - 1);
    size_t before = start - low;
    // Both ends are cut off what is one mapping: neither can fail for want of another.
    if (before > 0) {
        (void)munmap(taken, before);
    }
    (void)munmap((void *)(start + size), SIM_SEGMENT - before);
    return start;
}

bool
sim_vm_hide(uintptr_t ptr, size_t size)
{
    void *hidden = mmap((void *)ptr, size, PROT_NONE, NO_ACCESS | MAP_FIXED, -1, 0);
    return hidden != MAP_FAILED;
}

/* ---- tables ---- */

static size_t
table_bytes(const sim_vm_range *range)
{
    return range->size / SIM_SEGMENT * sizeof(void *);
}

static sim_mapping **
entry_of(const sim_vm_range *range, uintptr_t ptr)
{
    return &range->table[(ptr - range->start) / SIM_SEGMENT];
}

sim_mapping *
sim_vm_mapping_at(const sim_vm_range *range, uintptr_t ptr)
{
    return *entry_of(range, ptr);
}

void
sim_vm_table_set(sim_vm_range *range, uintptr_t ptr, size_t size, sim_mapping *mapping)
{
    sim_mapping **entry = entry_of(range, ptr);
    for (size_t i = 0; i < size / SIM_SEGMENT; i++) {
        entry[i] = mapping;
    }
}

/* Gives back what a range is made of. */
static void
end_range(const sim_vm_range *range)
{
    (void)munmap((void *)range->start, range->size);
    if (range->table != NULL) {
        (void)munmap((void *)range->table, table_bytes(range));
    }
}

/* ---- the ranges ---- */

/* Where the first range is that begins above `ptr`. */
static size_t
index_above(const sim_vm *vm, uintptr_t ptr)
{
    size_t low = 0;
    size_t high = vm->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (vm->ranges[middle].start <= ptr) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low;
}

sim_vm_range *
sim_vm_find(const gm_sim *sim, uintptr_t ptr, size_t size)
{
    size_t above = index_above(&sim->vm, ptr);
    if (above == 0) {
        return NULL;
    }
    sim_vm_range *range = &sim->vm.ranges[above - 1];
    size_t offset = ptr - range->start;
    return offset < range->size && size <= range->size - offset ? range : NULL;
}

bool
sim_vm_holds(const gm_sim *sim, uintptr_t ptr)
{
    return sim_vm_find(sim, ptr, 1) != NULL;
}

/* Makes room for one more. */
static gm_status
grow(sim_vm *vm)
{
    if (vm->count < vm->capacity) {
        return GM_OK;
    }
    size_t capacity = vm->capacity > 0 ? 2 * vm->capacity : 8;
    sim_vm_range *ranges = gm_host_alloc(capacity * sizeof *ranges);
    if (ranges == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    if (vm->count > 0) {
        memcpy(ranges, vm->ranges, vm->count * sizeof *ranges);
    }
    gm_host_free(vm->ranges);
    vm->ranges = ranges;
    vm->capacity = capacity;
    return GM_OK;
}

gm_status
sim_vm_reserve(gm_sim *sim, size_t size, uintptr_t *out)
{
    sim_vm *vm = &sim->vm;
    if (size % SIM_SEGMENT != 0) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    gm_status status = grow(vm);
    if (status != GM_OK) {
        return status;
    }
    sim_vm_range range = {.start = take_addresses(size), .size = size};
    if (range.start == 0) {
        return GM_ERR_OUT_OF_MEMORY;
    }
    void *table = mmap(NULL, table_bytes(&range), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) {
        end_range(&range);
        return GM_ERR_HOST_MEMORY;
    }
    range.table = table;
    size_t index = index_above(vm, range.start);
    memmove(&vm->ranges[index + 1], &vm->ranges[index],
            (vm->count - index) * sizeof range);
    vm->ranges[index] = range;
    vm->count++;
    sim->ledger.reservations++;
    sim->ledger.reserved_bytes += size;
    *out = range.start;
    return GM_OK;
}

gm_status
sim_vm_unreserve(gm_sim *sim, uintptr_t ptr, size_t size)
{
    sim_vm *vm = &sim->vm;
    sim_vm_range *range = sim_vm_find(sim, ptr, 1);
    if (range == NULL || range->start != ptr || range->size != size ||
        range->mappings > 0) {
        return sim_bad_value(sim);
    }
    end_range(range);
    size_t index = (size_t)(range - vm->ranges);
    vm->count--;
    memmove(range, range + 1, (vm->count - index) * sizeof *range);
    sim->ledger.reservations--;
    sim->ledger.reserved_bytes -= size;
    return GM_OK;
}

void
sim_vm_ranges_fini(gm_sim *sim)
{
    for (size_t i = 0; i < sim->vm.count; i++) {
        end_range(&sim->vm.ranges[i]);
    }
    gm_host_free(sim->vm.ranges);
    sim->vm.ranges = NULL;
    sim->vm.count = sim->vm.capacity = 0;
}
