/* SPDX-License-Identifier: MIT
 *
 * Guards: the end of an object in a cycle of garbage, where that end calls functions
 * that are garbage too.
 *
 * Memory from the user's functions is freed by one of them. The collector offers two
 * moments for that, and neither will do. When it finalizes, everything is whole still,
 * but a __del__ that comes later may use the memory. When it clears, nobody can use the
 * memory any more, but the function may have lost its variables.
 *
 * So the object has a guard, which is finalized with it:
 *
 * - The first time the guard keeps the object, and with it all that the object reaches.
 *   The rest of the garbage goes its way. Then the guard lets go. Where no cycle is
 *   left that ends the object as usual: its last reference is dropped.
 * - Where one is left, the collector runs several times in a row, with nothing between
 *   but the letting go. Each time it finds the cycle once more, and calls what
 *   finalizers are new to it, which those of the time before may have added;
 * GUARD_FINDS times the guard keeps the object. In the collection after these it calls
 * the object's `end`, while all is whole. What the program brought back to life is
 * found in none of them. The bound is what finalizers have that keep adding others: of
 * a chain of GUARD_FINDS + 1 each sees the memory, a longer one may see that it ended.
 *
 * A guard keeps the object by a reference that it does not show to the collector, which
 * takes the object for used elsewhere. It must not let go of it before the collector
 * has settled what is garbage: that is so when it clears the guard, which by then is a
 * cycle of its own, reached by nothing. From then on the guard waits in a list until
 * the interpreter comes to a pending call, in the main thread, or until somebody comes
 * by gmpy_guards_look.
 *
 * A pending call may come while the collector is still busy, in a finalizer or one of
 * gc.callbacks, where no collection runs inside it. Then the cycles are owed an end
 * still, and another pending call is asked for: at first at once, then after 1, 3, 7
 * and so on that do nothing, up to PATIENCE, after which it is left to whoever comes
 * by.
 *
 * An `end` that cannot be yet says so, and the object is kept until the program's next
 * full collection.
 *
 * Cost: an object a guarded object. The collections are full ones. They are run when
 * memory has run out, and else for what a full one of the program's found, so what they
 * cost is a multiple of what the program pays anyway; a young cycle waits until it is
 * old.
 *
 * Threading: the list is lock-free, the rest happens to garbage, which one thread has.
 * One thread at a time settles; another one leaves it to that one. In an exiting or a
 * forked process nothing is kept, since nothing will be freed.
 */
#include "guard.h"

#include "core/gm_process.h" // gm_process_is_frozen

#include <time.h> // nanosleep

enum {
    GUARD_FINDS = 3,
    PATIENCE = 1 << 15,
    PAUSE_MS = 4,
    PAUSES = 250, // a second
};

typedef enum guard_state {
    GUARD_WATCHES, // the object holds the guard
    GUARD_KEEPS,   // the guard holds the object and itself
    GUARD_WAITS,   // the guard holds the object, the list the guard
} guard_state;

struct gmpy_guard {
    PyObject_HEAD
    gmpy_state *st;
    guard_state state;
    PyObject *object; // NULL: gone
    PyObject **place; // the object's field for its guard
    bool (*end)(PyObject *object);
    bool old;         // a full collection of the program's found it
    int finds;        // how many of the round did
    uint64_t round;   // the row of collections that may call `end`; 0: none
    gmpy_guard *next; // in the list
};

/* ---- the list ---- */

