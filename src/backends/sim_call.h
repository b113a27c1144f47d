/* SPDX-License-Identifier: MIT
 *
 * The slots of the simulated device, and what each of them does before and after its
 * work. Included by the sim_slots_ files, sim_call.c and backend_sim.c.
 *
 *   sim_call.c          entering, leaving; which call does what to its device
 *   sim_slots_device.c  devices, peers
 *   sim_slots_memory.c  memory, pools of it, managed memory, addresses
 *   sim_slots_copy.c    copies and sets
 *   sim_slots_stream.c  streams and events
 *   sim_slots_graph.c   recorded work
 */
#ifndef GM_SIM_CALL_H
#define GM_SIM_CALL_H

#include "sim.h"

/* ---- sim_call.c ---- */

/* What is special about a slot. */
enum {
    SIM_UNSAFE = 1u << 0, // a recording may forbid it
};

/* X(the slots that enter, by the name that the table gives them; SIM_ of them) */
#define SIM_SLOTS(X)                                                                   \
    X(device_set, 0)                                                                   \
    X(device_push, 0)                                                                  \
    X(device_synchronize, SIM_UNSAFE)                                                  \
    X(device_support, 0)                                                               \
    X(mem_info, 0)                                                                     \
    X(mem_largest, 0)                                                                  \
    X(mem_alloc, SIM_UNSAFE)                                                           \
    X(mem_free, SIM_UNSAFE)                                                            \
    X(mem_alloc_async, 0)                                                              \
    X(mem_free_async, 0)                                                               \
    X(mem_pool_get, 0)                                                                 \
    X(mem_pool_set, 0)                                                                 \
    X(mem_pool_trim, SIM_UNSAFE)                                                       \
    X(mem_pool_read, 0)                                                                \
    X(mem_pool_write, 0)                                                               \
    X(copy, 0)                                                                         \
    X(copy_async, 0)                                                                   \
    X(copy_peer, 0)                                                                    \
    X(copy_peer_async, 0)                                                              \
    X(set, 0)                                                                          \
    X(set_async, 0)                                                                    \
    X(stream_create, 0)                                                                \
    X(stream_destroy, 0)                                                               \
    X(stream_query, SIM_UNSAFE)                                                        \
    X(stream_synchronize, SIM_UNSAFE)                                                  \
    X(stream_wait_event, 0)                                                            \
    X(stream_id, 0)                                                                    \
    X(stream_priority_range, 0)                                                        \
    X(stream_info, 0)                                                                  \
    X(stream_capture, 0)                                                               \
    X(capture_begin, 0)                                                                \
    X(capture_end, 0)                                                                  \
    X(graph_instantiate, 0)                                                            \
    X(graph_launch, 0)                                                                 \
    X(graph_upload, 0)                                                                 \
    X(graph_debug_dot, 0)                                                              \
    X(graph_destroy, 0)                                                                \
    X(graph_exec_destroy, 0)                                                           \
    X(event_create, 0)                                                                 \
    X(event_destroy, 0)                                                                \
    X(event_record, 0)                                                                 \
    X(event_query, 0)                                                                  \
    X(event_synchronize, 0)                                                            \
    X(event_elapsed, 0)                                                                \
    X(pointer_info, 0)                                                                 \
    X(peer_can_access, 0)                                                              \
    X(peer_enable, SIM_UNSAFE)                                                         \
    X(mem_prefetch, 0)                                                                 \
    X(mem_advise, 0)

typedef enum sim_slot {
#define SIM_SLOT(name, special) SIM_SLOT_##name,
    SIM_SLOTS(SIM_SLOT)
#undef SIM_SLOT
    SIM_SLOT_COUNT
} sim_slot;

/* One call on its way, and what the log will say of it; fields that it does not have
 * are 0. */
typedef struct sim_call {
    gm_sim *sim;
    sim_slot slot;
    int device;
    uint64_t ptr;
    size_t size;
} sim_call;

/* Begins a call: with GM_OK the lock is held until sim_leave; otherwise the call ends
 * here, with that status. GM_ERR_FORKED: this is a forked child. */
GM_MUST_CHECK gm_status sim_enter(const sim_call *call);

/* Logs, unlocks, and hands the status through. */
gm_status sim_leave(const sim_call *call, gm_status status);

/* The device of a stream that may not have been found, for the log. */
static inline int
sim_device_of(const sim_stream *stream)
{
    return stream != NULL ? stream->device : 0;
}

/* ---- sim_slots_device.c ---- */

gm_status sim_slot_device_count(void *self, int *count);
gm_status sim_slot_device_get(void *self, int *device);
gm_status sim_slot_device_set(void *self, int device);
gm_status sim_slot_device_push(void *self, int device, gm_device_mark *mark);
void sim_slot_device_pop(void *self, const gm_device_mark *mark);
gm_status sim_slot_device_synchronize(void *self, int device);
gm_status sim_slot_device_name(void *self, int device, char *text, size_t size);
gm_status sim_slot_device_support(void *self, int device, unsigned *support);
gm_status sim_slot_peer_can_access(void *self, int device, int peer, bool *can);
gm_status sim_slot_peer_enable(void *self, int device, int peer);

