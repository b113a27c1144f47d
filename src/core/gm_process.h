/* SPDX-License-Identifier: MIT
 *
 * State that belongs to the process and cannot live in the module. All of it is here:
 *
 *   frozen       set at exit and in a forked child: from then on destructors leak
 *                rather than touch a device or a lock that may be gone
 *   opened       a device was opened, so a fork from now on freezes the child
 *   claimed      a language binding lives here, so a second copy of it must not
 *   host_fault   test seam: may make the n-th host allocation fail
 *   pools        every native pool, so that one can ask the others for idle memory
 *
 * Threading: any thread. The pool list has a mutex of its own, never held together
 * with a pool's.
 */
#ifndef GM_PROCESS_H
#define GM_PROCESS_H

#include "gm_base.h"
#include "gm_status.h"

typedef enum gm_frozen {
    GM_RUNNING = 0,
    GM_EXITING = 1, // the interpreter or the process is ending
    GM_FORKED = 2,  // this is a child of a process that had a device open
} gm_frozen;

/* Read on every hot path, so a plain global; written once, while nothing races it
 * (at exit by the exiting thread, after fork by the only thread). */
extern volatile int gm_process_frozen;

static inline bool
gm_process_is_frozen(void)
{
    return GM_UNLIKELY(gm_process_frozen != GM_RUNNING);
}

/* GM_OK, GM_ERR_EXITING or GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_process_status(void);

/* Notes that a device is in use; installs the fork handler the first time. */
void gm_process_opened(void);

/* True for the first caller alone: what is kept a thread and a process serves one
 * binding. */
bool gm_process_claim(void);

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

#endif
