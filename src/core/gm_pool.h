/* SPDX-License-Identifier: MIT
 *
 * The pool of one device: takes segments from upstream, cuts them into blocks, keeps
 * what is given back for the next request of the same stream.
 *
 * Policy: exact best fit within the stream's arena, ties by (segment serial, address);
 * always split, coalesce on free; a segment is exactly the rounded request. Unless the
 * owner chose larger segments, or to keep large blocks whole. The same sequence of
 * calls gives the same placement on every backend.
 *
 * Cost: a hit and a free are one uncontended lock and a few index operations each, no
 * device call, no clock, no host allocation on free. Memory: one cache line a block, 7
 * KiB an arena.
 *
 * Threading: everything may be called from any thread. One mutex a pool, a leaf: while
 * it is held nothing is called outside the core and no other lock is taken; but where
 * there is no interpreter lock it has shards with a lock each (gm_shard.h).
 * gm_pool_malloc and gm_pool_free never wait: the first reports GM_BUSY, the second
 * leaves the block on a list that the next holder drains. gm_pool_malloc_slow, the
 * limit and the statistics may wait, so a caller that holds an interpreter lets go of
 * it first.
 *
 * In a forked child nothing waits for a lock that may never be free: what could fail
 * says GM_ERR_FORKED, the rest does nothing.
 *
 * Lifetime: a pool lives until it was closed and its last block came back, so a handle
 * may always give back its block, whatever object died first. Where a stream may still
 * use a block that came back (gm_pending.h), or a graph is being recorded, it lingers
 * until somebody looks after that is over (gm_pools_sweep).
 */
#ifndef GM_POOL_H
#define GM_POOL_H

#include "gm_arena.h"
#include "gm_block.h"
#include "gm_shortage.h"
#include "gm_stats.h"
#include "gm_upstream.h"

typedef struct gm_pool gm_pool;

/* A new pool on `device` with no limit. Takes over `upstream` on success.
 * GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status gm_pool_new(int device, gm_upstream upstream, gm_pool **out);

/* The owner lets go: cached memory goes back upstream now, the rest as its blocks are
 * freed, the pool with the last of them. Call once; the owner makes no call after it.
 */
void gm_pool_close(gm_pool *pool);

int gm_pool_device(const gm_pool *pool);

/* Has the pool ask upstream for whole multiples of `unit` bytes, itself a multiple of
 * GM_UNIT up to GM_SIZE_MAX; what a request leaves of its segment is cached. Where the
 * limit or upstream has no room for that, the request alone is asked for. GM_UNIT
 * unless called, which is before the first request. */
void gm_pool_set_segment_unit(gm_pool *pool, size_t unit);

/* The step, in bytes, that programs get which want growth and do not say which. */
#define GM_GROWTH_STEP ((size_t)64 << 20)

/* Has the pool take memory ahead of requests, so that starting cold it asks upstream
 * rarely: a segment is larger than its request by an eighth of what the stream holds,
 * or by `step` bytes where that is more. Bound: with it no more is cached than is in
 * use, or than `step` bytes for each stream that holds memory where that is more. It
 * fills no more than half of the limit, nor of what the pool holds and upstream has
 * room for; where upstream refuses it all the same, the request alone is asked for,
 * which counts as a retry. 0, none of this, unless called, which is before the first
 * request; a pool has growth or a segment unit, not both. */
void gm_pool_set_growth(gm_pool *pool, size_t step);

/* How a pool treats large requests, in bytes; see gm_large.c. All 0: like any other. */
typedef struct gm_large_rules {
    /* A block of so many bytes or more is not cut, and serves requests of so many
     * alone. 0: blocks are always cut. */
    size_t max_split_size;
    /* Such a request gets no block that is so much larger than it, or more. */
    size_t max_non_split_rounding;
    /* Segments for requests above GM_LARGE are whole multiples of it, itself a multiple
     * of GM_UNIT up to GM_SIZE_MAX; where there is no room for that, the request alone
     * is asked for. 0: they are as large as the request. */
    size_t large_segment_size;
} gm_large_rules;

#define GM_LARGE ((size_t)1 << 20)

/* The max_non_split_rounding of programs that set max_split_size and not that. */
#define GM_LARGE_ROUNDING ((size_t)20 << 20)

/* Before the first request; a pool has these, growth or a segment unit, only one of
 * them. */
void gm_pool_set_large_rules(gm_pool *pool, const gm_large_rules *rules);

