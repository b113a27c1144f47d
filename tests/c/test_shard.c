/* SPDX-License-Identifier: MIT
 *
 * Streams that do not meet: threads on streams of their own, while others free their
 * blocks, read, trim and record graphs; then what shards do one by one, where the pool
 * has them. That nobody can tell a pool with shards from one without is for the tests
 * of the pool to say, which run with both.
 */
#include "streams.h"

#include "dice.h"
#include "ledger.h"

#include "core/gm_capture.h"
#include "core/gm_shard_private.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* ---- threads on their own streams ---- */

enum {
    WORKERS = 4,
    KEPT = 24, // blocks that a worker has at once
    MAILS = 8,
};

typedef struct mail {
    holding held;
    size_t size;
    unsigned char mark;
} mail;

typedef struct office {
    site at;
    _Atomic(mail *) boxes[WORKERS][MAILS]; // for others to give back
    atomic_size_t taken;
    atomic_bool done;
} office;

typedef struct worker {
    office *o;
    gm_stream_use stream;
    size_t number;
} worker;

static void
end_mail(mail *m)
{
    const unsigned char *bytes = (const unsigned char *)m->held.block->addr;

    CHECK_EQ(bytes[0], m->mark);
    CHECK_EQ(bytes[m->size - 1], m->mark);
    let_go(m->held);
    free(m);
}

static mail *
take_mail(worker *w, dice *d)
{
    mail *m = malloc(sizeof *m);

    CHECK(m != NULL);
    /* A few sizes, so that they are there, are cut off larger ones, and are missing. */
    m->size = UNITS(1 + dice_below(d, 4) * dice_below(d, 12)) - dice_below(d, 100);
    m->mark = (unsigned char)dice_below(d, 256);
    m->held = take_for(w->o->at.pool, m->size, w->stream.key);
    memset((void *)m->held.block->addr, m->mark, m->size);
    atomic_fetch_add(&w->o->taken, 1);
    return m;
}

static void *
work(void *context)
{
    worker *w = context;
    dice d = {w->number + 1};
    size_t rounds = 40000 / (size_t)harness_slowness();
    mail *kept[KEPT] = {0};

    for (size_t i = 0; i < rounds; i++) {
        size_t at = dice_below(&d, KEPT);

        if (kept[at] && dice_below(&d, 8) == 0) { // for another thread to give back
            kept[at] = atomic_exchange(
                &w->o->boxes[dice_below(&d, WORKERS)][dice_below(&d, MAILS)], kept[at]);
        }
        if (kept[at]) {
            end_mail(kept[at]);
        }
        kept[at] = dice_below(&d, 4) == 0 ? NULL : take_mail(w, &d);
        if (dice_below(&d, 4) == 0) {
            end_mail(take_mail(w, &d)); // the same again, at times
        }
    }
    for (size_t i = 0; i < KEPT; i++) {
        if (kept[i]) {
            end_mail(kept[i]);
        }
    }
    return NULL;
}

static void
rest(void)
{
    struct timespec pause = {.tv_nsec = 200000};

    (void)nanosleep(&pause, NULL);
}

static void *
look(void *context)
{
    office *o = context;

    while (!atomic_load(&o->done)) {
        gm_stats s = stats_of(o->at.pool);

        CHECK_EQ(s.used_bytes + s.free_bytes + s.pending_bytes + s.captured_bytes,
                 s.total_bytes);
        CHECK(s.peak_used_bytes >= s.used_bytes && s.peak_total_bytes >= s.total_bytes);
        check_pool(o->at.pool);
        rest();
        (void)gm_pool_release_idle(o->at.pool);
        rest();
    }
    return NULL;
}

/* Graphs that come and go; while one is recorded every request takes the slow way, and
 * its own blocks are used on another stream. */
