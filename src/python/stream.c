/* SPDX-License-Identifier: MIT
 *
 * BaseStream: a native stream handle, the device it is of, and the arena key the pool
 * knows it by. The two types made of it are in stream_make.c; what is done on a stream
 * in stream_work.c; streams as arguments, their keys and their devices in stream_arg.c.
 *
 * The default streams (handles 0, 1 and 2) are those of whichever device is current;
 * such an object has device_id -1, unless an ExternalStream was told a device, which
 * then is made current around each call that uses it.
 *
 * A stream of ours is destroyed with its object. It cannot be current anywhere by then,
 * since the settings of a thread hold a reference (thread.c); work still queued on it
 * runs. A device reset ends it earlier: then it can no longer be used, and there is
 * nothing left to destroy.
 *
 * Streams take part in garbage collection because Stream.null and Stream.ptds are in
 * the dictionary of their own type, and because one of somebody else's refers to that.
 *
 * Threading: a stream does not change once it is made and may be used by any thread.
 */
#include "later.h"
#include "stream.h"

#include "core/gm_process.h" // gm_process_is_frozen

#include <structmember.h> // T_PYSSIZET, READONLY

static inline gmpy_stream *
stream_of(PyObject *op)
{
    return (gmpy_stream *)op;
}

/* ---- the end of one ---- */

static int
stream_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(stream_of(op)->foreign);
    return 0;
}

/* Whoever made the stream may end it now, so it is not to be used any more. */
static int
stream_clear(PyObject *op)
{
    gmpy_stream *self = stream_of(op);

    self->ready = self->ready && !self->foreign;
    Py_CLEAR(self->foreign);
    return 0;
}

static void
stream_end(gmpy_state *st, gmpy_stream *self)
{
    gm_status status = GM_OK;

    Py_BEGIN_ALLOW_THREADS
    gmpy_stream_abandon_capture(st, self);
    if (self->owned && !gmpy_device_has_ended(st, self->device_id, self->life)) {
        gmpy_stream_ends(st->backend, self);
        status = gm_backend_stream_destroy(st->backend, self->handle);
    }
    Py_END_ALLOW_THREADS
    gmpy_report_release(st, status, "destroying a stream");
    gmpy_parked_look(st);
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
    if ((self->owned || self->recording) && !gm_process_is_frozen()) {
        stream_end(gmpy_state_of(op), self);
    }
    (void)stream_clear(op); // cannot fail
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
    // One that was not initialised has the handle of the default stream, and is none.
    equal = a == b || (stream_of(a)->ready && stream_of(b)->ready &&
                       stream_of(a)->handle == stream_of(b)->handle &&
                       stream_of(a)->device_id == stream_of(b)->device_id);
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

PyDoc_STRVAR(cuda_stream_doc,
             "__cuda_stream__($self, /)\n"
             "--\n"
             "\n"
             "The stream for other libraries: (0, ptr), which is the version of the\n"
             "protocol and the native handle.\n"
             "\n"
             "Raises:\n"
             "    RuntimeError: the stream is gone.");

static PyObject *
stream_cuda_stream(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (gmpy_stream_check(gmpy_state_of(op), stream_of(op)) < 0) {
        return NULL;
    }
    return Py_BuildValue("(iK)", 0, (unsigned long long)stream_of(op)->handle);
}

/* ---- being there ---- */

int
gmpy_stream_check(gmpy_state *st, const gmpy_stream *stream)
{
    if (GM_UNLIKELY(!stream->ready)) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s object is no stream: its __init__ did not run (a subclass has "
                     "to call super().__init__), or it was collected as garbage",
                     Py_TYPE(stream)->tp_name);
        return -1;
    }
    if (GM_UNLIKELY(gmpy_device_has_ended_known(st, stream->device_id, stream->life))) {
        PyErr_Format(PyExc_RuntimeError,
                     "the stream is gone: device %d was reset after it was made; make "
                     "a new one",
                     stream->device_id);
        return -1;
    }
    return 0;
}

/* ---- being current ---- */

/* The current device, which has to be the stream's. -1 with an exception. */
static int
stream_check_device(gmpy_state *st, PyObject *op)
{
    int current;
    int own = stream_of(op)->device_id;

    if (gmpy_stream_check(st, stream_of(op)) < 0) {
        return -1;
    }
    current = gmpy_current_device(st);
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
    "    is_non_blocking (bool): whether it does not wait for the default stream.\n"
    "    priority (int): as the device took it: 0 is ordinary, a lower number is\n"
    "        more urgent.");

static PyMethodDef stream_methods[] = {
    {"use", stream_use, METH_NOARGS, use_doc},
    {"synchronize", gmpy_stream_synchronize, METH_NOARGS, gmpy_stream_synchronize_doc},
    {"record", (PyCFunction)(void (*)(void))gmpy_stream_record,
     METH_FASTCALL | METH_KEYWORDS, gmpy_stream_record_doc},
    {"wait_event", (PyCFunction)(void (*)(void))gmpy_stream_wait_event,
     METH_FASTCALL | METH_KEYWORDS, gmpy_stream_wait_event_doc},
    {"begin_capture", (PyCFunction)(void (*)(void))gmpy_stream_begin_capture,
     METH_FASTCALL | METH_KEYWORDS, gmpy_stream_begin_capture_doc},
    {"end_capture", gmpy_stream_end_capture, METH_NOARGS, gmpy_stream_end_capture_doc},
    {"is_capturing", gmpy_stream_is_capturing, METH_NOARGS,
     gmpy_stream_is_capturing_doc},
    {"__cuda_stream__", stream_cuda_stream, METH_NOARGS, cuda_stream_doc},
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
     "whether it does not wait for the default stream"},
    {"priority", T_INT, offsetof(gmpy_stream, priority), READONLY,
     "as the device took it: 0 is ordinary, a lower number is more urgent"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(gmpy_stream, weakrefs), READONLY, NULL},
    {0},
};

GM_STATIC_ASSERT(sizeof(gm_stream) == sizeof(unsigned long long),
                 "ptr is read as unsigned long long");
GM_STATIC_ASSERT(sizeof(bool) == sizeof(char), "is_non_blocking is read as char");

static PyGetSetDef stream_getset[] = {
    {"done", gmpy_stream_done, NULL, "whether all work queued on it is done", NULL},
    {0},
};

static PyType_Slot base_slots[] = {
    {Py_tp_doc, (void *)base_doc},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_traverse, stream_traverse},
    {Py_tp_clear, stream_clear},
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
