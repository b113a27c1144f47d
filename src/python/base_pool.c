/* SPDX-License-Identifier: MIT
 *
 * The base type of MemoryPool and SingleDeviceMemoryPool: allocating through a native
 * pool, and the methods that bound one, or say whom to ask when memory runs out. Those
 * that give memory back are in pool_trim.c, those that only read in pool_stats.c, what
 * a request does that the cache cannot serve in rescue.c.
 *
 * Cost: gmpy_pool_malloc on a hit is the core's hit plus two objects from free lists.
 * Threading: everything may be called from any thread. Anything that may wait, for a
 * lock or a device, runs detached from the interpreter.
 */
#include "guard.h"
#include "hooks.h"
#include "later.h"
#include "pointer.h"
#include "pools.h"
#include "stream.h"

/* ---- allocating ---- */

/* A request for nothing takes nothing and is counted nowhere. */
static PyObject *
empty_pointer(gmpy_state *st, int device)
{
    PyObject *mem = gmpy_owned_memory_new(st, GM_MEM_DEVICE, 0);

    if (!mem) {
        return NULL;
    }
    ((gmpy_base_memory *)mem)->device_id = device;
    return gmpy_pointer_new(st, mem, 0, device);
}

static inline PyObject *
pool_malloc(gmpy_state *st,
            gm_pool *pool,
            int device,
            const gm_request *request,
            const gm_stream_use *by)
{
    gm_block *block;

    if (GM_UNLIKELY(gm_pool_malloc(pool, request, &block) != GM_OK)) {
        if (request->size == 0) {
            return empty_pointer(st, device);
        }
        if (gmpy_pool_malloc_slow(st, pool, request, by, &block) < 0) {
            return NULL;
        }
    }
    return gmpy_pointer_to_block(st, pool, block);
}

/* The same with the memory hooks called before and after. */
GM_COLD static PyObject *
pool_malloc_hooked(gmpy_state *st,
                   gm_pool *pool,
                   int device,
                   const gm_request *request,
                   const gm_stream_use *by)
{
    PyObject *hooks = gmpy_hooks_snapshot(st);
    size_t size = request->size;
    size_t rounded = size <= GM_SIZE_MAX ? gm_size_round(size) : size;
    gmpy_hook_event event = {
        .device = device, .has_size = true, .size = size, .mem_size = rounded};
    PyObject *result = NULL;
    PyObject *mem = NULL;

    if (!hooks) {
        return NULL;
    }
    if (gmpy_hooks_call(hooks, "malloc_preprocess", &event) == 0) {
        result = pool_malloc(st, pool, device, request, by);
    }
    if (result && gmpy_pointer_mem((gmpy_pointer *)result, &mem) < 0) {
        gmpy_drop(&result);
    }
    event.has_ptr = event.has_id = true;
    if (result) {
        event.mem_size = ((gmpy_base_memory *)((gmpy_pointer *)result)->mem)->size;
        event.mem_ptr = ((gmpy_pointer *)result)->ptr;
        event.pmem = mem;
    }
    if (gmpy_hooks_call(hooks, "malloc_postprocess", &event) < 0) {
        gmpy_drop(&result);
    }
    Py_DECREF(hooks);
    return result;
}

PyObject *
gmpy_pool_malloc(gmpy_state *st, gm_pool *pool, int device, size_t size)
{
    const gm_request request = gmpy_request(st, device, size);

    return GM_LIKELY(!gmpy_is_hooked(st))
               ? pool_malloc(st, pool, device, &request, NULL)
               : pool_malloc_hooked(st, pool, device, &request, NULL);
}

PyObject *
gmpy_pool_malloc_for(gmpy_state *st,
                     gm_pool *pool,
                     size_t size,
                     const gm_stream_use *by,
                     uint16_t client)
{
    const gm_request request = {.size = size, .key = by->key, .client = client};

    return GM_LIKELY(!gmpy_is_hooked(st))
               ? pool_malloc(st, pool, by->device, &request, by)
               : pool_malloc_hooked(st, pool, by->device, &request, by);
}

/* ---- the limit ---- */

static PyObject *
pool_set_limit(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "set_limit", 3, 0, 2, {"size", "fraction", "device"}};
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    PyObject *given[3];
    size_t limit;
    gm_pool *pool;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        self->find(self, given[2], true, &pool, &device) < 0 ||
        gmpy_as_limit(self->st, device, given[0], given[1], &limit) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    (void)gm_pool_set_limit(pool, limit); // not forked, or `find` had said so
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- whom to ask when memory runs out ---- */

PyObject *
gmpy_pool_callback(gmpy_any_pool *self)
{
    PyObject *callback;

    Py_BEGIN_CRITICAL_SECTION(self);
    callback = Py_XNewRef(self->callback);
    Py_END_CRITICAL_SECTION();
    return callback;
}

