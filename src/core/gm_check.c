/* SPDX-License-Identifier: MIT
 *
 * The pool's invariants, walked from scratch: segments, blocks, nodes, arenas,
 * counters; those of pages are in gm_check_pages.c, of what waits in gm_check_waits.c.
 * Any build can call it; tests do after each step. Linear in blocks, and in free blocks
 * times the depth of the index.
 */
#include "gm_shard_private.h"

#if GM_SHARDS
#include <string.h> // memcmp
#endif

typedef struct tally {
    size_t used, requested, total, live, free_blocks, segments;
    size_t pending, pending_blocks, captured, captured_blocks;
    size_t indexed, blocks, arenas;
    uint8_t state;          // that the blocks of the index at hand have
    const gm_block *before; // last block the index walk saw in this bin
    const char *fault;
} tally;

static void
check_live(tally *t, const gm_block *block, size_t requested)
{
    t->live++;
    t->used += block->size;
    t->requested += requested;
    if (requested > block->size) {
        t->fault = "a live block is smaller than what was asked for";
    }
}

#if GM_SHARDS

/* Nothing is left to do there while the pool's lock is held, nor to be counted. */
static void
check_shard(tally *t, const gm_shard *shard)
{
    static const gm_stats nothing;

    if (shard->echo.block || shard->echo.resting || shard->recent) {
        t->fault = "a shard remembers what may have ended";
    }
    else if (memcmp(&shard->stats, &nothing, sizeof nothing) != 0) {
        t->fault = "a shard counted what the pool does not know";
    }
}

#endif

static void
check_state(tally *t, const gm_block *block)
{
    const gm_note *note = block->u.noted.note;

    switch ((gm_block_state)block->state) {
    case GM_BLOCK_LIVE:
        check_live(t, block, block->u.live.requested);
        break;
    case GM_BLOCK_NOTED:
        check_live(t, block, note->requested);
        if (note->block != block || note->open) {
            t->fault = "the note of a live block is not its own, or already waits";
        }
        break;
    case GM_BLOCK_PENDING:
        t->pending += block->size;
        t->pending_blocks++;
        if (note->block != block || !note->uses) {
            t->fault = "a pending block waits for nothing";
        }
        break;
    case GM_BLOCK_CAPTURED:
        t->captured += block->size;
        t->captured_blocks++;
        break;
    case GM_BLOCK_FREE:
        t->free_blocks++;
        break;
    case GM_BLOCK_MOVING: // gm_check_pages.c
    case GM_BLOCK_HOLE:
        break;
    case GM_BLOCK_SPARE:
    case GM_BLOCK_VOID:
        t->fault = "a block of a segment is in a state that has no bytes";
        break;
    }
}

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
    else if (block->state == GM_BLOCK_CAPTURED && block->next &&
             block->next->state == GM_BLOCK_CAPTURED &&
             block->next->client == block->client) {
        t->fault = "two neighbours of one capture were not joined";
    }
    else {
        check_state(t, block);
    }
}

static void
check_segment(tally *t, const gm_pool *pool, const gm_segment *segment)
{
    uintptr_t end = segment->piece.base;

    if (!segment->first || segment->first->prev ||
        segment->first->addr != segment->piece.base) {
        t->fault = "a segment does not begin with its first block";
        return;
    }
    for (const gm_block *b = segment->first; b && !t->fault; b = b->next) {
        check_block(t, segment, b);
        t->blocks++;
        end = b->addr + b->size;
    }
    if (!t->fault && end != segment->piece.base + segment->size) {
        t->fault = "the blocks of a segment do not tile it";
    }
    if (segment->next ? segment->next->prev != segment : pool->last != segment) {
        t->fault = "the list of segments is broken";
    }
    t->segments++;
    t->total += gm_segment_bytes(segment);
}

static void
check_indexed(void *context, const gm_block *block)
{
    tally *t = context;

    t->indexed++;
    if (block->state != t->state) {
        t->fault = "the index holds a block that is not free";
    }
    else if (t->before && gm_size_bin(t->before->size) == gm_size_bin(block->size) &&
             !gm_tree_before(t->before, block)) {
        t->fault = "the index is out of order";
    }
    t->before = block;
}

static void
check_index(tally *t, const gm_index *index, gm_block_state state)
{
    for (unsigned bin = 0; bin < GM_BIN_COUNT; bin++) {
        unsigned group = bin / GM_INDEX_GROUP;
        bool marked = index->bins[group] >> (bin % GM_INDEX_GROUP) & 1u;

        if (marked != (index->firsts[bin] != NULL)) {
            t->fault = "a bin's mark and its content disagree";
        }
        if ((index->groups >> group & 1u) != (index->bins[group] != 0)) {
            t->fault = "a group's mark and its bins' disagree";
        }
    }
    t->before = NULL;
    t->state = (uint8_t)state;
    gm_index_walk(index, check_indexed, t);
}

/* The pins of an arena by a note that is to make it part of the commons. */
static size_t
pins_of_notes(const gm_pool *pool, const gm_arena *arena)
{
    size_t pins = 0;

    for (const gm_note *note = pool->notes; note; note = note->next) {
        pins += note->arena == arena;
    }
    for (const gm_use *lane = pool->lanes; lane; lane = lane->lane) {
        for (const gm_use *use = lane; use; use = use->later) {
            pins += use->note->arena == arena; // whose note has this use alone
        }
    }
    return pins;
}

