/* SPDX-License-Identifier: MIT
 *
 * Streams and events in the binding: their objects, how one becomes an argument of a
 * device call, and the helpers of each file under its name.
 *
 * A stream is three things: an object, whose reference keeps it; a gmpy_stream_ref, by
 * which a call to the device is made; and a gm_stream_key, by which a pool knows it.
 */
#ifndef GMPY_STREAM_H
#define GMPY_STREAM_H

#include "module.h"

#include "core/gm_capture.h"
#include "core/gm_note.h" // gm_stream_use

/* ---- stream.c ---- */

typedef struct gmpy_stream {
    PyObject_HEAD
    gm_stream handle;
    gm_stream_key key; // of the per-thread stream: see gmpy_stream_key
    int device_id;     // -1: whichever is current
    int priority;      // as the device took it
    bool started;      // __init__ runs, or ran
    bool ready;        // it succeeded, and the collector has not cleared it since
    bool owned;        // destroyed with the object
    bool non_blocking;
    uint64_t life;      // of its device; 0 for default streams, which have no end
    PyObject *foreign;  // whose stream it is: from_external's argument; else NULL
    uint64_t recording; // the backend's number of the one that it began last; 0: none
    PyObject *weakrefs;
} gmpy_stream;

/* 0 where the stream is there as far as is known, else -1 with RuntimeError: before
 * each use of its handle. No call. */
int gmpy_stream_check(gmpy_state *st, const gmpy_stream *stream);

/* ---- stream_work.c ---- */

/* The methods of BaseStream that call the device, and their docstrings. */
PyObject *gmpy_stream_synchronize(PyObject *op, PyObject *ignored);
PyObject *gmpy_stream_done(PyObject *op, void *closure);
PyObject *gmpy_stream_record(PyObject *op,
                             PyObject *const *args,
                             Py_ssize_t nargs,
                             PyObject *kwnames);
PyObject *gmpy_stream_wait_event(PyObject *op,
                                 PyObject *const *args,
                                 Py_ssize_t nargs,
                                 PyObject *kwnames);
extern const char gmpy_stream_synchronize_doc[];
extern const char gmpy_stream_record_doc[];
extern const char gmpy_stream_wait_event_doc[];

static inline bool
gmpy_is_stream(gmpy_state *st, PyObject *op)
{
    return PyObject_TypeCheck(op, gmpy_type(st->BaseStreamType));
}

/* ---- stream_capture.c ---- */

/* More methods of BaseStream. */
PyObject *gmpy_stream_begin_capture(PyObject *op,
                                    PyObject *const *args,
                                    Py_ssize_t nargs,
                                    PyObject *kwnames);
PyObject *gmpy_stream_end_capture(PyObject *op, PyObject *ignored);
PyObject *gmpy_stream_is_capturing(PyObject *op, PyObject *ignored);
extern const char gmpy_stream_begin_capture_doc[];
extern const char gmpy_stream_end_capture_doc[];
extern const char gmpy_stream_is_capturing_doc[];

/* Ends the recording that a stream object began and nobody ended, and that of a stream
 * of ours whoever began it, before the object goes. Needs no interpreter. */
void gmpy_stream_abandon_capture(gmpy_state *st, gmpy_stream *self);

/* ---- graph.c ---- */

/* A Graph of nothing, to be made: new reference. */
PyObject *gmpy_graph_new(gmpy_state *st);

/* Makes it of what was recorded on `device`, ready to launch. It owns both from here
 * on, also after a failure; `capture` may be NULL. Needs no interpreter. */
gm_status gmpy_graph_make(
    gmpy_state *st, PyObject *op, gm_graph made, int device, gm_capture *capture);

/* ---- stream_arg.c ---- */

/* The arena key of a stream object for the calling thread. 0 or -1. */
int gmpy_stream_key(gmpy_state *st, PyObject *stream, gm_stream_key *out);

/* A stream as a call to the device needs it. */
typedef struct gmpy_stream_ref {
    gm_stream handle;
    int device; // what has to be current for the handle to mean it; -1: whichever is
    int of;     // whose stream it is; -1: not known, for a default one the current's
    bool owned; // ours: there as long as its object is
    bool known; // `key` says which one it is; not so of default streams
    gm_stream_key key;
    uint64_t life; // of its device; 0 where it has no end or is not known
} gmpy_stream_ref;

#define GMPY_STREAM_REF_NULL                                                           \
    ((gmpy_stream_ref){.handle = GM_STREAM_NULL, .device = -1, .of = -1})

gmpy_stream_ref gmpy_stream_ref_of(const gmpy_stream *stream);

/* Around every call that is given the handle: makes the stream's device current where
 * that matters, and confirms that the stream is there (gmpy_stream_confirm); *back is
 * what to leave to, also after a failure of the call. They need no interpreter. Where
 * entering fails nothing has changed, and nothing is left. */
gm_status gmpy_stream_enter(const gm_backend *backend,
                            const gmpy_stream_ref *stream,
                            gm_device_mark *back);
