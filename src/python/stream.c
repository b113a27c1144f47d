/* SPDX-License-Identifier: MIT
 *
 * BaseStream: a native stream handle, the device it is of, and the arena key the pool
 * knows it by. The two types made of it are in stream_make.c; streams as arguments,
 * their keys and their devices in stream_arg.c.
 *
 * The default streams (handles 0, 1 and 2) are those of whichever device is current;
 * such an object has device_id -1, unless an ExternalStream was told a device, which
 * then is made current around each call that uses it.
 *
 * A stream of ours is destroyed with its object. It cannot be current anywhere by then,
 * since the settings of a thread hold a reference (thread.c); work still queued on it
 * runs.
 *
 * Streams take part in garbage collection because Stream.null and Stream.ptds are in
 * the dictionary of their own type. There is no tp_clear: an object refers to its type
 * alone.
 *
 * Threading: a stream does not change once it is made and may be used by any thread.
 * Calls that reach the device let other threads run, `done` too, so that a loop that
 * polls it starves nobody.
 */
#include "module.h"

#include "core/gm_process.h" // gm_process_is_frozen

#include <structmember.h> // T_PYSSIZET, READONLY

static inline gmpy_stream *
stream_of(PyObject *op)
{
    return (gmpy_stream *)op;
}

/* ---- calls on its device ---- */

/* What can be asked of a stream. */
typedef enum stream_call {
    STREAM_QUERY,
    STREAM_SYNCHRONIZE,
    STREAM_RECORD,
    STREAM_WAIT,
} stream_call;

static gm_status
stream_call_now(const gm_backend *backend,
                stream_call call,
                gm_stream handle,
                gm_event event)
{
    switch (call) {
    case STREAM_QUERY:
        return gm_backend_stream_query(backend, handle);
    case STREAM_SYNCHRONIZE:
        return gm_backend_stream_synchronize(backend, handle);
    case STREAM_RECORD:
        return gm_backend_event_record(backend, event, handle);
    case STREAM_WAIT:
        return gm_backend_stream_wait_event(backend, handle, event);
    }
    return GM_ERR_INTERNAL;
}

/* The call, on the stream's device and without the interpreter; `event` where it takes
 * one. */
static gm_status
stream_do(const gm_backend *backend,
          stream_call call,
          const gmpy_stream *self,
          gm_event event)
{
    const gmpy_stream_ref ref = gmpy_stream_ref_of(self);
    gm_status status;
    int back;

    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, &ref, &back);
    if (status == GM_OK) {
        status = stream_call_now(backend, call, ref.handle, event);
        gmpy_stream_leave(backend, back);
    }
    Py_END_ALLOW_THREADS
    return status;
}

/* ---- the end of one ---- */

static int
stream_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static void
stream_destroy(gmpy_state *st, gm_stream handle)
{
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_stream_destroy(st->backend, handle);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_unraisable(st, status, "destroying a stream");
    }
}

