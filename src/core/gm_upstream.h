/* SPDX-License-Identifier: MIT
 *
 * What a pool takes segments from: two functions and a context.
 *
 * The pool calls them with none of its locks held. They may block, and one supplied by
 * a binding may run user code, which may come back to the same pool.
 */
#ifndef GM_UPSTREAM_H
#define GM_UPSTREAM_H

#include "gm_backend.h"
#include "gm_block.h"

/* How much memory there is. */
typedef struct gm_room {
    size_t free_bytes;  // that nobody holds
    size_t total_bytes; // that the device has
    size_t largest;     // the most that one `take` could get
} gm_room;

typedef struct gm_upstream {
    void *context;

    /* Whose streams use the memory. NULL: none that could be told of, so that
     * gm_pool_record_use says GM_ERR_UNSUPPORTED. Outlives the pool. */
    const gm_backend *backend;

    /* At least `size` bytes on `device`. On success *out is filled and belongs to the
     * pool; base is not 0. GM_ERR_OUT_OF_MEMORY makes the pool reclaim and ask again;
     * any other failure reaches the caller as it is. */
    gm_status (*take)(void *context, int device, size_t size, gm_piece *out);

    /* Takes back what `take` gave. Cannot fail as far as the pool is concerned. May be
     * called from a destructor. */
    void (*give)(void *context, int device, const gm_piece *piece);

    /* The device was reset, and what `take` gave is gone: lets go of what it keeps. The
     * device is not to be called for it. Optional: there is nothing to let go of. */
    void (*forget)(void *context, int device, const gm_piece *piece);

    /* How much memory `device` has for takes, `largest` as if the `count` pieces
     * `back`, in order of address, had been given back before: idle ones of this pool
     * and of others on the device. May begin to use the device. Optional: nothing is
     * known, and what `take` gives may come from another pool. */
    gm_status (*room)(
        void *context, int device, const gm_range *back, size_t count, gm_room *out);

    /* The pool is gone and will not call again. Optional. */
    void (*end)(void *context);
} gm_upstream;

/* Plain device memory of `backend`, which outlives every pool on it. */
gm_upstream gm_upstream_of_backend(const gm_backend *backend);

#endif
