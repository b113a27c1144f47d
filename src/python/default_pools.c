/* SPDX-License-Identifier: MIT
 *
 * The pools that belong to nobody: one of device memory and one of page-locked host
 * memory, made when they are first asked for and kept until the process ends, so that
 * parts of a program that do not know each other can share one cache.
 *
 * Importing installs neither: until the program says otherwise, memory comes straight
 * from the device, and None as an allocator means that again. use_default_memory_pool
 * is the one call that leads to the pool, at first and back.
 *
 * Threading: any thread; all get the same pool.
 */
#include "module.h"
#include "pinned.h"

/* The pool at `place`, made by calling `type` if there is none: new reference. */
static PyObject *
pool_at(gmpy_state *st, PyObject **place, PyObject *type)
{
    PyObject *pool = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    PyObject *made;

    if (pool) {
        return Py_NewRef(pool); // it stays until the module is cleared
    }
    made = PyObject_CallNoArgs(type);
    if (!made) {
        return NULL;
    }
    GMPY_LOCK(&st->allocator_lock);
    if (!*place) { // nobody else made one meanwhile
        __atomic_store_n(place, Py_NewRef(made), __ATOMIC_RELEASE);
    }
    pool = Py_NewRef(*place);
    GMPY_UNLOCK(&st->allocator_lock);
    Py_DECREF(made);
    return pool;
}

PyObject *
gmpy_default_pool(gmpy_state *st)
{
    return pool_at(st, &st->default_pool, st->MemoryPoolType);
}

PyDoc_STRVAR(
    get_default_memory_pool_doc,
    "get_default_memory_pool()\n"
    "--\n"
    "\n"
    "Returns the MemoryPool that all parts of a program share.\n"
    "\n"
    "The first call makes it; it lives until the process ends. That does not make\n"
    "it the allocator: use_default_memory_pool does. Safe from any thread.");

static PyObject *
get_default_memory_pool(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    return gmpy_default_pool(gmpy_state_of_module(module));
}

PyDoc_STRVAR(use_default_memory_pool_doc,
             "use_default_memory_pool()\n"
             "--\n"
             "\n"
             "Makes the default pool's malloc the allocator, for all threads.\n"
             "\n"
             "The same as set_allocator(get_default_memory_pool().malloc); what\n"
             "get_allocator returns is equal to that then.\n"
             "\n"
             "Returns:\n"
             "    MemoryPool: the default pool.\n"
             "\n"
             "Raises:\n"
             "    ValueError: this thread is inside using_allocator.");

static PyObject *
use_default_memory_pool(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *pool;
    PyObject *allocator;

    if (gmpy_check_no_scope("use_default_memory_pool") < 0) {
        return NULL;
    }
    pool = get_default_memory_pool(module, NULL);
    allocator = pool ? PyObject_GetAttrString(pool, "malloc") : NULL;
    if (!allocator) {
        Py_XDECREF(pool);
        return NULL;
    }
    gmpy_set_allocator(st, &st->allocator, allocator);
    Py_DECREF(allocator);
    return pool;
}

PyDoc_STRVAR(
    get_default_pinned_memory_pool_doc,
    "get_default_pinned_memory_pool()\n"
    "--\n"
    "\n"
    "Returns the PinnedMemoryPool that all parts of a program share.\n"
    "\n"
    "The first call makes it; it lives until the process ends. That does not make\n"
    "it the allocator: set_pinned_memory_allocator with its malloc does. Safe from\n"
    "any thread.");

static PyObject *
get_default_pinned_memory_pool(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);

    return pool_at(st, &st->default_pinned_pool, st->PinnedMemoryPoolType);
}

PyMethodDef gmpy_default_pools_methods[] = {
    {"get_default_memory_pool", get_default_memory_pool, METH_NOARGS,
     get_default_memory_pool_doc},
    {"use_default_memory_pool", use_default_memory_pool, METH_NOARGS,
     use_default_memory_pool_doc},
    {"get_default_pinned_memory_pool", get_default_pinned_memory_pool, METH_NOARGS,
     get_default_pinned_memory_pool_doc},
    {0},
};
