/* SPDX-License-Identifier: MIT
 *
 * MemoryAsyncPool: the driver's own pools of stream-ordered memory, one a device, with
 * a pool's methods.
 *
 * The caching is the driver's; this chooses which of its pools each device takes from
 * and allocates. Trimming, figures and the limit are in async_pool_figures.c.
 *
 * The limit is the driver's release threshold, which decides how much the pool keeps
 * and does not stop anybody. So each request that would make the pool grow is compared
 * with it first; two that come at once may pass together, and other libraries are not
 * asked. That is a soft limit.
 *
 * Want of memory, of the limit or the device: wait for the current stream and trim, so
 * that what was freed in its order is there; then collect garbage, wait for the device
 * and trim; then OutOfMemoryError.
 *
 * Cost: a request is MemoryAsync's and two reads of the driver's figures. Threading:
 * nothing changes after construction; any thread.
 */
#include "guard.h"
#include "memory_kinds.h"
#include "out_of_memory.h"
#include "pools.h"
#include "stream.h"

#include "core/gm_process.h" // gm_process_is_forked
#include "core/gm_size.h"    // gm_size_round

PyDoc_STRVAR(
    memory_async_pool_doc,
    "MemoryAsyncPool(pool_handles='current')\n"
    "--\n"
    "\n"
    "The driver's pools of stream-ordered memory, one a device.\n"
    "\n"
    "Requests are served and memory is taken back in the order of the current\n"
    "stream. Set it as the allocator by set_allocator(MemoryAsyncPool().malloc).\n"
    "Its methods are about the current device where they are given none. Memory\n"
    "hooks are not told of it, and no callback is asked when memory runs out.\n"
    "\n"
    "Making one sets which pool each device takes stream-ordered memory from, for\n"
    "the whole process, and how much it keeps: all of it, or what\n"
    "GPUMEM_MEMORY_LIMIT says. Safe to share between threads.\n"
    "\n"
    "Args:\n"
    "    pool_handles (str, int or sequence): 'current', the pool that each device\n"
    "        takes from already; 'default', the one it took from at first; a native\n"
    "        handle (cudaMemPool_t); or a sequence of these, one a device.\n"
    "\n"
    "Attributes:\n"
    "    memoryAsyncHasStat (bool): whether the driver can be asked for figures.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the driver refused.\n"
    "    NotImplementedError: for 'create'.\n"
    "    RuntimeError: a device has no stream-ordered memory.\n"
    "    ValueError: it is none of these, or of another length than there are\n"
    "        devices.");

/* ---- which pools ---- */

static int
refuse_handle(PyObject *arg)
{
    if (PyUnicode_Check(arg) && PyUnicode_CompareWithASCIIString(arg, "create") == 0) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "pool_handles='create' is not offered; make a pool by the "
                        "driver and give its handle");
        return -1;
    }
    PyErr_Format(PyExc_ValueError,
                 "pool_handles must be 'current', 'default', a native handle or a "
                 "sequence of these, not %R",
                 arg);
    return -1;
}

/* Asks for a pool of the device's own. 0 or -1. */
static int
ask_pool(gmpy_state *st, int device, bool original, gm_mem_pool *out)
{
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_pool_get(st->backend, device, original, out);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking for a device's memory pool");
        return -1;
    }
    return 0;
}

/* The pool that one handle means on a device. 0 or -1. */
static int
as_pool(gmpy_state *st, int device, PyObject *arg, gm_mem_pool *out)
{
    uintptr_t handle;

    if (PyUnicode_Check(arg)) {
        bool original = PyUnicode_CompareWithASCIIString(arg, "default") == 0;

        if (!original && PyUnicode_CompareWithASCIIString(arg, "current") != 0) {
            return refuse_handle(arg);
        }
        return ask_pool(st, device, original, out);
    }
    if (!PyIndex_Check(arg)) {
        return refuse_handle(arg);
    }
    if (gmpy_as_address(arg, "pool_handles", &handle) < 0) {
        return -1;
    }
    if (!handle) {
        return refuse_handle(arg);
    }
    *out = handle;
    return 0;
}

/* Has the device take from the pool, and the pool keep what the environment says. Needs
 * no interpreter. */
