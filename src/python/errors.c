/* SPDX-License-Identifier: MIT
 *
 * The exception types, and the one place where a status becomes an exception.
 *
 *   OutOfMemoryError(size, total, limit=0)  a MemoryError; memory ran out or the limit
 *                                           does not allow it
 *   CUDARuntimeError(status, text=None)     a RuntimeError; the runtime's own errors,
 *                                           a raw allocation that fails included
 *
 * Both pickle, with whatever attributes were added to them.
 */
#include "module.h"
#include "out_of_memory.h"

#include <limits.h> // INT_MAX
#include <string.h> // strcmp

enum {
    GMPY_OUT_OF_MEMORY_CODE = 2, // the runtime's cudaErrorMemoryAllocation
};

/* ---- its parts ---- */

static int
set_attribute(PyObject *self, const char *name, PyObject *value)
{
    return PyObject_SetAttrString(self, name, value);
}

int
gmpy_error_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return ((PyTypeObject *)PyExc_BaseException)->tp_traverse(self, visit, arg);
}

int
gmpy_error_clear(PyObject *self)
{
    return ((PyTypeObject *)PyExc_BaseException)->tp_clear(self);
}

/* (type, arguments, attributes): new reference. */
static PyObject *
reduce_error(PyObject *self, PyObject *arguments)
{
    PyObject *attributes;
    PyObject *result = NULL;

    if (!arguments) {
        return NULL;
    }
    attributes = PyObject_GetAttrString(self, "__dict__");
    if (attributes) {
        result = PyTuple_Pack(3, (PyObject *)Py_TYPE(self), arguments, attributes);
        Py_DECREF(attributes);
    }
    Py_DECREF(arguments);
    return result;
}

/* Sets args to the one message, as every exception has it. Consumes `message`. */
static int
set_message(PyObject *self, PyObject *message)
{
    PyObject *args;
    int result;

    if (!message) {
        return -1;
    }
    args = PyTuple_Pack(1, message);
    Py_DECREF(message);
    if (!args) {
        return -1;
    }
    result = PyObject_SetAttrString(self, "args", args);
    Py_DECREF(args);
    return result;
}

/* ---- CUDARuntimeError ---- */

/* What a runtime error of that number says: the runtime's name and description, the
 * bare number where no runtime is in use or it does not know the number, for which it
 * has the same answer twice. New reference. */
static PyObject *
describe_code(gmpy_state *st, int code)
{
    if (st->backend) {
        const char *name = gm_backend_error_name(st->backend, code);
        const char *text = gm_backend_error_text(st->backend, code);

        if (strcmp(name, text) != 0) {
            return PyUnicode_FromFormat("%s: %s", name, text);
        }
    }
    return PyUnicode_FromFormat("CUDA runtime error %d", code);
}

/* The same for whatever Python code gave as the number. */
static PyObject *
describe_status(gmpy_state *st, PyObject *status)
{
    int overflow = 0;
    long code = PyLong_Check(status) ? PyLong_AsLongAndOverflow(status, &overflow) : -1;

    if (code < 0 || code > INT_MAX) { // also where it overflows
        return PyUnicode_FromFormat("CUDA runtime error %S", status);
    }
    return describe_code(st, (int)code);
}

PyDoc_STRVAR(
    runtime_error_doc,
    "CUDARuntimeError(status, text=None)\n"
    "--\n"
    "\n"
    "An error of the device runtime.\n"
    "\n"
    "Its text is the runtime's name for the error and its description, unless\n"
    "another one is given; before the first use of a device, the number.\n"
    "\n"
    "Attributes:\n"
    "    status (int): the runtime's number for the error.");

static const gmpy_signature runtime_error_signature = {
    "CUDARuntimeError", 2, 1, 2, {"status", "text"}};

static int
runtime_error_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *given[2];
    PyObject *message;

    if (gmpy_unpack_init(&runtime_error_signature, args, kwargs, given) < 0 ||
        set_attribute(self, "status", given[0]) < 0) {
        return -1;
    }
    if (given[1] && given[1] != Py_None) {
        message = PyObject_Str(given[1]);
    }
    else {
        message = describe_status(gmpy_state_of(self), given[0]);
    }
    return set_message(self, message);
}

static PyObject *
runtime_error_reduce(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *status = PyObject_GetAttrString(self, "status");
    PyObject *text = status ? PyObject_Str(self) : NULL;
    PyObject *arguments = text ? PyTuple_Pack(2, status, text) : NULL;

    Py_XDECREF(text);
    Py_XDECREF(status);
    return reduce_error(self, arguments);
}

static PyMethodDef runtime_error_methods[] = {
    {"__reduce__", runtime_error_reduce, METH_NOARGS, "Pickles with its status."},
    {0},
};

static PyType_Slot runtime_error_slots[] = {
    {Py_tp_doc, (void *)runtime_error_doc}, {Py_tp_init, runtime_error_init},
    {Py_tp_traverse, gmpy_error_traverse},  {Py_tp_clear, gmpy_error_clear},
    {Py_tp_methods, runtime_error_methods}, {0, NULL},
};

