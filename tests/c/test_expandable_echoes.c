/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page: places of earlier use, and addresses, stay within
 * bounds for programs that never repeat themselves, and end no earlier than their use.
 */
#include "paged.h"

#include "core/gm_pool_private.h" // GM_PLACES
#include "dice.h"

enum {
    PAGES = 64,
    HELD = 24,
    LIVE = 40, // pages that are asked for at most, so that hardly ever any goes back
    STREAMS = 4,
};

typedef struct program {
    site s;
    size_t streams;
    gm_stream_use use[STREAMS];
    holding held[HELD];
    size_t live;
    dice dice;
} program;

static void
open_program_at(program *p, site s, uint64_t seed, size_t streams)
{
    *p = (program){.s = s, .streams = streams, .dice = {seed}};
    for (size_t i = 0; i < streams; i++) {
        p->use[i] = new_stream(p->s.sim, 0, true);
    }
}

static void
open_program(program *p, uint64_t seed, size_t streams)
{
    open_program_at(p, open_paged_site(PAGES * PAGE), seed, streams);
}

static void
close_program(program *p)
{
    check_pool(p->s.pool);
    for (size_t i = 0; i < HELD; i++) {
        if (p->held[i].block) {
            drop(p->held[i]);
        }
    }
    for (size_t i = 0; i < p->streams; i++) {
        end_stream(p->s.sim, p->use[i]);
    }
    close_site(p->s);
}

/* A request of any size, of which hardly any comes twice, in the place of another one.
 * With `write`, the device is to write to it. */
static void
step(program *p, bool write)
{
    const gm_stream_use *use = &p->use[dice_below(&p->dice, p->streams)];
    size_t most = dice_below(&p->dice, 8) == 0 ? 16 * PAGE : 3 * PAGE;
    size_t size = 1 + dice_below(&p->dice, most);
    holding *h = &p->held[dice_below(&p->dice, HELD)];

    if (h->block) {
        p->live -= h->block->size;
        let_go(*h);
        *h = (holding){0};
    }
    if (p->live + size <= LIVE * PAGE) {
        CHECK_EQ(try_hold_for(p->s.pool, size, use, h), GM_OK);
        p->live += h->block->size;
    }
    // A byte each page: what touches all of them takes the sanitizer's memory.
    for (size_t at = 0; write && h->block && at < h->block->size; at += PAGE) {
        CHECK_EQ(gm_backend_set_async(p->s.sim, h->block->addr + at, 1, 1, use->stream),
                 GM_OK);
    }
}

/* A million requests: as many addresses as at the beginning, four times the device. */
TEST(expandable_addresses_are_used_again)
{
    enum {
        STEPS = 1000000
    };
    program p;

    open_program(&p, 1, 1);
    for (size_t i = 0; i < STEPS; i++) {
        step(&p, false);
        if (i % 4096 == 0) {
            CHECK_EQ(stats_of(p.s.pool).reserved_bytes, 4 * PAGES * PAGE);
            CHECK(mapped(p.s) <= 4 * PAGES);
        }
    }
    CHECK_EQ(stats_of(p.s.pool).mappings, mapped(p.s));
    CHECK(stats_of(p.s.pool).remapped_pages > 100 * PAGES); // it was not for nothing
    CHECK_EQ(stats_of(p.s.pool).retries, 0);
    close_program(&p);
}

/* The bound of mappings, and what one request maps before the next one looks. */
TEST(expandable_places_stay_within_their_bound)
{
    size_t highest = 0;
    program p;

    open_program(&p, 1, STREAMS);
    for (size_t i = 0; i < 50000; i++) {
        size_t now;

        step(&p, false);
        now = mapped(p.s);
        highest = now > highest ? now : highest;
    }
    CHECK(highest <= GM_PLACES * PAGES + GM_PLACES_SPARE + PAGES);
    CHECK(highest >= GM_PLACES * PAGES); // there would be more
    CHECK_EQ(stats_of(p.s.pool).mappings, mapped(p.s));
    close_program(&p);
}

/* A program that queues nothing, on a device that does things at once or as late as it
 * may: a digest of where its blocks go. */
static uint64_t
places_of(bool at_once)
{
    const gm_sim_options options = {
        .devices = 2,
        .memory = PAGES * PAGE,
        .release_at_once = at_once,
    };
    site s = {.sim = open_sim(options)};
    uint64_t digest = 0;
    program p;

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(s.sim), &s.pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(s.pool), GM_OK);
    open_program_at(&p, s, 1, STREAMS);
    gm_sim_log_start(s.sim);
    for (size_t i = 0; i < 20000; i++) {
        const gm_block *block;

        step(&p, false);
        block = p.held[i % HELD].block;
        if (block) {
            digest = digest * 31 + block->segment->serial;
            digest = digest * 31 + (block->addr - block->segment->piece.base);
        }
    }
    CHECK(stats_of(s.pool).remapped_pages > 1000);
    CHECK(count_calls(s.sim, "vm_unmap") > 1000); // places ended
    gm_sim_log_stop(s.sim);
    CHECK_EQ(read_ledger(s.sim).events, 0);
    close_program(&p);
    return digest;
}

