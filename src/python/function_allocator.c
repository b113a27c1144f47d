/* SPDX-License-Identifier: MIT
 *
 * CFunctionAllocator and PythonFunctionAllocator: the user's own functions as an
 * allocator, for set_allocator(a.malloc) or MemoryPool(a.malloc).
 *
 * An allocator and its memory keep the functions alive, each for itself. Both types
 * take part in garbage collection; close() lets go of the functions where a cycle runs
 * through something the collector cannot see. What the functions see:
 * function_memory.c.
 */
#include "module.h"

typedef struct function_allocator {
    PyObject_HEAD
    gmpy_state *st;
    PyObject *memory_type; // what malloc makes
    PyObject
        *functions;  // a tuple, (param, malloc, free) or (malloc, free); NULL: closed
    PyObject *owner; // of C functions; else NULL
} function_allocator;

static int
function_allocator_traverse(PyObject *op, visitproc visit, void *arg)
{
    function_allocator *self = (function_allocator *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->memory_type);
    Py_VISIT(self->functions);
    Py_VISIT(self->owner);
    return 0;
}

static int
function_allocator_clear(PyObject *op)
{
    function_allocator *self = (function_allocator *)op;
    PyObject *functions;
    PyObject *owner;

    Py_BEGIN_CRITICAL_SECTION(op);
    functions = self->functions;
    owner = self->owner;
    self->functions = NULL;
    self->owner = NULL;
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(functions);
    Py_XDECREF(owner);
    return 0;
}

static void
function_allocator_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    (void)function_allocator_clear(op);
    Py_XDECREF(((function_allocator *)op)->memory_type);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Takes over `functions`, which may be NULL with an exception. */
static int
function_allocator_begin(PyObject *op,
                         gmpy_state *st,
                         PyObject *memory_type,
                         PyObject *functions,
                         PyObject *owner)
{
    function_allocator *self = (function_allocator *)op;
    bool first;

    if (!functions) {
        return -1;
    }
    Py_BEGIN_CRITICAL_SECTION(op);
    first = !self->st;
    if (first) {
        self->st = st;
        self->memory_type = Py_NewRef(memory_type);
        self->functions = functions;
        self->owner = Py_XNewRef(owner);
    }
    Py_END_CRITICAL_SECTION();
    if (!first) {
        Py_DECREF(functions);
        PyErr_SetString(PyExc_RuntimeError, "an allocator is initialized once");
        return -1;
    }
    return 0;
}

/* ---- methods of both ---- */

PyDoc_STRVAR(malloc_doc,
             "malloc($self, size)\n"
             "--\n"
             "\n"
             "Allocates on the current device.\n"
             "\n"
             "Args:\n"
             "    size (int): bytes; for 0 no function is called.\n"
             "\n"
             "Returns:\n"
             "    MemoryPointer: to the start of the memory.\n"
             "\n"
             "Raises:\n"
             "    OutOfMemoryError: the function returned a null pointer.\n"
             "    TypeError, ValueError: it returned no address.\n"
             "    RuntimeError: the allocator was closed.\n"
             "    Whatever the function raises.");

