/* SPDX-License-Identifier: MIT
 *
 * A libFuzzer target over the core: the input is a program of pool operations, run on a
 * small simulated device with the fault wrapper around it.
 *
 *   make fuzz                  ten minutes from the corpus in tests/fuzz/corpus
 *   make fuzz FUZZ_SECONDS=60
 *
 * The first byte says of which kind the pools are: plain, with growth, mapped by page,
 * or with rules for large requests. Each operation is one byte for what and which pool,
 * and operands as it needs them; when the input ends in the middle, operands are 0.
 * What is handed out is written by the device, so that it would notice if it went too
 * early. Held against: the pool's own invariants after each operation, counters summed
 * up from what is held here, live blocks that never overlap, and a device that has
 * everything back in the end.
 *
 * Two pools on one device, so that one's want of memory reaches into the other, and
 * streams that use memory of each other, end, and are recorded; now and then the device
 * is reset. One thread: races are the business of tests/c/test_threads.c.
 */
#include "backends/backends.h"
#include "core/gm_capture.h"
#include "core/gm_lost.h"
#include "core/gm_pending.h"
#include "core/gm_pool.h"
#include "core/gm_size.h"

#include <stdio.h>
#include <stdlib.h>

#define HELD_MAX 48
#define POOLS 2
#define STREAMS 3                      // the first is the default one
#define DEVICE_BYTES ((size_t)8 << 20) // four pages

/* As assert(), but never compiled out. */
#define MUST(condition)                                                                \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);  \
            abort();                                                                   \
        }                                                                              \
    } while (0)

typedef struct program {
    const uint8_t *at;
    size_t left;
} program;

typedef enum kind {
    PLAIN,
    GROWING,
    PAGED,
    BY_RULES,
} kind;

typedef struct held {
    gm_block *block;
    uint32_t generation;
    size_t size; // as asked
    size_t used; // as given
    uintptr_t addr;
    int pool;
    bool voided; // given back by address, or gone with the device
} held;

static gm_backend *sim;
static gm_backend *device; // the wrapper around it
static gm_pool *pools[POOLS];
static kind kinds[POOLS];
static held helds[HELD_MAX];
static size_t held_count;
static gm_stream_use streams[STREAMS];
static gm_capture
    *captures[STREAMS]; // of each stream's last recording, if not released

static unsigned
next(program *p)
{
    if (p->left == 0) {
        return 0;
    }
    p->left--;
    return *p->at++;
}

static size_t
next_size(program *p)
{
    unsigned low = next(p);
    unsigned kind = low & 3;

    low = (low >> 2) + (next(p) << 6);
    switch (kind) {
    case 0:
        return low; // bytes, also none
    case 1:
        return (size_t)(low & 63) * GM_UNIT;
    case 2:
        return (size_t)low * GM_UNIT; // up to 8 MiB: all that there is
    default:
        return low & 1 ? SIZE_MAX - (low >> 1) : GM_SIZE_MAX - (low >> 1);
    }
}

/* ---- what must hold ---- */

static void
check_pool(int index)
{
    gm_stats stats;
    size_t requested = 0, used = 0, live = 0;
    const char *broken = gm_pool_check(pools[index]);

    if (broken) {
        fprintf(stderr, "pool %d: %s\n", index, broken);
        abort();
    }
    for (size_t i = 0; i < held_count; i++) {
        if (helds[i].pool == index && !helds[i].voided) {
            requested += helds[i].size;
            used += helds[i].used;
            live++;
        }
    }
    MUST(gm_pool_read_stats(pools[index], &stats) == GM_OK);
    MUST(stats.requested_bytes == requested);
    MUST(stats.used_bytes == used);
    MUST(stats.live_blocks == live);
    MUST(stats.used_bytes + stats.free_bytes + stats.pending_bytes +
             stats.captured_bytes + stats.pending_release_bytes ==
         stats.total_bytes);
    MUST(stats.peak_total_bytes >= stats.total_bytes);
    MUST(stats.peak_used_bytes >= stats.used_bytes);
}

static void
check_apart(const held *new)
{
    for (size_t i = 0; i + 1 < held_count; i++) {
        const held *old = &helds[i];

        if (!old->voided) {
            MUST(new->addr + new->used <= old->addr ||
                 old->addr + old->used <= new->addr);
        }
    }
}

/* ---- operations ---- */

