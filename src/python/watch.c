/* SPDX-License-Identifier: MIT
 *
 * Host memory that is kept until the device has done with it.
 *
 * An asynchronous copy reads or writes the host's memory when its stream gets there,
 * which may be after the caller dropped the last reference to it. So the buffer stays
 * exported until an event recorded behind the copy has happened. Nobody is told when an
 * event happens: it is asked about later, a few buffers at each asynchronous copy, all
 * of them when the caller waited for a stream, an event or a device, or gave cached
 * memory back.
 *
 * At most WATCHED_MOST buffers are kept, lest a program that never waits pile them up:
 * a copy for which there is no room waits for its stream. At the end of the process
 * what the device may still use is left as it is. While a graph is being recorded no
 * event is asked about.
 *
 * Cost: an event is made for each copy and destroyed, about a microsecond a device.
 * Releasing a buffer may run Python code, so the list is in order whenever that can
 * happen. Threading: any thread, attached; asking the device lets others run.
 */
#include "later.h"
#include "module.h"

#include "core/gm_process.h" // gm_process_is_special

struct gmpy_watched {
    struct gmpy_watched *next;
    gm_event event;
    int device;
    uint64_t life;    // of the device, when the event was made
    gm_status status; // of the event, when it was asked about
    Py_buffer buffer;
};

enum {
    WATCHED_MOST = 1024,
    WATCHED_LOOK = 8, // events asked about a copy
};

/* ---- the list ---- */

/* Takes up to `most` from the front of the list. */
static gmpy_watched *
take_first(gmpy_state *st, int most)
{
    gmpy_watched *taken;
    gmpy_watched *last;

    GMPY_LOCK(&st->watched_lock);
    taken = last = st->watched;
    while (last && --most > 0 && last->next) {
        last = last->next;
    }
    if (last) {
        st->watched = last->next;
        last->next = NULL;
    }
    GMPY_UNLOCK(&st->watched_lock);
    return taken;
}

/* Puts one at the end, so that one that takes long holds up nobody. */
static void
put_last(gmpy_state *st, gmpy_watched *item)
{
    item->next = NULL;
    GMPY_LOCK(&st->watched_lock);
    if (st->watched) {
        st->watched_last->next = item;
    }
    else {
        st->watched = item;
    }
    st->watched_last = item;
    GMPY_UNLOCK(&st->watched_lock);
}

static inline int
count_of(const gmpy_state *st)
{
    return __atomic_load_n(&st->watched_count, __ATOMIC_RELAXED);
}

static inline void
count_one(gmpy_state *st, int change)
{
    __atomic_fetch_add(&st->watched_count, change, __ATOMIC_RELAXED);
}

/* ---- one buffer ---- */

gmpy_watched *
gmpy_watch_new(gmpy_state *st, const gm_backend *backend, int device)
{
    gmpy_watched *item;
    gm_status status;

    if (count_of(st) >= WATCHED_MOST) {
        return NULL;
    }
    item = gm_host_zalloc(sizeof(*item));
    if (!item) {
        return NULL;
    }
    status =
        gm_backend_event_create(backend, device, GM_EVENT_DISABLE_TIMING, &item->event);
    if (status != GM_OK) {
        gm_host_free(item);
        return NULL;
    }
    item->device = device;
    item->life = gmpy_device_life(st, device);
    return item;
}

gm_status
gmpy_watch_mark(const gm_backend *backend, gmpy_watched *item, gm_stream stream)
{
    return gm_backend_event_record(backend, item->event, stream);
}

void
gmpy_watch_keep(gmpy_state *st, gmpy_watched *item, Py_buffer *buffer)
{
    item->buffer = *buffer;
    *buffer = (Py_buffer){0};
    count_one(st, 1);
    put_last(st, item);
}

void
gmpy_watch_free(const gm_backend *backend, gmpy_watched *item)
{
    if (item) {
        /* An event that cannot be destroyed went with its device. */
        (void)gm_backend_event_destroy(backend, item->event);
        gm_host_free(item);
    }
}

/* ---- looking ---- */

/* Asks about the events and destroys those that are of no use any more: the ones that
 * happened, and the ones of a device that is lost. Those of before a reset of their
 * device are there no more. */
static void
ask(gmpy_state *st, gmpy_watched *chain)
{
    const gm_backend *backend = st->backend;

    for (gmpy_watched *item = chain; item; item = item->next) {
        item->status = GM_OK;
        if (gmpy_device_has_ended_known(st, item->device, item->life)) {
            continue;
        }
        item->status = gm_backend_event_query(backend, item->event);
        if (item->status != GM_NOT_READY) {
            (void)gm_backend_event_destroy(backend, item->event);
        }
    }
}

void
gmpy_watch_look(gmpy_state *st, bool all)
{
    int count = count_of(st);
    gmpy_watched *chain;

    if (count == 0 || gm_process_is_special()) {
        return;
    }
    chain = take_first(st, all ? count : WATCHED_LOOK);
    Py_BEGIN_ALLOW_THREADS
    ask(st, chain);
    Py_END_ALLOW_THREADS
    while (chain) {
        gmpy_watched *next = chain->next;

        if (chain->status == GM_NOT_READY) {
            put_last(st, chain);
        }
        else {
            count_one(st, -1);
            PyBuffer_Release(&chain->buffer);
            gm_host_free(chain);
        }
        chain = next;
    }
}
