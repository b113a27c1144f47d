/* SPDX-License-Identifier: MIT
 *
 * _CuPyAllocator: what gpumem.interop.cupy makes CuPy's allocator. No Python runs on
 * its path.
 *
 * CuPy has an allocator for C functions, its CFunctionAllocator, but that hands them no
 * stream, takes a null pointer for memory, and reads five numbers off Python integers
 * for each object that it makes: as slow as CuPy's own pool. Any callable that returns
 * a cupy.cuda.MemoryPointer may be an allocator as well, so this one makes that: over a
 * cupy.cuda.UnownedMemory whose owner is our pointer. CuPy drops the owner with its
 * last array, and knows nothing else of it.
 *
 * CuPy's current stream is a C function's answer: its modules export it to others in C
 * as a capsule, of which the adaptor passes the one it found.
 *
 * Cost: our hit, the two objects of CuPy's, 60 ns for the stream.
 * Threading: immutable once made; any thread.
 */
#include "outlet.h"

/* The name is what Cython makes of the function's type. */
#define STREAM_CAPSULE "intptr_t (void)"

typedef intptr_t (*current_stream)(void);

typedef struct cupy_allocator {
    PyObject_HEAD
    gmpy_outlet *outlet;
    current_stream stream; // lives as long as CuPy's module, that is for ever
    PyObject *capsule;     // what `stream` was read from
    PyObject *memory;      // cupy.cuda.UnownedMemory
    PyObject *pointer;     // cupy.cuda.MemoryPointer
    PyObject *refusal;     // is given our OutOfMemoryError and raises CuPy's
} cupy_allocator;

/* ---- allocating ---- */

/* Has the pending OutOfMemoryError raised as CuPy's; anything else stays. */
GM_COLD static void
refuse(cupy_allocator *self)
{
    PyObject *error;
    PyObject *result;

    if (!self->refusal || // the collector cleared it
        !PyErr_ExceptionMatches(self->outlet->st->OutOfMemoryError)) {
        return;
    }
    error = gmpy_take_exception();
    result = PyObject_CallOneArg(self->refusal, error);
    if (result) { // it raised nothing
        Py_DECREF(result);
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    Py_DECREF(error);
}

/* CuPy's memory object over our pointer: new reference. */
static PyObject *
wrap(cupy_allocator *self, PyObject *ours)
{
    const gmpy_pointer *pointer = (const gmpy_pointer *)ours;
    const gmpy_base_memory *mem = (const gmpy_base_memory *)pointer->mem;
    size_t bytes = mem ? mem->size : pointer->block->size; // a hook may have asked
    PyObject *address = PyLong_FromSize_t(pointer->ptr);
    PyObject *size = PyLong_FromSize_t(bytes);
    PyObject *device = PyLong_FromLong(pointer->device_id);
    PyObject *memory = NULL;

    if (address && size && device) {
        PyObject *const args[] = {address, size, ours, device};

        memory = PyObject_Vectorcall(self->memory, args, 4, NULL);
    }
    Py_XDECREF(device);
    Py_XDECREF(size);
    Py_XDECREF(address);
    return memory;
}

PyDoc_STRVAR(malloc_doc,
             "malloc($self, size, /)\n"
             "--\n"
             "\n"
             "Memory of the current device for CuPy's current stream.\n"
             "\n"
             "Args:\n"
             "    size (int): bytes.\n"
             "\n"
             "Returns:\n"
             "    cupy.cuda.MemoryPointer: the memory.\n"
             "\n"
             "Raises:\n"
             "    cupy.cuda.memory.OutOfMemoryError: there is no memory for it.\n"
             "\n"
             "Safe to call from any thread.");

static PyObject *
cupy_allocator_malloc(PyObject *op, PyObject *arg)
{
    cupy_allocator *self = (cupy_allocator *)op;
    intptr_t stream = self->stream();
    PyObject *ours;
    PyObject *memory;
    PyObject *zero;
    PyObject *result = NULL;
    size_t size;
    int device;

    if (stream == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (gmpy_as_size(arg, "size", &size) < 0) {
        return NULL;
    }
    device =
        gmpy_backend(self->outlet->st) ? gmpy_current_device(self->outlet->st) : -1;
    if (device < 0) {
        return NULL;
    }
    ours = gmpy_outlet_take(self->outlet, size, device, (gm_stream)stream);
    if (!ours) {
        refuse(self);
        return NULL;
    }
    memory = wrap(self, ours);
    Py_DECREF(ours);
    zero = memory ? PyLong_FromLong(0) : NULL;
    if (zero) {
        PyObject *const args[] = {memory, zero};

        result = PyObject_Vectorcall(self->pointer, args, 2, NULL);
    }
    Py_XDECREF(zero);
    Py_XDECREF(memory);
    return result;
}

/* ---- life ---- */

PyDoc_STRVAR(cupy_allocator_doc,
             "_CuPyAllocator(outlet, stream, memory, pointer, refusal)\n"
             "--\n"
             "\n"
             "An allocator for CuPy, in C.\n"
             "\n"
             "Args:\n"
             "    outlet (_Outlet): where the memory is from.\n"
             "    stream: the capsule of a C function \"intptr_t (void)\" that tells\n"
             "        the handle of the calling thread's current stream.\n"
             "    memory: called with address, size, owner and device.\n"
             "    pointer: called with what that returned, and 0.\n"
             "    refusal: called with an OutOfMemoryError, raises another error.\n"
             "\n"
             "Raises:\n"
             "    TypeError: an argument is of another type.\n"
             "    ValueError: the capsule is another function's.\n"
             "\n"
             "Safe to share between threads.");

static PyObject *
cupy_allocator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "_CuPyAllocator",
        5,
        5,
        5,
        {"outlet", "stream", "memory", "pointer", "refusal"}};
    PyObject *given[5];
    cupy_allocator *self;
    void *function;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_check_callable(given[2], "memory") < 0 ||
        gmpy_check_callable(given[3], "pointer") < 0 ||
        gmpy_check_callable(given[4], "refusal") < 0) {
        return NULL;
    }
    function = PyCapsule_GetPointer(given[1], STREAM_CAPSULE);
    if (!function) {
        return NULL;
    }
    self = (cupy_allocator *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    if (!gmpy_is_outlet(gmpy_state_of((PyObject *)self), given[0])) {
        PyErr_Format(PyExc_TypeError, "outlet must be an _Outlet, not %s",
                     Py_TYPE(given[0])->tp_name);
        Py_DECREF(self);
        return NULL;
    }
    self->outlet = (gmpy_outlet *)Py_NewRef(given[0]);
    self->stream = (current_stream)(uintptr_t)function;
    self->capsule = Py_NewRef(given[1]);
    self->memory = Py_NewRef(given[2]);
    self->pointer = Py_NewRef(given[3]);
    self->refusal = Py_NewRef(given[4]);
    return (PyObject *)self;
}

