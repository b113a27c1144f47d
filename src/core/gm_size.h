/* SPDX-License-Identifier: MIT
 *
 * The unit of all block sizes and the bins of the free index. Pure functions.
 *
 * A block is a multiple of 512 bytes: the alignment that device code may rely on, and
 * the unit of the pool this one follows. Sizes are checked before they are rounded, so
 * nothing here wraps.
 */
#ifndef GM_SIZE_H
#define GM_SIZE_H

#include "gm_base.h"

#define GM_UNIT_SHIFT 9u
#define GM_UNIT ((size_t)1 << GM_UNIT_SHIFT)

/* The largest request that can be rounded and still counted in a signed offset. */
#define GM_SIZE_MAX (((size_t)PTRDIFF_MAX >> GM_UNIT_SHIFT) << GM_UNIT_SHIFT)

/* `size` up to the next unit; the caller has checked size <= GM_SIZE_MAX. */
static inline size_t
gm_size_round(size_t size)
{
    return (size + (GM_UNIT - 1)) & ~(GM_UNIT - 1);
}

/* Bins. A bin is (row, column): row 0 holds 1 to 15 units exactly, row r > 0 the sizes
 * of [2^(r+3), 2^(r+4)) units in 16 equal columns. Bins below 32 hold one size each. */
#define GM_BIN_COLUMNS 16u
#define GM_BIN_ROWS 52u
#define GM_BIN_COUNT (GM_BIN_ROWS * GM_BIN_COLUMNS)
#define GM_BIN_EXACT 32u

/* The bin of a rounded size > 0. Grows with the size. No branch: which one would be
 * taken is as random as the sizes. */
static inline unsigned
gm_size_bin(size_t size)
{
    size_t units = size >> GM_UNIT_SHIFT;
    /* Leaves the first five bits, 16 to 31, so that row r is shift r - 1; below 32
     * units, all of them. */
    unsigned shift = 59u - (unsigned)__builtin_clzll(units | GM_BIN_COLUMNS);

    return shift * GM_BIN_COLUMNS + (unsigned)(units >> shift);
}

GM_STATIC_ASSERT((GM_UNIT & (GM_UNIT - 1)) == 0, "rounding masks need a power of two");

#endif
