/* SPDX-License-Identifier: MIT
 *
 * The naive pool. See model.h.
 */
#include "model.h"

#include "harness.h"

#include <stdlib.h>
#include <string.h>

#define UNIT 512
#define GRAIN ((size_t)2 << 20)
#define LARGE ((size_t)1 << 20)

typedef struct model_block {
    size_t offset;
    size_t size;
    size_t requested; // 0 while free
} model_block;

struct model_segment {
    uint64_t serial;
    uint64_t key;
    size_t size;
    model_block *blocks; // by offset
    size_t block_count;
};

static void *
resize(void *array, size_t count, size_t item)
{
    void *grown = realloc(array, count * item + 1); // never a size of 0

    CHECK(grown != NULL);
    return grown;
}

static void
insert_block(model_segment *s, size_t at, model_block block)
{
    s->blocks = resize(s->blocks, s->block_count + 1, sizeof *s->blocks);
    memmove(s->blocks + at + 1, s->blocks + at,
            (s->block_count - at) * sizeof *s->blocks);
    s->blocks[at] = block;
    s->block_count++;
}

static void
remove_block(model_segment *s, size_t at)
{
    memmove(s->blocks + at, s->blocks + at + 1,
            (s->block_count - at - 1) * sizeof *s->blocks);
    s->block_count--;
}

static void
remove_segment(model *m, size_t at)
{
    free(m->segments[at].blocks);
    memmove(m->segments + at, m->segments + at + 1,
            (m->segment_count - at - 1) * sizeof *m->segments);
    m->segment_count--;
}

void
model_fini(model *m)
{
    while (m->segment_count > 0) {
        remove_segment(m, m->segment_count - 1);
    }
    free(m->segments);
    *m = (model){0};
}

model_sums
model_sum(const model *m)
{
    model_sums sums = {0};

    for (size_t i = 0; i < m->segment_count; i++) {
        const model_segment *s = &m->segments[i];
        size_t older = 0;

        sums.total += s->size;
        for (size_t j = 0; j < s->block_count; j++) {
            const model_block *b = &s->blocks[j];

            sums.requested += b->requested;
            sums.used += b->requested > 0 ? b->size : 0;
            sums.live_blocks += b->requested > 0;
            sums.free_blocks += b->requested == 0;
        }
        while (m->segments[older].key != s->key) {
            older++;
        }
        sums.keys += older == i; // the first one of its key
    }
    return sums;
}

static size_t
larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void
note_peaks(model *m)
{
    model_sums sums = model_sum(m);

    m->peak_requested = larger(m->peak_requested, sums.requested);
    m->peak_used = larger(m->peak_used, sums.used);
    m->peak_free = larger(m->peak_free, sums.total - sums.used);
    m->peak_total = larger(m->peak_total, sums.total);
    m->peak_live = larger(m->peak_live, sums.live_blocks);
    m->peak_segments = larger(m->peak_segments, m->segment_count);
}

/* The smallest free block of `key` that fits, the earliest of equals: segments are in
 * the order of their serials, and blocks in that of their offsets. */
static bool
find_best(
    const model *m, size_t rounded, uint64_t key, size_t *segment_at, size_t *block_at)
{
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < m->segment_count; i++) {
        const model_segment *s = &m->segments[i];

        for (size_t j = 0; s->key == key && j < s->block_count; j++) {
            const model_block *b = &s->blocks[j];

            if (b->requested == 0 && b->size >= rounded && b->size < best) {
                best = b->size;
                *segment_at = i;
                *block_at = j;
            }
        }
    }
    return best != SIZE_MAX;
}

/* Whether a free block of `size` bytes, the best fit, may go to the request. */
static bool
may_have(const model *m, size_t size, size_t rounded)
{
    if (m->whole_from == 0 || size == rounded) {
        return true;
    }
    if (rounded >= m->whole_from) {
        return size - rounded < m->whole_slack; // which may be any
    }
    return size < m->whole_from;
}

/* How much of a block of `size` bytes the request gets. */
static size_t
share(const model *m, size_t size, size_t rounded)
{
    if (m->whole_from == 0) {
        return rounded;
    }
    if (rounded >= m->whole_from || (rounded > LARGE && size <= rounded + LARGE)) {
        return size;
    }
    return rounded;
}

static bool
limit_allows(const model *m, size_t rounded)
{
    return m->limit == 0 || model_sum(m).total + rounded <= m->limit;
}

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How large a segment for a request that is allowed: with growth, an eighth of what the
 * stream has then more, or a step; but no more than leaves as much cached as in use, or
 * a step a stream; nor than fills half the limit. Whole 2 MiB from there on. */
