/* SPDX-License-Identifier: MIT
 *
 * MemoryAsyncPool's methods that ask the driver about a device's pool, trim it or bound
 * it.
 *
 * The figures are the driver's, for all that takes from its pool. Reading them touches
 * no other device.
 */
#include "memory_kinds.h"
#include "pools.h"
#include "stream.h"

#include "core/gm_capture.h" // gm_capture_postpone_trim
#include "core/gm_process.h" // gm_process_is_forked

int
gmpy_async_pool_find(const gmpy_async_pool *self,
                     PyObject *device_arg,
                     int *device,
                     gm_mem_pool *out)
{
    if (!self->pools) {
        PyErr_SetString(PyExc_RuntimeError, "the pool was not initialized");
        return -1;
    }
    if (gm_process_is_forked()) {
        gmpy_raise(self->st, GM_ERR_FORKED, "using a memory pool");
        return -1;
    }
    if (gmpy_as_device_or_current(self->st, device_arg, device) < 0) {
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
    "free_all_blocks($self, stream=None, *, device=None)\n"
    "--\n"
    "\n"
    "Gives what a device's pool has cached back to the device.\n"
    "\n"
    "Waits for the stream first, so that what was freed in its order goes too.\n"
    "While a graph is being recorded nothing is waited for and nothing goes; what is\n"
    "cached and idle does when the recording ends.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): the stream to wait for; the device's current one if\n"
    "        None.\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: stream is not a stream.\n"
    "    ValueError: there is no such device.\n"
    "    CUDARuntimeError: the device refused.");

/* Has the pool trimmed when the recording that is under way ends, since a wait would
 * spoil it. 1; 0 where none is; or -1. */
static int
trim_later(gmpy_state *st, int device, gm_mem_pool pool)
{
    bool postponed = false;

    if (!gm_process_is_capturing()) {
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    postponed = gm_capture_postpone_trim(st->backend, device, pool);
    Py_END_ALLOW_THREADS
    if (!postponed && gm_process_is_capturing()) {
        PyErr_NoMemory();
        return -1;
    }
    return postponed;
}

/* Waits for the stream that the argument means on the current device, and trims. 0 or
 * -1. */
static int
trim_after(gmpy_state *st, PyObject *stream_arg, int device, gm_mem_pool pool)
{
    const gm_backend *backend = st->backend;
    int later;
    gmpy_stream_ref stream;
    gm_device_mark back;
    gm_status status;

    if (gmpy_as_stream(st, stream_arg, &stream) < 0) {
        return -1;
    }
    later = trim_later(st, device, pool);
    if (later != 0) {
        return later < 0 ? -1 : 0;
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
        gmpy_raise(st, status, "trimming a memory pool");
        return -1;
    }
    return 0;
}

PyObject *
gmpy_async_pool_free_all_blocks(PyObject *op,
                                PyObject *const *args,
                                Py_ssize_t nargs,
                                PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "free_all_blocks", 2, 0, 1, {"stream", "device"}};
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    PyObject *given[2];
    gm_mem_pool pool;
    int result;
    int device;
    gm_device_mark back;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_async_pool_find(self, given[1], &device, &pool) < 0 ||
        gmpy_device_enter(self->st, device, &back) < 0) {
        return NULL;
    }
    result = trim_after(self->st, given[0], device, pool);
    gmpy_device_leave(self->st, &back);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- asking ---- */

/* The figures of the pool of the device that a call of `method` names. 0 or -1. */
static int
ask_figures(PyObject *op,
            const gmpy_signature *signature,
            PyObject *const *args,
            Py_ssize_t nargs,
            PyObject *kwnames,
            gmpy_async_figures *out)
{
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    PyObject *device_arg;
    gm_mem_pool pool;
    gm_status status;
    int device;

    if (gmpy_unpack(signature, args, nargs, kwnames, &device_arg) < 0 ||
        gmpy_async_pool_find(self, device_arg, &device, &pool) < 0) {
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

#define FIGURE(name, value, text)                                                      \
    PyObject *gmpy_async_pool_##name(PyObject *op, PyObject *const *args,              \
                                     Py_ssize_t nargs, PyObject *kwnames)              \
    {                                                                                  \
        static const gmpy_signature signature = {#name, 1, 0, 1, {"device"}};          \
        gmpy_async_figures f;                                                          \
                                                                                       \
        return ask_figures(op, &signature, args, nargs, kwnames, &f) < 0               \
                   ? NULL                                                              \
                   : PyLong_FromUnsignedLongLong(value);                               \
    }                                                                                  \
    const char gmpy_async_pool_##name##_doc[] = PyDoc_STR(                             \
        #name "($self, device=None)\n"                                                 \
              "--\n"                                                                   \
              "\n"                                                                     \
              "Returns the bytes " text "\n"                                           \
              "\n"                                                                     \
              "Args:\n"                                                                \
              "    device (int or Device): which device's pool; the current one's\n"   \
              "        if None.\n"                                                     \
              "\n"                                                                     \
              "Raises:\n"                                                              \
              "    RuntimeError: the driver cannot be asked.\n"                        \
              "    ValueError: there is no such device.");
FIGURE(used_bytes, f.used, "that are in use.")
FIGURE(total_bytes, f.reserved, "that the pool holds from the device.")
FIGURE(free_bytes, f.reserved - f.used, "that it holds and that are not in use.")
FIGURE(get_limit, f.threshold, "that it may hold, 2**64-1 for no limit.")
#undef FIGURE

const char gmpy_async_pool_n_free_blocks_doc[] =
    PyDoc_STR("n_free_blocks($self, device=None)\n"
              "--\n"
              "\n"
              "Not offered: raises NotImplementedError.");

PyObject *
gmpy_async_pool_n_free_blocks(PyObject *op,
                              PyObject *const *args,
                              Py_ssize_t nargs,
                              PyObject *kwnames)
{
    static const gmpy_signature signature = {"n_free_blocks", 1, 0, 1, {"device"}};
    PyObject *device_arg;
    gm_mem_pool pool;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, &device_arg) == 0 &&
        gmpy_async_pool_find((gmpy_async_pool *)op, device_arg, &device, &pool) == 0) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "the driver does not tell how many blocks its pool has cached");
    }
    return NULL;
}

const char gmpy_async_pool_set_limit_doc[] = PyDoc_STR(
    "set_limit($self, size=None, fraction=None, *, device=None)\n"
    "--\n"
    "\n"
    "Sets the most that a device's pool may hold: the driver's\n"
    "release threshold, beyond which it gives back at the next wait what is free,\n"
    "and a soft limit for requests through this object.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0 for no limit.\n"
    "    fraction (float): a part of the device's total memory, from 0 to 1; 0\n"
    "        for no limit. With neither argument there is no limit.\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: both are given, one is out of range, or there is no such\n"
    "        device.\n"
    "    TypeError: size is not an integer, or fraction not a number.");

PyObject *
gmpy_async_pool_set_limit(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "set_limit", 3, 0, 2, {"size", "fraction", "device"}};
    const gmpy_async_pool *self = (const gmpy_async_pool *)op;
    PyObject *given[3];
    gm_mem_pool pool;
    gm_status status;
    size_t limit;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_async_pool_find(self, given[2], &device, &pool) < 0 ||
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
