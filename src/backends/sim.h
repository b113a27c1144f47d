/* SPDX-License-Identifier: MIT
 *
 * The simulated device's own header: what its files share. Nobody else includes it.
 *
 *   sim_window.c   where things lie in one stretch of addresses: first fit, merging
 *   sim_memory.c   devices' memory: allocate, free, look up, check ranges
 *   sim_handle.c   handles of streams and events, and their rejection
 *   sim_thread.c   what each thread has: current device, its own default streams
 *   sim_stream.c   streams, their queues, and the rule by which queued work runs
 *   sim_event.c    events
 *   sim_peer.c     which device reaches which other's memory
 *   sim_log.c      the call log and the ledger
 *   sim_instance.c opening, closing, references
 *   backend_sim.c  the table: locks, calls the above, logs, unlocks
 *
 * Locking: one mutex an instance. backend_sim.c takes it around each slot; every other
 * function here expects it held, except where said. It is a leaf: nothing that could
 * come back is called under it.
 */
#ifndef GM_SIM_H
#define GM_SIM_H

#include "backends.h"

#include <pthread.h>

#define SIM_UNIT ((size_t)512)        // placement and accounting
#define SIM_SEGMENT ((size_t)2 << 20) // a device's memory is a multiple of it

/* The runtime's numbers that this device answers with. */
enum {
    SIM_CODE_INVALID_VALUE = 1,
    SIM_CODE_OUT_OF_MEMORY = 2,
    SIM_CODE_INVALID_DEVICE = 101,
    SIM_CODE_PEER_UNSUPPORTED = 217,
    SIM_CODE_INVALID_HANDLE = 400,
    SIM_CODE_NOT_READY = 600,
    SIM_CODE_TOO_MANY_PEERS = 711,
};

typedef struct sim_range sim_range;
typedef struct sim_stream sim_stream;
typedef struct sim_op sim_op;
typedef struct gm_sim gm_sim;

/* ---- sim_window.c ---- */

/* A stretch of addresses, live or free. The ranges of a window cover it without gap;
 * no two free ones are neighbours. */
struct sim_range {
    uintptr_t start;
    size_t size;     // multiple of SIM_UNIT
    sim_range *prev; // by address
    sim_range *next;
    sim_range *left; // treap by address
    sim_range *right;
    uint32_t priority;
    bool live;
    size_t widest; // largest free range of this subtree

    // Free: the part written since its pages were last given back; empty when equal.
    uintptr_t stale_start;
    uintptr_t stale_end;

    // Live: what was asked for.
    size_t asked;
    gm_mem_kind kind;
    int device;
};

/* One mapping of one memory file, and what lies in it. */
typedef struct sim_window {
    int file;
    uintptr_t start;
    size_t length;   // of the addresses
    size_t capacity; // bytes that may be live at once, at most `length`
    size_t used;     // bytes live, in units
    sim_range *root;
    uint64_t random; // state of the treap's priorities
} sim_window;

/* Maps a window; no memory is spent until it is written. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_window_init(sim_window *window,
                                        size_t length,
                                        size_t capacity);

/* Gives everything back; accepts a window that is all zero. */
void sim_window_fini(sim_window *window);

/* The lowest free place of `size` > 0 bytes; the range is live and its `asked`, `kind`
 * and `device` are the caller's to fill. GM_ERR_OUT_OF_MEMORY, GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_window_take(sim_window *window,
                                        size_t size,
                                        sim_range **out);

/* Ends a live range. Cannot fail. */
void sim_window_give(sim_window *window, sim_range *range);

/* The range that holds `ptr`, live or free; NULL outside of the window. */
sim_range *sim_window_find(const sim_window *window, uintptr_t ptr);

/* ---- devices ---- */

typedef struct sim_device {
    sim_window memory;
    sim_stream *streams; // all that exist, its legacy stream included
    sim_stream *legacy;
} sim_device;

/* ---- sim_handle.c ---- */

/* Objects by handle. A handle is never an address and never that of another table;
 * the one given back last is given out first, as a driver would. */
