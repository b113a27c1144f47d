/* SPDX-License-Identifier: MIT
 *
 * The simulated device's slots for recorded work.
 */
#include "sim_call.h"

/* ---- recording ---- */

gm_status
sim_slot_stream_capture(void *self,
                        gm_stream stream,
                        gm_capture_state *state,
                        uint64_t *id)
{
    const sim_call call = {self, .slot = SIM_SLOT_stream_capture, .ptr = stream};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_capture_info(self, stream, state, id));
}

gm_status
sim_slot_capture_begin(void *self, gm_stream stream, gm_capture_mode mode)
{
    const sim_call call = {self, .slot = SIM_SLOT_capture_begin, .ptr = stream};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_capture_begin(self, stream, mode));
}

gm_status
sim_slot_capture_end(void *self, gm_stream stream, gm_graph *out)
{
    const sim_call call = {self, .slot = SIM_SLOT_capture_end, .ptr = stream};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_capture_end(self, stream, out));
}

/* ---- graphs ---- */

gm_status
sim_slot_graph_instantiate(void *self, gm_graph graph, gm_graph_exec *out)
{
    const sim_call call = {self, .slot = SIM_SLOT_graph_instantiate, .ptr = graph};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_graph_instantiate(self, graph, out));
}

/* The slots that queue something for a graph on a stream. */
static gm_status
on_stream(gm_sim *sim,
          sim_slot slot,
          gm_graph_exec exec,
          gm_stream handle,
          gm_status (*work)(gm_sim *sim, gm_graph_exec exec, sim_stream *stream))
{
    sim_call call = {sim, .slot = slot, .ptr = exec};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    sim_stream *stream = NULL;
    status = sim_stream_use(sim, handle, &stream);
    if (status == GM_OK) {
        call.device = stream->device;
        status = work(sim, exec, stream);
    }
    return sim_leave(&call, status);
}

gm_status
sim_slot_graph_launch(void *self, gm_graph_exec exec, gm_stream stream)
{
    return on_stream(self, SIM_SLOT_graph_launch, exec, stream, sim_graph_launch);
}

gm_status
sim_slot_graph_upload(void *self, gm_graph_exec exec, gm_stream stream)
{
    return on_stream(self, SIM_SLOT_graph_upload, exec, stream, sim_graph_upload);
}

gm_status
sim_slot_graph_debug_dot(void *self, gm_graph graph, const char *path, unsigned flags)
{
    (void)flags; // there is nothing more to tell
    const sim_call call = {self, .slot = SIM_SLOT_graph_debug_dot, .ptr = graph};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_graph_debug_dot(self, graph, path));
}

gm_status
sim_slot_graph_destroy(void *self, gm_graph graph)
{
    const sim_call call = {self, .slot = SIM_SLOT_graph_destroy, .ptr = graph};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_graph_destroy(self, graph));
}

gm_status
sim_slot_graph_exec_destroy(void *self, gm_graph_exec exec)
{
    const sim_call call = {self, .slot = SIM_SLOT_graph_exec_destroy, .ptr = exec};
    gm_status status = sim_enter(&call);
    if (status != GM_OK) {
        return status;
    }
    return sim_leave(&call, sim_graph_exec_destroy(self, exec));
}
