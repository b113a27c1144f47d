/* SPDX-License-Identifier: MIT
 *
 * MemoryAsyncPool's methods that ask the driver about a device's pool, trim it or bound
 * it.
 *
 * The figures are the driver's, for all that takes from its pool. Reading them touches
 * no other device.
 */
#include "async_pool.h"
#include "pools.h"
#include "stream.h"

#include "core/gm_capture.h" // gm_capture_postpone_trim
#include "core/gm_process.h" // gm_process_is_capturing

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
    if (status == GM_OK && out->reserved < out->used) { // somebody trimmed in between
        out->used = out->reserved;
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
    "    ValueError: there is no such device, or stream is of another one.\n"
    "    RuntimeError: the stream is gone.\n"
    "    CUDARuntimeError: the device refused.");

size_t
gmpy_async_pools_trim(gmpy_state *st, int device)
{
    const gm_backend *b = st->backend;
    gmpy_async_figures before;
    gmpy_async_figures after;
    gm_mem_pool pool;

    if (!__atomic_load_n(&st->async_pools, __ATOMIC_RELAXED) ||
        gm_backend_mem_pool_get(b, device, false, &pool) != GM_OK ||
        gmpy_async_pool_read(b, pool, &before) != GM_OK || before.reserved == 0 ||
        gm_backend_device_synchronize(b, device) != GM_OK ||
        gm_backend_mem_pool_trim(b, pool, 0) != GM_OK ||
        gmpy_async_pool_read(b, pool, &after) != GM_OK) {
        return 0;
    }
    return before.reserved > after.reserved ? before.reserved - after.reserved : 0;
}

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

/* Waits for the stream that the argument means on `device`, the current one, and trims.
 * 0 or -1. */
