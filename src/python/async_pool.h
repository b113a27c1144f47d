/* SPDX-License-Identifier: MIT
 *
 * What the files of MemoryAsyncPool share.
 */
#ifndef GMPY_ASYNC_POOL_H
#define GMPY_ASYNC_POOL_H

#include "memory_kinds.h"

/* ---- async_pool_choice.c ---- */

/* How a device's pool was chosen. */
typedef enum gmpy_async_choice {
    GMPY_ASYNC_CURRENT, // what the device took from already
    GMPY_ASYNC_DEFAULT, // what it took from at first
    GMPY_ASYNC_GIVEN,   // a native handle
} gmpy_async_choice;

/* A device's pool. */
typedef struct gmpy_async_part {
    gmpy_async_choice choice;
    gm_mem_pool pool;
    uint64_t life; // of the device, in which `pool` means this pool; 0: not known yet
    size_t limit;  // bytes, 0 for none
} gmpy_async_part;

/* A MemoryAsyncPool. The parts change under its critical section. */
typedef struct gmpy_async_pool {
    PyObject_HEAD
    gmpy_state *st;
    gmpy_async_part *parts; // one a device; NULL until initialized
    bool has_figures;       // the driver can be asked for them
} gmpy_async_pool;

/* Opens the object with what its argument means, NULL for none. All of that is checked
 * before anything is changed, and what was changed is undone where a device refuses. 0
 * or -1. */
int gmpy_async_pool_open(gmpy_async_pool *self, PyObject *pool_handles);

/* A copy of a device's part, with a handle that is good: where the device was reset the
 * pool that is there now was chosen. 0; or -1 with RuntimeError, where a native handle
 * went with its device. */
int gmpy_async_pool_part(gmpy_async_pool *self, int device, gmpy_async_part *out);

/* The device that a `device` argument (NULL or None: the current one) means, and its
 * part. 0 or -1. */
int gmpy_async_pool_find(gmpy_async_pool *self,
                         PyObject *device_arg,
                         int *device,
                         gmpy_async_part *out);

/* ---- async_pool_figures.c ---- */

/* What a pool holds, and what of it is in use. */
typedef struct gmpy_async_figures {
    uint64_t reserved;
    uint64_t used;
} gmpy_async_figures;

/* Needs no interpreter. */
gm_status gmpy_async_pool_read(const gm_backend *backend,
                               gm_mem_pool pool,
                               gmpy_async_figures *out);

/* Gives back what the driver's pool that `device` takes from has cached, after a wait
 * for the device, so that what was freed in stream order goes too: bytes. Nothing where
 * no MemoryAsyncPool was made. Needs no interpreter. */
size_t gmpy_async_pools_trim(gmpy_state *st, int device);

/* The methods that are about the pool of one device; for each there is a function
 * gmpy_async_pool_NAME and a text gmpy_async_pool_NAME_doc. */
#define GMPY_ASYNC_POOL_METHODS(X)                                                     \
    X(free_all_blocks)                                                                 \
    X(n_free_blocks)                                                                   \
    X(used_bytes)                                                                      \
    X(free_bytes)                                                                      \
    X(total_bytes)                                                                     \
    X(stats)                                                                           \
    X(reset_peak_stats)                                                                \
    X(set_limit)                                                                       \
    X(get_limit)

#define GMPY_ASYNC_POOL_METHOD(name)                                                   \
    PyObject *gmpy_async_pool_##name(PyObject *self, PyObject *const *args,            \
                                     Py_ssize_t nargs, PyObject *kwnames);             \
    extern const char gmpy_async_pool_##name##_doc[];
GMPY_ASYNC_POOL_METHODS(GMPY_ASYNC_POOL_METHOD)
#undef GMPY_ASYNC_POOL_METHOD

#endif