static void
run_malloc(program *p, int pool, const gm_stream_use *by)
{
    gm_request request = {.size = next_size(p), .key = by->key, .client = 0};
    gm_rescue rescue = {.by = by};
    gm_block *block = NULL;
    gm_status status;
    held *h = &helds[held_count];

    if (held_count == HELD_MAX) {
        return;
    }
    status = gm_pool_malloc(pools[pool], &request, &block);
    if (status == GM_MISS) {
        status = gm_pool_malloc_slow(pools[pool], &request, &rescue, &block);
    }
    if (status != GM_OK) {
        MUST(block == NULL);
        return;
    }
    *h = (held){
        .block = block,
        .generation = block->generation,
        .size = request.size,
        .used = block->size,
        .addr = block->addr,
        .pool = pool,
    };
    MUST(h->addr && h->addr % GM_UNIT == 0);
    MUST(kinds[pool] == BY_RULES ? h->used >= gm_size_round(h->size)
                                 : h->used == gm_size_round(h->size));
    held_count++;
    check_apart(h);
    MUST(gm_backend_set_async(sim, h->addr, 1, request.size, by->stream) == GM_OK);
}

static void
run_free(size_t index)
{
    held h = helds[index];

    helds[index] = helds[--held_count];
    gm_pool_free(pools[h.pool], h.block, h.generation);
}

static void
run_free_address(program *p, int pool)
{
    uintptr_t addr = next(p);
    held *h = held_count ? &helds[addr % held_count] : NULL;

    if (!h || h->voided || h->pool != pool) {
        MUST(gm_pool_free_address(pools[pool], addr) == GM_ERR_NOT_OWNED);
        return;
    }
    MUST(gm_pool_free_address(pools[pool], h->addr) == GM_OK);
    h->voided = true;
}

static void
make_pool(int index)
{
    static const gm_large_rules rules = {
        .max_split_size = 1 << 20,
        .max_non_split_rounding = 1 << 19,
        .large_segment_size = 1 << 21,
    };
    gm_pool **pool = &pools[index];

    MUST(gm_pool_new(0, gm_upstream_of_backend(device), pool) == GM_OK);
    switch (kinds[index]) {
    case PLAIN:
        break;
    case GROWING:
        gm_pool_set_growth(*pool, 64 * GM_UNIT);
        break;
    case PAGED:
        MUST(gm_pool_set_paging(*pool) == GM_OK);
        break;
    case BY_RULES:
        gm_pool_set_large_rules(*pool, &rules);
        break;
    }
}

/* The owner lets go; what is held goes back to a pool that is closed already. */
static void
run_close(int pool)
{
    gm_pool_close(pools[pool]);
    for (size_t i = held_count; i-- > 0;) {
        if (helds[i].pool == pool) {
            run_free(i);
        }
    }
    make_pool(pool);
}

/* ---- streams, recordings, resets ---- */

static void
make_stream(int index)
{
    gm_stream_use *use = &streams[index];
    uint64_t id = 0;

    *use = (gm_stream_use){.stream = GM_STREAM_LEGACY, .announced = true};
    MUST(gm_backend_device_incarnation(sim, 0, &use->life) == GM_OK);
    if (index > 0) {
        MUST(gm_backend_stream_create(sim, 0, GM_STREAM_NON_BLOCKING, 0,
                                      &use->stream) == GM_OK);
        MUST(gm_backend_stream_id(sim, use->stream, &id) == GM_OK);
        use->key = gm_stream_key_of(use->stream, id);
    }
}

static void
release_capture(int index)
{
    if (captures[index]) {
        gm_capture_release(captures[index]);
        captures[index] = NULL;
    }
}

static void
end_stream(int index)
{
    if (index > 0) {
        release_capture(index);
        gm_pools_end_stream(device, &streams[index]);
        MUST(gm_backend_stream_destroy(sim, streams[index].stream) == GM_OK);
    }
}

/* Notes that a held block is used on the stream, and queues such a use. */
static void
run_use(program *p, const gm_stream_use *by)
{
    held *h = held_count ? &helds[next(p) % held_count] : NULL;

    if (!h) {
        return;
    }
    gm_status status = gm_pool_record_use(pools[h->pool], h->block, h->generation, by);
    if (h->voided) {
        MUST(status == GM_ERR_NOT_OWNED);
        return;
    }
    MUST(status == GM_OK);
    MUST(gm_backend_set_async(sim, h->addr, 1, 1, by->stream) == GM_OK);
}

