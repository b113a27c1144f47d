/* SPDX-License-Identifier: MIT
 *
 * What the binding's pools take segments from: the device's plain memory or plain
 * pinned memory, or a Python callable that returns pointers to such. Memory hooks are
 * told of what is the device's alone.
 *
 * The core calls `take` and `give` with no lock of its own held. `take` always runs
 * detached from the interpreter, because gmpy_pool_malloc lets go of it before the miss
 * path; `give` may run either way, since a destructor or another pool's reclaim may
 * cause it. Both attach as they need.
 *
 * Who keeps what alive: the native pool owns a gmpy_upstream, that owns the callable
 * and, in its list of owners, one memory object a segment. The collector sees them
 * through the pool object, but only while no handle is out, no request under way and no
 * block in use by the device (upstream_life.c): then the pool object alone holds the
 * native pool, and a callable that closes over its own pool can be collected. The
 * counts change only while attached, so they hold still during a collection.
 *
 * The pool's device, if it has one, is made current around a callable and restored
 * after it.
 */
#include "module.h"
#include "hooks.h"
#include "out_of_memory.h"
#include "pinned.h"
#include "pointer.h"

#include "core/gm_process.h" // gm_host_zalloc

/* The memory object behind a segment. */
typedef struct gmpy_owner {
    struct gmpy_owner *prev;
    struct gmpy_owner *next;
    PyObject *mem;
} gmpy_owner;

/* ---- plain device memory ---- */

static gm_status
device_take(void *context, int device, size_t size, gm_piece *out)
{
    gmpy_upstream *up = context;
    gm_upstream plain = gm_upstream_of_backend(up->st->backend);

    return plain.take(plain.context, device, size, out);
}

/* Freeing may wait for the device, so an attached caller lets go of the interpreter. A
 * device that refuses has lost the memory; the pool has nobody to tell, so it is
 * reported as from a destructor. */
static void
give_plain(gmpy_upstream *up, int device, const gm_piece *piece)
{
    PyThreadState *attached = GMPY_IS_ATTACHED() ? PyEval_SaveThread() : NULL;
    gm_status status =
        gm_backend_mem_free(up->st->backend, device, up->kind, piece->base);

    if (attached) {
        PyEval_RestoreThread(attached);
    }
    if (gmpy_release_is_news(up->st, status)) {
        PyGILState_STATE gil = PyGILState_Ensure();

        gmpy_unraisable(up->st, status, "giving a pool's memory back");
        PyGILState_Release(gil);
    }
}

/* What is asked of the device about its memory: only where it is the device's own that
 * the pool takes. */
static gm_status
device_room(void *context, int device, const gm_range *back, size_t count, gm_room *out)
{
    gmpy_upstream *up = context;
    gm_upstream plain = gm_upstream_of_backend(up->st->backend);

    return plain.room(plain.context, device, back, count, out);
}

static void
device_give(void *context, int device, const gm_piece *piece)
{
    give_plain(context, device, piece);
}

/* ---- plain pinned memory ---- */

/* Pinned memory is good for every device, but is taken with the current one, so that no
 * other comes into use. */
static gm_status
pinned_take(void *context, int Py_UNUSED(device), size_t size, gm_piece *out)
{
    gmpy_upstream *up = context;
    const gm_backend *backend = up->st->backend;
    uintptr_t ptr = 0;
    int device = 0;
    gm_status status = gm_backend_device_get(backend, &device);

    if (status == GM_OK) {
        status = gm_backend_mem_alloc(backend, device, up->kind, size, &ptr);
    }
    if (status == GM_OK) {
        *out = (gm_piece){
            .base = ptr,
            .size = size,
            .device = device,
        };
    }
    return status;
}

static void
pinned_give(void *context, int Py_UNUSED(device), const gm_piece *piece)
{
    give_plain(context, piece->device, piece);
}

/* ---- a Python callable ---- */

static void
owner_link(gmpy_upstream *up, gmpy_owner *owner)
{
    GMPY_LOCK(&up->lock);
    owner->next = up->owners;
    if (up->owners) {
        up->owners->prev = owner;
    }
    up->owners = owner;
    GMPY_UNLOCK(&up->lock);
}

