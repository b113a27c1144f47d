/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page, and several threads: each with streams that come and
 * go, while another gives pages back, asks for figures and moves the limit. Best under
 * `make tsan`.
 */
#include "paged.h"

#include "dice.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    WORKERS = 3,
    HELD = 12,
    PAGES = 48,
};

static site field;
static atomic_int working;

typedef struct worker {
    pthread_t thread;
    dice dice;
    gm_stream_use by;
    holding held[HELD];
} worker;

static size_t
some_size(dice *d)
{
    return dice_below(d, 2) ? 1 + dice_below(d, PAGE) : 1 + dice_below(d, 6 * PAGE);
}

/* As try_for, without a look at the whole pool, whose counters others change. */
static void
ask(worker *w, holding *out)
{
    const gm_request request = {.size = some_size(&w->dice), .key = w->by.key};
    const gm_rescue rescue = {.by = &w->by};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc(field.pool, &request, &block);

    if (status == GM_MISS || status == GM_BUSY) {
        status = gm_pool_malloc_slow(field.pool, &request, &rescue, &block);
    }
    CHECK(status == GM_OK || status == GM_ERR_OUT_OF_MEMORY || status == GM_ERR_LIMIT);
    if (status == GM_OK) {
        *out = hold(field.pool, block);
        queue_write(field.sim, *out, w->by);
    }
}

static void
drop_all(worker *w)
{
    for (size_t i = 0; i < HELD; i++) {
        if (w->held[i].block) {
            let_go(w->held[i]);
            w->held[i] = (holding){0};
        }
    }
}

static void *
work(void *context)
{
    worker *w = context;
    int rounds = 40 / harness_slowness() + 4;

    for (int round = 0; round < rounds; round++) {
        w->by = new_stream(field.sim, 0, true);
        for (int i = 0; i < 30; i++) {
            holding *h = &w->held[dice_below(&w->dice, HELD)];

            if (h->block) {
                let_go(*h);
                *h = (holding){0};
            }
            else {
                ask(w, h);
            }
        }
        drop_all(w);
        end_stream(field.sim, w->by);
    }
    atomic_fetch_sub(&working, 1);
    return NULL;
}

static void
meddle(dice *d)
{
    gm_stats stats;
    gm_survey survey;

    switch (dice_below(d, 5)) {
    case 0:
        (void)gm_pool_release_idle(field.pool);
        break;
    case 1:
        (void)gm_pool_trim(field.pool, dice_below(d, PAGES) * PAGE);
        break;
    case 2:
        CHECK_EQ(gm_pool_survey(field.pool, &stats, &survey), GM_OK);
        break;
    case 3:
        CHECK_EQ(gm_pool_set_limit(field.pool, (8 + dice_below(d, PAGES)) * PAGE),
                 GM_OK);
        break;
    default:
        check_pool(field.pool);
    }
}

TEST(expandable_on_several_threads)
{
    worker workers[WORKERS];
    dice d = {99};

    field = open_paged_site(PAGES * PAGE);
    atomic_store(&working, WORKERS);
    for (size_t i = 0; i < WORKERS; i++) {
        workers[i] = (worker){.dice = {i + 1}};
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    while (atomic_load(&working)) {
        meddle(&d);
    }
    for (size_t i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    }
    CHECK_EQ(stats_of(field.pool).used_bytes, 0);
    close_site(field);
}

/* Memory that fits is never refused, whoever has pages in his hands just then. */
static void *
take_turns(void *context)
{
    worker *w = context;

    w->by = new_stream(field.sim, 0, true);
    for (int i = 0; i < 200 / harness_slowness() + 10; i++) {
        const gm_request request = {.size = PAGES / WORKERS * PAGE, .key = w->by.key};
        const gm_rescue rescue = {.by = &w->by};
        gm_block *block = NULL;

        CHECK_EQ(gm_pool_malloc_slow(field.pool, &request, &rescue, &block), GM_OK);
        let_go(hold(field.pool, block));
    }
    atomic_fetch_sub(&working, 1);
    return NULL;
}

TEST(expandable_threads_whose_memory_fits_are_not_refused)
{
    worker workers[WORKERS] = {0};

    field = open_paged_site(PAGES * PAGE);
    atomic_store(&working, WORKERS);
    for (size_t i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, take_turns, &workers[i]), 0);
    }
    while (atomic_load(&working)) {
        (void)gm_pool_release_idle(field.pool);
    }
    for (size_t i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
        end_stream(field.sim, workers[i].by);
    }
    close_site(field);
}
