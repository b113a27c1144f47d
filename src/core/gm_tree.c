/* SPDX-License-Identifier: MIT
 *
 * The tree of a bin: search, put, remove, balance. See gm_tree.h.
 */
#include "gm_tree.h"

enum {
    /* No path is longer: it would take 2^44 blocks, a thousand tebibytes of nodes. */
    DEPTH = 64,
};

/* The way from the root down: `links[0]` is the root's, each later one lies in the node
 * that the one before it points to. Set up by its length alone: to clear all of it
 * would cost more than most searches. */
typedef struct path {
    gm_block **links[DEPTH];
    unsigned length;
} path;

static inline void
path_add(path *p, gm_block **link)
{
    GM_ASSERT(p->length < DEPTH);
    p->links[p->length++] = link;
}

/* ---- balance ---- */

static inline unsigned
height_of(const gm_block *node)
{
    return node ? node->height : 0;
}

static inline void
update_height(gm_block *node)
{
    unsigned before = height_of(node->u.tree.side[0]);
    unsigned after = height_of(node->u.tree.side[1]);

    node->height = (uint8_t)(1 + (before > after ? before : after));
}

/* The child on that side takes the place of its parent, which becomes its child. */
static void
rotate(gm_block **link, unsigned side)
{
    gm_block *node = *link;
    gm_block *child = node->u.tree.side[side];

    node->u.tree.side[side] = child->u.tree.side[!side];
    child->u.tree.side[!side] = node;
    update_height(node);
    update_height(child);
    *link = child;
}

/* One side of the node grew or shrank by a level: makes both differ by one at most.
 * True when the height of the whole is another than before. */
static bool
balance(gm_block **link)
{
    gm_block *node = *link;
    unsigned height = node->height;
    unsigned before = height_of(node->u.tree.side[0]);
    unsigned after = height_of(node->u.tree.side[1]);

    if (before > after + 1 || after > before + 1) {
        unsigned side = after > before;
        const gm_block *child = node->u.tree.side[side];

        if (height_of(child->u.tree.side[!side]) >
            height_of(child->u.tree.side[side])) {
            rotate(&node->u.tree.side[side], !side);
        }
        rotate(link, side);
    }
    else {
        node->height = (uint8_t)(1 + (before > after ? before : after));
    }
    return (*link)->height != height;
}

/* Climbs from the end of the path as long as something changes. */
static void
path_balance(path *p)
{
    while (p->length > 0 && balance(p->links[p->length - 1])) {
        p->length--;
    }
}

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

void
gm_tree_put(gm_block **root, gm_block *block)
{
    gm_block **link = root;
    path p;

    p.length = 0;
    while (*link) {
        path_add(&p, link);
        link = &(*link)->u.tree.side[!gm_tree_before(block, *link)];
    }
    gm_tree_plant(link, block);
    path_balance(&p);
}

/* Takes out the node that the path ends at. */
static void
path_remove(path *p)
{
    gm_block **link = p->links[p->length - 1];
    gm_block *node = *link;
    gm_block *before = node->u.tree.side[0];
    gm_block *after = node->u.tree.side[1];
    unsigned place = p->length;
    gm_block *heir;

    if (!before || !after) {
        *link = before ? before : after;
        p->length--;
        path_balance(p);
        return;
    }
    /* The next one in order, which has nothing before it, takes the node's place. */
    path_add(p, &node->u.tree.side[1]);
    for (heir = after; heir->u.tree.side[0]; heir = heir->u.tree.side[0]) {
        path_add(p, &heir->u.tree.side[0]);
    }
    *p->links[--p->length] = heir->u.tree.side[1];
    heir->u.tree.side[0] = before;
    heir->u.tree.side[1] = node->u.tree.side[1];
    heir->height = node->height;
    *link = heir;
    p->links[place] = &heir->u.tree.side[1]; // was in the node
    path_balance(p);
}

void
gm_tree_remove(gm_block **root, const gm_block *block)
{
    path p;

    p.length = 0;
    path_add(&p, root);
    while (*root != block) {
        GM_ASSERT(*root);
        root = &(*root)->u.tree.side[!gm_tree_before(block, *root)];
        path_add(&p, root);
    }
    path_remove(&p);
}

gm_block *
gm_tree_take_best(gm_block **root, size_t size)
{
    gm_block *found = NULL;
    unsigned length = 0; // of the path to what was found
    path p;

    p.length = 0;
    while (*root) {
        bool fits = (*root)->size >= size;

        path_add(&p, root);
        if (fits) {
            found = *root;
            length = p.length;
        }
        root = &(*root)->u.tree.side[!fits];
    }
    if (found) {
        p.length = length;
        path_remove(&p);
    }
    return found;
}
