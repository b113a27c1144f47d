/* SPDX-License-Identifier: MIT
 *
 * _Outlet: a pool's memory for another library, behind each adaptor of gpumem.interop.
 *
 * A library names the device and the stream itself, where a request of MemoryPool goes
 * by what is current here, and its memory is on an account of its own, the client's.
 * What is handed out is a MemoryPointer like any other: hooks and traces see it, and
 * the pool stays while it is out. There is no way to give it back but dropping it.
 *
 * Which stream a handle means is asked of the driver at each request (30 ns), for a
 * handle is given out again once its stream was destroyed, and libraries do not say
 * when. It is not asked of the default stream, nor where the handle is that of the
 * calling thread's current stream here, which is known. So a stream that is being
 * recorded, of which the driver does not tell, has to be current here.
 *
 * Threading: immutable once made; any thread.
 */
#include "outlet.h"
#include "pinned.h" // gmpy_default_pool
#include "pools.h"
#include "stream.h"

#include <structmember.h> // T_OBJECT_EX, READONLY

/* ---- taking memory ---- */

/* The calling thread's current stream on `device`, if that has this handle; else NULL.
 */
static const gmpy_current *
current_of_handle(const gmpy_state *st, int device, gm_stream handle)
{
    const gmpy_thread *thread = gmpy_settings(st);
    const gmpy_current *current =
        thread && thread->currents ? &thread->currents[device] : NULL;

    return current && current->stream && current->handle == handle ? current : NULL;
}

/* What the pool has to know of the stream. 0 or -1. */
static int
use_of(gmpy_state *st, int device, gm_stream handle, gm_stream_use *out)
{
    const gmpy_stream_ref per_thread = {
        .handle = handle, .device = device, .of = device};
    const gmpy_current *current;
    uint64_t id;
    gm_status status;

    *out = (gm_stream_use){
        .stream = handle,
        .key = GM_STREAM_KEY_DEFAULT,
        .device = device,
        .announced = handle <= GM_STREAM_LEGACY,
    };
    if (out->announced) {
        return 0;
    }
    current = current_of_handle(st, device, handle);
    if (current) {
        out->key = current->key;
        out->announced = ((const gmpy_stream *)current->stream)->owned;
        return 0;
    }
    if (handle == GM_STREAM_PER_THREAD) {
        return gmpy_stream_ref_key(st, &per_thread, &out->key);
    }
    status = gm_backend_stream_id(st->backend, handle, &id); // waits for nothing
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking which stream it is");
        return -1;
    }
    out->key = gm_stream_key_of(handle, id);
    return 0;
}

PyObject *
gmpy_outlet_take(gmpy_outlet *self, size_t size, int device, gm_stream stream)
{
    gmpy_any_pool *pool = (gmpy_any_pool *)self->pool;
    PyObject *number = PyLong_FromLong(device);
    gm_pool *native;
    gm_stream_use by;
    int found;

    if (!number) {
        return NULL;
    }
    found = pool->find(pool, number, true, &native, &device);
    Py_DECREF(number);
    if (found < 0 || use_of(self->st, device, stream, &by) < 0) {
        return NULL;
    }
    return gmpy_pool_malloc_for(self->st, native, size, &by, self->client);
}

PyDoc_STRVAR(take_doc,
             "take($self, size, device, stream, /)\n"
             "--\n"
             "\n"
             "Memory for use in the order of a stream.\n"
             "\n"
             "Args:\n"
             "    size (int): bytes; 0 gives a pointer to nothing.\n"
             "    device (int): number of the device, not None.\n"
             "    stream (int): native handle (cudaStream_t).\n"
             "\n"
             "Returns:\n"
             "    MemoryPointer: given back when the last reference is dropped.\n"
             "\n"
             "Raises:\n"
             "    OutOfMemoryError: there is no memory for it.\n"
             "    ValueError: there is no such device, or the pool is of another.\n"
             "    CUDARuntimeError: the handle is no stream's.\n"
             "    RuntimeError: the stream is being recorded and is not current here.\n"
             "\n"
             "Safe to call from any thread.");

