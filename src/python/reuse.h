/* SPDX-License-Identifier: MIT
 *
 * Dead objects that are kept for the next one of their type: the two that each
 * allocation makes.
 *
 * With the interpreter lock there is one list a type, in the module state. Without,
 * each thread has its own (thread.c), once it has settings, as one with a stream of its
 * own does. What is kept there keeps its reference to the type: to count it would be to
 * write, for each object, to a place that all threads write to, which costs more than
 * the rest of an allocation.
 *
 * Cost: some instructions instead of a visit to the interpreter's allocator. Threading:
 * attached to the interpreter; a list is its thread's.
 */
#ifndef GMPY_REUSE_H
#define GMPY_REUSE_H

#include "compat.h"

#include <stdbool.h>

enum {
    GMPY_FREELIST_SIZE = 128,
};

/* Closed, with no room, once the module is taken apart: what the state keeps then would
 * outlive its type. */
typedef struct gmpy_freelist {
    int count;
    int room; // how many it may keep
    PyObject *items[GMPY_FREELIST_SIZE];
} gmpy_freelist;

/* A dead object of exact type `type` back to life, as PyObject_Init does it but without
 * the calls, where the interpreter keeps no books about new references. */
static inline PyObject *
gmpy_revive(PyObject *self, PyTypeObject *type)
{
#if defined(Py_GIL_DISABLED)
    (void)type; // it has one still
    _Py_NewReference(self);
    return self;
#elif defined(Py_REF_DEBUG) || defined(Py_TRACE_REFS)
    return PyObject_Init(self, type);
#else
    Py_INCREF(type);
    Py_SET_REFCNT(self, 1);
    return self;
#endif
}

/* One of the kept, alive again; NULL for none. `list` may be NULL. */
static inline PyObject *
gmpy_freelist_take(gmpy_freelist *list, PyTypeObject *type)
{
#ifdef Py_GIL_DISABLED
    if (!list) {
        return NULL;
    }
#endif
    return list->count > 0 ? gmpy_revive(list->items[--list->count], type) : NULL;
}

/* Keeps `self`, which is dead but for its memory; false where it cannot. `list` may be
 * NULL. */
static inline bool
gmpy_freelist_put(gmpy_freelist *list, PyObject *self, PyTypeObject *type)
{
#ifdef Py_GIL_DISABLED
    if (!list) {
        return false;
    }
#endif
    if (list->count >= list->room) {
        return false;
    }
    list->items[list->count++] = self;
#ifdef Py_GIL_DISABLED
    (void)type;
#else
    Py_DECREF(type);
#endif
    return true;
}

/* Ends what is kept, by `release`, and keeps no more. Drops references to types where
 * there are any. */
void gmpy_freelist_close(gmpy_freelist *list, void (*release)(void *));

#endif
