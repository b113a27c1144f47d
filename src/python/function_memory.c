/* SPDX-License-Identifier: MIT
 *
 * Memory from the user's own functions: CFunctionAllocatorMemory over two C functions,
 * PythonFunctionAllocatorMemory over two Python ones. function_allocator.c makes them.
 *
 * The C functions are void *malloc(void *param, size_t size, int device) and
 * void free(void *param, void *ptr, int device). They are called without the
 * interpreter, so they may block; one made by ctypes is a CFUNCTYPE, which attaches by
 * itself. The Python functions are malloc(size, device_id), which returns the address,
 * and free(ptr, device_id).
 *
 * What a function sees: the memory's device is current, and so is the calling thread's
 * stream on it. A free function is called by whichever thread drops the last pointer or
 * makes a pool give memory back, possibly in the middle of other code; it cannot raise,
 * so what it raises goes to sys.unraisablehook and the memory counts as freed.
 *
 * Garbage: memory in a cycle with its own free function has a guard (guard.c) call that
 * function before the collector takes the cycle apart, once no __del__ is left that
 * could use the memory. What a pool holds leaves the pool before that, or is not freed.
 */
#include "module.h"
#include "out_of_memory.h"

#include "core/gm_process.h" // gm_process_is_frozen
#include "guard.h"

typedef void *(*malloc_function)(void *param, size_t size, int device);
typedef void (*free_function)(void *param, void *ptr, int device);

typedef struct function_memory {
    gmpy_base_memory base;
    gmpy_state *st;  // NULL until initialized
    uintptr_t owned; // what malloc returned; 0 for none
    int owned_device;
    Py_ssize_t segments; // of pools that lie in it
    PyObject *keep;      // C: what keeps the functions alive; Python: the free function
    PyObject *guard;     // while there is something to free
    uintptr_t param;     // C alone
    uintptr_t free_function;
} function_memory;

/* ---- freeing ---- */

static void
call_python_free(PyObject *function, uintptr_t ptr, int device)
{
    PyObject *result =
        PyObject_CallFunction(function, "Ki", (unsigned long long)ptr, device);

    if (!result) {
        PyErr_WriteUnraisable(function);
    }
    Py_XDECREF(result);
}

static void
call_c_free(const function_memory *self, uintptr_t ptr)
{
    free_function release = (free_function)self->free_function;

    Py_BEGIN_ALLOW_THREADS
    release((void *)self->param, (void *)ptr, self->owned_device);
    Py_END_ALLOW_THREADS
}

/* Gives the memory back, once. Keeps the pending exception. */
static void
function_memory_release(function_memory *self)
{
    uintptr_t ptr = self->owned;
    gm_device_mark mark;

    self->owned = 0;
    if (!ptr || !self->base.ptr || gm_process_is_frozen()) {
        return;
    }
    GMPY_TAKE_ERROR(pending);
    self->base.ptr = 0;
    if (gmpy_device_enter(self->st, self->owned_device, &mark) < 0) {
        PyErr_WriteUnraisable(NULL); // it is to be freed all the same
    }
    if (self->free_function) {
        call_c_free(self, ptr);
    }
    else {
        call_python_free(self->keep, ptr, self->owned_device);
    }
    gmpy_device_leave(self->st, &mark);
    GMPY_GIVE_ERROR(pending);
}

static inline bool
function_memory_is_pooled(const function_memory *self)
{
    return __atomic_load_n(&self->segments, __ATOMIC_RELAXED) > 0;
}

/* What the guard calls. A pool would hand out again what it does not know to be freed,
 * so pools give back first, which are whole as all that the memory reaches. Where one
 * cannot, nothing is freed. */
static bool
function_memory_end(PyObject *op)
{
    function_memory *self = (function_memory *)op;
    GMPY_TAKE_ERROR(pending);
    bool ends;

    if (function_memory_is_pooled(self)) {
        gmpy_upstreams_give_back(op);
    }
    ends = !function_memory_is_pooled(self);
    if (ends) {
        function_memory_release(self);
    }
    GMPY_GIVE_ERROR(pending);
    return ends;
}

static int
function_memory_traverse(PyObject *op, visitproc visit, void *arg)
{
    function_memory *self = (function_memory *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->keep);
    Py_VISIT(self->guard);
    return 0;
}

/* Until the memory is freed `keep` is needed. */
static int
function_memory_clear(PyObject *op)
{
    function_memory *self = (function_memory *)op;

    if (!self->owned) {
        Py_CLEAR(self->keep);
    }
    return 0;
}

