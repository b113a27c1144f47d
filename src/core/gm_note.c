/* SPDX-License-Identifier: MIT
 *
 * Notes, their uses, the lanes these stand in, and marks. See gm_note.h.
 */
#include "gm_note.h"

#include "gm_pool_private.h"

#include <sched.h> // sched_yield

/* ---- notes ---- */

gm_note *
gm_note_new(gm_note_kind kind)
{
    gm_note *note = gm_host_zalloc(sizeof(*note));

    if (note) {
        note->kind = kind;
    }
    return note;
}

void
gm_note_link_locked(gm_pool *pool, gm_note *note)
{
    note->prev = NULL;
    note->next = pool->notes;
    if (pool->notes) {
        pool->notes->prev = note;
    }
    pool->notes = note;
}

void
gm_note_unlink_locked(gm_pool *pool, gm_note *note)
{
    if (note->prev) {
        note->prev->next = note->next;
    }
    else {
        pool->notes = note->next;
    }
    if (note->next) {
        note->next->prev = note->prev;
    }
}

void
gm_note_free_locked(gm_pool *pool, gm_note *note)
{
    while (note->uses) {
        gm_use *use = note->uses;

        note->uses = use->next;
        gm_mark_drop_locked(pool, use->mark);
        gm_host_free(use);
    }
    gm_host_free(note);
}

/* ---- uses ---- */

gm_use *
gm_use_new(const gm_stream_use *by)
{
    gm_use *use = gm_host_zalloc(sizeof(*use));

    if (use) {
        use->by = *by;
    }
    return use;
}

gm_use *
gm_note_find_use(const gm_note *note, const gm_stream_use *by)
{
    gm_use *use = note->uses;

    while (use && !gm_stream_use_is_same(&use->by, by)) {
        use = use->next;
    }
    return use;
}

void
gm_note_give_use_locked(gm_pool *pool, gm_note *note, gm_use *use)
{
    gm_use *known = gm_note_find_use(note, &use->by);

    if (!known) {
        use->note = note;
        use->next = note->uses;
        note->uses = use;
        return;
    }
    gm_mark_drop_locked(pool, known->mark);
    known->mark = use->mark;
    known->by = use->by; // the same stream, perhaps by another of its handles
    known->gone = use->gone;
    gm_host_free(use);
}

/* ---- lanes ---- */

void
gm_lane_append_locked(gm_pool *pool, gm_use *use)
{
    gm_use *first = pool->lanes;

    use->later = NULL;
    while (first && !gm_stream_use_is_same(&first->by, &use->by)) {
        first = first->lane;
    }
    if (first) {
        first->last->later = use;
        first->last = use;
        return;
    }
    use->last = use;
    use->lane = pool->lanes;
    pool->lanes = use;
}

gm_use *
gm_lane_pop_locked(gm_use **link)
{
    gm_use *first = *link;
    gm_use *rest = first->later;

    if (rest) {
        rest->last = first->last;
        rest->lane = first->lane;
        *link = rest;
    }
    else {
        *link = first->lane;
    }
    return first;
}

/* ---- marks ---- */

void
gm_mark_drop_locked(gm_pool *pool, gm_mark *mark)
{
    if (mark && --mark->refs == 0) {
        mark->next = pool->marks;
        pool->marks = mark;
    }
}

/* A spare mark of that device; NULL for none. */
static gm_mark *
mark_take_locked(gm_pool *pool, int device)
{
    gm_mark **link = &pool->marks;
    gm_mark *mark;

    while (*link && (*link)->device != device) {
        link = &(*link)->next;
    }
    mark = *link;
    if (mark) {
        *link = mark->next;
        mark->refs = 1;
    }
    return mark;
}

static gm_status
mark_make(const gm_backend *b, int device, gm_mark **out)
{
    gm_mark *mark = gm_host_zalloc(sizeof(*mark));
    gm_status status;

    if (!mark) {
        return GM_ERR_HOST_MEMORY;
    }
    status = gm_backend_event_create(b, device, GM_EVENT_DISABLE_TIMING, &mark->event);
    if (status != GM_OK) {
        gm_host_free(mark);
        return status;
    }
    mark->device = device;
    mark->refs = 1;
    /* A mark whose life is not known counts as lost with the next reset. */
    (void)gm_backend_device_incarnation(b, device, &mark->life);
    *out = mark;
    return GM_OK;
}

gm_status
gm_stream_use_enter(const gm_backend *b, const gm_stream_use *by, gm_device_mark *back)
{
    int current = 0;
    gm_status status;

    *back = (gm_device_mark){0};
    if (by->stream > GM_STREAM_PER_THREAD) {
        return GM_OK;
    }
    status = gm_backend_device_get(b, &current);
    return status == GM_OK && current != by->device
               ? gm_backend_device_push(b, by->device, back)
               : status;
}

void
gm_stream_use_leave(const gm_backend *b, const gm_device_mark *back)
{
    gm_backend_device_pop(b, back);
}

