/* SPDX-License-Identifier: MIT
 *
 * A MemoryPointer as others see it without a copy: as a buffer where the host reaches
 * the memory, and by __cuda_array_interface__.
 *
 * What is seen are bytes, from the pointer to the end of its memory: shapes and types
 * are the business of array libraries. A pool rounds its memory up to whole units, so
 * there may be more of them than were asked for.
 *
 * A buffer keeps the memory where it is, also when that is given back by hand
 * (exports.c). __cuda_array_interface__ is but an address: whoever reads it keeps the
 * pointer, and who gives the memory back by hand all the same takes it away from him.
 * It names the calling thread's current stream, behind whose work the bytes are ready,
 * and the pool is told that this stream uses them; of the stream that the reader uses
 * instead it cannot know.
 *
 * Threading: any thread. A buffer waits for no device: what is in it is the program's
 * to order, as with pinned memory.
 */
#include "exchange.h"
#include "pinned.h"

gm_status
gmpy_pointer_find_kind(gmpy_state *st,
                       const gmpy_pointer *pointer,
                       gm_pointer_kind *out)
{
    PyObject *mem = gmpy_memory_under(st, pointer->mem);
    gm_pointer_info info = {.kind = GM_POINTER_DEVICE};
    gm_status status = GM_OK;

    if (!mem || PyObject_TypeCheck(mem, gmpy_type(st->MemoryType)) ||
        PyObject_TypeCheck(mem, gmpy_type(st->MemoryAsyncType)) ||
        PyObject_TypeCheck(mem, gmpy_type(st->IPCMemoryType))) {
        *out = GM_POINTER_DEVICE;
    }
    else if (PyObject_TypeCheck(mem, gmpy_type(st->ManagedMemoryType))) {
        *out = GM_POINTER_MANAGED;
    }
    else if (PyObject_TypeCheck(mem, gmpy_type(st->PinnedMemoryType))) {
        *out = GM_POINTER_HOST;
    }
    else if (PyObject_TypeCheck(mem, gmpy_type(st->SystemMemoryType))) {
        *out = GM_POINTER_UNREGISTERED;
    }
    else if (pointer->ptr) { // it may be anything
        Py_BEGIN_ALLOW_THREADS
        status = gm_backend_pointer_info(st->backend, pointer->ptr, &info);
        Py_END_ALLOW_THREADS
        *out = info.kind;
    }
    else {
        *out = GM_POINTER_DEVICE;
    }
    Py_XDECREF(mem);
    return status;
}

static int
raise_unknown(gmpy_state *st, gm_status status)
{
    gmpy_raise(st, status, "asking what kind of memory an address is");
    return -1;
}

int
gmpy_pointer_kind(gmpy_state *st, const gmpy_pointer *pointer, gm_pointer_kind *out)
{
    gm_status status = gmpy_pointer_find_kind(st, pointer, out);

    return status == GM_OK ? 0 : raise_unknown(st, status);
}

int
gmpy_pointer_remaining(const gmpy_pointer *self, size_t *out)
{
    const gmpy_base_memory *mem = (const gmpy_base_memory *)GMPY_SEE(&self->mem);
    uintptr_t base;
    size_t start;

    if (!mem) {
        return gmpy_pointer_is_none(self);
    }
    base = gmpy_memory_ptr(mem);
    if (!base && mem->size) {
        PyErr_SetString(PyExc_ValueError, "the memory was given back");
        return -1;
    }
    start = self->ptr - base; // wraps, and so fails below, before the start
    if (start > mem->size) {
        PyErr_Format(PyExc_ValueError, "offset %zd is outside the memory of %zu bytes",
                     (Py_ssize_t)start, mem->size);
        return -1;
    }
    if (base && gmpy_memory_check(self->st, self->mem) < 0) {
        return -1;
    }
    *out = mem->size - start;
    return 0;
}

/* ---- the buffer ---- */

