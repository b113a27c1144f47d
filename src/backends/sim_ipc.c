/* SPDX-License-Identifier: MIT
 *
 * Handles of memory for other processes, and memory of theirs.
 *
 * A handle says which process, which of its memory files and where in that: opening one
 * maps the file anew, through /proc, so both processes see the same bytes. The file's
 * inode is in it too, so that a handle of a process that ended is not taken for one of
 * its successor. As with the runtime a handle names a whole allocation, is not for the
 * process that made it, can be opened again (the same address, counted), and is not to
 * be had for memory of pools or of the host.
 *
 * Whole pages are mapped, so that what lies beside the allocation can be reached as on
 * hardware; copies and sets are held to its bounds. Whether the other process still has
 * the allocation cannot be seen, as there.
 *
 * Cost: each look-up of an address that is not the device's own walks what is open.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <fcntl.h> // open()
#include <stdio.h> // snprintf()
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x67706d73u
#define PAGE ((uint64_t)4096)

/* What the bytes of a handle are. */
typedef struct export
{
    uint32_t magic;
    int32_t process;
    int32_t file;
    int32_t device;
    uint64_t inode;
    uint64_t offset;
    uint64_t size;
}
export;

GM_STATIC_ASSERT(sizeof(export) <= sizeof(gm_ipc_handle), "a handle has room for it");

struct sim_import {
    gm_ipc_handle handle;
    int device;
    unsigned opened;
    void *pages;
    size_t length;
    uintptr_t base;
    size_t size;
    sim_import *next;
};

static export read_handle(const gm_ipc_handle *handle)
{
    export found;
    memcpy(&found, handle->bytes, sizeof found);
    return found;
}

gm_status
sim_ipc_export(gm_sim *sim, uintptr_t ptr, gm_ipc_handle *out)
{
    struct stat status;
    for (int device = 0; device < sim->device_count; device++) {
        const sim_window *window = &sim->devices[device].memory;
        const sim_range *range = sim_window_find(window, ptr);
        if (range == NULL || !range->live || range->pool != NULL ||
            ptr - range->start >= range->asked) {
            continue;
        }
        if (fstat(window->file, &status) != 0) {
            return GM_DEVICE_ERROR(SIM_CODE_OPERATING_SYSTEM);
        }
        const export made = {.magic = MAGIC,
                             .process = getpid(),
                             .file = window->file,
                             .device = device,
                             .inode = status.st_ino,
                             .offset = range->start - window->start,
                             .size = range->asked};
        *out = (gm_ipc_handle){{0}};
        memcpy(out->bytes, &made, sizeof made);
        return GM_OK;
    }
    return sim_bad_value(sim);
}

/* Maps what a handle names. */
static gm_status
map(const export *from, sim_import *import)
{
    char path[64];
    struct stat status;
    uint64_t start = from->offset & ~(PAGE - 1);
    uint64_t end = (from->offset + from->size + PAGE - 1) & ~(PAGE - 1);
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", from->process, from->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_HANDLE);
    }
    if (fstat(file, &status) != 0 || status.st_ino != from->inode ||
        (uint64_t)status.st_size < end) {
        (void)close(file);
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_HANDLE);
    }
    void *pages =
        mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)start);
    (void)close(file);
    if (pages == MAP_FAILED) {
        return GM_ERR_HOST_MEMORY;
    }
    if (madvise(pages, end - start, MADV_DONTFORK) != 0) {
        (void)munmap(pages, end - start);
        return GM_ERR_HOST_MEMORY;
    }
    import->pages = pages;
    import->length = end - start;
    import->base = (uintptr_t)pages + (from->offset - start);
    import->size = from->size;
    return GM_OK;
}

gm_status
sim_ipc_open(gm_sim *sim, int device, const gm_ipc_handle *handle, uintptr_t *base)
{
    const export from = read_handle(handle);
    if (!sim_has_device(sim, device)) {
        return GM_ERR_INVALID_DEVICE;
    }
    if (from.magic != MAGIC || from.size == 0 || from.size > GM_SIM_MAX_MEMORY ||
        from.offset > GM_SIM_MAX_MEMORY) {
        return sim_bad_value(sim);
    }
    if (from.process == getpid()) {
        return GM_DEVICE_ERROR(SIM_CODE_NO_CONTEXT);
    }
    for (sim_import *known = sim->imports; known != NULL; known = known->next) {
        if (known->device == device &&
            memcmp(&known->handle, handle, sizeof *handle) == 0) {
            known->opened++;
            *base = known->base;
            return GM_OK;
        }
    }
    sim_import *import = gm_host_zalloc(sizeof *import);
    if (import == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    gm_status status = map(&from, import);
    if (status != GM_OK) {
        gm_host_free(import);
        return status;
    }
    import->handle = *handle;
    import->device = device;
    import->opened = 1;
    import->next = sim->imports;
    sim->imports = import;
    sim->ledger.imports++;
    *base = import->base;
    return GM_OK;
}

/* Ends the import that `link` points to. */
static void
end_import(gm_sim *sim, sim_import **link)
{
    sim_import *import = *link;
    *link = import->next;
    (void)munmap(import->pages, import->length);
    sim->ledger.imports--;
    gm_host_free(import);
}

static sim_import **
find_import(gm_sim *sim, uintptr_t base)
{
    sim_import **link = &sim->imports;
    while (*link != NULL && (*link)->base != base) {
        link = &(*link)->next;
    }
    return link;
}

gm_status
sim_ipc_close(gm_sim *sim, uintptr_t base)
{
    sim_import *import = *find_import(sim, base);
    if (import == NULL) {
        return sim_bad_value(sim);
    }
    if (import->opened > 1) {
        import->opened--;
        return GM_OK;
    }
    gm_status status = sim_wait_device(sim, import->device);
    if (status != GM_OK) {
        return status;
    }
    sim_import **link = find_import(sim, base); // who waited let go of the lock
    if (*link == NULL) {
        return sim_bad_value(sim);
    }
    if (--(*link)->opened == 0) {
        end_import(sim, link);
    }
    return GM_OK;
}

bool
sim_import_find(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info)
{
    const sim_import *import = sim->imports;
    while (import != NULL &&
           !(ptr >= import->base && ptr - import->base < import->size)) {
        import = import->next;
    }
    if (import == NULL) {
        return false;
    }
    *info = (gm_pointer_info){.kind = GM_POINTER_DEVICE,
                              .device = import->device,
                              .base = import->base,
                              .size = import->size};
    return true;
}

void
sim_imports_reset(gm_sim *sim, int device)
{
    sim_import **link = &sim->imports;
    while (*link != NULL) {
        if ((*link)->device == device) {
            end_import(sim, link);
        }
        else {
            link = &(*link)->next;
        }
    }
}
