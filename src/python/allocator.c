/* SPDX-License-Identifier: MIT
 *
 * Which allocator is current, and allocating through it.
 *
 * There is one global allocator, and each thread may have a scoped one that stands
 * before it (using_allocator, written in Python over the two private functions here;
 * its scopes are kept by thread.c).
 *
 * Cost: alloc recognises the bound malloc of a MemoryPool and goes straight there, so
 * it costs little more than calling that. Threading: the global allocator may be
 * changed while other threads allocate; each request uses one or the other.
 */
#include "pools.h"

PyObject *
gmpy_get_allocator(gmpy_state *st, PyObject **place)
{
    PyObject *allocator;

    GMPY_LOCK(&st->allocator_lock);
    allocator = Py_NewRef(*place);
    GMPY_UNLOCK(&st->allocator_lock);
    return allocator;
}

void
gmpy_set_allocator(gmpy_state *st, PyObject **place, PyObject *allocator)
{
    PyObject *before;

    GMPY_LOCK(&st->allocator_lock);
    before = *place;
    *place = Py_NewRef(allocator);
    GMPY_UNLOCK(&st->allocator_lock);
    Py_DECREF(before); // may run Python code, so after the change is complete
}

PyObject *
gmpy_as_allocator(PyObject *arg, PyObject *raw)
{
    if (!arg || arg == Py_None) {
        return raw;
    }
    if (!PyCallable_Check(arg)) {
        return PyErr_Format(PyExc_TypeError,
                            "allocator must be callable or None, not %s",
                            Py_TYPE(arg)->tp_name);
    }
    return arg;
}

int
gmpy_check_no_scope(const char *name)
{
    if (gmpy_this_thread.allocator) {
        PyErr_Format(PyExc_ValueError, "%s cannot be called inside using_allocator",
                     name);
        return -1;
    }
    return 0;
}

/* The allocator of the calling thread: new reference. */
static PyObject *
current_allocator(gmpy_state *st)
{
    const gmpy_thread *thread = gmpy_settings(st);
    PyObject *allocator = thread ? thread->allocator : NULL;

    return allocator ? Py_NewRef(allocator) : gmpy_get_allocator(st, &st->allocator);
}

PyDoc_STRVAR(
    alloc_doc,
    "alloc(size)\n"
    "--\n"
    "\n"
    "Allocates through the current allocator: the one of using_allocator in this\n"
    "thread, or else the one of set_allocator.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: what the allocator returned.\n"
    "\n"
    "Raises:\n"
    "    TypeError: the allocator returned something else.\n"
    "    Whatever the allocator raises.");

PyObject *
gmpy_alloc(gmpy_state *st, PyObject *size)
{
    PyObject *allocator = current_allocator(st);
    PyObject *pool;
    PyObject *result;

    if (gmpy_is_pool_malloc(st, allocator, &pool)) {
        result = gmpy_memory_pool_malloc(pool, size);
        Py_DECREF(allocator);
        return result;
    }
    result = PyObject_CallOneArg(allocator, size);
    Py_DECREF(allocator);
    if (result && !gmpy_is_pointer(st, result)) {
        PyErr_Format(PyExc_TypeError,
                     "the allocator must return a MemoryPointer, not %s",
                     Py_TYPE(result)->tp_name);
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *
allocator_alloc(PyObject *module,
                PyObject *const *args,
                Py_ssize_t nargs,
                PyObject *kwnames)
{
    static const gmpy_signature signature = {"alloc", 1, 1, 1, {"size"}};
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *given[1];

    if (GM_LIKELY(nargs == 1 && !kwnames)) {
        return gmpy_alloc(st, args[0]);
    }
    return gmpy_unpack(&signature, args, nargs, kwnames, given) < 0
               ? NULL
               : gmpy_alloc(st, given[0]);
}

PyDoc_STRVAR(
    set_allocator_doc,
    "set_allocator(allocator=None)\n"
    "--\n"
    "\n"
    "Sets the allocator that alloc uses, for all threads.\n"
    "\n"
    "Args:\n"
    "    allocator (callable): called with a size in bytes, returns a\n"
    "        MemoryPointer; usually the malloc of a MemoryPool. None is malloc,\n"
    "        which uses no pool.\n"
    "\n"
    "Raises:\n"
    "    ValueError: this thread is inside using_allocator.\n"
    "    TypeError: allocator is not callable.");

static PyObject *
allocator_set(PyObject *module,
              PyObject *const *args,
              Py_ssize_t nargs,
              PyObject *kwnames)
{
    static const gmpy_signature signature = {"set_allocator", 1, 0, 1, {"allocator"}};
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *given[1];
    PyObject *allocator;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_check_no_scope("set_allocator") < 0) {
        return NULL;
    }
    allocator = gmpy_as_allocator(given[0], st->raw_malloc);
    if (!allocator) {
        return NULL;
    }
    gmpy_set_allocator(st, &st->allocator, allocator);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(get_allocator_doc,
             "get_allocator()\n"
             "--\n"
             "\n"
             "Returns the current allocator of the calling thread.");

static PyObject *
allocator_get(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    return current_allocator(gmpy_state_of_module(module));
}

PyDoc_STRVAR(
    push_allocator_doc,
    "_push_allocator(scope, allocator, /)\n"
    "--\n"
    "\n"
    "Makes `allocator`, a callable, the calling thread's until scope is left.");

static PyObject *
allocator_push(PyObject *module, PyObject *args)
{
    PyObject *entered;
    PyObject *allocator;

    if (!PyArg_UnpackTuple(args, "_push_allocator", 2, 2, &entered, &allocator) ||
        gmpy_push_allocator(gmpy_state_of_module(module), allocator, entered) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pop_allocator_doc,
             "_pop_allocator(scope, /)\n"
             "--\n"
             "\n"
             "Leaves the newest scope of that object.\n"
             "\n"
             "Raises:\n"
             "    RuntimeError: this thread has not entered it.");

static PyObject *
allocator_pop(PyObject *Py_UNUSED(module), PyObject *entered)
{
    if (gmpy_pop_allocator(entered) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyMethodDef gmpy_allocator_methods[] = {
    {"alloc", (PyCFunction)(void (*)(void))allocator_alloc,
     METH_FASTCALL | METH_KEYWORDS, alloc_doc},
    {"set_allocator", (PyCFunction)(void (*)(void))allocator_set,
     METH_FASTCALL | METH_KEYWORDS, set_allocator_doc},
    {"get_allocator", allocator_get, METH_NOARGS, get_allocator_doc},
    {"_push_allocator", allocator_push, METH_VARARGS, push_allocator_doc},
    {"_pop_allocator", allocator_pop, METH_O, pop_allocator_doc},
    {0},
};