typedef struct sim_table {
    uintptr_t base;
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

/* A number that this process has not seen; any thread, no lock. */
uint64_t sim_next_serial(void);

/* ---- sim_thread.c ---- */

/* The calling thread's current device; needs no lock. */
int sim_thread_device(const gm_sim *sim);

/* Makes a device that exists current. GM_ERR_HOST_MEMORY. */
GM_MUST_CHECK gm_status sim_thread_set_device(gm_sim *sim, int device);

/* The calling thread's own stream on its current device. NULL without host memory. */
sim_stream *sim_thread_stream(gm_sim *sim);

/* Frees the calling thread's record, if it has one; for close, after the streams. */
void sim_thread_forget(gm_sim *sim);

/* Runs when a thread ends; `record` is its sim_thread. Takes the lock itself. */
void sim_thread_end(void *record);

/* ---- sim_stream.c ---- */

typedef enum sim_op_kind {
    SIM_OP_COPY,
    SIM_OP_SET,
    SIM_OP_RECORD,
    SIM_OP_WAIT,
} sim_op_kind;

/* Queued work. Counted, because events and waits remember records. */
struct sim_op {
    sim_op_kind kind;
    unsigned refs;
    uint64_t number; // order of queueing, over the whole instance
    sim_op *next;    // in its stream
    sim_stream *stream;
    bool done;
    uint64_t time; // done: nanoseconds on the virtual clock

    uintptr_t dst; // COPY, SET
    uintptr_t src; // COPY
    size_t size;
    int value;      // SET
    sim_op *record; // WAIT: a reference; NULL when the event had no record
};

struct sim_stream {
    uint64_t id;
    int device;
    bool blocking; // keeps order with the legacy stream
    bool ended;    // no handle any more; freed once the queue is empty
    sim_op *head;
    sim_op **tail;
    uint64_t last;    // number of the newest operation queued
    uint64_t polled;  // a query saw the queue up to this number and said "not ready"
    sim_stream *next; // of the device
    sim_stream *prev;

    // While sim_run works: how far this stream must get, and for whom.
    uint64_t target;
    sim_stream *waiter;
};

/* A stream of `device` without a handle. NULL without host memory. */
sim_stream *sim_stream_new(gm_sim *sim, int device, bool blocking);

/* Ends a stream: it goes when its queue is empty, perhaps now. */
void sim_stream_end(gm_sim *sim, sim_stream *stream);

/* The stream a handle names for the calling thread. GM_ERR_HOST_MEMORY, or invalid
 * handle, which counts as an error. */
GM_MUST_CHECK gm_status sim_stream_find(gm_sim *sim,
                                        gm_stream handle,
                                        sim_stream **out);

gm_status sim_stream_create(gm_sim *sim, int device, unsigned flags, gm_stream *out);
gm_status sim_stream_destroy(gm_sim *sim, gm_stream handle);
gm_status sim_stream_query(gm_sim *sim, sim_stream *stream);

/* Queues what `*work` says (kind and operands; a WAIT's record gains a reference).
 * *kept, where asked for, is a reference to the queued operation. GM_ERR_HOST_MEMORY.
 */
GM_MUST_CHECK gm_status sim_submit(gm_sim *sim,
                                   sim_stream *stream,
                                   const sim_op *work,
                                   sim_op **kept);

/* Runs a stream up to operation `number`, and first all that this waits for. */
void sim_run(gm_sim *sim, sim_stream *stream, uint64_t number);

/* Runs everything queued on a device. */
void sim_drain(gm_sim *sim, int device);

/* Drops a reference; accepts NULL. */
void sim_op_unref(sim_op *op);

/* Ends all streams of all devices with no regard to their work. */
void sim_streams_fini(gm_sim *sim);

/* ---- sim_event.c ---- */

gm_status sim_event_create(gm_sim *sim, int device, unsigned flags, gm_event *out);
gm_status sim_event_destroy(gm_sim *sim, gm_event handle);
gm_status sim_event_record(gm_sim *sim, gm_event handle, sim_stream *stream);
gm_status sim_event_wait(gm_sim *sim, gm_event handle, sim_stream *stream);
gm_status sim_event_query(gm_sim *sim, gm_event handle);
gm_status sim_event_synchronize(gm_sim *sim, gm_event handle);
gm_status sim_event_elapsed(gm_sim *sim, gm_event start, gm_event end, float *ms);
void sim_events_fini(gm_sim *sim);

/* ---- sim_peer.c ---- */

typedef struct sim_peer {
    bool possible;
    bool enabled;
} sim_peer;

void sim_peers_init(gm_sim *sim);
bool sim_peer_possible(const gm_sim *sim, int device, int peer);
gm_status sim_peer_enable(gm_sim *sim, int device, int peer);

/* ---- sim_memory.c ---- */

gm_status sim_memory_init(gm_sim *sim, const gm_sim_options *options);
void sim_memory_fini(gm_sim *sim);

gm_status
sim_mem_alloc(gm_sim *sim, int device, gm_mem_kind kind, size_t size, uintptr_t *out);
gm_status sim_mem_free(gm_sim *sim, int device, gm_mem_kind kind, uintptr_t ptr);
gm_status
sim_mem_info(gm_sim *sim, int device, size_t *free_bytes, size_t *total_bytes);
void sim_pointer_info(const gm_sim *sim, uintptr_t ptr, gm_pointer_info *info);

/* Whether all of a range may be touched: it lies in one live allocation or, where
 * `host` allows that, in none of the device's windows. */
bool sim_range_usable(const gm_sim *sim, uintptr_t ptr, size_t size, bool host);

/* Checks a copy's two ranges; invalid value, and counted, when one is bad. */
gm_status sim_check_copy(
    gm_sim *sim, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind);
gm_status sim_check_set(gm_sim *sim, uintptr_t dst, size_t size);

/* Checks a range of managed memory and a place for it: a device, or the host as -1. */
gm_status sim_check_managed(gm_sim *sim, uintptr_t ptr, size_t size, int device);

/* ---- sim_log.c ---- */

typedef struct sim_log {
    bool on;
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

/* ---- the instance ---- */

struct gm_sim {
    gm_backend table;
    pthread_mutex_t mutex;
    pthread_key_t thread_key;
    unsigned refs;             // the owner's and one a thread record
    const volatile char *here; // points at 1, and at 0 in a forked child
    bool release_at_once;

    int device_count; // 0 once closed: then only thread records are left
    size_t device_memory;
    sim_device devices[GM_SIM_MAX_DEVICES];
    sim_window host;                                        // pinned and managed memory
    sim_peer peers[GM_SIM_MAX_DEVICES][GM_SIM_MAX_DEVICES]; // device, then peer

    sim_table streams;
    sim_table events;
    uint64_t number; // of the newest operation
    uint64_t clock;  // virtual, nanoseconds
    unsigned ghosts; // ended streams whose queue was not empty

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
