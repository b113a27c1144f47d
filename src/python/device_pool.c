/* SPDX-License-Identifier: MIT
 *
 * SingleDeviceMemoryPool: the owner of one native pool.
 *
 * It stays on the device that was current when it was made, whatever is current later.
 * When it dies, cached memory goes back at once and the rest as its blocks do; the
 * native pool lives until then.
 *
 * The collector sees through it to a Python base allocator and the memory that one
 * returned, but only while no block is out (see upstream.c).
 */
#include "pools.h"

#include "core/gm_process.h" // gm_process_is_forked

#include <structmember.h> // T_PYSSIZET

PyDoc_STRVAR(
    device_pool_doc,
    "SingleDeviceMemoryPool(allocator=None, *, growth=False, max_split_size=0,\n"
    "                       max_non_split_rounding=20971520, large_segment_size=0,\n"
    "                       expandable_segments=None, shareable=False)\n"
    "--\n"
    "\n"
    "A memory pool on the device that is current when it is made.\n"
    "\n"
    "Most programs want MemoryPool, which keeps one of these a device. Safe to\n"
    "share between threads.\n"
    "\n"
    "Args:\n"
    "    allocator (callable): what it takes memory from: called with a size in\n"
    "        bytes, returns a MemoryPointer. The device's plain memory if None.\n"
    "    growth (bool or int): how far memory is taken ahead of requests, as in\n"
    "        MemoryPool: False, True, or at least so many bytes.\n"
    "    max_split_size, max_non_split_rounding, large_segment_size (int): bytes;\n"
    "        how large requests are treated, as in MemoryPool.\n"
    "    expandable_segments (bool): whether memory is mapped page by page, as in\n"
    "        MemoryPool. What GPUMEM_EXPANDABLE_SEGMENTS says if None.\n"
    "    shareable (bool): reserved; False.\n"
    "\n"
    "Raises:\n"
    "    TypeError: allocator is not callable, or another not an integer.\n"
    "    OverflowError: one is negative or above 2**64-1.\n"
    "    ValueError: large_segment_size is no multiple of 512, or growth is given\n"
    "        with it or with max_split_size, or one of the three, or an allocator,\n"
    "        with expandable_segments.\n"
    "    RuntimeError: the device cannot map memory by page.\n"
    "    NotImplementedError: shareable is true.");

/* 1 where a `device` argument names the device that the pool is on, else -1. */
static int
device_pool_check(const gmpy_device_pool *self, PyObject *arg)
{
    int device;

    if (gmpy_as_device(self->any.st, arg, &device) < 0) {
        return -1;
    }
    if (device != self->device) {
        PyErr_Format(PyExc_ValueError, "the pool is on device %d, not on %d",
                     self->device, device);
        return -1;
    }
    return 1;
}

static int
device_pool_find(gmpy_any_pool *any,
                 PyObject *device_arg,
                 bool Py_UNUSED(make),
                 gm_pool **out,
                 int *device)
{
    gmpy_device_pool *self = (gmpy_device_pool *)any;

    if (gm_process_is_forked()) {
        gmpy_raise(any->st, GM_ERR_FORKED, "using a memory pool");
        return -1;
    }
    if (!self->pool) {
        PyErr_SetString(PyExc_RuntimeError, self->device < 0
                                                ? "the pool was not initialized"
                                                : "the pool was collected as garbage");
        return -1;
    }
    *device = self->device;
    *out = self->pool;
    return device_arg && device_arg != Py_None ? device_pool_check(self, device_arg)
                                               : 1;
}

PyObject *
gmpy_device_pool_alloc(PyTypeObject *type,
                       PyObject *Py_UNUSED(args),
                       PyObject *Py_UNUSED(kw))
{
    PyObject *module = PyType_GetModuleByDef(type, &gmpy_module_def);
    gmpy_device_pool *self =
        module ? (gmpy_device_pool *)type->tp_alloc(type, 0) : NULL;

    if (self) {
        self->any.st = gmpy_state_of_module(module);
        self->any.find = device_pool_find;
        self->device = GMPY_DEVICE_UNSET;
    }
    return (PyObject *)self;
}

