/* SPDX-License-Identifier: MIT
 *
 * Collecting garbage; and the end of an object in a cycle of it, where that end calls
 * functions that are garbage too. guard.c says how.
 */
#ifndef GMPY_GUARD_H
#define GMPY_GUARD_H

#include "module.h"

/* ---- collect.c ---- */

int gmpy_collect_init(gmpy_state *st);

/* Runs a full collection, also where the user switched the collector off: it is asked
 * for here, not automatic. 1; 0 where the collector is busy, and with `wait` still so
 * after a second; -1 with an exception. */
int gmpy_collect_garbage(gmpy_state *st, bool wait);

/* Asked while a collection is under way: whether it looks at everything, young and old.
 */
bool gmpy_collection_is_full(gmpy_state *st);

/* ---- guard.c ---- */

int gmpy_guard_init(PyObject *module, gmpy_state *st);

/* Has `object`, which the collector tracks, guarded: *place, a field of it, becomes the
 * guard, which its tp_traverse visits. When the object is garbage in a cycle, `end` is
 * called before any part of the cycle is taken apart; it keeps the pending exception.
 * Where it returns false it could not be yet, and is called again after the program's
 * next full collection. 0, or -1 with MemoryError. */
int gmpy_guard_new(gmpy_state *st,
                   PyObject *object,
                   PyObject **place,
                   bool (*end)(PyObject *object));

/* Ends the guard, if there is one; for the object's tp_dealloc. */
void gmpy_guard_drop(PyObject **place);

/* Lets go of what guards keep since the last collection; with `all`, what is a cycle of
 * garbage ends now, whatever that costs, and where other threads have begun it, they
 * are waited for. Runs Python. Keeps the pending exception. */
void gmpy_guards_settle(gmpy_state *st, bool all);

/* The first, where there is something; on ways that are long anyway. */
static inline void
gmpy_guards_look(gmpy_state *st)
{
    if (GM_UNLIKELY(__atomic_load_n(&st->rescued, __ATOMIC_RELAXED) != NULL ||
                    __atomic_load_n(&st->owed, __ATOMIC_RELAXED))) {
        gmpy_guards_settle(st, false);
    }
}

#endif
