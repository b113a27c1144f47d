/* SPDX-License-Identifier: MIT
 *
 * Memory that goes from one library to another: what the files of the protocols share.
 */
#ifndef GMPY_EXCHANGE_H
#define GMPY_EXCHANGE_H

#include "pointer.h"
#include "stream.h"

/* ---- exchange_order.c ---- */

/* The calling thread's current stream on `device`. 0, or -1 where it is gone. */
int gmpy_stream_of_device(gmpy_state *st, int device, gmpy_stream_ref *out);

/* The stream that a protocol means by `number`: 1 and 2 the default streams of
 * `device`, else a handle. */
gmpy_stream_ref gmpy_stream_of_number(uintptr_t number, int device);

/* The number by which protocols know it. */
static inline uintptr_t
gmpy_stream_number(const gmpy_stream_ref *stream)
{
    return stream->handle == GM_STREAM_NULL ? GM_STREAM_LEGACY : stream->handle;
}

/* Has what is queued on `after` from now on wait for what is queued on `before` now;
 * `after` NULL: the host waits itself. 0 or -1. */
int
gmpy_order(gmpy_state *st, const gmpy_stream_ref *before, const gmpy_stream_ref *after);

/* Tells the pool of `mem`, if it has one, that the stream uses it. 0 or -1. */
int gmpy_record_stream_of(gmpy_state *st, PyObject *mem, const gmpy_stream_ref *stream);

/* ---- pointer_view.c ---- */

/* What the memory is, by its type where that says so, else as the device says. Needs
 * the backend open. Other threads may run. The other one raises: 0 or -1. */
GM_MUST_CHECK gm_status gmpy_pointer_find_kind(gmpy_state *st,
                                               const gmpy_pointer *pointer,
                                               gm_pointer_kind *out);
int
gmpy_pointer_kind(gmpy_state *st, const gmpy_pointer *pointer, gm_pointer_kind *out);

/* Bytes from a pointer of either type to the end of its memory. 0; or -1 with
 * ValueError where it is not in it or the memory was given back, and RuntimeError where
 * a reset ended it. */
int gmpy_pointer_remaining(const gmpy_pointer *self, size_t *out);

/* Slots and getters of MemoryPointer. */
int gmpy_pointer_get_buffer(PyObject *op, Py_buffer *view, int flags);
void gmpy_pointer_release_buffer(PyObject *op, Py_buffer *view);
PyObject *gmpy_pointer_cuda_array_interface(PyObject *op, void *closure);

#endif
