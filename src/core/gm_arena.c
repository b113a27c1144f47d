/* SPDX-License-Identifier: MIT
 *
 * The table of arenas. See gm_arena.h.
 */
#include "gm_arena.h"

#include "gm_process.h" // gm_host_zalloc

enum {
    BUCKETS_FIRST = 8,
};

static size_t
bucket_of(const gm_arena_table *table, gm_stream_key key)
{
    return (size_t)(key * 0x9E3779B97F4A7C15u >> 32) & (table->bucket_count - 1);
}

gm_arena *
gm_arena_search(const gm_arena_table *table, gm_stream_key key)
{
    gm_arena *arena;

    if (!table->bucket_count) {
        return NULL;
    }
    arena = table->buckets[bucket_of(table, key)];
    while (arena && arena->key != key) {
        arena = arena->chain;
    }
    return arena;
}

gm_arena *
gm_arena_find_slow(gm_arena_table *table, gm_stream_key key)
{
    gm_arena *arena = table->hidden ? NULL : gm_arena_search(table, key);

    if (arena) {
        table->recent = arena;
    }
    return arena;
}

static void
table_link(gm_arena_table *table, gm_arena *arena)
{
    gm_arena **bucket = &table->buckets[bucket_of(table, arena->key)];

    arena->chain = *bucket;
    *bucket = arena;
}

/* Keeps at most two arenas a bucket on average. A table that cannot grow is only
 * slower, so that failure is not reported unless there is no table at all. */
static bool
table_grow(gm_arena_table *table)
{
    gm_arena_table bigger = *table;

    if (table->count < 2 * table->bucket_count) {
        return true;
    }
    bigger.bucket_count = table->bucket_count ? 4 * table->bucket_count : BUCKETS_FIRST;
    bigger.buckets = gm_host_zalloc(bigger.bucket_count * sizeof(gm_arena *));
    if (!bigger.buckets) {
        return table->bucket_count > 0;
    }
    for (size_t i = 0; i < table->bucket_count; i++) {
        gm_arena *arena = table->buckets[i];

        while (arena) {
            gm_arena *chain = arena->chain;

            table_link(&bigger, arena);
            arena = chain;
        }
    }
    gm_host_free(table->buckets);
    *table = bigger;
    return true;
}

gm_arena *
gm_arena_pin(gm_arena_table *table, gm_stream_key key)
{
    gm_arena *arena = gm_arena_search(table, key);

    if (!arena) {
        if (!table_grow(table)) {
            return NULL;
        }
        arena = gm_host_zalloc_aligned(_Alignof(gm_arena), sizeof(*arena));
        if (!arena) {
            return NULL;
        }
        arena->key = key;
        table_link(table, arena);
        table->count++;
        table->recent = table->hidden ? NULL : arena;
    }
    arena->pins++;
    return arena;
}

void
gm_arena_unpin(gm_arena_table *table, gm_arena *arena)
{
    gm_arena **link;

    GM_ASSERT(arena->pins > 0);
    if (--arena->pins > 0) {
        return;
    }
    GM_ASSERT(!arena->index.groups && !arena->bytes);
    link = &table->buckets[bucket_of(table, arena->key)];
    while (*link != arena) {
        link = &(*link)->chain;
    }
    *link = arena->chain;
    table->count--;
    if (table->recent == arena) {
        table->recent = NULL;
    }
    if (table->commons == arena) {
        table->commons = NULL;
    }
    gm_host_free(arena);
}

void
gm_arena_take_over(gm_arena_table *table, gm_segment *segment, gm_arena *into)
{
    gm_arena *from = segment->arena;
    size_t size = segment->space ? 0 : segment->size;

    for (gm_block *block = segment->first; block; block = block->next) {
        if (block->state == GM_BLOCK_FREE) {
            gm_index_remove(&from->index, block);
            gm_index_put(&into->index, block);
        }
    }
    segment->arena = into;
    from->bytes -= size;
    into->bytes += size;
    into->pins++;
    gm_arena_unpin(table, from);
}

void
gm_arena_table_fini(gm_arena_table *table)
{
    GM_ASSERT(table->count == 0);
    gm_host_free(table->buckets);
    *table = (gm_arena_table){0};
}
