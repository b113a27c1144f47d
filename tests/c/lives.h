/* SPDX-License-Identifier: MIT
 *
 * Shorthand for tests of devices that are reset: the simulated backend with the number
 * of each device's life in the hands of the test. Its memory is really there still, so
 * that giving it back would be seen; the test does that itself in the end.
 */
#ifndef LIVES_H
#define LIVES_H

#include "holding.h"

#include "backends/backends.h"
#include "core/gm_capture.h"
#include "core/gm_lost.h"
#include "core/gm_pending.h"
#include "core/gm_process.h"

enum {
    DEVICES = 2,
    TAKEN = 64,
};

static uint64_t lives[DEVICES]; // 0: nothing exists there
static gm_status answer;        // of asking for one
static uintptr_t taken[TAKEN];
static int taken_count;
static gm_backend table;
static gm_backend *sim;

static inline gm_status
test_incarnation(void *self, int device, uint64_t *number)
{
    (void)self;
    if (answer == GM_OK) {
        *number = lives[device];
    }
    return answer;
}

static inline gm_status
test_alloc(void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out)
{
    gm_status status = sim->mem_alloc(self, device, kind, size, out);

    if (status == GM_OK) {
        CHECK(taken_count < TAKEN);
        taken[taken_count++] = *out;
    }
    return status;
}

static inline const gm_backend *
open_backend(void)
{
    const gm_sim_options options = {.devices = DEVICES, .memory = (size_t)1 << 30};

    CHECK_EQ(gm_backend_sim_open(&options, &sim), GM_OK);
    table = *sim;
    table.device_incarnation = test_incarnation;
    table.mem_alloc = test_alloc;
    taken_count = 0;
    for (int i = 0; i < DEVICES; i++) {
        lives[i] = 1;
    }
    return &table;
}

/* How many of the allocations the device has back. */
static inline int
given_back(void)
{
    gm_sim_ledger ledger;

    gm_sim_read_ledger(sim, &ledger);
    CHECK_EQ(ledger.errors, 0);
    return taken_count - (int)ledger.allocations;
}

/* Gives back what is still out of a device, as its reset would have. */
static inline void
give_back_lost(int device)
{
    for (int i = 0; i < taken_count; i++) {
        gm_pointer_info info;

        CHECK_EQ(gm_backend_pointer_info(sim, taken[i], &info), GM_OK);
        if (info.kind == GM_POINTER_DEVICE && info.base == taken[i] &&
            info.device == device) {
            CHECK_EQ(gm_backend_mem_free(sim, info.device, GM_MEM_DEVICE, taken[i]),
                     GM_OK);
        }
    }
}

/* The same for one that may be -1, none, and insists on a clean end. */
static inline void
close_backend(int lost_device)
{
    gm_sim_ledger ledger;

    give_back_lost(lost_device);
    check_no_pool_is_left();
    gm_sim_read_ledger(sim, &ledger);
    CHECK_EQ(ledger.allocations, 0);
    CHECK_EQ(ledger.errors, 0);
    gm_backend_close(sim);
}

static inline gm_pool *
pool_on(int device)
{
    gm_pool *pool = NULL;

    CHECK_EQ(gm_pool_new(device, gm_upstream_of_backend(&table), &pool), GM_OK);
    return pool;
}

static inline gm_stats
sound_stats(gm_pool *pool)
{
    gm_stats stats = stats_of(pool);

    check_pool(pool);
    CHECK_EQ(stats.used_bytes + stats.free_bytes + stats.pending_bytes +
                 stats.captured_bytes,
             stats.total_bytes);
    return stats;
}

static inline void
check_empty(gm_pool *pool, size_t lost)
{
    gm_stats stats = sound_stats(pool);

    CHECK_EQ(stats.total_bytes, 0);
    CHECK_EQ(stats.used_bytes, 0);
    CHECK_EQ(stats.requested_bytes, 0);
    CHECK_EQ(stats.live_blocks, 0);
    CHECK_EQ(stats.free_blocks, 0);
    CHECK_EQ(stats.segments, 0);
    CHECK_EQ(stats.arenas, 0);
    CHECK_EQ(stats.lost_segments, lost);
    CHECK_EQ(stats.upstream_frees, 0);
    CHECK_EQ(stats.upstream_freed_bytes, 0);
    CHECK_EQ(stats.lost_bytes, stats.upstream_allocated_bytes);
}

/* ---- streams ---- */

typedef struct test_stream {
    gm_stream handle;
    gm_stream_use use;
} test_stream;

static inline test_stream
make_stream(int device, bool announced)
{
    test_stream s = {0};
    uint64_t id;

    CHECK_EQ(
        gm_backend_stream_create(&table, device, GM_STREAM_NON_BLOCKING, 0, &s.handle),
        GM_OK);
    CHECK_EQ(gm_backend_stream_id(&table, s.handle, &id), GM_OK);
    s.use = (gm_stream_use){
        .stream = s.handle,
        .key = gm_stream_key_of(s.handle, id),
        .device = device,
        .life = announced ? lives[device] : 0,
        .announced = announced,
    };
    return s;
}

static uintptr_t scratch[DEVICES];

/* Work that keeps the stream busy until somebody waits. */
static inline void
keep_busy(const test_stream *s)
{
    int device = s->use.device;

    if (!scratch[device]) {
        CHECK_EQ(
            gm_backend_mem_alloc(sim, device, GM_MEM_DEVICE, 512, &scratch[device]),
            GM_OK);
    }
    CHECK_EQ(gm_backend_set_async(sim, scratch[device], 0, 512, s->handle), GM_OK);
}

static inline void
use_on(holding h, const test_stream *s)
{
    CHECK_EQ(gm_pool_record_use(h.pool, h.block, h.generation, &s->use), GM_OK);
}

static inline void
drop_stream(const test_stream *s)
{
    CHECK_EQ(gm_backend_stream_synchronize(sim, s->handle), GM_OK);
    CHECK_EQ(gm_backend_stream_destroy(sim, s->handle), GM_OK);
}

static inline void
end_scratch(void)
{
    for (int i = 0; i < DEVICES; i++) {
        if (scratch[i]) {
            CHECK_EQ(gm_backend_mem_free(sim, i, GM_MEM_DEVICE, scratch[i]), GM_OK);
            scratch[i] = 0;
        }
    }
}

/* How many events exist. */
static inline size_t
events(void)
{
    gm_sim_ledger ledger;

    gm_sim_read_ledger(sim, &ledger);
    return ledger.events;
}

#endif
