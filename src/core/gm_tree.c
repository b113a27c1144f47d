/* SPDX-License-Identifier: MIT
 *
 * The tree of a bin: search, put, remove. See gm_tree.h.
 */
#include "gm_tree.h"

/* ---- search ---- */

gm_block *
gm_tree_best(gm_block *root, size_t size)
{
    gm_block *found = NULL;

    while (root) {
        bool fits = root->size >= size;

        found = fits ? root : found;
        root = root->u.tree.side[!fits];
    }
    return found;
}

const gm_block *
gm_tree_next(const gm_block *root, const gm_block *block)
{
    const gm_block *after = NULL;

    while (root) {
        bool is_after = gm_tree_before(block, root);

        after = is_after ? root : after;
        root = root->u.tree.side[!is_after];
    }
    return after;
}

/* ---- change ---- */

/* Goes down to the first node of lower rank, then splits the subtree there into what
 * comes before and after `block`, which takes its place. */
void
gm_tree_put(gm_block **root, gm_block *block)
{
    gm_block **before = &block->u.tree.side[0];
    gm_block **after = &block->u.tree.side[1];
    gm_block *rest;

    while (*root && (*root)->rank >= block->rank) {
        root = &(*root)->u.tree.side[!gm_tree_before(block, *root)];
    }
    rest = *root;
    *root = block;
    while (rest) {
        if (gm_tree_before(rest, block)) {
            *before = rest;
            before = &rest->u.tree.side[1];
            rest = *before;
        }
        else {
            *after = rest;
            after = &rest->u.tree.side[0];
            rest = *after;
        }
    }
    *before = NULL;
    *after = NULL;
}

/* Merges the two subtrees of the node at `link` into its place. */
static inline void
tree_unlink(gm_block **link)
{
    gm_block *before = (*link)->u.tree.side[0];
    gm_block *after = (*link)->u.tree.side[1];

    while (before && after) {
        if (before->rank >= after->rank) {
            *link = before;
            link = &before->u.tree.side[1];
            before = *link;
        }
        else {
            *link = after;
            link = &after->u.tree.side[0];
            after = *link;
        }
    }
    *link = before ? before : after;
}

void
gm_tree_remove(gm_block **root, const gm_block *block)
{
    while (*root != block) {
        GM_ASSERT(*root);
        root = &(*root)->u.tree.side[!gm_tree_before(block, *root)];
    }
    tree_unlink(root);
}

gm_block *
gm_tree_take_best(gm_block **root, size_t size)
{
    gm_block **link = NULL; // to what was found
    gm_block *found;

    while (*root) {
        bool fits = (*root)->size >= size;

        link = fits ? root : link;
        root = &(*root)->u.tree.side[!fits];
    }
    if (!link) {
        return NULL;
    }
    found = *link;
    tree_unlink(link);
    return found;
}
