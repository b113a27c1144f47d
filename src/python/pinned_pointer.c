/* SPDX-License-Identifier: MIT
 *
 * PinnedMemoryPointer: a place in page-locked host memory, which it keeps alive, and a
 * buffer of the bytes from there to the end of the memory.
 *
 * A buffer holds the pointer and so the memory. It is of the place at which the pointer
 * was when it was asked for, also where the pointer moves on. Memory that was given
 * back by hand, or that a reset of its device ended, has no buffer to give; while there
 * is one, giving back is put off. A reset is not: a buffer of before must not be looked
 * at any more.
 *
 * The type takes part in garbage collection; as with MemoryPointer there is no
 * tp_clear, since `mem` is set once and every cycle runs through something else too.
 *
 * Threading: as MemoryPointer. Buffers may be taken and released by any thread; what is
 * in them is the program's to order.
 */
#include "dlpack.h"
#include "pinned.h"

#include <structmember.h> // T_OBJECT_EX, T_ULONGLONG

PyDoc_STRVAR(
    pinned_pointer_doc,
    "PinnedMemoryPointer(mem, offset)\n"
    "--\n"
    "\n"
    "A place in page-locked host memory. Keeps the memory alive.\n"
    "\n"
    "It is a writable buffer of the bytes from there to the end of the memory, for\n"
    "memoryview, numpy.frombuffer and the copies of MemoryPointer. The bytes are\n"
    "signed, format 'b'; memoryview(p).cast('B') has them as bytes objects do.\n"
    "\n"
    "p + n and p - n are new pointers into the same memory; p += n and p -= n\n"
    "move the pointer itself, under every name it has. int(p) is the address.\n"
    "\n"
    "Args:\n"
    "    mem (PinnedMemory): the memory.\n"
    "    offset (int): bytes from its start.\n"
    "\n"
    "Attributes:\n"
    "    ptr (int): the address.\n"
    "    mem (PinnedMemory): the memory it points into.\n"
    "\n"
    "Raises:\n"
    "    AssertionError: an offset other than 0 into memory whose ptr is 0.\n"
    "    OverflowError: the address does not fit 64 bits.\n"
    "    TypeError: mem is not pinned memory.");

PyObject *
gmpy_pinned_pointer_new(gmpy_state *st, PyObject *mem, uintptr_t ptr)
{
    PyTypeObject *type = gmpy_type(st->PinnedMemoryPointerType);
    gmpy_pointer *self = (gmpy_pointer *)type->tp_alloc(type, 0);

    if (!self) {
        Py_DECREF(mem);
        return NULL;
    }
    self->ptr = ptr;
    self->mem = mem;
    self->st = st;
    self->device_id = ((gmpy_base_memory *)mem)->device_id;
    return (PyObject *)self;
}

PyObject *
gmpy_pinned_pointer_to_new(gmpy_state *st, PyObject *mem)
{
    return mem ? gmpy_pinned_pointer_new(st, mem, ((gmpy_base_memory *)mem)->ptr)
               : NULL;
}

static int
pinned_pointer_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "PinnedMemoryPointer", 2, 2, 2, {"mem", "offset"}};
    gmpy_state *st = gmpy_state_of(op);

    return gmpy_pointer_init_once((gmpy_pointer *)op, st, st->PinnedMemoryType,
                                  &signature, args, kwargs);
}

static int
pinned_pointer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((gmpy_pointer *)self)->mem);
    return 0;
}

static void
pinned_pointer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    Py_XDECREF(((gmpy_pointer *)self)->mem);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- as a buffer ---- */

