/* SPDX-License-Identifier: MIT
 *
 * Captures: which recordings are under way, which requests are theirs, and what their
 * end makes up for. Their memory is gm_part.c; gm_capture.h says what it is for.
 *
 * A capture is on the list of the process from its beginning to its end, where requests
 * find it by its stream or by the backend's number. The parts in the pools know it by
 * its address until it is released, which goes through all pools.
 */
#include "gm_capture.h"

#include "gm_pending.h"
#include "gm_pool_private.h"

#include <pthread.h> // pthread_self

/* Memory, or a graph ready to launch, whose giving back had to wait; or a pool of the
 * driver's that is to be trimmed. */
typedef struct postponed {
    struct postponed *next;
    const gm_backend *backend;
    int device;
    gm_mem_kind kind;
    uintptr_t ptr;
    gm_graph_exec exec; // 0: it is memory
    bool imported;      // memory of another process, without device and kind
    gm_mem_pool pool;   // not 0: this is to be trimmed
    uint64_t life;      // of its device
} postponed;

struct gm_capture {
    gm_capture_link link;
    gm_stream_use stream;
    gm_capture_mode mode;
    pthread_t thread;     // that began it
    bool named;           // requests name it: no stream leads to it
    bool listed;          // from its beginning to its end
    atomic_bool owned;    // somebody begins or ends the recording, or has ended it
    _Atomic(uint64_t) id; // the backend's number, 0 before it has one
    atomic_bool released;
    atomic_size_t refs;
    postponed *postponed; // guarded by the list's lock
};

static gm_capture *
of_link(gm_capture_link *link)
{
    return (gm_capture *)(void *)link;
}

GM_STATIC_ASSERT(offsetof(gm_capture, link) == 0, "a link is where its capture is");

void
gm_capture_ref(gm_capture *capture)
{
    atomic_fetch_add(&capture->refs, 1);
}

void
gm_capture_unref(gm_capture *capture)
{
    if (atomic_fetch_sub(&capture->refs, 1) == 1) {
        gm_host_free(capture);
    }
}

bool
gm_capture_is_released(const gm_capture *capture)
{
    return atomic_load(&capture->released);
}

/* ---- life ---- */

static bool
is_of_stream(gm_capture_link *link, void *context)
{
    const gm_capture *capture = of_link(link);

    return !capture->named && gm_stream_use_is_same(&capture->stream, context);
}

/* One that has not begun; NULL for no host memory. */
static gm_capture *
make(const gm_stream_use *stream, gm_capture_mode mode)
{
    gm_capture *capture = gm_host_zalloc(sizeof(*capture));

    if (capture) {
        capture->stream = *stream;
        capture->mode = mode;
        capture->thread = pthread_self();
        atomic_init(&capture->owned, true);
        atomic_init(&capture->id, 0);
        atomic_init(&capture->released, false);
        atomic_init(&capture->refs, 1);
    }
    return capture;
}

gm_status
gm_capture_begin(const gm_stream_use *stream, gm_capture_mode mode, gm_capture **out)
{
    gm_capture *capture = make(stream, mode);

    if (!capture) {
        return GM_ERR_HOST_MEMORY;
    }
    capture->listed = true;
    if (!gm_process_capture_begin(&capture->link, is_of_stream, &capture->stream)) {
        gm_host_free(capture);
        return GM_BUSY;
    }
    *out = capture;
    return GM_OK;
}

/* Forbids nothing: who records has to know what may be asked of the device. */
gm_status
gm_capture_new(gm_capture **out)
{
    const gm_stream_use none = {.device = -1};
    gm_capture *capture = make(&none, GM_CAPTURE_MODE_RELAXED);

    if (!capture) {
        return GM_ERR_HOST_MEMORY;
    }
    capture->named = true;
    *out = capture;
    return GM_OK;
}

static bool
clashes_with_none(gm_capture_link *link, void *context)
{
    (void)link;
    (void)context;
    return false;
}

void
gm_capture_open(gm_capture *capture)
{
    GM_ASSERT(capture->named && !capture->listed);
    capture->listed = true;
    (void)gm_process_capture_begin(&capture->link, clashes_with_none, NULL);
}

