/* SPDX-License-Identifier: MIT
 *
 * The host's side of a copy: what an argument that stands for host memory means.
 *
 *   an integer                       its address, taken as it is
 *   a buffer, ctypes arrays and      its bytes: contiguous, long enough, and writable
 *   structures included              where they are written
 *   a pointer of ctypes.POINTER      where it points
 *   c_void_p, c_size_t, c_char_p,    the address in its `value`, or the bytes
 *   or anything with a `value`
 *
 * A MemoryPointer is the device's side, also where it is a buffer.
 *
 * A null pointer is refused. Of an address only the device can say that it is wrong.
 *
 * Threading: a range belongs to one call. Making one may run Python code.
 */
#include "module.h"
#include "pointer.h"

#include <string.h> // memcpy

void
gmpy_host_range_fini(gmpy_host_range *range)
{
    PyBuffer_Release(&range->buffer); // does nothing where none is held
}

static int
host_range_from_buffer(PyObject *arg, size_t size, bool writable, gmpy_host_range *out)
{
    int flags = writable ? PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS : PyBUF_C_CONTIGUOUS;

    if (PyObject_GetBuffer(arg, &out->buffer, flags) < 0) {
        return -1;
    }
    if ((size_t)out->buffer.len < size) {
        PyErr_Format(PyExc_ValueError,
                     "%zu bytes do not fit the host buffer of %zd bytes", size,
                     out->buffer.len);
        gmpy_host_range_fini(out);
        return -1;
    }
    out->address = (uintptr_t)out->buffer.buf;
    return 0;
}

/* True where `arg` is an instance of that type of ctypes, -1 with an exception. Asks
 * for the module only where it was imported, since no such object can exist before. */
static int
is_ctypes(PyObject *arg, const char *type_name)
{
    PyObject *name;
    PyObject *module;
    PyObject *type;
    int result;

    if (Py_IS_TYPE(Py_TYPE(arg), &PyType_Type)) { // ctypes' types have their own type
        return 0;
    }
    name = PyUnicode_FromString("_ctypes");
    module = name ? PyImport_GetModule(name) : NULL;
    Py_XDECREF(name);
    if (!module) {
        return PyErr_Occurred() ? -1 : 0;
    }
    type = PyObject_GetAttrString(module, type_name);
    Py_DECREF(module);
    result = type ? PyObject_IsInstance(arg, type) : -1;
    Py_XDECREF(type);
    return result;
}

static int
refuse_null(void)
{
    PyErr_SetString(PyExc_TypeError, "mem is a null pointer");
    return -1;
}

/* Where a pointer of ctypes.POINTER or ctypes.cast points: its own buffer is the
 * pointer's bytes. */
static int
host_range_from_pointer(PyObject *arg, gmpy_host_range *out)
{
    Py_buffer bytes;

    if (PyObject_GetBuffer(arg, &bytes, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    memcpy(&out->address, bytes.buf, sizeof out->address);
    PyBuffer_Release(&bytes);
    return out->address ? 0 : refuse_null();
}

/* An object with a `value`: c_void_p, c_size_t, c_char_p, or what looks like them. */
static int
host_range_from_value(PyObject *arg, size_t size, bool writable, gmpy_host_range *out)
{
    PyObject *value = PyObject_GetAttrString(arg, "value");
    int result;

    if (!value) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError,
                         "mem must be an address, a ctypes pointer or a buffer, not %s",
                         Py_TYPE(arg)->tp_name);
        }
        return -1;
    }
    if (value == Py_None) {
        result = refuse_null();
    }
    else if (PyIndex_Check(value)) {
        result = gmpy_as_address(value, "mem.value", &out->address);
    }
    else {
        result = host_range_from_buffer(value, size, writable, out); // c_char_p's
    }
    Py_DECREF(value);
    return result;
}

int
gmpy_host_range_init(
    gmpy_state *st, PyObject *arg, size_t size, bool writable, gmpy_host_range *out)
{
    int pointer;
    int simple;

    *out = (gmpy_host_range){0};
    /* Buffers before numbers, since a NumPy array also has __index__. Of ctypes, arrays
     * and structures are memory themselves; a pointer and a number say where it is. */
    if (gmpy_is_pointer(st, arg)) {
        PyErr_SetString(PyExc_TypeError,
                        "mem must be the host's memory, not a MemoryPointer; "
                        "copy_from_device and copy_from take one");
        return -1;
    }
    if (!PyObject_CheckBuffer(arg)) {
        return PyIndex_Check(arg) ? gmpy_as_address(arg, "mem", &out->address)
                                  : host_range_from_value(arg, size, writable, out);
    }
    pointer = is_ctypes(arg, "_Pointer");
    if (pointer) {
        return pointer < 0 ? -1 : host_range_from_pointer(arg, out);
    }
    simple = is_ctypes(arg, "_SimpleCData");
    if (simple) {
        return simple < 0 ? -1 : host_range_from_value(arg, size, writable, out);
    }
    if (PyIndex_Check(arg) && !PySequence_Check(arg)) {
        return gmpy_as_address(arg, "mem", &out->address); // a NumPy integer
    }
    return host_range_from_buffer(arg, size, writable, out);
}
