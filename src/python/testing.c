/* SPDX-License-Identifier: MIT
 *
 * What gpumem.testing is made of, where it is about any device: where a block lies,
 * whether a pool's invariants hold, the last error. What is about the simulated device
 * is in testing_sim.c and testing_drive.c.
 */
#include "pointer.h"
#include "pools.h"
#include "stream.h"
#include "testing.h"

/* ---- pools ---- */

PyDoc_STRVAR(
    placement_doc,
    "_placement(pointer, /)\n"
    "--\n"
    "\n"
    "Returns (segment serial, offset) of the block a MemoryPointer points into.");

static PyObject *
testing_placement(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *behind = NULL;
    gmpy_used used;
    uint64_t serial;
    size_t offset;
    gm_status status;

    if (gmpy_is_pointer(st, arg) &&
        gmpy_pointer_mem((gmpy_pointer *)arg, &behind) < 0) {
        return NULL;
    }
    if (!gmpy_is_pooled(st, behind)) {
        PyErr_SetString(PyExc_TypeError, "expected a MemoryPointer into pooled memory");
        return NULL;
    }
    used = gmpy_used_begin(st, behind);
    status = used.pool ? gm_pool_placement(used.pool, used.block, used.generation,
                                           &serial, &offset)
                       : GM_ERR_NOT_OWNED;
    gmpy_used_end(&used);
    if (status != GM_OK) {
        PyErr_SetString(PyExc_ValueError, "the memory was given back");
        return NULL;
    }
    return Py_BuildValue("(KK)", (unsigned long long)serial,
                         (unsigned long long)offset);
}

PyDoc_STRVAR(
    check_pool_doc,
    "_check_pool(pool, /)\n"
    "--\n"
    "\n"
    "Walks a pool's structures. Returns None, or the invariant that is broken.");

static PyObject *
testing_check_pool(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    gmpy_any_pool *self = (gmpy_any_pool *)arg;
    const char *broken = NULL;
    gm_pool *pool;
    int device;
    int found;

    if (!PyObject_TypeCheck(arg, gmpy_type(st->BasePoolType))) {
        PyErr_SetString(PyExc_TypeError, "expected a memory pool");
        return NULL;
    }
    found = self->find(self, NULL, false, &pool, &device);
    if (found < 0) {
        return NULL;
    }
    if (found) {
        Py_BEGIN_ALLOW_THREADS
        broken = gm_pool_check(pool);
        Py_END_ALLOW_THREADS
    }
    return Py_BuildValue("z", broken);
}

/* ---- every device ---- */

PyDoc_STRVAR(last_error_doc,
             "_last_error()\n"
             "--\n"
             "\n"
             "Returns the code in the calling thread's last-error slot, 0 when clean.");

static PyObject *
testing_last_error(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    const gm_backend *backend = gmpy_backend(gmpy_state_of_module(module));

    return backend ? PyLong_FromLong(gm_backend_last_error(backend)) : NULL;
}

PyMethodDef gmpy_testing_methods[] = {
    {"_placement", testing_placement, METH_O, placement_doc},
    {"_check_pool", testing_check_pool, METH_O, check_pool_doc},
    {"_last_error", testing_last_error, METH_NOARGS, last_error_doc},
    {0},
};
