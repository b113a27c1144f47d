/* SPDX-License-Identifier: MIT
 *
 * Sizes as people write them: "8GiB", "1.5 tb", "4096".
 *
 * The one reader of such texts, for the environment (runtime.c) and, as _parse_size,
 * for the command line:
 *
 *     size    digits                  whole bytes
 *             digits B
 *             digits unit
 *             digits . digits unit    cut to whole bytes
 *     unit    KiB MiB GiB TiB (powers of 1024), KB MB GB TB (powers of 1000)
 *
 * Upper and lower case are the same, and one space may stand before a unit. No sign, no
 * exponent, no other space. The arithmetic is on integers, so that what is written is
 * what is meant, to the byte; the locale has no say.
 *
 * Threading: no state.
 */
#include "module.h"

#include <string.h> // strlen

/* No object is larger, and no caller has a use for more. */
static const size_t largest = PY_SSIZE_T_MAX;

static const struct {
    const char *name;
    size_t bytes;
} units[] = {
    {"B", 1},
    {"KiB", (size_t)1 << 10},
    {"MiB", (size_t)1 << 20},
    {"GiB", (size_t)1 << 30},
    {"TiB", (size_t)1 << 40},
    {"KB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
};

static const char *
skip_digits(const char *at, const char *end)
{
    while (at < end && Py_ISDIGIT(Py_CHARMASK(*at))) {
        at++;
    }
    return at;
}

static bool
is_name(const char *at, const char *end, const char *name)
{
    if ((size_t)(end - at) != strlen(name)) {
        return false;
    }
    while (at < end && Py_TOLOWER(Py_CHARMASK(*at)) == Py_TOLOWER(*name)) {
        at++;
        name++;
    }
    return at == end;
}

/* Bytes of the unit that the text from `at` to `end` is, 0 where it is none. Nothing at
 * all means bytes. */
static size_t
find_unit(const char *at, const char *end)
{
    if (at == end) {
        return 1;
    }
    if (*at == ' ') {
        at++;
    }
    for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++) {
        if (is_name(at, end, units[i].name)) {
            return units[i].bytes;
        }
    }
    return 0;
}

/* The number that the digits from `at` to `end` write; false above `largest`. */
static bool
read_whole(const char *at, const char *end, size_t *out)
{
    size_t number = 0;

    for (; at < end; at++) {
        size_t digit = (size_t)(*at - '0');

        if (number > (largest - digit) / 10) {
            return false;
        }
        number = 10 * number + digit;
    }
    *out = number;
    return true;
}

/* 0.DIGITS times `unit`, cut to whole bytes. Horner's scheme from the last digit to the
 * first; what a division by 10 cuts off could not make a byte in those that follow, so
 * the result is exact for any number of digits. No overflow: it stays below `unit`. */
static size_t
read_fraction(const char *at, const char *end, size_t unit)
{
    size_t bytes = 0;

    while (end > at) {
        bytes = ((size_t)(*--end - '0') * unit + bytes) / 10;
    }
    return bytes;
}

gm_status
gmpy_parse_size(const char *text, size_t length, size_t *out)
{
    const char *end = text + length;
    const char *point = skip_digits(text, end);
    const char *stop = point; // of the number
    size_t unit;
    size_t whole;
    size_t part = 0;

    if (point == text) {
        return GM_ERR_INVALID_VALUE;
    }
    if (point < end && *point == '.') {
        stop = skip_digits(point + 1, end);
        if (stop == point + 1) {
            return GM_ERR_INVALID_VALUE;
        }
    }
    unit = find_unit(stop, end);
    if (unit == 0 || (unit == 1 && stop != point)) {
        return GM_ERR_INVALID_VALUE;
    }
    if (stop != point) {
        part = read_fraction(point + 1, stop, unit);
    }
    if (!read_whole(text, point, &whole) || whole > (largest - part) / unit) {
        return GM_ERR_TOO_LARGE;
    }
    *out = whole * unit + part;
    return GM_OK;
}

PyDoc_STRVAR(
    parse_size_doc,
    "_parse_size(text, /)\n"
    "--\n"
    "\n"
    "Returns the bytes that a text such as '8GiB' means; _SIZE_FORMS says what\n"
    "is accepted.\n"
    "\n"
    "Raises:\n"
    "    ValueError: it is not a size.\n"
    "    OverflowError: it is too large.");

static PyObject *
size_text_parse_size(PyObject *Py_UNUSED(module), PyObject *arg)
{
    gm_status status = GM_ERR_INVALID_VALUE;
    size_t size = 0;

    if (!PyUnicode_Check(arg)) {
        return PyErr_Format(PyExc_TypeError, "a size is given as a str, not %.200s",
                            Py_TYPE(arg)->tp_name);
    }
    if (PyUnicode_IS_ASCII(arg)) { // the rest has no form that is accepted
        status = gmpy_parse_size((const char *)PyUnicode_1BYTE_DATA(arg),
                                 (size_t)PyUnicode_GET_LENGTH(arg), &size);
    }
    if (status == GM_ERR_TOO_LARGE) {
        return PyErr_Format(PyExc_OverflowError,
                            "%R is too large; the largest size is %zu bytes", arg,
                            largest);
    }
    if (status != GM_OK) {
        return PyErr_Format(PyExc_ValueError, "%R is not a size; expected %s", arg,
                            GMPY_SIZE_FORMS);
    }
    return PyLong_FromSize_t(size);
}

static PyMethodDef size_text_methods[] = {
    {"_parse_size", size_text_parse_size, METH_O, parse_size_doc},
    {0},
};

int
gmpy_size_text_init(PyObject *module, gmpy_state *Py_UNUSED(st))
{
    if (PyModule_AddFunctions(module, size_text_methods) < 0) {
        return -1;
    }
    return PyModule_AddStringConstant(module, "_SIZE_FORMS", GMPY_SIZE_FORMS);
}
