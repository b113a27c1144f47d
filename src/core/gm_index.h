/* SPDX-License-Identifier: MIT
 *
 * The free blocks of one arena, ordered so that the exact best fit comes out: the
 * smallest size that fits, then the lowest (segment serial, address).
 *
 * Bitmaps find the bin. The bins split each power of two in 16, so mostly a bin holds
 * one block or none. Where it holds more, the first in order stands apart from a tree
 * of the others (gm_tree.h): of fifty requests one needs another than the first of some
 * bin, and every second block that comes to others goes before them all, so most is
 * done by one comparison and no search.
 *
 * Cost: some ten instructions for the bin, as many for its marks where it becomes empty
 * or stops being so, and O(log n) expected in the number of blocks of that bin where
 * it holds more than one. Threading: none of its own; the pool's lock is held.
 */
#ifndef GM_INDEX_H
#define GM_INDEX_H

#include "gm_size.h"
#include "gm_tree.h"

#define GM_INDEX_GROUP 64u // bins that a mark stands for
#define GM_INDEX_GROUPS (GM_BIN_COUNT / GM_INDEX_GROUP)

typedef struct gm_index {
    uint64_t groups;                // bit g: some bin of group g holds a block
    uint64_t bins[GM_INDEX_GROUPS]; // bit b: bin b of that group does
    gm_block *firsts[GM_BIN_COUNT]; // the first block a bin, above it the others' tree
} gm_index;

GM_STATIC_ASSERT(GM_BIN_COUNT % GM_INDEX_GROUP == 0, "groups are whole");

/* An index of zero bytes is empty. */

/* The tree of all blocks of the bin but the first, which it hangs on. */
static inline gm_block **
gm_index_others(gm_block *first)
{
    return &first->u.tree.side[1];
}

/* `block` comes to a bin that holds others, of which `first` is the first. */
static inline void
gm_index_join(gm_block **place, gm_block *first, gm_block *block)
{
    gm_block **others = gm_index_others(first);

    if (gm_tree_before(block, first)) {
        *gm_index_others(block) = *others;
        gm_tree_put_lowest(gm_index_others(block), first);
        *place = block;
    }
    else {
        gm_tree_put(others, block);
    }
}

static inline void
gm_index_put(gm_index *index, gm_block *block)
{
    unsigned bin = gm_size_bin(block->size);
    unsigned group = bin / GM_INDEX_GROUP;
    gm_block *first = index->firsts[bin];

    if (first) {
        gm_index_join(&index->firsts[bin], first, block);
        return;
    }
    *gm_index_others(block) = NULL;
    index->firsts[bin] = block;
    index->bins[group] |= 1ull << bin % GM_INDEX_GROUP;
    index->groups |= 1ull << group;
}

/* Takes out `first`, which is the first of its bin. */
static inline void
gm_index_take_first(gm_index *index, unsigned bin, gm_block *first)
{
    unsigned group = bin / GM_INDEX_GROUP;
    gm_block *others = *gm_index_others(first);

    if (others) {
        gm_block *next = gm_tree_take_lowest(&others);

        *gm_index_others(next) = others;
        index->firsts[bin] = next;
        return;
    }
    index->firsts[bin] = NULL;
    index->bins[group] &= ~(1ull << bin % GM_INDEX_GROUP);
    if (!index->bins[group]) {
        index->groups &= ~(1ull << group);
    }
}

static inline void
gm_index_remove(gm_index *index, gm_block *block)
{
    unsigned bin = gm_size_bin(block->size);
    gm_block *first = index->firsts[bin];

    if (block == first) {
        gm_index_take_first(index, bin, first);
    }
    else {
        gm_tree_remove(gm_index_others(first), block);
    }
}

/* The first bin above `bin` that holds a block; GM_BIN_COUNT when there is none. */
static inline unsigned
gm_index_bin_above(const gm_index *index, unsigned bin)
{
    unsigned group = bin / GM_INDEX_GROUP;
    uint64_t bins = index->bins[group] & (~0ull << 1 << bin % GM_INDEX_GROUP);

    if (!bins) {
        uint64_t groups = index->groups & (~0ull << 1 << group);

        if (!groups) {
            return GM_BIN_COUNT;
        }
        group = (unsigned)__builtin_ctzll(groups);
        bins = index->bins[group];
    }
    return group * GM_INDEX_GROUP + (unsigned)__builtin_ctzll(bins);
}

/* Takes out the best fit for a rounded size; NULL when nothing fits. */
static inline gm_block *
gm_index_take(gm_index *index, size_t size)
{
    unsigned bin = gm_size_bin(size);
    gm_block *first = index->firsts[bin];

    if (!first || GM_UNLIKELY(first->size < size)) {
        gm_block *found =
            first ? gm_tree_take_best(gm_index_others(first), size) : NULL;

        if (GM_UNLIKELY(found != NULL)) {
            return found;
        }
        bin = gm_index_bin_above(index, bin);
        if (GM_UNLIKELY(bin == GM_BIN_COUNT)) {
            return NULL;
        }
        first = index->firsts[bin];
    }
    gm_index_take_first(index, bin, first);
    return first;
}

/* The same, still in the index. */
gm_block *gm_index_best(const gm_index *index, size_t size);

/* The size of the largest block, 0 in an empty index. */
size_t gm_index_largest(const gm_index *index);

/* Calls `visit` for each block that is in the bin of `size` bytes or in a larger one,
 * in order; it leaves the index as it is. */
void gm_index_walk_from(const gm_index *index,
                        size_t size,
                        void (*visit)(void *context, const gm_block *block),
                        void *context);

/* The same for all blocks. For checks and tests. */
void gm_index_walk(const gm_index *index,
                   void (*visit)(void *context, const gm_block *block),
                   void *context);

#endif
