/* SPDX-License-Identifier: MIT
 *
 * MemoryAsync: memory from the driver's own pool, taken and given back in the order of
 * a stream.
 *
 * Whoever uses the memory in that order needs to wait for nothing: the driver hands it
 * to the next request of the stream when the stream gets there. So the stream matters
 * at the end as much as at the start, and the object keeps it alive: freed on another
 * one, the memory could go to somebody while its own stream still works on it. (The
 * library that this one follows keeps a weak reference and trusts the program.) Where
 * the stream is not there any more all the same, since it was another library's, or is
 * the default stream of a thread other than the one that frees, the whole device is
 * waited for, and the memory is freed on its default stream. While another library
 * records the stream, a free would become part of the graph and a wait would spoil it:
 * the memory is put by (parked.c).
 *
 * Cost: allocating and freeing 0.7 us together once the driver's pool is warm.
 * Threading: as Memory (memory.c).
 */
#include "later.h"
#include "memory_kinds.h"
#include "out_of_memory.h"
#include "stream.h"

#include "core/gm_capture.h" // gm_capture_postpone_free
#include "core/gm_process.h" // gm_process_is_frozen

typedef struct memory_async {
    gmpy_base_memory base;
    gmpy_state *st;   // NULL until initialized
    uintptr_t owned;  // what the device gave; 0 for none
    PyObject *stream; // an object that stands for it; NULL until initialized
    gmpy_stream_ref ref;
    uint64_t id;   // of the stream
    uint64_t life; // of the device
    int device;
} memory_async;

PyDoc_STRVAR(
    memory_async_doc,
    "MemoryAsync(size, stream=None)\n"
    "--\n"
    "\n"
    "Memory of the driver's pool, taken and given back in the order of a stream.\n"
    "\n"
    "It is on the stream's device. When the object dies the memory is freed in\n"
    "the order of that stream, which it keeps alive; nothing is waited for.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 takes nothing and leaves ptr at 0.\n"
    "    stream (Stream): the stream; the current one if None.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the device refused; status 2 means that its memory is\n"
    "        exhausted.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    RuntimeError: the device has no stream-ordered memory.\n"
    "    TypeError: size is not an integer, or stream not a stream.");

/* ---- taking ---- */

/* The stream of a `stream` argument and the device it is on. 0 or -1. */
static int
memory_async_bind(memory_async *self, gmpy_state *st, PyObject *stream)
{
    int device;

    if (gmpy_as_stream(st, stream, &self->ref) < 0 ||
        gmpy_stream_device(st, &self->ref, &device) < 0) {
        return -1;
    }
    self->device = device;
    self->ref.device = device; // a default stream must still mean this one later
    return 0;
}

/* GM_ERR_CAPTURING while the stream records a graph: the memory would be the graph's,
 * there only while it runs. */
static gm_status
check_not_recording(const memory_async *self, const gm_backend *backend)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id;
    gm_status status =
        gm_backend_stream_capture(backend, self->ref.handle, &state, &id);

    return status == GM_OK && state != GM_CAPTURE_NONE ? GM_ERR_CAPTURING : status;
}

/* Takes the memory. Needs no interpreter. */
static gm_status
memory_async_take(memory_async *self, const gm_backend *backend, size_t size)
{
    gm_status status;
    gm_device_mark back;

    if (size == 0) {
        return GM_OK;
    }
    status = gmpy_stream_enter(backend, &self->ref, &back);
    if (status != GM_OK) {
        return status;
    }
    status = gm_backend_stream_id(backend, self->ref.handle, &self->id);
    if (status == GM_OK) {
        status = check_not_recording(self, backend);
    }
    if (status == GM_OK) {
        status = gm_backend_mem_alloc_async(backend, self->device, size,
                                            self->ref.handle, &self->owned);
    }
    gmpy_stream_leave(backend, &back);
    self->ref.known = false; // the end goes by the id, and makes do without the stream
    return status;
}

