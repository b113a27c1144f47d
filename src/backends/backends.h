/* SPDX-License-Identifier: MIT
 *
 * How backends are made, and the handles by which tests drive the simulated one. The
 * table they all fill is core/gm_backend.h. No CUDA header is needed to include this.
 */
#ifndef GM_BACKENDS_H
#define GM_BACKENDS_H

#include "../core/gm_backend.h"

/* ---- cuda ---- */

/* The CUDA runtime. *out stays valid for the life of the process.
 * GM_ERR_UNSUPPORTED: built without CUDA. GM_ERR_NO_DRIVER: no driver installed, or no
 * device. GM_ERR_DRIVER_TOO_OLD: both versions can be read with gm_backend_cuda_probe.
 * Leaves no error in the runtime's last-error slot. Creates no context. */
GM_MUST_CHECK gm_status gm_backend_cuda_open(const gm_backend **out);

/* What a look without opening finds; safe with no driver. Versions as 1000*major +
 * 10*minor, driver 0 where there is none; devices 0 where they cannot be counted. */
typedef struct gm_cuda_probe {
    bool built;  // this build contains CUDA
    int runtime; // version linked
    int driver;
    int devices;
    int error; // the runtime's code when counting devices failed, else 0
} gm_cuda_probe;
void gm_backend_cuda_probe(gm_cuda_probe *out);

/* ---- sim ---- */

#define GM_SIM_MAX_DEVICES 16

/* Of all devices together: three times as much must find room among a process's
 * addresses, which are 128 TiB with a program in their midst. */
#define GM_SIM_MAX_MEMORY ((size_t)16 << 40)

typedef struct gm_sim_options {
    int devices;    // 1 to GM_SIM_MAX_DEVICES
    size_t memory;  // bytes a device, rounded up to 2 MiB; nothing is spent until used;
                    // 1 to GM_SIM_MAX_MEMORY / devices
    size_t others;  // bytes a device that somebody else holds
    bool scattered; // placement need not be contiguous: capacity alone decides
    bool release_at_once; // queued work runs at once instead of as late as is legal
} gm_sim_options;

/* A device made of host memory. Several may exist at once; give each back with
 * gm_backend_close. A child that was forked meanwhile gets GM_ERR_FORKED from each call
 * that would need it, and finds ledger and log empty. */
GM_MUST_CHECK gm_status gm_backend_sim_open(const gm_sim_options *options,
                                            gm_backend **out);

/* The ledger: what was taken and not given back. All zero at the end of a clean run. */
typedef struct gm_sim_ledger {
    size_t allocations; // live mem_alloc results, all kinds
    size_t bytes;       // their sum as asked
    size_t streams;
    size_t events;
    size_t graphs;         // recorded, and ready to launch
    size_t captures;       // recordings under way
    size_t imports;        // allocations of other processes that are open
    size_t reservations;   // address ranges
    size_t reserved_bytes; // their sum
    size_t handles;        // physical memory by page, held or mapped
    size_t handle_bytes;   // its sum
    size_t mappings;       // places of it
    size_t mapped_bytes;   // their sum
    size_t pending;        // queued operations that have not run
    size_t errors;     // bad frees, uses of dead handles, copies outside any allocation
    size_t faults;     // work that ran into what was unmapped after it was queued
    size_t peak_bytes; // highest sum of device bytes held, all devices
} gm_sim_ledger;
void gm_sim_read_ledger(const gm_backend *b, gm_sim_ledger *out);

/* Whether `device` can reach `peer`'s memory directly; all can until told otherwise,
 * each at most GM_SIM_MAX_PEERS at a time. Forgets that it was enabled.
 * GM_ERR_INVALID_DEVICE: one of them is not there, or they are the same.
 * GM_ERR_FORKED. */
#define GM_SIM_MAX_PEERS 8
GM_MUST_CHECK gm_status gm_sim_set_peer(const gm_backend *b,
                                        int device,
                                        int peer,
                                        bool can);

/* What a device can do (GM_DEVICE_*); all of it until told otherwise. */
void gm_sim_set_support(const gm_backend *b, int device, unsigned support);