static void
owner_unlink(gmpy_upstream *up, gmpy_owner *owner)
{
    GMPY_LOCK(&up->lock);
    if (owner->prev) {
        owner->prev->next = owner->next;
    }
    else {
        up->owners = owner->next;
    }
    if (owner->next) {
        owner->next->prev = owner->prev;
    }
    GMPY_UNLOCK(&up->lock);
}

bool
gmpy_upstream_holds(gmpy_upstream *up, const PyObject *mem)
{
    const gmpy_owner *owner;

    GMPY_LOCK(&up->lock);
    owner = up->owners;
    while (owner && owner->mem != mem) {
        owner = owner->next;
    }
    GMPY_UNLOCK(&up->lock);
    return owner != NULL;
}

/* What is wrong with the pointer a callable returned: GM_OK, GM_ERR_OUT_OF_MEMORY for a
 * null one, GM_ERR_CALLBACK with an exception. */
static gm_status
callable_check(gmpy_upstream *up, int device, size_t size, PyObject *result)
{
    gmpy_pointer *pointer = (gmpy_pointer *)result;
    const gmpy_base_memory *mem;
    PyObject *behind;
    bool pinned = up->kind == GM_MEM_PINNED;
    size_t offset;

    if (pinned ? !gmpy_is_pinned_pointer(up->st, result)
               : !gmpy_is_pointer(up->st, result)) {
        PyErr_Format(PyExc_TypeError,
                     "the pool's allocator must return a %sMemoryPointer, not %s",
                     pinned ? "Pinned" : "", Py_TYPE(result)->tp_name);
        return GM_ERR_CALLBACK;
    }
    if (gmpy_pointer_mem(pointer, &behind) < 0) {
        return GM_ERR_CALLBACK;
    }
    if (!behind) {
        PyErr_Format(PyExc_ValueError,
                     "the pool's allocator returned a %s that was not initialized",
                     Py_TYPE(result)->tp_name);
        return GM_ERR_CALLBACK;
    }
    if (!pointer->ptr) {
        return GM_ERR_OUT_OF_MEMORY;
    }
    mem = (const gmpy_base_memory *)behind;
    offset = pointer->ptr - mem->ptr;
    if (mem->size > UINTPTR_MAX - mem->ptr) {
        PyErr_Format(PyExc_ValueError,
                     "the pool's allocator returned %zu bytes at %s, which is past the "
                     "end of all addresses",
                     mem->size, gmpy_as_hex(mem->ptr).text);
        return GM_ERR_CALLBACK;
    }
    if (offset > mem->size || mem->size - offset < size) {
        PyErr_Format(
            PyExc_ValueError,
            "the pool's allocator returned offset %zd of %zu bytes at %s where "
            "%zu were asked for",
            (Py_ssize_t)offset, mem->size, gmpy_as_hex(mem->ptr).text, size);
        return GM_ERR_CALLBACK;
    }
    if (!pinned && pointer->device_id != device) {
        PyErr_Format(PyExc_ValueError,
                     "the pool's allocator returned memory of device %d to a pool of "
                     "device %d",
                     pointer->device_id, device);
        return GM_ERR_CALLBACK;
    }
    return GM_OK;
}

/* Takes over the memory of a pointer that passed the check. */
static gm_status
callable_own(gmpy_upstream *up, const gmpy_pointer *pointer, gm_piece *out)
{
    const gmpy_base_memory *mem = (const gmpy_base_memory *)pointer->mem;
    gmpy_owner *owner = gm_host_zalloc(sizeof(*owner));

    if (!owner) {
        return GM_ERR_HOST_MEMORY;
    }
    owner->mem = Py_NewRef(pointer->mem);
    gmpy_function_memory_count(up->st, owner->mem, 1);
    owner_link(up, owner);
    *out = (gm_piece){
        .base = pointer->ptr,
        .size = mem->size - (pointer->ptr - mem->ptr),
        .device = mem->device_id,
        .pooled = Py_IS_TYPE(pointer->mem, gmpy_type(up->st->PooledMemoryType)),
        .owner = owner,
    };
    return GM_OK;
}

