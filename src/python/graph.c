/* SPDX-License-Identifier: MIT
 *
 * Graph: work that a stream recorded, ready to be launched as often as one likes.
 *
 * Made by Stream.end_capture alone. It owns three things: the graph, which the text is
 * made from; the same ready to launch; and the memory of its capture
 * (core/gm_capture.h), which the recorded addresses point into, so that it goes to
 * nobody else while the graph may run. All are given back when the object dies, without
 * waiting: launches under way go on, and the memory comes back when they are done.
 *
 * Cost: a launch is one call of the runtime, and a note in each pool that served the
 * recording.
 *
 * Threading: any thread. Calls that reach the device let other threads run.
 */
#include "stream.h"

#include "core/gm_capture.h"
#include "core/gm_process.h" // gm_process_is_frozen

#include <structmember.h> // T_PYSSIZET, READONLY

#include <sys/mman.h> // memfd_create
#include <unistd.h>   // close, pread, lseek

typedef struct graph {
    PyObject_HEAD
    gm_graph graph; // 0 until it is made
    gm_graph_exec exec;
    gm_capture *capture; // NULL where somebody else began the recording
    int device_id;
    uint64_t life; // of its device
    PyObject *weakrefs;
} graph;

static inline graph *
graph_of(PyObject *op)
{
    return (graph *)op;
}

/* ---- life ---- */

PyObject *
gmpy_graph_new(gmpy_state *st)
{
    PyTypeObject *type = gmpy_type(st->GraphType);

    return type->tp_alloc(type, 0);
}

gm_status
gmpy_graph_make(
    gmpy_state *st, PyObject *op, gm_graph made, int device, gm_capture *capture)
{
    graph *self = graph_of(op);

    self->graph = made;
    self->capture = capture;
    self->device_id = device;
    self->life = gmpy_device_life(st, device);
    return gm_backend_graph_instantiate(st->backend, made, &self->exec);
}

/* Gives back what the graph owns. Needs no interpreter. Returns the first failure. */
static gm_status
graph_release(gmpy_state *st, const graph *self)
{
    gm_status first = GM_OK;
    gm_status second = GM_OK;

    if (!gmpy_device_has_ended(st, self->device_id, self->life)) {
        if (self->exec && !gm_capture_postpone_end(st->backend, self->exec)) {
            first = gm_backend_graph_exec_destroy(st->backend, self->exec);
        }
        second = gm_backend_graph_destroy(st->backend, self->graph);
    }
    if (self->capture) {
        gm_capture_release(self->capture);
    }
    return first == GM_OK ? second : first;
}

