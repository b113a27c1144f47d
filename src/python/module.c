/* SPDX-License-Identifier: MIT
 *
 * The module gpumem._core: its state, its types, its end.
 *
 * Importing touches no device: the backend is opened at first use (runtime.c). A
 * process can load the module once: the settings of a thread belong to one instance,
 * and attaching from the core's callbacks goes through the main interpreter.
 */
#include "capi.h"
#include "guard.h"
#include "hooks.h"
#include "imports.h"
#include "memory_kinds.h"
#include "module.h"
#include "outlet.h"
#include "pinned.h"
#include "pools.h"
#include "testing.h"

#include "core/gm_process.h" // gm_process_exit

/* Not by PyType_GetModuleByDef, which goes by the type's order of resolution: of a
 * class that is garbage itself the collector may have cleared that when an instance
 * dies. The chain of bases stays. */
gmpy_state *
gmpy_state_of(PyObject *self)
{
    PyObject *module = NULL;

    for (PyTypeObject *type = Py_TYPE(self); type && !module; type = type->tp_base) {
        if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
            module = ((PyHeapTypeObject *)type)->ht_module;
            if (module && PyModule_GetDef(module) != &gmpy_module_def) {
                module = NULL;
            }
        }
    }
    GM_ASSERT(module); // only called on instances of our types
    return gmpy_state_of_module(module);
}

PyDoc_STRVAR(
    at_exit_doc,
    "_at_exit()\n"
    "--\n"
    "\n"
    "From now on objects that die leave their memory to the end of the process.");

static PyObject *
module_at_exit(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    gm_process_exit();
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"_at_exit", module_at_exit, METH_NOARGS, at_exit_doc},
    {0},
};

/* Has the interpreter call _at_exit when it ends. */
static int
register_exit(PyObject *module)
{
    PyObject *function = PyObject_GetAttrString(module, "_at_exit");
    PyObject *atexit = function ? PyImport_ImportModule("atexit") : NULL;
    PyObject *done =
        atexit ? PyObject_CallMethod(atexit, "register", "O", function) : NULL;
    int result = done ? 0 : -1;

    Py_XDECREF(done);
    Py_XDECREF(atexit);
    Py_XDECREF(function);
    return result;
}

/* At first memory comes straight from where it is. */
static int
module_set_allocators(PyObject *module, gmpy_state *st)
{
    st->raw_malloc = PyObject_GetAttrString(module, "malloc");
    if (!st->raw_malloc) {
        return -1;
    }
    st->raw_malloc_pinned = PyObject_GetAttrString(module, "malloc_pinned");
    if (!st->raw_malloc_pinned) {
        return -1;
    }
    st->allocator = Py_NewRef(st->raw_malloc);
    st->pinned_allocator = Py_NewRef(st->raw_malloc_pinned);
    return 0;
}

/* The module's functions, by the file they are in. */
static PyMethodDef *const functions[] = {
    module_methods,
    gmpy_runtime_methods,
    gmpy_memory_methods,
    gmpy_managed_memory_methods,
    gmpy_hooks_methods,
    gmpy_allocator_methods,
    gmpy_device_methods,
    gmpy_stream_methods,
    gmpy_event_time_methods,
    gmpy_testing_methods,
    gmpy_testing_sim_methods,
    gmpy_testing_drive_methods,
    gmpy_system_memory_methods,
    gmpy_memory_async_methods,
    gmpy_ipc_methods,
    gmpy_pinned_memory_methods,
    gmpy_pinned_allocator_methods,
    gmpy_default_pools_methods,
    gmpy_clients_methods,
    gmpy_dlpack_import_methods,
    gmpy_cuda_array_import_methods,
    gmpy_c_torch_methods,
};