/* One more pool of stream-ordered memory, as another library would make it; it lives as
 * long as the device. GM_ERR_INVALID_DEVICE, GM_ERR_HOST_MEMORY, GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_sim_make_pool(const gm_backend *b,
                                         int device,
                                         gm_mem_pool *out);

/* Changes how much of a device somebody else holds. GM_ERR_OUT_OF_MEMORY: so much is
 * not free. GM_ERR_INVALID_DEVICE, GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_sim_set_others(const gm_backend *b,
                                          int device,
                                          size_t bytes);

/* Whether a call made the device's context. */
bool gm_sim_context_created(const gm_backend *b, int device);

/* A fault of `device` that sticks: until that is reset all calls that ask any device
 * return `code`; with 0 it is over. GM_BUSY: there is a fault already, and the first
 * sticks. GM_ERR_INVALID_DEVICE, GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_sim_set_fault(const gm_backend *b, int device, int code);

/* Holds a stream: no work of it runs until gm_sim_release with the number that *hold
 * gets, also where its handle is gone by then. Who waits for it blocks; the holding
 * thread gets an error instead. GM_BUSY: it is held. As for an invalid handle,
 * GM_ERR_HOST_MEMORY, GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_sim_hold(const gm_backend *b,
                                    gm_stream stream,
                                    uint64_t *hold);
void gm_sim_release(const gm_backend *b, uint64_t hold);

/* Each call of a slot takes `nanoseconds` longer, asleep and without any lock, until
 * told otherwise; who sleeps looks then whether that is over. *before, if wanted: what
 * it was. GM_ERR_INVALID_VALUE: no such slot that reaches a device. GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_sim_set_delay(const gm_backend *b,
                                         const char *name,
                                         uint64_t nanoseconds,
                                         uint64_t *before);

/* Whether handles that were given back are given out again, as a driver does; they are
 * until told otherwise. Returns what it was. */
bool gm_sim_recycle_handles(const gm_backend *b, bool recycle);

/* Leaves an error in the calling thread's last-error slot, as another library's call
 * would; 0 takes it out. GM_ERR_HOST_MEMORY, GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_sim_set_last_error(const gm_backend *b, int code);

/* What is known of managed memory at an address. GM_ERR_INVALID_VALUE: it is none. */
#define GM_SIM_NOWHERE (-2)
#define GM_SIM_ACCESSED_BY_HOST (1u << 31)
typedef struct gm_sim_managed {
    int location; // where it was moved to last: a device, -1 the host, GM_SIM_NOWHERE
    bool read_mostly;
    int preferred;        // the same
    uint32_t accessed_by; // a bit a device, GM_SIM_ACCESSED_BY_HOST
} gm_sim_managed;
GM_MUST_CHECK gm_status gm_sim_read_managed(const gm_backend *b,
                                            uintptr_t ptr,
                                            gm_sim_managed *out);

/* The call log: one entry a slot call that reached the device, oldest first, kept only
 * while somebody wants it: between a start and the stop that belongs to it, or several.
 * Fields that a call does not have are 0. */
typedef struct gm_sim_call {
    const char *name; // slot name, static
    int device;
    uint64_t ptr; // address, stream or event the call is about
    size_t size;
    gm_status status;
} gm_sim_call;
size_t gm_sim_log_start(const gm_backend *b); // the index of what comes next
void gm_sim_log_stop(const gm_backend *b);    // the last one forgets
size_t gm_sim_log_count(const gm_backend *b);
bool gm_sim_log_get(const gm_backend *b, size_t index, gm_sim_call *out);

/* ---- fault ---- */

/* Wraps `inner` (which must outlive it): the same table, but calls of one slot can be
 * told to fail. In a forked child (gm_process.h) there are no plans: calls go to
 * `inner` as they are, counts are 0, and gm_fault_plan says GM_ERR_FORKED. */
GM_MUST_CHECK gm_status gm_backend_fault_open(const gm_backend *inner,
                                              gm_backend **out);

/* The `nth` (1 = next) call from now of slot `name` (NULL = any slot that may fail)
 * fails with `status`, and so do the `count - 1` calls after it (0 = for ever), without
 * reaching `inner`. Replaces the plan before it. GM_ERR_INVALID_VALUE: no such slot. */
GM_MUST_CHECK gm_status gm_fault_plan(const gm_backend *b,
                                      const char *name,
                                      uint64_t nth,
                                      uint64_t count,
                                      gm_status status);

/* Ends the plan. */
void gm_fault_clear(const gm_backend *b);

/* Calls seen and failures injected since gm_fault_plan. */
void gm_fault_counts(const gm_backend *b, uint64_t *seen, uint64_t *injected);

#endif
