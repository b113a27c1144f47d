/* SPDX-License-Identifier: MIT
 *
 * What the calling thread has set: its current streams, its scoped allocator, its
 * client, and what its open `with` statements go back to.
 *
 * All of it belongs to one object in the thread state's dictionary, made when the
 * thread first sets something, so it ends with the thread state. The request path must
 * not pay for a dictionary look-up: gmpy_this_thread caches where the object's parts
 * are. The object takes the cache back when it dies, so that a later thread state of
 * the same OS thread (PyGILState_Ensure makes one each time) starts with nothing set.
 * As for PyGILState, a thread state is expected to stay on its OS thread.
 *
 * An open `with` is a scope on a stack: whose it is, and what it hides. Leaving one
 * that is not the newest hands what it hid to the next one above it. So scopes that are
 * left out of order, as generators do, never make current what has been left already.
 *
 * Memory hooks are here too, since they end with the thread; hooks.c calls them. So is
 * the last error of C code, which threads have that Python never saw.
 *
 * A thread's own default streams end with it as well, for nobody else can queue work on
 * them: what the pools have cached for them becomes anybody's when that work is done
 * (core/gm_stream_end.c). Not while a graph is being recorded, when the device is not
 * to be called: then it stays cached until it is given back.
 *
 * Cost: the inline readers in module.h are one thread-local load. Making a stream
 * current is the same and two reference counts, and for the per-thread stream one
 * question to the backend.
 *
 * Threading: a thread sees its own settings alone; nothing here needs a lock.
 */
#include "capi.h"
#include "hooks.h"
#include "out_of_memory.h"
#include "stream.h"

#include "core/gm_client.h"  // GM_CLIENT_PROGRAM
#include "core/gm_pending.h" // gm_pools_end_stream
#include "core/gm_process.h" // gm_process_is_capturing

#include <string.h> // memmove

_Thread_local gmpy_thread gmpy_this_thread;
_Thread_local gmpy_rescue *gmpy_this_rescue;
_Thread_local gmpy_c_error gmpy_this_c_error;

typedef struct scope {
    PyObject *entered;   // what the `with` is of: a reference
    int device;          // stream: where it became current
    gm_device_mark mark; // Device: what to go back to
    gmpy_current saved;  // stream: what to go back to, its stream a reference
    PyObject *allocator; // allocator: what to go back to, a reference or NULL
    uint16_t client;     // client: the same
} scope;

typedef struct scope_stack {
    scope *items;
    Py_ssize_t count;
    Py_ssize_t room;
} scope_stack;

typedef struct thread_settings {
    PyObject_VAR_HEAD gmpy_state *st;
    PyObject *allocator; // the scoped one; NULL outside all scopes
    PyObject *hooks;     // memory hooks by name, a dictionary; NULL until there was one
    bool hooked;         // it is not empty: this thread counts as a holder of hooks
    scope_stack streams;
    scope_stack devices;
    scope_stack allocators;
    scope_stack clients;
#ifdef Py_GIL_DISABLED
    gmpy_freelist pointers; // what died on this thread, for its next (reuse.h)
    gmpy_freelist handles;
#endif
    gm_stream_key *own; // one a device: of the thread's own stream, 0 where that never
                        // was current; NULL: it never was anywhere
    gmpy_current currents[]; // one a device, their streams references
} thread_settings;

/* ---- scopes ---- */

/* Room for one scope more. 0 or -1. */
static int
stack_reserve(scope_stack *stack)
{
    Py_ssize_t room = stack->room > 0 ? 2 * stack->room : 4;
    scope *items;

    if (stack->count < stack->room) {
        return 0;
    }
    items = PyMem_Realloc(stack->items, (size_t)room * sizeof *items);
    if (!items) {
        PyErr_NoMemory();
        return -1;
    }
    stack->items = items;
    stack->room = room;
    return 0;
}

/* Takes out the newest scope of `entered`, with its references; *index is where it was.
 * 0, or -1 with RuntimeError. `stack` NULL is an empty one. */
static int
stack_take(scope_stack *stack, PyObject *entered, scope *out, Py_ssize_t *index)
{
    Py_ssize_t i = stack ? stack->count - 1 : -1;

    while (i >= 0 && stack->items[i].entered != entered) {
        i--;
    }
    if (i < 0) {
        PyErr_Format(PyExc_RuntimeError, "%R is left, but this thread did not enter it",
                     entered);
        return -1;
    }
    *out = stack->items[i];
    *index = i;
    stack->count--;
    memmove(&stack->items[i], &stack->items[i + 1],
            (size_t)(stack->count - i) * sizeof *stack->items);
    return 0;
}