bool
gm_stream_use_is_there(const gm_backend *b, const gm_stream_use *by)
{
    uint64_t id = 0;
    gm_status status;
    gm_device_mark back;

    if (by->announced) {
        return true;
    }
    status = gm_stream_use_enter(b, by, &back);
    if (status == GM_OK) {
        status = gm_backend_stream_id(b, by->stream, &id);
        gm_stream_use_leave(b, &back);
    }
    return status == GM_ERR_CAPTURING ||
           (status == GM_OK && gm_stream_key_of(by->stream, id) == by->key);
}

/* GM_OK where the stream may be given an event that is to be asked about. */
static gm_status
check_not_recording(const gm_backend *b, gm_stream stream)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id = 0;
    gm_status status;

    if (stream <= GM_STREAM_LEGACY) { // never recorded
        return GM_OK;
    }
    status = gm_backend_stream_capture(b, stream, &state, &id);
    if (status != GM_OK) {
        return status;
    }
    return state == GM_CAPTURE_NONE ? GM_OK : GM_ERR_CAPTURING;
}

bool
gm_stream_use_is_idle(const gm_backend *b, const gm_stream_use *by)
{
    gm_device_mark back;
    gm_status status = gm_stream_use_enter(b, by, &back);

    if (status == GM_OK) {
        status = check_not_recording(b, by->stream);
        if (status == GM_OK) {
            status = gm_backend_stream_query(b, by->stream);
        }
        gm_stream_use_leave(b, &back);
    }
    return status == GM_OK;
}

gm_status
gm_mark_record(gm_pool *pool, const gm_stream_use *by, gm_mark **out)
{
    const gm_backend *b = pool->upstream.backend;
    gm_mark *mark;
    gm_status status = GM_OK;
    gm_device_mark back;

    gm_pool_lock(pool);
    mark = mark_take_locked(pool, by->device);
    gm_pool_unlock(pool);
    if (!mark) {
        status = mark_make(b, by->device, &mark);
    }
    if (status != GM_OK) {
        return status;
    }
    status = gm_stream_use_enter(b, by, &back);
    if (status == GM_OK) {
        status = check_not_recording(b, by->stream);
        if (status == GM_OK) {
            status = gm_backend_event_record(b, mark->event, by->stream);
        }
        gm_stream_use_leave(b, &back);
    }
    if (status != GM_OK) {
        gm_pool_lock(pool);
        gm_mark_drop_locked(pool, mark);
        gm_pool_unlock(pool);
        return status;
    }
    *out = mark;
    return GM_OK;
}

/* Ends a spare mark that is on no list. One of a device that was reset has no event any
 * more, whose handle may be somebody else's. */
static void
mark_end(const gm_pool *pool, gm_mark *mark)
{
    if (!mark->life || gm_pool_ask_life(pool, mark->device) == mark->life) {
        (void)gm_backend_event_destroy(pool->upstream.backend, mark->event);
    }
    gm_host_free(mark);
}

/* Waits until the mark has happened, and lets go of it. */
static gm_status
mark_wait(gm_pool *pool, gm_mark *mark)
{
    gm_status status =
        gm_backend_event_synchronize(pool->upstream.backend, mark->event);
    bool lost = gm_pool_ask_life(pool, mark->device) != mark->life;

    gm_pool_lock(pool);
    pool->waiting--;
    lost = lost && mark->refs == 1; // whoever notices that finds those of others
    if (!lost) {
        gm_mark_drop_locked(pool, mark);
    }
    gm_pool_unlock(pool);
    if (lost) {
        mark_end(pool, mark);
    }
    return status;
}

size_t
gm_marks_wait(gm_pool *pool,
              size_t (*look_locked)(const gm_pool *pool, gm_mark **mark),
              size_t (*settle)(gm_pool *pool))
{
    size_t sum = 0;
    size_t most = 1;

    for (size_t round = 0; round < most && !gm_process_is_special(); round++) {
        gm_mark *mark = NULL;
        size_t count;
        size_t done;

        gm_pool_lock(pool);
        count = look_locked(pool, &mark);
        if (mark) {
            mark->refs++;
            pool->waiting++;
        }
        gm_pool_unlock(pool);
        most = round == 0 ? count : most;
        if (!mark || mark_wait(pool, mark) != GM_OK) {
            break;
        }
        done = settle(pool);
        sum += done;
        if (done == 0) {
            sched_yield(); // another thread may be at it
        }
    }
    return sum;
}

void
gm_marks_trim(gm_pool *pool)
{
    enum {
        KEPT = 16 // as many as a flush and a look need between them
    };
    gm_mark **link = &pool->marks;
    gm_mark *surplus;

    if (gm_process_is_special()) {
        return;
    }
    gm_pool_lock(pool);
    for (int i = 0; i < KEPT && *link; i++) {
        link = &(*link)->next;
    }
    surplus = *link;
    *link = NULL;
    gm_pool_unlock(pool);
    while (surplus) {
        gm_mark *next = surplus->next;

        mark_end(pool, surplus);
        surplus = next;
    }
}

void
gm_marks_fini(gm_pool *pool)
{
    while (pool->marks) {
        gm_mark *mark = pool->marks;

        pool->marks = mark->next;
        /* An event that cannot be destroyed went with its device. */
        (void)gm_backend_event_destroy(pool->upstream.backend, mark->event);
        gm_host_free(mark);
    }
}
