/* SPDX-License-Identifier: MIT
 *
 * MemoryPool: a SingleDeviceMemoryPool a device, made when memory of that device is
 * first asked for. Every method acts on the pool of the device that it is given, or of
 * the calling thread's current one.
 *
 * Reading statistics makes no pool. Nor does it ask a device anything, but for what a
 * limit of the environment comes to that is a part of its memory.
 *
 * Cost: malloc adds one array access to the native pool's hit; with several devices
 * also asking which one is current.
 */
#include "pools.h"

#include "core/gm_process.h" // gm_process_is_forked

#include <structmember.h> // T_PYSSIZET

typedef struct memory_pool {
    gmpy_any_pool any;
    gmpy_pool_setup setup; // of the pools; has a reference to its callable
    PyObject **pools;      // a SingleDeviceMemoryPool a device, NULL where not made
    int device_count;      // their number, 0 until first use
    bool ready;            // initialized, and not cleared by the collector
    bool cleared;          // by the collector
    PyObject *weakrefs;
} memory_pool;

PyDoc_STRVAR(
    memory_pool_doc,
    "MemoryPool(allocator=None, *, growth=False, max_split_size=0,\n"
    "           max_non_split_rounding=20971520, large_segment_size=0,\n"
    "           expandable_segments=None, shareable=False)\n"
    "--\n"
    "\n"
    "A memory pool for all devices.\n"
    "\n"
    "Keeps what is given back and serves later requests of the same stream from\n"
    "it: the best fit, split to size. Set it as the allocator by\n"
    "set_allocator(MemoryPool().malloc). Its methods are about the current\n"
    "device where they are given none. Safe to share between threads.\n"
    "\n"
    "Memory outlives its pool: what is in use when the pool dies stays valid and\n"
    "goes back to the device when its last pointer does.\n"
    "\n"
    "Args:\n"
    "    allocator (callable): what it takes memory from: called with a size in\n"
    "        bytes, returns a MemoryPointer. The device's plain memory if None.\n"
    "    growth (bool or int): True takes memory ahead of requests, so that a\n"
    "        pool that starts cold asks the device rarely; a number of bytes is\n"
    "        the least that it is to be ahead, 64 MiB for True. False takes exactly\n"
    "        what requests need.\n"
    "    max_split_size (int): bytes from which on a block is kept whole: it\n"
    "        serves only requests of so many bytes. 0 splits all.\n"
    "    max_non_split_rounding (int): bytes by which such a block has to be less\n"
    "        than above a request's size to serve it. 20 MiB.\n"
    "    large_segment_size (int): bytes, a multiple of 512; what is taken from\n"
    "        the device for a request above 1 MiB is a whole multiple of it. 0\n"
    "        takes what the request needs.\n"
    "    expandable_segments (bool): True maps memory page by page into a range of\n"
    "        addresses for each stream, so that pages that are free serve requests\n"
    "        of any size wherever they lie, and go back to the device without it\n"
    "        being waited for. False does not; None does what the environment\n"
    "        variable GPUMEM_EXPANDABLE_SEGMENTS says when a device is first used.\n"
    "    shareable (bool): reserved; False.\n"
    "\n"
    "With growth, what is taken is larger than the request by an eighth of what\n"
    "its stream holds, or by those bytes where that is more. Bound: no more is\n"
    "cached then than is in use, or than those bytes for each stream that holds\n"
    "memory, whichever is more. Growth fills no more than half of the limit, nor of\n"
    "what the pool holds and the device has free; from there on, and where the\n"
    "device refuses more, requests get what they need.\n"
    "\n"
    "With max_split_size, a request above 1 MiB and below it gets a whole block\n"
    "too where 1 MiB or less would be left. What a block has more than was asked\n"
    "for counts as used.\n"
    "\n"
    "Raises:\n"
    "    TypeError: allocator is not callable, or another not an integer.\n"
    "    OverflowError: one is negative or above 2**64-1.\n"
    "    ValueError: large_segment_size is no multiple of 512, or growth is given\n"
    "        with it or with max_split_size, or one of the three, or an allocator,\n"
    "        with expandable_segments.\n"
    "    NotImplementedError: shareable is true.");

/* ---- the pool of a device ---- */

/* The native pool on `device`; NULL where none was made, or it was cleared. Needs no
 * critical section: what is there stays as long as somebody can call the pool. */
