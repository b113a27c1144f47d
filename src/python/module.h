/* SPDX-License-Identifier: MIT
 *
 * The binding's shared declarations: the module state, the object structs that more
 * than one file needs, and the helpers of each file under its name.
 *
 * All mutable state lives in the module state, but for the per-thread settings
 * (thread.c) and what belongs to the process (core/gm_process.h).
 *
 * References: MemoryPointer -> BaseMemory (Python reference); PooledMemory -> block ->
 * native pool (the block keeps it); SingleDeviceMemoryPool -> native pool (its owner,
 * who closes it). Nothing points back with a strong reference.
 */
#ifndef GMPY_MODULE_H
#define GMPY_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "compat.h"
#include "core/gm_backend.h"
#include "core/gm_pool.h"
#include "exports.h"
#include "reuse.h"
#include "tally.h"

/* Every object the module state owns: name, then what it is. One list for the fields,
 * the visit and the clear. */
#define GMPY_STATE_OBJECTS(X)                                                          \
    X(BaseMemoryType)                                                                  \
    X(MemoryType)                                                                      \
    X(ManagedMemoryType)                                                               \
    X(UnownedMemoryType)                                                               \
    X(SystemMemoryType)                                                                \
    X(MemoryAsyncType)                                                                 \
    X(IPCMemoryType)                                                                   \
    X(MemoryAsyncPoolType)                                                             \
    X(PinnedMemoryType)                                                                \
    X(PooledPinnedMemoryType)                                                          \
    X(PinnedMemoryPointerType)                                                         \
    X(PinnedMemoryPoolType)                                                            \
    X(CFunctionAllocatorMemoryType)                                                    \
    X(PythonFunctionAllocatorMemoryType)                                               \
    X(PooledMemoryType)                                                                \
    X(MemoryPointerType)                                                               \
    X(BasePoolType)                                                                    \
    X(SingleDeviceMemoryPoolType)                                                      \
    X(MemoryPoolType)                                                                  \
    X(DeviceType)                                                                      \
    X(BaseStreamType)                                                                  \
    X(StreamType)                                                                      \
    X(ExternalStreamType)                                                              \
    X(EventType)                                                                       \
    X(GraphType)                                                                       \
    X(ThreadSettingsType)                                                              \
    X(GuardType)                                                                       \
    X(OutletType)                                                                      \
    X(gc_collect) /* the function gc.collect */                                        \
    X(gc_get_count)                                                                    \
    X(OutOfMemoryError)                                                                \
    X(CUDARuntimeError)                                                                \
    X(spare_error) /* an OutOfMemoryError for when there is no memory for one */       \
    X(null_stream)                                                                     \
    X(ptds_stream)                                                                     \
    X(process_hooks)     /* memory hooks of the process by name, a dictionary */       \
    X(raw_malloc)        /* the function gpumem.malloc */                              \
    X(allocator)         /* the global allocator, a callable */                        \
    X(default_pool)      /* a MemoryPool, NULL until it is asked for */                \
    X(raw_malloc_pinned) /* the function gpumem.malloc_pinned */                       \
    X(pinned_allocator)                                                                \
    X(default_pinned_pool)

typedef struct gmpy_watched gmpy_watched;
typedef struct gmpy_guard gmpy_guard;
typedef struct gmpy_parked gmpy_parked;

