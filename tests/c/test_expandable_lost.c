/* SPDX-License-Identifier: MIT
 *
 * Devices that were reset, and memory that is mapped by page: the pages stay, for they
 * are the process's; the streams that owned them do not.
 */
#include "lives.h"

#define PAGE ((size_t)2 << 20)

static gm_pool *
paged_pool(void)
{
    gm_pool *pool;

    open_backend();
    pool = pool_on(0);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    return pool;
}

static gm_status
ask(gm_pool *pool, size_t size, const test_stream *s, holding *out)
{
    const gm_request request = {.size = size, .key = s->use.key};
    const gm_rescue rescue = {.by = &s->use};
    gm_block *block = NULL;
    gm_status status = gm_pool_malloc_slow(pool, &request, &rescue, &block);

    if (status == GM_OK) {
        *out = hold(pool, block);
    }
    check_pool(pool);
    return status;
}

/* Two pages of a stream, free, which the device has just used. */
static void
leave_pages(gm_pool *pool, const test_stream *s)
{
    holding h = {0};

    CHECK_EQ(ask(pool, 2 * PAGE, s, &h), GM_OK);
    keep_busy(s);
    let_go(h);
}

/* As a reset ends streams: nobody is told of each. */
static void
reset(const test_stream *s)
{
    drop_stream(s);
    lives[0]++;
}

/* One that lives ends as usual. */
static void
end_living(const test_stream *s)
{
    gm_pools_end_stream(&table, &s->use);
    drop_stream(s);
}

static void
close_paged(gm_pool *pool)
{
    gm_pool_close(pool);
    for (int device = 0; device < DEVICES; device++) {
        CHECK_EQ(gm_backend_device_synchronize(sim, device), GM_OK);
    }
    gm_pools_sweep();
    end_scratch();
    close_backend(-1);
}

/* Its handle may be another stream's by then; here the device would take it for a
 * misuse. */
TEST(lost_stream_is_not_asked_about_the_pages_it_owned)
{
    gm_pool *pool = paged_pool();
    test_stream s = make_stream(0, true);

    leave_pages(pool, &s);
    reset(&s);
    gm_pools_device_lost(&table, 0);
    check_pool(pool);
    CHECK_EQ(stats_of(pool).free_bytes, 2 * PAGE);
    CHECK_EQ(gm_pool_release_idle(pool), 2 * PAGE);
    close_paged(pool);
}

TEST(lost_stream_leaves_its_pages_to_anybody)
{
    gm_pool *pool = paged_pool();
    test_stream s = make_stream(0, true), other = make_stream(0, true);
    holding h = {0}, kept = {0};

    CHECK_EQ(ask(pool, 2 * PAGE, &s, &h), GM_OK);
    CHECK_EQ(ask(pool, 2 * PAGE, &other, &kept), GM_OK);
    keep_busy(&s);
    let_go(h);
    let_go(kept);
    other.use.life = lives[0] + 1; // it is of the new life
    reset(&s);
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(gm_pool_set_limit(pool, 4 * PAGE), GM_OK);
    CHECK_EQ(ask(pool, 4 * PAGE, &other, &h), GM_OK);
    CHECK_EQ(stats_of(pool).upstream_frees, 0);
    let_go(h);
    end_living(&other);
    close_paged(pool);
}

/* Of which life it was nobody knows, so the device is waited for. */
TEST(lost_stream_of_no_known_life_is_waited_for)
{
    gm_pool *pool = paged_pool();
    test_stream s = make_stream(0, true), other = make_stream(0, true);

    s.use.life = 0;
    leave_pages(pool, &s);
    reset(&s);
    keep_busy(&other);
    gm_pools_device_lost(&table, 0);
    CHECK_EQ(gm_pool_release_idle(pool), 2 * PAGE);
    CHECK_EQ(gm_backend_stream_query(sim, other.handle), GM_OK);
    end_living(&other);
    close_paged(pool);
}

/* The other device's streams and pages are none of its business. */
TEST(lost_device_leaves_the_pages_of_others_to_their_streams)
{
    gm_pool *pool = paged_pool();
    test_stream s = make_stream(0, true), other = make_stream(0, true);
    holding h = {0};

    leave_pages(pool, &s);
    lives[1]++;
    gm_pools_device_lost(&table, 1);
    CHECK_EQ(gm_pool_set_limit(pool, 2 * PAGE), GM_OK);
    gm_sim_log_start(sim);
    CHECK_EQ(ask(pool, 2 * PAGE, &other, &h), GM_OK); // in the order of streams
    CHECK_EQ(stats_of(pool).remapped_pages, 2);
    gm_sim_log_stop(sim);
    let_go(h);
    end_living(&s);
    end_living(&other);
    close_paged(pool);
}

/* A reset that nobody told of, of a pool that never gave a page back. */
TEST(lost_device_is_noticed_by_a_pool_that_has_pages)
{
    gm_pool *pool = paged_pool();
    test_stream s = make_stream(0, true), other = make_stream(0, true);
    holding first = {0}, second = {0};
    uint64_t hold;

    CHECK_EQ(ask(pool, PAGE, &s, &first), GM_OK);
    use_on(first, &other);
    CHECK_EQ(gm_sim_hold(sim, other.handle, &hold), GM_OK);
    keep_busy(&other);
    let_go(first);
    CHECK_EQ(stats_of(pool).pending_bytes, PAGE);
    lives[0]++;
    CHECK_EQ(ask(pool, 4 * PAGE, &s, &second), GM_OK);
    CHECK_EQ(stats_of(pool).pending_bytes, 0); // nothing of the old life goes on
    let_go(second);
    gm_sim_release(sim, hold);
    end_living(&s);
    end_living(&other);
    close_paged(pool);
}

static int asked;

static gm_status
count_asks(void *self, int device, uint64_t *number)
{
    asked++;
    return test_incarnation(self, device, number);
}

/* Once it was noticed it is not looked for all over again by each request. */
TEST(lost_device_is_noticed_once)
{
    gm_pool *pool = paged_pool();
    test_stream s = make_stream(0, true);
    holding h[4] = {0};
    int usual;

    CHECK_EQ(ask(pool, PAGE, &s, &h[0]), GM_OK);
    lives[0]++;
    s.use.life = lives[0];
    CHECK_EQ(ask(pool, PAGE, &s, &h[1]), GM_OK);
    table.device_incarnation = count_asks;
    asked = 0;
    CHECK_EQ(ask(pool, PAGE, &s, &h[2]), GM_OK);
    usual = asked;
    lives[0]++;
    s.use.life = lives[0];
    CHECK_EQ(ask(pool, PAGE, &s, &h[3]), GM_OK);
    CHECK_EQ(usual, 1);
    CHECK_EQ(asked, usual + 2); // and how it is found out
    for (int i = 0; i < 4; i++) {
        let_go(h[i]);
    }
    end_living(&s);
    close_paged(pool);
}
