/* SPDX-License-Identifier: MIT
 *
 * PooledMemory: the handle of one block of a pool.
 *
 * Made for the memory of pools alone, when somebody first asks a pointer for it
 * (memory_pointer.c). It owns its block natively: the block keeps the native pool, so
 * the memory stays valid whichever Python object dies first, and going back needs no
 * lookup. Not tracked by the collector, since it refers to no Python object.
 *
 * While somebody else sees the memory (exports.c), free() called by hand is put off:
 * the handle says that it was given back, and the block goes with the last who sees it.
 *
 * Cost: made from and returned to a list of dead handles (reuse.h). Threading: free()
 * may race with itself and with those who see the memory; the block goes back once.
 */
#include "module.h"
#include "hooks.h"
#include "memory_kinds.h"
#include "pinned.h"
#include "pointer.h"

#include "core/gm_process.h" // gm_process_is_frozen

#include <structmember.h> // T_INT, T_ULONGLONG

PyDoc_STRVAR(pooled_memory_doc,
             "Memory handed out by a pool; goes back to it when the object dies.\n"
             "\n"
             "Made by the pools' malloc alone.\n"
             "\n"
             "Attributes:\n"
             "    ptr (int): address of the first byte, 0 once given back.\n"
             "    size (int): length in bytes, rounded up to whole units of 512.\n"
             "    device_id (int): number of the device.\n"
             "    pool: a weak reference to the SingleDeviceMemoryPool it came from.\n"
             "    identity (str): name of the type of memory that the pool took it\n"
             "        from; Memory where that is the device's own.");

static PyObject *
pooled_memory_alloc(gmpy_state *st)
{
    PyTypeObject *type = gmpy_type(st->PooledMemoryType);
    PyObject *kept = gmpy_freelist_take(GMPY_REUSE(st, handles), type);

    return kept ? kept : (PyObject *)PyObject_New(gmpy_pooled_memory, type);
}

/* Where the block was given back by address meanwhile, its node says what it was. */
PyObject *
gmpy_pooled_memory_new(gmpy_state *st,
                       gm_pool *pool,
                       gm_block *block,
                       uint32_t generation)
{
    gmpy_pooled_memory *self = (gmpy_pooled_memory *)pooled_memory_alloc(st);

    if (self) {
        self->base.ptr = block->addr;
        self->base.size = block->size;
        self->base.device_id = gm_pool_device(pool);
        self->base.generation = generation;
        self->block = block;
        self->pool = pool;
        self->st = st;
    }
    return (PyObject *)self;
}

void
gmpy_block_give_back(gm_pool *pool, gm_block *block, uint32_t generation)
{
    gmpy_upstream_count(pool, -1);
    gm_pool_free(pool, block, generation);
}

/* The block, which is the caller's to give back; NULL when it went already. Inside the
 * object's critical section, so that whoever sees the block in there can look at it. */
static gm_block *
pooled_memory_take_block(gmpy_pooled_memory *self)
{
    gm_block *block = self->block;

    self->block = NULL;
    return block;
}

/* The same with the memory hooks called before and after. Keeps the pending
 * exception; the block goes back whatever a hook does. */
GM_COLD static void
pooled_memory_give_back_hooked(gmpy_pooled_memory *self, gm_block *block, uintptr_t ptr)
{
    const gmpy_hook_event event = {
        .device = self->base.device_id,
        .mem_size = self->base.size,
        .has_ptr = true,
        .mem_ptr = ptr,
        .has_id = true,
        .pmem = self,
    };
    GMPY_TAKE_ERROR(pending);
    PyObject *hooks = gmpy_hooks_snapshot(self->st);

    if (hooks) {
        gmpy_hooks_tell(hooks, "free_preprocess", &event);
    }
    else {
        PyErr_WriteUnraisable(NULL);
    }
    gmpy_block_give_back(self->pool, block, self->base.generation);
    if (hooks) {
        gmpy_hooks_tell(hooks, "free_postprocess", &event);
    }
    Py_XDECREF(hooks);
    GMPY_GIVE_ERROR(pending);
}

/* Gives back `block`, which was taken out of the handle; NULL: nothing. `ptr` is where
 * it is. */
static void
pooled_memory_finish(gmpy_pooled_memory *self, gm_block *block, uintptr_t ptr)
{
    if (!block || gm_process_is_frozen()) {
        return;
    }
    if (GM_UNLIKELY(gmpy_is_hooked(self->st))) {
        pooled_memory_give_back_hooked(self, block, ptr);
    }
    else {
        gmpy_block_give_back(self->pool, block, self->base.generation);
    }
}

