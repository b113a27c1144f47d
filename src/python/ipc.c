/* SPDX-License-Identifier: MIT
 *
 * Memory shared with other processes: the handle of one's own, and IPCMemory.
 *
 * A handle names a whole allocation of the device. Pools cut theirs into blocks, so
 * what goes to the other process is the handle, where in the allocation a block begins,
 * and how long it is: IPCBufferDescriptor (gpumem/_ipc.py) carries these. Opening maps
 * the allocation; the backend counts how often, so several memories of one allocation
 * share the mapping, and the last that dies ends it.
 *
 * What a descriptor says came from another process and is held against the allocation
 * before it is believed. Whether the other process still has that memory cannot be
 * seen from here.
 *
 * Cost: opening some 100 us on a GPU, closing a wait for the device. Threading: as
 * Memory (memory.c).
 */
#include "memory_kinds.h"
#include "module.h"
#include "pointer.h"

#include "core/gm_capture.h" // gm_capture_postpone_close
#include "core/gm_process.h" // gm_process_is_frozen

#include <string.h> // memcpy

/* ---- memory of this process, for others ---- */

PyDoc_STRVAR(export_doc,
             "_ipc_export(pointer, /)\n"
             "--\n"
             "\n"
             "Returns (handle, offset, size): which allocation a MemoryPointer points\n"
             "into, where in it, and how much of its memory lies from there on.");

/* Raises what keeps a range from being shared. */
static void
raise_not_shared(gmpy_state *st, gm_status status, const gm_pointer_info *info)
{
    if (status == GM_OK && info->kind != GM_POINTER_DEVICE) {
        PyErr_SetString(PyExc_ValueError,
                        "only device memory can be shared with other processes, not "
                        "managed or host memory");
    }
    else if (status == GM_OK) {
        PyErr_SetString(PyExc_ValueError, "the memory is not part of one allocation");
    }
    else {
        gmpy_raise(st, status,
                   "sharing memory with other processes (that in stream order cannot "
                   "be shared)");
    }
}

static PyObject *
ipc_export(PyObject *module, PyObject *arg)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gmpy_base_memory *mem;
    PyObject *behind;
    gm_pointer_info info = {.kind = GM_POINTER_UNREGISTERED};
    gm_ipc_handle handle;
    gm_status status;
    uintptr_t ptr;
    size_t size;
    bool whole = false;

    if (!gmpy_is_pointer(st, arg)) {
        return PyErr_Format(PyExc_TypeError, "expected a MemoryPointer, not %.200s",
                            Py_TYPE(arg)->tp_name);
    }
    if (gmpy_pointer_mem((gmpy_pointer *)arg, &behind) < 0) {
        return NULL;
    }
    ptr = ((gmpy_pointer *)arg)->ptr;
    mem = (const gmpy_base_memory *)behind;
    if (mem && mem->ptr && gmpy_memory_check(st, behind) < 0) {
        return NULL;
    }
    if (!mem || !mem->ptr || ptr < mem->ptr || ptr - mem->ptr >= mem->size) {
        PyErr_SetString(PyExc_ValueError,
                        "the pointer has no memory: it was given back, or is empty");
        return NULL;
    }
    size = mem->size - (ptr - mem->ptr);
    if (!gmpy_backend(st)) {
        return NULL;
    }
    if (gm_process_is_forked()) {
        return gmpy_raise(st, GM_ERR_FORKED, "sharing memory with other processes");
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_pointer_info(st->backend, ptr, &info);
    if (status == GM_OK && info.kind == GM_POINTER_DEVICE) {
        whole = ptr - info.base <= info.size && size <= info.size - (ptr - info.base);
        status = whole ? gm_backend_ipc_export(st->backend, ptr, &handle) : GM_OK;
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK || !whole) {
        raise_not_shared(st, status, &info);
        return NULL;
    }
    return Py_BuildValue("(y#nn)", (const char *)handle.bytes,
                         (Py_ssize_t)sizeof handle.bytes, (Py_ssize_t)(ptr - info.base),
                         (Py_ssize_t)size);
}

/* ---- IPCMemory ---- */

typedef struct ipc_memory {
    gmpy_base_memory base;
    gmpy_state *st;   // NULL until initialized
    uintptr_t opened; // where the allocation begins here; 0 for none
    int device;       // it was opened on
    uint64_t life;    // of that device
} ipc_memory;

uint64_t
gmpy_ipc_memory_life(PyObject *op, int *device)
{
    *device = ((const ipc_memory *)op)->device;
    return ((const ipc_memory *)op)->life;
}

PyDoc_STRVAR(
    ipc_memory_doc,
    "IPCMemory(descriptor)\n"
    "--\n"
    "\n"
    "Device memory of another process, which made the descriptor, seen through the\n"
    "current device.\n"
    "\n"
    "Both processes use the same bytes, and order their work themselves. The other\n"
    "one has to keep the memory, by keeping its descriptor, until this object is\n"
    "gone. Several objects from one allocation share a mapping, which ends with the\n"
    "last of them, after the device is done.\n"
    "\n"
    "Args:\n"
    "    descriptor (IPCBufferDescriptor): from the other process.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: it names nothing that could be opened, as where the other\n"
    "        process ended, or where it was made by this one.\n"
    "    TypeError: it is no descriptor.\n"
    "    ValueError: it names bytes beyond the end of the allocation.");

static const gmpy_signature ipc_memory_signature = {
    "IPCMemory", 1, 1, 1, {"descriptor"}};

/* What a descriptor says. */
typedef struct named_range {
    gm_ipc_handle handle;
    size_t offset;
    size_t size;
} named_range;

