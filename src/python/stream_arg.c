/* SPDX-License-Identifier: MIT
 *
 * Which stream is meant: arguments that name one, the device its handle is of, and the
 * arena key of each.
 *
 * The handle of a default stream means that of the current device. A gmpy_stream_ref
 * says which device has to be current for it, and the call is made between entering and
 * leaving that one; all other handles mean the same everywhere.
 *
 * The key is asked for once, when a stream object is made, because the question is too
 * slow for each request and a handle is no identity: a driver gives it out again. Only
 * the per-thread default stream has a key for each thread, asked for when it is made
 * current.
 *
 * Where a stream or an event is wanted, another library's will do: a stream with
 * __cuda_stream__, or anything with the native handle in its `ptr`. Objects of this
 * library have to be of the right type, for memory and pointers have a `ptr` too.
 *
 * A stream that is known to be gone, or never was one, is refused before any device
 * call. Whether somebody else's is still there only the driver knows: where an object
 * of ours stands for it, gmpy_stream_enter asks which stream the handle means by now
 * (93 ns) before anything is done on it.
 *
 * Threading: nothing is kept; any thread. Asking for a key lets other threads run.
 */
#include "stream.h"

enum {
    INVALID_HANDLE = 400, // the runtime's cudaErrorInvalidResourceHandle
};

/* ---- the right device ---- */

gmpy_stream_ref
gmpy_stream_ref_of(const gmpy_stream *stream)
{
    bool is_default = stream->handle <= GM_STREAM_PER_THREAD;

    return (gmpy_stream_ref){
        .handle = stream->handle,
        .device = is_default ? stream->device_id : -1,
        .of = stream->device_id,
        .owned = stream->owned,
        .known = !is_default,
        .key = is_default ? GM_STREAM_KEY_DEFAULT : stream->key,
        .life = stream->life,
    };
}

int
gmpy_stream_device(gmpy_state *st, const gmpy_stream_ref *stream, int *out)
{
    const gm_backend *backend;
    unsigned flags;
    int priority;
    gm_status status;

    *out = stream->of;
    if (*out >= 0) {
        return 0;
    }
    if (stream->handle <= GM_STREAM_PER_THREAD || st->device_count == 1) {
        *out = gmpy_current_device(st);
        return *out < 0 ? -1 : 0;
    }
    backend = gmpy_backend(st);
    if (!backend) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_stream_info(backend, stream->handle, &flags, &priority, out);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking which device a stream is of");
        return -1;
    }
    return 0;
}

int
gmpy_stream_check_device(gmpy_state *st, const gmpy_stream_ref *stream, int device)
{
    int of;

    if (gmpy_stream_device(st, stream, &of) < 0) {
        return -1;
    }
    /* A default stream that names no device has one on each. */
    if (of == device || (stream->of < 0 && stream->handle <= GM_STREAM_PER_THREAD)) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "the stream is of device %d, and this is about device %d", of, device);
    return -1;
}

gm_status
gmpy_stream_enter(const gm_backend *backend,
                  const gmpy_stream_ref *stream,
                  gm_device_mark *back)
{
    int current = 0;
    gm_status status;

    *back = (gm_device_mark){0};
    if (stream->device < 0) {
        return gmpy_stream_confirm(backend, stream);
    }
    status = gm_backend_device_get(backend, &current);
    if (status == GM_OK && current != stream->device) {
        status = gm_backend_device_push(backend, stream->device, back);
    }
    if (status == GM_OK) {
        status = gmpy_stream_confirm(backend, stream);
        if (status != GM_OK) {
            gmpy_stream_leave(backend, back);
            *back = (gm_device_mark){0};
        }
    }
    return status;
}

void
gmpy_stream_leave(const gm_backend *backend, const gm_device_mark *back)
{
    gm_backend_device_pop(backend, back);
}

/* ---- keys ---- */

int
gmpy_stream_ref_key(gmpy_state *st, const gmpy_stream_ref *stream, gm_stream_key *out)
{
    const gm_backend *backend;
    uint64_t id = 0;
    gm_status status;
    gm_device_mark back;

    if (stream->known) {
        *out = stream->key;
        return 0;
    }
    if (stream->handle <= GM_STREAM_LEGACY) {
        *out = GM_STREAM_KEY_DEFAULT;
        return 0;
    }
    backend = gmpy_backend(st);
    if (!backend) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, stream, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_id(backend, stream->handle, &id);
        gmpy_stream_leave(backend, &back);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking which stream it is");
        return -1;
    }
    *out = gm_stream_key_of(stream->handle, id);
    return 0;
}