typedef struct gmpy_state {
#define GMPY_STATE_FIELD(name) PyObject *name;
    GMPY_STATE_OBJECTS(GMPY_STATE_FIELD)
#undef GMPY_STATE_FIELD
    const gm_backend *backend; // NULL until first use
    gm_backend *sim;           // NULL unless the simulated device is in use
    gm_backend *fault;         // the wrapper around it that injects failures
    gm_status refused;   // why the device did not take back what it was given last
    int device_count;    // 0 until first use
    uint64_t *lives;     // the number of each device's life as seen last
    bool settings_used;  // some thread has settings of its own (thread.c)
    bool process_hooked; // process_hooks is not empty
    bool async_pools;    // a MemoryAsyncPool was made
    int hook_holders;    // threads with memory hooks, and the process if it has
#ifdef Py_GIL_DISABLED
    unsigned threads; // how many were given a number (thread.c)
#else
    gmpy_freelist pointers; // MemoryPointer objects for reuse
    gmpy_freelist handles;  // PooledMemory objects for reuse
#endif
    gmpy_watched *watched; // host memory that the device may still use (watch.c)
    gmpy_watched *watched_last;
    int watched_count;
    gmpy_mutex watched_lock;   // guards the list of the watched
    gmpy_exports exports;      // pooled memory that somebody else sees (exports.c)
    gmpy_parked *parked;       // what waits for recordings to end (parked.c)
    gmpy_mutex parked_lock;    // guards the list of the parked
    gmpy_guard *rescued;       // guards with an object to let go of (guard.c)
    uint64_t rounds;           // collections that guard.c was to end garbage in
    bool noted;                // some pool has noted blocks (upstream_life.c)
    bool announced;            // the interpreter was asked to come by there
    bool settling;             // some thread is there
    bool owed;                 // cycles let go of there wait for a collection
    int passes;                // pending calls that do nothing
    int patience;              // how many there were of them last
    gmpy_mutex allocator_lock; // guards the allocators and the default pools
    gmpy_mutex opening;        // guards the choice of the backend
} gmpy_state;

extern PyModuleDef gmpy_module_def;

/* The state behind an instance of one of our types or of a subclass. */
gmpy_state *gmpy_state_of(PyObject *self);

static inline gmpy_state *
gmpy_state_of_module(PyObject *module)
{
    return (gmpy_state *)PyModule_GetState(module);
}

static inline PyTypeObject *
gmpy_type(PyObject *type)
{
    return (PyTypeObject *)type;
}

/* The text of an address. A struct, so that a call's argument can hold it:
 * PyUnicode_FromFormat knows no hexadecimal size_t before 3.12. */
typedef struct gmpy_hex {
    char text[sizeof "0x0123456789abcdef"];
} gmpy_hex;

static inline gmpy_hex
gmpy_as_hex(uintptr_t address)
{
    gmpy_hex hex;

    PyOS_snprintf(hex.text, sizeof hex.text, "0x%zx", (size_t)address);
    return hex;
}

/* ---- errors.c ---- */

/* Both exception types. */
int gmpy_errors_init(PyObject *module, gmpy_state *st);

/* Raises for a failed status; `what` names the operation. Always returns NULL. A status
 * of GM_ERR_CALLBACK means that the exception is set already. */
PyObject *gmpy_raise(gmpy_state *st, gm_status status, const char *what);

/* True when the pending exception says that memory ran out. */
bool gmpy_error_is_shortage(gmpy_state *st);

/* Reports a failure inside a destructor: to sys.unraisablehook, never raised. */
void gmpy_unraisable(gmpy_state *st, gm_status status, const char *what);

/* Whether the failure to give something back to the device is to be reported: not where
 * it refused the last thing for the same reason, as a device in a fault does with all
 * that there is. Needs no interpreter. */
bool gmpy_release_is_news(gmpy_state *st, gm_status status);

/* Reports it, then, as from a destructor. GM_OK: it was given back. */
void gmpy_report_release(gmpy_state *st, gm_status status, const char *what);

/* Drops *place, if it is not NULL, without touching the pending exception. */
void gmpy_drop(PyObject **place);

/* ---- args.c ---- */

/* Names of a function's parameters. The first `required` must be given; those from
 * `positional` on by keyword only. */
typedef struct gmpy_signature {
    const char *function;
    int count;
    int required;
    int positional;
    const char *names[7];
} gmpy_signature;

/* Spreads a vectorcall's arguments over `out` (signature->count slots, NULL where not
 * given). 0, or -1 with TypeError. Borrowed references. */
int gmpy_unpack(const gmpy_signature *signature,
                PyObject *const *args,
                Py_ssize_t nargs,
                PyObject *kwnames,
                PyObject **out);

/* The same for `function(size)`. 0, or -1 with TypeError or OverflowError. */
int gmpy_unpack_size(const char *function,
                     PyObject *const *args,
                     Py_ssize_t nargs,
                     PyObject *kwnames,
                     size_t *out);

