/* SPDX-License-Identifier: MIT
 *
 * Who waits for the device to get pages back has nothing in its hands that others wait
 * for: streams end, devices are reset and let in meanwhile. All of that is done here by
 * the thread that waits, in the midst of its wait, so it would never come back.
 */
#include "paged.h"

#include "core/gm_lost.h"
#include "core/gm_peer.h"
#include "core/gm_pool_private.h" // gm_echoes_clear

static gm_backend table;
static gm_backend *real;
static gm_stream_use owner;
static void (*meanwhile)(void);
static uint64_t held; // by which the owner is kept busy until then; 0: by nothing

/* A pool that calls the device by the table, and two pages of a stream that are free
 * and in use by the device. */
static site
open_waited(void)
{
    site s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = 4 * PAGE})};
    holding h;

    real = s.sim;
    table = *s.sim;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &s.pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(s.pool), GM_OK);
    owner = new_stream(s.sim, 0, true);
    h = take_by(s.pool, 2 * PAGE, &owner);
    queue_write(s.sim, h, owner);
    drop(h);
    return s;
}

static void
close_waited(site s)
{
    CHECK(!meanwhile); // it happened
    table = *s.sim;
    close_site(s);
}

static void
do_it_once(void)
{
    void (*what)(void) = meanwhile;

    meanwhile = NULL;
    if (held) {
        gm_sim_release(real, held);
        held = 0;
    }
    if (what) {
        what();
    }
}

static gm_status
wait_for_device(void *self, int device)
{
    do_it_once();
    return real->device_synchronize(self, device);
}

static gm_status
wait_for_event(void *self, gm_event event)
{
    do_it_once();
    return real->event_synchronize(self, event);
}

static gm_status
make_no_event(void *self, int device, unsigned flags, gm_event *out)
{
    (void)self;
    (void)device;
    (void)flags;
    (void)out;
    return GM_ERR_OUT_OF_MEMORY;
}

static void
end_the_owner(void)
{
    gm_pools_end_stream(&table, &owner);
    CHECK_EQ(gm_backend_stream_destroy(real, owner.stream), GM_OK);
}

static void
reset_the_device(void)
{
    CHECK_EQ(gm_backend_device_reset(real, 0), GM_OK);
    gm_pools_device_lost(&table, 0);
}

static void
let_the_other_in(void)
{
    CHECK_EQ(gm_peer_enable(&table, 1, 0), GM_OK);
}

/* Where no mark can be had the device is waited for, without the stream. */
static void
release_while(void (*happens)(void))
{
    site s = open_waited();

    table.event_create = make_no_event;
    table.device_synchronize = wait_for_device;
    meanwhile = happens;
    CHECK_EQ(gm_pool_release_idle(s.pool), 2 * PAGE);
    check_pool(s.pool);
    CHECK_EQ(read_ledger(s.sim).handles, 0);
    close_waited(s);
}

TEST(expandable_stream_ends_while_the_device_is_waited_for)
{
    release_while(end_the_owner);
}

TEST(expandable_device_is_reset_while_it_is_waited_for)
{
    release_while(reset_the_device);
}

/* Leaves the pages waiting for a mark, and a wait for that. */
static void
wait_for_mark(site s, void (*what)(void))
{
    CHECK_EQ(gm_sim_hold(s.sim, owner.stream, &held), GM_OK);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0);
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 2 * PAGE);
    table.event_synchronize = wait_for_event;
    meanwhile = what;
    (void)gm_pool_reclaim_idle(s.pool, 0);
    check_pool(s.pool);
    CHECK_EQ(stats_of(s.pool).total_bytes, 0);
}

TEST(expandable_stream_ends_while_its_mark_is_waited_for)
{
    site s = open_waited();

    wait_for_mark(s, end_the_owner);
    close_waited(s);
}

TEST(expandable_device_is_let_in_while_a_mark_is_waited_for)
{
    site s = open_waited();

    wait_for_mark(s, let_the_other_in);
    end_the_owner();
    close_waited(s);
}

/* The mark went with the device. Its event is never touched again, nor does it come
 * back as a spare one; the wait itself may fail, and the pages are free all the same.
 */
TEST(expandable_device_is_reset_while_a_mark_is_waited_for)
{
    site s = open_waited();
    gm_stream_use other;
    holding h;
    uint64_t hold;

    wait_for_mark(s, reset_the_device);
    CHECK_EQ(read_ledger(s.sim).errors, 1); // of the wait
    other = new_stream(s.sim, 0, true);
    h = take_by(s.pool, 2 * PAGE, &other);
    queue_write(s.sim, h, other);
    drop(h);
    CHECK_EQ(gm_sim_hold(s.sim, other.stream, &hold), GM_OK);
    CHECK_EQ(gm_pool_release_idle(s.pool), 0); // by a new mark
    CHECK_EQ(stats_of(s.pool).pending_release_bytes, 2 * PAGE);
    gm_sim_release(s.sim, hold);
    owner = other;
    end_the_owner();
    CHECK(!meanwhile);
    table = *s.sim;
    close_site_after(s, 1);
}

/* A mark is held by whoever waits for it: nobody gives its event back meanwhile, though
 * nobody else holds it any more. */
static gm_pool *looked_at;

static void
settle_and_trim(void)
{
    gm_stats stats;

    CHECK_EQ(gm_backend_device_synchronize(real, 0), GM_OK);
    CHECK_EQ(gm_pool_read_stats(looked_at, &stats), GM_OK); // looks
    CHECK_EQ(stats.pending_bytes, 0);
    gm_marks_fini(looked_at); // those that are spare
}

TEST(pending_mark_that_is_waited_for_is_not_spare)
{
    site s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = 64 * MIB})};
    gm_stream_use user = new_stream(s.sim, 0, true);
    holding h;

    real = s.sim;
    table = *s.sim;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &s.pool), GM_OK);
    h = take_bytes(s.pool, MIB);
    record(h, user);
    queue_write(s.sim, h, user);
    let_go(h);
    looked_at = s.pool;
    table.event_synchronize = wait_for_event;
    meanwhile = settle_and_trim;
    CHECK_EQ(gm_pool_settle_all(s.pool), h.block->size);
    check_pool(s.pool);
    gm_pools_end_stream(&table, &user);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, user.stream), GM_OK);
    close_waited(s);
}

/* Old places of a stream that ended share its last mark with what it left. */
TEST(expandable_places_of_an_ended_stream_end_after_its_last_mark)
{
    site s = open_waited();
    holding low = take_by(s.pool, PAGE, &owner), high = take_by(s.pool, PAGE, &owner);
    holding moved, last;
    uint64_t hold;

    last = take_by(s.pool, PAGE, &owner);
    drop(low);
    drop(last);
    moved = take_by(s.pool, 2 * PAGE, &owner);
    CHECK(stats_of(s.pool).remapped_pages > 0);
    queue_write(s.sim, moved, owner);
    CHECK_EQ(gm_sim_hold(s.sim, owner.stream, &hold), GM_OK);
    end_the_owner();
    CHECK(gm_echoes_clear(s.pool, owner.key));
    check_pool(s.pool);
    CHECK(s.pool->paging.ending != NULL);
    gm_sim_release(s.sim, hold);
    (void)stats_of(s.pool); // looks
    CHECK(s.pool->paging.ending == NULL);
    drop(high);
    drop(moved);
    close_waited(s);
}
