/* SPDX-License-Identifier: MIT
 *
 * What is said where the device has no memory for a request that no pool was asked for:
 * the runtime's error, how much was asked for, how much there is, and one thing to do.
 *
 * The next step is to give back what pools have cached, where they have some: unlike
 * their own requests such a one does not do it.
 *
 * Cost: asks the device how much is free, and looks at its pools. Threading: any
 * thread.
 */
#include "module.h"
#include "out_of_memory.h"

/* Of page-locked memory nobody tells how much of it there is. */
static void
tell(const gm_shortage *s, const char *what, char *text, size_t room)
{
    char where[192] = "";
    char step[192] = "let go of memory, or ask for less";

    if (s->device >= 0 && s->device_total != GM_UNKNOWN) {
        PyOS_snprintf(where, sizeof where,
                      " on device %d, which has %zu of %zu bytes free", s->device,
                      s->device_free, s->device_total);
    }
    if (s->sibling_idle_bytes) {
        PyOS_snprintf(step, sizeof step,
                      "pools have %zu bytes cached: free_all_blocks() gives back "
                      "what is idle of them",
                      s->sibling_idle_bytes);
    }
    PyOS_snprintf(text, room, "%s: %zu bytes%s; %s", what, s->size, where, step);
}

PyObject *
gmpy_raise_refused(
    gmpy_state *st, gm_status status, const char *what, int device, size_t size)
{
    gm_shortage s = gm_shortage_of(size);
    char text[512];

    if (status != GM_ERR_OUT_OF_MEMORY) {
        return gmpy_raise(st, status, what);
    }
    s.device = device;
    Py_BEGIN_ALLOW_THREADS
    gm_explain_outside(st->backend, status, &s);
    Py_END_ALLOW_THREADS
    tell(&s, what, text, sizeof text);
    return gmpy_raise(st, status, text);
}