/* gmpy_unpack for tp_init. */
int gmpy_unpack_init(const gmpy_signature *signature,
                     PyObject *args,
                     PyObject *kwargs,
                     PyObject **out);

/* Integers by __index__: floats are a TypeError, what does not fit an OverflowError
 * that names the parameter and the value. 0 or -1. */
int gmpy_as_size(PyObject *arg, const char *name, size_t *out);
int gmpy_as_offset(PyObject *arg, const char *name, ptrdiff_t *out);
int gmpy_as_address(PyObject *arg, const char *name, uintptr_t *out);
int gmpy_as_int(PyObject *arg, const char *name, int *out);

/* A number for an error's text, also one that is too long to be written out: new
 * reference. */
PyObject *gmpy_number_text(PyObject *number);

/* Raises `error`: `name` must be from `range`, not `number`. */
void gmpy_raise_range(PyObject *error,
                      PyObject *number,
                      const char *name,
                      const char *range);

/* The truth of a flag; NULL, not given, is false. 0 or -1. */
static inline int
gmpy_as_flag(PyObject *arg, bool *out)
{
    int truth = arg ? PyObject_IsTrue(arg) : 0;

    *out = truth > 0;
    return truth < 0 ? -1 : 0;
}

/* ---- size_text.c ---- */

/* What gmpy_parse_size accepts, for messages. */
#define GMPY_SIZE_FORMS                                                                \
    "a number of bytes, or a number followed by KiB, MiB, GiB, TiB, KB, MB, GB or TB"

/* The bytes that `length` characters of `text` mean. GM_ERR_INVALID_VALUE: it has none
 * of those forms. GM_ERR_TOO_LARGE: more than PY_SSIZE_T_MAX. */
GM_MUST_CHECK gm_status gmpy_parse_size(const char *text, size_t length, size_t *out);

int gmpy_size_text_init(PyObject *module, gmpy_state *st);

/* ---- runtime.c ---- */

/* The backend, chosen and opened at first use. NULL with an exception. */
const gm_backend *gmpy_open_backend(gmpy_state *st);

static inline const gm_backend *
gmpy_backend(gmpy_state *st)
{
    const gm_backend *backend = __atomic_load_n(&st->backend, __ATOMIC_ACQUIRE);

    return GM_LIKELY(backend != NULL) ? backend : gmpy_open_backend(st);
}

/* The calling thread's current device. -1 with an exception. */
int gmpy_current_device_slow(gmpy_state *st);

static inline int
gmpy_current_device(gmpy_state *st)
{
    return GM_LIKELY(st->device_count == 1) ? 0 : gmpy_current_device_slow(st);
}

/* A device number from an int or Device; ValueError when there is none such. */
int gmpy_as_device(gmpy_state *st, PyObject *arg, int *out);

/* The same, where NULL and None are the current device. */
int gmpy_as_device_or_current(gmpy_state *st, PyObject *arg, int *out);

extern PyMethodDef gmpy_runtime_methods[];

/* ---- device_life.c ---- */

/* The number of the life that `device` is in, asked of it: 0 where nothing exists
 * there, or the backend has no such numbers. For what is made, noted with it. A reset
 * by somebody else that shows then is told to all pools, so the caller is detached from
 * the interpreter. */
uint64_t gmpy_device_life(gmpy_state *st, int device);

/* Whether the life of that number has ended, asked of the device in the same way: then
 * what was made in it is gone and must not be given back. */
bool gmpy_device_has_ended(gmpy_state *st, int device, uint64_t life);

/* The same by what is known already: no call. */
static inline bool
gmpy_device_has_ended_known(const gmpy_state *st, int device, uint64_t life)
{
    return life != 0 && __atomic_load_n(&st->lives[device], __ATOMIC_RELAXED) != life;
}

/* 0 where `mem`, a memory object or NULL, has memory as far as is known, else -1:
 * ValueError where it was given back or there never was any, RuntimeError where a reset
 * ended it. Before each use of its address. No call. */
int gmpy_memory_check(gmpy_state *st, PyObject *mem);

/* Resets `device` and tells all pools. Detached from the interpreter. */
gm_status gmpy_device_reset(gmpy_state *st, int device);

