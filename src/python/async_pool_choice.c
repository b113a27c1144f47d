/* SPDX-License-Identifier: MIT
 *
 * Which of the driver's pools a MemoryAsyncPool is about, one a device.
 *
 * Opening is in two steps: what the arguments mean is found out for every device, which
 * changes nothing; then the devices are set to their pools and the pools told how much
 * to keep. Where a device refuses in the second step, what was set is set back.
 *
 * A reset ends the pools of a device, and their handles mean nothing or something else
 * afterwards. So every use compares the life of the device first (device_life.c). Of a
 * new one the pool that is there now is chosen in the same way as the first time; a
 * native handle is refused.
 *
 * Cost: a use asks for the life of the device, below a microsecond. Threading: any
 * thread; two that find a reset at once choose the same pool.
 */
#include "async_pool.h"
#include "pools.h"

#include "core/gm_process.h" // gm_process_is_forked

/* ---- what the arguments mean ---- */

static bool
is_bytes(PyObject *arg)
{
    return PyBytes_Check(arg) || PyByteArray_Check(arg) || PyMemoryView_Check(arg);
}

static int
refuse_handle(PyObject *arg)
{
    PyObject *type = is_bytes(arg) ? PyExc_TypeError : PyExc_ValueError;

    if (PyUnicode_Check(arg) && PyUnicode_CompareWithASCIIString(arg, "create") == 0) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "pool_handles='create' is not offered; make a pool by the "
                        "driver and give its handle");
        return -1;
    }
    PyErr_Format(type,
                 "pool_handles must be 'current', 'default', a native handle or a "
                 "sequence of these, not %R",
                 arg);
    return -1;
}

/* What one of the handles means. 0 or -1. */
static int
as_choice(PyObject *arg, gmpy_async_part *part)
{
    uintptr_t handle;

    if (PyUnicode_Check(arg)) {
        bool original = PyUnicode_CompareWithASCIIString(arg, "default") == 0;

        if (!original && PyUnicode_CompareWithASCIIString(arg, "current") != 0) {
            return refuse_handle(arg);
        }
        part->choice = original ? GMPY_ASYNC_DEFAULT : GMPY_ASYNC_CURRENT;
        return 0;
    }
    if (!PyIndex_Check(arg)) {
        return refuse_handle(arg);
    }
    if (gmpy_as_address(arg, "pool_handles", &handle) < 0) {
        return -1;
    }
    if (!handle) {
        return refuse_handle(arg);
    }
    part->choice = GMPY_ASYNC_GIVEN;
    part->pool = handle;
    return 0;
}

/* The handles, one a device: a new tuple. */
static PyObject *
as_handles(gmpy_state *st, PyObject *arg)
{
    PyObject *handles;

    if (!arg || PyUnicode_Check(arg) || is_bytes(arg) || !PySequence_Check(arg)) {
        PyObject *one = arg ? Py_NewRef(arg) : PyUnicode_FromString("current");

        handles = one ? PyTuple_New(st->device_count) : NULL;
        for (int i = 0; handles && i < st->device_count; i++) {
            PyTuple_SET_ITEM(handles, i, Py_NewRef(one));
        }
        Py_XDECREF(one);
        return handles;
    }
    handles = PySequence_Tuple(arg);
    if (handles && PyTuple_GET_SIZE(handles) != st->device_count) {
        PyErr_Format(PyExc_ValueError, "there are %d devices and %zd pool_handles",
                     st->device_count, PyTuple_GET_SIZE(handles));
        Py_CLEAR(handles);
    }
    return handles;
}

/* ---- choosing ---- */

/* A choice that is being carried out, with what to set back. */
typedef struct choosing {
    gmpy_async_part part;
    gm_mem_pool before; // what the device took from
    uint64_t kept;      // how much the pool kept
} choosing;

/* Looks up what a choice means and what it will replace. Needs no interpreter. */
static gm_status
look(gmpy_state *st, int device, choosing *c)
{
    const gm_backend *b = st->backend;
    gmpy_async_part *part = &c->part;
    gm_status status = gm_backend_mem_pool_get(b, device, false, &c->before);

    if (status == GM_OK && part->choice == GMPY_ASYNC_CURRENT) {
        part->pool = c->before;
    }
    if (status == GM_OK && part->choice == GMPY_ASYNC_DEFAULT) {
        status = gm_backend_mem_pool_get(b, device, true, &part->pool);
    }
    if (status == GM_OK) {
        status = gm_backend_mem_pool_read(b, part->pool, GM_MEM_POOL_RELEASE_THRESHOLD,
                                          &c->kept);
    }
    part->life = status == GM_OK ? gmpy_device_life(st, device) : 0;
    return status;
}

static gm_status
keep(const gm_backend *b, gm_mem_pool pool, uint64_t bytes)
{
    return gm_backend_mem_pool_write(b, pool, GM_MEM_POOL_RELEASE_THRESHOLD, bytes);
}

/* Has the device take from the pool, and the pool keep as much as the limit says; all
 * or nothing. Needs no interpreter. */
