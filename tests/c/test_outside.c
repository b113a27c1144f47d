/* SPDX-License-Identifier: MIT
 *
 * Want of memory that no pool was asked for: what the pools hold of the device, what
 * anybody else does, and the cause; the numbers worked out by hand.
 */
#include "device.h"
#include "holding.h"
#include "ledger.h"
#include "streams.h"

#include "core/gm_capture.h"

/* A device of 64 MiB: 4 somebody else's, 8 the requester's, two pools with 12 in two
 * segments, of which 5 are idle, and 20; 20 are free. */
typedef struct bench {
    gm_backend *sim;
    gm_backend *fault;
    gm_pool *first;
    gm_pool *second;
    holding held[3];
    uintptr_t own;
} bench;

static void
bench_init(bench *b)
{
    b->sim =
        open_sim((gm_sim_options){.devices = 2, .memory = 64 * MIB, .others = 4 * MIB});
    CHECK_EQ(gm_backend_fault_open(b->sim, &b->fault), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b->sim), &b->first), GM_OK);
    CHECK_EQ(gm_pool_new(0, gm_upstream_of_backend(b->sim), &b->second), GM_OK);
    b->own = take(b->sim, GM_MEM_DEVICE, 8 * MIB);
    b->held[0] = take_bytes(b->first, 5 * MIB);
    b->held[1] = take_bytes(b->first, 7 * MIB);
    let_go(b->held[0]);
    b->held[2] = take_bytes(b->second, 20 * MIB);
}

static void
bench_fini(bench *b)
{
    give(b->sim, GM_MEM_DEVICE, b->own);
    let_go(b->held[1]);
    let_go(b->held[2]);
    gm_pool_close(b->first);
    gm_pool_close(b->second);
    check_no_pool_is_left();
    gm_backend_close(b->fault);
    check_ledger_is_empty(b->sim);
    gm_backend_close(b->sim);
}

/* Of a request for `size` bytes by one who holds `total`, of which 2 MiB cached. */
static gm_shortage
explain(const gm_backend *b, gm_status status, size_t size, size_t total)
{
    gm_shortage s = gm_shortage_of(size);

    s.device = 0;
    s.rounded_size = size;
    s.total_bytes = total;
    s.cached_bytes = 2 * MIB;
    gm_explain_outside(b, status, &s);
    CHECK_EQ(s.size, size);
    CHECK_EQ(s.total_bytes, total);
    return s;
}

TEST(explain_outside_says_who_has_the_device)
{
    bench b;
    gm_shortage s;

    bench_init(&b);
    s = explain(b.sim, GM_ERR_OUT_OF_MEMORY, 30 * MIB, 8 * MIB);
    CHECK_EQ(s.cause, GM_CAUSE_OTHER_POOL);
    CHECK_EQ(s.device_free, 20 * MIB);
    CHECK_EQ(s.device_total, 64 * MIB);
    CHECK_EQ(s.outside_bytes, 36 * MIB);
    CHECK_EQ(s.sibling_bytes, 32 * MIB);
    CHECK_EQ(s.sibling_idle_bytes, 5 * MIB);
    CHECK_EQ(explain(b.sim, GM_ERR_OUT_OF_MEMORY, 22 * MIB, 8 * MIB).cause,
             GM_CAUSE_FRAGMENTED); // with what is cached it would do
    CHECK_EQ(explain(b.sim, GM_ERR_OUT_OF_MEMORY, 65 * MIB, 8 * MIB).cause,
             GM_CAUSE_TOO_LARGE);
    CHECK_EQ(explain(b.sim, GM_ERR_LIMIT, 30 * MIB, 8 * MIB).cause, GM_CAUSE_LIMIT);
    bench_fini(&b);
}

