/* SPDX-License-Identifier: MIT
 *
 * Device: the number of a device, and what can be asked of it.
 *
 * A Device is a value, like an int: it opens nothing, holds nothing and never changes.
 * What `with device:` goes back to is kept by the thread that entered it (thread.c),
 * not by the object, so one Device may be entered twice and by several threads at once.
 *
 * Threading: everything may be called from any thread; the current device is the
 * calling thread's. Calls that wait for the device, or that may make its context, let
 * other threads run.
 */
#include "module.h"

typedef struct device {
    PyObject_HEAD
    int id;
} device;

static inline int
device_id_of(PyObject *op)
{
    return ((device *)op)->id;
}

int
gmpy_device_enter(gmpy_state *st, int id, gm_device_mark *mark)
{
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    *mark = (gm_device_mark){0};
    if (!backend) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS // it may make the device's context
    status = gm_backend_device_push(backend, id, mark);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "making a device current");
        return -1;
    }
    return 0;
}

void
gmpy_device_leave(gmpy_state *st, const gm_device_mark *mark)
{
    if (mark->pushed) {
        gm_backend_device_pop(st->backend, mark);
    }
}

int
gmpy_use_device(gmpy_state *st, int id)
{
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_set(backend, id);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "making a device current");
        return -1;
    }
    return 0;
}

/* ---- construction ---- */

PyDoc_STRVAR(
    device_doc,
    "Device(device=None)\n"
    "--\n"
    "\n"
    "A device, by its number.\n"
    "\n"
    "`with device:` makes it current for the calling thread and goes back to the\n"
    "one before at the end, also after an error; it nests. Devices compare and\n"
    "hash by number, int(device) is the number.\n"
    "\n"
    "Args:\n"
    "    device (int, Device or None): which one; None is the current one.\n"
    "\n"
    "Attributes:\n"
    "    id (int): the number.\n"
    "    name (str): what the runtime calls it.\n"
    "    mem_info (tuple of int): bytes that are free, bytes there are.\n"
    "\n"
    "Raises:\n"
    "    TypeError: device is no integer.\n"
    "    ValueError: there is no such device.\n"
    "\n"
    "Safe to share between threads.");

static const gmpy_signature device_signature = {"Device", 1, 0, 1, {"device"}};

static PyObject *
device_alloc(PyTypeObject *type, int id)
{
    PyObject *self = type->tp_alloc(type, 0);

    if (self) {
        ((device *)self)->id = id;
    }
    return self;
}

PyObject *
gmpy_device_new(gmpy_state *st, int id)
{
    return device_alloc(gmpy_type(st->DeviceType), id);
}

static PyObject *
device_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *module = PyType_GetModuleByDef(type, &gmpy_module_def);
    gmpy_state *st;
    PyObject *which;
    int id;

    if (!module || gmpy_unpack_init(&device_signature, args, kwargs, &which) < 0) {
        return NULL;
    }
    st = gmpy_state_of_module(module);
    if (!which || which == Py_None) {
        id = gmpy_current_device(st);
        if (id < 0) {
            return NULL;
        }
    }
    else if (gmpy_as_device(st, which, &id) < 0) {
        return NULL;
    }
    return device_alloc(type, id);
}

static void
device_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- as a value ---- */

static PyObject *
device_int(PyObject *op)
{
    return PyLong_FromLong(device_id_of(op));
}

