/* SPDX-License-Identifier: MIT
 *
 * Arguments: one unpacker for positional and keyword arguments, and the conversions of
 * integers. Errors name the function, the parameter and the value.
 *
 * Anything with __index__ is an integer (NumPy's, bool too); a float is not, because a
 * size that was silently truncated is a bug somewhere else.
 */
#include "module.h"

#include <limits.h> // INT_MIN

static int
signature_index(const gmpy_signature *signature, PyObject *name)
{
    for (int i = 0; i < signature->count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, signature->names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static int
unpack_keyword(const gmpy_signature *signature,
               PyObject *name,
               PyObject *value,
               PyObject **out)
{
    int i = signature_index(signature, name);

    if (i < 0) {
        PyErr_Format(PyExc_TypeError, "%s() has no parameter named '%U'",
                     signature->function, name);
        return -1;
    }
    if (out[i]) {
        PyErr_Format(PyExc_TypeError, "%s() got two values for '%s'",
                     signature->function, signature->names[i]);
        return -1;
    }
    out[i] = value;
    return 0;
}

static int
unpack_finish(const gmpy_signature *signature, PyObject **out)
{
    for (int i = 0; i < signature->required; i++) {
        if (!out[i]) {
            PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'",
                         signature->function, signature->names[i]);
            return -1;
        }
    }
    return 0;
}

static int
unpack_positional(const gmpy_signature *signature,
                  PyObject *const *args,
                  Py_ssize_t nargs,
                  PyObject **out)
{
    if (nargs > signature->positional) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d positional argument%s, got %zd",
                     signature->function, signature->positional,
                     signature->positional == 1 ? "" : "s", nargs);
        return -1;
    }
    for (int i = 0; i < signature->count; i++) {
        out[i] = i < nargs ? args[i] : NULL;
    }
    return 0;
}

int
gmpy_unpack(const gmpy_signature *signature,
            PyObject *const *args,
            Py_ssize_t nargs,
            PyObject *kwnames,
            PyObject **out)
{
    Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;

    if (unpack_positional(signature, args, nargs, out) < 0) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < keywords; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);

        if (unpack_keyword(signature, name, args[nargs + i], out) < 0) {
            return -1;
        }
    }
    return unpack_finish(signature, out);
}

int
gmpy_unpack_size(const char *function,
                 PyObject *const *args,
                 Py_ssize_t nargs,
                 PyObject *kwnames,
                 size_t *out)
{
    const gmpy_signature signature = {function, 1, 1, 1, {"size"}};
    PyObject *given[1];

    return gmpy_unpack(&signature, args, nargs, kwnames, given) < 0
               ? -1
               : gmpy_as_size(given[0], "size", out);
}

int
gmpy_unpack_init(const gmpy_signature *signature,
                 PyObject *args,
                 PyObject *kwargs,
                 PyObject **out)
{
    Py_ssize_t at = 0;
    PyObject *name;
    PyObject *value;

    if (unpack_positional(signature, &PyTuple_GET_ITEM(args, 0), PyTuple_GET_SIZE(args),
                          out) < 0) {
        return -1;
    }
    while (kwargs && PyDict_Next(kwargs, &at, &name, &value)) {
        if (unpack_keyword(signature, name, value, out) < 0) {
            return -1;
        }
    }
    return unpack_finish(signature, out);
}

/* `arg` as an exact int: new reference, or NULL with TypeError. */
static PyObject *
as_integer(PyObject *arg, const char *name)
{
    if (!PyIndex_Check(arg)) {
        PyErr_Format(PyExc_TypeError, "%s must be an integer, not %s", name,
                     Py_TYPE(arg)->tp_name);
        return NULL;
    }
    return PyNumber_Index(arg);
}

/* How long an integer may be to be written out. The interpreter refuses to from some
 * thousands of digits on, and nobody reads them. */
enum {
    READABLE_BITS = 256,
};

PyObject *
gmpy_number_text(PyObject *number)
{
    PyObject *exact = NULL;
    PyObject *length = NULL;
    PyObject *text = NULL;

    if (!PyLong_Check(number)) {
        return PyObject_Str(number);
    }
    exact = PyNumber_Index(number); // a subclass may have methods of its own
    length = exact ? PyObject_CallMethod(exact, "bit_length", NULL) : NULL;
    if (length) {
        text = PyLong_AsLong(length) <= READABLE_BITS
                   ? PyObject_Str(exact)
                   : PyUnicode_FromFormat("a number of %S bits", length);
    }
    Py_XDECREF(length);
    Py_XDECREF(exact);
    return text;
}

void
gmpy_raise_range(PyObject *error, PyObject *number, const char *name, const char *range)
{
    PyObject *text = gmpy_number_text(number);

    if (text) {
        PyErr_Format(error, "%s must be from %s, not %U", name, range, text);
        Py_DECREF(text);
    }
}

/* Replaces the interpreter's OverflowError by one that says what was expected. */
static int
out_of_range(PyObject *integer, const char *name, const char *range)
{
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        gmpy_raise_range(PyExc_OverflowError, integer, name, range);
    }
    Py_DECREF(integer);
    return -1;
}

/* What gmpy_as_size does with anything but an exact int in range. */
GM_COLD static int
as_size_slow(PyObject *arg, const char *name, size_t *out)
{
    PyObject *integer = as_integer(arg, name);
    size_t size;

    if (!integer) {
        return -1;
    }
    size = PyLong_AsSize_t(integer);
    if (size == (size_t)-1 && PyErr_Occurred()) {
        return out_of_range(integer, name, "0 to 2**64-1");
    }
    Py_DECREF(integer);
    *out = size;
    return 0;
}

int
gmpy_as_size(PyObject *arg, const char *name, size_t *out)
{
    size_t size;

    if (GM_LIKELY(PyLong_CheckExact(arg))) {
        size = PyLong_AsSize_t(arg);
        if (GM_LIKELY(size != (size_t)-1)) {
            *out = size;
            return 0;
        }
        PyErr_Clear(); // the slow way raises it with more to say, if it is an error
    }
    return as_size_slow(arg, name, out);
}

int
gmpy_as_address(PyObject *arg, const char *name, uintptr_t *out)
{
    size_t address;

    if (gmpy_as_size(arg, name, &address) < 0) {
        return -1;
    }
    *out = address;
    return 0;
}

int
gmpy_as_offset(PyObject *arg, const char *name, ptrdiff_t *out)
{
    PyObject *integer = as_integer(arg, name);

    if (!integer) {
        return -1;
    }
    *out = PyLong_AsSsize_t(integer);
    if (*out == -1 && PyErr_Occurred()) {
        return out_of_range(integer, name, "-2**63 to 2**63-1");
    }
    Py_DECREF(integer);
    return 0;
}

int
gmpy_as_int(PyObject *arg, const char *name, int *out)
{
    PyObject *integer = as_integer(arg, name);
    long value;

    if (!integer) {
        return -1;
    }
    value = PyLong_AsLong(integer);
    if (value == -1 && PyErr_Occurred()) {
        return out_of_range(integer, name, "-2**31 to 2**31-1");
    }
    if (value < INT_MIN || value > INT_MAX) {
        PyErr_SetNone(PyExc_OverflowError);
        return out_of_range(integer, name, "-2**31 to 2**31-1");
    }
    Py_DECREF(integer);
    *out = (int)value;
    return 0;
}