/* Calls the memory type: (size, *functions, device_id, owner=owner). */
static PyObject *
call_memory_type(
    PyObject *type, PyObject *functions, PyObject *owner, PyObject *size, int device)
{
    PyObject *args = Py_BuildValue("(O)", size);
    PyObject *last = Py_BuildValue("(i)", device);
    PyObject *kwargs = owner ? Py_BuildValue("{s:O}", "owner", owner) : NULL;
    PyObject *mem = NULL;
    PyObject *joined;

    if (args && last && (kwargs || !owner)) {
        joined = PySequence_Concat(args, functions);
        Py_SETREF(args, joined);
        joined = args ? PySequence_Concat(args, last) : NULL;
        mem = joined ? PyObject_Call(type, joined, kwargs) : NULL;
        Py_XDECREF(joined);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(last);
    Py_XDECREF(args);
    return mem;
}

/* New memory of `size`. Another thread may close the allocator meanwhile. */
static PyObject *
make_memory(function_allocator *self, PyObject *size)
{
    PyObject *mem = NULL;
    PyObject *functions;
    PyObject *owner;
    int device;

    Py_BEGIN_CRITICAL_SECTION(self);
    functions = Py_XNewRef(self->functions);
    owner = Py_XNewRef(self->owner);
    Py_END_CRITICAL_SECTION();
    if (!functions) {
        PyErr_SetString(PyExc_RuntimeError, self->st
                                                ? "the allocator was closed"
                                                : "the allocator was not initialized");
    }
    else if (gmpy_backend(self->st)) {
        device = gmpy_current_device(self->st);
        mem = device < 0
                  ? NULL
                  : call_memory_type(self->memory_type, functions, owner, size, device);
    }
    Py_XDECREF(functions);
    Py_XDECREF(owner);
    return mem;
}

static PyObject *
function_allocator_malloc(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {"malloc", 1, 1, 1, {"size"}};
    function_allocator *self = (function_allocator *)op;
    PyObject *given[1];
    PyObject *mem;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    mem = make_memory(self, given[0]);
    return mem ? gmpy_pointer_to_new(self->st, mem) : NULL;
}

PyDoc_STRVAR(
    close_doc,
    "close($self, /)\n"
    "--\n"
    "\n"
    "Lets go of the functions. Memory that is still out keeps its own hold on\n"
    "what frees it; malloc raises RuntimeError from now on.");

static PyObject *
function_allocator_close(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    (void)function_allocator_clear(self);
    Py_RETURN_NONE;
}

static PyMethodDef function_allocator_methods[] = {
    {"malloc", (PyCFunction)(void (*)(void))function_allocator_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_doc},
    {"close", function_allocator_close, METH_NOARGS, close_doc},
    {0},
};

/* What both say of their functions. */
#define FUNCTIONS_SEE                                                                  \
    "While a function runs the memory's device is current, and\n"                      \
    "get_current_stream() is the calling thread's stream on it; afterwards what was\n" \
    "current before is so again, whatever the function made current. The allocating\n" \
    "function runs in the thread that asks for memory. The freeing one runs in\n"      \
    "whichever thread drops the last pointer, has a pool give memory back\n"           \
    "(free_all_blocks, or a request that finds no memory) or finds garbage, so it "    \
    "may\n"                                                                            \
    "come in the middle of any code, and sees that thread's stream, not the one "      \
    "that\n"                                                                           \
    "the memory was used on. Each address is freed once: where the functions are\n"    \
    "garbage with their memory, while they are whole, and after each __del__ that "    \
    "may\n"                                                                            \
    "use the memory.\n"

#define ALLOCATOR_SLOTS(name)                                                          \
    {Py_tp_doc, (void *)name##_doc}, {Py_tp_new, PyType_GenericNew},                   \
        {Py_tp_init, name##_init}, {Py_tp_dealloc, function_allocator_dealloc},        \
        {Py_tp_traverse, function_allocator_traverse},                                 \
        {Py_tp_clear, function_allocator_clear},                                       \
        {Py_tp_methods, function_allocator_methods},                                   \
    {                                                                                  \
        0, NULL                                                                        \
    }
#define ALLOCATOR_FLAGS                                                                \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |                   \
     Py_TPFLAGS_IMMUTABLETYPE)

/* ---- CFunctionAllocator ---- */

PyDoc_STRVAR(
    c_allocator_doc,
    "CFunctionAllocator(param, malloc_func, free_func, owner)\n"
    "--\n"
    "\n"
    "An allocator over two C functions, called without the interpreter:\n"
    "void *malloc(void *param, size_t size, int device) and\n"
    "void free(void *param, void *ptr, int device). They may block.\n"
    "\n" FUNCTIONS_SEE "\n"
    "Args:\n"
    "    param (int): address handed to both functions.\n"
    "    malloc_func (int): address of the function that allocates; NULL from it\n"
    "        means that there is no memory.\n"
    "    free_func (int): address of the function that frees.\n"
    "    owner (object): what keeps the functions alive; kept by the allocator and\n"
    "        by all its memory.\n"
    "\n"
    "Raises:\n"
    "    TypeError: an address is not an integer.\n"
    "    ValueError: a function's address is 0.");

static int
c_allocator_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "CFunctionAllocator", 4, 4, 4, {"param", "malloc_func", "free_func", "owner"}};
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[4];
    uintptr_t address;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_as_address(given[0], "param", &address) < 0 ||
        gmpy_as_function_address(given[1], "malloc_func", &address) < 0 ||
        gmpy_as_function_address(given[2], "free_func", &address) < 0) {
        return -1;
    }
    return function_allocator_begin(op, st, st->CFunctionAllocatorMemoryType,
                                    PyTuple_Pack(3, given[0], given[1], given[2]),
                                    given[3]);
}

static PyType_Slot c_allocator_slots[] = {ALLOCATOR_SLOTS(c_allocator)};

static PyType_Spec c_allocator_spec = {
    .name = "gpumem.CFunctionAllocator",
    .basicsize = sizeof(function_allocator),
    .flags = ALLOCATOR_FLAGS,
    .slots = c_allocator_slots,
};

/* ---- PythonFunctionAllocator ---- */

PyDoc_STRVAR(python_allocator_doc,
             "PythonFunctionAllocator(malloc_func, free_func)\n"
             "--\n"
             "\n"
             "An allocator over two Python functions.\n"
             "\n" FUNCTIONS_SEE
             "What the freeing function raises goes to sys.unraisablehook, and the\n"
             "memory counts as freed.\n"
             "\n"
             "Args:\n"
             "    malloc_func (callable): called with size and device_id, returns the\n"
             "        address as an integer; 0 means that there is no memory.\n"
             "    free_func (callable): called with the address and device_id.\n"
             "\n"
             "Raises:\n"
             "    TypeError: a function is not callable.");

static int
python_allocator_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "PythonFunctionAllocator", 2, 2, 2, {"malloc_func", "free_func"}};
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[2];

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_check_callable(given[0], "malloc_func") < 0 ||
        gmpy_check_callable(given[1], "free_func") < 0) {
        return -1;
    }
    return function_allocator_begin(op, st, st->PythonFunctionAllocatorMemoryType,
                                    PyTuple_Pack(2, given[0], given[1]), NULL);
}

static PyType_Slot python_allocator_slots[] = {ALLOCATOR_SLOTS(python_allocator)};

static PyType_Spec python_allocator_spec = {
    .name = "gpumem.PythonFunctionAllocator",
    .basicsize = sizeof(function_allocator),
    .flags = ALLOCATOR_FLAGS,
    .slots = python_allocator_slots,
};

static int
add_allocator(PyObject *module, PyType_Spec *spec, const char *name)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int result = type ? PyModule_AddObjectRef(module, name, type) : -1;

    Py_XDECREF(type);
    return result;
}

int
gmpy_function_allocator_init(PyObject *module, gmpy_state *Py_UNUSED(st))
{
    if (add_allocator(module, &c_allocator_spec, "CFunctionAllocator") < 0) {
        return -1;
    }
    return add_allocator(module, &python_allocator_spec, "PythonFunctionAllocator");
}
