/* SPDX-License-Identifier: MIT
 *
 * MemoryPointer: a place in some memory, which it keeps alive.
 *
 * The type takes part in garbage collection, but an instance is tracked only while its
 * memory can be part of a cycle: one into pooled or raw memory never is. There is no
 * tp_clear, because `mem` is set at construction and never again, so every cycle
 * through a pointer also runs through something that can be cleared, and the memory
 * stays usable until the last finalizer ran.
 *
 * Threading: reading is safe from any thread; `p += n` moves the one object that all
 * its names share and is for one thread.
 */
#include "exchange.h"

#include <structmember.h> // T_INT, T_ULONGLONG

PyDoc_STRVAR(
    pointer_doc,
    "MemoryPointer(mem, offset)\n"
    "--\n"
    "\n"
    "A place in device memory. Keeps the memory alive.\n"
    "\n"
    "p + n and p - n are new pointers into the same memory; p += n and p -= n\n"
    "move the pointer itself, under every name it has. int(p) is the address.\n"
    "\n"
    "Array libraries view the bytes from here to the end of the memory by DLPack and\n"
    "__cuda_array_interface__. Where the host reaches the memory (managed, pinned,\n"
    "plain host memory, all of a simulated device) it is a writable buffer, too;\n"
    "elsewhere asking for one is a BufferError.\n"
    "\n"
    "Args:\n"
    "    mem (BaseMemory): the memory.\n"
    "    offset (int): bytes from its start.\n"
    "\n"
    "Attributes:\n"
    "    ptr (int): the address.\n"
    "    mem (BaseMemory): the memory it points into.\n"
    "    device_id (int): number of the device.\n"
    "\n"
    "Raises:\n"
    "    AssertionError: an offset other than 0 into memory whose ptr is 0.\n"
    "    OverflowError: the address does not fit 64 bits.");

/* True where `mem` refers to no Python object, so that no cycle runs through it. */
static inline bool
is_leaf_memory(const gmpy_state *st, const PyObject *mem)
{
    PyObject *type = (PyObject *)Py_TYPE(mem);

    return type == st->PooledMemoryType || type == st->MemoryType ||
           type == st->ManagedMemoryType || type == st->PinnedMemoryType ||
           type == st->PooledPinnedMemoryType;
}

static PyObject *
pointer_alloc(gmpy_state *st)
{
    PyTypeObject *type = gmpy_type(st->MemoryPointerType);
    PyObject *kept = gmpy_freelist_take(GMPY_REUSE(st, pointers), type);

    return kept ? kept : (PyObject *)PyObject_GC_New(gmpy_pointer, type);
}

PyObject *
gmpy_pointer_new(gmpy_state *st, PyObject *mem, uintptr_t ptr, int device_id)
{
    gmpy_pointer *self = (gmpy_pointer *)pointer_alloc(st);

    if (!self) {
        Py_DECREF(mem);
        return NULL;
    }
    self->ptr = ptr;
    self->mem = mem;
    self->st = st;
    self->device_id = device_id;
    self->tracked = !is_leaf_memory(st, mem);
    if (GM_UNLIKELY(self->tracked)) {
        PyObject_GC_Track(self);
    }
    return (PyObject *)self;
}

PyObject *
gmpy_pointer_to_new(gmpy_state *st, PyObject *mem)
{
    const gmpy_base_memory *base = (const gmpy_base_memory *)mem;

    return mem ? gmpy_pointer_new(st, mem, base->ptr, base->device_id) : NULL;
}

static int
pointer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((gmpy_pointer *)self)->mem);
    return 0;
}

static void
pointer_dealloc(PyObject *self)
{
    gmpy_pointer *pointer = (gmpy_pointer *)self;
    PyTypeObject *type = Py_TYPE(self);
    gmpy_state *st;

    if (GM_UNLIKELY(pointer->tracked)) {
        PyObject_GC_UnTrack(self);
    }
    Py_XDECREF(pointer->mem);
    st = pointer->st;
    if (type != gmpy_type(st->MemoryPointerType) ||
        !gmpy_freelist_put(GMPY_REUSE(st, pointers), self, type)) {
        type->tp_free(self);
        Py_DECREF(type);
    }
}

/* ---- construction ---- */

static const gmpy_signature pointer_signature = {
    "MemoryPointer", 2, 2, 2, {"mem", "offset"}};