/* ---- thread.c ---- */

/* What is current for the calling thread on one device. */
typedef struct gmpy_current {
    gm_stream handle;
    gm_stream_key key;
    PyObject *stream; // a BaseStream; NULL: the default stream
} gmpy_current;

/* The calling thread's settings; all NULL until the thread changes one. Owned by an
 * object in the thread's state dictionary. */
typedef struct gmpy_thread {
    gmpy_current *currents; // one a device
    PyObject *allocator;    // the scoped allocator, borrowed
    PyObject *hooks;        // dictionary of memory hooks, borrowed; NULL for none
    PyObject *settings;     // the object that owns all this, borrowed
    uint16_t client;        // on whose account requests are (core/gm_client.h)
    uint64_t round;         // of the collection that guard.c runs here; 0: none
    bool settling;          // is in guard.c's row of them
    bool collecting;        // has called the collector (collect.c)
    unsigned watches;       // base allocators under way (gmpy_hooks_watch)
    PyObject *hook_error;   // what a hook raised last below one of them
#ifdef Py_GIL_DISABLED
    gmpy_freelist *pointers; // MemoryPointer objects for reuse, NULL: no settings
    gmpy_freelist *handles;  // PooledMemory objects for reuse, NULL: the same
    unsigned number;         // of the thread, 0: it has none yet
#endif
} gmpy_thread;

extern _Thread_local gmpy_thread gmpy_this_thread;

int gmpy_thread_init(PyObject *module, gmpy_state *st);

/* Where the calling thread finds objects for reuse; may be NULL. */
#ifdef Py_GIL_DISABLED
#define GMPY_REUSE(st, list) ((void)(st), gmpy_this_thread.list)
#else
#define GMPY_REUSE(st, list) (&(st)->list)
#endif

/* A number that is the calling thread's own, or 0 where threads take turns. */
static inline unsigned
gmpy_thread_number(gmpy_state *st)
{
#ifdef Py_GIL_DISABLED
    if (GM_UNLIKELY(!gmpy_this_thread.number)) {
        gmpy_this_thread.number =
            1 + __atomic_fetch_add(&st->threads, 1, __ATOMIC_RELAXED);
    }
    return gmpy_this_thread.number;
#else
    (void)st;
    return 0;
#endif
}

/* The calling thread's settings; NULL where no thread ever had any, which is so in most
 * programs and spares them looking. */
static inline const gmpy_thread *
gmpy_settings(const gmpy_state *st)
{
    return __atomic_load_n(&st->settings_used, __ATOMIC_RELAXED) ? &gmpy_this_thread
                                                                 : NULL;
}

/* A request of the calling thread, for its current stream on `device` (-1: the host)
 * and on account of its client. */
static inline gm_request
gmpy_request(const gmpy_state *st, int device, size_t size)
{
    const gmpy_thread *thread = gmpy_settings(st);
    gm_request request = {.size = size, .key = GM_STREAM_KEY_DEFAULT};

    if (thread) {
        request.client = thread->client;
        if (thread->currents && device >= 0) {
            request.key = thread->currents[device].key;
        }
    }
    return request;
}

/* The stream object current on `device`: new reference. */
PyObject *gmpy_current_stream(gmpy_state *st, int device);

/* Makes `stream` (a BaseStream) current on `device`. 0 or -1. */
int gmpy_set_current_stream(gmpy_state *st, int device, PyObject *stream);

/* push remembers what is current on `device` and makes `stream` current, pop goes back;
 * for pops in another order see thread.c. 0 or -1; pop: RuntimeError where this thread
 * did not push it. */
int gmpy_push_stream(gmpy_state *st, int device, PyObject *stream);
int gmpy_pop_stream(PyObject *stream);

/* The same with the current device, where `entered` is the Device of the `with`. */
int gmpy_push_device(gmpy_state *st, int device, PyObject *entered);
int gmpy_pop_device(gmpy_state *st, PyObject *entered);

/* The same with the calling thread's scoped allocator, a callable; `entered` is whose
 * scope it is. */
int gmpy_push_allocator(gmpy_state *st, PyObject *allocator, PyObject *entered);
int gmpy_pop_allocator(PyObject *entered);