static void
run_capture(program *p, int index)
{
    gm_capture **capture = &captures[index];

    if (!*capture) {
        MUST(gm_capture_begin(&streams[index], (gm_capture_mode)(next(p) % 3),
                              capture) == GM_OK);
    }
    else if (next(p) & 1) {
        gm_capture_end(*capture);
    }
    else {
        MUST(gm_capture_launched(*capture, &streams[next(p) % STREAMS]) == GM_OK);
    }
}

/* What is held is gone, but for pages, which are the process's; so are the streams, but
 * for the default one. */
static void
run_reset(void)
{
    MUST(gm_backend_device_reset(sim, 0) == GM_OK);
    gm_pools_device_lost(device, 0);
    for (size_t i = 0; i < held_count; i++) {
        helds[i].voided |= kinds[helds[i].pool] != PAGED;
    }
    for (int i = 0; i < STREAMS; i++) {
        release_capture(i);
        make_stream(i);
    }
}

static void
run_fault(program *p)
{
    static const char *const slots[] = {
        "mem_alloc",  "vm_create",    "vm_map",       "vm_set_access",
        "vm_reserve", "event_record", "event_create", "stream_wait_event",
    };
    unsigned nth = next(p);

    MUST(gm_fault_plan(device, slots[nth / 8 % 8], 1 + nth % 4, 1 + next(p) % 3,
                       GM_ERR_OUT_OF_MEMORY) == GM_OK);
}

static void
run_rare(program *p, int pool, int stream)
{
    switch (next(p) % 9) {
    case 0:
        run_close(pool);
        break;
    case 1:
    case 2:
        run_use(p, &streams[stream]);
        break;
    case 3:
        MUST(gm_backend_stream_synchronize(sim, streams[stream].stream) == GM_OK);
        break;
    case 4:
        end_stream(stream);
        make_stream(stream);
        break;
    case 5:
        run_capture(p, stream);
        break;
    case 6:
        release_capture(stream);
        break;
    case 7:
        MUST(gm_pool_set_reserve(pools[pool], next(p) * 64 * GM_UNIT) == GM_OK);
        break;
    default:
        run_reset();
    }
}

static void
run_one(program *p)
{
    unsigned what = next(p);
    int pool = (int)(what >> 4 & 1);
    int stream = (int)((what >> 5) % STREAMS);

    switch (what & 15) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
        run_malloc(p, pool, &streams[stream]);
        break;
    case 6:
    case 7:
    case 8:
    case 9:
        if (held_count) {
            run_free(next(p) % held_count);
        }
        break;
    case 10:
        run_free_address(p, pool);
        break;
    case 11:
        gm_pool_trim(pools[pool], next(p) * 64 * GM_UNIT);
        break;
    case 12:
        gm_pool_release_idle_of(pools[pool], streams[stream].key);
        break;
    case 13:
        MUST(gm_pool_set_limit(pools[pool], next(p) * 64 * GM_UNIT) == GM_OK);
        break;
    case 14:
        run_fault(p);
        break;
    default:
        run_rare(p, pool, stream);
    }
}

/* ---- libFuzzer's two entry points ---- */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const gm_sim_options options = {.devices = 1, .memory = DEVICE_BYTES};

    (void)argc;
    (void)argv;
    MUST(gm_backend_sim_open(&options, &sim) == GM_OK);
    MUST(gm_backend_fault_open(sim, &device) == GM_OK);
    return 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    program p = {data, size};
    unsigned which = next(&p);
    gm_sim_ledger ledger;

    gm_fault_clear(device);
    for (int i = 0; i < POOLS; i++) {
        kinds[i] = (kind)(which >> 2 * i & 3);
        make_pool(i);
    }
    for (int i = 0; i < STREAMS; i++) {
        make_stream(i);
    }
    while (p.left) {
        run_one(&p);
        for (int i = 0; i < POOLS; i++) {
            check_pool(i);
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        release_capture(i);
    }
    for (int i = 0; i < POOLS; i++) {
        run_close(i);
        gm_pool_close(pools[i]);
    }
    for (int i = 0; i < STREAMS; i++) {
        end_stream(i);
    }
    MUST(gm_backend_device_synchronize(sim, 0) == GM_OK);
    gm_pools_sweep();
    gm_sim_read_ledger(sim, &ledger);
    MUST(ledger.allocations == 0 && ledger.errors == 0 && ledger.pending == 0);
    MUST(ledger.streams == 0 && ledger.events == 0 && ledger.faults == 0);
    MUST(ledger.reservations == 0 && ledger.handles == 0 && ledger.mappings == 0);
    return 0;
}
