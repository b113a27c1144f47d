/* SPDX-License-Identifier: MIT
 *
 * The memory of recorded graphs.
 *
 * A graph runs with the addresses it was recorded with, as often as it is launched. So
 * what was handed out while a stream was recording, and dropped, must go to nobody else
 * for as long as the graph may run; but a later request of the same recording may have
 * it, for what uses it comes later in the graph as well. That is the private memory of
 * a capture: for each stream that takes part, and in each pool, one part. It is filled
 * from what the stream's arena has cached when the recording asks for it. The device is
 * not asked, for that would spoil the recording: a request that the cache cannot serve
 * fails with GM_ERR_CAPTURING, and the recording goes on.
 *
 * Another library that records may know better: what it asks for names its capture
 * (gm_rescue.capture), which several of its recordings may share, one at a time, and
 * what the cache lacks is taken from upstream.
 *
 * While any recording is under way nothing is given back to the device and no mark is
 * recorded; that is made up for at its end.
 *
 * Cost: none while nothing is recorded. While something is, every request takes the
 * slow path. A part is an index of 7 KiB; a block of it has a note.
 *
 * Threading: any thread, no lock held. The calls about one capture come in order.
 */
#ifndef GM_CAPTURE_H
#define GM_CAPTURE_H

#include "gm_note.h"

typedef struct gm_capture gm_capture;

/* Call before the backend begins to record `stream`, so that nobody disturbs it from
 * its first moment on. The caller owns *out. GM_ERR_HOST_MEMORY; GM_BUSY: a recording
 * of the stream has a capture already. */
GM_MUST_CHECK gm_status gm_capture_begin(const gm_stream_use *stream,
                                         gm_capture_mode mode,
                                         gm_capture **out);

/* A capture for another library's recordings, none of which is under way yet. The
 * caller owns *out. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status gm_capture_new(gm_capture **out);

/* The next of its recordings begins, or is about to; gm_capture_end ends it. */
void gm_capture_open(gm_capture *capture);

/* Keeps the struct while a request names it: also where it is released meanwhile. */
void gm_capture_ref(gm_capture *capture);
void gm_capture_unref(gm_capture *capture);

/* The backend's number of the recording, once it has begun: by that the other streams
 * that take part are known. */
void gm_capture_identify(gm_capture *capture, uint64_t id);

/* A recording may be ended by others than who began it. So while it is under way its
 * capture has no owner but the list of recordings, where it is left once the backend
 * records and whoever ends the recording takes it first: GM_OK and the owner's *out,
 * NULL where none of that stream is known. GM_BUSY: somebody has taken it just now, to
 * begin or to end the recording. */
void gm_capture_leave(gm_capture *capture);
GM_MUST_CHECK gm_status gm_capture_take(const gm_stream_use *stream, gm_capture **out);

/* The number that gm_capture_identify gave. */
uint64_t gm_capture_number(const gm_capture *capture);

/* Call after the backend has ended the recording, or has failed to begin it. Catches up
 * with what had to wait, which may call the device. Its memory stays. */
void gm_capture_end(gm_capture *capture);

/* The graph was launched on a stream: its memory is in use there until the stream has
 * done what is queued on it when the capture is released. GM_ERR_HOST_MEMORY, or what
 * the device said: then wait for the stream. */
GM_MUST_CHECK gm_status gm_capture_launched(gm_capture *capture,
                                            const gm_stream_use *by);

/* The graph is gone, as is everything made from it; takes the owner's reference. Its
 * memory returns to the arenas when the launches are done. Ends the capture where that
 * was not done. Does not wait. */
void gm_capture_release(gm_capture *capture);

/* Memory of a backend's own kind, to be given back at the end of the recording that is
 * under way. False: none is, or no host memory; then it is the caller's still. */
bool gm_capture_postpone_free(const gm_backend *backend,
                              int device,
                              gm_mem_kind kind,
                              uintptr_t ptr);

/* The same for a graph that is ready to launch: a recording may forbid to end it. */
bool gm_capture_postpone_end(const gm_backend *backend, gm_graph_exec exec);

/* The same for memory of another process, which is to be closed. */
bool gm_capture_postpone_close(const gm_backend *backend, uintptr_t base);

/* The same for a pool of the driver's that is to give back all it has cached; after
 * what is given back to it by then. */
bool gm_capture_postpone_trim(const gm_backend *backend, int device, gm_mem_pool pool);

#endif