/* The same with the client on whose account the calling thread's requests are. */
int gmpy_push_client(gmpy_state *st, uint16_t client, PyObject *entered);
int gmpy_pop_client(PyObject *entered);

/* Adds a memory hook to the calling thread's, or removes one. KeyError where there is
 * one of that name, or none. 0 or -1. */
int gmpy_add_hook(gmpy_state *st, PyObject *name, PyObject *hook);
int gmpy_remove_hook(PyObject *name);

/* ---- memory.c ---- */

typedef struct gmpy_base_memory {
    PyObject_HEAD
    uintptr_t ptr;
    size_t size;
    int device_id;
    uint32_t generation; // PooledMemory's; here because there is room
} gmpy_base_memory;

/* Where it is; 0 once it was given back, which another thread may do at any time. */
static inline uintptr_t
gmpy_memory_ptr(const gmpy_base_memory *mem)
{
    return __atomic_load_n(&mem->ptr, __ATOMIC_RELAXED);
}

int gmpy_memory_init(PyObject *module, gmpy_state *st);

/* Memory taken from the device as it is: Memory, ManagedMemory, PinnedMemory. What is
 * freed is what was taken, whatever Python wrote into the base since, and only while
 * ptr is not 0. */
typedef struct gmpy_owned_memory {
    gmpy_base_memory base;
    gmpy_state *st;  // NULL until initialized
    uintptr_t owned; // what the device gave; 0 for none
    uint64_t life;   // of the device, when it did
    int owned_device;
    gm_mem_kind kind;
} gmpy_owned_memory;

/* Their tp_init and tp_dealloc. */
int gmpy_owned_memory_init(PyObject *self,
                           const gmpy_signature *signature,
                           gm_mem_kind kind,
                           PyObject *args,
                           PyObject *kwargs);
void gmpy_owned_memory_dealloc(PyObject *self);

/* Takes the memory; for a tp_init that has read its arguments. `name` is the type's.
 * 0 or -1. */
int
gmpy_owned_memory_open(PyObject *self, const char *name, gm_mem_kind kind, size_t size);

/* Memory of that kind and of the current device, by the type for it: new reference. */
PyObject *gmpy_owned_memory_new(gmpy_state *st, gm_mem_kind kind, size_t size);

extern PyMethodDef gmpy_memory_methods[];

/* ---- managed_memory.c, unowned_memory.c ---- */

int gmpy_managed_memory_init(PyObject *module, gmpy_state *st);
extern PyMethodDef gmpy_managed_memory_methods[];
int gmpy_unowned_memory_init(PyObject *module, gmpy_state *st);

/* The memory, never freed here, which keeps `owner`: new reference. */
PyObject *gmpy_unowned_memory_new(
    gmpy_state *st, uintptr_t ptr, size_t size, PyObject *owner, int device);

/* The device that an address, not 0, is of. 0, or -1: ValueError for plain host memory.
 */
int gmpy_device_of_address(gmpy_state *st, uintptr_t ptr, int *out);

/* ---- function_memory.c, function_allocator.c ---- */

int gmpy_function_memory_init(PyObject *module, gmpy_state *st);
int gmpy_function_allocator_init(PyObject *module, gmpy_state *st);

/* The address of a C function: not 0. 0 or -1. */
int gmpy_as_function_address(PyObject *arg, const char *name, uintptr_t *out);

/* 0, or -1 with TypeError. */
int gmpy_check_callable(PyObject *arg, const char *name);

/* Notes that one segment more, or less, lies in `mem`, any memory. */
void gmpy_function_memory_count(gmpy_state *st, PyObject *mem, Py_ssize_t change);

/* ---- pooled_memory.c ---- */

typedef struct gmpy_pooled_memory {
    gmpy_base_memory base;
    gm_block *block; // NULL once given back
    gm_pool *pool;   // valid while block is not NULL
    gmpy_state *st;
} gmpy_pooled_memory;

int gmpy_pooled_memory_init(PyObject *module, gmpy_state *st);

/* Whether the handle's block is its own still: not so once it was given back, be it by
 * its address, and where its device was reset. */