/* Fills `view`, with signed bytes as CuPy has them. 0; or -1 with an exception. */
static int
fill(gmpy_pointer *self, Py_buffer *view, int flags)
{
    size_t size;

    if (gmpy_pointer_remaining(self, &size) < 0) {
        view->obj = NULL;
        return -1;
    }
    if (size > PY_SSIZE_T_MAX) { // only where Python code wrote the memory's size
        PyErr_Format(PyExc_BufferError, "%zu bytes are more than a buffer can have",
                     size);
        view->obj = NULL;
        return -1;
    }
    // An empty buffer has an address too: some consumers take none for no buffer.
    if (PyBuffer_FillInfo(view, (PyObject *)self,
                          (void *)(size ? self->ptr : (uintptr_t)self),
                          (Py_ssize_t)size, 0, flags) < 0) {
        return -1;
    }
    if (flags & PyBUF_FORMAT) {
        view->format = (char *)"b"; // which nobody writes
    }
    return 0;
}

/* Announced before the memory is looked at: from then on a free() by another thread is
 * put off, and one that came earlier is seen. */
static int
pinned_pointer_get_buffer(PyObject *op, Py_buffer *view, int flags)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *mem = GMPY_SEE(&self->mem);
    int result;

    if (!mem) {
        view->obj = NULL;
        return gmpy_pointer_is_none(self);
    }
    gmpy_pooled_pinned_memory_export(mem);
    result = fill(self, view, flags);
    if (result < 0) {
        gmpy_pooled_pinned_memory_unexport(mem);
    }
    return result;
}

static void
pinned_pointer_release_buffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    gmpy_pooled_pinned_memory_unexport(((gmpy_pointer *)op)->mem);
}

/* ---- as a value ---- */

PyDoc_STRVAR(size_doc,
             "size($self, /)\n"
             "--\n"
             "\n"
             "Returns the bytes from here to the end of the memory.\n"
             "\n"
             "Raises:\n"
             "    ValueError: the pointer is outside its memory, or that was given\n"
             "        back.\n"
             "    RuntimeError: a reset of its device ended the memory.");

static PyObject *
pinned_pointer_size(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    size_t size;

    return gmpy_pointer_remaining((gmpy_pointer *)op, &size) < 0
               ? NULL
               : PyLong_FromSize_t(size);
}

static PyObject *
pinned_pointer_repr(PyObject *op)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *name = PyType_GetName(Py_TYPE(op));
    PyObject *repr = NULL;

    if (name) {
        repr = PyUnicode_FromFormat("<%U %s mem=%R>", name, gmpy_as_hex(self->ptr).text,
                                    self->mem);
        Py_DECREF(name);
    }
    return repr;
}

static PyMemberDef pinned_pointer_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_pointer, ptr), READONLY, "the address"},
    {"mem", T_OBJECT_EX, offsetof(gmpy_pointer, mem), READONLY, "the PinnedMemory"},
    {0},
};

static PyMethodDef pinned_pointer_methods[] = {
    {"size", pinned_pointer_size, METH_NOARGS, size_doc},
    GMPY_DLPACK_METHODS,
    {0},
};

static PyType_Slot pinned_pointer_slots[] = {
    {Py_tp_doc, (void *)pinned_pointer_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, pinned_pointer_init},
    {Py_tp_dealloc, pinned_pointer_dealloc},
    {Py_tp_traverse, pinned_pointer_traverse},
    {Py_tp_methods, pinned_pointer_methods},
    {Py_tp_members, pinned_pointer_members},
    {Py_tp_repr, pinned_pointer_repr},
    {Py_bf_getbuffer, pinned_pointer_get_buffer},
    {Py_bf_releasebuffer, pinned_pointer_release_buffer},
    GMPY_POINTER_ARITHMETIC,
    {0, NULL},
};

static PyType_Spec pinned_pointer_spec = {
    .name = "gpumem.PinnedMemoryPointer",
    .basicsize = sizeof(gmpy_pointer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pinned_pointer_slots,
};

int
gmpy_pinned_pointer_init(PyObject *module, gmpy_state *st)
{
    st->PinnedMemoryPointerType =
        PyType_FromModuleAndSpec(module, &pinned_pointer_spec, NULL);
    if (!st->PinnedMemoryPointerType ||
        gmpy_pointer_keep_ufuncs_out(st->PinnedMemoryPointerType) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PinnedMemoryPointer",
                                 st->PinnedMemoryPointerType);
}
