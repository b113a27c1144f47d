/* SPDX-License-Identifier: MIT
 *
 * OutOfMemoryError(size, total, limit=0): a MemoryError; memory ran out, or the limit
 * does not allow it.
 *
 * One that a pool raises also knows why: it holds a gm_shortage (core/gm_shortage.h),
 * and its attributes read that, so that making the exception takes one object and, for
 * the text, two more; without host memory for the text it goes without, and without any
 * for itself it is the one that was made beforehand. It never asks a device for
 * anything. What is not known reads as None and is left out of the text. All of it
 * travels as state when the exception is pickled or copied.
 */
#include "module.h"
#include "out_of_memory.h"

#include <string.h> // memcpy, strcmp

typedef struct out_of_memory {
    PyBaseExceptionObject base;
    gm_shortage what;
} out_of_memory;

/* The exception's own; not to be called for another type. */
static gm_shortage *
shortage_of(PyObject *self)
{
    return &((out_of_memory *)self)->what;
}

/* ---- making one ---- */

/* Makes the text the exception's one argument. 0 or -1. */
static int
set_text(PyObject *self, const gmpy_shortage_text *text)
{
    PyObject *args = Py_BuildValue("(s)", text->chars);
    int result = args ? PyObject_SetAttrString(self, "args", args) : -1;

    Py_XDECREF(args);
    return result;
}

static PyObject *
out_of_memory_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = ((PyTypeObject *)PyExc_MemoryError)->tp_new(type, args, kwargs);

    if (self) {
        *shortage_of(self) = gm_shortage_of(0);
    }
    return self;
}

/* One that knows nothing yet: new reference, or NULL without an exception. */
static PyObject *
make_blank(gmpy_state *st)
{
    PyTypeObject *type = gmpy_type(st->OutOfMemoryError);
    PyObject *nothing = PyTuple_New(0);
    PyObject *self = nothing ? type->tp_new(type, nothing, NULL) : NULL;

    Py_XDECREF(nothing);
    if (!self) {
        PyErr_Clear();
    }
    return self;
}

/* The same, from the spare one where there is no host memory for another. */
static PyObject *
take_blank(gmpy_state *st)
{
    PyObject *self = make_blank(st);
    PyObject *unused;

    if (!self) {
        return __atomic_exchange_n(&st->spare_error, NULL, __ATOMIC_ACQ_REL);
    }
    if (!__atomic_load_n(&st->spare_error, __ATOMIC_RELAXED)) {
        unused =
            __atomic_exchange_n(&st->spare_error, make_blank(st), __ATOMIC_ACQ_REL);
        Py_XDECREF(unused); // of another thread that was as quick
    }
    return self;
}

PyObject *
gmpy_out_of_memory_new(gmpy_state *st, const gm_shortage *what, bool has_callback)
{
    PyObject *self = take_blank(st);
    gmpy_shortage_text text;

    if (!self) {
        return PyErr_NoMemory(); // twice in a row, and the first is in use
    }
    *shortage_of(self) = *what;
    gmpy_shortage_tell(what, has_callback, &text);
    if (set_text(self, &text) < 0) {
        PyErr_Clear(); // the numbers are there all the same
    }
    return self;
}

PyObject *
gmpy_raise_shortage(gmpy_state *st, const gm_shortage *what)
{
    PyObject *error = gmpy_out_of_memory_new(st, what, true);

    if (error) {
        PyErr_SetObject(st->OutOfMemoryError, error);
        Py_DECREF(error);
    }
    return NULL;
}

/* An argument that may be -1 for unknown. 0 or -1. */
static int
as_total(PyObject *arg, size_t *out)
{
    if (PyLong_Check(arg) && PyLong_AsLong(arg) == -1) {
        *out = GM_UNKNOWN;
        if (!PyErr_Occurred()) {
            return 0;
        }
        PyErr_Clear(); // it does not fit a long, but may fit a size
    }
    return gmpy_as_size(arg, "total", out);
}

static const gmpy_signature out_of_memory_signature = {
    "OutOfMemoryError", 3, 2, 3, {"size", "total", "limit"}};

