/* SPDX-License-Identifier: MIT
 *
 * PinnedMemoryPool: a pool of page-locked host memory.
 *
 * It is the core's pool over another upstream, so it has its placement, its limit, its
 * way with want of memory and its statistics, where the pool it follows keeps a list of
 * free blocks for each size. It is the host's and therefore one, whatever device is
 * current, and knows no streams: who lets a device read or write the memory keeps it
 * until that is done, as the copies of MemoryPointer do.
 *
 * Pages are locked and unlocked by the kernel, at a cost of some 0.1 ms a call before
 * the first page. So segments are multiples of 64 KiB: 128 of the least requests share
 * one, and no more than that is locked in vain.
 *
 * Cost: a hit is the core's and two objects. Threading: any thread.
 */
#include "later.h"
#include "pinned.h"
#include "pools.h"

#include "core/gm_process.h" // gm_process_is_forked

#include <structmember.h> // T_PYSSIZET

enum {
    SEGMENT_UNIT = 64 << 10, // bytes
};

PyDoc_STRVAR(
    pinned_pool_doc,
    "PinnedMemoryPool(allocator=None)\n"
    "--\n"
    "\n"
    "A pool of page-locked host memory, for all devices.\n"
    "\n"
    "Locking pages is slow; the pool keeps what is given back and serves later\n"
    "requests from it: the best fit, split to size. Set it as the allocator by\n"
    "set_pinned_memory_allocator(PinnedMemoryPool().malloc). Safe to share between\n"
    "threads. Memory outlives its pool.\n"
    "\n"
    "A fraction in set_limit is of the host's physical memory. There are no\n"
    "streams: free_all_blocks gives everything back that is cached.\n"
    "\n"
    "Args:\n"
    "    allocator (callable): what it takes memory from: called with a size in\n"
    "        bytes, returns a PinnedMemoryPointer. The driver's if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: allocator is not callable.");

static int
pinned_pool_find(gmpy_any_pool *any,
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
        PyErr_SetString(PyExc_RuntimeError, self->device == GMPY_DEVICE_UNSET
                                                ? "the pool was not initialized"
                                                : "the pool was collected as garbage");
        return -1;
    }
    if (device_arg && device_arg != Py_None) {
        PyErr_SetString(PyExc_ValueError, "the pool is of the host, not of a device");
        return -1;
    }
    *device = GMPY_DEVICE_HOST;
    *out = self->pool;
    return 1;
}

static PyObject *
pinned_pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = gmpy_device_pool_alloc(type, args, kwargs);

    if (self) {
        ((gmpy_any_pool *)self)->find = pinned_pool_find;
    }
    return self;
}

static int
pinned_pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "PinnedMemoryPool", 1, 0, 1, {"allocator"}};
    gmpy_device_pool *self = (gmpy_device_pool *)op;
    gmpy_state *st = self->any.st;
    gmpy_pool_setup setup = {0};
    PyObject *given[1];
    PyObject *callable;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0) {
        return -1;
    }
    callable = gmpy_as_allocator(given[0], st->raw_malloc_pinned);
    if (!callable) {
        return -1;
    }
    if (self->device != GMPY_DEVICE_UNSET) {
        PyErr_SetString(PyExc_RuntimeError, "a PinnedMemoryPool is initialized once");
        return -1;
    }
    if (callable != st->raw_malloc_pinned) {
        setup.callable = callable;
    }
    if (gmpy_device_pool_open(self, GMPY_DEVICE_HOST, &setup) < 0) {
        return -1;
    }
    gm_pool_set_segment_unit(self->pool, SEGMENT_UNIT);
    return 0;
}

PyDoc_STRVAR(
    malloc_doc,
    "malloc($self, size)\n"
    "--\n"
    "\n"
    "Allocates page-locked host memory.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 gives a null pointer.\n"
    "\n"
    "Returns:\n"
    "    PinnedMemoryPointer: to the start of the memory, which goes back to the\n"
    "    pool when the last pointer into it and the last buffer over it die.\n"
    "\n"
    "Raises:\n"
    "    OutOfMemoryError: there is no memory, or the limit does not allow it,\n"
    "        after everything idle was given back and garbage was collected.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size is not an integer.\n"
    "    CUDARuntimeError: the driver refused for another reason.");

/* What the cache has not: first looks whether copies that kept memory are done, since
 * they may have been the last to hold it. */
static int
pinned_pool_miss(gmpy_state *st,
                 gm_pool *pool,
                 const gm_request *request,
                 gm_block **out)
{
    if (!gmpy_backend(st)) {
        return -1;
    }
    gmpy_watch_look(st, true);
    return gmpy_pool_malloc_slow(st, pool, request, NULL, out);
}

static PyObject *
pinned_pool_take(gmpy_state *st, gm_pool *pool, size_t size)
{
    const gm_request request = gmpy_request(st, GMPY_DEVICE_HOST, size);
    gm_block *block;

    if (size == 0) {
        return gmpy_owned_memory_new(st, GM_MEM_PINNED, 0);
    }
    if (gm_pool_malloc(pool, &request, &block) != GM_OK &&
        pinned_pool_miss(st, pool, &request, &block) < 0) {
        return NULL;
    }
    return gmpy_pooled_pinned_memory_new(st, pool, block);
}

static PyObject *
pinned_pool_malloc(PyObject *op,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    static const gmpy_signature signature = {"malloc", 1, 1, 1, {"size"}};
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    PyObject *given[1];
    gm_pool *pool;
    size_t size;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0 ||
        self->find(self, NULL, true, &pool, &device) < 0) {
        return NULL;
    }
    return gmpy_pinned_pointer_to_new(self->st, pinned_pool_take(self->st, pool, size));
}

static PyMethodDef pinned_pool_methods[] = {
    {"malloc", (PyCFunction)(void (*)(void))pinned_pool_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_doc},
    {0},
};

static PyMemberDef pinned_pool_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(gmpy_device_pool, weakrefs), READONLY,
     NULL},
    {0},
};

static PyType_Slot pinned_pool_slots[] = {
    {Py_tp_doc, (void *)pinned_pool_doc},
    {Py_tp_new, pinned_pool_new},
    {Py_tp_init, pinned_pool_init},
    {Py_tp_dealloc, gmpy_device_pool_dealloc},
    {Py_tp_traverse, gmpy_device_pool_traverse},
    {Py_tp_clear, gmpy_device_pool_clear},
    {Py_tp_methods, pinned_pool_methods},
    {Py_tp_members, pinned_pool_members},
    {0, NULL},
};

static PyType_Spec pinned_pool_spec = {
    .name = "gpumem.PinnedMemoryPool",
    .basicsize = sizeof(gmpy_device_pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pinned_pool_slots,
};

int
gmpy_pinned_pool_init(PyObject *module, gmpy_state *st)
{
    st->PinnedMemoryPoolType =
        PyType_FromModuleAndSpec(module, &pinned_pool_spec, st->BasePoolType);
    if (!st->PinnedMemoryPoolType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PinnedMemoryPool", st->PinnedMemoryPoolType);
}