static PyObject *
device_richcompare(PyObject *a, PyObject *b, int operation)
{
    gmpy_state *st = gmpy_state_of(a);

    if (!PyObject_TypeCheck(b, gmpy_type(st->DeviceType))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    Py_RETURN_RICHCOMPARE(device_id_of(a), device_id_of(b), operation);
}

static Py_hash_t
device_hash(PyObject *op)
{
    return device_id_of(op);
}

static PyObject *
device_repr(PyObject *op)
{
    return PyUnicode_FromFormat("<%s %d>", Py_TYPE(op)->tp_name, device_id_of(op));
}

/* ---- making it current ---- */

PyDoc_STRVAR(use_doc,
             "use($self, /)\n"
             "--\n"
             "\n"
             "Makes this device current for the calling thread, for good.\n"
             "\n"
             "Raises:\n"
             "    CUDARuntimeError: the runtime cannot use it.");

static PyObject *
device_use(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (gmpy_use_device(gmpy_state_of(op), device_id_of(op)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(enter_doc,
             "__enter__($self, /)\n"
             "--\n"
             "\n"
             "Makes this device current for the calling thread. Returns the device.");

static PyObject *
device_enter(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    if (gmpy_push_device(gmpy_state_of(op), device_id_of(op), op) < 0) {
        return NULL;
    }
    return Py_NewRef(op);
}

PyDoc_STRVAR(
    exit_doc,
    "__exit__($self, /, *args)\n"
    "--\n"
    "\n"
    "Goes back to the device that was current before.\n"
    "\n"
    "Where a device entered later is still entered, that one stays current, and\n"
    "goes back further when it is left.\n"
    "\n"
    "Raises:\n"
    "    RuntimeError: this thread has not entered the device.");

static PyObject *
device_exit(PyObject *op, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    if (gmpy_pop_device(gmpy_state_of(op), op) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- asking it ---- */

PyDoc_STRVAR(synchronize_doc,
             "synchronize($self, /)\n"
             "--\n"
             "\n"
             "Waits until all work queued on this device is done.\n"
             "\n"
             "Other threads run meanwhile.\n"
             "\n"
             "Raises:\n"
             "    CUDARuntimeError: that work failed.");

static PyObject *
device_synchronize(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_synchronize(backend, device_id_of(op));
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Device.synchronize");
    }
    gmpy_waited(st);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    reset_doc,
    "reset($self, /)\n"
    "--\n"
    "\n"
    "Ends all that exists on this device: memory, streams, events, graphs.\n"
    "\n"
    "Nobody else may use the device meanwhile. Objects made before stay as they\n"
    "are, but can no longer be used, and end without effect; pools forget what\n"
    "they held there and take new memory. Another library's objects are not told,\n"
    "and views of pinned memory that were made before must not be looked at.\n"
    "\n"
    "A reset by somebody else is noticed too: by a pool when its cache cannot\n"
    "serve a request or is to be given back, by the others when something new is\n"
    "made on the device or an old one ends.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the runtime cannot reset it; then nothing has changed.");

static PyObject *
device_reset(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    gm_status status;

    if (!gmpy_backend(st)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_device_reset(st, device_id_of(op));
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Device.reset");
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(from_pointer_doc,
             "from_pointer($type, ptr, /)\n"
             "--\n"
             "\n"
             "Returns the device that an address is of.\n"
             "\n"
             "Args:\n"
             "    ptr (int): an address in device, managed or pinned memory.\n"
             "\n"
             "Raises:\n"
             "    ValueError: it is 0, or in plain host memory.\n"
             "    TypeError: ptr is no integer.");

static PyObject *
device_from_pointer(PyObject *type, PyObject *arg)
{
    PyObject *module = PyType_GetModuleByDef((PyTypeObject *)type, &gmpy_module_def);
    gmpy_state *st = module ? gmpy_state_of_module(module) : NULL;
    uintptr_t ptr;
    int id;

    if (!st || !gmpy_backend(st) || gmpy_as_address(arg, "ptr", &ptr) < 0) {
        return NULL;
    }
    if (ptr == 0) {
        PyErr_SetString(PyExc_ValueError, "a null pointer is of no device");
        return NULL;
    }
    return gmpy_device_of_address(st, ptr, &id) < 0
               ? NULL
               : device_alloc((PyTypeObject *)type, id);
}

static PyObject *
device_id(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(device_id_of(op));
}

static PyObject *
device_name(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    char text[256];
    gm_status status;

    if (!backend) {
        return NULL;
    }
    status = gm_backend_device_name(backend, device_id_of(op), text, sizeof text);
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Device.name");
    }
    return PyUnicode_FromString(text);
}

static PyObject *
device_mem_info(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    gm_status status;

    if (!backend) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_info(backend, device_id_of(op), &free_bytes, &total_bytes);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Device.mem_info");
    }
    return Py_BuildValue("(KK)", (unsigned long long)free_bytes,
                         (unsigned long long)total_bytes);
}

/* ---- the type ---- */

static PyMethodDef device_methods[] = {
    {"use", device_use, METH_NOARGS, use_doc},
    {"synchronize", device_synchronize, METH_NOARGS, synchronize_doc},
    {"reset", device_reset, METH_NOARGS, reset_doc},
    {"from_pointer", device_from_pointer, METH_O | METH_CLASS, from_pointer_doc},
    {"__enter__", device_enter, METH_NOARGS, enter_doc},
    {"__exit__", (PyCFunction)(void (*)(void))device_exit, METH_FASTCALL, exit_doc},
    {0},
};

static PyGetSetDef device_getset[] = {
    {"id", device_id, NULL, "the number of the device", NULL},
    {"name", device_name, NULL, "what the runtime calls it", NULL},
    {"mem_info", device_mem_info, NULL,
     "(free, total): bytes that nobody holds, bytes there are", NULL},
    {0},
};

static PyType_Slot device_slots[] = {
    {Py_tp_doc, (void *)device_doc},
    {Py_tp_new, device_new},
    {Py_tp_dealloc, device_dealloc},
    {Py_tp_methods, device_methods},
    {Py_tp_getset, device_getset},
    {Py_tp_richcompare, device_richcompare},
    {Py_tp_hash, device_hash},
    {Py_tp_repr, device_repr},
    {Py_nb_int, device_int},
    {Py_nb_index, device_int},
    {0, NULL},
};

static PyType_Spec device_spec = {
    .name = "gpumem.Device",
    .basicsize = sizeof(device),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = device_slots,
};

int
gmpy_device_init(PyObject *module, gmpy_state *st)
{
    st->DeviceType = PyType_FromModuleAndSpec(module, &device_spec, NULL);
    if (!st->DeviceType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Device", st->DeviceType);
}

/* ---- module functions ---- */

PyDoc_STRVAR(get_device_id_doc,
             "get_device_id()\n"
             "--\n"
             "\n"
             "Returns the number of the calling thread's current device.");

static PyObject *
get_device_id(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    int id = gmpy_current_device(gmpy_state_of_module(module));

    return id < 0 ? NULL : PyLong_FromLong(id);
}

PyDoc_STRVAR(get_device_count_doc,
             "get_device_count()\n"
             "--\n"
             "\n"
             "Returns how many devices there are.");

static PyObject *
get_device_count(PyObject *module, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of_module(module);

    return gmpy_backend(st) ? PyLong_FromLong(st->device_count) : NULL;
}

PyMethodDef gmpy_device_methods[] = {
    {"get_device_id", get_device_id, METH_NOARGS, get_device_id_doc},
    {"get_device_count", get_device_count, METH_NOARGS, get_device_count_doc},
    {0},
};