static void *
record_graphs(void *context)
{
    worker *w = context;
    gm_pool *pool = w->o->at.pool;
    gm_stream_use other = new_stream(w->o->at.sim, 0, true);

    while (!atomic_load(&w->o->done)) {
        holding held = take_for(pool, UNITS(4), w->stream.key), h = {0};
        gm_capture *capture = NULL;

        record(held, other);
        let_go(held);
        let_go(take_for(pool, UNITS(8), w->stream.key));
        CHECK_EQ(gm_capture_begin(&w->stream, GM_CAPTURE_MODE_RELAXED, &capture),
                 GM_OK);
        gm_status status = try_hold(pool, UNITS(2), w->stream.key, &h);

        CHECK(status == GM_OK || status == GM_ERR_CAPTURING); // trimmed just before
        gm_capture_end(capture);
        atomic_fetch_add(&w->o->taken, status == GM_OK ? 3 : 2);
        if (status == GM_OK) {
            let_go(h);
        }
        gm_capture_release(capture);
        rest();
    }
    end_stream(w->o->at.sim, other);
    return NULL;
}

TEST(shard_threads_on_their_own_streams)
{
    static office o;
    pthread_t threads[WORKERS + 2];
    worker workers[WORKERS + 1];
    gm_stats s;

    o.at = open_site(256 * MIB);
    for (size_t i = 0; i < WORKERS + 1; i++) {
        workers[i] = (worker){&o, new_stream(o.at.sim, 0, true), i};
    }
    CHECK_EQ(pthread_create(&threads[WORKERS], NULL, look, &o), 0);
    CHECK_EQ(
        pthread_create(&threads[WORKERS + 1], NULL, record_graphs, &workers[WORKERS]),
        0);
    for (size_t i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (size_t i = 0; i < WORKERS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    }
    atomic_store(&o.done, true);
    CHECK_EQ(pthread_join(threads[WORKERS], NULL), 0);
    CHECK_EQ(pthread_join(threads[WORKERS + 1], NULL), 0);
    for (size_t i = 0; i < WORKERS * MAILS; i++) {
        mail *m = atomic_load(&o.boxes[i / MAILS][i % MAILS]);

        if (m) {
            end_mail(m);
        }
    }
    CHECK_EQ(gm_backend_device_synchronize(o.at.sim, 0), GM_OK);
    (void)gm_pool_settle_all(o.at.pool);
    s = stats_of(o.at.pool);
    CHECK_EQ(s.live_blocks, 0);
    CHECK_EQ(s.used_bytes, 0);
    CHECK_EQ(s.requested_bytes, 0);
    CHECK_EQ(s.hits + s.misses, atomic_load(&o.taken));
    for (size_t i = 0; i < WORKERS + 1; i++) {
        end_stream(o.at.sim, workers[i].stream);
    }
    close_site(o.at);
}

/* ---- memory that passes to another stream ---- */

/* A block that is live while its segment becomes another stream's returns there. */
TEST(shard_frees_where_the_memory_is_now)
{
    ledger books;
    gm_pool *pool;
    holding low, high;
    gm_arena *into;

    ledger_init(&books);
    pool = ledger_pool(&books, 0);
    let_go(take_for(pool, UNITS(2), 1));
    low = take_for(pool, UNITS(1), 1);
    high = take_for(pool, UNITS(1), 1);
    gm_pool_lock(pool);
    into = gm_pool_pin_arena_locked(pool, 2);
    CHECK(into != NULL);
    gm_arena_take_over(&pool->arenas, low.block->segment, into);
    gm_arena_unpin(&pool->arenas, into);
    gm_pool_unlock(pool);
    let_go(high);
    let_go(low);
    check_pool(pool);
    CHECK_EQ(stats_of(pool).merges, 1);
    high = take_for(pool, UNITS(2), 2);
    check_place(high, 0, 0);
    let_go(high);
    gm_pool_close(pool);
    ledger_fini(&books);
}

#if GM_SHARDS

/* ---- what a shard does alone ---- */

typedef struct bench {
    ledger books;
    gm_pool *pool;
} bench;

enum {
    A = 1, // keys of streams in different shards
    B = 2,
    SAME_AS_A = A + GM_SHARD_COUNT,
};

/* Both streams have `units` cached. */
static void
bench_init(bench *b, size_t units)
{
    ledger_init(&b->books);
    b->pool = ledger_pool(&b->books, 0);
    let_go(take_for(b->pool, UNITS(units), A));
    let_go(take_for(b->pool, UNITS(units), B));
    CHECK_EQ(gm_pool_reset_peaks(b->pool), GM_OK);
}

static void
bench_fini(bench *b)
{
    check_pool(b->pool);
    CHECK_EQ(stats_of(b->pool).live_blocks, 0);
    gm_pool_close(b->pool);
    ledger_fini(&b->books);
}

static gm_status
ask(bench *b, size_t size, gm_stream_key key, gm_block **out)
{
    const gm_request request = {.size = size, .key = key};

    return gm_pool_malloc(b->pool, &request, out);
}

TEST(shard_a_hit_takes_no_other_lock)
{
    bench b;
    gm_block *block = NULL;
    gm_shard *shard;

    bench_init(&b, 8);
    shard = gm_pool_shard(b.pool, A);
    gm_lock_acquire(&b.pool->lock);
    gm_lock_acquire(&shard->lock);
    CHECK_EQ(ask(&b, UNITS(3), A, &block), GM_BUSY);
    CHECK_EQ(ask(&b, UNITS(3), SAME_AS_A, &block), GM_BUSY);
    CHECK_EQ(ask(&b, UNITS(3), B, &block), GM_OK);
    let_go(hold(b.pool, block));
    CHECK_EQ(ask(&b, UNITS(1), B, &block), GM_OK);
    let_go(hold(b.pool, block));
    gm_lock_release(&shard->lock);
    CHECK_EQ(ask(&b, UNITS(3), A, &block), GM_OK);
    let_go(hold(b.pool, block));
    CHECK_EQ(ask(&b, UNITS(3), SAME_AS_A, &block), GM_MISS); // it has no arena
    CHECK_EQ(ask(&b, UNITS(3), 40, &block), GM_MISS);        // nor a shard
    gm_lock_release(&b.pool->lock);
    CHECK_EQ(stats_of(b.pool).hits, 3);
    bench_fini(&b);
}

TEST(shard_a_use_on_its_own_stream_takes_no_other_lock)
{
    site s = open_site(64 * MIB);
    gm_stream_use own = new_stream(s.sim, 0, true), other = new_stream(s.sim, 0, true);
    holding h = take_for(s.pool, UNITS(1), own.key);

    gm_lock_acquire(&s.pool->lock);
    record(h, own);
    gm_lock_release(&s.pool->lock);
    CHECK_EQ(h.block->state, GM_BLOCK_LIVE);
    record(h, other);
    CHECK_EQ(h.block->state, GM_BLOCK_NOTED);
    gm_lock_acquire(&s.pool->lock);
    record(h, own); // still
    gm_lock_release(&s.pool->lock);
    let_go(h);
    end_stream(s.sim, own);
    end_stream(s.sim, other);
    close_site(s);
}

/* Postponed by a busy shard, its node stands in a list: where it was handed out is not
 * to be read there any more. */
TEST(shard_a_use_of_what_is_given_back_just_now)
{
    site s = open_site(64 * MIB);
    gm_stream_use own = new_stream(s.sim, 0, true), other = new_stream(s.sim, 0, true);
    holding first = take_for(s.pool, UNITS(1), own.key);
    holding h = take_for(s.pool, UNITS(1), own.key);
    gm_shard *shard = gm_pool_shard(s.pool, own.key);

    gm_lock_acquire(&shard->lock);
    let_go(first);
    let_go(h);
    gm_lock_release(&shard->lock);
    record(h, own); // nobody has seen to it yet
    CHECK_EQ(gm_pool_record_use(s.pool, h.block, h.generation, &other),
             GM_ERR_NOT_OWNED);
    CHECK_EQ(gm_pool_record_use(s.pool, h.block, h.generation, &own), GM_ERR_NOT_OWNED);
    CHECK_EQ(stats_of(s.pool).used_bytes, 0);
    end_stream(s.sim, own);
    end_stream(s.sim, other);
    close_site(s);
}

/* Whoever has the shard next carries it out: here the next request, which gets it. */
TEST(shard_a_postponed_free_is_the_next_holders)
{
    bench b;
    holding h;
    gm_block *block = NULL;
    gm_shard *shard;

    bench_init(&b, 8);
    shard = gm_pool_shard(b.pool, A);
    h = take_for(b.pool, UNITS(8), A);
    gm_lock_acquire(&shard->lock);
    let_go(h);
    gm_lock_release(&shard->lock);
    CHECK(gm_pool_has_deferred(b.pool));
    gm_lock_acquire(&b.pool->lock);
    CHECK_EQ(ask(&b, UNITS(8), A, &block), GM_OK);
    gm_lock_release(&b.pool->lock);
    CHECK(block == h.block);
    CHECK(!gm_pool_has_deferred(b.pool));
    let_go(hold(b.pool, block));
    CHECK_EQ(stats_of(b.pool).deferred_frees, 1);
    bench_fini(&b);
}

/* A closed pool's free that found its shard busy: whoever kept it sees to the end. */
TEST(shard_a_postponed_free_ends_a_closed_pool)
{
    bench b;
    holding h;
    gm_shard *shard;

    bench_init(&b, 8);
    shard = gm_pool_shard(b.pool, A);
    h = take_for(b.pool, UNITS(8), A);
    gm_lock_acquire(&shard->lock);
    let_go(h);
    gm_lock_release(&shard->lock);
    gm_pool_close(b.pool);
    CHECK_EQ(b.books.ends, 1);
    ledger_fini(&b.books);
}

/* Nobody has the shard any more when its free is postponed: no one else may come by. */
TEST(shard_a_postponed_free_is_carried_out_where_nobody_has_the_shard)
{
    bench b;
    holding h;

    bench_init(&b, 8);
    h = take_for(b.pool, UNITS(8), A);
    gm_shard_defer(gm_pool_shard(b.pool, A), h.block);
    CHECK(!gm_pool_has_deferred(b.pool));
    CHECK_EQ(stats_of(b.pool).used_bytes, 0);
    bench_fini(&b);

    bench_init(&b, 8);
    h = take_for(b.pool, UNITS(8), A);
    gm_pool_close(b.pool);
    CHECK_EQ(b.books.ends, 0);
    gm_shard_defer(gm_pool_shard(b.pool, A), h.block);
    CHECK_EQ(b.books.ends, 1);
    ledger_fini(&b.books);
}

/* ---- peaks ---- */

TEST(shard_peaks_of_large_blocks_are_exact)
{
    enum {
        LARGE = 2 * GM_SHARD_LATE / GM_UNIT,
    };
    bench b;
    holding on_a, on_b;

    bench_init(&b, LARGE);
    on_a = take_for(b.pool, UNITS(LARGE), A);
    on_b = take_for(b.pool, UNITS(LARGE), B);
    let_go(on_a);
    let_go(take_for(b.pool, UNITS(1), A)); // so that neither rests
    let_go(on_b);
    let_go(take_for(b.pool, UNITS(1), B));
    CHECK_EQ(stats_of(b.pool).peak_used_bytes, UNITS(2 * LARGE));
    CHECK_EQ(stats_of(b.pool).peak_requested_bytes, UNITS(2 * LARGE));
    bench_fini(&b);
}

/* What one shard did is exact, whatever others have. */
TEST(shard_peaks_of_one_stream_are_exact)
{
    bench b;
    holding on_b, first, second;

    bench_init(&b, 100);
    on_b = take_for(b.pool, UNITS(50), B);
    CHECK_EQ(stats_of(b.pool).peak_used_bytes, UNITS(50));
    first = take_for(b.pool, UNITS(20) - 7, A);
    second = take_for(b.pool, UNITS(30) - 5, A);
    let_go(first);
    let_go(second);
    let_go(take_for(b.pool, UNITS(40), A));
    CHECK_EQ(stats_of(b.pool).peak_used_bytes, UNITS(100));
    CHECK_EQ(stats_of(b.pool).peak_requested_bytes, UNITS(100) - 12);
    CHECK_EQ(stats_of(b.pool).peak_live_blocks, 3);
    CHECK_EQ(stats_of(b.pool).peak_free_bytes, UNITS(200));
    let_go(on_b);
    bench_fini(&b);
}

/* What waits for another stream is not cached. */
TEST(shard_peaks_of_what_is_cached_are_without_what_is_pending)
{
    enum {
        LARGE = 2 * GM_SHARD_LATE / GM_UNIT,
        WAITING = 50,
    };
    site s = open_site(64 * MIB);
    gm_stream_use own = new_stream(s.sim, 0, true), other = new_stream(s.sim, 0, true);
    holding h;

    let_go(take_for(s.pool, UNITS(LARGE), own.key));
    h = take_for(s.pool, UNITS(WAITING), own.key);
    record(h, other);
    let_go(h);
    CHECK_EQ(gm_pool_reset_peaks(s.pool), GM_OK);
    CHECK_EQ(stats_of(s.pool).pending_bytes, UNITS(WAITING));
    h = take_for(s.pool, UNITS(LARGE - WAITING), own.key); // so much is told at once
    CHECK_EQ(stats_of(s.pool).peak_free_bytes, UNITS(LARGE - WAITING));
    let_go(h);
    end_stream(s.sim, own);
    end_stream(s.sim, other);
    close_site(s);
}

/* Small blocks by turns on two streams: what is not told is less than a MiB each. */
TEST(shard_peaks_are_late_by_little)
{
    enum {
        MANY = 3 * GM_SHARD_LATE / GM_UNIT,
    };
    static holding held[2][MANY];
    const size_t late = 2 * 2 * GM_SHARD_LATE;
    bench b;
    gm_stats s;

    bench_init(&b, MANY);
    for (size_t i = 0; i < MANY; i++) {
        held[0][i] = take_for(b.pool, UNITS(1), A);
        held[1][i] = take_for(b.pool, UNITS(1), B);
    }
    for (size_t i = 0; i < MANY; i++) {
        let_go(held[0][i]);
        let_go(held[1][i]);
    }
    s = stats_of(b.pool);
    CHECK(s.peak_used_bytes <= UNITS(2 * MANY));
    CHECK(s.peak_used_bytes + late >= UNITS(2 * MANY));
    CHECK(s.peak_live_blocks <= 2 * MANY);
    CHECK(s.peak_live_blocks + late / GM_UNIT >= 2 * MANY);
    bench_fini(&b);
}

/* ---- nodes ---- */

static size_t
nodes_of(const gm_pool *pool)
{
    size_t nodes = pool->store.nodes;

    for (const gm_shard *s = gm_pool_first_shard(pool); s; s = s->next) {
        nodes += s->store.nodes;
    }
    return nodes;
}

enum {
    ROUNDS = 1000, // far more than there are nodes
};

/* Blocks cut by a shard and joined by whoever has the pool's lock: nodes come back. */
TEST(shard_nodes_go_from_the_pool_to_shards)
{
    bench b;
    size_t nodes;

    bench_init(&b, 8);
    let_go(take_for(b.pool, UNITS(1), A));
    nodes = nodes_of(b.pool);
    for (size_t i = 0; i < ROUNDS; i++) {
        holding h = take_for(b.pool, UNITS(1), A);

        CHECK_EQ(gm_pool_free_address(b.pool, h.block->addr), GM_OK);
        let_go(h);
    }
    CHECK_EQ(nodes_of(b.pool), nodes);
    bench_fini(&b);
}

/* The other way. */
TEST(shard_nodes_go_from_shards_to_the_pool)
{
    const gm_request request = {.size = UNITS(1), .key = A};
    gm_block *block = NULL;
    bench b;
    size_t nodes;

    bench_init(&b, 8);
    let_go(take_for(b.pool, UNITS(1), A));
    nodes = nodes_of(b.pool);
    for (size_t i = 0; i < ROUNDS; i++) {
        CHECK_EQ(gm_pool_malloc_slow(b.pool, &request, NULL, &block), GM_OK);
        let_go(hold(b.pool, block));
    }
    CHECK_EQ(nodes_of(b.pool), nodes);
    bench_fini(&b);
}

#endif