static inline gm_pool *
memory_pool_native(const memory_pool *self, int device)
{
    PyObject *pool =
        device < GMPY_SEE(&self->device_count) ? GMPY_SEE(&self->pools[device]) : NULL;

    return GM_LIKELY(pool != NULL) ? ((gmpy_device_pool *)pool)->pool : NULL;
}

static int
memory_pool_make(memory_pool *self, int device)
{
    gmpy_state *st = self->any.st;
    PyObject *pool;

    if (!self->pools) {
        self->pools = PyMem_Calloc((size_t)st->device_count, sizeof(PyObject *));
        if (!self->pools) {
            PyErr_NoMemory();
            return -1;
        }
        GMPY_PUBLISH(&self->device_count, st->device_count);
    }
    pool = gmpy_device_pool_new(st, device, &self->setup);
    if (!pool) {
        return -1;
    }
    gmpy_pool_set_callback((gmpy_any_pool *)pool, self->any.callback);
    if (self->pools[device]) { // made meanwhile by somebody else
        Py_DECREF(pool);
    }
    else {
        GMPY_PUBLISH(&self->pools[device], pool);
    }
    return 0;
}

static int
memory_pool_find(
    gmpy_any_pool *any, PyObject *device_arg, bool make, gm_pool **out, int *device)
{
    memory_pool *self = (memory_pool *)any;
    int result = 0;

    if (!self->ready) {
        PyErr_SetString(PyExc_RuntimeError, self->cleared
                                                ? "the pool was collected as garbage"
                                                : "the pool was not initialized");
        return -1;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(any->st, GM_ERR_FORKED, "using a memory pool");
        return -1;
    }
    if (!gmpy_backend(any->st) ||
        gmpy_as_device_or_current(any->st, device_arg, device) < 0) {
        return -1;
    }
    Py_BEGIN_CRITICAL_SECTION(self);
    *out = memory_pool_native(self, *device);
    if (!*out && make) {
        result = memory_pool_make(self, *device);
        *out = memory_pool_native(self, *device);
    }
    Py_END_CRITICAL_SECTION();
    return result < 0 ? -1 : *out != NULL;
}

/* Hands the callback to the pools that there are; others get it when they are made. */
static void
memory_pool_share_callback(gmpy_any_pool *any)
{
    memory_pool *self = (memory_pool *)any;

    for (int i = 0; i < self->device_count; i++) {
        PyObject *callback;
        PyObject *pool;

        Py_BEGIN_CRITICAL_SECTION(self);
        callback = Py_XNewRef(any->callback);
        pool = Py_XNewRef(self->pools[i]);
        Py_END_CRITICAL_SECTION();
        if (pool) {
            gmpy_pool_set_callback((gmpy_any_pool *)pool, callback);
        }
        Py_XDECREF(pool);
        Py_XDECREF(callback);
    }
}

/* ---- life ---- */

static PyObject *
memory_pool_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kw))
{
    PyObject *module = PyType_GetModuleByDef(type, &gmpy_module_def);
    memory_pool *self = module ? (memory_pool *)type->tp_alloc(type, 0) : NULL;

    if (self) {
        self->any.st = gmpy_state_of_module(module);
        self->any.find = memory_pool_find;
        self->any.share_callback = memory_pool_share_callback;
    }
    return (PyObject *)self;
}

static int
memory_pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    memory_pool *self = (memory_pool *)op;
    gmpy_pool_setup setup;
    bool first;

    if (gmpy_pool_setup_from(self->any.st, "MemoryPool", args, kwargs, &setup) < 0) {
        return -1;
    }
    Py_BEGIN_CRITICAL_SECTION(op);
    first = !self->ready && !self->cleared;
    if (first) {
        Py_XINCREF(setup.callable);
        self->setup = setup;
        self->ready = true;
    }
    Py_END_CRITICAL_SECTION();
    if (!first) {
        PyErr_SetString(PyExc_RuntimeError, "a MemoryPool is initialized once");
        return -1;
    }
    return 0;
}

static int
memory_pool_traverse(PyObject *op, visitproc visit, void *arg)
{
    memory_pool *self = (memory_pool *)op;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->setup.callable);
    Py_VISIT(self->any.callback);
    for (int i = 0; i < self->device_count; i++) {
        Py_VISIT(self->pools[i]);
    }
    return 0;
}

