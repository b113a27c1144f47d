/* SPDX-License-Identifier: MIT
 *
 * What both pool types can be asked: counters, the limit, statistics.
 *
 * Every method takes the device it is about. Reading makes no pool and touches no
 * device: of a device that the pool never used all is 0, and the limit the one that its
 * pool would be made with.
 *
 * Cost: one copy of the counters; stats() also surveys the pool, linear in its segments
 * (core/gm_explain.c). Threading: any thread; the pool's lock is waited for detached
 * from the interpreter.
 */
#include "pools.h"

/* The counters of the pool that a call is about; zeros where it has not been made. With
 * `limit` also the limit that it would be made with, with `survey` (or NULL) a look
 * into it. 0 or -1. */
static int
read_pool(
    PyObject *op, PyObject *device_arg, bool limit, gm_stats *stats, gm_survey *survey)
{
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    gm_pool *pool;
    int device;
    int found = self->find(self, device_arg, false, &pool, &device);

    *stats = (gm_stats){0};
    if (found > 0) {
        Py_BEGIN_ALLOW_THREADS;
        // Not forked, or `find` had said so.
        (void)(survey ? gm_pool_survey(pool, stats, survey)
                      : gm_pool_read_stats(pool, stats));
        Py_END_ALLOW_THREADS
        return 0;
    }
    if (found == 0 && limit) {
        return gmpy_default_limit(self->st, device, &stats->limit_bytes);
    }
    return found;
}

int
gmpy_unpack_device(const char *method,
                   PyObject *const *args,
                   Py_ssize_t nargs,
                   PyObject *kwnames,
                   PyObject **out)
{
    const gmpy_signature signature = {method, 1, 0, 1, {"device"}};

    return gmpy_unpack(&signature, args, nargs, kwnames, out);
}

#define COUNTER(method, limit, field)                                                  \
    PyObject *gmpy_pool_##method(PyObject *self, PyObject *const *args,                \
                                 Py_ssize_t nargs, PyObject *kwnames)                  \
    {                                                                                  \
        PyObject *device;                                                              \
        gm_stats stats;                                                                \
                                                                                       \
        if (gmpy_unpack_device(#method, args, nargs, kwnames, &device) < 0 ||          \
            read_pool(self, device, limit, &stats, NULL) < 0) {                        \
            return NULL;                                                               \
        }                                                                              \
        return PyLong_FromSize_t(stats.field);                                         \
    }
COUNTER(used_bytes, false, used_bytes)
COUNTER(free_bytes, false, free_bytes)
COUNTER(total_bytes, false, total_bytes)
COUNTER(n_free_blocks, false, free_blocks)
COUNTER(get_limit, true, limit_bytes)
#undef COUNTER

PyObject *
gmpy_pool_stats(PyObject *self,
                PyObject *const *args,
                Py_ssize_t nargs,
                PyObject *kwnames)
{
    PyObject *device;
    gm_stats stats;
    gm_survey survey = {0};
    PyObject *dict;

    if (gmpy_unpack_device("stats", args, nargs, kwnames, &device) < 0 ||
        read_pool(self, device, true, &stats, &survey) < 0) {
        return NULL;
    }
    dict = PyDict_New();
    if (!dict) {
        return NULL;
    }
#define ADD(from, name) gmpy_dict_put(dict, #name, PyLong_FromSize_t(from.name)) < 0 ||
#define ADD_COUNTER(name, text) ADD(stats, name)
#define ADD_SURVEY(name, text) ADD(survey, name)
    if (GM_STATS_LIST(ADD_COUNTER) GM_SURVEY_LIST(ADD_SURVEY) false) {
        Py_CLEAR(dict);
    }
#undef ADD_SURVEY
#undef ADD_COUNTER
#undef ADD
    return dict;
}

PyObject *
gmpy_pool_reset_peak_stats(PyObject *op,
                           PyObject *const *args,
                           Py_ssize_t nargs,
                           PyObject *kwnames)
{
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    PyObject *device_arg;
    gm_pool *pool;
    int device;
    int found;

    if (gmpy_unpack_device("reset_peak_stats", args, nargs, kwnames, &device_arg) < 0) {
        return NULL;
    }
    found = self->find(self, device_arg, false, &pool, &device);
    if (found < 0) {
        return NULL;
    }
    if (found) {
        Py_BEGIN_ALLOW_THREADS;
        (void)gm_pool_reset_peaks(pool); // not forked, or `find` had said so
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* ---- what they say of themselves ---- */

#define ABOUT_DEVICE                                                                   \
    "\n"                                                                               \
    "Makes no pool and touches no device: where none was used, it is 0.\n"             \
    "\n"                                                                               \
    "Args:\n"                                                                          \
    "    device (int or Device): which device's pool; the current one's if None.\n"    \
    "\n"                                                                               \
    "Raises:\n"                                                                        \
    "    ValueError: there is no such device, or a SingleDeviceMemoryPool is on\n"     \
    "        another one."

#define GIVES(method, text)                                                            \
    const char gmpy_pool_##method##_doc[] =                                            \
        #method "($self, device=None)\n--\n\nReturns " text "\n" ABOUT_DEVICE;
GIVES(used_bytes, "the bytes of live blocks, rounded up to whole units of 512.")
GIVES(free_bytes, "the bytes that are cached for reuse.")
GIVES(total_bytes, "the bytes held from the device, used and cached.")
GIVES(n_free_blocks, "the number of cached blocks, pieces of split segments included.")
#undef GIVES

const char gmpy_pool_get_limit_doc[] =
    "get_limit($self, device=None)\n"
    "--\n"
    "\n"
    "Returns the limit in bytes, 0 for none.\n"
    "\n"
    "Makes no pool: where none was used, it is the limit that one would start\n"
    "with.\n"
    "\n"
    "Args:\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device, a SingleDeviceMemoryPool is on\n"
    "        another one, or the environment's limit makes no sense.";

#define KEY(name, text) "    " #name ": " text "\n"
#define COUNTER_KEYS GM_STATS_LIST(KEY)
#define SURVEY_KEYS GM_SURVEY_LIST(KEY)
const char gmpy_pool_stats_doc[] =
    "stats($self, device=None)\n"
    "--\n"
    "\n"
    "Returns the pool's statistics as a dictionary of integers.\n"
    "\n"
    "The counters are of one instant. Bytes are rounded to whole units but for\n"
    "the requested ones. Looks at every segment of the pool and asks the device\n"
    "how much is free; where the pool never took memory it touches no device and\n"
    "makes no pool, and all is 0 but the limit.\n"
    "\n"
    "Counters:\n" COUNTER_KEYS "\n"
    "Found by looking:\n" SURVEY_KEYS "\n"
    "largest_available_block counts what giving idle memory back makes room for,\n"
    "of this pool and of the others on the device, and the limit. On a GPU it is\n"
    "an estimate from above, since the driver keeps some of what it calls free;\n"
    "where a pool lies over a callable it is the same as largest_free_block.\n"
    "\n"
    "On an interpreter without its lock the peaks of what is in use or cached\n"
    "may be off by 1 MiB for each stream, where several are at work at once.\n"
    "\n"
    "Args:\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device, or a SingleDeviceMemoryPool is on\n"
    "        another one.";
#undef SURVEY_KEYS
#undef COUNTER_KEYS
#undef KEY

const char gmpy_pool_reset_peak_stats_doc[] =
    "reset_peak_stats($self, device=None)\n"
    "--\n"
    "\n"
    "Lets the peaks in stats() begin anew, at what is held now.\n"
    "\n"
    "Args:\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device, or a SingleDeviceMemoryPool is on\n"
    "        another one.";
