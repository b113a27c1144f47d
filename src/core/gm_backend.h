/* SPDX-License-Identifier: MIT
 *
 * The backend table: all that the pool and the Python types ever ask of a device.
 *
 * A backend is one struct of functions and one opaque `self`. `cuda` fills it over
 * the CUDA runtime, `sim` over host memory, `fault` wraps another table and injects
 * failures. Nobody calls a slot directly: the gm_backend_* functions below it give a
 * missing slot its default answer and check what comes back.
 *
 * Rules for every slot
 *  - None of our locks is ever held by the caller, so a slot may block. It never runs
 *    Python and never calls back into the core.
 *  - Any thread may call any slot at any time, several at once.
 *  - Result: GM_OK, a GM_ERR_* of gm_status.h, or GM_DEVICE_ERROR(code). Out of device
 *    memory is always GM_ERR_OUT_OF_MEMORY. An out-parameter is written on success
 * only.
 *  - A slot leaves the calling thread's current device as it found it, also when it
 *    fails; only device_set, device_push and device_pop change it. A slot with a
 * `device` argument works on that device whatever is current.
 *  - A failed slot leaves nothing allocated, nothing queued and nothing in the
 *    runtime's last-error slot.
 *  - Every slot is optional unless marked required. A NULL slot answers
 *    GM_ERR_UNSUPPORTED through its wrapper unless its paragraph names another default.
 *  - Streams are native handles: GM_STREAM_NULL is the current device's default stream,
 *    GM_STREAM_LEGACY the same by its own name, GM_STREAM_PER_THREAD the calling
 *    thread's own.
 */
#ifndef GM_BACKEND_H
#define GM_BACKEND_H

#include "gm_base.h"
#include "gm_status.h"

#define GM_BACKEND_API_VERSION 1

typedef uintptr_t gm_stream;     // native stream handle
typedef uintptr_t gm_event;      // native event handle
typedef uint64_t gm_handle;      // physical memory made by vm_create
typedef uintptr_t gm_mem_pool;   // the driver's own pool of stream-ordered memory
typedef uintptr_t gm_graph;      // recorded work
typedef uintptr_t gm_graph_exec; // the same, ready to launch

#define GM_STREAM_NULL ((gm_stream)0)
#define GM_STREAM_LEGACY ((gm_stream)1)
#define GM_STREAM_PER_THREAD ((gm_stream)2)

/* What a backend can do, for callers that must choose before they try. */
enum {
    GM_CAP_SIMULATED = 1u << 0,      // device pointers are host addresses
    GM_CAP_STREAM_ORDERED = 1u << 1, // mem_alloc_async and mem_free_async
    GM_CAP_MANAGED = 1u << 2,        // GM_MEM_MANAGED
    GM_CAP_VIRTUAL_MEMORY = 1u << 3, // the vm_ slots
    GM_CAP_IPC = 1u << 4,            // the ipc_ slots
};

typedef enum gm_mem_kind {
    GM_MEM_DEVICE,         // ordinary device memory
    GM_MEM_MANAGED,        // migrates between host and device
    GM_MEM_PINNED,         // page-locked host memory
    GM_MEM_WRITE_COMBINED, // the same, uncached: the host writes it, the device reads
                           // it
} gm_mem_kind;

/* What one device can do; see device_support. */
enum {
    GM_DEVICE_MEMORY_POOLS = 1u << 0,       // mem_alloc_async and the mem_pool_ slots
    GM_DEVICE_MANAGED = 1u << 1,            // GM_MEM_MANAGED
    GM_DEVICE_CONCURRENT_MANAGED = 1u << 2, // ... larger than the device, prefetched
    GM_DEVICE_PAGEABLE_ACCESS = 1u << 3,    // reads plain host memory
    GM_DEVICE_VIRTUAL_MEMORY = 1u << 4,     // the vm_ slots
};

typedef enum gm_mem_pool_field {
    GM_MEM_POOL_USED,              // bytes in use; read only
    GM_MEM_POOL_RESERVED,          // bytes held from the device; read only
    GM_MEM_POOL_RELEASE_THRESHOLD, // bytes kept rather than given back
    GM_MEM_POOL_USED_HIGH,         // the most of USED since it was last set to 0
    GM_MEM_POOL_RESERVED_HIGH,     // the same of RESERVED
} gm_mem_pool_field;