/* What is not known is nobody's guess. */
TEST(explain_outside_where_nobody_tells)
{
    const gm_stream_use stream = {.stream = 64, .key = 9, .announced = true};
    gm_capture *capture = NULL;
    bench b;
    gm_shortage s;

    bench_init(&b);
    s = explain(b.sim, GM_ERR_OUT_OF_MEMORY, 30 * MIB, GM_UNKNOWN);
    CHECK_EQ(s.cause, GM_CAUSE_FULL);
    CHECK_EQ(s.outside_bytes, 44 * MIB); // of all but nobody
    CHECK_EQ(s.sibling_bytes, 32 * MIB);

    CHECK_EQ(gm_fault_plan(b.fault, "mem_info", 1, 1, GM_DEVICE_ERROR(700)), GM_OK);
    s = explain(b.fault, GM_ERR_OUT_OF_MEMORY, 30 * MIB, 8 * MIB);
    CHECK_EQ(s.cause, GM_CAUSE_FULL);
    CHECK_EQ(s.device_free, GM_UNKNOWN);
    CHECK_EQ(s.outside_bytes, GM_UNKNOWN);
    CHECK_EQ(s.sibling_bytes, 32 * MIB);

    CHECK_EQ(gm_capture_begin(&stream, GM_CAPTURE_MODE_RELAXED, &capture), GM_OK);
    gm_sim_log_start(b.sim);
    s = explain(b.sim, GM_ERR_CAPTURING, 30 * MIB, 8 * MIB);
    CHECK_EQ(gm_sim_log_count(b.sim), 0); // a question could spoil the recording
    gm_sim_log_stop(b.sim);
    CHECK_EQ(s.cause, GM_CAUSE_CAPTURE);
    CHECK_EQ(s.device_free, GM_UNKNOWN);
    gm_capture_release(capture);
    bench_fini(&b);
}

static gm_status (*take_plain)(void *context, int device, size_t size, gm_piece *out);

static gm_status
take_pooled(void *context, int device, size_t size, gm_piece *out)
{
    gm_status status = take_plain(context, device, size, out);

    out->pooled = true;
    return status;
}

/* Memory of a pool that is not on the device counts for no more than there is of it,
 * that of another pool only once. */
TEST(explain_outside_of_memory_that_lies_elsewhere)
{
    gm_backend *sim = open_sim(
        (gm_sim_options){.devices = 1, .memory = 64 * MIB, .others = 50 * MIB});
    ledger books;
    gm_upstream over;
    gm_pool *managed, *pool = NULL;
    holding held, other;
    gm_shortage s;

    ledger_init(&books);
    over = ledger_upstream(&books);
    take_plain = over.take;
    over.take = take_pooled;
    CHECK_EQ(gm_pool_new(0, over, &pool), GM_OK);
    books.pools++;
    held = take_bytes(pool, 30 * MIB);
    let_go(take_bytes(pool, 31 * MIB));
    s = explain(sim, GM_ERR_OUT_OF_MEMORY, 30 * MIB, 0);
    CHECK_EQ(s.sibling_bytes, 0);
    CHECK_EQ(s.sibling_idle_bytes, 0);
    CHECK_EQ(s.cause, GM_CAUSE_OTHER_PROCESS);

    managed = ledger_pool(&books, 0);
    other = take_bytes(managed, 100 * MIB);
    let_go(take_bytes(managed, 60 * MIB));
    s = explain(sim, GM_ERR_OUT_OF_MEMORY, 30 * MIB, 0);
    CHECK_EQ(s.outside_bytes, 50 * MIB);
    CHECK_EQ(s.sibling_bytes, 50 * MIB);
    CHECK_EQ(s.sibling_idle_bytes, 50 * MIB);
    let_go(held);
    let_go(other);
    gm_pool_close(pool);
    gm_pool_close(managed);
    ledger_fini(&books);
    gm_backend_close(sim);
}

TEST(explain_begins_with_nothing_known)
{
    gm_shortage s = gm_shortage_of(77);

    CHECK_EQ(s.device, -1);
    CHECK_EQ(s.size, 77);
    CHECK_EQ(s.cause, GM_CAUSE_UNKNOWN);
#define UNKNOWN(name, text) CHECK_EQ(s.name, GM_UNKNOWN);
    GM_SHORTAGE_LIST(UNKNOWN)
#undef UNKNOWN
}
