/* SPDX-License-Identifier: MIT
 *
 * Recording streams into graphs, and what that forbids.
 *
 * From its beginning to its end work on a recording's streams becomes nodes. A stream
 * joins by waiting for an event that was recorded in one of them, and all must have
 * been waited for again by the stream in which it began when it ends. A node knows the
 * two that it comes after, so whether a stream was waited for is a walk through the
 * nodes.
 *
 * As the runtime documents it: a call that could only give a wrong graph fails and
 * spoils the recording, which then answers everything with "invalidated" until it is
 * ended, without a graph. Such are asking whether recorded work is done, the legacy
 * stream while a blocking stream records, and waiting for the device. Calls that may be
 * meant for the recording and would not become part of it (freeing, any wait) are
 * forbidden by its mode: `global` to all threads, `thread_local` to the one that began
 * it, `relaxed` to nobody. Allocating is not, as gm_backend.h has it.
 *
 * Stream-ordered memory cannot be taken or given back in a recording here, where the
 * runtime makes memory of the graph's own.
 *
 * Cost: recording O(1) an operation; the checks O(recordings), and looking for the
 * streams of one, O(streams).
 */
#include "sim.h"

#include "../core/gm_process.h"

#include <string.h> // memcpy()

struct sim_capture {
    uint64_t id;
    gm_capture_mode mode;
    uint64_t thread; // that began it
    bool spoilt;
    sim_stream *origin;
    sim_node *nodes;
    uint32_t count;
    uint32_t capacity;
    sim_capture *next; // of the instance
};

/* ---- what is forbidden ---- */

gm_status
sim_capture_spoil(sim_capture *capture, int code)
{
    if (capture != NULL) {
        if (capture->spoilt) {
            return GM_DEVICE_ERROR(SIM_CODE_CAPTURE_INVALIDATED);
        }
        capture->spoilt = true;
    }
    return GM_DEVICE_ERROR(code);
}

gm_status
sim_capture_allows(gm_sim *sim)
{
    gm_status status = GM_OK;
    uint64_t thread = 0;
    if (sim->captures == NULL) {
        return GM_OK;
    }
    status = sim_thread_number(sim, &thread);
    for (sim_capture *capture = sim->captures; capture != NULL;
         capture = capture->next) {
        if (capture->mode == GM_CAPTURE_MODE_GLOBAL ||
            (capture->mode == GM_CAPTURE_MODE_THREAD_LOCAL &&
             capture->thread == thread)) {
            status = sim_capture_spoil(capture, SIM_CODE_CAPTURE_UNSUPPORTED);
        }
    }
    return status;
}

/* The first stream of a recording on a device, a blocking one if that is asked for. */
static sim_stream *
find_recording(const gm_sim *sim, int device, bool blocking)
{
    sim_stream *stream = sim->devices[device].streams;
    while (stream != NULL && !(stream->capture != NULL &&
                               (!blocking || sim_stream_is_blocking(stream)))) {
        stream = stream->next;
    }
    return stream;
}

gm_status
sim_capture_allows_use(gm_sim *sim, const sim_stream *stream)
{
    if (stream->capture != NULL && stream->capture->spoilt) {
        return GM_DEVICE_ERROR(SIM_CODE_CAPTURE_INVALIDATED);
    }
    if (stream != sim->devices[stream->device].legacy) {
        return GM_OK;
    }
    sim_stream *recording = find_recording(sim, stream->device, true);
    return recording == NULL
               ? GM_OK
               : sim_capture_spoil(recording->capture, SIM_CODE_CAPTURE_IMPLICIT);
}

gm_status
sim_capture_allows_wait(gm_sim *sim, int device)
{
    sim_stream *recording = find_recording(sim, device, false);
    return recording == NULL
               ? GM_OK
               : sim_capture_spoil(recording->capture, SIM_CODE_CAPTURE_UNSUPPORTED);
}

/* ---- nodes ---- */

sim_capture *
sim_capture_find(const gm_sim *sim, uint64_t id)
{
    sim_capture *capture = sim->captures;
    while (capture != NULL && capture->id != id) {
        capture = capture->next;
    }
    return capture;
}

uint64_t
sim_capture_id(const sim_capture *capture)
{
    return capture->id;
}