/* The files' types, in an order in which each finds those it builds upon. */
static int (*const types[])(PyObject *, gmpy_state *) = {
    gmpy_errors_init,
    gmpy_size_text_init,
    gmpy_limit_init,
    gmpy_thread_init,
    gmpy_device_init,
    gmpy_stream_init,
    gmpy_event_init,
    gmpy_memory_init,
    gmpy_managed_memory_init,
    gmpy_unowned_memory_init,
    gmpy_function_memory_init,
    gmpy_function_allocator_init,
    gmpy_pooled_memory_init,
    gmpy_pointer_init,
    gmpy_base_pool_init,
    gmpy_device_pool_init,
    gmpy_memory_pool_init,
    gmpy_hooks_init,
    gmpy_pinned_memory_init,
    gmpy_pooled_pinned_memory_init,
    gmpy_pinned_pointer_init,
    gmpy_pinned_pool_init,
    gmpy_system_memory_init,
    gmpy_memory_async_init,
    gmpy_ipc_init,
    gmpy_memory_async_pool_init,
    gmpy_guard_init,
    gmpy_graph_init,
    gmpy_c_init,
    gmpy_outlet_init,
    gmpy_cupy_allocator_init,
};

static int
module_fill(PyObject *module)
{
    gmpy_state *st = gmpy_state_of_module(module);
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        if (PyModule_AddFunctions(module, functions[i]) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if (types[i](module, st) < 0) {
            return -1;
        }
    }
#ifndef Py_GIL_DISABLED
    st->pointers.room = GMPY_FREELIST_SIZE;
    st->handles.room = GMPY_FREELIST_SIZE;
#endif
    return module_set_allocators(module, st) < 0 ? -1 : register_exit(module);
}

static int
module_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main() || !gm_process_claim()) {
        PyErr_SetString(PyExc_ImportError,
                        "gpumem._core can be loaded once in a process, and in the main "
                        "interpreter alone");
        return -1;
    }
    if (module_fill(module) < 0) {
        gmpy_c_fini(gmpy_state_of_module(module));
        gm_process_unclaim();
        return -1;
    }
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);

#define VISIT(name) Py_VISIT(st->name);
    GMPY_STATE_OBJECTS(VISIT)
#undef VISIT
    return 0;
}

void
gmpy_freelist_close(gmpy_freelist *list, void (*release)(void *))
{
    list->room = 0;
    while (list->count > 0) {
        PyObject *self = list->items[--list->count];
#ifdef Py_GIL_DISABLED
        PyTypeObject *type = Py_TYPE(self);
#endif

        release(self);
#ifdef Py_GIL_DISABLED
        Py_DECREF(type);
#endif
    }
}

static int
module_clear(PyObject *module)
{
    gmpy_state *st = gmpy_state_of_module(module);

#ifndef Py_GIL_DISABLED // to end an object may need its type, so before the types go
    gmpy_freelist_close(&st->pointers, PyObject_GC_Del);
    gmpy_freelist_close(&st->handles, PyObject_Free);
#endif
#define CLEAR(name) Py_CLEAR(st->name);
    GMPY_STATE_OBJECTS(CLEAR)
#undef CLEAR
    /* What is watched stays: the device may still use it, and nobody waits here. */
    return 0;
}

/* The backend stays open: memory that is still out, and whoever looks at the simulated
 * device's ledger afterwards, need it until the process ends. */
static void
module_free(void *module)
{
    (void)module_clear(module);
    gmpy_c_fini(gmpy_state_of_module(module));
    PyMem_Free(gmpy_state_of_module(module)->lives);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, // what threads share has locks of its own
#endif
    {0, NULL},
};

PyDoc_STRVAR(module_doc,
             "The compiled part of gpumem. Use the names of gpumem instead.");

PyModuleDef gmpy_module_def = {
    PyModuleDef_HEAD_INIT,   .m_name = "gpumem._core",
    .m_doc = module_doc,     .m_size = sizeof(gmpy_state),
    .m_slots = module_slots, .m_traverse = module_traverse,
    .m_clear = module_clear, .m_free = module_free,
};

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&gmpy_module_def);
}