static void
function_memory_dealloc(PyObject *op)
{
    function_memory *self = (function_memory *)op;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    gmpy_guard_drop(&self->guard);
    function_memory_release(self);
    Py_XDECREF(self->keep);
    type->tp_free(op);
    Py_DECREF(type);
}

void
gmpy_function_memory_count(gmpy_state *st, PyObject *mem, Py_ssize_t change)
{
    if (PyObject_TypeCheck(mem, gmpy_type(st->CFunctionAllocatorMemoryType)) ||
        PyObject_TypeCheck(mem, gmpy_type(st->PythonFunctionAllocatorMemoryType))) {
        __atomic_add_fetch(&((function_memory *)mem)->segments, change,
                           __ATOMIC_RELAXED);
    }
}

/* ---- allocating ---- */

/* Notes what every one of them has, and has it guarded if there will be something to
 * free. 0, or -1, also where it has been initialized. */
static int
function_memory_begin(PyObject *op, gmpy_state *st, size_t size, int device)
{
    function_memory *self = (function_memory *)op;
    gmpy_state *none = NULL;

    if (!__atomic_compare_exchange_n(&self->st, &none, st, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED)) {
        PyErr_SetString(PyExc_RuntimeError, "memory is initialized once");
        return -1;
    }
    gmpy_upstreams_look(st);
    gmpy_guards_look(st);
    self->base.size = size;
    self->base.device_id = device;
    self->owned_device = device;
    return size ? gmpy_guard_new(st, op, &self->guard, function_memory_end) : 0;
}

static int
function_memory_own(function_memory *self, uintptr_t ptr)
{
    if (!ptr) {
        gm_shortage what = gm_shortage_of(self->base.size);

        what.cause = GM_CAUSE_ALLOCATOR;
        what.device = self->owned_device;
        gmpy_raise_shortage(self->st, &what);
        return -1;
    }
    self->owned = ptr;
    self->base.ptr = ptr;
    return 0;
}

/* Calls a C malloc and takes over what it returns. */
static int
take_from_c(function_memory *self, uintptr_t function)
{
    malloc_function allocate = (malloc_function)function;
    int device = self->owned_device;
    gm_device_mark mark;
    void *ptr;

    if (gmpy_device_enter(self->st, device, &mark) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    ptr = allocate((void *)self->param, self->base.size, device);
    Py_END_ALLOW_THREADS
    gmpy_device_leave(self->st, &mark);
    return function_memory_own(self, (uintptr_t)ptr);
}

/* The address a Python malloc returned. Consumes `result`, which may be NULL. */
static int
as_returned_address(PyObject *result, uintptr_t *out)
{
    int converted;

    if (!result) {
        return -1;
    }
    converted = gmpy_as_address(result, "the address malloc_func returned", out);
    if (converted < 0 && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        gmpy_raise_range(PyExc_ValueError, result, "the address malloc_func returned",
                         "0 to 2**64-1");
    }
    Py_DECREF(result);
    return converted;
}

static int
take_from_python(function_memory *self, PyObject *function)
{
    int device = self->owned_device;
    PyObject *result;
    uintptr_t ptr;
    gm_device_mark mark;

    if (gmpy_device_enter(self->st, device, &mark) < 0) {
        return -1;
    }
    result = PyObject_CallFunction(function, "Ki", (unsigned long long)self->base.size,
                                   device);
    gmpy_device_leave(self->st, &mark);
    return as_returned_address(result, &ptr) < 0 ? -1 : function_memory_own(self, ptr);
}

/* ---- CFunctionAllocatorMemory ---- */

PyDoc_STRVAR(
    c_memory_doc,
    "CFunctionAllocatorMemory(size, param, malloc_func, free_func, device_id, *, "
    "owner=None)\n"
    "--\n"
    "\n"
    "Memory from a C function, given back to another when the object dies.\n"
    "\n"
    "Made by CFunctionAllocator. For size 0 neither function is called.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes.\n"
    "    param (int): address handed to both functions.\n"
    "    malloc_func (int): address of the function that allocates.\n"
    "    free_func (int): address of the function that frees.\n"
    "    device_id (int): number of the device.\n"
    "    owner (object): kept alive until the memory was freed.\n"
    "\n"
    "Raises:\n"
    "    OutOfMemoryError: malloc_func returned NULL.\n"
    "    ValueError: a function's address is 0, or there is no such device.");

int
gmpy_as_function_address(PyObject *arg, const char *name, uintptr_t *out)
{
    if (gmpy_as_address(arg, name, out) < 0) {
        return -1;
    }
    if (!*out) {
        PyErr_Format(PyExc_ValueError, "%s must be the address of a function, not 0",
                     name);
        return -1;
    }
    return 0;
}

static int
c_memory_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "CFunctionAllocatorMemory",
        6,
        5,
        5,
        {"size", "param", "malloc_func", "free_func", "device_id", "owner"}};
    function_memory *self = (function_memory *)op;
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[6];
    uintptr_t allocate;
    uintptr_t release;
    uintptr_t param;
    size_t size;
    int device;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0 ||
        gmpy_as_address(given[1], "param", &param) < 0 ||
        gmpy_as_function_address(given[2], "malloc_func", &allocate) < 0 ||
        gmpy_as_function_address(given[3], "free_func", &release) < 0 ||
        gmpy_as_device(st, given[4], &device) < 0 ||
        function_memory_begin(op, st, size, device) < 0) {
        return -1;
    }
    self->keep = Py_XNewRef(given[5]);
    self->param = param;
    self->free_function = release;
    return size == 0 ? 0 : take_from_c(self, allocate);
}

