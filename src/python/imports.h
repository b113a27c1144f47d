/* SPDX-License-Identifier: MIT
 *
 * Memory of other libraries: what the files that take it in share.
 */
#ifndef GMPY_IMPORTS_H
#define GMPY_IMPORTS_H

#include "exchange.h"

/* ---- import_memory.c ---- */

enum {
    GMPY_MOST_AXES = 64,
};

/* An array, as a protocol describes it. */
typedef struct gmpy_array {
    uintptr_t ptr;
    int ndim; // at most GMPY_MOST_AXES
    const int64_t *shape;
    const int64_t *strides; // in items; NULL: row after row
    size_t item_bits;
} gmpy_array;

/* The bytes that it takes up. 0; or -1 with BufferError where there are bytes between
 * its items that are not its own, ValueError where the description makes no sense. */
int gmpy_array_size(const gmpy_array *array, size_t *out);

/* The device that memory at `ptr` is seen through: its own, and for plain host memory
 * the current one, if that reaches it. 0 or -1 with BufferError. */
int gmpy_import_device(gmpy_state *st, uintptr_t ptr, int *out);

/* A MemoryPointer to `size` bytes there, which keeps `owner`: new reference. */
PyObject *gmpy_import_pointer(
    gmpy_state *st, uintptr_t ptr, size_t size, PyObject *owner, int device);

/* ---- dlpack_import.c, cuda_array_import.c ---- */

extern PyMethodDef gmpy_dlpack_import_methods[];
extern PyMethodDef gmpy_cuda_array_import_methods[];

#endif
