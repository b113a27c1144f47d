/* SPDX-License-Identifier: MIT
 *
 * MemoryPointer's copies and fills.
 *
 * The plain forms return when the destination holds the bytes; the _async forms queue
 * on a stream, the current one unless another is given, with that stream's device
 * current where it is a default stream that names one. All device calls run without the
 * interpreter. A size of 0 touches neither device nor pointers. A range that leaves
 * the memory it starts in is a ValueError, and memory that a reset ended a
 * RuntimeError, before any device call.
 *
 * What the host's side may be is host_range.c's. A buffer is kept until the copy is
 * done (watch.c), and pooled memory goes to nobody else before that: a transfer on
 * another stream than the memory was taken for is recorded with its pool
 * (stream_use.c). Where one of the two cannot be, the transfer waits for its stream.
 *
 * While a stream records a graph, what returns only when it is done cannot be recorded
 * and would spoil the recording: it is refused before any device call.
 */
#include "dlpack.h"
#include "later.h"

#include "core/gm_peer.h"

/* 0 when `size` bytes from the pointer lie inside its memory, which is there, else -1
 * with an exception. */
static int
check_range(gmpy_pointer *pointer, size_t size)
{
    const gmpy_base_memory *mem;
    PyObject *behind;
    uintptr_t base;
    size_t start;

    if (gmpy_pointer_mem(pointer, &behind) < 0) {
        return -1;
    }
    mem = (const gmpy_base_memory *)behind;
    base = mem ? gmpy_memory_ptr(mem) : 0; // before the check: it only ever ends
    if (gmpy_memory_check(pointer->st, behind) < 0) {
        return -1;
    }
    start = pointer->ptr - base; // wraps, and so fails below, before the start
    if (start > mem->size || size > mem->size - start) {
        PyErr_Format(PyExc_ValueError,
                     "%zu bytes at offset %zd do not fit the memory of %zu bytes", size,
                     (Py_ssize_t)start, mem->size);
        return -1;
    }
    return 0;
}

/* ---- doing it ---- */

/* One copy or fill, ready to run. */
typedef struct transfer {
    gmpy_state *st;
    const gm_backend *backend;
    uintptr_t dst;
    uintptr_t src;
    size_t size;
    gm_copy_kind kind;
    int dst_device; // of a copy between devices, else both are 0
    int src_device;
    bool fill; // with `value`, else a copy
    int value;
    int home; // device of the pointer
    bool async;
    gmpy_stream_ref stream;  // of the async form
    gmpy_stream_ref current; // of the plain form, which works beside it
    Py_buffer *buffer;       // of the async form: to be kept; NULL for none
    PyObject *pooled[2];     // of the async form: whose pool is to be told; or NULL
    gm_stream_use by;        // what it is told; filled in where it or `buffer` is
} transfer;

static gm_status
transfer_now(const transfer *t)
{
    const gm_backend *b = t->backend;
    gm_stream stream = t->stream.handle;

    if (t->fill) {
        return t->async ? gm_backend_set_async(b, t->dst, t->value, t->size, stream)
                        : gm_backend_set(b, t->dst, t->value, t->size);
    }
    if (t->dst_device != t->src_device) {
        /* So that it can go directly. Asked each time: another library may have taken
         * it back. Where it fails the copy goes through the host, slower and as right.
         */
        (void)gm_peer_enable(b, t->src_device, t->dst_device);
        return t->async ? gm_backend_copy_peer_async(b, t->dst, t->dst_device, t->src,
                                                     t->src_device, t->size, stream)
                        : gm_backend_copy_peer(b, t->dst, t->dst_device, t->src,
                                               t->src_device, t->size);
    }
    return t->async ? gm_backend_copy_async(b, t->dst, t->src, t->size, t->kind, stream)
                    : gm_backend_copy(b, t->dst, t->src, t->size, t->kind);
}

/* The same; in the plain forms by the device whose memory it is, whatever is current:
 * pages are within reach of no other one. */
