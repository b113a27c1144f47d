/* SPDX-License-Identifier: MIT
 *
 * PooledPinnedMemory: the handle of one block of a PinnedMemoryPool.
 *
 * As PooledMemory it owns its block natively and refers to no Python object. Unlike
 * device memory the bytes can be looked at, so what was given back by hand while a
 * buffer shows them goes back only with the last buffer: a program never sees a buffer
 * change under it because somebody else got the memory. Copies under way hold a buffer,
 * too.
 *
 * Threading: free() may race with itself and with buffers; the block goes back once.
 */
#include "module.h"
#include "pinned.h"

#include "core/gm_process.h" // gm_process_is_frozen

#include <structmember.h> // T_INT, T_ULONGLONG

typedef struct pooled_pinned_memory {
    gmpy_owned_memory owned; // of which only the base is used
    gm_block *block;         // NULL once given back
    gm_pool *pool;           // valid while block is not NULL
    Py_ssize_t buffers;      // over the memory
    bool freed;              // by hand: back with the last buffer
} pooled_pinned_memory;

PyDoc_STRVAR(
    pooled_pinned_memory_doc,
    "Page-locked host memory handed out by a pool; goes back to it when the object\n"
    "dies.\n"
    "\n"
    "Made by PinnedMemoryPool.malloc alone.\n"
    "\n"
    "Attributes:\n"
    "    ptr (int): address of the first byte, 0 once given back.\n"
    "    size (int): length in bytes, rounded up to whole units of 512.\n"
    "    device_id (int): number of the device that was current when its segment\n"
    "        was taken.\n"
    "    pool: a weak reference to the PinnedMemoryPool it came from.");

PyObject *
gmpy_pooled_pinned_memory_new(gmpy_state *st, gm_pool *pool, gm_block *block)
{
    PyTypeObject *type = gmpy_type(st->PooledPinnedMemoryType);
    pooled_pinned_memory *self = (pooled_pinned_memory *)type->tp_alloc(type, 0);
    gmpy_base_memory *base = (gmpy_base_memory *)self;

    if (!self) {
        gm_pool_free(pool, block, block->generation);
        return NULL;
    }
    base->ptr = block->addr;
    base->size = block->size;
    base->device_id = block->segment->piece.device;
    base->generation = block->generation;
    self->owned.st = st;
    self->block = block;
    self->pool = pool;
    gmpy_upstream_count(pool, 1);
    return (PyObject *)self;
}

/* Gives back `block`, which was taken out of the handle; NULL: nothing. Keeps the
 * pending exception, since it runs no Python code. */
static void
give_back(const pooled_pinned_memory *self, gm_block *block)
{
    if (block && !gm_process_is_frozen()) {
        gmpy_upstream_count(self->pool, -1);
        gm_pool_free(self->pool, block, self->owned.base.generation);
    }
}

/* The block, which is the caller's to give back, where it was freed and nothing shows
 * it; else NULL. Inside the object's critical section. */
static gm_block *
take_block(pooled_pinned_memory *self)
{
    gm_block *block = self->block;

    if (!self->freed || self->buffers) {
        return NULL;
    }
    self->block = NULL;
    return block;
}

static void
pooled_pinned_memory_release(PyObject *op)
{
    pooled_pinned_memory *self = (pooled_pinned_memory *)op;
    gm_block *block;

    Py_BEGIN_CRITICAL_SECTION(op);
    self->freed = true;
    __atomic_store_n(&self->owned.base.ptr, 0, __ATOMIC_RELAXED);
    block = take_block(self);
    Py_END_CRITICAL_SECTION();
    give_back(self, block);
}

static bool
is_pooled(PyObject *mem)
{
    return Py_IS_TYPE(mem, gmpy_type(gmpy_state_of(mem)->PooledPinnedMemoryType));
}

