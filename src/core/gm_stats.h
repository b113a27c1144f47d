/* SPDX-License-Identifier: MIT
 *
 * What a pool counts. Plain numbers under the pool's lock; no clock, no atomics.
 *
 * At every quiet point used + free + pending + captured == total, where free is what is
 * cached. "requested" is what callers asked for, "used" the same after rounding to
 * whole units. The list is an X-macro so that the struct, the Python dictionary and the
 * documents cannot drift apart.
 */
#ifndef GM_STATS_H
#define GM_STATS_H

#include "gm_base.h"

#define GM_STATS_LIST(X)                                                               \
    X(requested_bytes, "bytes asked for by live blocks")                               \
    X(used_bytes, "bytes of live blocks, rounded")                                     \
    X(free_bytes, "bytes cached for reuse")                                            \
    X(pending_bytes, "bytes given back that another stream may still use")             \
    X(captured_bytes, "bytes given back that only a recorded graph may use again")     \
    X(total_bytes, "bytes held from upstream")                                         \
    X(limit_bytes, "highest total allowed, 0 for none")                                \
    X(peak_requested_bytes, "highest requested_bytes so far")                          \
    X(peak_used_bytes, "highest used_bytes so far")                                    \
    X(peak_total_bytes, "highest total_bytes so far")                                  \
    X(live_blocks, "blocks in use")                                                    \
    X(free_blocks, "blocks cached, pieces of split segments included")                 \
    X(pending_blocks, "blocks given back that another stream may still use")           \
    X(captured_blocks, "blocks given back that only a recorded graph may use again")   \
    X(segments, "ranges held from upstream")                                           \
    X(arenas, "streams that hold memory")                                              \
    X(hits, "requests served from the cache")                                          \
    X(misses, "requests served by upstream")                                           \
    X(splits, "blocks cut in two")                                                     \
    X(merges, "neighbours joined")                                                     \
    X(upstream_allocations, "times upstream gave memory")                              \
    X(upstream_frees, "times memory went back upstream")                               \
    X(retries, "attempts repeated after something was reclaimed")                      \
    X(out_of_memory, "requests that failed for want of memory")                        \
    X(deferred_frees, "frees postponed because the lock was busy")

typedef struct gm_stats {
#define GM_STATS_FIELD(name, text) size_t name;
    GM_STATS_LIST(GM_STATS_FIELD)
#undef GM_STATS_FIELD
} gm_stats;

#endif
