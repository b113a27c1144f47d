/* SPDX-License-Identifier: MIT
 *
 * Stream and ExternalStream: how stream objects come to be, and the two default
 * streams.
 *
 * Both are made by __init__, so that subclasses may have arguments of their own. It
 * runs once: a second run would change the handle under threads that have it as their
 * current one. An object whose __init__ did not run is no stream and is refused where
 * one is wanted, for its handle would be that of the default stream.
 *
 * Which stream a handle of somebody else's means, and what it was made with, is asked
 * once, when its object is made.
 *
 * Stream.null and Stream.ptds live as long as the module and name no device, so making
 * them touches none.
 *
 * Threading: making a stream lets other threads run.
 */
#include "stream.h"

/* ---- what both share ---- */

static PyObject *
make_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    PyObject *self = type->tp_alloc(type, 0);

    if (self) {
        ((gmpy_stream *)self)->device_id = -1;
    }
    return self;
}

/* For the first run of __init__, which may be under way in another thread. 0 or -1. */
static int
claim(PyObject *op)
{
    if (__atomic_exchange_n(&((gmpy_stream *)op)->started, true, __ATOMIC_ACQ_REL)) {
        PyErr_Format(PyExc_RuntimeError, "%R is initialised already", op);
        return -1;
    }
    return 0;
}

/* ---- Stream ---- */

/* What the device says of a stream. */
typedef struct facts {
    uint64_t id;
    unsigned flags;
    int priority;
    int device; // -1: it does not say
    uint64_t life;
} facts;

/* Asks for them; needs no interpreter. */
static gm_status
ask_facts(gmpy_state *st, gm_stream handle, facts *out)
{
    gm_status status = gm_backend_stream_id(st->backend, handle, &out->id);

    if (status == GM_OK) {
        status = gm_backend_stream_info(st->backend, handle, &out->flags,
                                        &out->priority, &out->device);
    }
    out->life =
        status == GM_OK && out->device >= 0 ? gmpy_device_life(st, out->device) : 0;
    return status;
}

/* Makes `self` the stream of that handle, and ready. */
static void
set_stream(gmpy_stream *self, gm_stream handle, int device, const facts *known)
{
    self->handle = handle;
    self->key = gm_stream_key_of(handle, known->id);
    self->device_id = device;
    self->priority = known->priority;
    self->non_blocking = (known->flags & GM_STREAM_NON_BLOCKING) != 0;
    self->life = known->life;
    self->started = true;
    self->ready = true;
}

/* Makes `self` a stream that somebody else made; `device` -1 is its own, but for a
 * default stream whichever is current when it is used. 0 or -1. */
