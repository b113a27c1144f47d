/* SPDX-License-Identifier: MIT
 *
 * What the files behind the C interface (gpumem/include/gpumem.h) share.
 *
 * C callers have no object of ours and may be on threads that Python never saw, so what
 * they reach hangs on one word of the process (core/gm_process.h): the table of what
 * they were handed out, the names of clients, the module's state. It is there as long
 * as the module, and for the rest of a process that is exiting.
 */
#ifndef GMPY_CAPI_H
#define GMPY_CAPI_H

#include "module.h"

#include "core/gm_capture.h"
#include "core/gm_client.h"
#include "core/gm_note.h" // gm_stream_use
#include "core/gm_raw.h"

#define GPUMEM_EXPORT __attribute__((visibility("default")))
#include "gpumem.h"

#include <stdatomic.h>

typedef struct gmpy_cxx gmpy_cxx;
typedef struct gmpy_torch_graphs gmpy_torch_graphs;

typedef struct gmpy_c_api {
    gmpy_state *st;
    gm_raw_table raws;
    gm_clients clients;
    gpumem_pool *torch;       // what torch takes from, NULL for none; it stays
    gpumem_pool *torch_alone; // the same, without Python
    gmpy_cxx *cxx;            // how torch is told of errors
    gmpy_torch_graphs *torch_graphs;
} gmpy_c_api;

/* A pool as C code holds it. References: its holders, and what is in use. The last one
 * drops the object, for which it attaches to the interpreter. */
struct gpumem_pool {
    atomic_size_t refs;
    gmpy_c_api *api;
    PyObject *object; // a MemoryPool or a SingleDeviceMemoryPool
    unsigned flags;   // GPUMEM_*
    bool named;       // has a client of its own; else it is the thread's
    uint16_t client;
    int device_count;
    _Atomic(gm_pool *) natives[]; // one a device, NULL until used; `object` keeps them
};

/* ---- capi_error.c ---- */

typedef struct gmpy_c_error {
    char text[1024];
} gmpy_c_error;

extern _Thread_local gmpy_c_error gmpy_this_c_error;

/* Notes why a call fails, and returns the gpumem_status for it; `what` names the
 * operation. GM_ERR_CALLBACK: noted already. Needs no interpreter. */
int gmpy_c_fail(const gmpy_c_api *api, gm_status status, const char *what);

/* The same with a text of its own. */
int gmpy_c_fail_text(gpumem_status status, const char *format, ...)
    Py_GCC_ATTRIBUTE((format(printf, 2, 3)));

/* The same for the pending exception, which it takes. Attached. */
int gmpy_c_fail_exception(gmpy_state *st);

/* ---- capi_pool.c ---- */

/* The native pool of a device, which may be GPUMEM_CURRENT_DEVICE; with `make` it is
 * made where there is none, otherwise *out is NULL then. Attaches where this is the
 * first use there. A gpumem_status. */
int gmpy_c_native(gpumem_pool *pool, int device, bool make, gm_pool **out, int *number);

static inline void
gmpy_c_ref(gpumem_pool *pool)
{
    atomic_fetch_add_explicit(&pool->refs, 1, memory_order_relaxed);
}

void gmpy_c_unref(gpumem_pool *pool);

/* Where the caller is attached to the interpreter, lets go of it until gmpy_c_attach is
 * given what this returned. */
static inline PyThreadState *
gmpy_c_detach(void)
{
    return GMPY_IS_ATTACHED() ? PyEval_SaveThread() : NULL;
}

static inline void
gmpy_c_attach(PyThreadState *attached)
{
    if (attached) {
        PyEval_RestoreThread(attached);
    }
}

/* ---- capi_memory.c ---- */

/* gpumem_malloc for the memory of `capture`, or of none: NULL. A capture takes from the
 * device what it lacks, which the caller has seen to. */
int gmpy_c_malloc(gpumem_pool *pool,
                  size_t size,
                  int device,
                  void *stream,
                  uint64_t stream_id,
                  gm_capture *capture,
                  void **out);

/* ---- capi_torch.c ---- */

extern PyMethodDef gmpy_c_torch_methods[];

/* ---- capi_torch_graphs.c ---- */

/* NULL: no host memory. It stays. */
gmpy_torch_graphs *gmpy_torch_graphs_new(void);

/* A graph is about to be recorded with the memory of that name; GM_BUSY: one is being
 * recorded with it. The recording ends; the graph ends. Detached. */
gm_status gmpy_torch_graphs_begin(gmpy_c_api *api, int device, gpumem_torch_id id);
void gmpy_torch_graphs_end(gmpy_c_api *api, int device, gpumem_torch_id id);
void gmpy_torch_graphs_release(gmpy_c_api *api, int device, gpumem_torch_id id);

/* Ends recordings that failed, of which torch says nothing. Detached. */
void gmpy_torch_graphs_tidy(gmpy_c_api *api);

/* The memory is used on a stream that is being recorded: gmpy_torch_graphs_keep, which
 * is asked for all that torch drops, is true for it to the end of the recording, and
 * gives it back then. GM_ERR_HOST_MEMORY. */
gm_status gmpy_torch_graphs_use(gmpy_c_api *api, void *memory);
bool gmpy_torch_graphs_keep(gmpy_c_api *api, const void *memory);

/* Whether something is being recorded. Cheap. */
bool gmpy_torch_graphs_any(const gmpy_c_api *api);

/* The capture of the recording in which the stream takes part, NULL for none: a
 * reference for the caller. */
gm_capture *gmpy_torch_graphs_find(gmpy_c_api *api, int device, void *stream);

/* ---- capi.c ---- */

/* For the module: begins and ends the C interface. 0, or -1 with an exception. */
int gmpy_c_init(PyObject *module, gmpy_state *st);
void gmpy_c_fini(gmpy_state *st);

/* What every call begins with: *out, or a gpumem_status that says why not. */
int gmpy_c_begin(gmpy_c_api **out);

#endif
