/* SPDX-License-Identifier: MIT
 *
 * The simulated device's own header: what its files share. Nobody else includes it.
 *
 *   sim_memory.h   the devices' memory, and the files that deal with it
 *   sim_vm.h       the same by page
 *   sim_stream.h   the devices' work, and the files that queue and run it
 *   sim_handle.c   handles of streams, events, pools and graphs, and their rejection
 *   sim_thread.c   what each thread has: current device, its own default streams
 *   sim_peer.c     which device reaches which other's memory
 *   sim_log.c      the call log and the ledger
 *   sim_reset.c    contexts of devices: made, reset, counted
 *   sim_instance.c opening, closing, references
 *   sim_slots.h    the slots, and what is special about each
 *   sim_call.h     entering and leaving a slot, and the functions of the table
 *   backend_sim.c  the table
 *
 * Locking: one mutex an instance. sim_enter takes it for each slot and sim_leave drops
 * it; every other function expects it held, except where said. It is a leaf: nothing
 * that could come back is called under it.
 */
#ifndef GM_SIM_H
#define GM_SIM_H

#include "backends.h"
#include "sim_memory.h"
#include "sim_slots.h"
#include "sim_stream.h"
#include "sim_vm.h"

#include <pthread.h>

/* The runtime's numbers that this device answers with. */
enum {
    SIM_CODE_INVALID_VALUE = 1,
    SIM_CODE_OUT_OF_MEMORY = 2,
    SIM_CODE_INVALID_DEVICE = 101,
    SIM_CODE_NO_CONTEXT = 201,
    SIM_CODE_PEER_UNSUPPORTED = 217,
    SIM_CODE_OPERATING_SYSTEM = 304,
    SIM_CODE_INVALID_HANDLE = 400,
    SIM_CODE_ILLEGAL_STATE = 401,
    SIM_CODE_NOT_READY = 600,
    SIM_CODE_ILLEGAL_ADDRESS = 700,
    SIM_CODE_TOO_MANY_PEERS = 711,
    SIM_CODE_LAUNCH_FAILURE = 719,
    SIM_CODE_NOT_SUPPORTED = 801,
    SIM_CODE_CAPTURE_UNSUPPORTED = 900,
    SIM_CODE_CAPTURE_INVALIDATED = 901,
    SIM_CODE_CAPTURE_MERGE = 902,
    SIM_CODE_CAPTURE_UNMATCHED = 903,
    SIM_CODE_CAPTURE_UNJOINED = 904,
    SIM_CODE_CAPTURE_ISOLATION = 905,
    SIM_CODE_CAPTURE_IMPLICIT = 906,
    SIM_CODE_CAPTURED_EVENT = 907,
    SIM_CODE_CAPTURE_WRONG_THREAD = 908,
    SIM_CODE_HELD = 10001, // none of the runtime's
};

/* ---- devices ---- */

typedef struct sim_device {
    sim_window memory;
    unsigned support;     // GM_DEVICE_*
    sim_pool *pools;      // all that exist, the one it was made with last
    sim_pool *pool;       // the one that mem_alloc_async takes from
    bool context;         // something made its context
    uint64_t incarnation; // of that context, 0 without
    sim_stream *streams;  // all that exist, its legacy stream included
    sim_stream *legacy;
} sim_device;

/* ---- sim_handle.c ---- */

/* Objects by handle. A handle is never an address and never that of another table;
 * the one given back last is given out first, as a driver would, or never again. */
typedef struct sim_table {
    uintptr_t base;
    bool once; // a handle that was given back is not given out again
    void **objects;
    uint32_t *spare; // indices given back
    uint32_t spares;
    uint32_t used; // indices ever given out
    uint32_t capacity;
} sim_table;

void sim_table_init(sim_table *table);
void sim_table_fini(sim_table *table);

/* A handle for `object`, not NULL. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_table_add(sim_table *table, void *object, uintptr_t *out);

/* NULL where the handle is not, or no longer, in use. */
void *sim_table_get(const sim_table *table, uintptr_t handle);
void sim_table_remove(sim_table *table, uintptr_t handle);

/* The handle of an object by its index in `objects`. */
uintptr_t sim_table_handle(const sim_table *table, uint32_t index);

/* A number that this process has not seen; any thread, no lock. */
uint64_t sim_next_serial(void);

/* ---- sim_thread.c ---- */

