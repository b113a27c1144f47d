/* SPDX-License-Identifier: MIT
 *
 * Giving memory that a pool has cached back to the device: all of it, that of a stream,
 * or down to a target; and what it keeps all the same.
 *
 * Threading: any thread; detached from the interpreter, for a device may be waited for.
 */
#include "guard.h"
#include "later.h"
#include "pools.h"
#include "stream.h"

/* What is to go: of one stream or with NULL of all; with `trim` as long as `target`
 * bytes stay. */
typedef struct wanted {
    const gmpy_stream_ref *stream;
    bool trim;
    size_t target;
} wanted;

static size_t
give_back(gm_pool *pool, const wanted *w, gm_stream_key key)
{
    if (w->trim) {
        return gm_pool_trim(pool, w->target);
    }
    return w->stream ? gm_pool_release_idle_of(pool, key) : gm_pool_release_idle(pool);
}

/* *bytes is what went. 0 or -1. */
static int
release_idle(PyObject *op, PyObject *device_arg, const wanted *w, size_t *bytes)
{
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    gm_stream_key key = GM_STREAM_KEY_DEFAULT;
    gm_pool *pool;
    int device;
    int found;

    gmpy_upstreams_look(self->st);
    gmpy_guards_look(self->st);
    gmpy_parked_look(self->st);
    *bytes = 0;
    found = self->find(self, device_arg, false, &pool, &device);
    if (found >= 0 && w->stream &&
        ((device >= 0 && gmpy_stream_check_device(self->st, w->stream, device) < 0) ||
         gmpy_stream_ref_key(self->st, w->stream, &key) < 0)) {
        return -1;
    }
    if (found > 0) {
        Py_BEGIN_ALLOW_THREADS
        *bytes = give_back(pool, w, key);
        Py_END_ALLOW_THREADS
    }
    gmpy_watch_look(self->st, true);
    return found < 0 ? -1 : 0;
}

const char gmpy_pool_free_all_blocks_doc[] = PyDoc_STR(
    "free_all_blocks($self, stream=None, *, device=None)\n"
    "--\n"
    "\n"
    "Gives cached memory back to the device.\n"
    "\n"
    "Only whole segments go: a segment with a block in it that is live, or that\n"
    "another stream may still use, stays. Waits until the device has stopped\n"
    "using what goes. While a graph is being recorded nothing goes; all that is\n"
    "cached does when the recording ends. What set_reserve() says is kept.\n"
    "\n"
    "Of a pool with expandable segments each page goes that has nothing live in\n"
    "it. Nothing is waited for: what the device may still use goes later, and\n"
    "is in pending_release_bytes of stats() meanwhile.\n"
    "\n"
    "Args:\n"
    "    stream (Stream): only what that stream cached; everything if None.\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: stream is not a stream.\n"
    "    ValueError: there is no such device, or stream or a\n"
    "        SingleDeviceMemoryPool is of another one.");

PyObject *
gmpy_pool_free_all_blocks(PyObject *self,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "free_all_blocks", 2, 0, 1, {"stream", "device"}};
    gmpy_state *st = ((gmpy_any_pool *)self)->st;
    PyObject *given[2];
    gmpy_stream_ref stream;
    wanted w = {0};
    size_t bytes;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    if (given[0] && given[0] != Py_None) {
        if (gmpy_as_stream(st, given[0], &stream) < 0) {
            return NULL;
        }
        w.stream = &stream;
    }
    if (release_idle(self, given[1], &w, &bytes) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

const char gmpy_pool_free_all_free_doc[] =
    PyDoc_STR("free_all_free($self, /)\n"
              "--\n"
              "\n"
              "Deprecated name of free_all_blocks().");

PyObject *
gmpy_pool_free_all_free(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const wanted w = {0};
    size_t bytes;

    if (PyErr_WarnEx(PyExc_DeprecationWarning,
                     "free_all_free is deprecated; use free_all_blocks", 1) < 0 ||
        release_idle(self, NULL, &w, &bytes) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

const char gmpy_pool_trim_doc[] = PyDoc_STR(
    "trim($self, target_bytes=0, *, device=None)\n"
    "--\n"
    "\n"
    "Gives cached memory back, as long as so many bytes stay held.\n"
    "\n"
    "As free_all_blocks(), which gives back all there is: what cannot go stays,\n"
    "so that more may be held in the end. While a graph is being recorded\n"
    "nothing goes; when the recording ends as much does as the lowest target\n"
    "asks that was named meanwhile.\n"
    "\n"
    "Args:\n"
    "    target_bytes (int): bytes that the pool is to hold at least, of cached\n"
    "        memory and of memory in use.\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Returns:\n"
    "    int: bytes that went back.\n"
    "\n"
    "Raises:\n"
    "    TypeError: target_bytes is not an integer.\n"
    "    OverflowError: it is negative or above 2**64-1.\n"
    "    ValueError: there is no such device, or a SingleDeviceMemoryPool is on\n"
    "        another one.");

PyObject *
gmpy_pool_trim(PyObject *self,
               PyObject *const *args,
               Py_ssize_t nargs,
               PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "trim", 2, 0, 1, {"target_bytes", "device"}};
    PyObject *given[2];
    wanted w = {.trim = true};
    size_t bytes;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        (given[0] && gmpy_as_size(given[0], "target_bytes", &w.target) < 0) ||
        release_idle(self, given[1], &w, &bytes) < 0) {
        return NULL;
    }
    return PyLong_FromSize_t(bytes);
}

const char gmpy_pool_set_reserve_doc[] = PyDoc_STR(
    "set_reserve($self, size, *, device=None)\n"
    "--\n"
    "\n"
    "Sets how much the pool holds on to when it gives memory back.\n"
    "\n"
    "free_all_blocks() and trim() leave at least so much held, as far as that\n"
    "much is. Nothing is taken from the device for it. A request that finds no\n"
    "memory, of this pool or of another one on the device, takes no heed of it,\n"
    "nor does a limit below it.\n"
    "\n"
    "Args:\n"
    "    size (int): bytes; 0, as in a new pool, for none.\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    TypeError: size is not an integer.\n"
    "    OverflowError: it is negative or above 2**64-1.\n"
    "    ValueError: there is no such device, or a SingleDeviceMemoryPool is on\n"
    "        another one.");

PyObject *
gmpy_pool_set_reserve(PyObject *op,
                      PyObject *const *args,
                      Py_ssize_t nargs,
                      PyObject *kwnames)
{
    static const gmpy_signature signature = {
        "set_reserve", 2, 1, 1, {"size", "device"}};
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    PyObject *given[2];
    gm_pool *pool;
    size_t size;
    int device;

    if (gmpy_unpack(&signature, args, nargs, kwnames, given) < 0 ||
        gmpy_as_size(given[0], "size", &size) < 0 ||
        self->find(self, given[1], true, &pool, &device) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    (void)gm_pool_set_reserve(pool, size); // not forked, or `find` had said so
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
