/* SPDX-License-Identifier: MIT
 *
 * What the files of the pool types share: the common base, limits, statistics, and the
 * way of a request that the cache cannot serve. What they take memory from is in
 * module.h, since handles need it too.
 */
#ifndef GMPY_POOLS_H
#define GMPY_POOLS_H

#include "module.h"

/* ---- rescue.c ---- */

/* The way of a request that the cache could not serve at once: with all means, and an
 * exception that says why not. `by` is the stream that it is for, NULL the calling
 * thread's current one. 0 or -1. The caller keeps the pool alive. */
int gmpy_pool_malloc_slow(gmpy_state *st,
                          gm_pool *pool,
                          const gm_request *request,
                          const struct gm_stream_use *by,
                          gm_block **out);

/* ---- base_pool.c ---- */

/* What both pool types begin with: their common base type has the methods. */
typedef struct gmpy_any_pool gmpy_any_pool;
struct gmpy_any_pool {
    PyObject_HEAD
    gmpy_state *st;
    /* The native pool a method is about, by its `device` argument (NULL or None: the
     * current one): 1, *out and *device are set; 0, there is none yet and `make` is
     * false, *device is set; -1 with an exception. */
    int (*find)(gmpy_any_pool *self,
                PyObject *device_arg,
                bool make,
                gm_pool **out,
                int *device);
    PyObject *callback; // asked when memory runs out; NULL for none
    /* Hands the callback to the pools that this one is made of; NULL: it has none. */
    void (*share_callback)(gmpy_any_pool *self);
};

/* The callback: new reference, NULL for none. And another one, or none with NULL. */
PyObject *gmpy_pool_callback(gmpy_any_pool *self);
void gmpy_pool_set_callback(gmpy_any_pool *self, PyObject *callback);

int gmpy_base_pool_init(PyObject *module, gmpy_state *st);

/* Allocates through a native pool for the calling thread's current stream. A
 * MemoryPointer: new reference. The caller keeps the pool alive. */
PyObject *gmpy_pool_malloc(gmpy_state *st, gm_pool *pool, int device, size_t size);

/* The same for a stream and on a client's account. */
PyObject *gmpy_pool_malloc_for(gmpy_state *st,
                               gm_pool *pool,
                               size_t size,
                               const struct gm_stream_use *by,
                               uint16_t client);

/* ---- pool_trim.c ---- */

/* The methods of both pool types that give memory back; for each there is a function
 * gmpy_pool_NAME and a text gmpy_pool_NAME_doc. */
#define GMPY_POOL_TRIM_METHODS(X)                                                      \
    X(free_all_blocks)                                                                 \
    X(trim)                                                                            \
    X(set_reserve)

#define GMPY_POOL_TRIM_METHOD(name)                                                    \
    PyObject *gmpy_pool_##name(PyObject *self, PyObject *const *args,                  \
                               Py_ssize_t nargs, PyObject *kwnames);                   \
    extern const char gmpy_pool_##name##_doc[];
GMPY_POOL_TRIM_METHODS(GMPY_POOL_TRIM_METHOD)
#undef GMPY_POOL_TRIM_METHOD

/* The deprecated one, which takes no argument. */
PyObject *gmpy_pool_free_all_free(PyObject *self, PyObject *ignored);
extern const char gmpy_pool_free_all_free_doc[];

/* ---- pool_stats.c, clients.c ---- */

/* The `device` argument of a method that has no other: *out is borrowed. 0 or -1. */
int gmpy_unpack_device(const char *method,
                       PyObject *const *args,
                       Py_ssize_t nargs,
                       PyObject *kwnames,
                       PyObject **out);

/* The methods of both pool types that only ask; for each there is a function
 * gmpy_pool_NAME and a text gmpy_pool_NAME_doc. */
#define GMPY_POOL_STATS_METHODS(X)                                                     \
    X(used_bytes)                                                                      \
    X(free_bytes)                                                                      \
    X(total_bytes)                                                                     \
    X(n_free_blocks)                                                                   \
    X(get_limit)                                                                       \
    X(stats)                                                                           \
    X(stats_by_client)                                                                 \
    X(reset_peak_stats)

