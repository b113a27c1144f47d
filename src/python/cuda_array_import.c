/* SPDX-License-Identifier: MIT
 *
 * from_cuda_array_interface: the memory of another library's array, by the address that
 * its __cuda_array_interface__ gives.
 *
 * The array itself is what keeps the memory, so the pointer keeps the array. Where the
 * interface names a stream, the calling thread's current stream of the array's device
 * waits for what is queued there; the host does not.
 *
 * Threading: any thread. Reading the interface may be Python code.
 */
#include "imports.h"

#include <ctype.h>  // isdigit
#include <string.h> // strchr

/* ---- the entries of the dictionary ---- */

/* Borrowed; NULL where there is none, with an exception only if that failed. */
static PyObject *
entry(PyObject *interface, const char *name)
{
    PyObject *key = PyUnicode_FromString(name);
    PyObject *found = key ? PyDict_GetItemWithError(interface, key) : NULL;

    Py_XDECREF(key);
    return found == Py_None ? NULL : found;
}

/* The same of one that there has to be. */
static PyObject *
required(PyObject *interface, const char *name)
{
    PyObject *found = entry(interface, name);

    if (!found && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "__cuda_array_interface__ has no '%s'", name);
    }
    return found;
}

/* A tuple of integers into `out`; their number, or -1. */
static int
read_numbers(PyObject *tuple, const char *name, int64_t *out)
{
    Py_ssize_t count;

    if (!PyTuple_Check(tuple)) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of integers, not %R", name,
                     tuple);
        return -1;
    }
    count = PyTuple_GET_SIZE(tuple);
    if (count > GMPY_MOST_AXES) {
        PyErr_Format(PyExc_BufferError, "an array of %zd axes; at most %d are taken",
                     count, GMPY_MOST_AXES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        ptrdiff_t number;

        if (gmpy_as_offset(PyTuple_GET_ITEM(tuple, i), name, &number) < 0) {
            return -1;
        }
        out[i] = number;
    }
    return (int)count;
}

/* The bytes of an item of that type, such as "<f4". 0 or -1. */
static int
read_item_size(PyObject *typestr, size_t *out)
{
    const char *text = PyUnicode_Check(typestr) ? PyUnicode_AsUTF8(typestr) : NULL;
    size_t size = 0;
    char kind;

    if (PyErr_Occurred()) {
        return -1;
    }
    if (text && *text && strchr("<>|=", *text)) {
        text++;
    }
    kind = text ? *text : '\0';
    if (kind && strchr("biufcmMSUV", kind)) {
        for (text++; isdigit((unsigned char)*text) && size < 1u << 30; text++) {
            size = 10 * size + (size_t)(*text - '0');
        }
        if (*text == '\0' || *text == '[') { // units of time follow
            *out = kind == 'U' ? 4 * size : size;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "typestr must name a type of plain bytes, such as '<f4', not %R",
                 typestr);
    return -1;
}

static int
read_data(PyObject *data, uintptr_t *out)
{
    int read_only;

    if (!PyTuple_Check(data) || PyTuple_GET_SIZE(data) != 2) {
        PyErr_Format(PyExc_TypeError, "data must be an address and a flag, not %R",
                     data);
        return -1;
    }
    read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data, 1));
    if (read_only < 0) {
        return -1;
    }
    if (read_only) {
        PyErr_SetString(PyExc_BufferError,
                        "the array is read-only, and what is behind a MemoryPointer is "
                        "not; copy the array first");
        return -1;
    }
    return gmpy_as_address(PyTuple_GET_ITEM(data, 0), "data", out);
}

/* Strides come in bytes; here they are in items. */
static int
read_strides(PyObject *interface, size_t item, gmpy_array *array, int64_t *strides)
{
    PyObject *given = entry(interface, "strides");
    int count;

    array->strides = NULL;
    if (!given) {
        return PyErr_Occurred() ? -1 : 0;
    }
    count = read_numbers(given, "strides", strides);
    if (count < 0) {
        return -1;
    }
    if (count != array->ndim) {
        PyErr_Format(PyExc_ValueError, "%d strides for %d axes", count, array->ndim);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        // What is no multiple of the item fits no step, as 0 does not.
        strides[i] =
            item && strides[i] % (int64_t)item == 0 ? strides[i] / (int64_t)item : 0;
    }
    array->strides = strides;
    return 0;
}