static int
stack_traverse(const scope_stack *stack, visitproc visit, void *arg)
{
    for (Py_ssize_t i = 0; i < stack->count; i++) {
        Py_VISIT(stack->items[i].entered);
        Py_VISIT(stack->items[i].saved.stream);
        Py_VISIT(stack->items[i].allocator);
    }
    return 0;
}

static void
stack_clear(scope_stack *stack)
{
    scope_stack taken = *stack;

    *stack = (scope_stack){0};
    for (Py_ssize_t i = 0; i < taken.count; i++) {
        Py_DECREF(taken.items[i].entered);
        Py_XDECREF(taken.items[i].saved.stream);
        Py_XDECREF(taken.items[i].allocator);
    }
    PyMem_Free(taken.items);
}

/* ---- the object ---- */

static int
settings_traverse(PyObject *op, visitproc visit, void *arg)
{
    thread_settings *self = (thread_settings *)op;
    int result;

    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->allocator);
    Py_VISIT(self->hooks);
    for (Py_ssize_t i = 0; i < Py_SIZE(op); i++) {
        Py_VISIT(self->currents[i].stream);
    }
    result = stack_traverse(&self->streams, visit, arg);
    if (result == 0) {
        result = stack_traverse(&self->devices, visit, arg);
    }
    if (result == 0) {
        result = stack_traverse(&self->allocators, visit, arg);
    }
    return result ? result : stack_traverse(&self->clients, visit, arg);
}

/* Notes whether the thread has hooks: for itself, and for all who would look. */
static void
note_hooks(thread_settings *self, bool any)
{
    if (gmpy_this_thread.settings == (PyObject *)self) {
        gmpy_this_thread.hooks = any ? self->hooks : NULL;
    }
    if (self->hooked != any) {
        self->hooked = any;
        gmpy_hooks_count(self->st, any ? 1 : -1);
    }
}

/* Back to nothing set. The object stays usable: what is dropped may run Python code
 * that looks at it. */
static int
settings_clear(PyObject *op)
{
    thread_settings *self = (thread_settings *)op;

    if (gmpy_this_thread.settings == op) {
        gmpy_this_thread.allocator = NULL;
        gmpy_this_thread.client = GM_CLIENT_PROGRAM;
    }
    note_hooks(self, false);
    Py_CLEAR(self->allocator);
    Py_CLEAR(self->hooks);
    for (Py_ssize_t i = 0; i < Py_SIZE(op); i++) {
        PyObject *stream = self->currents[i].stream;

        self->currents[i] = (gmpy_current){.key = GM_STREAM_KEY_DEFAULT};
        Py_XDECREF(stream);
    }
    stack_clear(&self->streams);
    stack_clear(&self->devices);
    stack_clear(&self->allocators);
    stack_clear(&self->clients);
    return 0;
}

/* The thread ends, and it is the calling one, whose stream the handle means. */
static void
end_own_streams(const thread_settings *self)
{
    if (!self->own || gm_process_is_capturing()) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < Py_SIZE(self); i++) {
        const gm_stream_use by = {
            .stream = GM_STREAM_PER_THREAD,
            .key = self->own[i],
            .device = (int)i,
        };

        if (by.key != GM_STREAM_KEY_DEFAULT) {
            gm_pools_end_stream(self->st->backend, &by);
        }
    }
    Py_END_ALLOW_THREADS
}

static void
settings_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    if (gmpy_this_thread.settings == op) {
        end_own_streams((thread_settings *)op);
        gmpy_this_thread = (gmpy_thread){0};
    }
    PyMem_Free(((thread_settings *)op)->own);
    (void)settings_clear(op); // cannot fail
#ifdef Py_GIL_DISABLED
    gmpy_freelist_close(&((thread_settings *)op)->pointers, PyObject_GC_Del);
    gmpy_freelist_close(&((thread_settings *)op)->handles, PyObject_Free);
#endif
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot settings_slots[] = {
    {Py_tp_doc, (void *)"What one thread has set; private."},
    {Py_tp_dealloc, settings_dealloc},
    {Py_tp_traverse, settings_traverse},
    {Py_tp_clear, settings_clear},
    {0, NULL},
};

static PyType_Spec settings_spec = {
    .name = "gpumem._core._ThreadSettings",
    .basicsize = sizeof(thread_settings),
    .itemsize = sizeof(gmpy_current),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = settings_slots,
};

int
gmpy_thread_init(PyObject *module, gmpy_state *st)
{
    st->ThreadSettingsType = PyType_FromModuleAndSpec(module, &settings_spec, NULL);
    return st->ThreadSettingsType ? 0 : -1;
}

