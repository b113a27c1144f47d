/* SPDX-License-Identifier: MIT
 *
 * Shorthand for tests of a pool whose memory several streams use: a pool over the
 * simulated device, and streams as the pool knows them.
 */
#ifndef STREAMS_H
#define STREAMS_H

#include "device.h"
#include "holding.h"

#include "core/gm_pending.h"

#include <string.h>

typedef struct site {
    gm_backend *sim;
    gm_pool *pool;
} site;

/* A pool on device 0 of two simulated ones, each of `memory` bytes. */
static inline site
open_site(size_t memory)
{
    site s = {.sim = open_sim((gm_sim_options){.devices = 2, .memory = memory})};

    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(s.sim), &s.pool), GM_OK);
    return s;
}

/* Closes the pool and insists that everything comes back, and that the device saw dead
 * handles and bad addresses just so often. */
static inline void
close_site_after(site s, size_t errors)
{
    check_pool(s.pool);
    gm_pool_close(s.pool);
    for (int device = 0; device < 2; device++) {
        CHECK_EQ(gm_backend_device_synchronize(s.sim, device), GM_OK);
    }
    gm_pools_sweep();
    check_no_pool_is_left();
    check_ledger_is_empty(s.sim);
    CHECK_EQ(read_ledger(s.sim).errors, errors);
    gm_backend_close(s.sim);
}

static inline void
close_site(site s)
{
    close_site_after(s, 0);
}

/* What the pool is told of a stream. */
static inline gm_stream_use
use_of(const gm_backend *b, gm_stream stream, int device, bool announced)
{
    gm_stream_use use = {.stream = stream, .device = device, .announced = announced};
    uint64_t id = 0;

    CHECK_EQ(gm_backend_stream_id(b, stream, &id), GM_OK);
    use.key = gm_stream_key_of(stream, id);
    return use;
}

/* A new stream of a device, which does not wait for the default one. */
static inline gm_stream_use
new_stream(const gm_backend *b, int device, bool announced)
{
    gm_stream stream = 0;

    CHECK_EQ(gm_backend_stream_create(b, device, GM_STREAM_NON_BLOCKING, 0, &stream),
             GM_OK);
    return use_of(b, stream, device, announced);
}

/* Ends a stream as its owner does. */
static inline void
end_stream(const gm_backend *b, gm_stream_use use)
{
    if (use.announced) {
        gm_pools_end_stream(b, &use);
    }
    CHECK_EQ(gm_backend_stream_destroy(b, use.stream), GM_OK);
}

/* How often `name` stands in the device's log. */
static inline size_t
count_calls(const gm_backend *sim, const char *name)
{
    size_t count = 0;
    gm_sim_call call;

    for (size_t i = 0; gm_sim_log_get(sim, i, &call); i++) {
        count += strcmp(call.name, name) == 0;
    }
    return count;
}

static inline void
record(holding h, gm_stream_use use)
{
    CHECK_EQ(gm_pool_record_use(h.pool, h.block, h.generation, &use), GM_OK);
}

/* Queues a write of the block's first byte. */
static inline void
queue_write(const gm_backend *b, holding h, gm_stream_use use)
{
    CHECK_EQ(gm_backend_set_async(b, h.block->addr, 1, 1, use.stream), GM_OK);
}

static inline void
finish_stream(const gm_backend *b, gm_stream_use use)
{
    CHECK_EQ(gm_backend_stream_synchronize(b, use.stream), GM_OK);
}

#endif
