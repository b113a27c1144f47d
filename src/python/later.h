/* SPDX-License-Identifier: MIT
 *
 * What is given back later: what waits for the end of recordings, and host memory that
 * the device may still use.
 */
#ifndef GMPY_LATER_H
#define GMPY_LATER_H

#include "module.h"

/* ---- parked.c ---- */

/* What waits, at the start of a struct of host memory that says the rest. `give` gives
 * it back and frees the struct; false: it has to wait on, and nothing happened. Runs
 * attached, with no exception pending, and leaves none. */
struct gmpy_parked {
    gmpy_parked *next;
    bool (*give)(gmpy_state *st, gmpy_parked *self);
};

/* Takes it over. */
void gmpy_park(gmpy_state *st, gmpy_parked *item);

/* Gives back what can be given back by now. May run Python code; changes no pending
 * exception. */
void gmpy_parked_look_now(gmpy_state *st);

static inline void
gmpy_parked_look(gmpy_state *st)
{
    if (GM_UNLIKELY(__atomic_load_n(&st->parked, __ATOMIC_RELAXED) != NULL)) {
        gmpy_parked_look_now(st);
    }
}

/* ---- watch.c ---- */

/* Ready to watch one buffer, with an event on `device`; NULL where there is no room:
 * then wait for the stream. Needs no interpreter. */
gmpy_watched *gmpy_watch_new(gmpy_state *st, const gm_backend *backend, int device);

/* The device has done with the buffer when it has done what is queued on `stream` now.
 * Needs no interpreter. */
gm_status
gmpy_watch_mark(const gm_backend *backend, gmpy_watched *item, gm_stream stream);

/* Keeps the buffer, which it takes over, until then. */
void gmpy_watch_keep(gmpy_state *st, gmpy_watched *item, Py_buffer *buffer);

/* Ends one that keeps nothing; accepts NULL. Needs no interpreter. */
void gmpy_watch_free(const gm_backend *backend, gmpy_watched *item);

/* Releases buffers that the device has done with: asks about a few, or about `all`. May
 * run Python code. */
void gmpy_watch_look(gmpy_state *st, bool all);

#endif
