/* SPDX-License-Identifier: MIT
 *
 * Kinds of memory that not every device has: what the files of their types share.
 */
#ifndef GMPY_MEMORY_KINDS_H
#define GMPY_MEMORY_KINDS_H

#include "module.h"

/* ---- device_support.c ---- */

/* 0 where the device has the ability, a GM_DEVICE_*; else -1 with RuntimeError, which
 * says that the device cannot `what`. The backend is open. */
int
gmpy_require_support(gmpy_state *st, int device, unsigned ability, const char *what);

/* ---- managed_memory.c ---- */

/* prefetch and advise, of the types whose memory moves between host and devices: for
 * their tables of methods. */
PyObject *gmpy_memory_prefetch(PyObject *self,
                               PyObject *const *args,
                               Py_ssize_t nargs,
                               PyObject *kwnames);
PyObject *gmpy_memory_advise(PyObject *self,
                             PyObject *const *args,
                             Py_ssize_t nargs,
                             PyObject *kwnames);
extern const char gmpy_memory_prefetch_doc[];
extern const char gmpy_memory_advise_doc[];

#define GMPY_MIGRATION_METHODS                                                         \
    {"prefetch", (PyCFunction)(void (*)(void))gmpy_memory_prefetch,                    \
     METH_FASTCALL | METH_KEYWORDS, gmpy_memory_prefetch_doc},                         \
    {                                                                                  \
        "advise", (PyCFunction)(void (*)(void))gmpy_memory_advise,                     \
            METH_FASTCALL | METH_KEYWORDS, gmpy_memory_advise_doc                      \
    }

/* ---- system_memory.c ---- */

int gmpy_system_memory_init(PyObject *module, gmpy_state *st);
extern PyMethodDef gmpy_system_memory_methods[];

/* ---- ipc.c ---- */

int gmpy_ipc_init(PyObject *module, gmpy_state *st);

/* The number of the device's life that an IPCMemory is of, 0 where it has none. */
uint64_t gmpy_ipc_memory_life(PyObject *self, int *device);
extern PyMethodDef gmpy_ipc_methods[];

/* ---- memory_async.c, memory_async_pool.c ---- */

int gmpy_memory_async_init(PyObject *module, gmpy_state *st);

/* The same of a MemoryAsync. */
uint64_t gmpy_memory_async_life(PyObject *self, int *device);
extern PyMethodDef gmpy_memory_async_methods[];

/* Stream-ordered memory of the calling thread's current stream and device: a
 * MemoryAsync, new reference. With `refused`, which the caller set to GM_OK, want of
 * memory and a stream that is being recorded raise nothing: it says which it was,
 * GM_ERR_OUT_OF_MEMORY or GM_ERR_CAPTURING. */
PyObject *gmpy_memory_async_new(gmpy_state *st, size_t size, gm_status *refused);

/* What a device without such memory cannot do. */
#define GMPY_LACK_OF_POOLS                                                             \
    "allocate memory in stream order (it has no memory pools); use MemoryPool instead"

int gmpy_memory_async_pool_init(PyObject *module, gmpy_state *st);

#endif