bool gmpy_pooled_memory_is_there(PyObject *mem);

/* Somebody else sees `mem`, any memory of which the caller has a reference, until the
 * same ends: free() by hand is put off. 0, or -1 with MemoryError or with ValueError
 * where it was given back. */
int gmpy_export_begin(gmpy_state *st, PyObject *mem);
void gmpy_export_end(gmpy_state *st, PyObject *mem);

/* The memory that `mem` is made of, a new reference: itself, or for a PooledMemory what
 * its pool took it from. NULL for plain device memory of a pool, and once it is gone.
 */
PyObject *gmpy_memory_under(gmpy_state *st, PyObject *mem);

/* ---- memory_pointer.c ---- */

/* A MemoryPointer or, with the same fields, a PinnedMemoryPointer. One from a pool is
 * its block's handle itself, until gmpy_pointer_mem is asked for a PooledMemory. */
typedef struct gmpy_pointer {
    PyObject_HEAD
    uintptr_t ptr;
    PyObject *mem; // a BaseMemory; NULL: the block's handle is the pointer, or there is
                   // none; of a PinnedMemoryPointer a PinnedMemory
    gmpy_state *st;
    int device_id;
    uint32_t generation; // of the block when it was handed out
    gm_block *block;     // the pointer's own until there is a `mem`; NULL for none
    gm_pool *pool;       // of the block
} gmpy_pointer;

int gmpy_pointer_init(PyObject *module, gmpy_state *st);

/* A MemoryPointer into `mem`, whose reference it takes over also on failure. */
PyObject *gmpy_pointer_new(gmpy_state *st, PyObject *mem, uintptr_t ptr, int device_id);

/* The same to the start of `mem`, which may be NULL with an exception. */
PyObject *gmpy_pointer_to_new(gmpy_state *st, PyObject *mem);

static inline bool
gmpy_is_pointer(gmpy_state *st, PyObject *op)
{
    return PyObject_TypeCheck(op, gmpy_type(st->MemoryPointerType));
}

/* ---- stream_use.c; the rest of it is in stream.h ---- */

/* MemoryPointer.record_stream. */
PyObject *gmpy_record_stream(PyObject *op,
                             PyObject *const *args,
                             Py_ssize_t nargs,
                             PyObject *kwnames);
extern const char gmpy_record_stream_doc[];

/* After the caller waited for the device in some way: lets go of what waited for it
 * too. May run Python code; changes no pending exception. */
void gmpy_waited(gmpy_state *st);

/* ---- upstream.c, upstream_life.c ---- */

/* What stands where a device's number would. */
enum {
    GMPY_DEVICE_HOST = -1, // pinned memory is the host's
    GMPY_DEVICE_UNSET = -2,
};

/* What the native pools of the binding carry as their user word, and the context of
 * their upstream. Lives as long as the native pool. */
typedef struct gmpy_upstream gmpy_upstream;
struct gmpy_upstream {
    gmpy_state *st;
    PyObject *module;          // keeps st alive
    PyObject *callable;        // NULL: plain memory of that kind
    gm_mem_kind kind;          // GM_MEM_DEVICE or GM_MEM_PINNED
    gmpy_mutex lock;           // guards the two below, where threads run at once
    struct gmpy_owner *owners; // what the callable's segments keep alive
    PyObject *object;          // the SingleDeviceMemoryPool, borrowed; NULL when gone
    gmpy_tally handles;        // PooledMemory objects out and requests under way
    uint64_t notes;   // blocks that the device may use longer than their handle is out
    uint64_t settled; // how many of them there had been when none was left
};

/* A native pool on `device` over `callable`, or over its plain memory with NULL; on
 * GMPY_DEVICE_HOST a pool of pinned memory. `module` is kept alive. 0, or -1 with an
 * exception. */
int gmpy_pool_new(
    gmpy_state *st, PyObject *module, int device, PyObject *callable, gm_pool **out);

/* The memory object that a live block's segment came from, borrowed; NULL for plain
 * memory. A segment keeps the same one, so no lock is needed. */
PyObject *gmpy_upstream_memory_of(const gmpy_upstream *up, const gm_block *block);

