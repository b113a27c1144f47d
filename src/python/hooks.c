/* SPDX-License-Identifier: MIT
 *
 * Memory hooks: Python objects that are told of allocations and frees.
 *
 * A thread's hooks are a dictionary by name in its settings (thread.c). Each callback
 * is called with keyword arguments, in the order in which the hooks were added, before
 * and after what it is about. Hooks see what their own thread does.
 *
 * A pool's malloc, `size` as asked and `mem_size` rounded:
 *   malloc_preprocess(device_id, size, mem_size)
 *   malloc_postprocess(device_id, size, mem_size, mem_ptr, pmem_id)
 * A pool takes memory from what it lies over, once an attempt:
 *   alloc_preprocess(device_id, mem_size)
 *   alloc_postprocess(device_id, mem_size, mem_ptr)
 * Memory goes back to its pool:
 *   free_preprocess(device_id, mem_size, mem_ptr, pmem_id)
 *   free_postprocess(device_id, mem_size, mem_ptr, pmem_id)
 *
 * mem_ptr and pmem_id are 0 after a failure. A hook that raises stops nothing: the
 * other hooks are still called. On the way of a malloc the first error reaches the
 * caller, and what was allocated goes back; all others go to sys.unraisablehook.
 *
 * Cost: nothing until a hook is added in some thread; then one look at the thread's
 * settings a call. Callbacks see a snapshot, so they may add and remove hooks.
 */
#include "module.h"

PyObject *
gmpy_hooks_snapshot(gmpy_state *st)
{
    PyObject *hooks = gmpy_hooks(st);

    return hooks ? PyDict_Values(hooks) : NULL;
}

static int
add_number(PyObject *dict, const char *name, unsigned long long number)
{
    PyObject *value = PyLong_FromUnsignedLongLong(number);
    int result = value ? PyDict_SetItemString(dict, name, value) : -1;

    Py_XDECREF(value);
    return result;
}

/* The keyword arguments of a callback: new reference. */
static PyObject *
event_arguments(const gmpy_hook_event *event)
{
    PyObject *dict = PyDict_New();

    if (!dict || add_number(dict, "device_id", (unsigned)event->device) < 0 ||
        (event->has_size && add_number(dict, "size", event->size) < 0) ||
        add_number(dict, "mem_size", event->mem_size) < 0 ||
        (event->has_ptr && add_number(dict, "mem_ptr", event->mem_ptr) < 0) ||
        (event->has_id && add_number(dict, "pmem_id", (uintptr_t)event->pmem) < 0)) {
        Py_CLEAR(dict);
    }
    return dict;
}

/* Calls one callback of one hook. 0 or -1. */
static int
call_hook(PyObject *hook, const char *callback, const gmpy_hook_event *event)
{
    PyObject *method = PyObject_GetAttrString(hook, callback);
    PyObject *arguments = method ? event_arguments(event) : NULL;
    PyObject *none = arguments ? PyTuple_New(0) : NULL;
    PyObject *result = none ? PyObject_Call(method, none, arguments) : NULL;

    Py_XDECREF(none);
    Py_XDECREF(arguments);
    Py_XDECREF(method);
    Py_XDECREF(result);
    return result ? 0 : -1;
}

void
gmpy_hooks_tell(PyObject *hooks, const char *callback, const gmpy_hook_event *event)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks); i++) {
        PyObject *hook = PyList_GET_ITEM(hooks, i);

        if (call_hook(hook, callback, event) < 0) {
            PyErr_WriteUnraisable(hook);
        }
    }
}

int
gmpy_hooks_call(PyObject *hooks, const char *callback, const gmpy_hook_event *event)
{
    bool failed = PyErr_Occurred() != NULL;
    bool before = failed;

    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(hooks); i++) {
        PyObject *hook = PyList_GET_ITEM(hooks, i);
        GMPY_TAKE_ERROR(first);

        if (call_hook(hook, callback, event) < 0 && !failed) {
            failed = true; // this one's error is the first, and stays pending
            continue;
        }
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(hook);
        }
        GMPY_GIVE_ERROR(first);
    }
    return failed && !before ? -1 : 0;
}

/* ---- adding and removing ---- */

PyDoc_STRVAR(add_hook_doc,
             "_add_hook(name, hook, /)\n"
             "--\n"
             "\n"
             "Adds a memory hook to the calling thread's.");

static PyObject *
hooks_add(PyObject *module, PyObject *args)
{
    PyObject *name;
    PyObject *hook;

    if (!PyArg_ParseTuple(args, "UO:_add_hook", &name, &hook) ||
        gmpy_add_hook(gmpy_state_of_module(module), name, hook) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(remove_hook_doc,
             "_remove_hook(name, /)\n"
             "--\n"
             "\n"
             "Removes a memory hook of the calling thread.");

static PyObject *
hooks_remove(PyObject *Py_UNUSED(module), PyObject *name)
{
    if (gmpy_remove_hook(name) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyMethodDef gmpy_hooks_methods[] = {
    {"_add_hook", hooks_add, METH_VARARGS, add_hook_doc},
    {"_remove_hook", hooks_remove, METH_O, remove_hook_doc},
    {0},
};