static PyType_Spec runtime_error_spec = {
    .name = "gpumem.CUDARuntimeError",
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = runtime_error_slots,
};

/* ---- raising ---- */

/* Whether a runtime error is one of the work that ran on the device, after which the
 * device is of no use to this process any more. */
static bool
is_device_fault(int code)
{
    switch (code) {
    case 214: // cudaErrorECCUncorrectable
    case 220: // cudaErrorNvlinkUncorrectable
    case 700: // cudaErrorIllegalAddress
    case 702: // cudaErrorLaunchTimeout
    case 710: // cudaErrorAssert
    case 714: // cudaErrorHardwareStackError
    case 715: // cudaErrorIllegalInstruction
    case 716: // cudaErrorMisalignedAddress
    case 717: // cudaErrorInvalidAddressSpace
    case 718: // cudaErrorInvalidPc
    case 719: // cudaErrorLaunchFailure
        return true;
    default:
        return false;
    }
}

static void
raise_device_error(gmpy_state *st, int code, const char *what)
{
    PyObject *reason = describe_code(st, code);
    PyObject *text =
        reason ? PyUnicode_FromFormat("%U (%s%s)", reason, what,
                                      is_device_fault(code)
                                          ? "; a device fault: this process cannot "
                                            "use the device any more"
                                          : "")
               : NULL;
    PyObject *error =
        text ? PyObject_CallFunction(st->CUDARuntimeError, "iO", code, text) : NULL;

    Py_XDECREF(text);
    Py_XDECREF(reason);
    if (error) {
        PyErr_SetObject(st->CUDARuntimeError, error);
        Py_DECREF(error);
    }
}

/* The exception type for one of the library's own codes. */
static PyObject *
exception_of(gm_status status)
{
    switch (status) {
    case GM_ERR_HOST_MEMORY:
        return PyExc_MemoryError;
    case GM_ERR_INVALID_VALUE:
    case GM_ERR_INVALID_DEVICE:
        return PyExc_ValueError;
    default:
        return PyExc_RuntimeError;
    }
}

PyObject *
gmpy_raise(gmpy_state *st, gm_status status, const char *what)
{
    if (status == GM_ERR_CALLBACK) {
        return NULL;
    }
    if (status == GM_ERR_OUT_OF_MEMORY) {
        raise_device_error(st, GMPY_OUT_OF_MEMORY_CODE, what);
        return NULL;
    }
    if (gm_status_is_device(status)) {
        raise_device_error(st, gm_status_device_code(status), what);
        return NULL;
    }
    if (status == GM_ERR_FORKED) {
        PyErr_Format(PyExc_RuntimeError,
                     "%s: the device was opened before this process was forked and "
                     "cannot be used here; start worker processes with the 'spawn' or "
                     "'forkserver' method",
                     what);
        return NULL;
    }
    PyErr_Format(exception_of(status), "%s: %s", what, gm_status_text(status));
    return NULL;
}

bool
gmpy_error_is_shortage(gmpy_state *st)
{
    bool shortage = false;

    if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return true;
    }
    if (PyErr_ExceptionMatches(st->CUDARuntimeError)) {
        GMPY_TAKE_ERROR(error);
        PyObject *status = GMPY_ERROR_ATTRIBUTE(error, "status");

        shortage = status && PyLong_CheckExact(status) &&
                   PyLong_AsLong(status) == GMPY_OUT_OF_MEMORY_CODE;
        Py_XDECREF(status);
        PyErr_Clear();
        GMPY_GIVE_ERROR(error);
    }
    return shortage;
}

void
gmpy_drop(PyObject **place)
{
    GMPY_TAKE_ERROR(pending);

    Py_CLEAR(*place);
    GMPY_GIVE_ERROR(pending);
}

void
gmpy_unraisable(gmpy_state *st, gm_status status, const char *what)
{
    GMPY_TAKE_ERROR(pending);

    if (status != GM_ERR_CALLBACK) {
        gmpy_raise(st, status, what);
    }
    PyErr_WriteUnraisable(NULL);
    GMPY_GIVE_ERROR(pending);
}

bool
gmpy_release_is_news(gmpy_state *st, gm_status status)
{
    gm_status before = __atomic_exchange_n(&st->refused, status, __ATOMIC_RELAXED);

    return status != GM_OK && status != before;
}

void
gmpy_report_release(gmpy_state *st, gm_status status, const char *what)
{
    if (gmpy_release_is_news(st, status)) {
        gmpy_unraisable(st, status, what);
    }
}

int
gmpy_errors_init(PyObject *module, gmpy_state *st)
{
    if (gmpy_out_of_memory_init(module, st) < 0) {
        return -1;
    }
    st->CUDARuntimeError =
        PyType_FromModuleAndSpec(module, &runtime_error_spec, PyExc_RuntimeError);
    if (!st->CUDARuntimeError) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "CUDARuntimeError", st->CUDARuntimeError);
}
