/* SPDX-License-Identifier: MIT
 *
 * ManagedMemory: memory that migrates between host and device, taken straight from the
 * driver. And what the driver can be told about such memory, and about plain host
 * memory that devices reach (system_memory.c).
 *
 * Threading: as Memory (memory.c). The device calls run without the interpreter.
 */
#include "memory_kinds.h"
#include "stream.h"

PyDoc_STRVAR(
    managed_memory_doc,
    "ManagedMemory(size)\n"
    "--\n"
    "\n"
    "Managed (unified) memory of the current device, given back when the object\n"
    "dies.\n"
    "\n"
    "The host and all devices can use it under one address; the driver moves its\n"
    "pages. More of it than the device has can be allocated where the device\n"
    "attribute concurrentManagedAccess is non-zero; elsewhere it has to fit.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 takes nothing and leaves ptr at 0.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the device refused; status 2 means that its memory is\n"
    "        exhausted.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size is not an integer.");

static const gmpy_signature managed_memory_signature = {
    "ManagedMemory", 1, 1, 1, {"size"}};

static int
managed_memory_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return gmpy_owned_memory_init(self, &managed_memory_signature, GM_MEM_MANAGED, args,
                                  kwargs);
}

/* A device number or -1 for the host; `name` is the parameter's. */
static int
as_location(gmpy_state *st, PyObject *arg, const char *name, int *out)
{
    if (gmpy_as_int(arg, name, out) < 0) {
        return -1;
    }
    if (*out < -1 || *out >= st->device_count) {
        PyErr_Format(PyExc_ValueError,
                     "%s must be -1, for the host, or from 0 to %d, not %d", name,
                     st->device_count - 1, *out);
        return -1;
    }
    return 0;
}

/* Raises for a call that the device refused: `what` was to be done with the memory,
 * and about which device. Always returns NULL. */
static PyObject *
raise_refused(gmpy_state *st,
              gm_status status,
              const gmpy_base_memory *self,
              const char *what,
              int device)
{
    char where[sizeof "device -2147483648"] = "the host";
    char text[192];

    if (device >= 0) {
        PyOS_snprintf(where, sizeof where, "device %d", device);
    }
    PyOS_snprintf(text, sizeof text, "%s %s: %zu bytes at %s", what, where, self->size,
                  gmpy_as_hex(self->ptr).text);
    return gmpy_raise(st, status, text);
}

/* The runtime's names of cudaMemoryAdvise, from 1 on. */
static const char *const advices[] = {
    "read mostly",           "no more read mostly", "preferred location",
    "no preferred location", "accessed by",         "no more accessed by",
};

enum {
    ADVICES = sizeof advices / sizeof advices[0],
};

/* Raises for advice that the device refused. Always returns NULL. */
static PyObject *
raise_advice(gmpy_state *st,
             gm_status status,
             const gmpy_base_memory *self,
             int advice,
             int device)
{
    char what[96];

    if (advice >= 1 && advice <= ADVICES) {
        PyOS_snprintf(what, sizeof what, "advice %d (%s) about", advice,
                      advices[advice - 1]);
    }
    else {
        PyOS_snprintf(what, sizeof what, "advice %d, which is not from 1 to %d, about",
                      advice, ADVICES);
    }
    return raise_refused(st, status, self, what, device);
}

const char gmpy_memory_prefetch_doc[] = PyDoc_STR(
    "prefetch($self, stream, *, device_id=None)\n"
    "--\n"
    "\n"
    "Moves the memory to a device, or to the host, in the order of a stream.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): the stream to queue on; the current one if None.\n"
    "    device_id (int): the device to move to, -1 for the host; the device it\n"
    "        was allocated on if None.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the device refused.\n"
    "    RuntimeError: the stream is gone, or the memory, by a reset.\n"
    "    ValueError: there is no such device, or the memory was given back.");

PyObject *
gmpy_memory_prefetch(PyObject *op,
                     PyObject *const *args,
                     Py_ssize_t nargs,
                     PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "prefetch", 2, 1, 1, {"stream", "device_id"}};
    const gmpy_base_memory *self = (const gmpy_base_memory *)op;
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    int device = self->device_id;
    PyObject *given[2];
    gmpy_stream_ref stream;
    gm_status status;
    gm_device_mark back;

    if (!backend || gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_stream(st, given[0], &stream) < 0 ||
        (given[1] && given[1] != Py_None &&
         as_location(st, given[1], "device_id", &device) < 0)) {
        return NULL;
    }
    if (self->size == 0) {
        Py_RETURN_NONE;
    }
    if (gmpy_memory_check(st, op) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, &stream, &back);
    if (status == GM_OK) {
        status = gm_backend_mem_prefetch(backend, self->ptr, self->size, device,
                                         stream.handle);
        gmpy_stream_leave(backend, &back);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return raise_refused(st, status, self, "prefetching to", device);
    }
    Py_RETURN_NONE;
}

