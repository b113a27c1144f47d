/* SPDX-License-Identifier: MIT
 *
 * get_elapsed_time: the time between two events, and why there is none.
 *
 * The runtime has one error for several mistakes. What an Event knows of itself tells
 * them apart; of somebody else's event nothing is known.
 *
 * Threading: any thread; lets others run.
 */
#include "stream.h"

typedef struct endpoint {
    const char *name;
    const gmpy_event *own; // NULL: somebody else's, of which nothing is known
    gm_event handle;
    gm_status state; // what a query said, where one was made
} endpoint;

/* What is wrong with one of the two; NULL where nothing is known to be. */
static const char *
endpoint_fault(const endpoint *e, gm_status status)
{
    if (status == GM_NOT_READY) {
        return e->state == GM_NOT_READY ? "has not happened yet" : NULL;
    }
    if (e->own && e->own->untimed) {
        return "was made with disable_timing=True";
    }
    return e->own && !e->own->recorded ? "was never recorded" : NULL;
}

/* Raises for a time that could not be had, saying whose fault it is. */
static PyObject *
raise_elapsed(gmpy_state *st, const endpoint ends[2], gm_status status)
{
    const gmpy_event *start = ends[0].own;
    const gmpy_event *end = ends[1].own;
    char what[128] = "get_elapsed_time";

    for (int i = 1; i >= 0; i--) { // start is told where both are at fault
        const char *fault = endpoint_fault(&ends[i], status);

        if (fault) {
            PyOS_snprintf(what, sizeof what, "get_elapsed_time: %s %s", ends[i].name,
                          fault);
        }
    }
    if (start && end && start->device_id != end->device_id) {
        PyOS_snprintf(what, sizeof what,
                      "get_elapsed_time: start is of device %d, end of device %d",
                      start->device_id, end->device_id);
    }
    return gmpy_raise(st, status, what);
}

/* An argument of get_elapsed_time. 0 or -1. */
static int
as_endpoint(gmpy_state *st, PyObject *arg, const char *name, endpoint *out)
{
    *out = (endpoint){
        .name = name,
        .own = gmpy_is_event(st, arg) ? (const gmpy_event *)arg : NULL,
        .state = GM_OK,
    };
    return gmpy_as_event(st, arg, &out->handle);
}

PyDoc_STRVAR(
    get_elapsed_time_doc,
    "get_elapsed_time(start_event, end_event)\n"
    "--\n"
    "\n"
    "Returns the milliseconds between two events, a float.\n"
    "\n"
    "Args:\n"
    "    start_event (Event): the earlier one.\n"
    "    end_event (Event): the later one. Both have to be recorded, timed, of\n"
    "        the same device, and to have happened.\n"
    "\n"
    "Raises:\n"
    "    TypeError: one of them is no event.\n"
    "    RuntimeError: one of them has not happened yet, or is gone.\n"
    "    CUDARuntimeError: one of them was not recorded or is not timed, or\n"
    "        they are of two devices. The text says which.");

static const gmpy_signature get_elapsed_time_signature = {
    "get_elapsed_time", 2, 2, 2, {"start_event", "end_event"}};

static PyObject *
get_elapsed_time(PyObject *module,
                 PyObject *const *args,
                 Py_ssize_t nargs,
                 PyObject *kwnames)
{
    gmpy_state *st = gmpy_state_of_module(module);
    const gm_backend *backend = gmpy_backend(st);
    PyObject *given[2];
    endpoint ends[2];
    float milliseconds = 0;
    gm_status status;

    if (!backend ||
        gmpy_unpack(&get_elapsed_time_signature, args, nargs, kwnames, given) < 0 ||
        as_endpoint(st, given[0], "start", &ends[0]) < 0 ||
        as_endpoint(st, given[1], "end", &ends[1]) < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_event_elapsed(backend, ends[0].handle, ends[1].handle,
                                      &milliseconds);
    for (int i = 0; i < 2 && status == GM_NOT_READY; i++) {
        ends[i].state = gm_backend_event_query(backend, ends[i].handle);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        return raise_elapsed(st, ends, status);
    }
    return PyFloat_FromDouble((double)milliseconds);
}

PyMethodDef gmpy_event_time_methods[] = {
    {"get_elapsed_time", (PyCFunction)(void (*)(void))get_elapsed_time,
     METH_FASTCALL | METH_KEYWORDS, get_elapsed_time_doc},
    {0},
};
