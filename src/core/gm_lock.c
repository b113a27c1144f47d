/* SPDX-License-Identifier: MIT
 *
 * Waiting for a gm_lock: spin, yield, sleep. See gm_lock.h.
 */
#include "gm_lock.h"

#include <sched.h> // sched_yield
#include <time.h>  // nanosleep

enum {
    SPINS = 64,    // about a microsecond: a holder that runs is done by then
    YIELDS = 16,   // the holder may wait for this core
    SLEEP = 20000, // nanoseconds: the holder was interrupted
};

static inline void
relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Looks before it tries, so that waiters do not take the cache line from the holder. */
static bool
free_and_taken(gm_lock *lock)
{
    return !atomic_load_explicit(&lock->held, memory_order_relaxed) &&
           gm_lock_try(lock);
}

void
gm_lock_wait(gm_lock *lock)
{
    const struct timespec pause = {.tv_nsec = SLEEP};

    for (;;) {
        for (int i = 0; i < SPINS; i++) {
            if (free_and_taken(lock)) {
                return;
            }
            relax();
        }
        for (int i = 0; i < YIELDS; i++) {
            if (free_and_taken(lock)) {
                return;
            }
            sched_yield();
        }
        nanosleep(&pause, NULL);
    }
}