const char gmpy_memory_advise_doc[] = PyDoc_STR(
    "advise($self, advise, device=None, *, dev=None)\n"
    "--\n"
    "\n"
    "Tells the driver how the memory will be used.\n"
    "\n"
    "Args:\n"
    "    advise (int): one of the runtime's cudaMemoryAdvise values, 1 to 6: read\n"
    "        mostly and no more so, preferred location and none, accessed by and\n"
    "        no more so.\n"
    "    device (Device): the device the advice is about; -1 for the host.\n"
    "    dev (Device): the same, under the name that newer CuPy has for it.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the device refused.\n"
    "    RuntimeError: a reset ended the memory.\n"
    "    TypeError: device is missing, or given under both names.\n"
    "    ValueError: there is no such device, or the memory was given back.");

PyObject *
gmpy_memory_advise(PyObject *op,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "advise", 3, 1, 2, {"advise", "device", "dev"}};
    const gmpy_base_memory *self = (const gmpy_base_memory *)op;
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given[3];
    gm_status status;
    int advice;
    int device;

    if (!backend || gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    for (int i = 1; i <= 2; i++) {
        given[i] = given[i] == Py_None ? NULL : given[i];
    }
    if (!given[1] == !given[2]) {
        PyErr_Format(PyExc_TypeError,
                     given[1] ? "advise() got 'device' and 'dev', which are "
                                "names of the same argument"
                              : "advise() needs the argument 'device'");
        return NULL;
    }
    if (gmpy_as_int(given[0], "advise", &advice) < 0 ||
        as_location(st, given[1] ? given[1] : given[2], given[1] ? "device" : "dev",
                    &device) < 0) {
        return NULL;
    }
    if (self->size == 0) {
        Py_RETURN_NONE;
    }
    if (gmpy_memory_check(st, op) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_advise(backend, self->ptr, self->size, advice, device);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return raise_advice(st, status, self, advice, device);
    }
    Py_RETURN_NONE;
}

static PyMethodDef managed_memory_type_methods[] = {
    GMPY_MIGRATION_METHODS,
    {0},
};

static PyType_Slot managed_memory_slots[] = {
    {Py_tp_doc, (void *)managed_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, managed_memory_init},
    {Py_tp_dealloc, gmpy_owned_memory_dealloc},
    {Py_tp_methods, managed_memory_type_methods},
    {0, NULL},
};

static PyType_Spec managed_memory_spec = {
    .name = "gpumem.ManagedMemory",
    .basicsize = sizeof(gmpy_owned_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = managed_memory_slots,
};

/* ---- malloc_managed ---- */

PyDoc_STRVAR(
    malloc_managed_doc,
    "malloc_managed(size)\n"
    "--\n"
    "\n"
    "Allocates managed memory of the current device, without a pool.\n"
    "\n"
    "Serves as an allocator, set_allocator(malloc_managed), and as what a pool\n"
    "takes memory from, MemoryPool(malloc_managed). More than the device has can\n"
    "be allocated only where the device attribute concurrentManagedAccess is\n"
    "non-zero.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the start of a new ManagedMemory.\n"
    "\n"
    "Raises:\n"
    "    As ManagedMemory does.");

static PyObject *
managed_malloc(PyObject *module,
               PyObject *const *args,
               Py_ssize_t nargs,
               PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    size_t size;

    if (gmpy_unpack_size("malloc_managed", args, nargs, kwnames, &size) < 0) {
        return NULL;
    }
    return gmpy_pointer_to_new(st, gmpy_owned_memory_new(st, GM_MEM_MANAGED, size));
}

PyMethodDef gmpy_managed_memory_methods[] = {
    {"malloc_managed", (PyCFunction)(void (*)(void))managed_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_managed_doc},
    {0},
};

int
gmpy_managed_memory_init(PyObject *module, gmpy_state *st)
{
    st->ManagedMemoryType =
        PyType_FromModuleAndSpec(module, &managed_memory_spec, st->BaseMemoryType);
    if (!st->ManagedMemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "ManagedMemory", st->ManagedMemoryType);
}
