/* SPDX-License-Identifier: MIT
 *
 * Random numbers for tests: the same on every machine for the same seed (splitmix64).
 */
#ifndef DICE_H
#define DICE_H

#include <stddef.h>
#include <stdint.h>

typedef struct dice {
    uint64_t state; // the seed
} dice;

static inline uint64_t
dice_bits(dice *d)
{
    uint64_t x = d->state += 0x9E3779B97F4A7C15u;

    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* 0 to bound - 1. */
static inline size_t
dice_below(dice *d, size_t bound)
{
    return (size_t)(dice_bits(d) % bound);
}

#endif