static gm_status
transfer_at_home(const transfer *t)
{
    gm_device_mark back;
    gm_status status;

    if (t->async || gm_backend_device_push(t->backend, t->home, &back) != GM_OK) {
        return transfer_now(t);
    }
    status = transfer_now(t);
    gm_backend_device_pop(t->backend, &back);
    return status;
}

/* GM_ERR_CAPTURING where the transfer waits or keeps a buffer and its stream, or the
 * current one for a plain form, records a graph. A stream that cannot be asked is left
 * to the transfer; one that is gone records nothing.
 */
static gm_status
transfer_check_capture(const transfer *t)
{
    gm_stream stream = t->async ? t->stream.handle : t->current.handle;
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id;

    if ((t->async && !t->buffer) || stream <= GM_STREAM_LEGACY ||
        (!t->async && gmpy_stream_confirm(t->backend, &t->current) != GM_OK) ||
        gm_backend_stream_capture(t->backend, stream, &state, &id) != GM_OK) {
        return GM_OK;
    }
    return state == GM_CAPTURE_NONE ? GM_OK : GM_ERR_CAPTURING;
}

/* Sees to it that what a queued transfer uses stays until it is done: `watched` marks
 * the buffer, pools are told. False: the caller has to wait. */
static bool
transfer_protect(const transfer *t, const gmpy_used used[2], gmpy_watched *watched)
{
    bool safe = !t->buffer || (watched && gmpy_watch_mark(t->backend, watched,
                                                          t->stream.handle) == GM_OK);

    for (int i = 0; i < 2; i++) {
        if (gmpy_record_use(&used[i], &t->by) != GM_OK) {
            safe = false;
        }
    }
    return safe;
}

/* The transfer, on its stream's device. *watched is what marks the buffer; NULL where
 * it need not be kept. */
static gm_status
transfer_do(const transfer *t, const gmpy_used used[2], gmpy_watched **watched)
{
    gm_status status;
    gm_device_mark back;

    status = gmpy_stream_enter(t->backend, &t->stream, &back);
    if (status != GM_OK) {
        return status;
    }
    status = transfer_check_capture(t);
    if (status == GM_OK && t->buffer) {
        *watched = gmpy_watch_new(t->st, t->backend, t->by.device);
    }
    if (status == GM_OK) {
        status = transfer_at_home(t);
    }
    if (status != GM_OK || !transfer_protect(t, used, *watched)) {
        gmpy_watch_free(t->backend, *watched);
        *watched = NULL;
        status = status != GM_OK
                     ? status
                     : gm_backend_stream_synchronize(t->backend, t->stream.handle);
    }
    gmpy_stream_leave(t->backend, &back);
    return status;
}

/* The same without the interpreter; takes over the buffer where that has to be kept. */
static gm_status
transfer_run(const transfer *t)
{
    const gmpy_used used[2] = {
        gmpy_used_begin(t->st, t->pooled[0]),
        gmpy_used_begin(t->st, t->pooled[1]),
    };
    gmpy_watched *watched = NULL;
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = transfer_do(t, used, &watched);
    gmpy_used_end(&used[0]);
    gmpy_used_end(&used[1]);
    Py_END_ALLOW_THREADS
    if (watched) {
        gmpy_watch_look(t->st, false); // as many go as come
        gmpy_watch_keep(t->st, watched, t->buffer);
    }
    return status;
}

static PyObject *
finish(const transfer *t, gm_status status, const char *what)
{
    if (status == GM_ERR_CAPTURING) {
        return PyErr_Format(
            PyExc_RuntimeError,
            t->async ? "%s: the stream records a graph, which cannot keep a buffer; "
                       "give the address of host memory that outlives the graph"
                     : "%s: the current stream records a graph, which takes the _async "
                       "forms alone",
            what);
    }
    if (status != GM_OK) {
        return gmpy_raise(t->st, status, what);
    }
    Py_RETURN_NONE;
}

/* Fills in what every transfer of a method needs. `stream` is the argument of the async
 * form, ignored in the other. */
