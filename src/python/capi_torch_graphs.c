/* SPDX-License-Identifier: MIT
 *
 * The memory of torch's graphs, where gpumem is torch's allocator.
 *
 * torch names the memory that a graph is recorded with by two numbers, so that several
 * graphs may share it; they are recorded one after the other. It says when a recording
 * is about to begin, when it has ended, and when a graph is gone. Here each such name
 * has a capture of the core's (core/gm_capture.h): what is taken during its recordings
 * is kept for its graphs, to the end of the last one.
 *
 * Which requests are a recording's: those of streams that take part in it, by the
 * driver's number for it. torch begins it only after it has said so, so that number is
 * learnt from the first request of a stream that is being recorded and of no recording
 * known by then: it belongs to what the same thread began or, where that began nothing,
 * as a thread of torch's autograd did not, to the only one that has no number.
 *
 * During a recording memory may be asked for (the cuda backend has the driver allow it)
 * but none is given back, and no device is waited for.
 *
 * Memory that a recording uses on another stream than its own (record_stream) cannot be
 * marked there, since a mark would become a part of the graph. What torch drops of it
 * is kept to the end of the recording, as torch's own allocator does: nothing asked for
 * in the recording gets it, and no work was done that would have to be waited for.
 *
 * A graph's launches are torch's, which says nothing of them. So when the last graph is
 * gone the device is waited for, before its memory is anybody's: later, where something
 * is being recorded just then. torch's own allocator waits there too, in cudaFree.
 *
 * A recording that failed is not ended by torch. It is noticed by its stream before the
 * next one, or when torch gives back what is cached, which it does before each.
 *
 * Cost: while a recording is under way two questions to the driver for each request.
 * Threading: any thread. The lock is held for a walk of the list, and under it that of
 * the core's list of captures is taken alone.
 */
#include "capi.h"

#include "core/gm_process.h" // gm_host_zalloc, gm_process_is_capturing

#include <pthread.h>

typedef struct shared {
    struct shared *next;
    gm_capture *capture;
    gpumem_torch_id id;
    int device;
    size_t graphs;      // that were begun with it and are not gone
    bool begun;         // one is being recorded
    bool ending;        // its recording is over, the capture's not yet
    pthread_t thread;   // that began it
    uint64_t recording; // the driver's number, 0: not known yet
    gm_stream stream;   // that takes part in it, once that is known
} shared;

/* Memory that is used on a stream that is being recorded. */
typedef struct used {
    struct used *next;
    void *memory;
    bool dropped; // and so to be given back at the end
} used;

struct gmpy_torch_graphs {
    pthread_mutex_t lock;
    atomic_size_t begun; // how many are being recorded
    atomic_bool uses;    // `used` is not empty
    used *used;
    shared *first;
    shared *gone; // without graphs, but a device may be using their memory
};

gmpy_torch_graphs *
gmpy_torch_graphs_new(void)
{
    gmpy_torch_graphs *graphs = gm_host_zalloc(sizeof *graphs);

    if (graphs) {
        (void)pthread_mutex_init(&graphs->lock, NULL); // fails for attributes alone
        atomic_init(&graphs->begun, 0);
        atomic_init(&graphs->uses, false);
    }
    return graphs;
}

bool
gmpy_torch_graphs_any(const gmpy_c_api *api)
{
    return atomic_load_explicit(&api->torch_graphs->begun, memory_order_relaxed) > 0;
}

/* Where the pointer to that memory stands; to NULL for none. */
static shared **
find_locked(gmpy_torch_graphs *graphs, int device, gpumem_torch_id id)
{
    shared **at = &graphs->first;

    while (*at && ((*at)->device != device || (*at)->id.first != id.first ||
                   (*at)->id.second != id.second)) {
        at = &(*at)->next;
    }
    return at;
}

/* ---- memory used on streams that are recorded ---- */

static used *
find_used_locked(const gmpy_torch_graphs *graphs, const void *memory)
{
    used *at = graphs->used;

    while (at && at->memory != memory) {
        at = at->next;
    }
    return at;
}

gm_status
gmpy_torch_graphs_use(gmpy_c_api *api, void *memory)
{
    gmpy_torch_graphs *graphs = api->torch_graphs;
    used *made = gm_host_zalloc(sizeof *made);

    if (!made) {
        return GM_ERR_HOST_MEMORY;
    }
    made->memory = memory;
    pthread_mutex_lock(&graphs->lock);
    if (gmpy_torch_graphs_any(api) && !find_used_locked(graphs, memory)) {
        made->next = graphs->used;
        graphs->used = made;
        atomic_store(&graphs->uses, true);
        made = NULL;
    }
    pthread_mutex_unlock(&graphs->lock);
    gm_host_free(made); // it is noted already, or the recording has ended
    return GM_OK;
}

