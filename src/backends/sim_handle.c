/* SPDX-License-Identifier: MIT
 *
 * Handles of streams and events.
 *
 * A handle is a number made of its table's base and an index, not an address, so that a
 * dead handle, one of the other kind, one of another instance or plain nonsense is
 * recognised without touching memory. The index given back last is given out first:
 * code that tells streams apart by their handle fails here as it would on a driver. Or,
 * on demand, never again: then a dead handle stays recognisable for good.
 *
 * Cost: O(1). The serial counter is the only state of the process in this backend.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <stdatomic.h>
#include <string.h>

#define STRIDE ((uintptr_t)16) // the first handle is above the default streams' names
#define BASE_SHIFT 40
#define BASE_MASK (((uintptr_t)1 << 22) - 1)

static _Atomic uint64_t last_serial;

uint64_t
sim_next_serial(void)
{
    return atomic_fetch_add_explicit(&last_serial, 1, memory_order_relaxed) + 1;
}

void
sim_table_init(sim_table *table)
{
    // Masked, so that a handle is positive as a signed number. Two tables four million
    // serials apart share a base: each still knows its own handles.
    uintptr_t serial = (uintptr_t)sim_next_serial() & BASE_MASK;
    *table = (sim_table){.base = serial << BASE_SHIFT};
}

void
sim_table_fini(sim_table *table)
{
    gm_host_free(table->objects);
    gm_host_free(table->spare);
    *table = (sim_table){.base = table->base};
}

/* Doubles the room. Both arrays grow together: an index given back always has a place
 * in `spare`. */
static gm_status
grow(sim_table *table)
{
    uint32_t capacity = table->capacity > 0 ? 2 * table->capacity : 16;
    void **objects = gm_host_alloc(capacity * sizeof *objects);
    uint32_t *spare = gm_host_alloc(capacity * sizeof *spare);
    if (objects == NULL || spare == NULL) {
        gm_host_free(objects);
        gm_host_free(spare);
        return GM_ERR_HOST_MEMORY;
    }
    if (table->capacity > 0) {
        memcpy(objects, table->objects, table->used * sizeof *objects);
        memcpy(spare, table->spare, table->spares * sizeof *spare);
    }
    gm_host_free(table->objects);
    gm_host_free(table->spare);
    table->objects = objects;
    table->spare = spare;
    table->capacity = capacity;
    return GM_OK;
}

uintptr_t
sim_table_handle(const sim_table *table, uint32_t index)
{
    return table->base + (index + 1) * STRIDE;
}

gm_status
sim_table_add(sim_table *table, void *object, uintptr_t *out)
{
    if ((table->spares == 0 || table->once) && table->used == table->capacity) {
        gm_status status = grow(table);
        if (status != GM_OK) {
            return status;
        }
    }
    bool reuse = table->spares > 0 && !table->once;
    uint32_t index = reuse ? table->spare[--table->spares] : table->used++;
    table->objects[index] = object;
    *out = sim_table_handle(table, index);
    return GM_OK;
}

/* The index of a handle; `used` when it cannot be one of ours. */
static uint32_t
index_of(const sim_table *table, uintptr_t handle)
{
    uintptr_t offset = handle - table->base; // huge when below the base
    if (offset == 0 || offset % STRIDE != 0 || offset / STRIDE > table->used) {
        return table->used;
    }
    return (uint32_t)(offset / STRIDE - 1);
}

void *
sim_table_get(const sim_table *table, uintptr_t handle)
{
    uint32_t index = index_of(table, handle);
    return index < table->used ? table->objects[index] : NULL;
}

void
sim_table_remove(sim_table *table, uintptr_t handle)
{
    uint32_t index = index_of(table, handle);
    GM_ASSERT(index < table->used && table->objects[index] != NULL);
    table->objects[index] = NULL;
    table->spare[table->spares++] = index;
}

/* ---- for tests ---- */

bool
gm_sim_recycle_handles(const gm_backend *b, bool recycle)
{
    gm_sim *sim = b->self;
    if (sim_is_gone(sim)) {
        return true;
    }
    pthread_mutex_lock(&sim->mutex);
    bool before = !sim->streams.once;
    sim->streams.once = !recycle;
    sim->events.once = !recycle;
    sim->graphs.once = !recycle;
    sim->execs.once = !recycle;
    sim->handles.once = !recycle;
    pthread_mutex_unlock(&sim->mutex);
    return before;
}