gm_status
gmpy_stream_confirm(const gm_backend *backend, const gmpy_stream_ref *stream)
{
    uint64_t id = 0;
    gm_status status;

    if (stream->owned || !stream->known) {
        return GM_OK;
    }
    status = gm_backend_stream_id(backend, stream->handle, &id);
    if (status == GM_DEVICE_ERROR(INVALID_HANDLE)) {
        return GM_ERR_STREAM_GONE;
    }
    if (status == GM_ERR_CAPTURING) { // it is there; which one it is cannot be asked
        return GM_OK;
    }
    if (status == GM_OK && gm_stream_key_of(stream->handle, id) != stream->key) {
        return GM_ERR_STREAM_GONE;
    }
    return status;
}

int
gmpy_stream_key(gmpy_state *st, PyObject *stream, gm_stream_key *out)
{
    const gmpy_stream *self = (const gmpy_stream *)stream;
    const gmpy_stream_ref ref = gmpy_stream_ref_of(self);

    return gmpy_stream_check(st, self) < 0 ? -1 : gmpy_stream_ref_key(st, &ref, out);
}

/* ---- arguments ---- */

int
gmpy_as_foreign(PyObject *arg, const char *what, uintptr_t *out)
{
    PyObject *ptr = NULL;
    int result;

    // Memory, pointers, events and streams of ours all have a `ptr`: none of them
    // stands in for another.
    if (!PyType_GetModuleByDef(Py_TYPE(arg), &gmpy_module_def)) {
        PyErr_Clear();
        ptr = PyObject_GetAttrString(arg, "ptr");
        if (!ptr && !PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
    }
    if (!ptr) {
        PyErr_Format(PyExc_TypeError,
                     "%s must be a gpumem %s or an object with a native handle in its "
                     "ptr, not %s",
                     what, what, Py_TYPE(arg)->tp_name);
        return -1;
    }
    result = gmpy_as_address(ptr, "ptr", out);
    Py_DECREF(ptr);
    return result;
}

/* The handle in the pair that __cuda_stream__ returned. 0 or -1. */
static int
read_cuda_stream(PyObject *pair, gm_stream *out)
{
    int version;

    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(
            PyExc_TypeError,
            "__cuda_stream__ must return a tuple of version and handle, not %R", pair);
        return -1;
    }
    if (gmpy_as_int(PyTuple_GET_ITEM(pair, 0), "the version of __cuda_stream__",
                    &version) < 0) {
        return -1;
    }
    if (version != 0) {
        PyErr_Format(PyExc_ValueError,
                     "version %d of __cuda_stream__ is not known here; 0 is", version);
        return -1;
    }
    return gmpy_as_address(PyTuple_GET_ITEM(pair, 1), "the handle of __cuda_stream__",
                           out);
}

int
gmpy_ask_cuda_stream(PyObject *arg, gm_stream *out)
{
    PyObject *method = PyObject_GetAttrString(arg, "__cuda_stream__");
    PyObject *pair;
    int result;

    if (!method) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    pair = PyObject_CallNoArgs(method);
    Py_DECREF(method);
    if (!pair) {
        return -1;
    }
    result = read_cuda_stream(pair, out);
    Py_DECREF(pair);
    return result < 0 ? -1 : 1;
}

/* The handle of somebody else's stream. 0 or -1. */
static int
as_foreign_stream(PyObject *arg, gm_stream *out)
{
    int found = gmpy_ask_cuda_stream(arg, out);

    if (found != 0) {
        return found > 0 ? 0 : -1;
    }
    return gmpy_as_foreign(arg, "stream", out);
}

/* The calling thread's current stream on the current device. 0 or -1. */
static int
current_stream(gmpy_state *st, gmpy_stream_ref *out)
{
    int device = gmpy_current_device(st);
    const gmpy_current *currents = gmpy_this_thread.currents;
    const gmpy_stream *stream;

    if (device < 0) {
        return -1;
    }
    if (!currents || !currents[device].stream) {
        return 0;
    }
    stream = (const gmpy_stream *)currents[device].stream;
    *out = gmpy_stream_ref_of(stream);
    return gmpy_stream_check(st, stream);
}

int
gmpy_as_stream(gmpy_state *st, PyObject *arg, gmpy_stream_ref *out)
{
    *out = GMPY_STREAM_REF_NULL;
    if (!arg || arg == Py_None) {
        return current_stream(st, out);
    }
    if (gmpy_is_stream(st, arg)) {
        *out = gmpy_stream_ref_of((const gmpy_stream *)arg);
        return gmpy_stream_check(st, (const gmpy_stream *)arg);
    }
    return as_foreign_stream(arg, &out->handle);
}

int
gmpy_as_device_id(gmpy_state *st, PyObject *arg, int *out)
{
    *out = -1;
    if (arg && gmpy_as_int(arg, "device_id", out) < 0) {
        return -1;
    }
    return *out == -1 ? 0 : gmpy_as_device(st, arg, out);
}
