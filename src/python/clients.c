/* SPDX-License-Identifier: MIT
 *
 * Clients in Python: the scope in which a thread's requests are on one's account, and
 * what each has in use, of a pool or of all.
 *
 * Names and numbers are the process's (core/gm_client.h), shared with C code, which
 * names itself when it holds a pool.
 *
 * Cost: a thread inside a scope pays one more load a request; what is in use is found
 * by a walk over the pools' blocks. Threading: any thread; the walk runs detached from
 * the interpreter.
 */
#include "capi.h"
#include "pools.h"

#include "core/gm_process.h" // gm_process_binding

#include <string.h> // memchr

/* ---- names ---- */

static gm_clients *
names(void)
{
    return &((gmpy_c_api *)gm_process_binding())->clients;
}

int
gmpy_as_client(gmpy_state *st, PyObject *name, uint16_t *out)
{
    gm_status status;
    const char *text;
    Py_ssize_t length;

    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "name must be str, not %.200s",
                     Py_TYPE(name)->tp_name);
        return -1;
    }
    text = PyUnicode_AsUTF8AndSize(name, &length);
    if (!text) {
        return -1;
    }
    status = memchr(text, 0, (size_t)length)
                 ? GM_ERR_INVALID_VALUE // C code could not name it
                 : gm_clients_find(names(), text, (size_t)length, out);
    if (status == GM_ERR_INVALID_VALUE) {
        PyErr_Format(PyExc_ValueError,
                     "name must have 1 to %d bytes in UTF-8, none of them 0, not "
                     "%zd",
                     GM_CLIENT_NAME_MAX, length);
        return -1;
    }
    if (status == GM_ERR_TOO_LARGE) {
        PyErr_Format(PyExc_RuntimeError,
                     "there are %d clients already, which is as many as can be "
                     "told apart",
                     GM_CLIENTS_MAX);
        return -1;
    }
    if (status != GM_OK) {
        gmpy_raise(st, status, "naming a client");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(client_number_doc,
             "_client_number(name, /)\n"
             "--\n"
             "\n"
             "Returns the number of the client of that name, which gets one.");

static PyObject *
client_number(PyObject *module, PyObject *name)
{
    uint16_t number;

    return gmpy_as_client(gmpy_state_of_module(module), name, &number) < 0
               ? NULL
               : PyLong_FromLong(number);
}

PyDoc_STRVAR(
    push_client_doc,
    "_push_client(scope, number, /)\n"
    "--\n"
    "\n"
    "Enters a scope in which the thread's requests are on a client's account.");

static PyObject *
push_client(PyObject *module, PyObject *args)
{
    PyObject *entered;
    PyObject *arg;
    int number;

    if (!PyArg_UnpackTuple(args, "_push_client", 2, 2, &entered, &arg) ||
        gmpy_as_int(arg, "number", &number) < 0) {
        return NULL;
    }
    if (number < 0 || (size_t)number >= gm_clients_count(names())) {
        PyErr_SetString(PyExc_ValueError, "there is no client of that number");
        return NULL;
    }
    if (gmpy_push_client(gmpy_state_of_module(module), (uint16_t)number, entered) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(pop_client_doc,
             "_pop_client(scope, /)\n"
             "--\n"
             "\n"
             "Leaves it.");

static PyObject *
pop_client(PyObject *Py_UNUSED(module), PyObject *entered)
{
    if (gmpy_pop_client(entered) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- what is in use ---- */

/* A count over one pool, or over all of a device. */
typedef struct survey {
    gm_pool *one; // NULL: all, each byte once
    int device;
    gm_usage *usages;
    size_t count;
    gm_status status;
} survey;

static void
visit(gm_pool *pool, void *context)
{
    survey *s = context;

    if (s->status == GM_OK && gm_pool_device(pool) == s->device) {
        s->status = gm_pool_count_clients(pool, true, s->usages, s->count);
    }
}

/* Counts with room for all clients that there are; again where one was added meanwhile.
 * Needs no interpreter. The caller frees s->usages. */
static void
count_all(survey *s)
{
    do {
        gm_host_free(s->usages);
        s->count = gm_clients_count(names());
        s->usages = gm_host_zalloc(s->count * sizeof *s->usages);
        s->status = s->usages ? GM_OK : GM_ERR_HOST_MEMORY;
        if (s->usages && s->one) {
            s->status = gm_pool_count_clients(s->one, false, s->usages, s->count);
        }
        else if (s->usages) {
            gm_pools_visit(visit, s);
        }
    } while (s->status == GM_BUSY);
}

static PyObject *
usage_dict(const gm_usage *usage)
{
    PyObject *dict = PyDict_New();

#define ADD(name, text)                                                                \
    gmpy_dict_put(dict, #name, PyLong_FromSize_t(usage->name)) < 0 ||
    if (dict && (GM_USAGE_LIST(ADD) false)) {
        Py_CLEAR(dict);
    }
#undef ADD
    return dict;
}

/* The clients that have something in use, by name: new reference. */
static PyObject *
by_name(const survey *s)
{
    PyObject *dict = PyDict_New();

    for (size_t i = 0; dict && i < s->count; i++) {
        if (s->usages[i].live_blocks != 0 &&
            gmpy_dict_put(dict, gm_clients_name(names(), (uint16_t)i),
                          usage_dict(&s->usages[i])) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

static PyObject *
survey_dict(gmpy_state *st, survey *s)
{
    PyObject *dict;

    Py_BEGIN_ALLOW_THREADS
    count_all(s);
    Py_END_ALLOW_THREADS
    dict = s->status == GM_OK ? by_name(s)
                              : gmpy_raise(st, s->status, "counting what clients use");
    gm_host_free(s->usages);
    return dict;
}

#define KEYS                                                                           \
    "Each value is a dictionary of integers: used_bytes, requested_bytes (before\n"    \
    "rounding) and live_blocks. What no client was named for is 'gpumem''s.\n"
const char gmpy_pool_stats_by_client_doc[] =
    "stats_by_client($self, device=None)\n"
    "--\n"
    "\n"
    "Returns what each client has in use of the pool, as a dictionary by name.\n"
    "\n" KEYS "The used_bytes of all add up to the pool's, of one instant. Looks at "
    "every\n"
    "block of the pool. Safe from any thread.\n"
    "\n"
    "Args:\n"
    "    device (int or Device): which device's pool; the current one's if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device, or a SingleDeviceMemoryPool is on\n"
    "        another one.";

PyObject *
gmpy_pool_stats_by_client(PyObject *op,
                          PyObject *const *args,
                          Py_ssize_t nargs,
                          PyObject *kwnames)
{
    gmpy_any_pool *self = (gmpy_any_pool *)op;
    PyObject *device_arg;
    survey s = {0};
    int found;

    if (gmpy_unpack_device("stats_by_client", args, nargs, kwnames, &device_arg) < 0) {
        return NULL;
    }
    found = self->find(self, device_arg, false, &s.one, &s.device);
    if (found < 0) {
        return NULL;
    }
    return found ? survey_dict(self->st, &s) : PyDict_New();
}

PyDoc_STRVAR(
    stats_by_client_doc,
    "stats_by_client(device=None)\n"
    "--\n"
    "\n"
    "Returns what each client has in use of all pools of a device, by name.\n"
    "\n" KEYS
    "Memory of a pool that lies over another one is in use in both and counted "
    "in\n"
    "the lower one. One pool after the other is looked at, so while other threads\n"
    "allocate it is of no one instant; the pools' method of that name is. Safe\n"
    "from any thread.\n"
    "\n"
    "Args:\n"
    "    device (int or Device): whose pools; those of the current one if None.\n"
    "\n"
    "Raises:\n"
    "    ValueError: there is no such device.");

static PyObject *
stats_by_client(PyObject *module,
                PyObject *const *args,
                Py_ssize_t nargs,
                PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    PyObject *device_arg;
    survey s = {0};

    if (gmpy_unpack_device("stats_by_client", args, nargs, kwnames, &device_arg) < 0 ||
        !gmpy_backend(st) || gmpy_as_device_or_current(st, device_arg, &s.device) < 0) {
        return NULL;
    }
    return survey_dict(st, &s);
}

PyMethodDef gmpy_clients_methods[] = {
    {"_client_number", client_number, METH_O, client_number_doc},
    {"_push_client", push_client, METH_VARARGS, push_client_doc},
    {"_pop_client", pop_client, METH_O, pop_client_doc},
    {"stats_by_client", (PyCFunction)(void (*)(void))stats_by_client,
     METH_FASTCALL | METH_KEYWORDS, stats_by_client_doc},
    {0},
};
