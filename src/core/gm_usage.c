/* SPDX-License-Identifier: MIT
 *
 * What each client has in use of a pool, found by a walk over its blocks: so requests
 * pay nothing for it but the number that their block keeps.
 *
 * Cost: linear in the blocks of the pool, under its lock. There is no peak of a client
 * for that reason: it would have to be counted as it happens.
 */
#include "gm_note.h" // gm_note.requested
#include "gm_pool_private.h"

/* Calls for each live block of the pool. */
static void
walk_locked(const gm_pool *pool,
            bool plain,
            void (*visit)(const gm_block *block, void *context),
            void *context)
{
    for (const gm_segment *s = pool->first; s; s = s->next) {
        if (plain && s->piece.pooled) {
            continue;
        }
        for (const gm_block *block = s->first; block; block = block->next) {
            if (gm_block_is_live(block)) {
                visit(block, context);
            }
        }
    }
}

static void
raise_number(const gm_block *block, void *context)
{
    uint16_t *highest = context;

    *highest = block->client > *highest ? block->client : *highest;
}

static void
add_usage(const gm_block *block, void *context)
{
    gm_usage *usage = (gm_usage *)context + block->client;

    usage->used_bytes += block->size;
    usage->requested_bytes += block->state == GM_BLOCK_NOTED
                                  ? block->u.noted.note->requested
                                  : block->u.live.requested;
    usage->live_blocks++;
}

gm_status
gm_pool_count_clients(gm_pool *pool, bool plain, gm_usage *usages, size_t count)
{
    uint16_t highest = 0;

    if (gm_process_is_forked()) {
        return GM_ERR_FORKED;
    }
    gm_pool_lock(pool);
    walk_locked(pool, plain, raise_number, &highest);
    if (highest < count) {
        walk_locked(pool, plain, add_usage, usages);
    }
    gm_pool_leave(pool);
    return highest < count ? GM_OK : GM_BUSY;
}