/* 0 or -1. `shape` and `strides` have room for GMPY_MOST_AXES. */
static int
read_array(PyObject *interface, gmpy_array *out, int64_t *shape, int64_t *strides)
{
    PyObject *given_shape = required(interface, "shape");
    PyObject *typestr = given_shape ? required(interface, "typestr") : NULL;
    PyObject *data = typestr ? required(interface, "data") : NULL;
    size_t item = 0;

    if (!data) {
        return -1;
    }
    if (entry(interface, "mask") || PyErr_Occurred()) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_BufferError,
                            "the array has a mask, which a pointer cannot tell of");
        }
        return -1;
    }
    out->ndim = read_numbers(given_shape, "shape", shape);
    out->shape = shape;
    if (out->ndim < 0 || read_item_size(typestr, &item) < 0 ||
        read_data(data, &out->ptr) < 0) {
        return -1;
    }
    out->item_bits = 8 * item;
    return read_strides(interface, item, out, strides);
}

/* ---- the order of work ---- */

/* Has the current stream of `device` wait for the one that the interface names. */
static int
wait_for(gmpy_state *st, PyObject *interface, int device)
{
    PyObject *given = entry(interface, "stream");
    gmpy_stream_ref before;
    gmpy_stream_ref after;
    uintptr_t number;

    if (!given) {
        return PyErr_Occurred() ? -1 : 0;
    }
    if (gmpy_as_address(given, "stream", &number) < 0) {
        return -1;
    }
    if (number == GM_STREAM_NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "stream must not be 0: 1 is the legacy default stream, 2 the "
                        "thread's");
        return -1;
    }
    before = gmpy_stream_of_number(number, device);
    return gmpy_stream_of_device(st, device, &after) < 0
               ? -1
               : gmpy_order(st, &before, &after);
}

static PyObject *
import_interface(gmpy_state *st, PyObject *array, PyObject *interface)
{
    int64_t shape[GMPY_MOST_AXES];
    int64_t strides[GMPY_MOST_AXES];
    gmpy_array found = {0};
    size_t size;
    int device;

    if (!PyDict_Check(interface)) {
        return PyErr_Format(PyExc_TypeError,
                            "__cuda_array_interface__ must be a dictionary, not %s",
                            Py_TYPE(interface)->tp_name);
    }
    if (read_array(interface, &found, shape, strides) < 0 ||
        gmpy_array_size(&found, &size) < 0) {
        return NULL;
    }
    if (size && !found.ptr) {
        return PyErr_Format(PyExc_ValueError, "there are no %zu bytes at address 0",
                            size);
    }
    if (gmpy_import_device(st, size ? found.ptr : 0, &device) < 0 ||
        (size && wait_for(st, interface, device) < 0)) {
        return NULL;
    }
    return gmpy_import_pointer(st, size ? found.ptr : 0, size, array, device);
}

PyDoc_STRVAR(
    from_interface_doc,
    "from_cuda_array_interface(array)\n"
    "--\n"
    "\n"
    "The memory of another library's array, by __cuda_array_interface__.\n"
    "\n"
    "The array lives as long as any pointer into its memory. Where it names a\n"
    "stream, the calling thread's current stream of the array's device waits for\n"
    "what is queued there. Nothing is copied.\n"
    "\n"
    "Work that uses the memory has to be done, or the library's own stream has to\n"
    "wait for it, before the last pointer dies: the library may use the memory\n"
    "again at once.\n"
    "\n"
    "Args:\n"
    "    array: an object with __cuda_array_interface__, writable, without a mask,\n"
    "        whose items lie side by side.\n"
    "\n"
    "Returns:\n"
    "    MemoryPointer: to the first byte, in an UnownedMemory of as many bytes as\n"
    "    the array has.\n"
    "\n"
    "Raises:\n"
    "    BufferError: the array is read-only, has gaps or a mask, or lies where the\n"
    "        device does not reach it.\n"
    "    AttributeError: the object has no such interface.\n"
    "    TypeError, ValueError, OverflowError: what it says makes no sense.\n"
    "    RuntimeError: one of the two streams records a graph, or ours is gone.\n"
    "    CUDARuntimeError: the device refused, as for a stream that is gone.\n"
    "\n"
    "Safe to call from any thread.");

static PyObject *
from_cuda_array_interface(PyObject *module,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "from_cuda_array_interface", 1, 1, 1, {"array"}};
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *given[1];
    PyObject *interface;
    PyObject *pointer;

    if (!gmpy_backend(st) || gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    interface = PyObject_GetAttrString(given[0], "__cuda_array_interface__");
    if (!interface) {
        return NULL;
    }
    pointer = import_interface(st, given[0], interface);
    Py_DECREF(interface);
    return pointer;
}

PyMethodDef gmpy_cuda_array_import_methods[] = {
    {"from_cuda_array_interface",
     (PyCFunction)(void (*)(void))from_cuda_array_interface,
     METH_FASTCALL | METH_KEYWORDS, from_interface_doc},
    {0},
};
