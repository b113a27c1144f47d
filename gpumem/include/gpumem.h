/* SPDX-License-Identifier: MIT
 *
 * gpumem's C interface: memory of gpumem's pools for programs that are not Python.
 *
 * Extensions include this header (get_include() of the package says where it is), call
 * gpumem_import() once and use the table that it returns. Programs that load the shared
 * object instead, as dlopen and ctypes do, find functions of the same names in it; so
 * does whatever takes the address of an allocator, as torch's CUDAPluggableAllocator.
 * Either way the Python module gpumem has to have been imported, for the pools are its.
 *
 * Every function may be called from any thread, also one that Python never saw, with or
 * without the interpreter's lock, and lets go of that where it waits. Three need the
 * interpreter: gpumem_pool_default, _create and _borrow; the first use of a pool on a
 * device, which makes what is needed there; and, when memory has run out, the search
 * for garbage and the user's callback (GPUMEM_NO_PYTHON does without). Those attach the
 * calling thread by themselves, so do not call them while you hold a lock that somebody
 * else may want who has the interpreter's.
 *
 * All that can fail returns a gpumem_status and writes its results on success only;
 * gpumem_last_error() says more. In a process that is exiting, or was forked from one
 * that had opened a device, calls say so and touch nothing.
 *
 * Units are bytes. `device` is the device's number, GPUMEM_CURRENT_DEVICE the calling
 * thread's current one. `stream` is a native handle (cudaStream_t) as a pointer; NULL
 * is the device's default stream.
 *
 * docs/c-api.md has examples.
 */
#ifndef GPUMEM_H
#define GPUMEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h> /* ssize_t */

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when something that is here is changed; what is added goes to the end of the
 * table and of the structs, whose sizes tell. */
#define GPUMEM_API_VERSION 1

#ifndef GPUMEM_EXPORT
#define GPUMEM_EXPORT
#endif

typedef enum gpumem_status {
    GPUMEM_OK = 0,
    GPUMEM_ERROR_OUT_OF_MEMORY = 1, /* of the device, by the limit, or ever so large */
    GPUMEM_ERROR_HOST_MEMORY = 2,
    GPUMEM_ERROR_INVALID_VALUE = 3,
    GPUMEM_ERROR_INVALID_DEVICE = 4,
    GPUMEM_ERROR_NOT_OWNED = 5, /* no live memory of this interface starts there */
    GPUMEM_ERROR_CAPTURING = 6, /* not while the stream is recorded */
    GPUMEM_ERROR_STREAM_GONE = 7,
    GPUMEM_ERROR_FORKED = 8,
    GPUMEM_ERROR_EXITING = 9,
    GPUMEM_ERROR_NOT_LOADED = 10, /* the Python module gpumem is not there */
    GPUMEM_ERROR_PYTHON = 11,     /* Python code raised */
    GPUMEM_ERROR_DEVICE = 12,     /* the device's runtime refused */
    GPUMEM_ERROR_UNSUPPORTED = 13,
    GPUMEM_ERROR_INTERNAL = 14
} gpumem_status;

#define GPUMEM_CURRENT_DEVICE (-1)

/* A pool for all devices, as its holder sees it. Counted: the holder lets go by
 * gpumem_pool_release, and memory that is in use keeps it besides. */
typedef struct gpumem_pool gpumem_pool;

enum {
    /* A request never waits for the interpreter: no garbage is looked for, nobody is
     * asked, and what a Python callable would have to give is refused. For callers that
     * hold locks. */
    GPUMEM_NO_PYTHON = 1u << 0
};

/* Set struct_size to sizeof; what is 0 is the default. */
typedef struct gpumem_options {
    size_t struct_size;
    const char *client; /* on whose account memory is, as stats_by_client() tells;
                           NULL: the calling thread's, of gpumem.client() */
    unsigned flags;
} gpumem_options;

/* Set struct_size to sizeof; fields that the library does not know stay as they are. In
 * bytes; docs/statistics.md explains each. */
typedef struct gpumem_stats {
    size_t struct_size;
    size_t requested_bytes;
    size_t used_bytes;
    size_t free_bytes;
    size_t pending_bytes;
    size_t captured_bytes;
    size_t total_bytes;
    size_t limit_bytes;
    size_t peak_used_bytes;
    size_t peak_total_bytes;
    size_t live_blocks; /* a number */
} gpumem_stats;

/* About one allocation; struct_size as above. */
typedef struct gpumem_info {
    size_t struct_size;
    size_t size;      /* usable from its start */
    size_t requested; /* what was asked for */
    int device;
    void *base; /* start of what the device gave, and how long that is */
    size_t base_size;
} gpumem_info;

/* The program's default pool, gpumem.get_default_memory_pool(); a new MemoryPool; or
 * `pool`, a MemoryPool or SingleDeviceMemoryPool (a PyObject *, borrowed; the caller
 * has the interpreter). `options` may be NULL. *out is to be released. INVALID_VALUE: a
 * client's name is empty or longer than 255 bytes, or `pool` is no pool of device
 * memory. */
GPUMEM_EXPORT int gpumem_pool_default(const gpumem_options *options, gpumem_pool **out);
GPUMEM_EXPORT int gpumem_pool_create(const gpumem_options *options, gpumem_pool **out);
GPUMEM_EXPORT int
gpumem_pool_borrow(void *pool, const gpumem_options *options, gpumem_pool **out);

/* Lets go of a pool; NULL is none. Memory in use stays valid. */
GPUMEM_EXPORT void gpumem_pool_release(gpumem_pool *pool);