/* Values are the CUDA runtime's cudaMemcpyKind. */
typedef enum gm_copy_kind {
    GM_COPY_HOST_TO_DEVICE = 1,
    GM_COPY_DEVICE_TO_HOST = 2,
    GM_COPY_DEVICE_TO_DEVICE = 3,
    GM_COPY_DEFAULT = 4, // the backend finds out from the addresses
} gm_copy_kind;

enum {
    GM_STREAM_NON_BLOCKING = 1u << 0, // does not wait for the null stream
};

enum {
    GM_EVENT_BLOCKING_SYNC = 1u << 0,  // event_synchronize sleeps instead of spinning
    GM_EVENT_DISABLE_TIMING = 1u << 1, // cheaper; event_elapsed refuses it
    GM_EVENT_INTERPROCESS = 1u << 2,   // can be exported
};

/* Which calls of which threads a recording forbids: the runtime's numbers. */
typedef enum gm_capture_mode {
    GM_CAPTURE_MODE_GLOBAL = 0,
    GM_CAPTURE_MODE_THREAD_LOCAL = 1,
    GM_CAPTURE_MODE_RELAXED = 2,
} gm_capture_mode;

typedef enum gm_capture_state {
    GM_CAPTURE_NONE,
    GM_CAPTURE_ACTIVE,
    GM_CAPTURE_INVALIDATED,
} gm_capture_state;

typedef enum gm_pointer_kind {
    GM_POINTER_UNREGISTERED, // plain host memory, unknown to the device
    GM_POINTER_HOST,         // pinned
    GM_POINTER_DEVICE,
    GM_POINTER_MANAGED,
} gm_pointer_kind;

typedef struct gm_pointer_info {
    gm_pointer_kind kind;
    int device;     // -1 where kind is GM_POINTER_UNREGISTERED
    uintptr_t base; // start and length of the allocation it lies in; 0 if unknown
    size_t size;
} gm_pointer_info;

/* Some memory: where it starts, how long it is. */
typedef struct gm_range {
    uintptr_t base;
    size_t size;
} gm_range;

typedef struct gm_ipc_handle {
    unsigned char bytes[64];
} gm_ipc_handle;

/* What device_pop goes back to. */
typedef struct gm_device_mark {
    bool pushed;      // false: nothing
    uintptr_t before; // the backend's own
} gm_device_mark;

