/* SPDX-License-Identifier: MIT
 *
 * Memory and the streams that use it: MemoryPointer.record_stream, the uses that copies
 * record themselves, and the end of a stream of ours.
 *
 * The pool needs to know of a stream whose it is, its key, and whether somebody will
 * say when it ends. That is so for the streams that this library destroys, and for the
 * default stream of a device, which has no end. For all others, a thread's own default
 * stream among them, the pool takes a mark at once (core/gm_pending.h).
 *
 * Only memory of a pool is handed out again, so only there is anything to record.
 *
 * Cost: on the stream that the memory was taken for, one look under the pool's lock.
 * Threading: any thread; what calls the device lets others run.
 */
#include "later.h"
#include "pointer.h"
#include "stream.h"

#include "core/gm_pending.h"

int
gmpy_stream_use_of(gmpy_state *st, const gmpy_stream_ref *stream, gm_stream_use *out)
{
    *out = (gm_stream_use){
        .stream = stream->handle,
        .life = stream->life,
        .announced = stream->owned || stream->handle <= GM_STREAM_LEGACY,
    };
    return gmpy_stream_device(st, stream, &out->device) < 0
               ? -1
               : gmpy_stream_ref_key(st, stream, &out->key);
}

bool
gmpy_is_pooled(gmpy_state *st, PyObject *mem)
{
    return mem && Py_IS_TYPE(mem, gmpy_type(st->PooledMemoryType));
}

/* While the memory has its block free() did not take it, and the pool is there. */
gmpy_used
gmpy_used_begin(gmpy_state *st, PyObject *mem)
{
    gmpy_used used = {0};

    if (gmpy_is_pooled(st, mem)) {
        const gmpy_pooled_memory *pooled = (const gmpy_pooled_memory *)mem;

        Py_BEGIN_CRITICAL_SECTION(mem);
        if (pooled->block) {
            used = (gmpy_used){pooled->pool, pooled->block, pooled->base.generation};
            gm_pool_ref(used.pool);
        }
        Py_END_CRITICAL_SECTION();
    }
    return used;
}

void
gmpy_used_end(const gmpy_used *used)
{
    if (used->pool) {
        gm_pool_unref(used->pool);
    }
}

gm_status
gmpy_record_use(const gmpy_used *used, const gm_stream_use *by)
{
    gm_status status = GM_OK;

    if (used->pool) {
        gmpy_upstream_note(gmpy_upstream_of(used->pool));
        status = gm_pool_record_use(used->pool, used->block, used->generation, by);
    }
    return status == GM_ERR_NOT_OWNED ? GM_OK : status; // given back meanwhile
}

bool
gmpy_stream_use_look(const gm_backend *backend,
                     const gm_stream_use *by,
                     uint64_t *recording)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    const gmpy_stream_ref ref = {
        .handle = by->stream,
        .device = -1,
        .of = by->device,
        .owned = by->announced,
        .known = by->stream > GM_STREAM_PER_THREAD,
        .key = by->key,
    };
    uint64_t id = 0;
    gm_status status;
    gm_device_mark back;

    *recording = 0;
    if (by->stream <= GM_STREAM_LEGACY) { // never recorded, and always there
        return true;
    }
    if (gmpy_stream_confirm(backend, &ref) != GM_OK) {
        return false;
    }
    status = gm_stream_use_enter(backend, by, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_capture(backend, by->stream, &state, &id);
        gm_stream_use_leave(backend, &back);
    }
    *recording = status == GM_OK && state != GM_CAPTURE_NONE ? id : 0;
    return true;
}

/* ---- record_stream ---- */

const char gmpy_record_stream_doc[] = PyDoc_STR(
    "record_stream($self, stream)\n"
    "--\n"
    "\n"
    "Tells the pool that the memory is used on another stream.\n"
    "\n"
    "The memory then goes to nobody else until, after it is given back, that\n"
    "stream has done all that was queued on it by then. Needed where work on a\n"
    "stream other than the one that was current when the memory was asked for may\n"
    "still be queued when the last pointer dies; the copies and fills of\n"
    "MemoryPointer do it themselves. Dropping the pointer waits for nothing.\n"
    "\n"
    "For a stream that somebody else made, what was queued when record_stream was\n"
    "called is waited for even if the stream is destroyed before; what was queued\n"
    "later only if it is still there when the memory is given back.\n"
    "\n"
    "There is nothing to do, and nothing is done, for the stream that the memory\n"
    "was taken for, and for memory that is not a pool's.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): the stream; the current one if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: stream is not a stream.\n"
    "    RuntimeError: the stream is gone.\n"
    "    ValueError: the memory was given back.\n"
    "    CUDARuntimeError: the device refused, as for a stream of another library\n"
    "        that is not of the current device.\n"
    "\n"
    "Safe to call from any thread.");

PyObject *
gmpy_record_stream(PyObject *op,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames)
{
    static const gmpy_signature signature = {"record_stream", 1, 1, 1, {"stream"}};
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *given[1];
    PyObject *mem;
    gmpy_used used;
    gmpy_stream_ref stream;
    gm_stream_use by;
    gm_status status;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        !gmpy_backend(self->st) || gmpy_as_stream(self->st, given[0], &stream) < 0 ||
        gmpy_stream_use_of(self->st, &stream, &by) < 0 ||
        gmpy_pointer_mem(self, &mem) < 0) {
        return NULL;
    }
    if (gmpy_is_pooled(self->st, mem) &&
        !gmpy_memory_ptr((const gmpy_base_memory *)mem)) {
        PyErr_SetString(PyExc_ValueError, "the memory was given back");
        return NULL;
    }
    used = gmpy_used_begin(self->st, mem);
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_confirm(self->st->backend, &stream);
    if (status == GM_OK) {
        status = gmpy_record_use(&used, &by);
    }
    gmpy_used_end(&used);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(self->st, status, "recording that a stream uses memory");
    }
    Py_RETURN_NONE;
}

/* ---- streams that end, and waiting for them ---- */

void
gmpy_stream_ends(const gm_backend *backend, const gmpy_stream *stream)
{
    const gm_stream_use by = {
        .stream = stream->handle,
        .key = stream->key,
        .device = stream->device_id,
        .life = stream->life,
        .announced = true,
    };

    gm_pools_end_stream(backend, &by);
}

void
gmpy_waited(gmpy_state *st)
{
    Py_BEGIN_ALLOW_THREADS
    gm_pools_sweep();
    Py_END_ALLOW_THREADS
    gmpy_upstreams_look(st);
    gmpy_parked_look(st);
    gmpy_watch_look(st, true);
}
