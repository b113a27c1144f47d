/* SPDX-License-Identifier: MIT
 *
 * What a pool counts, and what a walk over it finds.
 *
 * Counters are plain numbers under the pool's lock; no clock, no atomics. At every
 * quiet point used + free + pending + captured == total, where free is what is cached.
 * "requested" is what callers asked for, "used" the same after rounding to whole units.
 * What was freed so far is not counted but follows from what was allocated and what is
 * in use.
 *
 * Both lists are X-macros so that the structs, the Python dictionary and the documents
 * cannot drift apart.
 */
#ifndef GM_STATS_H
#define GM_STATS_H

#include "gm_base.h"

#define GM_STATS_LIST(X)                                                               \
    X(requested_bytes, "bytes asked for by live blocks")                               \
    X(used_bytes, "bytes of live blocks, rounded")                                     \
    X(free_bytes, "bytes cached for reuse")                                            \
    X(pending_bytes, "bytes given back that another stream may still use")             \
    X(pending_release_bytes, "bytes of pages that go back when the device is done")    \
    X(captured_bytes, "bytes given back that only a recorded graph may use again")     \
    X(total_bytes, "bytes held from upstream")                                         \
    X(limit_bytes, "highest total allowed, 0 for none")                                \
    X(reserve_bytes, "total that is kept where idle memory goes back")                 \
    X(peak_requested_bytes, "highest requested_bytes since the peaks were reset")      \
    X(peak_used_bytes, "highest used_bytes since then")                                \
    X(peak_free_bytes, "highest free_bytes since then")                                \
    X(peak_pending_bytes, "highest pending_bytes since then")                          \
    X(peak_total_bytes, "highest total_bytes since then")                              \
    X(allocated_requested_bytes, "bytes asked for so far by requests that got them")   \
    X(freed_requested_bytes, "what of these was given back")                           \
    X(allocated_bytes, "bytes handed out so far, rounded")                             \
    X(freed_bytes, "what of these was given back")                                     \
    X(upstream_allocated_bytes, "bytes taken from upstream so far")                    \
    X(upstream_freed_bytes, "what of these went back upstream")                        \
    X(live_blocks, "blocks in use")                                                    \
    X(free_blocks, "blocks cached, pieces of split segments included")                 \
    X(pending_blocks, "blocks given back that another stream may still use")           \
    X(captured_blocks, "blocks given back that only a recorded graph may use again")   \
    X(segments, "ranges held from upstream")                                           \
    X(reserved_bytes, "bytes of addresses reserved to map pages in")                   \
    X(pages, "pieces of memory that are mapped")                                       \
    X(mappings, "places where they are mapped, those of earlier use included")         \
    X(arenas, "streams that hold memory")                                              \
    X(peak_live_blocks, "highest live_blocks since the peaks were reset")              \
    X(peak_segments, "highest segments since then")                                    \
    X(allocated_blocks, "blocks handed out so far")                                    \
    X(freed_blocks, "what of these was given back")                                    \
    X(hits, "requests served from the cache")                                          \
    X(misses, "requests served by upstream")                                           \
    X(splits, "blocks cut in two")                                                     \
    X(merges, "neighbours joined")                                                     \
    X(upstream_allocations, "times upstream gave memory")                              \
    X(upstream_frees, "times memory went back upstream")                               \
    X(remapped_pages, "pages that moved by being mapped somewhere else as well")       \
    X(returned_pages, "pages that moved to where they were still mapped")              \
    X(driver_ns, "nanoseconds spent in the calls that map pages")                      \
    X(lost_segments, "ranges that went with a reset of their device")                  \
    X(lost_bytes, "bytes of these")                                                    \
    X(retries, "attempts repeated, with something reclaimed or for less")              \
    X(out_of_memory, "requests that failed for want of memory")                        \
    X(deferred_frees, "frees postponed because the lock was busy")

typedef struct gm_stats {
#define GM_STATS_FIELD(name, text) size_t name;
    GM_STATS_LIST(GM_STATS_FIELD)
#undef GM_STATS_FIELD
} gm_stats;

/* What is not counted as it happens but looked up by gm_pool_survey. */
#define GM_SURVEY_LIST(X)                                                              \
    X(idle_bytes, "bytes cached in segments with nothing else in them")                \
    X(inactive_split_bytes, "bytes cached in segments that hold other blocks too")     \
    X(largest_free_block, "the largest block cached, for whichever stream")            \
    X(largest_available_block, "the largest request that would get memory now")

typedef struct gm_survey {
#define GM_SURVEY_FIELD(name, text) size_t name;
    GM_SURVEY_LIST(GM_SURVEY_FIELD)
#undef GM_SURVEY_FIELD
} gm_survey;

#endif
