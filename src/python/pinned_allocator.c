/* SPDX-License-Identifier: MIT
 *
 * Which allocator of page-locked host memory is current, and allocating through it.
 *
 * There is one for all threads; memory of the host needs no scoped one. At import it is
 * malloc_pinned, which uses no pool, as the device's allocator is malloc.
 *
 * Threading: it may be changed while other threads allocate; each request uses one or
 * the other.
 */
#include "module.h"
#include "pinned.h"

PyDoc_STRVAR(alloc_pinned_memory_doc,
             "alloc_pinned_memory(size)\n"
             "--\n"
             "\n"
             "Allocates page-locked host memory through the allocator of\n"
             "set_pinned_memory_allocator.\n"
             "\n"
             "Args:\n"
             "    size (int): bytes.\n"
             "\n"
             "Returns:\n"
             "    PinnedMemoryPointer: what the allocator returned.\n"
             "\n"
             "Raises:\n"
             "    TypeError: the allocator returned something else.\n"
             "    Whatever the allocator raises.");

static PyObject *
alloc_pinned_memory(PyObject *module,
                    PyObject *const *args,
                    Py_ssize_t nargs,
                    PyObject *kwnames)
{
    static const gmpy_signature signature = {"alloc_pinned_memory", 1, 1, 1, {"size"}};
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *given[1];
    PyObject *allocator;
    PyObject *result;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    allocator = gmpy_get_allocator(st, &st->pinned_allocator);
    result = PyObject_CallOneArg(allocator, given[0]);
    Py_DECREF(allocator);
    if (result && !gmpy_is_pinned_pointer(st, result)) {
        PyErr_Format(PyExc_TypeError,
                     "the allocator must return a PinnedMemoryPointer, not %s",
                     Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    return result;
}

PyDoc_STRVAR(
    set_pinned_memory_allocator_doc,
    "set_pinned_memory_allocator(allocator=None)\n"
    "--\n"
    "\n"
    "Sets the allocator that alloc_pinned_memory uses, for all threads.\n"
    "\n"
    "Args:\n"
    "    allocator (callable): called with a size in bytes, returns a\n"
    "        PinnedMemoryPointer; usually the malloc of a PinnedMemoryPool. None\n"
    "        is malloc_pinned, which uses no pool.\n"
    "\n"
    "Raises:\n"
    "    TypeError: allocator is not callable.");

static PyObject *
set_pinned_memory_allocator(PyObject *module,
                            PyObject *const *args,
                            Py_ssize_t nargs,
                            PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "set_pinned_memory_allocator", 1, 0, 1, {"allocator"}};
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *given[1];
    PyObject *allocator;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    allocator = gmpy_as_allocator(given[0], st->raw_malloc_pinned);
    if (!allocator) {
        return NULL;
    }
    gmpy_set_allocator(st, &st->pinned_allocator, allocator);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(get_pinned_memory_allocator_doc,
             "get_pinned_memory_allocator()\n"
             "--\n"
             "\n"
             "Returns the allocator that alloc_pinned_memory uses.");

static PyObject *
get_pinned_memory_allocator(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);

    return gmpy_get_allocator(st, &st->pinned_allocator);
}

PyMethodDef gmpy_pinned_allocator_methods[] = {
    {"alloc_pinned_memory", (PyCFunction)(void (*)(void))alloc_pinned_memory,
     METH_FASTCALL | METH_KEYWORDS, alloc_pinned_memory_doc},
    {"set_pinned_memory_allocator",
     (PyCFunction)(void (*)(void))set_pinned_memory_allocator,
     METH_FASTCALL | METH_KEYWORDS, set_pinned_memory_allocator_doc},
    {"get_pinned_memory_allocator", get_pinned_memory_allocator, METH_NOARGS,
     get_pinned_memory_allocator_doc},
    {0},
};