/* Has the pool map its memory page by page (gm_page.h), from the backend of upstream
 * itself; growth, segment unit and rules for large requests are of no account then.
 * Called before the first request. GM_ERR_UNSUPPORTED: the backend cannot. */
GM_MUST_CHECK gm_status gm_pool_set_paging(gm_pool *pool);

/* One word for whoever owns the pool; the core does not look at it. */
void gm_pool_set_user(gm_pool *pool, void *user);
void *gm_pool_user(const gm_pool *pool);

/* Calls `visit` with each pool there is, oldest first. It holds a reference to the pool
 * meanwhile and no lock, so `visit` may do anything with it but close it. Drops the
 * last reference where the pool ended in between. */
void gm_pools_visit(void (*visit)(gm_pool *pool, void *context), void *context);

/* What a caller asks for. */
typedef struct gm_request {
    size_t size;       // bytes, > 0
    gm_stream_key key; // the stream it will be used on
    uint16_t client;   // on whose account; 0 is the program itself
} gm_request;

/* A block from the cache, without waiting. *out belongs to the caller, who notes its
 * generation. GM_MISS and GM_BUSY: go on with gm_pool_malloc_slow. GM_ERR_TOO_LARGE,
 * GM_ERR_HOST_MEMORY, GM_ERR_INVALID_VALUE (size 0): nothing changed. */
GM_MUST_CHECK gm_status gm_pool_malloc(gm_pool *pool,
                                       const gm_request *request,
                                       gm_block **out);

/* What a user who was asked for memory says. */
typedef enum gm_answer {
    GM_ANSWER_GIVE_UP,
    GM_ANSWER_RETRY,
    GM_ANSWER_FAILED, // and left an error of its own: GM_ERR_CALLBACK
} gm_answer;

enum {
    GM_ASKS = 8,
};

/* What the surroundings can do for a request that finds no memory. */
typedef struct gm_rescue {
    void *context;
    /* Looks for garbage that holds blocks; true when it ran, so that it is worth trying
     * again. No lock is held. NULL: there is no collector. */
    bool (*collect)(void *context);
    /* Asks the user to let go of memory, as the last stage: told what is missing, and
     * by `attempt` how often this request has asked, from 1. At most GM_ASKS times a
     * request. On the calling thread, no lock is held. NULL: there is nobody to ask. */
    gm_answer (*ask)(void *context, const gm_shortage *shortage);
    /* Gives back to the device what somebody who is no pool of the core has idle there,
     * and returns bytes. For want of the device's memory alone, beside what the other
     * pools have idle. No lock is held. NULL: there is nobody. */
    size_t (*trim)(void *context, int device);
    /* The stream that the memory is for. With it the request may get what another
     * stream has free, once the device is done with that. NULL: unknown. */
    const struct gm_stream_use *by;
    /* The recording that stream takes part in, by the backend's number; 0: none. */
    uint64_t recording;
    /* The capture whose memory is asked for, where the caller knows (gm_capture_new);
     * `recording` is 0 then. NULL: the stream tells. */
    struct gm_capture *capture;
} gm_rescue;

/* The same with all means: waits for the lock, asks upstream, and on want of memory
 * (limit or device) waits for what is pending, gives back this pool's idle segments,
 * then what others have idle on this device, borrows from another stream, collects
 * garbage, trying again after each, and again while other threads have memory on its
 * way to or from upstream; then it asks the user, and begins anew as long as told to.
 * GM_ERR_OUT_OF_MEMORY or GM_ERR_LIMIT when all that did not
 * help; GM_ERR_CAPTURING where a recording forbids to ask upstream; any failure leaves
 * the counters as they were, but for the retries, for out_of_memory, and for what was
 * given back. `rescue` may be NULL. */
GM_MUST_CHECK gm_status gm_pool_malloc_slow(gm_pool *pool,
                                            const gm_request *request,
                                            const gm_rescue *rescue,
                                            gm_block **out);

/* Keep the pool itself, not its memory, while its last block may be given back by
 * others and its owner is gone. Any thread. */
void gm_pool_ref(gm_pool *pool);
void gm_pool_unref(gm_pool *pool);

/* Ends a handle: gives back `block` if it still has that generation; where it was given
 * back by address meanwhile, only the handle ends. Never waits, never fails. Each block
 * handed out comes here exactly once, from any thread: a handle that comes again is the
 * caller's error, which the generation catches only while the lock is free. */
void gm_pool_free(gm_pool *pool, gm_block *block, uint32_t generation);

/* Gives back the live block that starts at `addr`; its handle stays and is void.
 * GM_ERR_NOT_OWNED. Walks the segments: for interfaces that know no handle. */
