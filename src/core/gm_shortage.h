/* SPDX-License-Identifier: MIT
 *
 * Why a request found no memory: a cause in one fixed word, and the numbers behind it.
 *
 * Plain data, filled by gm_pool_explain when everything that could be reclaimed was
 * given back, so that it tells of what is left. The numbers are a list, so that the
 * struct, the attributes of the Python exception and the documents cannot drift apart.
 */
#ifndef GM_SHORTAGE_H
#define GM_SHORTAGE_H

#include "gm_base.h"

/* Causes, with the word for each. The device is full in three ways, told apart by who
 * holds the most of it: this pool, the other pools of this process, anybody else. */
#define GM_CAUSE_LIST(X)                                                               \
    X(GM_CAUSE_UNKNOWN, "unknown")                                                     \
    X(GM_CAUSE_LIMIT, "limit")                                                         \
    X(GM_CAUSE_FULL, "full")                                                           \
    X(GM_CAUSE_FRAGMENTED, "fragmented") /* enough is free, and not in one piece */    \
    X(GM_CAUSE_OTHER_POOL, "other pool")                                               \
    X(GM_CAUSE_OTHER_PROCESS, "other process") /* or library, or the context */        \
    X(GM_CAUSE_TOO_LARGE, "too large") /* more than there is, whoever holds what */    \
    X(GM_CAUSE_CAPTURE, "capture")     /* the device may not be asked */               \
    X(GM_CAUSE_ALLOCATOR, "allocator") /* what the pool lies over had no more */

typedef enum gm_cause {
#define GM_CAUSE_ENUM(name, word) name,
    GM_CAUSE_LIST(GM_CAUSE_ENUM)
#undef GM_CAUSE_ENUM
    GM_CAUSE_COUNT
} gm_cause;

/* A number that nobody could tell. */
#define GM_UNKNOWN SIZE_MAX

/* In bytes, but for `attempt`. */
#define GM_SHORTAGE_LIST(X)                                                            \
    X(rounded_size, "the size in whole units")                                         \
    X(missing_bytes, "by how much it exceeds largest_available_block")                 \
    X(limit, "the pool's limit, 0 for none")                                           \
    X(used_bytes, "what is in use")                                                    \
    X(cached_bytes, "what is cached")                                                  \
    X(pending_bytes, "what was given back and waits for a stream or a graph")          \
    X(total_bytes, "what the pool holds")                                              \
    X(largest_free_block, "the largest cached block that the request could have")      \
    X(largest_available_block, "the largest request that would get memory")            \
    X(device_free, "what nobody holds of the device")                                  \
    X(device_total, "what the device has")                                             \
    X(outside_bytes, "what is held of the device outside of this pool")                \
    X(sibling_bytes, "those of them in other pools of this process")                   \
    X(sibling_idle_bytes, "those of them that are cached")                             \
    X(attempt, "how often the callback has been asked for this request")

typedef struct gm_shortage {
    gm_cause cause;
    int device;  // -1 for unknown
    size_t size; // bytes asked for
#define GM_SHORTAGE_FIELD(name, text) size_t name;
    GM_SHORTAGE_LIST(GM_SHORTAGE_FIELD)
#undef GM_SHORTAGE_FIELD
} gm_shortage;

/* A shortage of which only the size is known. */
static inline gm_shortage
gm_shortage_of(size_t size)
{
    gm_shortage s = {.device = -1, .size = size};

#define GM_SHORTAGE_UNKNOWN(name, text) s.name = GM_UNKNOWN;
    GM_SHORTAGE_LIST(GM_SHORTAGE_UNKNOWN)
#undef GM_SHORTAGE_UNKNOWN
    return s;
}

#endif
