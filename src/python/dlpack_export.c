/* SPDX-License-Identifier: MIT
 *
 * __dlpack__ and __dlpack_device__: a pointer's bytes as a tensor of uint8.
 *
 * Where the memory is on a device, the consumer's stream waits for the calling thread's
 * current one, and the pool is told that the consumer's uses the memory: it goes to
 * nobody else under it. Memory that the host sees too may go to a consumer that knows
 * no streams (NumPy reads managed memory); so where such a one names no stream, the
 * host has waited when it gets the tensor. The simulated device is host memory, whose
 * consumers are of the host.
 *
 * The tensor keeps the memory, whatever becomes of the pointer, also where it is given
 * back by hand (exports.c).
 *
 * Threading: any thread; what calls the device lets others run.
 */
#include "dlpack.h"
#include "pinned.h"

#include "core/gm_process.h" // gm_host_free

/* What is asked for. */
typedef struct request {
    const gmpy_pointer *pointer;
    gmpy_state *st;
    dlpack_device native; // where the memory is
    dlpack_device target; // where the tensor is to be
    bool versioned;
    bool copy;
    bool ordered;             // false: the consumer wants no order made
    bool hosted;              // the host waits
    gmpy_stream_ref consumer; // where ordered and not hosted
} request;

/* ---- which device ---- */

/* 0 or -1. */
static int
native_device(gmpy_pointer *self, dlpack_device *out)
{
    static const int32_t types[] = {
        [GM_POINTER_UNREGISTERED] = DLPACK_CPU,
        [GM_POINTER_HOST] = DLPACK_CUDA_HOST,
        [GM_POINTER_DEVICE] = DLPACK_CUDA,
        [GM_POINTER_MANAGED] = DLPACK_CUDA_MANAGED,
    };
    const gm_backend *backend;
    gm_pointer_kind kind;
    PyObject *mem;

    if (gmpy_pointer_mem(self, &mem) < 0) {
        return -1;
    }
    if (!mem) {
        return gmpy_pointer_is_none(self);
    }
    backend = gmpy_backend(self->st);
    if (!backend) {
        return -1;
    }
    if (backend->caps & GM_CAP_SIMULATED) {
        *out = (dlpack_device){.type = DLPACK_CPU};
        return 0;
    }
    if (gmpy_pointer_kind(self->st, self, &kind) < 0) {
        return -1;
    }
    *out = (dlpack_device){.type = types[kind]};
    if (kind == GM_POINTER_DEVICE) {
        out->id = self->device_id;
    }
    return 0;
}

const char gmpy_pointer_dlpack_device_doc[] = PyDoc_STR(
    "__dlpack_device__($self, /)\n"
    "--\n"
    "\n"
    "Returns where DLPack says that the memory is: its device type and number.\n"
    "\n"
    "Returns:\n"
    "    tuple: (2, device) for a GPU's memory, (13, 0) for managed memory, (3, 0)\n"
    "    for pinned memory, (1, 0) for plain host memory and on the simulated\n"
    "    device.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the driver cannot say.");

PyObject *
gmpy_pointer_dlpack_device(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    dlpack_device device = {0};

    return native_device((gmpy_pointer *)op, &device) < 0
               ? NULL
               : Py_BuildValue("(ii)", device.type, device.id);
}

/* ---- arguments ---- */

static bool
is_given(PyObject *arg)
{
    return arg && arg != Py_None;
}

/* Two integers. 0 or -1. */
static int
as_pair(PyObject *arg, const char *name, int *first, int *second)
{
    if (!PyTuple_Check(arg) || PyTuple_GET_SIZE(arg) != 2) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of two integers, not %R",
                     name, arg);
        return -1;
    }
    return gmpy_as_int(PyTuple_GET_ITEM(arg, 0), name, first) < 0
               ? -1
               : gmpy_as_int(PyTuple_GET_ITEM(arg, 1), name, second);
}

static int
read_max_version(PyObject *arg, request *r)
{
    int major = 0;
    int minor = 0;

    if (is_given(arg) && as_pair(arg, "max_version", &major, &minor) < 0) {
        return -1;
    }
    r->versioned = major >= 1;
    return 0;
}

