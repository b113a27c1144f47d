/* SPDX-License-Identifier: MIT
 *
 * Where things lie in one stretch of addresses.
 *
 * First fit by address and merging with free neighbours, so that fragmentation is as
 * real as a stretch of physical memory makes it, and the same in every run. All ranges,
 * live and free, hang in one treap by address in which each node knows the largest free
 * range below it: the first fit, the range of an address, a split and a merge all cost
 * the tree's depth, O(log n) expected. Priorities come from a fixed seed.
 *
 * Behind the addresses is one memory file, mapped once: a page exists from the first
 * write until its range is freed. Small frees are collected, so that a page goes back
 * to the system only together with GIVE_BACK bytes: the calls stay few and what stays
 * behind is bounded by GIVE_BACK a free range. Memory given back reads as 0; in a
 * GM_DEBUG build the rest of what was freed reads as POISON.
 *
 * Not here: what a range is for, and locking.
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <fcntl.h> // fallocate()
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GIVE_BACK ((size_t)64 << 10)
#define POISON 0xdb
#define PAGE ((uintptr_t)4096)

GM_STATIC_ASSERT(SIM_SEGMENT % SIM_UNIT == 0, "a window is whole units");

/* ---- the tree ---- */

static size_t
widest_of(const sim_range *node)
{
    return node != NULL ? node->widest : 0;
}

/* Recomputes what a node knows of its subtree. */
static void
pull(sim_range *node)
{
    size_t widest = node->live ? 0 : node->size;
    if (widest_of(node->left) > widest) {
        widest = widest_of(node->left);
    }
    if (widest_of(node->right) > widest) {
        widest = widest_of(node->right);
    }
    node->widest = widest;
}

/* Recomputes the nodes from the root down to `node`, which changed. */
static void
refresh(sim_range *root, const sim_range *node)
{
    if (root != node) {
        refresh(node->start < root->start ? root->left : root->right, node);
    }
    pull(root);
}

static sim_range *
rotate_right(sim_range *node)
{
    sim_range *top = node->left;
    node->left = top->right;
    top->right = node;
    pull(node);
    return top;
}

static sim_range *
rotate_left(sim_range *node)
{
    sim_range *top = node->right;
    node->right = top->left;
    top->left = node;
    pull(node);
    return top;
}

/* The root after `node` was added. */
static sim_range *
insert(sim_range *root, sim_range *node)
{
    if (root == NULL) {
        pull(node);
        return node;
    }
    if (node->start < root->start) {
        root->left = insert(root->left, node);
        if (root->left->priority > root->priority) {
            root = rotate_right(root);
        }
    }
    else {
        root->right = insert(root->right, node);
        if (root->right->priority > root->priority) {
            root = rotate_left(root);
        }
    }
    pull(root);
    return root;
}

/* One tree of two, all of `low` before all of `high`. */
static sim_range *
join(sim_range *low, sim_range *high)
{
    if (low == NULL || high == NULL) {
        return low != NULL ? low : high;
    }
    if (low->priority > high->priority) {
        low->right = join(low->right, high);
        pull(low);
        return low;
    }
    high->left = join(low, high->left);
    pull(high);
    return high;
}

/* The root after `node`, which is in the tree, was taken out. */
static sim_range *
erase(sim_range *root, const sim_range *node)
{
    if (root == node) {
        return join(root->left, root->right);
    }
    if (node->start < root->start) {
        root->left = erase(root->left, node);
    }
    else {
        root->right = erase(root->right, node);
    }
    pull(root);
    return root;
}

/* The lowest free range of at least `size`; the caller knows that there is one. */
static sim_range *
first_fit(sim_range *root, size_t size)
{
    for (;;) {
        if (widest_of(root->left) >= size) {
            root = root->left;
        }
        else if (!root->live && root->size >= size) {
            return root;
        }
        else {
            root = root->right;
        }
    }
}