static inline gmpy_upstream *
gmpy_upstream_of(gm_pool *pool)
{
    return (gmpy_upstream *)gm_pool_user(pool);
}

/* One handle more or less, before the pool could go. Counted while attached to the
 * interpreter, so that the collector sees a steady number. */
static inline void
gmpy_upstream_count(gm_pool *pool, Py_ssize_t change)
{
    gmpy_upstream *up = gmpy_upstream_of(pool);

    gmpy_tally_add(&up->handles, gmpy_thread_number(up->st), change);
}

/* Notes that a block may be in use longer than its handle is out, while that is out.
 * Needs no interpreter. */
void gmpy_upstream_note(gmpy_upstream *up);

/* Finds out which pools have no such block left. Runs other threads. */
void gmpy_upstreams_look_now(gmpy_state *st);

static inline void
gmpy_upstreams_look(gmpy_state *st)
{
    if (GM_UNLIKELY(__atomic_load_n(&st->noted, __ATOMIC_RELAXED))) {
        gmpy_upstreams_look_now(st);
    }
}

/* Whether one of its segments lies in `mem`. */
bool gmpy_upstream_holds(gmpy_upstream *up, const PyObject *mem);

/* Has the pools that hold parts of `mem` give back what they can. Runs Python code. */
void gmpy_upstreams_give_back(PyObject *mem);

/* Notes the pool object; NULL in its tp_dealloc, before its weak references end. */
void gmpy_upstream_set_object(gm_pool *pool, PyObject *object);

/* A weak reference to `object`, for NULL one to something that is gone: new reference.
 */
PyObject *gmpy_weak_reference(PyObject *object);

/* A weak reference to the pool object, dead where it is gone or `pool` is NULL: new
 * reference. The caller's reference of `pool` is let go of. */
PyObject *gmpy_upstream_take_reference(gm_pool *pool);

/* What a weak reference refers to: new reference, NULL once it is gone. */
PyObject *gmpy_weak_reference_get(PyObject *reference);

/* Visits what the callable's cached segments keep alive and the callable itself; for a
 * pool object's traverse, when nothing else holds them. */
int gmpy_upstream_traverse(gmpy_upstream *up, visitproc visit, void *arg);

/* ---- allocator.c ---- */

extern PyMethodDef gmpy_allocator_methods[];

/* Memory of the calling thread's current allocator: a MemoryPointer, new reference. */
PyObject *gmpy_alloc(gmpy_state *st, PyObject *size);

/* Reads or changes one of the state's global allocators: a new reference, and a
 * borrowed callable. */
PyObject *gmpy_get_allocator(gmpy_state *st, PyObject **place);
void gmpy_set_allocator(gmpy_state *st, PyObject **place, PyObject *allocator);

/* An `allocator` argument: borrowed; NULL, not given, and None are `raw`. NULL with
 * TypeError. */
PyObject *gmpy_as_allocator(PyObject *arg, PyObject *raw);

/* 0; or -1 with ValueError where the calling thread is inside using_allocator, so that
 * the function `name` must not set the global allocator. */
int gmpy_check_no_scope(const char *name);

/* ---- device.c ---- */

int gmpy_device_init(PyObject *module, gmpy_state *st);
PyObject *gmpy_device_new(gmpy_state *st, int device);

/* Makes `device`, which exists, current for the calling thread. 0 or -1. */
int gmpy_use_device(gmpy_state *st, int device);

/* Makes `device` current around code of the user's; leaving puts back what was,
 * whatever that code left current. -1 with an exception, and leaving does nothing. */
int gmpy_device_enter(gmpy_state *st, int device, gm_device_mark *mark);
void gmpy_device_leave(gmpy_state *st, const gm_device_mark *mark);
extern PyMethodDef gmpy_device_methods[];

/* ---- stream.c and event.c; the rest of them is in stream.h ---- */

int gmpy_stream_init(PyObject *module, gmpy_state *st);
int gmpy_event_init(PyObject *module, gmpy_state *st);
int gmpy_graph_init(PyObject *module, gmpy_state *st);
extern PyMethodDef gmpy_stream_methods[];
extern PyMethodDef gmpy_event_time_methods[];

#endif