static bool
is_host_type(int32_t type)
{
    return type != DLPACK_CUDA;
}

/* Where the tensor is to be, and whether as a copy. */
static int
read_target(PyObject *device, PyObject *copy, request *r)
{
    int type = r->native.type;
    int id = r->native.id;
    bool never = copy == Py_False;
    bool same;

    if (is_given(copy) && gmpy_as_flag(copy, &r->copy) < 0) {
        return -1;
    }
    if (is_given(device) && as_pair(device, "dl_device", &type, &id) < 0) {
        return -1;
    }
    r->target = (dlpack_device){.type = type, .id = id};
    same = type == r->native.type && id == r->native.id;
    if (!same && !(type == DLPACK_CPU && id == 0)) {
        PyErr_Format(PyExc_BufferError,
                     "memory of DLPack device (%d, %d) goes there or to the host's "
                     "(%d, 0), not to (%d, %d)",
                     (int)r->native.type, (int)r->native.id, DLPACK_CPU, type, id);
        return -1;
    }
    if (!same && !is_host_type(r->native.type)) {
        if (never) {
            PyErr_SetString(PyExc_BufferError,
                            "the host cannot look into a GPU's memory without a copy");
            return -1;
        }
        r->copy = true;
    }
    return 0;
}

static int
refuse_stream(PyObject *stream, const char *why)
{
    PyErr_Format(PyExc_ValueError, "stream must not be %R: %s", stream, why);
    return -1;
}

/* Which stream the consumer works on. */
static int
read_stream(PyObject *stream, request *r)
{
    bool simulated = (r->st->backend->caps & GM_CAP_SIMULATED) != 0;
    uintptr_t number = GM_STREAM_LEGACY;
    int overflow = 0;

    r->ordered = true;
    if (!is_given(stream)) {
        r->hosted = is_host_type(r->target.type);
    }
    else if (PyLong_Check(stream) &&
             PyLong_AsLongAndOverflow(stream, &overflow) == -1 && !overflow) {
        r->ordered = false;
        return 0;
    }
    else if (r->target.type == DLPACK_CPU && !simulated) {
        return refuse_stream(stream, "the host has none; give None");
    }
    else if (gmpy_as_address(stream, "stream", &number) < 0) {
        return -1;
    }
    if (number == GM_STREAM_NULL) {
        return refuse_stream(stream, "which stream that is depends on the program; 1 "
                                     "is the legacy default stream, 2 the thread's");
    }
    r->consumer = gmpy_stream_of_number(number, r->pointer->device_id);
    return 0;
}

/* ---- the tensor ---- */

/* Makes the order that the consumer asked for, and tells the pool of `mem`. */
static int
hand_over(const request *r, PyObject *mem, const gmpy_stream_ref *producer)
{
    if (!r->ordered) {
        return 0;
    }
    if (r->hosted) {
        return gmpy_order(r->st, producer, NULL);
    }
    return gmpy_order(r->st, producer, &r->consumer) < 0
               ? -1
               : gmpy_record_stream_of(r->st, mem, &r->consumer);
}

/* A tensor of the pointer's own memory, whose export has begun: new reference. */
static PyObject *
share(const request *r, size_t size, const gmpy_stream_ref *producer)
{
    const gmpy_dlpack_content content = {
        .st = r->st,
        .mem = r->pointer->mem,
        .ptr = r->pointer->ptr,
        .size = size,
        .device = r->target,
        .versioned = r->versioned,
    };

    return size && hand_over(r, content.mem, producer) < 0
               ? NULL
               : gmpy_dlpack_capsule(&content);
}