static gm_status
choose_pool(const gm_backend *backend, int device, gm_mem_pool pool, uint64_t keep)
{
    gm_mem_pool before = 0;
    gm_status status = gm_backend_mem_pool_get(backend, device, false, &before);

    if (status == GM_OK && before != pool) {
        status = gm_backend_mem_pool_set(backend, device, pool);
    }
    return status == GM_OK ? gm_backend_mem_pool_write(
                                 backend, pool, GM_MEM_POOL_RELEASE_THRESHOLD, keep)
                           : status;
}

static int
open_device(gmpy_async_pool *self, int device, PyObject *handle)
{
    gmpy_state *st = self->st;
    gm_mem_pool pool = 0;
    gm_status status;
    size_t limit;

    if (gmpy_require_support(st, device, GM_DEVICE_MEMORY_POOLS, GMPY_LACK_OF_POOLS) <
            0 ||
        as_pool(st, device, handle, &pool) < 0 ||
        gmpy_default_limit(st, device, &limit) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = choose_pool(st->backend, device, pool, limit ? limit : UINT64_MAX);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "choosing a device's memory pool");
        return -1;
    }
    self->pools[device] = pool;
    return 0;
}

/* The handles, one a device: a new tuple. */
static PyObject *
as_handles(gmpy_state *st, PyObject *arg)
{
    PyObject *handles;

    if (!arg || PyUnicode_Check(arg) || !PySequence_Check(arg)) {
        PyObject *one = arg ? Py_NewRef(arg) : PyUnicode_FromString("current");

        handles = one ? PyTuple_New(st->device_count) : NULL;
        for (int i = 0; handles && i < st->device_count; i++) {
            PyTuple_SET_ITEM(handles, i, Py_NewRef(one));
        }
        Py_XDECREF(one);
        return handles;
    }
    handles = PySequence_Tuple(arg);
    if (handles && PyTuple_GET_SIZE(handles) != st->device_count) {
        PyErr_Format(PyExc_ValueError, "there are %d devices and %zd pool_handles",
                     st->device_count, PyTuple_GET_SIZE(handles));
        Py_CLEAR(handles);
    }
    return handles;
}

static int
memory_async_pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "MemoryAsyncPool", 1, 0, 1, {"pool_handles"}};
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    gmpy_state *st = self->st;
    PyObject *given[1];
    PyObject *handles;
    int result = 0;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 || !gmpy_backend(st)) {
        return -1;
    }
    if (self->pools) {
        PyErr_SetString(PyExc_RuntimeError, "a MemoryAsyncPool is initialized once");
        return -1;
    }
    handles = as_handles(st, given[0]);
    if (!handles) {
        return -1;
    }
    self->pools = PyMem_Calloc((size_t)st->device_count, sizeof(*self->pools));
    if (!self->pools) {
        PyErr_NoMemory();
        result = -1;
    }
    for (int device = 0; result == 0 && device < st->device_count; device++) {
        result = open_device(self, device, PyTuple_GET_ITEM(handles, device));
    }
    Py_DECREF(handles);
    if (result == 0) {
        gmpy_async_figures figures;

        self->has_figures =
            gmpy_async_pool_read(st->backend, self->pools[0], &figures) == GM_OK;
    }
    else {
        PyMem_Free(self->pools);
        self->pools = NULL;
    }
    return result;
}

static PyObject *
memory_async_pool_new(PyTypeObject *type,
                      PyObject *Py_UNUSED(args),
                      PyObject *Py_UNUSED(kwargs))
{
    PyObject *module = PyType_GetModuleByDef(type, &gmpy_module_def);
    PyObject *self = module ? type->tp_alloc(type, 0) : NULL;

    if (self) {
        ((gmpy_async_pool *)self)->st = gmpy_state_of_module(module);
    }
    return self;
}

static void
memory_async_pool_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyMem_Free(((gmpy_async_pool *)op)->pools);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- allocating ---- */

/* A request under way. */
typedef struct async_request {
    const gmpy_async_pool *self;
    gm_mem_pool pool;
    int device;
    size_t size;              // as asked
    size_t rounded;           // to whole units
    gmpy_async_figures found; // as of the last look
    bool limited;             // the limit refused it last, and not the device
} async_request;