typedef struct taking {
    const gm_stream_use *stream;
    bool busy;
} taking;

static bool
take(gm_capture_link *link, void *context)
{
    gm_capture *capture = of_link(link);
    taking *t = context;

    if (capture->named || !gm_stream_use_is_same(&capture->stream, t->stream)) {
        return false;
    }
    t->busy = atomic_exchange(&capture->owned, true);
    return true;
}

gm_status
gm_capture_take(const gm_stream_use *stream, gm_capture **out)
{
    taking t = {stream, false};
    gm_capture_link *link = NULL;

    if (gm_process_is_capturing()) {
        link = gm_process_capture_find(take, &t);
    }
    if (t.busy) {
        return GM_BUSY;
    }
    *out = link ? of_link(link) : NULL;
    return GM_OK;
}

void
gm_capture_leave(gm_capture *capture)
{
    atomic_store(&capture->owned, false);
}

uint64_t
gm_capture_number(const gm_capture *capture)
{
    return atomic_load(&capture->id);
}

void
gm_capture_identify(gm_capture *capture, uint64_t id)
{
    atomic_store(&capture->id, id);
}

/* False where nothing is being recorded any more, or there is no host memory. */
static bool postpone(const postponed *what);

/* A pool goes with its device, and its handle may mean another one then. */
static void
trim(const postponed *item)
{
    uint64_t life = 0;

    if (gm_backend_device_incarnation(item->backend, item->device, &life) == GM_OK &&
        life == item->life) {
        (void)gm_backend_mem_pool_trim(item->backend, item->pool, 0);
    }
}

/* A device that refuses has lost what it was; there is nobody to tell. */
static void
give(const postponed *item)
{
    if (item->pool) {
        trim(item);
    }
    else if (item->exec) {
        (void)gm_backend_graph_exec_destroy(item->backend, item->exec);
    }
    else if (item->imported) {
        (void)gm_backend_ipc_close(item->backend, item->ptr);
    }
    else {
        (void)gm_backend_mem_free(item->backend, item->device, item->kind, item->ptr);
    }
}

static void
give_postponed(postponed *chain)
{
    while (chain) {
        postponed *next = chain->next;

        if (!postpone(chain)) {
            give(chain);
        }
        gm_host_free(chain);
        chain = next;
    }
}

/* What a pool had to put off while something was being recorded. */
static void
catch_up(gm_pool *pool, void *context)
{
    size_t target;
    bool trim;

    (void)context;
    gm_pool_lock(pool);
    trim = pool->trim && !gm_process_is_capturing();
    target = pool->trim_target;
    pool->trim &= !trim;
    gm_pool_unlock(pool);
    if (trim) {
        (void)gm_pool_trim(pool, target); // whoever asked for it was told that it waits
    }
    gm_pool_lock(pool);
    gm_pool_leave(pool); // marks what was dropped, ends what was closed
}

void
gm_capture_end(gm_capture *capture)
{
    if (!capture->listed || gm_process_is_forked()) {
        return;
    }
    capture->listed = false;
    gm_process_capture_end(&capture->link);
    give_postponed(capture->postponed);
    capture->postponed = NULL;
    if (!gm_process_is_special()) {
        gm_pools_visit(catch_up, NULL);
    }
}

static void
release_in_pool(gm_pool *pool, void *context)
{
    gm_part_release(pool, context);
}

void
gm_capture_release(gm_capture *capture)
{
    if (gm_process_is_frozen()) {
        return;
    }
    gm_capture_end(capture);
    atomic_store(&capture->released, true);
    gm_pools_visit(release_in_pool, capture);
    gm_capture_unref(capture);
}

/* ---- launches ---- */

typedef struct launch {
    const gm_capture *capture;
    const gm_stream_use *by;
    gm_status status;
} launch;

static void
launched_in_pool(gm_pool *pool, void *context)
{
    launch *l = context;
    gm_status status = gm_part_launched(pool, l->capture, l->by);

    l->status = l->status == GM_OK ? status : l->status;
}

gm_status
gm_capture_launched(gm_capture *capture, const gm_stream_use *by)
{
    launch l = {capture, by, GM_OK};

    if (gm_process_is_frozen()) {
        return gm_process_status();
    }
    gm_pools_visit(launched_in_pool, &l);
    return l.status;
}

