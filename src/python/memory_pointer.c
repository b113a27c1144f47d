/* SPDX-License-Identifier: MIT
 *
 * MemoryPointer: a place in some memory, which it keeps alive.
 *
 * Most pointers that a pool hands out live and die without anybody looking at their
 * `mem`. So such a pointer is the handle of its block itself, until somebody asks: then
 * a PooledMemory is made, which takes the block over and is the pointer's `mem` from
 * then on. Memory hooks are told of a PooledMemory, so with one set it is always made.
 *
 * The type takes part in garbage collection, but an instance is tracked only while its
 * memory can be part of a cycle: one into pooled or raw memory never is. There is no
 * tp_clear, because `mem` is set at construction and never again, so every cycle
 * through a pointer also runs through something that can be cleared, and the memory
 * stays usable until the last finalizer ran.
 *
 * Cost: one object a block, and a second one with its `mem`; both from lists of dead
 * ones (reuse.h).
 *
 * Threading: reading is safe from any thread, `mem` is made once; `p += n` moves the
 * one object that all its names share and is for one thread.
 */
#include "exchange.h"
#include "hooks.h"

#include "core/gm_process.h" // gm_process_is_frozen

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
    self->block = NULL;
    if (GM_UNLIKELY(!is_leaf_memory(st, mem))) {
        PyObject_GC_Track(self);
    }
    return (PyObject *)self;
}

PyObject *
gmpy_pointer_to_block(gmpy_state *st, gm_pool *pool, gm_block *block)
{
    const uint32_t generation =
        block->generation; // another's, once the device is reset
    gmpy_pointer *self = (gmpy_pointer *)pointer_alloc(st);

    if (!self) {
        gm_pool_free(pool, block, generation);
        return NULL;
    }
    self->ptr = block->addr;
    self->mem = NULL;
    self->st = st;
    self->device_id = gm_pool_device(pool);
    self->generation = generation;
    self->block = block;
    self->pool = pool;
    gmpy_upstream_count(pool, 1);
    return (PyObject *)self;
}

PyObject *
gmpy_pointer_to_new(gmpy_state *st, PyObject *mem)
{
    const gmpy_base_memory *base = (const gmpy_base_memory *)mem;

    return mem ? gmpy_pointer_new(st, mem, base->ptr, base->device_id) : NULL;
}

/* ---- the memory of a pointer that has its block itself ---- */

int
gmpy_pointer_make_mem(gmpy_pointer *pointer, PyObject **out)
{
    Py_BEGIN_CRITICAL_SECTION(pointer);
    if (!pointer->mem) { // else made meanwhile by another thread
        GMPY_PUBLISH(&pointer->mem,
                     gmpy_pooled_memory_new(pointer->st, pointer->pool, pointer->block,
                                            pointer->generation));
    }
    *out = pointer->mem;
    Py_END_CRITICAL_SECTION();
    return *out ? 0 : -1;
}

/* The end of such a pointer where memory hooks want to be told. The block goes back
 * whatever happens; keeps the pending exception. */
GM_COLD static void
pointer_end_block_hooked(gmpy_pointer *pointer)
{
    GMPY_TAKE_ERROR(pending);
    PyObject *mem = gmpy_pooled_memory_new(pointer->st, pointer->pool, pointer->block,
                                           pointer->generation);

    if (mem) {
        Py_DECREF(mem);
    }
    else {
        PyErr_WriteUnraisable(NULL);
        gmpy_block_give_back(pointer->pool, pointer->block, pointer->generation);
    }
    GMPY_GIVE_ERROR(pending);
}

static inline void
pointer_end_block(gmpy_pointer *pointer)
{
    if (gm_process_is_frozen()) {
        return;
    }
    if (GM_UNLIKELY(gmpy_is_hooked(pointer->st))) {
        pointer_end_block_hooked(pointer);
    }
    else {
        gmpy_block_give_back(pointer->pool, pointer->block, pointer->generation);
    }
}