bool
gmpy_torch_graphs_keep(gmpy_c_api *api, const void *memory)
{
    gmpy_torch_graphs *graphs = api->torch_graphs;
    used *found;

    if (!atomic_load_explicit(&graphs->uses, memory_order_relaxed)) {
        return false;
    }
    pthread_mutex_lock(&graphs->lock);
    found = find_used_locked(graphs, memory);
    if (found) {
        found->dropped = true;
    }
    pthread_mutex_unlock(&graphs->lock);
    return found != NULL;
}

/* Gives back what was kept, once nothing is recorded any more. */
static void
give_used(gmpy_torch_graphs *graphs)
{
    used *at = NULL;

    pthread_mutex_lock(&graphs->lock);
    if (atomic_load(&graphs->begun) == 0) {
        at = graphs->used;
        graphs->used = NULL;
        atomic_store(&graphs->uses, false);
    }
    pthread_mutex_unlock(&graphs->lock);
    while (at) {
        used *next = at->next;

        if (at->dropped) {
            (void)gpumem_free(at->memory);
        }
        gm_host_free(at);
        at = next;
    }
}

/* ---- the end ---- */

/* One of those that are gone and whose recording's end is over, NULL for none. */
static shared *
take_gone(gmpy_torch_graphs *graphs)
{
    shared **link = &graphs->gone;
    shared *found;

    pthread_mutex_lock(&graphs->lock);
    while (*link && (*link)->begun) {
        link = &(*link)->next;
    }
    found = *link;
    if (found) {
        *link = found->next;
    }
    pthread_mutex_unlock(&graphs->lock);
    return found;
}

/* Lets go of what nobody records or replays any more, unless a recording forbids to
 * wait for the device. A device that cannot be waited for does nothing any more. */
static void
settle(gmpy_c_api *api)
{
    shared *gone;

    while (!gm_process_is_capturing() &&
           (gone = take_gone(api->torch_graphs)) != NULL) {
        (void)gm_backend_device_synchronize(api->st->backend, gone->device);
        gm_capture_release(gone->capture);
        gm_host_free(gone);
    }
}

/* Ends the recording of that number, or 0 for whichever there is. */
static void
end_recording(gmpy_c_api *api, int device, gpumem_torch_id id, uint64_t recording)
{
    gmpy_torch_graphs *graphs = api->torch_graphs;
    shared *at;
    bool found;

    pthread_mutex_lock(&graphs->lock);
    at = *find_locked(graphs, device, id);
    found =
        at && at->begun && !at->ending && (!recording || at->recording == recording);
    if (found) {
        at->ending = true;
        at->recording = 0;
        atomic_fetch_sub(&graphs->begun, 1);
    }
    pthread_mutex_unlock(&graphs->lock);
    if (!found) {
        return;
    }
    give_used(graphs);
    gm_capture_end(at->capture);
    pthread_mutex_lock(&graphs->lock);
    at->begun = at->ending = false; // from here on others may end it
    pthread_mutex_unlock(&graphs->lock);
    settle(api);
}

void
gmpy_torch_graphs_end(gmpy_c_api *api, int device, gpumem_torch_id id)
{
    end_recording(api, device, id, 0);
}

void
gmpy_torch_graphs_release(gmpy_c_api *api, int device, gpumem_torch_id id)
{
    gmpy_torch_graphs *graphs = api->torch_graphs;
    shared **link;
    shared *at;

    pthread_mutex_lock(&graphs->lock);
    link = find_locked(graphs, device, id);
    at = *link;
    if (at && --at->graphs == 0) {
        *link = at->next;
        at->next = graphs->gone;
        graphs->gone = at;
    }
    pthread_mutex_unlock(&graphs->lock);
    settle(api);
}

/* Whether the recording is over without torch having said so. */
static bool
has_failed(const gm_backend *backend, gm_stream stream, uint64_t recording)
{
    gm_capture_state state = GM_CAPTURE_NONE;
    uint64_t id = 0;

    return gm_backend_stream_capture(backend, stream, &state, &id) == GM_OK &&
           (state == GM_CAPTURE_NONE ||
            (state == GM_CAPTURE_ACTIVE && id != recording));
}