static int
trim_after(gmpy_state *st, PyObject *stream_arg, int device, gm_mem_pool pool)
{
    const gm_backend *backend = st->backend;
    int later;
    gmpy_stream_ref stream;
    gm_device_mark back;
    gm_status status;

    if (gmpy_as_stream(st, stream_arg, &stream) < 0 ||
        gmpy_stream_check_device(st, &stream, device) < 0) {
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
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    PyObject *given[2];
    gmpy_async_part part;
    int result;
    int device;
    gm_device_mark back;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_async_pool_find(self, given[1], &device, &part) < 0 ||
        gmpy_device_enter(self->st, device, &back) < 0) {
        return NULL;
    }
    result = trim_after(self->st, given[0], device, part.pool);
    gmpy_device_leave(self->st, &back);
    if (result < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- asking ---- */

/* What can be asked about a device's pool. */
typedef struct answer {
    gmpy_async_part part;
    gmpy_async_figures now;
    gmpy_async_figures high;
} answer;

/* Needs no interpreter. */
static gm_status
read_high(const gm_backend *b, answer *out)
{
    gm_mem_pool pool = out->part.pool;
    gmpy_async_figures *high = &out->high;
    gm_status status =
        gm_backend_mem_pool_read(b, pool, GM_MEM_POOL_USED_HIGH, &high->used);

    if (status == GM_OK) {
        status = gm_backend_mem_pool_read(b, pool, GM_MEM_POOL_RESERVED_HIGH,
                                          &high->reserved);
    }
    /* The driver begins at 0 and not at what there is. */
    high->used = high->used > out->now.used ? high->used : out->now.used;
    high->reserved =
        high->reserved > out->now.reserved ? high->reserved : out->now.reserved;
    return status;
}

/* The part that a call of a method with `signature` is about, where the driver can be
 * asked. 0 or -1. */
static int
ask_part(gmpy_async_pool *self,
         const gmpy_signature *signature,
         PyObject *const *args,
         Py_ssize_t nargs,
         PyObject *kwnames,
         gmpy_async_part *out)
{
    PyObject *device_arg;
    int device;

    if (gmpy_unpack(signature, args, nargs, kwnames, &device_arg) < 0 ||
        gmpy_async_pool_find(self, device_arg, &device, out) < 0) {
        return -1;
    }
    if (!self->has_figures) {
        PyErr_SetString(PyExc_RuntimeError,
                        "the driver cannot be asked what its pools hold; that needs "
                        "CUDA 11.3");
        return -1;
    }
    return 0;
}

/* The figures; the highest too with `high`. 0 or -1. */
static int
ask_figures(PyObject *op,
            const gmpy_signature *signature,
            PyObject *const *args,
            Py_ssize_t nargs,
            PyObject *kwnames,
            bool high,
            answer *out)
{
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    const gm_backend *b = self->st->backend;
    gm_status status;

    if (ask_part(self, signature, args, nargs, kwnames, &out->part) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_async_pool_read(b, out->part.pool, &out->now);
    if (status == GM_OK && high) {
        status = read_high(b, out);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(self->st, status, "asking a memory pool for its figures");
        return -1;
    }
    return 0;
}

#define ABOUT_DEVICE                                                                   \
    "\n"                                                                               \
    "Args:\n"                                                                          \
    "    device (int or Device): which device's pool; the current one's if None.\n"    \
    "\n"                                                                               \
    "Raises:\n"                                                                        \
    "    RuntimeError: the driver cannot be asked, or the pool was given by its\n"     \
    "        handle and is gone since a reset of the device.\n"                        \
    "    ValueError: there is no such device."

#define FIGURE(name, value, text)                                                      \
    PyObject *gmpy_async_pool_##name(PyObject *op, PyObject *const *args,              \
                                     Py_ssize_t nargs, PyObject *kwnames)              \
    {                                                                                  \
        static const gmpy_signature signature = {#name, 1, 0, 1, {"device"}};          \
        answer a;                                                                      \
                                                                                       \
        return ask_figures(op, &signature, args, nargs, kwnames, false, &a) < 0        \
                   ? NULL                                                              \
                   : PyLong_FromUnsignedLongLong(value);                               \
    }                                                                                  \
    const char gmpy_async_pool_##name##_doc[] =                                        \
        PyDoc_STR(#name "($self, device=None)\n"                                       \
                        "--\n"                                                         \
                        "\n"                                                           \
                        "Returns the bytes " text "\n" ABOUT_DEVICE);
FIGURE(used_bytes, a.now.used, "that are in use.")
FIGURE(total_bytes, a.now.reserved, "that the pool holds from the device.")
FIGURE(free_bytes,
       a.now.reserved - a.now.used,
       "that it holds and that are not in use.")
#undef FIGURE

const char gmpy_async_pool_stats_doc[] = PyDoc_STR(
    "stats($self, device=None)\n"
    "--\n"
    "\n"
    "Returns what the driver tells of a device's pool, as a dictionary of integers.\n"
    "\n"
    "The names are those of MemoryPool.stats(). The figures are for all that takes\n"
    "from the driver's pool, and read one after the other.\n"
    "\n"
    "    used_bytes: bytes in use\n"
    "    free_bytes: bytes cached for reuse\n"
    "    total_bytes: bytes held from the device\n"
    "    limit_bytes: highest total for requests through this object, 0 for none\n"
    "    peak_used_bytes: highest used_bytes since the peaks were reset\n"
    "    peak_total_bytes: highest total_bytes since then\n" ABOUT_DEVICE);

PyObject *
gmpy_async_pool_stats(PyObject *op,
                      PyObject *const *args,
                      Py_ssize_t nargs,
                      PyObject *kwnames)
{
    static const gmpy_signature signature = {"stats", 1, 0, 1, {"device"}};
    answer a;

    if (ask_figures(op, &signature, args, nargs, kwnames, true, &a) < 0) {
        return NULL;
    }
    return Py_BuildValue("{sKsKsKsKsKsK}", "used_bytes", (unsigned long long)a.now.used,
                         "free_bytes",
                         (unsigned long long)(a.now.reserved - a.now.used),
                         "total_bytes", (unsigned long long)a.now.reserved,
                         "limit_bytes", (unsigned long long)a.part.limit,
                         "peak_used_bytes", (unsigned long long)a.high.used,
                         "peak_total_bytes", (unsigned long long)a.high.reserved);
}

const char gmpy_async_pool_reset_peak_stats_doc[] = PyDoc_STR(
    "reset_peak_stats($self, device=None)\n"
    "--\n"
    "\n"
    "Lets the peaks in stats() begin anew, at what is held now.\n"
    "\n"
    "They are the driver's, and so those of every object on its pool.\n" ABOUT_DEVICE);

PyObject *
gmpy_async_pool_reset_peak_stats(PyObject *op,
                                 PyObject *const *args,
                                 Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    static const gmpy_signature signature = {"reset_peak_stats", 1, 0, 1, {"device"}};
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    const gm_backend *b = self->st->backend;
    gmpy_async_part part;
    gm_status status;

    if (ask_part(self, &signature, args, nargs, kwnames, &part) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_pool_write(b, part.pool, GM_MEM_POOL_USED_HIGH, 0);
    if (status == GM_OK) {
        status = gm_backend_mem_pool_write(b, part.pool, GM_MEM_POOL_RESERVED_HIGH, 0);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(self->st, status, "resetting the peaks of a memory pool");
    }
    Py_RETURN_NONE;
}

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
    gmpy_async_part part;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, &device_arg) == 0 &&
        gmpy_async_pool_find((gmpy_async_pool *)op, device_arg, &device, &part) == 0) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "the driver does not tell how many blocks its pool has cached");
    }
    return NULL;
}

