/* SPDX-License-Identifier: MIT
 *
 * Blocks: the slabs their nodes come from. See gm_block.h.
 *
 * Slabs double from 4 KiB to 64 KiB of nodes, so that a small pool stays small and a
 * pool of a million blocks makes few calls. They are not given back one by one: a node
 * must stay readable for stale handles.
 */
#include "gm_block.h"

#include "gm_process.h" // gm_host_alloc_aligned

struct gm_slab {
    gm_slab *next;
    _Alignas(GM_CACHE_LINE) gm_block blocks[];
};

enum {
    SLAB_MIN = 64,
    SLAB_MAX = 1024,
};

/* Of the `number`th node: 0 for half of all, 1 for a quarter and so on, well mixed. */
static uint8_t
rank_of(size_t number)
{
    uint64_t x = (uint64_t)number * 0x9E3779B97F4A7C15u;

    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    x ^= x >> 32;
    return (uint8_t)__builtin_ctzll(x | 1ull << 63);
}

bool
gm_block_store_grow(gm_block_store *store)
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
    store->slabs = slab;
    for (size_t i = count; i-- > 0;) {
        gm_block *block = &slab->blocks[i];

        block->generation = 0;
        block->rank = rank_of(store->nodes + i);
        gm_block_give(store, block);
    }
    store->nodes += count;
    return true;
}

bool
gm_block_store_reserve(gm_block_store *store, size_t count)
{
    const gm_block *block = store->spare;
    size_t found = 0;

    while (block && found < count) {
        block = block->u.spare;
        found++;
    }
    while (found < count) {
        size_t before = store->nodes;

        if (!gm_block_store_grow(store)) {
            return false;
        }
        found += store->nodes - before;
    }
    return true;
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
