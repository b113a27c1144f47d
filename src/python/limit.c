/* SPDX-License-Identifier: MIT
 *
 * The limit of a pool: from set_limit's arguments, and from the environment as the
 * default of each new pool.
 *
 * GPUMEM_MEMORY_LIMIT stands before CUPY_GPU_MEMORY_LIMIT. Either is a size
 * (size_text.c) or a part of the device's total memory as a percentage, "40%" or
 * "70.5 %". It is read whenever a pool is made for a device; 0 and 0% are no limit.
 */
#include "pools.h"

#include <stdlib.h> // getenv
#include <string.h> // strlen
#include <unistd.h> // sysconf

#define LIMIT_FORMS GMPY_SIZE_FORMS ", or a percentage from 0% to 100%"

/* What a limit text says: a size, or with `by_fraction` a part of the device. */
typedef struct limit_text {
    bool by_fraction;
    double fraction;
    size_t size;
} limit_text;

static int
limit_from_size(PyObject *arg, size_t *out)
{
    if (gmpy_as_size(arg, "size", out) < 0) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            gmpy_raise_range(PyExc_ValueError, arg, "size", "0 to 2**64-1");
        }
        return -1;
    }
    return 0;
}

/* What a fraction is of: the device's memory, or the host's. 0 or -1. */
static int
total_memory(gmpy_state *st, int device, size_t *out)
{
    size_t free_bytes = 0;
    gm_status status;

    if (device == GMPY_DEVICE_HOST) {
        *out = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_info(st->backend, device, &free_bytes, out);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking for the device's memory");
        return -1;
    }
    return 0;
}

static int
limit_of_fraction(gmpy_state *st, int device, double fraction, size_t *out)
{
    size_t total_bytes = 0;

    if (total_memory(st, device, &total_bytes) < 0) {
        return -1;
    }
    *out = (size_t)(fraction * (double)total_bytes);
    if (*out == 0 && fraction > 0.0) {
        *out = 1; // 0 would be no limit
    }
    return 0;
}

static int
limit_from_fraction(gmpy_state *st, int device, PyObject *arg, size_t *out)
{
    double fraction = PyFloat_AsDouble(arg);

    if (fraction == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
            return -1;
        }
        PyErr_Clear(); // an integer that no float holds
    }
    if (!(fraction >= 0.0 && fraction <= 1.0)) { // NaN fails both
        gmpy_raise_range(PyExc_ValueError, arg, "fraction", "0 to 1");
        return -1;
    }
    return limit_of_fraction(st, device, fraction, out);
}

int
gmpy_as_limit(
    gmpy_state *st, int device, PyObject *size, PyObject *fraction, size_t *out)
{
    bool by_size = size && size != Py_None;
    bool by_fraction = fraction && fraction != Py_None;

    if (by_size && by_fraction) {
        PyErr_SetString(PyExc_ValueError, "give size or fraction, not both");
        return -1;
    }
    *out = 0;
    if (by_size) {
        return limit_from_size(size, out);
    }
    return by_fraction ? limit_from_fraction(st, device, fraction, out) : 0;
}

/* ---- texts ---- */

/* The number before the percent sign: digits and at most one point, with no white space
 * but for one space at its end, as before a size's unit. */
static gm_status
parse_percentage(const char *text, size_t length, double *fraction)
{
    char number[32];
    char *end;

    if (length > 0 && text[length - 1] == ' ') {
        length--;
    }
    if (length >= sizeof number) {
        return GM_ERR_INVALID_VALUE;
    }
    memcpy(number, text, length);
    number[length] = '\0';
    if (strspn(number, "0123456789.") != length) {
        return GM_ERR_INVALID_VALUE;
    }
    *fraction = PyOS_string_to_double(number, &end, NULL) / 100.0;
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return GM_ERR_INVALID_VALUE;
    }
    return *end == '\0' && *fraction <= 1.0 ? GM_OK : GM_ERR_INVALID_VALUE;
}

