/* SPDX-License-Identifier: MIT
 *
 * How long single requests and frees take in the core, the rare slow ones included.
 *
 *     tail FILE PASSES
 *
 * FILE is a sequence as benchmarks/flat.py writes it; all that it takes it gives back.
 * It is replayed on the simulated device: once so that the pool holds what it needs,
 * once to see that no two live blocks overlap, then PASSES times with the processor's
 * clock read around each operation. Prints as JSON, for takes and gives, the
 * percentiles in nanoseconds; what reading the clock costs is taken off them and told.
 *
 * Whoever is interrupted measures the interruption. Every BATCH operations the thread's
 * count of involuntary context switches is read, outside the timed part; where it
 * changed, the samples of the whole batch are thrown away, and counted. Interrupts that
 * end without a switch stay in: the highest figure is an upper bound.
 */
#include "bench.h"

#include "backends/backends.h"

#include <string.h>
#include <sys/resource.h> // getrusage()
#include <time.h>
#include <x86intrin.h> // __rdtsc(), _mm_lfence()

enum {
    BATCH = 256,
    EMPTY = 100000, // readings of the clock with nothing in between
};

#define DEVICE_MEMORY ((size_t)128 << 30)

typedef struct header {
    char magic[8];
    uint64_t events;
    uint64_t places;
} header;

typedef struct event {
    uint64_t size;
    uint32_t place;
    uint16_t stream;
    uint16_t taking;
} event;

typedef struct sequence {
    header head;
    event *events;
} sequence;

typedef struct samples {
    uint32_t *ticks;
    size_t count;
    size_t discarded;
} samples;

static void *
room_for(size_t count, size_t size)
{
    void *room;

    bench_insist(count > 0, "there is nothing in it");
    room = calloc(count, size);
    bench_insist(room != NULL, "no host memory");
    return room;
}

static sequence
sequence_read(const char *path)
{
    sequence s;
    FILE *file = fopen(path, "rb");

    bench_insist(file != NULL, "cannot open the sequence");
    bench_insist(fread(&s.head, sizeof(s.head), 1, file) == 1 &&
                     memcmp(s.head.magic, "gmtrace1", 8) == 0,
                 "this is no sequence");
    s.events = room_for(s.head.events, sizeof(event));
    bench_insist(fread(s.events, sizeof(event), s.head.events, file) == s.head.events,
                 "the sequence is cut short");
    for (size_t i = 0; i < s.head.events; i++) {
        bench_insist(s.events[i].place < s.head.places, "there is no such place");
    }
    fclose(file);
    return s;
}

/* ---- passes that are not timed ---- */

static void
pass(const sequence *s, gm_pool *pool, bench_block *live)
{
    for (size_t i = 0; i < s->head.events; i++) {
        const event *e = &s->events[i];

        if (e->taking) {
            live[e->place] = bench_take(pool, e->size, e->stream);
        }
        else {
            bench_give(pool, live[e->place]);
        }
    }
}

/* The address ranges of live blocks, in order. */
typedef struct ranges {
    uintptr_t *starts;
    uintptr_t *ends;
    size_t count;
} ranges;

/* How many of them start below `addr`. */
static size_t
ranges_below(const ranges *r, uintptr_t addr)
{
    size_t low = 0, high = r->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (r->starts[middle] < addr) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low;
}

/* Moves the ranges from `from` on to where `to` is. */
static void
ranges_shift(ranges *r, size_t from, size_t to)
{
    size_t bytes = (r->count - from) * sizeof(uintptr_t);

    memmove(r->starts + to, r->starts + from, bytes);
    memmove(r->ends + to, r->ends + from, bytes);
}

static void
ranges_add(ranges *r, const gm_block *block)
{
    uintptr_t start = block->addr, end = block->addr + block->size;
    size_t at = ranges_below(r, start);

    bench_insist(at == 0 || r->ends[at - 1] <= start, "a block overlaps one below it");
    bench_insist(at == r->count || end <= r->starts[at],
                 "a block overlaps one above it");
    ranges_shift(r, at, at + 1);
    r->starts[at] = start;
    r->ends[at] = end;
    r->count++;
}

static void
ranges_remove(ranges *r, const gm_block *block)
{
    size_t at = ranges_below(r, block->addr);

    bench_insist(at < r->count && r->starts[at] == block->addr, "a live block moved");
    ranges_shift(r, at + 1, at);
    r->count--;
}

static void
verifying_pass(const sequence *s, gm_pool *pool, bench_block *live)
{
    ranges r = {
        .starts = room_for(s->head.places, sizeof(uintptr_t)),
        .ends = room_for(s->head.places, sizeof(uintptr_t)),
    };

    for (size_t i = 0; i < s->head.events; i++) {
        const event *e = &s->events[i];

        if (e->taking) {
            live[e->place] = bench_take(pool, e->size, e->stream);
            bench_insist(live[e->place].block->size >= e->size, "a block is too short");
            ranges_add(&r, live[e->place].block);
        }
        else {
            bench_insist(live[e->place].block != NULL, "a free of nothing");
            ranges_remove(&r, live[e->place].block);
            bench_give(pool, live[e->place]);
        }
    }
    bench_insist(r.count == 0, "something was not given back");
    free(r.starts);
    free(r.ends);
}