static size_t
segment_size(const model *m, size_t rounded, uint64_t key)
{
    model_sums sums = model_sum(m);
    size_t cached = sums.total - sums.used;
    size_t of_key = rounded;
    size_t most, more;

    for (size_t i = 0; i < m->segment_count; i++) {
        of_key += m->segments[i].key == key ? m->segments[i].size : 0;
    }
    most = larger(sums.used + rounded, m->step * (sums.keys + (of_key == rounded)));
    more = larger(m->step, of_key / 8);
    more = smaller(more, most > cached ? most - cached : 0);
    if (m->limit > 0) {
        size_t after = sums.total + rounded;

        more = smaller(more, m->limit / 2 > after ? m->limit / 2 - after : 0);
    }
    if (m->step == 0 || more == 0) {
        return rounded;
    }
    more += rounded;
    return larger(rounded,
                  more / (more < GRAIN ? UNIT : GRAIN) * (more < GRAIN ? UNIT : GRAIN));
}

/* The same where large requests get whole units: but not what would be too large to be
 * cut for a request that is not. */
static size_t
rounded_segment(const model *m, size_t rounded)
{
    size_t whole = (rounded + m->unit - 1) / m->unit * m->unit;

    if (rounded <= LARGE || (rounded < m->whole_from && whole >= m->whole_from)) {
        return rounded;
    }
    return limit_allows(m, whole) ? whole : rounded;
}

/* Drops idle segments of at least `smallest` bytes. */
static size_t
release_from(model *m, const uint64_t *key, size_t smallest)
{
    size_t bytes = 0;

    for (size_t i = m->segment_count; i-- > 0;) {
        const model_segment *s = &m->segments[i];

        if (s->block_count == 1 && s->blocks[0].requested == 0 && s->size >= smallest &&
            (key == NULL || *key == s->key)) {
            bytes += s->size;
            m->releases++;
            m->upstream_freed += s->size;
            remove_segment(m, i);
        }
    }
    return bytes;
}

static bool
add_segment(model *m, size_t rounded, uint64_t key)
{
    model_segment s = {.serial = m->next_serial, .key = key};

    if (!limit_allows(m, rounded)) {
        // Nothing is reclaimed for what would not fit an empty pool.
        if (rounded <= m->limit) {
            m->retries += release_from(m, NULL, rounded / 20) > 0;
        }
        if (rounded <= m->limit && !limit_allows(m, rounded)) {
            m->retries += release_from(m, NULL, 0) > 0;
        }
        if (!limit_allows(m, rounded)) {
            m->refusals++;
            return false;
        }
    }
    s.size = m->unit > 0 ? rounded_segment(m, rounded) : segment_size(m, rounded, key);
    insert_block(&s, 0, (model_block){.size = s.size});
    m->segments = resize(m->segments, m->segment_count + 1, sizeof *m->segments);
    m->segments[m->segment_count++] = s;
    m->next_serial++;
    m->upstream_allocated += s.size;
    return true;
}

bool
model_malloc(model *m, size_t size, uint64_t key, model_place *out)
{
    size_t rounded = (size + UNIT - 1) / UNIT * UNIT;
    size_t i = 0, j = 0;

    if (find_best(m, rounded, key, &i, &j) &&
        may_have(m, m->segments[i].blocks[j].size, rounded)) {
        m->hits++;
    }
    else if (add_segment(m, rounded, key)) {
        m->misses++;
        i = m->segment_count - 1;
        j = 0;
    }
    else {
        return false;
    }
    model_segment *s = &m->segments[i];
    model_block whole = s->blocks[j];
    size_t given = share(m, whole.size, rounded);

    s->blocks[j] = (model_block){whole.offset, given, size};
    m->allocated_requested += size;
    m->allocated += given;
    if (whole.size > given) {
        insert_block(s, j + 1,
                     (model_block){whole.offset + given, whole.size - given, 0});
        m->splits++;
    }
    *out = (model_place){s->serial, whole.offset, given};
    note_peaks(m);
    return true;
}

/* Joins block `at` with the one above it if both are free. */
static void
join(model *m, model_segment *s, size_t at)
{
    if (at + 1 < s->block_count && s->blocks[at].requested == 0 &&
        s->blocks[at + 1].requested == 0) {
        s->blocks[at].size += s->blocks[at + 1].size;
        remove_block(s, at + 1);
        m->merges++;
    }
}

bool
model_free(model *m, model_place place)
{
    for (size_t i = 0; i < m->segment_count; i++) {
        model_segment *s = &m->segments[i];

        for (size_t j = 0; s->serial == place.serial && j < s->block_count; j++) {
            if (s->blocks[j].offset == place.offset && s->blocks[j].requested > 0) {
                s->blocks[j].requested = 0;
                join(m, s, j);
                if (j > 0) {
                    join(m, s, j - 1);
                }
                note_peaks(m);
                return true;
            }
        }
    }
    return false;
}

size_t
model_release(model *m, const uint64_t *key)
{
    return release_from(m, key, 0);
}