static void
check_arena(tally *t, const gm_pool *pool, const gm_arena *arena)
{
    size_t pins = pins_of_notes(pool, arena);
    size_t bytes = 0;

    for (const gm_segment *s = pool->first; s; s = s->next) {
        pins += s->arena == arena;
        bytes += s->arena == arena && !s->space ? s->size : 0;
    }
    if (arena->bytes != bytes) {
        t->fault = "an arena counts other bytes than those of its segments";
    }
    if (pool->reserving || pool->paging.in_flight ? arena->pins < pins
                                                  : arena->pins != pins) {
        t->fault = "an arena is pinned by more or by less than what is in it";
    }
#if GM_SHARDS
    if (arena->shard != gm_pool_shard(pool, arena->key)) {
        t->fault = "an arena is of another shard than its key";
    }
#endif
    t->arenas++;
    check_index(t, &arena->index, GM_BLOCK_FREE);
}

/* Counts the spare nodes of one store on, of as many nodes as there are. */
static void
check_store(tally *t, const gm_block_store *store, size_t made, size_t *nodes)
{
    for (const gm_block *b = store->spare; b; b = b->u.spare) {
        if (b->state != GM_BLOCK_SPARE || *nodes == made) {
            t->fault = "the list of spare nodes holds one that is not spare";
            return;
        }
        (*nodes)++;
    }
}

/* Each node is spare, a block of a segment, or its handle's alone. A request that waits
 * for upstream has some as well. They may lie in another store than they came from. */
static void
check_nodes(tally *t, const gm_pool *pool)
{
    size_t nodes = t->blocks + pool->voided;
    size_t made = pool->store.nodes;

#if GM_SHARDS
    for (const gm_shard *s = gm_pool_first_shard(pool); s; s = s->next) {
        made += s->store.nodes;
    }
    for (const gm_shard *s = gm_pool_first_shard(pool); s && !t->fault; s = s->next) {
        check_store(t, &s->store, made, &nodes);
    }
#endif
    if (!t->fault) {
        check_store(t, &pool->store, made, &nodes);
    }
    if (!t->fault &&
        (pool->reserving || pool->paging.in_flight ? nodes > made : nodes != made)) {
        t->fault = "a node is neither spare nor in use";
    }
}

static const char *
check_counters(const gm_pool *pool, const tally *t)
{
    const gm_stats *s = &pool->stats;

    if (pool->arenas.count != t->arenas) {
        return "the count of arenas is wrong";
    }
    if (t->indexed != t->free_blocks + t->captured_blocks) {
        return "the indexes do not hold exactly the free blocks";
    }
    if (s->pending_bytes != t->pending || s->pending_blocks != t->pending_blocks) {
        return "the counters of pending blocks are wrong";
    }
    if (s->captured_bytes != t->captured || s->captured_blocks != t->captured_blocks) {
        return "the counters of captured blocks are wrong";
    }
    if (s->used_bytes != t->used || s->requested_bytes != t->requested ||
        s->live_blocks != t->live) {
        return "the counters of live blocks are wrong";
    }
    if (s->total_bytes + pool->paging.withheld != t->total ||
        s->segments != t->segments) {
        return "the counters of segments are wrong";
    }
    if (gm_pool_cached_blocks_locked(pool) != t->free_blocks) {
        return "the count of free blocks is wrong";
    }
    if (s->peak_used_bytes < s->used_bytes || s->peak_total_bytes < s->total_bytes ||
        s->peak_requested_bytes < s->requested_bytes ||
        s->peak_pending_bytes < s->pending_bytes ||
        s->peak_live_blocks < s->live_blocks || s->peak_segments < s->segments) {
        return "a peak lies below the present";
    }
    if (s->allocated_bytes < s->used_bytes ||
        s->allocated_requested_bytes < s->requested_bytes ||
        s->hits + s->misses < s->live_blocks) {
        return "more is in use than was ever handed out";
    }
    if (pool->leading > pool->reserving) {
        return "more is on its way ahead of requests than in all";
    }
    if (s->upstream_allocated_bytes - s->upstream_freed_bytes - s->lost_bytes !=
        s->total_bytes + pool->releasing + pool->paging.withheld) {
        return "what came from upstream is neither held, on its way back nor lost";
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
    if (pool->first ? pool->first->prev != NULL : pool->last != NULL) {
        t.fault = "the list of segments is broken";
    }
    for (gm_segment *s = pool->first; s && !t.fault; s = s->next) {
        check_segment(&t, pool, s);
    }
    for (size_t i = 0; i < pool->arenas.bucket_count; i++) {
        for (gm_arena *a = pool->arenas.buckets[i]; a && !t.fault; a = a->chain) {
            check_arena(&t, pool, a);
        }
    }
#if GM_SHARDS
    for (gm_shard *s = gm_pool_first_shard(pool); s && !t.fault; s = s->next) {
        check_shard(&t, s);
    }
#endif
    for (gm_part *p = pool->parts; p && !t.fault; p = p->next) {
        check_index(&t, &p->index, GM_BLOCK_CAPTURED);
    }
    if (!t.fault) {
        check_nodes(&t, pool);
    }
    if (!t.fault) {
        t.fault = check_counters(pool, &t);
    }
    if (!t.fault) {
        t.fault = gm_check_pages_locked(pool);
    }
    if (!t.fault) {
        t.fault = gm_check_waits_locked(pool);
    }
    gm_pool_unlock(pool);
    return t.fault;
}
