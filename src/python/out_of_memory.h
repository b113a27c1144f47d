/* SPDX-License-Identifier: MIT
 *
 * Running out of memory: the exception, what it says, and the request that is under
 * way.
 */
#ifndef GMPY_OUT_OF_MEMORY_H
#define GMPY_OUT_OF_MEMORY_H

#include "module.h"

/* ---- shortage_text.c ---- */

/* By gm_cause. */
extern const char *const gmpy_cause_words[];

typedef struct gmpy_shortage_text {
    char chars[1024]; // more than the longest takes; the rest would be cut off
    size_t length;
} gmpy_shortage_text;

/* What an OutOfMemoryError says; `has_callback`: whether the user is or was asked for
 * memory already. */
void
gmpy_shortage_tell(const gm_shortage *what, bool has_callback, gmpy_shortage_text *out);

/* ---- out_of_memory.c ---- */

/* For gmpy_errors_init. */
int gmpy_out_of_memory_init(PyObject *module, gmpy_state *st);

/* For the traverse and clear of exception types: those of a base that Python knows from
 * the start do not see to the type of the exception, which may be garbage itself. */
int gmpy_error_traverse(PyObject *self, visitproc visit, void *arg);
int gmpy_error_clear(PyObject *self);

/* An OutOfMemoryError that says what a request lacks. Calls no device. New reference.
 */
PyObject *
gmpy_out_of_memory_new(gmpy_state *st, const gm_shortage *what, bool has_callback);

/* Raises one. Always returns NULL. */
PyObject *gmpy_raise_shortage(gmpy_state *st, const gm_shortage *what);

/* ---- refused.c ---- */

/* Raises for memory that was asked of the device without a pool; `what` names that, as
 * for gmpy_raise. Where it ran out the text has the numbers, and what to do. `device`:
 * -1 for page-locked memory, which is no device's. Always returns NULL. */
PyObject *gmpy_raise_refused(
    gmpy_state *st, gm_status status, const char *what, int device, size_t size);

/* ---- rescue.c ---- */

/* A request that the cache could not serve, while it is under way on its thread. */
typedef struct gmpy_rescue gmpy_rescue;
struct gmpy_rescue {
    gmpy_state *st;
    gm_pool *pool;
    PyObject *callback; // whom to ask for memory; NULL for nobody
    PyObject *shortage; // what the pool's allocator raised last for want of memory
    size_t asked;       // how often the callback was
    bool asking;        // it is running
    bool of_c;          // made by C code: what Python raises becomes its last error
    bool alone;         // the same, and it must not wait for the interpreter
    struct gm_capture *capture; // of C code: whose memory is asked for, NULL: no one's
    gmpy_rescue *outer; // a request of this thread that is under way around this one
};

/* Makes the request with all means. Detached from the interpreter; stands in the list
 * of the calling thread already. *by may be NULL: no stream of a device. */
gm_status gmpy_rescue_run(gmpy_rescue *rescue,
                          const gm_request *request,
                          const struct gm_stream_use *by,
                          gm_block **out);

/* What Python code raised goes to whoever made the request under way: it stays pending,
 * or is the last error of C code. Attached. */
void gmpy_rescue_failed(gmpy_state *st);

/* The innermost of the calling thread's; NULL for none. */
extern _Thread_local gmpy_rescue *gmpy_this_rescue;

/* A base allocator raised for want of memory: takes the pending exception, to be the
 * cause of what the request under way may raise. The second forgets it. */
void gmpy_rescue_note(const gmpy_upstream *up);
void gmpy_rescue_forget(const gmpy_upstream *up);

#endif