/* Makes *at a copy of the recording with the next higher number. False: of none. */
static bool
next_recording(gmpy_torch_graphs *graphs, shared *at)
{
    const shared *found = NULL;

    pthread_mutex_lock(&graphs->lock);
    for (const shared *each = graphs->first; each; each = each->next) {
        if (each->recording > at->recording &&
            (!found || each->recording < found->recording)) {
            found = each;
        }
    }
    if (found) {
        *at = *found;
    }
    pthread_mutex_unlock(&graphs->lock);
    return found != NULL;
}

void
gmpy_torch_graphs_tidy(gmpy_c_api *api)
{
    shared at = {0};

    if (!gmpy_torch_graphs_any(api)) {
        return;
    }
    while (next_recording(api->torch_graphs, &at)) {
        if (has_failed(api->st->backend, at.stream, at.recording)) {
            end_recording(api, at.device, at.id, at.recording);
        }
    }
}

/* ---- the beginning ---- */

static gm_status
add_locked(gmpy_torch_graphs *graphs, int device, gpumem_torch_id id, shared **out)
{
    shared *at = gm_host_zalloc(sizeof *at);
    gm_status status = at ? gm_capture_new(&at->capture) : GM_ERR_HOST_MEMORY;

    if (status != GM_OK) {
        gm_host_free(at);
        return status;
    }
    at->device = device;
    at->id = id;
    at->next = graphs->first;
    graphs->first = at;
    *out = at;
    return GM_OK;
}

gm_status
gmpy_torch_graphs_begin(gmpy_c_api *api, int device, gpumem_torch_id id)
{
    gmpy_torch_graphs *graphs = api->torch_graphs;
    gm_status status = GM_OK;
    shared *at;

    gmpy_torch_graphs_tidy(api);
    pthread_mutex_lock(&graphs->lock);
    at = *find_locked(graphs, device, id);
    if (!at) {
        status = add_locked(graphs, device, id, &at);
    }
    else if (at->begun) {
        status = GM_BUSY;
    }
    if (status == GM_OK) {
        at->begun = true;
        at->graphs++;
        at->thread = pthread_self();
        at->stream = 0;
        gm_capture_open(at->capture);
        atomic_fetch_add(&graphs->begun, 1);
    }
    pthread_mutex_unlock(&graphs->lock);
    return status;
}

/* ---- requests ---- */

static bool
is_new(const shared *at, int device)
{
    return at->begun && !at->ending && at->device == device && !at->recording;
}

/* What a recording that is not known by number was begun as: see above. */
static shared *
guess_locked(const gmpy_torch_graphs *graphs, int device)
{
    shared *found = NULL;
    size_t count = 0;

    for (shared *at = graphs->first; at; at = at->next) {
        if (is_new(at, device)) {
            if (pthread_equal(at->thread, pthread_self())) {
                return at;
            }
            found = at;
            count++;
        }
    }
    return count == 1 ? found : NULL;
}

static shared *
find_recording_locked(const gmpy_torch_graphs *graphs,
                      int device,
                      gm_stream stream,
                      uint64_t recording)
{
    shared *at = graphs->first;

    while (at && at->recording != recording) {
        at = at->next;
    }
    if (!at) {
        at = guess_locked(graphs, device);
        if (at) {
            at->recording = recording;
            at->stream = stream;
        }
    }
    return at;
}

gm_capture *
gmpy_torch_graphs_find(gmpy_c_api *api, int device, void *stream)
{
    gmpy_torch_graphs *graphs = api->torch_graphs;
    gm_stream handle = (gm_stream)stream;
    gm_capture_state state = GM_CAPTURE_NONE;
    gm_capture *capture = NULL;
    uint64_t recording = 0;
    shared *at;

    /* The default stream is never recorded, and to ask about it may be forbidden. */
    if (handle <= GM_STREAM_LEGACY ||
        gm_backend_stream_capture(api->st->backend, handle, &state, &recording) !=
            GM_OK ||
        state != GM_CAPTURE_ACTIVE) {
        return NULL;
    }
    pthread_mutex_lock(&graphs->lock);
    at = find_recording_locked(graphs, device, handle, recording);
    if (at) {
        capture = at->capture;
        gm_capture_ref(capture);
    }
    pthread_mutex_unlock(&graphs->lock);
    return capture;
}
