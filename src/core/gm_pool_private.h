/* SPDX-License-Identifier: MIT
 *
 * The pool's insides, for gm_pool.c, gm_hit.c and gm_shard.c (the hit path), gm_miss.c,
 * gm_large.c, gm_idle.c and gm_reclaim.c (the miss path), gm_note.c, gm_pending.c,
 * gm_stream_end.c, gm_lend.c and gm_part.c (memory of several streams and of graphs),
 * gm_explain.c (what is read) and gm_check.c, gm_check_waits.c alone.
 *
 * Lock rule: functions ending in _locked are called with pool->lock held and call
 * nothing outside the core.
 */
#ifndef GM_POOL_PRIVATE_H
#define GM_POOL_PRIVATE_H

#include "gm_capture.h"
#include "gm_note.h"
#include "gm_page.h"
#include "gm_pool.h"
#include "gm_process.h" // gm_pool_link
#include "gm_shard.h"

#include <stdatomic.h>

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): lines of their own */
struct gm_pool {
#if GM_SHARDS
    GM_SHARD_APART _Atomic(gm_shard *) shards[GM_SHARD_COUNT]; // by key; NULL: not made
    _Atomic(gm_shard *) first_shard;                           // by `next`
#endif
    gm_lock lock;
    bool attention; // closed, or something was dropped: leaving takes more
#if !GM_SHARDS
    gm_echo echo;
#endif
    _Atomic(gm_block *) deferred;  // frees that found the lock busy
    GM_SHARD_APART gm_stats stats; // shards write to it
    gm_arena_table arenas;
    gm_block_store store;
    gm_segment *first; // segments, oldest first
    gm_segment *last;
    uint64_t next_serial;
    size_t reserving;   // bytes asked of upstream that have not arrived
    size_t leading;     // those of them that nobody has requested
    size_t releasing;   // bytes on their way back upstream
    size_t voided;      // handles whose block was given back by address or is lost
    size_t uncounted;   // by how much segments and cuts make more blocks than there are
                        // that hold bytes; modulo 2^64
    bool closed;        // the owner let go
    bool ended;         // the reference of owner and blocks was dropped
    bool lingering;     // closed, and counted as waiting for a device
    bool trim;          // idle memory is wanted back once no graph is being recorded
    size_t trim_target; // and so much is to be held then
    bool settling;      // somebody looks at the lanes; others may append to them

    gm_note *notes;   // whose uses have no mark for the last time yet
    gm_note *dropped; // those of them that are to get one, by `behind`
    gm_use *lanes;    // first uses of the lanes
    gm_mark *marks;   // spare ones
    size_t waiting;   // threads that hold a mark to wait for it
    gm_part *parts;   // private memory of captures
    gm_paging paging; // what is mapped by page
    unsigned flushes; // how often something dropped got its marks
    uint16_t next_part;

    _Atomic(size_t) refs; // 1 for the owner and all blocks together, 1 a passing user

    int device;
    size_t segment_unit; // what is asked of upstream is a multiple of it
    size_t growth_step;  // what is taken ahead of requests at the least; 0: nothing is
    gm_large_rules large;
    gm_upstream upstream;
    void *user;
    gm_pool_link link;
};

/* The private memory of a capture for one stream: see gm_part.c. */
struct gm_part {
    gm_part *next;             // in the pool
    const gm_capture *capture; // NULL once it is released
    gm_stream_key key;
    uint16_t number; // of the pool's parts; not 0
    bool ended;      // its memory is that of the arenas again
    size_t members;  // live and pending blocks whose note names it
    gm_note *note;   // of its launches, until it has ended
    gm_index index;
};

/* Waits for the lock, carries out what was given back and rests, and drains postponed
 * frees; gm_pool_try_lock does not wait, but for shards. */
void gm_pool_lock(gm_pool *pool);
bool gm_pool_try_lock(gm_pool *pool);
void gm_pool_unlock(gm_pool *pool);

/* Unlocks for one who may have locked a closed pool: sees to the pool's end, which
 * nobody else may come by to do. Calls upstream; the caller keeps the pool alive until
 * here by a reference or a block. */
void gm_pool_leave(gm_pool *pool);

/* Leaves the end of a handle to whoever holds the lock next. */
GM_COLD void gm_pool_defer(gm_pool *pool, gm_block *block);

/* Whether somebody did so since the lock was held last. No lock needed. */
bool gm_pool_has_deferred(gm_pool *pool);

/* Ends the handle of `block`, with its bytes unless those went back by address. */
void gm_pool_end_handle_locked(gm_pool *pool, gm_block *block);