static int
transfer_init(transfer *t, PyObject *self, bool async, PyObject *stream)
{
    *t = (transfer){
        .st = ((gmpy_pointer *)self)->st,
        .home = ((gmpy_pointer *)self)->device_id,
        .async = async,
        .stream = GMPY_STREAM_REF_NULL,
    };
    t->backend = gmpy_backend(t->st);
    if (!t->backend) {
        return -1;
    }
    return async ? gmpy_as_stream(t->st, stream, &t->stream)
                 : gmpy_as_stream(t->st, NULL, &t->current);
}

/* Fills in what an async transfer has to protect: the memory behind one or two pointers
 * that passed check_range and a buffer, both of which may be NULL. 0 or -1. */
static int
transfer_note(transfer *t,
              const gmpy_pointer *one,
              const gmpy_pointer *two,
              Py_buffer *buffer)
{
    if (!t->async) {
        return 0;
    }
    t->pooled[0] = gmpy_is_pooled(t->st, one->mem) ? one->mem : NULL;
    t->pooled[1] = two && gmpy_is_pooled(t->st, two->mem) ? two->mem : NULL;
    t->buffer = buffer && buffer->obj ? buffer : NULL;
    if (!t->pooled[0] && !t->pooled[1] && !t->buffer) {
        return 0;
    }
    return gmpy_stream_use_of(t->st, &t->stream, &t->by);
}

/* Whether the pointer, checked as above, is into plain host memory: a copy is not of
 * its kind then, nor between devices, and the backend finds out what it is. Of an
 * address that cannot be asked about the copy says what is wrong. */
static bool
is_plain_host(gmpy_state *st, const gmpy_pointer *pointer)
{
    gm_pointer_kind kind = GM_POINTER_DEVICE;

    return gmpy_pointer_find_kind(st, pointer, &kind) == GM_OK &&
           kind == GM_POINTER_UNREGISTERED;
}

static PyObject *
copy_from_device(
    PyObject *op, PyObject *source, size_t size, bool async, PyObject *stream)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    gmpy_pointer *src = (gmpy_pointer *)source;
    transfer t;

    if (transfer_init(&t, op, async, stream) < 0) {
        return NULL;
    }
    if (!gmpy_is_pointer(t.st, source)) {
        return PyErr_Format(PyExc_TypeError, "src must be a MemoryPointer, not %s",
                            Py_TYPE(source)->tp_name);
    }
    if (size == 0) {
        Py_RETURN_NONE;
    }
    if (check_range(self, size) < 0 || check_range(src, size) < 0 ||
        transfer_note(&t, self, src, NULL) < 0) {
        return NULL;
    }
    t.dst = self->ptr;
    t.src = src->ptr;
    t.size = size;
    t.kind = GM_COPY_DEVICE_TO_DEVICE;
    if (is_plain_host(t.st, self) || is_plain_host(t.st, src)) {
        t.kind = GM_COPY_DEFAULT;
    }
    else {
        t.dst_device = self->device_id;
        t.src_device = src->device_id;
    }
    return finish(&t, transfer_run(&t), "copying from device memory");
}

static PyObject *
copy_host(PyObject *op,
          PyObject *mem,
          size_t size,
          gm_copy_kind kind,
          bool async,
          PyObject *stream)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    bool to_host = kind == GM_COPY_DEVICE_TO_HOST;
    gmpy_host_range host;
    gm_status status;
    transfer t;

    if (transfer_init(&t, op, async, stream) < 0) {
        return NULL;
    }
    if (size == 0) {
        Py_RETURN_NONE;
    }
    if (check_range(self, size) < 0 ||
        gmpy_host_range_init(t.st, mem, size, to_host, &host) < 0) {
        return NULL;
    }
    t.dst = to_host ? host.address : self->ptr;
    t.src = to_host ? self->ptr : host.address;
    t.size = size;
    t.kind = is_plain_host(t.st, self) ? GM_COPY_DEFAULT : kind;
    if (transfer_note(&t, self, NULL, &host.buffer) < 0) {
        gmpy_host_range_fini(&host);
        return NULL;
    }
    status = transfer_run(&t);
    gmpy_host_range_fini(&host);
    return finish(&t, status,
                  to_host ? "copying to host memory" : "copying from host memory");
}

