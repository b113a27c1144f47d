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
 * - Where one is left, the collector runs twice in a row. The first of these finds the
 *   cycle once more, and calls what finalizers are new to it; again the guard keeps the
 *   object. The second one finds the same, with nobody left who could look: now the
 *   guard calls the object's `end`, while all is whole. What the program brought back
 *   to life in between is found in neither.
 *
 * A guard keeps the object by a reference that it does not show to the collector, which
 * takes the object for used elsewhere. It must not let go of it before the collector
 * has settled what is garbage: that is so when it clears the guard, which by then is a
 * cycle of its own, reached by nothing. From then on the guard waits in a list until
 * the interpreter comes to a pending call, in the main thread, or until somebody comes
 * by gmpy_guards_look.
 *
 * Cost: an object a guarded object. The two collections are full ones. They are run
 * when memory has run out, and else where the one before was a full one too, so what
 * they cost is a part of what the program pays anyway; a young cycle waits until it is
 * old.
 *
 * Threading: the list is lock-free, the rest happens to garbage, which one thread has.
 * In an exiting or a forked process nothing is kept, since nothing will be freed.
 */
#include "guard.h"
#include "pools.h"

#include "core/gm_process.h" // gm_process_is_frozen

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
    void (*end)(PyObject *object);
    uint64_t round;   // which collection may call `end`; 0: none
    gmpy_guard *next; // in the list
};

/* ---- the list ---- */

static void
list_push(gmpy_state *st, gmpy_guard *self)
{
    self->next = __atomic_load_n(&st->rescued, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&st->rescued, &self->next, self, true,
                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

/* Called by the interpreter in the main thread. */
static int
settle_later(void *arg)
{
    PyObject *module = arg;
    gmpy_state *st = gmpy_state_of_module(module);

    __atomic_store_n(&st->settling, false, __ATOMIC_RELAXED);
    gmpy_guards_settle(st, false);
    Py_DECREF(module);
    return 0;
}

/* Has the interpreter come by. Where its list is full, whoever looks next will do. */
static void
list_announce(PyObject *guard)
{
    gmpy_state *st = ((gmpy_guard *)guard)->st;
    PyObject *module;

    if (__atomic_exchange_n(&st->settling, true, __ATOMIC_RELAXED)) {
        return;
    }
    module = Py_NewRef(PyType_GetModule(Py_TYPE(guard)));
    if (Py_AddPendingCall(settle_later, module) < 0) {
        __atomic_store_n(&st->settling, false, __ATOMIC_RELAXED);
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
    if (self->round && self->round == gmpy_this_thread.round) {
        self->end(object);
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
        list_push(self->st, self);
        list_announce(op);
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
               void (*end)(PyObject *object))
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
    return st->GuardType ? 0 : -1;
}

/* ---- settling ---- */

/* False where it could not, which is reported. */
static bool
collect(void)
{
    bool ran = gmpy_collect_garbage() == 0;

    if (!ran) {
        PyErr_WriteUnraisable(NULL);
    }
    return ran;
}

/* Whether the last collection looked at everything, young and old. */
static bool
last_was_full(void)
{
#ifdef Py_GIL_DISABLED
    return true; // there are no others
#else
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *counts = gc ? PyObject_CallMethod(gc, "get_count", NULL) : NULL;
    int young;
    int middle = 1;
    int old = 1;

    if (!counts || !PyArg_ParseTuple(counts, "iii", &young, &middle, &old)) {
        PyErr_Clear(); // another collection will come
    }
    Py_XDECREF(counts);
    Py_XDECREF(gc);
    return middle == 0 && old == 0;
#endif
}

/* Lets go of every object in the list, under a new guard that acts in collection
 * `round`. Returns whether some are still referred to. */
static bool
release_rescued(gmpy_state *st, uint64_t round)
{
    gmpy_guard *list = __atomic_exchange_n(&st->rescued, NULL, __ATOMIC_ACQUIRE);
    bool left = false;

    while (list) {
        gmpy_guard *self = list;
        PyObject *object = self->object;

        list = self->next;
        if (gmpy_guard_new(st, object, self->place, self->end) < 0) {
            PyErr_Clear();
            list_push(st, self); // unguarded it must not be let go of
            continue;
        }
        ((gmpy_guard *)*self->place)->round = round;
        left |= Py_REFCNT(object) > 1;
        Py_DECREF(self);
        Py_DECREF(object);
    }
    return left;
}

/* Two collections with nothing between them but the letting go. */
static void
end_garbage(gmpy_state *st)
{
    const uint64_t outer = gmpy_this_thread.round;
    const uint64_t round = __atomic_add_fetch(&st->rounds, 1, __ATOMIC_RELAXED);

    if (collect() && release_rescued(st, round)) {
        gmpy_this_thread.round = round;
        (void)collect();
        gmpy_this_thread.round = outer;
    }
}

void
gmpy_guards_settle(gmpy_state *st, bool all)
{
    GMPY_TAKE_ERROR(pending);

    if (!gm_process_is_frozen() && release_rescued(st, 0) && (all || last_was_full())) {
        end_garbage(st);
    }
    GMPY_GIVE_ERROR(pending);
}
