/* SPDX-License-Identifier: MIT
 *
 * Host memory that the core spends on a block.
 *
 *     host_bytes COUNT
 *
 * takes COUNT blocks of one unit, cut from one segment, and prints as JSON what the C
 * library has given out more than before, in all and over the blocks. That counts what
 * the library itself adds to each allocation, and what slabs have in reserve.
 */
#include "bench.h"

#include <malloc.h> // mallinfo2()

static size_t
host_bytes(void)
{
    struct mallinfo2 info = mallinfo2();

    return info.uordblks + info.hblkhd;
}

int
main(int argc, char **argv)
{
    size_t count = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
    bench_block *taken = calloc(count ? count : 1, sizeof(*taken));
    bench_addresses addresses;
    gm_pool *pool;
    size_t before, after;

    bench_insist(count > 0, "usage: host_bytes COUNT");
    bench_insist(taken != NULL, "no host memory");
    pool = bench_pool(&addresses);
    bench_give(pool, bench_take(pool, count * GM_UNIT, 0));
    before = host_bytes();
    for (size_t i = 0; i < count; i++) {
        taken[i] = bench_take(pool, GM_UNIT, 0);
    }
    after = host_bytes();
    bench_insist(addresses.calls == 1, "a request was no hit");
    printf("{\"blocks\": %zu, \"bytes\": %zu, \"bytes_a_block\": %.2f}\n", count,
           after - before, (double)(after - before) / (double)count);
    for (size_t i = 0; i < count; i++) {
        bench_give(pool, taken[i]);
    }
    free(taken);
    bench_close(pool);
    return 0;
}
