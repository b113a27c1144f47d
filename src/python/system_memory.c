/* SPDX-License-Identifier: MIT
 *
 * SystemMemory: plain host memory, for devices that read and write it as it is.
 *
 * Such a device follows the host's page tables (the driver calls it pageable memory
 * access), so the memory comes from the C library and not from the driver, aligned as
 * device memory is, for pools lie over it too. Nothing
 * keeps a device from using it after it was freed. So whoever drops it first waits for
 * its device, as the driver does for memory of its own. Where a graph is being recorded
 * nothing may be waited for: that is made up for later (parked.c).
 *
 * The type takes part in garbage collection, since an owner may refer back.
 *
 * Threading: as Memory (memory.c).
 */
#include "later.h"
#include "memory_kinds.h"
#include "module.h"

#include "core/gm_process.h" // gm_host_alloc_aligned, gm_process_is_frozen
#include "core/gm_size.h"    // GM_UNIT

#include <structmember.h> // T_OBJECT

typedef struct system_memory {
    gmpy_base_memory base;
    gmpy_state *st;  // NULL until initialized
    void *owned;     // what the C library gave; NULL for none
    PyObject *owner; // of memory that somebody else allocated; NULL for none
    int device;      // that is waited for
} system_memory;

PyDoc_STRVAR(
    system_memory_doc,
    "SystemMemory(size)\n"
    "--\n"
    "\n"
    "Plain host memory that the current device reads and writes as it is, freed\n"
    "when the object dies.\n"
    "\n"
    "For devices with pageable memory access alone. Freeing it waits until the\n"
    "device has stopped using it.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 takes nothing and leaves ptr at 0.\n"
    "\n"
    "Raises:\n"
    "    MemoryError: the host has no memory left.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    RuntimeError: the current device cannot reach plain host memory.\n"
    "    TypeError: size is not an integer.");

/* The current device, where it can reach plain host memory. 0 or -1. */
static int
reaching_device(gmpy_state *st, int *out)
{
    if (gm_process_is_forked()) {
        gmpy_raise(st, GM_ERR_FORKED, "allocating system memory");
        return -1;
    }
    if (!gmpy_backend(st)) {
        return -1;
    }
    *out = gmpy_current_device(st);
    return *out < 0 ? -1
                    : gmpy_require_support(st, *out, GM_DEVICE_PAGEABLE_ACCESS,
                                           "reach plain host memory (pageable memory "
                                           "access); use managed or pinned memory");
}

/* Memory of the C library, or with `owner` somebody else's at `ptr`. 0 or -1. */
static int
system_memory_open(system_memory *self, size_t size, PyObject *owner, uintptr_t ptr)
{
    gmpy_state *st = gmpy_state_of((PyObject *)self);
    int device;

    if (reaching_device(st, &device) < 0) {
        return -1;
    }
    gmpy_parked_look(st);
    if (!owner && size > 0) {
        self->owned = size <= GM_SIZE_MAX
                          ? gm_host_alloc_aligned(GM_UNIT, gm_size_round(size))
                          : NULL;
        if (!self->owned) {
            PyErr_Format(PyExc_MemoryError, "the host has no %zu bytes", size);
            return -1;
        }
        ptr = (uintptr_t)self->owned;
    }
    self->st = st;
    self->owner = Py_XNewRef(owner);
    self->device = device;
    self->base.ptr = ptr;
    self->base.size = size;
    self->base.device_id = device;
    return 0;
}

static int
system_memory_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {"SystemMemory", 1, 1, 1, {"size"}};
    system_memory *self = (system_memory *)op;
    PyObject *given[1];
    size_t size;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0) {
        return -1;
    }
    if (self->st) {
        PyErr_SetString(PyExc_RuntimeError, "a SystemMemory is initialized once");
        return -1;
    }
    return system_memory_open(self, size, NULL, 0);
}

PyDoc_STRVAR(from_external_doc,
             "from_external(ptr, size, owner)\n"
             "--\n"
             "\n"
             "Wraps plain host memory that somebody else allocated.\n"
             "\n"
             "When the object dies, the owner is let go of only after the device has\n"
             "stopped using the memory.\n"
             "\n"
             "Args:\n"
             "    ptr (int): address of the first byte.\n"
             "    size (int): bytes.\n"
             "    owner (object): kept alive as long as any pointer into the memory.\n"
             "\n"
             "Returns:\n"
             "    SystemMemory: on the current device.\n"
             "\n"
             "Raises:\n"
             "    RuntimeError: the current device cannot reach plain host memory.\n"
             "    ValueError: owner is None, or ptr is 0 and size is not.\n"
             "    OverflowError: a number is negative or above 2**64-1.\n"
             "    TypeError: a number is not an integer.");