static PyObject *
fill(PyObject *op, int value, size_t size, bool async, PyObject *stream)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    transfer t;

    if (transfer_init(&t, op, async, stream) < 0) {
        return NULL;
    }
    if (size == 0) {
        Py_RETURN_NONE;
    }
    if (check_range(self, size) < 0 || transfer_note(&t, self, NULL, NULL) < 0) {
        return NULL;
    }
    t.dst = self->ptr;
    t.size = size;
    t.fill = true;
    t.value = value;
    return finish(&t, transfer_run(&t), "filling device memory");
}

/* ---- methods ---- */

/* What each method takes: one thing, a size and, in the async forms, a stream. */
typedef struct copy_args {
    PyObject *what;   // the other end of a copy, the value of a fill; borrowed
    PyObject *stream; // NULL: the current stream
    size_t size;
} copy_args;

static int
copy_args_init(const gmpy_signature *signature,
               PyObject *const *args,
               Py_ssize_t nargs,
               PyObject *kwnames,
               copy_args *out)
{
    PyObject *given[3] = {NULL, NULL, NULL};

    if (gmpy_unpack(signature, args, nargs, kwnames, given) < 0) {
        return -1;
    }
    out->what = given[0];
    out->stream = given[2];
    return gmpy_as_size(given[1], "size", &out->size);
}

static PyObject *
copy_from_either(PyObject *self, const copy_args *a, bool async)
{
    return gmpy_is_pointer(((gmpy_pointer *)self)->st, a->what)
               ? copy_from_device(self, a->what, a->size, async, a->stream)
               : copy_host(self, a->what, a->size, GM_COPY_HOST_TO_DEVICE, async,
                           a->stream);
}

static PyObject *
copy_from_host(PyObject *self, const copy_args *a, bool async)
{
    return copy_host(self, a->what, a->size, GM_COPY_HOST_TO_DEVICE, async, a->stream);
}

static PyObject *
copy_to_host(PyObject *self, const copy_args *a, bool async)
{
    return copy_host(self, a->what, a->size, GM_COPY_DEVICE_TO_HOST, async, a->stream);
}

static PyObject *
copy_from_pointer(PyObject *self, const copy_args *a, bool async)
{
    return copy_from_device(self, a->what, a->size, async, a->stream);
}

static PyObject *
fill_value(PyObject *self, const copy_args *a, bool async)
{
    int value;

    return gmpy_as_int(a->what, "value", &value) < 0
               ? NULL
               : fill(self, value, a->size, async, a->stream);
}

/* X(method, first parameter, function): each becomes the method and its _async form. */
#define COPY_METHODS(X)                                                                \
    X(copy_from_device, "src", copy_from_pointer)                                      \
    X(copy_from_host, "mem", copy_from_host)                                           \
    X(copy_from, "mem", copy_from_either)                                              \
    X(copy_to_host, "mem", copy_to_host)                                               \
    X(memset, "value", fill_value)