static gm_status
callable_call(gmpy_upstream *up, int device, size_t size, gm_piece *out)
{
    PyObject *number = PyLong_FromSize_t(size);
    PyObject *result;
    bool of_hook;

    gmpy_rescue_forget(up); // of an earlier attempt
    gmpy_hooks_watch();
    result = number ? PyObject_CallOneArg(up->callable, number) : NULL;
    of_hook = gmpy_hooks_unwatch();
    Py_XDECREF(number);
    if (result) {
        gm_status status = callable_check(up, device, size, result);

        if (status == GM_OK) {
            status = callable_own(up, (const gmpy_pointer *)result, out);
        }
        Py_DECREF(result);
        return status;
    }
    if (!of_hook && gmpy_error_is_shortage(up->st)) {
        gmpy_rescue_note(up);
        return GM_ERR_OUT_OF_MEMORY;
    }
    return GM_ERR_CALLBACK;
}

static gm_status
callable_take(void *context, int device, size_t size, gm_piece *out)
{
    gmpy_upstream *up = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    gm_status status = GM_ERR_CALLBACK;
    gm_device_mark mark;

    if (device == GMPY_DEVICE_HOST) {
        status = callable_call(up, device, size, out);
    }
    else if (gmpy_device_enter(up->st, device, &mark) == 0) {
        status = callable_call(up, device, size, out);
        gmpy_device_leave(up->st, &mark);
    }
    if (status == GM_ERR_CALLBACK) {
        gmpy_rescue_failed(up->st);
    }
    PyGILState_Release(gil);
    return status;
}

static void
callable_give(void *context, int Py_UNUSED(device), const gm_piece *piece)
{
    gmpy_upstream *up = context;
    gmpy_owner *owner = piece->owner;
    PyGILState_STATE gil = PyGILState_Ensure();
    GMPY_TAKE_ERROR(pending);

    owner_unlink(up, owner);
    gmpy_function_memory_count(up->st, owner->mem, -1);
    Py_DECREF(owner->mem);
    gm_host_free(owner);
    GMPY_GIVE_ERROR(pending);
    PyGILState_Release(gil);
}

/* ---- hooks ---- */

/* Takes memory between the callbacks of the memory hooks. */
GM_COLD static gm_status
take_hooked(const gm_upstream *plain, int device, size_t size, gm_piece *out)
{
    gmpy_upstream *up = plain->context;
    gmpy_hook_event event = {.device = device, .mem_size = size};
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *hooks = gmpy_hooks_snapshot(up->st);
    gm_status status = GM_ERR_CALLBACK;

    if (hooks && gmpy_hooks_call(hooks, "alloc_preprocess", &event) == 0) {
        Py_BEGIN_ALLOW_THREADS
        status = plain->take(up, device, size, out);
        Py_END_ALLOW_THREADS
    }
    event.has_ptr = true;
    event.mem_ptr = status == GM_OK ? out->base : 0;
    if (hooks && gmpy_hooks_call(hooks, "alloc_postprocess", &event) < 0) {
        if (status == GM_OK) {
            plain->give(up, device, out);
        }
        status = GM_ERR_CALLBACK;
    }
    Py_XDECREF(hooks);
    if (status == GM_ERR_CALLBACK) {
        gmpy_rescue_failed(up->st);
    }
    PyGILState_Release(gil);
    return status;
}

static gm_upstream
plain_upstream(gmpy_upstream *up)
{
    if (up->callable) {
        return (gm_upstream){
            .context = up, .take = callable_take, .give = callable_give};
    }
    if (up->kind == GM_MEM_PINNED) {
        return (gm_upstream){.context = up, .take = pinned_take, .give = pinned_give};
    }
    return (gm_upstream){.context = up, .take = device_take, .give = device_give};
}

PyObject *
gmpy_upstream_memory_of(const gmpy_upstream *up, const gm_block *block)
{
    const gmpy_owner *owner = block->segment->piece.owner;

    return up->callable ? owner->mem : NULL;
}

