/* SPDX-License-Identifier: MIT
 *
 * The slots of the simulated device, and what each of them does before and after its
 * work. Included by the sim_slots_ files, sim_call.c and backend_sim.c.
 *
 *   sim_call.c          entering and leaving
 *   sim_slots_device.c  devices, peers
 *   sim_slots_memory.c  memory, pools of it, managed memory, addresses, processes
 *   sim_slots_vm.c      memory by page
 *   sim_slots_copy.c    copies and sets
 *   sim_slots_stream.c  streams and events
 *   sim_slots_graph.c   recorded work
 */
#ifndef GM_SIM_CALL_H
#define GM_SIM_CALL_H

#include "sim.h"

/* ---- sim_call.c ---- */

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
gm_status sim_slot_device_reset(void *self, int device);
gm_status sim_slot_device_incarnation(void *self, int device, uint64_t *number);
gm_status sim_slot_peer_can_access(void *self, int device, int peer, bool *can);
gm_status sim_slot_peer_enable(void *self, int device, int peer);
gm_status sim_slot_peer_enabled(void *self, int device, int peer, bool *enabled);

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
gm_status sim_slot_ipc_export(void *self, uintptr_t ptr, gm_ipc_handle *out);
gm_status
sim_slot_ipc_open(void *self, int device, const gm_ipc_handle *handle, uintptr_t *base);
gm_status sim_slot_ipc_close(void *self, uintptr_t base);

/* ---- sim_slots_vm.c ---- */

gm_status sim_slot_vm_granularity(void *self, int device, size_t *bytes);
gm_status sim_slot_vm_reserve(void *self, size_t size, uintptr_t *out);
gm_status sim_slot_vm_unreserve(void *self, uintptr_t ptr, size_t size);
gm_status sim_slot_vm_create(void *self, int device, size_t size, gm_handle *out);
gm_status sim_slot_vm_release(void *self, gm_handle handle);
gm_status sim_slot_vm_map(void *self, uintptr_t ptr, size_t size, gm_handle handle);
gm_status sim_slot_vm_unmap(void *self, uintptr_t ptr, size_t size);
gm_status sim_slot_vm_set_access(void *self, uintptr_t ptr, size_t size, int device);

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
gm_status sim_slot_stream_info(
    void *self, gm_stream handle, unsigned *flags, int *priority, int *device);
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
