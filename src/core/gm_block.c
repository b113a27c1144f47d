/* SPDX-License-Identifier: MIT
 *
 * Blocks: the slab their nodes come from, split and merge. See gm_block.h.
 *
 * Slabs double from 4 KiB to 64 KiB of nodes, so that a small pool stays small and a
 * pool of a million blocks makes few calls. They are not given back one by one: a node
 * must stay readable for stale handles.
 */
#include "gm_block.h"

#include "gm_process.h" // gm_host_alloc_aligned

struct gm_slab {
    gm_slab *next;
    size_t count;
    _Alignas(GM_CACHE_LINE) gm_block blocks[];
};

enum {
    SLAB_MIN = 64,
    SLAB_MAX = 1024,
};

GM_COLD static bool
store_grow(gm_block_store *store)
{
    size_t count = store->nodes < SLAB_MIN   ? SLAB_MIN
                   : store->nodes < SLAB_MAX ? store->nodes
                                             : SLAB_MAX;
    gm_slab *slab = gm_host_alloc_aligned(GM_CACHE_LINE,
                                          sizeof(gm_slab) + count * sizeof(gm_block));

    if (!slab) {
        return false;
    }
    slab->next = store->slabs;
    slab->count = count;
    store->slabs = slab;
    store->nodes += count;
    for (size_t i = count; i-- > 0;) {
        gm_block *block = &slab->blocks[i];

        block->generation = 0;
        gm_block_give(store, block);
    }
    return true;
}

bool
gm_block_store_prepare(gm_block_store *store)
{
    return GM_LIKELY(store->spare) || store_grow(store);
}

void
gm_block_store_fini(gm_block_store *store)
{
    gm_slab *slab = store->slabs;

    while (slab) {
        gm_slab *next = slab->next;

        gm_host_free(slab);
        slab = next;
    }
    *store = (gm_block_store){0};
}

gm_block *
gm_block_take(gm_block_store *store)
{
    gm_block *block = store->spare;

    GM_ASSERT(block && block->state == GM_BLOCK_SPARE);
    store->spare = block->u.spare;
    return block;
}

void
gm_block_give(gm_block_store *store, gm_block *block)
{
    block->state = GM_BLOCK_SPARE;
    block->u.spare = store->spare;
    store->spare = block;
}

void
gm_block_split(gm_block *block, size_t size, gm_block *tail)
{
    GM_ASSERT(block->size > size && size > 0);
    tail->addr = block->addr + size;
    tail->size = block->size - size;
    tail->segment = block->segment;
    tail->prev = block;
    tail->next = block->next;
    if (block->next) {
        block->next->prev = tail;
    }
    block->next = tail;
    block->size = size;
}

void
gm_block_absorb_next(gm_block *block)
{
    gm_block *next = block->next;

    GM_ASSERT(next && next->segment == block->segment);
    GM_ASSERT(block->addr + block->size == next->addr);
    block->size += next->size;
    block->next = next->next;
    if (next->next) {
        next->next->prev = block;
    }
}