typedef struct gm_backend {
    /* ---- identity ---- */
    uint32_t api_version; // GM_BACKEND_API_VERSION of the header it was built with
    uint32_t caps;        // GM_CAP_*
    const char *name;     // "cuda", "sim", ...; static
    void *self;           // passed to every slot; owned by the backend

    /* Ends the backend and frees `self`. Called once, after everything made through
     * it was given back. Default: nothing to do. */
    void (*close)(void *self);

    /* The runtime's name ("cudaErrorMemoryAllocation") and sentence for one of its
     * codes; static strings. Required. */
    const char *(*error_name)(void *self, int code);
    const char *(*error_text)(void *self, int code);

    /* The code in the calling thread's last-error slot, 0 when clean; does not clear
     * it. For tests. Default: 0. */
    int (*last_error)(void *self);

    /* ---- devices ---- */

    /* How many devices there are. Creates no context. Required. */
    gm_status (*device_count)(void *self, int *count);

    /* The calling thread's current device; what a thread that never set one sees is 0.
     * Hot: called once a request where there are several devices. Creates no context.
     * Required. */
    gm_status (*device_get)(void *self, int *device);

    /* Makes `device` current for the calling thread. GM_ERR_INVALID_DEVICE when there
     * is no such device. Required. */
    gm_status (*device_set)(void *self, int device);

    /* Makes `device` current for the calling thread until device_pop is called with
     * *mark. That puts back exactly what was, whatever the thread made current in
     * between: also no context at all, or one that somebody made for himself. The two
     * nest. After a failure there is nothing to pop. GM_ERR_INVALID_DEVICE. Required.
     */
    gm_status (*device_push)(void *self, int device, gm_device_mark *mark);
    void (*device_pop)(void *self, const gm_device_mark *mark);

    /* Blocks until all work queued on `device` is done; an earlier fault of that work
     * comes out here. Required. */
    gm_status (*device_synchronize)(void *self, int device);

    /* Fills `text` (always terminated) with the device's name. Default: the backend's
     * name. */
    gm_status (*device_name)(void *self, int device, char *text, size_t size);

    /* Versions as 1000*major + 10*minor; the driver's is 0 where there is none.
     * Creates no context. Default: 0 and 0. */
    gm_status (*versions)(void *self, int *driver, int *runtime);

    /* GM_DEVICE_* of one device. Creates no context. Default: none. */
    gm_status (*device_support)(void *self, int device, unsigned *support);

    /* Ends all that exists on `device`: memory, streams, events; but not what vm_create
     * made. Nobody else uses it meanwhile. */
    gm_status (*device_reset)(void *self, int device);

    /* A number that changes when all that existed on `device` is gone, because somebody
     * reset it; 0 while nothing ever existed there. Creates no context. Default: 0. */
    gm_status (*device_incarnation)(void *self, int device, uint64_t *number);

    /* ---- memory ---- */

    /* Bytes nobody holds, and bytes there are, on `device`. Required. */
    gm_status (*mem_info)(void *self,
                          int device,
                          size_t *free_bytes,
                          size_t *total_bytes);

    /* The most bytes of GM_MEM_DEVICE that one mem_alloc could get if the `count`
     * allocations `back`, in order of address, were given back before. An estimate
     * where only the driver knows: another program may be faster. Default: what
     * mem_info calls free, and theirs. */
    gm_status (*mem_largest)(
        void *self, int device, const gm_range *back, size_t count, size_t *bytes);

    /* `size` > 0 bytes of `kind`, aligned to at least 512 for device memory; *out is
     * non-zero. May block, may synchronise the device. Is no part of a graph that is
     * being recorded, and spoils none. GM_MEM_DEVICE is required; the other kinds may
     * answer GM_ERR_UNSUPPORTED. */
    gm_status (*mem_alloc)(
        void *self, int device, gm_mem_kind kind, size_t size, uintptr_t *out);

    /* Gives back exactly what mem_alloc returned. Waits until the device no longer
     * uses it. On failure the memory is the backend's problem all the same: the caller
     * forgets it. Required. */
    gm_status (*mem_free)(void *self, int device, gm_mem_kind kind, uintptr_t ptr);

    /* The same in the order of `stream`; does not block. */
    gm_status (*mem_alloc_async)(
        void *self, int device, size_t size, gm_stream stream, uintptr_t *out);
    gm_status (*mem_free_async)(void *self,
                                int device,
                                uintptr_t ptr,
                                gm_stream stream);

    /* The driver's pool that mem_alloc_async takes from on `device`, or with `original`
     * the one it took from at first. mem_pool_set chooses another. */
    gm_status (*mem_pool_get)(void *self, int device, bool original, gm_mem_pool *out);
    gm_status (*mem_pool_set)(void *self, int device, gm_mem_pool pool);

    /* Gives what the pool holds beyond `keep` bytes back to the device; what is in use,
     * or was freed in the order of a stream that has not got there, stays. */
    gm_status (*mem_pool_trim)(void *self, gm_mem_pool pool, size_t keep);

    /* One number of a pool. Writing is for the fields that are not read only; for the
     * most there was, only 0, and it may read 0 until the next request. */
    gm_status (*mem_pool_read)(void *self,
                               gm_mem_pool pool,
                               gm_mem_pool_field field,
                               uint64_t *value);
    gm_status (*mem_pool_write)(void *self,
                                gm_mem_pool pool,
                                gm_mem_pool_field field,
                                uint64_t value);

    /* Copies `size` > 0 bytes. The plain form returns when the destination holds them
     * (blocking, on the legacy stream); the async form queues on `stream`, and both
     * ranges must stay valid until the stream gets there. Required. */
    gm_status (*copy)(
        void *self, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind);
    gm_status (*copy_async)(void *self,
                            uintptr_t dst,
                            uintptr_t src,
                            size_t size,
                            gm_copy_kind kind,
                            gm_stream stream);

    /* Copies between two devices, with or without peer access. */
    gm_status (*copy_peer)(void *self,
                           uintptr_t dst,
                           int dst_device,
                           uintptr_t src,
                           int src_device,
                           size_t size);
    gm_status (*copy_peer_async)(void *self,
                                 uintptr_t dst,
                                 int dst_device,
                                 uintptr_t src,
                                 int src_device,
                                 size_t size,
                                 gm_stream stream);

    /* Fills `size` > 0 bytes with the low byte of `value`. Required. */
    gm_status (*set)(void *self, uintptr_t dst, int value, size_t size);
    gm_status (*set_async)(
        void *self, uintptr_t dst, int value, size_t size, gm_stream stream);

    /* ---- streams ---- */

    /* A new stream of `device`; flags are GM_STREAM_*, a lower priority number runs
     * first, 0 is ordinary. Required. */
    gm_status (*stream_create)(
        void *self, int device, unsigned flags, int priority, gm_stream *out);

    /* Ends the stream's handle; work already queued still runs. Default streams cannot
     * be destroyed. Required. */
    gm_status (*stream_destroy)(void *self, gm_stream stream);

    /* GM_OK when all queued work is done, GM_NOT_READY when not. Required. */
    gm_status (*stream_query)(void *self, gm_stream stream);

    /* Blocks until all queued work is done. Required. */
    gm_status (*stream_synchronize)(void *self, gm_stream stream);

    /* Work queued on `stream` from now on waits for `event`. Required. */
    gm_status (*stream_wait_event)(void *self, gm_stream stream, gm_event event);

    /* A number no other stream of this process ever had or will have, where the handle
     * itself may be reused. For GM_STREAM_PER_THREAD it differs by thread. Too slow for
     * each request (30 ns): asked when a stream becomes current. GM_ERR_CAPTURING while
     * the stream is being recorded: CUDA does not tell then. Required. */
    gm_status (*stream_id)(void *self, gm_stream stream, uint64_t *id);

    /* The numbers of the least urgent and the most urgent priority. Default: 0, 0. */
    gm_status (*stream_priority_range)(void *self, int device, int *least, int *most);

    /* What the stream was made with: GM_STREAM_*, its priority as the device took it,
     * and its device; of a default stream the current one. Default: none, 0 and -1, for
     * not known. */
    gm_status (*stream_info)(
        void *self, gm_stream stream, unsigned *flags, int *priority, int *device);

    /* ---- recorded graphs ---- */

    /* Whether the stream records a graph, and which: *id is a number no other recording
     * of this process has, 0 where there is none or it is spoilt. Never disturbs a
     * recording. Default: GM_CAPTURE_NONE, 0. */
    gm_status (*stream_capture)(void *self,
                                gm_stream stream,
                                gm_capture_state *state,
                                uint64_t *id);

    /* From here to capture_end work queued on `stream`, and on streams that wait for
     * its events, is recorded and not run. Not on a default stream. A call that the
     * mode forbids fails and spoils the recording. capture_end also ends a spoilt one,
     * and fails then. */
    gm_status (*capture_begin)(void *self, gm_stream stream, gm_capture_mode mode);
    gm_status (*capture_end)(void *self, gm_stream stream, gm_graph *out);

    /* Makes a graph ready to launch; the graph is not needed for it any more. */
    gm_status (*graph_instantiate)(void *self, gm_graph graph, gm_graph_exec *out);

    /* Queues the recorded work, or its upload to the device, on `stream`. */
    gm_status (*graph_launch)(void *self, gm_graph_exec exec, gm_stream stream);
    gm_status (*graph_upload)(void *self, gm_graph_exec exec, gm_stream stream);

    /* Writes the graph in DOT to a file; `flags` are the runtime's. */
    gm_status (*graph_debug_dot)(void *self,
                                 gm_graph graph,
                                 const char *path,
                                 unsigned flags);

    /* Ends the handles. A launch under way goes on. */
    gm_status (*graph_destroy)(void *self, gm_graph graph);
    gm_status (*graph_exec_destroy)(void *self, gm_graph_exec exec);

    /* ---- events ---- */

    /* A new event of `device`; flags are GM_EVENT_*. Required. */
    gm_status (*event_create)(void *self, int device, unsigned flags, gm_event *out);

    /* Ends the event's handle; a wait already queued on it still holds. Required. */
    gm_status (*event_destroy)(void *self, gm_event event);

    /* The event happens when `stream` has done all that is queued on it now. An event
     * never recorded counts as having happened. Required. */
    gm_status (*event_record)(void *self, gm_event event, gm_stream stream);

    /* GM_OK when it happened, GM_NOT_READY when not. Required. */
    gm_status (*event_query)(void *self, gm_event event);

    /* Blocks until it happened. Required. */
    gm_status (*event_synchronize)(void *self, gm_event event);

    /* Milliseconds from `start` to `end`, both timed and both happened. */
    gm_status (*event_elapsed)(void *self, gm_event start, gm_event end, float *ms);

    /* ---- addresses ---- */

    /* What kind of memory an address is and whose. Succeeds for plain host memory
     * (GM_POINTER_UNREGISTERED). */
    gm_status (*pointer_info)(void *self, uintptr_t ptr, gm_pointer_info *info);

    /* ---- peers ---- */

    /* Whether `device` can reach `peer`'s memory directly. Default: it cannot. */
    gm_status (*peer_can_access)(void *self, int device, int peer, bool *can);

    /* Lets `device` reach `peer`'s memory; GM_OK also when it already could. */
    gm_status (*peer_enable)(void *self, int device, int peer);

    /* Whether that is so by peer_enable, which a reset of either device ends; what
     * others enabled it may not know. Creates no context. Default: it is not. */
    gm_status (*peer_enabled)(void *self, int device, int peer, bool *enabled);

    /* ---- managed memory ---- */

    /* Moves a managed range to `device`'s memory, or to the host's with -1, in the
     * order of `stream`. GM_ERR_UNSUPPORTED, here and for advice: the device lacks
     * GM_DEVICE_CONCURRENT_MANAGED. */
    gm_status (*mem_prefetch)(
        void *self, uintptr_t ptr, size_t size, int device, gm_stream stream);

    /* Tells the driver how a managed range will be used; `advice` is a
     * cudaMemoryAdvise value, `device` -1 the host. */
    gm_status (*mem_advise)(
        void *self, uintptr_t ptr, size_t size, int advice, int device);

    /* ---- virtual memory, by page ----
     *
     * All of it belongs to the process and to no context: these slots work in a thread
     * without one and make none, while something is recorded, and after a sticky fault;
     * device_reset leaves handles, mappings and their bytes as they are. None of them
     * waits for the device. */

    /* The unit of vm_create and vm_map sizes and addresses on `device`, in bytes. */
    gm_status (*vm_granularity)(void *self, int device, size_t *bytes);

    /* An address range with nothing behind it; vm_unreserve takes exactly what
     * vm_reserve gave, with nothing mapped in it. */
    gm_status (*vm_reserve)(void *self, size_t size, uintptr_t *out);
    gm_status (*vm_unreserve)(void *self, uintptr_t ptr, size_t size);

    /* Physical memory without an address. vm_release drops the caller's hold: the
     * memory is gone when no mapping is left. Never a handle twice, nor one to vm_map
     * that was released: not every driver survives that. */
    gm_status (*vm_create)(void *self, int device, size_t size, gm_handle *out);
    gm_status (*vm_release)(void *self, gm_handle handle);

    /* Puts a whole handle at an address inside a reserved range; the same handle may
     * be mapped at several. Not reachable before vm_set_access, which is for whole
     * mappings, one or several that follow each other; each device has its own access,
     * and keeps it until the mapping ends. vm_unmap takes away the whole mappings of a
     * range, gaps included. It acts in host time and does not wait for the device: the
     * caller knows that nothing uses the range. */
    gm_status (*vm_map)(void *self, uintptr_t ptr, size_t size, gm_handle handle);
    gm_status (*vm_unmap)(void *self, uintptr_t ptr, size_t size);
    gm_status (*vm_set_access)(void *self, uintptr_t ptr, size_t size, int device);

    /* ---- other processes ---- */

    /* A handle to the whole allocation that `ptr` lies in; opening gives its base, the
     * same one each time, and counts. Closing waits until the device is done with it;
     * the last close unmaps it. Not for the process that exported it. */
    gm_status (*ipc_export)(void *self, uintptr_t ptr, gm_ipc_handle *out);
    gm_status (*ipc_open)(void *self,
                          int device,
                          const gm_ipc_handle *handle,
                          uintptr_t *base);
    gm_status (*ipc_close)(void *self, uintptr_t base);
} gm_backend;

