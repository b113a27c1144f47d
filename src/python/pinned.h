/* SPDX-License-Identifier: MIT
 *
 * Page-locked host memory: what the files of its types share, and the default pools.
 *
 * PinnedMemoryPointer -> PinnedMemory (Python reference); PooledPinnedMemory -> block
 * -> native pool. A buffer over a pointer holds the pointer.
 */
#ifndef GMPY_PINNED_H
#define GMPY_PINNED_H

#include "module.h"

/* ---- pinned_memory.c ---- */

int gmpy_pinned_memory_init(PyObject *module, gmpy_state *st);
extern PyMethodDef gmpy_pinned_memory_methods[];

/* ---- pooled_pinned_memory.c ---- */

int gmpy_pooled_pinned_memory_init(PyObject *module, gmpy_state *st);

/* As gmpy_pooled_memory_new, of a pool of pinned memory. */
PyObject *gmpy_pooled_pinned_memory_new(gmpy_state *st, gm_pool *pool, gm_block *block);

/* Whether its pool has not forgotten the block, as it does with the device's reset. Of
 * this exact type. */
bool gmpy_pooled_pinned_memory_is_there(PyObject *mem);

/* One buffer over pinned memory more or less: while there is one over a pooled block,
 * that does not go back. */
void gmpy_pooled_pinned_memory_export(PyObject *mem);
void gmpy_pooled_pinned_memory_unexport(PyObject *mem);

/* ---- pinned_pointer.c ---- */

int gmpy_pinned_pointer_init(PyObject *module, gmpy_state *st);

/* A PinnedMemoryPointer into `mem`, whose reference it takes over also on failure. */
PyObject *gmpy_pinned_pointer_new(gmpy_state *st, PyObject *mem, uintptr_t ptr);

/* The same to the start of `mem`, which may be NULL with an exception. */
PyObject *gmpy_pinned_pointer_to_new(gmpy_state *st, PyObject *mem);

static inline bool
gmpy_is_pinned_pointer(gmpy_state *st, PyObject *op)
{
    return PyObject_TypeCheck(op, gmpy_type(st->PinnedMemoryPointerType));
}

/* ---- pinned_pool.c ---- */

int gmpy_pinned_pool_init(PyObject *module, gmpy_state *st);

/* ---- pinned_allocator.c, default_pools.c ---- */

extern PyMethodDef gmpy_pinned_allocator_methods[];
extern PyMethodDef gmpy_default_pools_methods[];

/* The program's default pool of device memory: new reference. */
PyObject *gmpy_default_pool(gmpy_state *st);

#endif