static gm_status
carry_out(const gm_backend *b, int device, const choosing *c)
{
    size_t limit = c->part.limit;
    gm_status status = GM_OK;

    if (c->before != c->part.pool) {
        status = gm_backend_mem_pool_set(b, device, c->part.pool);
    }
    if (status != GM_OK) {
        return status;
    }
    status = keep(b, c->part.pool, limit ? limit : UINT64_MAX);
    if (status != GM_OK && c->before != c->part.pool) {
        (void)gm_backend_mem_pool_set(b, device, c->before); // it was told the rest
    }
    return status;
}

static void
undo(const gm_backend *b, int device, const choosing *c)
{
    (void)keep(b, c->part.pool,
               c->kept); // who refuses now is told of the first refusal
    if (c->before != c->part.pool) {
        (void)gm_backend_mem_pool_set(b, device, c->before);
    }
}

/* For every device, or none. Needs no interpreter. */
static gm_status
carry_out_all(const gm_backend *b, int count, const choosing *all)
{
    gm_status status = GM_OK;
    int done = 0;

    while (done < count && status == GM_OK) {
        status = carry_out(b, done, &all[done]);
        done += status == GM_OK;
    }
    while (status != GM_OK && done > 0) {
        done--;
        undo(b, done, &all[done]);
    }
    return status;
}

/* ---- opening ---- */

/* Finds out what is to be chosen for a device. 0 or -1. */
static int
plan(gmpy_state *st, int device, PyObject *handle, choosing *c)
{
    gm_status status;

    if (gmpy_require_support(st, device, GM_DEVICE_MEMORY_POOLS, GMPY_LACK_OF_POOLS) <
            0 ||
        as_choice(handle, &c->part) < 0 ||
        gmpy_default_limit(st, device, &c->part.limit) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = look(st, device, c);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking for a device's memory pool");
        return -1;
    }
    return 0;
}

/* Carries out what was planned and keeps it in `parts`. 0 or -1. */
static int
settle(gmpy_state *st, const choosing *all, gmpy_async_part *parts)
{
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = carry_out_all(st->backend, st->device_count, all);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "choosing a device's memory pool");
        return -1;
    }
    for (int device = 0; device < st->device_count; device++) {
        parts[device] = all[device].part;
    }
    return 0;
}

int
gmpy_async_pool_open(gmpy_async_pool *self, PyObject *pool_handles)
{
    gmpy_state *st = self->st;
    size_t count = (size_t)st->device_count;
    PyObject *handles = as_handles(st, pool_handles);
    choosing *all = PyMem_Calloc(count, sizeof(*all));
    gmpy_async_part *parts = PyMem_Calloc(count, sizeof(*parts));
    gmpy_async_figures figures;
    int result = handles ? 0 : -1;

    if (handles && (!all || !parts)) {
        PyErr_NoMemory();
        result = -1;
    }
    for (int device = 0; result == 0 && device < st->device_count; device++) {
        result = plan(st, device, PyTuple_GET_ITEM(handles, device), &all[device]);
    }
    if (result == 0) {
        result = settle(st, all, parts);
    }
    if (result == 0) {
        self->has_figures =
            gmpy_async_pool_read(st->backend, parts[0].pool, &figures) == GM_OK;
        self->parts = parts;
        parts = NULL;
        __atomic_store_n(&st->async_pools, true, __ATOMIC_RELAXED);
    }
    PyMem_Free(parts);
    PyMem_Free(all);
    Py_XDECREF(handles);
    return result;
}

/* ---- finding ---- */

/* Chooses anew after a reset. 0 or -1. */
static int
choose_again(gmpy_async_pool *self, int device, gmpy_async_part *part)
{
    gmpy_state *st = self->st;
    choosing c = {.part = *part};
    gm_status status;

    if (part->choice == GMPY_ASYNC_GIVEN) {
        PyErr_Format(
            PyExc_RuntimeError,
            "the memory pool is gone: device %d was reset after its handle was "
            "given; make a new MemoryAsyncPool",
            device);
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = look(st, device, &c);
    if (status == GM_OK) {
        status = carry_out(st->backend, device, &c);
    }
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "choosing a device's memory pool after a reset");
        return -1;
    }
    *part = c.part;
    Py_BEGIN_CRITICAL_SECTION(self);
    self->parts[device].pool = part->pool;
    self->parts[device].life = part->life;
    Py_END_CRITICAL_SECTION();
    return 0;
}

int
gmpy_async_pool_part(gmpy_async_pool *self, int device, gmpy_async_part *out)
{
    uint64_t life;

    if (gm_process_is_forked()) {
        gmpy_raise(self->st, GM_ERR_FORKED, "using a memory pool");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    life = gmpy_device_life(self->st, device);
    Py_END_ALLOW_THREADS
    Py_BEGIN_CRITICAL_SECTION(self);
    if (!self->parts[device].life) {
        self->parts[device].life = life;
    }
    *out = self->parts[device];
    Py_END_CRITICAL_SECTION();
    return out->life == life ? 0 : choose_again(self, device, out);
}

int
gmpy_async_pool_find(gmpy_async_pool *self,
                     PyObject *device_arg,
                     int *device,
                     gmpy_async_part *out)
{
    if (!self->parts) {
        PyErr_SetString(PyExc_RuntimeError, "the pool was not initialized");
        return -1;
    }
    if (gmpy_as_device_or_current(self->st, device_arg, device) < 0) {
        return -1;
    }
    return gmpy_async_pool_part(self, *device, out);
}
