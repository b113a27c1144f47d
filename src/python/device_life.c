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
 * once something of the new life was made. Giving something back asks anew.
 *
 * Cost: asking is three driver calls, below a microsecond; it is done where the object
 * is made and where it ends, never where it is used.
 *
 * Threading: any thread, attached to the interpreter or not. While a device is reset
 * nobody else may use it, as the runtime has it.
 */
#include "module.h"

uint64_t
gmpy_device_life(gmpy_state *st, int device)
{
    uint64_t number = 0;

    /* A device that cannot be asked has said nothing of a reset. */
    if (gm_backend_device_incarnation(st->backend, device, &number) != GM_OK) {
        return __atomic_load_n(&st->lives[device], __ATOMIC_RELAXED);
    }
    __atomic_store_n(&st->lives[device], number, __ATOMIC_RELAXED);
    return number;
}

bool
gmpy_device_has_ended(gmpy_state *st, int device, uint64_t life)
{
    return life != 0 && gmpy_device_life(st, device) != life;
}
