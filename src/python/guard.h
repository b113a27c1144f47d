/* SPDX-License-Identifier: MIT
 *
 * The end of an object in a cycle of garbage, where that end calls functions that are
 * garbage too. guard.c says how.
 */
#ifndef GMPY_GUARD_H
#define GMPY_GUARD_H

#include "module.h"

int gmpy_guard_init(PyObject *module, gmpy_state *st);

/* Has `object`, which the collector tracks, guarded: *place, a field of it, becomes the
 * guard, which its tp_traverse visits. When the object is garbage in a cycle, `end` is
 * called before any part of the cycle is taken apart; it keeps the pending exception.
 * 0, or -1 with MemoryError. */
int gmpy_guard_new(gmpy_state *st,
                   PyObject *object,
                   PyObject **place,
                   void (*end)(PyObject *object));

/* Ends the guard, if there is one; for the object's tp_dealloc. */
void gmpy_guard_drop(PyObject **place);

/* Lets go of what guards keep since the last collection; with `all`, what is a cycle of
 * garbage ends now, whatever that costs. Runs Python. Keeps the pending exception. */
void gmpy_guards_settle(gmpy_state *st, bool all);

/* The first, where there is something; on ways that are long anyway. */
static inline void
gmpy_guards_look(gmpy_state *st)
{
    if (GM_UNLIKELY(__atomic_load_n(&st->rescued, __ATOMIC_RELAXED) != NULL)) {
        gmpy_guards_settle(st, false);
    }
}

#endif