/* ---- requests ---- */

typedef struct requester {
    int device;
    gm_stream_key key;
    uint64_t recording;
} requester;

/* Takes a reference where the requester's stream takes part in the capture. */
static bool
is_of(gm_capture_link *link, void *context)
{
    gm_capture *capture = of_link(link);
    const requester *r = context;
    bool same_stream =
        capture->stream.key == r->key && capture->stream.device == r->device;

    if (capture->named) {
        return false;
    }
    if (same_stream || (r->recording && atomic_load(&capture->id) == r->recording)) {
        gm_capture_ref(capture);
        return true;
    }
    return false;
}

bool
gm_capture_serves(gm_pool *pool,
                  const gm_request *request,
                  const gm_rescue *rescue,
                  gm_status *status,
                  gm_block **out)
{
    requester r = {pool->device, request->key, rescue ? rescue->recording : 0};
    gm_capture_link *link;

    if (rescue && rescue->capture) {
        *status = gm_part_malloc(pool, rescue->capture, request, out);
        return *status != GM_ERR_CAPTURING; // else more may be had
    }
    if (!gm_process_is_capturing()) {
        return false;
    }
    link = gm_process_capture_find(is_of, &r);
    if (!link) {
        return false;
    }
    *status = gm_part_malloc(pool, of_link(link), request, out);
    gm_capture_unref(of_link(link));
    return true;
}

/* The runtime's rule: a global recording forbids it to all threads, one of a thread to
 * that thread, a relaxed one to nobody. */
static bool
is_forbidding(gm_capture_link *link, void *context)
{
    const gm_capture *capture = of_link(link);

    (void)context;
    return capture->mode == GM_CAPTURE_MODE_GLOBAL ||
           (capture->mode == GM_CAPTURE_MODE_THREAD_LOCAL &&
            pthread_equal(capture->thread, pthread_self()));
}

bool
gm_capture_is_forbidding(void)
{
    return gm_process_is_capturing() &&
           gm_process_capture_find(is_forbidding, NULL) != NULL;
}

/* ---- what waits ---- */

/* Hangs *context on the capture, and takes it; in front, but a pool behind all else, so
 * that it is trimmed after what goes back to it. A pool that hangs there is not taken.
 */
static bool
hang_on(gm_capture_link *link, void *context)
{
    postponed **what = context;
    postponed *item = *what;
    postponed **at = &of_link(link)->postponed;

    while (item->pool && *at && (*at)->pool != item->pool) {
        at = &(*at)->next;
    }
    if (!item->pool || !*at) {
        item->next = *at;
        *at = item;
        *what = NULL;
    }
    return true;
}

static bool
postpone(const postponed *what)
{
    postponed *item;
    bool found;

    if (!gm_process_is_capturing()) {
        return false;
    }
    item = gm_host_alloc(sizeof(*item));
    if (!item) {
        return false;
    }
    *item = *what;
    found = gm_process_capture_find(hang_on, &item) != NULL; // or it ended meanwhile
    gm_host_free(item);                                      // NULL where it was taken
    return found;
}

bool
gm_capture_postpone_free(const gm_backend *backend,
                         int device,
                         gm_mem_kind kind,
                         uintptr_t ptr)
{
    const postponed memory = {
        .backend = backend, .device = device, .kind = kind, .ptr = ptr};

    return postpone(&memory);
}

bool
gm_capture_postpone_end(const gm_backend *backend, gm_graph_exec exec)
{
    const postponed graph = {.backend = backend, .exec = exec};

    return postpone(&graph);
}

bool
gm_capture_postpone_close(const gm_backend *backend, uintptr_t base)
{
    const postponed memory = {.backend = backend, .ptr = base, .imported = true};

    return postpone(&memory);
}

bool
gm_capture_postpone_trim(const gm_backend *backend, int device, gm_mem_pool pool)
{
    postponed trimming = {.backend = backend, .device = device, .pool = pool};

    return gm_backend_device_incarnation(backend, device, &trimming.life) == GM_OK &&
           postpone(&trimming);
}
