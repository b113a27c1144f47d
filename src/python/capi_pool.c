/* SPDX-License-Identifier: MIT
 *
 * Pools as C code holds them: getting one, finding the native pool of a device, and
 * what can be asked of it.
 *
 * A holder has a reference to the Python object, so that pool and callbacks stay as
 * they are whoever else lets go; and a place a device for the native pool behind it,
 * filled at first use. From then on requests need neither the interpreter nor a lock to
 * find it. Where the holder must not wait for the interpreter later, all places are
 * filled at once.
 *
 * Threading: any thread. What needs the interpreter attaches, and keeps an exception
 * that the caller has pending.
 */
#include "capi.h"
#include "out_of_memory.h"
#include "pinned.h"
#include "pools.h"

#include "core/gm_process.h" // gm_host_zalloc, gm_process_is_frozen

#include <string.h> // memcpy, strlen

/* ---- the native pools ---- */

/* Finds, or with `make` makes, the native pool of an existing device; *out is NULL
 * where there is none. Attached. A gpumem_status. */
static int
find_attached(gpumem_pool *pool, int device, bool make, gm_pool **out)
{
    gmpy_any_pool *any = (gmpy_any_pool *)pool->object;
    PyObject *number = PyLong_FromLong(device);
    int found = number ? any->find(any, number, make, out, &device) : -1;

    Py_XDECREF(number);
    if (found > 0) {
        atomic_store(&pool->natives[device], *out);
    }
    else {
        *out = NULL;
    }
    return found < 0 ? gmpy_c_fail_exception(any->st) : GPUMEM_OK;
}

static int
find_slow(gpumem_pool *pool, int device, bool make, gm_pool **out)
{
    PyGILState_STATE gil;
    int status;

    if (pool->flags & GPUMEM_NO_PYTHON) {
        *out = NULL; // it would be there
        return make ? gmpy_c_fail_text(GPUMEM_ERROR_INVALID_DEVICE,
                                       "the pool has no memory of device %d", device)
                    : GPUMEM_OK;
    }
    gil = PyGILState_Ensure();
    {
        GMPY_TAKE_ERROR(pending);
        status = find_attached(pool, device, make, out);
        GMPY_GIVE_ERROR(pending);
    }
    PyGILState_Release(gil);
    return status;
}

int
gmpy_c_native(gpumem_pool *pool, int device, bool make, gm_pool **out, int *number)
{
    if (device == GPUMEM_CURRENT_DEVICE) {
        gm_status status = gm_backend_device_get(pool->api->st->backend, &device);

        if (status != GM_OK) {
            return gmpy_c_fail(pool->api, status, "asking for the current device");
        }
    }
    if (device < 0 || device >= pool->device_count) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INVALID_DEVICE,
                                "device must be from 0 to %d, not %d",
                                pool->device_count - 1, device);
    }
    *number = device;
    *out = atomic_load_explicit(&pool->natives[device], memory_order_acquire);
    return GM_LIKELY(*out != NULL) ? GPUMEM_OK : find_slow(pool, device, make, out);
}

/* All that there can be. A gpumem_status. */
static int
find_all(gpumem_pool *pool)
{
    gmpy_state *st = pool->api->st;
    bool single =
        PyObject_TypeCheck(pool->object, gmpy_type(st->SingleDeviceMemoryPoolType));
    gm_pool *native;

    if (single) {
        return find_attached(pool, ((gmpy_device_pool *)pool->object)->device, true,
                             &native);
    }
    for (int device = 0; device < pool->device_count; device++) {
        int status = find_attached(pool, device, true, &native);

        if (status != GPUMEM_OK) {
            return status;
        }
    }
    return GPUMEM_OK;
}

/* ---- getting and letting go ---- */

static int
set_client(gpumem_pool *pool, const char *name)
{
    gm_status status;

    if (!name) {
        return GPUMEM_OK;
    }
    status = gm_clients_find(&pool->api->clients, name, strlen(name), &pool->client);
    if (status == GM_ERR_INVALID_VALUE) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INVALID_VALUE,
                                "a client's name has 1 to %d bytes, not %zu",
                                GM_CLIENT_NAME_MAX, strlen(name));
    }
    if (status != GM_OK) {
        return gmpy_c_fail(pool->api, status, "naming a client");
    }
    pool->named = true;
    return GPUMEM_OK;
}

/* A holder of `object`, whose reference it takes over also on failure. Attached. */
static int
hold(gmpy_c_api *api,
     PyObject *object,
     const gpumem_options *options,
     gpumem_pool **out)
{
    gmpy_state *st = api->st;
    int count = object && gmpy_backend(st) ? st->device_count : 0;
    gpumem_options given = {0};
    gpumem_pool *pool = NULL;
    int status;

    if (count == 0) {
        Py_XDECREF(object);
        return gmpy_c_fail_exception(st);
    }
    if (options) {
        memcpy(&given, options,
               Py_MIN(options->struct_size, sizeof given)); // a shorter one is older
    }
    pool = gm_host_zalloc(sizeof *pool + (size_t)count * sizeof *pool->natives);
    if (!pool) {
        Py_DECREF(object);
        return gmpy_c_fail(api, GM_ERR_HOST_MEMORY, "holding a pool");
    }
    atomic_init(&pool->refs, 1);
    pool->api = api;
    pool->object = object;
    pool->flags = given.flags;
    pool->device_count = count;
    status = set_client(pool, given.client);
    if (status == GPUMEM_OK && (pool->flags & GPUMEM_NO_PYTHON)) {
        status = find_all(pool);
    }
    if (status == GPUMEM_OK) {
        *out = pool;
    }
    else {
        gmpy_c_unref(pool);
    }
    return status;
}