#define GMPY_POOL_STATS_METHOD(name)                                                   \
    PyObject *gmpy_pool_##name(PyObject *self, PyObject *const *args,                  \
                               Py_ssize_t nargs, PyObject *kwnames);                   \
    extern const char gmpy_pool_##name##_doc[];
GMPY_POOL_STATS_METHODS(GMPY_POOL_STATS_METHOD)
#undef GMPY_POOL_STATS_METHOD

/* ---- clients.c ---- */

/* The number of the client of that name, which gets one. 0 or -1. */
int gmpy_as_client(gmpy_state *st, PyObject *name, uint16_t *out);

extern PyMethodDef gmpy_clients_methods[];

/* ---- limit.c ---- */

/* What set_limit's arguments say, in bytes; 0 is no limit. 0 or -1. */
int gmpy_as_limit(
    gmpy_state *st, int device, PyObject *size, PyObject *fraction, size_t *out);

/* What the environment says for a new pool on `device`. 0, or -1 with ValueError. */
int gmpy_default_limit(gmpy_state *st, int device, size_t *out);

int gmpy_limit_init(PyObject *module, gmpy_state *st);

/* ---- pool_setup.c ---- */

/* Whether a pool maps memory by page, as its maker said. */
typedef enum gmpy_paging {
    GMPY_PAGING_UNSAID, // the environment says
    GMPY_PAGING_OFF,
    GMPY_PAGING_ON,
} gmpy_paging;

/* What a native pool is made with: the callable that it takes memory from, NULL for the
 * plain kind; its growth, for gm_pool_set_growth; its rules for large requests; whether
 * it maps by page. */
typedef struct gmpy_pool_setup {
    PyObject *callable;
    size_t growth;
    gm_large_rules large;
    gmpy_paging paging;
} gmpy_pool_setup;

/* What the arguments of a constructor of `type` say; the callable is borrowed. 0, or -1
 * with an exception. */
int gmpy_pool_setup_from(gmpy_state *st,
                         const char *type,
                         PyObject *args,
                         PyObject *kwargs,
                         gmpy_pool_setup *out);

/* Sets up a pool that was just made. 0, or -1 with an exception. */
int gmpy_pool_setup_apply(gmpy_state *st, const gmpy_pool_setup *setup, gm_pool *pool);

/* ---- paging.c ---- */

/* What the arguments `expandable_segments` and `shareable` mean for a pool with all
 * else set up. 0, or -1 with an exception. */
int gmpy_as_paging(PyObject *arg, PyObject *shareable, gmpy_pool_setup *setup);

/* Has a new pool map by page if its setup, or failing that the environment, says so. 0,
 * or -1 with an exception. */
int gmpy_paging_apply(gmpy_state *st, gm_pool *pool, const gmpy_pool_setup *setup);

/* ---- device_pool.c, memory_pool.c ---- */

int gmpy_device_pool_init(PyObject *module, gmpy_state *st);
int gmpy_memory_pool_init(PyObject *module, gmpy_state *st);

typedef struct gmpy_device_pool {
    gmpy_any_pool any;
    gm_pool *pool; // NULL before it is initialized and once the collector cleared it
    int device;    // GMPY_DEVICE_UNSET before it is initialized
    PyObject *weakrefs;
} gmpy_device_pool;

/* The life of an object that begins like that, for each type of which one does. What
 * has not been opened yet has no pool. */
PyObject *gmpy_device_pool_alloc(PyTypeObject *type, PyObject *args, PyObject *kwargs);
int
gmpy_device_pool_open(gmpy_device_pool *self, int device, const gmpy_pool_setup *setup);
int gmpy_device_pool_traverse(PyObject *self, visitproc visit, void *arg);
int gmpy_device_pool_clear(PyObject *self);
void gmpy_device_pool_dealloc(PyObject *self);

/* A SingleDeviceMemoryPool on `device`: new reference. */
PyObject *
gmpy_device_pool_new(gmpy_state *st, int device, const gmpy_pool_setup *setup);

/* True for the bound malloc of a MemoryPool; *pool is that pool, borrowed. */
bool gmpy_is_pool_malloc(gmpy_state *st, PyObject *callable, PyObject **pool);

/* MemoryPool.malloc. */
PyObject *gmpy_memory_pool_malloc(PyObject *pool, PyObject *size);

#endif
