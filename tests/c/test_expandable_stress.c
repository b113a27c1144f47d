/* SPDX-License-Identifier: MIT
 *
 * Pools that map memory by page, at random on several streams with little memory, and
 * under failures of each call: whatever happens, nobody's bytes change, the device sees
 * no address that is gone, and every byte comes back.
 */
#include "paged.h"

#include "dice.h"

enum {
    STREAMS = 3,
    HELD = 48,
    PAGES = 48,
};

typedef struct party {
    site s;
    gm_backend *fault;
    gm_pool *pool;
    gm_stream_use streams[STREAMS];
    holding held[HELD];
    unsigned seeds[HELD];
    unsigned on[HELD];
    dice dice;
} party;

static void
party_init(party *p, uint64_t seed)
{
    *p = (party){.s = open_site(PAGES * PAGE), .dice = {seed}};
    CHECK_EQ(gm_backend_fault_open(p->s.sim, &p->fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(p->fault), &p->pool), GM_OK);
    CHECK_EQ(gm_pool_set_paging(p->pool), GM_OK);
    for (size_t i = 0; i < STREAMS; i++) {
        p->streams[i] = new_stream(p->s.sim, 0, true);
    }
}

/* Writes of the device, so that what is unmapped too early is seen. */
static void
use(party *p, size_t i)
{
    holding h = p->held[i];

    p->seeds[i] = (unsigned)dice_bits(&p->dice);
    CHECK_EQ(gm_backend_set_async(p->s.sim, h.block->addr, (int)(p->seeds[i] & 0xFF),
                                  h.block->size, p->streams[p->on[i]].stream),
             GM_OK);
}

static void
check_use(party *p, size_t i)
{
    const unsigned char *bytes;

    finish_stream(p->s.sim, p->streams[p->on[i]]);
    bytes = (const unsigned char *)p->held[i].block->addr;
    for (size_t at = 0; at < p->held[i].block->size; at += 4096) {
        CHECK_EQ(bytes[at], p->seeds[i] & 0xFF);
    }
    CHECK_EQ(bytes[p->held[i].block->size - 1], p->seeds[i] & 0xFF);
}

static size_t
some_size(party *p)
{
    switch (dice_below(&p->dice, 4)) {
    case 0:
        return 1 + dice_below(&p->dice, 4096);
    case 1:
        return 1 + dice_below(&p->dice, PAGE);
    case 2:
        return 1 + dice_below(&p->dice, 4 * PAGE);
    default:
        return (1 + dice_below(&p->dice, 10)) * PAGE;
    }
}

static void
drop_one(party *p, size_t i)
{
    if (dice_below(&p->dice, 4) == 0) {
        check_use(p, i);
    }
    drop(p->held[i]);
    p->held[i] = (holding){0};
}

static void
step(party *p)
{
    size_t i = dice_below(&p->dice, HELD);
    gm_status status;

    if (p->held[i].block) {
        drop_one(p, i);
        return;
    }
    if (dice_below(&p->dice, 16) == 0) {
        (void)gm_pool_trim(p->pool, dice_below(&p->dice, PAGES) * PAGE);
        check_pool(p->pool);
    }
    p->on[i] = (unsigned)dice_below(&p->dice, STREAMS);
    status = try_for(p->pool, some_size(p), &p->streams[p->on[i]], &p->held[i]);
    CHECK(status == GM_OK || status == GM_ERR_OUT_OF_MEMORY);
    if (status == GM_OK) {
        use(p, i);
    }
}

static void
party_fini(party *p)
{
    for (size_t i = 0; i < HELD; i++) {
        if (p->held[i].block) {
            check_use(p, i);
            drop(p->held[i]);
        }
    }
    gm_fault_clear(p->fault);
    for (size_t i = 0; i < STREAMS; i++) {
        end_stream(p->fault, p->streams[i]);
    }
    gm_pool_close(p->pool);
    CHECK_EQ(gm_backend_device_synchronize(p->s.sim, 0), GM_OK);
    gm_pools_sweep();
    gm_backend_close(p->fault);
    close_site(p->s);
}

TEST(expandable_at_random_on_several_streams)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        party p;

        party_init(&p, seed);
        for (size_t i = 0; i < 1000; i++) {
            step(&p);
        }
        CHECK(stats_of(p.pool).remapped_pages > 0);
        party_fini(&p);
    }
}

/* Fails the call number `nth` of a slot after a while, and goes on. */
static uint64_t
fail_one(const char *slot, uint64_t nth)
{
    uint64_t seen = 0;
    uint64_t injected = 0;
    party p;

    party_init(&p, nth);
    for (size_t i = 0; i < 30; i++) {
        step(&p);
    }
    CHECK_EQ(gm_fault_plan(p.fault, slot, nth, 1, GM_ERR_OUT_OF_MEMORY), GM_OK);
    for (size_t i = 0; i < 60; i++) {
        step(&p);
    }
    gm_fault_counts(p.fault, &seen, &injected);
    party_fini(&p);
    return injected;
}

TEST(expandable_whichever_call_fails_nothing_is_lost)
{
    static const char *const slots[] = {
        "vm_create",  "vm_map",       "vm_set_access",     "vm_unmap",
        "vm_reserve", "event_record", "stream_wait_event", "event_create",
    };

    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        uint64_t injected = 0;

        for (uint64_t nth = 1; nth <= 8; nth += 1 + nth / 2) {
            injected += fail_one(slots[i], nth);
        }
        CHECK(injected > 0 || i >= 4); // the others are rare
    }
}

static bool
fail_nth(void *context, size_t size)
{
    size_t *left = context;

    (void)size;
    return *left > 0 && --*left == 0;
}

TEST(expandable_whichever_host_allocation_fails_nothing_is_lost)
{
    for (size_t nth = 1; nth <= 16; nth++) {
        party p;
        size_t left = 0;

        party_init(&p, 7);
        for (size_t i = 0; i < 80; i++) {
            step(&p);
        }
        for (size_t i = 0; i < 20; i++) {
            holding h = {0};
            gm_status status;

            left = nth;
            gm_host_set_fault(fail_nth, &left);
            status = try_for(p.pool, 3 * PAGE + 512 * i, &p.streams[0], &h);
            gm_host_set_fault(NULL, NULL);
            CHECK(status == GM_OK || status == GM_ERR_OUT_OF_MEMORY ||
                  status == GM_ERR_HOST_MEMORY);
            if (status == GM_OK) {
                drop(h);
            }
        }
        party_fini(&p);
    }
}