static PyObject *
outlet_take(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    gmpy_outlet *self = (gmpy_outlet *)op;
    size_t size;
    int device;
    uintptr_t stream;

    if (nargs != 3) {
        PyErr_Format(PyExc_TypeError, "take takes size, device and stream, not %zd",
                     nargs);
        return NULL;
    }
    if (gmpy_as_size(args[0], "size", &size) < 0 ||
        gmpy_as_device(self->st, args[1], &device) < 0 ||
        gmpy_as_address(args[2], "stream", &stream) < 0) {
        return NULL;
    }
    return gmpy_outlet_take(self, size, device, stream);
}

/* ---- life ---- */

PyDoc_STRVAR(outlet_doc,
             "_Outlet(pool, client)\n"
             "--\n"
             "\n"
             "A pool's memory for another library.\n"
             "\n"
             "Args:\n"
             "    pool (MemoryPool): or a SingleDeviceMemoryPool; None is the\n"
             "        program's default pool.\n"
             "    client (str): on whose account the memory is.\n"
             "\n"
             "Attributes:\n"
             "    pool: where the memory is from.\n"
             "\n"
             "Raises:\n"
             "    TypeError: pool is neither.\n"
             "    ValueError: the client's name is empty or longer than 255 bytes.\n"
             "\n"
             "Safe to share between threads.");

/* The pool that an argument means: new reference. */
static PyObject *
as_pool(gmpy_state *st, PyObject *arg)
{
    if (arg == Py_None) {
        return gmpy_default_pool(st);
    }
    if (!PyObject_TypeCheck(arg, gmpy_type(st->MemoryPoolType)) &&
        !PyObject_TypeCheck(arg, gmpy_type(st->SingleDeviceMemoryPoolType))) {
        PyErr_Format(PyExc_TypeError,
                     "pool must be a MemoryPool, a SingleDeviceMemoryPool or None, not "
                     "%s",
                     Py_TYPE(arg)->tp_name);
        return NULL;
    }
    return Py_NewRef(arg);
}

static PyObject *
outlet_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {"_Outlet", 2, 2, 2, {"pool", "client"}};
    PyObject *given[2];
    gmpy_outlet *self;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0) {
        return NULL;
    }
    self = (gmpy_outlet *)type->tp_alloc(type, 0);
    if (!self) {
        return NULL;
    }
    self->st = gmpy_state_of((PyObject *)self);
    self->pool = as_pool(self->st, given[0]);
    if (!self->pool || gmpy_as_client(self->st, given[1], &self->client) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
outlet_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((gmpy_outlet *)op)->pool);
    return 0;
}

/* No tp_clear: nothing that an outlet refers to refers back but through what the
 * collector can take apart, the pool. */
static void
outlet_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    Py_XDECREF(((gmpy_outlet *)op)->pool);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef outlet_methods[] = {
    {"take", (PyCFunction)(void (*)(void))outlet_take, METH_FASTCALL, take_doc},
    {0},
};

static PyMemberDef outlet_members[] = {
    {"pool", T_OBJECT_EX, offsetof(gmpy_outlet, pool), READONLY, NULL},
    {0},
};

static PyType_Slot outlet_slots[] = {
    {Py_tp_doc, (void *)outlet_doc},
    {Py_tp_new, outlet_new},
    {Py_tp_dealloc, outlet_dealloc},
    {Py_tp_traverse, outlet_traverse},
    {Py_tp_methods, outlet_methods},
    {Py_tp_members, outlet_members},
    {0, NULL},
};

static PyType_Spec outlet_spec = {
    .name = "gpumem._core._Outlet",
    .basicsize = sizeof(gmpy_outlet),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = outlet_slots,
};

int
gmpy_outlet_init(PyObject *module, gmpy_state *st)
{
    st->OutletType = PyType_FromModuleAndSpec(module, &outlet_spec, NULL);
    return st->OutletType ? PyModule_AddType(module, gmpy_type(st->OutletType)) : -1;
}
