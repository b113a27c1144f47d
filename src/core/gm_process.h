/* SPDX-License-Identifier: MIT
 *
 * State that belongs to the process and cannot live in the module or in a backend:
 *
 * - special: what is out of the ordinary, one bit each: the process is exiting, or is a
 *   forked child, and destructors leak rather than touch a device or a lock that may be
 *   gone; or a graph is being recorded
 * - the fork handler: installed with the first device, so that a child forked from then
 *   on is frozen
 * - claimed: a language binding lives here, so a second copy of it must not
 * - binding: where that binding finds what C callers need who have no object of it
 * - host_fault: test seam, may make the n-th host allocation fail
 * - pools: every native pool, so that one can ask the others for idle memory
 * - captures: the recordings under way
 * - lingering: how many pools wait for a device before they can end
 * - flights: memory on its way from or to upstream, so that a request does not fail for
 *   want of what arrives in a moment
 *
 * A backend keeps what is its own (a runtime's one instance, a counter of handles). The
 * thread's share of the flights is thread-local.
 *
 * Threading: any thread. The lists of pools and of captures have a mutex each, never
 * held together with another lock.
 */
#ifndef GM_PROCESS_H
#define GM_PROCESS_H

#include "gm_base.h"
#include "gm_status.h"

#include <stdatomic.h>

enum {
    GM_EXITING = 1u << 0,   // the interpreter or the process is ending
    GM_FORKED = 1u << 1,    // this is a child of a process that had a device open
    GM_CAPTURING = 1u << 2, // a graph is being recorded (gm_capture.h)

    GM_FROZEN = GM_EXITING | GM_FORKED,
};

/* Bits of the above. Read on every hot path, so one plain word for all of them; written
 * at exit, in a forked child, and where a recording begins or ends. */
extern atomic_uint gm_process_special;

static inline unsigned
gm_process_special_bits(void)
{
    return atomic_load_explicit(&gm_process_special, memory_order_relaxed);
}

/* True when a request cannot go the ordinary way. */
static inline bool
gm_process_is_special(void)
{
    return GM_UNLIKELY(gm_process_special_bits() != 0);
}

/* True at exit and in a forked child. */
static inline bool
gm_process_is_frozen(void)
{
    return GM_UNLIKELY((gm_process_special_bits() & GM_FROZEN) != 0);
}

/* True in a forked child: no lock made before the fork may be waited for. */
static inline bool
gm_process_is_forked(void)
{
    return GM_UNLIKELY((gm_process_special_bits() & GM_FORKED) != 0);
}

/* True while a graph is being recorded: nothing that is only tidying up calls the
 * device meanwhile. */
static inline bool
gm_process_is_capturing(void)
{
    return GM_UNLIKELY((gm_process_special_bits() & GM_CAPTURING) != 0);
}

/* GM_OK, GM_ERR_EXITING or GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_process_status(void);

/* Notes that a device is in use; installs the fork handler the first time. */
void gm_process_opened(void);

/* True for the first caller alone: what is kept a thread and a process serves one
 * binding. One that could not start gives the claim back. */
bool gm_process_claim(void);
void gm_process_unclaim(void);

/* One word of the binding's, for calls that reach it from C; NULL where there is none.
 */
void gm_process_set_binding(void *binding);
void *gm_process_binding(void);

/* From now on destructors leak. Called at interpreter exit. */
void gm_process_exit(void);

/* Host memory. Return NULL when there is none (or a test says so); gm_host_free
 * accepts NULL. gm_host_alloc_aligned gives whole cache lines, gm_host_zalloc_aligned a
 * size that is a multiple of the alignment. */
void *gm_host_alloc(size_t size);
void *gm_host_zalloc(size_t size);
void *gm_host_alloc_aligned(size_t alignment, size_t size);
void *gm_host_zalloc_aligned(size_t alignment, size_t size);
void gm_host_free(void *ptr);

/* Test seam: when set, asked before each host allocation; true makes it fail.
 * Not to be changed while other threads allocate. */
typedef bool (*gm_host_fault)(void *context, size_t size);
void gm_host_set_fault(gm_host_fault fault, void *context);

/* Nanoseconds of a clock that only goes forward. Not for hot paths. */
uint64_t gm_process_now_ns(void);

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

/* The recordings under way. Each capture embeds one link. */
typedef struct gm_capture_link {
    struct gm_capture_link *prev;
    struct gm_capture_link *next;
} gm_capture_link;

/* The first one makes gm_process_is_capturing() true, the last one false. Beginning is
 * refused, with false, where one is there that `clashes`, which is as `match` below. */
bool gm_process_capture_begin(gm_capture_link *link,
                              bool (*clashes)(gm_capture_link *other, void *context),
                              void *context);
void gm_process_capture_end(gm_capture_link *link);

/* The first capture that `match` accepts, NULL for none. `match` runs with the list
 * locked: it looks, takes a reference if it needs one, and does nothing else. */
gm_capture_link *gm_process_capture_find(bool (*match)(gm_capture_link *link,
                                                       void *context),
                                         void *context);

/* One pool more that its owner closed and that waits for a device, or one less. */
void gm_process_linger(bool more);
bool gm_process_is_anyone_lingering(void);

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
