/* SPDX-License-Identifier: MIT
 *
 * The blocks of one bin of the free index but the first, in order: smaller ones before
 * larger ones, of one size those of older segments, of one segment the lower ones.
 *
 * A treap over the nodes' ranks (gm_block.h): a zip tree. No node has a child of higher
 * rank, and half of all nodes have rank 0, a quarter 1 and so on, which makes the tree
 * some 1.5 times as deep as its logarithm. Ranks are given when nodes are made, by a
 * fixed sequence: the depth does not depend on the order of requests, and is the same
 * on every run. Put and remove change the links on one path and nothing above it, which
 * is what they cost less by than a tree that has to be kept in balance, most of all
 * where it holds two or three blocks, and at the low end compares ranks alone. Two
 * links and a byte a node, no parent: a block fits one cache line.
 *
 * Cost: a search compares once a level, O(log n) expected. Threading: none of its own;
 * the pool's lock is held. An empty tree is NULL; most bins have that, and what stands
 * before it is the index's to handle.
 */
#ifndef GM_TREE_H
#define GM_TREE_H

#include "gm_block.h"

/* True when `a` is to be preferred to `b`; a total order over blocks of one arena. */
static inline bool
gm_tree_before(const gm_block *a, const gm_block *b)
{
    if (a->size != b->size) {
        return a->size < b->size;
    }
    if (a->segment != b->segment) {
        return a->segment->serial < b->segment->serial;
    }
    return a->addr < b->addr;
}

/* The first block in order of at least `size` bytes; NULL when there is none. */
gm_block *gm_tree_best(gm_block *root, size_t size);

/* The same, taken out. */
gm_block *gm_tree_take_best(gm_block **root, size_t size);

/* Takes out the first block of a tree that is not empty. */
static inline gm_block *
gm_tree_take_lowest(gm_block **root)
{
    gm_block *lowest;

    while ((*root)->u.tree.side[0]) {
        root = &(*root)->u.tree.side[0];
    }
    lowest = *root;
    *root = lowest->u.tree.side[1];
    return lowest;
}

/* Puts a block that comes before all that are there. */
static inline void
gm_tree_put_lowest(gm_block **root, gm_block *block)
{
    while (*root && (*root)->rank >= block->rank) {
        root = &(*root)->u.tree.side[0];
    }
    block->u.tree.side[0] = NULL;
    block->u.tree.side[1] = *root;
    *root = block;
}

void gm_tree_put(gm_block **root, gm_block *block);
void gm_tree_remove(gm_block **root, const gm_block *block);

/* The block after `block`; NULL at the end. For walks, where speed does not matter. */
const gm_block *gm_tree_next(const gm_block *root, const gm_block *block);

#endif