/* GM_OK when the table can be used: version known, every required slot filled. */
GM_MUST_CHECK gm_status gm_backend_validate(const gm_backend *b);

/* One wrapper a slot. Same arguments, same contract. */
void gm_backend_close(const gm_backend *b);
const char *gm_backend_error_name(const gm_backend *b, int code);
const char *gm_backend_error_text(const gm_backend *b, int code);
int gm_backend_last_error(const gm_backend *b);

gm_status gm_backend_device_count(const gm_backend *b, int *count);
gm_status gm_backend_device_get(const gm_backend *b, int *device);
gm_status gm_backend_device_set(const gm_backend *b, int device);
gm_status gm_backend_device_push(const gm_backend *b, int device, gm_device_mark *mark);
void gm_backend_device_pop(const gm_backend *b, const gm_device_mark *mark);
gm_status gm_backend_device_synchronize(const gm_backend *b, int device);
gm_status
gm_backend_device_name(const gm_backend *b, int device, char *text, size_t size);
gm_status gm_backend_versions(const gm_backend *b, int *driver, int *runtime);
gm_status gm_backend_device_support(const gm_backend *b, int device, unsigned *support);
gm_status gm_backend_device_reset(const gm_backend *b, int device);
gm_status
gm_backend_device_incarnation(const gm_backend *b, int device, uint64_t *number);

