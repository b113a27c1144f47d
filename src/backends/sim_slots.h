/* SPDX-License-Identifier: MIT
 *
 * The slots of the simulated device that enter it, and what is special about each: the
 * policy of sim_call.c on one page. Included through sim.h.
 *
 * The calls that are not here take no lock: device_count, device_get, device_name,
 * last_error, the texts of errors.
 */
#ifndef GM_SIM_SLOTS_H
#define GM_SIM_SLOTS_H

enum {
    SIM_CONTEXT = 1u << 0,  // makes the context of the device that it names
    SIM_SURVIVES = 1u << 1, // works in spite of a sticky fault: it asks no device
    SIM_UNSAFE = 1u << 2,   // a recording may forbid it
};

/* X(slot, SIM_ of it) */
#define SIM_SLOTS(X)                                                                   \
    X(device_set, SIM_CONTEXT | SIM_SURVIVES)                                          \
    X(device_push, SIM_CONTEXT | SIM_SURVIVES)                                         \
    X(device_synchronize, SIM_CONTEXT | SIM_UNSAFE)                                    \
    X(device_support, SIM_SURVIVES)                                                    \
    X(device_reset, SIM_SURVIVES | SIM_UNSAFE)                                         \
    X(device_incarnation, SIM_SURVIVES)                                                \
    X(mem_info, SIM_CONTEXT)                                                           \
    X(mem_largest, SIM_CONTEXT)                                                        \
    X(mem_alloc, SIM_CONTEXT)                                                          \
    X(mem_free, SIM_CONTEXT | SIM_UNSAFE)                                              \
    X(mem_alloc_async, SIM_CONTEXT)                                                    \
    X(mem_free_async, SIM_CONTEXT)                                                     \
    X(mem_pool_get, SIM_CONTEXT)                                                       \
    X(mem_pool_set, SIM_CONTEXT)                                                       \
    X(mem_pool_trim, SIM_UNSAFE)                                                       \
    X(mem_pool_read, 0)                                                                \
    X(mem_pool_write, 0)                                                               \
    X(copy, 0)                                                                         \
    X(copy_async, 0)                                                                   \
    X(copy_peer, SIM_CONTEXT)                                                          \
    X(copy_peer_async, 0)                                                              \
    X(set, 0)                                                                          \
    X(set_async, 0)                                                                    \
    X(stream_create, SIM_CONTEXT)                                                      \
    X(stream_destroy, 0)                                                               \
    X(stream_query, SIM_UNSAFE)                                                        \
    X(stream_synchronize, SIM_UNSAFE)                                                  \
    X(stream_wait_event, 0)                                                            \
    X(stream_id, 0)                                                                    \
    X(stream_priority_range, SIM_CONTEXT)                                              \
    X(stream_info, 0)                                                                  \
    X(stream_capture, 0)                                                               \
    X(capture_begin, 0)                                                                \
    X(capture_end, 0)                                                                  \
    X(graph_instantiate, 0)                                                            \
    X(graph_launch, 0)                                                                 \
    X(graph_upload, 0)                                                                 \
    X(graph_debug_dot, 0)                                                              \
    X(graph_destroy, 0)                                                                \
    X(graph_exec_destroy, SIM_UNSAFE)                                                  \
    X(event_create, SIM_CONTEXT)                                                       \
    X(event_destroy, 0)                                                                \
    X(event_record, 0)                                                                 \
    X(event_query, 0)                                                                  \
    X(event_synchronize, 0)                                                            \
    X(event_elapsed, 0)                                                                \
    X(pointer_info, 0)                                                                 \
    X(peer_can_access, SIM_SURVIVES)                                                   \
    X(peer_enable, SIM_CONTEXT | SIM_UNSAFE)                                           \
    X(peer_enabled, SIM_SURVIVES)                                                      \
    X(mem_prefetch, 0)                                                                 \
    X(mem_advise, 0)                                                                   \
    X(vm_granularity, SIM_SURVIVES)                                                    \
    X(vm_reserve, SIM_SURVIVES)                                                        \
    X(vm_unreserve, SIM_SURVIVES)                                                      \
    X(vm_create, SIM_SURVIVES)                                                         \
    X(vm_release, SIM_SURVIVES)                                                        \
    X(vm_map, SIM_SURVIVES)                                                            \
    X(vm_unmap, SIM_SURVIVES)                                                          \
    X(vm_set_access, SIM_SURVIVES)                                                     \
    X(ipc_export, 0)                                                                   \
    X(ipc_open, SIM_CONTEXT | SIM_UNSAFE)                                              \
    X(ipc_close, SIM_UNSAFE)

typedef enum sim_slot {
#define SIM_SLOT(name, special) SIM_SLOT_##name,
    SIM_SLOTS(SIM_SLOT)
#undef SIM_SLOT
    SIM_SLOT_COUNT
} sim_slot;

#endif
