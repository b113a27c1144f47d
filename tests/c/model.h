/* SPDX-License-Identifier: MIT
 *
 * The pool's policy told again, as plainly as it can be: arrays, linear scans, and
 * counters that are summed up from the blocks each time. What the real pool does is
 * held against it.
 *
 * Cost: a request reads every block. Threading: none.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct model_segment model_segment;

typedef struct model {
    size_t limit; // 0 for none
    size_t step;  // of growth, 0 for none
    size_t whole_from,
        whole_slack; // max_split_size, 0 for none; max_non_split_rounding
    size_t unit;     // of segments of large requests, 0 for none
    model_segment *segments;
    size_t segment_count;
    uint64_t next_serial;
    size_t hits, misses, splits, merges, releases, refusals, retries;
    size_t allocated_requested, allocated, upstream_allocated, upstream_freed; // bytes
    size_t peak_requested, peak_used, peak_free, peak_total, peak_live, peak_segments;
} model;

typedef struct model_place {
    uint64_t serial;
    size_t offset;
    size_t size;
} model_place;

typedef struct model_sums {
    size_t requested, used, total, live_blocks, free_blocks;
    size_t keys; // streams that have a segment
} model_sums;

/* A model of zero bytes is empty. */
void model_fini(model *m);

/* False when the limit forbids it, also after idle segments were released. */
bool model_malloc(model *m, size_t size, uint64_t key, model_place *out);

/* False when no live block starts there. */
bool model_free(model *m, model_place place);

/* Drops the idle segments of `key`, or all where it is NULL. Returns bytes. */
size_t model_release(model *m, const uint64_t *key);

model_sums model_sum(const model *m);

#endif
