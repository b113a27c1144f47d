/* SPDX-License-Identifier: MIT
 *
 * What the files of the pointer types share: the memory behind one, arithmetic, and the
 * other side of a copy. The struct itself is module.h's.
 */
#ifndef GMPY_POINTER_H
#define GMPY_POINTER_H

#include "module.h"

/* ---- pooled_memory.c ---- */

/* The handle of a block that was handed out at `generation`. It takes the block over
 * from a pointer, which has it still where this fails. New reference. */
PyObject *gmpy_pooled_memory_new(gmpy_state *st,
                                 gm_pool *pool,
                                 gm_block *block,
                                 uint32_t generation);

/* Ends the handle of a block. Calls no hooks. */
void gmpy_block_give_back(gm_pool *pool, gm_block *block, uint32_t generation);

/* ---- memory_pointer.c ---- */

/* The memory of a pointer: *out is borrowed, and NULL where the pointer was not
 * initialized. Later calls give the same, and `mem` can be read as it is. 0, or -1 with
 * MemoryError. */
int gmpy_pointer_make_mem(gmpy_pointer *pointer, PyObject **out);

static inline int
gmpy_pointer_mem(gmpy_pointer *pointer, PyObject **out)
{
    *out = GMPY_SEE(&pointer->mem);
    return *out || !pointer->block ? 0 : gmpy_pointer_make_mem(pointer, out);
}

/* __init__ of a pointer type for memory of type `kind`: fills the pointer in, once, so
 * that other threads see all of it or nothing. 0 or -1. */
int gmpy_pointer_init_once(gmpy_pointer *self,
                           gmpy_state *st,
                           PyObject *kind,
                           const gmpy_signature *signature,
                           PyObject *args,
                           PyObject *kwargs);

/* -1 with the ValueError for a pointer that was not initialized. */
int gmpy_pointer_is_none(const gmpy_pointer *self);

/* The handle of a block just handed out, which it takes over; on failure the block has
 * gone back to the pool. A MemoryPointer: new reference. */
PyObject *gmpy_pointer_to_block(gmpy_state *st, gm_pool *pool, gm_block *block);

/* ---- pointer_arithmetic.c ---- */

/* `address + offset` where both stay addresses, and 0 only where the offset is 0. 0, or
 * -1 with AssertionError or OverflowError. */
int gmpy_address_add(uintptr_t address, ptrdiff_t offset, uintptr_t *out);

PyObject *gmpy_pointer_int(PyObject *self);
PyObject *gmpy_pointer_add(PyObject *a, PyObject *b);
PyObject *gmpy_pointer_subtract(PyObject *a, PyObject *b);
PyObject *gmpy_pointer_inplace_add(PyObject *self, PyObject *number);
PyObject *gmpy_pointer_inplace_subtract(PyObject *self, PyObject *number);

/* Has NumPy leave `number + pointer` to the type, with a number of its own too: it
 * would take the pointer for the array that its buffer is, read all of it, and add to
 * that. 0 or -1. */
int gmpy_pointer_keep_ufuncs_out(PyObject *type);

/* The slots of a pointer type that these fill. */
#define GMPY_POINTER_ARITHMETIC                                                        \
    {Py_nb_int, gmpy_pointer_int}, {Py_nb_add, gmpy_pointer_add},                      \
        {Py_nb_subtract, gmpy_pointer_subtract},                                       \
        {Py_nb_inplace_add, gmpy_pointer_inplace_add},                                 \
    {                                                                                  \
        Py_nb_inplace_subtract, gmpy_pointer_inplace_subtract                          \
    }

/* ---- host_range.c ---- */

/* Host memory that an argument stands for. */
typedef struct gmpy_host_range {
    uintptr_t address;
    Py_buffer buffer; // obj is NULL where no buffer is held
} gmpy_host_range;

/* `size` > 0 bytes of host memory, to be written or read. 0; or -1 with TypeError,
 * BufferError, OverflowError, or ValueError for a buffer that is too short, and nothing
 * held. */
int gmpy_host_range_init(
    gmpy_state *st, PyObject *arg, size_t size, bool writable, gmpy_host_range *out);
void gmpy_host_range_fini(gmpy_host_range *range);

/* ---- pointer_copy.c ---- */

/* The methods of MemoryPointer: copies, fills, record_stream. */
extern PyMethodDef gmpy_pointer_methods[];

#endif
