/* SPDX-License-Identifier: MIT
 *
 * The order of work when memory goes from one library to another.
 *
 * Who hands memory over says: what I have queued for it so far is on this stream. Who
 * takes it says: what I am going to do with it is on that one. In between goes an
 * event, so that neither the host nor any other stream waits. Ours is the calling
 * thread's current stream of the memory's device, as it is for everything else that is
 * queued.
 *
 * A stream that is being recorded cannot wait for one that is not, nor the other way
 * about: asked to, the driver ends the recording with an error. So it is not asked.
 *
 * Cost: two streams that are the same one cost nothing but the question whether they
 * are; else an event is made, recorded, waited for and destroyed, about two
 * microseconds a device. Threading: any thread; what calls the device lets others run.
 */
#include "exchange.h"
#include "later.h"

int
gmpy_stream_of_device(gmpy_state *st, int device, gmpy_stream_ref *out)
{
    const gmpy_current *currents = gmpy_this_thread.currents;
    const gmpy_stream *stream;

    if (device < 0 || device >= st->device_count) { // Python code wrote it
        PyErr_Format(PyExc_ValueError, "there is no device %d, but %d of them", device,
                     st->device_count);
        return -1;
    }
    if (!currents || !currents[device].stream) {
        *out = gmpy_stream_of_number(GM_STREAM_NULL, device);
        return 0;
    }
    stream = (const gmpy_stream *)currents[device].stream;
    *out = gmpy_stream_ref_of(stream);
    if (out->of < 0) { // a default stream of whichever device
        out->device = device;
        out->of = device;
    }
    return gmpy_stream_check(st, stream);
}

gmpy_stream_ref
gmpy_stream_of_number(uintptr_t number, int device)
{
    bool is_default = number <= GM_STREAM_PER_THREAD;

    return (gmpy_stream_ref){
        .handle = number,
        .device = is_default ? device : -1,
        .of = is_default ? device : -1,
    };
}

/* ---- the order of two streams ---- */

typedef struct end {
    gmpy_stream_ref ref;
    gm_stream_use use; // which stream it is, and of which device
} end;

static int
end_init(gmpy_state *st, const gmpy_stream_ref *ref, end *out)
{
    out->ref = *ref;
    return gmpy_stream_use_of(st, ref, &out->use);
}

/* The number of the recording that the stream takes part in, 0 for none. */
static gm_status
recording_of(const gm_backend *b, const gmpy_stream_ref *ref, uint64_t *out)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id = 0;
    gm_status status = GM_OK;

    if (ref->handle > GM_STREAM_LEGACY) { // which is never recorded
        status = gm_backend_stream_capture(b, ref->handle, &state, &id);
    }
    *out = status == GM_OK && state != GM_CAPTURE_NONE ? id : 0;
    return status;
}

/* The same on its device, and confirms that it is there. */
static gm_status
look_at(const gm_backend *b, const gmpy_stream_ref *ref, uint64_t *recording)
{
    gm_device_mark back;
    gm_status status = gmpy_stream_enter(b, ref, &back);

    if (status == GM_OK) {
        status = recording_of(b, ref, recording);
        gmpy_stream_leave(b, &back);
    }
    return status;
}

static gm_status
record_on(const gm_backend *b, const gmpy_stream_ref *ref, gm_event event)
{
    gm_device_mark back;
    gm_status status = gmpy_stream_enter(b, ref, &back);

    if (status == GM_OK) {
        status = gm_backend_event_record(b, event, ref->handle);
        gmpy_stream_leave(b, &back);
    }
    return status;
}

static gm_status
wait_on(const gm_backend *b, const gmpy_stream_ref *ref, gm_event event)
{
    gm_device_mark back;
    gm_status status = gmpy_stream_enter(b, ref, &back);

    if (status == GM_OK) {
        status = gm_backend_stream_wait_event(b, ref->handle, event);
        gmpy_stream_leave(b, &back);
    }
    return status;
}

/* GM_ERR_CAPTURING, and nothing happened, where one is being recorded and the other is
 * not, or not in the same recording. */
static gm_status
order_streams(const gm_backend *b, const end *before, const end *after)
{
    uint64_t recording = 0;
    uint64_t other = 0;
    gm_event event = 0;
    gm_status status = look_at(b, &before->ref, &recording);

    if (status == GM_OK) {
        status = look_at(b, &after->ref, &other);
    }
    if (status == GM_OK && recording != other) {
        status = GM_ERR_CAPTURING;
    }
    if (status == GM_OK) {
        status = gm_backend_event_create(b, before->use.device, GM_EVENT_DISABLE_TIMING,
                                         &event);
    }
    if (status != GM_OK) {
        return status;
    }
    status = record_on(b, &before->ref, event);
    if (status == GM_OK) {
        status = wait_on(b, &after->ref, event);
    }
    (void)gm_backend_event_destroy(b, event); // whoever waits for it still does
    return status;
}

static gm_status
wait_for(const gm_backend *b, const gmpy_stream_ref *ref)
{
    uint64_t recording = 0;
    gm_device_mark back;
    gm_status status = gmpy_stream_enter(b, ref, &back);

    if (status != GM_OK) {
        return status;
    }
    status = recording_of(b, ref, &recording);
    if (status == GM_OK) {
        status = recording ? GM_ERR_CAPTURING
                           : gm_backend_stream_synchronize(b, ref->handle);
    }
    gmpy_stream_leave(b, &back);
    return status;
}

int
gmpy_order(gmpy_state *st, const gmpy_stream_ref *before, const gmpy_stream_ref *after)
{
    const gm_backend *backend = st->backend;
    gm_status status;
    end from;
    end to;

    if (end_init(st, before, &from) < 0 || (after && end_init(st, after, &to) < 0)) {
        return -1;
    }
    if (after && from.use.key == to.use.key && from.use.device == to.use.device) {
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    status = after ? order_streams(backend, &from, &to) : wait_for(backend, &from.ref);
    Py_END_ALLOW_THREADS
    if (status == GM_ERR_CAPTURING) {
        PyErr_SetString(
            PyExc_RuntimeError,
            "memory changes hands between a stream that records a graph and "
            "one that does not take part; do it before the recording");
        return -1;
    }
    if (status != GM_OK) {
        gmpy_raise(st, status, "ordering two streams");
        return -1;
    }
    if (!after) {
        gmpy_waited(st);
    }
    return 0;
}

int
gmpy_record_stream_of(gmpy_state *st, PyObject *mem, const gmpy_stream_ref *stream)
{
    gm_stream_use by;
    gmpy_used used;
    gm_status status;

    if (!gmpy_is_pooled(st, mem)) {
        return 0;
    }
    if (gmpy_stream_use_of(st, stream, &by) < 0) {
        return -1;
    }
    used = gmpy_used_begin(st, mem);
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_record_use(&used, &by);
    gmpy_used_end(&used);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "recording that a stream uses memory");
        return -1;
    }
    return 0;
}
