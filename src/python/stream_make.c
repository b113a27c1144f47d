/* SPDX-License-Identifier: MIT
 *
 * Stream and ExternalStream: how stream objects come to be, and the two default
 * streams.
 *
 * Both are made by __init__, so that subclasses may have arguments of their own. It
 * runs once: a second run would change the handle under threads that have it as their
 * current one. An object whose __init__ did not run is the default stream.
 *
 * Stream.null and Stream.ptds live as long as the module and name no device, so making
 * them touches none.
 *
 * Threading: making a stream lets other threads run.
 */
#include "module.h"

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

/* Refuses a second run of __init__. 0 or -1. */
static int
check_fresh(PyObject *op)
{
    if (((gmpy_stream *)op)->ready) {
        PyErr_Format(PyExc_RuntimeError, "%R is initialised already", op);
        return -1;
    }
    return 0;
}

/* ---- Stream ---- */

/* Makes the native stream on the current device. 0 or -1. */
static int
stream_create(gmpy_state *st, gmpy_stream *self, bool non_blocking)
{
    const gm_backend *backend = gmpy_backend(st);
    int device = backend ? gmpy_current_device(st) : -1;
    unsigned flags = non_blocking ? GM_STREAM_NON_BLOCKING : 0;
    gm_stream handle = 0;
    uint64_t id = 0;
    gm_status status;

    if (device < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_stream_create(backend, device, flags, 0, &handle);
    if (status == GM_OK) {
        status = gm_backend_stream_id(backend, handle, &id);
        if (status != GM_OK) {
            (void)gm_backend_stream_destroy(backend, handle); // one failure is enough
        }
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "Stream");
        return -1;
    }
    self->handle = handle; // from here on the destructor gives it back
    self->owned = true;
    self->key = gm_stream_key_of(handle, id);
    self->device_id = device;
    self->non_blocking = non_blocking;
    return 0;
}

PyDoc_STRVAR(
    stream_doc,
    "Stream(null=False, non_blocking=False, ptds=False)\n"
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
    "\n"
    "Raises:\n"
    "    ValueError: more than one of them is true.\n"
    "    CUDARuntimeError: the runtime cannot make a stream.\n"
    "\n"
    "Safe to share between threads.");

static const gmpy_signature stream_signature = {
    "Stream", 3, 0, 3, {"null", "non_blocking", "ptds"}};

static int
stream_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_stream *self = (gmpy_stream *)op;
    PyObject *given[3];
    bool null;
    bool non_blocking;
    bool ptds;

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
    if (check_fresh(op) < 0) {
        return -1;
    }
    self->ready = true; // before another thread can run
    if (null || ptds) {
        self->handle = null ? GM_STREAM_NULL : GM_STREAM_PER_THREAD;
        return 0;
    }
    if (stream_create(gmpy_state_of(op), self, non_blocking) < 0) {
        self->ready = false;
        return -1;
    }
    return 0;
}

static PyType_Slot stream_slots[] = {
    {Py_tp_doc, (void *)stream_doc},
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
    "    device_id (int): number of its device. -1: the current one, and for a\n"
    "        default stream whichever is current when it is used.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device.\n"
    "    CUDARuntimeError: there is no such stream.\n"
    "\n"
    "Safe to share between threads.");

static const gmpy_signature external_signature = {
    "ExternalStream", 2, 1, 2, {"ptr", "device_id"}};

static int
external_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    gmpy_state *st = gmpy_state_of(op);
    gmpy_stream *self = (gmpy_stream *)op;
    PyObject *given[2];
    gm_stream handle;
    gm_stream_key key = GM_STREAM_KEY_DEFAULT;
    int device;

    if (gmpy_unpack_init(&external_signature, args, kwargs, given) < 0 ||
        gmpy_as_address(given[0], "ptr", &handle) < 0 ||
        gmpy_as_device_id(st, given[1], &device) < 0) {
        return -1;
    }
    if (handle > GM_STREAM_PER_THREAD) {
        if (device == -1) {
            device = gmpy_current_device(st);
        }
        if (device < 0 ||
            gmpy_ask_stream_key(st, &(gmpy_stream_ref){handle, -1}, &key) < 0) {
            return -1;
        }
    }
    if (check_fresh(op) < 0) {
        return -1;
    }
    self->ready = true;
    self->handle = handle;
    self->key = key;
    self->device_id = device;
    return 0;
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
    ((gmpy_stream *)self)->handle = handle;
    ((gmpy_stream *)self)->ready = true;
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