/* ---- the limit ---- */

const char gmpy_async_pool_get_limit_doc[] = PyDoc_STR(
    "get_limit($self, device=None)\n"
    "--\n"
    "\n"
    "Returns the bytes that a device's pool may hold for requests through this\n"
    "object, 2**64-1 for no limit.\n" ABOUT_DEVICE);

PyObject *
gmpy_async_pool_get_limit(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {"get_limit", 1, 0, 1, {"device"}};
    PyObject *device_arg;
    gmpy_async_part part;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, &device_arg) < 0 ||
        gmpy_async_pool_find((gmpy_async_pool *)op, device_arg, &device, &part) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(part.limit ? part.limit : UINT64_MAX);
}

const char gmpy_async_pool_set_limit_doc[] = PyDoc_STR(
    "set_limit($self, size=None, fraction=None, *, device=None)\n"
    "--\n"
    "\n"
    "Sets the most that a device's pool may hold for requests through this object.\n"
    "\n"
    "Also makes it the driver's release threshold, beyond which the pool gives back\n"
    "at the next wait what is free. Others may set that too, which does not change\n"
    "the limit.\n"
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
    "    RuntimeError: the pool was given by its handle and is gone since a reset\n"
    "        of the device.\n"
    "    TypeError: size is not an integer, or fraction not a number.");

PyObject *
gmpy_async_pool_set_limit(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "set_limit", 3, 0, 2, {"size", "fraction", "device"}};
    gmpy_async_pool *self = (gmpy_async_pool *)op;
    PyObject *given[3];
    gmpy_async_part part;
    gm_status status;
    size_t limit;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_async_pool_find(self, given[2], &device, &part) < 0 ||
        gmpy_as_limit(self->st, device, given[0], given[1], &limit) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_mem_pool_write(self->st->backend, part.pool,
                                       GM_MEM_POOL_RELEASE_THRESHOLD,
                                       limit ? limit : UINT64_MAX);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return gmpy_raise(self->st, status, "setting a memory pool's limit");
    }
    Py_BEGIN_CRITICAL_SECTION(self);
    self->parts[device].limit = limit;
    Py_END_CRITICAL_SECTION();
    Py_RETURN_NONE;
}
