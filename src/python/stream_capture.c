/* SPDX-License-Identifier: MIT
 *
 * Recording a stream's work into a Graph.
 *
 * The device records; the core keeps the memory that is handed out meanwhile apart
 * (core/gm_capture.h). So a recording is begun in the core first and on the device
 * then, and ended in the other order: nothing that only tidies up disturbs it.
 *
 * A recording belongs to the stream and not to the object that began it: it may be
 * ended through any object of the stream. So the core has the capture until whoever
 * ends the recording takes it; then the Graph has it, or, where there is none, it is
 * let go. A recording that is open when the object that began it dies, or a stream of
 * ours, is ended with that.
 *
 * Threading: any thread; of several that begin or end a recording on one stream at the
 * same time all but one are refused. In another mode than relaxed the thread that began
 * a recording has to end it.
 */
#include "later.h"
#include "stream.h"

#include "core/gm_capture.h"

static inline gmpy_stream *
stream_of(PyObject *op)
{
    return (gmpy_stream *)op;
}

enum {
    INVALIDATED = 901, // the runtime's cudaErrorStreamCaptureInvalidated
};

/* ---- the capture ---- */

/* What the core knows the stream's capture by. */
static gm_stream_use
use_of(const gmpy_stream *self)
{
    return (gm_stream_use){
        .stream = self->handle,
        .key = self->key,
        .device = self->device_id,
        .life = self->life,
        .announced = self->owned,
    };
}

/* Whether the recording that the capture is of is under way; a spoilt one is, and has
 * no number any more. Needs no interpreter. */
static bool
is_open(const gm_backend *backend, const gmpy_stream *self, const gm_capture *capture)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id = 0;

    return gm_backend_stream_capture(backend, self->handle, &state, &id) == GM_OK &&
           (state == GM_CAPTURE_INVALIDATED ||
            (state == GM_CAPTURE_ACTIVE && id == gm_capture_number(capture)));
}

/* Takes the stream's capture, NULL where there is none. One that is left of a recording
 * that somebody else ended by the handle is let go. GM_BUSY. */
static gm_status
take_capture(const gm_backend *backend, const gmpy_stream *self, gm_capture **out)
{
    const gm_stream_use by = use_of(self);
    gm_status status = gm_capture_take(&by, out);

    if (status == GM_OK && *out && !is_open(backend, self, *out)) {
        gm_capture_release(*out);
        *out = NULL;
    }
    return status;
}

/* Raises for a call that failed; `what` names it. Always returns NULL. */
static PyObject *
raise_failed(gmpy_state *st, gm_status status, const char *what)
{
    if (status == GM_BUSY) {
        return PyErr_Format(PyExc_RuntimeError,
                            "%s: another thread is beginning or ending a recording on "
                            "this stream",
                            what);
    }
    return gmpy_raise(st, status, what);
}

/* ---- beginning ---- */

/* The `mode` argument. 0 or -1. */
static int
as_mode(PyObject *arg, gm_capture_mode *out)
{
    int mode = GM_CAPTURE_MODE_RELAXED;

    if (arg && arg != Py_None && gmpy_as_int(arg, "mode", &mode) < 0) {
        return -1;
    }
    if (mode < GM_CAPTURE_MODE_GLOBAL || mode > GM_CAPTURE_MODE_RELAXED) {
        PyErr_Format(PyExc_ValueError,
                     "mode must be one of streamCaptureModeGlobal (0), "
                     "streamCaptureModeThreadLocal (1) and streamCaptureModeRelaxed "
                     "(2), not %d",
                     mode);
        return -1;
    }
    *out = (gm_capture_mode)mode;
    return 0;
}