void gmpy_stream_leave(const gm_backend *backend, const gm_device_mark *back);

/* The device that the stream is of: *out. Asked of the driver where the handle of a
 * stream is all that is known. 0 or -1. */
int gmpy_stream_device(gmpy_state *st, const gmpy_stream_ref *stream, int *out);

/* 0 where the stream is of that device, or a default stream of every device; else -1
 * with ValueError. */
int gmpy_stream_check_device(gmpy_state *st, const gmpy_stream_ref *stream, int device);

/* GM_ERR_STREAM_GONE where an object of ours stands for a stream that somebody else
 * made, and the handle means no stream any more, or another one. One that is being
 * recorded does not tell which it is and passes. Needs no interpreter. No call where
 * the stream is ours or a default one, or was given as a bare handle. */
gm_status gmpy_stream_confirm(const gm_backend *backend, const gmpy_stream_ref *stream);

/* What a `stream` argument means: NULL or None is the current stream, otherwise a
 * stream of ours, an object with __cuda_stream__, or one whose `ptr` is a native
 * handle. 0 or -1. */
int gmpy_as_stream(gmpy_state *st, PyObject *arg, gmpy_stream_ref *out);

/* The native handle of somebody else's stream or event (`what`): an object with an
 * integer `ptr`. 0, or -1 with TypeError. */
int gmpy_as_foreign(PyObject *arg, const char *what, uintptr_t *out);

/* What __cuda_stream__ of an object says: 1 and *out, 0 where it has none, or -1. */
int gmpy_ask_cuda_stream(PyObject *arg, gm_stream *out);

/* The arena key of a stream for the calling thread, asked of the device where it is not
 * known. Other threads may run then. 0 or -1. */
int
gmpy_stream_ref_key(gmpy_state *st, const gmpy_stream_ref *stream, gm_stream_key *out);

/* A `device_id` argument: -1, also for NULL, stays -1; the rest has to exist. 0 or -1.
 */
int gmpy_as_device_id(gmpy_state *st, PyObject *arg, int *out);

/* ---- stream_make.c ---- */

/* The types derived from BaseStream; for gmpy_stream_init. */
int gmpy_stream_make_init(PyObject *module, gmpy_state *st);

/* ---- stream_use.c ---- */

/* What a pool has to know of a stream. 0 or -1. */
int
gmpy_stream_use_of(gmpy_state *st, const gmpy_stream_ref *stream, gm_stream_use *out);

/* True for memory that a pool handed out, the kind that others may get. */
bool gmpy_is_pooled(gmpy_state *st, PyObject *mem);

/* Such memory while a use of it is recorded. Another thread may free() it meanwhile,
 * and the pool end with it. */
typedef struct gmpy_used {
    gm_pool *pool; // a reference; NULL where there is nothing to record
    gm_block *block;
    uint32_t generation;
} gmpy_used;

/* Of `mem`, which may be no such memory, or NULL. Attached; gmpy_used_end need not be.
 */
gmpy_used gmpy_used_begin(gmpy_state *st, PyObject *mem);
void gmpy_used_end(const gmpy_used *used);

/* Tells the pool that a stream uses the memory. GM_OK too where it was given back.
 * Needs no interpreter; may call the device. */
gm_status gmpy_record_use(const gmpy_used *used, const gm_stream_use *by);

/* Whether the stream is there (gmpy_stream_confirm); *recording is the backend's number
 * of the recording that it takes part in, 0 for none. Needs no interpreter. */
bool gmpy_stream_use_look(const gm_backend *backend,
                          const gm_stream_use *by,
                          uint64_t *recording);

/* Before a stream of ours is destroyed: tells all pools. Needs no interpreter. */
void gmpy_stream_ends(const gm_backend *backend, const gmpy_stream *stream);

/* ---- event.c ---- */

typedef struct gmpy_event {
    PyObject_HEAD
    gm_event handle; // 0: __init__ did not run
    int device_id;
    bool started;  // __init__ runs, or ran
    bool untimed;  // made with disable_timing
    bool recorded; // by one of our calls
    uint64_t life; // of its device
    PyObject *weakrefs;
} gmpy_event;

static inline bool
gmpy_is_event(gmpy_state *st, PyObject *op)
{
    return PyObject_TypeCheck(op, gmpy_type(st->EventType));
}

/* An Event of `device`: new reference. */
PyObject *gmpy_event_new(gmpy_state *st, int device, unsigned flags);

/* The handle of an event of ours, which has to be there as far as is known, or of an
 * object whose `ptr` is a native handle. 0 or -1. */
int gmpy_as_event(gmpy_state *st, PyObject *arg, gm_event *out);

/* 0 unless `event`, an argument that passed gmpy_as_event, is known to be of another
 * device than the stream: then -1 with ValueError. */
int
gmpy_event_check_stream(gmpy_state *st, PyObject *event, const gmpy_stream_ref *stream);

/* Notes that such an argument was recorded. */
void gmpy_event_note_record(gmpy_state *st, PyObject *event);

#endif
