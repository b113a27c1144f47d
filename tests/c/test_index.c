/* SPDX-License-Identifier: MIT
 *
 * The free index against a sorted array: after each change the best fit for some size
 * is the first entry of the array that is large enough.
 */
#include "dice.h"
#include "harness.h"

#include "core/gm_index.h"

#include <stdlib.h>
#include <string.h>

enum {
    NODES = 4096,
    SEGMENTS = 5,
};

typedef struct array {
    gm_block *items[NODES];
    size_t count;
} array;

/* Smaller, then of the older segment, then lower. */
static int
compare(const gm_block *a, const gm_block *b)
{
    if (a->size != b->size) {
        return a->size < b->size ? -1 : 1;
    }
    if (a->segment->serial != b->segment->serial) {
        return a->segment->serial < b->segment->serial ? -1 : 1;
    }
    return a->addr == b->addr ? 0 : a->addr < b->addr ? -1 : 1;
}

static void
array_put(array *sorted, gm_block *block)
{
    size_t at = 0;

    while (at < sorted->count && compare(sorted->items[at], block) < 0) {
        at++;
    }
    memmove(sorted->items + at + 1, sorted->items + at,
            (sorted->count - at) * sizeof sorted->items[0]);
    sorted->items[at] = block;
    sorted->count++;
}

static void
array_remove(array *sorted, size_t at)
{
    sorted->count--;
    memmove(sorted->items + at, sorted->items + at + 1,
            (sorted->count - at) * sizeof sorted->items[0]);
}

static gm_block *
array_best(const array *sorted, size_t size)
{
    for (size_t i = 0; i < sorted->count; i++) {
        if (sorted->items[i]->size >= size) {
            return sorted->items[i];
        }
    }
    return NULL;
}

typedef struct world {
    gm_index index;
    array sorted;
    gm_segment segments[SEGMENTS];
    gm_block *nodes;
    gm_block *spare[NODES];
    size_t spare_count;
    dice d;
    size_t sizes; // how many different sizes there are, about
} world;

/* Segments whose addresses fall while their serials rise. */
static world *
world_new(uint64_t seed, size_t sizes)
{
    world *w = calloc(1, sizeof *w);
    gm_block_store store = {0};

    CHECK(w != NULL);
    w->nodes = aligned_alloc(GM_CACHE_LINE, NODES * sizeof *w->nodes);
    CHECK(w->nodes != NULL);
    w->d.state = seed;
    w->sizes = sizes;
    harness_note("seed %llu, sizes %zu", (unsigned long long)seed, sizes);
    for (size_t i = 0; i < SEGMENTS; i++) {
        w->segments[i].serial = i;
        w->segments[i].piece.base = (SEGMENTS - i) << 40;
    }
    for (size_t i = 0; i < NODES; i++) { // the ranks are those that a store gives
        CHECK(gm_block_store_prepare(&store));
        w->nodes[i].rank = gm_block_take(&store)->rank;
        w->spare[w->spare_count++] = &w->nodes[i];
    }
    gm_block_store_fini(&store);
    return w;
}

static void
world_free(world *w)
{
    free(w->nodes);
    free(w);
}

/* Few units or many: some of them, at times times a power of two. */
static size_t
some_size(world *w)
{
    size_t units = 1 + dice_below(&w->d, w->sizes);

    if (w->sizes == 1) {
        return 512;
    }
    return units << (9 + (dice_below(&w->d, 4) == 0 ? dice_below(&w->d, 30) : 0));
}

static void
world_put(world *w)
{
    size_t at = dice_below(&w->d, w->spare_count);
    gm_block *block = w->spare[at];
    gm_segment *segment = &w->segments[dice_below(&w->d, SEGMENTS)];
    uint8_t rank;

    w->spare[at] = w->spare[--w->spare_count];
    rank = block->rank;
    memset(block, 0xA5, sizeof *block); // the index must not rely on old links
    block->rank = rank;
    block->size = some_size(w);
    block->segment = segment;
    // The node's number keeps addresses apart; the factor scatters them.
    block->addr =
        segment->piece.base + ((size_t)(block - w->nodes) * 2731 % NODES << 9);
    gm_index_put(&w->index, block);
    array_put(&w->sorted, block);
}

static void
world_remove(world *w, size_t at)
{
    gm_block *block = w->sorted.items[at];

    gm_index_remove(&w->index, block);
    array_remove(&w->sorted, at);
    w->spare[w->spare_count++] = block;
}

/* The best fit leaves the index another way, and is a spare node again. */
static void
world_take(world *w, size_t size)
{
    gm_block *best = array_best(&w->sorted, size);
    gm_block *taken = gm_index_take(&w->index, size);

    CHECK_EQ(taken - w->nodes, best - w->nodes);
    for (size_t at = 0; at < w->sorted.count; at++) {
        if (w->sorted.items[at] == taken) {
            array_remove(&w->sorted, at);
            w->spare[w->spare_count++] = taken;
        }
    }
}