/* As gmpy_memory_async_new. 0 or -1. */
static int
memory_async_open(memory_async *self,
                  gmpy_state *st,
                  size_t size,
                  PyObject *stream,
                  gm_status *refused)
{
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend || memory_async_bind(self, st, stream) < 0) {
        return -1;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(st, GM_ERR_FORKED, "allocating memory in stream order");
        return -1;
    }
    gmpy_parked_look(st);
    Py_BEGIN_ALLOW_THREADS
    status = memory_async_take(self, backend, size);
    self->life = self->owned ? gmpy_device_life(st, self->device) : 0;
    Py_END_ALLOW_THREADS
    // Asked only where something went wrong or nothing was tried: it costs more than
    // the allocation.
    if ((status != GM_OK && status != GM_ERR_OUT_OF_MEMORY) || size == 0) {
        if (gmpy_require_support(st, self->device, GM_DEVICE_MEMORY_POOLS,
                                 GMPY_LACK_OF_POOLS) < 0) {
            return -1;
        }
    }
    if (refused && (status == GM_ERR_OUT_OF_MEMORY || status == GM_ERR_CAPTURING)) {
        *refused = status;
        return -1;
    }
    if (status != GM_OK) {
        gmpy_raise_refused(st, status, "allocating memory in stream order",
                           self->device, size);
        return -1;
    }
    self->st = st;
    self->base.ptr = self->owned;
    self->base.size = size;
    self->base.device_id = self->device;
    return 0;
}

/* Initializes `op` whole. `stream`: NULL or None is the current one; `refused`: as in
 * gmpy_memory_async_new. 0 or -1. */
static int
memory_async_start(
    PyObject *op, gmpy_state *st, size_t size, PyObject *stream, gm_status *refused)
{
    memory_async *self = (memory_async *)op;
    int device = gmpy_backend(st) ? gmpy_current_device(st) : -1;

    if (device < 0) {
        return -1;
    }
    self->stream = stream && stream != Py_None ? Py_NewRef(stream)
                                               : gmpy_current_stream(st, device);
    if (!self->stream || memory_async_open(self, st, size, self->stream, refused) < 0) {
        gmpy_drop(&self->stream);
        return -1;
    }
    return 0;
}

static int
memory_async_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "MemoryAsync", 2, 1, 2, {"size", "stream"}};
    PyObject *given[2];
    size_t size;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0) {
        return -1;
    }
    if (((memory_async *)op)->stream) {
        PyErr_SetString(PyExc_RuntimeError, "a MemoryAsync is initialized once");
        return -1;
    }
    return memory_async_start(op, gmpy_state_of(op), size, given[1], NULL);
}

PyObject *
gmpy_memory_async_new(gmpy_state *st, size_t size, gm_status *refused)
{
    PyTypeObject *type = gmpy_type(st->MemoryAsyncType);
    PyObject *self = type->tp_alloc(type, 0);

    if (self && memory_async_start(self, st, size, NULL, refused) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

uint64_t
gmpy_memory_async_life(PyObject *op, int *device)
{
    *device = ((const memory_async *)op)->device;
    return ((const memory_async *)op)->life;
}

/* ---- giving back ---- */

/* What the object had, and has no more. */
typedef struct remains {
    gmpy_parked parked;
    uintptr_t owned;
    PyObject *stream; // a reference, or NULL
    gmpy_stream_ref ref;
    uint64_t id;
    uint64_t life;
    int device;
} remains;

/* Gives the memory back on its stream, or after a wait on the default stream where the
 * handle does not mean the stream any more that the memory was taken on.
 * GM_ERR_CAPTURING: the stream is being recorded, and nothing was done. Needs no
 * interpreter. */
static gm_status
give_back(const gm_backend *backend, const remains *r)
{
    gm_stream stream = r->ref.handle;
    gm_status status;
    gm_status asked;
    uint64_t id = 0;
    gm_device_mark back;

    status = gmpy_stream_enter(backend, &r->ref, &back);
    if (status != GM_OK) {
        return status;
    }
    asked = gm_backend_stream_id(backend, r->ref.handle, &id);
    if (asked == GM_ERR_CAPTURING) {
        status = asked;
    }
    else if (asked != GM_OK || id != r->id) {
        status = gm_backend_device_synchronize(backend, r->device);
        stream = GM_STREAM_LEGACY;
    }
    if (status == GM_OK) {
        status = gm_backend_mem_free_async(backend, r->device, r->owned, stream);
    }
    gmpy_stream_leave(backend, &back);
    return status;
}

/* While a graph of ours is being recorded a free would become part of it, or spoil it:
 * the core makes up for it at the end. */
static bool
postpone(const gm_backend *backend, const remains *r)
{
    return gm_process_is_capturing() &&
           gm_capture_postpone_free(backend, r->device, GM_MEM_DEVICE, r->owned);
}

/* The same, unless the device was reset; another thing than a recording that prevents
 * it is reported. */
static gm_status
settle(gmpy_state *st, const remains *r)
{
    gm_status status = GM_OK;

    Py_BEGIN_ALLOW_THREADS
    if (!gmpy_device_has_ended(st, r->device, r->life) && !postpone(st->backend, r)) {
        status = give_back(st->backend, r);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_ERR_CAPTURING) {
        gmpy_report_release(st, status, "freeing memory in stream order");
    }
    return status;
}

static bool
give_parked(gmpy_state *st, gmpy_parked *item)
{
    remains *r = (remains *)item;

    if (settle(st, r) == GM_ERR_CAPTURING) {
        return false;
    }
    gmpy_drop(&r->stream);
    gm_host_free(r);
    return true;
}

static void
memory_async_release(memory_async *self)
{
    gmpy_state *st = self->st;
    remains *kept;
    remains r = {
        .parked = {.give = give_parked},
        .owned = self->owned,
        .ref = self->ref,
        .id = self->id,
        .life = self->life,
        .device = self->device,
    };

    self->owned = 0;
    if (!r.owned || !self->base.ptr || gm_process_is_frozen() ||
        settle(st, &r) != GM_ERR_CAPTURING) {
        return;
    }
    kept = gm_host_alloc(sizeof(*kept));
    if (!kept) {
        gmpy_report_release(st, GM_ERR_HOST_MEMORY,
                            "noting memory that is to be freed when another library's "
                            "recording ends; it stays allocated");
        return;
    }
    *kept = r;
    kept->stream = Py_XNewRef(self->stream); // which has to outlast the memory
    gmpy_park(st, &kept->parked);
}

static int
memory_async_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((memory_async *)op)->stream);
    return 0;
}