static int
cupy_allocator_traverse(PyObject *op, visitproc visit, void *arg)
{
    cupy_allocator *self = (cupy_allocator *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)self->outlet);
    Py_VISIT(self->memory);
    Py_VISIT(self->pointer);
    Py_VISIT(self->refusal);
    return 0;
}

/* The refusal alone can lead back here. */
static int
cupy_allocator_clear(PyObject *op)
{
    Py_CLEAR(((cupy_allocator *)op)->refusal);
    return 0;
}

static void
cupy_allocator_dealloc(PyObject *op)
{
    cupy_allocator *self = (cupy_allocator *)op;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    Py_XDECREF((PyObject *)self->outlet);
    Py_XDECREF(self->capsule);
    Py_XDECREF(self->memory);
    Py_XDECREF(self->pointer);
    Py_XDECREF(self->refusal);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef cupy_allocator_methods[] = {
    {"malloc", cupy_allocator_malloc, METH_O, malloc_doc},
    {0},
};

static PyType_Slot cupy_allocator_slots[] = {
    {Py_tp_doc, (void *)cupy_allocator_doc},
    {Py_tp_new, cupy_allocator_new},
    {Py_tp_dealloc, cupy_allocator_dealloc},
    {Py_tp_traverse, cupy_allocator_traverse},
    {Py_tp_clear, cupy_allocator_clear},
    {Py_tp_methods, cupy_allocator_methods},
    {0, NULL},
};

static PyType_Spec cupy_allocator_spec = {
    .name = "gpumem._core._CuPyAllocator",
    .basicsize = sizeof(cupy_allocator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = cupy_allocator_slots,
};

int
gmpy_cupy_allocator_init(PyObject *module, gmpy_state *st)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &cupy_allocator_spec, NULL);
    int result = type ? PyModule_AddType(module, gmpy_type(type)) : -1;

    (void)st;
    Py_XDECREF(type);
    return result;
}