/* Has the device record, for a capture that has begun. */
static gm_status
begin_on_device(const gm_backend *backend,
                gmpy_stream *self,
                gm_capture *capture,
                gm_capture_mode mode)
{
    gm_capture_state state;
    gm_graph graph = 0;
    uint64_t id = 0;
    gm_status status = gm_backend_capture_begin(backend, self->handle, mode);

    if (status != GM_OK) {
        return status;
    }
    status = gm_backend_stream_capture(backend, self->handle, &state, &id);
    if (status == GM_OK) {
        gm_capture_identify(capture, id);
        __atomic_store_n(&self->recording, id, __ATOMIC_RELAXED);
    }
    else if (gm_backend_capture_end(backend, self->handle, &graph) == GM_OK) {
        (void)gm_backend_graph_destroy(backend, graph); // of nothing
    }
    return status;
}

static gm_status
begin_now(const gm_backend *backend, gmpy_stream *self, gm_capture_mode mode)
{
    const gmpy_stream_ref ref = gmpy_stream_ref_of(self);
    const gm_stream_use by = use_of(self);
    gm_capture *capture = NULL;
    gm_status status = gmpy_stream_confirm(backend, &ref);

    if (status == GM_OK) {
        status = take_capture(backend, self, &capture);
    }
    if (capture) {
        gm_capture_leave(capture);
        return GM_ERR_CAPTURING;
    }
    if (status == GM_OK) {
        status = gm_capture_begin(&by, mode, &capture);
    }
    if (status != GM_OK) {
        return status;
    }
    status = begin_on_device(backend, self, capture, mode);
    if (status == GM_OK) {
        gm_capture_leave(capture);
    }
    else {
        gm_capture_release(capture);
    }
    return status;
}

const char gmpy_stream_begin_capture_doc[] = PyDoc_STR(
    "begin_capture($self, /, mode=None)\n"
    "--\n"
    "\n"
    "Begins to record: what is queued on this stream from now on, and on streams\n"
    "that wait for its events, becomes part of a graph and does not run.\n"
    "\n"
    "Meanwhile memory comes from what the pool has cached for the stream, and a\n"
    "request that this cannot serve is an error that leaves the recording as it\n"
    "is: run the work once before, so that the cache has what it needs.\n"
    "\n"
    "Args:\n"
    "    mode (int): which calls of which threads spoil the recording:\n"
    "        streamCaptureModeGlobal, streamCaptureModeThreadLocal or\n"
    "        streamCaptureModeRelaxed; None is the last one.\n"
    "\n"
    "Raises:\n"
    "    RuntimeError: the stream is a default one, is gone, or records already.\n"
    "    ValueError: there is no such mode.\n"
    "    TypeError: mode is no integer.\n"
    "    CUDARuntimeError: the runtime refuses.");

PyObject *
gmpy_stream_begin_capture(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {"begin_capture", 1, 0, 1, {"mode"}};
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given[1];
    gm_capture_mode mode;
    gm_status status;

    if (!backend || gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        as_mode(given[0], &mode) < 0 || gmpy_stream_check(st, stream_of(op)) < 0) {
        return NULL;
    }
    if (stream_of(op)->handle <= GM_STREAM_PER_THREAD) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a default stream cannot be recorded; make a Stream");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = begin_now(backend, stream_of(op), mode);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return raise_failed(st, status, "Stream.begin_capture");
    }
    Py_RETURN_NONE;
}

/* ---- ending ---- */

/* Ends the recording; `made` becomes its graph. *open where it is under way still. */
static gm_status
end_now(gmpy_state *st, gmpy_stream *self, PyObject *made, bool *open)
{
    const gm_backend *backend = st->backend;
    const gmpy_stream_ref ref = gmpy_stream_ref_of(self);
    gm_capture *capture = NULL;
    gm_graph graph = 0;
    gm_status status = gmpy_stream_confirm(backend, &ref);

    *open = false;
    if (status == GM_OK) {
        status = take_capture(backend, self, &capture);
    }
    if (status == GM_OK) {
        status = gm_backend_capture_end(backend, self->handle, &graph);
    }
    if (status == GM_OK) {
        if (capture) {
            gm_capture_end(capture);
        }
        return gmpy_graph_make(st, made, graph, self->device_id, capture);
    }
    if (capture) {
        *open = is_open(backend, self, capture);
        if (*open) {
            gm_capture_leave(capture);
        }
        else {
            gm_capture_release(capture);
        }
    }
    return status;
}