typedef enum async_stage {
    STAGE_PLAIN,
    STAGE_STREAM,  // after a wait for the current stream
    STAGE_GARBAGE, // after a collection and a wait for the device
    STAGES,
} async_stage;

/* Makes room: what was freed in stream order is there after the wait. */
static int
make_room(const async_request *r, async_stage stage)
{
    gmpy_state *st = r->self->st;
    gmpy_stream_ref stream;
    gm_status status;

    if (stage == STAGE_PLAIN || gm_process_is_capturing()) {
        return 0; // a wait would spoil what is being recorded
    }
    if (gmpy_as_stream(st, NULL, &stream) < 0) {
        return -1;
    }
    if (stage == STAGE_GARBAGE) {
        int ran = gmpy_collect_garbage(st, true);

        if (ran < 0) {
            return -1;
        }
        gmpy_guards_settle(st, ran > 0);
    }
    Py_BEGIN_ALLOW_THREADS
    status = stage != STAGE_STREAM ? GM_OK : gmpy_stream_confirm(st->backend, &stream);
    if (status == GM_OK) {
        status = stage == STAGE_STREAM
                     ? gm_backend_stream_synchronize(st->backend, stream.handle)
                     : gm_backend_device_synchronize(st->backend, r->device);
    }
    if (status == GM_OK) {
        status = gm_backend_mem_pool_trim(st->backend, r->pool, 0);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "waiting for memory that was freed in stream order");
        return -1;
    }
    return 0;
}

/* 1 where the limit allows the request, 0 where not, -1 with an exception. */
static int
check_limit(async_request *r)
{
    const gm_backend *backend = r->self->st->backend;
    gmpy_async_figures *f = &r->found;
    gm_status status;

    if (!r->self->has_figures) {
        return 1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_async_pool_read(backend, r->pool, f);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(r->self->st, status, "asking a memory pool for its figures");
        return -1;
    }
    if (f->reserved - f->used >= r->rounded) {
        return 1; // the pool does not have to grow
    }
    return f->reserved <= f->threshold && r->rounded <= f->threshold - f->reserved;
}

/* The memory; NULL with an exception, or without one where there is none. */
static PyObject *
attempt(async_request *r)
{
    gmpy_state *st = r->self->st;
    int allowed = check_limit(r);
    PyObject *mem;

    r->limited = allowed == 0;
    mem = allowed > 0 ? gmpy_memory_async_new(st, r->rounded) : NULL;

    if (!mem && allowed > 0 && gmpy_error_is_shortage(st)) {
        PyErr_Clear();
    }
    return mem;
}

/* Raises for a request that found no memory, with what the driver tells of its pool and
 * of the device. Always returns NULL. */