/* A pool that recorded events for its own sake would find streams at work, or not yet,
 * and end old places now or later. */
TEST(expandable_places_do_not_depend_on_how_soon_an_idle_device_is)
{
    CHECK_EQ(places_of(true), places_of(false));
}

/* A device that refuses to unmap: it is asked again. */
TEST(expandable_places_that_do_not_end_are_tried_again)
{
    program p;
    gm_backend *fault;
    gm_pool *pool;

    open_program(&p, 1, STREAMS);
    CHECK_EQ(gm_backend_fault_open(p.s.sim, &fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(fault), &pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(pool), GM_OK);
    gm_pool_close(p.s.pool);
    p.s.pool = pool;
    CHECK_EQ(gm_fault_plan(fault, "vm_unmap", 1, 1000000, GM_DEVICE_ERROR(1)), GM_OK);
    while (!pool->paging.ending) {
        step(&p, false);
    }
    for (size_t i = 0; i < 100; i++) {
        step(&p, false);
    }
    check_pool(pool);
    CHECK(pool->paging.ending != NULL);
    gm_fault_clear(fault);
    (void)stats_of(pool); // looks
    check_pool(pool);
    CHECK(pool->paging.ending == NULL);
    for (size_t i = 0; i < HELD; i++) { // while the wrapper is there
        if (p.held[i].block) {
            drop(p.held[i]);
            p.held[i] = (holding){0};
        }
    }
    for (size_t i = 0; i < STREAMS; i++) {
        end_stream(fault, p.use[i]);
    }
    p.streams = 0;
    gm_pool_close(pool);
    gm_backend_close(fault);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(p.s.sim), &p.s.pool), GM_OK);
    close_program(&p);
}

/* A page whose old place is still in use goes back when that has ended, not before,
 * though its own stream is done. */
TEST(expandable_pages_go_back_when_their_last_place_has_ended)
{
    program p;
    gm_stream_use behind;
    uint64_t hold;

    open_program(&p, 5, 3);
    for (size_t i = 0; i < 3000; i++) {
        step(&p, false);
    }
    for (size_t i = 0; i < 3; i++) {
        finish_stream(p.s.sim, p.use[i]);
    }
    behind = p.use[0];
    CHECK_EQ(gm_sim_hold(p.s.sim, behind.stream, &hold), GM_OK);
    for (size_t i = 0; i < HELD; i++) {
        if (p.held[i].block && p.held[i].block->segment->arena->key == behind.key) {
            queue_write(p.s.sim, p.held[i], behind);
        }
    }
    CHECK(gm_echoes_clear(p.s.pool, behind.key));
    check_pool(p.s.pool);
    CHECK(p.s.pool->paging.ending != NULL);
    for (size_t i = 0; i < HELD; i++) {
        if (p.held[i].block) {
            drop(p.held[i]);
            p.held[i] = (holding){0};
        }
    }
    CHECK(gm_pool_release_idle(p.s.pool) > 0);
    check_pool(p.s.pool);
    CHECK(read_ledger(p.s.sim).handle_bytes > 0);
    CHECK_EQ(read_ledger(p.s.sim).handle_bytes, stats_of(p.s.pool).total_bytes);
    gm_sim_release(p.s.sim, hold);
    finish_stream(p.s.sim, behind);
    CHECK_EQ(stats_of(p.s.pool).total_bytes, 0); // looks
    CHECK_EQ(read_ledger(p.s.sim).handle_bytes, 0);
    close_program(&p);
}

/* A device that is far behind: what was given up is mapped until it is done. */
TEST(expandable_places_end_no_earlier_than_their_use)
{
    program p;
    uint64_t holds[STREAMS];
    size_t mappings;

    open_program(&p, 3, STREAMS);
    for (size_t i = 0; i < STREAMS; i++) {
        CHECK_EQ(gm_sim_hold(p.s.sim, p.use[i].stream, &holds[i]), GM_OK);
    }
    for (size_t i = 0; i < 6000; i++) {
        step(&p, true);
    }
    check_pool(p.s.pool);
    mappings = mapped(p.s);
    CHECK(mappings > GM_PLACES * PAGES + GM_PLACES_SPARE + PAGES);
    CHECK(p.s.pool->paging.ending != NULL);
    for (size_t i = 0; i < STREAMS; i++) {
        gm_sim_release(p.s.sim, holds[i]);
    }
    for (size_t i = 0; i < STREAMS; i++) {
        finish_stream(p.s.sim, p.use[i]);
    }
    CHECK(stats_of(p.s.pool).mappings < mappings); // looks
    CHECK(p.s.pool->paging.ending == NULL);
    close_program(&p);
}
