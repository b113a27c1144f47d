/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page, and another device: it reaches their pages where it
 * would reach plain memory, and there alone.
 */
#include "paged.h"

#include "core/gm_peer.h"

static const gm_stream_use null_stream = {.device = 0, .announced = true};

#define REFUSED GM_DEVICE_ERROR(1)

/* What a kernel of device 1 gets that writes all of the block. */
static gm_status
touch(site s, holding h)
{
    gm_stream_use other = new_stream(s.sim, 1, true);
    gm_status status =
        gm_backend_set_async(s.sim, h.block->addr, 7, h.block->size, other.stream);

    finish_stream(s.sim, other);
    end_stream(s.sim, other);
    return status;
}

/* Eight blocks of a page each; every other one is free, and its page mapped twice. */
static void
open_comb(site s, holding *held, holding *joined)
{
    for (size_t i = 0; i < 8; i++) {
        held[i] = take_by(s.pool, PAGE, &null_stream);
    }
    for (size_t i = 0; i < 8; i += 2) {
        drop(held[i]);
    }
    *joined = take_by(s.pool, 4 * PAGE, &null_stream);
    CHECK_EQ(stats_of(s.pool).remapped_pages, 4);
}

/* The device refused so many touches. */
static void
close_comb(site s, holding *held, holding joined, size_t refused)
{
    for (size_t i = 1; i < 8; i += 2) {
        drop(held[i]);
    }
    drop(joined);
    close_site_after(s, refused);
}

TEST(expandable_pages_are_closed_to_a_device_that_was_not_let_in)
{
    site s = open_paged_site(8 * PAGE);
    holding held[8], joined;

    open_comb(s, held, &joined);
    CHECK_EQ(touch(s, joined), REFUSED);
    CHECK_EQ(gm_peer_enable(s.sim, 0, 1), GM_OK); // the other way around
    CHECK_EQ(touch(s, joined), REFUSED);
    close_comb(s, held, joined, 2);
}

/* What is mapped, wherever, and what is mapped later: new pages and moved ones. */
TEST(expandable_pages_are_open_to_a_device_that_is_let_in)
{
    site s = open_paged_site(16 * PAGE);
    holding held[8], joined, more;

    open_comb(s, held, &joined);
    CHECK_EQ(gm_peer_enable(s.sim, 1, 0), GM_OK);
    CHECK_EQ(touch(s, joined), GM_OK);
    CHECK_EQ(touch(s, held[1]), GM_OK);
    more = take_by(s.pool, 2 * PAGE, &null_stream);
    CHECK_EQ(touch(s, more), GM_OK);
    drop(joined);
    for (size_t i = 0; i < 8; i += 2) { // where they were before
        held[i] = take_by(s.pool, PAGE, &null_stream);
        CHECK_EQ(touch(s, held[i]), GM_OK);
        drop(held[i]);
    }
    joined = take_by(s.pool, 5 * PAGE, &null_stream);
    CHECK_EQ(touch(s, joined), GM_OK);
    drop(more);
    close_comb(s, held, joined, 0);
}

TEST(expandable_pools_made_later_are_open_to_a_device_that_was_let_in)
{
    site s = open_site(16 * PAGE);
    holding h;

    CHECK_EQ(gm_peer_enable(s.sim, 1, 0), GM_OK);
    CHECK_EQ(gm_pool_set_paging(s.pool), GM_OK);
    h = take_by(s.pool, 2 * PAGE, &null_stream);
    CHECK_EQ(touch(s, h), GM_OK);
    drop(h);
    close_site(s);
}

/* Once a device is in, nothing is asked for its pages again. */
TEST(expandable_pages_are_opened_once)
{
    site s = open_paged_site(8 * PAGE);
    holding held[8], joined;

    open_comb(s, held, &joined);
    (void)gm_sim_log_start(s.sim);
    CHECK_EQ(gm_peer_enable(s.sim, 1, 0), GM_OK);
    CHECK_EQ(count_calls(s.sim, "vm_set_access"), stats_of(s.pool).mappings);
    CHECK_EQ(gm_peer_enable(s.sim, 1, 0), GM_OK);
    CHECK_EQ(count_calls(s.sim, "vm_set_access"), stats_of(s.pool).mappings);
    close_comb(s, held, joined, 0);
}

TEST(expandable_pages_stay_closed_to_a_device_that_cannot)
{
    site s = open_paged_site(8 * PAGE);
    holding held[8], joined;

    CHECK_EQ(gm_sim_set_peer(s.sim, 1, 0, false), GM_OK);
    open_comb(s, held, &joined);
    (void)gm_sim_log_start(s.sim);
    CHECK_EQ(gm_peer_enable(s.sim, 1, 0), GM_ERR_UNSUPPORTED);
    CHECK_EQ(count_calls(s.sim, "vm_set_access"), 0);
    close_comb(s, held, joined, 0);
}

/* What could not be opened is told, and opened when it is asked for again. */
TEST(expandable_pages_that_could_not_be_opened_are_tried_again)
{
    site s = open_site(8 * PAGE);
    gm_backend *fault;
    gm_pool *pool;
    holding h;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    h = take_by(pool, 4 * PAGE, &null_stream);
    CHECK_EQ(gm_fault_plan(fault, "vm_set_access", 3, 1, GM_ERR_OUT_OF_MEMORY), GM_OK);
    CHECK_EQ(gm_peer_enable(fault, 1, 0), GM_ERR_OUT_OF_MEMORY);
    gm_fault_clear(fault);
    CHECK_EQ(gm_peer_enable(fault, 1, 0), GM_OK);
    CHECK_EQ(touch(s, h), GM_OK);
    drop(h);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}

/* A request whose pages cannot be opened gets none that are half open. */
TEST(expandable_pages_are_open_to_all_or_not_there)
{
    site s = open_site(8 * PAGE);
    gm_backend *fault;
    gm_pool *pool;
    holding h;

    CHECK_EQ(gm_backend_fault_open(s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    CHECK_EQ(gm_peer_enable(fault, 1, 0), GM_OK);
    CHECK_EQ(gm_fault_plan(fault, "vm_set_access", 4, 1, GM_DEVICE_ERROR(999)), GM_OK);
    CHECK_EQ(try_for(pool, 4 * PAGE, &null_stream, &h), GM_DEVICE_ERROR(999));
    CHECK_EQ(read_ledger(s.sim).mappings, 0);
    CHECK_EQ(read_ledger(s.sim).handle_bytes, 0);
    gm_fault_clear(fault);
    h = take_by(pool, 4 * PAGE, &null_stream);
    CHECK_EQ(touch(s, h), GM_OK);
    drop(h);
    gm_pool_close(pool);
    gm_backend_close(fault);
    close_site(s);
}
