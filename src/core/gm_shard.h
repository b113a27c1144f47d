/* SPDX-License-Identifier: MIT
 *
 * Shards: the part of a pool that a hit and a free touch, once for every few streams,
 * so that threads on streams of their own do not meet.
 *
 * Without an interpreter lock, threads that allocate at once would all write to one
 * cache line: the pool's lock, its echo, its counters. So where GM_SHARDS says that
 * there is none, a pool has up to GM_SHARD_COUNT shards, each with a lock, an echo,
 * what it counted, and some nodes for blocks. An arena belongs to the shard of its
 * stream's key; keys are handed out in sequence, so that streams made one after the
 * other have different ones. A hit, and the free of a block, take the lock of one shard
 * and touch nothing but that shard, an arena of it, and blocks of that arena's
 * segments.
 *
 * Everything else takes the pool's lock and then that of each shard, adds up what they
 * counted and carries out what was postponed there. So whoever has the pool's lock has
 * all, and code that expects it (_locked) knows nothing of shards: who has one shard
 * may rely on everything else standing still. One who has a shard waits for nothing, so
 * who has the pool's lock waits for shards, some tens of nanoseconds each, also in a
 * destructor.
 *
 * Where a block was handed out is written into its node. Its segment may be another
 * stream's by the time it is freed (gm_lend.c), or it waits for other streams: then the
 * pool's lock is taken.
 *
 * Counters are those of a pool without shards whenever they are read, but for the peaks
 * of what is in use or cached: a shard tells the pool when what it counted differs by
 * GM_SHARD_LATE from what it told last, and how high it was in between. So such a peak
 * is exact while one shard is at work, and otherwise to 1 MiB a shard.
 *
 * Without GM_SHARDS a pool is its own and only shard.
 *
 * Cost: a cache line that is read more than without, for the shard; a miss or a look at
 * the counters takes a lock a shard, of which there are as many as streams were used. A
 * shard is half a KiB and its nodes, made when a stream of it first gets memory.
 * Threading: as gm_pool.h.
 */
#ifndef GM_SHARD_H
#define GM_SHARD_H

#include "gm_arena.h"
#include "gm_lock.h"
#include "gm_pool.h"

#include <stdatomic.h>

/* What the shard's last request got, as long as nothing but that happened since; with
 * it the same again costs next to nothing: see gm_hit.c. Only a pool that needs no
 * attention has one. */
typedef struct gm_echo {
    gm_block *block;   // LIVE; NULL for none
    gm_block *resting; // the same once it was given back, which is not carried out yet
    gm_stream_key key; // the request's
    size_t cuts;       // 1 if the block was cut off a larger one, else 0
} gm_echo;

#if GM_SHARDS

enum {
    GM_SHARD_COUNT = 64,                // of a pool
    GM_SHARD_ALIGN = 2 * GM_CACHE_LINE, // lines are fetched in pairs
};

/* Begins a line that no other field is on. */
#define GM_SHARD_APART _Alignas(GM_SHARD_ALIGN)

/* Bytes, and blocks, that a shard may count before it tells the pool. */
#define GM_SHARD_LATE ((size_t)1 << 19)
#define GM_SHARD_LATE_BLOCKS (GM_SHARD_LATE / GM_UNIT)

struct gm_shard {
    GM_SHARD_APART gm_lock lock;
    gm_echo echo;
    _Atomic(gm_block *) deferred; // frees that found the lock busy
    gm_arena *recent;             // found last; NULL for none
    gm_block_store store;
    gm_pool *pool;
    gm_shard *next; // that was made before; stays
    gm_stats stats; // what happened since the pool was told. What is in use may have
                    // become less: modulo 2^64
};

#else

#define GM_SHARD_APART

typedef struct gm_pool gm_shard;

#endif
#endif