/* An attribute as a size. 0 or -1. */
static int
read_size(PyObject *descriptor, const char *name, size_t *out)
{
    PyObject *value = PyObject_GetAttrString(descriptor, name);
    int result = value ? gmpy_as_size(value, name, out) : -1;

    Py_XDECREF(value);
    return result;
}

/* 0, or -1 with TypeError or OverflowError. */
static int
read_descriptor(PyObject *descriptor, named_range *out)
{
    PyObject *handle = PyObject_GetAttrString(descriptor, "handle");
    int result = -1;

    if (handle && (!PyBytes_Check(handle) ||
                   PyBytes_GET_SIZE(handle) != sizeof out->handle.bytes)) {
        PyErr_Format(PyExc_TypeError, "a handle is %zu bytes",
                     sizeof out->handle.bytes);
    }
    else if (handle && read_size(descriptor, "offset", &out->offset) == 0 &&
             read_size(descriptor, "size", &out->size) == 0) {
        memcpy(out->handle.bytes, PyBytes_AS_STRING(handle), sizeof out->handle.bytes);
        result = 0;
    }
    else if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Format(PyExc_TypeError,
                     "descriptor must be an IPCBufferDescriptor, not %.200s",
                     Py_TYPE(descriptor)->tp_name);
    }
    Py_XDECREF(handle);
    return result;
}

/* Whether the bytes that were named are there. Needs no interpreter. */
static gm_status
check_range(const gm_backend *backend, uintptr_t base, const named_range *range)
{
    gm_pointer_info info;
    gm_status status = gm_backend_pointer_info(backend, base, &info);

    if (status != GM_OK) {
        return status;
    }
    return info.base == base && range->offset <= info.size &&
                   range->size <= info.size - range->offset
               ? GM_OK
               : GM_ERR_INVALID_VALUE;
}

static void
raise_not_opened(gmpy_state *st, gm_status status, const named_range *range)
{
    enum {
        OWN_HANDLE = 201, // what the runtime says of one
    };

    if (status == GM_ERR_INVALID_VALUE) {
        PyErr_Format(PyExc_ValueError,
                     "the descriptor names %zu bytes at %zu, which is beyond the end "
                     "of the allocation",
                     range->size, range->offset);
        return;
    }
    gmpy_raise(st, status,
               status == GM_DEVICE_ERROR(OWN_HANDLE)
                   ? "opening memory of another process (a descriptor that this "
                     "process made is for others; here use the pointer)"
                   : "opening memory of another process");
}

static int
ipc_memory_open(ipc_memory *self, gmpy_state *st, const named_range *range)
{
    int device = gmpy_current_device(st);
    gmpy_state *none = NULL;
    uintptr_t base = 0;
    uint64_t life = 0;
    gm_status status;

    if (device < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_ipc_open(st->backend, device, &range->handle, &base);
    if (status == GM_OK) {
        life = gmpy_device_life(st, device);
        status = check_range(st->backend, base, range);
    }
    if (base && (status != GM_OK ||
                 !__atomic_compare_exchange_n(&self->st, &none, st, false,
                                              __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))) {
        /* What failed is told already, or another thread initialized it first. */
        (void)gm_backend_ipc_close(st->backend, base);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        raise_not_opened(st, status, range);
        return -1;
    }
    if (none) {
        PyErr_SetString(PyExc_RuntimeError, "memory is initialized once");
        return -1;
    }
    self->opened = base;
    self->device = device;
    self->life = life;
    self->base.ptr = base + range->offset;
    self->base.size = range->size;
    self->base.device_id = device;
    return 0;
}

static int
ipc_memory_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    ipc_memory *self = (ipc_memory *)op;
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[1];
    named_range range;

    if (gmpy_unpack_init(&ipc_memory_signature, args, kwargs, given) < 0 ||
        read_descriptor(given[0], &range) < 0 || !gmpy_backend(st)) {
        return -1;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(st, GM_ERR_FORKED, "opening memory of another process");
        return -1;
    }
    return ipc_memory_open(self, st, &range);
}

/* Needs no interpreter. */
static gm_status
ipc_memory_close(const ipc_memory *self, uintptr_t opened)
{
    const gm_backend *backend = self->st->backend;

    return gmpy_device_has_ended(self->st, self->device, self->life) ||
                   gm_capture_postpone_close(backend, opened)
               ? GM_OK
               : gm_backend_ipc_close(backend, opened);
}

/* A device that refuses has nobody to tell. Keeps the pending exception. */
static void
ipc_memory_dealloc(PyObject *op)
{
    ipc_memory *self = (ipc_memory *)op;
    PyTypeObject *type = Py_TYPE(op);
    gm_status status;

    if (self->opened && !gm_process_is_frozen()) {
        Py_BEGIN_ALLOW_THREADS
        status = ipc_memory_close(self, self->opened);
        Py_END_ALLOW_THREADS
        if (status != GM_OK) {
            gmpy_unraisable(self->st, status, "closing memory of another process");
        }
    }
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot ipc_memory_slots[] = {
    {Py_tp_doc, (void *)ipc_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, ipc_memory_init},
    {Py_tp_dealloc, ipc_memory_dealloc},
    {0, NULL},
};

static PyType_Spec ipc_memory_spec = {
    .name = "gpumem.IPCMemory",
    .basicsize = sizeof(ipc_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = ipc_memory_slots,
};

PyMethodDef gmpy_ipc_methods[] = {
    {"_ipc_export", ipc_export, METH_O, export_doc},
    {0},
};

int
gmpy_ipc_init(PyObject *module, gmpy_state *st)
{
    st->IPCMemoryType =
        PyType_FromModuleAndSpec(module, &ipc_memory_spec, st->BaseMemoryType);
    if (!st->IPCMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "IPCMemory", st->IPCMemoryType);
}