/* Where another thread was first, the pool made here is given up again: asking for the
 * limit lets other threads run. */
int
gmpy_device_pool_open(gmpy_device_pool *self, int device, const gmpy_pool_setup *setup)
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &gmpy_module_def);
    size_t limit = 0;
    gm_pool *pool;
    bool first;

    if (!module ||
        (device >= 0 && gmpy_default_limit(self->any.st, device, &limit) < 0) ||
        gmpy_pool_new(self->any.st, module, device, setup->callable, &pool) < 0) {
        return -1;
    }
    if (gmpy_pool_setup_apply(self->any.st, setup, pool) < 0) {
        gm_pool_close(pool);
        return -1;
    }
    (void)gm_pool_set_limit(pool, limit); // not forked: it was just made
    Py_BEGIN_CRITICAL_SECTION(self);
    first = self->device == GMPY_DEVICE_UNSET;
    if (first) {
        gmpy_upstream_set_object(pool, (PyObject *)self);
        self->pool = pool;
        self->device = device;
    }
    Py_END_CRITICAL_SECTION();
    if (!first) {
        gm_pool_close(pool);
        PyErr_SetString(PyExc_RuntimeError, "a pool is initialized once");
        return -1;
    }
    return 0;
}

PyObject *
gmpy_device_pool_new(gmpy_state *st, int device, const gmpy_pool_setup *setup)
{
    PyObject *self =
        gmpy_device_pool_alloc(gmpy_type(st->SingleDeviceMemoryPoolType), NULL, NULL);

    if (self && gmpy_device_pool_open((gmpy_device_pool *)self, device, setup) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

static int
device_pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_device_pool *self = (gmpy_device_pool *)op;
    gmpy_state *st = self->any.st;
    gmpy_pool_setup setup;
    int device;

    if (gmpy_pool_setup_from(st, "SingleDeviceMemoryPool", args, kwargs, &setup) < 0 ||
        !gmpy_backend(st)) {
        return -1;
    }
    if (self->device != GMPY_DEVICE_UNSET) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a SingleDeviceMemoryPool is initialized once");
        return -1;
    }
    device = gmpy_current_device(st);
    return device < 0 ? -1 : gmpy_device_pool_open(self, device, &setup);
}

int
gmpy_device_pool_traverse(PyObject *op, visitproc visit, void *arg)
{
    gmpy_device_pool *self = (gmpy_device_pool *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->any.callback);
    return self->pool ? gmpy_upstream_traverse(gmpy_upstream_of(self->pool), visit, arg)
                      : 0;
}

int
gmpy_device_pool_clear(PyObject *op)
{
    gmpy_device_pool *self = (gmpy_device_pool *)op;
    gm_pool *pool = self->pool;

    Py_CLEAR(self->any.callback);
    if (pool) {
        self->pool = NULL;
        gmpy_upstream_set_object(pool, NULL);
        gm_pool_close(pool);
    }
    return 0;
}

void
gmpy_device_pool_dealloc(PyObject *op)
{
    gmpy_device_pool *self = (gmpy_device_pool *)op;
    PyTypeObject *type = Py_TYPE(op);
    GMPY_TAKE_ERROR(pending);

    PyObject_GC_UnTrack(op);
    if (self->pool) { // no new weak references from here on
        gmpy_upstream_set_object(self->pool, NULL);
    }
    if (self->weakrefs) {
        PyObject_ClearWeakRefs(op);
    }
    (void)gmpy_device_pool_clear(op);
    GMPY_GIVE_ERROR(pending);
    type->tp_free(op);
    Py_DECREF(type);
}