static uint32_t
next_priority(sim_window *window)
{
    // xorshift64: spread evenly enough to keep the tree flat.
    window->random ^= window->random << 13;
    window->random ^= window->random >> 7;
    window->random ^= window->random << 17;
    return (uint32_t)(window->random >> 32);
}

/* ---- pages ---- */

/* Gives the whole pages of a free range's stale part back to the system, once they are
 * worth a call. */
static void
give_back_pages(const sim_window *window, sim_range *range)
{
    if (range->stale_end - range->stale_start < GIVE_BACK) {
        return;
    }
    // The stale part's edge pages hold nothing live as far as the range reaches.
    uintptr_t start = (range->stale_start & ~(PAGE - 1));
    uintptr_t end = (range->stale_end + PAGE - 1) & ~(PAGE - 1);
    if (start < range->start) {
        start += PAGE;
    }
    if (end > range->start + range->size) {
        end -= PAGE;
    }
    // A failure costs memory and nothing else.
    (void)fallocate(window->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    (off_t)(start - window->start), (off_t)(end - start));
    range->stale_start = range->stale_end = range->start;
}

/* Poisons what freeing a range leaves readable: all of a small one, which keeps its
 * pages, or the ends of a large one, which loses whole pages. Never makes more than
 * GIVE_BACK bytes exist. */
static void
poison(const sim_range *range)
{
#ifdef GM_DEBUG
    uintptr_t start = range->start;
    uintptr_t end = start + range->size;
    if (range->size < GIVE_BACK) {
        memset((void *)start, POISON, range->size);
        return;
    }
    memset((void *)start, POISON, (0 - start) & (PAGE - 1));
    memset((void *)(end & ~(PAGE - 1)), POISON, end & (PAGE - 1));
#else
    (void)range;
#endif
}

/* ---- the window ---- */

size_t
sim_window_largest(const sim_window *window, const gm_range *back, size_t count)
{
    const sim_range *range = sim_window_find(window, window->start);
    size_t capacity = window->capacity - window->used;
    size_t widest = 0;
    size_t stretch = 0;
    for (size_t i = 0; range != NULL; range = range->next) {
        while (i < count && back[i].base < range->start) {
            i++;
        }
        bool given = range->live && i < count && back[i].base == range->start;
        capacity += given ? range->size : 0;
        stretch = range->live && !given ? 0 : stretch + range->size;
        widest = stretch > widest ? stretch : widest;
    }
    return widest < capacity ? widest : capacity;
}

