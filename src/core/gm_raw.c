/* SPDX-License-Identifier: MIT
 *
 * The table of gm_raw.h: sixteen hash tables with chains, each with its mutex, so that
 * threads rarely meet. A shard doubles its buckets when it has as many entries.
 */
#include "gm_raw.h"

#include "gm_process.h" // gm_host_zalloc
#include "gm_size.h"    // GM_UNIT

#include <string.h> // memset

/* Blocks start at multiples of a unit, so the lowest bits say nothing. The upper half
 * of the product depends on all the others. */
static uint64_t
hash_of(uintptr_t addr)
{
    return (addr / GM_UNIT * UINT64_C(0x9e3779b97f4a7c15)) >> 32;
}

static gm_raw_shard *
shard_of(gm_raw_table *table, uintptr_t addr)
{
    return &table->shards[hash_of(addr) % GM_RAW_SHARDS];
}

static gm_raw **
bucket_of(gm_raw **buckets, size_t count, uintptr_t addr)
{
    return &buckets[hash_of(addr) / GM_RAW_SHARDS % count];
}

/* ---- life ---- */

void
gm_raw_table_init(gm_raw_table *table)
{
    memset(table, 0, sizeof *table);
    for (int i = 0; i < GM_RAW_SHARDS; i++) {
        gm_raw_shard *shard = &table->shards[i];

        pthread_mutex_init(&shard->lock, NULL); // cannot fail on Linux
        shard->buckets = shard->first;
        shard->bucket_count = GM_RAW_FIRST_BUCKETS;
    }
}

void
gm_raw_table_fini(gm_raw_table *table)
{
    for (int i = 0; i < GM_RAW_SHARDS; i++) {
        gm_raw_shard *shard = &table->shards[i];

        for (size_t b = 0; b < shard->bucket_count; b++) {
            while (shard->buckets[b]) {
                gm_raw *raw = shard->buckets[b];

                shard->buckets[b] = raw->next;
                gm_raw_free(raw);
            }
        }
        if (shard->buckets != shard->first) {
            gm_host_free(shard->buckets);
        }
        pthread_mutex_destroy(&shard->lock);
    }
}

gm_raw *
gm_raw_new(void)
{
    return gm_host_zalloc(sizeof(gm_raw));
}

void
gm_raw_free(gm_raw *raw)
{
    gm_host_free(raw);
}

/* ---- entries ---- */

/* Twice the buckets, where there is host memory for them. */
static void
grow_locked(gm_raw_shard *shard)
{
    size_t count = 2 * shard->bucket_count;
    gm_raw **buckets = gm_host_zalloc(count * sizeof(gm_raw *));

    if (!buckets) {
        return; // chains become longer
    }
    for (size_t b = 0; b < shard->bucket_count; b++) {
        gm_raw *raw = shard->buckets[b];

        while (raw) {
            gm_raw **bucket = bucket_of(buckets, count, raw->addr);
            gm_raw *next = raw->next;

            raw->next = *bucket;
            *bucket = raw;
            raw = next;
        }
    }
    if (shard->buckets != shard->first) {
        gm_host_free(shard->buckets);
    }
    shard->buckets = buckets;
    shard->bucket_count = count;
}

/* Where the entry at `addr` hangs, or the end of its chain. */
static gm_raw **
find_locked(gm_raw_shard *shard, uintptr_t addr)
{
    gm_raw **link = bucket_of(shard->buckets, shard->bucket_count, addr);

    while (*link && (*link)->addr != addr) {
        link = &(*link)->next;
    }
    return link;
}

gm_raw *
gm_raw_put(gm_raw_table *table, gm_raw *raw)
{
    gm_raw_shard *shard = shard_of(table, raw->addr);
    gm_raw *before;
    gm_raw **link;

    pthread_mutex_lock(&shard->lock);
    link = find_locked(shard, raw->addr);
    before = *link;
    raw->next = before ? before->next : NULL;
    *link = raw;
    if (!before && ++shard->count > shard->bucket_count) {
        grow_locked(shard);
    }
    pthread_mutex_unlock(&shard->lock);
    return before;
}

gm_raw *
gm_raw_take(gm_raw_table *table, uintptr_t addr)
{
    gm_raw_shard *shard = shard_of(table, addr);
    gm_raw **link;
    gm_raw *raw;

    pthread_mutex_lock(&shard->lock);
    link = find_locked(shard, addr);
    raw = *link;
    if (raw) {
        *link = raw->next;
        shard->count--;
    }
    pthread_mutex_unlock(&shard->lock);
    return raw;
}

bool
gm_raw_find(gm_raw_table *table,
            uintptr_t addr,
            void (*visit)(const gm_raw *raw, void *context),
            void *context)
{
    gm_raw_shard *shard = shard_of(table, addr);
    const gm_raw *raw;

    pthread_mutex_lock(&shard->lock);
    raw = *find_locked(shard, addr);
    if (raw) {
        visit(raw, context);
    }
    pthread_mutex_unlock(&shard->lock);
    return raw != NULL;
}

size_t
gm_raw_count(gm_raw_table *table)
{
    size_t count = 0;

    for (int i = 0; i < GM_RAW_SHARDS; i++) {
        pthread_mutex_lock(&table->shards[i].lock);
        count += table->shards[i].count;
        pthread_mutex_unlock(&table->shards[i].lock);
    }
    return count;
}