/* The calling thread's current device; needs no lock. */
int sim_thread_device(const gm_sim *sim);

/* Makes a device that exists current. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_thread_set_device(gm_sim *sim, int device);

/* Goes back to one that was current; nothing where the thread never set one. */
void sim_thread_restore_device(const gm_sim *sim, int device);

/* A number no other thread of the process has or had. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_thread_number(gm_sim *sim, uint64_t *number);

/* The same; 0 where nobody asked for it yet. */
uint64_t sim_thread_number_if_any(const gm_sim *sim);

/* The calling thread's last-error slot; needs no lock. */
int sim_thread_last_error(const gm_sim *sim);

/* The calling thread's own stream on its current device. NULL without host memory. */
sim_stream *sim_thread_stream(gm_sim *sim);

/* Frees the calling thread's record, if it has one; for close, after the streams. */
void sim_thread_forget(gm_sim *sim);

/* Runs when a thread ends; `record` is its sim_thread. Takes the lock itself. */
void sim_thread_end(void *record);

/* ---- sim_peer.c ---- */

typedef struct sim_peer {
    bool possible;
    bool enabled;
} sim_peer;

void sim_peers_init(gm_sim *sim);
bool sim_peer_possible(const gm_sim *sim, int device, int peer);
gm_status sim_peer_enable(gm_sim *sim, int device, int peer);
void sim_peers_reset(gm_sim *sim, int device);

/* ---- sim_log.c ---- */

typedef struct sim_log {
    unsigned readers; // kept while there is one
    gm_sim_call *calls;
    size_t count;
    size_t capacity;
} sim_log;

void sim_log_add(gm_sim *sim, const gm_sim_call *call);
void sim_log_fini(gm_sim *sim);

/* Counts a use of a dead or foreign handle, or of memory outside any allocation, and
 * gives the status for it. */
gm_status sim_bad_handle(gm_sim *sim);
gm_status sim_bad_value(gm_sim *sim);

/* ---- sim_reset.c ---- */

/* Makes a device's context, unless it has one. */
void sim_touch(gm_sim *sim, int device);

/* Ends all that exists on a device, its context too. */
void sim_reset(gm_sim *sim, int device);

/* Work of a device touched what is not there: a sticky fault, unless there is one. */
void sim_fault(gm_sim *sim, int device);

/* ---- the instance ---- */

struct gm_sim {
    gm_backend table;
    pthread_mutex_t mutex;
    pthread_cond_t changed; // a hold, a delay or a fault: who waits looks again
    pthread_key_t thread_key;
    unsigned refs;             // the owner's and one a thread record
    const volatile char *here; // points at 1, and at 0 in a forked child
    bool release_at_once;

    uint64_t delays[SIM_SLOT_COUNT]; // nanoseconds that a call takes longer
    int fault;                       // sticky: the code of every call, 0 for none
    int fault_device;                // ... until this device is reset

    int device_count; // 0 once closed: then only thread records are left
    size_t device_memory;
    sim_device devices[GM_SIM_MAX_DEVICES];
    sim_window host;                                        // pinned and managed memory
    sim_peer peers[GM_SIM_MAX_DEVICES][GM_SIM_MAX_DEVICES]; // device, then peer

    sim_table streams;
    sim_table events;
    sim_table pools;
    sim_table graphs;
    sim_table execs;
    sim_table handles; // of memory by page
    sim_vm vm;
    sim_capture *captures; // all under way
    sim_import *imports;   // memory of other processes
    size_t parked;         // ranges in all pools that the program gave back
    uint64_t number;       // of the newest operation
    uint64_t clock;        // virtual, nanoseconds
    unsigned ghosts;       // ended streams with no work, to be freed

    gm_sim_ledger ledger;
    sim_log log;
};

/* backend_sim.c; `self` is each instance's own. */
extern const gm_backend sim_slots;

/* The slot `close`. */
void sim_close(void *self);

/* Drops a reference and unlocks; frees the instance with the last one. */
void sim_unref_unlock(gm_sim *sim);

/* Whether this is a child that was forked after the instance was opened: its memory is
 * not there, and its lock may be held for ever. Needs no lock. */
static inline bool
sim_is_gone(const gm_sim *sim)
{
    return *sim->here == 0;
}

static inline bool
sim_has_device(const gm_sim *sim, int device)
{
    return device >= 0 && device < sim->device_count;
}

#endif
