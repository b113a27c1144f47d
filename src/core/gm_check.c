/* SPDX-License-Identifier: MIT
 *
 * The pool's invariants, walked from scratch. Any build can call it; tests do after
 * each step. Linear in blocks, and in free blocks times the depth of the index.
 */
#include "gm_pool_private.h"

typedef struct tally {
    size_t used, requested, total, live, free_blocks, segments;
    size_t indexed;
    const gm_block *before; // last block the index walk saw in this bin
    const char *fault;
} tally;

static void
check_block(tally *t, const gm_segment *segment, const gm_block *block)
{
    if (block->segment != segment) {
        t->fault = "a block names another segment than the one it lies in";
    }
    else if (!block->size || block->size % GM_UNIT) {
        t->fault = "a block's size is not a positive multiple of the unit";
    }
    else if (block->next && (block->next->prev != block ||
                             block->next->addr != block->addr + block->size)) {
        t->fault = "neighbouring blocks do not meet";
    }
    else if (block->state == GM_BLOCK_FREE && block->next &&
             block->next->state == GM_BLOCK_FREE) {
        t->fault = "two free neighbours were not joined";
    }
    else if (block->state == GM_BLOCK_LIVE) {
        t->live++;
        t->used += block->size;
        t->requested += block->u.live.requested;
        if (block->u.live.requested > block->size) {
            t->fault = "a live block is smaller than what was asked for";
        }
    }
    else if (block->state == GM_BLOCK_FREE) {
        t->free_blocks++;
    }
    else {
        t->fault = "a block of a segment is neither live nor free";
    }
}

static void
check_segment(tally *t, const gm_segment *segment)
{
    uintptr_t end = segment->piece.base;

    if (!segment->first || segment->first->prev ||
        segment->first->addr != segment->piece.base) {
        t->fault = "a segment does not begin with its first block";
        return;
    }
    for (const gm_block *b = segment->first; b && !t->fault; b = b->next) {
        check_block(t, segment, b);
        end = b->addr + b->size;
    }
    if (!t->fault && end != segment->piece.base + segment->size) {
        t->fault = "the blocks of a segment do not tile it";
    }
    t->segments++;
    t->total += segment->size;
}

static void
check_indexed(void *context, const gm_block *block)
{
    tally *t = context;

    t->indexed++;
    if (block->state != GM_BLOCK_FREE) {
        t->fault = "the index holds a block that is not free";
    }
    else if (t->before && gm_size_bin(t->before->size) == gm_size_bin(block->size) &&
             !gm_index_before(t->before, block)) {
        t->fault = "the index is out of order";
    }
    t->before = block;
}

static void
check_arena(tally *t, const gm_arena *arena)
{
    for (unsigned bin = 0; bin < GM_BIN_COUNT; bin++) {
        unsigned row = bin / GM_BIN_COLUMNS;
        bool marked = arena->index.columns[row] >> (bin % GM_BIN_COLUMNS) & 1u;

        if (marked != (arena->index.roots[bin] != NULL)) {
            t->fault = "a bin's mark and its content disagree";
        }
        if ((arena->index.rows >> row & 1u) != (arena->index.columns[row] != 0)) {
            t->fault = "a row's mark and its columns disagree";
        }
    }
    t->before = NULL;
    gm_index_walk(&arena->index, check_indexed, t);
}

static const char *
check_counters(const gm_pool *pool, const tally *t)
{
    const gm_stats *s = &pool->stats;

    if (t->indexed != t->free_blocks) {
        return "the indexes do not hold exactly the free blocks";
    }
    if (s->used_bytes != t->used || s->requested_bytes != t->requested ||
        s->live_blocks != t->live) {
        return "the counters of live blocks are wrong";
    }
    if (s->total_bytes != t->total || s->segments != t->segments) {
        return "the counters of segments are wrong";
    }
    if (s->free_blocks != t->free_blocks) {
        return "the count of free blocks is wrong";
    }
    if (s->peak_used_bytes < s->used_bytes || s->peak_total_bytes < s->total_bytes ||
        s->peak_requested_bytes < s->requested_bytes) {
        return "a peak lies below the present";
    }
    return NULL;
}

const char *
gm_pool_check(gm_pool *pool)
{
    tally t = {0};

    if (gm_process_is_forked()) {
        return "the pool belongs to the parent of this process";
    }
    gm_pool_lock(pool);
    for (gm_segment *s = pool->first; s && !t.fault; s = s->next) {
        check_segment(&t, s);
    }
    for (size_t i = 0; i < pool->arenas.bucket_count; i++) {
        for (gm_arena *a = pool->arenas.buckets[i]; a && !t.fault; a = a->chain) {
            check_arena(&t, a);
        }
    }
    if (!t.fault) {
        t.fault = check_counters(pool, &t);
    }
    gm_pool_unlock(pool);
    return t.fault;
}