static PyType_Slot c_memory_slots[] = {
    {Py_tp_doc, (void *)c_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, c_memory_init},
    {Py_tp_dealloc, function_memory_dealloc},
    {Py_tp_traverse, function_memory_traverse},
    {Py_tp_clear, function_memory_clear},
    {0, NULL},
};

static PyType_Spec c_memory_spec = {
    .name = "gpumem.CFunctionAllocatorMemory",
    .basicsize = sizeof(function_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = c_memory_slots,
};

/* ---- PythonFunctionAllocatorMemory ---- */

PyDoc_STRVAR(
    python_memory_doc,
    "PythonFunctionAllocatorMemory(size, malloc_func, free_func, device_id)\n"
    "--\n"
    "\n"
    "Memory from a Python function, given back to another when the object dies.\n"
    "\n"
    "Made by PythonFunctionAllocator. For size 0 neither function is called.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes.\n"
    "    malloc_func (callable): called with size and device_id, returns the\n"
    "        address.\n"
    "    free_func (callable): called with the address and device_id.\n"
    "    device_id (int): number of the device.\n"
    "\n"
    "Raises:\n"
    "    OutOfMemoryError: malloc_func returned 0.\n"
    "    TypeError: a function is not callable, or malloc_func returned something\n"
    "        that is no integer.\n"
    "    ValueError: malloc_func returned no address, or there is no such device.\n"
    "    Whatever malloc_func raises.");

int
gmpy_check_callable(PyObject *arg, const char *name)
{
    if (!PyCallable_Check(arg)) {
        PyErr_Format(PyExc_TypeError, "%s must be callable, not %s", name,
                     Py_TYPE(arg)->tp_name);
        return -1;
    }
    return 0;
}

static int
python_memory_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "PythonFunctionAllocatorMemory",
        4,
        4,
        4,
        {"size", "malloc_func", "free_func", "device_id"}};
    function_memory *self = (function_memory *)op;
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[4];
    size_t size;
    int device;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0 ||
        gmpy_check_callable(given[1], "malloc_func") < 0 ||
        gmpy_check_callable(given[2], "free_func") < 0 ||
        gmpy_as_device(st, given[3], &device) < 0 ||
        function_memory_begin(op, st, size, device) < 0) {
        return -1;
    }
    self->keep = Py_NewRef(given[2]);
    return size == 0 ? 0 : take_from_python(self, given[1]);
}

static PyType_Slot python_memory_slots[] = {
    {Py_tp_doc, (void *)python_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, python_memory_init},
    {Py_tp_dealloc, function_memory_dealloc},
    {Py_tp_traverse, function_memory_traverse},
    {Py_tp_clear, function_memory_clear},
    {0, NULL},
};

static PyType_Spec python_memory_spec = {
    .name = "gpumem.PythonFunctionAllocatorMemory",
    .basicsize = sizeof(function_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = python_memory_slots,
};

int
gmpy_function_memory_init(PyObject *module, gmpy_state *st)
{
    st->CFunctionAllocatorMemoryType =
        PyType_FromModuleAndSpec(module, &c_memory_spec, st->BaseMemoryType);
    if (!st->CFunctionAllocatorMemoryType ||
        PyModule_AddObjectRef(module, "CFunctionAllocatorMemory",
                              st->CFunctionAllocatorMemoryType) < 0) {
        return -1;
    }
    st->PythonFunctionAllocatorMemoryType =
        PyType_FromModuleAndSpec(module, &python_memory_spec, st->BaseMemoryType);
    if (!st->PythonFunctionAllocatorMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PythonFunctionAllocatorMemory",
                                 st->PythonFunctionAllocatorMemoryType);
}
