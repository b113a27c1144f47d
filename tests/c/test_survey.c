/* SPDX-License-Identifier: MIT
 *
 * What a survey goes by: the arenas it looks into, the memory that is on its way, and
 * what upstream is asked with. Upstream keeps books here, and notes what it was asked.
 */
#include "holding.h"
#include "ledger.h"

#include <string.h>

enum {
    STREAMS = 40, // more than a table of arenas has buckets at first
    RANGES = 64,
};

/* What upstream says of its room, and with what it was asked last. */
typedef struct answer {
    gm_room room;
    gm_range back[RANGES];
    size_t count;
    size_t times;
    gm_pool *pool;    // to be surveyed from within a take or a give, NULL for none
    gm_survey survey; // of then
} answer;

static gm_status
tell_room(void *context, int device, const gm_range *back, size_t count, gm_room *out)
{
    answer *a = ((ledger *)context)->context;

    (void)device;
    CHECK(count <= RANGES);
    if (count > 0) {
        memcpy(a->back, back, count * sizeof *back);
    }
    a->count = count;
    a->times++;
    *out = a->room;
    return GM_OK;
}

static gm_survey
survey_of(gm_pool *pool)
{
    gm_stats stats;
    gm_survey survey;

    CHECK_EQ(gm_pool_survey(pool, &stats, &survey), GM_OK);
    return survey;
}

static void
survey_within(ledger *books, size_t size)
{
    answer *a = books->context;

    (void)size;
    if (a->pool) {
        a->survey = survey_of(a->pool);
    }
}

static void
books_init(ledger *books, answer *a)
{
    ledger_init(books);
    *a = (answer){.room = {UNITS(1000), UNITS(2000), UNITS(1000)}};
    books->context = a;
    books->on_take = survey_within;
    books->on_give = survey_within;
}

static gm_pool *
pool_over(ledger *books)
{
    gm_upstream upstream = ledger_upstream(books);
    gm_pool *pool = NULL;

    upstream.room = tell_room;
    CHECK_EQ(gm_pool_new(0, upstream, &pool), GM_OK);
    books->pools++;
    return pool;
}

TEST(survey_finds_the_largest_block_in_whichever_arena)
{
    ledger books;
    answer a;

    books_init(&books, &a);
    gm_pool *pool = pool_over(&books);
    for (size_t i = 1; i <= STREAMS; i++) {
        let_go(take_for(pool, UNITS(i), i));
        CHECK_EQ(survey_of(pool).largest_free_block, UNITS(i));
    }
    gm_pool_close(pool);
    ledger_fini(&books);
}

/* The limit of 100 units, of which 10 are in use, 5 cached in one segment, and 20 are
 * just being taken or given back. */
TEST(survey_counts_what_is_on_its_way_against_the_limit)
{
    ledger books;
    answer a;

    books_init(&books, &a);
    gm_pool *pool = pool_over(&books);
    holding held = take_for(pool, UNITS(10), 1);

    let_go(take_for(pool, UNITS(5), 2));
    CHECK_EQ(gm_pool_set_limit(pool, UNITS(100)), GM_OK);
    a.pool = pool;
    holding more = take_for(pool, UNITS(20), 3);
    CHECK_EQ(a.survey.idle_bytes, UNITS(5));
    CHECK_EQ(a.survey.largest_available_block, UNITS(70));
    let_go(more);
    a.pool = NULL;
    CHECK_EQ(survey_of(pool).largest_available_block, UNITS(90));
    a.pool = pool;
    CHECK_EQ(gm_pool_release_idle_of(pool, 3), UNITS(20));
    CHECK_EQ(a.survey.idle_bytes, UNITS(5));
    CHECK_EQ(a.survey.largest_available_block, UNITS(70));
    a.pool = NULL;
    let_go(held);
    gm_pool_close(pool);
    ledger_fini(&books);
}

static void
check_asked_with(const answer *a, const gm_range *expected, size_t count)
{
    CHECK_EQ(a->count, count);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(a->back[i].base, expected[i].base);
        CHECK_EQ(a->back[i].size, expected[i].size);
    }
}

/* Of all pools over such memory, the first of the process too, in order of address;
 * the books' addresses go down. What is split or in use is not among it, nor what comes
 * out of another pool. */
TEST(survey_asks_with_the_idle_segments_of_all_pools)
{
    ledger books, others;
    answer a;

    books_init(&books, &a);
    ledger_init(&others);
    gm_upstream silent = ledger_upstream(&others);
    gm_pool *indirect = NULL;
    gm_pool *first = pool_over(&books);
    gm_pool *pool = pool_over(&books);
    gm_pool *last = pool_over(&books);
    gm_range expected[3];

    silent.room = NULL;
    others.pools = 1;
    CHECK_EQ(gm_pool_new(0, silent, &indirect), GM_OK);
    holding held[] = {take_bytes(first, UNITS(3)), take_bytes(pool, UNITS(4)),
                      take_bytes(last, UNITS(5)), take_bytes(indirect, UNITS(6)),
                      take_bytes(pool, UNITS(7))};

    for (int i = 0; i < 3; i++) {
        expected[2 - i] = (gm_range){held[i].block->addr, held[i].block->size};
    }
    (void)survey_of(pool);
    check_asked_with(&a, NULL, 0);
    for (int i = 0; i < 5; i++) {
        let_go(held[i]);
    }
    holding piece = take_bytes(pool, UNITS(6)); // of the 7
    (void)survey_of(pool);
    CHECK_EQ(a.times, 2);
    check_asked_with(&a, expected, 3);
    let_go(piece);
    gm_pool_close(indirect);
    gm_pool_close(first);
    gm_pool_close(pool);
    gm_pool_close(last);
    check_no_pool_is_left();
    ledger_fini(&others);
    ledger_fini(&books);
}