/* There is no tp_clear: the stream is needed to the end, and a cycle through it also
 * runs through something that it refers to. */
static void
memory_async_dealloc(PyObject *op)
{
    memory_async *self = (memory_async *)op;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    memory_async_release(self);
    gmpy_drop(&self->stream);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- the type ---- */

static PyObject *
memory_async_stream_ref(PyObject *op, void *Py_UNUSED(closure))
{
    return gmpy_weak_reference(((memory_async *)op)->stream);
}

static PyGetSetDef memory_async_getset[] = {
    {"stream_ref", memory_async_stream_ref, NULL,
     "weak reference to the stream it was allocated on", NULL},
    {0},
};

static PyType_Slot memory_async_slots[] = {
    {Py_tp_doc, (void *)memory_async_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, memory_async_init},
    {Py_tp_dealloc, memory_async_dealloc},
    {Py_tp_traverse, memory_async_traverse},
    {Py_tp_getset, memory_async_getset},
    {0, NULL},
};

static PyType_Spec memory_async_spec = {
    .name = "gpumem.MemoryAsync",
    .basicsize = sizeof(memory_async),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_async_slots,
};

/* ---- malloc_async ---- */

PyDoc_STRVAR(
    malloc_async_doc,
    "malloc_async(size)\n"
    "--\n"
    "\n"
    "Allocates from the driver's pool, in the order of the current stream.\n"
    "\n"
    "Serves as an allocator: set_allocator(malloc_async). MemoryAsyncPool has the\n"
    "same with a limit and figures.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the start of a new MemoryAsync.\n"
    "\n"
    "Raises:\n"
    "    As MemoryAsync does.");

static PyObject *
malloc_async(PyObject *module,
             PyObject *const *args,
             Py_ssize_t nargs,
             PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    size_t size;

    if (gmpy_unpack_size("malloc_async", args, nargs, kwnames, &size) < 0) {
        return NULL;
    }
    return gmpy_pointer_to_new(st, gmpy_memory_async_new(st, size, NULL));
}

PyMethodDef gmpy_memory_async_methods[] = {
    {"malloc_async", (PyCFunction)(void (*)(void))malloc_async,
     METH_FASTCALL | METH_KEYWORDS, malloc_async_doc},
    {0},
};

int
gmpy_memory_async_init(PyObject *module, gmpy_state *st)
{
    st->MemoryAsyncType =
        PyType_FromModuleAndSpec(module, &memory_async_spec, st->BaseMemoryType);
    if (!st->MemoryAsyncType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "MemoryAsync", st->MemoryAsyncType);
}