const char gmpy_stream_end_capture_doc[] =
    PyDoc_STR("end_capture($self, /)\n"
              "--\n"
              "\n"
              "Ends the recording that begin_capture() began, on this object or\n"
              "another one of the same stream.\n"
              "\n"
              "A recording that was spoilt, by a call that its mode forbids or by a\n"
              "stream that did not join this one again, ends too, but has no graph;\n"
              "the stream can be used again.\n"
              "\n"
              "Returns:\n"
              "    Graph: the recorded work, ready to launch.\n"
              "\n"
              "Raises:\n"
              "    RuntimeError: the stream is a default one, or gone.\n"
              "    CUDARuntimeError: the stream records nothing, or the recording was\n"
              "        spoilt.");

PyObject *
gmpy_stream_end_capture(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    PyObject *made;
    gm_status status;
    bool open;

    if (!gmpy_backend(st) || gmpy_stream_check(st, stream_of(op)) < 0) {
        return NULL;
    }
    if (stream_of(op)->handle <= GM_STREAM_PER_THREAD) {
        PyErr_SetString(PyExc_RuntimeError, "a default stream records nothing");
        return NULL;
    }
    made = gmpy_graph_new(st);
    if (!made) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = end_now(st, stream_of(op), made, &open);
    Py_END_ALLOW_THREADS
    gmpy_parked_look(st);
    if (status != GM_OK) {
        Py_DECREF(made);
        return raise_failed(
            st, status,
            status == GM_DEVICE_ERROR(INVALIDATED)
                ? "Stream.end_capture: a call that its mode forbids, or a failure, "
                  "spoilt the recording; there is no graph, and the stream can be used "
                  "again"
            : open ? "Stream.end_capture: the recording goes on"
                   : "Stream.end_capture: there is no graph");
    }
    return made;
}

void
gmpy_stream_abandon_capture(gmpy_state *st, gmpy_stream *self)
{
    const gm_stream_use by = use_of(self);
    gm_capture *capture = NULL;
    gm_graph graph = 0;

    if (gm_capture_take(&by, &capture) != GM_OK || !capture) {
        return; // it is ended already, or by somebody else just now
    }
    if (!self->owned && gm_capture_number(capture) != self->recording) {
        gm_capture_leave(capture); // a later one, which another object began
        return;
    }
    if (!gmpy_device_has_ended(st, self->device_id, self->life) &&
        is_open(st->backend, self, capture) &&
        gm_backend_capture_end(st->backend, self->handle, &graph) == GM_OK) {
        (void)gm_backend_graph_destroy(st->backend, graph); // nobody has seen it
    }
    gm_capture_release(capture);
}

/* ---- asking ---- */

const char gmpy_stream_is_capturing_doc[] =
    PyDoc_STR("is_capturing($self, /)\n"
              "--\n"
              "\n"
              "Returns whether the stream records, also a recording that was spoilt\n"
              "and has not been ended. Never disturbs it.\n"
              "\n"
              "Raises:\n"
              "    RuntimeError: the stream is gone.\n"
              "    CUDARuntimeError: the runtime refuses, as for the default stream\n"
              "        while a stream records that waits for it.");

PyObject *
gmpy_stream_is_capturing(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    gmpy_state *st = gmpy_state_of(op);
    const gm_backend *backend = gmpy_backend(st);
    gm_capture_state state = GM_CAPTURE_NONE;
    gmpy_stream_ref ref;
    gm_status status;
    uint64_t id;
    gm_device_mark back;

    if (!backend || gmpy_stream_check(st, stream_of(op)) < 0) {
        return NULL;
    }
    ref = gmpy_stream_ref_of(stream_of(op));
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, &ref, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_capture(backend, ref.handle, &state, &id);
        gmpy_stream_leave(backend, &back);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(st, status, "Stream.is_capturing");
    }
    return PyBool_FromLong(state != GM_CAPTURE_NONE);
}