static void
list_push(gmpy_state *st, gmpy_guard *self)
{
    self->next = __atomic_load_n(&st->rescued, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&st->rescued, &self->next, self, true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
}

static int settle_later(void *arg);

/* Has the interpreter come by, with a reference to the module. Where its list is full,
 * whoever looks next will do. */
static void
announce(gmpy_state *st, PyObject *module)
{
    if (__atomic_exchange_n(&st->announced, true, __ATOMIC_SEQ_CST)) {
        return;
    }
    Py_INCREF(module);
    if (Py_AddPendingCall(settle_later, module) < 0) {
        __atomic_store_n(&st->announced, false, __ATOMIC_SEQ_CST);
        Py_DECREF(module);
    }
}

/* ---- the type ---- */

static void
guard_finalize(PyObject *op)
{
    gmpy_guard *self = (gmpy_guard *)op;
    PyObject *object = self->object;

    if (!object || gm_process_is_frozen()) {
        return;
    }
    Py_INCREF(object);
    if (self->round && self->round == gmpy_this_thread.round &&
        self->finds >= GUARD_FINDS && self->end(object)) {
        Py_DECREF(object);
        return;
    }
    *self->place = NULL; // the reference is the guard's own now
    self->state = GUARD_KEEPS;
}

static int
guard_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    if (((gmpy_guard *)op)->state == GUARD_KEEPS) {
        Py_VISIT(op);
    }
    return 0;
}

static int
guard_clear(PyObject *op)
{
    gmpy_guard *self = (gmpy_guard *)op;

    if (self->state == GUARD_KEEPS) {
        self->state = GUARD_WAITS;
        self->old = !gmpy_this_thread.round && gmpy_collection_is_full(self->st);
        list_push(self->st, self);
        announce(self->st, PyType_GetModule(Py_TYPE(op)));
    }
    return 0;
}

static void
guard_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    type->tp_free(op);
    Py_DECREF(type);
}

int
gmpy_guard_new(gmpy_state *st,
               PyObject *object,
               PyObject **place,
               bool (*end)(PyObject *object))
{
    PyTypeObject *type = gmpy_type(st->GuardType);
    gmpy_guard *self = (gmpy_guard *)type->tp_alloc(type, 0);

    if (!self) {
        return -1;
    }
    self->st = st;
    self->object = object;
    self->place = place;
    self->end = end;
    *place = (PyObject *)self;
    return 0;
}

void
gmpy_guard_drop(PyObject **place)
{
    if (*place) {
        ((gmpy_guard *)*place)->object = NULL;
        Py_CLEAR(*place);
    }
}

PyDoc_STRVAR(guard_doc, "Sees to the end of memory in a cycle of garbage.");

static PyType_Slot guard_slots[] = {
    {Py_tp_doc, (void *)guard_doc},   {Py_tp_dealloc, guard_dealloc},
    {Py_tp_finalize, guard_finalize}, {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},       {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "gpumem._core._Guard",
    .basicsize = sizeof(gmpy_guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = guard_slots,
};

int
gmpy_guard_init(PyObject *module, gmpy_state *st)
{
    st->GuardType = PyType_FromModuleAndSpec(module, &guard_spec, NULL);
    return st->GuardType ? gmpy_collect_init(st) : -1;
}

/* ---- settling ---- */

/* What release_rescued leaves. */
typedef enum guard_left {
    LEFT_NONE,
    LEFT_YOUNG, // some that are still referred to
    LEFT_OLD,   // some of them were found by a full collection
} guard_left;

/* Lets go of every object in the list, under a new guard that acts in the collections
 * of `round`. */
static guard_left
release_rescued(gmpy_state *st, uint64_t round)
{
    gmpy_guard *list = __atomic_exchange_n(&st->rescued, NULL, __ATOMIC_ACQUIRE);
    guard_left left = LEFT_NONE;

    while (list) {
        gmpy_guard *self = list;
        PyObject *object = self->object;
        gmpy_guard *next;

        list = self->next;
        if (gmpy_guard_new(st, object, self->place, self->end) < 0) {
            PyErr_Clear();
            list_push(st, self); // unguarded it must not be let go of
            continue;
        }
        next = (gmpy_guard *)*self->place;
        next->round = round;
        next->finds = self->round == round ? self->finds + 1 : 1;
        if (Py_REFCNT(object) > 1) {
            left = self->old || left == LEFT_OLD ? LEFT_OLD : LEFT_YOUNG;
        }
        Py_DECREF(self);
        Py_DECREF(object);
    }
    return left;
}

/* A row of collections. False where one did not run. */
static bool
end_garbage(gmpy_state *st, bool wait)
{
    const uint64_t round = __atomic_add_fetch(&st->rounds, 1, __ATOMIC_RELAXED);
    int finds = 0;
    int ran;

    do {
        gmpy_this_thread.round = round;
        ran = gmpy_collect_garbage(st, wait);
        gmpy_this_thread.round = 0;
        if (ran < 0) {
            PyErr_WriteUnraisable(NULL);
        }
    } while (ran > 0 && finds++ < GUARD_FINDS && release_rescued(st, round));
    return ran > 0;
}

/* One thread at a time. Whether the calling one may begin; to `wait` is in vain where
 * it has begun already. */
static bool
settle_begin(gmpy_state *st, bool wait)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000 * 1000};

    for (int i = 0; __atomic_exchange_n(&st->settling, true, __ATOMIC_SEQ_CST); i++) {
        if (!wait || gmpy_this_thread.settling || i == PAUSES) {
            return false;
        }
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS
    }
    gmpy_this_thread.settling = true;
    return true;
}