gm_status gm_backend_mem_info(const gm_backend *b,
                              int device,
                              size_t *free_bytes,
                              size_t *total_bytes);
gm_status gm_backend_mem_largest(
    const gm_backend *b, int device, const gm_range *back, size_t count, size_t *bytes);
gm_status gm_backend_mem_alloc(
    const gm_backend *b, int device, gm_mem_kind kind, size_t size, uintptr_t *out);
gm_status
gm_backend_mem_free(const gm_backend *b, int device, gm_mem_kind kind, uintptr_t ptr);
gm_status gm_backend_mem_alloc_async(
    const gm_backend *b, int device, size_t size, gm_stream stream, uintptr_t *out);
gm_status gm_backend_mem_free_async(const gm_backend *b,
                                    int device,
                                    uintptr_t ptr,
                                    gm_stream stream);
gm_status gm_backend_mem_pool_get(const gm_backend *b,
                                  int device,
                                  bool original,
                                  gm_mem_pool *out);
gm_status gm_backend_mem_pool_set(const gm_backend *b, int device, gm_mem_pool pool);
gm_status gm_backend_mem_pool_trim(const gm_backend *b, gm_mem_pool pool, size_t keep);
gm_status gm_backend_mem_pool_read(const gm_backend *b,
                                   gm_mem_pool pool,
                                   gm_mem_pool_field field,
                                   uint64_t *value);