void
gmpy_pool_set_callback(gmpy_any_pool *self, PyObject *callback)
{
    PyObject *before;

    Py_BEGIN_CRITICAL_SECTION(self);
    before = self->callback;
    self->callback = Py_XNewRef(callback);
    Py_END_CRITICAL_SECTION();
    Py_XDECREF(before);
}

static PyObject *
pool_set_out_of_memory_callback(PyObject *op, PyObject *callback)
{
    gmpy_any_pool *self = (gmpy_any_pool *)op;

    if (callback != Py_None && !PyCallable_Check(callback)) {
        return PyErr_Format(PyExc_TypeError,
                            "callback must be callable or None, not %.200s",
                            Py_TYPE(callback)->tp_name);
    }
    gmpy_pool_set_callback(self, callback == Py_None ? NULL : callback);
    if (self->share_callback) {
        self->share_callback(self);
    }
    Py_RETURN_NONE;
}

static PyObject *
pool_get_out_of_memory_callback(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *callback = gmpy_pool_callback((gmpy_any_pool *)self);

    return callback ? callback : Py_NewRef(Py_None);
}

/* ---- the type ---- */

PyDoc_STRVAR(
    set_callback_doc,
    "set_out_of_memory_callback($self, callback, /)\n"
    "--\n"
    "\n"
    "Sets a function that is asked to let go of memory before a request fails.\n"
    "\n"
    "It is called with an OutOfMemoryError that says what is missing, when all\n"
    "that is idle went back and garbage was collected without avail. If it\n"
    "returns something true the request is tried again, else it fails. It is\n"
    "asked at most 8 times a request; error.attempt counts. What it raises\n"
    "reaches whoever made the request.\n"
    "\n"
    "Called on the thread whose request it is, with no lock held, so it may use\n"
    "the pool. A thread runs one callback at a time: a request that it makes, of\n"
    "whichever pool, and that fails gets its error at once. For all devices of a\n"
    "MemoryPool; error.device says which. Not called while a graph is being\n"
    "recorded.\n"
    "\n"
    "Args:\n"
    "    callback (callable): or None for none.\n"
    "\n"
    "Raises:\n"
    "    TypeError: callback is neither.");
PyDoc_STRVAR(
    get_callback_doc,
    "get_out_of_memory_callback($self, /)\n"
    "--\n"
    "\n"
    "Returns what set_out_of_memory_callback() was given last, None for none.");
PyDoc_STRVAR(
    set_limit_doc,
    "set_limit($self, size=None, fraction=None, *, device=None)\n"
    "--\n"
    "\n"
    "Sets the most that the pool may hold from the device.\n"
    "\n"
    "A limit below what is held is accepted: what is cached in whole segments\n"
    "goes back to the device, and what is in use stays.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 for no limit.\n"
    "    fraction (float): a part of the device's total memory, from 0 to 1; 0\n"
    "        for no limit. With neither argument there is no limit.\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: both are given, one is out of range, there is no such\n"
    "        device, or a SingleDeviceMemoryPool is on another one.\n"
    "    TypeError: size is not an integer, or fraction not a number.");
static PyMethodDef base_pool_methods[] = {
    {"free_all_free", gmpy_pool_free_all_free, METH_NOARGS,
     gmpy_pool_free_all_free_doc},
    {"set_limit", (PyCFunction)(void (*)(void))pool_set_limit,
     METH_FASTCALL | METH_KEYWORDS, set_limit_doc},
    {"set_out_of_memory_callback", pool_set_out_of_memory_callback, METH_O,
     set_callback_doc},
    {"get_out_of_memory_callback", pool_get_out_of_memory_callback, METH_NOARGS,
     get_callback_doc},
#define METHOD(name)                                                                   \
    {#name, (PyCFunction)(void (*)(void))gmpy_pool_##name,                             \
     METH_FASTCALL | METH_KEYWORDS, gmpy_pool_##name##_doc},
    GMPY_POOL_TRIM_METHODS(METHOD) GMPY_POOL_STATS_METHODS(METHOD)
#undef METHOD
        {0},
};

PyDoc_STRVAR(base_pool_doc,
             "What MemoryPool and SingleDeviceMemoryPool have in common.");

static PyType_Slot base_pool_slots[] = {
    {Py_tp_doc, (void *)base_pool_doc},
    {Py_tp_methods, base_pool_methods},
    {0, NULL},
};

static PyType_Spec base_pool_spec = {
    .name = "gpumem._core._BasePool",
    .basicsize = sizeof(gmpy_any_pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = base_pool_slots,
};

int
gmpy_base_pool_init(PyObject *module, gmpy_state *st)
{
    st->BasePoolType = PyType_FromModuleAndSpec(module, &base_pool_spec, NULL);
    if (!st->BasePoolType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "_BasePool", st->BasePoolType);
}
