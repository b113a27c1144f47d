/* SPDX-License-Identifier: MIT
 *
 * The methods of BaseStream that call the device: waiting, asking, ordering by events.
 *
 * A stream of ours cannot end while its object is used, so its handle goes to the
 * driver as it is. What somebody else made may have been destroyed, and its handle
 * given out again: gmpy_stream_enter finds that.
 *
 * Threading: any thread. All calls let other threads run, `done` too, so that a loop
 * that polls it starves nobody.
 */
#include "stream.h"

static inline gmpy_stream *
stream_of(PyObject *op)
{
    return (gmpy_stream *)op;
}

/* ---- calls on its device ---- */

/* What can be asked of a stream. */
typedef enum stream_call {
    STREAM_QUERY,
    STREAM_SYNCHRONIZE,
    STREAM_RECORD,
    STREAM_WAIT,
} stream_call;

static gm_status
stream_call_now(const gm_backend *backend,
                stream_call call,
                gm_stream handle,
                gm_event event)
{
    switch (call) {
    case STREAM_QUERY:
        return gm_backend_stream_query(backend, handle);
    case STREAM_SYNCHRONIZE:
        return gm_backend_stream_synchronize(backend, handle);
    case STREAM_RECORD:
        return gm_backend_event_record(backend, event, handle);
    case STREAM_WAIT:
        return gm_backend_stream_wait_event(backend, handle, event);
    }
    return GM_ERR_INTERNAL;
}

/* The call, on the stream's device and without the interpreter; `event` where it takes
 * one. */
static gm_status
stream_do(const gm_backend *backend,
          stream_call call,
          const gmpy_stream *self,
          gm_event event)
{
    const gmpy_stream_ref ref = gmpy_stream_ref_of(self);
    gm_status status;
    gm_device_mark back;

    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, &ref, &back);
    if (status == GM_OK) {
        status = stream_call_now(backend, call, ref.handle, event);
        gmpy_stream_leave(backend, &back);
    }
    Py_END_ALLOW_THREADS
    return status;
}

const char gmpy_stream_synchronize_doc[] =
    PyDoc_STR("synchronize($self, /)\n"
              "--\n"
              "\n"
              "Waits until all work queued on this stream is done.\n"
              "\n"
              "Other threads run meanwhile.\n"
              "\n"
              "Raises:\n"
              "    CUDARuntimeError: that work failed.");

PyObject *
gmpy_stream_synchronize(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend || gmpy_stream_check(st, stream_of(op)) < 0) {
        return NULL;
    }
    status = stream_do(backend, STREAM_SYNCHRONIZE, stream_of(op), 0);
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Stream.synchronize");
    }
    gmpy_waited(gmpy_state_of(op));
    Py_RETURN_NONE;
}

PyObject *
gmpy_stream_done(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_status status;

    if (!backend || gmpy_stream_check(st, stream_of(op)) < 0) {
        return NULL;
    }
    status = stream_do(backend, STREAM_QUERY, stream_of(op), 0);
    if (status != GM_OK && status != GM_NOT_READY) {
        return gmpy_raise(st, status, "Stream.done");
    }
    return PyBool_FromLong(status == GM_OK);
}

const char gmpy_stream_record_doc[] = PyDoc_STR(
    "record($self, /, event=None)\n"
    "--\n"
    "\n"
    "Lets an event happen when all that is queued on this stream now is done.\n"
    "\n"
    "Args:\n"
    "    event (Event): the event; None makes one on this stream's device.\n"
    "\n"
    "Returns:\n"
    "    The event.\n"
    "\n"
    "Raises:\n"
    "    TypeError: event is no event.\n"
    "    ValueError: event is of another device.\n"
    "    RuntimeError: the stream or the event is gone.\n"
    "    CUDARuntimeError: the runtime refuses.");

static const gmpy_signature record_signature = {"record", 1, 0, 1, {"event"}};

/* The `event` argument of record, made where there is none: new reference. */
static PyObject *
event_to_record(gmpy_state *st, PyObject *op, PyObject *given)
{
    int device = stream_of(op)->device_id;

    if (given && given != Py_None) {
        return Py_NewRef(given);
    }
    if (device < 0) {
        device = gmpy_current_device(st);
    }
    return device < 0 ? NULL : gmpy_event_new(st, device, 0);
}

PyObject *
gmpy_stream_record(PyObject *op,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given;
    PyObject *event = NULL;
    gmpy_stream_ref ref;
    gm_event handle;
    gm_status status;

    if (!backend || gmpy_unpack(&record_signature, args, nargs, kwnames, &given) < 0 ||
        gmpy_stream_check(st, stream_of(op)) < 0) {
        return NULL;
    }
    ref = gmpy_stream_ref_of(stream_of(op));
    event = event_to_record(st, op, given);
    if (!event || gmpy_as_event(st, event, &handle) < 0 ||
        gmpy_event_check_stream(st, event, &ref) < 0) {
        goto fail;
    }
    status = stream_do(backend, STREAM_RECORD, stream_of(op), handle);
    if (status != GM_OK) {
        gmpy_raise(st, status, "Stream.record");
        goto fail;
    }
    gmpy_event_note_record(st, event);
    return event;

fail:
    Py_XDECREF(event);
    return NULL;
}

const char gmpy_stream_wait_event_doc[] =
    PyDoc_STR("wait_event($self, /, event)\n"
              "--\n"
              "\n"
              "Lets all that is queued on this stream from now on wait for an event.\n"
              "\n"
              "Returns at once. An event that was never recorded is not waited for.\n"
              "\n"
              "Args:\n"
              "    event (Event): the event; it may be of another device.\n"
              "\n"
              "Raises:\n"
              "    TypeError: event is no event.\n"
              "    CUDARuntimeError: the runtime refuses.");

static const gmpy_signature wait_event_signature = {"wait_event", 1, 1, 1, {"event"}};

PyObject *
gmpy_stream_wait_event(PyObject *op,
                       PyObject *const *args,
                       Py_ssize_t nargs,
                       PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *event;
    gm_event handle;
    gm_status status;

    if (!backend ||
        gmpy_unpack(&wait_event_signature, args, nargs, kwnames, &event) < 0 ||
        gmpy_stream_check(st, stream_of(op)) < 0 ||
        gmpy_as_event(st, event, &handle) < 0) {
        return NULL;
    }
    status = stream_do(backend, STREAM_WAIT, stream_of(op), handle);
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Stream.wait_event");
    }
    Py_RETURN_NONE;
}