static int
out_of_memory_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[3];
    gm_shortage what = gm_shortage_of(0);
    gmpy_shortage_text text;

    what.limit = 0;
    if (gmpy_unpack_init(&out_of_memory_signature, args, kwargs, given) < 0 ||
        gmpy_as_size(given[0], "size", &what.size) < 0 ||
        as_total(given[1], &what.total_bytes) < 0 ||
        (given[2] && gmpy_as_size(given[2], "limit", &what.limit) < 0)) {
        return -1;
    }
    *shortage_of(self) = what;
    gmpy_shortage_tell(&what, false, &text);
    return set_text(self, &text);
}

/* ---- attributes ---- */

/* A number of the shortage; None where it is not known. */
static PyObject *
get_number(PyObject *self, void *closure)
{
    size_t number;

    memcpy(&number, (const char *)shortage_of(self) + (size_t)closure, sizeof number);
    if (number == GM_UNKNOWN) {
        Py_RETURN_NONE;
    }
    return PyLong_FromSize_t(number);
}

static PyObject *
get_size(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(shortage_of(self)->size);
}

static PyObject *
get_device(PyObject *self, void *Py_UNUSED(closure))
{
    int device = shortage_of(self)->device;

    if (device < 0) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLong(device);
}

static PyObject *
get_cause(PyObject *self, void *Py_UNUSED(closure))
{
    gm_cause cause = shortage_of(self)->cause;

    if (cause == GM_CAUSE_UNKNOWN) {
        Py_RETURN_NONE;
    }
    return PyUnicode_FromString(gmpy_cause_words[cause]);
}

#define NUMBER_OF(name, field, text)                                                   \
    {#name, get_number, NULL, text, (void *)offsetof(gm_shortage, field)},
#define NUMBER(name, text) NUMBER_OF(name, name, text)
static PyGetSetDef out_of_memory_getset[] = {
    {"size", get_size, NULL, "bytes that were asked for", NULL},
    NUMBER_OF(total, total_bytes, "total_bytes, as the constructor calls it"){
        "device", get_device, NULL, "number of the device", NULL},
    {"cause", get_cause, NULL, "the cause in a word", NULL},
    GM_SHORTAGE_LIST(NUMBER){0},
};
#undef NUMBER
#undef NUMBER_OF

/* ---- pickling ---- */

/* Adds an attribute of the exception to its state. 0 or -1. */
static int
save(PyObject *self, PyObject *state, const char *name)
{
    return gmpy_dict_put(state, name, PyObject_GetAttrString(self, name));
}

/* All that the constructor is not told, a subclass's attributes and the text included:
 * new reference. */
static PyObject *
state_of(PyObject *self)
{
    PyObject *attributes = PyObject_GetAttrString(self, "__dict__");
    PyObject *state = attributes ? PyDict_Copy(attributes) : NULL;

    Py_XDECREF(attributes);
#define SAVE(name, text) || save(self, state, #name) < 0
    if (!state || save(self, state, "args") < 0 || save(self, state, "device") < 0 ||
        save(self, state, "cause") < 0 GM_SHORTAGE_LIST(SAVE)) {
        Py_CLEAR(state);
    }
#undef SAVE
    return state;
}

static PyObject *
out_of_memory_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const gm_shortage *what = shortage_of(self);
    PyObject *state = state_of(self);
    PyObject *total;

    if (!state) {
        return NULL;
    }
    total = what->total_bytes == GM_UNKNOWN ? PyLong_FromLong(-1)
                                            : PyLong_FromSize_t(what->total_bytes);
    return Py_BuildValue(
        "O(KNK)N", (PyObject *)Py_TYPE(self), (unsigned long long)what->size, total,
        (unsigned long long)(what->limit == GM_UNKNOWN ? 0 : what->limit), state);
}