static void
stream_dealloc(PyObject *op)
{
    gmpy_stream *self = stream_of(op);
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    if (self->weakrefs) {
        PyObject_ClearWeakRefs(op);
    }
    if (self->owned && !gm_process_is_frozen()) {
        stream_destroy(gmpy_state_of(op), self->handle);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- as a value ---- */

static PyObject *
stream_richcompare(PyObject *a, PyObject *b, int operation)
{
    gmpy_state *st = gmpy_state_of(a);
    bool equal;

    if ((operation != Py_EQ && operation != Py_NE) || !gmpy_is_stream(st, b)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    equal = stream_of(a)->handle == stream_of(b)->handle &&
            stream_of(a)->device_id == stream_of(b)->device_id;
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t
stream_hash(PyObject *op)
{
    const gmpy_stream *self = stream_of(op);
    // Handles are addresses: the low bits say little.
    uintptr_t mixed = (self->handle >> 4 | self->handle << 60) ^
                      ((uintptr_t)(self->device_id + 1) << 32);
    Py_hash_t hash = (Py_hash_t)mixed;

    return hash == -1 ? -2 : hash;
}

static PyObject *
stream_repr(PyObject *op)
{
    const gmpy_stream *self = stream_of(op);
    const gmpy_hex ptr = gmpy_as_hex(self->handle);
    const char *name = Py_TYPE(op)->tp_name;

    if (self->device_id < 0) {
        return PyUnicode_FromFormat("<%s %s>", name, ptr.text);
    }
    return PyUnicode_FromFormat("<%s %s device=%d>", name, ptr.text, self->device_id);
}

/* ---- being current ---- */

/* The current device, which has to be the stream's. -1 with an exception. */
static int
stream_check_device(gmpy_state *st, PyObject *op)
{
    int current = gmpy_current_device(st);
    int own = stream_of(op)->device_id;

    if (current >= 0 && own >= 0 && own != current) {
        PyErr_Format(PyExc_RuntimeError,
                     "a stream of device %d cannot become current while device %d is "
                     "the current one",
                     own, current);
        return -1;
    }
    return current;
}

PyDoc_STRVAR(use_doc,
             "use($self, /)\n"
             "--\n"
             "\n"
             "Makes this the calling thread's current stream on the current device.\n"
             "\n"
             "Memory asked for from now on is for use on this stream.\n"
             "\n"
             "Returns:\n"
             "    This stream.\n"
             "\n"
             "Raises:\n"
             "    RuntimeError: it belongs to a device that is not the current one.");

static PyObject *
stream_use(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    int device = stream_check_device(st, op);

    if (device < 0 || gmpy_set_current_stream(st, device, op) < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

PyDoc_STRVAR(enter_doc,
             "__enter__($self, /)\n"
             "--\n"
             "\n"
             "Makes this the current stream, as use() does. Returns the stream.");

static PyObject *
stream_enter_with(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    int device = stream_check_device(st, op);

    if (device < 0 || gmpy_push_stream(st, device, op) < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

PyDoc_STRVAR(
    exit_doc,
    "__exit__($self, /, *args)\n"
    "--\n"
    "\n"
    "Goes back to the stream that was current when this one was entered, on the\n"
    "device where that was.\n"
    "\n"
    "Where a stream entered later is still entered, that one stays current, and\n"
    "goes back further when it is left.\n"
    "\n"
    "Raises:\n"
    "    RuntimeError: this thread has not entered the stream.");

static PyObject *
stream_exit_with(PyObject *op,
                 PyObject *const *Py_UNUSED(args),
                 Py_ssize_t Py_UNUSED(nargs))
{
    if (gmpy_pop_stream(op) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- work ---- */

PyDoc_STRVAR(synchronize_doc,
             "synchronize($self, /)\n"
             "--\n"
             "\n"
             "Waits until all work queued on this stream is done.\n"
             "\n"
             "Other threads run meanwhile.\n"
             "\n"
             "Raises:\n"
             "    CUDARuntimeError: that work failed.");

static PyObject *
stream_synchronize(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend) {
        return NULL;
    }
    status = stream_do(backend, STREAM_SYNCHRONIZE, stream_of(op), 0);
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Stream.synchronize");
    }
    Py_RETURN_NONE;
}

static PyObject *
stream_done(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend) {
        return NULL;
    }
    status = stream_do(backend, STREAM_QUERY, stream_of(op), 0);
    if (status != GM_OK && status != GM_NOT_READY) {
        return gmpy_raise(st, status, "Stream.done");
    }
    return PyBool_FromLong(status == GM_OK);
}

PyDoc_STRVAR(
    record_doc,
    "record($self, /, event=None)\n"
    "--\n"
    "\n"
    "Lets an event happen when all that is queued on this stream now is done.\n"
    "\n"
    "Args:\n"
    "    event (Event): the event; None makes one on this stream's device.\n"
    "\n"
    "Returns:\n"
    "    The event.\n"
    "\n"
    "Raises:\n"
    "    TypeError: event is no event.\n"
    "    CUDARuntimeError: the runtime refuses, as for an event of another\n"
    "        device.");

static const gmpy_signature record_signature = {"record", 1, 0, 1, {"event"}};

/* The `event` argument of record, made where there is none: new reference. */
static PyObject *
event_to_record(gmpy_state *st, PyObject *op, PyObject *given)
{
    int device = stream_of(op)->device_id;

    if (given && given != Py_None) {
        return Py_NewRef(given);
    }
    if (device < 0) {
        device = gmpy_current_device(st);
    }
    return device < 0 ? NULL : gmpy_event_new(st, device, 0);
}

static PyObject *
stream_record(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given;
    PyObject *event = NULL;
    gm_event handle;
    gm_status status;

    if (!backend || gmpy_unpack(&record_signature, args, nargs, kwnames, &given) < 0) {
        return NULL;
    }
    event = event_to_record(st, op, given);
    if (!event || gmpy_as_event(st, event, &handle) < 0) {
        goto fail;
    }
    status = stream_do(backend, STREAM_RECORD, stream_of(op), handle);
    if (status != GM_OK) {
        gmpy_raise(st, status, "Stream.record");
        goto fail;
    }
    return event;

fail:
    Py_XDECREF(event);
    return NULL;
}

PyDoc_STRVAR(wait_event_doc,
             "wait_event($self, /, event)\n"
             "--\n"
             "\n"
             "Lets all that is queued on this stream from now on wait for an event.\n"
             "\n"
             "Returns at once. An event that was never recorded is not waited for.\n"
             "\n"
             "Args:\n"
             "    event (Event): the event; it may be of another device.\n"
             "\n"
             "Raises:\n"
             "    TypeError: event is no event.\n"
             "    CUDARuntimeError: the runtime refuses.");

static const gmpy_signature wait_event_signature = {"wait_event", 1, 1, 1, {"event"}};

static PyObject *
stream_wait_event(PyObject *op,
                  PyObject *const *args,
                  Py_ssize_t nargs,
                  PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *event;
    gm_event handle;
    gm_status status;

    if (!backend ||
        gmpy_unpack(&wait_event_signature, args, nargs, kwnames, &event) < 0 ||
        gmpy_as_event(st, event, &handle) < 0) {
        return NULL;
    }
    status = stream_do(backend, STREAM_WAIT, stream_of(op), handle);
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Stream.wait_event");
    }
    Py_RETURN_NONE;
}

/* ---- the types ---- */

PyDoc_STRVAR(
    base_doc,
    "A stream of whatever origin; made as Stream or ExternalStream.\n"
    "\n"
    "`with stream:` makes it the calling thread's current stream on the current\n"
    "device and goes back to the one before at the end; it nests. Streams are\n"
    "equal when handle and device are.\n"
    "\n"
    "Attributes:\n"
    "    ptr (int): the native handle.\n"
    "    device_id (int): number of the device, -1 for the default streams of\n"
    "        whichever is current.\n"
    "    done (bool): whether all work queued on it is done.\n"
    "    is_non_blocking (bool): whether it was made by Stream(non_blocking=True).");

static PyMethodDef stream_methods[] = {
    {"use", stream_use, METH_NOARGS, use_doc},
    {"synchronize", stream_synchronize, METH_NOARGS, synchronize_doc},
    {"record", (PyCFunction)(void (*)(void))stream_record,
     METH_FASTCALL | METH_KEYWORDS, record_doc},
    {"wait_event", (PyCFunction)(void (*)(void))stream_wait_event,
     METH_FASTCALL | METH_KEYWORDS, wait_event_doc},
    {"__enter__", stream_enter_with, METH_NOARGS, enter_doc},
    {"__exit__", (PyCFunction)(void (*)(void))stream_exit_with, METH_FASTCALL,
     exit_doc},
    {0},
};

static PyMemberDef stream_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_stream, handle), READONLY, "the native handle"},
    {"device_id", T_INT, offsetof(gmpy_stream, device_id), READONLY,
     "number of the device, -1 for whichever is current"},
    {"is_non_blocking", T_BOOL, offsetof(gmpy_stream, non_blocking), READONLY,
     "whether it was made not to wait for the default stream"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(gmpy_stream, weakrefs), READONLY, NULL},
    {0},
};

GM_STATIC_ASSERT(sizeof(gm_stream) == sizeof(unsigned long long),
                 "ptr is read as unsigned long long");
GM_STATIC_ASSERT(sizeof(bool) == sizeof(char), "is_non_blocking is read as char");

static PyGetSetDef stream_getset[] = {
    {"done", stream_done, NULL, "whether all work queued on it is done", NULL},
    {0},
};

static PyType_Slot base_slots[] = {
    {Py_tp_doc, (void *)base_doc},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_methods, stream_methods},
    {Py_tp_members, stream_members},
    {Py_tp_getset, stream_getset},
    {Py_tp_richcompare, stream_richcompare},
    {Py_tp_hash, stream_hash},
    {Py_tp_repr, stream_repr},
    {0, NULL},
};

static PyType_Spec base_spec = {
    .name = "gpumem.BaseStream",
    .basicsize = sizeof(gmpy_stream),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = base_slots,
};

int
gmpy_stream_init(PyObject *module, gmpy_state *st)
{
    st->BaseStreamType = PyType_FromModuleAndSpec(module, &base_spec, NULL);
    if (!st->BaseStreamType ||
        PyModule_AddObjectRef(module, "BaseStream", st->BaseStreamType) < 0) {
        return -1;
    }
    return gmpy_stream_make_init(module, st);
}

/* ---- module functions ---- */

PyDoc_STRVAR(
    get_current_stream_doc,
    "get_current_stream(device_id=-1)\n"
    "--\n"
    "\n"
    "Returns the calling thread's current stream on a device.\n"
    "\n"
    "It is the very object that use() or `with` made current, Stream.null where\n"
    "there was none.\n"
    "\n"
    "Args:\n"
    "    device_id (int): number of the device; -1 is the current one.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device.");

static const gmpy_signature get_current_stream_signature = {
    "get_current_stream", 1, 0, 1, {"device_id"}};

static PyObject *
get_current_stream(PyObject *module,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *given;
    int device;

    if (gmpy_unpack(&get_current_stream_signature, args, nargs, kwnames, &given) < 0 ||
        gmpy_as_device_id(st, given, &device) < 0) {
        return NULL;
    }
    if (device == -1) {
        device = gmpy_current_device(st);
    }
    return device < 0 ? NULL : gmpy_current_stream(st, device);
}

PyMethodDef gmpy_stream_methods[] = {
    {"get_current_stream", (PyCFunction)(void (*)(void))get_current_stream,
     METH_FASTCALL | METH_KEYWORDS, get_current_stream_doc},
    {0},
};
