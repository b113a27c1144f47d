/* SPDX-License-Identifier: MIT
 *
 * The free blocks of one arena, ordered so that the exact best fit comes out: the
 * smallest size that fits, then the lowest (segment serial, address).
 *
 * Two bitmaps find the bin, a treap inside the bin finds the block. The bins split each
 * power of two in 16, so a treap mostly holds a handful of nodes; it keeps the worst
 * case (every free block of one size) logarithmic. A treap needs two links a node and
 * no parent, which is what lets a block fit one cache line; its priorities are a hash
 * of the node's address and do not influence which block is found, so placement is the
 * same on every run.
 *
 * Cost: put, remove, best and largest are a few bit operations plus the depth of one
 * bin's treap: O(1) where the bin holds one block, O(log n) expected in the number of
 * blocks of that bin. Threading: none of its own; the pool's lock is held.
 */
#ifndef GM_INDEX_H
#define GM_INDEX_H

#include "gm_block.h"
#include "gm_size.h"

typedef struct gm_index {
    uint64_t rows;                 // bit r: some column of row r holds a block
    uint16_t columns[GM_BIN_ROWS]; // bit c: bin (r, c) holds a block
    gm_block *roots[GM_BIN_COUNT]; // a treap a bin
} gm_index;

/* An index of zero bytes is empty. */

void gm_index_put(gm_index *index, gm_block *block);
void gm_index_remove(gm_index *index, gm_block *block);

/* The best fit for a rounded size, still in the index; NULL when nothing fits. */
gm_block *gm_index_best(const gm_index *index, size_t size);

/* The size of the largest block, 0 in an empty index. */
size_t gm_index_largest(const gm_index *index);

/* True when `a` is to be preferred to `b`; a total order over blocks of one arena. */
bool gm_index_before(const gm_block *a, const gm_block *b);

/* Calls `visit` for each block, best first within a bin. For checks and tests. */
void gm_index_walk(const gm_index *index,
                   void (*visit)(void *context, const gm_block *block),
                   void *context);

#endif