gm_status
sim_window_init(sim_window *window, size_t length, size_t capacity)
{
    *window = (sim_window){.file = -1};
    sim_range *whole = gm_host_zalloc(sizeof *whole);
    if (whole == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    int file = memfd_create("gpumem-sim", MFD_CLOEXEC);
    void *start = MAP_FAILED;
    if (file < 0 || ftruncate(file, (off_t)length) != 0) {
        goto fail;
    }
    start =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    // A forked child must not write into its parent's device.
    if (start == MAP_FAILED || madvise(start, length, MADV_DONTFORK) != 0) {
        goto fail;
    }
    whole->start = (uintptr_t)start;
    whole->size = length;
    whole->stale_start = whole->stale_end = whole->start;
    pull(whole);
    *window = (sim_window){.file = file,
                           .start = whole->start,
                           .length = length,
                           .capacity = capacity,
                           .root = whole,
                           .random = 0x9e3779b97f4a7c15u};
    return GM_OK;
fail:
    if (start != MAP_FAILED) {
        (void)munmap(start, length);
    }
    if (file >= 0) {
        (void)close(file);
    }
    gm_host_free(whole);
    return GM_ERR_HOST_MEMORY;
}

void
sim_window_fini(sim_window *window)
{
    if (window->length == 0) {
        return;
    }
    sim_range *range = sim_window_find(window, window->start);
    while (range != NULL) {
        sim_range *next = range->next;
        gm_host_free(range);
        range = next;
    }
    (void)munmap((void *)window->start, window->length);
    (void)close(window->file);
    *window = (sim_window){.file = -1};
}

sim_range *
sim_window_find(const sim_window *window, uintptr_t ptr)
{
    if (ptr < window->start || ptr - window->start >= window->length) {
        return NULL;
    }
    sim_range *range = window->root;
    for (;;) {
        if (ptr < range->start) {
            range = range->left;
        }
        else if (ptr - range->start >= range->size) {
            range = range->right;
        }
        else {
            return range;
        }
    }
}

/* Makes the low `size` bytes of a range one of its own in front of the rest, alike but
 * for its bounds. NULL without host memory. */
static sim_range *
cut_low(sim_window *window, sim_range *range, size_t size)
{
    sim_range *low = gm_host_zalloc(sizeof *low);
    if (low == NULL) {
        return NULL;
    }
    low->start = range->start;
    low->size = size;
    low->priority = next_priority(window);
    low->live = range->live;
    low->stale_start = low->stale_end = low->start;
    low->prev = range->prev;
    low->next = range;
    if (low->prev != NULL) {
        low->prev->next = low;
    }
    range->prev = low;
    range->start += size;
    range->size -= size;
    if (range->stale_start < range->start) {
        range->stale_start = range->start;
    }
    if (range->stale_end < range->start) {
        range->stale_end = range->start;
    }
    refresh(window->root, range);
    window->root = insert(window->root, low);
    return low;
}

gm_status
sim_window_take(sim_window *window, size_t size, sim_range **out)
{
    // Both sides are whole units, so what fits unrounded fits rounded.
    if (size > window->capacity - window->used) {
        return GM_ERR_OUT_OF_MEMORY;
    }
    size = (size + SIM_UNIT - 1) & ~(SIM_UNIT - 1);
    if (widest_of(window->root) < size) {
        return GM_ERR_OUT_OF_MEMORY;
    }
    sim_range *range = first_fit(window->root, size);
    if (range->size > size) {
        sim_range *low = cut_low(window, range, size);
        if (low == NULL) {
            return GM_ERR_HOST_MEMORY;
        }
        range = low;
    }
    range->live = true;
    refresh(window->root, range);
    window->used += size;
    *out = range;
    return GM_OK;
}

/* Takes `high`, the right neighbour of `low` and as live as that, into it. */
static void
merge_next(sim_window *window, sim_range *low)
{
    sim_range *high = low->next;
    window->root = erase(window->root, high);
    if (high->stale_start != high->stale_end) {
        if (low->stale_start == low->stale_end) {
            low->stale_start = high->stale_start;
        }
        low->stale_end = high->stale_end;
    }
    low->size += high->size;
    low->next = high->next;
    if (low->next != NULL) {
        low->next->prev = low;
    }
    gm_host_free(high);
}

void
sim_window_give(sim_window *window, sim_range *range)
{
    poison(range);
    window->used -= range->size;
    range->live = false;
    range->pool = NULL;
    range->parked = false;
    range->stale_start = range->start;
    range->stale_end = range->start + range->size;
    if (range->next != NULL && !range->next->live) {
        merge_next(window, range);
    }
    if (range->prev != NULL && !range->prev->live) {
        range = range->prev;
        merge_next(window, range);
    }
    refresh(window->root, range);
    give_back_pages(window, range);
}

gm_status
sim_window_cut(sim_window *window, sim_range *range, size_t size, sim_range **out)
{
    GM_ASSERT(range->live && size % SIM_UNIT == 0 && size > 0 && size < range->size);
    sim_range *low = cut_low(window, range, size);
    if (low == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    *out = low;
    return GM_OK;
}

void
sim_window_merge_next(sim_window *window, sim_range *range)
{
    GM_ASSERT(range->live && range->next->live);
    merge_next(window, range);
    refresh(window->root, range);
}