static int
set_foreign(gmpy_state *st, gmpy_stream *self, gm_stream handle, int device)
{
    facts known = {0};
    gm_status status;

    if (handle > GM_STREAM_PER_THREAD) {
        if (!gmpy_backend(st)) {
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        status = ask_facts(st, handle, &known);
        Py_END_ALLOW_THREADS
        if (status != GM_OK) {
            gmpy_raise(st, status, "asking which stream it is");
            return -1;
        }
        if (device >= 0 && device != known.device) {
            PyErr_Format(PyExc_ValueError, "the stream is of device %d, not of %d",
                         known.device, device);
            return -1;
        }
        device = known.device;
    }
    if (claim((PyObject *)self) < 0) { // another thread may have been faster
        return -1;
    }
    set_stream(self, handle, device, &known);
    return 0;
}

/* Makes the native stream on the current device. 0 or -1. */
static int
stream_create(gmpy_state *st, gmpy_stream *self, unsigned flags, int priority)
{
    const gm_backend *backend = gmpy_backend(st);
    int device = backend ? gmpy_current_device(st) : -1;
    gm_stream handle = 0;
    facts known = {0};
    gm_status status;

    if (device < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_stream_create(backend, device, flags, priority, &handle);
    if (status == GM_OK) {
        status = ask_facts(st, handle, &known);
        if (status != GM_OK) {
            (void)gm_backend_stream_destroy(backend, handle); // one failure is enough
        }
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "Stream");
        return -1;
    }
    known.flags = flags; // only of the priority does the device have a say
    set_stream(self, handle, device, &known);
    self->owned = true; // from here on the destructor gives it back
    return 0;
}

PyDoc_STRVAR(
    stream_doc,
    "Stream(null=False, non_blocking=False, ptds=False, priority=None)\n"
    "--\n"
    "\n"
    "A stream: work queued on it runs in order.\n"
    "\n"
    "A new one is made on the current device and destroyed with the object. The\n"
    "default streams are there already, as Stream.null and Stream.ptds.\n"
    "\n"
    "Args:\n"
    "    null (bool): the device's default stream, no new one.\n"
    "    non_blocking (bool): the stream does not wait for the default stream.\n"
    "    ptds (bool): the calling thread's own default stream, no new one.\n"
    "    priority (int): a lower number is more urgent, None is 0, the ordinary\n"
    "        one; what the device does not have becomes the nearest that it has,\n"
    "        which the attribute of that name tells.\n"
    "\n"
    "Raises:\n"
    "    ValueError: more than one of them is true, or a default stream is to\n"
    "        have a priority.\n"
    "    TypeError: priority is no integer.\n"
    "    CUDARuntimeError: the runtime cannot make a stream.\n"
    "\n"
    "Safe to share between threads.");

static const gmpy_signature stream_signature = {
    "Stream", 4, 0, 4, {"null", "non_blocking", "ptds", "priority"}};

/* The `priority` argument. 0 or -1. */
static int
as_priority(PyObject *arg, bool is_default, int *out)
{
    *out = 0;
    if (!arg || arg == Py_None) {
        return 0;
    }
    if (gmpy_as_int(arg, "priority", out) < 0) {
        return -1;
    }
    if (is_default) {
        PyErr_SetString(PyExc_ValueError,
                        "a default stream is there already, and has its priority");
        return -1;
    }
    return 0;
}

static int
stream_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_stream *self = (gmpy_stream *)op;
    PyObject *given[4];
    bool null;
    bool non_blocking;
    bool ptds;
    int priority;

    if (gmpy_unpack_init(&stream_signature, args, kwargs, given) < 0 ||
        gmpy_as_flag(given[0], &null) < 0 ||
        gmpy_as_flag(given[1], &non_blocking) < 0 ||
        gmpy_as_flag(given[2], &ptds) < 0) {
        return -1;
    }
    if (null + non_blocking + ptds > 1) {
        PyErr_SetString(PyExc_ValueError,
                        "only one of null, non_blocking and ptds can be true");
        return -1;
    }
    if (as_priority(given[3], null || ptds, &priority) < 0 || claim(op) < 0) {
        return -1;
    }
    if (null || ptds) {
        set_stream(self, null ? GM_STREAM_NULL : GM_STREAM_PER_THREAD, -1, &(facts){0});
        return 0;
    }
    if (stream_create(gmpy_state_of(op), self,
                      non_blocking ? GM_STREAM_NON_BLOCKING : 0, priority) < 0) {
        self->started = false;
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(
    from_external_doc,
    "from_external($type, obj, /)\n"
    "--\n"
    "\n"
    "A stream of another library, as one of this type.\n"
    "\n"
    "It keeps `obj`, and with it the stream, for as long as it lives, and does not\n"
    "destroy it. __init__ is not run.\n"
    "\n"
    "Args:\n"
    "    obj: anything with __cuda_stream__.\n"
    "\n"
    "Raises:\n"
    "    TypeError: obj has no __cuda_stream__.\n"
    "    ValueError: it speaks another version of the protocol than 0.\n"
    "    CUDARuntimeError: there is no such stream.");

/* The stream that `obj` is or tells of: its handle and, where known, its device. 0 or
 * -1. */
static int
ask_foreign(gmpy_state *st, PyObject *obj, gm_stream *handle, int *device)
{
    int found;

    *device = -1;
    if (gmpy_is_stream(st, obj)) {
        *handle = ((gmpy_stream *)obj)->handle;
        *device = ((gmpy_stream *)obj)->device_id;
        return gmpy_stream_check(st, (gmpy_stream *)obj);
    }
    found = gmpy_ask_cuda_stream(obj, handle);
    if (found == 0) {
        PyErr_Format(PyExc_TypeError, "obj must have __cuda_stream__, which %s has not",
                     Py_TYPE(obj)->tp_name);
    }
    return found > 0 ? 0 : -1;
}

static PyObject *
stream_from_external(PyObject *type, PyObject *obj)
{
    gmpy_stream *self = (gmpy_stream *)make_new((PyTypeObject *)type, NULL, NULL);
    gmpy_state *st = self ? gmpy_state_of((PyObject *)self) : NULL;
    gm_stream handle;
    int device;

    if (!self || ask_foreign(st, obj, &handle, &device) < 0 ||
        set_foreign(st, self, handle, device) < 0) {
        Py_XDECREF(self);
        return NULL;
    }
    self->foreign = Py_NewRef(obj);
    return (PyObject *)self;
}

static PyMethodDef stream_type_methods[] = {
    {"from_external", stream_from_external, METH_O | METH_CLASS, from_external_doc},
    {0},
};

static PyType_Slot stream_slots[] = {
    {Py_tp_doc, (void *)stream_doc},
    {Py_tp_methods, stream_type_methods},
    {Py_tp_new, make_new},
    {Py_tp_init, stream_init},
    {0, NULL},
};

static PyType_Spec stream_spec = {
    .name = "gpumem.Stream",
    .basicsize = sizeof(gmpy_stream),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = stream_slots,
};

/* ---- ExternalStream ---- */

PyDoc_STRVAR(
    external_doc,
    "ExternalStream(ptr, device_id=-1)\n"
    "--\n"
    "\n"
    "A stream that somebody else made and will destroy.\n"
    "\n"
    "It has to exist for as long as the object is used. Which stream it is is\n"
    "found out now: where its handle is given out again for another one, make\n"
    "another object.\n"
    "\n"
    "Args:\n"
    "    ptr (int): the native handle; 0, 1 and 2 are the default streams.\n"
    "    device_id (int): number of its device. -1: whichever it is of, and for a\n"
    "        default stream whichever is current when it is used.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device, or the stream is of another one.\n"
    "    CUDARuntimeError: there is no such stream.\n"
    "\n"
    "Safe to share between threads.");

static const gmpy_signature external_signature = {
    "ExternalStream", 2, 1, 2, {"ptr", "device_id"}};

static int
external_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[2];
    gm_stream handle;
    int device;

    if (gmpy_unpack_init(&external_signature, args, kwargs, given) < 0 ||
        gmpy_as_address(given[0], "ptr", &handle) < 0 ||
        gmpy_as_device_id(st, given[1], &device) < 0) {
        return -1;
    }
    return set_foreign(st, (gmpy_stream *)op, handle, device);
}

static PyType_Slot external_slots[] = {
    {Py_tp_doc, (void *)external_doc},
    {Py_tp_new, make_new},
    {Py_tp_init, external_init},
    {0, NULL},
};

/* Garbage collection and the end of an object are inherited. */
static PyType_Spec external_spec = {
    .name = "gpumem.ExternalStream",
    .basicsize = sizeof(gmpy_stream),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = external_slots,
};

/* ---- the module's part ---- */

/* The default stream of that handle, also as an attribute of Stream: new reference. */
static PyObject *
add_default(gmpy_state *st, gm_stream handle, const char *name)
{
    PyTypeObject *type = gmpy_type(st->StreamType);
    PyObject *self = make_new(type, NULL, NULL);

    if (!self) {
        return NULL;
    }
    set_stream((gmpy_stream *)self, handle, -1, &(facts){0});
    // The type is immutable for everybody else; nobody has seen it yet.
    if (PyDict_SetItemString(type->tp_dict, name, self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    PyType_Modified(type);
    return self;
}

int
gmpy_stream_make_init(PyObject *module, gmpy_state *st)
{
    st->StreamType = PyType_FromModuleAndSpec(module, &stream_spec, st->BaseStreamType);
    if (!st->StreamType ||
        PyModule_AddObjectRef(module, "Stream", st->StreamType) < 0) {
        return -1;
    }
    st->null_stream = add_default(st, GM_STREAM_NULL, "null");
    if (!st->null_stream) {
        return -1;
    }
    st->ptds_stream = add_default(st, GM_STREAM_PER_THREAD, "ptds");
    if (!st->ptds_stream) {
        return -1;
    }
    st->ExternalStreamType =
        PyType_FromModuleAndSpec(module, &external_spec, st->BaseStreamType);
    if (!st->ExternalStreamType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "ExternalStream", st->ExternalStreamType);
}
