/* SPDX-License-Identifier: MIT
 *
 * State of the process: forked children and exiting processes leave everything alone,
 * the one binding, the host allocation seam, the list of pools. What threads see of the
 * lists is test_process_lists.c.
 */
#include "holding.h"
#include "ledger.h"

#include "core/gm_pending.h"
#include "core/gm_pool_private.h" // the lock, and the counters behind it

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs `body` in a forked child, which must get to its end. */
static void
in_child(void (*body)(void *context), void *context)
{
    int status = 0;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        (void)alarm(20); // a lock that is waited for would be for ever
        body(context);
        _exit(33); // no leak check: a forked child leaks by design
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 33);
}

typedef struct bench {
    ledger books;
    gm_pool *pool;
    holding live;
} bench;

static void
bench_init(bench *b)
{
    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
    let_go(take_bytes(b->pool, UNITS(4)));
    b->live = take_bytes(b->pool, UNITS(1));
}

static void
bench_fini(bench *b)
{
    let_go(b->live);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

/* Nothing a destructor does is done any more. */
static void
check_left_alone(bench *b)
{
    gm_stats before = b->pool->stats;

    let_go(b->live);
    gm_pool_close(b->pool);
    check_same_stats(&b->pool->stats, &before);
    CHECK(!gm_pool_has_deferred(b->pool));
    CHECK_EQ(b->live.block->state, GM_BLOCK_LIVE);
    CHECK(!b->pool->closed);
    CHECK_EQ(b->books.gives, 0);
    CHECK_EQ(b->books.ends, 0);
}

/* ---- fork ---- */

static void
child_before_a_device(void *context)
{
    bench b;

    (void)context;
    CHECK_EQ(gm_process_special_bits(), 0);
    CHECK_EQ(gm_process_status(), GM_OK);
    bench_init(&b);
    bench_fini(&b);
}

TEST(process_child_forked_before_a_device_is_free)
{
    in_child(child_before_a_device, NULL);
}

/* All that could wait for a lock says why it does not. */
static void
check_refused_after_fork(bench *b)
{
    const gm_stream_use other = {.stream = 64, .key = 9, .announced = true};
    gm_request request = {.size = UNITS(1)};
    gm_block *block = NULL;
    gm_stats stats;
    gm_survey survey;
    uint64_t serial;
    size_t offset;

    CHECK_EQ(gm_pool_malloc_slow(b->pool, &request, NULL, &block), GM_ERR_FORKED);
    CHECK(block == NULL);
    CHECK_EQ(gm_pool_free_address(b->pool, b->live.block->addr), GM_ERR_FORKED);
    CHECK_EQ(
        gm_pool_placement(b->pool, b->live.block, b->live.generation, &serial, &offset),
        GM_ERR_FORKED);
    CHECK_EQ(gm_pool_set_limit(b->pool, UNITS(1)), GM_ERR_FORKED);
    CHECK_EQ(gm_pool_read_stats(b->pool, &stats), GM_ERR_FORKED);
    CHECK_EQ(gm_pool_reset_peaks(b->pool), GM_ERR_FORKED);
    CHECK_EQ(gm_pool_survey(b->pool, &stats, &survey), GM_ERR_FORKED);
    CHECK_EQ(gm_pool_release_idle(b->pool), 0);
    CHECK_EQ(gm_pool_release_idle_of(b->pool, GM_STREAM_KEY_DEFAULT), 0);
    CHECK_EQ(gm_pools_release_idle(0, GM_ERR_OUT_OF_MEMORY), 0);
    CHECK_EQ(gm_pool_record_use(b->pool, b->live.block, b->live.generation, &other),
             GM_ERR_FORKED);
    CHECK(gm_pool_check(b->pool) != NULL);
}

static void
child_after_a_device(void *context)
{
    bench *b = context;
    gm_request request = {.size = UNITS(1)};
    gm_block *block = NULL;

    CHECK_EQ(gm_process_special_bits(), GM_FORKED);
    CHECK(gm_process_is_frozen());
    CHECK_EQ(gm_process_status(), GM_ERR_FORKED);
    CHECK_EQ(gm_pool_malloc(b->pool, &request, &block), GM_MISS);
    CHECK(block == NULL);
    check_refused_after_fork(b);
    check_left_alone(b);
    gm_process_exit(); // a fork is for good
    CHECK_EQ(gm_process_status(), GM_ERR_FORKED);
}

TEST(process_child_forked_after_a_device_is_frozen)
{
    bench b;

    bench_init(&b);
    gm_process_opened();
    gm_process_opened(); // once or often
    in_child(child_after_a_device, &b);
    CHECK_EQ(gm_process_special_bits(), 0); // the parent goes on
    check_pool(b.pool);
    bench_fini(&b);
}

/* A lock that another thread held while forking stays locked in the child. */
TEST(process_child_waits_for_no_lock)
{
    bench b;

    bench_init(&b);
    gm_process_opened();
    gm_pool_lock(b.pool);
    in_child(child_after_a_device, &b);
    gm_pool_unlock(b.pool);
    bench_fini(&b);
}

static void
grandchild(void *context)
{
    in_child(child_after_a_device, context);
}

TEST(process_grandchild_is_frozen)
{
    bench b;

    bench_init(&b);
    gm_process_opened();
    in_child(grandchild, &b);
    bench_fini(&b);
}

/* ---- exit ---- */

static void
leave(void *context)
{
    const gm_stream_use other = {.stream = 64, .key = 9, .announced = true};
    bench *b = context;
    gm_request request = {.size = UNITS(1)};
    gm_block *block = NULL;

    gm_process_exit();
    CHECK_EQ(gm_process_status(), GM_ERR_EXITING);
    check_left_alone(b);
    CHECK_EQ(gm_pool_record_use(b->pool, b->live.block, b->live.generation, &other),
             GM_ERR_EXITING);
    // Code that still runs may still get memory, by the long way.
    CHECK_EQ(gm_pool_malloc(b->pool, &request, &block), GM_MISS);
    CHECK_EQ(gm_pool_malloc_slow(b->pool, &request, NULL, &block), GM_OK);
    CHECK_EQ(block->size, UNITS(1));
}

TEST(process_exit_leaks_silently)
{
    bench b;

    bench_init(&b);
    in_child(leave, &b);
    bench_fini(&b);
}

/* ---- bindings ---- */

TEST(process_serves_one_binding)
{
    CHECK(gm_process_claim());
    CHECK(!gm_process_claim());
    gm_process_unclaim(); // it could not start
    CHECK(gm_process_claim());
    CHECK(!gm_process_claim());
}

/* ---- host memory ---- */

typedef struct seam {
    size_t calls;
    size_t size;
    bool fails;
} seam;

static bool
ask_seam(void *context, size_t size)
{
    seam *s = context;

    s->calls++;
    s->size = size;
    return s->fails;
}

TEST(process_host_memory_can_be_made_to_fail)
{
    seam s = {.fails = true};

    gm_host_set_fault(ask_seam, &s);
    CHECK(gm_host_alloc(10) == NULL);
    CHECK_EQ(s.size, 10);
    CHECK(gm_host_zalloc(20) == NULL);
    CHECK_EQ(s.size, 20);
    CHECK(gm_host_alloc_aligned(64, 128) == NULL);
    CHECK_EQ(s.size, 128);
    CHECK_EQ(s.calls, 3);
    s.fails = false;
    gm_host_free(gm_host_alloc(10));
    CHECK_EQ(s.calls, 4);
    gm_host_set_fault(NULL, NULL);
    gm_host_free(gm_host_alloc(10));
    CHECK_EQ(s.calls, 4);
    gm_host_free(NULL);
}

TEST(process_host_memory_is_as_promised)
{
    unsigned char zeros[256] = {0};

    for (int i = 0; i < 100; i++) { // pieces that were used before, too
        unsigned char *plain = gm_host_alloc(256), *zeroed;
        void *aligned = gm_host_alloc_aligned(GM_CACHE_LINE, 256);

        CHECK(plain != NULL && aligned != NULL);
        CHECK_EQ((uintptr_t)aligned % GM_CACHE_LINE, 0);
        memset(plain, 0xFF, 256);
        gm_host_free(plain);
        zeroed = gm_host_zalloc(256);
        CHECK(zeroed != NULL);
        CHECK(memcmp(zeroed, zeros, 256) == 0);
        gm_host_free(zeroed);
        gm_host_free(aligned);
    }
}

/* ---- the list of pools ---- */

static bool
accept(gm_pool_link *link)
{
    (void)link;
    return true;
}

static bool
accept_even(gm_pool_link *link)
{
    return link->number % 2 == 0;
}

static size_t
count_after(uint64_t after, bool (*hold_link)(gm_pool_link *))
{
    size_t count = 0;
    gm_pool_link *link;

    while ((link = gm_process_pool_next(after, hold_link)) != NULL) {
        CHECK(link->number > after);
        after = link->number;
        count++;
    }
    return count;
}

TEST(process_list_of_pools)
{
    gm_pool_link links[6];

    CHECK_EQ(count_after(0, accept), 0);
    for (size_t i = 0; i < 6; i++) {
        gm_process_pool_join(&links[i]);
        CHECK(i == 0 || links[i].number > links[i - 1].number);
    }
    CHECK(gm_process_pool_next(0, accept) == &links[0]);
    CHECK(gm_process_pool_next(links[2].number, accept) == &links[3]);
    CHECK(gm_process_pool_next(links[5].number, accept) == NULL);
    CHECK_EQ(count_after(0, accept), 6);
    CHECK_EQ(count_after(0, accept_even), 3);

    gm_process_pool_leave(&links[3]); // the middle, the last, the first
    CHECK(gm_process_pool_next(links[3].number, accept) == &links[4]);
    gm_process_pool_leave(&links[5]);
    gm_process_pool_leave(&links[0]);
    CHECK_EQ(count_after(0, accept), 3);
    CHECK(gm_process_pool_next(0, accept) == &links[1]);

    gm_pool_link late;
    gm_process_pool_join(&late);
    CHECK_EQ(count_after(0, accept), 4);  // those that were there before, too
    CHECK(late.number > links[5].number); // numbers are not used again
    CHECK(gm_process_pool_next(links[4].number, accept) == &late);
    gm_process_pool_leave(&links[1]);
    gm_process_pool_leave(&links[2]);
    gm_process_pool_leave(&links[4]);
    gm_process_pool_leave(&late);
    CHECK_EQ(count_after(0, accept), 0);
}