/* The place of a number of that name; NULL where it is none. */
static size_t *
find_number(gm_shortage *what, const char *name)
{
#define FIND(field, text)                                                              \
    if (strcmp(name, #field) == 0) {                                                   \
        return &what->field;                                                           \
    }
    GM_SHORTAGE_LIST(FIND)
#undef FIND
    return NULL;
}

static int
restore_cause(gm_shortage *what, PyObject *value)
{
    const char *word = value == Py_None ? "unknown" : PyUnicode_AsUTF8(value);

    for (int cause = 0; word && cause < GM_CAUSE_COUNT; cause++) {
        if (strcmp(word, gmpy_cause_words[cause]) == 0) {
            what->cause = (gm_cause)cause;
            return 0;
        }
    }
    if (word) {
        PyErr_Format(PyExc_ValueError, "%R is not a cause", value);
    }
    return -1;
}

static int
restore(PyObject *self, PyObject *name, PyObject *value)
{
    gm_shortage *what = shortage_of(self);
    const char *named = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : "";
    size_t *number;

    if (!named) {
        return -1;
    }
    if (strcmp(named, "cause") == 0) {
        return restore_cause(what, value);
    }
    if (strcmp(named, "device") == 0) {
        what->device = -1;
        return value == Py_None ? 0 : gmpy_as_int(value, "device", &what->device);
    }
    number = find_number(what, named);
    if (!number) {
        return PyObject_SetAttr(self, name, value);
    }
    *number = GM_UNKNOWN;
    return value == Py_None ? 0 : gmpy_as_size(value, named, number);
}

static PyObject *
out_of_memory_setstate(PyObject *self, PyObject *state)
{
    Py_ssize_t at = 0;
    PyObject *name;
    PyObject *value;

    if (!PyDict_Check(state)) {
        return PyErr_Format(PyExc_TypeError, "the state is a dict, not %.200s",
                            Py_TYPE(state)->tp_name);
    }
    while (PyDict_Next(state, &at, &name, &value)) {
        int result;

        Py_INCREF(name); // an attribute's setter may run code
        Py_INCREF(value);
        result = restore(self, name, value);
        Py_DECREF(name);
        Py_DECREF(value);
        if (result < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* ---- the type ---- */

#define ATTRIBUTE(name, text) "    " #name " (int): " text ".\n"
#define ATTRIBUTES GM_SHORTAGE_LIST(ATTRIBUTE)
static const char out_of_memory_doc[] =
    "OutOfMemoryError(size, total, limit=0)\n"
    "--\n"
    "\n"
    "There is no memory for a request, or the limit does not allow it.\n"
    "\n"
    "Raised after everything that could be reclaimed was given back; the numbers\n"
    "are those of that moment. In bytes; None where nobody knows. One made by\n"
    "hand knows what its arguments say. docs/out-of-memory.md explains the causes.\n"
    "\n"
    "Args:\n"
    "    size (int): what was asked for.\n"
    "    total (int): what is held; -1 for unknown.\n"
    "    limit (int): the limit, 0 for none.\n"
    "\n"
    "Attributes:\n"
    "    size (int): bytes that were asked for.\n"
    "    total (int): total_bytes, as the constructor calls it.\n"
    "    device (int): number of the device.\n"
    "    cause (str): 'limit', 'full', 'fragmented', 'other pool', 'other\n"
    "        process', 'too large', 'capture' or 'allocator'.\n" ATTRIBUTES;
#undef ATTRIBUTES
#undef ATTRIBUTE

static PyMethodDef out_of_memory_methods[] = {
    {"__reduce__", out_of_memory_reduce, METH_NOARGS, "Pickles with its numbers."},
    {"__setstate__", out_of_memory_setstate, METH_O, "Takes what __reduce__ gave."},
    {0},
};

static PyType_Slot out_of_memory_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)out_of_memory_doc},
    {Py_tp_new, out_of_memory_new},
    {Py_tp_init, out_of_memory_init},
    {Py_tp_traverse, gmpy_error_traverse},
    {Py_tp_clear, gmpy_error_clear},
    {Py_tp_getset, out_of_memory_getset},
    {Py_tp_methods, out_of_memory_methods},
    {0, NULL},
};

static PyType_Spec out_of_memory_spec = {
    .name = "gpumem.OutOfMemoryError",
    .basicsize = sizeof(out_of_memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = out_of_memory_slots,
};

int
gmpy_out_of_memory_init(PyObject *module, gmpy_state *st)
{
    st->OutOfMemoryError =
        PyType_FromModuleAndSpec(module, &out_of_memory_spec, PyExc_MemoryError);
    if (!st->OutOfMemoryError) {
        return -1;
    }
    st->spare_error = make_blank(st);
    if (!st->spare_error) {
        PyErr_NoMemory();
        return -1;
    }
    return PyModule_AddObjectRef(module, "OutOfMemoryError", st->OutOfMemoryError);
}
