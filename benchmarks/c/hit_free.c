/* SPDX-License-Identifier: MIT
 *
 * A hit and a free, over and over, for counting instructions under callgrind.
 *
 *     hit_free WAY COUNT
 *
 * prepares a pool and then runs COUNT pairs. Two runs with different counts differ by
 * the pairs alone, so the difference of their instructions over the difference of the
 * counts is exact, whatever the rest of the program does. Ways:
 *
 *     exact    the same request again once its block was given back, which has just the
 *              size
 *     split    the same, cut off a larger one
 *     turns    two blocks of one size by turns, one taken and then the other given
 * back, so that the last request is never repeated and each goes through the index; the
 * free block that fits has just the size cut      two sizes by turns, each cut at each
 * hit off a larger block of its own and joined with it again joined   four blocks taken
 * and given back in the order 2, 3, 1, 4, so that a free joins none, one or both of its
 * neighbours crowded  as turns, among 65,536 free blocks of that size deep     as
 * turns, but each hit cuts one of 65,536 blocks of one size, and what it leaves is one
 * of as many of another: the longest way there is, but that a free can find such a
 * neighbour on both sides
 */
#include "bench.h"

#include <string.h>

enum {
    SIZE = 4096,
    CROWD = 65536,
};

typedef struct scene {
    gm_pool *pool;
    bench_block *kept; // alive all the time
    size_t count;
} scene;

/* `count` live blocks with a free one of the same size after each but the last, which
 * ends the segment. */
static void
alternate(scene *s, size_t count)
{
    size_t total = 2 * count - 1;
    bench_block *all = calloc(total, sizeof(*all));

    bench_insist(all != NULL, "no host memory");
    bench_give(s->pool, bench_take(s->pool, total * SIZE, 0));
    for (size_t i = 0; i < total; i++) {
        all[i] = bench_take(s->pool, SIZE, 0);
    }
    for (size_t i = 1; i < total; i += 2) {
        bench_give(s->pool, all[i]);
    }
    for (size_t i = 0; i < count; i++) {
        all[i] = all[2 * i];
    }
    s->kept = all;
    s->count = count;
}

/* A free block of four sizes and one of one size, each after a live one, `count` times.
 */
static void
layers(scene *s, size_t count)
{
    bench_block *all = calloc(4 * count, sizeof(*all));

    bench_insist(all != NULL, "no host memory");
    bench_give(s->pool, bench_take(s->pool, 7 * count * SIZE, 0));
    for (size_t i = 0; i < 4 * count; i++) {
        all[i] = bench_take(s->pool, (size_t)(i % 4 == 1 ? 4 : 1) * SIZE, 0);
    }
    for (size_t i = 1; i < 4 * count; i += 2) {
        bench_give(s->pool, all[i]);
    }
    for (size_t i = 0; i < 2 * count; i++) {
        all[i] = all[2 * i];
    }
    s->kept = all;
    s->count = 2 * count;
}

/* ---- the ways ---- */

static void
prepare_exact(scene *s)
{
    alternate(s, 2);
}

static void
prepare_split(scene *s)
{
    bench_give(s->pool, bench_take(s->pool, (size_t)16 * SIZE, 0));
}

static void
run_again(scene *s, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bench_give(s->pool, bench_take(s->pool, SIZE, 0));
    }
}

static void
prepare_turns(scene *s)
{
    alternate(s, 3);
}

static void
prepare_crowded(scene *s)
{
    alternate(s, CROWD + 1);
}

static void
prepare_deep(scene *s)
{
    layers(s, CROWD);
}

static inline void
take_turns(scene *s, size_t count, size_t size)
{
    bench_block other = bench_take(s->pool, size, 0);

    for (size_t i = 0; i < count; i++) {
        bench_block taken = bench_take(s->pool, size, 0);

        bench_give(s->pool, other);
        other = taken;
    }
    bench_give(s->pool, other);
}

static void
run_turns(scene *s, size_t count)
{
    take_turns(s, count, SIZE);
}

static void
run_deep(scene *s, size_t count)
{
    take_turns(s, count, (size_t)3 * SIZE);
}

/* Two free blocks with a live one between. */
static void
prepare_cut(scene *s)
{
    bench_block small;
    bench_block large;

    s->kept = calloc(1, sizeof(*s->kept));
    bench_insist(s->kept != NULL, "no host memory");
    s->count = 1;
    bench_give(s->pool, bench_take(s->pool, (size_t)(4 + 1 + 16) * SIZE, 0));
    small = bench_take(s->pool, (size_t)4 * SIZE, 0);
    s->kept[0] = bench_take(s->pool, SIZE, 0);
    large = bench_take(s->pool, (size_t)16 * SIZE, 0);
    bench_give(s->pool, small);
    bench_give(s->pool, large);
}

static void
run_cut(scene *s, size_t count)
{
    for (size_t i = 0; i < count; i += 2) {
        bench_block small = bench_take(s->pool, SIZE, 0);
        bench_block large = bench_take(s->pool, (size_t)8 * SIZE, 0);

        bench_give(s->pool, small);
        bench_give(s->pool, large);
    }
}

static void
run_joined(scene *s, size_t count)
{
    static const unsigned order[4] = {1, 2, 0, 3};
    bench_block taken[4];

    for (size_t i = 0; i < count; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            taken[k] = bench_take(s->pool, SIZE, 0);
        }
        for (size_t k = 0; k < 4; k++) {
            bench_give(s->pool, taken[order[k]]);
        }
    }
}

static const struct way {
    const char *name;
    void (*prepare)(scene *s);
    void (*run)(scene *s, size_t count);
} ways[] = {
    {"exact", prepare_exact, run_again},   {"split", prepare_split, run_again},
    {"turns", prepare_turns, run_turns},   {"cut", prepare_cut, run_cut},
    {"joined", prepare_split, run_joined}, {"crowded", prepare_crowded, run_turns},
    {"deep", prepare_deep, run_deep},
};

static const struct way *
find_way(const char *name)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (strcmp(name, ways[i].name) == 0) {
            return &ways[i];
        }
    }
    return NULL;
}

int
main(int argc, char **argv)
{
    const struct way *way = argc == 3 ? find_way(argv[1]) : NULL;
    bench_addresses addresses;
    scene s = {0};

    if (!way) {
        fprintf(stderr, "usage: hit_free WAY COUNT\n");
        return 1;
    }
    s.pool = bench_pool(&addresses);
    way->prepare(&s);
    way->run(&s, strtoul(argv[2], NULL, 10));
    bench_insist(addresses.calls == 1, "a request was no hit");
    for (size_t i = 0; i < s.count; i++) {
        bench_give(s.pool, s.kept[i]);
    }
    free(s.kept);
    bench_close(s.pool);
    return 0;
}
