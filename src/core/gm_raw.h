/* SPDX-License-Identifier: MIT
 *
 * Live blocks by their address, for callers that keep nothing but a pointer.
 *
 * A pool knows a block by its handle, which costs it nothing; a C caller has an address
 * and no more. So what is handed out to C stands in this table, and nothing else does:
 * no other block pays for it, and an address that is not in it was never handed out
 * there, or was given back already.
 *
 * An entry is made before its block is asked for, so that nothing can fail once there
 * is a block. Where the owner of the pool gave a block back by its address, the entry
 * stays behind, void; it comes out when its address is handed out again.
 *
 * Cost: a hash and a mutex of one shard in sixteen, taken and let go; a table grows by
 * doubling, and where there is no host memory for that it becomes slower and goes on.
 * Threading: any thread. The mutexes are leaves: what runs under one is in gm_raw.c,
 * but for the visitor of gm_raw_find.
 */
#ifndef GM_RAW_H
#define GM_RAW_H

#include "gm_block.h"
#include "gm_pool.h"

#include <pthread.h>

typedef struct gm_raw gm_raw;
struct gm_raw {
    gm_raw *next; // in its bucket
    uintptr_t addr;
    gm_pool *pool; // valid while the entry's block is live
    gm_block *block;
    uint32_t generation;
    size_t requested; // bytes asked for
    void *owner;      // one word for whoever makes the entries
};

enum {
    GM_RAW_SHARDS = 16,
    GM_RAW_FIRST_BUCKETS = 64,
};

typedef struct gm_raw_shard {
    _Alignas(GM_CACHE_LINE) pthread_mutex_t lock;
    gm_raw **buckets;
    size_t bucket_count;
    size_t count;
    gm_raw *first[GM_RAW_FIRST_BUCKETS]; // there from the start, so that none can lack
} gm_raw_shard;

typedef struct gm_raw_table {
    gm_raw_shard shards[GM_RAW_SHARDS];
} gm_raw_table;

void gm_raw_table_init(gm_raw_table *table);

/* The table is empty, or what is in it is nobody's. */
void gm_raw_table_fini(gm_raw_table *table);

/* An entry for a block that is about to be asked for, to be freed by gm_raw_free where
 * there is none. NULL: no host memory. */
gm_raw *gm_raw_new(void);
void gm_raw_free(gm_raw *raw);

/* Takes over `raw`, which says what was handed out. Returns the void entry that stood
 * at its address, for the caller to end; NULL for none. */
gm_raw *gm_raw_put(gm_raw_table *table, gm_raw *raw);

/* Takes out the entry at `addr`, which is the caller's then; NULL for none. */
gm_raw *gm_raw_take(gm_raw_table *table, uintptr_t addr);

/* Has `visit` look at the entry at `addr`; false where there is none. It runs with the
 * shard locked: it copies, takes references, and does nothing else. */
bool gm_raw_find(gm_raw_table *table,
                 uintptr_t addr,
                 void (*visit)(const gm_raw *raw, void *context),
                 void *context);

/* How many entries there are. */
size_t gm_raw_count(gm_raw_table *table);

#endif
