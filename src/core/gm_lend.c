/* SPDX-License-Identifier: MIT
 *
 * Memory that passes from one stream to another.
 *
 * What an ended stream left belongs to nobody (gm_stream_end.c made it part of the
 * commons). A stream that finds there what it needs takes over the segment, so that
 * memory goes from stream to stream one segment at a time and there is never more than
 * one arena that is no stream's.
 *
 * What a living stream has free is not touched while there is other memory, for its
 * work may still use it. A request that would fail otherwise borrows: it takes the
 * block, waits for the whole device, and has it until it is dropped. The block stays of
 * its arena, where it returns when the borrower's stream is done with it.
 *
 * Cost: taking over is linear in the blocks of the segment.
 * Borrowing looks at every arena and waits for the device.
 */
#include "gm_pending.h"
#include "gm_pool_private.h"

void
gm_pool_adopt_locked(gm_pool *pool, gm_stream_key key, size_t rounded)
{
    gm_arena *commons = pool->arenas.commons;
    gm_block *block = commons ? gm_index_best(&commons->index, rounded) : NULL;
    gm_arena *own = block ? gm_arena_pin(&pool->arenas, key) : NULL;

    if (!own) { // nothing there or no host memory, which the request will say itself
        return;
    }
    if (own != commons) {
        gm_arena_take_over(&pool->arenas, block->segment, own);
    }
    gm_arena_unpin(&pool->arenas, own);
}

/* The best fit among all arenas, and which one has it. */
static gm_block *
best_of_all_locked(const gm_pool *pool, size_t rounded, gm_arena **owner)
{
    const gm_arena_table *table = &pool->arenas;
    gm_block *best = NULL;

    for (size_t i = 0; i < table->bucket_count; i++) {
        for (gm_arena *arena = table->buckets[i]; arena; arena = arena->chain) {
            gm_block *block = gm_index_best(&arena->index, rounded);

            if (block && (!best || gm_tree_before(block, best))) {
                best = block;
                *owner = arena;
            }
        }
    }
    return best;
}

/* Makes a block of whichever arena live for the request; NULL for none. */
static gm_block *
take_from_any_locked(gm_pool *pool, const gm_request *request)
{
    size_t rounded = gm_size_round(request->size);
    gm_arena *owner = NULL;
    gm_block *block;

    if (!gm_block_store_prepare(&pool->store)) {
        return NULL;
    }
    block = best_of_all_locked(pool, rounded, &owner);
    if (!block) {
        return NULL;
    }
    gm_pool_note_cached_locked(pool);
    (void)gm_pool_carve_locked(pool, &owner->index, block, rounded);
    pool->stats.hits++;
    gm_pool_hand_out_locked(pool, block, request);
    return block;
}

bool
gm_pool_lend(gm_pool *pool,
             const gm_request *request,
             const gm_rescue *rescue,
             gm_block **out)
{
    const gm_backend *b = pool->upstream.backend;
    const gm_stream_use *by = rescue ? rescue->by : NULL;
    gm_block *block;

    if (!b || !by || gm_process_is_special()) {
        return false;
    }
    gm_pool_lock(pool);
    block = take_from_any_locked(pool, request);
    gm_pool_unlock(pool);
    if (!block) {
        return false;
    }
    /* Taken first and waited for then, so that nobody queues more work on it. */
    if (gm_backend_device_synchronize(b, pool->device) != GM_OK ||
        gm_pool_record_use(pool, block, block->generation, by) != GM_OK) {
        gm_pool_free(pool, block, block->generation);
        return false;
    }
    *out = block;
    return true;
}
