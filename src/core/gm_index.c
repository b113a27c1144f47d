/* SPDX-License-Identifier: MIT
 *
 * The free index: what is asked of it beside the hit path. See gm_index.h.
 */
#include "gm_index.h"

gm_block *
gm_index_best(const gm_index *index, size_t size)
{
    unsigned bin = gm_index_best_bin(index, size);

    return bin == GM_BIN_COUNT ? NULL : gm_tree_best(index->roots[bin], size);
}

size_t
gm_index_largest(const gm_index *index)
{
    unsigned row;
    unsigned column;

    if (!index->rows) {
        return 0;
    }
    row = 63u - (unsigned)__builtin_clzll(index->rows);
    column = 31u - (unsigned)__builtin_clz(index->columns[row]);
    return gm_tree_largest(index->roots[row * GM_BIN_COLUMNS + column])->size;
}

void
gm_index_walk_from(const gm_index *index,
                   size_t size,
                   void (*visit)(void *context, const gm_block *block),
                   void *context)
{
    for (unsigned bin = gm_size_bin(size); bin < GM_BIN_COUNT; bin++) {
        const gm_block *root = index->roots[bin];
        const gm_block *node = root ? gm_tree_best(index->roots[bin], 0) : NULL;

        for (; node; node = gm_tree_next(root, node)) {
            visit(context, node);
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