static void
pooled_memory_release(gmpy_pooled_memory *self)
{
    gm_block *block = pooled_memory_take_block(self);
    uintptr_t ptr = self->base.ptr;

    if (block) {
        self->base.ptr = 0;
    }
    pooled_memory_finish(self, block, ptr);
}

static void
pooled_memory_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    gmpy_state *st;

    pooled_memory_release((gmpy_pooled_memory *)self);
    st = ((gmpy_pooled_memory *)self)->st;
    if (!gmpy_freelist_put(GMPY_REUSE(st, handles), self, type)) {
        PyObject_Free(self);
        Py_DECREF(type);
    }
}

/* ---- who sees it ---- */

int
gmpy_export_begin(gmpy_state *st, PyObject *mem)
{
    const gmpy_base_memory *base = (const gmpy_base_memory *)mem;
    bool there;

    if (!Py_IS_TYPE(mem, gmpy_type(st->PooledMemoryType))) {
        gmpy_pooled_pinned_memory_export(mem);
        return 0;
    }
    if (!gmpy_exports_add(&st->exports, mem)) {
        PyErr_NoMemory();
        return -1;
    }
    /* From here on free() is put off, and one that came before is seen. */
    Py_BEGIN_CRITICAL_SECTION(mem);
    there = base->ptr || !base->size;
    Py_END_CRITICAL_SECTION();
    if (!there) {
        gmpy_export_end(st, mem);
        PyErr_SetString(PyExc_ValueError, "the memory was given back");
        return -1;
    }
    return 0;
}

void
gmpy_export_end(gmpy_state *st, PyObject *mem)
{
    gmpy_pooled_memory *self = (gmpy_pooled_memory *)mem;
    gm_block *block;
    uintptr_t ptr;

    if (!Py_IS_TYPE(mem, gmpy_type(st->PooledMemoryType))) {
        gmpy_pooled_pinned_memory_unexport(mem);
    }
    else if (gmpy_exports_remove(&st->exports, mem, &ptr)) {
        Py_BEGIN_CRITICAL_SECTION(mem);
        block = pooled_memory_take_block(self);
        Py_END_CRITICAL_SECTION();
        pooled_memory_finish(self, block, ptr);
    }
}

PyDoc_STRVAR(
    free_doc,
    "free($self, /)\n"
    "--\n"
    "\n"
    "Gives the memory back to its pool now, or with the last who sees it through a\n"
    "buffer or DLPack.\n"
    "\n"
    "Harmless when it already went back. Work queued on the stream it was\n"
    "allocated on may still use it; any other use afterwards is the caller's error.");

static PyObject *
pooled_memory_free(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_pooled_memory *self = (gmpy_pooled_memory *)op;
    gm_block *block = NULL;
    uintptr_t ptr;

    Py_BEGIN_CRITICAL_SECTION(op);
    ptr = self->base.ptr;
    /* Where it is 0 the block, if there is one, is for who saw the memory last. */
    if (ptr && (!gmpy_exports_any(&self->st->exports) ||
                !gmpy_exports_put_off(&self->st->exports, self, ptr))) {
        block = pooled_memory_take_block(self);
    }
    __atomic_store_n(&self->base.ptr, 0, __ATOMIC_RELAXED);
    Py_END_CRITICAL_SECTION();
    pooled_memory_finish(self, block, ptr);
    Py_RETURN_NONE;
}

static PyObject *
pooled_memory_pool(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_pooled_memory *self = (gmpy_pooled_memory *)op;
    gm_pool *pool = NULL;

    Py_BEGIN_CRITICAL_SECTION(op);
    if (self->block && self->base.ptr) {
        pool = self->pool;
        gm_pool_ref(pool);
    }
    Py_END_CRITICAL_SECTION();
    return gmpy_upstream_take_reference(pool);
}

/* Inside the object's critical section. */
static bool
is_there(const gmpy_pooled_memory *self)
{
    return self->block && __atomic_load_n(&self->block->generation, __ATOMIC_RELAXED) ==
                              self->base.generation;
}

bool
gmpy_pooled_memory_is_there(PyObject *mem)
{
    bool there;

    Py_BEGIN_CRITICAL_SECTION(mem);
    there = is_there((const gmpy_pooled_memory *)mem);
    Py_END_CRITICAL_SECTION();
    return there;
}

