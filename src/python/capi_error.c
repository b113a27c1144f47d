/* SPDX-License-Identifier: MIT
 *
 * How calls of the C interface fail: a status, and a text that the thread keeps.
 *
 * A status is the header's, whose numbers stay, while the core's may move. The text of
 * a request that found no memory is that of Python's OutOfMemoryError.
 *
 * Threading: a thread sees its own last error. Nothing here needs the interpreter, but
 * where it is said.
 */
#include "capi.h"
#include "out_of_memory.h"

#include <stdarg.h>

/* ---- statuses ---- */

static gpumem_status
status_of(gm_status status)
{
    switch (status) {
    case GM_OK:
        return GPUMEM_OK;
    case GM_ERR_OUT_OF_MEMORY:
    case GM_ERR_LIMIT:
    case GM_ERR_TOO_LARGE:
        return GPUMEM_ERROR_OUT_OF_MEMORY;
    case GM_ERR_HOST_MEMORY:
        return GPUMEM_ERROR_HOST_MEMORY;
    case GM_ERR_INVALID_VALUE:
        return GPUMEM_ERROR_INVALID_VALUE;
    case GM_ERR_INVALID_DEVICE:
        return GPUMEM_ERROR_INVALID_DEVICE;
    case GM_ERR_NOT_OWNED:
        return GPUMEM_ERROR_NOT_OWNED;
    case GM_ERR_CAPTURING:
        return GPUMEM_ERROR_CAPTURING;
    case GM_ERR_STREAM_GONE:
        return GPUMEM_ERROR_STREAM_GONE;
    case GM_ERR_UNSUPPORTED:
        return GPUMEM_ERROR_UNSUPPORTED;
    case GM_ERR_FORKED:
        return GPUMEM_ERROR_FORKED;
    case GM_ERR_EXITING:
        return GPUMEM_ERROR_EXITING;
    case GM_ERR_CALLBACK:
        return GPUMEM_ERROR_PYTHON;
    default:
        return gm_status_is_device(status) ? GPUMEM_ERROR_DEVICE
                                           : GPUMEM_ERROR_INTERNAL;
    }
}

GPUMEM_EXPORT const char *
gpumem_status_text(int status)
{
    switch ((gpumem_status)status) {
    case GPUMEM_OK:
        return "success";
    case GPUMEM_ERROR_OUT_OF_MEMORY:
        return "there is no memory for it, or the limit does not allow it";
    case GPUMEM_ERROR_HOST_MEMORY:
        return "the host has no memory left";
    case GPUMEM_ERROR_INVALID_VALUE:
        return "an argument is out of range";
    case GPUMEM_ERROR_INVALID_DEVICE:
        return "there is no such device, or the pool is on another one";
    case GPUMEM_ERROR_NOT_OWNED:
        return "no live memory of this interface starts there";
    case GPUMEM_ERROR_CAPTURING:
        return "the stream is recording a graph";
    case GPUMEM_ERROR_STREAM_GONE:
        return "the stream was destroyed";
    case GPUMEM_ERROR_FORKED:
        return "the device was opened before this process was forked";
    case GPUMEM_ERROR_EXITING:
        return "the process is exiting";
    case GPUMEM_ERROR_NOT_LOADED:
        return "the Python module gpumem is not loaded";
    case GPUMEM_ERROR_PYTHON:
        return "Python code raised";
    case GPUMEM_ERROR_DEVICE:
        return "the device's runtime refused";
    case GPUMEM_ERROR_UNSUPPORTED:
        return "this cannot be done here";
    case GPUMEM_ERROR_INTERNAL:
        return "an internal promise was broken";
    }
    return "unknown status";
}

/* ---- texts ---- */

GPUMEM_EXPORT const char *
gpumem_last_error(void)
{
    return gmpy_this_c_error.text;
}

int
gmpy_c_fail_text(gpumem_status status, const char *format, ...)
{
    gmpy_c_error *error = &gmpy_this_c_error;
    va_list arguments;

    va_start(arguments, format);
    PyOS_vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    return (int)status;
}

int
gmpy_c_fail(const gmpy_c_api *api, gm_status status, const char *what)
{
    gpumem_status answer = status_of(status);

    if (gm_status_is_device(status)) {
        const gm_backend *backend = api->st->backend;
        int code = gm_status_device_code(status);

        return gmpy_c_fail_text(answer, "%s: %s (error %d: %s)", what,
                                gm_backend_error_name(backend, code), code,
                                gm_backend_error_text(backend, code));
    }
    if (status == GM_ERR_CALLBACK) {
        return (int)answer;
    }
    return gmpy_c_fail_text(answer, "%s: %s", what, gm_status_text(status));
}

int
gmpy_c_fail_exception(gmpy_state *st)
{
    gpumem_status status = GPUMEM_ERROR_PYTHON;
    PyObject *error = gmpy_take_exception();
    PyObject *text = error ? PyObject_Str(error) : NULL;
    const char *chars = text ? PyUnicode_AsUTF8(text) : NULL;

    if (!error) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INTERNAL, "no exception is pending");
    }
    if (PyErr_GivenExceptionMatches(error, st->OutOfMemoryError)) {
        status = GPUMEM_ERROR_OUT_OF_MEMORY;
    }
    else if (PyErr_GivenExceptionMatches(error, PyExc_MemoryError)) {
        status = GPUMEM_ERROR_HOST_MEMORY;
    }
    else if (PyErr_GivenExceptionMatches(error, PyExc_ValueError)) {
        status = GPUMEM_ERROR_INVALID_VALUE;
    }
    PyErr_Clear(); // of its text, if there is none
    (void)gmpy_c_fail_text(status, "%s: %s", Py_TYPE(error)->tp_name,
                           chars ? chars : "(without a text)");
    Py_XDECREF(text);
    Py_DECREF(error);
    return (int)status;
}
