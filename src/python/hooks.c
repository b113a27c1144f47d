/* SPDX-License-Identifier: MIT
 *
 * Memory hooks: Python objects that are told of allocations and frees.
 *
 * A thread's hooks are a dictionary by name in its settings (thread.c) and see what
 * that thread does; those of the process are one in the module state and see what every
 * thread does. Each callback is called with keyword arguments, by the thread that does
 * what it is about, before and after that: first the hooks of the process, then those
 * of the thread, each in the order in which they were added. A hook that is both is
 * called once.
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
 * caller, and what was allocated goes back; all others go to sys.unraisablehook. It
 * reaches the caller as it is: a MemoryError of a hook is no want of memory, neither
 * for the pool nor for one that lies over it.
 *
 * Cost: one load a call while nobody has hooks, and again as soon as nobody has any
 * more; otherwise one look at what the thread has. Callbacks see a snapshot, so they
 * may add and remove hooks.
 *
 * Threading: the hooks of the process may be called by several threads at once. What is
 * freed in an exiting or a forked process is left as it is, and no hook is told.
 */
#include "module.h"
#include "hooks.h"

static bool
is_among(PyObject *list, PyObject *hook)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        if (PyList_GET_ITEM(list, i) == hook) {
            return true;
        }
    }
    return false;
}

PyObject *
gmpy_hooks_snapshot(gmpy_state *st)
{
    PyObject *list =
        st->process_hooks ? PyDict_Values(st->process_hooks) : PyList_New(0);
    PyObject *own = gmpy_this_thread.hooks;
    PyObject *name;
    PyObject *hook;
    Py_ssize_t at = 0;

    while (list && own && PyDict_Next(own, &at, &name, &hook)) {
        if (!is_among(list, hook) && PyList_Append(list, hook) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static int
add_number(PyObject *dict, const char *name, unsigned long long number)
{
    return gmpy_dict_put(dict, name, PyLong_FromUnsignedLongLong(number));
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

/* Remembers the pending exception where somebody watches. The reference keeps its
 * address from being another's until gmpy_hooks_unwatch has compared them. */
static void
note_error(void)
{
    if (gmpy_this_thread.watches) {
        PyObject *before = gmpy_this_thread.hook_error;
        GMPY_TAKE_ERROR(error);

        gmpy_this_thread.hook_error = Py_NewRef(GMPY_ERROR_VALUE(error));
        Py_XDECREF(before);
        GMPY_GIVE_ERROR(error);
    }
}

void
gmpy_hooks_watch(void)
{
    gmpy_this_thread.watches++;
}

bool
gmpy_hooks_unwatch(void)
{
    GMPY_TAKE_ERROR(pending);
    PyObject *value = GMPY_HAS_ERROR(pending) ? GMPY_ERROR_VALUE(pending) : NULL;
    bool same = value && value == gmpy_this_thread.hook_error;

    if (--gmpy_this_thread.watches == 0) {
        Py_CLEAR(gmpy_this_thread.hook_error);
    }
    GMPY_GIVE_ERROR(pending);
    return same;
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
            note_error();
            continue;
        }
        if (PyErr_Occurred()) {
            PyErr_WriteUnraisable(hook);
        }
        GMPY_GIVE_ERROR(first);
    }
    return failed && !before ? -1 : 0;
}

/* ---- a thread's ---- */

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

    if (!PyArg_ParseTuple(args, "OO:_add_hook", &name, &hook) ||
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

/* ---- those of the process ---- */

/* Adds `hook` under `name`. 0, or -1 with KeyError. */
static int
process_add(gmpy_state *st, PyObject *name, PyObject *hook)
{
    int known = PyDict_Contains(st->process_hooks, name);

    if (known > 0) {
        PyErr_Format(PyExc_KeyError, "the process has a memory hook named %R", name);
    }
    if (known != 0 || PyDict_SetItem(st->process_hooks, name, hook) < 0) {
        return -1;
    }
    if (!st->process_hooked) {
        __atomic_store_n(&st->process_hooked, true, __ATOMIC_RELAXED);
        gmpy_hooks_count(st, 1);
    }
    return 0;
}

/* Takes out `hook`, which is under `name`: new reference. NULL with KeyError. */
static PyObject *
process_take(gmpy_state *st, PyObject *name, PyObject *hook)
{
    PyObject *found = PyDict_GetItemWithError(st->process_hooks, name);

    if (found != hook) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_KeyError, "the process does not have the memory hook %R",
                         hook);
        }
        return NULL;
    }
    Py_INCREF(hook);
    if (PyDict_DelItem(st->process_hooks, name) < 0) {
        Py_DECREF(hook);
        return NULL;
    }
    if (PyDict_GET_SIZE(st->process_hooks) == 0) {
        __atomic_store_n(&st->process_hooked, false, __ATOMIC_RELAXED);
        gmpy_hooks_count(st, -1);
    }
    return hook;
}

PyDoc_STRVAR(add_process_hook_doc,
             "_add_process_hook(name, hook, /)\n"
             "--\n"
             "\n"
             "Adds a memory hook to those of the process.");

static PyObject *
hooks_add_process(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *name;
    PyObject *hook;
    int result;

    if (!PyArg_ParseTuple(args, "OO:_add_process_hook", &name, &hook)) {
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(st->process_hooks);
    result = process_add(st, name, hook);
    Py_END_CRITICAL_SECTION();
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(remove_process_hook_doc,
             "_remove_process_hook(name, hook, /)\n"
             "--\n"
             "\n"
             "Removes a memory hook of the process.");

static PyObject *
hooks_remove_process(PyObject *module, PyObject *args)
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *name;
    PyObject *hook;
    PyObject *taken;

    if (!PyArg_ParseTuple(args, "OO:_remove_process_hook", &name, &hook)) {
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(st->process_hooks);
    taken = process_take(st, name, hook);
    Py_END_CRITICAL_SECTION();
    if (!taken) {
        return NULL;
    }
    Py_DECREF(taken);
    Py_RETURN_NONE;
}

int
gmpy_hooks_init(PyObject *Py_UNUSED(module), gmpy_state *st)
{
    st->process_hooks = PyDict_New();
    return st->process_hooks ? 0 : -1;
}

PyMethodDef gmpy_hooks_methods[] = {
    {"_add_hook", hooks_add, METH_VARARGS, add_hook_doc},
    {"_remove_hook", hooks_remove, METH_O, remove_hook_doc},
    {"_add_process_hook", hooks_add_process, METH_VARARGS, add_process_hook_doc},
    {"_remove_process_hook", hooks_remove_process, METH_VARARGS,
     remove_process_hook_doc},
    {0},
};