void
gmpy_c_unref(gpumem_pool *pool)
{
    PyGILState_STATE gil;

    if (atomic_fetch_sub_explicit(&pool->refs, 1, memory_order_acq_rel) != 1 ||
        gm_process_is_frozen()) {
        return;
    }
    gil = PyGILState_Ensure();
    gmpy_drop(&pool->object);
    PyGILState_Release(gil);
    gm_host_free(pool);
}

typedef enum source {
    SOURCE_DEFAULT,
    SOURCE_NEW,
    SOURCE_GIVEN,
} source;

/* The pool object that a holder is wanted of: new reference. NULL with an exception. */
static PyObject *
object_of(gmpy_state *st, source from, PyObject *given)
{
    if (from == SOURCE_DEFAULT) {
        return gmpy_default_pool(st);
    }
    if (from == SOURCE_NEW) {
        return PyObject_CallNoArgs(st->MemoryPoolType);
    }
    if (!given ||
        (!PyObject_TypeCheck(given, gmpy_type(st->MemoryPoolType)) &&
         !PyObject_TypeCheck(given, gmpy_type(st->SingleDeviceMemoryPoolType)))) {
        PyErr_Format(PyExc_ValueError,
                     "pool must be a MemoryPool or a SingleDeviceMemoryPool, not %s",
                     given ? Py_TYPE(given)->tp_name : "NULL");
        return NULL;
    }
    return Py_NewRef(given);
}

static int
get(source from, PyObject *given, const gpumem_options *options, gpumem_pool **out)
{
    PyGILState_STATE gil;
    gmpy_c_api *api;
    int status = gmpy_c_begin(&api);

    if (status != GPUMEM_OK) {
        return status;
    }
    if (!out) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INVALID_VALUE, "out is NULL");
    }
    gil = PyGILState_Ensure();
    {
        GMPY_TAKE_ERROR(pending);
        status = hold(api, object_of(api->st, from, given), options, out);
        GMPY_GIVE_ERROR(pending);
    }
    PyGILState_Release(gil);
    return status;
}

GPUMEM_EXPORT int
gpumem_pool_default(const gpumem_options *options, gpumem_pool **out)
{
    return get(SOURCE_DEFAULT, NULL, options, out);
}

GPUMEM_EXPORT int
gpumem_pool_create(const gpumem_options *options, gpumem_pool **out)
{
    return get(SOURCE_NEW, NULL, options, out);
}

GPUMEM_EXPORT int
gpumem_pool_borrow(void *pool, const gpumem_options *options, gpumem_pool **out)
{
    return get(SOURCE_GIVEN, pool, options, out);
}

GPUMEM_EXPORT void
gpumem_pool_release(gpumem_pool *pool)
{
    if (pool && !gm_process_is_frozen()) {
        gmpy_c_unref(pool);
    }
}

/* ---- what can be asked ---- */

/* Begins a call about a pool on a device; *native may be NULL without `make`. */
static int
begin_on(gpumem_pool *pool, int device, bool make, gm_pool **native)
{
    gmpy_c_api *api;
    int status = gmpy_c_begin(&api);

    if (status == GPUMEM_OK && !pool) {
        status = gmpy_c_fail_text(GPUMEM_ERROR_INVALID_VALUE, "pool is NULL");
    }
    return status == GPUMEM_OK ? gmpy_c_native(pool, device, make, native, &device)
                               : status;
}

GPUMEM_EXPORT int
gpumem_pool_stats(gpumem_pool *pool, int device, gpumem_stats *out)
{
    gm_pool *native = NULL;
    gm_stats stats = {0};
    gpumem_stats answer;
    int status;

    if (!out || out->struct_size < sizeof out->struct_size) {
        return gmpy_c_fail_text(GPUMEM_ERROR_INVALID_VALUE,
                                "out must have its struct_size");
    }
    status = begin_on(pool, device, false, &native);
    if (status != GPUMEM_OK) {
        return status;
    }
    if (native) {
        PyThreadState *attached = gmpy_c_detach();

        (void)gm_pool_read_stats(native, &stats); // not forked: just looked
        gmpy_c_attach(attached);
    }
    answer = (gpumem_stats){
        .struct_size = out->struct_size,
        .requested_bytes = stats.requested_bytes,
        .used_bytes = stats.used_bytes,
        .free_bytes = stats.free_bytes,
        .pending_bytes = stats.pending_bytes,
        .captured_bytes = stats.captured_bytes,
        .total_bytes = stats.total_bytes,
        .limit_bytes = stats.limit_bytes,
        .peak_used_bytes = stats.peak_used_bytes,
        .peak_total_bytes = stats.peak_total_bytes,
        .live_blocks = stats.live_blocks,
    };
    memcpy(out, &answer, Py_MIN(out->struct_size, sizeof answer));
    return GPUMEM_OK;
}

GPUMEM_EXPORT int
gpumem_pool_set_limit(gpumem_pool *pool, int device, size_t bytes)
{
    PyThreadState *attached;
    gm_pool *native;
    int status = begin_on(pool, device, true, &native);

    if (status != GPUMEM_OK) {
        return status;
    }
    attached = gmpy_c_detach();
    (void)gm_pool_set_limit(native, bytes); // not forked: just looked
    gmpy_c_attach(attached);
    return GPUMEM_OK;
}

GPUMEM_EXPORT int
gpumem_pool_trim(gpumem_pool *pool, int device)
{
    PyThreadState *attached;
    gm_pool *native = NULL;
    int status = begin_on(pool, device, false, &native);

    if (status != GPUMEM_OK || !native) {
        return status;
    }
    attached = gmpy_c_detach();
    (void)gm_pool_release_idle(native);
    gmpy_c_attach(attached);
    return GPUMEM_OK;
}
