/* SPDX-License-Identifier: MIT
 *
 * What the binding does for a request that the cache could not serve: lets go of the
 * interpreter for the core's miss path, collects garbage and asks the user's
 * out-of-memory callback when that comes to it, and raises what came of it.
 *
 * A request under way stands in a list of its thread, innermost first. By it what a
 * Python base allocator raised for want of memory finds its way into the exception, as
 * its cause, and a callback is known to be running: a request made inside it that fails
 * gets its error at once instead of asking again. A request of C code (capi_memory.c)
 * goes the same way, but for what needs the interpreter: that attaches when it comes to
 * it, and what it raises becomes the last error of the thread.
 *
 * Threading: a request is its thread's alone. The callback runs on that thread, with no
 * lock held.
 */
#include "async_pool.h"
#include "capi.h"
#include "guard.h"
#include "out_of_memory.h"
#include "pools.h"
#include "stream.h"

/* ---- what the core calls, detached ---- */

/* What garbage had of the user's functions is given back too. */
static bool
collect_garbage(void *context)
{
    const gmpy_rescue *rescue = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    int ran;

    gmpy_upstreams_look(rescue->st);
    ran = gmpy_collect_garbage(rescue->st, true);

    if (ran < 0) {
        PyErr_WriteUnraisable(NULL); // the core has nobody to tell
    }
    gmpy_guards_settle(rescue->st, ran > 0);
    PyGILState_Release(gil);
    return ran > 0;
}

/* What MemoryAsyncPool has cached is the driver's pool's. */
static size_t
trim_driver(void *context, int device)
{
    const gmpy_rescue *rescue = context;

    return gmpy_async_pools_trim(rescue->st, device);
}

/* The callback that a request of `pool` may ask: new reference, NULL for none. None
 * while one is running on this thread, whichever pool's: they would nest as deep as
 * there are pools. */
static PyObject *
callback_for(gm_pool *pool)
{
    PyObject *object = gmpy_upstream_of(pool)->object;

    for (const gmpy_rescue *r = gmpy_this_rescue; r; r = r->outer) {
        if (r->asking) {
            return NULL;
        }
    }
    return object ? gmpy_pool_callback((gmpy_any_pool *)object) : NULL;
}

static gm_answer
ask_attached(gmpy_rescue *rescue, const gm_shortage *shortage)
{
    PyObject *error;
    PyObject *answer = NULL;
    int truth;

    if (!rescue->callback) {
        rescue->callback = callback_for(rescue->pool);
    }
    if (!rescue->callback) {
        return GM_ANSWER_GIVE_UP;
    }
    error = gmpy_out_of_memory_new(rescue->st, shortage, true);
    rescue->asked = shortage->attempt;
    if (error) {
        rescue->asking = true;
        answer = PyObject_CallOneArg(rescue->callback, error);
        rescue->asking = false;
        Py_DECREF(error);
    }
    truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (truth < 0) {
        gmpy_rescue_failed(rescue->st);
        return GM_ANSWER_FAILED;
    }
    return truth ? GM_ANSWER_RETRY : GM_ANSWER_GIVE_UP;
}

static gm_answer
ask_callback(void *context, const gm_shortage *shortage)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    gm_answer answer = ask_attached(context, shortage);

    PyGILState_Release(gil);
    return answer;
}

/* ---- what a base allocator raised ---- */

/* Takes the tracebacks off an exception and those behind it: their frames would keep
 * memory that the request needs. */
static void
strip(PyObject *error)
{
    enum {
        DEPTH = 100 // the user may have made a ring of them
    };
    PyObject *at = Py_NewRef(error);

    for (int i = 0; at && i < DEPTH; i++) {
        PyObject *behind = PyException_GetCause(at);

        if (!behind) {
            behind = PyException_GetContext(at);
        }
        (void)PyException_SetTraceback(at, Py_None); // None is always accepted
        Py_SETREF(at, behind);
    }
    Py_XDECREF(at);
}

void
gmpy_rescue_note(const gmpy_upstream *up)
{
    gmpy_rescue *rescue = gmpy_this_rescue;
    PyObject *error = gmpy_take_exception();

    if (rescue && gmpy_upstream_of(rescue->pool) == up && error) {
        strip(error);
        Py_XSETREF(rescue->shortage, error);
    }
    else {
        Py_XDECREF(error);
    }
}

