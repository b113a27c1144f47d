/* SPDX-License-Identifier: MIT
 *
 * BaseMemory and Memory: an address, a size and a device, and memory taken straight
 * from the device.
 *
 * ptr, size and device_id of a BaseMemory can be written from Python, as in the pool
 * this one follows, so that tests and wrappers can stand in for memory; those of pooled
 * memory cannot. What a Memory frees is what it allocated, remembered apart, and only
 * while ptr is not 0: a wrong ptr or device_id never reaches the device, and a ptr of 0
 * gives the memory up.
 *
 * Threading: objects do not change after construction unless Python code writes to
 * them. The device calls run without the interpreter.
 */
#include "module.h"
#include "out_of_memory.h"

#include "core/gm_capture.h" // gm_capture_postpone_free
#include "core/gm_process.h" // gm_process_is_frozen

/* ---- BaseMemory ---- */

PyDoc_STRVAR(base_memory_doc,
             "BaseMemory()\n"
             "--\n"
             "\n"
             "Memory on a device: where it starts, how long it is, whose it is.\n"
             "\n"
             "The base of all memory types; not useful by itself.\n"
             "\n"
             "Attributes:\n"
             "    ptr (int): address of the first byte, 0 for none.\n"
             "    size (int): length in bytes.\n"
             "    device_id (int): number of the device.");

/* 0 where the attributes can be written: not those of pooled memory, also not through
 * this type's descriptors, since copies are checked against them. Else -1. */
static int
base_memory_check_writable(PyObject *self, const char *name)
{
    const gmpy_state *st = gmpy_state_of(self);
    const char *type = NULL;

    if (Py_IS_TYPE(self, gmpy_type(st->PooledMemoryType))) {
        type = "PooledMemory";
    }
    else if (Py_IS_TYPE(self, gmpy_type(st->PooledPinnedMemoryType))) {
        type = "PooledPinnedMemory";
    }
    if (type) {
        PyErr_Format(PyExc_AttributeError, "%s of a %s cannot be written", name, type);
        return -1;
    }
    return 0;
}

/* An attribute that can be read and written. A value that does not fit leaves it as it
 * is, which a PyMemberDef would not. */