PyDoc_STRVAR(
    malloc_doc,
    "malloc($self, size, *, device=None)\n"
    "--\n"
    "\n"
    "Allocates memory for use on the current stream.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 gives a null pointer.\n"
    "    device (int or Device): the one that the pool is on, or None.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the start of the memory, which goes back to the pool\n"
    "    when the last pointer into it dies.\n"
    "\n"
    "Raises:\n"
    "    OutOfMemoryError: there is no memory, or the limit does not allow it,\n"
    "        after everything idle was given back and garbage was collected.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size is not an integer.\n"
    "    ValueError: the pool is not on that device.\n"
    "    CUDARuntimeError: the device refused for another reason.");

static PyObject *
device_pool_malloc(PyObject *op,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    static const gmpy_signature signature = {"malloc", 2, 1, 1, {"size", "device"}};
    gmpy_device_pool *self = (gmpy_device_pool *)op;
    PyObject *given[2];
    gm_pool *pool;
    size_t size;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0 ||
        device_pool_find(&self->any, given[1], true, &pool, &device) < 0) {
        return NULL;
    }
    return gmpy_pool_malloc(self->any.st, pool, device, size);
}

PyDoc_STRVAR(
    free_doc,
    "free($self, ptr, size)\n"
    "--\n"
    "\n"
    "Gives back a live block by its address, ahead of its PooledMemory, which\n"
    "then has nothing to give back.\n"
    "\n"
    "Args:\n"
    "    ptr (int): where the block starts.\n"
    "    size (int): ignored; the pool knows it.\n"
    "\n"
    "Raises:\n"
    "    RuntimeError: no live block of this pool starts there.");

static PyObject *
device_pool_free(PyObject *op,
                 PyObject *const *args,
                 Py_ssize_t nargs,
                 PyObject *kwnames)
{
    static const gmpy_signature signature = {"free", 2, 2, 2, {"ptr", "size"}};
    gmpy_device_pool *self = (gmpy_device_pool *)op;
    PyObject *given[2];
    gm_pool *pool;
    uintptr_t ptr;
    gm_status status;
    size_t size;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_address(given[0], "ptr", &ptr) < 0 ||
        gmpy_as_size(given[1], "size", &size) < 0 ||
        device_pool_find(&self->any, NULL, true, &pool, &device) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_pool_free_address(pool, ptr);
    Py_END_ALLOW_THREADS
    if (status == GM_ERR_NOT_OWNED) {
        return PyErr_Format(PyExc_RuntimeError,
                            "no live block of this pool starts at %s",
                            gmpy_as_hex(ptr).text);
    }
    if (status != GM_OK) {
        return gmpy_raise(self->any.st, status, "freeing a block by its address");
    }
    Py_RETURN_NONE;
}

static PyMethodDef device_pool_methods[] = {
    {"malloc", (PyCFunction)(void (*)(void))device_pool_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_doc},
    {"free", (PyCFunction)(void (*)(void))device_pool_free,
     METH_FASTCALL | METH_KEYWORDS, free_doc},
    {0},
};

static PyMemberDef device_pool_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(gmpy_device_pool, weakrefs), READONLY,
     NULL},
    {0},
};

static PyType_Slot device_pool_slots[] = {
    {Py_tp_doc, (void *)device_pool_doc},
    {Py_tp_new, gmpy_device_pool_alloc},
    {Py_tp_init, device_pool_init},
    {Py_tp_dealloc, gmpy_device_pool_dealloc},
    {Py_tp_traverse, gmpy_device_pool_traverse},
    {Py_tp_clear, gmpy_device_pool_clear},
    {Py_tp_methods, device_pool_methods},
    {Py_tp_members, device_pool_members},
    {0, NULL},
};

static PyType_Spec device_pool_spec = {
    .name = "gpumem.SingleDeviceMemoryPool",
    .basicsize = sizeof(gmpy_device_pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = device_pool_slots,
};

int
gmpy_device_pool_init(PyObject *module, gmpy_state *st)
{
    st->SingleDeviceMemoryPoolType =
        PyType_FromModuleAndSpec(module, &device_pool_spec, st->BasePoolType);
    if (!st->SingleDeviceMemoryPoolType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "SingleDeviceMemoryPool",
                                 st->SingleDeviceMemoryPoolType);
}