/* Whether something is left to do that no thread is at. */
static bool
is_left(gmpy_state *st)
{
    return !gm_process_is_frozen() &&
           !__atomic_load_n(&st->settling, __ATOMIC_SEQ_CST) &&
           (__atomic_load_n(&st->owed, __ATOMIC_SEQ_CST) ||
            __atomic_load_n(&st->rescued, __ATOMIC_SEQ_CST));
}

/* The same, after this. */
static bool
settle_end(gmpy_state *st, bool owed)
{
    gmpy_this_thread.settling = false;
    __atomic_store_n(&st->owed, owed, __ATOMIC_SEQ_CST);
    __atomic_store_n(&st->settling, false, __ATOMIC_SEQ_CST);
    return is_left(st);
}

static bool
settle(gmpy_state *st, bool all)
{
    GMPY_TAKE_ERROR(pending);
    bool more = false;

    if (!gm_process_is_frozen() && settle_begin(st, all)) {
        guard_left left = release_rescued(st, 0);
        bool owed = __atomic_load_n(&st->owed, __ATOMIC_RELAXED);

        if (owed || left == LEFT_OLD || (left && all)) {
            owed = !end_garbage(st, all);
        }
        more = settle_end(st, owed);
        if (!more) { // whoever announces next need not wait
            __atomic_store_n(&st->passes, 0, __ATOMIC_RELAXED);
        }
    }
    GMPY_GIVE_ERROR(pending);
    return more;
}

/* Called by the interpreter in the main thread. An interpreter without its lock may
 * forget, until it is asked again, what it is asked for while Python code runs within a
 * pending call. So nobody asks before this one is over, which then looks once more. */
static int
settle_later(void *arg)
{
    PyObject *module = arg;
    gmpy_state *st = gmpy_state_of_module(module);
    bool again = __atomic_load_n(&st->passes, __ATOMIC_RELAXED) > 0;

    if (again) {
        __atomic_sub_fetch(&st->passes, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&st->announced, false, __ATOMIC_SEQ_CST);
    }
    else {
        (void)settle(st, false); // what is left is asked below
        __atomic_store_n(&st->announced, false, __ATOMIC_SEQ_CST);
        again = is_left(st) && st->patience <= PATIENCE;
        __atomic_store_n(&st->passes, again ? st->patience : 0, __ATOMIC_RELAXED);
        st->patience = again ? 2 * st->patience + 1 : 0;
    }
    if (again) {
        announce(st, module);
    }
    Py_DECREF(module);
    return 0;
}

void
gmpy_guards_settle(gmpy_state *st, bool all)
{
    if (settle(st, all) && st->GuardType) {
        announce(st, PyType_GetModule(gmpy_type(st->GuardType)));
    }
}