/* The calling thread's settings where it has any: borrowed, or NULL. */
static inline thread_settings *
find_settings(void)
{
    return (thread_settings *)gmpy_this_thread.settings;
}

/* The same, made when missing: borrowed. NULL with an exception. */
static thread_settings *
get_settings(gmpy_state *st)
{
    PyTypeObject *type = gmpy_type(st->ThreadSettingsType);
    PyObject *threads_own;
    PyObject *made;
    int result;

    if (gmpy_this_thread.settings) {
        return find_settings();
    }
    if (!gmpy_backend(st)) {
        return NULL;
    }
    threads_own = PyThreadState_GetDict();
    if (!threads_own) {
        PyErr_NoMemory(); // it drops the exception itself
        return NULL;
    }
    made = type->tp_alloc(type, st->device_count);
    if (!made) {
        return NULL;
    }
    ((thread_settings *)made)->st = st;
    // The type is the key: nobody else has it, and its hash runs no Python code.
    result = PyDict_SetItem(threads_own, st->ThreadSettingsType, made);
    Py_DECREF(made);
    if (result < 0) {
        return NULL;
    }
    gmpy_this_thread.settings = made;
    gmpy_this_thread.currents = ((thread_settings *)made)->currents;
#ifdef Py_GIL_DISABLED
    ((thread_settings *)made)->pointers.room = GMPY_FREELIST_SIZE;
    ((thread_settings *)made)->handles.room = GMPY_FREELIST_SIZE;
    gmpy_this_thread.pointers = &((thread_settings *)made)->pointers;
    gmpy_this_thread.handles = &((thread_settings *)made)->handles;
#endif
    __atomic_store_n(&st->settings_used, true, __ATOMIC_RELAXED);
    return find_settings();
}

/* ---- streams ---- */

/* What `stream` is for the calling thread on `device`, with a reference to it. 0 or -1.
 */
static int
resolve(thread_settings *settings, int device, PyObject *stream, gmpy_current *out)
{
    if (gmpy_stream_key(settings->st, stream, &out->key) < 0) {
        return -1;
    }
    out->handle = ((gmpy_stream *)stream)->handle;
    if (out->handle == GM_STREAM_PER_THREAD) {
        if (!settings->own) {
            settings->own =
                PyMem_Calloc((size_t)Py_SIZE(settings), sizeof *settings->own);
        }
        if (!settings->own) {
            PyErr_NoMemory();
            return -1;
        }
        settings->own[device] = out->key;
    }
    out->stream = Py_NewRef(stream);
    return 0;
}

/* Overwrites `place` with `next`, whose reference it takes over. The old stream goes
 * last: its destructor may run Python code. */
static void
replace(gmpy_current *place, gmpy_current next)
{
    PyObject *old = place->stream;

    *place = next;
    Py_XDECREF(old);
}

PyObject *
gmpy_current_stream(gmpy_state *st, int device)
{
    const thread_settings *settings = find_settings();
    PyObject *stream = settings ? settings->currents[device].stream : NULL;

    return Py_NewRef(stream ? stream : st->null_stream);
}

int
gmpy_set_current_stream(gmpy_state *st, int device, PyObject *stream)
{
    thread_settings *settings = get_settings(st);
    gmpy_current next;

    if (!settings || resolve(settings, device, stream, &next) < 0) {
        return -1;
    }
    replace(&settings->currents[device], next);
    return 0;
}

int
gmpy_push_stream(gmpy_state *st, int device, PyObject *stream)
{
    thread_settings *settings = get_settings(st);
    gmpy_current next;
    gmpy_current *current;

    if (!settings || stack_reserve(&settings->streams) < 0 ||
        resolve(settings, device, stream, &next) < 0) {
        return -1;
    }
    current = &settings->currents[device];
    settings->streams.items[settings->streams.count++] = (scope){
        .entered = Py_NewRef(stream),
        .device = device,
        .saved = *current,
    };
    *current = next;
    return 0;
}

int
gmpy_pop_stream(PyObject *stream)
{
    thread_settings *settings = find_settings();
    scope_stack *stack = settings ? &settings->streams : NULL;
    gmpy_current *place;
    scope left;
    Py_ssize_t i;

    if (stack_take(stack, stream, &left, &i) < 0) {
        return -1;
    }
    place = &settings->currents[left.device];
    for (; i < stack->count; i++) {
        if (stack->items[i].device == left.device) {
            place = &stack->items[i].saved;
            break;
        }
    }
    replace(place, left.saved);
    Py_DECREF(left.entered);
    return 0;
}

/* ---- devices ---- */