gm_status gm_backend_mem_pool_write(const gm_backend *b,
                                    gm_mem_pool pool,
                                    gm_mem_pool_field field,
                                    uint64_t value);
gm_status gm_backend_copy(
    const gm_backend *b, uintptr_t dst, uintptr_t src, size_t size, gm_copy_kind kind);
gm_status gm_backend_copy_async(const gm_backend *b,
                                uintptr_t dst,
                                uintptr_t src,
                                size_t size,
                                gm_copy_kind kind,
                                gm_stream stream);
gm_status gm_backend_copy_peer(const gm_backend *b,
                               uintptr_t dst,
                               int dst_device,
                               uintptr_t src,
                               int src_device,
                               size_t size);
gm_status gm_backend_copy_peer_async(const gm_backend *b,
                                     uintptr_t dst,
                                     int dst_device,
                                     uintptr_t src,
                                     int src_device,
                                     size_t size,
                                     gm_stream stream);
gm_status gm_backend_set(const gm_backend *b, uintptr_t dst, int value, size_t size);
gm_status gm_backend_set_async(
    const gm_backend *b, uintptr_t dst, int value, size_t size, gm_stream stream);

gm_status gm_backend_stream_create(
    const gm_backend *b, int device, unsigned flags, int priority, gm_stream *out);