static void
graph_dealloc(PyObject *op)
{
    graph *self = graph_of(op);
    PyTypeObject *type = Py_TYPE(op);

    if (self->weakrefs) {
        PyObject_ClearWeakRefs(op);
    }
    if (self->graph && !gm_process_is_frozen()) {
        gmpy_state *st = gmpy_state_of(op);
        gm_status status;

        Py_BEGIN_ALLOW_THREADS
        status = graph_release(st, self);
        Py_END_ALLOW_THREADS
        gmpy_report_release(st, status, "destroying a graph");
        gmpy_upstreams_look(st);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* 0 where the graph is there as far as is known, else -1 with RuntimeError. */
static int
graph_check(gmpy_state *st, const graph *self)
{
    if (gmpy_device_has_ended_known(st, self->device_id, self->life)) {
        PyErr_Format(PyExc_RuntimeError,
                     "the graph is gone: device %d was reset after it was recorded; "
                     "record it again",
                     self->device_id);
        return -1;
    }
    return 0;
}

/* ---- launching ---- */

/* The launch, after which the memory of the capture is in use on the stream. Where that
 * cannot be noted it is over when this returns. */
static gm_status
launch_now(const gm_backend *backend, const graph *self, const gm_stream_use *by)
{
    gm_status status = gm_backend_graph_launch(backend, self->exec, by->stream);

    if (status == GM_OK && self->capture &&
        gm_capture_launched(self->capture, by) != GM_OK) {
        status = gm_backend_stream_synchronize(backend, by->stream);
    }
    return status;
}

static gm_status
upload_now(const gm_backend *backend, const graph *self, const gm_stream_use *by)
{
    return gm_backend_graph_upload(backend, self->exec, by->stream);
}

/* GM_ERR_CAPTURING where the stream records: the graph would become part of another
 * one, which nobody would keep the memory of this one for. A stream that cannot be
 * asked is left to what is queued. */
static gm_status
check_not_recording(const gm_backend *backend, gm_stream stream)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id;

    if (stream <= GM_STREAM_LEGACY ||
        gm_backend_stream_capture(backend, stream, &state, &id) != GM_OK ||
        state == GM_CAPTURE_NONE) {
        return GM_OK;
    }
    return GM_ERR_CAPTURING;
}

/* A method that takes a stream and queues something of the graph on it. */
static PyObject *
graph_queue(PyObject *op,
            PyObject *arg,
            gm_status (*now)(const gm_backend *, const graph *, const gm_stream_use *),
            const char *what)
{
    gmpy_state *st = gmpy_state_of(op);
    gmpy_stream_ref stream;
    gm_stream_use by;
    gm_status status;
    gm_device_mark back;

    if (graph_check(st, graph_of(op)) < 0 || gmpy_as_stream(st, arg, &stream) < 0 ||
        gmpy_stream_use_of(st, &stream, &by) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(st->backend, &stream, &back);
    if (status == GM_OK) {
        status = check_not_recording(st->backend, stream.handle);
        if (status == GM_OK) {
            status = now(st->backend, graph_of(op), &by);
        }
        gmpy_stream_leave(st->backend, &back);
    }
    Py_END_ALLOW_THREADS
    if (status == GM_ERR_CAPTURING) {
        return PyErr_Format(PyExc_RuntimeError,
                            "%s: the stream records a graph, which another one cannot "
                            "become part of; use a stream that does not record, or "
                            "record the same work again",
                            what);
    }
    if (status != GM_OK) {
        return gmpy_raise(st, status, what);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(
    launch_doc,
    "launch($self, /, stream=None)\n"
    "--\n"
    "\n"
    "Queues all the recorded work on a stream, and returns at once.\n"
    "\n"
    "The memory that was handed out during the recording is in use until the\n"
    "stream has done it, also where the graph dies before.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): the stream; the current one if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: stream is no stream.\n"
    "    RuntimeError: the stream or the graph is gone, or the stream records\n"
    "        a graph, which goes on.\n"
    "    CUDARuntimeError: the runtime refuses.");

static PyObject *
graph_launch(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const gmpy_signature signature = {"launch", 1, 0, 1, {"stream"}};
    PyObject *given[1];

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    return graph_queue(op, given[0], launch_now, "Graph.launch");
}

PyDoc_STRVAR(
    upload_doc,
    "upload($self, /, stream=None)\n"
    "--\n"
    "\n"
    "Brings the graph to the device ahead of its first launch, in the order of\n"
    "a stream.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): the stream; the current one if None.\n"
    "\n"
    "Raises:\n"
    "    As launch().");

static PyObject *
graph_upload(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const gmpy_signature signature = {"upload", 1, 0, 1, {"stream"}};
    PyObject *given[1];

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    return graph_queue(op, given[0], upload_now, "Graph.upload");
}

/* ---- as text ---- */

/* What was written to `file`, as text: new reference. */
static PyObject *
read_all(int file)
{
    off_t size = lseek(file, 0, SEEK_END);
    PyObject *bytes = size < 0 ? PyErr_SetFromErrno(PyExc_OSError)
                               : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    PyObject *text = NULL;
    ssize_t got;

    if (!bytes) {
        return NULL;
    }
    got = pread(file, PyBytes_AS_STRING(bytes), (size_t)size, 0);
    if (got != size) {
        PyErr_SetString(PyExc_RuntimeError, "the text of the graph cannot be read");
    }
    else {
        text =
            PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes), (Py_ssize_t)size, "replace");
    }
    Py_DECREF(bytes);
    return text;
}

PyDoc_STRVAR(
    debug_dot_str_doc,
    "debug_dot_str($self, /, flags=0)\n"
    "--\n"
    "\n"
    "Returns the graph as text in the DOT language of Graphviz.\n"
    "\n"
    "Args:\n"
    "    flags (int): how much it tells; the runtime's cudaGraphDebugDotFlags.\n"
    "\n"
    "Raises:\n"
    "    ValueError: flags is negative.\n"
    "    TypeError: flags is no integer.\n"
    "    RuntimeError: the graph is gone.\n"
    "    CUDARuntimeError: the runtime refuses.");

static PyObject *
graph_debug_dot_str(PyObject *op,
                    PyObject *const *args,
                    Py_ssize_t nargs,
                    PyObject *kwnames)
{
    static const gmpy_signature signature = {"debug_dot_str", 1, 0, 1, {"flags"}};
    gmpy_state *st = gmpy_state_of(op);
    PyObject *given[1];
    PyObject *text = NULL;
    char path[32];
    gm_status status;
    int flags = 0;
    int file;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        (given[0] && gmpy_as_int(given[0], "flags", &flags) < 0) ||
        graph_check(st, graph_of(op)) < 0) {
        return NULL;
    }
    if (flags < 0) {
        return PyErr_Format(PyExc_ValueError, "flags must not be negative, as %d is",
                            flags);
    }
    // The runtime writes to a path alone; this one leaves nothing in any folder.
    file = memfd_create("gpumem graph", MFD_CLOEXEC);
    if (file < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyOS_snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_graph_debug_dot(st->backend, graph_of(op)->graph, path,
                                        (unsigned)flags);
    Py_END_ALLOW_THREADS
    text = status == GM_OK ? read_all(file)
                           : gmpy_raise(st, status, "Graph.debug_dot_str");
    (void)close(file); // it was in memory
    return text;
}

/* ---- the type ---- */

PyDoc_STRVAR(
    graph_doc,
    "Work that a stream recorded, to be launched as often as one likes.\n"
    "\n"
    "Made by Stream.end_capture(). Memory that a pool handed out during the\n"
    "recording stays the graph's until it dies and its launches are done, whether\n"
    "it was dropped or not; other memory that the recorded work uses has to be\n"
    "kept by the program.\n"
    "\n"
    "Attributes:\n"
    "    device_id (int): number of the device.\n"
    "\n"
    "Safe to share between threads.");

static PyMethodDef graph_methods[] = {
    {"launch", (PyCFunction)(void (*)(void))graph_launch, METH_FASTCALL | METH_KEYWORDS,
     launch_doc},
    {"upload", (PyCFunction)(void (*)(void))graph_upload, METH_FASTCALL | METH_KEYWORDS,
     upload_doc},
    {"debug_dot_str", (PyCFunction)(void (*)(void))graph_debug_dot_str,
     METH_FASTCALL | METH_KEYWORDS, debug_dot_str_doc},
    {0},
};

static PyMemberDef graph_members[] = {
    {"device_id", T_INT, offsetof(graph, device_id), READONLY, "number of the device"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(graph, weakrefs), READONLY, NULL},
    {0},
};

static PyType_Slot graph_slots[] = {
    {Py_tp_doc, (void *)graph_doc},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_methods, graph_methods},
    {Py_tp_members, graph_members},
    {0, NULL},
};

static PyType_Spec graph_spec = {
    .name = "gpumem.Graph",
    .basicsize = sizeof(graph),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = graph_slots,
};

int
gmpy_graph_init(PyObject *module, gmpy_state *st)
{
    st->GraphType = PyType_FromModuleAndSpec(module, &graph_spec, NULL);
    if (!st->GraphType ||
        PyModule_AddIntConstant(module, "streamCaptureModeGlobal",
                                GM_CAPTURE_MODE_GLOBAL) < 0 ||
        PyModule_AddIntConstant(module, "streamCaptureModeThreadLocal",
                                GM_CAPTURE_MODE_THREAD_LOCAL) < 0 ||
        PyModule_AddIntConstant(module, "streamCaptureModeRelaxed",
                                GM_CAPTURE_MODE_RELAXED) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Graph", st->GraphType);
}
