/* SPDX-License-Identifier: MIT
 *
 * State that belongs to the process and cannot live in the module or in a backend:
 *
 *   frozen       set at exit and in a forked child: from then on destructors leak
 *                rather than touch a device or a lock that may be gone
 *   opened       a device was opened, so a fork from now on freezes the child
 *   claimed      a language binding lives here, so a second copy of it must not
 *   host_fault   test seam: may make the n-th host allocation fail
 *   pools        every native pool, so that one can ask the others for idle memory
 *   flights      memory on its way from or to upstream, so that a request does not fail
 *                for want of what arrives in a moment
 *
 * A backend keeps what is its own (a runtime's one instance, a counter of handles). The
 * thread's share of the flights is thread-local.
 *
 * Threading: any thread. The pool list has a mutex of its own, never held together
 * with a pool's.
 */
#ifndef GM_PROCESS_H
#define GM_PROCESS_H

#include "gm_base.h"
#include "gm_status.h"

#include <stdatomic.h>

typedef enum gm_frozen {
    GM_RUNNING = 0,
    GM_EXITING = 1, // the interpreter or the process is ending
    GM_FORKED = 2,  // this is a child of a process that had a device open
} gm_frozen;

/* A gm_frozen. Read on every hot path, so a plain word; written once, at exit by the
 * exiting thread or after a fork by the only one. */
extern atomic_int gm_process_frozen;

static inline bool
gm_process_is_frozen(void)
{
    return GM_UNLIKELY(atomic_load_explicit(&gm_process_frozen, memory_order_relaxed) !=
                       GM_RUNNING);
}

/* True in a forked child: no lock made before the fork may be waited for. */
static inline bool
gm_process_is_forked(void)
{
    return GM_UNLIKELY(atomic_load_explicit(&gm_process_frozen, memory_order_relaxed) ==
                       GM_FORKED);
}

/* GM_OK, GM_ERR_EXITING or GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_process_status(void);

/* Notes that a device is in use; installs the fork handler the first time. */
void gm_process_opened(void);

/* True for the first caller alone: what is kept a thread and a process serves one
 * binding. One that could not start gives the claim back. */
bool gm_process_claim(void);
void gm_process_unclaim(void);

/* From now on destructors leak. Called at interpreter exit. */
void gm_process_exit(void);

/* Host memory. Return NULL when there is none (or a test says so); gm_host_free
 * accepts NULL. gm_host_alloc_aligned gives whole cache lines. */
void *gm_host_alloc(size_t size);
void *gm_host_zalloc(size_t size);
void *gm_host_alloc_aligned(size_t alignment, size_t size);
void gm_host_free(void *ptr);

/* Test seam: when set, asked before each host allocation; true makes it fail.
 * Not to be changed while other threads allocate. */
typedef bool (*gm_host_fault)(void *context, size_t size);
void gm_host_set_fault(gm_host_fault fault, void *context);

/* The list of pools, oldest first. Each pool embeds one link. `number` is never reused
 * and grows along the list, so a walk that lets go of the list between two pools goes
 * on from the number it has seen. */
typedef struct gm_pool_link {
    struct gm_pool_link *prev;
    struct gm_pool_link *next;
    uint64_t number;
} gm_pool_link;

void gm_process_pool_join(gm_pool_link *link);
void gm_process_pool_leave(gm_pool_link *link);

/* The first pool whose number is above `after` and that `hold` accepts, NULL at the
 * end. `hold` runs with the list locked: it takes a reference if the pool can still
 * give one, says so, and does nothing else. */
gm_pool_link *gm_process_pool_next(uint64_t after, bool (*hold)(gm_pool_link *link));

/* Around each call that takes memory from upstream or gives it back, until the counters
 * say so too. On one thread, may nest. */
void gm_process_flight_begin(void);
void gm_process_flight_end(void);

/* How many flights of other threads have ended so far. */
uint64_t gm_process_flights_ended(void);

/* With a number that gm_process_flights_ended gave: waits until a flight of another
 * thread has ended since. False when none is under way, or none ended for a second;
 * true otherwise, so that trying again is worth it. */
bool gm_process_flights_wait(uint64_t ended);

#endif