/* ---- sim_slots_memory.c ---- */

gm_status
sim_slot_mem_info(void *self, int device, size_t *free_bytes, size_t *total_bytes);
gm_status sim_slot_mem_largest(
    void *self, int device, const gm_range *back, size_t count, size_t *bytes);
gm_status sim_slot_mem_alloc(
    void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out);
gm_status sim_slot_mem_free(void *self, int device, gm_mem_kind kind, uintptr_t ptr);
gm_status sim_slot_mem_alloc_async(
    void *self, int device, size_t size, gm_stream handle, uintptr_t *out);
gm_status
sim_slot_mem_free_async(void *self, int device, uintptr_t ptr, gm_stream handle);
gm_status
sim_slot_mem_pool_get(void *self, int device, bool original, gm_mem_pool *out);
gm_status sim_slot_mem_pool_set(void *self, int device, gm_mem_pool pool);
gm_status sim_slot_mem_pool_trim(void *self, gm_mem_pool pool, size_t keep);
gm_status sim_slot_mem_pool_read(void *self,
                                 gm_mem_pool pool,
                                 gm_mem_pool_field field,
                                 uint64_t *value);
gm_status sim_slot_mem_pool_write(void *self,
                                  gm_mem_pool pool,
                                  gm_mem_pool_field field,
                                  uint64_t value);
gm_status sim_slot_mem_prefetch(
    void *self, uintptr_t ptr, size_t size, int device, gm_stream handle);
gm_status
sim_slot_mem_advise(void *self, uintptr_t ptr, size_t size, int advice, int device);
gm_status sim_slot_pointer_info(void *self, uintptr_t ptr, gm_pointer_info *info);

/* ---- sim_slots_copy.c ---- */

gm_status
sim_slot_copy(void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind);
gm_status sim_slot_copy_async(void *self,
                              uintptr_t dst,
                              uintptr_t src,
                              size_t size,
                              gm_copy_kind kind,
                              gm_stream stream);
gm_status sim_slot_copy_peer(void *self,
                             uintptr_t dst,
                             int dst_device,
                             uintptr_t src,
                             int src_device,
                             size_t size);
gm_status sim_slot_copy_peer_async(void *self,
                                   uintptr_t dst,
                                   int dst_device,
                                   uintptr_t src,
                                   int src_device,
                                   size_t size,
                                   gm_stream stream);
gm_status sim_slot_set(void *self, uintptr_t dst, int value, size_t size);
gm_status
sim_slot_set_async(void *self, uintptr_t dst, int value, size_t size, gm_stream stream);

/* ---- sim_slots_stream.c ---- */

gm_status sim_slot_stream_create(
    void *self, int device, unsigned flags, int priority, gm_stream *out);
gm_status sim_slot_stream_destroy(void *self, gm_stream handle);
gm_status sim_slot_stream_query(void *self, gm_stream handle);
gm_status sim_slot_stream_synchronize(void *self, gm_stream handle);
gm_status sim_slot_stream_wait_event(void *self, gm_stream handle, gm_event event);
gm_status sim_slot_stream_id(void *self, gm_stream handle, uint64_t *id);
gm_status sim_slot_stream_priority_range(void *self, int device, int *least, int *most);
gm_status
sim_slot_stream_info(void *self, gm_stream handle, unsigned *flags, int *priority);
gm_status sim_slot_event_create(void *self, int device, unsigned flags, gm_event *out);
gm_status sim_slot_event_record(void *self, gm_event event, gm_stream handle);
gm_status sim_slot_event_destroy(void *self, gm_event event);
gm_status sim_slot_event_query(void *self, gm_event event);
gm_status sim_slot_event_synchronize(void *self, gm_event event);
gm_status sim_slot_event_elapsed(void *self, gm_event start, gm_event end, float *ms);

/* ---- sim_slots_graph.c ---- */

gm_status sim_slot_stream_capture(void *self,
                                  gm_stream stream,
                                  gm_capture_state *state,
                                  uint64_t *id);
gm_status sim_slot_capture_begin(void *self, gm_stream stream, gm_capture_mode mode);
gm_status sim_slot_capture_end(void *self, gm_stream stream, gm_graph *out);
gm_status sim_slot_graph_instantiate(void *self, gm_graph graph, gm_graph_exec *out);
gm_status sim_slot_graph_launch(void *self, gm_graph_exec exec, gm_stream stream);
gm_status sim_slot_graph_upload(void *self, gm_graph_exec exec, gm_stream stream);
gm_status
sim_slot_graph_debug_dot(void *self, gm_graph graph, const char *path, unsigned flags);
gm_status sim_slot_graph_destroy(void *self, gm_graph graph);
gm_status sim_slot_graph_exec_destroy(void *self, gm_graph_exec exec);

#endif