#define DEFINE_METHOD(name, count, first, async, function)                             \
    static PyObject *pointer_##name(PyObject *self, PyObject *const *args,             \
                                    Py_ssize_t nargs, PyObject *kwnames)               \
    {                                                                                  \
        static const gmpy_signature signature = {                                      \
            #name, count, 2, count, {first, "size", "stream"}};                        \
        copy_args a;                                                                   \
                                                                                       \
        return copy_args_init(&signature, args, nargs, kwnames, &a) < 0                \
                   ? NULL                                                              \
                   : function(self, &a, async);                                        \
    }
#define DEFINE_METHODS(name, first, function)                                          \
    DEFINE_METHOD(name, 2, first, false, function)                                     \
    DEFINE_METHOD(name##_async, 3, first, true, function)
COPY_METHODS(DEFINE_METHODS)

#define ARGS_HOST                                                                      \
    "Args:\n"                                                                          \
    "    mem (int, ctypes pointer or buffer): the host memory. An address is taken "   \
    "as\n"                                                                             \
    "        it is; a buffer must be contiguous and long enough.\n"                    \
    "    size (int): bytes.\n"
#define ARGS_STREAM                                                                    \
    "    stream (Stream): the stream to queue on; the current one if None. A buffer "  \
    "is\n"                                                                             \
    "        kept until the stream has done the copy, and its bytes must not be "      \
    "changed\n"                                                                        \
    "        before; memory given by address must also be kept by the caller.\n"
#define RAISES                                                                         \
    "\n"                                                                               \
    "Raises:\n"                                                                        \
    "    ValueError: the range leaves the memory it starts in, or the memory was "     \
    "given\n"                                                                          \
    "        back.\n"                                                                  \
    "    RuntimeError: the call would have to wait while a stream records a graph,\n"  \
    "        the stream is gone, or a reset ended the memory.\n"                       \
    "    CUDARuntimeError: the device refused.\n"

PyDoc_STRVAR(
    copy_from_device_doc,
    "copy_from_device($self, src, size)\n--\n\n"
    "Copies from memory of this or another device; returns when it is done.\n\n"
    "Args:\n"
    "    src (MemoryPointer): where to copy from.\n"
    "    size (int): bytes.\n" RAISES);
PyDoc_STRVAR(
    copy_from_device_async_doc,
    "copy_from_device_async($self, src, size, stream=None)\n--\n\n"
    "Queues a copy from memory of this or another device.\n\n"
    "Args:\n"
    "    src (MemoryPointer): where to copy from.\n"
    "    size (int): bytes.\n"
    "    stream (Stream): the stream to queue on; the current one if None.\n" RAISES);
PyDoc_STRVAR(copy_from_host_doc,
             "copy_from_host($self, mem, size)\n--\n\n"
             "Copies from host memory; returns when it is done.\n\n" ARGS_HOST RAISES);
PyDoc_STRVAR(copy_from_host_async_doc,
             "copy_from_host_async($self, mem, size, stream=None)\n--\n\n"
             "Queues a copy from host memory.\n\n" ARGS_HOST ARGS_STREAM RAISES);
PyDoc_STRVAR(
    copy_from_doc,
    "copy_from($self, mem, size)\n--\n\n"
    "copy_from_device for a MemoryPointer, copy_from_host for anything else.\n");
PyDoc_STRVAR(
    copy_from_async_doc,
    "copy_from_async($self, mem, size, stream=None)\n--\n\n"
    "copy_from_device_async for a MemoryPointer, copy_from_host_async for anything\n"
    "else.\n");
PyDoc_STRVAR(
    copy_to_host_doc,
    "copy_to_host($self, mem, size)\n--\n\n"
    "Copies to host memory; returns when it is done. A buffer must be writable.\n"
    "\n" ARGS_HOST RAISES);
PyDoc_STRVAR(copy_to_host_async_doc,
             "copy_to_host_async($self, mem, size, stream=None)\n--\n\n"
             "Queues a copy to host memory. A buffer must be writable.\n"
             "\n" ARGS_HOST ARGS_STREAM RAISES);
PyDoc_STRVAR(memset_doc,
             "memset($self, value, size)\n--\n\n"
             "Fills with a byte; returns when it is done.\n\n"
             "Args:\n"
             "    value (int): the byte; of a larger number the low eight bits.\n"
             "    size (int): bytes.\n" RAISES);
PyDoc_STRVAR(
    memset_async_doc,
    "memset_async($self, value, size, stream=None)\n--\n\n"
    "Queues filling with a byte.\n\n"
    "Args:\n"
    "    value (int): the byte; of a larger number the low eight bits.\n"
    "    size (int): bytes.\n"
    "    stream (Stream): the stream to queue on; the current one if None.\n" RAISES);

#define LIST_METHOD(name)                                                              \
    {#name, (PyCFunction)(void (*)(void))pointer_##name,                               \
     METH_FASTCALL | METH_KEYWORDS, name##_doc},
#define LIST_METHODS(name, first, function) LIST_METHOD(name) LIST_METHOD(name##_async)

PyMethodDef gmpy_pointer_methods[] = {
    COPY_METHODS(LIST_METHODS){"record_stream",
                               (PyCFunction)(void (*)(void))gmpy_record_stream,
                               METH_FASTCALL | METH_KEYWORDS, gmpy_record_stream_doc},
    GMPY_DLPACK_METHODS,
    {0},
};
