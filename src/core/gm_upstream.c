/* SPDX-License-Identifier: MIT
 *
 * The upstream most pools have: a backend's ordinary device memory.
 */
#include "gm_upstream.h"

static gm_status
backend_take(void *context, int device, size_t size, gm_piece *out)
{
    const gm_backend *backend = context;
    uintptr_t ptr;
    gm_status status = gm_backend_mem_alloc(backend, device, GM_MEM_DEVICE, size, &ptr);

    if (status == GM_OK) {
        *out = (gm_piece){.base = ptr, .size = size, .device = device};
    }
    return status;
}

static void
backend_give(void *context, int device, const gm_piece *piece)
{
    const gm_backend *backend = context;

    /* A device that refuses a free has lost the memory; there is nobody to tell. */
    (void)gm_backend_mem_free(backend, device, GM_MEM_DEVICE, piece->base);
}

static gm_status
backend_room(
    void *context, int device, const gm_range *back, size_t count, gm_room *out)
{
    const gm_backend *backend = context;
    gm_room room;
    gm_status status =
        gm_backend_mem_info(backend, device, &room.free_bytes, &room.total_bytes);

    if (status == GM_OK) {
        status = gm_backend_mem_largest(backend, device, back, count, &room.largest);
    }
    if (status == GM_OK) {
        *out = room;
    }
    return status;
}

gm_upstream
gm_upstream_of_backend(const gm_backend *backend)
{
    return (gm_upstream){
        .context = (void *)(uintptr_t)backend,
        .backend = backend,
        .take = backend_take,
        .give = backend_give,
        .room = backend_room,
    };
}