/* 0 where the host reaches the memory, else -1 with BufferError. */
static int
check_visible(const gmpy_pointer *self)
{
    const gm_backend *backend = gmpy_backend(self->st);
    gm_pointer_kind kind;

    if (!backend) {
        return -1;
    }
    if (backend->caps & GM_CAP_SIMULATED) {
        return 0;
    }
    if (gmpy_pointer_kind(self->st, self, &kind) < 0) {
        return -1;
    }
    if (kind == GM_POINTER_DEVICE) {
        PyErr_Format(PyExc_BufferError,
                     "the host cannot look into the memory of device %d; copy_to_host "
                     "copies it, and CuPy, PyTorch and Numba can view it",
                     self->device_id);
        return -1;
    }
    return 0;
}

static int
fill(gmpy_pointer *self, Py_buffer *view, int flags)
{
    size_t size;

    if (gmpy_pointer_remaining(self, &size) < 0 || (size && check_visible(self) < 0)) {
        return -1;
    }
    if (size > PY_SSIZE_T_MAX) { // only where Python code wrote the memory's size
        PyErr_Format(PyExc_BufferError, "%zu bytes are more than a buffer can have",
                     size);
        return -1;
    }
    // An empty buffer has an address too: some consumers take none for no buffer.
    return PyBuffer_FillInfo(view, (PyObject *)self,
                             (void *)(size ? self->ptr : (uintptr_t)self),
                             (Py_ssize_t)size, 0, flags);
}

/* Announced before the memory is looked at: from then on free() by another thread is
 * put off, and one that came earlier is seen. */
int
gmpy_pointer_get_buffer(PyObject *op, Py_buffer *view, int flags)
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    PyObject *mem;

    view->obj = NULL;
    if (gmpy_pointer_mem(self, &mem) < 0) {
        return -1;
    }
    if (!mem) {
        return gmpy_pointer_is_none(self);
    }
    if (gmpy_export_begin(self->st, mem) < 0) {
        return -1;
    }
    if (fill(self, view, flags) < 0) {
        gmpy_export_end(self->st, mem);
        return -1;
    }
    return 0;
}

void
gmpy_pointer_release_buffer(PyObject *op, Py_buffer *Py_UNUSED(view))
{
    gmpy_export_end(((gmpy_pointer *)op)->st, ((gmpy_pointer *)op)->mem);
}

/* ---- __cuda_array_interface__ ---- */

/* 0 where the device reaches the memory, else -1 with AttributeError: then there is no
 * such attribute. */
static int
check_reached(const gmpy_pointer *self)
{
    gm_pointer_kind kind;
    unsigned support = 0;
    gm_status status;

    if (gmpy_pointer_kind(self->st, self, &kind) < 0) {
        return -1;
    }
    if (kind == GM_POINTER_UNREGISTERED) {
        status =
            gm_backend_device_support(self->st->backend, self->device_id, &support);
        if (status != GM_OK) {
            return raise_unknown(self->st, status);
        }
        if (!(support & GM_DEVICE_PAGEABLE_ACCESS)) {
            PyErr_Format(PyExc_AttributeError,
                         "%s is plain host memory, which device %d does not reach, so "
                         "it has no __cuda_array_interface__",
                         gmpy_as_hex(self->ptr).text, self->device_id);
            return -1;
        }
    }
    return 0;
}

PyObject *
gmpy_pointer_cuda_array_interface(PyObject *op, void *Py_UNUSED(closure))
{
    gmpy_pointer *self = (gmpy_pointer *)op;
    gmpy_stream_ref stream;
    PyObject *mem;
    size_t size;

    if (!gmpy_backend(self->st) || gmpy_pointer_mem(self, &mem) < 0 ||
        gmpy_pointer_remaining(self, &size) < 0) {
        return NULL;
    }
    if (size == 0) { // nothing that anybody could have to wait for
        return Py_BuildValue("{s(i)sss(iO)sOsi}", "shape", 0, "typestr", "|u1", "data",
                             0, Py_False, "stream", Py_None, "version", 3);
    }
    if (check_reached(self) < 0 ||
        gmpy_stream_of_device(self->st, self->device_id, &stream) < 0 ||
        gmpy_record_stream_of(self->st, mem, &stream) < 0) {
        return NULL;
    }
    return Py_BuildValue("{s(K)sss(KO)sKsi}", "shape", (unsigned long long)size,
                         "typestr", "|u1", "data", (unsigned long long)self->ptr,
                         Py_False, "stream",
                         (unsigned long long)gmpy_stream_number(&stream), "version", 3);
}
