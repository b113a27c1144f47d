/* SPDX-License-Identifier: MIT
 *
 * What a device can do, for kinds of memory that not every device has.
 *
 * Threading: any thread; the device is asked each time, without the interpreter.
 */
#include "memory_kinds.h"
#include "module.h"

enum {
    NAME_SIZE = 256,
};

/* Raises RuntimeError: the device, by number and name, cannot do `what`. */
static void
raise_lack(gmpy_state *st, int device, const char *what)
{
    char name[NAME_SIZE] = "";
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_name(st->backend, device, name, sizeof name);
    Py_END_ALLOW_THREADS
    PyErr_Format(PyExc_RuntimeError, "device %d (%s) cannot %s", device,
                 status == GM_OK ? name : st->backend->name, what);
}

int
gmpy_require_support(gmpy_state *st, int device, unsigned ability, const char *what)
{
    unsigned support = 0;
    gm_status status;

    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_support(st->backend, device, &support);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "asking what a device can do");
        return -1;
    }
    if (!(support & ability)) {
        raise_lack(st, device, what);
        return -1;
    }
    return 0;
}
