/* SPDX-License-Identifier: MIT
 *
 * from_dlpack: the memory of another library's array, which the pointer keeps.
 *
 * The exporter is told the stream that will be used, the calling thread's current one
 * of the array's device, and has that wait for what it queued itself. The tensor's
 * deleter is called when the last pointer into it dies, whichever thread that is on; in
 * a process that is ending it is not, as nothing else is given back then either.
 *
 * A tensor is unpacked only when nothing can fail any more. Until then it is the
 * capsule's, which ends it.
 *
 * Threading: any thread. The exporter's methods are Python code.
 */
#include "dlpack.h"
#include "imports.h"

#include "core/gm_process.h" // gm_process_is_frozen

#define OWNER_NAME "gpumem.dltensor"
#define OWNER_NAME_VERSIONED "gpumem.dltensor_versioned"

/* What was found in a capsule. */
typedef struct content {
    void *managed;
    const dlpack_tensor *tensor;
    uint64_t flags;
    bool versioned;
} content;

/* ---- the owner: a capsule that nobody else looks into ---- */

static void
owner_end(PyObject *owner)
{
    dlpack_managed *managed = PyCapsule_GetPointer(owner, OWNER_NAME);

    if (managed->deleter && !gm_process_is_frozen()) {
        GMPY_TAKE_ERROR(pending);
        managed->deleter(managed);
        GMPY_GIVE_ERROR(pending);
    }
}

static void
owner_end_versioned(PyObject *owner)
{
    dlpack_versioned *managed = PyCapsule_GetPointer(owner, OWNER_NAME_VERSIONED);

    if (managed->deleter && !gm_process_is_frozen()) {
        GMPY_TAKE_ERROR(pending);
        managed->deleter(managed);
        GMPY_GIVE_ERROR(pending);
    }
}

/* Takes the tensor out of `capsule`; `owner` ends it from here on. Neither can fail,
 * since both are capsules. */
static void
unpack(PyObject *capsule, PyObject *owner, const content *found)
{
    (void)PyCapsule_SetName(capsule, found->versioned ? DLPACK_NAME_VERSIONED_USED
                                                      : DLPACK_NAME_USED);
    (void)PyCapsule_SetDestructor(owner,
                                  found->versioned ? owner_end_versioned : owner_end);
}

/* ---- asking the exporter ---- */

/* Two integers that `method` returns. 0 or -1. */
static int
ask_device(PyObject *array, dlpack_device *out)
{
    PyObject *pair = PyObject_CallMethod(array, "__dlpack_device__", NULL);
    int type = 0;
    int id = 0;
    int result = -1;

    if (!pair) {
        return -1;
    }
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        PyErr_Format(PyExc_TypeError,
                     "__dlpack_device__ must return a tuple of two integers, not %R",
                     pair);
    }
    else if (gmpy_as_int(PyTuple_GET_ITEM(pair, 0), "the device type", &type) == 0 &&
             gmpy_as_int(PyTuple_GET_ITEM(pair, 1), "the device number", &id) == 0) {
        result = 0;
    }
    Py_DECREF(pair);
    *out = (dlpack_device){.type = type, .id = id};
    return result;
}

/* 0 where memory of that device can be taken in; *has_streams where its work is in the
 * order of streams. */
static int
check_device(gmpy_state *st, const dlpack_device *device, bool *has_streams)
{
    bool simulated = (st->backend->caps & GM_CAP_SIMULATED) != 0;
    bool gpu = device->type == DLPACK_CUDA || device->type == DLPACK_CUDA_MANAGED;
    bool host = device->type == DLPACK_CPU || device->type == DLPACK_CUDA_HOST;

    *has_streams = gpu;
    if (host || (gpu && !simulated)) {
        return 0;
    }
    PyErr_Format(PyExc_BufferError,
                 "an array of DLPack device (%d, %d) cannot be used on the %s device",
                 (int)device->type, (int)device->id, simulated ? "simulated" : "CUDA");
    return -1;
}

/* The capsule, of an exporter that was told the stream and, if it takes it, our newest
 * version: new reference. */
