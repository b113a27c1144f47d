/* SPDX-License-Identifier: MIT
 *
 * The free index: bitmaps over bins, a treap in each bin. See gm_index.h.
 */
#include "gm_index.h"

static inline unsigned
row_of(unsigned bin)
{
    return bin / GM_BIN_COLUMNS;
}

static inline unsigned
column_of(unsigned bin)
{
    return bin % GM_BIN_COLUMNS;
}

/* A well mixed number that stays the node's own for the life of the slab. */
static inline uint64_t
priority_of(const gm_block *block)
{
    uint64_t x = (uint64_t)(uintptr_t)block >> 6;

    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
}

static inline bool
block_before(const gm_block *a, const gm_block *b)
{
    if (a->size != b->size) {
        return a->size < b->size;
    }
    if (a->segment != b->segment) {
        return a->segment->serial < b->segment->serial;
    }
    return a->addr < b->addr;
}

bool
gm_index_before(const gm_block *a, const gm_block *b)
{
    return block_before(a, b);
}

/* Goes down to the first node of lower priority, then splits the subtree there into
 * what comes before and after `node`, which takes its place. */
static void
treap_insert(gm_block **link, gm_block *node)
{
    uint64_t priority = priority_of(node);
    gm_block **before = &node->u.tree.left;
    gm_block **after = &node->u.tree.right;
    gm_block *rest;

    while (*link && priority_of(*link) >= priority) {
        link =
            block_before(node, *link) ? &(*link)->u.tree.left : &(*link)->u.tree.right;
    }
    rest = *link;
    *link = node;
    while (rest) {
        if (block_before(rest, node)) {
            *before = rest;
            before = &rest->u.tree.right;
            rest = *before;
        }
        else {
            *after = rest;
            after = &rest->u.tree.left;
            rest = *after;
        }
    }
    *before = NULL;
    *after = NULL;
}

/* Finds the link to `node` by its key and merges the two subtrees into its place. */
static void
treap_remove(gm_block **link, const gm_block *node)
{
    gm_block *left = node->u.tree.left;
    gm_block *right = node->u.tree.right;

    while (*link != node) {
        GM_ASSERT(*link);
        link =
            block_before(node, *link) ? &(*link)->u.tree.left : &(*link)->u.tree.right;
    }
    while (left && right) {
        if (priority_of(left) >= priority_of(right)) {
            *link = left;
            link = &left->u.tree.right;
            left = *link;
        }
        else {
            *link = right;
            link = &right->u.tree.left;
            right = *link;
        }
    }
    *link = left ? left : right;
}

/* The first node in order whose size is at least `size`; NULL when there is none. */
static gm_block *
treap_lower_bound(gm_block *node, size_t size)
{
    gm_block *found = NULL;

    while (node) {
        if (node->size >= size) {
            found = node;
            node = node->u.tree.left;
        }
        else {
            node = node->u.tree.right;
        }
    }
    return found;
}

void
gm_index_put(gm_index *index, gm_block *block)
{
    unsigned bin = gm_size_bin(block->size);
    gm_block **root = &index->roots[bin];

    if (GM_LIKELY(!*root)) {
        block->u.tree.left = NULL;
        block->u.tree.right = NULL;
        *root = block;
        index->columns[row_of(bin)] |= (uint16_t)(1u << column_of(bin));
        index->rows |= 1ull << row_of(bin);
        return;
    }
    treap_insert(root, block);
}

void
gm_index_remove(gm_index *index, gm_block *block)
{
    unsigned bin = gm_size_bin(block->size);
    gm_block **root = &index->roots[bin];

    treap_remove(root, block);
    if (!*root) {
        uint16_t *columns = &index->columns[row_of(bin)];

        *columns &= (uint16_t) ~(1u << column_of(bin));
        if (!*columns) {
            index->rows &= ~(1ull << row_of(bin));
        }
    }
}

/* The lowest non-empty bin above `bin`; GM_BIN_COUNT when there is none. */
static unsigned
index_next_bin(const gm_index *index, unsigned bin)
{
    unsigned row = row_of(bin);
    unsigned columns = index->columns[row] & (0xFFFEu << column_of(bin));
    uint64_t rows;

    if (columns) {
        return row * GM_BIN_COLUMNS + (unsigned)__builtin_ctz(columns);
    }
    rows = index->rows & (~0ull << 1 << row);
    if (!rows) {
        return GM_BIN_COUNT;
    }
    row = (unsigned)__builtin_ctzll(rows);
    return row * GM_BIN_COLUMNS + (unsigned)__builtin_ctz(index->columns[row]);
}

gm_block *
gm_index_best(const gm_index *index, size_t size)
{
    unsigned bin = gm_size_bin(size);
    gm_block *found = treap_lower_bound(index->roots[bin], size);

    if (found) {
        return found;
    }
    bin = index_next_bin(index, bin);
    return bin == GM_BIN_COUNT ? NULL : treap_lower_bound(index->roots[bin], 0);
}

size_t
gm_index_largest(const gm_index *index)
{
    const gm_block *node;
    unsigned row;
    unsigned column;

    if (!index->rows) {
        return 0;
    }
    row = 63u - (unsigned)__builtin_clzll(index->rows);
    column = 31u - (unsigned)__builtin_clz(index->columns[row]);
    node = index->roots[row * GM_BIN_COLUMNS + column];
    while (node->u.tree.right) {
        node = node->u.tree.right;
    }
    return node->size;
}

void
gm_index_walk(const gm_index *index,
              void (*visit)(void *context, const gm_block *block),
              void *context)
{
    for (unsigned bin = 0; bin < GM_BIN_COUNT; bin++) {
        const gm_block *node = treap_lower_bound(index->roots[bin], 0);

        /* Successor by search from the root: no stack, no parent links, and speed does
         * not matter here. */
        while (node) {
            const gm_block *after = NULL;

            visit(context, node);
            for (const gm_block *at = index->roots[bin]; at;) {
                if (block_before(node, at)) {
                    after = at;
                    at = at->u.tree.left;
                }
                else {
                    at = at->u.tree.right;
                }
            }
            node = after;
        }
    }
}