int
gmpy_push_device(gmpy_state *st, int device, PyObject *entered)
{
    thread_settings *settings = get_settings(st);
    gm_device_mark mark;
    gm_status status;

    if (!settings || stack_reserve(&settings->devices) < 0) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    status = gm_backend_device_push(st->backend, device, &mark);
    Py_END_ALLOW_THREADS
    if (status != GM_OK) {
        gmpy_raise(st, status, "making a device current");
        return -1;
    }
    settings->devices.items[settings->devices.count++] = (scope){
        .entered = Py_NewRef(entered),
        .mark = mark,
    };
    return 0;
}

int
gmpy_pop_device(gmpy_state *st, PyObject *entered)
{
    thread_settings *settings = find_settings();
    scope_stack *stack = settings ? &settings->devices : NULL;
    scope left;
    Py_ssize_t i;

    if (stack_take(stack, entered, &left, &i) < 0) {
        return -1;
    }
    Py_DECREF(left.entered); // the caller has one too
    if (i < stack->count) {
        stack->items[i].mark = left.mark;
    }
    else {
        gm_backend_device_pop(st->backend, &left.mark);
    }
    return 0;
}

/* ---- the scoped allocator ---- */

int
gmpy_push_allocator(gmpy_state *st, PyObject *allocator, PyObject *entered)
{
    thread_settings *settings = get_settings(st);

    if (!settings || stack_reserve(&settings->allocators) < 0) {
        return -1;
    }
    settings->allocators.items[settings->allocators.count++] = (scope){
        .entered = Py_NewRef(entered),
        .allocator = settings->allocator,
    };
    settings->allocator = Py_NewRef(allocator);
    gmpy_this_thread.allocator = allocator;
    return 0;
}

int
gmpy_pop_allocator(PyObject *entered)
{
    thread_settings *settings = find_settings();
    scope_stack *stack = settings ? &settings->allocators : NULL;
    PyObject *old;
    scope left;
    Py_ssize_t i;

    if (stack_take(stack, entered, &left, &i) < 0) {
        return -1;
    }
    if (i < stack->count) {
        old = stack->items[i].allocator;
        stack->items[i].allocator = left.allocator;
    }
    else {
        old = settings->allocator;
        settings->allocator = left.allocator;
        gmpy_this_thread.allocator = left.allocator;
    }
    Py_XDECREF(old); // may run Python code, so after the change is complete
    Py_DECREF(left.entered);
    return 0;
}

/* ---- the client ---- */

int
gmpy_push_client(gmpy_state *st, uint16_t client, PyObject *entered)
{
    thread_settings *settings = get_settings(st);

    if (!settings || stack_reserve(&settings->clients) < 0) {
        return -1;
    }
    settings->clients.items[settings->clients.count++] = (scope){
        .entered = Py_NewRef(entered),
        .client = gmpy_this_thread.client,
    };
    gmpy_this_thread.client = client;
    return 0;
}

int
gmpy_pop_client(PyObject *entered)
{
    thread_settings *settings = find_settings();
    scope_stack *stack = settings ? &settings->clients : NULL;
    scope left;
    Py_ssize_t i;

    if (stack_take(stack, entered, &left, &i) < 0) {
        return -1;
    }
    if (i < stack->count) {
        stack->items[i].client = left.client;
    }
    else {
        gmpy_this_thread.client = left.client;
    }
    Py_DECREF(left.entered);
    return 0;
}

/* ---- hooks ---- */

int
gmpy_add_hook(gmpy_state *st, PyObject *name, PyObject *hook)
{
    thread_settings *settings = get_settings(st);
    int known;

    if (!settings || (!settings->hooks && !(settings->hooks = PyDict_New()))) {
        return -1;
    }
    known = PyDict_Contains(settings->hooks, name);
    if (known > 0) {
        PyErr_Format(PyExc_KeyError, "the thread has a memory hook named %R", name);
    }
    if (known != 0 || PyDict_SetItem(settings->hooks, name, hook) < 0) {
        return -1;
    }
    note_hooks(settings, true);
    return 0;
}

int
gmpy_remove_hook(PyObject *name)
{
    thread_settings *settings = find_settings();

    int known =
        settings && settings->hooks ? PyDict_Contains(settings->hooks, name) : 0;

    if (known == 0) {
        PyErr_Format(PyExc_KeyError, "the thread has no memory hook named %R", name);
    }
    if (known <= 0 || PyDict_DelItem(settings->hooks, name) < 0) {
        return -1;
    }
    note_hooks(settings, PyDict_GET_SIZE(settings->hooks) > 0);
    return 0;
}
