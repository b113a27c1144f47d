/* SPDX-License-Identifier: MIT
 *
 * MemoryAsyncPool: the driver's own pools of stream-ordered memory, one a device, with
 * a pool's methods.
 *
 * The caching is the driver's; this allocates. Which of its pools each device takes
 * from is chosen in async_pool_choice.c; trimming, figures and the limit are in
 * async_pool_figures.c.
 *
 * The limit is the object's. It is also made the driver's release threshold, which
 * decides how much the pool keeps, does not stop anybody and may be set by others. So
 * each request that would make the pool grow is compared with the limit first; two that
 * come at once may pass together, and other libraries are not asked. That is a soft
 * limit.
 *
 * Want of memory, of the limit or the device: wait for the current stream and trim, so
 * that what was freed in its order is there; then have the other pools of the process
 * give back what they have idle; then collect garbage, wait for the device and do both
 * again; then OutOfMemoryError.
 *
 * Cost: a request is MemoryAsync's and a look at the life of the device; with a limit
 * also two reads of the driver's figures. Threading: any thread.
 */
#include "async_pool.h"
#include "guard.h"
#include "out_of_memory.h"
#include "pools.h"
#include "stream.h"

#include "core/gm_process.h" // gm_process_is_capturing
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
    "GPUMEM_MEMORY_LIMIT says. If it raises, nothing was set. Once a device was\n"
    "reset, the pool that it takes from then is used; one given by its handle is\n"
    "gone and refused. Safe to share between threads.\n"
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
    "    TypeError: it is bytes.\n"
    "    ValueError: it is none of these, or of another length than there are\n"
    "        devices.");

/* ---- life ---- */

static int
memory_async_pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "MemoryAsyncPool", 1, 0, 1, {"pool_handles"}};
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    gmpy_state *st = self->st;
    PyObject *given[1];

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 || !gmpy_backend(st)) {
        return -1;
    }
    if (self->parts) {
        PyErr_SetString(PyExc_RuntimeError, "a MemoryAsyncPool is initialized once");
        return -1;
    }
    return gmpy_async_pool_open(self, given[0]);
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

    PyMem_Free(((gmpy_async_pool *)op)->parts);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- allocating ---- */

/* A request under way. */
typedef struct async_request {
    gmpy_async_pool *self;
    gmpy_async_part part;
    int device;
    size_t size;       // as asked
    size_t rounded;    // to whole units
    gm_status refused; // why the last attempt found nothing
} async_request;

typedef enum async_stage {
    STAGE_PLAIN,
    STAGE_STREAM,   // after a wait for the current stream
    STAGE_SIBLINGS, // after other pools gave back what they had idle
    STAGE_GARBAGE,  // after a collection, and all of that again
    STAGES,
} async_stage;

static int
collect_garbage(gmpy_state *st)
{
    int ran = gmpy_collect_garbage(st, true);

    if (ran < 0) {
        return -1;
    }
    gmpy_guards_settle(st, ran > 0);
    return 0;
}

/* What was freed in the order of the current stream, or with `whole` of any, is there
 * and goes back to the device. Needs no interpreter. */
static gm_status
wait_and_trim(const async_request *r, const gmpy_stream_ref *stream, bool whole)
{
    const gm_backend *b = r->self->st->backend;
    gm_status status = whole ? GM_OK : gmpy_stream_confirm(b, stream);

    if (status == GM_OK) {
        status = whole ? gm_backend_device_synchronize(b, r->device)
                       : gm_backend_stream_synchronize(b, stream->handle);
    }
    return status == GM_OK ? gm_backend_mem_pool_trim(b, r->part.pool, 0) : status;
}

/* Makes room. 1; 0 where there is nothing new to try; or -1. */
static int
make_room(const async_request *r, async_stage stage)
{
    gmpy_state *st = r->self->st;
    gmpy_stream_ref stream;
    gm_status status = GM_OK;
    bool look = true;

    if (stage == STAGE_PLAIN) {
        return 1;
    }
    if (gm_process_is_capturing()) {
        return 0; // a wait would spoil what is being recorded
    }
    if (gmpy_as_stream(st, NULL, &stream) < 0 ||
        (stage == STAGE_GARBAGE && collect_garbage(st) < 0)) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    if (stage != STAGE_STREAM) {
        size_t bytes = gm_pools_release_idle(r->device, r->refused);

        look = bytes > 0 || stage == STAGE_GARBAGE;
    }
    if (look) {
        status = wait_and_trim(r, &stream, stage != STAGE_STREAM);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "waiting for memory that was freed in stream order");
        return -1;
    }
    return look;
}