static int
memory_pool_clear(PyObject *op)
{
    memory_pool *self = (memory_pool *)op;

    self->ready = false;
    self->cleared = true;
    for (int i = 0; i < self->device_count; i++) {
        Py_CLEAR(self->pools[i]);
    }
    Py_CLEAR(self->setup.callable);
    Py_CLEAR(self->any.callback);
    return 0;
}

static void
memory_pool_dealloc(PyObject *op)
{
    memory_pool *self = (memory_pool *)op;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    if (self->weakrefs) {
        PyObject_ClearWeakRefs(op);
    }
    (void)memory_pool_clear(op);
    PyMem_Free(self->pools);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- malloc ---- */

PyDoc_STRVAR(
    malloc_doc,
    "malloc($self, size, *, device=None)\n"
    "--\n"
    "\n"
    "Allocates memory of a device for use on its current stream.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 gives a null pointer.\n"
    "    device (int or Device): where; on the current device if None.\n"
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
    "    ValueError: there is no such device.\n"
    "    CUDARuntimeError: the device refused for another reason.");

/* The same on the device of a `device` argument, with all checks. */
static PyObject *
memory_pool_malloc_on(PyObject *op, size_t size, PyObject *device_arg)
{
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    gm_pool *pool;
    int device;

    if (memory_pool_find(self, device_arg, true, &pool, &device) < 0) {
        return NULL;
    }
    return gmpy_pool_malloc(self->st, pool, device, size);
}

PyObject *
gmpy_memory_pool_malloc(PyObject *op, PyObject *arg)
{
    const memory_pool *self = (const memory_pool *)op;
    gmpy_state *st;
    gm_pool *pool;
    size_t size;
    int device;

    if (gmpy_as_size(arg, "size", &size) < 0) {
        return NULL;
    }
    st = self->any.st;
    device = gmpy_current_device(st);
    if (device < 0) {
        return NULL;
    }
    pool = memory_pool_native(self, device);
    if (GM_LIKELY(pool != NULL)) {
        return gmpy_pool_malloc(st, pool, device, size);
    }
    return memory_pool_malloc_on(op, size, NULL);
}

static PyObject *
memory_pool_malloc(PyObject *self,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    static const gmpy_signature signature = {"malloc", 2, 1, 1, {"size", "device"}};
    PyObject *given[2];
    size_t size;

    if (GM_LIKELY(nargs == 1 && !kwnames)) {
        return gmpy_memory_pool_malloc(self, args[0]);
    }
    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0) {
        return NULL;
    }
    return memory_pool_malloc_on(self, size, given[1]);
}

bool
gmpy_is_pool_malloc(gmpy_state *st, PyObject *callable, PyObject **pool)
{
    if (!PyCFunction_CheckExact(callable) ||
        PyCFunction_GET_FUNCTION(callable) !=
            (PyCFunction)(void (*)(void))memory_pool_malloc) {
        return false;
    }
    *pool = PyCFunction_GET_SELF(callable);
    return ((gmpy_any_pool *)*pool)->st == st;
}

static PyMethodDef memory_pool_methods[] = {
    {"malloc", (PyCFunction)(void (*)(void))memory_pool_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_doc},
    {0},
};

static PyMemberDef memory_pool_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(memory_pool, weakrefs), READONLY, NULL},
    {0},
};

static PyType_Slot memory_pool_slots[] = {
    {Py_tp_doc, (void *)memory_pool_doc},
    {Py_tp_new, memory_pool_new},
    {Py_tp_init, memory_pool_init},
    {Py_tp_dealloc, memory_pool_dealloc},
    {Py_tp_traverse, memory_pool_traverse},
    {Py_tp_clear, memory_pool_clear},
    {Py_tp_methods, memory_pool_methods},
    {Py_tp_members, memory_pool_members},
    {0, NULL},
};

static PyType_Spec memory_pool_spec = {
    .name = "gpumem.MemoryPool",
    .basicsize = sizeof(memory_pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_pool_slots,
};

int
gmpy_memory_pool_init(PyObject *module, gmpy_state *st)
{
    st->MemoryPoolType =
        PyType_FromModuleAndSpec(module, &memory_pool_spec, st->BasePoolType);
    if (!st->MemoryPoolType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "MemoryPool", st->MemoryPoolType);
}
