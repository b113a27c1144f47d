/* SPDX-License-Identifier: MIT
 *
 * The free index: what is asked of it beside the hit path. See gm_index.h.
 */
#include "gm_index.h"

gm_block *
gm_index_best(const gm_index *index, size_t size)
{
    unsigned bin = gm_size_bin(size);
    gm_block *first = index->firsts[bin];
    gm_block *best = first;

    if (first && first->size < size) {
        best = gm_tree_best(*gm_index_others(first), size);
    }
    if (!best) {
        bin = gm_index_bin_above(index, bin);
        best = bin == GM_BIN_COUNT ? NULL : index->firsts[bin];
    }
    return best;
}

size_t
gm_index_largest(const gm_index *index)
{
    unsigned group;
    const gm_block *largest;

    if (!index->groups) {
        return 0;
    }
    group = 63u - (unsigned)__builtin_clzll(index->groups);
    largest = index->firsts[group * GM_INDEX_GROUP + 63u -
                            (unsigned)__builtin_clzll(index->bins[group])];
    while (largest->u.tree.side[1]) { // first, tree, and down there
        largest = largest->u.tree.side[1];
    }
    return largest->size;
}

void
gm_index_walk_from(const gm_index *index,
                   size_t size,
                   void (*visit)(void *context, const gm_block *block),
                   void *context)
{
    for (unsigned bin = gm_size_bin(size); bin < GM_BIN_COUNT; bin++) {
        gm_block *first = index->firsts[bin];
        gm_block *others = first ? *gm_index_others(first) : NULL;
        const gm_block *node = first;

        while (node) {
            visit(context, node);
            node = gm_tree_next(others, node);
        }
    }
}

void
gm_index_walk(const gm_index *index,
              void (*visit)(void *context, const gm_block *block),
              void *context)
{
    gm_index_walk_from(index, 0, visit, context);
}