/* Cuts a block that is in no index to `rounded` bytes and puts the rest into `index`,
 * in the same state. The store is prepared. */
static inline void
gm_block_cut(gm_stats *stats,
             gm_block_store *store,
             gm_index *index,
             gm_block *block,
             size_t rounded)
{
    gm_block *tail = gm_block_take(store);

    gm_block_split(block, rounded, tail);
    tail->state = block->state;
    tail->client = block->client;
    gm_index_put(index, tail);
    stats->splits++;
}

/* Takes a free block out of `index` and cuts it to `rounded` bytes. The store is
 * prepared where they differ. True where it was cut. */
static inline bool
gm_pool_carve_locked(gm_pool *pool, gm_index *index, gm_block *block, size_t rounded)
{
    gm_index_remove(index, block);
    if (block->size == rounded) {
        return false;
    }
    gm_block_cut(&pool->stats, &pool->store, index, block, rounded);
    return true;
}

/* Puts a block that nobody uses any more among the free ones of its arena, joined with
 * free neighbours. Whose it was is the caller's to count. */
void gm_pool_cache_locked(gm_pool *pool, gm_block *block);

/* ---- gm_shard.c ---- */

/* As gm_arena_pin. */
#if GM_SHARDS
gm_arena *gm_pool_pin_arena_locked(gm_pool *pool, gm_stream_key key);
#else
static inline gm_arena *
gm_pool_pin_arena_locked(gm_pool *pool, gm_stream_key key)
{
    return gm_arena_pin(&pool->arenas, key);
}
#endif

/* ---- gm_pending.c ---- */

/* Takes back a NOTED block, which is counted as live no more: it becomes pending, goes
 * to its capture or, where nothing holds it, is cached. */
void gm_pool_take_back_noted_locked(gm_pool *pool, gm_block *block);

/* Makes a LIVE block NOTED with `note`, which it takes over, still without uses. */
void gm_pool_note_block_locked(gm_pool *pool, gm_block *block, gm_note *note);

/* Nobody holds what the note is about any more: lets it go, or has its uses marked at
 * the next flush. */
void gm_pool_drop_note_locked(gm_pool *pool, gm_note *note);

/* Marks what was dropped. Calls the device, does not wait. While a graph is being
 * recorded it does nothing. The caller holds the pool by a reference. */
void gm_pool_flush(gm_pool *pool);

/* Lets a note go whose uses are all done, and what it held. Returns the bytes that
 * became free. */
size_t gm_note_finish_locked(gm_pool *pool, gm_note *note);

/* ---- gm_stream_end.c ---- */

/* What an ended stream left, whose work is done, becomes part of the commons; takes one
 * pin. */
void gm_arena_release_locked(gm_pool *pool, gm_arena *arena);

/* The stream whose work may still use what lies in an arena, for calls of the device
 * without the lock. As long as somebody has it the stream does not end. */
typedef struct gm_owner {
    gm_arena *arena; // pinned
    gm_stream_use by;
    bool known;    // `by` is that stream, and has not ended
    bool gone;     // for whoever finds that it has all the same
    bool done;     // nothing is under way
    gm_mark *last; // of one that has ended: after this nothing is; NULL: it has none
} gm_owner;

void gm_owner_take_locked(gm_pool *pool, gm_arena *arena, gm_owner *out);
void gm_owner_return_locked(gm_pool *pool, const gm_owner *owner);

/* Takes the first use of the lane that `*lane` points to, whose mark has happened, out
 * of it. Returns the bytes that became free. */
size_t gm_lane_settle_locked(gm_pool *pool, gm_use **lane);

/* ---- gm_lost.c ---- */

/* Looks whether the device was reset that the pool took memory from last, and forgets
 * what is gone then. Asks the device. */
void gm_pool_notice_reset(gm_pool *pool);

/* Notes which life the device is in, where a pool that maps pages does not know: what
 * it has of the device from now on goes with that. Asks the device. */
void gm_pool_begin_life(gm_pool *pool);

/* Ends a segment that is in no list any more and whose memory is gone. */
void gm_pool_forget_segment(gm_pool *pool, gm_segment *segment);

/* The number of the life that a device is in, -1 being none; 0: there is none, or it
 * does not say. Asks the device. */
uint64_t gm_pool_ask_life(const gm_pool *pool, int device);

/* Whether the memory of a segment is gone. Asks its device. */
bool gm_pool_has_lost(const gm_pool *pool, const gm_segment *segment);

/* ---- gm_lend.c ---- */

