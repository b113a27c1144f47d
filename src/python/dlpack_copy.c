/* SPDX-License-Identifier: MIT
 *
 * Copies for consumers of DLPack that ask for one: a tensor of their own where the
 * memory is, or in plain host memory.
 *
 * The copy of device memory comes from the current allocator, that of managed and of
 * pinned memory straight from the driver. The bytes are moved behind what is queued on
 * the current stream; for the host they are there when this returns, for a device when
 * that stream gets to it.
 *
 * Threading: any thread; what calls the device lets others run.
 */
#include "dlpack.h"
#include "pinned.h"

#include "core/gm_process.h" // gm_host_alloc_aligned
#include "core/gm_size.h"    // GM_UNIT

/* New memory like the pointer's own: a pointer to it, new reference. The pointer's
 * device is current. */
static PyObject *
allocate(gmpy_state *st, size_t size, int type)
{
    PyObject *number;
    PyObject *pointer;

    if (type == DLPACK_CUDA_HOST) {
        return gmpy_pinned_pointer_to_new(
            st, gmpy_owned_memory_new(st, GM_MEM_PINNED, size));
    }
    if (type == DLPACK_CUDA_MANAGED) {
        return gmpy_pointer_to_new(st, gmpy_owned_memory_new(st, GM_MEM_MANAGED, size));
    }
    number = PyLong_FromSize_t(size);
    pointer = number ? gmpy_alloc(st, number) : NULL;
    Py_XDECREF(number);
    return pointer;
}

static PyObject *
allocate_on(gmpy_state *st, size_t size, int type, int device)
{
    gm_device_mark back;
    PyObject *pointer;

    if (gmpy_device_enter(st, device, &back) < 0) {
        return NULL;
    }
    pointer = allocate(st, size, type);
    gmpy_device_leave(st, &back);
    return pointer;
}

/* 0 or -1. `to` has the bytes when the stream gets there. */
static int
queue_copy(const gmpy_pointer *self,
           size_t size,
           uintptr_t to,
           const gmpy_stream_ref *stream)
{
    const gm_backend *b = self->st->backend;
    gm_device_mark back;
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(b, stream, &back);
    if (status == GM_OK) {
        status = gm_backend_copy_async(b, to, self->ptr, size, GM_COPY_DEFAULT,
                                       stream->handle);
        gmpy_stream_leave(b, &back);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(self->st, status, "copying for a DLPack tensor");
        return -1;
    }
    return 0;
}

/* Into host memory, and waits. Before it is asked of a stream that records a graph, so
 * that nothing of it is recorded, it waits once without. */
static int
copy_to_host(const gmpy_pointer *self,
             size_t size,
             const gmpy_stream_ref *stream,
             void *bytes)
{
    return gmpy_order(self->st, stream, NULL) < 0 ||
                   queue_copy(self, size, (uintptr_t)bytes, stream) < 0
               ? -1
               : gmpy_order(self->st, stream, NULL);
}

int
gmpy_dlpack_copy_make(const gmpy_pointer *self,
                      size_t size,
                      const dlpack_device *target,
                      const gmpy_stream_ref *stream,
                      gmpy_dlpack_copy *out)
{
    *out = (gmpy_dlpack_copy){0};
    if (target->type == DLPACK_CPU) {
        out->bytes = size <= GM_SIZE_MAX
                         ? gm_host_alloc_aligned(GM_UNIT, gm_size_round(size))
                         : NULL;
        if (!out->bytes) {
            PyErr_Format(PyExc_MemoryError, "the host has no %zu bytes", size);
            return -1;
        }
        if (copy_to_host(self, size, stream, out->bytes) < 0) {
            gm_host_free(out->bytes);
            return -1;
        }
        return 0;
    }
    out->pointer = allocate_on(self->st, size, target->type, self->device_id);
    if (!out->pointer) {
        return -1;
    }
    if (queue_copy(self, size, ((gmpy_pointer *)out->pointer)->ptr, stream) < 0) {
        Py_DECREF(out->pointer);
        return -1;
    }
    return 0;
}