#define ATTRIBUTE(name, as_object, from_object)                                        \
    static PyObject *base_memory_get_##name(PyObject *self, void *Py_UNUSED(closure))  \
    {                                                                                  \
        return as_object(((gmpy_base_memory *)self)->name);                            \
    }                                                                                  \
                                                                                       \
    static int base_memory_set_##name(PyObject *self, PyObject *value,                 \
                                      void *Py_UNUSED(closure))                        \
    {                                                                                  \
        if (base_memory_check_writable(self, #name) < 0) {                             \
            return -1;                                                                 \
        }                                                                              \
        if (!value) {                                                                  \
            PyErr_SetString(PyExc_TypeError, #name " cannot be deleted");              \
            return -1;                                                                 \
        }                                                                              \
        return from_object(value, #name, &((gmpy_base_memory *)self)->name);           \
    }
ATTRIBUTE(ptr, PyLong_FromSize_t, gmpy_as_address)
ATTRIBUTE(size, PyLong_FromSize_t, gmpy_as_size)
ATTRIBUTE(device_id, PyLong_FromLong, gmpy_as_int)
#undef ATTRIBUTE

GM_STATIC_ASSERT(sizeof(uintptr_t) == sizeof(unsigned long long) &&
                     sizeof(size_t) == sizeof(unsigned long long),
                 "derived types read ptr and size as unsigned long long");

static void
base_memory_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
base_memory_int(PyObject *self)
{
    return PyLong_FromSize_t(((gmpy_base_memory *)self)->ptr);
}

static PyObject *
base_memory_repr(PyObject *self)
{
    gmpy_base_memory *mem = (gmpy_base_memory *)self;
    PyObject *name = PyType_GetName(Py_TYPE(self));
    PyObject *repr = NULL;

    if (name) {
        repr =
            PyUnicode_FromFormat("<%U %s size=%zu device=%d>", name,
                                 gmpy_as_hex(mem->ptr).text, mem->size, mem->device_id);
        Py_DECREF(name);
    }
    return repr;
}

static PyObject *
base_memory_device(PyObject *self, void *Py_UNUSED(closure))
{
    return gmpy_device_new(gmpy_state_of(self), ((gmpy_base_memory *)self)->device_id);
}

static PyGetSetDef base_memory_getset[] = {
    {"ptr", base_memory_get_ptr, base_memory_set_ptr,
     "address of the first byte, 0 for none", NULL},
    {"size", base_memory_get_size, base_memory_set_size, "length in bytes", NULL},
    {"device_id", base_memory_get_device_id, base_memory_set_device_id,
     "number of the device", NULL},
    {"device", base_memory_device, NULL, "the Device the memory is on", NULL},
    {0},
};

static PyType_Slot base_memory_slots[] = {
    {Py_tp_doc, (void *)base_memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, base_memory_dealloc},
    {Py_tp_getset, base_memory_getset},
    {Py_tp_repr, base_memory_repr},
    {Py_nb_int, base_memory_int},
    {0, NULL},
};

static PyType_Spec base_memory_spec = {
    .name = "gpumem.BaseMemory",
    .basicsize = sizeof(gmpy_base_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = base_memory_slots,
};

/* ---- memory of the device's own kinds ---- */

/* What an operation is called in errors. */
static const char *
what(gm_mem_kind kind, bool freeing)
{
    if (kind == GM_MEM_PINNED || kind == GM_MEM_WRITE_COMBINED) {
        return freeing ? "freeing pinned memory" : "allocating pinned memory";
    }
    if (kind == GM_MEM_MANAGED) {
        return freeing ? "freeing managed memory" : "allocating managed memory";
    }
    return freeing ? "freeing device memory" : "allocating device memory";
}

/* A device that refuses has nobody to tell. Keeps the pending exception. */
static void
give_back(gmpy_state *st, int device, uint64_t life, gm_mem_kind kind, uintptr_t ptr)
{
    gm_status status = GM_OK;

    Py_BEGIN_ALLOW_THREADS
    if (!gmpy_device_has_ended(st, device, life) &&
        !gm_capture_postpone_free(st->backend, device, kind, ptr)) {
        status = gm_backend_mem_free(st->backend, device, kind, ptr);
    }
    Py_END_ALLOW_THREADS
    gmpy_report_release(st, status, what(kind, true));
}

/* Gives back what is held, if anything. Keeps the pending exception. */
static void
owned_memory_release(gmpy_owned_memory *mem)
{
    uintptr_t owned = mem->owned;

    mem->owned = 0;
    if (owned && mem->base.ptr && !gm_process_is_frozen()) {
        give_back(mem->st, mem->owned_device, mem->life, mem->kind, owned);
    }
}

/* Raises for an allocation that the device refused. */
static void
raise_refused(
    gmpy_state *st, gm_status status, gm_mem_kind kind, int device, size_t size)
{
    bool host = kind == GM_MEM_PINNED || kind == GM_MEM_WRITE_COMBINED;

    gmpy_raise_refused(st, status, what(kind, false), host ? -1 : device, size);
}

static int
owned_memory_take(gmpy_owned_memory *mem, gmpy_state *st, gm_mem_kind kind, size_t size)
{
    const gm_backend *backend = gmpy_backend(st);
    gmpy_state *none = NULL;
    uintptr_t ptr = 0;
    uint64_t life = 0;
    gm_status status;
    int device;

    if (!backend) {
        return -1;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(st, GM_ERR_FORKED, what(kind, false));
        return -1;
    }
    device = gmpy_current_device(st);
    if (device < 0) {
        return -1;
    }
    if (size > 0) {
        Py_BEGIN_ALLOW_THREADS
        status = gm_backend_mem_alloc(backend, device, kind, size, &ptr);
        if (status == GM_OK) {
            life = gmpy_device_life(st, device);
        }
        Py_END_ALLOW_THREADS
        if (status != GM_OK) {
            raise_refused(st, status, kind, device, size);
            return -1;
        }
    }
    if (!__atomic_compare_exchange_n(&mem->st, &none, st, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED)) {
        if (ptr) { // another thread was first
            give_back(st, device, life, kind, ptr);
        }
        PyErr_SetString(PyExc_RuntimeError, "memory is initialized once");
        return -1;
    }
    mem->kind = kind;
    mem->owned = ptr;
    mem->owned_device = device;
    mem->life = life;
    mem->base.ptr = ptr;
    mem->base.size = size;
    mem->base.device_id = device;
    return 0;
}

int
gmpy_owned_memory_open(PyObject *self, const char *name, gm_mem_kind kind, size_t size)
{
    gmpy_owned_memory *mem = (gmpy_owned_memory *)self;

    if (mem->st) {
        PyErr_Format(PyExc_RuntimeError, "a %s is initialized once", name);
        return -1;
    }
    return owned_memory_take(mem, gmpy_state_of(self), kind, size);
}

int
gmpy_owned_memory_init(PyObject *self,
                       const gmpy_signature *signature,
                       gm_mem_kind kind,
                       PyObject *args,
                       PyObject *kwargs)
{
    PyObject *given[1];
    size_t size;

    if (gmpy_unpack_init(signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0) {
        return -1;
    }
    return gmpy_owned_memory_open(self, signature->function, kind, size);
}

void
gmpy_owned_memory_dealloc(PyObject *self)
{
    owned_memory_release((gmpy_owned_memory *)self);
    base_memory_dealloc(self);
}

static PyTypeObject *
type_of_kind(const gmpy_state *st, gm_mem_kind kind)
{
    switch (kind) {
    case GM_MEM_MANAGED:
        return gmpy_type(st->ManagedMemoryType);
    case GM_MEM_PINNED:
    case GM_MEM_WRITE_COMBINED:
        return gmpy_type(st->PinnedMemoryType);
    default:
        return gmpy_type(st->MemoryType);
    }
}

PyObject *
gmpy_owned_memory_new(gmpy_state *st, gm_mem_kind kind, size_t size)
{
    PyTypeObject *type = type_of_kind(st, kind);
    PyObject *self = type->tp_alloc(type, 0);

    if (self && owned_memory_take((gmpy_owned_memory *)self, st, kind, size) < 0) {
        Py_CLEAR(self);
    }
    return self;
}

/* ---- Memory ---- */

PyDoc_STRVAR(
    memory_doc,
    "Memory(size)\n"
    "--\n"
    "\n"
    "Memory taken straight from the current device, given back when the object\n"
    "dies.\n"
    "\n"
    "Giving it back waits until the device has stopped using it; while a graph is\n"
    "being recorded it is put off to the end of the recording.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 takes nothing and leaves ptr at 0.\n"
    "\n"
    "Raises:\n"
    "    CUDARuntimeError: the device refused; status 2 means that its memory is\n"
    "        exhausted.\n"
    "    OverflowError: size is negative or above 2**64-1.\n"
    "    TypeError: size is not an integer.");

static const gmpy_signature memory_signature = {"Memory", 1, 1, 1, {"size"}};

static int
memory_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return gmpy_owned_memory_init(self, &memory_signature, GM_MEM_DEVICE, args, kwargs);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, (void *)memory_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, memory_init},
    {Py_tp_dealloc, gmpy_owned_memory_dealloc},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "gpumem.Memory",
    .basicsize = sizeof(gmpy_owned_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_slots,
};

/* ---- malloc ---- */

PyDoc_STRVAR(malloc_doc,
             "malloc(size)\n"
             "--\n"
             "\n"
             "Allocates straight from the current device, without a pool.\n"
             "\n"
             "The allocator that is used when none is set.\n"
             "\n"
             "Args:\n"
             "    size (int): bytes.\n"
             "\n"
             "Returns:\n"
             "    MemoryPointer: to the start of a new Memory.\n"
             "\n"
             "Raises:\n"
             "    As Memory does.");

static PyObject *
memory_malloc(PyObject *module,
              PyObject *const *args,
              Py_ssize_t nargs,
              PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    size_t size;

    if (gmpy_unpack_size("malloc", args, nargs, kwnames, &size) < 0) {
        return NULL;
    }
    return gmpy_pointer_to_new(st, gmpy_owned_memory_new(st, GM_MEM_DEVICE, size));
}

PyMethodDef gmpy_memory_methods[] = {
    {"malloc", (PyCFunction)(void (*)(void))memory_malloc,
     METH_FASTCALL | METH_KEYWORDS, malloc_doc},
    {0},
};

int
gmpy_memory_init(PyObject *module, gmpy_state *st)
{
    st->BaseMemoryType = PyType_FromModuleAndSpec(module, &base_memory_spec, NULL);
    if (!st->BaseMemoryType ||
        PyModule_AddObjectRef(module, "BaseMemory", st->BaseMemoryType) < 0) {
        return -1;
    }
    st->MemoryType = PyType_FromModuleAndSpec(module, &memory_spec, st->BaseMemoryType);
    if (!st->MemoryType) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Memory", st->MemoryType);
}