void
gmpy_rescue_failed(gmpy_state *st)
{
    if (gmpy_this_rescue && gmpy_this_rescue->of_c) {
        (void)gmpy_c_fail_exception(st);
    }
}

void
gmpy_rescue_forget(const gmpy_upstream *up)
{
    gmpy_rescue *rescue = gmpy_this_rescue;

    if (rescue && gmpy_upstream_of(rescue->pool) == up) {
        Py_CLEAR(rescue->shortage);
    }
}

/* ---- a request ---- */

static void
raise_shortage(gmpy_rescue *rescue, const gm_request *request, gm_status status)
{
    gm_shortage shortage;
    PyObject *error;

    Py_BEGIN_ALLOW_THREADS
    gm_pool_explain(rescue->pool, request, status, &shortage);
    Py_END_ALLOW_THREADS
    shortage.attempt = rescue->asked;
    error = gmpy_out_of_memory_new(rescue->st, &shortage, rescue->callback != NULL);
    if (!error) {
        return;
    }
    if (rescue->shortage) {
        PyException_SetCause(error, rescue->shortage);
        rescue->shortage = NULL;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
}

static void
raise_failed(gmpy_rescue *rescue, const gm_request *request, gm_status status)
{
    switch (status) {
    case GM_ERR_OUT_OF_MEMORY:
    case GM_ERR_LIMIT:
    case GM_ERR_TOO_LARGE:
    case GM_ERR_CAPTURING:
        raise_shortage(rescue, request, status);
        break;
    default:
        gmpy_raise(rescue->st, status, "allocating from a memory pool");
    }
}

/* The calling thread's current stream on `device`, as a request means it; of pinned
 * memory, which is no device's, it means none. */
static gm_stream_use
current_use(gmpy_state *st, int device)
{
    const gmpy_thread *thread = gmpy_settings(st);
    gm_stream_use by = {.device = device, .announced = true};

    if (thread && thread->currents && device >= 0) {
        const gmpy_current *current = &thread->currents[device];
        const gmpy_stream *stream = (const gmpy_stream *)current->stream;

        by.stream = current->handle;
        by.key = current->key;
        by.announced = by.stream <= GM_STREAM_LEGACY || (stream && stream->owned);
    }
    return by;
}

gm_status
gmpy_rescue_run(gmpy_rescue *rescue,
                const gm_request *request,
                const gm_stream_use *by,
                gm_block **out)
{
    bool asks = !rescue->alone && (rescue->of_c || rescue->callback);
    gm_rescue means = {
        .context = rescue,
        .collect = rescue->alone ? NULL : collect_garbage,
        .trim = trim_driver,
        .ask = asks ? ask_callback : NULL,
        .by = by,
        .capture = rescue->capture,
    };
    gm_status status;

    if (by && !means.capture &&
        !gmpy_stream_use_look(rescue->st->backend, by, &means.recording)) {
        means.by = NULL; // nothing is lent to a stream that is gone
    }
    status = gm_pool_malloc_slow(rescue->pool, request, &means, out);
    if (status == GM_OK && (*out)->state == GM_BLOCK_NOTED) {
        gmpy_upstream_note(gmpy_upstream_of(rescue->pool)); // borrowed, or of a graph
    }
    return status;
}

GM_COLD int
gmpy_pool_malloc_slow(gmpy_state *st,
                      gm_pool *pool,
                      const gm_request *request,
                      const gm_stream_use *by,
                      gm_block **out)
{
    gmpy_rescue rescue = {
        .st = st,
        .pool = pool,
        .callback = callback_for(pool),
        .outer = gmpy_this_rescue,
    };
    int device = gm_pool_device(pool);
    const gm_stream_use use = by ? *by : current_use(st, device);
    gm_status status;

    gmpy_upstreams_look(st);
    gmpy_guards_look(st);
    gmpy_this_rescue = &rescue;
    gmpy_upstream_count(pool, 1); // the request under way
    Py_BEGIN_ALLOW_THREADS
    status = gmpy_rescue_run(&rescue, request, device < 0 ? NULL : &use, out);
    Py_END_ALLOW_THREADS
    gmpy_upstream_count(pool, -1);
    if (status != GM_OK) {
        raise_failed(&rescue, request, status);
    }
    gmpy_this_rescue = rescue.outer;
    gmpy_drop(&rescue.callback);
    gmpy_drop(&rescue.shortage);
    return status == GM_OK ? 0 : -1;
}