/* Where C code's request must not wait for the interpreter, no hook is told of it. */
static gm_status
upstream_take(void *context, int device, size_t size, gm_piece *out)
{
    gmpy_upstream *up = context;
    gm_upstream plain = plain_upstream(up);
    bool alone = gmpy_this_rescue && gmpy_this_rescue->alone;
    bool hooked = up->kind == GM_MEM_DEVICE && !alone && gmpy_is_hooked(up->st);

    return GM_LIKELY(!hooked) ? plain.take(up, device, size, out)
                              : take_hooked(&plain, device, size, out);
}

static void
upstream_give(void *context, int device, const gm_piece *piece)
{
    plain_upstream(context).give(context, device, piece);
}

/* A callable's memory is let go as ever: what is behind it knows of the reset itself,
 * or is the user's. */
static void
upstream_forget(void *context, int device, const gm_piece *piece)
{
    gmpy_upstream *up = context;

    if (up->callable) {
        callable_give(up, device, piece);
    }
}

/* ---- life ---- */

static void
upstream_end(void *context)
{
    gmpy_upstream *up = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    GMPY_TAKE_ERROR(pending);

    Py_XDECREF(up->callable);
    Py_DECREF(up->module);
    gm_host_free(up);
    GMPY_GIVE_ERROR(pending);
    PyGILState_Release(gil);
}

int
gmpy_pool_new(
    gmpy_state *st, PyObject *module, int device, PyObject *callable, gm_pool **out)
{
    gmpy_upstream *up = gm_host_zalloc_aligned(_Alignof(gmpy_upstream), sizeof(*up));
    gm_upstream upstream = {
        .context = up,
        .backend = st->backend,
        .take = upstream_take,
        .give = upstream_give,
        .forget = upstream_forget,
        .room = callable || device == GMPY_DEVICE_HOST ? NULL : device_room,
        .end = upstream_end,
    };
    gm_status status = up ? gm_pool_new(device, upstream, out) : GM_ERR_HOST_MEMORY;

    if (status != GM_OK) {
        gm_host_free(up);
        gmpy_raise(st, status, "making a memory pool");
        return -1;
    }
    up->st = st;
    up->module = Py_NewRef(module);
    up->callable = Py_XNewRef(callable);
    up->kind = device == GMPY_DEVICE_HOST ? GM_MEM_PINNED : GM_MEM_DEVICE;
    gm_pool_set_user(*out, up);
    return 0;
}

/* ---- the pool object ---- */

void
gmpy_upstream_set_object(gm_pool *pool, PyObject *object)
{
    gmpy_upstream *up = gmpy_upstream_of(pool);

    GMPY_LOCK(&up->lock);
    up->object = object;
    GMPY_UNLOCK(&up->lock);
}

/* A weak reference to something that is gone. */
static PyObject *
dead_reference(void)
{
    PyObject *passing = PySet_New(NULL);
    PyObject *reference = passing ? PyWeakref_NewRef(passing, NULL) : NULL;

    Py_XDECREF(passing);
    return reference;
}

PyObject *
gmpy_weak_reference(PyObject *object)
{
    return object ? PyWeakref_NewRef(object, NULL) : dead_reference();
}

PyObject *
gmpy_weak_reference_get(PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object = NULL;

    (void)PyWeakref_GetRef(reference, &object); // it is one, so it cannot fail
    return object;
#else
    PyObject *object = PyWeakref_GET_OBJECT(reference);

    return object == Py_None ? NULL : Py_NewRef(object);
#endif
}

PyObject *
gmpy_upstream_take_reference(gm_pool *pool)
{
    gmpy_upstream *up = pool ? gmpy_upstream_of(pool) : NULL;
    PyObject *reference;

    if (up) {
        GMPY_LOCK(&up->lock); // so that the object cannot go meanwhile
        reference = gmpy_weak_reference(up->object);
        GMPY_UNLOCK(&up->lock);
    }
    else {
        reference = gmpy_weak_reference(NULL);
    }
    if (pool) {
        gm_pool_unref(pool);
    }
    return reference;
}

int
gmpy_upstream_traverse(gmpy_upstream *up, visitproc visit, void *arg)
{
    if (gmpy_tally_sum(&up->handles) == 0 && up->notes == up->settled) {
        Py_VISIT(up->callable);
        for (const gmpy_owner *owner = up->owners; owner; owner = owner->next) {
            Py_VISIT(owner->mem);
        }
    }
    return 0;
}