/* Takes a segment over for the arena of `key` that an ended stream left and that has a
 * free block of `rounded` bytes or more, if there is one. */
void gm_pool_adopt_locked(gm_pool *pool, gm_stream_key key, size_t rounded);

/* Serves the request with a block of another stream, after all of the device's work is
 * done; when it is given back it is pending, and returns to where it came from. False:
 * there is none, or it cannot be done. */
bool gm_pool_lend(gm_pool *pool,
                  const gm_request *request,
                  const gm_rescue *rescue,
                  gm_block **out);

/* ---- gm_capture.c, gm_part.c ---- */

/* Whether a recording forbids the calling thread to ask a device for memory. */
bool gm_capture_is_forbidding(void);

/* True where the request comes from a stream that is being recorded: *status says how
 * it went, *out is set on success. False for one that names its capture, where that and
 * the cache have nothing for it: what it is given instead is for gm_part_adopt. */
bool gm_capture_serves(gm_pool *pool,
                       const gm_request *request,
                       const gm_rescue *rescue,
                       gm_status *status,
                       gm_block **out);

/* A block from the private memory of a capture. GM_ERR_CAPTURING: the cache does not
 * have it. */
gm_status gm_part_malloc(gm_pool *pool,
                         gm_capture *capture,
                         const gm_request *request,
                         gm_block **out);

/* Makes a block that was handed out for request->key the capture's. Where that cannot
 * be done the block goes back: GM_ERR_HOST_MEMORY, or GM_ERR_CAPTURING for a capture
 * that was released meanwhile. */
gm_status gm_part_adopt(gm_pool *pool,
                        const gm_capture *capture,
                        const gm_request *request,
                        gm_block *block);

/* The pool's parts of a capture are used by a launch; or are no more. */
gm_status
gm_part_launched(gm_pool *pool, const gm_capture *capture, const gm_stream_use *by);
void gm_part_release(gm_pool *pool, const gm_capture *capture);

bool gm_capture_is_released(const gm_capture *capture);

/* Gives a block that was dropped, and its membership, to its part; joined with
 * neighbours of that part. False: the part has ended, and only the membership did. */
bool gm_part_put_locked(gm_pool *pool, gm_part *part, gm_block *block);

/* The same for one whose memory is gone: ends its membership alone. */
void gm_part_leave_locked(gm_pool *pool, gm_part *part);

/* Takes a CAPTURED block whose memory is gone out of its part. */
void gm_part_forget_locked(gm_pool *pool, gm_block *block);

/* Ends a part: its blocks go to their arenas. Returns the bytes. */
size_t gm_part_end_locked(gm_pool *pool, gm_part *part);

/* A block for `rounded` bytes out of the arena of request->key. GM_OK, GM_MISS, or
 * GM_ERR_HOST_MEMORY. */
gm_status gm_pool_hit_locked(gm_pool *pool,
                             const gm_request *request,
                             size_t rounded,
                             gm_block **out);

/* Bytes that are cached. */
static inline size_t
gm_stats_cached(const gm_stats *stats)
{
    return stats->total_bytes - stats->used_bytes - stats->pending_bytes -
           stats->captured_bytes;
}

static inline size_t
gm_pool_cached_locked(const gm_pool *pool)
{
    return gm_stats_cached(&pool->stats);
}

/* Blocks that are cached. Each segment began as one and a cut makes one more, until the
 * two are joined; some are uncounted, because their segment is lost or they are where
 * pages come and go. Whatever is none of the others is free. */
static inline size_t
gm_pool_cached_blocks_locked(const gm_pool *pool)
{
    const gm_stats *stats = &pool->stats;

    return stats->segments + stats->splits - stats->merges - pool->uncounted -
           stats->live_blocks - stats->pending_blocks - stats->captured_blocks;
}

/* A shard counts from 0 and may come below, so as signed numbers; what is counted in
 * all is far from their end. */
static inline void
gm_stats_raise(size_t *peak, size_t now)
{
    if (GM_UNLIKELY((ptrdiff_t)now > (ptrdiff_t)*peak)) {
        *peak = now;
    }
}

/* Before bytes leave the cache: whatever makes it grow looks at no peak. */
static inline void
gm_stats_note_cached(gm_stats *stats)
{
    gm_stats_raise(&stats->peak_free_bytes, gm_stats_cached(stats));
}

static inline void
gm_pool_note_cached_locked(gm_pool *pool)
{
    gm_stats_note_cached(&pool->stats);
}

