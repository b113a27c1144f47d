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
    gm_block *block = commons ? gm_large_best(pool, commons, rounded) : NULL;
    gm_arena *own = block ? gm_pool_pin_arena_locked(pool, key) : NULL;

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

/* A block that was taken, and how that was counted. */
typedef struct loan {
    gm_block *block;
    uint32_t generation;
    bool cut;
    gm_stats before;
    gm_stats after;
} loan;

/* Makes a block of whichever arena live for the request. False where there is none. */
static bool
take_from_any_locked(gm_pool *pool, const gm_request *request, loan *l)
{
    size_t rounded = gm_size_round(request->size);
    gm_arena *owner = NULL;
    gm_block *block;
    bool cut;

    if (!gm_block_store_prepare(&pool->store)) {
        return false;
    }
    block = best_of_all_locked(pool, rounded, &owner);
    if (!block) {
        return false;
    }
    gm_pool_note_cached_locked(pool);
    cut = gm_pool_carve_locked(pool, &owner->index, block, rounded);
    *l = (loan){
        .block = block,
        .generation = block->generation,
        .cut = cut,
        .before = pool->stats,
    };
    pool->stats.hits++;
    gm_pool_hand_out_locked(pool, block, request);
    l->after = pool->stats;
    return true;
}

/* A peak that the loan raised from `before` to `after`, and nobody since, is what it
 * would be without. */
static void
lower_peak(size_t *peak, size_t before, size_t after, size_t now)
{
    if (*peak == after && after > before) {
        *peak = now > before ? now : before;
    }
}

/* Gives the block back as if it had not been taken: the request fails, and requests
 * that fail are not counted. */
static void
take_back_locked(gm_pool *pool, const loan *l)
{
    const gm_stats *before = &l->before;
    const gm_stats *after = &l->after;
    gm_stats *stats = &pool->stats;
    size_t merges = stats->merges;

    gm_pool_end_handle_locked(pool, l->block); // void, where the bytes went meanwhile
    if (l->cut && stats->merges > merges) {    // joined with what it was cut off
        stats->splits--;
        stats->merges--;
    }
    stats->hits--;
    stats->allocated_bytes -= after->allocated_bytes - before->allocated_bytes;
    stats->allocated_requested_bytes -=
        after->allocated_requested_bytes - before->allocated_requested_bytes;
    lower_peak(&stats->peak_requested_bytes, before->peak_requested_bytes,
               after->peak_requested_bytes, stats->requested_bytes);
    lower_peak(&stats->peak_used_bytes, before->peak_used_bytes, after->peak_used_bytes,
               stats->used_bytes);
    lower_peak(&stats->peak_live_blocks, before->peak_live_blocks,
               after->peak_live_blocks, stats->live_blocks);
}

bool
gm_pool_lend(gm_pool *pool,
             const gm_request *request,
             const gm_rescue *rescue,
             gm_block **out)
{
    const gm_backend *b = pool->upstream.backend;
    const gm_stream_use *by = rescue ? rescue->by : NULL;
    loan l;
    bool taken;

    if (!b || !by || gm_process_is_special()) {
        return false;
    }
    gm_pool_lock(pool);
    taken = take_from_any_locked(pool, request, &l);
    gm_pool_unlock(pool);
    if (!taken) {
        return false;
    }
    /* Taken first and waited for then, so that nobody queues more work on it. */
    if (gm_backend_device_synchronize(b, pool->device) != GM_OK ||
        gm_pool_record_use(pool, l.block, l.generation, by) != GM_OK) {
        gm_pool_lock(pool);
        take_back_locked(pool, &l);
        gm_pool_leave(pool);
        return false;
    }
    *out = l.block;
    return true;
}
