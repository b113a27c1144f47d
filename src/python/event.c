/* SPDX-License-Identifier: MIT
 *
 * Event: a point in a stream's work that others can ask about, wait for and measure
 * from.
 *
 * Made by __init__, which runs once, so that subclasses may have arguments of their
 * own; destroyed with its object. A wait already queued on it still holds after that. A
 * device reset ends it earlier: then it can no longer be used, and there is nothing
 * left to destroy.
 *
 * Cost: a record, a query and a wait are one call to the backend each, 200 to 300 ns on
 * a device.
 *
 * Threading: an event may be used by any thread, and the newest record counts. Calls
 * that reach the device let other threads run.
 */
#include "stream.h"

#include "core/gm_process.h" // gm_process_is_frozen

#include <structmember.h> // T_PYSSIZET, READONLY

static inline gmpy_event *
event_of(PyObject *op)
{
    return (gmpy_event *)op;
}

/* ---- construction ---- */

/* Makes the native event on `device`. 0 or -1. */
static int
event_create(gmpy_state *st, PyObject *op, int device, unsigned flags)
{
    const gm_backend *backend = gmpy_backend(st);
    gm_event handle = 0;
    uint64_t life = 0;
    gm_status status;

    if (!backend) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_event_create(backend, device, flags, &handle);
    if (status == GM_OK) {
        life = gmpy_device_life(st, device);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "Event");
        return -1;
    }
    event_of(op)->handle = handle;
    event_of(op)->device_id = device;
    event_of(op)->untimed = (flags & GM_EVENT_DISABLE_TIMING) != 0;
    event_of(op)->life = life;
    return 0;
}

