/* SPDX-License-Identifier: MIT
 *
 * The table of arenas: one arena a key while it has pins, found whatever was found
 * before.
 */
#include "dice.h"
#include "harness.h"

#include "core/gm_arena.h"
#include "core/gm_process.h"

TEST(arena_keys_of_streams)
{
    // The default stream by any name, whatever number it has.
    CHECK_EQ(gm_stream_key_of(GM_STREAM_NULL, 0), GM_STREAM_KEY_DEFAULT);
    CHECK_EQ(gm_stream_key_of(GM_STREAM_NULL, 9), GM_STREAM_KEY_DEFAULT);
    CHECK_EQ(gm_stream_key_of(GM_STREAM_LEGACY, 9), GM_STREAM_KEY_DEFAULT);
    // Any other by its number, not its handle; number 0 is not the default stream.
    CHECK(gm_stream_key_of(GM_STREAM_PER_THREAD, 0) != GM_STREAM_KEY_DEFAULT);
    CHECK_EQ(gm_stream_key_of(64, 5), gm_stream_key_of(128, 5));
    CHECK(gm_stream_key_of(64, 5) != gm_stream_key_of(64, 6));
    CHECK(gm_stream_key_of(64, 1) != GM_STREAM_KEY_DEFAULT);
    CHECK(gm_stream_key_of(64, UINT64_MAX - 1) != GM_STREAM_KEY_DEFAULT);
}

TEST(arena_of_an_empty_table)
{
    gm_arena_table table = {0};

    CHECK(gm_arena_find(&table, 0) == NULL);
    CHECK(gm_arena_find(&table, 42) == NULL);
    gm_arena_table_fini(&table);
}

TEST(arena_lives_while_it_has_pins)
{
    gm_arena_table table = {0};
    gm_arena *arena = gm_arena_pin(&table, 7);

    CHECK(arena != NULL);
    CHECK_EQ(arena->key, 7);
    CHECK_EQ(arena->pins, 1);
    CHECK_EQ(arena->index.groups, 0);
    CHECK(gm_arena_pin(&table, 7) == arena);
    CHECK_EQ(arena->pins, 2);
    CHECK_EQ(table.count, 1);
    gm_arena_unpin(&table, arena);
    CHECK(gm_arena_find(&table, 7) == arena);
    gm_arena_unpin(&table, arena);
    CHECK(gm_arena_find(&table, 7) == NULL);
    CHECK_EQ(table.count, 0);
    gm_arena_table_fini(&table);
}

TEST(arena_table_that_ended_is_an_empty_one)
{
    gm_arena_table table = {0};

    gm_arena_unpin(&table, gm_arena_pin(&table, 7));
    gm_arena_table_fini(&table);
    CHECK(gm_arena_find(&table, 7) == NULL);
    gm_arena_unpin(&table, gm_arena_pin(&table, 7));
    gm_arena_table_fini(&table);
}

TEST(arena_found_last_may_go)
{
    gm_arena_table table = {0};
    gm_arena *a = gm_arena_pin(&table, 1), *b = gm_arena_pin(&table, 2);

    CHECK(gm_arena_find(&table, 1) == a);
    CHECK(gm_arena_find(&table, 2) == b);
    gm_arena_unpin(&table, b); // the one found last
    CHECK(gm_arena_find(&table, 2) == NULL);
    CHECK(gm_arena_find(&table, 1) == a);
    gm_arena_unpin(&table, a);
    gm_arena_table_fini(&table);
}

enum {
    KEYS = 500,
};

/* Keys that differ in low bits, in high bits, or all over. */
static gm_stream_key
key_number(size_t i)
{
    return i % 3 == 0   ? i
           : i % 3 == 1 ? (gm_stream_key)i << 48
                        : i * 0x123456789ABCDEFu;
}

TEST(arena_many_come_and_go)
{
    static size_t pins[KEYS];
    gm_arena_table table = {0};
    dice d = {5};
    size_t steps = 200000 / (size_t)harness_slowness(), with_pins = 0;

    for (size_t step = 0; step < steps; step++) {
        size_t i = dice_below(&d, KEYS);
        gm_arena *arena = gm_arena_find(&table, key_number(i));

        CHECK_EQ(arena != NULL, pins[i] > 0);
        if (dice_below(&d, 5) < 3 && pins[i] < 3) {
            arena = gm_arena_pin(&table, key_number(i));
            CHECK(arena != NULL);
            with_pins += pins[i]++ == 0;
        }
        else if (arena != NULL) {
            gm_arena_unpin(&table, arena);
            with_pins -= --pins[i] == 0;
        }
        if (pins[i] > 0) {
            CHECK_EQ(arena->key, key_number(i));
            CHECK_EQ(arena->pins, pins[i]);
        }
        CHECK_EQ(table.count, with_pins);
    }
    // Two a bucket, so that finding one does not become a long walk.
    CHECK(table.bucket_count * 2 >= table.count);
    for (size_t i = 0; i < KEYS; i++) {
        for (; pins[i] > 0; pins[i]--) {
            gm_arena_unpin(&table, gm_arena_find(&table, key_number(i)));
        }
    }
    gm_arena_table_fini(&table);
}

/* Refuses whatever is not an arena: the table's buckets. */
static bool
refuse_buckets(void *context, size_t size)
{
    (void)context;
    return size != sizeof(gm_arena);
}

TEST(arena_table_that_cannot_grow_is_only_slower)
{
    gm_arena_table table = {0};

    gm_host_set_fault(refuse_buckets, NULL);
    CHECK(gm_arena_pin(&table, 1) == NULL); // there is no table at all
    CHECK_EQ(table.count, 0);
    gm_host_set_fault(NULL, NULL);
    CHECK(gm_arena_pin(&table, 1) != NULL);
    gm_host_set_fault(refuse_buckets, NULL);
    for (gm_stream_key key = 2; key <= 100; key++) {
        CHECK(gm_arena_pin(&table, key) != NULL);
    }
    gm_host_set_fault(NULL, NULL);
    for (gm_stream_key key = 1; key <= 100; key++) {
        gm_arena *arena = gm_arena_find(&table, key);

        CHECK(arena != NULL);
        CHECK_EQ(arena->key, key);
        gm_arena_unpin(&table, arena);
    }
    gm_arena_table_fini(&table);
}