PyObject *
gmpy_memory_under(gmpy_state *st, PyObject *mem)
{
    const gmpy_pooled_memory *pooled = (const gmpy_pooled_memory *)mem;
    PyObject *found = NULL;

    if (!Py_IS_TYPE(mem, gmpy_type(st->PooledMemoryType))) {
        return Py_NewRef(mem);
    }
    Py_BEGIN_CRITICAL_SECTION(mem);
    if (is_there(pooled)) { // and with it the segment, and what that keeps
        found = Py_XNewRef(
            gmpy_upstream_memory_of(gmpy_upstream_of(pooled->pool), pooled->block));
    }
    Py_END_CRITICAL_SECTION();
    return found;
}

/* ---- what the memory is made of ---- */

static PyObject *
pooled_memory_identity(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_state *st = ((gmpy_pooled_memory *)op)->st;
    PyObject *mem = gmpy_memory_under(st, op);
    PyObject *name = PyType_GetName(mem ? Py_TYPE(mem) : gmpy_type(st->MemoryType));

    Py_XDECREF(mem);
    return name;
}

/* 0 where the memory can be moved and advised about, else -1 with TypeError. */
static int
pooled_memory_check_migrates(PyObject *op, const char *name)
{
    gmpy_pooled_memory *self = (gmpy_pooled_memory *)op;
    bool migrates;
    PyObject *mem;

    if (gmpy_memory_check(self->st, op) < 0) {
        return -1;
    }
    mem = gmpy_memory_under(self->st, op);
    migrates =
        mem && (PyObject_TypeCheck(mem, gmpy_type(self->st->ManagedMemoryType)) ||
                PyObject_TypeCheck(mem, gmpy_type(self->st->SystemMemoryType)));
    if (!migrates) {
        PyErr_Format(PyExc_TypeError,
                     "%s is for managed and system memory; this pool's is %s", name,
                     mem ? Py_TYPE(mem)->tp_name : "the device's own");
    }
    Py_XDECREF(mem);
    return migrates ? 0 : -1;
}

static PyObject *
pooled_memory_prefetch(PyObject *op,
                       PyObject *const *args,
                       Py_ssize_t nargs,
                       PyObject *kwnames)
{
    return pooled_memory_check_migrates(op, "prefetch") < 0
               ? NULL
               : gmpy_memory_prefetch(op, args, nargs, kwnames);
}

static PyObject *
pooled_memory_advise(PyObject *op,
                     PyObject *const *args,
                     Py_ssize_t nargs,
                     PyObject *kwnames)
{
    return pooled_memory_check_migrates(op, "advise") < 0
               ? NULL
               : gmpy_memory_advise(op, args, nargs, kwnames);
}

/* ---- the type ---- */

static PyGetSetDef pooled_memory_getset[] = {
    {"identity", pooled_memory_identity, NULL,
     "name of the type of memory that its pool took it from", NULL},
    {"pool", pooled_memory_pool, NULL,
     "weak reference to the pool it came from; dead once given back", NULL},
    {0},
};

/* The base type's attributes, but not to be written: the handle is the pool's. */
static PyMemberDef pooled_memory_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_base_memory, ptr), READONLY,
     "address of the first byte, 0 once given back"},
    {"size", T_ULONGLONG, offsetof(gmpy_base_memory, size), READONLY,
     "length in bytes, rounded to whole units"},
    {"device_id", T_INT, offsetof(gmpy_base_memory, device_id), READONLY,
     "number of the device"},
    {0},
};

static PyMethodDef pooled_memory_methods[] = {
    {"free", pooled_memory_free, METH_NOARGS, free_doc},
    {"prefetch", (PyCFunction)(void (*)(void))pooled_memory_prefetch,
     METH_FASTCALL | METH_KEYWORDS, gmpy_memory_prefetch_doc},
    {"advise", (PyCFunction)(void (*)(void))pooled_memory_advise,
     METH_FASTCALL | METH_KEYWORDS, gmpy_memory_advise_doc},
    {0},
};

static PyType_Slot pooled_memory_slots[] = {
    {Py_tp_doc, (void *)pooled_memory_doc}, {Py_tp_dealloc, pooled_memory_dealloc},
    {Py_tp_methods, pooled_memory_methods}, {Py_tp_members, pooled_memory_members},
    {Py_tp_getset, pooled_memory_getset},   {0, NULL},
};

static PyType_Spec pooled_memory_spec = {
    .name = "gpumem.PooledMemory",
    .basicsize = sizeof(gmpy_pooled_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = pooled_memory_slots,
};

int
gmpy_pooled_memory_init(PyObject *module, gmpy_state *st)
{
    st->PooledMemoryType =
        PyType_FromModuleAndSpec(module, &pooled_memory_spec, st->BaseMemoryType);
    if (!st->PooledMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PooledMemory", st->PooledMemoryType);
}