static PyObject *
call_dlpack(PyObject *array, PyObject *stream)
{
    PyObject *method = PyObject_GetAttrString(array, "__dlpack__");
    PyObject *none = method ? PyTuple_New(0) : NULL;
    PyObject *asked =
        none ? Py_BuildValue("{s(ii)}", "max_version", DLPACK_MAJOR, DLPACK_MINOR)
             : NULL;
    PyObject *capsule = NULL;

    if (asked && (!stream || PyDict_SetItemString(asked, "stream", stream) == 0)) {
        capsule = PyObject_Call(method, none, asked);
        if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { // as of before 1.0
            PyErr_Clear();
            capsule = PyDict_DelItemString(asked, "max_version") < 0
                          ? NULL
                          : PyObject_Call(method, none, asked);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(asked);
    return capsule;
}

/* The same with the array's device current, on whose current stream it will be used. */
static PyObject *
ask_tensor(gmpy_state *st, PyObject *array, const dlpack_device *device, bool streams)
{
    int on = device->id;
    gmpy_stream_ref stream;
    gm_device_mark back;
    PyObject *number;
    PyObject *capsule;

    if (!streams) {
        return call_dlpack(array, NULL);
    }
    if (device->type == DLPACK_CUDA_MANAGED) { // whose number is that of no device
        on = gmpy_current_device(st);
        if (on < 0) {
            return NULL;
        }
    }
    if (gmpy_stream_of_device(st, on, &stream) < 0 ||
        gmpy_device_enter(st, on, &back) < 0) {
        return NULL;
    }
    number = PyLong_FromSize_t(gmpy_stream_number(&stream));
    capsule = number ? call_dlpack(array, number) : NULL;
    Py_XDECREF(number);
    gmpy_device_leave(st, &back);
    return capsule;
}

/* ---- looking into the capsule ---- */

/* 0 or -1. Borrows from the capsule. */
static int
look_into(PyObject *capsule, content *out)
{
    *out = (content){0};
    if (PyCapsule_IsValid(capsule, DLPACK_NAME_VERSIONED)) {
        dlpack_versioned *managed =
            PyCapsule_GetPointer(capsule, DLPACK_NAME_VERSIONED);

        if (managed->version.major != DLPACK_MAJOR) {
            PyErr_Format(PyExc_BufferError,
                         "DLPack %u.%u is not understood here, where %d.%d is",
                         managed->version.major, managed->version.minor, DLPACK_MAJOR,
                         DLPACK_MINOR);
            return -1;
        }
        *out = (content){managed, &managed->tensor, managed->flags, true};
        return 0;
    }
    if (PyCapsule_IsValid(capsule, DLPACK_NAME)) {
        dlpack_managed *managed = PyCapsule_GetPointer(capsule, DLPACK_NAME);

        *out = (content){managed, &managed->tensor, 0, false};
        return 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "__dlpack__ must return a capsule with a tensor that nobody has taken "
                 "yet, not %R",
                 capsule);
    return -1;
}

static int
describe(const content *found, gmpy_array *out)
{
    const dlpack_tensor *tensor = found->tensor;
    size_t bits = (size_t)tensor->type.bits * tensor->type.lanes;

    if (found->flags & DLPACK_READ_ONLY) {
        PyErr_SetString(PyExc_BufferError,
                        "the array is read-only, and what is behind a MemoryPointer is "
                        "not; copy the array first");
        return -1;
    }
    if (tensor->ndim < 0 || tensor->ndim > GMPY_MOST_AXES) {
        PyErr_Format(PyExc_BufferError, "an array of %d axes; at most %d are taken",
                     (int)tensor->ndim, GMPY_MOST_AXES);
        return -1;
    }
    if (found->flags & DLPACK_SUBBYTE_PADDED) {
        bits = (bits + 7) / 8 * 8;
    }
    *out = (gmpy_array){
        .ptr = (uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset,
        .ndim = tensor->ndim,
        .shape = tensor->shape,
        .strides = tensor->strides,
        .item_bits = bits,
    };
    return 0;
}

/* A pointer to what is in the capsule, which is used up: new reference. */
static PyObject *
import_capsule(gmpy_state *st, PyObject *capsule)
{
    gmpy_array array;
    content found;
    PyObject *owner;
    PyObject *pointer;
    size_t size;
    int device;

    if (look_into(capsule, &found) < 0 || describe(&found, &array) < 0 ||
        gmpy_array_size(&array, &size) < 0 ||
        gmpy_import_device(st, size ? array.ptr : 0, &device) < 0) {
        return NULL;
    }
    owner = PyCapsule_New(found.managed,
                          found.versioned ? OWNER_NAME_VERSIONED : OWNER_NAME, NULL);
    if (!owner) {
        return NULL;
    }
    pointer = gmpy_import_pointer(st, size ? array.ptr : 0, size, owner, device);
    if (pointer) {
        unpack(capsule, owner, &found);
    }
    Py_DECREF(owner);
    return pointer;
}

PyDoc_STRVAR(
    from_dlpack_doc,
    "from_dlpack(array)\n"
    "--\n"
    "\n"
    "The memory of another library's array, by DLPack.\n"
    "\n"
    "The array lives as long as any pointer into its memory. The calling thread's\n"
    "current stream of the array's device waits for what the array's library has\n"
    "queued. Nothing is copied.\n"
    "\n"
    "Work that uses the memory has to be done, or the library's own stream has to\n"
    "wait for it, before the last pointer dies: the library may use the memory\n"
    "again at once.\n"
    "\n"
    "Args:\n"
    "    array: an object with __dlpack__ and __dlpack_device__, writable, whose\n"
    "        items lie side by side; of a GPU, managed or pinned memory, or of the\n"
    "        host where the device reaches it, as the simulated device does.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the first byte, in an UnownedMemory of as many bytes as\n"
    "    the array has.\n"
    "\n"
    "Raises:\n"
    "    BufferError: the array is read-only, has gaps, or is of a device or a\n"
    "        version of DLPack that cannot be used.\n"
    "    AttributeError: the object knows no DLPack.\n"
    "    TypeError, ValueError: its answers make no sense.\n"
    "    Whatever its methods raise.\n"
    "\n"
    "Safe to call from any thread.");

static PyObject *
from_dlpack(PyObject *module,
            PyObject *const *args,
            Py_ssize_t nargs,
            PyObject *kwnames)
{
    static const gmpy_signature signature = {"from_dlpack", 1, 1, 1, {"array"}};
    gmpy_state *st = gmpy_state_of_module(module);
    dlpack_device device;
    PyObject *given[1];
    PyObject *capsule;
    PyObject *pointer;
    bool streams;

    if (!gmpy_backend(st) || gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        ask_device(given[0], &device) < 0 || check_device(st, &device, &streams) < 0) {
        return NULL;
    }
    capsule = ask_tensor(st, given[0], &device, streams);
    if (!capsule) {
        return NULL;
    }
    pointer = import_capsule(st, capsule);
    Py_DECREF(capsule);
    return pointer;
}

PyMethodDef gmpy_dlpack_import_methods[] = {
    {"from_dlpack", (PyCFunction)(void (*)(void))from_dlpack,
     METH_FASTCALL | METH_KEYWORDS, from_dlpack_doc},
    {0},
};
