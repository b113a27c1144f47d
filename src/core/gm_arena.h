/* SPDX-License-Identifier: MIT
 *
 * Arenas: the free blocks of one stream, and the table that finds a stream's arena.
 *
 * Memory given back may be reused at once by work queued on the same stream, because
 * the stream runs in order; hence one arena a stream. A stream is known by a key that
 * no other stream ever has, not by its handle, which the driver reuses. A segment
 * belongs to the arena it was taken for, and its blocks always return there. An arena
 * goes when its last segment goes.
 *
 * When a stream ended and its work is done, what it left is anybody's: the arenas of
 * ended streams become one, the commons, and a stream that finds there what its own
 * arena lacks takes over the segment (gm_stream_end.c, gm_lend.c).
 *
 * Cost: finding the arena used last is one comparison, any other a hash lookup.
 * Threading: the pool's lock is held.
 */
#ifndef GM_ARENA_H
#define GM_ARENA_H

#include "gm_block.h"
#include "gm_index.h"

/* Identity of a stream. */
typedef uint64_t gm_stream_key;

#define GM_STREAM_KEY_DEFAULT ((gm_stream_key)0) // the device's default stream

/* The key of a stream whose gm_backend stream_id is `id`. */
static inline gm_stream_key
gm_stream_key_of(gm_stream stream, uint64_t id)
{
    return stream <= GM_STREAM_LEGACY ? GM_STREAM_KEY_DEFAULT : id + 1;
}

/* A stream that uses memory. */
typedef struct gm_stream_use {
    gm_stream stream;  // handle
    gm_stream_key key; // which stream that is, also when the handle is used again
    int device;        // whose stream it is
    uint64_t life;     // of the device, when it was made; 0: not known (gm_lost.h)
    bool announced;    // its end is announced by gm_pools_end_stream, or it has none
} gm_stream_use;

struct gm_arena {
#if GM_SHARDS
    /* What threads on different streams write to shares no cache line. */
    _Alignas(GM_CACHE_LINE) gm_shard *shard; // of its key
#endif
    gm_index index;
    gm_stream_key key;
    size_t pins;     // segments that belong here or are being taken for it, and notes
    size_t bytes;    // of the plain segments that belong here
    gm_arena *chain; // next in the table's bucket

    // Where pages are mapped (gm_page.h).
    gm_stream_use by; // the stream, as its last request that missed named it
    bool known;       // it did, and the stream has not ended
    size_t borrowers; // of its handle, who have no lock: gm_owner
    uint64_t looked;  // number of the look that it was added to last as another's
};

typedef struct gm_arena_table {
    gm_arena *recent;  // found last; NULL in an empty table
    gm_arena *commons; // what ended streams left; NULL for nothing
    gm_arena **buckets;
    size_t bucket_count; // 0 or a power of two
    size_t count;
    bool hidden; // only gm_arena_search finds anything: see gm_large.c
} gm_arena_table;

/* The arena of `key`; NULL when it has none. The first leaves the table as it is; the
 * others are the hit path's. */
gm_arena *gm_arena_search(const gm_arena_table *table, gm_stream_key key);
gm_arena *gm_arena_find_slow(gm_arena_table *table, gm_stream_key key);

static inline gm_arena *
gm_arena_find(gm_arena_table *table, gm_stream_key key)
{
    gm_arena *recent = table->recent;

    return GM_LIKELY(recent && recent->key == key) ? recent
                                                   : gm_arena_find_slow(table, key);
}

/* The arena of `key`, made if there is none, with one pin more. NULL: no host memory.
 */
gm_arena *gm_arena_pin(gm_arena_table *table, gm_stream_key key);

/* One pin less; the last one frees the arena, whose index is empty by then. */
void gm_arena_unpin(gm_arena_table *table, gm_arena *arena);

/* The segment, its free blocks and its pin go to `into`; the arena it was of ends
 * unless something else pins it. */
void gm_arena_take_over(gm_arena_table *table, gm_segment *segment, gm_arena *into);

/* Frees the table; every arena was unpinned. */
void gm_arena_table_fini(gm_arena_table *table);

#endif