/* ---- life ---- */

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

    if (GM_LIKELY(!pointer->mem && pointer->block)) {
        pointer_end_block(pointer);
    }
    else {
        PyObject_GC_UnTrack(self); // if it is tracked
        Py_XDECREF(pointer->mem);
    }
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
        self->block = NULL;
    }
    return (PyObject *)self;
}

/* Attributes first, the memory last: who sees that sees the others. */
static int
fill_once(gmpy_pointer *self, gmpy_state *st, PyObject *mem, ptrdiff_t offset)
{
    const gmpy_base_memory *base = (const gmpy_base_memory *)mem;
    int result = -1;

    Py_BEGIN_CRITICAL_SECTION(self);
    if (self->mem || self->block) {
        PyErr_Format(PyExc_RuntimeError, "a %s is initialized once",
                     Py_TYPE((PyObject *)self)->tp_name);
    }
    else {
        result = gmpy_address_add(gmpy_memory_ptr(base), offset, &self->ptr);
    }
    if (result == 0) {
        self->st = st;
        self->device_id = base->device_id;
        GMPY_PUBLISH(&self->mem, Py_NewRef(mem));
    }
    Py_END_CRITICAL_SECTION();
    return result;
}

int
gmpy_pointer_init_once(gmpy_pointer *self,
                       gmpy_state *st,
                       PyObject *kind,
                       const gmpy_signature *signature,
                       PyObject *args,
                       PyObject *kwargs)
{
    PyObject *given[2];
    ptrdiff_t offset;

    if (gmpy_unpack_init(signature, args, kwargs, given) < 0) {
        return -1;
    }
    if (!PyObject_TypeCheck(given[0], gmpy_type(kind))) {
        PyErr_Format(PyExc_TypeError, "mem must be a %s, not %s",
                     gmpy_type(kind)->tp_name, Py_TYPE(given[0])->tp_name);
        return -1;
    }
    return gmpy_as_offset(given[1], "offset", &offset) < 0
               ? -1
               : fill_once(self, st, given[0], offset);
}

int
gmpy_pointer_is_none(const gmpy_pointer *self)
{
    PyErr_Format(PyExc_ValueError, "the %s was not initialized",
                 Py_TYPE((PyObject *)self)->tp_name);
    return -1;
}

static int
pointer_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    gmpy_state *st = self->st;

    if (gmpy_pointer_init_once(self, st, st->BaseMemoryType, &pointer_signature, args,
                               kwargs) < 0) {
        return -1;
    }
    if (!PyObject_GC_IsTracked(op) && !is_leaf_memory(st, self->mem)) {
        PyObject_GC_Track(op);
    }
    return 0;
}

/* ---- as a value ---- */

static PyObject *
pointer_repr(PyObject *op)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *repr = NULL;
    PyObject *mem;
    PyObject *name;

    if (gmpy_pointer_mem(self, &mem) < 0) {
        return NULL;
    }
    name = PyType_GetName(Py_TYPE(op));
    if (name) {
        repr = PyUnicode_FromFormat("<%U %s device=%d mem=%R>", name,
                                    gmpy_as_hex(self->ptr).text, self->device_id, mem);
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

static PyObject *
pointer_mem(PyObject *self, void *Py_UNUSED(closure))
{
    PyObject *mem;

    if (gmpy_pointer_mem((gmpy_pointer *)self, &mem) < 0) {
        return NULL;
    }
    if (!mem) {
        PyErr_SetString(PyExc_AttributeError, "mem");
        return NULL;
    }
    return Py_NewRef(mem);
}

static PyMemberDef pointer_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_pointer, ptr), READONLY, "the address"},
    {"device_id", T_INT, offsetof(gmpy_pointer, device_id), READONLY,
     "number of the device"},
    {0},
};

static PyGetSetDef pointer_getset[] = {
    {"mem", pointer_mem, NULL, "the BaseMemory", NULL},
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
    if (!st->MemoryPointerType ||
        gmpy_pointer_keep_ufuncs_out(st->MemoryPointerType) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "MemoryPointer", st->MemoryPointerType);
}