/* What the pool holds; nothing known where the driver cannot be asked. 1, 0 or -1. */
static int
ask_figures(const async_request *r, gmpy_async_figures *out)
{
    gm_status status;

    if (!r->self->has_figures) {
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_async_pool_read(r->self->st->backend, r->part.pool, out);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(r->self->st, status, "asking a memory pool for its figures");
        return -1;
    }
    return 1;
}

/* 1 where the limit allows the request, 0 where not, -1 with an exception. */
static int
check_limit(const async_request *r)
{
    size_t limit = r->part.limit;
    gmpy_async_figures f;
    int known;

    if (!limit) {
        return 1;
    }
    known = ask_figures(r, &f);
    if (known <= 0) {
        return known < 0 ? -1 : 1;
    }
    if (f.reserved - f.used >= r->rounded) {
        return 1; // the pool does not have to grow
    }
    return f.reserved <= limit && r->rounded <= limit - f.reserved;
}

/* The memory; NULL with an exception, or without one where there is none. */
static PyObject *
attempt(async_request *r)
{
    int allowed = check_limit(r);

    if (allowed <= 0) {
        r->refused = GM_ERR_LIMIT;
        return NULL;
    }
    r->refused = GM_OK;
    return gmpy_memory_async_new(r->self->st, r->rounded, &r->refused);
}

/* Raises for a request that found no memory, with what the driver tells of its pool and
 * of the device. Always returns NULL. */
static PyObject *
raise_shortage(const async_request *r)
{
    gm_shortage s = gm_shortage_of(r->size);
    gmpy_async_figures f;
    int known = ask_figures(r, &f);

    if (known < 0) {
        return NULL;
    }
    s.device = r->device;
    s.rounded_size = r->rounded;
    s.attempt = 0;
    s.limit = r->part.limit;
    if (known) {
        s.used_bytes = f.used;
        s.cached_bytes = f.reserved - f.used;
        s.total_bytes = f.reserved;
    }
    Py_BEGIN_ALLOW_THREADS
    gm_explain_outside(r->self->st->backend, r->refused, &s);
    Py_END_ALLOW_THREADS
    return gmpy_raise_shortage(r->self->st, &s);
}

static PyObject *
pool_take(async_request *r)
{
    for (async_stage stage = STAGE_PLAIN; stage < STAGES; stage++) {
        int room = make_room(r, stage);
        PyObject *mem = room > 0 ? attempt(r) : NULL;

        if (mem || PyErr_Occurred()) {
            return mem;
        }
        if (r->refused == GM_ERR_CAPTURING) {
            break; // nothing that is given back would change that
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
    "    OutOfMemoryError: there is no memory, the limit does not allow it, or the\n"
    "        stream is being recorded.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size is not an integer.\n"
    "    RuntimeError: the pool was given by its handle and is gone since a reset\n"
    "        of the device.\n"
    "    ValueError: there is no such device.\n"
    "    CUDARuntimeError: the device refused for another reason.");

static PyObject *
memory_async_pool_malloc(PyObject *op,
                         PyObject *const *args,
                         Py_ssize_t nargs,
                         PyObject *kwnames)
{
    static const gmpy_signature signature = {"malloc", 2, 1, 1, {"size", "device"}};
    async_request r = {.self = (gmpy_async_pool *)op};
    PyObject *given[2];
    PyObject *mem;
    gm_device_mark back;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_size(given[0], "size", &r.size) < 0 ||
        gmpy_async_pool_find(r.self, given[1], &r.device, &r.part) < 0) {
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
    mem = r.size ? pool_take(&r) : gmpy_memory_async_new(r.self->st, 0, NULL);
    gmpy_device_leave(r.self->st, &back);
    return gmpy_pointer_to_new(r.self->st, mem);
}

/* ---- the type ---- */

static PyObject *
memory_async_pool_pools(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    int count = self->parts ? self->st->device_count : 0;
    PyObject *list = PyList_New(count);

    for (int i = 0; list && i < count; i++) {
        gmpy_async_part part;
        PyObject *handle = gmpy_async_pool_part(self, i, &part) == 0
                               ? PyLong_FromSize_t(part.pool)
                               : NULL;

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
