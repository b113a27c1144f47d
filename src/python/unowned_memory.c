/* SPDX-License-Identifier: MIT
 *
 * UnownedMemory: memory that somebody else owns, kept alive through its owner.
 *
 * Never freed here. The owner is any object; it lives as long as the last pointer into
 * the memory. The type takes part in garbage collection, since an owner may refer back.
 */
#include "module.h"

#include <structmember.h> // T_OBJECT

typedef struct unowned_memory {
    gmpy_base_memory base;
    PyObject *owner;
} unowned_memory;

PyDoc_STRVAR(
    unowned_memory_doc,
    "UnownedMemory(ptr, size, owner, device_id=-1)\n"
    "--\n"
    "\n"
    "Memory that somebody else owns.\n"
    "\n"
    "Args:\n"
    "    ptr (int): address of the first byte.\n"
    "    size (int): bytes.\n"
    "    owner (object): kept alive as long as any pointer into the memory; with\n"
    "        None nothing keeps the memory alive, and it is the caller's to do so.\n"
    "    device_id (int): number of the device; -1 asks the driver. Pinned and\n"
    "        managed memory count as on the device they were allocated for.\n"
    "\n"
    "Raises:\n"
    "    RuntimeError: ptr is 0 and device_id was not given.\n"
    "    ValueError: the driver does not know the address, as with plain host\n"
    "        memory, or there is no such device.\n"
    "    OverflowError: a number is negative or above 2**64-1.\n"
    "    TypeError: a number is not an integer.");

static const gmpy_signature unowned_memory_signature = {
    "UnownedMemory", 4, 3, 4, {"ptr", "size", "owner", "device_id"}};

int
gmpy_device_of_address(gmpy_state *st, uintptr_t ptr, int *out)
{
    gm_pointer_info info;
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_pointer_info(st->backend, ptr, &info);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking what kind of memory an address is");
        return -1;
    }
    if (info.kind == GM_POINTER_UNREGISTERED) {
        PyErr_Format(
            PyExc_ValueError,
            "%s is plain host memory, which no device knows; pinned, managed or "
            "device memory is expected, or device_id",
            gmpy_as_hex(ptr).text);
        return -1;
    }
    *out = info.device;
    return 0;
}

static int
unowned_memory_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    unowned_memory *self = (unowned_memory *)op;
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[4];
    uintptr_t ptr;
    size_t size;
    int device = -1;

    if (gmpy_unpack_init(&unowned_memory_signature, args, kwargs, given) < 0 ||
        gmpy_as_address(given[0], "ptr", &ptr) < 0 ||
        gmpy_as_size(given[1], "size", &size) < 0 || !gmpy_backend(st) ||
        (given[3] && gmpy_as_int(given[3], "device_id", &device) < 0)) {
        return -1;
    }
    if (device < 0 && ptr == 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "UnownedMemory of a null pointer needs device_id");
        return -1;
    }
    if (device < 0 ? gmpy_device_of_address(st, ptr, &device) < 0
                   : gmpy_as_device(st, given[3], &device) < 0) {
        return -1;
    }
    self->base.ptr = ptr;
    self->base.size = size;
    self->base.device_id = device;
    Py_XSETREF(self->owner, Py_NewRef(given[2]));
    return 0;
}

PyObject *
gmpy_unowned_memory_new(
    gmpy_state *st, uintptr_t ptr, size_t size, PyObject *owner, int device)
{
    PyTypeObject *type = gmpy_type(st->UnownedMemoryType);
    unowned_memory *self = (unowned_memory *)type->tp_alloc(type, 0);

    if (self) {
        self->base.ptr = ptr;
        self->base.size = size;
        self->base.device_id = device;
        self->owner = Py_NewRef(owner);
    }
    return (PyObject *)self;
}

static int
unowned_memory_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((unowned_memory *)op)->owner);
    return 0;
}

static int
unowned_memory_clear(PyObject *op)
{
    Py_CLEAR(((unowned_memory *)op)->owner);
    return 0;
}

static void
unowned_memory_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    (void)unowned_memory_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMemberDef unowned_memory_members[] = {
    {"_owner", T_OBJECT, offsetof(unowned_memory, owner), READONLY,
     "what keeps the memory alive"},
    {0},
};

static PyType_Slot unowned_memory_slots[] = {
    {Py_tp_doc, (void *)unowned_memory_doc},   {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, unowned_memory_init},         {Py_tp_dealloc, unowned_memory_dealloc},
    {Py_tp_traverse, unowned_memory_traverse}, {Py_tp_clear, unowned_memory_clear},
    {Py_tp_members, unowned_memory_members},   {0, NULL},
};

static PyType_Spec unowned_memory_spec = {
    .name = "gpumem.UnownedMemory",
    .basicsize = sizeof(unowned_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = unowned_memory_slots,
};

int
gmpy_unowned_memory_init(PyObject *module, gmpy_state *st)
{
    st->UnownedMemoryType =
        PyType_FromModuleAndSpec(module, &unowned_memory_spec, st->BaseMemoryType);
    if (!st->UnownedMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "UnownedMemory", st->UnownedMemoryType);
}
