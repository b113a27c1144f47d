/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page, and another device: it reaches their pages where it
 * would reach plain memory, and there alone.
 */
#include "paged.h"

#include "core/gm_peer.h"
#include "core/gm_pool_private.h" // gm_echoes_clear

#include <pthread.h>
#include <stdatomic.h>
#include <time.h> // nanosleep

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
open_comb(site s, const gm_stream_use *by, holding *held, holding *joined)
{
    for (size_t i = 0; i < 8; i++) {
        held[i] = take_by(s.pool, PAGE, by);
    }
    for (size_t i = 0; i < 8; i += 2) {
        drop(held[i]);
    }
    *joined = take_by(s.pool, 4 * PAGE, by);
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

    open_comb(s, &null_stream, held, &joined);
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

    open_comb(s, &null_stream, held, &joined);
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

    open_comb(s, &null_stream, held, &joined);
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
    open_comb(s, &null_stream, held, &joined);
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

/* ---- in the midst ---- */

static gm_backend table;
static gm_backend *real;

/* A site whose pool calls the device by the table. */
static site
open_by_table(size_t memory)
{
    site s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = memory})};

    real = s.sim;
    table = *s.sim;
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(&table), &s.pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(s.pool), GM_OK);
    return s;
}

static gm_status
refuse_the_other(void *self, uintptr_t ptr, size_t size, int device)
{
    return device == 1 ? GM_ERR_OUT_OF_MEMORY
                       : real->vm_set_access(self, ptr, size, device);
}

static gm_status
let_in_before_map(void *self, uintptr_t ptr, size_t size, gm_handle handle)
{
    table.vm_map = real->vm_map;
    CHECK_EQ(gm_peer_enable(&table, 1, 0), GM_OK);
    table.vm_set_access = refuse_the_other;
    return real->vm_map(self, ptr, size, handle);
}

/* Let in while a request maps a page, which is then not opened: the request has its
 * memory, and who lets the device in again finds that something is to be done. */
TEST(expandable_pages_that_a_request_could_not_open_are_tried_again)
{
    site s = open_by_table(8 * PAGE);
    holding there = take_by(s.pool, PAGE, &null_stream), late;

    table.vm_map = let_in_before_map;
    late = take_by(s.pool, 2 * PAGE, &null_stream);
    table = *s.sim;
    CHECK_EQ(touch(s, there), GM_OK);
    CHECK_EQ(touch(s, late), REFUSED);
    CHECK_EQ(gm_peer_enable(&table, 1, 0), GM_OK);
    CHECK_EQ(touch(s, late), GM_OK);
    drop(there);
    drop(late);
    close_site_after(s, 1);
}

static pthread_t helper;
static atomic_bool let_in;

static void *
let_the_other_in(void *context)
{
    CHECK_EQ(gm_peer_enable(&table, 1, 0), GM_OK);
    atomic_store(&let_in, true);
    return context;
}

/* What was to be given up is not, after time enough to let the device in. */
static gm_status
let_in_before_record(void *self, gm_event event, gm_stream stream)
{
    const struct timespec pause = {.tv_nsec = 20000000};

    (void)self;
    (void)event;
    (void)stream;
    CHECK_EQ(pthread_create(&helper, NULL, let_the_other_in, NULL), 0);
    nanosleep(&pause, NULL);
    return GM_DEVICE_ERROR(999);
}

/* Places that somebody has in his hands to give up are on no list, and may come back.
 */
TEST(expandable_places_that_were_not_given_up_are_open_to_who_was_let_in)
{
    site s = open_by_table(8 * PAGE);
    gm_stream_use own = new_stream(s.sim, 0, true);
    gm_stream_use other = new_stream(s.sim, 1, true);
    holding held[8], joined;
    uintptr_t first;
    uint64_t hold;

    open_comb(s, &own, held, &joined);
    queue_write(s.sim, joined, own);
    CHECK_EQ(gm_sim_hold(s.sim, own.stream, &hold), GM_OK);
    table.event_record = let_in_before_record;
    CHECK(gm_echoes_clear(s.pool, own.key)); // in vain
    CHECK_EQ(pthread_join(helper, NULL), 0);
    table = *s.sim;
    check_pool(s.pool);
    CHECK(atomic_load(&let_in));
    CHECK_EQ(mapped(s), 12);
    first = held[1].block->addr - PAGE;
    for (size_t i = 0; i < 8; i++) { // where every other one is an old place
        CHECK_EQ(gm_backend_set_async(s.sim, first + i * PAGE, 7, PAGE, other.stream),
                 GM_OK);
    }
    gm_sim_release(s.sim, hold);
    finish_stream(s.sim, other);
    end_stream(s.sim, other);
    gm_pools_end_stream(&table, &own);
    CHECK_EQ(gm_backend_stream_destroy(s.sim, own.stream), GM_OK);
    close_comb(s, held, joined, 0);
}