/* The next pool on the list after number `after`, on that device and not `pool` (NULL:
 * none is left out); *after is then its number. With a reference; NULL at the end. */
gm_pool *gm_pool_next_sibling(const gm_pool *pool, int device, uint64_t *after);

/* Makes `block` live for `request`, counting it and the peaks. */
void gm_pool_hand_out_locked(gm_pool *pool, gm_block *block, const gm_request *request);

/* GM_OK, GM_ERR_INVALID_VALUE or GM_ERR_TOO_LARGE. */
gm_status gm_request_check(const gm_request *request);

/* ---- gm_grow.c ---- */

/* The most that upstream can give at once, as far as growth wants to know; SIZE_MAX
 * where it does not, or nobody does. Asks upstream, so without the lock. */
size_t gm_grow_room(const gm_pool *pool);

/* How many bytes to ask upstream for where `rounded` are requested and upstream has
 * `room`. */
size_t gm_grow_segment_locked(gm_pool *pool,
                              const gm_request *request,
                              size_t rounded,
                              size_t room);

/* ---- gm_large.c ---- */

/* The block of `arena` for a request of `rounded` bytes, still in the index; NULL where
 * there is none, or the rules keep it from such a request. */
gm_block *gm_large_best(const gm_pool *pool, const gm_arena *arena, size_t rounded);

/* Whether a block of `size` bytes is cut for a request of `rounded`. */
bool gm_large_cuts(const gm_pool *pool, size_t size, size_t rounded);

/* What the hit path does in a pool whose arenas are hidden from it: takes a block for
 * the request, cut where the rules say so, out of the index. GM_MISS in all others;
 * GM_ERR_HOST_MEMORY. The lock of the key's shard, whose counters and nodes these are,
 * is held. */
GM_COLD gm_status gm_large_take(const gm_pool *pool,
                                gm_stats *stats,
                                gm_block_store *store,
                                gm_stream_key key,
                                size_t rounded,
                                gm_block **out);

/* The segment for a request, of whole multiples. */
size_t gm_large_segment(const gm_pool *pool, size_t rounded);

/* ---- gm_miss.c ---- */

/* One attempt to serve the request: from the cache, or else by a new segment. GM_OK;
 * GM_ERR_OUT_OF_MEMORY or GM_ERR_LIMIT, which reclaiming may change; GM_ERR_CAPTURING
 * where upstream may not be asked; or what else upstream said. Takes the lock itself.
 */
gm_status gm_pool_attempt(gm_pool *pool,
                          const gm_request *request,
                          const gm_rescue *rescue,
                          gm_block **out);

/* One more of `*counter`, one of the pool's. Takes the lock itself. */
void gm_pool_count(gm_pool *pool, size_t *counter);

/* Whether an attempt failed for want of memory. */
static inline bool
gm_is_shortage(gm_status status)
{
    return status == GM_ERR_OUT_OF_MEMORY || status == GM_ERR_LIMIT;
}

/* ---- gm_idle.c ---- */

/* Takes a segment without blocks out of the pool's list, its arena and the counters. */
void gm_pool_unlink_segment_locked(gm_pool *pool, gm_segment *segment);

/* Takes the idle segments of at least `smallest` bytes, those of `arena` alone unless
 * that is NULL, out of the pool, chained by `next`, but for those without which it
 * would hold less than `floor` bytes. Their bytes count as releasing until
 * gm_pool_give_back. */
gm_segment *gm_pool_unlink_idle_locked(gm_pool *pool,
                                       const gm_arena *arena,
                                       size_t smallest,
                                       size_t floor);

/* Whether a pool that holds `held` bytes may do without `size` of them: so that `floor`
 * stay, or because it holds more than its limit. */
bool
gm_pool_may_spare_locked(const gm_pool *pool, size_t held, size_t size, size_t floor);

/* As gm_pool_release_idle for a request that finds no memory: reserves or not, no
 * segments of less than `smallest` bytes, and waits for pages. */
size_t gm_pool_reclaim_idle(gm_pool *pool, size_t smallest);

/* Gives the pieces of such a chain upstream, without the lock. Returns bytes. */
size_t gm_pool_give_back(gm_pool *pool, gm_segment *chain);

/* ---- gm_check_pages.c ---- */

/* The same as below, of memory that is mapped by page. */
const char *gm_check_pages_locked(const gm_pool *pool);

/* ---- gm_check_waits.c ---- */

/* A sentence that names the broken invariant of notes, lanes, marks and parts; NULL for
 * none. The segments are sound. */
const char *gm_check_waits_locked(const gm_pool *pool);

#endif
