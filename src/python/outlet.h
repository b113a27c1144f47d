/* SPDX-License-Identifier: MIT
 *
 * What the files behind gpumem.interop share: a pool's memory for another library.
 */
#ifndef GMPY_OUTLET_H
#define GMPY_OUTLET_H

#include "module.h"

/* ---- outlet.c ---- */

typedef struct gmpy_outlet {
    PyObject_HEAD
    gmpy_state *st;
    PyObject *pool; // a MemoryPool or a SingleDeviceMemoryPool
    uint16_t client;
} gmpy_outlet;

int gmpy_outlet_init(PyObject *module, gmpy_state *st);

static inline bool
gmpy_is_outlet(gmpy_state *st, PyObject *op)
{
    return Py_IS_TYPE(op, gmpy_type(st->OutletType));
}

/* Memory of `device`, which exists, for use in the order of a stream that is known by
 * its native handle. A MemoryPointer: new reference. */
PyObject *
gmpy_outlet_take(gmpy_outlet *self, size_t size, int device, gm_stream stream);

/* ---- cupy_allocator.c ---- */

int gmpy_cupy_allocator_init(PyObject *module, gmpy_state *st);

#endif