gm_status gm_backend_stream_destroy(const gm_backend *b, gm_stream stream);
gm_status gm_backend_stream_query(const gm_backend *b, gm_stream stream);
gm_status gm_backend_stream_synchronize(const gm_backend *b, gm_stream stream);
gm_status
gm_backend_stream_wait_event(const gm_backend *b, gm_stream stream, gm_event event);
gm_status gm_backend_stream_id(const gm_backend *b, gm_stream stream, uint64_t *id);
gm_status gm_backend_stream_priority_range(const gm_backend *b,
                                           int device,
                                           int *least,
                                           int *most);
gm_status gm_backend_stream_info(
    const gm_backend *b, gm_stream stream, unsigned *flags, int *priority, int *device);

gm_status gm_backend_stream_capture(const gm_backend *b,
                                    gm_stream stream,
                                    gm_capture_state *state,
                                    uint64_t *id);
gm_status
gm_backend_capture_begin(const gm_backend *b, gm_stream stream, gm_capture_mode mode);
gm_status gm_backend_capture_end(const gm_backend *b, gm_stream stream, gm_graph *out);
gm_status
gm_backend_graph_instantiate(const gm_backend *b, gm_graph graph, gm_graph_exec *out);
gm_status
gm_backend_graph_launch(const gm_backend *b, gm_graph_exec exec, gm_stream stream);
gm_status
gm_backend_graph_upload(const gm_backend *b, gm_graph_exec exec, gm_stream stream);
gm_status gm_backend_graph_debug_dot(const gm_backend *b,
                                     gm_graph graph,
                                     const char *path,
                                     unsigned flags);
gm_status gm_backend_graph_destroy(const gm_backend *b, gm_graph graph);
gm_status gm_backend_graph_exec_destroy(const gm_backend *b, gm_graph_exec exec);

gm_status
gm_backend_event_create(const gm_backend *b, int device, unsigned flags, gm_event *out);
gm_status gm_backend_event_destroy(const gm_backend *b, gm_event event);
gm_status
gm_backend_event_record(const gm_backend *b, gm_event event, gm_stream stream);
gm_status gm_backend_event_query(const gm_backend *b, gm_event event);
gm_status gm_backend_event_synchronize(const gm_backend *b, gm_event event);
gm_status
gm_backend_event_elapsed(const gm_backend *b, gm_event start, gm_event end, float *ms);

gm_status
gm_backend_pointer_info(const gm_backend *b, uintptr_t ptr, gm_pointer_info *info);
gm_status
gm_backend_peer_can_access(const gm_backend *b, int device, int peer, bool *can);
gm_status gm_backend_peer_enable(const gm_backend *b, int device, int peer);
gm_status
gm_backend_peer_enabled(const gm_backend *b, int device, int peer, bool *enabled);
gm_status gm_backend_mem_prefetch(
    const gm_backend *b, uintptr_t ptr, size_t size, int device, gm_stream stream);
gm_status gm_backend_mem_advise(
    const gm_backend *b, uintptr_t ptr, size_t size, int advice, int device);

gm_status gm_backend_vm_granularity(const gm_backend *b, int device, size_t *bytes);
gm_status gm_backend_vm_reserve(const gm_backend *b, size_t size, uintptr_t *out);
gm_status gm_backend_vm_unreserve(const gm_backend *b, uintptr_t ptr, size_t size);
gm_status
gm_backend_vm_create(const gm_backend *b, int device, size_t size, gm_handle *out);
gm_status gm_backend_vm_release(const gm_backend *b, gm_handle handle);
gm_status
gm_backend_vm_map(const gm_backend *b, uintptr_t ptr, size_t size, gm_handle handle);
gm_status gm_backend_vm_unmap(const gm_backend *b, uintptr_t ptr, size_t size);
gm_status
gm_backend_vm_set_access(const gm_backend *b, uintptr_t ptr, size_t size, int device);

gm_status gm_backend_ipc_export(const gm_backend *b, uintptr_t ptr, gm_ipc_handle *out);
gm_status gm_backend_ipc_open(const gm_backend *b,
                              int device,
                              const gm_ipc_handle *handle,
                              uintptr_t *base);
gm_status gm_backend_ipc_close(const gm_backend *b, uintptr_t base);

#endif
