/* SPDX-License-Identifier: MIT
 *
 * Blocks: the store their nodes come from, and cutting and joining.
 */
#include "harness.h"

#include "core/gm_block.h"
#include "core/gm_process.h"
#include "core/gm_size.h"

#include <string.h>

static gm_block *
take_node(gm_block_store *store)
{
    CHECK(gm_block_store_prepare(store));
    return gm_block_take(store);
}

TEST(block_store_hands_out_each_node_once)
{
    enum {
        COUNT = 5000,
    };
    static gm_block *nodes[COUNT];
    gm_block_store store = {0};

    for (size_t i = 0; i < COUNT; i++) {
        nodes[i] = take_node(&store);
        CHECK_EQ((uintptr_t)nodes[i] % GM_CACHE_LINE, 0);
        CHECK_EQ(nodes[i]->generation, 0);
        nodes[i]->state = GM_BLOCK_LIVE;
        nodes[i]->addr = i;
    }
    for (size_t i = 0; i < COUNT; i++) { // two that were one would share the mark
        CHECK_EQ(nodes[i]->addr, i);
    }
    gm_block_store_fini(&store);
    CHECK(store.spare == NULL && store.slabs == NULL && store.nodes == 0);
}

TEST(block_store_reuses_nodes_and_keeps_their_generation)
{
    gm_block_store store = {0};
    gm_block *a = take_node(&store), *b = take_node(&store);

    a->generation = 7;
    gm_block_give(&store, b);
    gm_block_give(&store, a);
    CHECK_EQ(a->state, GM_BLOCK_SPARE);
    CHECK(take_node(&store) == a);
    CHECK(take_node(&store) == b);
    CHECK_EQ(a->generation, 7);
    gm_block_store_fini(&store);
}

typedef struct requests {
    size_t count;
    size_t sizes[16];
} requests;

static bool
note_request(void *context, size_t size)
{
    requests *seen = context;

    CHECK(seen->count < 16);
    seen->sizes[seen->count++] = size;
    return false;
}

/* A slab is its head and its nodes: 64 nodes, then as many as there are, to 1024. The
 * next one is asked for when every node is out. */
TEST(block_store_doubles_up_to_a_bound)
{
    static const size_t nodes[] = {64, 64, 128, 256, 512, 1024, 1024, 1024};
    gm_block_store store = {0};
    requests seen = {0};

    gm_host_set_fault(note_request, &seen);
    for (size_t i = 0; i < 8; i++) {
        for (size_t n = 0; n < nodes[i]; n++) {
            (void)take_node(&store);
            CHECK_EQ(seen.count, i + 1);
        }
    }
    gm_host_set_fault(NULL, NULL);
    for (size_t i = 0; i < 8; i++) {
        CHECK_EQ(seen.sizes[i] / GM_CACHE_LINE, nodes[i] + 1);
    }
    CHECK_EQ(store.nodes, 64 + 64 + 128 + 256 + 512 + 3 * 1024);
    gm_block_store_fini(&store);
}

/* Host memory is not blank where somebody had it before. */
TEST(block_store_nodes_are_new_whatever_was_there)
{
    size_t size = 65 * (size_t)GM_CACHE_LINE;
    void *before = gm_host_alloc_aligned(GM_CACHE_LINE, size);
    gm_block_store store = {0};

    CHECK(before != NULL);
    memset(before, 0xFF, size);
    gm_host_free(before);
    for (size_t i = 0; i < 64; i++) {
        gm_block *block = take_node(&store);

        CHECK_EQ(block->state, GM_BLOCK_SPARE);
        CHECK_EQ(block->generation, 0);
    }
    gm_block_store_fini(&store);
}

static bool
always_fails(void *context, size_t size)
{
    (void)size;
    ++*(size_t *)context;
    return true;
}

TEST(block_store_without_host_memory)
{
    gm_block_store store = {0};
    size_t asked = 0;

    gm_host_set_fault(always_fails, &asked);
    CHECK(!gm_block_store_prepare(&store));
    CHECK_EQ(asked, 1);
    CHECK(store.spare == NULL && store.nodes == 0);
    gm_host_set_fault(NULL, NULL);
    CHECK(gm_block_store_prepare(&store));

    gm_host_set_fault(always_fails, &asked); // it has spare nodes: nothing is asked
    CHECK(gm_block_store_prepare(&store));
    gm_host_set_fault(NULL, NULL);
    CHECK_EQ(asked, 1);
    gm_block_store_fini(&store);
}

static void
check_links(const gm_block *block, const gm_block *prev, const gm_block *next)
{
    CHECK(block->prev == prev);
    CHECK(block->next == next);
}

TEST(block_split_and_absorb_are_inverse)
{
    gm_segment segment = {.serial = 3};
    gm_block a = {.addr = 4096, .size = 4096, .segment = &segment};
    gm_block b = {0}, c = {0};

    gm_block_split(&a, 512, &b);
    CHECK_EQ(a.size, 512);
    CHECK_EQ(b.addr, 4608);
    CHECK_EQ(b.size, 3584);
    CHECK(b.segment == &segment);
    check_links(&a, NULL, &b);
    check_links(&b, &a, NULL);

    gm_block_split(&a, 256, &c); // with a neighbour above
    CHECK_EQ(c.addr, 4352);
    CHECK_EQ(c.size, 256);
    check_links(&a, NULL, &c);
    check_links(&c, &a, &b);
    check_links(&b, &c, NULL);

    gm_block_absorb_next(&a);
    CHECK_EQ(a.size, 512);
    check_links(&a, NULL, &b);
    check_links(&b, &a, NULL);
    gm_block_absorb_next(&a);
    CHECK_EQ(a.size, 4096);
    check_links(&a, NULL, NULL);
}

TEST(block_segment_is_idle_when_one_free_block_tiles_it)
{
    gm_block a = {.size = 1024, .state = GM_BLOCK_FREE};
    gm_block b = {.state = GM_BLOCK_FREE};
    gm_segment segment = {.first = &a};

    CHECK(gm_segment_is_idle(&segment));
    for (unsigned state = GM_BLOCK_SPARE; state <= GM_BLOCK_VOID; state++) {
        a.state = (uint8_t)state;
        CHECK_EQ(gm_segment_is_idle(&segment), state == GM_BLOCK_FREE);
    }
    a.state = GM_BLOCK_FREE;
    gm_block_split(&a, 512, &b);
    CHECK(!gm_segment_is_idle(&segment));
}
