/* SPDX-License-Identifier: MIT
 *
 * MemoryAsyncPool's methods that ask the driver about the current device's pool, trim
 * it or bound it.
 *
 * The figures are the driver's, for all that takes from its pool. Reading them touches
 * no other device.
 */
#include "memory_kinds.h"
#include "pools.h"
#include "stream.h"

#include "core/gm_process.h" // gm_process_is_forked

int
gmpy_async_pool_find(const gmpy_async_pool *self, int *device, gm_mem_pool *out)
{
    if (!self->pools) {
        PyErr_SetString(PyExc_RuntimeError, "the pool was not initialized");
        return -1;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(self->st, GM_ERR_FORKED, "using a memory pool");
        return -1;
    }
    *device = gmpy_current_device(self->st);
    if (*device < 0) {
        return -1;
    }
    *out = self->pools[*device];
    return 0;
}

gm_status
gmpy_async_pool_read(const gm_backend *backend,
                     gm_mem_pool pool,
                     gmpy_async_figures *out)
{
    gm_status status =
        gm_backend_mem_pool_read(backend, pool, GM_MEM_POOL_USED, &out->used);

    if (status == GM_OK) {
        status = gm_backend_mem_pool_read(backend, pool, GM_MEM_POOL_RESERVED,
                                          &out->reserved);
    }
    if (status == GM_OK) {
        status = gm_backend_mem_pool_read(backend, pool, GM_MEM_POOL_RELEASE_THRESHOLD,
                                          &out->threshold);
    }
    return status;
}

/* ---- trimming ---- */

const char gmpy_async_pool_free_all_blocks_doc[] = PyDoc_STR(
    "free_all_blocks($self, stream=None)\n"
    "--\n"
    "\n"
    "Gives what the pool of the current device has cached back to the device.\n"
    "\n"
    "Waits for the stream first, so that what was freed in its order goes too.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): the stream to wait for; the current one if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: stream is not a stream.\n"
    "    CUDARuntimeError: the device refused.");

PyObject *
gmpy_async_pool_free_all_blocks(PyObject *op,
                                PyObject *const *args,
                                Py_ssize_t nargs,
                                PyObject *kwnames)
{
    static const gmpy_signature signature = {"free_all_blocks", 1, 0, 1, {"stream"}};
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    const gm_backend *backend = self->st->backend;
    PyObject *given[1];
    gmpy_stream_ref stream;
    gm_mem_pool pool;
    gm_status status;
    int device;
    gm_device_mark back;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_async_pool_find(self, &device, &pool) < 0 ||
        gmpy_as_stream(self->st, given[0], &stream) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_stream_enter(backend, &stream, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_synchronize(backend, stream.handle);
        gmpy_stream_leave(backend, &back);
    }
    if (status == GM_OK) {
        status = gm_backend_mem_pool_trim(backend, pool, 0);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(self->st, status, "trimming a memory pool");
    }
    Py_RETURN_NONE;
}

/* ---- asking ---- */

/* The figures of the current device's pool. 0 or -1. */
static int
ask_figures(PyObject *op, gmpy_async_figures *out)
{
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    gm_mem_pool pool;
    gm_status status;
    int device;

    if (gmpy_async_pool_find(self, &device, &pool) < 0) {
        return -1;
    }
    if (!self->has_figures) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the driver cannot be asked what its pools hold; that needs "
                        "CUDA 11.3");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_async_pool_read(self->st->backend, pool, out);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(self->st, status, "asking a memory pool for its figures");
        return -1;
    }
    return 0;
}

#define FIGURE(name, value)                                                            \
    PyObject *gmpy_async_pool_##name(PyObject *op, PyObject *Py_UNUSED(ignored))       \
    {                                                                                  \
        gmpy_async_figures f;                                                          \
                                                                                       \
        return ask_figures(op, &f) < 0 ? NULL : PyLong_FromUnsignedLongLong(value);    \
    }
FIGURE(used_bytes, f.used)
FIGURE(total_bytes, f.reserved)
FIGURE(free_bytes, f.reserved - f.used)
FIGURE(get_limit, f.threshold)
#undef FIGURE

PyObject *
gmpy_async_pool_n_free_blocks(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(ignored))
{
    PyErr_SetString(PyExc_NotImplementedError,
                    "the driver does not tell how many blocks its pool has cached");
    return NULL;
}

const char gmpy_async_pool_set_limit_doc[] = PyDoc_STR(
    "set_limit($self, size=None, fraction=None)\n"
    "--\n"
    "\n"
    "Sets the most that the pool of the current device may hold: the driver's\n"
    "release threshold, beyond which it gives back at the next wait what is free,\n"
    "and a soft limit for requests through this object.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 for no limit.\n"
    "    fraction (float): a part of the device's total memory, from 0 to 1; 0\n"
    "        for no limit. With neither argument there is no limit.\n"
    "\n"
    "Raises:\n"
    "    ValueError: both are given, or one is out of range.\n"
    "    TypeError: size is not an integer, or fraction not a number.");

PyObject *
gmpy_async_pool_set_limit(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "set_limit", 2, 0, 2, {"size", "fraction"}};
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    PyObject *given[2];
    gm_mem_pool pool;
    gm_status status;
    size_t limit;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_async_pool_find(self, &device, &pool) < 0 ||
        gmpy_as_limit(self->st, device, given[0], given[1], &limit) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_pool_write(self->st->backend, pool,
                                       GM_MEM_POOL_RELEASE_THRESHOLD,
                                       limit ? limit : UINT64_MAX);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(self->st, status, "setting a memory pool's limit");
    }
    Py_RETURN_NONE;
}