static gm_status
grow(sim_capture *capture)
{
    uint32_t capacity = capture->capacity > 0 ? 2 * capture->capacity : 16;
    sim_node *nodes = gm_host_alloc(capacity * sizeof *nodes);
    if (nodes == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    if (capture->count > 0) {
        memcpy(nodes, capture->nodes, capture->count * sizeof *nodes);
    }
    gm_host_free(capture->nodes);
    capture->nodes = nodes;
    capture->capacity = capacity;
    return GM_OK;
}

gm_status
sim_capture_add(gm_sim *sim, sim_stream *stream, const sim_work *work, uint32_t after)
{
    sim_capture *capture = stream->capture;
    (void)sim;
    if (capture->count == capture->capacity) {
        gm_status status = grow(capture);
        if (status != GM_OK) {
            return status;
        }
    }
    capture->nodes[capture->count] =
        (sim_node){.work = *work, .after = {stream->newest, after}};
    stream->newest = ++capture->count;
    return GM_OK;
}

gm_status
sim_capture_join(gm_sim *sim, sim_stream *stream, sim_capture *capture, uint32_t node)
{
    const sim_work work = {.kind = SIM_OP_WAIT};
    if (capture->spoilt) {
        return GM_DEVICE_ERROR(SIM_CODE_CAPTURE_INVALIDATED);
    }
    if (stream == sim->devices[stream->device].legacy) {
        return sim_capture_spoil(capture, SIM_CODE_CAPTURE_IMPLICIT);
    }
    if (stream->capture != NULL && stream->capture != capture) {
        (void)sim_capture_spoil(stream->capture, SIM_CODE_CAPTURE_MERGE);
        return sim_capture_spoil(capture, SIM_CODE_CAPTURE_MERGE);
    }
    sim_stream before = *stream;
    if (stream->capture == NULL) {
        stream->capture = capture;
        stream->newest = 0;
    }
    gm_status status = sim_capture_add(sim, stream, &work, node);
    if (status != GM_OK) {
        stream->capture = before.capture;
        stream->newest = before.newest;
    }
    return status;
}

/* ---- beginning and ending ---- */

gm_status
sim_capture_begin(gm_sim *sim, gm_stream handle, gm_capture_mode mode)
{
    sim_stream *stream = NULL;
    gm_status status = sim_stream_find(sim, handle, &stream);
    if (status != GM_OK) {
        return status;
    }
    if (mode < GM_CAPTURE_MODE_GLOBAL || mode > GM_CAPTURE_MODE_RELAXED) {
        return GM_DEVICE_ERROR(SIM_CODE_INVALID_VALUE);
    }
    if (stream == sim->devices[stream->device].legacy) {
        return GM_DEVICE_ERROR(SIM_CODE_CAPTURE_UNSUPPORTED);
    }
    if (stream->capture != NULL) {
        return GM_DEVICE_ERROR(SIM_CODE_ILLEGAL_STATE);
    }
    uint64_t thread = 0;
    status = sim_thread_number(sim, &thread);
    sim_capture *capture = status == GM_OK ? gm_host_zalloc(sizeof *capture) : NULL;
    if (capture == NULL) {
        return GM_ERR_HOST_MEMORY;
    }
    capture->id = sim_next_serial();
    capture->mode = mode;
    capture->thread = thread;
    capture->origin = stream;
    capture->next = sim->captures;
    sim->captures = capture;
    stream->capture = capture;
    stream->newest = 0;
    sim->ledger.captures++;
    return GM_OK;
}

/* Takes all streams out of a recording and ends it; its nodes are freed. */
static void
drop(gm_sim *sim, sim_capture *capture)
{
    for (int device = 0; device < sim->device_count; device++) {
        sim_stream *stream = sim->devices[device].streams;
        for (; stream != NULL; stream = stream->next) {
            if (stream->capture == capture) {
                stream->capture = NULL;
                stream->newest = 0;
            }
        }
    }
    sim_capture **link = &sim->captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    sim->ledger.captures--;
    gm_host_free(capture->nodes);
    gm_host_free(capture);
}

/* Marks the nodes that `newest` comes after, and that one itself. A node comes after
 * earlier ones alone. */
static void
mark_reached(sim_capture *capture, uint32_t newest)
{
    for (uint32_t i = 0; i < capture->count; i++) {
        capture->nodes[i].seen = i + 1 == newest;
    }
    for (uint32_t i = newest; i > 0; i--) {
        const sim_node *node = &capture->nodes[i - 1];
        for (int k = 0; node->seen && k < 2; k++) {
            if (node->after[k] != 0) {
                capture->nodes[node->after[k] - 1].seen = true;
            }
        }
    }
}

/* Whether the stream it began in waited for all that the others recorded. */
static bool
is_joined(const gm_sim *sim, sim_capture *capture)
{
    mark_reached(capture, capture->origin->newest);
    for (int device = 0; device < sim->device_count; device++) {
        const sim_stream *stream = sim->devices[device].streams;
        for (; stream != NULL; stream = stream->next) {
            if (stream->capture == capture && stream->newest != 0 &&
                !capture->nodes[stream->newest - 1].seen) {
                return false;
            }
        }
    }
    return true;
}

/* Why a recording may not be ended so. */
static gm_status
check_end(gm_sim *sim, sim_stream *stream)
{
    sim_capture *capture = stream->capture;
    uint64_t thread = 0;
    if (capture == NULL) {
        return GM_DEVICE_ERROR(SIM_CODE_ILLEGAL_STATE);
    }
    if (capture->origin != stream) {
        return sim_capture_spoil(capture, SIM_CODE_CAPTURE_UNMATCHED);
    }
    gm_status status = sim_thread_number(sim, &thread);
    if (status == GM_OK && capture->mode != GM_CAPTURE_MODE_RELAXED &&
        capture->thread != thread) {
        return GM_DEVICE_ERROR(SIM_CODE_CAPTURE_WRONG_THREAD);
    }
    return status;
}

gm_status
sim_capture_end(gm_sim *sim, gm_stream handle, gm_graph *out)
{
    sim_stream *stream = NULL;
    gm_status status = sim_stream_find(sim, handle, &stream);
    if (status == GM_OK) {
        status = check_end(sim, stream);
    }
    if (status != GM_OK) {
        return status;
    }
    sim_capture *capture = stream->capture;
    if (capture->spoilt) {
        status = GM_DEVICE_ERROR(SIM_CODE_CAPTURE_INVALIDATED);
    }
    else if (!is_joined(sim, capture)) {
        status = GM_DEVICE_ERROR(SIM_CODE_CAPTURE_UNJOINED);
    }
    else {
        status =
            sim_graph_new(sim, stream->device, capture->nodes, capture->count, out);
        capture->nodes = NULL;
    }
    drop(sim, capture);
    return status;
}

void
sim_capture_leave(gm_sim *sim, sim_stream *stream)
{
    sim_capture *capture = stream->capture;
    if (capture->origin == stream) {
        drop(sim, capture);
        return;
    }
    capture->spoilt = true;
    stream->capture = NULL;
}

void
sim_captures_reset(gm_sim *sim, int device)
{
    sim_stream *recording = NULL;
    while ((recording = find_recording(sim, device, false)) != NULL) {
        drop(sim, recording->capture);
    }
}

void
sim_captures_fini(gm_sim *sim)
{
    while (sim->captures != NULL) {
        drop(sim, sim->captures);
    }
}

gm_status
sim_capture_info(gm_sim *sim, gm_stream handle, gm_capture_state *state, uint64_t *id)
{
    sim_stream *stream = NULL;
    gm_status status = sim_stream_find(sim, handle, &stream);
    if (status != GM_OK) {
        return status;
    }
    const sim_capture *capture = stream->capture;
    if (capture == NULL) {
        // Not recorded itself, but not to be used either; asking spoils nothing.
        if (stream == sim->devices[stream->device].legacy &&
            find_recording(sim, stream->device, true) != NULL) {
            return GM_DEVICE_ERROR(SIM_CODE_CAPTURE_IMPLICIT);
        }
        *state = GM_CAPTURE_NONE;
        *id = 0;
        return GM_OK;
    }
    *state = capture->spoilt ? GM_CAPTURE_INVALIDATED : GM_CAPTURE_ACTIVE;
    *id = capture->id;
    return GM_OK;
}
