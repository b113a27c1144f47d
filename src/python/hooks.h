/* SPDX-License-Identifier: MIT
 *
 * Memory hooks: who is told of an allocation, and telling them. Threading is said at
 * each function.
 */
#ifndef GMPY_HOOKS_H
#define GMPY_HOOKS_H

#include "module.h"

/* ---- hooks.c ---- */

int gmpy_hooks_init(PyObject *module, gmpy_state *st);

/* One holder of memory hooks more or less: a thread, or the process. Any thread. */
static inline void
gmpy_hooks_count(gmpy_state *st, int change)
{
    __atomic_fetch_add(&st->hook_holders, change, __ATOMIC_RELAXED);
}

/* Whether some memory hook is told what the calling thread does. Needs no interpreter.
 * While nobody in the process has hooks it is one load. */
static inline bool
gmpy_is_hooked(const gmpy_state *st)
{
    return GM_UNLIKELY(__atomic_load_n(&st->hook_holders, __ATOMIC_RELAXED) != 0) &&
           (gmpy_this_thread.hooks ||
            __atomic_load_n(&st->process_hooked, __ATOMIC_RELAXED));
}

/* The hooks that are told what the calling thread does, in the order in which they are
 * called: a new list. NULL with an exception. */
PyObject *gmpy_hooks_snapshot(gmpy_state *st);

/* What a callback is told. */
typedef struct gmpy_hook_event {
    int device;
    bool has_size; // whether it is told of `size`, and so on
    bool has_ptr;
    bool has_id;
    size_t size;     // bytes as asked for
    size_t mem_size; // rounded
    uintptr_t mem_ptr;
    const void *pmem; // the memory object, told as its id()
} gmpy_hook_event;

/* Calls one callback of each hook. An exception may be pending and stays so; then
 * errors of hooks go to sys.unraisablehook. Otherwise -1 with the first error, if any,
 * and the others go there. */
int
gmpy_hooks_call(PyObject *hooks, const char *callback, const gmpy_hook_event *event);

/* The same where nobody can be told of an error: each goes to sys.unraisablehook with
 * its hook. No exception is pending. */
void
gmpy_hooks_tell(PyObject *hooks, const char *callback, const gmpy_hook_event *event);

/* Around a call of a pool's base allocator, which may be a pool too: the second says
 * whether what it raised, and is pending, comes from a hook. */
void gmpy_hooks_watch(void);
bool gmpy_hooks_unwatch(void);

extern PyMethodDef gmpy_hooks_methods[];

#endif
