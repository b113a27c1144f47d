/* SPDX-License-Identifier: MIT
 *
 * Blocks and segments: who owns which bytes.
 *
 * A segment is one address range taken from upstream. Its blocks tile it without gap
 * and form a list by address. A block is one cache line of host memory; the device's
 * own memory carries no tags. Nodes come from slabs that a pool keeps until it ends,
 * and the node of a live block is its handle's until the handle ends. The generation
 * changes whenever the bytes go back, so a stale handle never frees somebody else's
 * block.
 *
 * Cost: split and merge are a dozen stores. Threading: caller holds the pool's lock,
 * except for `generation`, `addr` and `size` of a live block, which its owner may read.
 */
#ifndef GM_BLOCK_H
#define GM_BLOCK_H

#include "gm_backend.h"
#include "gm_base.h"

typedef enum gm_block_state {
    GM_BLOCK_SPARE,    // node in the slab, no bytes
    GM_BLOCK_FREE,     // in its arena's index
    GM_BLOCK_LIVE,     // somebody holds it
    GM_BLOCK_NOTED,    // the same, and more is to be remembered: see gm_note.h
    GM_BLOCK_PENDING,  // given back, but another stream may still use it
    GM_BLOCK_CAPTURED, // free for one recorded graph alone: in its part's index
    GM_BLOCK_MOVING,   // its pages come or go just now: see gm_page.h
    GM_BLOCK_HOLE,     // addresses with nothing behind them that could be used
    GM_BLOCK_VOID,     // no bytes: given back by address, its handle has not ended yet
} gm_block_state;

typedef struct gm_arena gm_arena;
typedef struct gm_block gm_block;
typedef struct gm_segment gm_segment;
typedef struct gm_note gm_note;
typedef struct gm_space gm_space;
#if GM_SHARDS
typedef struct gm_shard gm_shard;
#endif

struct gm_block {
    uintptr_t addr; // where it starts
    size_t size;    // bytes, a multiple of GM_UNIT
    gm_block *prev; // the block below it in the segment, NULL at the start
    gm_block *next; // the block above it, NULL at the end
    gm_segment *segment;
    uint32_t generation; // changes when the block is given back
    uint16_t client;     // whose request it serves; 0 is the program itself.
                         // CAPTURED: number of its part
    uint8_t state;       // gm_block_state
    uint8_t rank;        // the node's own: where it stands in a tree of the index
    union {
        struct {               // FREE, CAPTURED: its place in the index
            gm_block *side[2]; // what comes before it and after it
        } tree;
        struct {              // LIVE
            size_t requested; // bytes asked for, before rounding
            union {
                gm_block *deferred; // next in the list of postponed frees
#if GM_SHARDS
                gm_shard *shard; // until then: where it was handed out
#endif
            };
        } live;
        struct { // NOTED, PENDING
            gm_note *note;
            gm_block *deferred; // NOTED: as in `live`
        } noted;
        struct { // HOLE: the list of its space
            gm_block *prev;
            gm_block *next;
        } hole;
        struct gm_move *move; // MOVING to a window: the page that comes; NULL: none
        gm_block *spare;      // SPARE: next in the slab's list
    } u;
};

GM_STATIC_ASSERT(sizeof(gm_block) == GM_CACHE_LINE, "a block is one cache line");
GM_STATIC_ASSERT(offsetof(gm_block, u.live.deferred) ==
                     offsetof(gm_block, u.noted.deferred),
                 "a free that finds the lock busy does not look at the state");

/* True while somebody holds it. */
static inline bool
gm_block_is_live(const gm_block *block)
{
    return block->state == GM_BLOCK_LIVE || block->state == GM_BLOCK_NOTED;
}

/* The bytes go back, or are lost: handles of before are void. */
static inline void
gm_block_retire(gm_block *block)
{
#if GM_SHARDS // a free looks at it before it has a lock
    __atomic_store_n(&block->generation, block->generation + 1, __ATOMIC_RELAXED);
#else
    block->generation++;
#endif
}

/* What upstream gives: a range, and what keeps it alive. */
typedef struct gm_piece {
    uintptr_t base;
    size_t size; // bytes usable from base
    int device;  // whose reset ends it; -1: nobody's
    bool pooled; // a block of another pool, which counts it too
    void *owner; // opaque to the core; upstream knows what it is
} gm_piece;

struct gm_segment {
    gm_piece piece;
    uint64_t life;    // of the device, when it was taken; 0: not known (gm_lost.h)
    uint64_t serial;  // counts the pool's segments from 0; placement ties go by it
    size_t size;      // bytes the blocks tile; at most piece.size
    gm_space *space;  // what is mapped where; NULL: all of it is one plain allocation
    gm_arena *arena;  // where its blocks return
    gm_block *first;  // block at the lowest address
    gm_segment *prev; // the pool's list, oldest first
    gm_segment *next;
};

/* Slabs of nodes. */
typedef struct gm_slab gm_slab;
typedef struct gm_block_store {
    gm_block *spare; // nodes ready for use
    gm_slab *slabs;
    size_t nodes; // made so far
} gm_block_store;

/* More nodes; false when there is no host memory. */
GM_COLD GM_MUST_CHECK bool gm_block_store_grow(gm_block_store *store);

/* Makes sure that the next `count` gm_block_take succeed. */
GM_COLD GM_MUST_CHECK bool gm_block_store_reserve(gm_block_store *store, size_t count);

/* The same for one. Not as one expression: gcc would take what follows, the cut of
 * two hits of three, for as unlikely as the call is. */
GM_MUST_CHECK static inline bool
gm_block_store_prepare(gm_block_store *store)
{
    if (GM_UNLIKELY(!store->spare)) {
        return gm_block_store_grow(store);
    }
    return true;
}

void gm_block_store_fini(gm_block_store *store);

/* A spare node; the store was prepared. */
static inline gm_block *
gm_block_take(gm_block_store *store)
{
    gm_block *block = store->spare;

    GM_ASSERT(block && block->state == GM_BLOCK_SPARE);
    store->spare = block->u.spare;
    return block;
}

/* Back to the store; its generation was already changed by whoever ended it. */
static inline void
gm_block_give(gm_block_store *store, gm_block *block)
{
    block->state = GM_BLOCK_SPARE;
    block->u.spare = store->spare;
    store->spare = block;
}

/* Cuts `block` to `size` bytes; the rest becomes `tail`, a node from the store, linked
 * above it. Neither is in an index. block->size > size > 0. */
static inline void
gm_block_split(gm_block *block, size_t size, gm_block *tail)
{
    gm_block *next = block->next;

    GM_ASSERT(block->size > size && size > 0);
    tail->addr = block->addr + size;
    tail->size = block->size - size;
    tail->segment = block->segment;
    tail->prev = block;
    tail->next = next;
    if (next) {
        next->prev = tail;
    }
    block->next = tail;
    block->size = size;
}

/* `block` takes in the block above it, whose node is left to the caller. */
static inline void
gm_block_absorb_next(gm_block *block)
{
    gm_block *next = block->next;
    gm_block *after = next->next;

    GM_ASSERT(next->segment == block->segment);
    GM_ASSERT(block->addr + block->size == next->addr);
    block->size += next->size;
    block->next = after;
    if (after) {
        after->prev = block;
    }
}

/* True when the whole segment is one free block of a plain allocation. */
static inline bool
gm_segment_is_idle(const gm_segment *segment)
{
    return !segment->space && segment->first->state == GM_BLOCK_FREE &&
           !segment->first->next;
}

#endif
