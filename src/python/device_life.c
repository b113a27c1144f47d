/* SPDX-License-Identifier: MIT
 *
 * Which life of a device an object is of.
 *
 * A reset ends all that exists on a device, and its handles and addresses are given out
 * again. So what was made before must neither be used nor given back afterwards: it
 * would be somebody else's. The backend has a number for each life of a device; what
 * owns a handle notes that of its own when it is made, and compares.
 *
 * The state keeps the number that was seen last. Comparing with that is one load, so
 * every use of a stream does it; it finds resets by Device.reset, and those by others
 * once something of the new life was made. Giving something back asks anew. Whoever
 * finds a reset by others tells the pools, which find one by themselves when they next
 * ask upstream (core/gm_lost.h).
 *
 * Memory is looked at where it is used: a block of a pool by its generation, which
 * changed when the pool forgot it, and all that this library took itself by the number.
 * What somebody else took says nothing, and is used as it is.
 *
 * Cost: asking is three driver calls, below a microsecond; it is done where the object
 * is made and where it ends, never where it is used.
 *
 * Threading: any thread, attached to the interpreter or not. While a device is reset
 * nobody else may use it, as the runtime has it.
 */
#include "memory_kinds.h"
#include "module.h"
#include "pinned.h"

#include "core/gm_lost.h"

uint64_t
gmpy_device_life(gmpy_state *st, int device)
{
    uint64_t number = 0;
    uint64_t before;

    /* A device that cannot be asked has said nothing of a reset. */
    if (gm_backend_device_incarnation(st->backend, device, &number) != GM_OK) {
        return __atomic_load_n(&st->lives[device], __ATOMIC_RELAXED);
    }
    before = __atomic_exchange_n(&st->lives[device], number, __ATOMIC_RELAXED);
    if (before && before != number) {
        gm_pools_device_lost(st->backend, device);
    }
    return number;
}

bool
gmpy_device_has_ended(gmpy_state *st, int device, uint64_t life)
{
    return life != 0 && gmpy_device_life(st, device) != life;
}

gm_status
gmpy_device_reset(gmpy_state *st, int device)
{
    gm_status status = gm_backend_device_reset(st->backend, device);
    uint64_t number = 0;

    if (status == GM_OK) {
        /* One that cannot be asked has no life that anything could be of. */
        (void)gm_backend_device_incarnation(st->backend, device, &number);
        __atomic_store_n(&st->lives[device], number, __ATOMIC_RELAXED);
        gm_pools_device_lost(st->backend, device);
    }
    return status;
}

/* ---- memory ---- */

static bool
memory_is_there(const gmpy_state *st, PyObject *mem)
{
    int device = 0;
    uint64_t life = 0;

    if (Py_IS_TYPE(mem, gmpy_type(st->PooledMemoryType))) {
        return gmpy_pooled_memory_is_there(mem);
    }
    if (Py_IS_TYPE(mem, gmpy_type(st->PooledPinnedMemoryType))) {
        return gmpy_pooled_pinned_memory_is_there(mem);
    }
    if (PyObject_TypeCheck(mem, gmpy_type(st->MemoryType)) ||
        PyObject_TypeCheck(mem, gmpy_type(st->ManagedMemoryType)) ||
        PyObject_TypeCheck(mem, gmpy_type(st->PinnedMemoryType))) {
        device = ((const gmpy_owned_memory *)mem)->owned_device;
        life = ((const gmpy_owned_memory *)mem)->life;
    }
    else if (PyObject_TypeCheck(mem, gmpy_type(st->MemoryAsyncType))) {
        life = gmpy_memory_async_life(mem, &device);
    }
    else if (PyObject_TypeCheck(mem, gmpy_type(st->IPCMemoryType))) {
        life = gmpy_ipc_memory_life(mem, &device);
    }
    return !gmpy_device_has_ended_known(st, device, life);
}

int
gmpy_memory_check(gmpy_state *st, PyObject *mem)
{
    const gmpy_base_memory *base = (const gmpy_base_memory *)mem;

    if (mem && gmpy_memory_ptr(base) && memory_is_there(st, mem)) {
        return 0;
    }
    if (!mem || !gmpy_memory_ptr(base)) { // perhaps only now
        PyErr_SetString(PyExc_ValueError,
                        mem && base->size ? "the memory was given back"
                                          : "there is no memory behind the pointer");
    }
    else {
        PyErr_Format(PyExc_RuntimeError,
                     "the memory is gone: device %d was reset after it was taken, or "
                     "its pool was given it back by its address; allocate it anew",
                     base->device_id);
    }
    return -1;
}
