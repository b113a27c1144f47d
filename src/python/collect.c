/* SPDX-License-Identifier: MIT
 *
 * Running the garbage collector, and knowing whether it ran.
 *
 * The interpreter has one collector, and a collection inside another one, be it on the
 * same thread or beside it, does nothing and says that it found nothing. Who collects
 * because memory has run out, or because what comes next relies on it, has to know. So
 * a little garbage is made first: where it is still there afterwards nothing was
 * collected.
 *
 * Where another thread is at it, waiting helps. Where the calling thread is, in a
 * finalizer or one of gc.callbacks, it does not, and nothing tells the two apart unless
 * the collection was asked for here; so there is a bound to the wait.
 *
 * Cost: two microseconds beside the collection. Threading: attached to the interpreter;
 * it runs Python code, and other threads while it waits.
 */
#include "guard.h"

#include <time.h> // nanosleep

enum {
    PAUSE_MS = 4,
    PAUSES = 250, // a second
};

int
gmpy_collect_init(gmpy_state *st)
{
    PyObject *gc = PyImport_ImportModule("gc");

    if (gc) {
        st->gc_collect = PyObject_GetAttrString(gc, "collect");
        st->gc_get_count =
            st->gc_collect ? PyObject_GetAttrString(gc, "get_count") : NULL;
        Py_DECREF(gc);
    }
    return st->gc_get_count ? 0 : -1;
}

/* ---- garbage ---- */

/* A cycle that nothing refers to, by a weak reference: a list of a method of its own.
 * NULL with MemoryError. */
static PyObject *
probe_new(gmpy_state *st)
{
    PyObject *list = PyList_New(0);
    PyObject *method = list ? PyMethod_New(st->gc_collect, list) : NULL;
    PyObject *probe = method ? PyWeakref_NewRef(method, NULL) : NULL;

    if (probe && PyList_Append(list, method) < 0) {
        Py_CLEAR(probe);
    }
    Py_XDECREF(method);
    Py_XDECREF(list);
    return probe;
}

/* Ends the probe. Whether the collector had found it. */
static bool
probe_end(PyObject *probe)
{
    PyObject *method = gmpy_weak_reference_get(probe);
    bool found = method == NULL;

    if (method) {
        PyObject *list = PyMethod_GET_SELF(method);

        if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), NULL) < 0) {
            PyErr_Clear(); // then it stays for the next collection
        }
        Py_DECREF(method);
    }
    Py_DECREF(probe);
    return found;
}

/* ---- collecting ---- */

/* The probe is fresh each time, and nothing lets go of the interpreter before the
 * collector looks: so what takes it is this collection or one that saw as much. */
static int
collect_once(gmpy_state *st)
{
    PyObject *probe = probe_new(st);
    PyObject *found;
    bool ran;

    if (!probe) {
        return -1;
    }
    gmpy_this_thread.collecting = true;
    found = PyObject_CallNoArgs(st->gc_collect);
    gmpy_this_thread.collecting = false;
    ran = probe_end(probe);
    Py_XDECREF(found);
    return found ? ran : -1;
}

int
gmpy_collect_garbage(gmpy_state *st, bool wait)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000 * 1000};
    int ran;

    if (gmpy_this_thread.collecting) {
        return 0; // that one is further down on this stack
    }
    ran = collect_once(st);
    for (int i = 0; wait && ran == 0 && i < PAUSES; i++) {
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS
        ran = collect_once(st);
    }
    return ran;
}

bool
gmpy_collection_is_full(gmpy_state *st)
{
#ifdef Py_GIL_DISABLED
    (void)st;
    return true; // there are no others
#else
    PyObject *counts = PyObject_CallNoArgs(st->gc_get_count);
    int young;
    int middle = 1;
    int old = 1;

    if (!counts || !PyArg_ParseTuple(counts, "iii", &young, &middle, &old)) {
        PyErr_Clear(); // another collection will come
    }
    Py_XDECREF(counts);
    return middle == 0 && old == 0; // each collection counts for the next older ones
#endif
}
