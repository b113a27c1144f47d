/* SPDX-License-Identifier: MIT
 *
 * A count that all threads change and hardly anybody reads. Where threads run without
 * the interpreter lock each has a part of it, by the thread's number (thread.c), so
 * that they do not meet; what one adds another may take away, and only the sum means
 * something.
 *
 * Cost: 8 KiB without the interpreter lock, an integer with it. Threading: any thread
 * that is attached to the interpreter adds; the sum is right while all stand still, as
 * they do for the collector.
 */
#ifndef GMPY_TALLY_H
#define GMPY_TALLY_H

#include "compat.h"
#include "core/gm_base.h"

#ifdef Py_GIL_DISABLED

enum {
    GMPY_TALLY_PARTS = 64,
};

typedef struct gmpy_tally {
    struct {
        _Alignas(2 * GM_CACHE_LINE) Py_ssize_t count; // lines are fetched in pairs
    } parts[GMPY_TALLY_PARTS];
} gmpy_tally;

static inline void
gmpy_tally_add(gmpy_tally *tally, unsigned thread, Py_ssize_t change)
{
    __atomic_fetch_add(&tally->parts[thread % GMPY_TALLY_PARTS].count, change,
                       __ATOMIC_RELAXED);
}

static inline Py_ssize_t
gmpy_tally_sum(gmpy_tally *tally)
{
    Py_ssize_t sum = 0;

    for (int i = 0; i < GMPY_TALLY_PARTS; i++) {
        sum += __atomic_load_n(&tally->parts[i].count, __ATOMIC_RELAXED);
    }
    return sum;
}

#else

typedef struct gmpy_tally {
    Py_ssize_t count;
} gmpy_tally;

static inline void
gmpy_tally_add(gmpy_tally *tally, unsigned thread, Py_ssize_t change)
{
    (void)thread;
    tally->count += change;
}

static inline Py_ssize_t
gmpy_tally_sum(const gmpy_tally *tally)
{
    return tally->count;
}

#endif
#endif