static PyObject *
pointer_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *module = PyType_GetModuleByDef(type, &gmpy_module_def);
    gmpy_state *st = module ? gmpy_state_of_module(module) : NULL;
    gmpy_pointer *self;

    if (!st) {
        return NULL;
    }
    if (type != gmpy_type(st->MemoryPointerType)) {
        self = (gmpy_pointer *)type->tp_alloc(type, 0);
    }
    else {
        self = (gmpy_pointer *)pointer_alloc(st);
    }
    if (self) {
        self->ptr = 0;
        self->mem = NULL;
        self->st = st;
        self->device_id = 0;
        self->tracked = type != gmpy_type(st->MemoryPointerType);
    }
    return (PyObject *)self;
}

static int
pointer_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    gmpy_state *st = self->st;
    PyObject *given[2];
    gmpy_base_memory *mem;
    ptrdiff_t offset;

    if (gmpy_unpack_init(&pointer_signature, args, kwargs, given) < 0) {
        return -1;
    }
    if (self->mem) {
        PyErr_SetString(PyExc_RuntimeError, "a MemoryPointer is initialized once");
        return -1;
    }
    if (!PyObject_TypeCheck(given[0], gmpy_type(st->BaseMemoryType))) {
        PyErr_Format(PyExc_TypeError, "mem must be a BaseMemory, not %s",
                     Py_TYPE(given[0])->tp_name);
        return -1;
    }
    mem = (gmpy_base_memory *)given[0];
    if (gmpy_as_offset(given[1], "offset", &offset) < 0 ||
        gmpy_address_add(mem->ptr, offset, &self->ptr) < 0) {
        return -1;
    }
    self->mem = Py_NewRef(given[0]);
    self->device_id = mem->device_id;
    if (!self->tracked && !is_leaf_memory(st, given[0])) {
        self->tracked = true;
        PyObject_GC_Track(op);
    }
    return 0;
}

/* ---- as a value ---- */

static PyObject *
pointer_repr(PyObject *op)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *name = PyType_GetName(Py_TYPE(op));
    PyObject *repr = NULL;

    if (name) {
        repr = PyUnicode_FromFormat("<%U %s device=%d mem=%R>", name,
                                    gmpy_as_hex(self->ptr).text, self->device_id,
                                    self->mem);
        Py_DECREF(name);
    }
    return repr;
}

static PyObject *
pointer_device(PyObject *self, void *Py_UNUSED(closure))
{
    return gmpy_device_new(((gmpy_pointer *)self)->st,
                           ((gmpy_pointer *)self)->device_id);
}

static PyMemberDef pointer_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_pointer, ptr), READONLY, "the address"},
    {"mem", T_OBJECT_EX, offsetof(gmpy_pointer, mem), READONLY, "the BaseMemory"},
    {"device_id", T_INT, offsetof(gmpy_pointer, device_id), READONLY,
     "number of the device"},
    {0},
};

static PyGetSetDef pointer_getset[] = {
    {"device", pointer_device, NULL, "the Device the memory is on", NULL},
    {"__cuda_array_interface__", gmpy_pointer_cuda_array_interface, NULL,
     "the bytes from here to the end of the memory, by the protocol's version 3", NULL},
    {0},
};

static PyType_Slot pointer_slots[] = {
    {Py_tp_doc, (void *)pointer_doc},
    {Py_tp_new, pointer_new},
    {Py_tp_init, pointer_init},
    {Py_tp_dealloc, pointer_dealloc},
    {Py_tp_traverse, pointer_traverse},
    {Py_tp_methods, gmpy_pointer_methods},
    {Py_tp_members, pointer_members},
    {Py_tp_getset, pointer_getset},
    {Py_tp_repr, pointer_repr},
    {Py_bf_getbuffer, gmpy_pointer_get_buffer},
    {Py_bf_releasebuffer, gmpy_pointer_release_buffer},
    GMPY_POINTER_ARITHMETIC,
    {0, NULL},
};

static PyType_Spec pointer_spec = {
    .name = "gpumem.MemoryPointer",
    .basicsize = sizeof(gmpy_pointer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pointer_slots,
};

int
gmpy_pointer_init(PyObject *module, gmpy_state *st)
{
    st->MemoryPointerType = PyType_FromModuleAndSpec(module, &pointer_spec, NULL);
    if (!st->MemoryPointerType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "MemoryPointer", st->MemoryPointerType);
}
