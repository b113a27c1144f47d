/* SPDX-License-Identifier: MIT
 *
 * What could not be given back when its object died, because a graph was being
 * recorded: it waits here until nothing that it depends on records any more.
 *
 * The core postpones by itself what one call of the backend gives back
 * (core/gm_capture.h), at the end of a recording that it knows. Here is the rest: what
 * takes a reference to a Python object or an order of calls to give back, and what
 * waits for the recording of another library, of which nobody tells the end. So it is
 * looked at when a recording of ours ended, when the caller waited for the device or
 * gave cached memory back, and when more memory of such a kind is asked for.
 *
 * At the end of the process what is still parked is left as it is.
 *
 * Cost: while nothing is parked, a look is one load. Threading: any thread, attached;
 * giving back calls the device, which lets others run, and may run Python code, so the
 * list is in order whenever that can happen.
 */
#include "later.h"
#include "module.h"

#include "core/gm_process.h" // gm_process_is_special

void
gmpy_park(gmpy_state *st, gmpy_parked *item)
{
    GMPY_LOCK(&st->parked_lock);
    item->next = st->parked;
    __atomic_store_n(&st->parked, item, __ATOMIC_RELAXED);
    GMPY_UNLOCK(&st->parked_lock);
}

void
gmpy_parked_look_now(gmpy_state *st)
{
    PyObject *error_type;
    PyObject *error_value;
    PyObject *error_trace;
    gmpy_parked *chain;

    if (gm_process_is_special()) {
        return;
    }
    PyErr_Fetch(&error_type, &error_value, &error_trace);
    GMPY_LOCK(&st->parked_lock);
    chain = st->parked;
    __atomic_store_n(&st->parked, NULL, __ATOMIC_RELAXED);
    GMPY_UNLOCK(&st->parked_lock);
    while (chain) {
        gmpy_parked *next = chain->next;

        if (!chain->give(st, chain)) {
            gmpy_park(st, chain);
        }
        chain = next;
    }
    PyErr_Restore(error_type, error_value, error_trace);
}