/* A tensor of memory of its own: new reference. */
static PyObject *
duplicate(const request *r, size_t size, const gmpy_stream_ref *producer)
{
    gmpy_dlpack_content content = {
        .st = r->st,
        .size = size,
        .device = r->target,
        .versioned = r->versioned,
        .copied = true,
    };
    gmpy_dlpack_copy copy = {0};
    PyObject *capsule = NULL;

    if (size &&
        gmpy_dlpack_copy_make(r->pointer, size, &r->target, producer, &copy) < 0) {
        return NULL;
    }
    content.bytes = copy.bytes;
    content.ptr = (uintptr_t)copy.bytes;
    if (copy.pointer) {
        content.ptr = ((gmpy_pointer *)copy.pointer)->ptr;
        if (gmpy_pointer_mem((gmpy_pointer *)copy.pointer, &content.mem) < 0 ||
            gmpy_export_begin(r->st, content.mem) < 0) {
            goto fail;
        }
        if (hand_over(r, content.mem, producer) == 0) {
            capsule = gmpy_dlpack_capsule(&content);
        }
        if (!capsule) {
            gmpy_export_end(r->st, content.mem);
        }
    }
    else {
        capsule = gmpy_dlpack_capsule(&content);
    }
fail:
    if (!capsule) {
        gm_host_free(copy.bytes);
    }
    Py_XDECREF(copy.pointer);
    return capsule;
}

const char gmpy_pointer_dlpack_doc[] = PyDoc_STR(
    "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None,\n"
    "           copy=None)\n"
    "--\n"
    "\n"
    "Exports the bytes from here to the end of the memory as a DLPack tensor of\n"
    "uint8; for the from_dlpack of array libraries.\n"
    "\n"
    "The tensor keeps the memory. The consumer's stream waits for what is queued on\n"
    "the calling thread's current stream, and the pool gives the memory to nobody\n"
    "before the consumer's stream has done what was queued on it when the tensor\n"
    "ended.\n"
    "\n"
    "Args:\n"
    "    stream (int): the stream that the consumer uses: 1 the legacy default\n"
    "        stream, 2 the thread's default stream, a larger number its handle; -1\n"
    "        for no order at all. None is 1, but where the host sees the memory it\n"
    "        waits instead.\n"
    "    max_version (tuple): the newest version of DLPack that the consumer knows,\n"
    "        major and minor. From (1, 0) on the capsule is a versioned one.\n"
    "    dl_device (tuple): where the tensor is to be: as __dlpack_device__ says, or\n"
    "        (1, 0), the host. There a GPU's memory arrives as a copy.\n"
    "    copy (bool): True for a copy, which comes from the current allocator where\n"
    "        it is of a GPU; False for none; None where it is needed.\n"
    "\n"
    "Returns:\n"
    "    A capsule.\n"
    "\n"
    "Raises:\n"
    "    BufferError: the memory cannot go to dl_device, or not without a copy.\n"
    "    ValueError: stream is none, or the memory was given back.\n"
    "    RuntimeError: a reset ended the memory, the stream is gone, or one of the\n"
    "        two streams records a graph.\n"
    "    TypeError: an argument is of the wrong kind.\n"
    "    MemoryError, OutOfMemoryError: there is no memory for the copy.\n"
    "    CUDARuntimeError: the device refused.\n"
    "\n"
    "Safe to call from any thread.");

PyObject *
gmpy_pointer_dlpack(PyObject *op,
                    PyObject *const *args,
                    Py_ssize_t nargs,
                    PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "__dlpack__", 4, 0, 0, {"stream", "max_version", "dl_device", "copy"}};
    gmpy_pointer *self = (gmpy_pointer *)op;
    request r = {.pointer = self, .st = self->st};
    gmpy_stream_ref producer;
    PyObject *given[4];
    PyObject *capsule = NULL;
    size_t size;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        native_device(self, &r.native) < 0 || read_max_version(given[1], &r) < 0 ||
        read_target(given[2], given[3], &r) < 0 || read_stream(given[0], &r) < 0 ||
        gmpy_stream_of_device(r.st, self->device_id, &producer) < 0 ||
        gmpy_export_begin(r.st, self->mem) < 0) {
        return NULL;
    }
    /* As of here free() is put off. */
    if (gmpy_pointer_remaining(self, &size) == 0) {
        capsule = r.copy ? duplicate(&r, size, &producer) : share(&r, size, &producer);
    }
    if (!capsule || r.copy) {
        gmpy_export_end(r.st, self->mem);
    }
    return capsule;
}