/* `size` > 0 bytes of `device`, aligned to 512, for use in the order of `stream`.
 * `stream_id` is the runtime's number of the stream (cudaStreamGetId) where the caller
 * knows it, else 0: then it is asked for, which takes about 100 ns, and nothing for a
 * default stream; a handle alone is no identity, for it is given out again. While the
 * stream is recorded it cannot be asked: CAPTURING.
 *
 * Out of memory: waits for what streams have still in use, gives idle memory back, of
 * this pool and others, collects garbage, asks the pool's callback. The last error has
 * the text of Python's OutOfMemoryError then. */
GPUMEM_EXPORT int gpumem_malloc(gpumem_pool *pool,
                                size_t size,
                                int device,
                                void *stream,
                                uint64_t stream_id,
                                void **out);

/* Gives back what gpumem_malloc gave; NULL is nothing. Waits for nothing: work that is
 * queued on its stream may still use the memory, and what was recorded by
 * gpumem_record_stream. NOT_OWNED: it is not ours, or was given back. */
GPUMEM_EXPORT int gpumem_free(void *ptr);

/* The memory is used on this stream too: once given back it goes to nobody else before
 * the stream has done what is queued on it by then. */
GPUMEM_EXPORT int gpumem_record_stream(void *ptr, void *stream);

GPUMEM_EXPORT int gpumem_pointer_info(const void *ptr, gpumem_info *out);

/* The counters of the pool on one device; zeros where it was not used. */
GPUMEM_EXPORT int gpumem_pool_stats(gpumem_pool *pool, int device, gpumem_stats *out);

/* The most that the pool may hold of a device; 0 for no limit. */
GPUMEM_EXPORT int gpumem_pool_set_limit(gpumem_pool *pool, int device, size_t bytes);

/* Gives what is cached and idle back to the device, and waits until that is done with
 * it. */
GPUMEM_EXPORT int gpumem_pool_trim(gpumem_pool *pool, int device);

/* What went wrong last on the calling thread, with numbers and what to do; never NULL,
 * valid until the next call that fails there. And what a status is in general. */
GPUMEM_EXPORT const char *gpumem_last_error(void);
GPUMEM_EXPORT const char *gpumem_status_text(int status);

/* The same as a table. */
typedef struct gpumem_api {
    size_t struct_size;
    unsigned version; /* GPUMEM_API_VERSION */
    int (*pool_default)(const gpumem_options *options, gpumem_pool **out);
    int (*pool_create)(const gpumem_options *options, gpumem_pool **out);
    int (*pool_borrow)(void *pool, const gpumem_options *options, gpumem_pool **out);
    void (*pool_release)(gpumem_pool *pool);
    int (*malloc)(gpumem_pool *pool,
                  size_t size,
                  int device,
                  void *stream,
                  uint64_t stream_id,
                  void **out);
    int (*free)(void *ptr);
    int (*record_stream)(void *ptr, void *stream);
    int (*pointer_info)(const void *ptr, gpumem_info *out);
    int (*pool_stats)(gpumem_pool *pool, int device, gpumem_stats *out);
    int (*pool_set_limit)(gpumem_pool *pool, int device, size_t bytes);
    int (*pool_trim)(gpumem_pool *pool, int device);
    const char *(*last_error)(void);
    const char *(*status_text)(int status);
} gpumem_api;

/* The table, static; never NULL. */
GPUMEM_EXPORT const gpumem_api *gpumem_get_api(void);

/* torch's name of memory that graphs share, a std::pair. */
typedef struct gpumem_torch_id {
    uint64_t first;
    uint64_t second;
} gpumem_torch_id;

/* Of the shapes that torch takes an allocator's by, for gpumem.interop.torch, which
 * says which pool they are about; without that they do nothing. The first throws C++
 * exceptions, the second returns NULL. */
GPUMEM_EXPORT void *gpumem_torch_alloc(ssize_t size, int device, void *stream);
GPUMEM_EXPORT void *gpumem_torch_pool_alloc(ssize_t size, int device, void *stream);
GPUMEM_EXPORT void gpumem_torch_free(void *ptr, ssize_t size, int device, void *stream);
GPUMEM_EXPORT void gpumem_torch_record_stream(void *ptr, void *stream);
GPUMEM_EXPORT void gpumem_torch_empty_cache(void);
GPUMEM_EXPORT void gpumem_torch_memory_fraction(double fraction, int device);
GPUMEM_EXPORT void *gpumem_torch_base_alloc(void *ptr, size_t *size);
GPUMEM_EXPORT void
gpumem_torch_begin_pool(int device, gpumem_torch_id id, void *filter);
GPUMEM_EXPORT void gpumem_torch_end_pool(int device, gpumem_torch_id id);
GPUMEM_EXPORT void gpumem_torch_release_pool(int device, gpumem_torch_id id);

#ifdef Py_PYTHON_H

#define GPUMEM_CAPSULE "gpumem._core._C_API"

/* Imports gpumem and returns its table; for extensions, once, with the interpreter's
 * lock. NULL with ImportError where it has another version, or cannot be imported. */
static inline const gpumem_api *
gpumem_import(void)
{
    const gpumem_api *api = (const gpumem_api *)PyCapsule_Import(GPUMEM_CAPSULE, 0);

    if (api && api->version != GPUMEM_API_VERSION) {
        PyErr_Format(PyExc_ImportError,
                     "gpumem has version %u of its C interface, and this was compiled "
                     "for version %d: compile it again",
                     api->version, GPUMEM_API_VERSION);
        return NULL;
    }
    return api;
}

#endif

#ifdef __cplusplus
}
#endif

#endif
