/* SPDX-License-Identifier: MIT
 *
 * The free blocks of one arena, ordered so that the exact best fit comes out: the
 * smallest size that fits, then the lowest (segment serial, address).
 *
 * Two bitmaps find the bin, a tree inside the bin finds the block. The bins split each
 * power of two in 16, so mostly a bin holds one block or none, and that case is all
 * that stands here in full; more are a tree's (gm_tree.h).
 *
 * Cost: some ten instructions for the bin, as many for its marks where it becomes empty
 * or stops being so, and O(log n) expected in the number of blocks of that bin where
 * it holds more than one. Threading: none of its own; the pool's lock is held.
 */
#ifndef GM_INDEX_H
#define GM_INDEX_H

#include "gm_size.h"
#include "gm_tree.h"

typedef struct gm_index {
    uint64_t rows;                 // bit r: some column of row r holds a block
    uint16_t columns[GM_BIN_ROWS]; // bit c: bin (r, c) holds a block
    gm_block *roots[GM_BIN_COUNT]; // a tree a bin
} gm_index;

/* An index of zero bytes is empty. */

static inline void
gm_index_put(gm_index *index, gm_block *block)
{
    unsigned bin = gm_size_bin(block->size);
    unsigned row = bin / GM_BIN_COLUMNS;
    gm_block **root = &index->roots[bin];

    if (GM_UNLIKELY(*root != NULL)) {
        gm_tree_put(root, block);
        return;
    }
    gm_tree_plant(root, block);
    index->columns[row] |= (uint16_t)(1u << bin % GM_BIN_COLUMNS);
    index->rows |= 1ull << row;
}

/* The bin holds one block, which goes. */
static inline void
gm_index_empty_bin(gm_index *index, unsigned bin)
{
    unsigned row = bin / GM_BIN_COLUMNS;

    index->roots[bin] = NULL;
    index->columns[row] &= (uint16_t) ~(1u << bin % GM_BIN_COLUMNS);
    if (!index->columns[row]) {
        index->rows &= ~(1ull << row);
    }
}

static inline void
gm_index_remove(gm_index *index, const gm_block *block)
{
    unsigned bin = gm_size_bin(block->size);

    if (GM_LIKELY(gm_tree_is_single(index->roots[bin]))) {
        GM_ASSERT(index->roots[bin] == block);
        gm_index_empty_bin(index, bin);
    }
    else {
        gm_tree_remove(&index->roots[bin], block);
    }
}

/* The bin that holds the best fit; GM_BIN_COUNT when nothing fits. */
static inline unsigned
gm_index_best_bin(const gm_index *index, size_t size)
{
    unsigned bin = gm_size_bin(size);
    unsigned row = bin / GM_BIN_COLUMNS;
    unsigned columns;
    uint64_t rows;

    if (index->roots[bin] && gm_tree_fits(index->roots[bin], size)) {
        return bin;
    }
    columns = index->columns[row] & (0xFFFEu << bin % GM_BIN_COLUMNS);
    if (!columns) {
        rows = index->rows & (~0ull << 1 << row);
        if (!rows) {
            return GM_BIN_COUNT;
        }
        row = (unsigned)__builtin_ctzll(rows);
        columns = index->columns[row];
    }
    return row * GM_BIN_COLUMNS + (unsigned)__builtin_ctz(columns);
}

/* Takes out the best fit for a rounded size; NULL when nothing fits. */
static inline gm_block *
gm_index_take(gm_index *index, size_t size)
{
    unsigned bin = gm_index_best_bin(index, size);
    gm_block *block;

    if (bin == GM_BIN_COUNT) {
        return NULL;
    }
    block = index->roots[bin];
    if (GM_UNLIKELY(!gm_tree_is_single(block))) {
        block = gm_tree_take_best(&index->roots[bin], size);
        GM_ASSUME(block); // the bin has one that fits
        return block;
    }
    gm_index_empty_bin(index, bin);
    return block;
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