static gm_status
parse_limit(const char *text, size_t length, limit_text *out)
{
    *out = (limit_text){.by_fraction = length > 0 && text[length - 1] == '%'};
    return out->by_fraction ? parse_percentage(text, length - 1, &out->fraction)
                            : gmpy_parse_size(text, length, &out->size);
}

/* The variable that holds, or NULL where none is set. */
static const char *
limit_variable(const char **text)
{
    *text = getenv("GPUMEM_MEMORY_LIMIT");
    if (*text) {
        return "GPUMEM_MEMORY_LIMIT";
    }
    *text = getenv("CUPY_GPU_MEMORY_LIMIT");
    return *text ? "CUPY_GPU_MEMORY_LIMIT" : NULL;
}

int
gmpy_default_limit(gmpy_state *st, int device, size_t *out)
{
    const char *text;
    const char *variable = limit_variable(&text);
    limit_text limit;

    *out = 0;
    if (!variable) {
        return 0;
    }
    if (parse_limit(text, strlen(text), &limit) != GM_OK) {
        PyErr_Format(PyExc_ValueError, "environment variable %s is '%s'; accepted: %s",
                     variable, text, LIMIT_FORMS);
        return -1;
    }
    if (limit.by_fraction) {
        return limit_of_fraction(st, device, limit.fraction, out);
    }
    *out = limit.size;
    return 0;
}

/* ---- for the command line and tests ---- */

PyDoc_STRVAR(
    parse_limit_doc,
    "_parse_limit(text=None, /)\n"
    "--\n"
    "\n"
    "Reads a limit as the environment's variables have it, or the one that is\n"
    "set. Returns {'size': bytes or None, 'fraction': part or None}; _LIMIT_FORMS\n"
    "says what is accepted.\n"
    "\n"
    "Raises:\n"
    "    ValueError: it is not a limit.");

/* The text to read: new reference, NULL where no variable is set or with an exception.
 */
static PyObject *
text_to_parse(PyObject *arg)
{
    const char *text;

    if (arg == Py_None) {
        return limit_variable(&text) ? PyUnicode_DecodeFSDefault(text) : NULL;
    }
    if (!PyUnicode_Check(arg)) {
        return PyErr_Format(PyExc_TypeError, "a limit is given as a str, not %.200s",
                            Py_TYPE(arg)->tp_name);
    }
    return Py_NewRef(arg);
}

static PyObject *
limit_parse(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *arg = Py_None;
    PyObject *text;
    limit_text limit = {0};
    gm_status status = GM_ERR_INVALID_VALUE;

    if (!PyArg_ParseTuple(args, "|O:_parse_limit", &arg)) {
        return NULL;
    }
    text = text_to_parse(arg);
    if (!text) {
        return PyErr_Occurred()
                   ? NULL
                   : Py_BuildValue("{s:O,s:O}", "size", Py_None, "fraction", Py_None);
    }
    if (PyUnicode_IS_ASCII(text)) { // the rest has no form that is accepted
        status = parse_limit((const char *)PyUnicode_1BYTE_DATA(text),
                             (size_t)PyUnicode_GET_LENGTH(text), &limit);
    }
    if (status != GM_OK) {
        PyErr_Format(PyExc_ValueError, "%R is not a limit; expected %s", text,
                     LIMIT_FORMS);
    }
    Py_DECREF(text);
    if (status != GM_OK) {
        return NULL;
    }
    return limit.by_fraction
               ? Py_BuildValue("{s:O,s:d}", "size", Py_None, "fraction", limit.fraction)
               : Py_BuildValue("{s:n,s:O}", "size", (Py_ssize_t)limit.size, "fraction",
                               Py_None);
}

static PyMethodDef limit_methods[] = {
    {"_parse_limit", limit_parse, METH_VARARGS, parse_limit_doc},
    {0},
};

int
gmpy_limit_init(PyObject *module, gmpy_state *Py_UNUSED(st))
{
    if (PyModule_AddFunctions(module, limit_methods) < 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "_LIMIT_FORMS", LIMIT_FORMS);
}
