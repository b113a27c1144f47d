/* SPDX-License-Identifier: MIT
 *
 * The pool's mutex: one word, one atomic instruction to take it, one plain store to let
 * go.
 *
 * A pthread mutex costs two atomic instructions and two calls, which is a third of a
 * hit. This one is for sections of some tens of nanoseconds in which nothing blocks, so
 * a waiter spins a little, yields a little, sleeps as briefly as it can and begins
 * anew; nobody has to be woken, and letting go needs no look at who waits. It is not
 * fair and not recursive.
 */
#ifndef GM_LOCK_H
#define GM_LOCK_H

#include "gm_base.h"

#include <stdatomic.h>

typedef struct gm_lock {
    atomic_uint held; // 0 or 1
} gm_lock;

/* A lock of zero bytes is free; no resources to give back. */

static inline bool
gm_lock_try(gm_lock *lock)
{
    unsigned expected = 0;

    return GM_LIKELY(atomic_compare_exchange_strong_explicit(
        &lock->held, &expected, 1, memory_order_acquire, memory_order_relaxed));
}

/* Waits until the lock is the caller's. */
void gm_lock_wait(gm_lock *lock);

static inline void
gm_lock_acquire(gm_lock *lock)
{
    if (GM_UNLIKELY(!gm_lock_try(lock))) {
        gm_lock_wait(lock);
    }
}

static inline void
gm_lock_release(gm_lock *lock)
{
    GM_ASSERT(atomic_load_explicit(&lock->held, memory_order_relaxed));
    atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
