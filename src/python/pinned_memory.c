/* SPDX-License-Identifier: MIT
 *
 * PinnedMemory: page-locked host memory, taken straight from the driver, and the
 * question whether an address lies in such memory.
 *
 * It is the host's memory, which every device reaches under the same address. Its
 * device_id is the device that was current when it was taken, with which it goes back.
 *
 * Of the runtime's flags, portable (1) and mapped (2) say what holds anyway where host
 * and devices share one address space, and change nothing; write-combined (4) is
 * another kind of memory.
 *
 * Cost: taking and giving back cost about 0.7 ms for 1 MiB, which is why there is a
 * pool (pinned_pool.c). Threading: as Memory (memory.c).
 */
#include "module.h"
#include "pinned.h"

enum {
    FLAG_WRITE_COMBINED = 4, // cudaHostAllocWriteCombined
    FLAGS = 7,               // with portable and mapped
};

PyDoc_STRVAR(
    pinned_memory_doc,
    "PinnedMemory(size, flags=0)\n"
    "--\n"
    "\n"
    "Page-locked host memory, given back when the object dies.\n"
    "\n"
    "Copies between it and a device need no staging, and can go on while the host\n"
    "does something else. Every device reaches it under its address.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 takes nothing and leaves ptr at 0.\n"
    "    flags (int): the runtime's cudaHostAlloc flags, 0 to 7. Portable (1) and\n"
    "        mapped (2) always hold. Write-combined (4) memory is faster for devices\n"
    "        to read and very slow for the host to read.\n"
    "\n"
    "Attributes:\n"
    "    ptr (int): address of the first byte, 0 for none.\n"
    "    size (int): length in bytes.\n"
    "    device_id (int): number of the device that was current.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the driver refused; status 2 means that the host has no\n"
    "        memory left to lock.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size or flags is not an integer.\n"
    "    ValueError: flags is not from 0 to 7.");

static int
pinned_memory_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static const gmpy_signature signature = {
        "PinnedMemory", 2, 1, 2, {"size", "flags"}};
    PyObject *given[2];
    size_t size;
    int flags = 0;

    if (gmpy_unpack_init(&signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0 ||
        (given[1] && gmpy_as_int(given[1], "flags", &flags) < 0)) {
        return -1;
    }
    if (flags < 0 || flags > FLAGS) {
        PyErr_Format(
            PyExc_ValueError,
            "flags must be from 0 to %d, a sum of portable (1), mapped (2) and "
            "write-combined (4), not %d",
            FLAGS, flags);
        return -1;
    }
    return gmpy_owned_memory_open(
        self, signature.function,
        flags & FLAG_WRITE_COMBINED ? GM_MEM_WRITE_COMBINED : GM_MEM_PINNED, size);
}

static PyType_Slot pinned_memory_slots[] = {
    {Py_tp_doc, (void *)pinned_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, pinned_memory_init},
    {Py_tp_dealloc, gmpy_owned_memory_dealloc},
    {0, NULL},
};

static PyType_Spec pinned_memory_spec = {
    .name = "gpumem.PinnedMemory",
    .basicsize = sizeof(gmpy_owned_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = pinned_memory_slots,
};

/* ---- functions ---- */

PyDoc_STRVAR(malloc_pinned_doc,
             "malloc_pinned(size)\n"
             "--\n"
             "\n"
             "Allocates page-locked host memory, without a pool.\n"
             "\n"
             "What alloc_pinned_memory uses when no allocator is set.\n"
             "\n"
             "Args:\n"
             "    size (int): bytes.\n"
             "\n"
             "Returns:\n"
             "    PinnedMemoryPointer: to the start of a new PinnedMemory.\n"
             "\n"
             "Raises:\n"
             "    As PinnedMemory does.");

static PyObject *
malloc_pinned(PyObject *module,
              PyObject *const *args,
              Py_ssize_t nargs,
              PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    size_t size;

    if (gmpy_unpack_size("malloc_pinned", args, nargs, kwnames, &size) < 0) {
        return NULL;
    }
    return gmpy_pinned_pointer_to_new(st,
                                      gmpy_owned_memory_new(st, GM_MEM_PINNED, size));
}

PyDoc_STRVAR(is_memory_pinned_doc,
             "is_memory_pinned(ptr)\n"
             "--\n"
             "\n"
             "Whether an address lies in page-locked host memory, whoever locked it.\n"
             "\n"
             "Args:\n"
             "    ptr (int): the address; also a pointer or memory of this library.\n"
             "\n"
             "Returns:\n"
             "    bool: False for plain host memory, managed and device memory.\n"
             "\n"
             "Raises:\n"
             "    CUDARuntimeError: the driver cannot say.\n"
             "    OverflowError: ptr is negative or above 2**64-1.\n"
             "    TypeError: ptr is not an address.");

/* An address, or something of ours that has one. */
static int
as_place(gmpy_state *st, PyObject *arg, uintptr_t *out)
{
    if (gmpy_is_pointer(st, arg) || gmpy_is_pinned_pointer(st, arg)) {
        *out = ((const gmpy_pointer *)arg)->ptr;
        return 0;
    }
    if (PyObject_TypeCheck(arg, gmpy_type(st->BaseMemoryType))) {
        *out = ((const gmpy_base_memory *)arg)->ptr;
        return 0;
    }
    return gmpy_as_address(arg, "ptr", out);
}

static PyObject *
is_memory_pinned(PyObject *module,
                 PyObject *const *args,
                 Py_ssize_t nargs,
                 PyObject *kwnames)
{
    static const gmpy_signature signature = {"is_memory_pinned", 1, 1, 1, {"ptr"}};
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given[1];
    gm_pointer_info info;
    gm_status status;
    uintptr_t ptr;

    if (!backend || gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        as_place(st, given[0], &ptr) < 0) {
        return NULL;
    }
    if (!ptr) {
        Py_RETURN_FALSE;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_pointer_info(backend, ptr, &info);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "asking what kind of memory an address is");
    }
    return PyBool_FromLong(info.kind == GM_POINTER_HOST);
}

PyMethodDef gmpy_pinned_memory_methods[] = {
    {"malloc_pinned", (PyCFunction)(void (*)(void))malloc_pinned,
     METH_FASTCALL | METH_KEYWORDS, malloc_pinned_doc},
    {"is_memory_pinned", (PyCFunction)(void (*)(void))is_memory_pinned,
     METH_FASTCALL | METH_KEYWORDS, is_memory_pinned_doc},
    {0},
};

int
gmpy_pinned_memory_init(PyObject *module, gmpy_state *st)
{
    st->PinnedMemoryType =
        PyType_FromModuleAndSpec(module, &pinned_memory_spec, st->BaseMemoryType);
    if (!st->PinnedMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "PinnedMemory", st->PinnedMemoryType);
}