PyObject *
gmpy_event_new(gmpy_state *st, int device, unsigned flags)
{
    PyTypeObject *type = gmpy_type(st->EventType);
    PyObject *self = type->tp_alloc(type, 0);

    if (!self) {
        return NULL;
    }
    event_of(self)->started = true;
    if (event_create(st, self, device, flags) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

PyDoc_STRVAR(
    event_doc,
    "Event(block=False, disable_timing=False, interprocess=False)\n"
    "--\n"
    "\n"
    "A point in a stream's work, on the current device.\n"
    "\n"
    "Until it is recorded it counts as having happened. Events are equal when\n"
    "their handles are.\n"
    "\n"
    "Args:\n"
    "    block (bool): synchronize() sleeps instead of spinning.\n"
    "    disable_timing (bool): cheaper; get_elapsed_time() refuses it.\n"
    "    interprocess (bool): can be exported to another process; needs\n"
    "        disable_timing.\n"
    "\n"
    "Attributes:\n"
    "    ptr (int): the native handle.\n"
    "    device_id (int): number of the device.\n"
    "    done (bool): whether it happened.\n"
    "\n"
    "Raises:\n"
    "    ValueError: interprocess without disable_timing.\n"
    "    CUDARuntimeError: the runtime cannot make an event.\n"
    "\n"
    "Safe to share between threads.");

static const gmpy_signature event_signature = {
    "Event", 3, 0, 3, {"block", "disable_timing", "interprocess"}};

static int
event_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[3];
    bool block;
    bool disable_timing;
    bool interprocess;
    unsigned flags;
    int device;

    if (gmpy_unpack_init(&event_signature, args, kwargs, given) < 0 ||
        gmpy_as_flag(given[0], &block) < 0 ||
        gmpy_as_flag(given[1], &disable_timing) < 0 ||
        gmpy_as_flag(given[2], &interprocess) < 0) {
        return -1;
    }
    if (interprocess && !disable_timing) {
        PyErr_SetString(PyExc_ValueError,
                        "interprocess=True needs disable_timing=True");
        return -1;
    }
    flags = (block ? GM_EVENT_BLOCKING_SYNC : 0u) |
            (disable_timing ? GM_EVENT_DISABLE_TIMING : 0u) |
            (interprocess ? GM_EVENT_INTERPROCESS : 0u);
    device = gmpy_current_device(st);
    if (device < 0) {
        return -1;
    }
    if (__atomic_exchange_n(&event_of(op)->started, true, __ATOMIC_ACQ_REL)) {
        PyErr_Format(PyExc_RuntimeError, "%R is initialised already", op);
        return -1;
    }
    if (event_create(st, op, device, flags) < 0) {
        event_of(op)->started = false;
        return -1;
    }
    return 0;
}

static void
event_destroy(gmpy_state *st, const gmpy_event *self)
{
    gm_status status = GM_OK;

    Py_BEGIN_ALLOW_THREADS
    if (!gmpy_device_has_ended(st, self->device_id, self->life)) {
        status = gm_backend_event_destroy(st->backend, self->handle);
    }
    Py_END_ALLOW_THREADS
    gmpy_report_release(st, status, "destroying an event");
}

static void
event_dealloc(PyObject *op)
{
    gmpy_event *self = event_of(op);
    PyTypeObject *type = Py_TYPE(op);

    if (self->weakrefs) {
        PyObject_ClearWeakRefs(op);
    }
    if (self->handle && !gm_process_is_frozen()) {
        event_destroy(gmpy_state_of(op), self);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- as an argument ---- */

/* 0 where the event is there as far as is known, else -1 with RuntimeError. */
static int
event_check(gmpy_state *st, const gmpy_event *self)
{
    if (!self->handle) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s object is no event: its __init__ did not run (a subclass has "
                     "to call super().__init__)",
                     Py_TYPE(self)->tp_name);
        return -1;
    }
    if (gmpy_device_has_ended_known(st, self->device_id, self->life)) {
        PyErr_Format(PyExc_RuntimeError,
                     "the event is gone: device %d was reset after it was made; make a "
                     "new one",
                     self->device_id);
        return -1;
    }
    return 0;
}

int
gmpy_as_event(gmpy_state *st, PyObject *arg, gm_event *out)
{
    if (gmpy_is_event(st, arg)) {
        *out = event_of(arg)->handle;
        return event_check(st, event_of(arg));
    }
    return gmpy_as_foreign(arg, "event", out);
}

int
gmpy_event_check_stream(gmpy_state *st, PyObject *event, const gmpy_stream_ref *stream)
{
    int of;

    if (!gmpy_is_event(st, event)) {
        return 0;
    }
    if (gmpy_stream_device(st, stream, &of) < 0) {
        return -1;
    }
    if (of != event_of(event)->device_id) {
        PyErr_Format(
            PyExc_ValueError,
            "an event of device %d cannot be recorded on a stream of device %d",
            event_of(event)->device_id, of);
        return -1;
    }
    return 0;
}

void
gmpy_event_note_record(gmpy_state *st, PyObject *event)
{
    if (gmpy_is_event(st, event)) {
        event_of(event)->recorded = true;
    }
}

/* ---- as a value ---- */

static PyObject *
event_richcompare(PyObject *a, PyObject *b, int operation)
{
    gmpy_state *st = gmpy_state_of(a);
    bool equal;

    if ((operation != Py_EQ && operation != Py_NE) || !gmpy_is_event(st, b)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    equal = event_of(a)->handle == event_of(b)->handle;
    return PyBool_FromLong(equal == (operation == Py_EQ));
}

static Py_hash_t
event_hash(PyObject *op)
{
    uintptr_t handle = event_of(op)->handle;
    Py_hash_t hash = (Py_hash_t)(handle >> 4 | handle << 60); // the low bits say little

    return hash == -1 ? -2 : hash;
}

static PyObject *
event_repr(PyObject *op)
{
    const gmpy_event *self = event_of(op);
    const gmpy_hex ptr = gmpy_as_hex(self->handle);

    return PyUnicode_FromFormat("<%s %s device=%d>", Py_TYPE(op)->tp_name, ptr.text,
                                self->device_id);
}

/* ---- methods ---- */

PyDoc_STRVAR(record_doc,
             "record($self, /, stream=None)\n"
             "--\n"
             "\n"
             "Lets the event happen when all that is queued on a stream now is done.\n"
             "\n"
             "Args:\n"
             "    stream (Stream): the stream; None is the current one.\n"
             "\n"
             "Raises:\n"
             "    TypeError: stream is no stream.\n"
             "    ValueError: stream is of another device.\n"
             "    RuntimeError: the stream or the event is gone.\n"
             "    CUDARuntimeError: the runtime refuses.");

static const gmpy_signature record_signature = {"record", 1, 0, 1, {"stream"}};

static PyObject *
event_record(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given;
    gmpy_stream_ref stream;
    gm_status status;
    gm_device_mark back;

    if (!backend || gmpy_unpack(&record_signature, args, nargs, kwnames, &given) < 0 ||
        event_check(st, event_of(op)) < 0 || gmpy_as_stream(st, given, &stream) < 0 ||
        gmpy_event_check_stream(st, op, &stream) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, &stream, &back);
    if (status == GM_OK) {
        status = gm_backend_event_record(backend, event_of(op)->handle, stream.handle);
        gmpy_stream_leave(backend, &back);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Event.record");
    }
    event_of(op)->recorded = true;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(synchronize_doc,
             "synchronize($self, /)\n"
             "--\n"
             "\n"
             "Waits until the event happened. Other threads run meanwhile.\n"
             "\n"
             "Raises:\n"
             "    CUDARuntimeError: work before it failed.");

static PyObject *
event_synchronize(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend || event_check(st, event_of(op)) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_event_synchronize(backend, event_of(op)->handle);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Event.synchronize");
    }
    gmpy_waited(st);
    Py_RETURN_NONE;
}

static PyObject *
event_done(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend || event_check(st, event_of(op)) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_event_query(backend, event_of(op)->handle);
    Py_END_ALLOW_THREADS
    if (status != GM_OK && status != GM_NOT_READY) {
        return gmpy_raise(st, status, "Event.done");
    }
    return PyBool_FromLong(status == GM_OK);
}

/* ---- the type ---- */

static PyMethodDef event_methods[] = {
    {"record", (PyCFunction)(void (*)(void))event_record, METH_FASTCALL | METH_KEYWORDS,
     record_doc},
    {"synchronize", event_synchronize, METH_NOARGS, synchronize_doc},
    {0},
};

static PyMemberDef event_members[] = {
    {"ptr", T_ULONGLONG, offsetof(gmpy_event, handle), READONLY, "the native handle"},
    {"device_id", T_INT, offsetof(gmpy_event, device_id), READONLY,
     "number of the device"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(gmpy_event, weakrefs), READONLY, NULL},
    {0},
};

GM_STATIC_ASSERT(sizeof(gm_event) == sizeof(unsigned long long),
                 "ptr is read as unsigned long long");

static PyGetSetDef event_getset[] = {
    {"done", event_done, NULL, "whether the event happened", NULL},
    {0},
};

static PyType_Slot event_slots[] = {
    {Py_tp_doc, (void *)event_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, event_init},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_methods, event_methods},
    {Py_tp_members, event_members},
    {Py_tp_getset, event_getset},
    {Py_tp_richcompare, event_richcompare},
    {Py_tp_hash, event_hash},
    {Py_tp_repr, event_repr},
    {0, NULL},
};

static PyType_Spec event_spec = {
    .name = "gpumem.Event",
    .basicsize = sizeof(gmpy_event),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = event_slots,
};

int
gmpy_event_init(PyObject *module, gmpy_state *st)
{
    st->EventType = PyType_FromModuleAndSpec(module, &event_spec, NULL);
    if (!st->EventType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Event", st->EventType);
}