GM_MUST_CHECK gm_status gm_pool_free_address(gm_pool *pool, uintptr_t addr);

/* Where a live block lies. GM_ERR_NOT_OWNED when the handle is void. */
GM_MUST_CHECK gm_status gm_pool_placement(gm_pool *pool,
                                          const gm_block *block,
                                          uint32_t generation,
                                          uint64_t *serial,
                                          size_t *offset);

/* What upstream gave that a live block lies in. GM_ERR_NOT_OWNED as above. */
GM_MUST_CHECK gm_status gm_pool_range(gm_pool *pool,
                                      const gm_block *block,
                                      uint32_t generation,
                                      gm_range *out);

/* Gives idle segments back upstream: all, or those of the one stream. Returns bytes.
 * While a graph is being recorded it does nothing; all of them go when it ends, or what
 * the least target names that gm_pool_trim got meanwhile. */
size_t gm_pool_release_idle(gm_pool *pool);
size_t gm_pool_release_idle_of(gm_pool *pool, gm_stream_key key);

/* The same as long as the pool then holds no less than `target` bytes, or still more
 * than its limit. */
size_t gm_pool_trim(gm_pool *pool, size_t target);

/* The least total, in bytes, that giving back what is idle leaves; 0, as in a new pool,
 * for none. A request that finds no memory, the pool's end and a lower limit take no
 * heed of it. */
gm_status gm_pool_set_reserve(gm_pool *pool, size_t bytes);

/* The same of all pools on a device, reserves or not, for a request outside of them
 * that failed with `why`: for a limit, only of those that may lie over what has it.
 * Waits for what is pending there. */
size_t gm_pools_release_idle(int device, gm_status why);

/* Highest total in bytes, 0 for none. Where more is held, idle segments go back as by
 * gm_pool_release_idle; live blocks stay, so that the total may remain above it. */
gm_status gm_pool_set_limit(gm_pool *pool, size_t limit);

/* A consistent copy of the counters, postponed frees included. */
gm_status gm_pool_read_stats(gm_pool *pool, gm_stats *out);

/* The same with what can only be looked up: walks the segments and the arenas under the
 * lock. Then asks upstream, and the other pools on the device, what giving back all
 * that is idle would make room for; a pool that never took anything asks nobody, so
 * that a look never begins to use a device. */
gm_status gm_pool_survey(gm_pool *pool, gm_stats *stats, gm_survey *survey);

/* What is in use on one client's account (gm_client.h). */
#define GM_USAGE_LIST(X)                                                               \
    X(used_bytes, "bytes of live blocks, rounded")                                     \
    X(requested_bytes, "bytes asked for by them")                                      \
    X(live_blocks, "their number")

typedef struct gm_usage {
#define GM_USAGE_FIELD(name, text) size_t name;
    GM_USAGE_LIST(GM_USAGE_FIELD)
#undef GM_USAGE_FIELD
} gm_usage;

/* Adds what is in use of the pool to the usages of its `count` clients, by number; with
 * `plain` not what lies in a block of another pool, which has it in use as well. Walks
 * the blocks under the lock. GM_BUSY: nothing was added, for there is a client beyond
 * them by now. GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_pool_count_clients(gm_pool *pool,
                                              bool plain,
                                              gm_usage *usages,
                                              size_t count);

/* What a request lacks that failed with `status`, just now on this thread, for want of
 * memory: GM_ERR_OUT_OF_MEMORY, GM_ERR_LIMIT, GM_ERR_TOO_LARGE or GM_ERR_CAPTURING.
 * Cannot fail: what nobody can tell is GM_UNKNOWN. As gm_pool_survey, but also asks
 * upstream where the pool never took anything. */
void gm_pool_explain(gm_pool *pool,
                     const gm_request *request,
                     gm_status status,
                     gm_shortage *out);

/* The same for a request outside of all pools. *s has the device, the sizes, and what
 * whoever made the request holds there: used_bytes, cached_bytes and total_bytes. Adds
 * the device, what the pools hold of it, and the cause. Device -1: page-locked memory,
 * and its pools. */
void gm_explain_outside(const gm_backend *backend, gm_status status, gm_shortage *s);

/* The peaks begin anew, at what is held now. */
gm_status gm_pool_reset_peaks(gm_pool *pool);

/* NULL when every invariant holds, else a sentence that names the broken one. Walks
 * everything. */
const char *gm_pool_check(gm_pool *pool);

#endif
