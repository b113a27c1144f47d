/* SPDX-License-Identifier: MIT
 *
 * Sizes: rounding, the bins of the free index, and what is refused before either. The
 * expected values come from division and repeated halving, not from bits.
 */
#include "holding.h"
#include "ledger.h"

/* Rows and columns as gm_size.h words them: row 0 holds 1 to 15 units, row r > 0 the
 * sizes of [2^(r+3), 2^(r+4)) units in 16 equal columns. */
static unsigned
bin_by_words(size_t size)
{
    size_t units = size / 512;
    size_t first = 16; // of row 1
    unsigned row = 1;

    if (units < 16) {
        return (unsigned)units;
    }
    while (units / 2 >= first) {
        first *= 2;
        row++;
    }
    return row * 16 + (unsigned)((units - first) / (first / 16));
}

TEST(size_rounds_up_to_whole_units)
{
    CHECK_EQ(GM_UNIT, 512);
    for (size_t size = 1; size < 100000; size++) {
        CHECK_EQ(gm_size_round(size), (size + 511) / 512 * 512);
    }
    CHECK_EQ(gm_size_round(GM_SIZE_MAX), GM_SIZE_MAX);
    CHECK_EQ(gm_size_round(GM_SIZE_MAX - 1), GM_SIZE_MAX);
    CHECK_EQ(gm_size_round(GM_SIZE_MAX - 512), GM_SIZE_MAX - 512);
}

TEST(size_max_is_the_last_that_fits_a_signed_offset)
{
    CHECK_EQ(GM_SIZE_MAX % 512, 0);
    CHECK(GM_SIZE_MAX <= PTRDIFF_MAX);
    CHECK(PTRDIFF_MAX - GM_SIZE_MAX < 512);
}

TEST(size_bins_below_32_hold_one_size_each)
{
    for (size_t units = 1; units < 32; units++) {
        CHECK_EQ(gm_size_bin(512 * units), units);
    }
    CHECK_EQ(GM_BIN_EXACT, 32);
    // The first that shares its bin.
    CHECK_EQ(gm_size_bin(UNITS(32)), 32);
    CHECK_EQ(gm_size_bin(UNITS(33)), 32);
    CHECK_EQ(gm_size_bin(UNITS(34)), 33);
}

TEST(size_bins_are_as_described)
{
    unsigned last = 0;

    for (size_t units = 1; units < 100000; units++) {
        unsigned bin = gm_size_bin(UNITS(units));

        CHECK_EQ(bin, bin_by_words(UNITS(units)));
        CHECK(bin == last || bin == last + 1); // grows, and leaves none out
        last = bin;
    }
}

TEST(size_bins_at_powers_of_two)
{
    for (unsigned power = 4; power < 54; power++) {
        size_t units = (size_t)1 << power;
        unsigned bin = (power - 3) * 16;

        CHECK_EQ(gm_size_bin(UNITS(units)), bin);
        CHECK_EQ(gm_size_bin(UNITS(units - 1)), bin - 1);
        CHECK_EQ(gm_size_bin(UNITS(units + units / 16)), bin + 1);
        CHECK_EQ(gm_size_bin(UNITS(units + units / 16 - 1)), bin);
    }
    CHECK_EQ(gm_size_bin(GM_SIZE_MAX), bin_by_words(GM_SIZE_MAX));
    CHECK(gm_size_bin(GM_SIZE_MAX) < GM_BIN_COUNT);
}

TEST(size_none_and_inexpressible_are_refused)
{
    const struct {
        size_t size;
        gm_status status;
    } cases[] = {
        {0, GM_ERR_INVALID_VALUE},
        {GM_SIZE_MAX + 1, GM_ERR_TOO_LARGE},
        {(size_t)PTRDIFF_MAX, GM_ERR_TOO_LARGE},
        {(size_t)PTRDIFF_MAX + 1, GM_ERR_TOO_LARGE},
        {SIZE_MAX - 511, GM_ERR_TOO_LARGE},
        {SIZE_MAX, GM_ERR_TOO_LARGE},
    };
    ledger books;
    gm_pool *pool;

    ledger_init(&books);
    pool = ledger_pool(&books, 0);
    let_go(take_bytes(pool, 512)); // so that the cache has something
    gm_stats before = stats_of(pool);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gm_request request = {.size = cases[i].size};
        gm_block *block = NULL;

        CHECK_EQ(gm_pool_malloc(pool, &request, &block), cases[i].status);
        CHECK_EQ(gm_pool_malloc_slow(pool, &request, NULL, &block), cases[i].status);
        CHECK(block == NULL);
    }
    gm_stats after = stats_of(pool);
    check_same_stats(&after, &before);
    CHECK_EQ(books.asked, 1);
    gm_pool_close(pool);
    ledger_fini(&books);
}

TEST(size_the_largest_is_asked_for)
{
    ledger books;
    gm_pool *pool;
    holding h = {0};

    ledger_init(&books);
    pool = ledger_pool(&books, 0);
    books.capacity = UNITS(1);
    CHECK_EQ(try_hold(pool, GM_SIZE_MAX, 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(try_hold(pool, GM_SIZE_MAX - 511, 0, &h), GM_ERR_OUT_OF_MEMORY);
    CHECK_EQ(books.asked, 2);
    CHECK_EQ(stats_of(pool).total_bytes, 0);
    gm_pool_close(pool);
    ledger_fini(&books);
}
