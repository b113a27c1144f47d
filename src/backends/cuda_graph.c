/* SPDX-License-Identifier: MIT
 *
 * Recorded work of the cuda backend: recording a stream into a graph, launching it.
 *
 * All of it is the runtime's; a handle here is the runtime's own. Modes and states have
 * its numbers and pass through. Instantiating copies what it needs, so a graph can be
 * destroyed as soon as that is done.
 *
 * Costs on an H200: capture state 80 to 148 ns.
 *
 * Threading: any thread; one graph is not to be used by two at once. A recording in
 * another mode than relaxed is ended by the thread that began it.
 */
#if GM_WITH_CUDA

#include "cuda_api.h"

#define AS_SAME_STATE "stream_capture passes the state on as the runtime's"
GM_STATIC_ASSERT((int)GM_CAPTURE_NONE == (int)cudaStreamCaptureStatusNone,
                 AS_SAME_STATE);
GM_STATIC_ASSERT((int)GM_CAPTURE_ACTIVE == (int)cudaStreamCaptureStatusActive,
                 AS_SAME_STATE);
GM_STATIC_ASSERT((int)GM_CAPTURE_INVALIDATED == (int)cudaStreamCaptureStatusInvalidated,
                 AS_SAME_STATE);

#define AS_SAME_MODE "capture_begin passes the mode on as the runtime's"
GM_STATIC_ASSERT((int)GM_CAPTURE_MODE_GLOBAL == (int)cudaStreamCaptureModeGlobal,
                 AS_SAME_MODE);
GM_STATIC_ASSERT((int)GM_CAPTURE_MODE_THREAD_LOCAL ==
                     (int)cudaStreamCaptureModeThreadLocal,
                 AS_SAME_MODE);
GM_STATIC_ASSERT((int)GM_CAPTURE_MODE_RELAXED == (int)cudaStreamCaptureModeRelaxed,
                 AS_SAME_MODE);

/* ---- recording ---- */

/* The legacy stream is never captured itself, but while a stream that waits for it is,
 * using it would break that capture: the answer then is cudaErrorStreamCaptureImplicit
 * and not "none". */
gm_status
cuda_stream_capture(void *self, gm_stream stream, gm_capture_state *state, uint64_t *id)
{
    enum cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    unsigned long long number = 0;
#if CUDART_VERSION >= 13000
    cudaError_t error = cudaStreamGetCaptureInfo((cudaStream_t)stream, &found, &number,
                                                 NULL, NULL, NULL, NULL);
#else
    cudaError_t error = cudaStreamGetCaptureInfo((cudaStream_t)stream, &found, &number,
                                                 NULL, NULL, NULL);
#endif

    (void)self;
    if (error == cudaSuccess) {
        *state = (gm_capture_state)found;
        *id = found == cudaStreamCaptureStatusNone ? 0 : number;
    }
    return cuda_status(error);
}

gm_status
cuda_capture_begin(void *self, gm_stream stream, gm_capture_mode mode)
{
    (void)self;
    return cuda_status(
        cudaStreamBeginCapture((cudaStream_t)stream, (enum cudaStreamCaptureMode)mode));
}

gm_status
cuda_capture_end(void *self, gm_stream stream, gm_graph *out)
{
    cudaGraph_t graph = NULL;
    cudaError_t error = cudaStreamEndCapture((cudaStream_t)stream, &graph);

    (void)self;
    if (error == cudaSuccess) {
        *out = (gm_graph)graph;
    }
    return cuda_status(error);
}

/* ---- graphs ---- */

gm_status
cuda_graph_instantiate(void *self, gm_graph graph, gm_graph_exec *out)
{
    cudaGraphExec_t exec = NULL;
    cudaError_t error = cudaGraphInstantiate(&exec, (cudaGraph_t)graph, 0);

    (void)self;
    if (error == cudaSuccess) {
        *out = (gm_graph_exec)exec;
    }
    return cuda_status(error);
}

gm_status
cuda_graph_launch(void *self, gm_graph_exec exec, gm_stream stream)
{
    (void)self;
    return cuda_status(cudaGraphLaunch((cudaGraphExec_t)exec, (cudaStream_t)stream));
}

gm_status
cuda_graph_upload(void *self, gm_graph_exec exec, gm_stream stream)
{
    (void)self;
    return cuda_status(cudaGraphUpload((cudaGraphExec_t)exec, (cudaStream_t)stream));
}

gm_status
cuda_graph_debug_dot(void *self, gm_graph graph, const char *path, unsigned flags)
{
    (void)self;
    return cuda_status(cudaGraphDebugDotPrint((cudaGraph_t)graph, path, flags));
}

gm_status
cuda_graph_destroy(void *self, gm_graph graph)
{
    (void)self;
    return cuda_status_of_release(cudaGraphDestroy((cudaGraph_t)graph));
}

gm_status
cuda_graph_exec_destroy(void *self, gm_graph_exec exec)
{
    (void)self;
    return cuda_status_of_release(cudaGraphExecDestroy((cudaGraphExec_t)exec));
}

#endif