bool
gmpy_pooled_pinned_memory_is_there(PyObject *mem)
{
    const pooled_pinned_memory *self = (const pooled_pinned_memory *)mem;
    bool there;

    Py_BEGIN_CRITICAL_SECTION(mem);
    there =
        self->block && __atomic_load_n(&self->block->generation, __ATOMIC_RELAXED) ==
                           self->owned.base.generation;
    Py_END_CRITICAL_SECTION();
    return there;
}

void
gmpy_pooled_pinned_memory_export(PyObject *mem)
{
    if (is_pooled(mem)) {
        Py_BEGIN_CRITICAL_SECTION(mem);
        ((pooled_pinned_memory *)mem)->buffers++;
        Py_END_CRITICAL_SECTION();
    }
}

void
gmpy_pooled_pinned_memory_unexport(PyObject *mem)
{
    pooled_pinned_memory *self = (pooled_pinned_memory *)mem;
    gm_block *block;

    if (!is_pooled(mem)) {
        return;
    }
    Py_BEGIN_CRITICAL_SECTION(mem);
    self->buffers--;
    block = take_block(self);
    Py_END_CRITICAL_SECTION();
    give_back(self, block);
}

static void
pooled_pinned_memory_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    pooled_pinned_memory_release(op);
    type->tp_free(op);
    Py_DECREF(type);
}

PyDoc_STRVAR(free_doc,
             "free($self, /)\n"
             "--\n"
             "\n"
             "Gives the memory back to its pool now, or with the last buffer over it.\n"
             "\n"
             "Harmless when it already went back. An async copy that was given the\n"
             "address alone may still use the memory; wait for it first.");

static PyObject *
pooled_pinned_memory_free(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    pooled_pinned_memory_release(self);
    Py_RETURN_NONE;
}

static PyObject *
pooled_pinned_memory_pool(PyObject *op, void *Py_UNUSED(closure))
{
    pooled_pinned_memory *self = (pooled_pinned_memory *)op;
    gm_pool *pool = NULL;

    Py_BEGIN_CRITICAL_SECTION(op);
    if (!self->freed) {
        pool = self->pool;
        gm_pool_ref(pool);
    }
    Py_END_CRITICAL_SECTION();
    return gmpy_upstream_take_reference(pool);
}

static PyGetSetDef pooled_pinned_memory_getset[] = {
    {"pool", pooled_pinned_memory_pool, NULL,
     "weak reference to the pool it came from; dead once given back", NULL},
    {0},
};

/* The base type's attributes, but not to be written: the handle is the pool's. */
static PyMemberDef pooled_pinned_memory_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_base_memory, ptr), READONLY,
     "address of the first byte, 0 once given back"},
    {"size", T_ULONGLONG, offsetof(gmpy_base_memory, size), READONLY,
     "length in bytes, rounded to whole units"},
    {"device_id", T_INT, offsetof(gmpy_base_memory, device_id), READONLY,
     "number of the device that was current"},
    {0},
};

static PyMethodDef pooled_pinned_memory_methods[] = {
    {"free", pooled_pinned_memory_free, METH_NOARGS, free_doc},
    {0},
};

static PyType_Slot pooled_pinned_memory_slots[] = {
    {Py_tp_doc, (void *)pooled_pinned_memory_doc},
    {Py_tp_dealloc, pooled_pinned_memory_dealloc},
    {Py_tp_methods, pooled_pinned_memory_methods},
    {Py_tp_members, pooled_pinned_memory_members},
    {Py_tp_getset, pooled_pinned_memory_getset},
    {0, NULL},
};

static PyType_Spec pooled_pinned_memory_spec = {
    .name = "gpumem.PooledPinnedMemory",
    .basicsize = sizeof(pooled_pinned_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = pooled_pinned_memory_slots,
};

int
gmpy_pooled_pinned_memory_init(PyObject *module, gmpy_state *st)
{
    st->PooledPinnedMemoryType = PyType_FromModuleAndSpec(
        module, &pooled_pinned_memory_spec, st->PinnedMemoryType);
    if (!st->PooledPinnedMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PooledPinnedMemory",
                                 st->PooledPinnedMemoryType);
}