/* ---- timed passes ---- */

static inline uint64_t
ticks_now(void)
{
    uint64_t now;

    _mm_lfence();
    now = __rdtsc();
    _mm_lfence();
    return now;
}

static int64_t
nanoseconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static long
switches(void)
{
    struct rusage usage;

    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

/* Events `from` to `to`, their ticks in by[e->taking]. */
static void
timed_batch(const sequence *s,
            gm_pool *pool,
            bench_block *live,
            size_t from,
            size_t to,
            samples by[2])
{
    for (size_t i = from; i < to; i++) {
        const event *e = &s->events[i];
        bench_block *place = &live[e->place];
        samples *into = &by[e->taking];
        uint64_t begun, spent;

        if (e->taking) {
            begun = ticks_now();
            *place = bench_take(pool, e->size, e->stream);
            spent = ticks_now() - begun;
        }
        else {
            begun = ticks_now();
            bench_give(pool, *place);
            spent = ticks_now() - begun;
        }
        into->ticks[into->count++] = spent > UINT32_MAX ? UINT32_MAX : (uint32_t)spent;
    }
}

static void
timed_pass(const sequence *s, gm_pool *pool, bench_block *live, samples by[2])
{
    for (size_t from = 0; from < s->head.events; from += BATCH) {
        size_t to = from + BATCH < s->head.events ? from + BATCH : s->head.events;
        size_t counts[2] = {by[0].count, by[1].count};
        long before = switches();

        timed_batch(s, pool, live, from, to, by);
        if (switches() != before) {
            for (int k = 0; k < 2; k++) {
                by[k].discarded += by[k].count - counts[k];
                by[k].count = counts[k];
            }
        }
    }
}

/* ---- telling ---- */

static int
compare_ticks(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* What two readings of the clock cost, in ticks: the median. */
static uint32_t
empty_ticks(void)
{
    uint32_t *ticks = room_for(EMPTY, sizeof(*ticks));
    uint32_t found;

    for (size_t i = 0; i < EMPTY; i++) {
        uint64_t begun = ticks_now();

        ticks[i] = (uint32_t)(ticks_now() - begun);
    }
    qsort(ticks, EMPTY, sizeof(*ticks), compare_ticks);
    found = ticks[EMPTY / 2];
    free(ticks);
    return found;
}

/* The sample that `share` of all do not exceed, in nanoseconds. */
static double
percentile(const samples *found, double share, uint32_t empty, double tick)
{
    size_t at = (size_t)(share * (double)(found->count - 1));
    uint32_t ticks = found->ticks[at];

    return (double)(ticks > empty ? ticks - empty : 0) * tick;
}

static void
tell(const char *name, samples *found, uint32_t empty, double tick)
{
    static const struct {
        const char *name;
        double share;
    } points[] = {{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1.0}};

    bench_insist(found->count > 0, "every sample was interrupted");
    qsort(found->ticks, found->count, sizeof(*found->ticks), compare_ticks);
    printf("\"%s\": {\"samples\": %zu, \"discarded\": %zu", name, found->count,
           found->discarded);
    for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        printf(", \"%s\": %.1f", points[i].name,
               percentile(found, points[i].share, empty, tick));
    }
    printf("}, ");
}

static void
measure(const sequence *s, gm_pool *pool, bench_block *live, size_t passes)
{
    size_t most = passes * s->head.events;
    uint32_t *room = room_for(2 * most, sizeof(*room));
    samples by[2] = {{.ticks = room}, {.ticks = room + most}};
    int64_t begun;
    uint64_t ticks;
    double tick;
    uint32_t empty = empty_ticks();

    begun = nanoseconds_now();
    ticks = ticks_now();
    for (size_t i = 0; i < passes; i++) {
        timed_pass(s, pool, live, by);
    }
    ticks = ticks_now() - ticks;
    tick = (double)(nanoseconds_now() - begun) / (double)ticks;
    printf("{");
    tell("take", &by[1], empty, tick);
    tell("give", &by[0], empty, tick);
    printf("\"clock_ns\": %.1f}\n", (double)empty * tick);
    free(room);
}

int
main(int argc, char **argv)
{
    gm_sim_options options = {.devices = 1, .memory = DEVICE_MEMORY};
    size_t passes = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    gm_backend *backend = NULL;
    gm_pool *pool = NULL;
    bench_block *live;
    gm_sim_ledger ledger;
    sequence s;

    bench_insist(passes > 0, "usage: tail FILE PASSES");
    s = sequence_read(argv[1]);
    live = room_for(s.head.places, sizeof(*live));
    bench_insist(gm_backend_sim_open(&options, &backend) == GM_OK, "no device");
    bench_insist(gm_pool_new(0, gm_upstream_of_backend(backend), &pool) == GM_OK,
                 "no pool");
    pass(&s, pool, live);
    verifying_pass(&s, pool, live);
    measure(&s, pool, live, passes);
    bench_close(pool);
    gm_sim_read_ledger(backend, &ledger);
    bench_insist(ledger.allocations == 0 && ledger.errors == 0, "the device lost some");
    gm_backend_close(backend);
    free(live);
    free(s.events);
    return 0;
}
