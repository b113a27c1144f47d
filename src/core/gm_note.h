/* SPDX-License-Identifier: MIT
 *
 * Notes: what has to be remembered of the few blocks, arenas and captures that wait for
 * a stream before their memory can be used again.
 *
 * A note has uses, one a stream; a use gets a mark, an event recorded on that stream;
 * when the marks of all its uses have happened the note is done. Uses that have their
 * mark stand in lanes, one a stream, in the order of recording: where the first has not
 * happened the rest have not either, so looking costs one query a stream. A lane is
 * made of its uses, so that nothing has to be allocated where a block is given back.
 *
 * Marks come from the pool's own spare ones and are shared: one event serves all that
 * waits for the same moment of a stream. They are made without timing.
 *
 * A block's node has no room for all this, and most blocks need none of it: a note is a
 * piece of host memory of its own, and the block's state says that there is one.
 *
 * Threading: caller holds the pool's lock, unless it says that it calls the device.
 */
#ifndef GM_NOTE_H
#define GM_NOTE_H

#include "gm_arena.h"
#include "gm_backend.h"
#include "gm_pool.h"

static inline bool
gm_stream_use_is_same(const gm_stream_use *a, const gm_stream_use *b)
{
    return a->key == b->key && a->device == b->device; // default streams share a key
}

/* An event that was recorded. */
typedef struct gm_mark gm_mark;
struct gm_mark {
    gm_event event;
    int device;
    uint64_t life; // of the device: gm_lost.h
    unsigned refs;
    gm_mark *next; // spare: next in the pool's list
};

typedef struct gm_use gm_use;
struct gm_use {
    gm_use *next; // of the same note
    gm_note *note;
    gm_stream_use by;
    gm_mark *mark;  // NULL: none yet, or none needed
    gm_mark *fresh; // while a flush is under way: what it recorded
    bool gone;      // the stream is, or may be, gone: its handle is left alone

    // In a lane.
    gm_use *later; // recorded next on this stream
    gm_use *last;  // first of a lane: its last one
    gm_use *lane;  // first of a lane: first of the next lane
};

typedef enum gm_note_kind {
    GM_NOTE_BLOCK, // a block: live, then pending
    GM_NOTE_ARENA, // what an ended stream left
    GM_NOTE_PART,  // a capture's memory: in use, then waiting for its launches
} gm_note_kind;

typedef struct gm_part gm_part;

struct gm_note {
    gm_note_kind kind;
    bool in_flight;   // a flush works on its uses without the lock
    size_t requested; // BLOCK: bytes asked for
    gm_block *block;  // BLOCK
    gm_arena *arena;  // ARENA, pinned
    gm_part *part;    // PART; BLOCK: the capture it belongs to, NULL for none
    gm_use *uses;
    size_t open;     // uses that stand in lanes
    gm_note *prev;   // the pool's list of notes that do not stand in lanes
    gm_note *next;   //
    gm_note *behind; // next in the pool's list of what was dropped
};

/* A note with no uses, of zero bytes otherwise. NULL: no host memory. No lock needed.
 */
gm_note *gm_note_new(gm_note_kind kind);

/* Puts a note on the pool's list, or takes it off. */
void gm_note_link_locked(gm_pool *pool, gm_note *note);
void gm_note_unlink_locked(gm_pool *pool, gm_note *note);

/* Drops the marks of all uses and frees them and the note, which is on no list. */
void gm_note_free_locked(gm_pool *pool, gm_note *note);

/* The use of that stream; NULL for none. */
gm_use *gm_note_find_use(const gm_note *note, const gm_stream_use *by);

/* A use for a note; NULL: no host memory. No lock needed. */
gm_use *gm_use_new(const gm_stream_use *by);

/* Gives `use` to `note`: one that is there for the same stream is brought up to date
 * and `use` freed. */
void gm_note_give_use_locked(gm_pool *pool, gm_note *note, gm_use *use);

/* Puts a use that has its mark at the end of its stream's lane. */
void gm_lane_append_locked(gm_pool *pool, gm_use *use);

/* Takes the first use of the lane that `*link` points to out of it; *link is then the
 * rest of the lane or, where nothing is left, the next one. */
gm_use *gm_lane_pop_locked(gm_use **link);

/* ---- marks ---- */

/* One holder less; the last makes it a spare one. Accepts NULL. */
void gm_mark_drop_locked(gm_pool *pool, gm_mark *mark);

/* Waits for marks one after the other, with nothing else in hand, and after each does
 * what became possible. `look` counts what waits, and finds a mark that is to be waited
 * for, NULL for none; as many as it counted first are, at the most. Returns the sum of
 * what `settle` did. Calls the device, so without the lock. */
size_t gm_marks_wait(gm_pool *pool,
                     size_t (*look_locked)(const gm_pool *pool, gm_mark **mark),
                     size_t (*settle)(gm_pool *pool));

/* A mark recorded on the stream now. Calls the device, so without the lock.
 * GM_ERR_CAPTURING: the stream is recording a graph, where a mark would become a part
 * of that; nothing was done. */
GM_MUST_CHECK gm_status gm_mark_record(gm_pool *pool,
                                       const gm_stream_use *by,
                                       gm_mark **out);

/* Destroys the spare marks but for a few: once much was pending, there are as many.
 * Calls the device, so without the lock; does nothing while a graph is being recorded.
 */
void gm_marks_trim(gm_pool *pool);

/* Destroys the spare marks; calls the device. */
void gm_marks_fini(gm_pool *pool);

/* Around a call with a handle that means the current device's stream, or the calling
 * thread's: makes the stream's device current. As gm_backend_device_push; leaves
 * nothing to be left where it fails. */
gm_status
gm_stream_use_enter(const gm_backend *b, const gm_stream_use *by, gm_device_mark *back);
void gm_stream_use_leave(const gm_backend *b, const gm_device_mark *back);

/* Whether the handle of a use still means the stream it meant, as far as can be told:
 * one that is being recorded does not say which it is. Calls the device. */
bool gm_stream_use_is_there(const gm_backend *b, const gm_stream_use *by);

/* Whether all that is queued on the stream is done. False where it is being recorded,
 * which is not disturbed. Calls the device. */
bool gm_stream_use_is_idle(const gm_backend *b, const gm_stream_use *by);

#endif