static PyObject *
system_memory_from_external(PyObject *cls,
                            PyObject *const *args,
                            Py_ssize_t nargs,
                            PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "from_external", 3, 3, 3, {"ptr", "size", "owner"}};
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *given[3];
    PyObject *self;
    uintptr_t ptr;
    size_t size;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_address(given[0], "ptr", &ptr) < 0 ||
        gmpy_as_size(given[1], "size", &size) < 0) {
        return NULL;
    }
    if (given[2] == Py_None) {
        return PyErr_Format(PyExc_ValueError,
                            "memory that somebody else allocated needs an owner");
    }
    if (!ptr && size) {
        return PyErr_Format(PyExc_ValueError, "there are no %zu bytes at address 0",
                            size);
    }
    self = type->tp_alloc(type, 0);
    if (self && system_memory_open((system_memory *)self, size, given[2], ptr) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

/* ---- its end ---- */

/* What the object had, and has no more. */
typedef struct remains {
    gmpy_parked parked;
    void *owned;
    PyObject *owner; // a reference, or NULL
    int device;
} remains;

/* Lets it go when the device has stopped using it; where that cannot be had it stays,
 * which is reported. */
static void
settle(gmpy_state *st, remains *r)
{
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_synchronize(st->backend, r->device);
    Py_END_ALLOW_THREADS
    gmpy_report_release(st, status,
                        "waiting for a device before system memory is freed; it stays "
                        "allocated");
    if (status == GM_OK) {
        gm_host_free(r->owned);
        gmpy_drop(&r->owner);
    }
}

static bool
give_parked(gmpy_state *st, gmpy_parked *item)
{
    settle(st, (remains *)item);
    gm_host_free(item);
    return true;
}

/* Lets it go once nothing is recorded. False: there is no host memory to note it. */
static bool
put_off(gmpy_state *st, const remains *r)
{
    remains *kept = gm_host_alloc(sizeof(*kept));

    if (!kept) {
        return false;
    }
    *kept = *r;
    kept->parked.give = give_parked;
    gmpy_park(st, &kept->parked);
    return true;
}

static void
system_memory_release(system_memory *self)
{
    remains r = {.owned = self->owned, .owner = self->owner, .device = self->device};

    self->owned = NULL;
    self->owner = NULL;
    if ((!r.owned && !r.owner) || gm_process_is_frozen()) {
        return;
    }
    if (!gm_process_is_capturing()) {
        settle(self->st, &r);
    }
    else if (!put_off(self->st, &r)) {
        gmpy_report_release(self->st, GM_ERR_HOST_MEMORY,
                            "noting system memory that is to be freed when a recording "
                            "ends; it stays allocated");
    }
}

static int
system_memory_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((system_memory *)op)->owner);
    return 0;
}

/* There is no tp_clear: the owner keeps the memory until the device has been waited
 * for, and a cycle through it also runs through the owner's own references. */
static void
system_memory_dealloc(PyObject *op)
{
    system_memory *self = (system_memory *)op;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    system_memory_release(self);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- the type ---- */

static PyMemberDef system_memory_members[] = {
    {"_owner", T_OBJECT, offsetof(system_memory, owner), READONLY,
     "what keeps the memory alive; None for memory of its own"},
    {0},
};

static PyMethodDef system_memory_type_methods[] = {
    {"from_external", (PyCFunction)(void (*)(void))system_memory_from_external,
     METH_FASTCALL | METH_KEYWORDS | METH_CLASS, from_external_doc},
    GMPY_MIGRATION_METHODS,
    {0},
};

static PyType_Slot system_memory_slots[] = {
    {Py_tp_doc, (void *)system_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, system_memory_init},
    {Py_tp_dealloc, system_memory_dealloc},
    {Py_tp_traverse, system_memory_traverse},
    {Py_tp_methods, system_memory_type_methods},
    {Py_tp_members, system_memory_members},
    {0, NULL},
};

static PyType_Spec system_memory_spec = {
    .name = "gpumem.SystemMemory",
    .basicsize = sizeof(system_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = system_memory_slots,
};

/* ---- malloc_system ---- */

PyDoc_STRVAR(
    malloc_system_doc,
    "malloc_system(size)\n"
    "--\n"
    "\n"
    "Allocates plain host memory for the current device, without a pool.\n"
    "\n"
    "Serves as an allocator, set_allocator(malloc_system), and as what a pool\n"
    "takes memory from, MemoryPool(malloc_system), on devices with pageable\n"
    "memory access.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the start of a new SystemMemory.\n"
    "\n"
    "Raises:\n"
    "    As SystemMemory does.");

static PyObject *
malloc_system(PyObject *module,
              PyObject *const *args,
              Py_ssize_t nargs,
              PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyTypeObject *type = gmpy_type(st->SystemMemoryType);
    PyObject *mem;
    size_t size;

    if (gmpy_unpack_size("malloc_system", args, nargs, kwnames, &size) < 0) {
        return NULL;
    }
    mem = type->tp_alloc(type, 0);
    if (mem && system_memory_open((system_memory *)mem, size, NULL, 0) < 0) {
        Py_CLEAR(mem);
    }
    return gmpy_pointer_to_new(st, mem);
}

PyMethodDef gmpy_system_memory_methods[] = {
    {"malloc_system", (PyCFunction)(void (*)(void))malloc_system,
     METH_FASTCALL | METH_KEYWORDS, malloc_system_doc},
    {0},
};

int
gmpy_system_memory_init(PyObject *module, gmpy_state *st)
{
    st->SystemMemoryType =
        PyType_FromModuleAndSpec(module, &system_memory_spec, st->BaseMemoryType);
    if (!st->SystemMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "SystemMemory", st->SystemMemoryType);
}
