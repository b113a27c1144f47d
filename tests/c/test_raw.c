/* SPDX-License-Identifier: MIT
 *
 * The table of live blocks by address: what is in it is found, also when it grows, when
 * it cannot, and by many threads.
 */
#include "holding.h"

#include "core/gm_raw.h"

#include <pthread.h>

enum {
    MANY = 20000,
    THREADS = 4,
};

/* No pool is needed: the table looks at addresses alone. */
static gm_raw *
put(gm_raw_table *table, uintptr_t addr)
{
    gm_raw *raw = gm_raw_new();

    CHECK(raw);
    raw->addr = addr;
    raw->requested = addr + 1;
    CHECK(gm_raw_put(table, raw) == NULL);
    return raw;
}

static uintptr_t
address(size_t i)
{
    return ((uintptr_t)1 << 40) + i * GM_UNIT;
}

static void
look(const gm_raw *raw, void *context)
{
    *(size_t *)context = raw->requested;
}

static size_t
found(gm_raw_table *table, uintptr_t addr)
{
    size_t requested = 0;

    return gm_raw_find(table, addr, look, &requested) ? requested : 0;
}

TEST(raw_what_is_in_it_is_found_and_taken_once)
{
    gm_raw_table table;
    gm_raw *raw;

    gm_raw_table_init(&table);
    CHECK(gm_raw_take(&table, 8) == NULL);
    raw = put(&table, address(3));
    CHECK_EQ(found(&table, address(3)), address(3) + 1);
    CHECK_EQ(found(&table, address(4)), 0);
    CHECK_EQ(gm_raw_count(&table), 1);
    CHECK(gm_raw_take(&table, address(3)) == raw);
    CHECK(gm_raw_take(&table, address(3)) == NULL);
    CHECK_EQ(gm_raw_count(&table), 0);
    gm_raw_free(raw);
    gm_raw_table_fini(&table);
}

TEST(raw_a_second_entry_at_an_address_hands_back_the_first)
{
    gm_raw_table table;
    gm_raw *first;
    gm_raw *second = gm_raw_new();

    gm_raw_table_init(&table);
    first = put(&table, address(0));
    (void)put(&table, address(GM_RAW_SHARDS * GM_RAW_FIRST_BUCKETS)); // others stay
    second->addr = address(0);
    second->requested = 7;
    CHECK(gm_raw_put(&table, second) == first);
    CHECK_EQ(gm_raw_count(&table), 2);
    CHECK_EQ(found(&table, address(0)), 7);
    CHECK(gm_raw_take(&table, address(0)) == second);
    CHECK(gm_raw_take(&table, address(0)) == NULL);
    gm_raw_free(first);
    gm_raw_free(second);
    gm_raw_table_fini(&table); // and frees what is in it
}

static void
fill_and_empty(gm_raw_table *table)
{
    for (size_t i = 0; i < MANY; i++) {
        (void)put(table, address(i));
    }
    CHECK_EQ(gm_raw_count(table), MANY);
    for (size_t i = 0; i < MANY; i++) {
        size_t at = i * 7919 % MANY;
        gm_raw *raw;

        CHECK_EQ(found(table, address(at)), address(at) + 1);
        raw = gm_raw_take(table, address(at));
        CHECK(raw);
        gm_raw_free(raw);
    }
    CHECK_EQ(gm_raw_count(table), 0);
}

static size_t
longest_chain(const gm_raw_table *table)
{
    size_t longest = 0;

    for (int i = 0; i < GM_RAW_SHARDS; i++) {
        const gm_raw_shard *shard = &table->shards[i];

        for (size_t b = 0; b < shard->bucket_count; b++) {
            size_t length = 0;

            for (const gm_raw *raw = shard->buckets[b]; raw; raw = raw->next) {
                length++;
            }
            longest = length > longest ? length : longest;
        }
    }
    return longest;
}

TEST(raw_it_grows_so_that_chains_stay_short)
{
    gm_raw_table table;

    gm_raw_table_init(&table);
    for (size_t i = 0; i < MANY; i++) {
        (void)put(&table, address(i));
    }
    CHECK(longest_chain(&table) <= 12); // of 1250 entries a shard, evenly spread
    gm_raw_table_fini(&table);
    gm_raw_table_init(&table);
    fill_and_empty(&table);
    gm_raw_table_fini(&table);
}

static bool
refuse_large(void *context, size_t size)
{
    (void)context;
    return size > sizeof(gm_raw);
}

TEST(raw_without_host_memory_to_grow_it_goes_on)
{
    gm_raw_table table;

    gm_raw_table_init(&table);
    gm_host_set_fault(refuse_large, NULL);
    fill_and_empty(&table);
    CHECK_EQ(table.shards[0].bucket_count, GM_RAW_FIRST_BUCKETS);
    gm_host_set_fault(NULL, NULL);
    gm_raw_table_fini(&table);
}

static bool
refuse_all(void *context, size_t size)
{
    (void)context;
    (void)size;
    return true;
}

TEST(raw_no_entry_without_host_memory)
{
    gm_host_set_fault(refuse_all, NULL);
    CHECK(gm_raw_new() == NULL);
    gm_host_set_fault(NULL, NULL);
    gm_raw_free(NULL);
}

typedef struct job {
    gm_raw_table *table;
    size_t first;
} job;

/* Each thread has addresses of its own, which lie in the same shards. */
static void *
turn_over(void *context)
{
    job *j = context;

    for (size_t round = 0; round < 20; round++) {
        for (size_t i = 0; i < 500; i++) {
            (void)put(j->table, address(j->first + i * THREADS));
        }
        for (size_t i = 0; i < 500; i++) {
            uintptr_t addr = address(j->first + i * THREADS);

            CHECK_EQ(found(j->table, addr), addr + 1);
            gm_raw_free(gm_raw_take(j->table, addr));
            CHECK_EQ(found(j->table, addr), 0);
        }
    }
    return NULL;
}

TEST(raw_threads_do_not_disturb_each_other)
{
    gm_raw_table table;
    pthread_t threads[THREADS];
    job jobs[THREADS];

    gm_raw_table_init(&table);
    for (size_t i = 0; i < THREADS; i++) {
        jobs[i] = (job){&table, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, turn_over, &jobs[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    CHECK_EQ(gm_raw_count(&table), 0);
    gm_raw_table_fini(&table);
}