static PyObject *
raise_shortage(const async_request *r)
{
    const gm_backend *backend = r->self->st->backend;
    const gmpy_async_figures *f = &r->found;
    gm_shortage s = gm_shortage_of(r->size);
    gm_status status;

    s.device = r->device;
    s.rounded_size = r->rounded;
    s.attempt = 0;
    if (r->self->has_figures) {
        s.limit = f->threshold == UINT64_MAX ? 0 : f->threshold;
        s.used_bytes = f->used;
        s.cached_bytes = f->reserved - f->used;
        s.total_bytes = f->reserved;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_info(backend, r->device, &s.device_free, &s.device_total);
    Py_END_ALLOW_THREADS
    if (status == GM_OK && r->self->has_figures) {
        size_t held = s.device_total - s.device_free;

        s.outside_bytes = held > f->reserved ? held - f->reserved : 0;
    }
    s.cause = r->limited                        ? GM_CAUSE_LIMIT
              : s.rounded_size > s.device_total ? GM_CAUSE_TOO_LARGE
                                                : GM_CAUSE_FULL;
    return gmpy_raise_shortage(r->self->st, &s);
}

static PyObject *
pool_take(async_request *r)
{
    for (async_stage stage = STAGE_PLAIN; stage < STAGES; stage++) {
        PyObject *mem = make_room(r, stage) < 0 ? NULL : attempt(r);

        if (mem || PyErr_Occurred()) {
            return mem;
        }
    }
    return raise_shortage(r);
}

PyDoc_STRVAR(
    malloc_doc,
    "malloc($self, size, *, device=None)\n"
    "--\n"
    "\n"
    "Allocates memory of a device in the order of its current stream.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes, rounded up to whole units of 512; 0 gives a null\n"
    "        pointer.\n"
    "    device (int or Device): on which device; the current one if None.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the start of a MemoryAsync.\n"
    "\n"
    "Raises:\n"
    "    OutOfMemoryError: there is no memory, or the limit does not allow it.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size is not an integer.\n"
    "    ValueError: there is no such device.\n"
    "    CUDARuntimeError: the device refused for another reason.");

static PyObject *
memory_async_pool_malloc(PyObject *op,
                         PyObject *const *args,
                         Py_ssize_t nargs,
                         PyObject *kwnames)
{
    static const gmpy_signature signature = {"malloc", 2, 1, 1, {"size", "device"}};
    async_request r = {.self = (const gmpy_async_pool *)op};
    PyObject *given[2];
    PyObject *mem;
    gm_device_mark back;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_size(given[0], "size", &r.size) < 0 ||
        gmpy_async_pool_find(r.self, given[1], &r.device, &r.pool) < 0) {
        return NULL;
    }
    if (r.size > GM_SIZE_MAX) {
        gm_shortage what = gm_shortage_of(r.size);

        what.cause = GM_CAUSE_TOO_LARGE;
        what.device = r.device;
        return gmpy_raise_shortage(r.self->st, &what);
    }
    r.rounded = gm_size_round(r.size);
    if (gmpy_device_enter(r.self->st, r.device, &back) < 0) {
        return NULL;
    }
    mem = r.size ? pool_take(&r) : gmpy_memory_async_new(r.self->st, 0);
    gmpy_device_leave(r.self->st, &back);
    return gmpy_pointer_to_new(r.self->st, mem);
}

/* ---- the type ---- */

static PyObject *
memory_async_pool_pools(PyObject *op, void *Py_UNUSED(closure))
{
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    int count = self->pools ? self->st->device_count : 0;
    PyObject *list = PyList_New(count);

    for (int i = 0; list && i < count; i++) {
        PyObject *handle = PyLong_FromSize_t(self->pools[i]);

        if (!handle) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, handle);
    }
    return list;
}

static PyObject *
memory_async_pool_has_stat(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((const gmpy_async_pool *)op)->has_figures);
}

static PyGetSetDef memory_async_pool_getset[] = {
    {"_pools", memory_async_pool_pools, NULL, "native handles, one a device", NULL},
    {"memoryAsyncHasStat", memory_async_pool_has_stat, NULL,
     "whether the driver can be asked for figures", NULL},
    {0},
};

static PyMethodDef memory_async_pool_methods[] = {
    {"malloc", (PyCFunction)(void (*)(void))memory_async_pool_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_doc},
#define METHOD(name)                                                                   \
    {#name, (PyCFunction)(void (*)(void))gmpy_async_pool_##name,                       \
     METH_FASTCALL | METH_KEYWORDS, gmpy_async_pool_##name##_doc},
    GMPY_ASYNC_POOL_METHODS(METHOD)
#undef METHOD
        {0},
};

static PyType_Slot memory_async_pool_slots[] = {
    {Py_tp_doc, (void *)memory_async_pool_doc},
    {Py_tp_new, memory_async_pool_new},
    {Py_tp_init, memory_async_pool_init},
    {Py_tp_dealloc, memory_async_pool_dealloc},
    {Py_tp_methods, memory_async_pool_methods},
    {Py_tp_getset, memory_async_pool_getset},
    {0, NULL},
};

static PyType_Spec memory_async_pool_spec = {
    .name = "gpumem.MemoryAsyncPool",
    .basicsize = sizeof(gmpy_async_pool),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_async_pool_slots,
};

int
gmpy_memory_async_pool_init(PyObject *module, gmpy_state *st)
{
    st->MemoryAsyncPoolType =
        PyType_FromModuleAndSpec(module, &memory_async_pool_spec, NULL);
    if (!st->MemoryAsyncPoolType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "MemoryAsyncPool", st->MemoryAsyncPoolType);
}