static void
world_step(world *w, size_t wanted_count)
{
    bool grow = dice_below(&w->d, 2 * wanted_count) >= w->sorted.count;
    size_t size = some_size(w);
    gm_block *best;

    if (w->sorted.count == 0 || (grow && w->spare_count > 0)) {
        world_put(w);
    }
    else if (dice_below(&w->d, 2) == 0) {
        world_take(w, some_size(w));
    }
    else {
        world_remove(w, dice_below(&w->d, w->sorted.count));
    }
    best = array_best(&w->sorted, size);
    CHECK_EQ(gm_index_best(&w->index, size) - w->nodes, best - w->nodes);
    CHECK_EQ(gm_index_largest(&w->index),
             w->sorted.count ? w->sorted.items[w->sorted.count - 1]->size : 0);
}

typedef struct visit {
    const array *sorted;
    size_t at;
} visit;

static void
visit_next(void *context, const gm_block *block)
{
    visit *v = context;

    CHECK(v->at < v->sorted->count);
    CHECK(v->sorted->items[v->at++] == block);
}

/* Bins grow with the size, so the walk is the array. */
static void
check_walk(const world *w)
{
    visit v = {&w->sorted, 0};

    gm_index_walk(&w->index, visit_next, &v);
    CHECK_EQ(v.at, w->sorted.count);
}

static void
run_world(uint64_t seed, size_t sizes, size_t wanted_count, size_t steps)
{
    static const gm_index empty;
    world *w = world_new(seed, sizes);

    for (size_t i = 0; i < steps; i++) {
        world_step(w, wanted_count);
        if (i % 1000 == 0) {
            check_walk(w);
        }
    }
    check_walk(w);
    while (w->sorted.count > 0) {
        world_remove(w, dice_below(&w->d, w->sorted.count));
    }
    CHECK(memcmp(&w->index, &empty, sizeof empty) == 0);
    world_free(w);
}

TEST(index_of_many_sizes_is_the_sorted_array)
{
    run_world(1, 100000, 500, 100000 / (size_t)harness_slowness());
}

TEST(index_of_few_sizes_is_the_sorted_array)
{
    run_world(2, 3, 500, 100000 / (size_t)harness_slowness());
}

TEST(index_of_one_size_is_the_sorted_array)
{
    run_world(3, 1, 300, 100000 / (size_t)harness_slowness());
}

TEST(index_nearly_empty_is_the_sorted_array)
{
    for (uint64_t seed = 10; seed < 30; seed++) {
        run_world(seed, 64, 3, 5000 / (size_t)harness_slowness());
    }
}

/* How deep a tree is, no node of which has a child of higher rank. */
static size_t
depth_of(const gm_block *node)
{
    size_t depth[2] = {0, 0};

    for (size_t i = 0; node != NULL && i < 2; i++) {
        const gm_block *child = node->u.tree.side[i];

        CHECK(child == NULL || child->rank <= node->rank);
        depth[i] = depth_of(child);
    }
    return node == NULL ? 0 : 1 + (depth[0] > depth[1] ? depth[0] : depth[1]);
}

/* All blocks of one size are in one bin. A tree of 2000 nodes of such ranks is some 25
 * deep, a list 2000, in whichever order they came. */
TEST(index_stays_shallow)
{
    world *w = world_new(4, 1);
    gm_block *const *first = &w->index.firsts[gm_size_bin(512)];

    while (w->sorted.count < 2000) {
        world_put(w);
    }
    for (size_t i = 0; i < 20000 / (size_t)harness_slowness(); i++) {
        world_remove(w, dice_below(&w->d, w->sorted.count));
        world_put(w);
        CHECK(i % 100 != 0 || depth_of(*gm_index_others(*first)) < 50);
    }
    for (size_t i = 0; i < 2000; i++) {
        gm_index_remove(&w->index, w->sorted.items[i]);
        CHECK(i % 100 != 0 || depth_of(*gm_index_others(*first)) < 50);
    }
    for (size_t i = 0; i < 2000; i++) { // the worst order for a plain tree
        gm_index_put(&w->index, w->sorted.items[i]);
    }
    CHECK(depth_of(*gm_index_others(*first)) < 50);
    for (size_t i = 0; i < 2000; i++) {
        gm_index_remove(&w->index, w->sorted.items[i]);
    }
    for (size_t i = 2000; i-- > 0;) { // and as bad; each goes before all others
        gm_index_put(&w->index, w->sorted.items[i]);
    }
    CHECK(depth_of(*gm_index_others(*first)) < 50);
    world_free(w);
}

TEST(index_of_nothing_has_no_best)
{
    gm_index *index = calloc(1, sizeof *index);

    CHECK(index != NULL);
    CHECK(gm_index_best(index, 512) == NULL);
    CHECK(gm_index_best(index, GM_SIZE_MAX) == NULL);
    free(index);
}

TEST(index_prefers_size_then_serial_then_address)
{
    gm_segment older = {.serial = 1}, newer = {.serial = 2};
    gm_block a = {.size = 512, .segment = &newer, .addr = 4096};
    gm_block b = {.size = 1024, .segment = &older, .addr = 512};
    gm_block c = {.size = 1024, .segment = &newer, .addr = 0};
    gm_block d = {.size = 1024, .segment = &newer, .addr = 1024};
    const gm_block *order[] = {&a, &b, &c, &d};

    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 4; j++) {
            CHECK_EQ(gm_tree_before(order[i], order[j]), i < j);
        }
    }
}
